"""The network by whose features the scorer compares an attack's pictures with real ones: a user's file, or the FID-proxy of the rows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedatlas.attacks.view_attack import Truth
from fedatlas.data.store import cache, write_atomically
from fedatlas.errors import ConfigError
from fedatlas.metrics.fid_proxy import NAME, train_proxy, training_set
from fedatlas.metrics.image_features import FeatureSource, as_bytes, read_source

FOLDER = "fid-proxy"
"""The folder of trained networks in the user's cache."""


def source_of(truth: Truth, features: str = "") -> FeatureSource:
    """Return the network in the file ``features``; by default the FID-proxy of the run's training rows, trained if none is cached."""
    return read_source(features or proxy_of(truth))


def proxy_of(truth: Truth) -> Path:
    """Return the file of the FID-proxy of all rows that clients train on. ConfigError unless they are pictures, in classes."""
    if not truth.classes:
        raise ConfigError(f"an {NAME} learns classes, but the target is a number.")
    held = [truth.rows(k) for k, n in truth.sizes.items() if n]
    images = in_pixels(torch.cat([rows.x for rows in held]), truth)
    rows = training_set(as_bytes(images), torch.cat([rows.y for rows in held]))
    path = cache(FOLDER) / f"{rows.digest[:32]}.safetensors"
    if not _usable(path):
        write_atomically(path, train_proxy(rows))
    return path


def _usable(path: Path) -> bool:
    """Return whether a file holds a whole network; a damaged one in the cache is trained again."""
    if not path.exists():
        return False
    try:
        read_source(path)
    except ConfigError:
        return False
    return True


def in_pixels(x: Tensor, truth: Truth) -> Tensor:
    """Return pictures (N, C, H, W) as the network reads them in pixels from 0 to 1."""
    black, white = truth.box()
    return (x - black) / (white - black)
