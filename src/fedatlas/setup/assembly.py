"""Assemble a federation from a configuration; every refusal happens here, before anything trains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm, Round
from fedatlas.config import ExperimentConfig
from fedatlas.data.batches import Rows
from fedatlas.data.constants import with_constants
from fedatlas.data.dataset import Column, Dataset, Partition
from fedatlas.data.holes import schema_of
from fedatlas.data.partition import make_partition
from fedatlas.data.preprocess import Preprocess, preprocess
from fedatlas.data.sources import load_dataset, take_guard, take_public
from fedatlas.engine.device import CPU
from fedatlas.engine.job import Bench, Built, LocalOptions
from fedatlas.engine.optim import Optimizer
from fedatlas.federation.cost import Cost
from fedatlas.federation.defence import Defence
from fedatlas.federation.expected import Rules
from fedatlas.federation.in_process import server_facts
from fedatlas.layers import Layer
from fedatlas.models import Loss
from fedatlas.models.chain import elastic, find_chain
from fedatlas.privacy.mechanism import on_rows
from fedatlas.privacy.own_rows import fresh_root
from fedatlas.privacy.protection import under
from fedatlas.rng import derive
from fedatlas.setup import attackers as hostile
from fedatlas.setup.aggregation_rule import check_hearing, check_rule, defence_of, neighbours_of, rule_notices
from fedatlas.setup.canaries import NONE, Canaries, with_canaries
from fedatlas.setup.checked import Checked
from fedatlas.setup.cohort import learning_rate, local_budget, usual_size
from fedatlas.setup.drifting_rows import DriftingRows, with_drift
from fedatlas.setup.folds import course_seed, with_fold
from fedatlas.setup.mechanism_choice import protection_of
from fedatlas.setup.networks import DTYPES, build, checked_loss, make_networks, reads_units
from fedatlas.setup.notices import data_notices, forgotten_owners, network_notices, profile_notices, unused_notices
from fedatlas.setup.own_rows import with_own_rows
from fedatlas.setup.party_rows import HELD_OUT, VALIDATION, PartyRows, join, raw_bytes, split_clients
from fedatlas.setup.privacy_refusals import check_protected_rows, protection_notices
from fedatlas.setup.refusals import check_asked, check_batch_norm, check_classes, check_network, check_public
from fedatlas.setup.resolution import with_batch_norm
from fedatlas.setup.secure_learning import Hidden, learner_of
from fedatlas.setup.torch_model import Networks
from fedatlas.setup.views import views_of
from fedatlas.summaries import Crossing, Learn, Learner, class_counts, overheard
from fedatlas.tree import Tree


class Holdings(NamedTuple):
    """The data and the rows of each client, before there is a model."""

    checked: Checked  # with the classes of ``[[attack]]`` as numbers
    raw: Dataset  # as loaded
    dataset: Dataset  # as models read it
    preprocess: Preprocess
    partition: Partition
    algorithm_facts: Mapping[str, Any] = {}  # `Card.describe` of K clients and the seed
    class_counts: Tensor | None = None  # training rows of each class; None without classes or under ``[[privacy]]``
    bytes_hiding: int = 0  # bytes that protection added to the messages before round 1
    heard: tuple[Crossing, ...] = ()  # messages about columns and target, if ``[observe]`` asks for them
    told: Mapping[str, Mapping[int, Any]] = {}  # by mechanisms that change rows, for the run's folder
    pairs: Mapping[str, Sequence[Any]] = {}  # of these mechanisms, for their figures
    root: bytes = b""  # the secret that these mechanisms draw from; b"" without any
    columns: tuple[Column, ...] = ()  # of a table as its source gives it, before these mechanisms
    canaries: Canaries = NONE  # of ``[audit]``


class Setup(NamedTuple):
    """A federation of clients that hold rows, ready to run."""

    held: Holdings
    algorithm: Algorithm  # under ``model.bn``
    loss: Loss
    bench: Bench
    notices: tuple[str, ...]

    @property
    def checked(self) -> Checked:
        """The experiment."""
        return self.held.checked

    @property
    def config(self) -> ExperimentConfig:
        """The configuration with every key written out."""
        return self.held.checked.config

    @property
    def seed(self) -> int:
        """The seed of every draw after the rows are dealt."""
        return course_seed(self.config)

    @property
    def dataset(self) -> Dataset:
        """The rows as models read them."""
        return self.held.dataset

    @property
    def partition(self) -> Partition:
        """The partition: which client holds which training rows."""
        return self.held.partition

    @property
    def own_module(self) -> str:
        """Class name of the user's network; "" if the network is that of ``[model]``."""
        return "" if self.checked.module is None else type(self.first.network.module).__name__

    @property
    def defence(self) -> Defence | None:
        """The server's defence against hostile clients."""
        return defence_of(self.config, self.checked.rule, self.checked.poisonings)

    @property
    def cast(self) -> hostile.AttackerDraw:
        """The draw of the clients that attack."""
        held = self.held.canaries.honest(k for k, n in self.sizes.items() if n)
        neighbours = neighbours_of(self.algorithm, self.held.algorithm_facts)
        return hostile.AttackerDraw(
            self.checked.poisonings, self.config, self.seed, held, neighbours, self.held.canaries
        )

    @property
    def sizes(self) -> dict[int, int]:
        """client -> training rows."""
        return dict(enumerate(self.partition.sizes))

    def sizes_in(self, number: int) -> dict[int, int]:
        """Return client -> training rows in a round; other numbers from some round on under ``[drift]``."""
        return self.sizes if self.bench.drift is None else dict(enumerate(self.rows.in_round(number).partition.sizes))

    @property
    def rows(self) -> PartyRows:
        """The rows of every party, as models see them."""
        assert isinstance(self.bench.rows, PartyRows)
        return self.bench.rows

    @property
    def networks(self) -> Mapping[str, Built]:
        """Architecture -> its network, in the order of ``[[models]]``; usually a single one, called ""."""
        return self.bench.networks

    @property
    def first(self) -> Built:
        """The network that all share, or the first of several."""
        return self.bench.built()

    def models(self, threads: int = 1, device: torch.device = CPU) -> Networks:
        """Return the factory that makes models of this run's tensors, evaluated with these threads or on a device."""
        return Networks(self.networks, self.loss, threads, device)

    @property
    def mixed(self) -> bool:
        """Whether the clients' models differ in architecture."""
        return bool(self.bench.owners)

    @property
    def held_out(self) -> Mapping[int, np.ndarray]:
        """client -> its rows kept for per-client figures."""
        return self.partition.kept.get(HELD_OUT, {})

    @property
    def validation(self) -> Mapping[int, np.ndarray]:
        """client -> its rows kept for validation."""
        return self.partition.kept.get(VALIDATION, {})

    @property
    def before(self) -> Cost:
        """Cost of the messages about columns and target, for row 0; zero if all rows are sent to the server anyway."""
        if self.algorithm.card.sends == "rows":
            return Cost()
        spoken = self.held.preprocess
        return Cost(bytes_up=spoken.bytes_up, bytes_down=spoken.bytes_down, bytes_privacy=self.held.bytes_hiding)

    @property
    def personal(self) -> bool:
        """Whether clients use different models."""
        return self.algorithm.personal is not None or self.mixed

    def built(self, architecture: str) -> Built:
        """Return the network of an architecture, with its buffers, masks and cost; "" is the one that all share."""
        return self.bench.built(architecture)

    def owned(self) -> dict[str, list[int]]:
        """Map each architecture to the clients that use it; {} if all clients use the same."""
        owners = self.bench.owners
        return {name: [k for k, own in enumerate(owners) if own == name] for name in self.networks if owners}

    def partition_record(self) -> dict[str, Any]:
        """Return ``partition.json``: who holds which training rows, and which rows were kept out of training."""
        if self.partition.counted:
            held = {"clients": dict(enumerate(self.partition.sizes)), "held_out": {}, "feature_skew": []}
            return {"counted": True, **held, "info": dict(self.partition.info)}
        return {
            "clients": {str(k): rows.tolist() for k, rows in enumerate(self.partition.clients)},
            **{
                name: rows.tolist()
                for name, rows in (("rows", self.dataset.train.row), ("test_rows", self.dataset.test.row))
                if rows is not None
            },
            "left_out": self.partition.left_out,
            "held_out": {str(k): rows.tolist() for k, rows in self.held_out.items()},
            "validation": pooled(self.validation).tolist(),
            "feature_skew": [dict(spec) for spec in self.partition.feature_skew],
            "info": dict(self.partition.info),
            **({"models": dict(enumerate(self.bench.owners))} if self.mixed else {}),
            **({} if self.config.evaluation.fold is None else {"fold_owners": fold_owners(self).tolist()}),
        }


