"""The cryptosystem of a key in shares (P17). A dealer makes the key, gives every client a share and forgets it; nobody holds the whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import torch

from fedatlas.privacy.encrypted import codes
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem, Layout, Numbers
from fedatlas.privacy.encrypted.cryptosystem import session as begun
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import knowledge, threshold
from fedatlas.privacy.protocol import Keys
from fedatlas.privacy.secagg.fixed import LIMB
from fedatlas.privacy.secagg.keys import KEY, SIGNATURE, Party, identity, installed
from fedatlas.privacy.secagg.messages import field, raw, table
from fedatlas.privacy.threshold_paillier import opening
from fedatlas.privacy.threshold_paillier.statement import WITNESS, KeyHolders, SignedBatch, base_in
from fedatlas.secret import Secret


class Threshold(NamedTuple):
    """The keys of the table."""

    key_bits: int
    bits: int
    range: float
    weights_by: Literal["server", "client"]
    short_exponent: int | None


def system(how: Threshold) -> Cryptosystem:
    """Return the cryptosystem with these keys."""
    return Cryptosystem(
        unit=unit_of(how),
        encrypt="all",
        questions={opening.SHARE: opening.question(unit_of(how))},
        keys=partial(parties, how),
        layout=lambda real, total: paillier.layout(how.key_bits, LIMB + 1 if real else how.bits, total),
        codes=partial(codes.whole, how.bits, how.range),
        encrypted=_encrypted,
        received=_received,
        opening=opening.together,
        values=partial(codes.values, how.bits, how.range),
    )


def unit_of(how: Threshold) -> int:
    """Return the whole number that stands for a weight of 1; 1 if clients weigh."""
    return 1 << how.bits if how.weights_by == "server" else 1


def parties(how: Threshold, clients: int, federation: str, testing: bool) -> Keys:
    """Return the shares and identities of all parties of a simulation, which is the dealer. The key itself is not kept."""
    installed()
    shares = threshold.dealt(paillier.generate(how.key_bits, testing=testing), clients)
    public = shares[0].public
    base = paillier.base(public, how.short_exponent or paillier.full(public))
    _sealer(public, base)
    pairs = {k: identity() for k in range(clients)}
    known = KeyHolders(federation, public, {k: key for k, (_, key) in pairs.items()})

    def session(k: int, record: Mapping[str, Any]) -> dict[str, Any]:
        key = shares[k].plain() | base.plain()
        own = {"federation": federation, "private": table([pairs[k][0]], KEY)}
        others = {str(v): table([one], KEY) for v, one in known.identities.items()}
        return {**begun(k, key, record), **own, "public": others}

    return Keys(known, session)


def party_of(session: Mapping[str, Any]) -> Party:
    """Return the identity in a party's session, and those of all others."""
    public = {int(k): raw(x) for k, x in session["public"].items()}
    return Party(session["client"], session["federation"], Secret(raw(session["private"])), public)


def _encrypted(session: Any, layout: Layout, numbers: Numbers) -> Mapping[str, Any]:
    public, base = threshold.key_share(session["key"]).public, base_in(session)
    known = knowledge.witness(paillier.pack(paillier.Layout(*layout), numbers), base)
    batch = paillier.encrypt(public, known.messages, keys=_sealer(public, base), r=known.exponents)
    return {**batch.plain(), WITNESS: known}  # which `threshold_sum.sealed` takes out


_sealer = lru_cache(2)(paillier.sealer)
"""The comb is made once per process. Workers that are forked later share it. Those of earlier keys are dropped: each has 40 MB."""


def _received(public: KeyHolders, sent: Any, layout: Layout, count: int) -> SignedBatch:
    batch = paillier.received(public.key, sent, paillier.Layout(*layout).plaintexts(count))
    signature = field(sent, "signature", torch.uint8, (SIGNATURE,), "a client")
    proof = {name: sent["proof"][name].clone() for name in ("a", "z", "s")}
    return SignedBatch(paillier.Batch(batch.key, batch.ciphertexts.clone()), signature.clone(), proof)
