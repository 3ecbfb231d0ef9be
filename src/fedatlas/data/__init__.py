"""Data: sources, splits, partitions, preparation and the order of batches."""
