"""Find the rows that all parties have (V2, D12) by private set intersection.

Between two parties it runs both ways. Each masks its ids with a secret exponent, in a secret order; the other raises the
points to its exponent and sends them back. Equal points are then equal ids. A party learns which of its rows the other
has, and how many rows the other has.

    a: H(a)^x --> b: H(a)^xy --> a          b: H(b)^y --> a: H(b)^yx --> b

Among three to eight parties, every party's set passes through all of them, and each raises and shuffles it. The
coordinator, which has no exponent, compares the results and returns, through the same parties in turn, which points are
in all sets. A party learns which of its rows *all* others have; the coordinator learns the sizes of all overlaps, but no
id.

All parties are assumed to follow the protocol and to be curious. Exponents and orders exist only in memory, in the
session of the set-up. What remains is ``state["align"]["order"]``: the party's own row at each aligned place, sorted by
`ids.ordered`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from fedatlas.algorithm import Ask, Question, RoundGenerator, State, Update
from fedatlas.errors import DataError, ProtocolError
from fedatlas.vertical import psi
from fedatlas.vertical.ids import LITTLE, Look, difference, digest_of_ids, look_of, ordered
from fedatlas.vertical.parties import Columns, Whole, each, tensor, to_all

MASK, REMASK, PASS, BACK, MATCH, SAME, LOOK = (
    "mask ids",
    "mask again",
    "pass on",
    "pass back",
    "match",
    "compare ids",
    "look of ids",
)
MOST = 8  # largest number of parties that can be matched


class Align(NamedTuple):
    """The method of matching rows."""

    name: Literal["psi", "none"] = "psi"
    group: psi.Group = "ed25519"


Answered = tuple[Update, State, Any]


# ------------------------------------------------------------------------------------------------ the parties


def with_ids(data: Columns) -> Whole:
    """Return the numbers of the party's rows that have an id."""
    return np.array([i for i, one in enumerate(data.ids) if one], dtype=np.int64)


