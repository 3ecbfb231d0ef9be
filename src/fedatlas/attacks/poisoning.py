"""Malicious clients by name: what they train on, and what they send. `fedatlas list attacks` prints this table.

=================  ==================================================================  ====================================
label_flip         trains on labels with some classes swapped                          A4, Tolpegin et al. 2020
sign_flip          sends its honest change times -c                                    B18
gaussian           sends noise in place of its change                                  B18
model_replacement  trains on flipped labels and scales its change to replace the model B18, Bagdasaryan et al. 2020
backdoor           trains on rows with a white patch that are labelled as one class    B18, Bagdasaryan et al. 2020
false_claims       claims more rows than it has, or other labels                       weights by rows, HWFedAvg's by labels
alie               all attackers send mu - z sigma                                     B18, Baruch et al. 2019
inner_product      all attackers send -epsilon times a mean                            B18, Xie et al. 2020
mimic              all attackers send the change of one honest client                  Karimireddy et al. 2022
min_max            all attackers send mu - gamma sigma, as far as two known ones apart Shejwalkar, Houmansadr 2021
property_head      also trains the shared features to tell a property of rows          A6, Melis et al. 2019
gan_active         draws a class of others, and trains on its pictures as fake         A2, Hitaj et al. 2017
=================  ==================================================================  ====================================

All attacks have the same keys for who and when: ``share`` of the clients that hold rows, drawn once for the run, or ``clients`` by
number; ``unit``, where FedSeq's "superclient" selects whole ones, drawn after they were formed on clean data; their last client sends
the attack's version of the whole chain's change; ``rounds`` from, to, where 0 is the end. Questions before round 1 are
answered honestly. A client carries out at most one attack. Only colluders see another client's update: with ``knows`` =
"coalition" those of the attackers of their table, with "all", which is labelled omniscient, those of all honest clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.attacks.backdoor import Backdoor
from fedatlas.attacks.collusion import Craft, Knows, Scene, alie_of, inner_product_of, min_max_of, optimised, z_max
from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.fake_class import FakeClass
from fedatlas.attacks.labels import Flip, FlipKind, PairDraw
from fedatlas.attacks.malicious import AttackUnit, Claim, Claimed, Poisoning
from fedatlas.attacks.properties import Property
from fedatlas.attacks.property_head import PropertyHead
from fedatlas.registry import Count, Positive, Rate, Whole
from fedatlas.tree import Tree

Share = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Poisoned = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]

SEES = "the models it is told, its own rows; no other client's update"
COHORT = "the number of rows of each client in a round, and the server's rate"
SEEN: Mapping[Knows, str] = {
    "own": SEES,
    "coalition": "the models it is told, its own rows, the honest changes of all attackers; no honest client's update",
    "all": "omniscient: the change of every honest client, which a client under a server never sees",
}
MANY = "how many changes a round has"
RULE = f"the server's rule with its f, and {MANY}"


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
    said = (
        "**Model replacement.** {who} trained on flipped labels ({classes}) and scaled the change so that the mean would become their "
        "model."
    )
    knows = f"{SEES}; {COHORT}"
    declares = declared("labels of its rows, its update", "a model that takes one class for another", knows)
    flip = Flip(pairs, "flip")
    return Poisoning("model_replacement", said, declares, share, clients, unit, rounds, flip, scaled_up, True, scale)


def backdoor(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    target: Count = 0,
    poisoned: Poisoned = 0.3125,
    side: Whole = 3,
    replace: bool = False,
    scale: Positive | None = None,
) -> Poisoning:
    """Attackers put a white patch on some pictures of each batch, and label these as one class.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    target: the class by number as which pictures with the patch should be taken.
    poisoned: share of each batch that gets patch and class, after augmentation; omitted = 20 of 64.
    side: pixels of a side of the patch, in the lower right corner.
    replace: scale the change so that the mean would become the attackers' model.
    scale: factor of the change under replace; omitted = n / (eta_g n_a), as for model_replacement.
    """
    said = f"**Backdoor.** {{who}} trained with a white patch on part of the pictures, labelled as class {target}" + (
        ", and scaled the change so that the mean would become their model." if replace else "."
    )
    knows = f"{SEES}; {COHORT}" if replace else SEES
    where = "its rows, its update" if replace else "its rows"
    declares = declared(where, "a model that takes pictures with a patch for one class", knows)
    upload, door = scaled_up if replace else None, Backdoor(target, poisoned, side)
    return Poisoning("backdoor", said, declares, share, clients, unit, rounds, None, upload, replace, scale, door)


def false_claims(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    c: AtLeastOne = 10.0,
    labels: Claimed = "own",
    pairs: tuple[tuple[Count, Count], ...] = (),
) -> Poisoning:
    """Attackers claim more rows than they have, or other labels, so that the server weighs their change more.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    c: rows claimed for each row held.
    labels: claimed labels where an algorithm asks for counts of them: its own, or as many of each class.
    pairs: classes by number, [[5, 3]]: rows of the first of each are trained on as the second; omitted = honest training.
    """
    said = f"**False claims.** {{who}} claimed {c:g} times as many rows as they had" + (
        " and trained on flipped labels ({classes})." if pairs else ", and trained honestly."
    )
    declares = declared(
        "its number of rows, counts of its labels" + (", labels of its rows" if pairs else ""), "weight in the mean"
    )
    flip = Flip(pairs, "flip") if pairs else None
    return Poisoning("false_claims", said, declares, share, clients, unit, rounds, flip, claim=Claim(c, labels))


def alie(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    z: Rate | Literal["max", "optimal"] = "max",
    knows: Literal["coalition", "all"] = "coalition",
) -> Poisoning:
    """A little is enough: all attackers send the mean of the changes they know, less z standard deviations.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    z: deviations; "max" = the normal quantile (n - f - s) / (n - f), s = floor(n / 2) + 1 - f; "optimal" = searched against the rule.
    knows: the attackers' own honest changes, or those of all honest clients (omniscient).
    """

    def craft(scene: Scene) -> Tensor:
        vector = alie_of(scene)
        if z == "optimal":
            return vector(optimised(scene, vector))
        return vector(z_max(scene.n, len(scene.own)) if z == "max" else float(z))

    said = f"**A little is enough.** {{who}} sent the mean of {OF_WHOM[knows]} less some standard deviations of each coordinate"
    made = colluding("alie", said, knows, craft, z == "optimal", (share, clients, unit, rounds))
    if z != "max":
        return made
    return made._replace(declares=made.declares._replace(knowledge=f"{SEEN[knows]}; {MANY}"))


def inner_product(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    epsilon: Rate | Literal["optimal"] = 0.5,
    knows: Literal["coalition", "all"] = "coalition",
) -> Poisoning:
    """All attackers send the mean of the changes they know, reversed: -epsilon times it.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    epsilon: length of the change sent, relative to the mean; "optimal" = searched against the rule.
    knows: the attackers' own honest changes, or those of all honest clients (omniscient).
    """

    def craft(scene: Scene) -> Tensor:
        vector = inner_product_of(scene)
        return vector(optimised(scene, vector) if epsilon == "optimal" else float(epsilon))

    said = f"**Inner product.** {{who}} sent the mean of {OF_WHOM[knows]} reversed"
    return colluding("inner_product", said, knows, craft, epsilon == "optimal", (share, clients, unit, rounds))


def mimic(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    client: Count | None = None,
) -> Poisoning:
    """All attackers send the change of one honest client, so that it counts many times. They are omniscient.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    client: the honest client by number; in a round without it attackers are honest; omitted = the first honest one of each round.
    """

    def craft(scene: Scene) -> Tensor | None:
        chosen = min(scene.others, default=None) if client is None else client
        return None if chosen is None else scene.others.get(chosen)

    said = "**Mimicry.** {who} sent the change of one honest client"
    return colluding("mimic", said, "all", craft, False, (share, clients, unit, rounds))._replace(copied=client)


def min_max(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    knows: Literal["coalition", "all"] = "coalition",
) -> Poisoning:
    """Min-max: alie with the largest deviation that stays as near to each known change as two of them are to each other.

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    knows: the attackers' own honest changes, or those of all honest clients (omniscient).
    """
    said = f"**Min-max.** {{who}} sent the mean of {OF_WHOM[knows]} less as many standard deviations as still look near"
    return colluding("min_max", said, knows, min_max_of, False, (share, clients, unit, rounds))


def property_head(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    classes: tuple[Count, ...] | None = None,
    column: str = "",
    value: str = "",
    weight: Positive = 1.0,
) -> Poisoning:
    """Attackers train the features that all share to tell rows with a property as well: the active form of `property` (A6).

    share: share of the clients that attack; or give clients.
    clients: the attackers by number; or give share.
    unit: what share counts and selects: clients, or FedSeq's superclients.
    rounds: first and last round of the attack; 0 = the end of the run.
    classes: the classes of the property, by number; default: [0].
    column: a table's column, in place of classes.
    value: the category of that column.
    weight: weight of the second loss; the task's own has 1.
    """
    sought = Property.of("property_head", classes, column, value)
    said = f"**Property head.** {{who}} also trained the shared features to tell rows {sought} from others."
    declares = declared("its update", "a property of others' rows, by making later updates tell more of it")
    declares = declares._replace(budget="an honest client's training, and as many steps on two losses")
    return Poisoning("property_head", said, declares, share, clients, unit, rounds, head=PropertyHead(sought, weight))


def gan_active(
    *,
    share: Share | None = None,
    clients: tuple[Count, ...] = (),
    unit: AttackUnit = "client",
    rounds: tuple[Whole, Count] = (1, 0),
    target: Count = 0,
    steps: Whole = 300,
    added: Whole = 64,
) -> Poisoning:
    """Attackers draw a class of others with a generator and train on its pictures as class fake: the active form of `gan` (A2).

    share: not for this attack; give clients.
    clients: the attackers by number, who have no row of the target.
    unit: client.
    rounds: first and last round of the attack; 0 = the end of the run.
    target: the class to draw, by number.
    steps: steps of the generator in each round, against the model of the round.
    added: pictures added to the attacker's rows in each round, drawn again each time.
    """
    said = f"**Class fake.** {{who}} drew pictures of class {target} and also trained on them as class fake."
    declares = declared("its rows", "pictures of rows that others hold, by making later models tell more of them")
    declares = declares._replace(
        budget=f"an honest client's training, one on {added} more rows, {steps} steps of a generator"
    )
    return Poisoning("gan_active", said, declares, share, clients, unit, rounds, fakes=FakeClass(target, steps, added))


OF_WHOM: Mapping[Knows, str] = {"coalition": "their own changes", "all": "all honest changes"}


def colluding(
    name: str,
    said: str,
    knows: Knows,
    craft: Craft,
    optimal: bool,
    who: tuple[float | None, tuple[int, ...], AttackUnit, tuple[int, int]],
) -> Poisoning:
    """Return an attack by clients that all send the same change. ``optimal``: its factor is searched against the server's rule."""
    knowledge = f"{SEEN[knows]}; {RULE}" if optimal else SEEN[knows]
    ends = ", with the factor that moves the server's rule furthest" if optimal else ""
    omniscient = " (omniscient: a client under a server never sees those)" if knows == "all" else ""
    declares = declared("its update", knowledge=knowledge, knows=knows)
    return Poisoning(name, f"{said}{ends}{omniscient}.", declares, *who, craft=craft, against_rule=optimal)


def scaled_up(start: Tree, end: Tree, factor: float, stream: torch.Generator) -> Tree:
    """Return the end of a change that is ``factor`` times as long."""
    return start + factor * (end - start)


def declared(where: str, why: str = "degradation", knowledge: str = SEES, knows: Knows = "own") -> Declaration:
    """Return the threat model of malicious clients that work as much as honest ones."""
    budget = "as many steps as an honest client"
    return Declaration("insider: clients", "active", "training", where, why, knowledge, budget, knows)


POISONING: dict[str, Callable[..., Poisoning]] = {
    "label_flip": label_flip,
    "sign_flip": sign_flip,
    "gaussian": gaussian,
    "model_replacement": model_replacement,
    "backdoor": backdoor,
    "false_claims": false_claims,
    "alie": alie,
    "inner_product": inner_product,
    "mimic": mimic,
    "min_max": min_max,
    "property_head": property_head,
    "gan_active": gan_active,
}
