"""DP-FTRL: a trusted server adds noise to the running sum of all rounds by a binary tree, and needs no secret cohort.

===  ================================================  =====  ==============================================
S    bound of a client's whole change                  z      noise multiplier of a node of the tree
m    clients of a round, a public number               R      rounds of a tree: those of ``restart`` passes
===  ================================================  =====  ==============================================

    w_t = w_0 + eta (sum over rounds i <= t of sum_k clip(Delta_k, S) + noise of the nodes of t) / m

Each node has noise N(0, (z S)^2 I) (`tree_noise`). A client that takes part once in a tree moves each of its nodes by S at most, and
lies in at most floor(log2 T) + 1 of them, T being the rounds of the tree so far. So a tree costs a Gaussian release with multiplier
z / sqrt(floor(log2 T) + 1), and trees compose. A client asked j times for the rounds of a node moves it by j S at most: that is what its
line says, and less than j times the whole tree's sensitivity, since most nodes have fewer visits.

The ledger has one line per node, written before its noise is used, that names the clients asked in the node's rounds. The account
then follows from who paid for what, in trees that a run's end cuts short, too. A round repeated after a crash draws the noises of
its nodes again, in addition to those that were released: its lines are written again, and cost again. Nodes that ended before the
checkpoint keep their noise and cost nothing more. After a round that a guard rejects, or a rollback, the next one ends another node
over the same earlier rounds: it has its own noise and its own line.

Unit: a client, by its changes counting as zero. Who takes part when is public: no sampling is assumed and none is counted. The
guarantee holds against all who see models. The server sees the updates, and its checkpoint holds the keys of the noise.

Source: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, B16.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedatlas.errors import PrivacyError
from fedatlas.privacy.central_dp.mechanism import ALONE, TRUSTED, usual_delta
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import (
    Asked,
    Learns,
    Limits,
    Mechanism,
    Memory,
    Noising,
    Protection,
    Remembering,
    Small,
    Source,
    Words,
    Work,
    drawn_by,
    from_memory,
    no_noise,
)
from fedatlas.privacy.reasons import CLIENT_LEVEL
from fedatlas.registry import Positive, Rate, Whole

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Update
    from fedatlas.privacy.ask_protocol import Place

LEARNS = Learns(
    "every update in the clear, and who sent it: the server has to be trusted, and to keep its checkpoints, which hold the noise",
    "who takes part when, which is public; of a client's changes no more than epsilon and delta allow",
    "clients together learn no more than one of them; with the server, every update",
)
DONE = (
    "<b>Differential privacy at the server, without secret cohorts (DP-FTRL).</b> No client could change the model by more than a "
    "length of {clip:g} in a round. Noise {noise_multiplier:g} times as strong was added to running sums over the rounds by a binary "
    "tree, so it grows with the logarithm of their number. Who takes part when is public; epsilon says how well the noise hides "
    "what a client sent."
)


class DPFTRL(NamedTuple):
    """The keys of the table, and the values derived from them."""

    clip: float
    noise_multiplier: float
    delta: float | None
    restart: int
    noise: Source

    def stated(self, how: Protection) -> float:
        """Return the delta at which epsilon is stated."""
        return usual_delta(max(how.K, 2)) if self.delta is None else self.delta

    def event(self, how: Protection, round: int, visits: int, clients: Sequence[int] = (), times: int = 1) -> Event:
        """Return the ledger's line of a node, which a client asked so often in it moves by ``visits`` S."""
        z, moved, at = self.noise_multiplier / visits, visits * self.clip, self.stated(how)
        line = Event("dp_ftrl", round, "gaussian", z, moved, "client", "zero out", at, clients=tuple(clients))
        return line._replace(source=self.noise, times=times)

    def rounds(self, how: Protection) -> int:
        """Return the rounds of a tree."""
        return self.restart * passing(how)

    def planned(self, how: Protection, rounds: int) -> list[Event]:
        """Return lines for each tree: at most what a client pays that is asked once in every pass."""
        found = []
        for began in range(1, rounds + 1, self.rounds(how)):
            there = min(self.rounds(how), rounds - began + 1)
            paid = (most_forked if how.guarded else most_paid)(there, passing(how))
            found += [self.event(how, began, visits, times=n) for visits, n in paid.items()]
        return found

    def enter(
        self, memory: Memory, how: Protection, place: Place, asked: Sequence[int]
    ) -> tuple[dict[str, Any], list[Event]]:
        """Return the memory with this release, and the lines of the node that ends with it, one per number of visits."""
        from fedatlas.privacy.dp_ftrl.tree_noise import Node, entered, last, visits

        tree = (place.round - 1) // self.rounds(how)
        after = entered(memory, tree * self.rounds(how) + 1, asked)
        t = len(after["asked"])
        check_visits(visits(after, Node(0, t)), self.restart)
        found = visits(after, last(t))
        lines = [
            self.event(how, place.round, often, sorted(k for k, n in found.items() if n == often))
            for often in sorted({*found.values()})
        ]
        return after, lines

    def release(
        self,
        value: Update,
        memory: Memory,
        how: Protection,
        place: Place,  # noqa: ARG002
        algorithm: Algorithm,
    ) -> tuple[Update, Memory]:
        """Return (sum + noise of its node - noises of the nodes inside it) / m, and the tree that holds the new noise."""
        from fedatlas.privacy.central_dp.clipped_sum import averaged
        from fedatlas.privacy.clipping import changed, vector
        from fedatlas.privacy.dp_ftrl.tree_noise import grown
        from fedatlas.privacy.noise import on_grid

        x, std = vector(value), self.noise_multiplier * self.clip
        if std:
            memory, noise = grown(memory, len(x), std, how.noise)
            x = on_grid(x + noise, std)
        return averaged(changed(value, x), how, algorithm), memory

    def work(self) -> Work:
        """Return the work of its clients and its server."""
        from fedatlas.privacy.central_dp.clipped_sum import clipped_sum, shortened
        from fedatlas.privacy.dp_ftrl.tree_noise import start

        return Work(
            update=lambda changes, how, doing: shortened(changes, self.clip),
            total=lambda transform: clipped_sum(self.clip, transform),
            memory=Remembering(lambda how: start(), self.enter, self.release, draws=True),
        )


