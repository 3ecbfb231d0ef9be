"""The protocol around an ask (P10, P11): clients encrypt updates, the server adds ciphertexts, and holders of the key open the sum.

The server applies whole-number weights to ciphertexts (in steps of 1 / unit, by largest remainder), or the client multiplies before it
encrypts. Parts not chosen for encryption travel in the clear.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedatlas.aggregation import changes
from fedatlas.aggregation.reducers import Reduced, Reducer, added
from fedatlas.algorithm import Ask, Replies, Update
from fedatlas.apportion import largest_remainder
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import SEND, Asking, Place, RoundClosed, enough, mended, weights_of
from fedatlas.privacy.encrypted.client_word import weighed
from fedatlas.privacy.encrypted.cryptosystem import FEWEST, Cryptosystem, Group, Opened, Sum
from fedatlas.privacy.numbers import REALS, Leaf, coded, rebuilt
from fedatlas.privacy.protocol import Doing, Protocol
from fedatlas.privacy.secagg.fixed import reals, reals_total
from fedatlas.transforms.change import BUFFERS
from fedatlas.tree import Tree

ENCRYPTED = "encrypted"  # name of the reducer
CIPHER, CLEAR, FORM = "cipher", "clear", "form"


def protocol(system: Cryptosystem) -> Protocol:
    """Return the protocol with this cryptosystem."""
    return Protocol(
        questions=system.questions,
        phases=dict.fromkeys(system.questions, "decrypt"),
        keys=system.keys,
        seal=partial(encrypted, system),
        around=partial(around, system),
        fits=lambda clients, hidden: system.layout(False, clients if system.unit == 1 else system.unit),
        fewest=FEWEST,
        reducer=ENCRYPTED,
        weighed=partial(weighed, system),
    )


# ------------------------------------------------------------------------------------------------ the client


def encrypted(
    system: Cryptosystem, update: Update, _: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the encrypted update, the session, and the update as decoded. ``update`` holds changes, noise included."""
    owner = session["client"]
    secret, clear = divided(system.encrypt, update)
    codes, form, decoded = coded(secret, word, lambda leaf: _codes(system, leaf, owner))
    whole = {**decoded}
    out = {}
    for group, rows in codes.items() if word[SEND] else ():
        layout = word["layouts"][REALS if group.startswith(REALS) else group]
        out[group] = {**system.encrypted(session, layout, np.concatenate(rows)), "count": sum(map(len, rows))}
    for part, value in clear.items():
        whole[part] = Tree({**whole[part], **value}) if part in whole else value
    ordered = {part: _ordered(whole[part], value) for part, value in update.items() if part in whole}
    return {CIPHER: out, CLEAR: clear, FORM: form} if word[SEND] else {}, session, ordered


def divided(encrypt: str | tuple[str, ...], update: Update) -> tuple[Update, dict[str, Any]]:
    """Return (encrypted parts, clear parts): of every tree the named tensors, of batch norm's statistics all or nothing."""
    if encrypt == "all":
        return update, {}
    names = {encrypt} if isinstance(encrypt, str) else {*encrypt}
    secret, clear = dict[str, Any](), dict[str, Any]()
    for part, value in update.items():
        if part == BUFFERS:
            clear[part] = value
        elif not isinstance(value, Tree):
            secret[part] = value
        else:
            secret[part] = Tree({name: x for name, x in value.items() if name in names})
            clear[part] = Tree({name: x for name, x in value.items() if name not in names})
    return secret, clear


def _ordered(value: Any, like: Any) -> Any:
    return Tree({name: value[name] for name in like if name in value}) if isinstance(value, Tree) else value


def _codes(system: Cryptosystem, leaf: Leaf, client: int) -> tuple[Any, Tensor]:
    """Return the codes of a leaf, and the values that they encode."""
    if leaf.real:
        return reals(leaf.numbers * leaf.factor, client, leaf.name).astype(np.int64), leaf.numbers
    return system.codes(leaf, f"client {client}")


# ------------------------------------------------------------------------------------------------ the server


def whole_weights(unit: int, given: Mapping[int, float]) -> dict[int, int]:
    """Return weights in steps of 1 / unit by largest remainder. They add up to round(unit x sum of the weights)."""
    quotas = np.array([*given.values()], dtype=np.float64) * float(unit)
    total = max(round(math.fsum(quotas)), int(np.floor(quotas + 1e-9).sum()))
    return dict(zip(given, map(int, largest_remainder(quotas, total)), strict=True))


def integers_of(unit: int, given: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, int]]:
    """Return the whole weights that the server multiplies by, by part and client: 1 if the clients weigh."""
    return {part: whole_weights(unit, own) if unit > 1 else dict.fromkeys(own, 1) for part, own in given.items()}


def layouts_of(system: Cryptosystem, integers: Mapping[str, Mapping[int, int]]) -> dict[str, list[Any]]:
    """Return the layout of every group of a sum with these whole weights. All its clients need the same ones."""
    layouts = {part: [*system.layout(False, sum(own.values()))] for part, own in integers.items()}
    return {**layouts, REALS: [*system.layout(True, max(map(len, integers.values())))]}


