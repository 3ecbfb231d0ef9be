"""``[[attack]]``: the clients that attack, the rounds, and what they train on and send. Drawn once per run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.aggregation.changes import Changes
from fedatlas.aggregation.rules import RULES, Rule, shares
from fedatlas.algorithm import Algorithm, Facts, Groups, Question, State, Task
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.median_by_sums import NEAR
from fedatlas.attacks import ATTACKS, superclasses
from fedatlas.attacks.collusion import Aggregate
from fedatlas.attacks.fake_class import FakeClass
from fedatlas.attacks.generator import layers_of
from fedatlas.attacks.malicious import Claim, Poisoning
from fedatlas.attacks.poisoning import POISONING
from fedatlas.config import ExperimentConfig
from fedatlas.data.batches import Rows
from fedatlas.data.preprocess import Preprocess
from fedatlas.engine.attackers import Attacker, Order
from fedatlas.engine.job import Role, RowSource
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.privacy.reasons import by_rows
from fedatlas.registry import arguments, defaults, find
from fedatlas.rng import numpy_stream
from fedatlas.setup.canaries import NONE, Canaries
from fedatlas.setup.cohort import Drawn
from fedatlas.setup.pixels import Refused, pixel_range
from fedatlas.tree import Tree


def poisonings_of(config: ExperimentConfig) -> tuple[Poisoning, ...]:
    """Return the ``[[attack]]`` tables that change what clients do. ConfigError for an unknown name or key."""
    made = []
    for table in config.attack:
        if table.name not in ATTACKS:
            raise unknown_name("attack", table.name, ATTACKS)
        if table.name not in POISONING:
            continue  # it analyses a view after the run: `setup.views`
        where, builder = f"attack.{table.name}", POISONING[table.name]
        if table.role is not None:
            raise ConfigError(
                f"{where}.role: only clients can poison. Remove the key, and choose attackers by share or clients."
            )
        made.append(builder(**arguments(where, builder, table.parameters())))
    return tuple(made)


class FlippedRows:
    """A source of rows that changes the labels of attackers."""

    def __init__(self, inner: RowSource, one: Poisoning, seed: int, table: int) -> None:
        self.inner, self.one, self.seed, self.table = inner, one, seed, table

    def __call__(self, party: int) -> Rows:
        """Return a client's rows with changed labels; rows of the server and of the union are unchanged."""
        rows, flip = self.inner(party), self.one.flip
        if flip is None or party < 0:
            return rows
        return rows._replace(y=flip.relabelled(rows.y, self.seed, self.table, party))


@dataclass(frozen=True)
class ClaimedRows:
    """A source of the rows that attackers claim to have. Only their number and their labels are claimed."""

    inner: RowSource
    claim: Claim
    classes: int

    def __call__(self, party: int) -> Rows:
        """Return as many rows as a client claims, with the labels that it claims; other parties' rows are unchanged."""
        rows = self.inner(party)
        if party < 0 or not rows.n:
            return rows
        many = torch.arange(claimed(self.claim, rows.n))
        y = rows.y[many % rows.n] if self.claim.labels == "own" else many.to(rows.y) % self.classes
        return Rows(rows.x[:1].expand(len(many), *rows.x.shape[1:]), y)


def claimed(claim: Claim, n: int) -> int:
    """Return the number of rows that a client with n rows claims."""
    return math.floor(claim.c * n + 0.5)


def rule_as_known(rule: Rule | None) -> Aggregate:
    """Return the server's rule as attackers try it: on equal weights; a round with too few changes changes nothing."""
    judged = rule or RULES["mean"]()

    def taken(changes: Sequence[Tensor]) -> Tensor:
        n = len(changes)
        if judged.refusal(n):
            return torch.zeros_like(changes[0])
        held = Changes()
        for one in changes:
            held.add(one)
        value: Tensor = judged.judge(held, shares(None, n), judged.tolerated(n)).value
        return value

    return taken


