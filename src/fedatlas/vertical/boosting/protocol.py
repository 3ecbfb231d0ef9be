"""SecureBoost as rounds: generators that ask the parties and hold no label, clear gradient, key, threshold or row.

A tree:   gradients (active) -> per level [ histogram (passive) -> open (active) -> split (passive owners) ] -> leaves (active)

Messages between parties are passed on unchanged. The generator uses only whom it asks, the open nodes, and counts of
ciphertexts.
Source: Cheng et al., IEEE Intelligent Systems 36(6), 2021 (V2); Chen et al., arXiv 2110.10927 (V3 (1) to (3)).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

from fedatlas.algorithm import Ask, Question, Replies, RoundGenerator, State, Update
from fedatlas.vertical.boosting import active as label_holder
from fedatlas.vertical.boosting import inference, passive, records
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.parties import Columns, each, tensor, to_all

BINS, START, KEYS, GRADIENTS, HISTOGRAM = "bins", "start", "keys", "gradients", "histogram"
OPEN, SPLIT, LEAVES, SHARE, IMPORTANCE, WALK, WAY = (
    "open",
    "split",
    "leaves",
    "share gains",
    "importance",
    "walk",
    "way",
)


def questions(how: SecureBoost) -> Mapping[str, Question]:
    """Return the questions to the parties."""
    asked = {
        BINS: (passive.cut, ("candidates",)),
        START: (label_holder.start, ("started",)),
        KEYS: (label_holder.keys, ("bits",)),
        GRADIENTS: (label_holder.gradients, ("gradients", "counts")),
        HISTOGRAM: (passive.histogram, ("sums", "counts")),
        OPEN: (label_holder.choose, ("told", "to", "open", "counts")),
        SPLIT: (passive.split, ("told", "records")),
        LEAVES: (label_holder.leaves, ("nodes",)),
        SHARE: (share, ("gains",)),
        IMPORTANCE: (own_gains, ("by_column",)),
        WALK: (inference.walk, ("to",)),
        WAY: (inference.way, ("left",)),
    }
    return {name: Question(partial(answer, how), stateful=True, shows=shows) for name, (answer, shows) in asked.items()}


def begin(how: SecureBoost, server: State) -> RoundGenerator:
    """Cut bins at every party and start all margins, after alignment and split of the rows."""
    names, active = server["names"], server["active"]
    others = _others(server)
    found = (yield from each(to_all(others, BINS), names)) if others else {}
    candidates = {str(k): int(found[k]["candidates"]) for k in others}
    yield from each(Ask((active,), START, {active: {"candidates": candidates}}, "each"), names)
    return {**server, "boost": {"counts": {}, "total": {}, "nodes": []}}


def grow(how: SecureBoost, server: State, number: int) -> RoundGenerator:
    """Grow tree ``number`` (from 1); the server's state gets its counts and the number of each party's nodes in it."""
    names, active = server["names"], server["active"]
    others = () if number <= how.complete_secure else _others(server)
    counts = dict.fromkeys(("ciphertexts", "exponentiations", "encryptions", "decryptions"), 0) if how.encrypted else {}
    if how.encrypted and others:
        yield from each(Ask((active,), KEYS, {active: {}}, "each"), names)
    made = yield from _of(active, GRADIENTS, {"tree": number, "told": len(others)}, server, counts)
    first = {"tree": number, "gradients": made["gradients"], "open": [1]}
    messages: dict[int, Any] = dict.fromkeys(others, first)
    split: dict[str, Any] = {"told": [], "records": {}}
    while True:
        sums = {}
        if others:
            heard = yield from each(Ask(others, HISTOGRAM, messages, "each"), names)
            sums = {str(k): heard[k]["sums"] for k in others}
            _add(counts, heard)
        said = yield from _of(active, OPEN, {**split, "sums": sums}, server, counts)
        found = yield from _divided(said["to"], names)
        split = {
            "told": [one["told"] for one in found.values()],
            "records": {str(k): one["records"] for k, one in found.items()},
        }
        if not said["open"]:
            break
        for k in others:
            theirs = [one["told"] for owner, one in found.items() if owner != k]
            messages[k] = {"told": [said["told"], *theirs], "open": said["told"]["open"]}
    done = yield from _of(active, LEAVES, split, server, counts)
    boost = server["boost"]
    total = {name: boost["total"].get(name, 0) + n for name, n in counts.items()}
    return {
        **server,
        "boost": {**boost, "counts": counts, "total": total, "nodes": [*boost["nodes"], dict(done["nodes"])]},
    }


def _divided(wanted: Mapping[str, Any], names: Any) -> Generator[Ask, Replies, Mapping[int, Update]]:
    """Ask the owners of this level's splits for the division of the rows and the numbers of their records."""
    owners = tuple(int(k) for k in wanted)
    if not owners:
        return {}
    return (yield from each(Ask(owners, SPLIT, {k: wanted[str(k)] for k in owners}, "each"), names))


