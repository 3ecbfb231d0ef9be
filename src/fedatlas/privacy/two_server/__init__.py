"""Aggregation by two servers that do not collude (P15): each client sends one additive share of its update to either of them.

``servers`` holds what a server does with its shares, ``shared_sum`` the protocol around an ask.
"""