def with_class_numbers(
    poisonings: Sequence[Poisoning], name: str, class_names: Sequence[str], seed: int
) -> tuple[Poisoning, ...]:
    """Replace "extra_SC" and "intra_SC" by pairs of classes. ConfigError if the data are not CIFAR-100."""
    out = []
    for one in poisonings:
        flip = one.flip
        if flip is not None and isinstance(flip.pairs, str):
            if not superclasses.known(class_names):
                raise ConfigError(
                    f"attack.{one.name}.pairs = \"{flip.pairs}\" needs CIFAR-100's superclasses, which '{name}' does not have; "
                    "name classes, as in [[5, 3]]."
                )
            one = one._replace(flip=flip._replace(pairs=superclasses.drawn(flip.pairs, class_names, seed)))
        out.append(one)
    return tuple(out)


WITH_FAKE = ("fedavg", "fedsgd", "fedavgm")
DRAWN = Refused("attack.gan_active draws pictures, but these rows are {}; use property_head.", "for attack.gan_active")
PATCHED = Refused(
    "attack.backdoor: it puts a white patch on pictures, but these rows are {}; use label_flip.", "for attack.backdoor"
)


def with_rows(poisonings: Sequence[Poisoning], done: Preprocess, name: str) -> tuple[Poisoning, ...]:
    """Tell attacks how the network reads rows: backdoors what is white, second tasks the names of a table's inputs.

    ConfigError if the rows are not pictures, or smaller than the patch, and for a column or category that they lack.
    """
    out = []
    for one in poisonings:
        if one.backdoor is not None:
            white = pixel_range(done, name, PATCHED)[1]
            if one.backdoor.side > min(done.shape[1:]):
                raise ConfigError(
                    f"attack.backdoor.side = {one.backdoor.side}: the pictures of '{name}' have {done.shape[1]} x {done.shape[2]} "
                    "pixels; take a smaller patch."
                )
            one = one._replace(backdoor=one.backdoor._replace(white=white))
        if one.head is not None:
            if done.task != "classes":
                raise ConfigError(f"attack.{one.name}: it needs classes, but '{name}' predicts {done.task}.")
            one.head.sought.check(len(done.class_names), done.columns)
            one = one._replace(head=one.head._replace(inputs=done.columns))
        if one.fakes is not None:
            layers_of(tuple(done.shape))
            box = pixel_range(done, name, DRAWN)
            fakes = one.fakes._replace(shape=tuple(done.shape), box=box, label=len(done.class_names))
            one = one._replace(fakes=fakes)
        out.append(one)
    return tuple(out)


def roles_of(poisonings: Sequence[Poisoning], seed: int) -> tuple[dict[str, Role], dict[int, str]]:
    """Return the roles of attackers that keep a generator over the rounds, and who has them."""
    drawing = {f"attack {i}": one for i, one in enumerate(poisonings) if one.fakes is not None}
    roles = {
        name: Role(client_init=_first_of(one.fakes, seed)) for name, one in drawing.items() if one.fakes is not None
    }
    return roles, {k: name for name, one in drawing.items() for k in one.clients}


def _first_of(fakes: FakeClass, seed: int) -> Callable[[Tree, Facts], State]:
    return lambda model, facts: fakes.first(seed)


def attackers_of(poisonings: Sequence[Poisoning], seed: int, rule: Rule | None, classes: int) -> dict[str, Attacker]:
    """Map the number of each table, as text, to the actions of its attackers, which replace honest work."""

    def attacker(table: int, one: Poisoning) -> Attacker:
        flip, claim, door = one.flip, one.claim, one.backdoor
        return Attacker(
            rows=(lambda rows: rows) if flip is None else (lambda rows: FlippedRows(rows, one, seed, table)),
            claimed=(lambda rows: rows) if claim is None else (lambda rows: ClaimedRows(rows, claim, classes)),
            taint=None if door is None else door.poisoned_rows,
            upload=one.upload,
            head=one.head,
            fakes=one.fakes,
            craft=one.craft,
            aggregate=None if one.craft is None else rule_as_known(rule),
            omniscient=one.declares.knows == "all",
        )

    return {str(i): attacker(i, one) for i, one in enumerate(poisonings)}


