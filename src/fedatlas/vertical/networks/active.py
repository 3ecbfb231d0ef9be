"""The answers of the party with the label: it joins all embeddings, and sends each party the gradients at its own.

Labels, outputs and the fusion never leave it. `targets` is the only place where training labels are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import State
from fedatlas.errors import DivergedError
from fedatlas.models import Loss, make_loss
from fedatlas.vertical.letters import LETTERS, LetterKind, letter, others, taken
from fedatlas.vertical.networks import passive
from fedatlas.vertical.networks.letter_kinds import CUT, EMBEDDED, JUDGED, asked, numbers
from fedatlas.vertical.networks.network import Scale, first_fusion, fusion_of, shared_of, stepped, weights_of
from fedatlas.vertical.networks.passive import PASS, Answered
from fedatlas.vertical.networks.settings import CutNetworks
from fedatlas.vertical.parties import Columns, Floats, aligned, places, tensor

MODEL = "model"  # the network on shared columns, in a message, a state and the work of a round


def targets(data: Columns, state: State, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return (y, weights) of the training rows, in the order of their places, as `in_units`."""
    own, train = aligned(data, state), places(state, "train")
    assert own.y is not None
    weight = None if own.weight is None else tensor(own.weight[train]).to(dtype)
    return in_units(own.y[train], data.task, state["nets"]["unit"], dtype), weight


