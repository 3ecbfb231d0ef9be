"""From a configuration to a federation that is ready to run: every refusal happens here, before anything trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.algorithm import Algorithm, Round, Transform
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.batch_norm import has_own_norms, local_norms, recalibrated
from fedatlas.data.batches import Rows
from fedatlas.data.config import PublicConfig
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.partition import make_partition
from fedatlas.data.preprocess import Preprocess, preprocess
from fedatlas.data.sources import load_dataset, take_public
from fedatlas.deploy import codec
from fedatlas.engine.host import Cost, Host
from fedatlas.engine.job import Architecture, Bench, LocalOptions
from fedatlas.engine.model import Network
from fedatlas.engine.optim import Optimizer
from fedatlas.errors import ConfigError
from fedatlas.experiment.advice import (
    data_notices,
    network_notices,
    profile_notices,
    unused_notices,
)
from fedatlas.experiment.cohort import local_budget
from fedatlas.experiment.compression import make_transform, transform_notices
from fedatlas.experiment.config import ExperimentConfig
from fedatlas.experiment.defaults import completed
from fedatlas.experiment.networks import DTYPES, Built, build, checked_loss, make_networks, reads_units
from fedatlas.experiment.refusals import (
    check_asked,
    check_augment,
    check_batch_norm,
    check_classes,
    check_engine,
    check_keys,
    check_model,
    check_public,
)
from fedatlas.experiment.rows import PartyRows, join, split_clients, with_public, without_public
from fedatlas.layers import Layer
from fedatlas.models import Loss
from fedatlas.models.chain import elastic, find_chain
from fedatlas.registry import arguments, find, keywords, shown
from fedatlas.rng import derive
from fedatlas.tree import Tree


class Setup(NamedTuple):
    """Everything a run needs, resolved."""

    config: ExperimentConfig
    seed: int
    dataset: Dataset
    partition: Partition  # rows that train
    held_out: Mapping[int, np.ndarray]  # client -> its rows kept for per-client figures
    validation: Mapping[int, np.ndarray]  # client -> its rows kept for validation
    preprocess: Preprocess
    algorithm: Algorithm
    network: Network
    params: Tree
    buffers: Tree
    loss: Loss
    bench: Bench
    flops: int  # of a forward pass of one row
    notices: tuple[str, ...]
    own_module: bool = False  # the network is the user's own, not that of ``[model]``
    several: Mapping[
        str, Built
    ] = {}  # by architecture, in the order of ``[[models]]``; the fields above are the first's
    algorithm_facts: Mapping[str, Any] = {}  # `Card.describe` of K clients and the seed

    @property
    def sizes(self) -> dict[int, int]:
        """client -> training rows."""
        return dict(enumerate(self.partition.sizes))

    @property
    def before(self) -> Cost:
        """What clients and server said of columns and target, for row 0; nothing where all rows go up anyway."""
        if self.algorithm.card.sends == "rows":
            return Cost()
        return Cost(bytes_up=self.preprocess.bytes_up, bytes_down=self.preprocess.bytes_down)

    @property
    def personal(self) -> bool:
        """Whether clients use models of their own."""
        return self.algorithm.personal is not None or bool(self.several)

    def built(self, architecture: str) -> Built:
        """The network of an architecture, with what belongs to it; "" is the one that all share."""
        if architecture:
            return self.several[architecture]
        return Built(self.network, self.params, self.buffers, self.bench.masks, self.flops)

    def owned(self) -> dict[str, list[int]]:
        """architecture -> the clients whose models have it; {} where all have the same."""
        return {name: [k for k, own in enumerate(self.bench.owners) if own == name] for name in self.several}

    def partition_record(self) -> dict[str, Any]:
        """``partition.json``: who holds which training rows, and what was kept out of training."""
        return {
            "clients": {str(k): rows.tolist() for k, rows in enumerate(self.partition.clients)},
            **{
                name: rows.tolist()
                for name, rows in (("rows", self.dataset.rows_train), ("test_rows", self.dataset.rows_test))
                if rows is not None
            },
            "left_out": self.partition.left_out,
            "held_out": {str(k): rows.tolist() for k, rows in self.held_out.items()},
            "validation": pooled(self.validation).tolist(),
            "feature_skew": [dict(spec) for spec in self.partition.feature_skew],
            "info": dict(self.partition.info),
            **({"models": dict(enumerate(self.bench.owners))} if self.several else {}),
        }


def pooled(held: Mapping[int, np.ndarray]) -> np.ndarray:
    """The rows of all clients, ascending."""
    return np.sort(np.concatenate([np.empty(0, np.int64), *held.values()]))


def make_algorithm(config: ExperimentConfig) -> Algorithm:
    """The algorithm named by ``[algorithm]``, its parameters checked against the builder's signature."""
    builder = find("algorithms", ALGORITHMS, config.algorithm.name)
    given = config.algorithm.parameters()
    if "weights" in given and "weights" not in arguments("algorithm", builder, {}):
        name = config.algorithm.name
        raise ConfigError(f"algorithm.weights: '{name}' sets its own weights; remove the key.")
    for key in [key for key in given if key not in keywords(builder)]:
        if able := [name for name, each in ALGORITHMS.items() if key in keywords(each)]:
            raise ConfigError(
                f"algorithm.{key}: '{config.algorithm.name}' has no such key; those that have: {', '.join(able)}."
            )
    made = builder(**arguments("algorithm", builder, given))
    if not isinstance(made, Algorithm):
        raise ConfigError(
            f"algorithm '{config.algorithm.name}': its builder returned {type(made).__name__}, not an Algorithm."
        )
    return made


