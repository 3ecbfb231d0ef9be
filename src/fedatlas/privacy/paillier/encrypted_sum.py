"""Paillier around an ask (P10, P11): clients encrypt updates, the server adds ciphertexts, and one client in turn opens the sum.

All clients hold the secret key, the server only the public one. The server applies whole-number weights (Enc(a)^k, k in steps of
2^-bits, by largest remainder), or the client multiplies before it encrypts. Parts not chosen for encryption travel in the clear.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.aggregation import changes
from fedatlas.aggregation.reducers import Reduced, Reducer, added
from fedatlas.algorithm import Ask, Question, Replies, State, Update
from fedatlas.apportion import largest_remainder
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import SEND, Asking, Place, RoundClosed, enough, mended, weights_of
from fedatlas.privacy.mechanism import Doing, Keys, Protocol
from fedatlas.privacy.numbers import REALS, Leaf, coded, rebuilt
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.secagg import once
from fedatlas.privacy.secagg.fixed import LIMB, reals, reals_total
from fedatlas.privacy.secagg.messages import raw, table
from fedatlas.transforms.change import BUFFERS
from fedatlas.tree import Tree

ENCRYPTED = "encrypted"  # name of the reducer
OPEN = "paillier open"
FEWEST = 2  # clients of a sum: the sum of one is its update. Of two, the opener learns the other's, but it holds the key anyway
CIPHER, CLEAR, FORM = "cipher", "clear", "form"


@cache
def _holder(*halves: bytes) -> paillier.Holder:
    """Return the key made ready, once per process. Workers that are forked later share it."""
    plain = {name: table([half], len(half)) for name, half in zip(("p", "q"), halves, strict=True)}
    return paillier.holder(paillier.private_key(plain, testing=True))


def ready(plain: Mapping[str, Tensor]) -> paillier.Holder:
    """Return the holder of a key in its plain form."""
    return _holder(raw(plain["p"]), raw(plain["q"]))


class Encryption(NamedTuple):
    """The keys of the table."""

    key_bits: int
    bits: int
    range: float
    encrypt: str | tuple[str, ...]
    weights_by: Literal["server", "client"]


def protocol(how: Encryption) -> Protocol:
    """Return the protocol with these keys."""
    return Protocol(
        questions=QUESTIONS,
        phases={OPEN: "decrypt"},
        keys=partial(parties, how),
        seal=partial(encrypted, how),
        around=partial(around, how),
        fits=lambda clients, hidden: values_layout(how, clients if how.weights_by == "client" else 1 << how.bits),
        fewest=FEWEST,
        reducer=ENCRYPTED,
    )


def parties(how: Encryption, clients: int, federation: str, testing: bool) -> Keys:
    """Return the key that all parties of a simulation hold."""
    private = paillier.generate(how.key_bits, testing=testing)
    return Keys(private.public, lambda k, record: first_session(k, private, record))


def first_session(client: int, private: paillier.PrivateKey, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the start of a party's sessions: the federation's key and the sums that it opened. It stays in memory."""
    ready(private.plain())
    kept = {run: [list(one) for one in asks] for run, asks in record.items()}
    return {"client": client, "key": private.plain(), "record": kept}


def values_layout(how: Encryption, total: int) -> paillier.Layout:
    """Return the layout of values in plaintexts."""
    return paillier.layout(how.key_bits, how.bits, total)


def reals_layout(how: Encryption, clients: int) -> paillier.Layout:
    """Return the layout of words of reals in plaintexts."""
    return paillier.layout(how.key_bits, LIMB + 1, clients)


# ------------------------------------------------------------------------------------------------ the client


def _open(model: Any, data: Any, message: Any, state: State, session: Any) -> tuple[Update, State, Any]:
    """Open the sum of an ask, once: sums of codes by group, int64."""
    record = once.noted(session["record"], message["run"], message["round"], message["ask"])
    keys, out = ready(session["key"]), {}
    for group, asked in message["sums"].items():
        form = paillier.Layout(*asked["layout"])
        batch = paillier.received(keys.public, asked["batch"], form.plaintexts(asked["count"]))
        found = paillier.unpack(form, paillier.decrypt(keys, batch), asked["count"], asked["weight"])
        out[group] = torch.from_numpy(found)
    return {"opened": out}, state, {**session, "record": record}


