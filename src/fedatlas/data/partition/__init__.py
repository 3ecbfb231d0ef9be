"""Who holds which training rows: partitioners, their figures and their picture (ALGORITHMS.md section 9)."""

from fedatlas.data.partition.build import PARTITIONS, make_partition, split
from fedatlas.data.partition.export import to_flower
from fedatlas.data.partition.features import apply_feature_skew
from fedatlas.data.partition.figures import describe
from fedatlas.data.partition.picture import draw, draw_text

__all__ = ["PARTITIONS", "apply_feature_skew", "describe", "draw", "draw_text", "make_partition", "split", "to_flower"]
