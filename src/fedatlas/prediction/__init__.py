"""Predictions of a finished run's model for new rows, whether clients held rows or parties held columns."""