class AttackerDraw(NamedTuple):
    """The draw of attackers, a function of the seed, the clients with rows and, for superclients, their members."""

    poisonings: tuple[Poisoning, ...]
    config: ExperimentConfig
    seed: int
    clients: tuple[int, ...]  # those that hold rows, ascending
    neighbours: int = 0  # of a node, if no server takes part
    canaries: Canaries = NONE

    def attackers(self, groups: Groups | None = None) -> dict[int, int]:
        """Map each attacker to the number of its table.

        ConfigError for a share above 0 that rounds to zero, and for more attackers than clients.
        """
        out: dict[int, int] = {}
        for table, one in enumerate(self.poisonings):
            units: list[tuple[int, ...]] = [(k,) for k in self.clients]
            thing = f"{one.unit}s"
            if one.unit == "superclient":
                units = [tuple(unit) for unit in groups or ()]
            free = [unit for unit in units if not set(unit) & out.keys()]
            chosen = set(one.clients)
            if not chosen:
                order = numpy_stream(self.seed, "attack", "who", table).permutation(len(free))
                chosen = {k for i in order[: self._count(one, len(units), len(free), thing)] for k in free[int(i)]}
            out |= dict.fromkeys(chosen - out.keys(), table)
        return out

    def known(self) -> None:
        """Raise the errors of `attackers` that do not depend on superclients."""
        clients = tuple(one for one in self.poisonings if one.unit == "client")
        self._replace(poisonings=clients).attackers()

    def _count(self, one: Poisoning, of: int, free: int, what: str) -> int:
        share = one.share or 0.0
        count = math.floor(share * of + 1e-9)
        if share and not count:
            raise ConfigError(
                f"attack.{one.name}.share = {share:g} of {of} {what} rounds to zero; write {math.ceil(1000 / of) / 1000:g} or more, or 0."
            )
        if count > free:
            raise ConfigError(
                f"attack.{one.name}.share = {share:g} is {count} of {of} {what}, but only {free} are not attackers yet; lower the shares."
            )
        return count

    def orders(self, drawn: Drawn, groups: Groups | None) -> dict[int, Order]:
        """Map each attacker that was drawn for this round and attacks in it, and each canary, to its actions."""
        number, cohort = drawn.round.number, drawn.round.cohort
        found = self.attackers(groups).items()
        active = {k: table for k, table in found if k in cohort and self.poisonings[table].active(number)}
        factors = {table: self.factor(table, active, drawn) for table in set(active.values())}
        out = {}
        for k, table in sorted(active.items()):
            one = self.poisonings[table]
            claims = 0 if one.claim is None else claimed(one.claim, drawn.round.sizes[k])
            out[k] = Order(str(table), factors[table], one.unit == "superclient", claims=claims)
        return out | self.canaries.orders(cohort)

    def claiming(self, drawn: Drawn, orders: Mapping[int, Order]) -> Drawn:
        """Return a round with the rows that its clients claim in place of those that they have; n is the one agreed on before."""
        claims = {k: order.claims for k, order in orders.items() if order.claims}
        return drawn._replace(round=drawn.round._replace(sizes={**drawn.round.sizes, **claims}))

    def factor(self, table: int, active: Mapping[int, int], drawn: Drawn) -> float:
        """Return the factor n / (eta_g n_a) by which attackers scale their change in a round (B18).

        n: rows of all clients in the round; eta_g: the server's rate; n_a: rows of the units that hold an attacker.
        With uniform weights, units are counted in place of rows. A declared ``scale`` is used as it is; 1 if the
        attack is not scaled; the number of neighbours + 1 if no server takes part.
        """
        one, drawn_round = self.poisonings[table], drawn.round
        if not one.scaled or one.scale is not None:
            return one.scale or 1.0
        if self.neighbours:
            return float(self.neighbours + 1)  # a neighbour weighs the update as one of these
        mine = {k for k, each in active.items() if each == table}
        units = [unit.members for unit in drawn_round.units if unit.members] or [(k,) for k in drawn_round.cohort]
        uniform = self.config.algorithm.parameters().get("weights") == "uniform"
        rows = [1.0 if uniform else float(sum(drawn_round.sizes[k] for k in unit)) for unit in units]
        hostile = sum(n for n, unit in zip(rows, units, strict=True) if mine & set(unit))
        return sum(rows) / (server_rate(self.config) * hostile)


