"""The answers of all parties of a hybrid federation about columns that they share, and about rows that only one of them has.

A party has labels of those of its own rows that are not common to all, and the party with the label has them on the
common rows, too. All its labelled rows train the network on shared columns, as in FedAvg.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import State
from fedatlas.errors import DivergedError, ProtocolError
from fedatlas.rng import numpy_stream
from fedatlas.tree import Tree
from fedatlas.vertical.forms import ListOf, ShortText
from fedatlas.vertical.ids import ordered, seed_key
from fedatlas.vertical.letters import LETTERS, LetterKind, blamed, letter, others, taken
from fedatlas.vertical.networks import active, passive
from fedatlas.vertical.networks.active import MODEL, in_units, loss_of, read_outputs, shared_inputs
from fedatlas.vertical.networks.network import batches, first_shared, shared_of, stepped, weights_of
from fedatlas.vertical.networks.passive import Answered
from fedatlas.vertical.networks.settings import CutNetworks
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, order, places, tensor

DIGEST = 64  # characters of the digest of a column's name
NAMES = LetterKind("names of columns", {"names": ListOf(ShortText(DIGEST), once=True)})
SHARED = LetterKind("shared columns", {"names": ListOf(ShortText(DIGEST), once=True)})


def digests(data: Columns) -> list[str]:
    """Return a digest of the name of each column."""
    return [hashlib.sha256(name.encode()).hexdigest() for name in data.names]


def tell(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the digests of the names of this party's columns to the party with the label."""
    return {LETTERS: [letter(data, [data.active], NAMES.topic, {"names": digests(data)})]}, state, session


