"""Runs as values: make sure that a run exists, its loop and its end, several seeds, baselines, and previews."""