def server_rate(config: ExperimentConfig) -> float:
    """Return eta_g, the server's rate; 1 if the algorithm has no such rate, or it is 0."""
    usual = defaults(find("algorithms", ALGORITHMS, config.algorithm.name)).get("server_lr", 1.0)
    return float(config.algorithm.parameters().get("server_lr", usual) or 1.0)


# ---------------------------------------------------------------------- refusals


def check_attacks(
    config: ExperimentConfig, algorithm: Algorithm, poisonings: Sequence[Poisoning], rule: Rule | None = None
) -> None:
    """Raise ConfigError for attacks that the configuration rules out by itself."""
    taken: set[int] = set()
    for one in poisonings:
        where = f"attack.{one.name}"
        check_kind(algorithm, one, where)
        if one.fakes is not None and not one.clients:
            raise ConfigError(f"{where}: name the attackers, who must lack the target, as in clients = [3].")
        if one.fakes is not None and not has_fake(config):
            raise ConfigError(
                f'{where}: every network needs the class fake: set model.loss = {{name = "cross_entropy", fake = true}}.'
            )
        if one.against_rule and rule is not None and rule.rooted:
            raise ConfigError(
                f"{where}: not optimised against a rule that compares with rows of the server, which no attacker knows; give a number."
            )
        if (one.share is None) == (not one.clients):
            raise ConfigError(
                f"{where}: say who attacks with either share, as in share = 0.2, or clients, as in clients = [3, 7]."
            )
        if one.unit == "superclient" and (algorithm.groups is None or one.clients):
            why = "it needs share, since superclients are formed later"
            why = why if algorithm.groups is not None else f"'{algorithm.name}' forms none"
            raise ConfigError(f'{where}.unit = "superclient": {why}; write unit = "client".')
        first, last = one.rounds
        if first > config.rounds or (last and last < first):
            raise ConfigError(
                f"{where}.rounds = {list(one.rounds)} contains no round of this run; write [from, to] with from at most {config.rounds}, "
                "and to = 0 for the end."
            )
        if again := sorted(taken & set(one.clients)):
            raise ConfigError(
                f"{where}.clients: client {again[0]} is named in two [[attack]] tables; name it in only one."
            )
        taken |= set(one.clients)
        if one.flip is not None and (why := one.flip.refusal(where)):
            raise ConfigError(why)
    if config.partition.clients:
        check_clients(poisonings, config.partition.clients)
        AttackerDraw(tuple(poisonings), config, config.seed, tuple(range(config.partition.clients))).known()


def check_kind(algorithm: Algorithm, one: Poisoning, where: str) -> None:
    """Raise ConfigError for an algorithm whose clients cannot carry out this attack."""
    if algorithm.card.sends != "messages":
        raise ConfigError(
            f"{where}: not with '{algorithm.name}', whose clients send no updates; use a federated algorithm."
        )
    trained = [task for task in algorithm.tasks.values() if isinstance(task, Task)]
    if one.alters and all(task.sealing.silent for task in trained):
        what = "'geometric_median' by secure sums" if NEAR in algorithm.tasks else f"'{algorithm.name}'"
        raise ConfigError(f"{where}: not with {what}, whose clients send no change of a model; use label_flip.")
    if one.craft is not None and algorithm.groups is not None and one.unit == "client":
        raise ConfigError(
            f"{where}: the clients of a chain work one after another, so they cannot compare their changes; "
            'write unit = "superclient", whose last clients can.'
        )
    if one.against_rule and algorithm.serverless:
        raise ConfigError(
            f"{where}: not optimised with '{algorithm.name}', where every node hears other changes and applies the rule itself; "
            "give a number."
        )
    if one.claim is not None:
        check_claim(algorithm, one.claim, where)
    if one.fakes is not None and algorithm.name not in WITH_FAKE:
        raise ConfigError(f"{where}: not with '{algorithm.name}' in this version; use {' or '.join(WITH_FAKE)}.")


