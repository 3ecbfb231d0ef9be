"""``[[attack]]``: which clients attack, what they train on and send, and in which round; drawn once, for the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedatlas.algorithm import Algorithm, Groups, Task
from fedatlas.algorithms import ALGORITHMS
from fedatlas.attacks import ATTACKS, LATER, superclasses
from fedatlas.attacks.poisoning import POISONING, Poisoning
from fedatlas.config import ExperimentConfig
from fedatlas.data.batches import Rows
from fedatlas.engine.attackers import Attacker, Order
from fedatlas.engine.job import RowSource
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.registry import arguments, defaults, find
from fedatlas.rng import numpy_stream
from fedatlas.setup.cohort import Drawn


def poisonings_of(config: ExperimentConfig) -> tuple[Poisoning, ...]:
    """The tables of ``[[attack]]`` that change what clients do, in their order; ConfigError for an unknown name or key."""
    made = []
    for table in config.attack:
        if table.name in LATER:
            raise ConfigError(f"attack.name = '{table.name}': not in this version, which has {', '.join(ATTACKS)}.")
        if table.name not in ATTACKS:
            raise unknown_name("attack", table.name, ATTACKS)
        if table.name not in POISONING:
            continue  # it looks at a view after the run: `setup.views`
        where, builder = f"attack.{table.name}", POISONING[table.name]
        if table.role is not None:
            raise ConfigError(
                f"{where}.role: attackers that poison are clients. Remove the key, and name them by share or clients."
            )
        made.append(builder(**arguments(where, builder, table.parameters())))
    return tuple(made)


class FlippedRows:
    """A source of rows in which the labels of attackers are relabelled."""

    def __init__(self, inner: RowSource, one: Poisoning, seed: int, table: int) -> None:
        self.inner, self.one, self.seed, self.table = inner, one, seed, table

    def __call__(self, party: int) -> Rows:
        """A client's rows; the server's and the union's are unchanged."""
        rows, flip = self.inner(party), self.one.flip
        if flip is None or party < 0:
            return rows
        return rows._replace(y=flip.relabelled(rows.y, self.seed, self.table, party))


def with_class_numbers(
    poisonings: Sequence[Poisoning], name: str, class_names: Sequence[str], seed: int
) -> tuple[Poisoning, ...]:
    """The tables with pairs of classes in the place of "extra_SC" and "intra_SC"; ConfigError for other data than CIFAR-100."""
    out = []
    for one in poisonings:
        flip = one.flip
        if flip is not None and isinstance(flip.pairs, str):
            if not superclasses.known(class_names):
                raise ConfigError(
                    f"attack.{one.name}.pairs = \"{flip.pairs}\" is of CIFAR-100's superclasses, which '{name}' has not; "
                    "name classes, as in [[5, 3]]."
                )
            one = one._replace(flip=flip._replace(pairs=superclasses.drawn(flip.pairs, class_names, seed)))
        out.append(one)
    return tuple(out)


def attackers_of(poisonings: Sequence[Poisoning], seed: int) -> dict[str, Attacker]:
    """What attackers do in place of honest work, by the number of their table."""

    def attacker(table: int, one: Poisoning) -> Attacker:
        if one.flip is None:
            return Attacker(upload=one.upload)
        return Attacker(lambda rows: FlippedRows(rows, one, seed, table), one.upload)

    return {str(i): attacker(i, one) for i, one in enumerate(poisonings)}


class AttackerDraw(NamedTuple):
    """The draw of attackers: a function of the seed, of who holds rows and, for superclients, of how they were formed."""

    poisonings: tuple[Poisoning, ...]
    config: ExperimentConfig
    seed: int
    clients: tuple[int, ...]  # those that hold rows, ascending
    neighbours: int = 0  # of a node, where no server takes part

    def attackers(self, groups: Groups | None = None) -> dict[int, int]:
        """client -> the number of its table. ConfigError for a share above 0 that is nobody, and for more attackers than clients."""
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
        """The errors of `attackers`, as far as they do not depend on superclients."""
        clients = tuple(one for one in self.poisonings if one.unit == "client")
        self._replace(poisonings=clients).attackers()

    def _count(self, one: Poisoning, of: int, free: int, what: str) -> int:
        share = one.share or 0.0
        count = math.floor(share * of + 1e-9)
        if share and not count:
            raise ConfigError(
                f"attack.{one.name}.share = {share:g}: of {of} {what} that is nobody; write {math.ceil(1000 / of) / 1000:g} or more, or 0."
            )
        if count > free:
            raise ConfigError(
                f"attack.{one.name}.share = {share:g}: {count} of {of} {what}, but only {free} do not attack already; lower the shares."
            )
        return count

    def orders(self, drawn: Drawn, groups: Groups | None) -> dict[int, Order]:
        """client -> what it does in this round, of those that were drawn and attack."""
        number, cohort = drawn.round.number, drawn.round.cohort
        found = self.attackers(groups).items()
        active = {k: table for k, table in found if k in cohort and self.poisonings[table].active(number)}
        factors = {table: self.factor(table, active, drawn) for table in set(active.values())}
        return {
            k: Order(str(table), factors[table], self.poisonings[table].unit == "superclient")
            for k, table in sorted(active.items())
        }

    def factor(self, table: int, active: Mapping[int, int], drawn: Drawn) -> float:
        """n / (eta_g n_a) of a round: all rows by the server's rate and the rows of all in the units of hostile clients (B18)."""
        one, drawn_round = self.poisonings[table], drawn.round
        if not one.scaled or one.scale is not None:
            return one.scale or 1.0
        if self.neighbours:
            return float(self.neighbours + 1)  # what a neighbour gives an update is one part of so many
        mine = {k for k, each in active.items() if each == table}
        units = [unit.members for unit in drawn_round.units if unit.members] or [(k,) for k in drawn_round.cohort]
        uniform = self.config.algorithm.parameters().get("weights") == "uniform"
        rows = [1.0 if uniform else float(sum(drawn_round.sizes[k] for k in unit)) for unit in units]
        hostile = sum(n for n, unit in zip(rows, units, strict=True) if mine & set(unit))
        return sum(rows) / (server_rate(self.config) * hostile)


