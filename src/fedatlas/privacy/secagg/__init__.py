"""Secure aggregation: the server learns only a sum, not its terms, even if clients leave in any phase (P14).

``client`` and ``server`` are the two halves of its five phases as pure functions over plain messages. ``head`` holds what all clients
of an ask are told, and ``word`` the instructions by which each seals its update. ``fixed`` turns numbers into words of the ring and
sums of words into numbers. ``once`` records the sums that a party helped to open. Nothing here knows about the contents of rounds,
configuration or transport.
"""
