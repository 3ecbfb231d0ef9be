"""Find the rows that all parties have (V2, D12) by private set intersection.

Between two parties it runs both ways. Each masks its ids with a secret exponent, in a secret order; the other raises the
points to its exponent and sends them back. Equal points are then equal ids. A party learns which of its rows the other
has, and how many rows the other has.

    a: H(a)^x --> b: H(a)^xy --> a          b: H(b)^y --> a: H(b)^yx --> b

With three to eight parties, every party's set goes round all of them, and each raises and shuffles it. The active party
compares the results. It sends back, through the same parties in turn, which ids are in all sets. A party learns which
of its rows *all* others have. The active party and the coordinator learn the sizes of all overlaps, and no id.

Rows that cannot be matched exactly are linked by several keys in turn (`Align.keys`). Each goes through the same protocol,
with a fresh exponent and the rows that no earlier key has matched. A row whose key is that of another such row of its party is
left out there, and counted.

Sets and answers are letters. The number of a letter is the number of exponents on its points, plus one more than there
are parties for each earlier key. It tells whose set it is, who has it now, and who has it next. So the coordinator can
neither add a set nor send one another way. Parties are
assumed to be curious, but to follow the protocol. Exponents and orders are in the session of the set-up, and only in
memory. ``state["align"]`` keeps two things: ``order``, the party's own row at each place, and ``key``, under which
`ids.ordered` sorts them. The active party makes the key and sends it to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fedatlas import secret
from fedatlas.algorithm import Question, RoundGenerator, State, Update
from fedatlas.errors import DataError, ProtocolError
from fedatlas.vertical import psi
from fedatlas.vertical.forms import Exactly, InOrder, ListOf, Number, Numbers, ShortText, WholeNumber
from fedatlas.vertical.ids import LITTLE, Look, difference, digest_of_ids, look_of, ordered, seed_key
from fedatlas.vertical.letters import LETTERS, Due, LetterKind, Mail, blamed, letter, others, taken, unusable
from fedatlas.vertical.parties import Columns, Whole, order, tensor

ORDER, MASK, REMASK, PASS, COMPARE, BACK, MATCH, SAME, LOOK = (
    "order rows",
    "mask ids",
    "mask again",
    "pass on",
    "compare sets",
    "pass back",
    "match",
    "compare ids",
    "look of ids",
)
IDS = LetterKind("ids", {"points": Numbers(torch.uint8, ("ids", psi.BYTES))})
FLAGS = LetterKind("in all", {"in_all": Numbers(torch.bool, ("ids",))})
KEY = LetterKind("row order", {"key": Numbers(torch.uint8, (None,))})
DIGEST = LetterKind("digest of ids", {"digest": ShortText(64)})
SHARE = Number(0, 1)
LOOKED = {
    "look": InOrder((WholeNumber(), SHARE, SHARE, SHARE, WholeNumber(), WholeNumber(), SHARE, SHARE, SHARE))
}  # `Look`
MATCHED = "matched"  # in the session: the rows that each key has matched so far
MOST = 8  # parties that can be matched
SECRET = 32  # bytes of a key that the active party draws


class Align(NamedTuple):
    """The method of matching rows."""

    name: Literal["psi", "none"] = "psi"
    group: psi.Group = "ristretto255"
    keys: tuple[tuple[tuple[str, ...], ...], ...] = (((),),)  # key -> column -> rules of normalisation
    linked: bool = False  # several keys in turn; a key may occur in several rows, which are then left out

    def record(self) -> dict[str, Any]:
        """Return plain values; how ids are made only where the experiment declares more than one column as it is."""
        keys = [[[*rules] for rules in key] for key in self.keys]
        made = {"keys": keys, "linked": self.linked} if self.linked or self.keys != Align().keys else {}
        return {"name": self.name, "group": self.group, **made}


Answered = tuple[Update, State, Any]


# ------------------------------------------------------------------------------------------------ the parties


def with_ids(data: Columns) -> Whole:
    """Return the numbers of the party's rows that have an id, by any key."""
    keys = zip(data.ids, *data.later, strict=True)
    return np.array([i for i, each in enumerate(keys) if any(each)], dtype=np.int64)