def _mask(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return the party's own ids, masked, in a secret order."""
    rows, key = with_ids(data), psi.exponent(message["group"])
    rows = rows[psi.shuffle(len(rows))]
    points = psi.hashed([data.ids[i] for i in rows], message["group"], data.workers)
    held = {"group": message["group"], "key": key, "rows": rows, "orders": {}}
    return {"points": psi.raised(points, key, message["group"], data.workers)}, state, {**(session or {}), "psi": held}


def _remask(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return, for two parties, the other's ids under both exponents, in its order; they are kept for comparison."""
    held = session["psi"]
    points = psi.raised(message["points"], held["key"], held["group"], data.workers)
    return {"points": points}, state, {**session, "psi": {**held, "theirs": frozenset(psi.keys_of(points))}}


def _pass(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return, for several parties, the set of party ``of`` under one more exponent, in another secret order."""
    held = session["psi"]
    points = psi.raised(message["points"], held["key"], held["group"], data.workers)
    order = psi.shuffle(len(points))
    orders = {**held["orders"], message["of"]: order}
    return {"points": tensor(points.numpy()[order])}, state, {**session, "psi": {**held, "orders": orders}}


def _back(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return which points of party ``of`` are in all sets, in the order in which its set arrived here."""
    order = session["psi"]["orders"][message["of"]]
    flags = np.zeros(len(order), bool)
    flags[order] = message["in_all"].numpy()
    return {"in_all": tensor(flags)}, state, session


def _match(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Store the party's rows that are in all sets, in the order common to all parties, and return their number."""
    held = session["psi"]
    if "points" in message:
        mine = psi.keys_of(message["points"])
        found = np.array([one in held["theirs"] for one in mine], dtype=bool)
    else:
        found = message["in_all"].numpy()
    if len(found) != len(held["rows"]):
        raise ProtocolError(
            f"party '{data.name}' got {len(found)} answers for its {len(held['rows'])} ids: some are missing or added."
        )
    return {"matched": int(found.sum())}, placed(data, state, held["rows"][found]), session


def placed(data: Columns, state: State, rows: Whole) -> State:
    """Return the state with these own rows as the aligned ones."""
    at = ordered([data.ids[i] for i in rows], data.seed)
    return {**state, "align": {"order": tensor(rows[at])}}


def _same(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Align all rows without matching, and return a digest of all ids in the file's order.

    DataError if a row has no id.
    """
    if len(rows := with_ids(data)) < len(data.ids):
        raise DataError(
            f"party '{data.name}' has {len(data.ids) - len(rows)} rows without an id, but align.name = 'none' needs one in every row."
        )
    return {"digest": digest_of_ids(data.ids, data.seed), "rows": len(rows)}, placed(data, state, rows), session


def _look(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    return {"look": [*look_of([data.ids[i] for i in with_ids(data)])]}, state, session


QUESTIONS: Mapping[str, Question] = {
    MASK: Question(_mask, shows=("points",)),
    REMASK: Question(_remask, shows=("points",)),
    PASS: Question(_pass, shows=("points",)),
    BACK: Question(_back, shows=("in_all",)),
    MATCH: Question(_match, shows=("matched",), stateful=True),
    SAME: Question(_same, shows=("digest", "rows"), stateful=True),
    LOOK: Question(_look, shows=("look",)),
}


# ------------------------------------------------------------------------------------------------ left of the link


def align(how: Align, server: State) -> RoundGenerator:
    """Align all parties; the server's state gets ``align``: ids by party, and rows that all and that each pair have.

    DataError if no row is common to all, with what differs between the ids.
    """
    names = server["names"]
    if len(names) > MOST:
        raise DataError(f"{len(names)} parties: at most {MOST} can be matched.")
    found = yield from (_compared(names) if how.name == "none" else _intersected(how, names))
    smallest = min(found["ids"].values())
    notices: list[str] = []
    if found["rows"] < LITTLE * smallest or not found["rows"]:
        told = yield from each(to_all(range(len(names)), LOOK), names)
        said = difference({names[k]: Look(*told[k]["look"]) for k in told})
        if not found["rows"]:
            raise DataError(f"no id is in the tables of all parties: {said}.")
        share = f"{found['rows']:,} of {smallest:,} ids of the smallest table"
        notices = [f"Only {share} are in the tables of all parties: {said}."]
    return {**server, "align": {**found, "notices": notices}}


def _intersected(how: Align, names: Sequence[str]) -> Any:
    everybody = range(len(names))
    masked = yield from each(to_all(everybody, MASK, {"group": how.group}), names)
    sets = {k: masked[k]["points"] for k in everybody}
    ids = {names[k]: len(sets[k]) for k in everybody}
    if len(names) == 1:
        raise DataError("a single party has nobody to be matched with.")
    if len(names) == 2:
        twice = yield from each(Ask((0, 1), REMASK, {0: {"points": sets[1]}, 1: {"points": sets[0]}}, "each"), names)
        sent = {0: {"points": twice[1]["points"]}, 1: {"points": twice[0]["points"]}}
        heard = yield from each(Ask((0, 1), MATCH, sent, "each"), names)
        common = {" + ".join(names): int(heard[0]["matched"])}
    else:
        sets = yield from _round(names, sets)
        keys = {k: psi.keys_of(sets[k]) for k in everybody}
        members = {k: frozenset(keys[k]) for k in everybody}
        of_all = frozenset.intersection(*members.values())
        flags = {k: np.array([one in of_all for one in keys[k]], dtype=bool) for k in everybody}
        heard = yield from _returned(names, flags)
        common = {f"{names[a]} + {names[b]}": len(members[a] & members[b]) for a, b in combinations(everybody, 2)}
    matched = {int(heard[k]["matched"]) for k in everybody}
    if len(matched) != 1:
        raise ProtocolError(
            "the parties count different numbers of common rows: one of them does not follow the protocol."
        )
    return {"ids": ids, "rows": matched.pop(), "common": common}


def _round(names: Sequence[str], sets: Mapping[int, Any]) -> Any:
    """Pass every set through all parties, and return the sets masked by all."""
    P = len(names)
    for step in range(1, P):
        at = {(k + step) % P: k for k in range(P)}  # party -> the owner of the set that it has
        asked = {j: {"of": str(k), "points": sets[k]} for j, k in at.items()}
        heard = yield from each(Ask(tuple(range(P)), PASS, asked, "each"), names)
        sets = {k: heard[j]["points"] for j, k in at.items()}
    return sets


def _returned(names: Sequence[str], flags: Mapping[int, Any]) -> Any:
    """Return each party's flags to it, in its own order, and return the parties' replies."""
    P = len(names)
    held = {k: tensor(flags[k]) for k in range(P)}
    for step in reversed(range(1, P)):
        at = {(k + step) % P: k for k in range(P)}
        asked = {j: {"of": str(k), "in_all": held[k]} for j, k in at.items()}
        heard = yield from each(Ask(tuple(range(P)), BACK, asked, "each"), names)
        held = {k: heard[j]["in_all"] for j, k in at.items()}
    return (yield from each(Ask(tuple(range(P)), MATCH, {k: {"in_all": held[k]} for k in held}, "each"), names))


def _compared(names: Sequence[str]) -> Any:
    heard = yield from each(to_all(range(len(names)), SAME), names)
    if other := [k for k in heard if heard[k]["digest"] != heard[0]["digest"]]:
        raise DataError(
            f"align.name = 'none': '{names[0]}' and '{names[other[0]]}' do not hold the same ids in the same order: "
            "use align.name = 'psi'."
        )
    rows = int(heard[0]["rows"])
    return {"ids": dict.fromkeys(names, rows), "rows": rows, "common": {" + ".join(names): rows}}
