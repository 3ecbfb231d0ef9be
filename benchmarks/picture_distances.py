"""What FID and KID say of damaged pictures: ``python benchmarks/picture_distances.py mnist [--features FILE] [--rows 5000]``.

Two halves of the test rows, drawn at random, are compared by the FID-proxy of the training rows or by Inception weights; then the
first half with the second under noise (standard deviation in units from black to white) and under a mean over 3 x 3, several times.
``FEDATLAS_DATA`` is where data sets are found.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.attacks.picture_features import in_pixels, source_of
from fedatlas.config import parse
from fedatlas.metrics.image_features import picture_distance
from fedatlas.rng import torch_stream
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of


def noised(x: Tensor, sigma: float) -> Tensor:
    """Pictures in [0, 1] with Gaussian noise, cut to [0, 1]."""
    return (x + sigma * torch.randn(x.shape, generator=torch_stream(1, "noise"))).clamp(0, 1)


def blurred(x: Tensor, times: int) -> Tensor:
    """Pictures whose pixels are replaced by the mean over 3 x 3, several times."""
    for _ in range(times):
        x = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return x


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--features", default="")
    parser.add_argument("--rows", type=int, default=5000)
    given = parser.parse_args()
    setup = set_up(checked(parse({"data": {"name": given.data}, "partition": {"name": "iid"}})))
    truth = truth_of(setup)
    began = os.times()
    source = source_of(truth, given.features)
    spent = os.times().user - began.user
    print(f"{given.data}: {source.name} {source.sha256[:16]}, {spent:.1f} s of one core to train, or less if kept")
    test = setup.dataset.splits["test"].x
    order = torch.randperm(len(test), generator=torch_stream(0, "shuffle"))[: 2 * given.rows]
    one, other = in_pixels(setup.dataset.inputs(test[order], torch.float32), truth).chunk(2)
    damaged = {
        "undamaged": other,
        **{f"noise {sigma}": noised(other, sigma) for sigma in (0.1, 0.2, 0.4)},
        **{f"blurred {times}": blurred(other, times) for times in (1, 2, 4)},
    }
    for name, pictures in damaged.items():
        found = picture_distance(one, pictures, source)
        print(f"{name:12s} {found.name} {found.value:8.3f}, KID {found.kid:8.4f}, {found.rows} rows a side", flush=True)


if __name__ == "__main__":
    main()
