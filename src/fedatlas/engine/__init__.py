"""Local training and the driver of rounds: ``loop`` is the oracle, ``fast`` the default."""
