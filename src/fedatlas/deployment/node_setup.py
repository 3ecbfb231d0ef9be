"""The set-up of a run as the server has it, without rows, and as a node has it, with its own: one federation seen from two ends.

Both run the functions that a simulation runs. What those learn of all rows together they ask a `Learner` for: the server's asks
the nodes and writes down the sums; a node's reads them off, so that it comes to the same constants by the same operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas import summaries
from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Dataset, Held, Partition, Split
from fedatlas.deployment.node_rows import blank, dataset_of
from fedatlas.errors import ProtocolError
from fedatlas.setup.assembly import Holdings, Setup, assemble, described, prepare
from fedatlas.setup.refusals import check, check_classes
from fedatlas.setup.resolution import resolve
from fedatlas.summaries import Learn, Learnt, Message, Numbers, Summary, Traffic
from fedatlas.wire import codec

SUMMARIES = {
    one.name: one
    for one in (
        summaries.COLUMN_MOMENTS,
        summaries.PICTURE_MOMENTS,
        summaries.TARGET_MOMENTS,
        summaries.constants_of(summaries.COLUMN_MOMENTS),
        summaries.constants_of(summaries.PICTURE_MOMENTS),
        summaries.CATEGORIES,
        summaries.MISSING,
        summaries.AT_MOST,
    )
}
"""What a node can be asked about its rows, by name. Rows of each class are not among them."""

AskAll = Callable[[str, Message], Sequence[Numbers]]
"""(name of a summary, message) -> the answers of all nodes that hold rows, in their order."""


class FederationFacts(NamedTuple):
    """What all parties of a run know of it."""

    names: tuple[str, ...]  # of the nodes; a node's number is its place here
    about: Mapping[str, Any]  # what the rows are
    sizes: tuple[int, ...]  # training rows of each
    weighted: bool


def learning(ask_all: AskAll, totals: list[dict[str, Any]]) -> Learn:
    """The server's: asks the nodes for what ``totals`` do not hold yet, and writes it down there."""
    known = iter(list(totals))

    def learn(summary: Summary, message: Message) -> Learnt:
        if (told := next(known, None)) is None:
            answers = ask_all(summary.name, message)
            total = summary.add(answers)
            word = summary.told(message, total)
            up = sum(codec.size(summary.plain(message, answer)) for answer in answers)
            down = 0 if word is None else codec.size(word) * len(answers)
            told = {"name": summary.name, "sum": dict(total), "up": up, "down": down}
            totals.append(told)
        return learnt(summary, told)

    return learn


def replayed(totals: Sequence[Mapping[str, Any]]) -> Learn:
    """A node's: what the server learnt, in the order in which it was asked."""
    told: Iterator[Mapping[str, Any]] = iter(totals)

    def learn(summary: Summary, message: Message) -> Learnt:
        return learnt(summary, next(told, {"name": "nothing"}))

    return learn


def learnt(summary: Summary, told: Mapping[str, Any]) -> Learnt:
    """A sum that was written down; ProtocolError where it is of another question."""
    if told["name"] != summary.name:
        raise ProtocolError(f"the sums of '{told['name']}' came where those of '{summary.name}' were due.")
    return Learnt(told["sum"], Traffic(told["up"], told["down"]))


def answered(name: str, message: Message, split: Split) -> Numbers:
    """What a node says to a question of round 0."""
    if name not in SUMMARIES:
        raise ProtocolError(f"the question '{name}' is none that a node answers.")
    return SUMMARIES[name].of(Held(split, np.arange(len(split.y))), message)


def server_setup(config: ExperimentConfig, told: FederationFacts, learn: Learn, test: Split | None) -> Setup:
    """The server's: of training rows it knows how many each node has. ``test``: its own rows to judge by."""
    empty = blank(told.about, told.weighted)
    dataset = dataset_of(told.about, {"train": empty, "test": empty if test is None else test})
    ends = np.cumsum([0, *told.sizes])
    counts = tuple(np.arange(a, b) for a, b in itertools.pairwise(ends))
    partition = Partition(counts, info={"names": list(told.names)}, counted=True)
    nobody = Partition(tuple(np.empty(0, np.int64) for _ in told.names))
    return assemble(holdings(config, dataset, partition, nobody, learn), config.seed)


def node_setup(
    config: ExperimentConfig,
    about: Mapping[str, Any],
    splits: Mapping[str, Split],
    number: int,
    clients: int,
    learn: Learn,
) -> Setup:
    """A node's: its own rows under its number, nobody else's."""
    held = {"test": splits["train"].take(np.arange(min(1, len(splits["train"].y)))), **splits}  # what a row looks like
    dataset = dataset_of(about, held)
    own = np.arange(len(splits["train"].y))
    partition = Partition(tuple(own if k == number else np.empty(0, np.int64) for k in range(clients)))
    return assemble(holdings(config, dataset, partition, partition, learn), config.seed, alone=True)


def holdings(
    config: ExperimentConfig, dataset: Dataset, partition: Partition, rows: Partition, learn: Learn
) -> Holdings:
    """What `setup.assembly.share_out` makes of a whole data set. ``rows``: those that are here."""
    config, algorithm, transform, notices, mechanisms, *_ = resolve(config)
    check(config, algorithm, None, transform, mechanisms)
    check_classes(algorithm, dataset)
    prepared, how = prepare(config, dataset, rows, learn)
    return Holdings(
        config=config,
        algorithm=algorithm,
        transform=transform,
        raw=dataset,
        dataset=prepared,
        preprocess=how,
        partition=partition,
        algorithm_facts=described(algorithm, len(partition.clients), config.seed),
        notices=notices,
        class_counts=None,
        mechanisms=mechanisms,
    )
