"""Trees whose nodes belong to parties with different columns: the parts that all schemes of trees share.

nodes.py        the node of each row in a tree that is grown
records.py      the parts of the trees that a party keeps
letter_parts.py letters about nodes and rows, and forms of their parts
descent.py      rows move to the next level, by letters
importance.py   the gain of each column, told to its owner
files.py        a model as plain values, and back
"""
