"""The price of a ledger's releases together: epsilon at delta, and how it was found.

==============================  =============================================================================================
releases                        epsilon
==============================  =============================================================================================
Gaussian, nothing sampled       closed form: together they equal one release (`fedatlas.privacy.gaussian`)
Gaussian, Poisson rounds        privacy loss distributions of dp-accounting, equal rounds composed as one block; both directions
                                of add or remove, rounded so that epsilon is never too small (P1)
Laplace, random responses       basic composition: the sum of 1 / multiplier, delta = 0
Laplace and Gaussian            Laplace's as the worst mechanism of its epsilon, composed with the others' loss distributions
Skellam, with plain Gaussian    sums of Rényi divergences (`fedatlas.privacy.skellam`); with sampled or Laplace noise: refused
without noise                   infinity
==============================  =============================================================================================

If the noise is so small that a loss distribution does not fit on a grid, sampling is ignored. The closed form of the
same releases without sampling is never smaller and is called an upper bound (a sampled release is a mixture, and divergences
are convex). Releases about named clients cost only these clients; the stated epsilon is that of the client that paid most.
Sampling counts only where neighbours differ by adding or removing a unit, or by a unit that counts as zero: in a sum both are
the unit's share or nothing. Drawing exactly n of N is not Poisson sampling
and is not supported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy import skellam
from fedatlas.privacy.gaussian import check_delta, epsilon_of
from fedatlas.privacy.ledger import Event, Kind, counted
from fedatlas.wording import count

PURE = ("laplace", "response")  # kinds with delta = 0
POINTS = 32  # most rounds in a curve
FINEST, CELLS = 2.0**-17, 2.0**19  # grid of privacy losses: the smallest step, and the most cells of a single release
GROUPS = 64  # most different bills that are priced one by one
WIDEST = 2.0**22  # most cells of all releases together
LEAST_NOISE = 0.05  # sampled releases with less noise are bounded as if they were not sampled


class Spent(NamedTuple):
    """The cost of some releases for one client, or one record."""

    epsilon: float
    delta: float
    how: str  # a sentence
    upper_bound: bool = False  # the true cost may be visibly lower


class Release(NamedTuple):
    """The part of an event that decides its price."""

    noise: Kind
    multiplier: float
    rate: float
    steps: float = 0.0


def spent(events: Sequence[Event], delta: float) -> Spent:
    """Return epsilon of all events together at ``delta`` for the client that paid most. ``delta`` may be 0 only if all noise is Laplace's.

    PrivacyError if the events protect different units, or sample or mix noises in a way that has no sound account.
    """
    events = counted(events)
    _check(events)
    if any(event.multiplier == 0 for event in events):
        return Spent(math.inf, delta, "A release had no noise, so nothing is promised.")
    found = _dearest(_profiles(events), delta)
    inside = bool(events) and events[0].unit == "record"  # a draw is a batch
    return found._replace(how=found.how.replace("Poisson rounds", "Poisson batches")) if inside else found


def of_clients(events: Sequence[Event], delta: float, most: int = GROUPS) -> dict[int, float]:
    """Return epsilon of each client that events name. More than ``most`` different bills are rounded up, in groups of similar ones."""
    events = counted(events)
    _check(events)
    if any(event.multiplier == 0 for event in events):
        return {k: math.inf for event in events for k in event.clients}
    everybody, named = _bills(events)
    different = sorted({frozenset((everybody + bill).items()) for bill in named.values()}, key=_rate_first)
    size = math.ceil(len(different) / most)
    found: dict[frozenset[tuple[Release, int]], float] = {}
    for group in (different[at : at + size] for at in range(0, len(different), size or 1)):
        bound = _bound([Counter(dict(bill)) for bill in group])
        for bill in group:
            found[bill] = _price(Counter(dict(bill)) if bound is None else bound, delta).epsilon
    return {k: found[frozenset((everybody + named[k]).items())] for k in sorted(named)}


def spent_together(runs: Sequence[Sequence[Event]], delta: float) -> Spent:
    """Return epsilon at ``delta`` of several runs on the same rows, whichever client a unit was in each of them.

    Of a run in which clients paid differently the dearest of each kind of release counts, which no unit exceeds. Equal lines of two
    runs are two releases, also under noise = "seed". Noises that have no account together are composed as they stand: epsilons
    add up, each at an equal share of ``delta`` if its run has noise that needs one. PrivacyError if the runs protect different units.
    """
    _check([event for events in runs for event in events])
    if any(event.multiplier == 0 for events in runs for event in events):
        return Spent(math.inf, delta, "A release had no noise, so nothing is promised.")
    if len(runs) == 1:  # as the run itself says
        return spent(runs[0], delta)
    whole, bound = Counter[Release](), False
    for events in runs:
        bills = _profiles(counted(events))
        dearest = _bound(bills) or reduce(or_, bills)
        bound = bound or dearest not in bills
        whole += dearest
    try:
        price = _price(whole, delta)
    except PrivacyError:
        own = [events for events in runs if events]
        share = delta / sum(any(event.noise not in PURE for event in events) for events in own)
        how = f"Basic composition of {count(len(own), 'account')}, each at delta = {share:.3g} or 0."
        return Spent(math.fsum(spent(events, share).epsilon for events in own), delta, how, upper_bound=True)
    return price._replace(upper_bound=price.upper_bound or bound)


def curve(events: Sequence[Event], delta: float, points: int = POINTS) -> tuple[tuple[int, float], ...]:
    """Return (round, epsilon so far) of every round that released, or of ``points`` of them, evenly spread and with the last."""
    rounds = sorted({event.round for event in events})
    chosen = rounds
    if len(rounds) > points:
        chosen = [rounds[math.ceil((i + 1) * len(rounds) / points) - 1] for i in range(points)]
    return tuple((t, spent([event for event in events if event.round <= t], delta).epsilon) for t in chosen)


def _check(events: Sequence[Event]) -> None:
    """Raise PrivacyError if one epsilon for all events would be meaningless."""
    if len({(event.unit, event.neighbours) for event in events}) > 1:
        raise PrivacyError(
            "the ledger holds releases that protect different units, clients and records: each has an epsilon of its own."
        )
    for event in events:
        if event.rate < 1 and (event.noise != "gaussian" or event.neighbours == "replace"):
            raise PrivacyError(
                f"{event.mechanism} samples, which is accounted for Gaussian noise and neighbours without one unit: use rate 1."
            )


def _bills(events: Sequence[Event]) -> tuple[Counter[Release], dict[int, Counter[Release]]]:
    """Return what all clients pay, and what each named client pays in addition."""
    everybody: Counter[Release] = Counter()
    named: dict[int, Counter[Release]] = {}
    for event in events:
        release = Release(event.noise, event.multiplier, event.rate, event.steps)
        for bill in [named.setdefault(k, Counter()) for k in event.clients] if event.clients else [everybody]:
            bill[release] += event.times
    return everybody, named


def _profiles(events: Sequence[Event]) -> list[Counter[Release]]:
    """Return the bills of the clients. Equal bills appear once, and a bill is left out if another one exceeds it in everything."""
    everybody, named = _bills(events)
    bills: list[Counter[Release]] = []
    for bill in sorted(named.values(), key=lambda bill: -bill.total()):
        if not any(bill <= other for other in bills):
            bills.append(bill)
    return [everybody + bill for bill in bills] or [everybody]


def _dearest(bills: Sequence[Counter[Release]], delta: float) -> Spent:
    """Return the price of the bill that costs most. Where a bound says that none of a group costs more, none of it is priced."""
    bills = sorted(bills, key=lambda bill: _rate_first(frozenset(bill.items())))
    best, waiting = _price(bills[0], delta), [bills[1:]] if bills[1:] else []
    while waiting:
        group = waiting.pop()
        bound = _bound(group)
        if bound is not None and _price(bound, delta).epsilon <= best.epsilon:
            continue
        if len(group) == 1:
            best = max(best, _price(group[0], delta), key=lambda price: price.epsilon)
            continue
        waiting += [group[len(group) // 2 :], group[: len(group) // 2]]
    return best


def _rate_first(bill: frozenset[tuple[Release, int]]) -> tuple[Any, ...]:
    """Return a key that sorts similar bills together, high rates before low ones."""
    return tuple(sorted((r.noise, r.multiplier, -r.rate, -n) for r, n in bill))


def _bound(bills: Sequence[Counter[Release]]) -> Counter[Release] | None:
    """Return a bill that costs no less than each of these; None unless each is for one Gaussian release, all under the same noise.

    A release costs no less at a higher rate, since a mixture with a lower rate is one of that with the higher and of no difference.
    """
    if any(len(bill) != 1 for bill in bills) or {r.noise for bill in bills for r in bill} != {"gaussian"}:
        return None
    if len({r.multiplier for bill in bills for r in bill}) > 1:
        return None
    release = max((r for bill in bills for r in bill), key=lambda r: r.rate)
    return Counter({release: max(n for bill in bills for n in bill.values())})


def _price(bill: Counter[Release], delta: float) -> Spent:
    """Return epsilon of one client's releases."""
    return _priced(frozenset(bill.items()), delta)


