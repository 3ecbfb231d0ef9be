"""Malicious clients by name: what they train on, and what they send. `fedatlas list attacks` prints this table.

=================  ==================================================================  ====================================
label_flip         trains on labels with some classes swapped                          A4, Tolpegin et al. 2020
sign_flip          sends its honest change times -c                                    B18
gaussian           sends noise in place of its change                                  B18
model_replacement  trains on flipped labels and scales its change to replace the model B18, Bagdasaryan et al. 2020
=================  ==================================================================  ====================================

All attacks have the same keys for who and when: ``share`` of the clients that hold rows, drawn once for the run, or ``clients`` by
number; ``unit``, where FedSeq's "superclient" selects whole ones, drawn after they were formed on clean data; their last client sends
the attack's version of the whole chain's change; ``rounds`` from, to, where 0 is the end. Questions before round 1 are answered
honestly. No attacker sees another client's update. A client carries out at most one attack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.labels import Flip, FlipKind, PairDraw
from fedatlas.registry import Count, Positive, Rate, Whole
from fedatlas.tree import Tree

AttackUnit = Literal["client", "superclient"]
Share = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Upload = Callable[[Tree, Tree, float, torch.Generator], Tree]

SEES = "the models it is told, its own rows; no other client's update"


class Poisoning(NamedTuple):
    """An attack of ``[[attack]]``: the attackers, their rounds, and what they do."""

    name: str
    said: str  # what attackers did, for the report; {who} and {classes} are filled in
    declares: Declaration
    share: float | None
    clients: tuple[int, ...]
    unit: AttackUnit
    rounds: tuple[int, int]
    flip: Flip | None = None
    upload: Upload | None = None
    scaled: bool = False  # the upload uses n / (eta_g n_a) of the round
    scale: float | None = None  # replaces it

    def active(self, number: int) -> bool:
        """Return whether the attack is active in round ``number``, from 1."""
        first, last = self.rounds
        return first <= number and (not last or number <= last)


def label_flip(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    pairs: tuple[tuple[Count, Count], ...] | Literal["extra_SC", "intra_SC"],
    kind: FlipKind = "swap",
    draw: PairDraw = "fixed",
) -> Poisoning:
    """Attackers train on labels with some classes exchanged, and are otherwise honest.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    pairs: classes by number, [[5, 3], [0, 2]]; CIFAR-100: 20 classes in pairs across superclasses, or inside.
    kind: swap the classes of a pair, or turn the first into the second.
    draw: the given pairs for all attackers, or a separate matching of their classes drawn by each.
    """
    said = (
        "**Label flipping.** {who} trained on rows with exchanged labels ({classes}), and sent the resulting updates."
    )
    declares = declared("labels of its rows", "degradation of some classes")
    return Poisoning("label_flip", said, declares, share, clients, unit, rounds, Flip(pairs, kind, draw))


def sign_flip(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    c: Finite = 1.0,
) -> Poisoning:
    """Attackers train honestly and send the change reversed: -c times what it was.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    c: length of the change sent, relative to the honest change; -1 = honest.
    """

    def upload(start: Tree, end: Tree, scale: float, stream: torch.Generator) -> Tree:
        return end if c == -1 else end - (1 + c) * (end - start)

    said = f"**Reversed updates.** {{who}} trained honestly and sent the change reversed, {c:g} times as long."
    return Poisoning("sign_flip", said, declared("its update"), share, clients, unit, rounds, upload=upload)


def gaussian(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    sigma: Rate = 10.0,
) -> Poisoning:
    """Attackers send Gaussian noise instead of their change.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    sigma: standard deviation of the noise, in units of the norm of the attacker's honest change divided by the root of its size.
    """

    def upload(start: Tree, end: Tree, scale: float, stream: torch.Generator) -> Tree:
        change = end - start
        deviation = sigma * change.norm() / max(change.size(), 1) ** 0.5
        return start.map(
            lambda x: (
                x + (deviation * torch.randn(x.shape, generator=stream, dtype=torch.float64)).to(x.dtype).to(x.device)
            )
        )

    said = f"**Noise.** {{who}} sent Gaussian noise instead of what it had learnt, {sigma:g} times as long as an honest change."
    return Poisoning("gaussian", said, declared("its update"), share, clients, unit, rounds, upload=upload)


def model_replacement(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    pairs: tuple[tuple[Count, Count], ...],
    scale: Positive | None = None,
) -> Poisoning:
    """Attackers train on flipped labels and scale their change so that the mean becomes their model.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    pairs: classes by number, [[5, 3]]: the first of each pair should become the second.
    scale: factor of the change; omitted = n / (eta_g n_a) of the round: all rows divided by the server's rate and the attackers' rows.
    """

    def upload(start: Tree, end: Tree, factor: float, stream: torch.Generator) -> Tree:
        return start + factor * (end - start)

    said = (
        "**Model replacement.** {who} trained on flipped labels ({classes}) and scaled the change so that the mean would become their "
        "model."
    )
    knows = f"{SEES}; the number of rows of each client in a round, and the server's rate"
    declares = declared("labels of its rows, its update", "a model that takes one class for another", knows)
    flip = Flip(pairs, "flip")
    return Poisoning("model_replacement", said, declares, share, clients, unit, rounds, flip, upload, True, scale)


def declared(where: str, why: str = "degradation", knowledge: str = SEES) -> Declaration:
    """Return the threat model of malicious clients that work as much as honest ones."""
    return Declaration(
        "insider: clients", "active", "training", where, why, knowledge, "as many steps as an honest client"
    )


POISONING: dict[str, Callable[..., Poisoning]] = {
    "label_flip": label_flip,
    "sign_flip": sign_flip,
    "gaussian": gaussian,
    "model_replacement": model_replacement,
}
