"""The answers of a party without the label: embeddings of the rows asked for, and a step down the gradients that come back.

In a round the network lies in the session, so a round that is lost changes nothing. Afterwards its weights are state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.algorithm import State, Update
from fedatlas.errors import DataError, DivergedError, ProtocolError
from fedatlas.vertical.letters import LETTERS, Letter, letter, taken
from fedatlas.vertical.networks.letter_kinds import ASKED, CUT, EMBEDDED, JUDGED, numbers
from fedatlas.vertical.networks.network import Scale, batches, body_of, first_body, scale_of, stepped, weights_of
from fedatlas.vertical.networks.settings import CutNetworks
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, order, places, tensor

Answered = tuple[Update, State, Any]
PASS = "pass"  # noqa: S105  # the part of a session that holds a round's work


def begun(how: CutNetworks, data: Columns, state: State) -> State:
    """Return the party's state with its first network and the scale of its columns. DataError if it has no column."""
    if not data.names:
        raise DataError(f"party '{data.name}' has no column to learn from: leave it out, or give it a column.")
    x = own_columns(data, state)
    scale = scale_of(x[places(state, "train")])
    weights = first_body(x.shape[1], how.hidden, data.seed, data.party) if x.shape[1] else {}
    found = {"mean": tensor(scale.mean), "sd": tensor(scale.sd), "weights": weights}
    return {**state, "nets": {**state.get("nets", {}), **found}}


def own_columns(data: Columns, state: State) -> Floats:
    """Return (aligned rows, columns), those of which the party's own network learns: all but shared ones."""
    x, own = aligned(data, state).x, state.get("nets", {}).get("own")
    return x if own is None else x[:, own.numpy()]


def inputs(how: CutNetworks, data: Columns, state: State) -> Tensor:
    """Return the same columns, scaled."""
    nets = state["nets"]
    return Scale(nets["mean"].numpy(), nets["sd"].numpy()).of(own_columns(data, state), how.dtype)


def own_network(how: CutNetworks, state: State) -> nn.Module | None:
    """Return the party's own network; None if it has no column of its own."""
    weights = state["nets"]["weights"]
    return body_of(weights, how.dtype) if weights else None


def outside(state: State) -> Whole:
    """Return the places, ascending, of the rows that do not train."""
    return np.sort(np.concatenate([places(state, "held"), places(state, "test")]))


def under_way(session: Any, batch: int) -> dict[str, Any]:
    """Return the work of the round at a batch. ProtocolError if another one is due."""
    now = dict((session or {}).get(PASS, {}))
    if now.get("batch") != batch:
        raise ProtocolError(f"batch {batch} of the round is not the one that is due.")
    return now


def opened(how: CutNetworks, data: Columns, state: State, number: int) -> dict[str, Any]:
    """Return the work of a round before its first batch."""
    plan = batches(places(state, "train"), how.batch_size, data.seed, number)
    return {"batch": 0, "plan": plan, "x": inputs(how, data, state), "network": own_network(how, state)}


def told(how: CutNetworks, data: Columns, topic: str, rows: Tensor, step: int = 0) -> Letter:
    """Return a letter to the party with the label. DivergedError for embeddings that are not finite."""
    if not bool(torch.isfinite(rows).all()):
        raise DivergedError(f"the embeddings of party '{data.name}' are not finite: lower algorithm.learning_rate.")
    return letter(data, [data.active], topic, {"rows": rows.detach()}, step)


def start(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the first network, and send the embeddings of the rows that judge."""
    return first(how, model, data, message, begun(how, data, state), session)


def first(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the embeddings of the rows that judge."""
    return {LETTERS: [told(how, data, JUDGED, _embedded(how, data, state, outside(state)))]}, state, session


def _embedded(how: CutNetworks, data: Columns, state: State, rows: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = body_of(state["nets"]["weights"], how.dtype)(inputs(how, data, state)[rows])
    return found


def embed(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Step down the gradients of the batch before, if there was one, and send the embeddings of the next."""
    batch = message["batch"]
    now = _moved(how, data, message, session, batch - 1) if batch > 1 else opened(how, data, state, message["round"])
    found = now["network"](now["x"][now["plan"][batch - 1]])
    sent = [told(how, data, EMBEDDED, found, batch)]
    return {LETTERS: sent}, state, {**(session or {}), PASS: {**now, "batch": batch, "sent": found}}


def _moved(how: CutNetworks, data: Columns, message: Any, session: Any, batch: int) -> dict[str, Any]:
    """Return the work after a step down the gradients of a batch."""
    now = under_way(session, batch)
    sizes = {"rows": len(now["sent"]), "width": how.width}
    now["sent"].backward(taken(data, message, data.active, numbers(CUT, how.dtype), batch, **sizes)["rows"])
    stepped(now["network"], how.learning_rate)
    return now


def settle(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Take the last step of a round, keep the weights, and send the embeddings of the rows that judge."""
    now = _moved(how, data, message, session, len((session or {}).get(PASS, {}).get("plan", ())))
    after = {**state, "nets": {**state["nets"], "weights": weights_of(now["network"])}}
    done = {name: one for name, one in session.items() if name != PASS}
    return {LETTERS: [told(how, data, JUDGED, _embedded(how, data, after, outside(state)))]}, after, done


def ask(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the embeddings of all rows that are asked about (zeros without a network), and which of them this party has."""
    nothing = torch.zeros(len(order(state)), how.width, dtype=how.dtype)
    rows = _embedded(how, data, state, slice(None)) if state["nets"]["weights"] else nothing
    said = told(how, data, ASKED, rows)
    content = {**said["content"], "has": tensor(order(state) >= 0)}
    return {LETTERS: [{**said, "content": content}]}, state, session


def sizes(how: CutNetworks, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return how large the weights on each column are."""
    return {"by_column": own_sizes(state, len(data.names))}, state, session


def own_sizes(state: State, columns: int) -> Tensor:
    """Return (columns,), the length of the vector of a column's weights in the first layer that reads it.

    Shared columns count at the party with the label, and are 0 elsewhere.
    """
    nets, found = state["nets"], torch.zeros(columns, dtype=torch.float64)
    if nets["weights"]:
        found[nets.get("own", torch.arange(columns))] = _lengths(nets["weights"]["0.weight"])
    if nets.get("model"):
        found[nets["shared"]] = _lengths(nets["model"]["body.1.weight"])
    return found


def _lengths(weights: Tensor) -> Tensor:
    return weights.double().square().sum(dim=0).sqrt()
