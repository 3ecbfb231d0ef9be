"""FID-proxy: features of a small network that learns to classify the pictures at hand (A3, without Inception weights).

Two convolutions of 3 x 3 (32 and 64 channels), each with ReLU and a maximum over 2 x 2; a layer of 64 with ReLU, whose outputs are the
features, scaled to mean square 1 over the training pictures; the classes. Figures compare only with those by the same network, which
its SHA-256 names.

The network is a function of the set of training pictures with labels, not of their order or of who holds them. At most `ROWS` are used:
those whose hash comes first. Training takes one thread, so that one machine always makes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedatlas.errors import ConfigError, DataError
from fedatlas.machine import one_thread_an_operator
from fedatlas.rng import torch_stream

NAME = "FID-proxy"
COMMAND = "fedatlas fid-proxy FILE.toml"
ROWS, PASSES, BATCH, RATE = 10_000, 3, 64, 1e-3
CHANNELS, FEATURES = (32, 64), 64
VERSION = 1  # to be raised when anything above changes

Weights = dict[str, Tensor]


class TrainingSet(NamedTuple):
    """The pictures that a network is trained on, in an order that follows from their content."""

    images: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,)
    digest: str  # of content and method: equal digests make equal networks on one machine


def training_set(images: Tensor, labels: Tensor) -> TrainingSet:
    """Return at most `ROWS` of ``images`` (N, C, H, W) uint8 with class numbers ``labels`` (N,), whatever their order.

    DataError if the pictures are smaller than 4 x 4 pixels or have only one class.
    """
    if min(images.shape[2:]) < 4 or len(set(labels.tolist())) < 2:
        raise DataError(f"an {NAME} needs pictures of at least 4 x 4 pixels and of two classes.")
    rows = zip(images.numpy(), labels.tolist(), strict=True)
    keys = [hashlib.sha256(image.tobytes() + f"{label:.0f}".encode()).digest() for image, label in rows]
    used = sorted(range(len(keys)), key=keys.__getitem__)[:ROWS]
    content = f"{VERSION} {tuple(images.shape[1:])} ".encode() + b"".join(keys[i] for i in used)
    return TrainingSet(images[used], labels[used].long(), hashlib.sha256(content).hexdigest())


def train_proxy(rows: TrainingSet) -> bytes:
    """Return the network trained on ``rows``, as a ``.safetensors`` file."""
    images, labels, _ = rows
    with one_thread_an_operator():
        weights = _initial(tuple(images.shape[1:]), int(labels.max()) + 1)
        leaves = [w.requires_grad_() for w in weights.values()]
        optimizer = torch.optim.Adam(leaves, lr=RATE)
        stream = torch_stream(0, "shuffle", NAME)
        for _ in range(PASSES):
            for batch in torch.split(torch.randperm(len(images), generator=stream), BATCH):
                loss = F.cross_entropy(_outputs(weights, images[batch]), labels[batch])
                gradients = torch.autograd.grad(loss, leaves)
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    leaf.grad = gradient
                optimizer.step()
        return save(
            {**_scaled(weights, images), "shape": torch.tensor(images.shape[1:])}, {"fedatlas": f"{NAME} {VERSION}"}
        )


def extractor(data: bytes, path: str) -> Callable[[Tensor], Tensor]:
    """Return the function from pictures (n, C, H, W) uint8 to features (n, 64) of a file's network; ``path`` names it in a ConfigError."""
    try:
        weights = load(data)
        shape = tuple(weights["shape"].tolist())
        _features(weights, torch.zeros((1, *shape), dtype=torch.uint8))
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise ConfigError(f"features: '{path}' is no {NAME}; '{COMMAND}' makes one.") from error

    def extract(pixels: Tensor) -> Tensor:
        if tuple(pixels.shape[1:]) != shape:
            here, there = ("x".join(map(str, sides)) for sides in (pixels.shape[1:], shape))
            raise DataError(f"the {NAME} '{path}' reads pictures of {there}, not {here}; '{COMMAND}' makes another.")
        return _features(weights, pixels)

    return extract


def accuracy(data: bytes, images: Tensor, labels: Tensor) -> float:
    """Return the share of ``images`` (N, C, H, W) uint8 that a file's network classifies correctly."""
    weights = load(data)
    with torch.inference_mode():
        right = [
            (_outputs(weights, x).argmax(1) == y).double().sum()
            for x, y in zip(torch.split(images, 500), torch.split(labels, 500), strict=True)
        ]
    return float(sum(right)) / len(labels)


def _initial(shape: tuple[int, ...], classes: int) -> Weights:
    """Return weights by He's uniform law, drawn from a stream, and biases of 0."""
    stream = torch_stream(0, "init", NAME)
    (one, two), (channels, height, width) = CHANNELS, shape
    flat = two * (height // 4) * (width // 4)
    sides = {
        "first": (one, channels, 3, 3),
        "second": (two, one, 3, 3),
        "dense": (FEATURES, flat),
        "head": (classes, FEATURES),
    }
    weights = {}
    for name, size in sides.items():
        bound = (6 / np.prod(size[1:])) ** 0.5
        weights[f"{name}.weight"] = (torch.rand(size, generator=stream) * 2 - 1) * bound
        weights[f"{name}.bias"] = torch.zeros(size[0])
    return weights


def _scaled(weights: Weights, images: Tensor) -> Weights:
    """Return the same network with features whose mean square over ``images`` is 1, as KID's kernel, which is not homogeneous, needs."""
    weights = {name: w.detach() for name, w in weights.items()}
    length = torch.cat([_features(weights, x).square() for x in torch.split(images, 500)]).mean().sqrt()
    down = {name: weights[name] / length for name in ("dense.weight", "dense.bias")}
    return {**weights, **down, "head.weight": weights["head.weight"] * length}


def _features(weights: Weights, pixels: Tensor) -> Tensor:
    x = pixels.float() / 127.5 - 1
    for name in ("first", "second"):
        x = F.max_pool2d(F.relu(F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)), 2)
    return F.relu(F.linear(x.flatten(1), weights["dense.weight"], weights["dense.bias"]))


def _outputs(weights: Weights, pixels: Tensor) -> Tensor:
    return F.linear(_features(weights, pixels), weights["head.weight"], weights["head.bias"])