def _of(party: int, what: str, message: Any, server: State, counts: dict[str, int]) -> Generator[Ask, Replies, Update]:
    """Ask one party, add its counts and return its reply."""
    heard = yield from each(Ask((party,), what, {party: message}, "each"), server["names"])
    _add(counts, heard)
    return heard[party]


def _add(counts: dict[str, int], heard: Mapping[int, Update]) -> None:
    for one in heard.values():
        for name, n in one.get("counts", {}).items():
            counts[name] = counts.get(name, 0) + int(n)


def _others(server: State) -> tuple[int, ...]:
    return tuple(k for k in range(len(server["names"])) if k != server["active"])


def infer(how: SecureBoost, server: State) -> RoundGenerator:
    """Compute the margins of all aligned rows with a loaded model; they end in the active party's state."""
    names, active = server["names"], server["active"]
    answers: dict[str, Any] = {}
    while True:
        heard = yield from each(Ask((active,), WALK, {active: {"answers": answers}}, "each"), names)
        wanted = heard[active]["to"]
        if not wanted:
            return server
        owners = tuple(int(k) for k in wanted)
        replies = yield from each(Ask(owners, WAY, {k: wanted[str(k)] for k in owners}, "each"), names)
        answers = {str(k): replies[k]["left"] for k in owners}


def importance(how: SecureBoost, server: State) -> RoundGenerator:
    """Compute each party's gain by column over all trees; columns are given by position, and names are not sent."""
    names, active = server["names"], server["active"]
    heard = yield from each(Ask((active,), SHARE, {active: {}}, "each"), names)
    told = heard[active]["gains"]
    everybody = tuple(range(len(names)))
    found = yield from each(Ask(everybody, IMPORTANCE, {k: {"gains": told[str(k)]} for k in everybody}, "each"), names)
    by_party = {names[k]: found[k]["by_column"].tolist() for k in everybody}
    return {**server, "boost": {**server["boost"], "importance": by_party}}


def share(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> passive.Answered:
    """Return, at the active party, the gain of each record of each party."""
    nodes = {name: one.numpy() for name, one in state["boost"]["nodes"].items()}
    told = {}
    for k in range(len(data.parties)):
        mine = nodes["party"] == k
        told[str(k)] = {"records": tensor(nodes["record"][mine]), "gains": tensor(nodes["gain"][mine])}
    return {"gains": told}, state, session


def own_gains(
    how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any
) -> passive.Answered:
    """Store, at a party, the gain of each of its splits, and return the sum by column."""
    boost, told = state["boost"], message["gains"]
    table = {name: one.clone() for name, one in boost["table"].items()}
    table["gain"][told["records"]] = told["gains"]
    return (
        {"by_column": tensor(records.by_column(table, len(data.names)))},
        {**state, "boost": {**boost, "table": table}},
        session,
    )
