"""Additive perturbation of a table's rows (P5), and the reconstruction of a column's distribution."""
