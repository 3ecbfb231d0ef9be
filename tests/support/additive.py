"""A scheme on columns as somebody adds one: each party fits a linear part to what all parts together leave unexplained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedatlas.algorithm import Ask, Question, RoundGenerator, State
from fedatlas.registry import Positive, Whole
from fedatlas.vertical.align import Answered
from fedatlas.vertical.judging import probabilities
from fedatlas.vertical.parties import Columns, Floats, aligned, each, places, tensor, to_all
from fedatlas.vertical.scheme import LearnsRow, Scheme, Words

LEFT, FIT, PART, ADD, SIZE = "left over", "fit a part", "say a part", "add parts", "size of coefficients"


class Fits(NamedTuple):
    """How parts are fitted."""

    fits: int
    rate: float


def additive(*, fits: Whole = 8, rate: Positive = 0.5) -> Fits:
    """A sum of linear parts, one for each party's columns.

    fits: how often every party fits its part, one a row of metrics.jsonl.
    rate: share of a fit that is taken.
    """
    return Fits(fits, rate)


def numbers(data: Columns, state: State) -> Floats:
    """(N, columns + 1) of the aligned rows, scaled as those that train; a hole is 0, as is all that a party does not have."""
    x = aligned(data, state).x
    held = state["additive"]
    scaled = np.nan_to_num((x - held["mean"].numpy()) / held["sd"].numpy())
    return np.concatenate([scaled, np.ones((len(x), 1))], axis=1)


def begun(data: Columns, state: State) -> State:
    """A party's state with the scale of its columns and no part yet."""
    if "additive" in state:
        return state
    x = aligned(data, state).x[places(state, "train")]
    sd = np.nanstd(x, axis=0)
    scale = {"mean": tensor(np.nanmean(x, axis=0)), "sd": tensor(np.where(sd > 0, sd, 1.0))}
    return {**state, "additive": {**scale, "part": tensor(np.zeros(x.shape[1] + 1))}}


def left(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """The active party: what the parts leave of the label, of the rows that train; log-odds begin at 0, numbers at their mean."""
    state, own, train = begun(data, state), aligned(data, state), places(state, "train")
    assert own.y is not None
    start = 0.0 if data.task == "classes" else float(own.y[train].mean())
    margin = message["parts"].numpy() if "parts" in message else np.full(len(own.y), start)
    held = {**state["additive"], "margin": tensor(margin), "start": start}
    said = probabilities(margin) if data.task == "classes" else margin
    return {"left": tensor((own.y - said)[train]), "start": start}, {**state, "additive": held}, session


def fit(how: Fits, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    state = begun(data, state)
    x, held = numbers(data, state), state["additive"]
    found = np.linalg.lstsq(x[places(state, "train")], message["left"].numpy(), rcond=None)[0]
    after = held["part"].numpy() + how.rate * found
    return {"part": tensor(x @ after)}, {**state, "additive": {**held, "part": tensor(after)}}, session


def part(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    return {"part": tensor(numbers(data, state) @ state["additive"]["part"].numpy())}, state, session


def add(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    held = {**state["additive"], "margin": message["parts"]}
    return {"added": True}, {**state, "additive": held}, session


def size(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    return {"size": list(own(data, state))}, state, session


def own(data: Columns, state: State) -> Sequence[float]:
    found: list[float] = np.abs(state["additive"]["part"].numpy()[:-1]).tolist()
    return found


def questions(how: Fits) -> Mapping[str, Question]:
    return {
        LEFT: Question(left, stateful=True, shows=("left", "start")),
        FIT: Question(partial(fit, how), stateful=True, shows=("part",)),
        PART: Question(part, stateful=True, shows=("part",)),
        ADD: Question(add, stateful=True, shows=("added",)),
        SIZE: Question(size, stateful=True, shows=("size",)),
    }


def learns(how: Fits, protected: bool) -> Sequence[LearnsRow]:
    """A part is all that leaves a party; the coordinator adds them up and sends the active party the sum."""
    rows = "how large its own part is"
    return (
        LearnsRow(
            "fits", "what is left of every training row's label", "the sum of the parts", "every part, and what is left"
        ),
        LearnsRow("prediction", "which rows are asked about", "the sum of the parts", "every part"),
        LearnsRow("importance", rows, rows, "the size of every coefficient"),
    )


def begin(how: Fits, server: State) -> RoundGenerator:
    active = server["active"]
    said = yield from each(Ask((active,), LEFT, {active: {}}, "each"), server["names"])
    return {**server, "left": said[active]["left"], "start": float(said[active]["start"])}


def summed(server: State, what: str, message: Any) -> Any:
    """The sum of all parts."""
    names = server["names"]
    said = yield from each(to_all(range(len(names)), what, message), names)
    return tensor(server["start"] + sum(said[k]["part"].numpy() for k in range(len(names))))


def step(how: Fits, server: State, number: int) -> RoundGenerator:
    parts = yield from summed(server, FIT, {"left": server["left"]})
    active = server["active"]
    said = yield from each(Ask((active,), LEFT, {active: {"parts": parts}}, "each"), server["names"])
    return {**server, "left": said[active]["left"]}


def end(how: Fits, server: State) -> RoundGenerator:
    names = server["names"]
    said = yield from each(to_all(range(len(names)), SIZE), names)
    return {**server, "sizes": {name: list(said[k]["size"]) for k, name in enumerate(names)}}


def predict(how: Fits, server: State) -> RoundGenerator:
    """`start` lies with the active party, whose margins it is added to when they are read (`outputs`)."""
    parts = yield from summed({**server, "start": 0.0}, PART, {})
    active = server["active"]
    yield from each(Ask((active,), ADD, {active: {"parts": parts}}, "each"), server["names"])
    return server


def outputs(state: State) -> Floats:
    held = state["additive"]
    margin: Floats = held["margin"].numpy() + held.get("added", 0.0)
    return margin


def export(data: Columns, state: State) -> Mapping[str, Any]:
    held = state["additive"]
    table = {name: held[name].tolist() for name in ("mean", "sd", "part")} | {"columns": list(data.names)}
    return {"table": table, "model": {"start": held["start"]} if "start" in held else None}


def load(data: Columns, exported: Mapping[str, Any]) -> State:
    table, common = exported["table"], exported["model"]
    held: dict[str, Any] = {name: tensor(np.array(table[name], np.float64)) for name in ("mean", "sd", "part")}
    return {"additive": held if common is None else {**held, "added": float(common["start"])}}


ADDITIVE = Scheme(
    name="additive",
    words=Words(
        round="fit",
        model="linear parts",
        keeps="its columns and coefficients",
        leaves="its part of each row's prediction; what is left of the labels",
        clear="what is left of the labels crossed as it is, and shows them.",
        learns=learns,
        gain="How large a column's coefficient is, in absolute value, of scaled columns",
    ),
    build=additive,
    rounds="fits",
    questions=questions,
    begin=begin,
    step=step,
    end=end,
    outputs=outputs,
    brought=lambda server: server["sizes"],
    own=own,
    export=export,
    load=load,
    predict=predict,
    keys=(("mean", "sd", "part"), ("start",)),
)