@lru_cache(maxsize=4096)
def _priced(items: frozenset[tuple[Release, int]], delta: float) -> Spent:
    bill = Counter(dict(items))
    if not bill:
        return Spent(0.0, delta, "Nothing was released.")
    if any(r.noise == "skellam" for r in bill):
        return _by_divergences(bill, delta)
    laplace = Counter({r: n for r, n in bill.items() if r.noise in PURE})
    pure = math.fsum(n / r.multiplier for r, n in laplace.items())
    if len(laplace) == len(bill):
        only = {r.noise for r in laplace} == {"laplace"}
        kind = ("Laplace release", "") if only else ("release of pure epsilon", "releases of pure epsilon")
        many = count(laplace.total(), *kind)
        return Spent(pure, 0.0, f"Basic composition of {many}.")
    check_delta(delta)
    sampled = Counter({r: n for r, n in bill.items() if r.rate < 1})
    plain = bill.total() - sampled.total() - laplace.total()
    mu = math.hypot(*(math.sqrt(n) / r.multiplier for r, n in bill.items() if r.noise == "gaussian" and r.rate == 1))
    if not sampled and not laplace:
        are = "is one" if plain == 1 else "are one"
        how = f"Closed form: {count(plain, 'Gaussian release')} {are} with noise multiplier {1 / mu:.4g}."
        return Spent(epsilon_of(mu, delta), delta, how)
    whole = math.hypot(mu, *(math.sqrt(n) / r.multiplier for r, n in sampled.items()))
    bound = epsilon_of(whole, delta) + pure
    composed = _composed(sampled, pure, mu, delta)
    if composed is None:
        how = "An upper bound: the noise, or delta, is too small for a grid of privacy losses, so sampling was left out of the account."
        return Spent(bound, delta, how, upper_bound=True)
    counts = {"Poisson round": sampled.total(), "plain Gaussian release": plain, "Laplace release": laplace.total()}
    how = ", ".join(count(n, kind) for kind, n in counts.items() if n)
    how = f"Privacy loss distributions of {how}."
    return Spent(min(composed, bound), delta, how)