def in_units(y: Floats, task: str, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """Return class numbers, or numbers less their mean in units of their deviation. ``unit``: these two."""
    if task == "classes":
        return tensor(y.astype(np.int64))
    return tensor((y - float(unit[0])) / float(unit[1])).to(dtype)


def unit_of(data: Columns, state: State) -> Tensor:
    """Return the mean and the deviation of the training labels; 0 and 1 for classes."""
    own = aligned(data, state)
    assert own.y is not None
    y = own.y[places(state, "train")]
    return tensor(np.array([0.0, 1.0] if data.task == "classes" else [y.mean(), y.std() or 1.0]))


def loss_of(task: str, classes: int) -> Loss:
    """Return the loss: cross-entropy of the classes, or the squared error of numbers in units of their deviation."""
    return make_loss("auto", "numbers" if task == "numbers" else "classes", classes)


def start(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the party's own network and the fusion, and say how many batches a round has."""
    state = passive.begun(how, data, state)
    state = {**state, "nets": {**state["nets"], "unit": unit_of(data, state), "embed": [*range(len(data.parties))]}}
    return {"batches": round_length(how, state)}, joined(how, data, state), session


def round_length(how: CutNetworks, state: State) -> int:
    """Return how many batches a round has."""
    return -(-len(places(state, "train")) // how.batch_size)


def joined(how: CutNetworks, data: Columns, state: State) -> State:
    """Return the state with the fusion of all embeddings, and no outputs yet. ``embed``: the parties that send some."""
    nets, outputs = state["nets"], loss_of(data.task, data.classes).width()
    width = how.width * len(nets["embed"]) + (how.shared[-1] if nets.get(MODEL) else 0)
    fusion = first_fusion(width, outputs, data.seed)
    out = tensor(np.zeros((len(aligned(data, state).x), outputs)))
    return {**state, "nets": {**nets, "task": data.task, "fusion": fusion, "out": out}}


def fuse(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Join the embeddings of a batch, step down the loss, and send each party the gradients at its embeddings."""
    batch = message["batch"]
    now = _opened(how, data, state, message) if batch == 1 else passive.under_way(session, batch - 1)
    at, kind = now["plan"][batch - 1], numbers(EMBEDDED, how.dtype)
    parts = {k: one.requires_grad_() for k, one in _told(how, data, state, message, kind, len(at), batch).items()}
    rows = np.searchsorted(places(state, "train"), at)
    weight = None if now["weight"] is None else now["weight"][rows]
    loss = loss_of(data.task, data.classes).mean(_fused(how, data, state, now, at, parts), now["y"][rows], weight)
    torch.autograd.backward(loss)
    slopes = [one.grad for one in parts.values()]
    if not all(one is not None and bool(torch.isfinite(one).all()) for one in (loss, *slopes)):
        raise DivergedError(f"the training loss is {float(loss.detach())}: lower algorithm.learning_rate.")
    sent = [letter(data, [k], CUT, {"rows": one}, batch) for k, one in zip(parts, slopes, strict=True)]
    for name in ("network", "fusion", MODEL):
        if now[name] is not None:
            stepped(now[name], how.learning_rate)
    return {LETTERS: sent}, state, {**(session or {}), PASS: {**now, "batch": batch}}


def _opened(how: CutNetworks, data: Columns, state: State, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the work of a round before its first batch. The network on shared columns comes with the message."""
    y, weight = targets(data, state, how.dtype)
    work = passive.opened(how, data, state, message["round"])
    return {**work, **_networks(how, data, state, message.get(MODEL)), "y": y, "weight": weight}


def _networks(how: CutNetworks, data: Columns, state: State, weights: Any) -> dict[str, Any]:
    nets = state["nets"]
    found = {"fusion": fusion_of(nets["fusion"], how.dtype), "network": passive.own_network(how, state)}
    if not weights:
        return {**found, MODEL: None}
    return {**found, MODEL: shared_of(weights, how.dtype), "x0": shared_inputs(how, nets, aligned(data, state).x)}


def shared_inputs(how: CutNetworks, nets: Mapping[str, Any], x: Floats) -> Tensor:
    """Return (rows, shared columns), scaled as at all parties."""
    mean, sd = nets["shared_scale"].numpy()
    return Scale(mean, sd).of(x[:, nets["shared"].numpy()], how.dtype)


def _told(
    how: CutNetworks, data: Columns, state: State, message: Any, kind: LetterKind, rows: int, step: int = 0
) -> dict[int, Tensor]:
    """Return the embeddings of the other parties that have some."""
    sizes = {"rows": rows, "width": how.width}
    others = [k for k in state["nets"]["embed"] if k != data.party]
    return {k: taken(data, message, k, kind, step, **sizes)["rows"].clone() for k in others}


def _fused(
    how: CutNetworks, data: Columns, state: State, now: Mapping[str, Any], rows: Any, parts: Mapping[int, Tensor]
) -> Tensor:
    """Return (rows, outputs): of the fusion of the shared embedding and of those of all parties, in their order."""
    found = []
    if now[MODEL] is not None:
        with torch.set_grad_enabled(how.tune_shared and torch.is_grad_enabled()):
            found.append(now[MODEL].body(now["x0"][rows]))
    found += [parts[k] if k != data.party else now["network"](now["x"][rows]) for k in state["nets"]["embed"]]
    out: Tensor = now["fusion"](torch.cat(found, dim=1))
    return out


def score(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the weights of the round, if one is over, and the outputs of the rows that judge."""
    nets: Mapping[str, Any] = state["nets"]
    now, rows = (session or {}).get(PASS), passive.outside(state)
    if message.get(MODEL):
        nets = {**nets, MODEL: message[MODEL]}
    if now is not None:
        now = passive.under_way(session, len(now["plan"]))
        names = [("weights", "network"), ("fusion", "fusion"), (MODEL, MODEL)]
        trained = {key: weights_of(now[name]) for key, name in names if now[name] is not None}
        nets = {**nets, **trained}
    done = {name: one for name, one in (session or {}).items() if name != PASS}
    after = {**state, "nets": nets}
    parts = _told(how, data, state, message, numbers(JUDGED, how.dtype), len(rows))
    shared = {MODEL: dict(nets[MODEL])} if nets.get(MODEL) else {}
    return {"scored": True, **shared}, _scored(how, data, after, rows, parts), done


def gather(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the outputs of all rows: of the network on shared columns, if there is one, for those that a party lacks."""
    before: Mapping[str, Any] = state["nets"]
    x, kind = aligned(data, state).x, asked(how.dtype)
    nothing = tensor(np.zeros((len(x), len(before["fusion"]["bias"]))))
    parts = _told(how, data, state, message, kind, len(x))
    nets = _scored(how, data, {**state, "nets": {**before, "out": nothing}}, slice(None), parts)["nets"]
    if nets.get(MODEL):
        has = np.ones(len(x), bool)
        for k in others(data):
            has &= taken(data, message, k, kind, rows=len(x), width=how.width)["has"].numpy()
        with torch.no_grad():
            alone = shared_of(nets[MODEL], how.dtype)(shared_inputs(how, nets, x)).double()
        nets = {**nets, "out": torch.where(tensor(has)[:, None], nets["out"], alone)}
    return {"scored": True}, {**state, "nets": nets}, session


def _scored(how: CutNetworks, data: Columns, state: State, rows: Any, parts: Mapping[int, Tensor]) -> State:
    nets = state["nets"]
    work = {**_networks(how, data, state, nets.get(MODEL)), "x": passive.inputs(how, data, state)}
    with torch.no_grad():
        found = _fused(how, data, state, work, rows, parts).double()
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
    return read_outputs(nets["out"], nets["task"], nets["unit"])


def read_outputs(out: Tensor, task: str, unit: Tensor) -> Floats:
    """Return the outputs (rows, outputs) of a network in the form of `Scheme.outputs`."""
    if task == "numbers":
        mean, sd = unit.tolist()
        return np.asarray(out[:, 0].numpy() * sd + mean)
    if out.shape[1] == 2:
        return np.asarray((out[:, 1] - out[:, 0]).numpy())
    return np.asarray(torch.log_softmax(out, dim=1).numpy())
