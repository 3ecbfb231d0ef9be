"""Algorithms under transforms, for tests."""

from __future__ import annotations

from typing import Any

from fedatlas.algorithm import Algorithm, Transform
from fedatlas.transforms import TRANSFORMS
from federation import Federation, brief, federation

KEYS: dict[str, dict[str, Any]] = {"topk": {"share": 0.2}, "qsgd": {"levels": 3}, "float16": {}, "clip": {"norm": 0.02}}


def made(kind: str, **keys: Any) -> Transform:
    return TRANSFORMS[kind](**{**KEYS.get(kind, {}), **keys})


def using(algorithm: Algorithm, transform: Transform | None, **local: Any) -> Federation:
    fed = federation(algorithm, **local)
    return fed._replace(bench=fed.bench._replace(transform=transform))


def compressed(name: str, kind: str, **local: Any) -> Federation:
    """An algorithm with its defaults under a transform."""
    return using(brief(name), made(kind), **local)