def check_claim(algorithm: Algorithm, claim: Claim, where: str) -> None:
    """Raise ConfigError for a claim that no server asks for."""
    asked = any(isinstance(task, Question) and task.tells_labels for task in algorithm.tasks.values())
    if algorithm.serverless or not (by_rows(algorithm) or asked):
        raise ConfigError(
            f"{where}: '{algorithm.name}' weighs changes without asking for numbers of rows, so a false one changes nothing; "
            'use another attack, or weights = "samples".'
        )
    if claim.labels == "even" and not asked:
        raise ConfigError(
            f"{where}.labels = \"even\": '{algorithm.name}' asks for no counts of labels; remove the key, or use hwfedavg."
        )


def check_clients(poisonings: Sequence[Poisoning], clients: int) -> None:
    """Raise ConfigError for an attacker that is not among the clients."""
    for one in poisonings:
        if odd := [k for k in one.clients if k >= clients]:
            raise ConfigError(
                f"attack.{one.name}.clients = {list(one.clients)}: there is no client {odd[0]}; they are 0 to {clients - 1}."
            )
        if one.copied is not None and (one.copied >= clients or one.copied in one.clients):
            why = "it is an attacker itself" if one.copied in one.clients else f"there is no client {one.copied}"
            raise ConfigError(
                f"attack.{one.name}.client = {one.copied}: {why}; name an honest one of 0 to {clients - 1}."
            )


def has_fake(config: ExperimentConfig) -> bool:
    """Return whether the networks have an output for the class fake."""
    return not isinstance(config.model.loss, str) and bool(config.model.loss.fake)


def check_fake(config: ExperimentConfig, algorithm: Algorithm) -> None:
    """Raise ConfigError for an algorithm or a task on a view that does not know the class fake."""
    known = (*WITH_FAKE, "centralised", "local_only")
    if has_fake(config) and algorithm.name not in known:
        raise ConfigError(
            f"model.loss.fake: not with '{algorithm.name}' in this version; use one of {', '.join(known)}."
        )


def check_targets(poisonings: Sequence[Poisoning], y: Tensor, clients: Sequence[np.ndarray], classes: int) -> None:
    """Raise ConfigError for a class to draw that does not exist, or of which an attacker has rows. ``y``: labels of all rows."""
    for one in poisonings:
        if one.fakes is None:
            continue
        where, target = f"attack.{one.name}.target = {one.fakes.target}", one.fakes.target
        if target >= classes:
            raise ConfigError(f"{where}: the classes are 0 to {classes - 1}.")
        if held := [k for k in one.clients if bool((y[torch.from_numpy(clients[k])] == target).any())]:
            raise ConfigError(f"{where}: client {held[0]} has rows of this class; name a class that only others hold.")


def check_attacked_rows(
    poisonings: Sequence[Poisoning], task: str, name: str, class_names: Sequence[str], sizes: Sequence[int]
) -> None:
    """Raise ConfigError for attacks that do not fit these data and these clients."""
    check_clients(poisonings, len(sizes))
    for one in poisonings:
        where, many = f"attack.{one.name}", len(class_names)
        if odd := [k for k in one.clients if not sizes[k]]:
            raise ConfigError(
                f"{where}.clients = {list(one.clients)}: client {odd[0]} has no rows and takes part in no round."
            )
        if (one.flip is not None or one.backdoor is not None) and task != "classes":
            what = "a number" if task == "numbers" else "a text"
            raise ConfigError(
                f"{where}: the target of '{name}' is {what}, but this attack flips class labels; use sign_flip."
            )
        if one.backdoor is not None and one.backdoor.target >= many:
            raise ConfigError(
                f"{where}.target = {one.backdoor.target}: the {many} classes of '{name}' are 0 to {many - 1}."
            )
        if one.flip is not None and (wrong := [c for c in one.flip.classes if c >= many]):
            raise ConfigError(
                f"{where}.pairs: '{name}' has no class {wrong[0]}; its {many} classes are 0 to {many - 1}."
            )