def ids_by(data: Columns, number: int) -> tuple[str, ...]:
    """Return the ids of all rows by a key, "" for none. ProtocolError for a key that there is not."""
    keys = (data.ids, *data.later)
    if not 0 <= number < len(keys):
        raise ProtocolError(f"there are {len(keys)} keys, and number {number} is not one of them.")
    return keys[number]


def entering(data: Columns, number: int, matched: Sequence[Whole] = ()) -> tuple[Whole, int]:
    """Return the rows that a key is tried with, and how many are left out because another row has the same id."""
    ids, gone = ids_by(data, number), {int(i) for rows in matched for i in rows}
    free = [i for i, one in enumerate(ids) if one and i not in gone]
    rows = free
    if data.linked:
        times = Counter(ids[i] for i in free)
        rows = [i for i in free if times[ids[i]] == 1]
    return np.array(rows, dtype=np.int64), len(free) - len(rows)


def _order(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Make the key of the rows' order at the active party, and send it to the other parties only."""
    if session and KEY.topic in session:
        raise ProtocolError("the order of the rows is drawn already.")
    key = secret.random_bytes(SECRET) if data.row_order == "secret" else seed_key(data.seed)
    told = letter(data, others(data), KEY.topic, {"key": tensor(np.frombuffer(key, np.uint8).copy())}, secret=True)
    return {"drawn": True, LETTERS: [told]}, state, {**(session or {}), KEY.topic: key}


def _key(data: Columns, message: Any, session: Any) -> bytes:
    """Return the key of the rows' order. ProtocolError if it is less secret than this party demands."""
    if KEY.topic in (session or {}):
        return bytes(session[KEY.topic])
    key = taken(data, message, data.active, KEY)["key"].numpy().tobytes()
    if data.row_order == "secret" and (len(key) != SECRET or key == seed_key(data.seed)):
        raise ProtocolError(
            f"'{data.parties[data.active]}' orders the rows by the seed, which the coordinator knows, and '{data.name}' wants "
            "a secret order: set the same row_order in all policies."
        )
    if len(key) != SECRET and key != seed_key(data.seed):
        raise unusable(data.parties[data.active], KEY.topic, f"a key of {len(key)} bytes is no key")
    return bytes(key)


def _mask(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Mask the party's ids by one of the keys, in a secret order, for the next party."""
    session, group, number = session or {}, message["group"], message["key"]
    matched = session.get(MATCHED, ())
    if "psi" in session or number != len(matched):
        raise ProtocolError("the ids are masked already.")
    (rows, ambiguous), ids, key = entering(data, number, matched), ids_by(data, number), psi.exponent(group)
    rows = rows[psi.shuffle(len(rows))]
    points = psi.masked([ids[i] for i in rows], key, group, data.workers, data.tick)
    past = number * (len(data.parties) + 1)
    held = {"group": group, "key": key, "rows": rows, "orders": [], "back": 0, "past": past}
    told = letter(data, [_next(data)], IDS.topic, {"points": points}, past + 1)
    counts = {"ids": len(rows), "ambiguous": ambiguous, "rows": len(with_ids(data))}
    return {**counts, LETTERS: [told]}, state, {**session, "psi": held}


def _next(data: Columns, by: int = 1) -> int:
    """Return the party that comes ``by`` places later."""
    return (data.party + by) % len(data.parties)


def _held(session: Any) -> dict[str, Any]:
    """Return the state of the current matching."""
    if not session or "psi" not in session:
        raise ProtocolError("no matching is under way.")
    return dict(session["psi"])


def _remask(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Raise the other party's ids to this party's exponent, and keep them to compare with. For two parties."""
    held, other = _held(session), _next(data)
    points = _raised(data, message, other, 1, held)
    told = letter(data, [other], IDS.topic, {"points": points}, held["past"] + 2)
    return {LETTERS: [told]}, state, {**session, "psi": {**held, "theirs": psi.points_of(points)}}


def _raised(data: Columns, message: Any, sender: int, step: int, held: Mapping[str, Any]) -> Any:
    """Raise the masked ids of a letter to one more exponent."""
    came = taken(data, message, sender, IDS, held["past"] + step)["points"]
    with blamed(data, sender, IDS):
        return psi.raised(came, held["key"], held["group"], data.workers, data.tick)


def asked_about(data: Columns, what: str, message: Any, session: Any) -> int:
    """Return how many ids of another party an ask concerns."""
    if what not in {REMASK, PASS}:
        return 0
    held = _held(session)
    step = held["past"] + (1 if what == REMASK else len(held["orders"]) + 1)
    return len(psi.points_of(taken(data, message, _next(data, -1), IDS, step)["points"]))


def _pass(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Raise another party's set once more, shuffle it and pass it on; after the last exponent, to the active party.

    For three or more parties.
    """
    held, P = _held(session), len(data.parties)
    step = len(held["orders"]) + 1
    if step >= P:
        raise ProtocolError("all sets have passed here already.")
    points = _raised(data, message, _next(data, -1), step, held)
    shuffled = psi.shuffle(len(points))
    to = data.active if step == P - 1 else _next(data)
    told = letter(data, [to], IDS.topic, {"points": tensor(points.numpy()[shuffled])}, held["past"] + step + 1)
    return {LETTERS: [told]}, state, {**session, "psi": {**held, "orders": [*held["orders"], shuffled]}}


def _compare(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return which points of each set are in all sets, and how many any two sets share. For three or more parties.

    The active party computes it.
    """
    P, names, past = len(data.parties), data.parties, _held(session)["past"]
    last = [(k - 1) % P for k in range(P)]  # who has a party's set at its last stop
    keys = [psi.points_of(taken(data, message, last[k], IDS, past + P)["points"]) for k in range(P)]
    of_all = [np.all([psi.among(mine, each) for each in keys], axis=0) for mine in keys]
    told = [letter(data, [last[k]], FLAGS.topic, {"in_all": tensor(of_all[k])}, past + P - 1) for k in range(P)]
    common = {pair: int(psi.among(keys[a], keys[b]).sum()) for pair, (a, b) in pairs(names).items()}
    return {"common": common, LETTERS: told}, state, session


def pairs(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Map the joint name of any two parties to their places."""
    return {f"{names[a]} + {names[b]}": (a, b) for a, b in combinations(range(len(names)), 2)}


def _back(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Pass on which ids of another party's set are in all sets, in the order in which the set came here."""
    held, P = _held(session), len(data.parties)
    step = P - 1 - held["back"]
    if not 0 < step <= len(held["orders"]):
        raise ProtocolError("no answer is on its way back here.")
    shuffled = held["orders"][step - 1]
    flags = np.zeros(len(shuffled), bool)
    flags[shuffled] = _flags(data, message, held, step, len(shuffled))
    told = letter(data, [_next(data, -1)], FLAGS.topic, {"in_all": tensor(flags)}, held["past"] + step - 1)
    return {LETTERS: [told]}, state, {**session, "psi": {**held, "back": held["back"] + 1}}


def _flags(data: Columns, message: Any, held: Mapping[str, Any], step: int, count: int) -> Any:
    """Return (count,), which ids are in all sets, from the party that had the set next."""
    sender = data.active if step == len(data.parties) - 1 else _next(data)
    return taken(data, message, sender, FLAGS, held["past"] + step, ids=count)["in_all"].numpy()


def _match(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Find the party's rows that are in all sets. All rows found so far get the order that all parties share."""
    held = _held(session)
    rows, theirs = held["rows"], held.get("theirs")
    if len(data.parties) == 2:
        step = held["past"] + 2
        mine = psi.points_of(taken(data, message, _next(data), IDS, step, ids=len(rows))["points"])
        if theirs is None:
            raise ProtocolError("the other party's ids did not come here.")
        found = psi.among(mine, theirs)
    else:
        found = _flags(data, message, held, 0, len(rows))
    key, matched = _key(data, message, session), (*session.get(MATCHED, ()), rows[found])
    kept = {**session, KEY.topic: key, MATCHED: matched}
    del kept["psi"]
    return {"matched": int(found.sum())}, placed(data, state, key, *matched), kept


def placed(data: Columns, state: State, key: bytes, *matched: Whole) -> State:
    """Return the state with these rows of the party, by the keys that matched them, as the aligned ones."""
    at = ordered([data.ids[i] for i in matched[0]], key, *_texts(data, matched))
    kept = tensor(np.frombuffer(key, np.uint8).copy())
    return {**state, "align": {"order": tensor(np.concatenate(matched)[at]), "key": kept}}


def _texts(data: Columns, matched: Sequence[Whole]) -> list[list[str]]:
    return [[ids_by(data, k)[i] for i in rows] for k, rows in enumerate(matched) if k]


def _same(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Align all rows without matching. The active party compares digests of all ids in the files' order."""
    if len(rows := with_ids(data)) < len(data.ids):
        raise DataError(
            f"party '{data.name}' has {len(data.ids) - len(rows)} rows without an id, but align.name = 'none' needs one in every row."
        )
    key = _key(data, message, session)
    digest, reply = digest_of_ids(data.ids, key), {"rows": len(rows)}
    if data.party == data.active:
        odd = [k for k in others(data) if taken(data, message, k, DIGEST)["digest"] != digest]
        return {**reply, "odd": odd}, placed(data, state, key, rows), session
    told = letter(data, [data.active], DIGEST.topic, {"digest": digest}, secret=True)
    return {**reply, LETTERS: [told]}, placed(data, state, key, rows), session


def _look(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return figures about the ids. They are given only if the others have few of the ids."""
    own = [one for one in data.ids if one]
    if 0 < LITTLE * len(own) <= len(order(state)):
        raise ProtocolError(f"party '{data.name}' says nothing of its ids: most of them were found.")
    return {"look": [*look_of(own)]}, state, session


QUESTIONS: Mapping[str, Question] = {
    ORDER: Question(_order, shows=("drawn", LETTERS)),
    MASK: Question(_mask, shows=("ids", "ambiguous", "rows", LETTERS)),
    REMASK: Question(_remask, shows=(LETTERS,)),
    PASS: Question(_pass, shows=(LETTERS,)),
    COMPARE: Question(_compare, shows=("common", LETTERS)),
    BACK: Question(_back, shows=(LETTERS,)),
    MATCH: Question(_match, shows=("matched",), stateful=True),
    SAME: Question(_same, shows=("rows", "odd", LETTERS), stateful=True),
    LOOK: Question(_look, shows=("look",), stateful=True),
}


def due(how: Align, parties: int) -> Due:
    """Return what parties may be asked."""
    nothing: Sequence[Mapping[str, Any]] = ({},)
    found: dict[str, Any] = {ORDER: ("active", nothing), LOOK: ("all", nothing)}
    if how.name == "none":
        return {**found, SAME: ("all", nothing)}
    asked = tuple({"group": how.group, "key": number} for number in range(len(how.keys)))
    found |= {MASK: ("all", asked), MATCH: ("all", nothing)}
    if parties == 2:
        return {**found, REMASK: ("all", nothing)}
    return {**found, PASS: ("all", nothing), COMPARE: ("active", nothing), BACK: ("all", nothing)}


# ------------------------------------------------------------------------------------------------ left of the link


def align(how: Align, server: State) -> RoundGenerator:
    """Align all parties; the server's state gets ``align``: ids by party, and rows that all and that each pair have.

    DataError if no row is common to all, with what differs between the ids.
    """
    names, active = server["names"], server["active"]
    if len(names) > MOST:
        raise DataError(f"{len(names)} parties: at most {MOST} can be matched.")
    if len(names) == 1 and how.name != "none":
        raise DataError("one party alone has nobody to be matched with.")
    mail = Mail(names)
    yield from mail.ask((active,), ORDER, says={"drawn": Exactly(True)})
    found = yield from (_compared(mail, active) if how.name == "none" else _intersected(mail, how, active))
    smallest = min(found["ids"].values())
    notices: list[str] = []
    if found["rows"] < LITTLE * smallest or not found["rows"]:
        told = yield from mail.ask(range(len(names)), LOOK, says=LOOKED)
        said = difference({names[k]: Look(*told[k]["look"]) for k in told})
        if not found["rows"]:
            raise DataError(f"no id is in the tables of all parties: {said}.")
        share = f"{found['rows']:,} of {smallest:,} ids of the smallest table"
        notices = [f"Only {share} are in the tables of all parties: {said}."]
    return {**server, "align": {**found, "notices": notices}}


def _intersected(mail: Mail, how: Align, active: int) -> Any:
    each: list[dict[str, Any]] = []
    for number in range(len(how.keys)):
        each += [(yield from _by_key(mail, how, active, number))]
    common = {pair: sum(one["common"][pair] for one in each) for pair in each[0]["common"]}
    found = {"ids": each[0]["held"], "rows": sum(one["rows"] for one in each), "common": common}
    passes = [{part: one[part] for part in ("ids", "ambiguous", "rows")} for one in each]
    return {**found, "passes": passes} if how.linked else found


def _by_key(mail: Mail, how: Align, active: int, number: int) -> Any:
    """Match the rows that no earlier key has matched."""
    names, everybody = mail.names, range(len(mail.names))
    counts = {"ids": WholeNumber(0), "ambiguous": WholeNumber(0), "rows": WholeNumber(0)}
    masked = yield from mail.ask(everybody, MASK, says=counts, group=how.group, key=number)
    ids = {names[k]: masked[k]["ids"] for k in everybody}
    common: dict[str, int] = {}
    if len(names) == 2:
        yield from mail.ask(everybody, REMASK, IDS.topic)
    else:
        for _ in range(len(names) - 1):
            yield from mail.ask(everybody, PASS, IDS.topic)
        two = {pair: WholeNumber(0, min(ids[names[k]] for k in both) + 1) for pair, both in pairs(names).items()}
        common = dict((yield from mail.ask((active,), COMPARE, IDS.topic, says={"common": two}))[active]["common"])
        for _ in range(len(names) - 1):
            yield from mail.ask(everybody, BACK, FLAGS.topic)
    count = {"matched": WholeNumber(0, min(ids.values()) + 1)}
    heard = yield from mail.ask(everybody, MATCH, IDS.topic, FLAGS.topic, KEY.topic, says=count)
    rows = heard[active]["matched"]
    if any(one["matched"] != rows for one in heard.values()):
        said = ", ".join(f"'{names[k]}' {heard[k]['matched']:,}" for k in everybody)
        raise ProtocolError(
            f"the parties count different numbers of common rows ({said}): one of them does not follow the protocol."
        )
    more = {part: {names[k]: masked[k][key] for k in everybody} for part, key in (("ambiguous",) * 2, ("held", "rows"))}
    return {"ids": ids, **more, "rows": rows, "common": common or {" + ".join(names): rows}}


def _compared(mail: Mail, active: int) -> Any:
    names = mail.names
    rows = {"rows": WholeNumber()}
    yield from mail.ask([k for k in range(len(names)) if k != active], SAME, KEY.topic, says=rows)
    compared = {**rows, "odd": ListOf(WholeNumber(0, "parties"), once=True)}
    said = (yield from mail.ask((active,), SAME, DIGEST.topic, says=compared))[active]
    if odd := said["odd"]:
        raise DataError(
            f"align.name = 'none': '{names[active]}' and '{names[odd[0]]}' do not hold the same ids in the same order: "
            "take align.name = 'psi'."
        )
    count = said["rows"]
    return {"ids": dict.fromkeys(names, count), "rows": count, "common": {" + ".join(names): count}}
