"""Secret sharing and computing on shares: Shamir's shares (P13), additive shares and products by Beaver's triples (P15).

Blocks for mechanisms: pure functions on whole numbers and tables of words. They need neither torch nor another package.
"""
