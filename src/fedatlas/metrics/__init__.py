"""Figures of quality, fairness and certainty: pure functions of arrays, summed in float64 (ALGORITHMS.md C12, C14)."""
