"""Assignments of training rows to clients: partitioners and their figures (D1 to D12)."""

from fedatlas.data.partition.build import PARTITIONS, make_partition, split
from fedatlas.data.partition.export import to_flower
from fedatlas.data.partition.features import apply_feature_skew
from fedatlas.data.partition.figures import describe

__all__ = ["PARTITIONS", "apply_feature_skew", "describe", "make_partition", "split", "to_flower"]
