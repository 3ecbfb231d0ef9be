"""Secure aggregation: the server learns a sum and nothing of its terms, though clients leave in any phase (P14).

``client`` and ``server`` are the two halves of its five phases as pure functions over plain messages; ``head`` is what all clients
of an ask are told alike, ``word`` what each seals its update by; ``fixed`` turns numbers into words of the ring and sums of words into
numbers; ``once`` is a party's record of what it helped to open. Nothing here knows of rounds' contents, configuration or transport.
"""