def apply_fixes(config: ExperimentConfig, algorithm: Algorithm) -> tuple[ExperimentConfig, list[str]]:
    """Keys that the algorithm dictates: replaced over a default (with a notice), refused over what the user wrote."""
    notices = []
    for key, value in algorithm.fixes.items():
        table_name, _, field = key.partition(".")
        table = getattr(config, table_name)
        now = getattr(table, field)
        if now == value:
            continue
        if field == "epochs" and config.local.steps is not None:
            raise ConfigError(
                f"local.steps = {config.local.steps}: '{algorithm.name}' works with {value} epoch only; remove the key."
            )
        if field in table.model_fields_set:
            only = "without it" if value is None else f"with {shown(value)} only"
            raise ConfigError(f"{key} = {shown(now)}: '{algorithm.name}' works {only}; remove the key.")
        changed = table.model_copy(update={field: value})
        config = config.model_copy(update={table_name: changed})
        notices.append(f"'{algorithm.name}' sets {key} = {value!r} (the default is {now!r}).")
    return config, notices


def raw_bytes(dataset: Dataset, sizes: Iterable[int]) -> int:
    """Bytes of all clients' rows in stored form (x, y, weights), a message each, as the codec would write them."""
    parts = {"x": dataset.x_train, "y": dataset.y_train, "weight": dataset.weight_train}

    def message(n: int) -> dict[str, Any]:
        shaped = {name: (n, *x.shape[1:]) for name, x in parts.items() if x is not None}
        return {name: torch.empty(s, dtype=parts[name].dtype, device="meta") for name, s in shaped.items()}  # type: ignore[union-attr]

    return sum(codec.size(message(n)) for n in sizes)


class Holdings(NamedTuple):
    """Who holds which rows, before there is a model."""

    config: ExperimentConfig
    algorithm: Algorithm
    transform: Transform | None
    raw: Dataset  # as it was loaded, public rows behind its test rows
    dataset: Dataset  # as models read it
    preprocess: Preprocess
    public: int
    partition: Partition  # rows that train
    held_out: Mapping[int, np.ndarray]
    validation: Mapping[int, np.ndarray]
    algorithm_facts: Mapping[str, Any]
    notices: tuple[str, ...]


def share_out(config: ExperimentConfig, seed: int, module: nn.Module | None = None) -> Holdings:
    """The first half of `set_up`: all but the model, which need not suit the data yet."""
    check_engine(config)
    algorithm = make_algorithm(config)
    check_model(config, algorithm, module)
    config, notices = apply_fixes(config, algorithm)
    check_keys(config, algorithm)
    transform = make_transform(config, algorithm)
    notices += transform_notices(config, transform)
    config, told = public_default(config, algorithm)
    config, notices = completed(config, module is not None), notices + told
    dataset, count = load(config, algorithm, seed)
    part = config.partition
    partition = make_partition(part.name, part.parameters(), dataset, part.clients, seed, part.min_size)
    facts = algorithm.card.describe(len(partition.clients), seed) if algorithm.card.describe else {}
    validation = config.evaluation.validation if config.evaluation.on == "validation" else 0.0
    partition, judged, held_out = split_clients(partition, seed, validation, config.evaluation.clients)
    prepared, how = prepare(config, dataset, partition, kept_out(judged, held_out))
    return Holdings(
        config=config,
        algorithm=algorithm,
        transform=transform,
        raw=dataset,
        dataset=prepared,
        preprocess=how,
        public=count,
        partition=partition,
        held_out=held_out,
        validation=judged,
        algorithm_facts=facts,
        notices=tuple(notices),
    )