def pooled(held: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the row numbers of all clients, ascending."""
    return np.sort(np.concatenate([np.empty(0, np.int64), *held.values()]))


def fold_owners(setup: Setup) -> np.ndarray:
    """Return (n,) the client of each row that a run with ``evaluation.fold`` is judged on, in the order of `judged_rows`."""
    held = setup.validation
    owners = np.concatenate([np.full(len(rows), k) for k, rows in held.items()])
    if setup.partition.feature_skew:
        return owners
    return np.asarray(owners[np.argsort(np.concatenate([*held.values()]), kind="stable")])


def share_out(whole: Checked, learner: Learner | None = None, root: bytes = b"") -> Holdings:
    """Return everything of `set_up` except the model, which may not suit the data yet.

    Facts about the clients' rows together come from sums that ``learner`` asks for (`summaries`). By default the
    mechanisms choose the learner. The class counts, used in a notice, are only taken without mechanisms. ``root``: the
    secret of a run that began before, for mechanisms that change rows. ConfigError if these rows do not fit the experiment.
    """
    config, algorithm, mechanisms, rule = whole.of_rows().config, whole.algorithm, whole.mechanisms, whole.rule
    seed, part = config.seed, config.partition
    hostile.check_attacks(config, algorithm, whole.poisonings, rule)
    check_rule(config, algorithm, rule, mechanisms, whole.transform)
    facts = described(algorithm, part.clients, seed) if part.clients else {}
    dataset = load(config, algorithm)
    partition = make_partition(part.name, part.parameters(), dataset, part.clients, seed, part.min_size)
    if len(partition.clients) != part.clients:
        facts = described(algorithm, len(partition.clients), seed)
    by_share = config.evaluation.on == "validation" and config.evaluation.fold is None
    validation = config.evaluation.validation if by_share else 0.0
    partition = with_fold(config, dataset, split_clients(partition, seed, validation, config.evaluation.clients))
    partition, canaries = with_canaries(config, mechanisms, dataset, partition)
    check_protected_rows(config, mechanisms, dataset, partition, algorithm)
    root = root or (fresh_root() if on_rows(mechanisms) else b"")
    columns = schema_of(dataset)
    learner = learner or learner_of(mechanisms)
    dataset, partition, told, pairs, before = with_own_rows(mechanisms, dataset, partition, root, seed, learner=learner)
    poisonings = hostile.with_class_numbers(whole.poisonings, dataset.name, dataset.class_names, seed)
    hostile.check_attacked_rows(poisonings, dataset.task, dataset.name, dataset.class_names, partition.sizes)
    hostile.check_targets(poisonings, dataset.train.y, partition.clients, dataset.classes)
    check_hearing(rule, algorithm, facts, sum(n > 0 for n in partition.sizes), config)
    learn = learner(partition.parties(dataset.train))
    ready, how = prepare(config, dataset, partition, learn)
    how = replace(how, bytes_up=how.bytes_up + before.sent.up, bytes_down=how.bytes_down + before.sent.down)
    counts = class_counts(learn, dataset.classes) if dataset.task == "classes" and not mechanisms else None
    hiding = before.hiding + (learn.more if isinstance(learn, Hidden) else 0)
    whole = whole._replace(poisonings=hostile.with_rows(poisonings, how, dataset.name))
    return Holdings(
        whole, dataset, ready, how, partition, facts, counts, hiding, (), told, pairs, root, columns, canaries
    )


def described(algorithm: Algorithm, clients: int, seed: int) -> Mapping[str, Any]:
    """Return the algorithm's facts for this number of clients. ConfigError if it cannot work with that number."""
    describe = algorithm.card.describe
    return describe(clients, seed) if describe else {}


def set_up(whole: Checked, learner: Learner | None = None, root: bytes = b"") -> Setup:
    """Return a federation ready to run: the data, their holders and the networks.

    ``root``: as `share_out` takes it. ConfigError if that is not possible.
    """
    with overheard() as heard:
        shared = share_out(whole, learner, root)
    return assemble(shared._replace(heard=tuple(heard) if views_of(whole.config) is not None else ()))


def assemble(shared: Holdings, *, alone: bool = False) -> Setup:
    """Add the model, its training and its judging: the second half of `set_up`.

    ``alone``: these are the rows of only one client among several, so checks of the whole federation are skipped.
    """
    whole, dtype = shared.checked, DTYPES[shared.checked.config.engine.precision]
    config, algorithm, seed, module = whole.config, whole.algorithm, course_seed(whole.config), whole.module
    rows = PartyRows(shared.dataset, shared.partition, config.seed, dtype, shared.canaries.marked)
    rows = with_drift(rows, config)
    dataset, partition, notices = rows.dataset, rows.partition, [*whole.notices, *shared.canaries.notices]
    if not alone:
        check_asked(config, algorithm, dataset, partition)
    networks, owners = make_networks(config, dataset, seed, len(partition.clients), module)
    chain = chain_of(algorithm, networks, dataset.inputs(dataset.train.x[:2], dtype))
    if chain:  # `chain_of` has replaced its tensors
        networks = {name: Built.of(one.network, one.masks, one.flops) for name, one in networks.items()}
    for each in networks.values():
        check_network(each.network.module, algorithm, whole.mechanisms)
        notices += network_notices(config, algorithm, each.network)
        for dealt in (partition, rows.in_round(config.rounds).partition):
            check_batch_norm(each.network.module, dealt, config.local)
    algorithm = with_batch_norm(algorithm, config.model.bn, bool(owners))
    notices += [
        *data_notices(config, algorithm, dataset, shared.class_counts),
        *forgotten_owners(config, shared.preprocess.schema),
    ]
    notices += [*profile_notices(config, algorithm), *unused_notices(config, algorithm)]
    said = protection_notices(config, whole.mechanisms, algorithm, () if alone else partition.sizes)
    notices += [*said, *rule_notices(whole, shared.algorithm_facts, partition.sizes)]
    first, *_ = networks.values()
    protection = protection_of(config, whole.mechanisms, partition.sizes, first.network, algorithm)
    roles, cast = hostile.roles_of(whole.poisonings, seed)
    bench = Bench(
        roles=roles,
        cast=cast,
        algorithm=algorithm if protection is None else under(algorithm, protection),
        networks=networks,
        rows=rows,
        local=local_options(config),
        classes=dataset.classes,
        fill=dataset.shift,
        raw_bytes=raw_bytes(shared.raw, partition.sizes) if algorithm.card.sends == "rows" else 0,
        transform=whole.transform,
        protection=protection,
        chain=chain,
        owners=owners,
        public=0 if rows.public is None else rows.public.n,
        drift=rows.in_round if isinstance(rows, DriftingRows) else None,
        attackers=hostile.attackers_of(whole.poisonings, seed, whole.rule, dataset.classes)
        | shared.canaries.attackers(),
        spares=bool(protection and protection.masks) or defence_of(config, whole.rule, whole.poisonings) is not None,
    )
    held = shared._replace(dataset=dataset, partition=partition)  # those before a drift
    return Setup(held, algorithm, checked_loss(config, dataset), bench, tuple(dict.fromkeys(notices)))


def load(config: ExperimentConfig, algorithm: Algorithm) -> Dataset:
    """Return the data set, with the public rows and the guard's that the experiment asks for."""
    dataset = load_dataset(config.data, config.seed)
    if config.public is not None:
        dataset = take_public(dataset, config.public, config.seed)
        check_public(algorithm, config.public, dataset)
    if config.guard is not None:
        dataset = take_guard(dataset, config.guard.source, config.guard.rows, config.seed)
    check_classes(algorithm, dataset)
    return dataset


def prepare(
    config: ExperimentConfig, dataset: Dataset, partition: Partition, learn: Learn
) -> tuple[Dataset, Preprocess]:
    """Return the data set as models read it, and the preprocessing that was applied."""
    scale, missing, own_unit = config.data.scale, config.data.missing, reads_units(config, dataset)
    if config.data.constants is not None:
        return with_constants(dataset, config.data.constants, missing, scale_target=not own_unit)
    return preprocess(dataset, partition, scale, missing, scale_target=not own_unit, learn=learn)


def chain_of(algorithm: Algorithm, networks: Mapping[str, Built], sample: Tensor) -> tuple[Layer, ...]:
    """Return the network's layers of units if the algorithm works on units, else ().

    The network's module is then made elastic: it accepts tensors of other widths.
    """
    if not algorithm.demands.layered:
        return ()
    network = next(iter(networks.values())).network
    network.module = elastic(network.module)
    return find_chain(network.module, sample)


def local_options(config: ExperimentConfig) -> LocalOptions:
    """Return the ``[local]`` table as the engine needs it."""
    local = config.local
    optimizer = Optimizer(local.optimizer, local.momentum, local.nesterov, local.betas, local.eps)
    budget = local_budget(config)
    return LocalOptions(
        optimizer, local.batch_size, budget, local.weight_decay, local.clip, config.data.augment, local.merges
    )


def rules_of(setup: Setup) -> Rules:
    """Return the experiment's rules for rounds, with which a party compares each request."""
    config, algorithm = setup.config, setup.algorithm
    local, failures = config.local, config.failures

    def rate(number: int) -> float:
        if number:
            return learning_rate(local.schedule, local.lr, number, config.rounds)
        return local.lr if algorithm.prepare is not None else 0.0

    fewer = failures.stragglers > 0 and failures.straggler_policy == "keep"
    drawn = config.cohort.sampling != "poisson" and algorithm.groups is None
    most = math.floor(usual_size(config, len(setup.sizes))) if drawn else None
    begin = partial(first_server, setup) if algorithm.prepare is None and not setup.mixed else None
    return Rules(config.rounds, rate, local_budget(config), local.epochs or 0 if fewer else 0, most, begin)


def judged_rows(setup: Setup) -> Rows:
    """Return the evaluation rows as the model sees them: the test set, or the clients' pooled validation rows."""
    if setup.config.evaluation.on == "test":
        return setup.rows.common("test")
    if setup.partition.feature_skew:  # each client's rows are skewed in its own way
        return join(setup.rows.kept(k, VALIDATION) for k in setup.validation)
    return setup.rows.rows(pooled(setup.validation))


def first_server(setup: Setup) -> dict[str, Any]:
    """Return the server's state before round 1, with the model's buffers if it has any."""
    facts = told_to_server(setup)
    if setup.mixed:
        models = {name: one.params for name, one in setup.networks.items()}
        return dict(setup.algorithm.server_init(models, facts))
    first = setup.first
    models = {
        "global": first.params,
        **{str(i): another_model(setup, i) for i in range(1, setup.algorithm.demands.inits)},
    }
    server = dict(setup.algorithm.server_init(models, facts))
    return {**server, "buffers": first.buffers} if first.buffers else server


def told_to_server(setup: Setup) -> dict[str, Any]:
    """Return the facts about the federation that `Algorithm.server_init` gets with the initial models."""
    return {**server_facts(setup.bench, setup.sizes), "rounds": setup.config.rounds}


def state_notices(setup: Setup, server: Mapping[str, Any]) -> Sequence[str]:
    """Return the algorithm's notices about the server's state before round 1 (`Card.notices`)."""
    notices = setup.algorithm.card.notices
    return notices(server, {**told_to_server(setup), "sizes": setup.sizes}) if notices else ()


def another_model(setup: Setup, number: int) -> Tree:
    """Return a further initial model, drawn from the stream (seed, ``init``, number)."""
    return build(setup.config, setup.dataset, derive(setup.seed, "init", number), None).params


def all_clients(setup: Setup) -> Round:
    """Return round 0, in which every client that holds rows takes part and none fails."""
    sizes = {k: n for k, n in setup.sizes.items() if n}
    return Round(0, tuple(sizes), len(setup.sizes), sum(setup.sizes.values()), sizes, seed=setup.seed)
