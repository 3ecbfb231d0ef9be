"""Rotation and translation of a table's rows (P6), and the attacks that undo them."""
