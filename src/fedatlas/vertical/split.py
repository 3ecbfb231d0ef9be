"""Split aligned rows into training, validation and test: the active party draws, and sends the places to the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import Question, RoundGenerator, State
from fedatlas.errors import DataError
from fedatlas.rng import numpy_stream
from fedatlas.vertical.align import Answered
from fedatlas.vertical.forms import Numbers, WholeNumber
from fedatlas.vertical.letters import LETTERS, Due, LetterKind, Mail, letter, others, taken, unusable
from fedatlas.vertical.parties import Columns, Whole, aligned, order, tensor

SPLIT, PLACES = "split rows", "told rows"
PARTS = ("train", "held", "test")
TOLD = LetterKind(PLACES, {"places": {part: Numbers(torch.int64, (None,), 0, "places") for part in PARTS}})
COUNTS = {"rows": {part: WholeNumber(int(part != "held")) for part in PARTS}}  # without a share, none are held out


def parted(y: Any, task: str, shares: Mapping[str, float], seed: int, *purpose: int) -> dict[str, Whole]:
    """Map each part to its places, ascending. ``shares``: those of "held" and "test". ``purpose``: of the stream, besides the split.

    With classes, each part gets its share of every class.
    """
    stream = numpy_stream(seed, "split", *purpose)
    out: dict[str, list[Whole]] = {part: [] for part in PARTS}
    groups = [np.flatnonzero(y == value) for value in np.unique(y)] if task == "classes" else [np.arange(len(y))]
    for rows in groups:
        drawn = stream.permutation(rows)
        test = round(shares["test"] * len(rows))
        held = round(shares["held"] * len(rows))
        for part, some in zip(PARTS, (drawn[test + held :], drawn[test : test + held], drawn[:test]), strict=True):
            out[part].append(some)
    return {part: np.sort(np.concatenate(some)).astype(np.int64) for part, some in out.items()}


def _split(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    own = aligned(data, state)
    assert own.y is not None
    shares = {"test": message["test"], "held": message["held"]}
    # places are told to all: if labels have noise, none of them decides on the split, and runs with other noise have the same test rows
    found = parted(own.y, data.task if data.noised is None else "", shares, data.seed)
    if not len(found["train"]) or not len(found["test"]) or (shares["held"] and not len(found["held"])):
        raise DataError(f"{len(own.y)} common rows are too few to train, validate and test.")
    if data.task == "classes" and len(np.unique(own.y[found["train"]])) < 2:
        raise DataError("all common training rows have the same class: there is nothing to learn.")
    if own.weight is not None and not own.weight[found["train"]].any():
        raise DataError("all common training rows have weight 0: there is nothing to learn.")
    places = {part: tensor(rows) for part, rows in found.items()}
    counts = {part: len(rows) for part, rows in found.items()}
    told = letter(data, others(data), PLACES, {"places": places})
    return {"rows": counts, LETTERS: [told]}, {**state, "split": places}, session


def _told(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    found = taken(data, message, data.active, TOLD, places=len(order(state)))["places"]
    if len(np.unique(all_of := np.concatenate([found[part].numpy() for part in PARTS]))) != len(all_of) != 0:
        raise unusable(data.parties[data.active], PLACES, "a row is in two parts")
    return {}, {**state, "split": {part: found[part] for part in PARTS}}, session


QUESTIONS: Mapping[str, Question] = {
    SPLIT: Question(_split, shows=("rows", LETTERS), stateful=True),
    PLACES: Question(_told, shows=("told",), stateful=True),
}


def due(test: float, held: float) -> Due:
    """Return what parties may be asked."""
    return {SPLIT: ("active", ({"test": test, "held": held},)), PLACES: ("passive", ({},))}


def split(server: State, test: float, held: float = 0.0) -> RoundGenerator:
    """Return the server's state with ``rows``: how many train, are held out, test.

    DataError if the rows cannot be split this way.
    """
    active, mail = server["active"], Mail(server["names"])
    heard = yield from mail.ask((active,), SPLIT, says=COUNTS, test=test, held=held)
    yield from mail.ask([k for k in range(len(mail.names)) if k != active], PLACES, PLACES)
    return {**server, "rows": dict(heard[active]["rows"])}