def set_up(config: ExperimentConfig, seed: int, module: nn.Module | None = None) -> Setup:
    """Resolves every table of the configuration, or raises the one sentence that says what is wrong."""
    shared = share_out(config, seed, module)
    config, algorithm, partition = shared.config, shared.algorithm, shared.partition
    notices, dtype = list(shared.notices), DTYPES[config.engine.precision]
    dataset, public = without_public(shared.dataset, shared.public, dtype)
    check_asked(config, algorithm, dataset, partition)
    several, owners = make_networks(config, dataset, seed, len(partition.clients))
    network, params, buffers, masks, cost = first = (
        next(iter(several.values())) if several else build(config, dataset, seed, module)
    )
    chain = chain_of(algorithm, network, dataset.inputs(dataset.x_train[:2], dtype))
    params, buffers = network.initial() if chain else (params, buffers)
    for each in several.values() or (first,):
        notices += network_notices(config, algorithm, each.network)
        check_batch_norm(each.network.module, partition, config.local.batch_size)
    algorithm = with_batch_norm(algorithm, config.model.bn, len(several))
    notices += [*data_notices(config, dataset), *profile_notices(config, algorithm), *unused_notices(config, algorithm)]
    rows = PartyRows(dataset, partition, seed, dtype, public)
    sent = raw_bytes(shared.raw, partition.sizes) if algorithm.card.sends == "rows" else 0
    bench = Bench(algorithm, network, rows, local_options(config), dataset.classes, masks, dataset.shift)
    kinds = {name: Architecture(one.network, one.masks, one.flops) for name, one in several.items()}
    bench = bench._replace(raw_bytes=sent, transform=shared.transform, architectures=kinds, owners=owners)
    bench = bench._replace(public=0 if public is None else public.n, chain=chain)
    return Setup(
        config=config,
        seed=seed,
        dataset=dataset,
        partition=partition,
        held_out=shared.held_out,
        validation=shared.validation,
        preprocess=shared.preprocess,
        algorithm=algorithm,
        network=network,
        params=params,
        buffers=buffers,
        loss=checked_loss(config, dataset),
        bench=bench,
        flops=cost,
        several=several,
        notices=tuple(dict.fromkeys(notices)),
        own_module=module is not None,
        algorithm_facts=shared.algorithm_facts,
    )


def load(config: ExperimentConfig, algorithm: Algorithm, seed: int) -> tuple[Dataset, int]:
    """The data set, with so many public rows behind its test rows."""
    check_augment(config)
    dataset, count = load_dataset(config.data, seed), 0
    if config.public is not None:
        dataset, x, y = take_public(dataset, config.public, seed)
        dataset, count = with_public(dataset, x, y), len(y)
        check_public(algorithm, config.public, y, dataset)
    check_classes(algorithm, dataset)
    return dataset, count


