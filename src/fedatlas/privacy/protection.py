"""The mechanisms of an experiment as one value, which both halves of a federation hold: what a client does before it sends.

Order (P16): clip, noise, compress, mask or encrypt. All act on changes of what a client was told, but NbAFL, which noises whole models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fedatlas.algorithm import Algorithm, Message, Question, Round, State, Task, Transform, Update, Weights
from fedatlas.errors import DivergedError, PrivacyError, ProtocolError
from fedatlas.privacy.ask_protocol import CHAIN, SEND, in_precision
from fedatlas.privacy.central_dp import clipped_sum as central_dp
from fedatlas.privacy.clipping import as_before, clipped
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.local_dp import release as local_dp
from fedatlas.privacy.mechanisms import CentralDP, LocalDP, Mechanism, NbAFL, Paillier, SecAgg
from fedatlas.privacy.nbafl import formulas as nbafl
from fedatlas.privacy.noise import Noise
from fedatlas.privacy.paillier import encrypted_sum
from fedatlas.privacy.secagg import secure_sum
from fedatlas.transforms.change import BUFFERS, bases, change, decoded, encoded, restore


class Protected(NamedTuple):
    """What comes of a client's update: what crosses, what its transform and its protocol keep, and what the server will see of it."""

    sent: Update
    memory: State | None
    session: Any
    seen: Update


class Protection(NamedTuple):
    """Mechanisms in their sound order, and what of the federation they follow from."""

    mechanisms: tuple[Mechanism, ...]
    K: int  # clients that hold rows
    rounds: int  # of the run
    fraction: float  # of the clients that take part in a round
    seed: int
    smallest: int = 1  # rows of the client with the fewest
    testing: bool = False  # short keys, for tests

    def of(self, kind: type[Any]) -> Any:
        """The mechanism of a kind, or None."""
        return next((one for one in self.mechanisms if isinstance(one, kind)), None)

    @property
    def masks(self) -> bool:
        """Whether the server sees sums alone."""
        return self.of(SecAgg) is not None or self.of(Paillier) is not None

    @property
    def noises(self) -> bool:
        """Whether noise is added."""
        return any(isinstance(one, CentralDP | LocalDP | NbAFL) for one in self.mechanisms)

    @property
    def noise(self) -> Noise:
        """Where its noise comes from."""
        return Noise(
            next((one.noise for one in self.mechanisms if not isinstance(one, SecAgg | Paillier)), "os"), self.seed
        )

    @property
    def whole(self) -> bool:
        """Whether what is reduced are whole models, and no changes."""
        return self.of(NbAFL) is not None

    @property
    def secret_cohort(self) -> bool:
        """Whether who takes part must stay secret."""
        return self.of(CentralDP) is not None

    @property
    def questions(self) -> Mapping[str, Question]:
        """Phases of its protocols, beside the algorithm's tasks."""
        own: dict[str, Question] = {}
        if self.of(SecAgg) is not None:
            own |= secure_sum.QUESTIONS
        if self.of(Paillier) is not None:
            own |= encrypted_sum.QUESTIONS
        return own

    def setting(self) -> nbafl.Setting:
        """NbAFL's formulas are made of this."""
        one: NbAFL = self.of(NbAFL)
        rows = self.smallest if one.sensitivity == "paper" else 1
        return nbafl.Setting(one.epsilon, one.delta, one.clip, rows, self.K, max(self.rounds, 1))

    def local_scale(self) -> float:
        """Scale of local_dp's noise: a client that takes part in every round spends epsilon."""
        one: LocalDP = self.of(LocalDP)
        return local_dp.scale(
            one.kind, epsilon=one.epsilon, delta=one.delta, clip=one.clip, releases=max(self.rounds, 1)
        )

    def delta(self) -> float:
        """At which epsilon is stated."""
        central = self.of(CentralDP)
        if central is not None:
            return central.delta if central.delta is not None else central_dp.usual_delta(max(self.K, 2))
        one = self.of(LocalDP) or self.of(NbAFL)
        return 0.0 if one is None or getattr(one, "kind", "gaussian") == "laplace" else float(one.delta)

    def released(self, round: int, clients: Sequence[int]) -> list[Event]:
        """The ledger's lines of one ask, to be written before it is used."""
        events: list[Event] = []
        if (one := self.of(CentralDP)) is not None:
            rate = self.fraction
            events.append(
                central_dp.event(
                    round,
                    clip=one.clip,
                    multiplier=one.noise_multiplier,
                    rate=rate,
                    delta=self.delta(),
                    noise=self.noise,
                )
            )
        if (one := self.of(LocalDP)) is not None and clients:
            scale = self.local_scale()
            events.append(
                local_dp.event(round, clients, one.kind, clip=one.clip, scale=scale, delta=one.delta, noise=self.noise)
            )
        if (one := self.of(NbAFL)) is not None and clients:
            sigma = nbafl.sigma_up(self.setting())
            events.append(nbafl.event(round, clients, clip=one.clip, sigma=sigma, delta=one.delta, noise=self.noise))
        return events


def under(algorithm: Algorithm, how: Protection) -> Algorithm:
    """The algorithm with the phases of its protection's protocols among its tasks."""
    return algorithm._replace(tasks={**algorithm.tasks, **how.questions})


class Doing(NamedTuple):
    """Whose update it is, and which."""

    client: int
    round: int
    what: str
    visit: int
    rows: int


