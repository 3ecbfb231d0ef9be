"""Local training and the driver of rounds: ``loop`` is the reference, ``fast`` the default."""
