"""Differential privacy around an ask: what is added up, which noise the server adds, and the line in the ledger before it is used.

central_dp  sum of the clipped changes + N(0, (z S)^2), then times 1 / (q K): noise also where nobody came         P3
local_dp    the mean of what clients noised; the server adds nothing                                               P4
nbafl       the mean of noised models, and noise on it where the uploads' is not enough                            P2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedatlas.aggregation.reducers import Reduced, Reducer, added, part_of
from fedatlas.algorithm import Algorithm, Ask, Replies, Transform, Update
from fedatlas.errors import PrivacyError
from fedatlas.privacy.ask_protocol import Asking, Place
from fedatlas.privacy.clipping import clipped
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanisms import CentralDP, NbAFL
from fedatlas.privacy.nbafl import formulas as nbafl
from fedatlas.privacy.noise import noised
from fedatlas.privacy.protection import Protection, coefficients
from fedatlas.transforms.change import decoded
from fedatlas.tree import Tree

Note = Callable[[Sequence[Event]], None]
"""Writes lines of the ledger and returns when they lie on the disk."""


def around(
    how: Protection,
    transform: Transform | None,
    algorithm: Algorithm,
    zero: Callable[[], Update],
    ask: Ask,
    place: Place,
    note: Note,
) -> Asking:
    """The replies to an ask whose value is noised. ``zero``: an update that changes nothing, for a round that nobody came to."""
    central: CentralDP | None = how.of(CentralDP)
    reducer = _clipped_sum(central.clip, transform) if central is not None else ask.reduce
    weights = None if central is not None else ask.weights
    replies = yield ask._replace(reduce=reducer, weights=weights, words={k: {} for k in ask.to})
    value = replies.value
    if central is not None:
        value = value or {part: Tree(x).map(lambda t: t.double()) for part, x in zero().items()}
        note(how.released(place.round, replies.clients))
        value = noised(
            value, central.noise_multiplier * central.clip, how.noise, "central_dp", place.round, place.number
        )
        counts = coefficients(how, algorithm)
        return Replies(replies.clients, {part: _times(x, part_of(counts, part)) for part, x in value.items()}, {})
    if value is None:
        return replies
    note(how.released(place.round, replies.clients))
    if how.of(NbAFL) is not None:
        value = nbafl.broadcast(value, sigma=down(how, place, replies.clients), noise=how.noise, round=place.round)
    return replies._replace(value=value)


def down(how: Protection, place: Place, clients: tuple[int, ...]) -> float:
    """sigma_D of this round."""
    shares = {k: part_of(place.coefficients[k], "model") for k in clients}
    return sigma_down(how, shares, place.sizes)


def sigma_down(how: Protection, shares: Mapping[int, float], sizes: Mapping[int, int]) -> float:
    """The noise on a mean of the clients ``shares``."""
    setting = how.setting()
    if len(shares) < how.K:
        return nbafl.sigma_down_drawn(setting, len(shares))
    return nbafl.sigma_down(setting, shares, {k: sizes[k] if setting.rows > 1 else 1 for k in shares})


def _times(x: Any, by: float) -> Any:
    return Tree({name: t * by for name, t in x.items()})


def _clipped_sum(clip: float, transform: Transform | None) -> Reducer:
    """The sum of changes, each clipped by the server: no client is trusted to have done it."""

    def lift(client: int, update: Update, coefficient: float | Mapping[str, float]) -> Update | None:
        try:
            return clipped(decoded(transform, update), clip)
        except PrivacyError:  # it has no norm: the sum, whose denominator is fixed, goes on without it
            return None

    def add(so_far: Update | None, one: Update | None) -> Update | None:
        return so_far if one is None else added(so_far, one, 1.0)

    return Reducer("clipped sum", lift, add, lambda total, _: Reduced(total), single=False)
