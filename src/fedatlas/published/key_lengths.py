"""The time of encrypted aggregation by key length, measured on the cryptosystem itself: keys too short to protect included."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.rng import torch_stream

CLIENTS, BITS, RANGE = 8, 24, 4.0
REPEATS = 3


def seconds_by_phase(key_bits: int, values: int) -> dict[str, float]:
    """Return median seconds to encrypt, add and open ``values`` numbers of eight clients, in one process."""
    keys = paillier.holder(paillier.generate(key_bits, testing=True))
    public, form = keys.public, paillier.layout(key_bits, BITS, CLIENTS)
    stream = torch_stream(0, "key lengths")
    models = [torch.randn(values, generator=stream, device="cpu") * 0.05 for _ in range(CLIENTS)]
    codes = [paillier.quantise(x, bits=BITS, range=RANGE, owner="a client", part="all") for x in models]
    packed = [paillier.pack(form, each) for each in codes]
    spent: dict[str, list[float]] = {}

    def timed(phase: str, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        out = work(*given, **named)
        spent.setdefault(phase, []).append(time.perf_counter() - began)
        return out

    for _ in range(REPEATS):
        batches = timed("encrypt", lambda: [paillier.encrypt(public, one, keys=keys) for one in packed])
        total = timed("aggregate", paillier.weighted_sum, public, batches, [1] * CLIENTS)
        opened = timed("decrypt", paillier.decrypt, keys, total)
    found = paillier.dequantise(paillier.unpack(form, opened, values, CLIENTS), bits=BITS, range=RANGE, total=CLIENTS)
    exact = torch.stack(models).double().mean(0)
    if float((torch.from_numpy(found) - exact).abs().max()) > RANGE / (1 << BITS):
        raise AssertionError("the opened mean is further off than half a step")
    return {phase: median(each) for phase, each in spent.items()}
