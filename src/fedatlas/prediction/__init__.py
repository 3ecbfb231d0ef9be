"""A finished run's model on new rows: of one federation of rows, or of parties that hold columns."""
