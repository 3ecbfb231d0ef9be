"""Split learning as rounds: generators that ask the parties and hold no label, embedding, gradient or weight.

A round is one pass over the training rows, in batches whose order all parties derive from the common seed:

    per batch:  embed (passive: step down the last gradients, send embeddings) -> fuse (active: step, send gradients)
    then:       settle (passive: the last step, embeddings of the rows that judge) -> score (active)

Sources: Gupta and Raskar, Journal of Network and Computer Applications 2018; Vepakomma et al. 2018 (V5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from fedatlas.algorithm import Question, RoundGenerator, State
from fedatlas.vertical.forms import Exactly, Form, Numbers, WholeNumber
from fedatlas.vertical.letters import LETTERS, Mail
from fedatlas.vertical.networks import active, passive
from fedatlas.vertical.networks.letter_kinds import ASKED, CUT, EMBEDDED, JUDGED
from fedatlas.vertical.networks.settings import CutNetworks

BEGIN, START, EMBED, FUSE, SETTLE = "draw network", "draw networks", "embed", "fuse", "settle network"
SCORE, ASK, GATHER, SIZES = "score", "embed rows asked about", "score rows asked about", "size of weights"
SCORED: Mapping[str, Form] = {"scored": Exactly(True)}


def questions(how: CutNetworks) -> Mapping[str, Question]:
    """Return the questions to the parties."""
    asked = {
        BEGIN: (passive.start, (LETTERS,)),
        START: (active.start, ("batches",)),
        EMBED: (passive.embed, (LETTERS,)),
        FUSE: (active.fuse, (LETTERS,)),
        SETTLE: (passive.settle, (LETTERS,)),
        SCORE: (active.score, ("scored",)),
        ASK: (passive.ask, (LETTERS,)),
        GATHER: (active.gather, ("scored",)),
        SIZES: (passive.sizes, ("by_column",)),
    }
    return {name: Question(partial(answer, how), stateful=True, shows=shows) for name, (answer, shows) in asked.items()}


def _others(server: State) -> tuple[int, ...]:
    return tuple(k for k in range(len(server["names"])) if k != server["active"])


def begin(how: CutNetworks, server: State) -> RoundGenerator:
    """Draw all networks, and judge them. Follows the alignment and the split of the rows."""
    mail, holder = Mail(server["names"]), (server["active"],)
    yield from mail.ask(_others(server), BEGIN)
    said = yield from mail.ask(holder, START, says={"batches": WholeNumber(1)})
    yield from mail.ask(holder, SCORE, JUDGED, says=SCORED)
    return {**server, "nets": {"batches": said[server["active"]]["batches"]}}


def step(how: CutNetworks, server: State, number: int) -> RoundGenerator:
    """Pass once over the training rows, and judge."""
    mail, holder, passive_ = Mail(server["names"]), (server["active"],), _others(server)
    for batch in range(1, server["nets"]["batches"] + 1):
        yield from mail.ask(passive_, EMBED, CUT, round=number, batch=batch)
        yield from mail.ask(holder, FUSE, EMBEDDED, round=number, batch=batch)
    yield from mail.ask(passive_, SETTLE, CUT)
    yield from mail.ask(holder, SCORE, JUDGED, says=SCORED)
    return server


def predict(how: CutNetworks, server: State) -> RoundGenerator:
    """Compute the outputs of all aligned rows by a loaded model, in the active party's state."""
    mail = Mail(server["names"])
    yield from mail.ask(_others(server), ASK)
    yield from mail.ask((server["active"],), GATHER, ASKED, says=SCORED)
    return server


def end(how: CutNetworks, server: State) -> RoundGenerator:
    """Add to the server's state how large the weights on each column are, by party and place. Names stay with the party."""
    mail, names = Mail(server["names"]), server["names"]
    form = {"by_column": Numbers(torch.float64, (None,))}
    found = yield from mail.ask(range(len(names)), SIZES, says=form)
    sizes = {names[k]: found[k]["by_column"].tolist() for k in range(len(names))}
    return {**server, "nets": {**server["nets"], "sizes": sizes}}


def brought(server: State) -> Mapping[str, Sequence[float]]:
    """Return the size of each party's weights by column."""
    found: Mapping[str, Sequence[float]] = server["nets"]["sizes"]
    return found
