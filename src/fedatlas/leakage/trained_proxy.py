"""``fedatlas fid-proxy``: train the network by whose features generated pictures are compared with an experiment's own."""

from __future__ import annotations

from typing import Any

import torch

from fedatlas.attacks.picture_features import in_pixels, proxy_of
from fedatlas.errors import ConfigError
from fedatlas.metrics.fid_proxy import NAME, ROWS, accuracy
from fedatlas.metrics.image_features import as_bytes, read_source
from fedatlas.setup.assembly import set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.pixels import Refused, pixel_range
from fedatlas.setup.truth import truth_of

REFUSED = Refused(f"an {NAME} compares pictures, but these rows are {{}}.", "to train one")


def trained_proxy(whole: Checked) -> dict[str, Any]:
    """Train the FID-proxy of an experiment's training rows, unless it is cached.

    Returns ``file``, ``sha256``, ``rows`` that it learns from, and ``accuracy`` on the test rows. ConfigError unless the rows are
    pictures in classes.
    """
    if whole.columns:
        raise ConfigError(f"an {NAME} compares pictures, but the parties hold columns.")
    setup = set_up(whole)
    pixel_range(setup.held.preprocess, whole.config.data.name, REFUSED)
    truth = truth_of(setup)
    path = proxy_of(truth)
    test = setup.dataset.splits["test"]
    images = as_bytes(in_pixels(setup.dataset.inputs(test.x, torch.float32), truth))
    right = accuracy(path.read_bytes(), images, test.y)
    rows = min(sum(truth.sizes.values()), ROWS)
    return {"file": str(path), "sha256": read_source(path).sha256, "rows": rows, "accuracy": right}


def proxy_sentence(found: dict[str, Any]) -> str:
    """Return what was trained."""
    return (
        f"{NAME} of {found['rows']:,} training rows: {found['file']}\n"
        f"SHA-256 {found['sha256']}; {found['accuracy']:.1%} of the test rows classified correctly."
    )
