"""The gain of each column over all trees: the party with the label knows that of each node, and tells the node's owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedatlas.algorithm import Question, RoundGenerator, State, Update
from fedatlas.vertical.forms import Numbers
from fedatlas.vertical.letters import LETTERS, Due, LetterKind, Mail, letter, taken, unanswered
from fedatlas.vertical.parties import Columns, tensor
from fedatlas.vertical.trees import records

SHARE, IMPORTANCE = "share gains", "importance"
Answered = tuple[Update, State, Any]
GAINS = LetterKind(
    "gains", {"records": Numbers(torch.int64, ("mine",), 0, "lines"), "gains": Numbers(torch.float64, ("mine",))}
)


def importance(how: Any, server: State) -> RoundGenerator:
    """Add to the server's state the gain of each column over all trees, by party and place.

    Names stay with the party.
    """
    mail, names = Mail(server["names"]), server["names"]
    yield from mail.ask((server["active"],), SHARE)
    everybody = range(len(names))
    found = yield from mail.ask(everybody, IMPORTANCE, GAINS.topic, says={"by_column": Numbers(torch.float64, (None,))})
    for k, columns in enumerate(server.get("columns", ())):
        if len(found[k]["by_column"]) != columns:
            raise unanswered(names[k], IMPORTANCE, f"'by_column' has other than {columns:,} entries")
    by_party = {names[k]: found[k]["by_column"].tolist() for k in everybody}
    return {**server, "boost": {**server["boost"], "importance": by_party}}


def share(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return, at the active party, the gain of each record of each party."""
    nodes = {name: one.numpy() for name, one in state["boost"]["nodes"].items()}
    told = []
    for k in range(len(data.parties)):
        mine = nodes["party"] == k
        own = {"records": tensor(nodes["record"][mine]), "gains": tensor(nodes["gain"][mine])}
        told.append(letter(data, [k], GAINS.topic, own))
    return {LETTERS: told}, state, session


def own_gains(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the gains of the party's splits in its table, and return their sum by column."""
    boost = state["boost"]
    told = taken(data, message, data.active, GAINS, lines=len(boost["table"]["tree"]))
    table = {name: one.clone() for name, one in boost["table"].items()}
    table["gain"][told["records"]] = told["gains"]
    found = {"by_column": tensor(records.by_column(table, len(data.names)))}
    return found, {**state, "boost": {**boost, "table": table}}, session


QUESTIONS: Mapping[str, Question] = {
    SHARE: Question(share, stateful=True, shows=(LETTERS,)),
    IMPORTANCE: Question(own_gains, stateful=True, shows=("by_column",)),
}
DUE: Due = {SHARE: ("active", ({},)), IMPORTANCE: ("all", ({},))}


def brought(server: State) -> Mapping[str, Sequence[float]]:
    """Return each party's gain by column, over all trees."""
    found: Mapping[str, Sequence[float]] = server["boost"]["importance"]
    return found


def own(data: Columns, state: State) -> Sequence[float]:
    """Return the gain of a party's own splits by column."""
    found: list[float] = records.by_column(state["boost"]["table"], len(data.names)).tolist()
    return found
