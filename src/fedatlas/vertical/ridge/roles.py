"""Who is who, and the letters between them. The owners of rows come first, then the engine, and last the crypto provider.

No owner is either of the two. The coordinator reads no letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.forms import Form, Numbers, ShortText, WholeNumber
from fedatlas.vertical.letters import LetterKind, blamed, taken
from fedatlas.vertical.parties import Columns, Floats, places, tensor
from fedatlas.vertical.ridge.numbers import FEWEST, MOST, NOTHING, FixedPoint
from fedatlas.vertical.ridge.settings import Ridge

ENGINE, PROVIDER = "engine", "provider"
ROLES = (ENGINE, PROVIDER)

LARGEST = 1025  # above the exponent of every double
EXTENT = LetterKind("extent", {"rows": WholeNumber(1), "largest": Numbers(torch.int64, ("columns",), NOTHING, LARGEST)})
PLAN = LetterKind(
    "plan",
    {
        "rows": WholeNumber(1),
        "precision": WholeNumber(FEWEST, MOST + 1),
        "largest": Numbers(torch.int64, ("columns",), NOTHING, LARGEST),
    },
)
KEY = LetterKind("key", {"n": Numbers(torch.uint8, ("n",)), "h": Numbers(torch.uint8, (None,)), "bits": WholeNumber(1)})
SEALED: dict[str, Form] = {"key": ShortText(16), "ciphertexts": Numbers(torch.uint8, ("count", "width"))}
EQUATIONS = LetterKind("equations", SEALED)
PLAIN = LetterKind("plain equations", {"numbers": Numbers(torch.uint8, ("count", "width"))})  # of a run in the clear
MASKED = LetterKind("masked equations", {"columns": WholeNumber(2), **SEALED})
SOLUTION = LetterKind("masked solution", {"solution": Numbers(torch.uint8, ("entries", "bytes"))})
MASKS = LetterKind(
    "masks",
    {"matrix": Numbers(torch.uint8, ("square", "bytes")), "shift": Numbers(torch.uint8, ("entries", "bytes"))},
)
COEFFICIENTS = LetterKind("coefficients", {"coefficients": Numbers(torch.float64, ("columns", "targets"))})


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


def entries(width: int, targets: int) -> int:
    """Return how many numbers the equations of an owner are: the upper triangle of X'X, and X'y."""
    return width * (width + 1) // 2 + width * targets


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


def outputs_of(data: Columns, coefficients: Floats) -> Floats:
    """Return what the model says of each row: (rows,) numbers, or log-odds of class 1; (rows, classes) log-probabilities.

    A score s stands for the mean of a target of 1 and -1, so for a probability of (1 + s) / 2. Where it leaves 0 to 1 that is none, and
    the softmax of the scores stands for it, which keeps their order and nearly agrees with it in the middle.
    """
    scores: Floats = data.x @ coefficients[:-1] + coefficients[-1]
    if data.classes > 2:
        least = scores - scores.max(axis=1, keepdims=True)
        found: Floats = least - np.log(np.exp(least).sum(axis=1, keepdims=True))
        return found
    return scores[:, 0] * (2.0 if data.classes else 1.0)


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
