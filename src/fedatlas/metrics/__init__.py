"""Figures of quality, fairness and certainty: pure functions of arrays, summed in float64 (C12, C14)."""
