"""Paillier's part in a sum of encrypted updates (P10, P11). All clients hold the secret key, the server only the public one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Literal, NamedTuple

from fedatlas.privacy.encrypted import codes
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem, Layout, Numbers, session
from fedatlas.privacy.encrypted.opening import in_turn, opens
from fedatlas.privacy.paillier import cryptosystem
from fedatlas.privacy.protocol import Keys
from fedatlas.privacy.secagg.fixed import LIMB
from fedatlas.privacy.secagg.messages import raw, table

OPEN = "paillier open"


@cache
def _holder(p: bytes, q: bytes, base: cryptosystem.Base | None) -> cryptosystem.Holder:
    """Return the key made ready, once per process. Workers that are forked later share it."""
    plain = {name: table([half], len(half)) for name, half in (("p", p), ("q", q))}
    return cryptosystem.holder(cryptosystem.private_key(plain, testing=True), base=base)


def ready(plain: Mapping[str, Any]) -> cryptosystem.Holder:
    """Return the holder of a key in its plain form, with the base of short exponents if they are in use."""
    return _holder(raw(plain["p"]), raw(plain["q"]), cryptosystem.base_of(plain))


class Encryption(NamedTuple):
    """The keys of the table."""

    key_bits: int
    bits: int
    range: float
    encrypt: str | tuple[str, ...]
    weights_by: Literal["server", "client"]
    short_exponent: int | None = None


def paillier(how: Encryption) -> Cryptosystem:
    """Return the cryptosystem with these keys."""
    return Cryptosystem(
        unit=1 << how.bits if how.weights_by == "server" else 1,
        encrypt=how.encrypt,
        questions={OPEN: opens(_opened, partial(layout, how))},
        keys=partial(parties, how),
        layout=partial(layout, how),
        codes=partial(codes.whole, how.bits, how.range),
        encrypted=_encrypted,
        received=_received,
        opening=partial(in_turn, OPEN, _summed),
        values=partial(codes.values, how.bits, how.range),
    )


def parties(how: Encryption, clients: int, federation: str, testing: bool) -> Keys:
    """Return the key that all parties of a simulation hold."""
    private = cryptosystem.generate(how.key_bits, testing=testing)
    short = how.short_exponent
    plain = private.plain() | ({} if short is None else cryptosystem.base(private.public, short).plain())
    ready(plain)
    return shared(private.public, plain)


def shared(public: cryptosystem.PublicKey, plain: Mapping[str, Any]) -> Keys:
    """Return the parties' keys, which all hold the same."""
    return Keys(public, lambda k, record: session(k, plain, record))


def layout(how: Encryption, real: bool, total: int) -> cryptosystem.Layout:
    """Return the layout of values, or of words of reals, in plaintexts."""
    return cryptosystem.layout(how.key_bits, LIMB + 1 if real else how.bits, total)


def _encrypted(session: Any, layout: Layout, numbers: Numbers) -> Mapping[str, Any]:
    keys = ready(session["key"])
    packed = cryptosystem.pack(cryptosystem.Layout(*layout), numbers)
    return cryptosystem.encrypt(keys.public, packed, keys=keys).plain()


def _received(public: cryptosystem.PublicKey, sent: Any, layout: Layout, count: int) -> cryptosystem.Batch:
    batch = cryptosystem.received(public, sent, cryptosystem.Layout(*layout).plaintexts(count))
    return cryptosystem.Batch(batch.key, batch.ciphertexts.clone())


def _summed(
    public: cryptosystem.PublicKey, batches: list[cryptosystem.Batch], weights: list[int], workers: int
) -> Mapping[str, Any]:
    return cryptosystem.weighted_sum(public, batches, weights, workers=workers).plain()


def _opened(session: Any, batch: Any, layout: Layout, count: int, weight: int) -> Numbers:
    keys, form = ready(session["key"]), cryptosystem.Layout(*layout)
    found = cryptosystem.received(keys.public, batch, form.plaintexts(count))
    return cryptosystem.unpack(form, cryptosystem.decrypt(keys, found), count, weight)