def kept_out(*parts: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """client -> its rows that no training sees."""
    return {k: np.concatenate([part[k] for part in parts if k in part]) for k in {k for part in parts for k in part}}


def prepare(
    config: ExperimentConfig, dataset: Dataset, partition: Partition, kept: Mapping[int, np.ndarray]
) -> tuple[Dataset, Preprocess]:
    """The data set as models read it, and what was done to it."""
    scale, missing = config.data.scale, config.data.missing
    return preprocess(dataset, partition, scale, missing, scale_target=not reads_units(config, dataset), also=kept)


def public_default(config: ExperimentConfig, algorithm: Algorithm) -> tuple[ExperimentConfig, list[str]]:
    """The ``[public]`` table an algorithm works with, where the experiment has none: with a notice."""
    if config.public is not None or algorithm.demands.public is None:
        return config, []
    public = PublicConfig.model_validate(dict(algorithm.demands.public))
    words = ", ".join(f"{key} = {value!r}" for key, value in algorithm.demands.public.items())
    return config.model_copy(update={"public": public}), [
        f"'{algorithm.name}' works with public rows: [public] {words}."
    ]


def chain_of(algorithm: Algorithm, network: Network, sample: Tensor) -> tuple[Layer, ...]:
    """The network's layers of units where the algorithm works on them; its module then follows whatever widths it is given."""
    if not algorithm.demands.layered:
        return ()
    network.module = elastic(network.module)
    return find_chain(network.module, sample)


def with_batch_norm(algorithm: Algorithm, bn: str, architectures: int = 0) -> Algorithm:
    """The algorithm under ``model.bn``: running statistics averaged, kept by the clients, or taken anew after each round."""
    if bn == "average" or (bn == "local" and has_own_norms(algorithm)):
        return algorithm
    if why := algorithm.refuses.get(f"model.bn.{bn}"):
        raise ConfigError(f"model.bn = '{bn}': not with '{algorithm.name}': {why}; use 'average'.")
    several = algorithm.clusters is not None or algorithm.needs == "neighbours" or architectures
    if several:
        raise ConfigError(
            f"model.bn = '{bn}' works with one global model, '{algorithm.name}' has several; use 'average'."
        )
    if bn == "recalibrate" and algorithm.personal is not None:
        raise ConfigError(
            f"model.bn = '{bn}' renews the global model's statistics, but the clients of '{algorithm.name}' use models of their own; "
            "use 'average'."
        )
    return local_norms(algorithm) if bn == "local" else recalibrated(algorithm)


def local_options(config: ExperimentConfig) -> LocalOptions:
    """The ``[local]`` table as the engine needs it."""
    local = config.local
    optimizer = Optimizer(local.optimizer, local.momentum, local.nesterov, local.betas, local.eps)
    budget = local_budget(config)
    return LocalOptions(optimizer, local.batch_size, budget, local.weight_decay, local.clip, config.data.augment)


def judged_rows(setup: Setup) -> Rows:
    """The rows that the curves are drawn on, as the model sees them: the test set, or the clients' pooled validation rows."""
    source = setup.bench.rows
    assert isinstance(source, PartyRows)
    if setup.config.evaluation.on == "test":
        return test_rows(setup)
    if setup.partition.feature_skew:  # each client sees its rows through its own instrument
        return join(source.of(k, rows, "validation") for k, rows in setup.validation.items())
    return source.rows(pooled(setup.validation))


def test_rows(setup: Setup) -> Rows:
    """The test set, as the model sees it."""
    d, source = setup.dataset, setup.bench.rows
    assert isinstance(source, PartyRows)
    y = d.targets(d.y_test)
    y = y.to(source.dtype) if y.is_floating_point() else y
    weight = None if d.weight_test is None else d.weight_test.to(source.dtype)
    return Rows(d.inputs(d.x_test, source.dtype), y, weight)


def own_rows(setup: Setup, client: int) -> Rows:
    """A client's held-out rows."""
    source = setup.bench.rows
    assert isinstance(source, PartyRows)
    return source.of(client, setup.held_out[client], "held out")


def first_server(setup: Setup, host: Host) -> dict[str, Any]:
    """The server's state before round 1, with the model's buffers where it has any."""
    facts = {**host.server_facts(), "rounds": setup.config.rounds}
    if setup.several:
        models = {name: one.params for name, one in setup.several.items()}
        return dict(setup.algorithm.server_init(models, facts))
    models = {
        "global": setup.params,
        **{str(i): another_model(setup, i) for i in range(1, setup.algorithm.demands.inits)},
    }
    server = dict(setup.algorithm.server_init(models, facts))
    return {**server, "buffers": setup.buffers} if setup.buffers else server


def another_model(setup: Setup, number: int) -> Tree:
    """A further initial model, drawn from the stream (seed, ``init``, number)."""
    return build(setup.config, setup.dataset, derive(setup.seed, "init", number), None).params


def all_clients(setup: Setup) -> Round:
    """The round before the first: every client that holds rows takes part, none fails."""
    sizes = {k: n for k, n in setup.sizes.items() if n}
    return Round(0, tuple(sizes), len(setup.sizes), sum(setup.sizes.values()), sizes, seed=setup.seed)
