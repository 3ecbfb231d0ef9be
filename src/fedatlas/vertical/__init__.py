"""Parties that hold different columns of the same rows: private alignment, and trees grown between them.

parties.py    what a party holds, and what the alignment left in its state
ids.py        ids as texts that can be compared; what is wrong with them
psi.py        points of a group in place of ids
align.py      private set intersection, as questions and generators
split.py      which aligned rows train, which judge
judging.py    what the active party says of its model
boosting/     SecureBoost
"""