QUESTIONS: Mapping[str, Question] = {OPEN: Question(_open, data="none", shows=("opened",))}


def chosen(how: Encryption, update: Update) -> tuple[Update, dict[str, Any]]:
    """Return (encrypted parts, clear parts): of every tree the named tensors, of batch norm's statistics all or nothing."""
    if how.encrypt == "all":
        return update, {}
    names = {how.encrypt} if isinstance(how.encrypt, str) else {*how.encrypt}
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


def encrypted(
    how: Encryption, update: Update, _: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the encrypted update, the session, and the update as decoded. ``update`` holds changes, noise included."""
    me, keys = session["client"], ready(session["key"])
    secret, clear = chosen(how, update)
    codes, form, decoded = coded(secret, word, lambda leaf: _codes(how, leaf, me))
    whole = {**decoded}
    out = {}
    for group, rows in codes.items() if word[SEND] else ():
        layout = paillier.Layout(*word["layouts"][REALS if group.startswith(REALS) else group])
        packed = paillier.pack(layout, np.concatenate(rows))
        out[group] = {**paillier.encrypt(keys.public, packed, keys=keys).plain(), "count": sum(map(len, rows))}
    for part, value in clear.items():
        whole[part] = Tree({**whole[part], **value}) if part in whole else value
    ordered = {part: _ordered(whole[part], value) for part, value in update.items() if part in whole}
    return {CIPHER: out, CLEAR: clear, FORM: form} if word[SEND] else {}, session, ordered


def _ordered(value: Any, like: Any) -> Any:
    return Tree({name: value[name] for name in like if name in value}) if isinstance(value, Tree) else value


def _codes(how: Encryption, leaf: Leaf, me: int) -> tuple[Any, Tensor]:
    """Return the whole numbers of a leaf, and the values that they encode."""
    if leaf.real:
        words = reals(leaf.numbers * leaf.factor, me, leaf.name)
        return words.astype(np.int64), leaf.numbers
    codes = paillier.quantise(
        leaf.numbers * leaf.factor, bits=how.bits, range=how.range, owner=f"client {me}", part=leaf.name
    )
    decoded = torch.from_numpy(paillier.dequantise(codes, bits=how.bits, range=how.range))
    return codes, decoded / leaf.factor if leaf.factor else leaf.numbers


# ------------------------------------------------------------------------------------------------ the server


def whole_weights(how: Encryption, given: Mapping[int, float]) -> dict[int, int]:
    """Return weights in steps of 2^-bits by largest remainder. They add up to round(2^bits sum of the weights)."""
    quotas = np.array([*given.values()], dtype=np.float64) * 2.0**how.bits
    total = max(round(math.fsum(quotas)), int(np.floor(quotas + 1e-9).sum()))
    return dict(zip(given, map(int, largest_remainder(quotas, total)), strict=True))


def around(
    how: Encryption, public: paillier.PublicKey, federation: str, ask: Ask, place: Place, workers: int = 1
) -> Asking:
    """Run an ask of which only the sum is ever decrypted, and return the replies."""
    asked, mean = tuple(sorted(ask.to)), ask.reduce == "mean"  # ties between remainders go by client number
    given = weights_of(ask, place, asked)
    server = mean and how.weights_by == "server"
    integers = {part: whole_weights(how, own) if server else dict.fromkeys(asked, 1) for part, own in given.items()}
    totals = {part: sum(own.values()) for part, own in integers.items()}
    layouts = {part: [*values_layout(how, total)] for part, total in totals.items()}
    layouts[REALS] = [*reals_layout(how, len(asked))]
    words = {
        k: {
            SEND: True,
            "mean": mean,
            "sums": list(place.sums),
            "layouts": layouts,
            "weights": {part: [part, 1.0 if server else own[k], own[k]] for part, own in given.items()},
        }
        for k in asked
    }
    taken = _Taken(public, layouts, given)
    replies = yield ask._replace(reduce=taken.reducer(), weights=None, words=words)
    most = taken.most()
    clients = tuple(k for k in replies.clients if k in most.batches)
    if not clients:
        return Replies((), None, {})
    if len(clients) == 1:
        raise RoundClosed(f"the sum of client {clients[0]} alone is its update: {FEWEST} have to take part")
    for own in given.values():
        enough(clients, own, FEWEST)
    sums: dict[str, Any] = {}
    for group, count in most.counts.items():
        real = group.startswith(REALS)
        k_of = dict.fromkeys(clients, 1) if real else {k: integers[group][k] for k in clients}
        batches = [most.batches[k][group] for k in clients]
        product = paillier.weighted_sum(public, batches, [k_of[k] for k in clients], workers=workers)
        layout = layouts[REALS if real else group]
        sums[group] = {"batch": product.plain(), "layout": layout, "count": count, "weight": sum(k_of.values())}
    message = {"run": place.run, "round": place.round, "ask": ask.what, "sums": sums}
    opened: Mapping[str, Any] | None = None
    first = (place.round + place.number) % len(clients)
    for k in (*clients[first:], *clients[:first]):  # in turn: a client that does not answer is skipped
        heard = yield Ask((k,), OPEN, {k: message}, "each")
        if k in heard.each:
            opened = heard.each[k].get("opened")
            break
    if opened is None:
        raise RoundClosed(f"nobody opened the sum of round {place.round}")
    try:
        value = _decoded(how, most.form, opened, totals if server else {})
    except (ProtocolError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise RoundClosed(f"what was opened is no sum of round {place.round}: {error}") from None
    for part, clear in most.clear.items():
        value[part] = Tree({**clear, **value[part]}) if part in value else clear
    return Replies(clients, mended(value, place.mend(clients)) if mean else value, {})


class _Alike(NamedTuple):
    """Encrypted updates of one form."""

    form: Mapping[str, Any]
    counts: Mapping[str, int]  # values by group
    batches: dict[int, Mapping[str, paillier.Batch]]  # by client
    clear: dict[str, Any]  # the weighted sum of the parts that are not encrypted


class _Taken:
    """The updates of an encrypted ask, by form; an invalid batch leaves its client out."""

    def __init__(self, public: paillier.PublicKey, layouts: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self.public, self.layouts, self.given = public, layouts, given
        self.kinds: dict[Any, _Alike] = {}

    def most(self) -> _Alike:
        """Return the form that most clients share; in a tie, the one that came first. Clients with another form are left out."""
        return max(self.kinds.values(), key=lambda kind: len(kind.batches), default=_Alike({}, {}, {}, {}))

    def reducer(self) -> Reducer:
        """Return the reducer for the server half."""
        return Reducer(ENCRYPTED, lambda k, update, _: (k, update), self._add, lambda total, _: Reduced(), single=False)

    def _add(self, total: Any, one: tuple[int, Update]) -> Any:
        with suppress(ProtocolError, AttributeError, KeyError, TypeError, ValueError):
            self._take(*one)
        return total

    def _take(self, k: int, update: Update) -> None:
        counts = {group: int(sent["count"]) for group, sent in update[CIPHER].items()}
        if any(count < 0 for count in counts.values()):
            raise ProtocolError(f"the ciphertexts of client {k} hold less than nothing.")
        found = {}
        for group, sent in update[CIPHER].items():
            layout = paillier.Layout(*self.layouts[REALS if group.startswith(REALS) else group])
            batch = paillier.received(self.public, sent, layout.plaintexts(counts[group]))
            found[group] = paillier.Batch(batch.key, batch.ciphertexts.clone())
        form, clear = update[FORM], update[CLEAR]
        if not all(bool(x.isfinite().all()) for _, x in changes.leaves(clear)):
            raise ProtocolError(f"what client {k} sent in the clear is not finite.")
        key = json.dumps([counts, form]), changes.shape_of(clear)
        kind = self.kinds.get(key) or _Alike(dict(form), counts, {}, {})
        of = {part: self.given[part if part in self.given else next(iter(self.given))][k] for part in clear}
        summed = dict(added(kind.clear or None, clear, of)) if clear else {}
        self.kinds[key] = kind._replace(clear=summed, batches={**kind.batches, k: found})


def _decoded(
    how: Encryption, form: Mapping[str, Any], opened: Mapping[str, Tensor], totals: Mapping[str, int]
) -> dict[str, Any]:
    rows: dict[str, Tensor] = {}
    for group, codes in opened.items():
        if group.startswith(REALS):
            rows[group] = reals_total(codes.numpy())
            continue
        scale = 2.0**how.bits if group in totals else 1.0
        found = paillier.dequantise(codes.numpy(), bits=how.bits, range=how.range, total=scale)
        rows[group] = torch.from_numpy(found)
    return dict(rebuilt(form, rows))
