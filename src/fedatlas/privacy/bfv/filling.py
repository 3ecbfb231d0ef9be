"""BFV's part in a sum of encrypted updates (P12). All clients hold the secret key; the server knows only the primes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from fedatlas.errors import ProtocolError
from fedatlas.privacy.bfv.holder import Holder, decrypt, encrypt, generate, holder
from fedatlas.privacy.bfv.parameters import Parameters, parameters
from fedatlas.privacy.encrypted import codes, residues, words
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem, Layout, Numbers, session
from fedatlas.privacy.encrypted.opening import in_turn, opens
from fedatlas.privacy.encrypted.residues import ServerKey
from fedatlas.privacy.protocol import Keys
from fedatlas.privacy.secagg.messages import raw, table

OPEN = "bfv open"


class Encryption(NamedTuple):
    """The keys of the table."""

    bits: int
    range: float
    encrypt: str | tuple[str, ...]
    weights_by: Literal["server", "client"]

    @property
    def unit(self) -> int:
        """The whole number that stands for a weight of 1; 1 if clients weigh."""
        return 1 << self.bits if self.weights_by == "server" else 1


def bfv(how: Encryption) -> Cryptosystem:
    """Return the cryptosystem with these keys."""
    return Cryptosystem(
        unit=how.unit,
        encrypt=how.encrypt,
        questions={OPEN: opens(partial(opened, how), partial(layout, how))},
        keys=partial(parties, how),
        layout=partial(layout, how),
        codes=partial(codes.whole, how.bits, how.range),
        encrypted=encrypted,
        received=_received,
        opening=partial(in_turn, OPEN, _summed),
        values=partial(codes.values, how.bits, how.range),
    )


def parties(how: Encryption, clients: int, federation: str, testing: bool) -> Keys:
    """Return the key that all parties of a simulation hold."""
    form = parameters(how.bits, clients, how.unit)
    name, key = generate(form)
    plain = {"form": [*form], "name": name, "secret": table([key], len(key))}
    ready = holder(form, name, key)
    return Keys((ready.server, form), lambda k, record: session(k, plain, record))


def layout(how: Encryption, real: bool, total: int) -> Layout:
    """Return the layout of a group: whether it holds words of reals, and the sum of all weights."""
    parameters(how.bits, total if how.unit == 1 or real else 1, how.unit)
    return [real, total]


def ciphertexts(form: Parameters, layout: Layout, count: int) -> int:
    """Return how many ciphertexts hold this number of codes, or of words of reals. ProtocolError if their sum has no room."""
    real, total = layout
    if not 0 <= total <= form.total:
        raise ProtocolError(
            f"weights add up to {total} steps, and the key has room for {form.total}: ask fewer clients."
        )
    return -(-count * (words.pieces(form.piece) if real else 1) // form.degree)


def _ready(plain: Mapping[str, Any]) -> Holder:
    degree, primes, *rest = plain["form"]
    return holder(Parameters(degree, tuple(primes), *rest), plain["name"], raw(plain["secret"]))


def encrypted(session: Any, layout: Layout, numbers: Numbers) -> Mapping[str, Any]:
    """Return the batch of a group of numbers."""
    keys = _ready(session["key"])
    ciphertexts(keys.form, layout, len(numbers))
    return residues.plain(keys.server, encrypt(keys, words.split(numbers, keys.form.piece) if layout[0] else numbers))


def _received(public: tuple[ServerKey, Parameters], sent: Any, layout: Layout, count: int) -> Tensor:
    return residues.received(public[0], sent, ciphertexts(public[1], layout, count)).clone()


def _summed(
    public: tuple[ServerKey, Parameters], batches: list[Tensor], weights: list[int], _: int
) -> Mapping[str, Any]:
    return residues.summed(public[0], batches, weights)


def opened(how: Encryption, session: Any, batch: Any, layout: Layout, count: int, weight: int) -> Numbers:
    """Return the opened sum of a group. ProtocolError for what is no such sum."""
    keys = _ready(session["key"])
    rows = residues.received_sum(keys.server, batch, ciphertexts(keys.form, layout, count))
    found = decrypt(keys, rows)
    if layout[0]:
        many = count * words.pieces(keys.form.piece)
        return words.joined(found[:many] % keys.plain, keys.form.piece)
    found = found[:count]
    if count and np.abs(found).max() > weight << how.bits - 1:
        raise ProtocolError("an opened sum is larger than its summands can be: it is not of this layout, or forged.")
    return found