def around(system: Cryptosystem, public: Any, federation: str, ask: Ask, place: Place, workers: int = 1) -> Asking:
    """Run an ask of which only the sum is ever decrypted, and return the replies."""
    asked, mean = tuple(sorted(ask.to)), ask.reduce == "mean"  # ties between remainders go by client number
    given = weights_of(ask, place, asked)
    unit = system.unit if mean else 1
    integers = integers_of(unit, given)
    layouts = layouts_of(system, integers)
    arrived = yield from collected(system, public, ask, place, given, layouts, weighed=unit > 1)
    if arrived is None:
        return Replies((), None, {})
    clients, most = arrived
    total = Sum(clients, most.groups(clients, integers, layouts), ask, place)
    opened = yield from system.opening(public, total, workers)
    if opened is None:
        raise RoundClosed(f"nobody opened the sum of round {place.round}")
    try:
        value = _decoded(system, most.form, opened, dict.fromkeys(integers, unit))
    except (ProtocolError, ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise RoundClosed(f"what was opened is no sum of round {place.round}: {error}") from None
    for part, clear in most.clear.items():
        value[part] = Tree({**clear, **value[part]}) if part in value else clear
    return Replies(clients, mended(value, place.mend(clients)) if mean else value, {})


def collected(
    system: Cryptosystem,
    public: Any,
    ask: Ask,
    place: Place,
    given: Mapping[str, Mapping[int, float]],
    layouts: Mapping[str, Any],
    *,
    weighed: bool,
) -> Generator[Ask, Replies, tuple[tuple[int, ...], Alike] | None]:
    """Ask for the encrypted updates. Return whose are in the sum, and what they sent; None if nobody sent any.

    given: coefficients of all who are asked, by part. weighed: whether the server multiplies by them.
    """
    words = {
        k: {
            SEND: True,
            "mean": ask.reduce == "mean",
            "sums": list(place.sums),
            "layouts": layouts,
            "weights": {part: [part, 1.0 if weighed else own[k], own[k]] for part, own in given.items()},
        }
        for k in sorted(ask.to)
    }
    taken = _Taken(partial(system.received, public), layouts, given)
    replies = yield ask._replace(reduce=taken.reducer(), weights=None, words=words)
    most = taken.most()
    clients = tuple(k for k in replies.clients if k in most.batches)
    if not clients:
        return None
    if len(clients) == 1:
        raise RoundClosed(f"the sum of client {clients[0]} alone is its update: {FEWEST} have to take part")
    for own in given.values():
        enough(clients, own, FEWEST)
    return clients, most


class Alike(NamedTuple):
    """Encrypted updates of one form."""

    form: Mapping[str, Any]
    counts: Mapping[str, int]  # values by group
    batches: dict[int, Mapping[str, Any]]  # by client
    clear: dict[str, Any]  # the weighted sum of the parts that are not encrypted

    def groups(
        self, clients: tuple[int, ...], integers: Mapping[str, Any], layouts: Mapping[str, Any]
    ) -> dict[str, Group]:
        """Return the ciphertexts of these clients by group."""
        out = {}
        for group, count in self.counts.items():
            real = group.startswith(REALS)
            weights = {k: 1 if real else integers[group][k] for k in clients}
            layout = layouts[REALS if real else group]
            out[group] = Group(layout, count, {k: self.batches[k][group] for k in clients}, weights)
        return out


class _Taken:
    """The updates of an encrypted ask, by form; an invalid batch leaves its client out."""

    def __init__(
        self, received: Callable[[Any, Any, int], Any], layouts: Mapping[str, Any], given: Mapping[str, Any]
    ) -> None:
        self.received, self.layouts, self.given = received, layouts, given
        self.kinds: dict[Any, Alike] = {}

    def most(self) -> Alike:
        """Return the form that most clients share; in a tie, the one that came first. Clients with another form are left out."""
        return max(self.kinds.values(), key=lambda kind: len(kind.batches), default=Alike({}, {}, {}, {}))

    def reducer(self) -> Reducer:
        """Return the reducer for the server half."""
        return Reducer(ENCRYPTED, lambda k, update, _: (k, update), self._add, lambda total, _: Reduced(), single=False)

    def _add(self, total: Any, one: tuple[int, Update]) -> Any:
        with suppress(ProtocolError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            self._take(*one)
        return total

    def _take(self, k: int, update: Update) -> None:
        counts = {group: int(sent["count"]) for group, sent in update[CIPHER].items()}
        if any(count < 0 for count in counts.values()):
            raise ProtocolError(f"the ciphertexts of client {k} hold less than nothing.")
        found = {}
        for group, sent in update[CIPHER].items():
            layout = self.layouts[REALS if group.startswith(REALS) else group]
            found[group] = self.received(sent, layout, counts[group])
        form, clear = update[FORM], update[CLEAR]
        if not all(bool(x.isfinite().all()) for _, x in changes.leaves(clear)):
            raise ProtocolError(f"what client {k} sent in the clear is not finite.")
        key = json.dumps([counts, form]), changes.shape_of(clear)
        kind = self.kinds.get(key) or Alike(dict(form), counts, {}, {})
        of = {part: self.given[part if part in self.given else next(iter(self.given))][k] for part in clear}
        summed = dict(added(kind.clear or None, clear, of)) if clear else {}
        self.kinds[key] = kind._replace(clear=summed, batches={**kind.batches, k: found})


def _decoded(system: Cryptosystem, form: Mapping[str, Any], opened: Opened, units: Mapping[str, int]) -> dict[str, Any]:
    rows: dict[str, Tensor] = {}
    for group, codes in opened.items():
        real = group.startswith(REALS)
        rows[group] = reals_total(codes.numpy()) if real else system.values(codes, units.get(group, 1))
        if not bool(rows[group].isfinite().all()):
            raise ProtocolError("it holds numbers that are not finite.")
    return dict(rebuilt(form, rows))