def protect(
    how: Protection,
    transform: Transform | None,
    task: Task | Question,
    message: Message,
    update: Update,
    memory: State | None,
    rng: torch.Generator,
    word: Mapping[str, Any],
    session: Any,
    doing: Doing,
) -> Protected:
    """What a client does with its update before it leaves: noise, compression, masks or encryption."""
    if not update:
        return Protected({}, memory, session, {})
    check_finite(update, doing.client)
    base = bases(task, message, update, chain=bool(word.get(CHAIN)))
    if how.noises:
        check_parts(update, base)
    if (one := how.of(NbAFL)) is not None:
        sigma = nbafl.sigma_up(how.setting())
        draw = (doing.round, doing.client)
        sent = nbafl.upload(update, clip=one.clip, sigma=sigma, noise=how.noise, key=draw)
        return Protected(sent, memory, session, sent)
    parts: Update = change(update, base)
    if (one := how.of(LocalDP)) is not None:
        key = (doing.round, doing.client, doing.what, doing.visit)
        scale = how.local_scale()
        parts = local_dp.release(parts, one.kind, clip=one.clip, scale=scale, noise=how.noise, key=key)
    if (one := how.of(CentralDP)) is not None:
        parts = as_before(clipped(parts, one.clip), parts)
    seen = parts
    if transform is not None and isinstance(task, Task) and memory is not None:
        coded, memory = encoded(transform, task, {name: x for name, x in parts.items() if name != BUFFERS}, memory, rng)
        parts = {**parts, **coded}
        seen = decoded(transform, parts)
    if (mask := how.of(SecAgg)) is not None:
        if word[SEND]:
            secure_sum.check_task(doing.what, session)
        parts, session, seen = secure_sum.masked(mask, parts, doing.rows, word, session)
    elif (lock := how.of(Paillier)) is not None:
        parts, session, seen = encrypted_sum.encrypted(lock, parts, word, session)
    return Protected(parts, memory, session, in_precision(restore(seen, base), update))


def check_finite(update: Mapping[str, Any], client: int) -> None:
    """DivergedError, as without a mechanism, before an update that is no number is clipped, masked or encrypted."""
    for value in update.values():
        if isinstance(value, Mapping):
            check_finite(value, client)
        elif not (value.isfinite().all() if isinstance(value, torch.Tensor) else math.isfinite(value)):
            raise DivergedError(f"the update of client {client} is not finite")


def check_parts(update: Update, base: Mapping[str, Any]) -> None:
    """ProtocolError for an update whose parts have no common norm, which noise could not cover."""
    for part, value in update.items():
        if not isinstance(value, Mapping) or part == BUFFERS:
            raise ProtocolError(
                f"'{part}' of an update would leave its client without noise: this algorithm cannot be kept private so."
            )


def follows_data(algorithm: Algorithm) -> bool:
    """Whether weights differ between two cohorts of the same clients with other rows: `weigh` is asked about both."""
    try:
        one, other = (algorithm.weigh(pretended(algorithm, sizes)) for sizes in ((10, 20, 30), (40, 25, 5)))
    except Exception:  # noqa: BLE001  (whatever a plug-in's rule asks a round for that a pretended one has not)
        return True
    return one != other


def by_rows(algorithm: Algorithm, part: str | None = None) -> bool:
    """Whether the weights of a part, or of any, are those of the clients' rows, among those who take part or among all."""
    drawn = pretended(algorithm, (10, 20, 30))
    try:
        found: Any = algorithm.weigh(drawn)
    except Exception:  # noqa: BLE001  (as above)
        return True
    parts = [x for name, x in found.items() if isinstance(x, Mapping) and part in {None, name}] or [found]
    return any(all(given.get(k) == n / whole for k, n in drawn.sizes.items()) for given in parts for whole in (60, 120))


def pretended(algorithm: Algorithm, sizes: tuple[int, ...]) -> Round:
    """A round of clients that hold so many rows, half of all, and showed numbers that follow them."""
    held, shown = dict(enumerate(sizes)), [name for task in algorithm.tasks.values() for name in task.shows]
    facts = {k: {name: (n / 10) ** (i + 1) for i, name in enumerate(shown)} for k, n in held.items()}
    return Round(1, tuple(held), 5, 2 * sum(sizes), held, sum(sizes), facts=facts)


def coefficients(how: Protection, algorithm: Algorithm) -> dict[str, float]:
    """What each part of a sum of clipped changes counts under central_dp: 1 / (q K) in place of a mean over those who came.

    Found by asking `Algorithm.weigh` about three of seven clients of other sizes. PrivacyError where weights follow the data.
    """
    sizes = {0: 5, 1: 11, 2: 2}
    found: Weights = algorithm.weigh(Round(1, (0, 1, 2), 7, 50, sizes))
    parts = found if all(isinstance(x, Mapping) for x in found.values()) else {"model": found}
    out = {}
    for part, given in parts.items():
        if len({*given.values()}) != 1:  # type: ignore[union-attr]
            raise PrivacyError(
                "weights that follow the data have no fixed sensitivity: use algorithm.weights = 'uniform'."
            )
        one: Any = given[0]  # type: ignore[index]
        out[str(part)] = 1 / how.K if abs(float(one) - 1 / 7) < 1e-12 else central_dp.coefficient(how.fraction, how.K)
    return out
