"""Who is who: the owners of rows come first, then the engine, and last the crypto provider. No owner is either."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.letters import blamed, taken
from fedatlas.vertical.parties import Columns, Floats, places, tensor
from fedatlas.vertical.ridge.letter_kinds import KEY
from fedatlas.vertical.ridge.numbers import FixedPoint
from fedatlas.vertical.ridge.settings import Ridge

ENGINE, PROVIDER = "engine", "provider"
ROLES = (ENGINE, PROVIDER)


def owners(parties: int) -> range:
    """Return the numbers of the owners among so many parties."""
    return range(parties - len(ROLES))


def engine(data: Columns) -> int:
    """Return the number of the engine."""
    return len(data.parties) - 2


def provider(data: Columns) -> int:
    """Return the number of the crypto provider."""
    return len(data.parties) - 1


def targets(data: Columns) -> int:
    """Return how many columns of targets there are: one, or one for each of three or more classes."""
    return data.classes if data.classes > 2 else 1


def own_rows(data: Columns, state: State) -> tuple[Floats, Floats]:
    """Return an owner's training rows (n, columns), and their targets (n, targets): numbers, or 1 for the class and -1 for others."""
    assert data.y is not None
    at = places(state, "train")
    x, y = data.x[at], data.y[at]
    if not data.classes:
        return x, y[:, None]
    if data.classes == 2:
        return x, np.where(y == 1, 1.0, -1.0)[:, None]
    return x, np.where(y[:, None] == np.arange(data.classes), 1.0, -1.0)


def planned_of(held: Mapping[str, Any]) -> FixedPoint:
    """Return the plan in a party's state or in a letter."""
    return FixedPoint(held["rows"], held["precision"], tuple(held["largest"].tolist()))


def in_letter(plan: FixedPoint) -> dict[str, Any]:
    """Return a plan in the form of a letter."""
    return {"rows": plan.rows, "precision": plan.precision, "largest": tensor(np.array(plan.largest, np.int64))}


def key_told(how: Ridge, data: Columns, message: Mapping[str, Any]) -> tuple[dict[str, Any], paillier.PublicKey]:
    """Return the provider's public key, as told and checked. PartyLeft in its name for another one."""
    told = taken(data, message, provider(data), KEY)
    with blamed(data, provider(data), KEY):
        public = paillier.public_key(told, testing=how.testing, plain_primes=True)
        if public.bits != how.key_bits:
            raise ProtocolError(f"a key of {public.bits:,} bits, where {how.key_bits:,} are due")
        sealer(public, paillier.base_of(told))
    return {name: told[name] for name in ("n", "h", "bits")}, public


def key_kept(held: Mapping[str, Any]) -> paillier.PublicKey:
    """Return the public key that a party keeps."""
    return paillier.PublicKey(int.from_bytes(held["n"].numpy().tobytes(), "big"))


@lru_cache(maxsize=1)
def sealer(public: paillier.PublicKey, base: paillier.Base | None) -> paillier.Sealer:
    """Return a public key made ready to encrypt; parties in one process share the table, which holds nothing secret.

    ProtocolError for a base whose exponents are shorter than uniform powers need.
    """
    if base is None or base.bits != paillier.full(public):
        raise ProtocolError(f"exponents of other than {paillier.full(public):,} bits")
    return paillier.sealer(public, base)