def server_rate(config: ExperimentConfig) -> float:
    """eta_g: how much of a mean the server takes; 1 where the algorithm has no such rate, or none above 0."""
    usual = defaults(find("algorithms", ALGORITHMS, config.algorithm.name)).get("server_lr", 1.0)
    return float(config.algorithm.parameters().get("server_lr", usual) or 1.0)


# ---------------------------------------------------------------------- refusals


def check_attacks(config: ExperimentConfig, algorithm: Algorithm, poisonings: Sequence[Poisoning]) -> None:
    """ConfigError for attacks that the configuration by itself forbids."""
    taken: set[int] = set()
    for one in poisonings:
        where = f"attack.{one.name}"
        check_kind(algorithm, one, where)
        if (one.share is None) == (not one.clients):
            raise ConfigError(
                f"{where}: say who attacks: share, as in share = 0.2, or clients, as in clients = [3, 7]."
            )
        if one.unit == "superclient" and (algorithm.groups is None or one.clients):
            why = "it goes with share, since superclients are formed later"
            why = why if algorithm.groups is not None else f"'{algorithm.name}' forms none"
            raise ConfigError(f'{where}.unit = "superclient": {why}; write unit = "client".')
        first, last = one.rounds
        if first > config.rounds or (last and last < first):
            raise ConfigError(
                f"{where}.rounds = {list(one.rounds)}: no round of this run is meant; write [from, to] with from at most {config.rounds}, "
                "and to = 0 for the end."
            )
        if again := sorted(taken & set(one.clients)):
            raise ConfigError(
                f"{where}.clients: client {again[0]} stands in two [[attack]] tables; a client does one attack."
            )
        taken |= set(one.clients)
        if one.flip is not None and (why := one.flip.refusal(where)):
            raise ConfigError(why)
    if config.partition.clients:
        check_clients(poisonings, config.partition.clients)
        AttackerDraw(tuple(poisonings), config, config.seed, tuple(range(config.partition.clients))).known()


def check_kind(algorithm: Algorithm, one: Poisoning, where: str) -> None:
    """ConfigError for an algorithm without clients that could attack so."""
    if algorithm.card.sends != "messages":
        raise ConfigError(
            f"{where}: not with '{algorithm.name}', whose clients send no updates; take a federated algorithm."
        )
    trained = [task for task in algorithm.tasks.values() if isinstance(task, Task)]
    if one.upload is not None and all(task.sealing.silent for task in trained):
        raise ConfigError(
            f"{where}: not with '{algorithm.name}', whose clients send no change of a model; take label_flip."
        )


def check_clients(poisonings: Sequence[Poisoning], clients: int) -> None:
    """ConfigError for an attacker that is no client."""
    for one in poisonings:
        if odd := [k for k in one.clients if k >= clients]:
            raise ConfigError(
                f"attack.{one.name}.clients = {list(one.clients)}: there is no client {odd[0]}; they are 0 to {clients - 1}."
            )


def check_attacked_rows(
    poisonings: Sequence[Poisoning], task: str, name: str, class_names: Sequence[str], sizes: Sequence[int]
) -> None:
    """ConfigError for what these data and these clients cannot give."""
    check_clients(poisonings, len(sizes))
    for one in poisonings:
        where, many = f"attack.{one.name}", len(class_names)
        if odd := [k for k in one.clients if not sizes[k]]:
            raise ConfigError(
                f"{where}.clients = {list(one.clients)}: client {odd[0]} has no rows and takes part in no round."
            )
        if one.flip is not None and task != "classes":
            what = "a number" if task == "numbers" else "a text"
            raise ConfigError(
                f"{where}: the target of '{name}' is {what}, and labels of classes are flipped; take sign_flip."
            )
        if one.flip is not None and (wrong := [c for c in one.flip.classes if c >= many]):
            raise ConfigError(
                f"{where}.pairs: '{name}' has no class {wrong[0]}; its {many} classes are 0 to {many - 1}."
            )
