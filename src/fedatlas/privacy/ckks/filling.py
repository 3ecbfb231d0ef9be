"""CKKS's part in a sum of encrypted updates (P12). All clients hold the secret key; the server knows only the primes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedatlas.errors import ProtocolError
from fedatlas.privacy.ckks.holder import Holder, Reals, decrypt, encrypt, generate, holder
from fedatlas.privacy.ckks.parameters import SLOTS, Parameters, parameters
from fedatlas.privacy.encrypted import residues, words
from fedatlas.privacy.encrypted.cryptosystem import FEWEST, Cryptosystem, Layout, Numbers, session
from fedatlas.privacy.encrypted.opening import in_turn, opens
from fedatlas.privacy.encrypted.residues import ServerKey
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.noise import gaussian
from fedatlas.privacy.numbers import Leaf
from fedatlas.privacy.protocol import Keys
from fedatlas.privacy.secagg.messages import raw, table
from fedatlas.privacy.steps import rounded, step_of

OPEN = "ckks open"
FINEST = 52  # bits of steps in which a range is checked


class Encryption(NamedTuple):
    """The keys of the table, and the openings that a federation's key has to stand."""

    range: float
    encrypt: str | tuple[str, ...]
    openings: int


def ckks(how: Encryption) -> Cryptosystem:
    """Return the cryptosystem with these keys."""
    return Cryptosystem(
        unit=1,
        encrypt=how.encrypt,
        questions={OPEN: opens(opened, layout, how.openings)},
        keys=partial(parties, how),
        layout=layout,
        codes=partial(codes, how),
        encrypted=encrypted,
        received=_received,
        opening=partial(in_turn, OPEN, _summed),
        values=lambda found, unit: found,
    )


def layout(real: bool, total: int) -> Layout:
    """Return the layout of a group: whether it holds words of reals, and the number of clients."""
    return [real, total]


def parties(how: Encryption, clients: int, federation: str, testing: bool) -> Keys:
    """Return the key that all parties of a simulation hold."""
    form = parameters(clients, how.range, how.openings)
    name, key = generate()
    plain = {"form": [*form], "name": name, "secret": table([key], len(key))}
    ready = holder(name, key)
    return Keys((ready.server, form), lambda k, record: session(k, plain, record))


def codes(how: Encryption, leaf: Leaf, owner: str) -> tuple[Numbers, Tensor]:
    """Return the values of a leaf times its factor, and the values. PrivacyError for a value outside of the range.

    Values are checked without their weight, so a mean is inside of the range, too.
    """
    whole = leaf.numbers.numpy() * (max(1.0, abs(leaf.factor)) / step_of(FINEST, how.range))
    rounded(whole, FINEST, how.range, owner, leaf.name)
    return leaf.numbers.numpy() * leaf.factor, leaf.numbers


def flooded(form: Parameters, raw: Reals) -> Reals:
    """Return opened numbers as they may leave a holder of the key: with noise from the operating system, on a grid."""
    noisy = raw + gaussian(len(raw), form.deviation, Noise("os")).numpy()
    out: Reals = np.rint(noisy / form.grid) * form.grid
    return out


def ciphertexts(form: Parameters, layout: Layout, count: int) -> int:
    """Return how many ciphertexts hold this number of values, or of words of reals. ProtocolError if their sum has no room."""
    real, total = layout
    if not 0 <= total <= form.clients:
        raise ProtocolError(f"a sum of {total} updates is not opened under a key for {form.clients} clients.")
    return -(-count * (words.pieces(form.piece) if real else 1) // SLOTS)


def _ready(plain: Mapping[str, Any]) -> tuple[Holder, Parameters]:
    return holder(plain["name"], raw(plain["secret"])), Parameters(*plain["form"])


def encrypted(session: Any, layout: Layout, numbers: Numbers) -> Mapping[str, Any]:
    """Return the batch of a group of numbers."""
    keys, form = _ready(session["key"])
    ciphertexts(form, layout, len(numbers))
    whole = words.split(numbers, form.piece) * form.unit if layout[0] else numbers
    return residues.plain(keys.server, encrypt(keys, whole))


def _received(public: tuple[ServerKey, Parameters], sent: Any, layout: Layout, count: int) -> Tensor:
    return residues.received(public[0], sent, ciphertexts(public[1], layout, count)).clone()


def _summed(
    public: tuple[ServerKey, Parameters], batches: list[Tensor], weights: list[int], _: int
) -> Mapping[str, Any]:
    return residues.summed(public[0], batches, weights)


def opened(session: Any, batch: Any, layout: Layout, count: int, weight: int) -> Numbers:
    """Return the opened sum of a group, with noise. ProtocolError for what is no such sum."""
    keys, form = _ready(session["key"])
    found = decrypt(keys, residues.received_sum(keys.server, batch, ciphertexts(form, layout, count)))
    many = count * words.pieces(form.piece) if layout[0] else count
    if not FEWEST <= weight <= layout[1]:
        raise ProtocolError(
            f"a sum of {weight} updates is not opened: {FEWEST} or more of those asked have to be in it."
        )
    if many and not np.abs(found[:many]).max() <= form.range:
        raise ProtocolError(
            "an opened sum is outside of its range: it is of another key, or forged, or range is too small."
        )
    noisy = flooded(form, found[:many])
    return words.joined(np.rint(noisy / form.unit).astype(np.int64), form.piece) if layout[0] else noisy
