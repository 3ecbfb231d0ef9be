"""``[drift]``: from a round on the clients' rows are others (D13), and so are the test rows.

There are two worlds, each a source of every party's rows: before and after. A round takes each client's rows from one
of them. ``feature``: pictures are turned by 90 degrees, the standardised columns of a table multiplied by one
orthogonal matrix. ``concept``: the labels of some classes change places. ``prior``: some classes become rare, others
frequent, by seeded thinning of the same rows; so a client's number of rows changes, and with it its weight. Test rows
and the guard's change at once in round ``at``; public rows never do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import UNION
from fedatlas.config import ExperimentConfig
from fedatlas.config.drift import DriftConfig
from fedatlas.data.batches import Rows
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.rng import numpy_stream
from fedatlas.setup.party_rows import PartyRows, join

KEEP = 0.2  # share of the rows of rare classes
UNCHANGED = "public"  # the split that everybody knew before


class PartlyDrifted(PartyRows):
    """The rows in a round in which only some clients' have changed."""

    def __init__(self, before: PartyRows, after: PartyRows, changed: frozenset[int]) -> None:
        self.before, self.after, self.changed = before, after, changed
        self.dataset, self.public = after.dataset, before.public
        everybody = range(len(before.partition.clients))
        clients = tuple(self._of(k).partition.clients[k] for k in everybody)
        self.partition = before.partition._replace(clients=clients)

    def __call__(self, party: int) -> Rows:
        """Return the rows of a party as `PartyRows` does; those of UNION client by client."""
        if party == UNION:
            return join(self(k) for k in range(len(self.partition.clients)))
        return self._of(party)(party)

    def targets(self) -> tuple[Tensor, Tensor | None]:
        """Return stored targets and weights of all rows that clients train on, each client's as they are in its world."""
        each = [self._of(k).dataset.train.take(rows) for k, rows in enumerate(self.partition.clients)]
        weights = [one.weight for one in each if one.weight is not None]
        return torch.cat([one.y for one in each]), torch.cat(weights) if weights else None

    def kept(self, party: int, name: str) -> Rows:
        """Return a client's rows kept out of training, changed if its others are."""
        return self._of(party).kept(party, name)

    def common(self, name: str) -> Rows:
        """Return all rows of a split that belongs to no client."""
        return self.after.common(name)

    def _of(self, party: int) -> PartyRows:
        return self.after if party in self.changed else self.before


class DriftingRows(PartyRows):
    """The rows before the drift, and by `in_round` those of every round. ``joins``: client -> its first changed round."""

    def __init__(self, before: PartyRows, after: PartyRows, at: int, joins: dict[int, int]) -> None:
        super().__init__(before.dataset, before.partition, before.seed, before.dtype)
        self.after, self.at, self.joins = after, at, joins

    def in_round(self, number: int) -> PartyRows:
        """Return the source of rows in a round."""
        if number < self.at:
            return self
        changed = frozenset(k for k, first in self.joins.items() if first <= number)
        if len(changed) == len(self.partition.clients):
            return self.after
        return PartlyDrifted(self, self.after, changed)


def with_drift(rows: PartyRows, config: ExperimentConfig) -> PartyRows:
    """Return the source of rows under ``[drift]``; unchanged without one. ConfigError if these rows cannot drift so."""
    how = config.drift
    if how is None:
        return rows
    before, after = worlds(rows, how)
    return DriftingRows(before, after, how.at, joining(how, len(rows.partition.clients), config.seed))


