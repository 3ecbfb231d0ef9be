"""The masked sum of P16: secagg's protocol, in which a client clips, rounds and noises its change before it masks it.

The whole numbers of a client have a length of at most 2^bits steps: where rounding lengthens them beyond that, the change is shortened
until they fit. So the sensitivity is that of the rounded vector, whatever its dimension. What a client keeps of its update (control
variates) is the rounded change without noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedatlas.algorithm import Ask, Update
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.ask_protocol import SEND, Asking, Place, RoundClosed, mended, way_of
from fedatlas.privacy.clipping import changed, clipped, vector
from fedatlas.privacy.distributed_dp.shares import NoisySum, check_fits, variance
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.numbers import Spec, leaves, rebuilt
from fedatlas.privacy.protocol import Doing, Protocol
from fedatlas.privacy.secagg import secure_sum
from fedatlas.privacy.secagg.hidden_weights import weights
from fedatlas.privacy.secagg.keys import FEWEST
from fedatlas.privacy.secagg.opened_sum import SecureSum
from fedatlas.privacy.skellam_noise import skellam

NOISED = "noised"  # the only group of words
Whole = npt.NDArray[np.int64]


def protocol(how: NoisySum) -> Protocol:
    """Return secagg's protocol with noise in what is masked."""
    return secure_sum.protocol(plain(how))._replace(
        seal=partial(sealed, how),
        around=partial(around, how),
        fits=lambda clients, hidden: check_fits(how, clients),
        counted=lambda sent: 0,
    )


def plain(how: NoisySum) -> SecureSum:
    """Return the keys of the sum under the noise."""
    return SecureSum(how.threshold, how.bits, how.clip, 0)


def within(scaled: npt.NDArray[np.float64], steps: int) -> Whole:
    """Return the nearest whole numbers, of a vector that is shortened until their squares add up to at most ``steps`` squared."""
    for cut in range(25):
        found = np.rint(scaled).astype(np.int64)
        length = int(found @ found)
        if length <= steps * steps:
            return found
        scaled = scaled * (steps / math.sqrt(length) * (1 - 2.0 ** (cut - 24)))  # in the end by 0
    raise AssertionError


def sealed(
    how: NoisySum, update: Update, doing: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the noised and masked change, the session afterwards, and the rounded change.

    The share of noise follows from the cohort that the client's own session is for. ProtocolError if too many of it may collude.
    """
    secure_sum.check_work(doing.what, word, session)
    whole = within(vector(clipped(update, how.clip)).numpy() / how.step, how.steps)
    seen = changed(update, torch.from_numpy(whole * how.step))
    if not word[SEND]:
        return {}, session, seen
    at = secure_sum.begun_at(session)
    try:
        share = variance(how, len(at.cohort), at.least)
    except PrivacyError as error:
        raise ProtocolError(f"client {session['client']} takes no part: {error}") from None
    key = ("distributed_dp", doing.round, doing.client, doing.what, doing.visit)
    noisy = whole + skellam(len(whole), share, Noise(how.noise, doing.seed), *key)
    _, form = leaves(update, lambda part: Spec(NOISED), mean=True)
    return *secure_sum.sent({NOISED: noisy.astype(np.uint32)}, form, word, session), seen


def around(
    how: NoisySum, public: Mapping[int, bytes], federation: str, ask: Ask, place: Place, workers: int = 1
) -> Asking:
    """Run an ask of which the server sees only the noisy sum, and return the replies: the sum times what each was told, whoever left."""
    asked = tuple(sorted({*ask.to, *place.leaving}))
    try:
        if len(asked) >= FEWEST:
            check_fits(how, len(asked))
    except PrivacyError as error:
        raise RoundClosed(str(error)) from None

    def read(_: SecureSum, form: Mapping[str, Any], sums: Mapping[str, Any], *__: Any) -> dict[str, Any]:
        if sums.keys() != {NOISED} or sums[NOISED].dtype != np.uint32:
            raise ProtocolError("an opened sum is not one of noised words.")
        return dict(rebuilt(form, {NOISED: torch.from_numpy(sums[NOISED].view(np.int32) * how.step)}))

    fixed = place._replace(mend=lambda answered: lambda part: 1.0)  # the denominator is the number asked
    replies = yield from secure_sum.around(plain(how), public, federation, ask, fixed, workers, read)
    if ask.reduce != "mean" or replies.value is None:
        return replies
    ways = weights(ask, place, asked)[asked[0]]
    return replies._replace(value=mended(replies.value, lambda part: way_of(ways, part)[1]))
