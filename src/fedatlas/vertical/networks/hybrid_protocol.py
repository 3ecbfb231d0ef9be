"""Hybrid federation as rounds: FedAvg on the columns that all parties share, then split learning on the rows that all share.

    1. train (all with labelled rows): an epoch of the network on shared columns -> their mean, weighted by rows
    2. as in split learning, over the common training rows; the party with the label adds the embedding of shared columns,
       and returns that network as the round's value

Sources: McMahan et al., AISTATS 2017 (H2); Gupta and Raskar 2018 (V5); the method is this project's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedatlas.algorithm import Ask, Question, Replies, RoundGenerator, State
from fedatlas.errors import DataError
from fedatlas.rounds import cast_like
from fedatlas.vertical.forms import Exactly, Form, Number, Numbers, WholeNumber
from fedatlas.vertical.letters import LETTERS, Mail
from fedatlas.vertical.networks import hybrid_parties as parties
from fedatlas.vertical.networks import passive, protocol
from fedatlas.vertical.networks.active import MODEL
from fedatlas.vertical.networks.letter_kinds import CUT, EMBEDDED, JUDGED
from fedatlas.vertical.networks.protocol import EMBED, FUSE, SCORE, SETTLE
from fedatlas.vertical.networks.settings import CutNetworks
from fedatlas.vertical.parties import PartyLeft, tensor

NAME, MEET, OUTLINE, SUMS, SCALE = "name columns", "meet columns", "outline rows", "sums of columns", "scale columns"
JOIN, TRAIN, OWN, FIRST = "draw all networks", "train on shared columns", "judge own rows", "embed to judge"
COUNTS = {"train": WholeNumber(), "test": WholeNumber(), "own": WholeNumber(), "shared": WholeNumber()}


def questions(how: CutNetworks) -> Mapping[str, Question]:
    """Return the questions to the parties."""
    asked = {
        NAME: (parties.tell, (LETTERS,)),
        MEET: (parties.meet, (LETTERS,)),
        OUTLINE: (parties.outline, (*COUNTS,)),
        SUMS: (parties.sums, ()),
        SCALE: (parties.scale, ("scaled",)),
        JOIN: (parties.join, ("batches", MODEL)),
        TRAIN: (parties.train, ()),
        OWN: (parties.judge, ("rows", "score")),
        FIRST: (passive.first, (LETTERS,)),
    }
    own = {name: Question(partial(answer, how), stateful=True, shows=shows) for name, (answer, shows) in asked.items()}
    found = {**protocol.questions(how), **own}
    return {**found, SCORE: found[SCORE]._replace(shows=("scored", MODEL))}


def begin(how: CutNetworks, server: State) -> RoundGenerator:
    """Find the shared columns, their scale, and draw all networks. Follows the alignment and the split of the rows.

    DataError if the parties share neither a column nor a row.
    """
    mail, holder, names = Mail(server["names"]), (server["active"],), server["names"]
    passive_ = tuple(k for k in range(len(names)) if k not in holder)
    yield from mail.ask(passive_, NAME)
    yield from mail.ask(holder, MEET, parties.NAMES.topic)
    counts = yield from mail.ask(range(len(names)), OUTLINE, parties.SHARED.topic, says=COUNTS)
    embed = [k for k in range(len(names)) if counts[k]["own"]]
    nets: dict[str, Any] = {"embed": embed, "shared": counts[server["active"]]["shared"]}
    nets |= {part: [counts[k][part] for k in range(len(names))] for part in ("train", "test")}
    if nets["shared"]:
        yield from _scaled(mail)
    forms = {"batches": WholeNumber(), **({MODEL: _form(how, nets)} if nets["shared"] else {})}
    said = (yield from mail.ask(holder, JOIN, says=forms, embed=embed))[server["active"]]
    if not said["batches"] and not nets["shared"]:
        raise DataError("the parties share neither a row nor a column: there is nothing to learn together.")
    nets |= {name: said[name] for name in forms}
    yield from mail.ask(_sending(server, nets), FIRST)
    yield from mail.ask(holder, SCORE, JUDGED, says=_scored(how, nets))
    return {**server, "nets": nets}


def _sending(server: State, nets: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(k for k in nets["embed"] if k != server["active"])


def _form(how: CutNetworks, nets: Mapping[str, Any]) -> Form:
    """Return the form of the network on shared columns."""
    widths = [nets["shared"], *how.shared]
    found: dict[str, Form] = {}
    for i, (inputs, units) in enumerate(pairwise(widths)):
        found |= {f"body.{2 * i + 1}.weight": Numbers(how.dtype, (units, inputs))}
        found |= {f"body.{2 * i + 1}.bias": Numbers(how.dtype, (units,))}
    return {**found, "head.weight": Numbers(how.dtype, (None, widths[-1])), "head.bias": Numbers(how.dtype, (None,))}


def _scored(how: CutNetworks, nets: Mapping[str, Any]) -> Form:
    return {"scored": Exactly(True), **({MODEL: _form(how, nets)} if nets["shared"] else {})}


def _scaled(mail: Mail) -> Any:
    """Tell all parties the mean and the deviation of shared columns and of the label, from sums over all their rows."""
    to = tuple(range(len(mail.names)))
    mean = yield from _mean(mail, to, None)
    sd = np.sqrt((yield from _mean(mail, to, tensor(mean))))
    sd = np.where(sd <= 1e-12 * np.abs(mean), 1.0, sd)  # one value, told apart by rounding only
    yield from mail.ask(to, SCALE, mean=tensor(mean), sd=tensor(sd))


def _mean(mail: Mail, to: tuple[int, ...], around: Any) -> Any:
    """Return (columns + 1,) means over all parties, of the values or of their squares around a mean."""
    replies: Replies = yield Ask(to, SUMS, {k: {"around": around} for k in to}, "sum")
    value = _whole(replies, to, mail, SUMS)["sums"]
    return value["sum"].numpy() / np.maximum(value["count"].numpy(), 1)


def _whole(replies: Replies, to: tuple[int, ...], mail: Mail, what: str) -> Any:
    """Return the value of replies. PartyLeft if somebody did not answer."""
    for k in to:
        if k not in replies.clients:
            raise PartyLeft(f"party '{mail.names[k]}' left when it was asked for '{what}'")
    return replies.value


def step(how: CutNetworks, server: State, number: int) -> RoundGenerator:
    """Play one round."""
    mail, holder, nets = Mail(server["names"]), (server["active"],), dict(server["nets"])
    sending = _sending(server, nets)
    if nets["shared"] and any(nets["train"]):
        nets[MODEL] = yield from _averaged(mail, nets, number)
    told = {MODEL: nets[MODEL]} if nets["shared"] else {}
    for batch in range(1, nets["batches"] + 1):
        yield from mail.ask(sending, EMBED, CUT, round=number, batch=batch)
        yield from mail.ask(holder, FUSE, EMBEDDED, round=number, batch=batch, **told)
        told = {}
    yield from mail.ask(sending, SETTLE if nets["batches"] else FIRST, CUT)
    said = yield from mail.ask(holder, SCORE, JUDGED, says=_scored(how, nets), **told)
    nets |= {MODEL: said[server["active"]][MODEL]} if nets["shared"] else {}
    if nets["shared"] and any(nets["test"]):
        form = {"rows": WholeNumber(), "score": Number(0)}
        heard = yield from mail.ask(_having(nets["test"]), OWN, says=form, **{MODEL: nets[MODEL]})
        nets["judged"] = {part: sum(one[part] for one in heard.values()) for part in form}
    return {**server, "nets": nets}


def _having(rows: Sequence[int]) -> tuple[int, ...]:
    """Return the parties that have such rows."""
    return tuple(k for k, n in enumerate(rows) if n)


def _averaged(mail: Mail, nets: Mapping[str, Any], number: int) -> Any:
    """Return the mean of the networks that the parties train on their labelled rows, weighted by these (H2)."""
    rows, told = nets["train"], {MODEL: nets[MODEL], "round": number}
    to = _having(rows)

    def shares(answered: tuple[int, ...]) -> Mapping[int, float]:
        total = sum(rows[k] for k in answered)
        return {k: rows[k] / total for k in answered}

    replies: Replies = yield Ask(to, TRAIN, dict.fromkeys(to, told), "mean", shares)
    return cast_like(_whole(replies, to, mail, TRAIN)[MODEL], nets[MODEL])


def counts(server: State) -> Mapping[str, Any]:
    """Return how many columns all parties share, and how the model does on both groups of judged rows, and on all.

    By accuracy, or by the root of the mean squared error.
    """
    part = "held" if server["rows"].get("held") else "test"
    return _of_both(server, server.get("quality") or {}, server["rows"][part])


def facts(server: State) -> Mapping[str, Any]:
    """Return ``figures`` of the summary: the same on test rows."""
    quality = server["tested"]["quality"] if "tested" in server else server.get("quality", {})
    return {"figures": _of_both(server, quality, server.get("rows", {}).get("test", 0))}


def _of_both(server: State, quality: Mapping[str, Any], common: int) -> Mapping[str, Any]:
    judged, found = server["nets"].get("judged"), {"shared_columns": server["nets"]["shared"]}
    name, power = ("rmse", 2.0) if "rmse" in quality else ("accuracy", 1.0)
    if not judged or not judged["rows"] or quality.get(name) is None:
        return found
    alone = judged["rows"]
    all_ = (common * quality[name] ** power + judged["score"]) / (common + alone)
    return {
        **found,
        f"{name}_of_common_rows": quality[name],
        f"{name}_of_other_rows": (judged["score"] / alone) ** (1 / power),
        f"{name}_of_both": all_ ** (1 / power),
        "common_rows_judged": common,
        "other_rows_judged": alone,
    }
