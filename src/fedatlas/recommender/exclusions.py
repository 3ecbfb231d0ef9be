"""Choices that requirements exclude before any forecast, each with its reason."""

from __future__ import annotations

import numpy as np

from fedatlas.recommender.contest import Fitted
from fedatlas.recommender.requirements import SEES, Requirements
from fedatlas.study.measurements import Bools

NOISE = "it adds noise, which costs accuracy: limit at_most.epsilon to allow it."


def excluded(fitted: Fitted, asked: Requirements) -> dict[str, str]:
    """Return choice -> why it is excluded: the server would see more than is allowed, or it adds noise that nobody asked for."""
    noised: Bools = np.asarray(np.isfinite(fitted.costs["epsilon"]).any(axis=(0, 2)))
    out = {}
    for name, sees, noisy in zip(fitted.choices, fitted.sees, noised, strict=True):
        if SEES.index(sees) < SEES.index(asked.server_sees):
            out[name] = f"the server sees {sees}, but privacy.server_sees asks for {asked.server_sees}."
        elif noisy and not asked.noise_asked:
            out[name] = NOISE
    return out