def worlds(rows: PartyRows, how: DriftConfig) -> tuple[PartyRows, PartyRows]:
    """Return the sources of rows before and after the drift. ConfigError if the rows cannot drift so."""
    d, seed = rows.dataset, rows.seed

    def world(dataset: Dataset, partition: Partition) -> PartyRows:
        return PartyRows(dataset, partition, seed, rows.dtype)

    if d.task == "tokens":
        raise ConfigError(
            f"[drift]: '{d.name}' is text without classes, which no kind of [drift] changes: remove the table."
        )
    if how.kind == "feature":
        return rows, world(turned(d, seed, rows.dtype), rows.partition)
    if d.task != "classes":
        raise ConfigError(f"drift.kind = '{how.kind}' changes classes, and '{d.name}' has none: use kind = 'feature'.")
    if how.kind == "concept":
        return rows, world(relabelled(d, moved_classes(how.classes, d)), rows.partition)
    first, second = rarer(how.classes, d)
    keep = KEEP if how.keep is None else how.keep
    return world(*thinned(d, rows.partition, second, keep, seed)), world(*thinned(d, rows.partition, first, keep, seed))


def joining(how: DriftConfig, clients: int, seed: int) -> dict[int, int]:
    """Map each client whose rows change to the first round in which they have. ConfigError if the share is nobody."""
    many = math.floor(how.share * clients + 1e-9)
    if not many:
        raise ConfigError(f"drift.share = {how.share:g} of {clients} clients is nobody: take a larger share.")
    order = numpy_stream(seed, "drift", "clients").permutation(clients)[:many]
    return {int(k): how.at + i * how.ramp // many for i, k in enumerate(order)}


def turned(dataset: Dataset, seed: int, dtype: torch.dtype) -> Dataset:
    """Return the data set with pictures turned by 90 degrees, or the columns of a table rotated."""
    if len(dataset.shape) == 3:
        if dataset.shape[-1] != dataset.shape[-2]:
            raise ConfigError(
                "drift.kind = 'feature' turns pictures by 90 degrees, which must be square here; use kind = 'concept'."
            )
        return _changed(dataset, lambda x: torch.rot90(x, 1, (-2, -1)).contiguous())
    if len(dataset.shape) != 1 or not dataset.train.x.is_floating_point():
        raise ConfigError(
            f"drift.kind = 'feature' turns pictures or the columns of a table, and '{dataset.name}' has neither; use kind = 'concept'."
        )
    seen = replace(dataset.with_inputs(lambda x: dataset.inputs(x, dtype)), scale=(), shift=())  # as models read them
    q = torch.from_numpy(orthogonal(dataset.shape[0], seed))
    return _changed(seen, lambda x: (x.double() @ q).to(x.dtype))


def orthogonal(size: int, seed: int) -> np.ndarray:
    """Return a random orthogonal matrix (size, size), float64, uniform over all."""
    q, r = np.linalg.qr(numpy_stream(seed, "drift", "feature").standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)))


def _changed(dataset: Dataset, made: Callable[[Tensor], Tensor]) -> Dataset:
    changed = {name: one._replace(x=made(one.x)) for name, one in dataset.splits.items() if name != UNCHANGED}
    return dataset.with_splits(**changed)


def numbers_of(classes: Sequence[int | str], dataset: Dataset) -> list[int]:
    """Return classes, given by number or name, as numbers. ConfigError for one that the data lack, or that is named twice."""
    names, found = dataset.class_names, list[int]()
    for one in classes:
        at = names.index(one) if isinstance(one, str) and one in names else one
        if isinstance(at, str) or not 0 <= at < len(names):
            raise ConfigError(f"drift.classes: '{dataset.name}' has no class {one!r}; it has {', '.join(names[:20])}.")
        found.append(at)
    if len(set(found)) < len(found):
        raise ConfigError("drift.classes names a class twice; name each once.")
    return found


def moved_classes(classes: Sequence[int | str] | None, dataset: Dataset) -> Tensor:
    """Return (C,) the label that each class has after the drift: each of ``classes`` takes the place of the next one."""
    found = numbers_of(range(dataset.classes) if classes is None else classes, dataset)
    if len(found) < 2:
        raise ConfigError("drift.classes: one class cannot change places; name two or more.")
    label = torch.arange(dataset.classes)
    label[found] = torch.tensor([*found[1:], *found[:1]])
    return label