def dp_ftrl(
    *,
    clip: Positive = 1.0,
    noise_multiplier: Rate = 1.0,
    delta: Small | None = None,
    restart: Whole = 1,
    noise: Source = "os",
) -> Mechanism:
    """A trusted server adds noise to running sums by a binary tree. Needs no secret cohort: who takes part when is public.

    clip: S, the longest change of a client (Euclidean norm over all parts together); a longer one is shortened to it.
    noise_multiplier: z: each node of the tree has noise of standard deviation z S; 0 = no noise and no privacy.
    delta: the delta at which epsilon is stated; left out = K^-1.1 for K clients.
    restart: passes over all clients, of ceil(K / m) rounds each, after which a new tree begins. Each client is asked once in a pass.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    own = DPFTRL(clip, noise_multiplier, delta, restart, noise)
    return Mechanism(
        name="dp_ftrl",
        keys=own._asdict(),
        place=3,
        trust="server",
        learns=LEARNS,
        work=own.work,
        words=Words(
            DONE,
            (TRUSTED,),
            no_noise("dp_ftrl", noise_multiplier),
        ),
        noise=Noising(noise, from_memory, own.stated, planned=own.planned),
        hides=("train_loss", "weights", "steps", "flops"),
        limits=Limits(
            alone=ALONE,
            why_not=CLIENT_LEVEL,
            refuses=unbounded_cohort,
            extras=drawn_by(noise),
        ),
    )


def passing(how: Protection) -> int:
    """Return the rounds of a pass over all clients: ceil(K / m)."""
    m = max(1, math.floor(how.fraction * how.K + 1e-9))
    return math.ceil(how.K / m)


def most_paid(releases: int, passing: int) -> dict[int, int]:
    """Map visits to a number of nodes: no client that is asked once per ``passing`` releases of a tree pays more.

    A node that reaches into v >= 2 passes has at most v visits of a client. Of the nodes of one length that lie in one pass, a client is
    in one. With one pass these are floor(log2 T) + 1 nodes with one visit each, as in B16.
    """
    found: Counter[int] = Counter()
    single: set[tuple[int, int]] = set()  # (length of a node, the only pass that it reaches into)
    for end in range(1, releases + 1):
        length = end & -end
        first, last = (end - length) // passing, (end - 1) // passing
        if first == last:
            single.add((length, first))
        else:
            found[last - first + 1] += 1
    found[1] += len(single)
    return dict(sorted(found.items()))


def most_forked(releases: int, passing: int) -> dict[int, int]:
    """Return the same where rounds may be rejected: each then ends another node, and all of these may hold the same client's change."""
    return {math.ceil(releases / passing): releases}


def check_visits(found: Mapping[int, int], most: int) -> None:
    """Raise PrivacyError for a client that is asked more often in a tree than the tree has passes."""
    if odd := sorted(k for k, n in found.items() if n > most):
        raise PrivacyError(
            f"client {odd[0]} is asked {found[odd[0]]} times in a tree of 'dp_ftrl' that allows {most}: the round releases nothing; "
            "use an algorithm with one sum per round and a cohort that takes each client once in a pass."
        )


def unbounded_cohort(asked: Asked) -> str:
    """Return why nothing bounds how often a client takes part in a tree; "" for passes, or if all take part in each round."""
    everybody = asked.fraction == 1 if asked.size is None else not asked.clients or asked.size >= asked.clients
    if asked.sampling == "passes" or (asked.sampling == "uniform" and everybody):
        return ""
    return (
        "[[privacy]] 'dp_ftrl': nothing bounds how often a client is drawn into a tree's rounds; write cohort.sampling = \"passes\", "
        "which asks each client once in a pass, or cohort.fraction = 1."
    )
