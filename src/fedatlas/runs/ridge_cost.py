"""Fits of private ridge regression, measured: ciphertexts that cross, core seconds, and the rows that they were made from."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from fedatlas import machine
from fedatlas.config import parse
from fedatlas.federation.link import Observer
from fedatlas.runs.columns_baselines import trained
from fedatlas.runs.columns_preview import owners_side
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.vertical.letters import LETTERS
from fedatlas.vertical.owners import Side, side_of
from fedatlas.vertical.parties import Floats, places
from fedatlas.vertical.ridge import PRIVATE_RIDGE
from fedatlas.vertical.ridge.roles import ROLES
from fedatlas.vertical.ridge.scheme import ciphertexts
from fedatlas.vertical.ridge.settings import private_ridge


class Counted(Observer):
    """How many ciphertexts cross."""

    def __init__(self) -> None:
        self.ciphertexts = 0

    def replied(self, request: Any, update: Any) -> None:  # noqa: ARG002
        """Count those of the letters of one reply."""
        self.ciphertexts += sum(len(one["content"].get("ciphertexts", ())) for one in update.get(LETTERS, ()))


class MeasuredFit(NamedTuple):
    """A fit, its cost, and the training rows of all owners."""

    x: Floats
    y: Floats
    coefficients: Floats  # (columns + 1,), the intercept last
    bound: float  # the least of the owners' bounds
    ciphertexts: int
    due: int  # ciphertexts by the formula
    core_seconds: float


def table_side(name: str, owners: int, seed: int) -> Side:
    """Return a table of numbers, its rows dealt to owners and split as in a run."""
    asked = {"data": {"name": name}, "partition": {"name": "iid", "clients": owners}, "seed": seed}
    return owners_side(consortium(checked(parse({**asked, "algorithm": {"name": "private_ridge"}}))))


def drawn_side(rows: int, columns: int, owners: int, seed: int) -> Side:
    """Return owners of drawn numbers."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, columns))
    y = x @ draw.normal(size=columns) + draw.normal(size=rows)
    owned = [(f"owner-{k}", x[at], y[at]) for k, at in enumerate(np.array_split(np.arange(rows), owners))]
    return side_of(owned, ROLES, workers=machine.cores())


def measured_fit(side: Side, l2: float, *, sealed: bool) -> MeasuredFit:
    """Fit numbers, encrypted under a key of 2,048 bits or in the clear, and measure it."""
    how, seen, began = private_ridge(l2=l2)._replace(encrypted=sealed), Counted(), sum(os.times()[:4])
    with machine.one_thread_an_operator():
        done = trained(side, PRIVATE_RIDGE, how, PRIVATE_RIDGE.fixed, "published", [seen])
    took = sum(os.times()[:4]) - began
    owned = [(one, places(state, "train")) for one, state in zip(*side, strict=True) if one.y is not None]
    x = np.concatenate([one.x[at] for one, at in owned])
    y = np.concatenate([one.y[at] for one, at in owned if one.y is not None])
    bound = min(done.state(one.party)["ridge"]["error"] for one, _ in owned)
    coefficients = done.state(0)["ridge"]["coefficients"].numpy()[:, 0]
    due = ciphertexts(len(owned), x.shape[1] + 1, 1) if sealed else 0
    return MeasuredFit(x, y, coefficients, bound, seen.ciphertexts, due, took)
