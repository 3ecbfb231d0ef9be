"""Federated Forest as rounds: generators that ask the parties and hold no label, threshold, row or sum.

A round is a tree:  plant (active) -> per level [ best (passive) -> choose (active) -> divide (passive owners) ]
                    -> ripen (active) -> keep (passive) -> vote (active)

Messages between parties are letters. The generator reads only who owns the nodes that split, and how many nodes are open.
The master of the paper is the party with the label: it holds it anyway, and the coordinator then learns less.

Source: Liu, Liu, Liu, Zhang, Meng and Zheng, IEEE Transactions on Big Data 2020 (V1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedatlas.algorithm import Question, RoundGenerator, State
from fedatlas.vertical.forest import active, letter_kinds, passive
from fedatlas.vertical.forest.settings import FederatedForest
from fedatlas.vertical.forms import Exactly, Form, WholeNumber
from fedatlas.vertical.letters import LETTERS, Due, Mail
from fedatlas.vertical.trees import importance, letter_parts
from fedatlas.vertical.trees.letter_parts import OWNERS, grown, of_level

WIDTH, START, LEARN, PLANT, BEST = "number of columns", "code labels", "learn labels", "plant", "best split"
CHOOSE, SPLIT, RIPEN, KEEP, VOTE = "choose", "divide", "ripen", "keep tree", "vote"
REACH, GATHER = "leaf sets", "gather votes"
LEVEL, SPLITS = letter_parts.LEVEL.topic, letter_parts.SPLIT.topic
VOTED: Mapping[str, Form] = {"voted": Exactly(True)}


def questions(how: FederatedForest) -> Mapping[str, Question]:
    """Return the questions to the parties."""
    asked = {
        WIDTH: (passive.width, (LETTERS,)),
        START: (active.start, ("started", LETTERS)),
        LEARN: (passive.learn, (LETTERS,)),
        PLANT: (active.plant, ("open", LETTERS)),
        BEST: (passive.best, (LETTERS,)),
        CHOOSE: (active.choose, ("owners", "open", LETTERS)),
        SPLIT: (passive.split, (LETTERS,)),
        RIPEN: (active.ripen, ("nodes", LETTERS)),
        KEEP: (passive.keep, (LETTERS,)),
        VOTE: (active.vote, ("voted",)),
        REACH: (passive.reach, (LETTERS,)),
        GATHER: (active.gather, ("voted",)),
    }
    found = {
        name: Question(partial(answer, how), stateful=True, shows=shows) for name, (answer, shows) in asked.items()
    }
    return {**found, **importance.QUESTIONS}


def due(part: str, number: int) -> Due:
    """Return what parties of a run are asked: at its "begin", in a "step", which is tree ``number``, and at its "end"."""
    nothing: Sequence[Mapping[str, Any]] = ({},)
    if part == "begin":
        return {WIDTH: ("passive", nothing), START: ("active", nothing), LEARN: ("passive", nothing)}
    if part == "end":
        return importance.DUE
    found: dict[str, Any] = dict.fromkeys((CHOOSE, RIPEN, VOTE), ("active", nothing))
    found |= dict.fromkeys((BEST, SPLIT, KEEP), ("passive", nothing))
    return {**found, PLANT: ("active", ({"tree": number},))}


def _others(server: State) -> tuple[int, ...]:
    return tuple(k for k in range(len(server["names"])) if k != server["active"])


def begin(how: FederatedForest, server: State) -> RoundGenerator:
    """Hand out the coded labels. Follows the alignment and the split of the rows."""
    mail, passive_ = Mail(server["names"]), _others(server)
    yield from mail.ask(passive_, WIDTH)
    yield from mail.ask((server["active"],), START, letter_kinds.WIDTH.topic, says={"started": Exactly(True)})
    yield from mail.ask(passive_, LEARN, letter_kinds.LABELS.topic)
    return {**server, "boost": {"nodes": []}}


def grow(how: FederatedForest, server: State, number: int) -> RoundGenerator:
    """Grow tree ``number`` (from 1), and return the server's state with each party's number of nodes."""
    mail, master, passive_, level = Mail(server["names"]), (server["active"],), _others(server), 0
    sent = (letter_kinds.TREE.topic, LEVEL, SPLITS)
    said = yield from mail.ask(master, PLANT, says={"open": WholeNumber(0, 2)}, tree=number)
    mine = said[server["active"]]
    while mine["open"]:
        level += 1
        yield from mail.ask(passive_, BEST, *sent)
        sizes = of_level(how.depth, level)
        opened = {**OWNERS, "open": WholeNumber(0, sizes["deepest"] - sizes["youngest"] + 1)}
        topics = (letter_kinds.BEST.topic, SPLITS)
        mine = (yield from mail.ask(master, CHOOSE, *topics, says=opened))[server["active"]]
        yield from mail.ask(mine["owners"], SPLIT, letter_kinds.WANTED.topic)
    form = grown(how.depth, mail.names)
    done = (yield from mail.ask(master, RIPEN, SPLITS, says=form))[server["active"]]
    yield from mail.ask(passive_, KEEP, letter_kinds.SHAPE.topic, letter_kinds.TREE.topic)
    yield from mail.ask(master, VOTE, letter_kinds.SETS.topic, says=VOTED)
    boost = server["boost"]
    return {**server, "boost": {**boost, "nodes": [*boost["nodes"], dict(done["nodes"])]}}


def infer(how: FederatedForest, server: State) -> RoundGenerator:
    """Compute the outputs of all aligned rows by a loaded model, in the active party's state, in one round."""
    mail = Mail(server["names"])
    yield from mail.ask(_others(server), REACH)
    yield from mail.ask((server["active"],), GATHER, letter_kinds.SETS.topic, says=VOTED)
    return server
