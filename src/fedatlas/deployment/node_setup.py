"""The set-up of a run at both ends: the server's has no rows, a node's has its own rows.

Both call the functions that a simulation calls. Sums over all rows come from a `Learner`. The server's asks the nodes
and writes down the sums. A node's reads them there, so it gets the same constants by the same operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedatlas import machine, summaries
from fedatlas.data.dataset import Dataset, HeldRows, Partition, Split
from fedatlas.data.sources import take_guard
from fedatlas.deployment.node_rows import RowsFacts, dataset_of, two_rows
from fedatlas.engine.executors import Plan
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.privacy.mechanism import on_updates
from fedatlas.setup.assembly import Holdings, Setup, assemble, described, prepare
from fedatlas.setup.checked import Checked
from fedatlas.setup.privacy_refusals import check_unnoised
from fedatlas.setup.refusals import check_classes
from fedatlas.summaries import Learn, Learnt, Message, Numbers, Summary, Traffic, in_the_clear
from fedatlas.wire.messages import Count

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
"""Questions about a node's rows, by name. Rows of each class are not among them."""

AskAll = Callable[[Summary, Message], Sequence[Numbers]]
"""Return the answers of the nodes to the question that is due, in their order."""


class LearntSum(NamedTuple):
    """The sum of all nodes' answers to a question, and its size in bytes."""

    name: str
    sum: Mapping[str, Any]
    up: Count
    down: Count


def asking(ask_all: AskAll, totals: list[LearntSum]) -> Learn:
    """Return the server's `Learn`.

    It asks the nodes for sums that ``totals`` does not hold yet, and adds them to it.
    """
    known = iter(list(totals))

    def learn(summary: Summary, message: Message) -> Learnt:
        if (total := next(known, None)) is None:
            answers = ask_all(summary, message)
            found = summary.add(answers)
            total = LearntSum(summary.name, dict(found), *in_the_clear(summary, message, answers, found))
            totals.append(total)
        return learnt(summary, total)

    return learn


def replayed(
    about: RowsFacts, totals: Iterable[LearntSum], end: Callable[[Summary, Message], Any] | None = None
) -> Learn:
    """Return a node's `Learn`: the server's sums in the order of their questions.

    ``end`` is called with the question that follows the last one.
    """
    told, none = iter(totals), HeldRows(two_rows(about), np.arange(0))

    def learn(summary: Summary, message: Message) -> Learnt:
        total = next(told, None)
        if total is None and end is not None:
            end(summary, message)
        found = learnt(summary, total)
        if not formed(found.sum, summary.of(none, message)):
            raise ProtocolError(f"the sums of '{summary.name}' are not of the form of its answers.")
        return found

    return learn


def formed(total: Numbers, like: Numbers) -> bool:
    """Return whether a sum has the names, types and shapes of an answer.

    A count is at least 0 and fits into 63 bits.
    """
    return total.keys() == like.keys() and all(_formed(total[name], one) for name, one in like.items())


def _formed(x: Any, like: Any) -> bool:
    if isinstance(like, Tensor):
        return isinstance(x, Tensor) and (x.dtype, x.shape) == (like.dtype, like.shape)
    return type(x) is int and 0 <= x < 1 << 63


def learnt(summary: Summary, total: LearntSum | None) -> Learnt:
    """Return a recorded sum. ProtocolError if it belongs to another question."""
    if total is None or total.name != summary.name:
        name = total.name if total else "nothing"
        raise ProtocolError(f"the sums of '{name}' came where those of '{summary.name}' were due.")
    return Learnt(total.sum, Traffic(total.up, total.down))


class _Due(Exception):
    """Carrier of the question that comes next."""

    def __init__(self, summary: Summary, message: Message) -> None:
        self.question = summary, message


def due(summary: Summary, message: Message) -> None:
    """Stop a set-up at the question that comes next."""
    raise _Due(summary, message)


