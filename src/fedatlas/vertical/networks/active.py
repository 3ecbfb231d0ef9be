"""The answers of the party with the label: it joins all embeddings, and sends each party the gradients at its own.

Labels, outputs and the fusion never leave it. `targets` is the only place where training labels are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import State
from fedatlas.errors import DivergedError
from fedatlas.models import Loss, make_loss
from fedatlas.vertical.letters import LETTERS, letter, others, taken
from fedatlas.vertical.networks import passive
from fedatlas.vertical.networks.letter_kinds import CUT, EMBEDDED, JUDGED, numbers
from fedatlas.vertical.networks.network import body_of, first_fusion, fusion_of, stepped, weights_of
from fedatlas.vertical.networks.passive import PASS, Answered
from fedatlas.vertical.networks.settings import SplitLearning
from fedatlas.vertical.parties import Columns, Floats, aligned, places, tensor


def targets(data: Columns, state: State, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Floats]:
    """Return (y, weights, unit) of the training rows, in the order of their places.

    y: class numbers, or numbers in units of their deviation; unit: their mean and deviation, for classes 0 and 1.
    """
    own, train = aligned(data, state), places(state, "train")
    assert own.y is not None
    y, weight = own.y[train], None if own.weight is None else tensor(own.weight[train]).to(dtype)
    if data.task == "classes":
        return tensor(y.astype(np.int64)), weight, np.array([0.0, 1.0])
    unit = np.array([y.mean(), y.std() or 1.0])
    return tensor((y - unit[0]) / unit[1]).to(dtype), weight, unit


def loss_of(data: Columns) -> Loss:
    """Return the loss: cross-entropy of the classes, or the squared error of numbers in units of their deviation."""
    return make_loss("auto", "numbers" if data.task == "numbers" else "classes", data.classes)


def start(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the party's own network and the fusion, and say how many batches a round has."""
    state = passive.begun(how, data, state)
    count, outputs = len(places(state, "train")), loss_of(data).width()
    nets = {
        **state["nets"],
        "task": data.task,
        "unit": tensor(targets(data, state, how.dtype)[2]),
        "fusion": first_fusion(how.width * len(data.parties), outputs, data.seed),
        "out": tensor(np.zeros((len(aligned(data, state).x), outputs))),
    }
    return {"batches": -(-count // how.batch_size)}, {**state, "nets": nets}, session


def fuse(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Join the embeddings of a batch, step down the loss, and send each party the gradients at its embeddings."""
    batch = message["batch"]
    now = _opened(how, data, state, message["round"]) if batch == 1 else passive.under_way(session, batch - 1)
    at = now["plan"][batch - 1]
    parts = _parts(how, data, message, now["network"](now["x"][at]), EMBEDDED, batch)
    for k in others(data):
        parts[k].requires_grad_()
    rows = np.searchsorted(places(state, "train"), at)
    weight = None if now["weight"] is None else now["weight"][rows]
    loss = loss_of(data).mean(now["fusion"](torch.cat(parts, dim=1)), now["y"][rows], weight)
    torch.autograd.backward(loss)
    slopes = [parts[k].grad for k in others(data)]
    if not all(one is not None and bool(torch.isfinite(one).all()) for one in (loss, *slopes)):
        raise DivergedError(f"the training loss is {float(loss.detach())}: lower algorithm.learning_rate.")
    sent = [letter(data, [k], CUT, {"rows": one}, batch) for k, one in zip(others(data), slopes, strict=True)]
    for module in (now["network"], now["fusion"]):
        stepped(module, how.learning_rate)
    return {LETTERS: sent}, state, {**(session or {}), PASS: {**now, "batch": batch}}


def _opened(how: SplitLearning, data: Columns, state: State, number: int) -> dict[str, Any]:
    y, weight, _ = targets(data, state, how.dtype)
    fusion = fusion_of(state["nets"]["fusion"], how.dtype)
    return {**passive.opened(how, data, state, number), "fusion": fusion, "y": y, "weight": weight}


def _parts(how: SplitLearning, data: Columns, message: Any, own: Tensor, topic: str, step: int = 0) -> list[Tensor]:
    """Return the embeddings of all parties, in their order."""
    kind, sizes = numbers(topic, how.dtype), {"rows": len(own), "width": how.width}
    said = {k: taken(data, message, k, kind, step, **sizes)["rows"].clone() for k in others(data)}
    return [own if k == data.party else said[k] for k in range(len(data.parties))]


def score(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the weights of the round, if one is over, and the outputs of the rows that judge."""
    nets, now = state["nets"], (session or {}).get(PASS)
    if now is not None:
        now = passive.under_way(session, len(now["plan"]))
        nets = {**nets, "weights": weights_of(now["network"]), "fusion": weights_of(now["fusion"])}
    done = {name: one for name, one in (session or {}).items() if name != PASS}
    after = {**state, "nets": nets}
    return {"scored": True}, _scored(how, data, message, after, passive.outside(state)), done


def gather(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the outputs of all rows."""
    outputs = len(state["nets"]["fusion"]["bias"])
    nets = {**state["nets"], "out": tensor(np.zeros((len(aligned(data, state).x), outputs)))}
    return {"scored": True}, _scored(how, data, message, {**state, "nets": nets}, slice(None)), session


def _scored(how: SplitLearning, data: Columns, message: Any, state: State, rows: Any) -> State:
    nets = state["nets"]
    with torch.no_grad():
        own = body_of(nets["weights"], how.dtype)(passive.inputs(how, data, state)[rows])
        parts = _parts(how, data, message, own, JUDGED)
        found = fusion_of(nets["fusion"], how.dtype)(torch.cat(parts, dim=1)).double()
    if not bool(torch.isfinite(found).all()):
        raise DivergedError("the outputs of the model are not finite: lower algorithm.learning_rate.")
    out = nets["out"].clone()
    out[rows] = found
    return {**state, "nets": {**nets, "out": out}}


def outputs(state: State) -> Floats:
    """Return outputs in the active party's state: (N,) log-odds of the second class, or numbers in the label's unit.

    For three or more classes: (N, classes), log-probabilities.
    """
    nets = state["nets"]
    out = nets["out"]
    if nets["task"] == "numbers":
        mean, sd = nets["unit"].tolist()
        return np.asarray(out[:, 0].numpy() * sd + mean)
    if out.shape[1] == 2:
        return np.asarray((out[:, 1] - out[:, 0]).numpy())
    return np.asarray(torch.log_softmax(out, dim=1).numpy())
