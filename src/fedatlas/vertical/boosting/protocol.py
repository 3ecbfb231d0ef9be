"""SecureBoost as rounds: generators that ask the parties and hold no label, clear gradient, key, threshold or row.

A round:  gradients (active) -> per level [ histogram (passive) -> open (active) -> split (passive owners) ] -> leaves (active)

A round is a tree, or with three or more classes a tree for each class (or one for all): they grow level by level together, so that a
round has as many messages as a tree.

Messages between parties are letters. The generator reads only their receivers, who owns the nodes that split, how many
nodes are open, and counts of ciphertexts. All these have declared forms (``says``).

Source: Cheng et al., IEEE Intelligent Systems 36(6), 2021 (V2); Chen et al., arXiv 2110.10927 (V3 (1) to (3), (6)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedatlas.algorithm import Question, RoundGenerator, State, Update
from fedatlas.vertical.boosting import active as label_holder
from fedatlas.vertical.boosting import inference, letter_kinds, modes, passive
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.forms import Exactly
from fedatlas.vertical.letters import LETTERS, Due, Mail
from fedatlas.vertical.trees import importance, letter_parts
from fedatlas.vertical.trees.letter_parts import OWNERS, grown

BINS, START, KEYS, GRADIENTS, HISTOGRAM = "bins", "start", "keys", "gradients", "histogram"
OPEN, SPLIT, LEAVES, WALK, WAY = (
    "open",
    "split",
    "leaves",
    "walk",
    "way",
)
LEVEL, SPLITS = letter_parts.LEVEL.topic, letter_parts.SPLIT.topic


def questions(how: SecureBoost) -> Mapping[str, Question]:
    """Return the questions to the parties."""
    asked = {
        BINS: (passive.cut, (LETTERS,)),
        START: (label_holder.start, ("started",)),
        KEYS: (label_holder.keys, ("bits",)),
        GRADIENTS: (label_holder.gradients, ("counts", LETTERS)),
        HISTOGRAM: (passive.histogram, ("counts", LETTERS)),
        OPEN: (label_holder.choose, ("owners", "open", "counts", LETTERS)),
        SPLIT: (passive.split, (LETTERS,)),
        LEAVES: (label_holder.leaves, ("nodes",)),
        WALK: (inference.walk, ("owners", LETTERS)),
        WAY: (inference.way, (LETTERS,)),
    }
    found = {
        name: Question(partial(answer, how), stateful=True, shows=shows) for name, (answer, shows) in asked.items()
    }
    return {**found, **importance.QUESTIONS}


def due(part: str, number: int) -> Due:
    """Return what parties of a run are asked: at its "begin", in a "step", which is tree or round ``number``, and at its "end"."""
    nothing: Sequence[Mapping[str, Any]] = ({},)
    if part == "begin":
        return {BINS: ("passive", nothing), START: ("active", nothing)}
    if part == "end":
        return importance.DUE
    found: dict[str, Any] = dict.fromkeys((KEYS, OPEN, LEAVES), ("active", nothing))
    found |= dict.fromkeys((HISTOGRAM, SPLIT), ("passive", nothing))
    return {**found, GRADIENTS: ("active", ({"tree": number},))}


def begin(how: SecureBoost, server: State) -> RoundGenerator:
    """Cut bins at every party, and start all margins. Follows the alignment and the split of the rows."""
    mail = Mail(server["names"])
    yield from mail.ask(_others(server), BINS)
    yield from mail.ask((server["active"],), START, letter_kinds.BINS.topic, says={"started": Exactly(True)})
    return {**server, "boost": {"counts": {}, "total": {}, "nodes": []}}


def grow(how: SecureBoost, server: State, number: int) -> RoundGenerator:
    """Grow the tree or trees of round ``number`` (from 1).

    Return the server's state with its counts and each party's number of nodes.
    """
    mail, active = Mail(server["names"]), server["active"]
    summing = partial(modes.summing, how, modes.Crew(active, len(server["names"])), number)
    counts, level = dict.fromkeys(letter_kinds.WORKED, 0) if how.encrypted else {}, 0
    worked, trees = letter_kinds.counts(how), how.forest(server.get("classes", 1))
    sent = (letter_kinds.GRADIENTS, letter_kinds.BY_CLASS, LEVEL, SPLITS)
    if how.encrypted and summing(1):
        yield from mail.ask((active,), KEYS, says={"bits": Exactly(how.key_bits)})
    _add(counts, (yield from mail.ask((active,), GRADIENTS, says=worked, tree=number)))
    goes_on = True
    while goes_on:
        level += 1
        _add(counts, (yield from mail.ask(summing(level), HISTOGRAM, *sent, says=worked)))
        opened = letter_kinds.opened(how, level, trees)
        said = yield from mail.ask((active,), OPEN, letter_kinds.SUMS, SPLITS, says=opened)
        _add(counts, said)
        goes_on = bool(said[active]["open"])
        yield from mail.ask(said[active]["owners"], SPLIT, letter_kinds.WANTED.topic)
    done = (yield from mail.ask((active,), LEAVES, SPLITS, says=grown(how.depth, mail.names, trees)))[active]
    boost = server["boost"]
    total = {name: boost["total"].get(name, 0) + n for name, n in counts.items()}
    return {
        **server,
        "boost": {**boost, "counts": counts, "total": total, "nodes": [*boost["nodes"], dict(done["nodes"])]},
    }


def _add(counts: dict[str, int], heard: Mapping[int, Update]) -> None:
    for one in heard.values():
        for name, n in one["counts"].items():
            counts[name] += n


def _others(server: State) -> tuple[int, ...]:
    return tuple(k for k in range(len(server["names"])) if k != server["active"])


def infer(how: SecureBoost, server: State) -> RoundGenerator:
    """Compute margins of all aligned rows by a loaded model, in the active party's state."""
    mail, active, step = Mail(server["names"]), server["active"], 0
    while True:
        told = yield from mail.ask((active,), WALK, letter_kinds.ANSWERED.topic, says=OWNERS)
        owners = told[active]["owners"]
        if not owners:
            return server
        step += 1
        yield from mail.ask(owners, WAY, letter_kinds.ASKED.topic, step=step)