def _by_divergences(bill: Counter[Release], delta: float) -> Spent:
    """Return epsilon of one client's releases by Skellam noise, and by Gaussian noise that was not sampled."""
    if any(r.noise in PURE or r.rate < 1 for r in bill):
        raise PrivacyError(
            "the ledger holds Skellam noise beside pure epsilon or sampled rounds, which have no account together here."
        )
    check_delta(delta)
    epsilon = skellam.epsilon_of(
        lambda order: math.fsum(n * skellam.divergence(order, r.multiplier, r.steps) for r, n in bill.items()), delta
    )
    whole = sum(n for r, n in bill.items() if r.noise == "skellam")
    more = bill.total() - whole
    others = f" and {count(more, 'plain Gaussian one')}" if more else ""
    how = f"Sum of the Rényi divergences of {count(whole, 'Skellam release')}{others}."
    return Spent(epsilon, delta, how, upper_bound=True)


def _composed(sampled: dict[Release, int], pure: float, mu: float, delta: float) -> float | None:
    """Return epsilon from loss distributions of Poisson rounds, one plain Gaussian and one pure mechanism; None if no grid holds them."""
    noises = [(r.multiplier, r.rate, n) for r, n in sampled.items()] + ([(1 / mu, 1.0, 1)] if mu else [])
    if min(m for m, _, _ in noises) < LEAST_NOISE or pure > 1e3:
        return None
    step = _step(noises)
    losses = [_repeated(_loss(m, rate, step), n) for m, rate, n in noises]
    losses += [_pure_loss(pure, step)] if pure else []
    whole = losses[0]
    for other in losses[1:]:
        whole = whole.compose(other)
    epsilon = float(whole.get_epsilon_for_delta(delta))
    return epsilon if math.isfinite(epsilon) else None


def _step(noises: Sequence[tuple[float, float, int]]) -> float:
    """Return the step of the grid of losses: a thirtieth of one release's spread, so that rounding adds little to the sum.

    Coarser only if a grid would have too many cells; a power of two, so that the rounds of a curve share grids.
    """
    spread = min(min(1 / m, rate * math.sqrt(math.expm1(min(1 / m**2, 500.0)))) for m, rate, _ in noises)
    reach = [1 / (2 * m**2) + 10 / m for m, _, _ in noises]  # a single release's loss hardly ever exceeds this
    wide = sum(min(n, 20 * math.sqrt(n * rate)) * far for (_, rate, n), far in zip(noises, reach, strict=True))
    step = max(min(spread / 30, 0.01), FINEST, 2 * max(reach) / CELLS, wide / WIDEST)
    return float(2.0 ** math.floor(math.log2(step)))


def _distributions() -> Any:
    """Return dp-accounting's module of privacy loss distributions. ConfigError without the extra."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise ConfigError('the account of sampled rounds needs dp-accounting: pip install "fedatlas[dp]".') from error
    return privacy_loss_distribution


@lru_cache(maxsize=8)
def _loss(multiplier: float, rate: float, step: float) -> Any:
    """Return the privacy loss of one release, in both directions of add or remove, rounded upwards."""
    return _distributions().from_gaussian_mechanism(multiplier, sampling_prob=rate, value_discretization_interval=step)


def _repeated(loss: Any, times: int) -> Any:
    return loss.self_compose(times) if times > 1 else loss


def _pure_loss(epsilon: float, step: float) -> Any:
    """Return the loss of the mechanism that costs most in composition at this epsilon and delta = 0: randomised response."""
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return _distributions().from_privacy_parameters(
        DifferentialPrivacyParameters(epsilon, 0), value_discretization_interval=step
    )
