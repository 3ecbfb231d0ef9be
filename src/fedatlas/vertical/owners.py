"""Owners of rows of the same columns: each splits its own rows, and judges the model on them.

Only counts and sums leave an owner, such as the number of its test rows that are predicted right; no row, label or prediction does. The
coordinator adds them up. A split follows from the seed and the owner's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from fedatlas.algorithm import Ask, Question, RoundGenerator, State
from fedatlas.errors import DataError, ProtocolError
from fedatlas.metrics import quality
from fedatlas.vertical.align import Answered
from fedatlas.vertical.forms import Form, ListOf, Number, WholeNumber
from fedatlas.vertical.judging import JUDGE, JUDGED_ON, Judged, Outputs
from fedatlas.vertical.letters import answered
from fedatlas.vertical.parties import Columns, Floats, each, places, tensor, to_all
from fedatlas.vertical.split import PARTS, parted

SPLIT = "split own rows"
COUNTS: Form = {"rows": {part: WholeNumber(int(part == "train")) for part in PARTS}}
OF_LABELS = ("weight", "mean", "spread")
OF_NUMBERS = (*OF_LABELS, "squared", "absolute")


class Side(NamedTuple):
    """Parties and their states."""

    parties: tuple[Columns, ...]
    states: tuple[State, ...]


def _split(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    assert data.y is not None
    shares = {"test": message["test"], "held": message["held"]}
    found = parted(data.y, data.task, shares, data.seed, data.party)
    if not len(found["train"]):
        raise DataError(f"party '{data.name}' has no row left to train on: give it more rows, or leave it out.")
    held = {part: tensor(rows) for part, rows in found.items()}
    order = {"order": tensor(np.arange(len(data.y)))}
    return (
        {"rows": {part: len(rows) for part, rows in found.items()}},
        {**state, "align": order, "split": held},
        session,
    )


def split(server: State, test: float, held: float = 0.0) -> RoundGenerator:
    """Return the server's state with ``rows``, how many train, are held out and test, and ``own``, the same of each owner.

    DataError if no owner has test rows.
    """
    own = server["owners"]
    heard = yield from each(to_all(own, SPLIT, {"test": test, "held": held}), server["names"])
    for k in own:
        answered(server["names"][k], SPLIT, heard[k], COUNTS)
    rows = {part: sum(heard[k]["rows"][part] for k in own) for part in PARTS}
    if not rows["test"] or (held and not rows["held"]):
        raise DataError(f"{sum(rows.values())} rows of all parties are too few to train, validate and test.")
    return {**server, "rows": rows, "own": {server["names"][k]: dict(heard[k]["rows"]) for k in own}}


def questions(outputs: Outputs) -> Mapping[str, Question]:
    """Return the questions by which owners split their rows and judge."""

    def judge(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
        if message["on"] not in JUDGED_ON:
            raise ProtocolError("a model is judged on rows that test or that are held out, and on no others.")
        return {"sums": sums(Judged(data, state, outputs(state), message["on"]))}, state, session

    return {
        SPLIT: Question(_split, shows=("rows",), stateful=True),
        JUDGE: Question(judge, shows=("sums",), stateful=True),
    }


def sums(one: Judged) -> dict[str, Any]:
    """Return an owner's sums over the judged rows. Squared errors are in the label's unit."""
    if one.task == "numbers":
        found = quality.number_sums(one.out, one.y, np.zeros(len(one.y)))
        labels = quality.number_sums(one.train, one.train, np.zeros(len(one.train)))
        trained = {key: getattr(labels, key) for key in OF_LABELS}
        return {**{key: getattr(found, key) for key in OF_NUMBERS}, "train": trained}
    y, predicted = one.y.astype(np.int64), one.predicted.astype(np.int64)
    of = quality.class_sums(predicted, y, one.losses, one.classes, one.weight)
    return {**{key: getattr(of, key).tolist() for key in ("true", "predicted", "hits")}, "loss": of.loss}


def form_of(task: str, classes: int) -> Form:
    """Return the form of an owner's sums."""
    if task == "numbers":
        found = {key: Number() if key == "mean" else Number(0) for key in OF_NUMBERS}
        return {"sums": {**found, "train": {key: found[key] for key in OF_LABELS}}}
    counts = {key: ListOf(Number(0), classes) for key in ("true", "predicted", "hits")}
    return {"sums": {**counts, "loss": Number(0)}}


def figures(task: str, told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the quality fields of a row of metrics.jsonl from the sums of all owners."""
    if task == "numbers":
        total = reduce(add, [quality.NumberSums(**{key: one[key] for key in OF_NUMBERS}, loss=0.0) for one in told])
        trained = reduce(add, [quality.NumberSums(**one["train"], squared=0.0, absolute=0.0, loss=0.0) for one in told])
        unit = trained.spread / trained.weight or 1.0  # as `Judged.losses`
        return {**quality.number_figures(total), "loss": total.squared / total.weight / unit}
    arrays = [{key: np.array(one[key]) for key in ("true", "predicted", "hits")} for one in told]
    total_ = reduce(add, [quality.ClassSums(**one, loss=said["loss"]) for one, said in zip(arrays, told, strict=True)])
    found = quality.class_figures(total_)
    found.pop("per_class_accuracy")
    return {**found, "auc": None}  # an area under a curve is of single rows, and these do not leave an owner


def judged(server: State, on: str = "test") -> RoundGenerator:
    """Add ``quality`` to the server's state: figures of all owners' "test" or "held" out rows."""
    own, task = server["owners"], server["task"]
    heard = yield from each(Ask(tuple(own), JUDGE, {k: {"on": on} for k in own}, "each"), server["names"])
    for k in own:
        answered(server["names"][k], JUDGE, heard[k], form_of(task, server.get("classes", 2)))
    return {**server, "quality": figures(task, [heard[k]["sums"] for k in own]), "intervals": {}}


def pooled(side: Side) -> Side:
    """Return one party with all owners' rows, and the split that they drew: only a simulation can make it, to measure."""
    held = [(one, state) for one, state in zip(*side, strict=True) if one.y is not None]
    first, state = held[0]
    starts = np.cumsum([0, *(len(one.x) for one, _ in held)])
    split_ = {
        part: tensor(np.concatenate([places(own, part) + at for (_, own), at in zip(held, starts, strict=False)]))
        for part in PARTS
    }
    x = np.concatenate([one.x for one, _ in held])
    y = np.concatenate([one.y for one, _ in held if one.y is not None])
    ids = tuple(f"{one.name}\x1f{row}" for one, _ in held for row in range(len(one.x)))
    one = first._replace(name="joined", x=x, y=y, ids=ids)
    return Side((one,), ({**state, "align": {"order": tensor(np.arange(len(x)))}, "split": split_},))


def side_of(
    owned: Sequence[tuple[str, Floats, Floats]], roles: Sequence[str], *, classes: int = 0, workers: int = 1
) -> Side:
    """Return owners, each with its name, rows and targets, all rows for training, and the roles without data after them."""
    names, columns = (*(name for name, _, _ in owned), *roles), tuple(map(str, range(owned[0][1].shape[1])))
    task = "classes" if classes else "numbers"
    empty = np.empty((0, len(columns)))
    parties = [
        Columns(k, name, 0, names, (), x, columns, y, task=task, classes=classes, workers=workers)
        for k, (name, x, y) in enumerate((*owned, *((role, empty, None) for role in roles)))
    ]
    states: list[State] = [
        {} if one.y is None else {"split": {"train": tensor(np.arange(len(one.y)))}} for one in parties
    ]
    return Side(tuple(parties), tuple(states))