def question_due(
    whole: Checked,
    about: RowsFacts,
    splits: Mapping[str, Split],
    number: int,
    clients: int,
    totals: Sequence[LearntSum],
) -> tuple[Summary, Message] | None:
    """Return the question of round 0 that comes after ``totals``, or None after the last.

    So a node knows what the server may ask.
    """
    told = iter(totals)
    try:
        node_holdings(whole, about, splits, number, clients, replayed(about, told, due))
    except _Due as found:
        return found.question
    if next(told, None) is not None:
        raise ProtocolError("round 0 has more sums than the experiment asks for.")
    return None


def answered(summary: Summary, message: Message, split: Split) -> Numbers:
    """Return a node's answer to a question of round 0. ProtocolError for one that nodes do not answer."""
    if summary.name not in SUMMARIES:
        raise ProtocolError(f"nodes do not answer the question '{summary.name}'.")
    return summary.of(HeldRows(split, np.arange(len(split.y))), message)


def server_setup(whole: Checked, about: RowsFacts, sizes: Mapping[str, int], learn: Learn, test: Split | None) -> Setup:
    """Make the server's set-up. ``sizes``: training rows of each node by name. ``test``: the server's test rows."""
    empty = two_rows(about)
    unseen = (
        empty._replace(weight=None) if on_updates(whole.mechanisms) else empty
    )  # nodes judge; under masks all rows count alike
    dataset = dataset_of(about, {"train": empty, "test": unseen if test is None else test})
    if (guard := whole.config.guard) is not None:
        if test is None:
            raise ConfigError("[guard]: the server judges each model by rows of its own: start it with --test FILE.")
        dataset = take_guard(dataset, guard.source, guard.rows, whole.config.seed)
    counts = tuple(np.broadcast_to(np.arange(1), n) for n in sizes.values())  # an array of n rows that takes 8 bytes
    partition = Partition(counts, info={"names": list(sizes)}, counted=True)
    return assemble(holdings(whole, dataset, partition, of_one(-1, len(sizes)), learn))


def plan_of(whole: Checked) -> Plan:
    """Return how each node trains.

    The step is the same at all nodes, so that bits are equal; cores depend on the machine.
    """
    e, why = whole.config.engine, "each node trains in its own process"
    step = "loop" if e.name == "loop" else e.plan if e.plan in {"tuned", "native"} else "program"
    return Plan(e.name, step, 1, 1, machine.cores(), e.precision, "cpu", why)


def node_setup(
    whole: Checked, about: RowsFacts, splits: Mapping[str, Split], number: int, clients: int, learn: Learn
) -> Setup:
    """Make a node's set-up, with only its rows, under its number."""
    return assemble(node_holdings(whole, about, splits, number, clients, learn), alone=True)


def node_holdings(
    whole: Checked, about: RowsFacts, splits: Mapping[str, Split], number: int, clients: int, learn: Learn
) -> Holdings:
    """Return the federation as one of its nodes knows it."""
    train = splits["train"]
    held = {"test": train.take(np.arange(min(1, len(train.y)))), **splits}  # at least the form of a row
    partition = of_one(number, clients, len(train.y))
    return holdings(whole, dataset_of(about, held), partition, partition, learn)


def of_one(number: int, clients: int, rows: int = 0) -> Partition:
    """Return a partition in which one client holds this many rows."""
    return Partition(tuple(np.arange(rows if k == number else 0) for k in range(clients)))


def holdings(whole: Checked, dataset: Dataset, partition: Partition, rows: Partition, learn: Learn) -> Holdings:
    """Return the federation that `setup.assembly.share_out` makes of a whole data set.

    ``rows``: those that are here.
    """
    check_classes(whole.algorithm, dataset)
    check_unnoised(whole.config, whole.mechanisms, dataset)
    prepared, how = prepare(whole.config, dataset, rows, learn)
    facts = described(whole.algorithm, len(partition.clients), whole.config.seed)
    return Holdings(whole, dataset, prepared, how, partition, facts)
