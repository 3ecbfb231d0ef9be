"""Runs as values: a run that has to be there, its loop and its end, several seeds, baselines, and the look before running."""
