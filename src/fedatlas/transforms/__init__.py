"""The transforms by name: one short file and one line here for each. `fedatlas list transforms` prints this table."""

from collections.abc import Callable, Mapping

from fedatlas.algorithm import Transform
from fedatlas.transforms.chain import chain
from fedatlas.transforms.clip import clip
from fedatlas.transforms.float16 import float16
from fedatlas.transforms.qsgd import qsgd
from fedatlas.transforms.topk import topk

TRANSFORMS: Mapping[str, Callable[..., Transform]] = {
    "topk": topk,
    "qsgd": qsgd,
    "float16": float16,
    "clip": clip,
}

__all__ = ["TRANSFORMS", "chain"]
