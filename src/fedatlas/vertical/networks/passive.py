"""The answers of a party without the label: embeddings of the rows asked for, and a step down the gradients that come back.

In a round the network lies in the session, so a round that is lost changes nothing. Afterwards its weights are state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import State, Update
from fedatlas.errors import DataError, DivergedError, ProtocolError
from fedatlas.vertical.letters import LETTERS, Letter, letter, taken
from fedatlas.vertical.networks.letter_kinds import CUT, EMBEDDED, JUDGED, numbers
from fedatlas.vertical.networks.network import Scale, batches, body_of, first_body, scale_of, stepped, weights_of
from fedatlas.vertical.networks.settings import SplitLearning
from fedatlas.vertical.parties import Columns, Whole, aligned, places, tensor

Answered = tuple[Update, State, Any]
PASS = "pass"  # noqa: S105  # the part of a session that holds a round's work


def begun(how: SplitLearning, data: Columns, state: State) -> State:
    """Return the party's state with its first network and the scale of its columns. DataError if it has no column."""
    if not data.names:
        raise DataError(f"party '{data.name}' has no column to learn from: leave it out, or give it a column.")
    scale = scale_of(aligned(data, state).x[places(state, "train")])
    weights = first_body(len(data.names), how.hidden, data.seed, data.party)
    return {**state, "nets": {"mean": tensor(scale.mean), "sd": tensor(scale.sd), "weights": weights}}


def inputs(how: SplitLearning, data: Columns, state: State) -> Tensor:
    """Return (aligned rows, columns), scaled."""
    nets = state["nets"]
    return Scale(nets["mean"].numpy(), nets["sd"].numpy()).of(aligned(data, state).x, how.dtype)


def outside(state: State) -> Whole:
    """Return the places, ascending, of the rows that do not train."""
    return np.sort(np.concatenate([places(state, "held"), places(state, "test")]))


def under_way(session: Any, batch: int) -> dict[str, Any]:
    """Return the work of the round at a batch. ProtocolError if another one is due."""
    now = dict((session or {}).get(PASS, {}))
    if now.get("batch") != batch:
        raise ProtocolError(f"batch {batch} of the round is not the one that is due.")
    return now


def opened(how: SplitLearning, data: Columns, state: State, number: int) -> dict[str, Any]:
    """Return the work of a round before its first batch."""
    plan = batches(places(state, "train"), how.batch_size, data.seed, number)
    network = body_of(state["nets"]["weights"], how.dtype)
    return {"batch": 0, "plan": plan, "x": inputs(how, data, state), "network": network}


def told(how: SplitLearning, data: Columns, topic: str, rows: Tensor, step: int = 0) -> Letter:
    """Return a letter to the party with the label. DivergedError for embeddings that are not finite."""
    if not bool(torch.isfinite(rows).all()):
        raise DivergedError(f"the embeddings of party '{data.name}' are not finite: lower algorithm.learning_rate.")
    return letter(data, [data.active], topic, {"rows": rows.detach()}, step)


def start(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the first network, and send the embeddings of the rows that judge."""
    state = begun(how, data, state)
    return {LETTERS: [_embedded(how, data, state, outside(state))]}, state, session


def _embedded(how: SplitLearning, data: Columns, state: State, rows: Any) -> Letter:
    with torch.no_grad():
        found = body_of(state["nets"]["weights"], how.dtype)(inputs(how, data, state)[rows])
    return told(how, data, JUDGED, found)


def embed(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Step down the gradients of the batch before, if there was one, and send the embeddings of the next."""
    batch = message["batch"]
    now = _moved(how, data, message, session, batch - 1) if batch > 1 else opened(how, data, state, message["round"])
    found = now["network"](now["x"][now["plan"][batch - 1]])
    sent = [told(how, data, EMBEDDED, found, batch)]
    return {LETTERS: sent}, state, {**(session or {}), PASS: {**now, "batch": batch, "sent": found}}


def _moved(how: SplitLearning, data: Columns, message: Any, session: Any, batch: int) -> dict[str, Any]:
    """Return the work after a step down the gradients of a batch."""
    now = under_way(session, batch)
    sizes = {"rows": len(now["sent"]), "width": how.width}
    now["sent"].backward(taken(data, message, data.active, numbers(CUT, how.dtype), batch, **sizes)["rows"])
    stepped(now["network"], how.learning_rate)
    return now


def settle(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Take the last step of a round, keep the weights, and send the embeddings of the rows that judge."""
    now = _moved(how, data, message, session, len((session or {}).get(PASS, {}).get("plan", ())))
    after = {**state, "nets": {**state["nets"], "weights": weights_of(now["network"])}}
    done = {name: one for name, one in session.items() if name != PASS}
    return {LETTERS: [_embedded(how, data, after, outside(state))]}, after, done


def ask(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the embeddings of all rows that are asked about."""
    return {LETTERS: [_embedded(how, data, state, slice(None))]}, state, session


def sizes(how: SplitLearning, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return how large the weights on each column are."""
    return {"by_column": own_sizes(state)}, state, session


def own_sizes(state: State) -> Tensor:
    """Return (columns,), the length of the vector of a column's weights in the first layer."""
    found: Tensor = state["nets"]["weights"]["0.weight"].double().square().sum(dim=0).sqrt()
    return found