def meet(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Find the columns that all parties have, and tell the others which."""
    said = [{*taken(data, message, k, NAMES)["names"]} for k in others(data)]
    both = [one for one in digests(data) if all(one in names for names in said)]
    sent = [letter(data, others(data), SHARED.topic, {"names": both})] if said else []
    return {LETTERS: sent}, _shared(data, state, both), session


def _shared(data: Columns, state: State, names: list[str]) -> State:
    own = digests(data)
    at = [own.index(one) for one in names]
    rest = np.setdiff1d(np.arange(len(own)), np.array(at, np.int64))
    return {**state, "nets": {"shared": tensor(np.array(at, np.int64)), "own": tensor(rest)}}


def own_rows(data: Columns, state: State) -> Whole:
    """Return the party's labelled rows that are not common to all, in an order that does not depend on its file."""
    if data.y is None or not data.ids:
        return np.arange(0)
    common = {*order(state).tolist()}
    rows = np.array(
        [i for i, one in enumerate(data.ids) if one and i not in common and not np.isnan(data.y[i])], np.int64
    )
    return rows[ordered([data.ids[i] for i in rows], seed_key(data.seed))]


def outline(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw which of the party's own rows test, by the share of the common rows, and say how many rows train and test."""
    if data.party != data.active:
        said = taken(data, message, data.active, SHARED)["names"]
        with blamed(data, data.active, SHARED):
            if not {*said} <= {*digests(data)}:
                raise ProtocolError("it names a column that this party does not have")
        state = _shared(data, state, said)
    rows, split = own_rows(data, state), state["split"]
    share = len(split["test"]) / max(sum(len(one) for one in split.values()), 1)
    drawn = numpy_stream(data.seed, "split", "own", data.party).permutation(len(rows))
    test = round(share * len(rows))
    nets = {**state["nets"], "test": tensor(rows[np.sort(drawn[:test])]), "train": tensor(rows[np.sort(drawn[test:])])}
    if data.party != data.active:
        state = passive.begun(how, data, {**state, "nets": nets})
    else:
        state = {**state, "nets": nets}
    own = len(nets["own"])
    counts = {"train": len(training_rows(data, state)), "test": test, "own": own, "shared": len(nets["shared"])}
    return counts, state, session


def training_rows(data: Columns, state: State) -> Whole:
    """Return the labelled rows that train the network on shared columns: at the party with the label also common ones."""
    own: Whole = state["nets"]["train"].numpy()
    return np.concatenate([order(state)[places(state, "train")], own]) if data.party == data.active else own


def training(data: Columns, state: State) -> Columns:
    """Return the party with its training rows only: as `aligned` gives them, where a scheme reads its labels."""
    return aligned(data, {"align": {"order": tensor(training_rows(data, state))}})


def sums(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return (columns + 1,) sums over the training rows of shared columns and of the label, less a mean, by power.

    ``around``: the means of the columns and of the label, for sums of squares; None for sums.
    """
    rows, columns = training(data, state), state["nets"]["shared"].numpy()
    label = rows.y if rows.y is not None and data.task == "numbers" else np.zeros(len(rows.x))
    x = np.concatenate([rows.x[:, columns], label[:, None]], axis=1)
    around = message["around"]
    some = x if around is None else (x - around.numpy()) ** 2
    found = {"count": (~np.isnan(x)).sum(axis=0).astype(np.float64), "sum": np.nansum(some, axis=0)}
    return {"sums": Tree({part: tensor(one) for part, one in found.items()})}, state, session


def scale(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the scale of shared columns and of the label, the same at all parties."""
    mean, sd = message["mean"].numpy(), message["sd"].numpy()
    nets = {**state["nets"], "shared_scale": tensor(np.stack([mean[:-1], sd[:-1]]))}
    unit = [mean[-1], sd[-1]] if data.task == "numbers" else [0.0, 1.0]
    return {}, {**state, "nets": {**nets, "unit": tensor(np.array(unit))}}, session


def join(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the networks of the party with the label: on shared columns, on its own, and the fusion."""
    state = passive.begun(how, data, state)
    nets = {**state["nets"], "embed": message["embed"]}
    nets |= {} if "unit" in nets else {"unit": active.unit_of(data, state)}
    shared = {}
    if len(nets["shared"]):
        outputs = loss_of(data.task, data.classes).width()
        shared = {MODEL: first_shared(len(nets["shared"]), how.shared, outputs, data.seed)}
    after = active.joined(how, data, {**state, "nets": {**nets, **shared}})
    return {"batches": active.round_length(how, state), **{k: dict(one) for k, one in shared.items()}}, after, session


def train(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Train the network on shared columns for an epoch of the party's labelled rows, as FedAvg does."""
    rows, network = training(data, state), shared_of(message[MODEL], how.dtype)
    assert rows.y is not None
    x = shared_inputs(how, state["nets"], rows.x)
    weight = None if rows.weight is None else tensor(rows.weight).to(how.dtype)
    y, loss = in_units(rows.y, data.task, state["nets"]["unit"], how.dtype), loss_of(data.task, data.classes)
    for at in batches(np.arange(len(y)), how.batch_size, data.seed, message["round"], data.party):
        one = loss.mean(network(x[at]), y[at], None if weight is None else weight[at])
        if not bool(torch.isfinite(one)):
            raise DivergedError(
                f"the training loss of '{data.name}' is {float(one.detach())}: lower algorithm.learning_rate."
            )
        torch.autograd.backward(one)
        stepped(network, how.learning_rate)
    return {MODEL: Tree(weights_of(network))}, state, session


def judge(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return how well the network on shared columns does on the party's own test rows: the sum of their scores."""
    rows = state["nets"]["test"].numpy()
    assert data.y is not None
    out = _outputs(how, state, message[MODEL], data.x[rows])
    right = _scores(read_outputs(out, data.task, state["nets"]["unit"]), data.y[rows], data.task)
    return {"rows": len(rows), "score": float(right.sum())}, state, session


def _outputs(how: CutNetworks, state: State, weights: Mapping[str, Tensor], x: Floats) -> Tensor:
    with torch.no_grad():
        found: Tensor = shared_of(weights, how.dtype)(shared_inputs(how, state["nets"], x)).double()
    return found


def _scores(out: Floats, y: Floats, task: str) -> Floats:
    """Return (rows,), 1 for a class that is right, else 0; or squared errors."""
    if task == "numbers":
        return np.asarray((out - y) ** 2)
    said = out.argmax(axis=1) if out.ndim > 1 else out > 0
    return np.asarray(said == y, np.float64)