def rarer(classes: Sequence[int | str] | None, dataset: Dataset) -> tuple[frozenset[int], frozenset[int]]:
    """Return the classes that become rare, and the others. ConfigError if there are no others."""
    first = frozenset(numbers_of(range(dataset.classes // 2) if classes is None else classes, dataset))
    second = frozenset(range(dataset.classes)) - first
    if not second or not first:
        raise ConfigError(
            "drift.classes: some classes must become rare and others frequent; name fewer, or leave it out."
        )
    return first, second


def thinned(
    dataset: Dataset, partition: Partition, rare: frozenset[int], keep: float, seed: int
) -> tuple[Dataset, Partition]:
    """Return the rows in which each of the ``rare`` classes is kept with probability ``keep``.

    The draws of a row do not depend on which classes are rare. ConfigError if a client is left without training rows.
    """

    def chosen(name: str) -> np.ndarray:
        y = dataset.splits[name].y.numpy()
        return ~np.isin(y, [*rare]) | (numpy_stream(seed, "drift", "prior", name).random(len(y)) < keep)

    train = chosen("train")
    others = {name for name in dataset.splits if name not in {"train", UNCHANGED}}
    splits = {name: dataset.splits[name].take(np.flatnonzero(chosen(name))) for name in others}
    clients = tuple(rows[train[rows]] for rows in partition.clients)
    kept = {name: {k: rows[train[rows]] for k, rows in held.items()} for name, held in partition.kept.items()}
    empty = [k for k, rows in enumerate(clients) if len(partition.clients[k]) and not len(rows)]
    if empty or not all(len(one.y) for one in splits.values()):
        who = f"client {empty[0]} without training rows" if empty else "no test rows"
        raise ConfigError(f"drift.keep = {keep:g} leaves {who}: raise it, or use a milder split.")
    return dataset.with_splits(**splits), partition._replace(clients=clients, kept=kept)


def relabelled(dataset: Dataset, label: Tensor) -> Dataset:
    """Return the data set with each label replaced by that of ``label``."""
    changed = {name: one._replace(y=label[one.y]) for name, one in dataset.splits.items() if name != UNCHANGED}
    return dataset.with_splits(**changed)


def check_drift(config: ExperimentConfig, mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError for a drift that would come too late, or beside tables whose figures assume rows that stay."""
    how = config.drift
    if how is None:
        if config.guard is not None and config.guard.drifted:
            raise ConfigError(
                "guard.drifted = true: there is no [drift] for the guard's rows to follow; remove the key."
            )
        return
    if how.kind == "prior" and mechanisms:
        raise ConfigError(
            f"[drift] kind = 'prior' changes how many rows each client has, on which the account of '{mechanisms[0].name}' or its weights "
            "rest: use kind = 'feature' or 'concept'."
        )
    if how.keep is not None and how.kind != "prior":
        raise ConfigError(f"drift.keep thins rows of kind = 'prior', not '{how.kind}'; remove the key.")
    if how.at > config.rounds:
        raise ConfigError(f"drift.at = {how.at} is past the end: the run has {config.rounds} rounds.")
    if how.classes is not None and how.kind == "feature":
        raise ConfigError("drift.classes are for kind = 'concept' and 'prior', not 'feature'; remove the key.")
    if config.evaluation.on != "test":
        raise ConfigError(
            "[drift] changes the test rows, on which its figures are: set evaluation.on = 'test', or remove the table."
        )
    for table, given in (("[[attack]]", config.attack), ("[observe]", config.observe), ("[audit]", config.audit)):
        if given:
            raise ConfigError(
                f"{table} beside [drift]: not in this version, as attacks are scored on rows that stay; remove one."
            )
    for one in mechanisms:
        if one.acts_on == "rows":
            raise ConfigError(
                f"[drift]: '{one.name}' releases each client's rows once, and changed rows would be a second release that its account "
                "does not cover; remove one."
            )
