"""``[audit] canaries``: units put into a run to be looked for afterwards, each with chance 1/2 (Steinke et al. 2023).

client    further clients. One that is in sends a random direction, ten times as long as the bound of the noise's mechanism
          (Andrew et al. 2023). It holds a copy of one training row, and says that it has ten times as many as others. One
          that is out holds none, and is never asked.
record    training rows of clients under a wrong label. One that is out counts as zero: its features are no numbers.

Who is in is drawn from the seed, as all of a run is; the audit knows it, and an attacker does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.config import ExperimentConfig
from fedatlas.data.batches import Rows
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.engine.attackers import Attacker, Order
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.rng import numpy_stream, torch_stream
from fedatlas.tree import Tree

LONGER = 10.0  # times the bound, others' rows, or the length of a standardised row: what is not bounded shows itself
MARKED = (
    "[audit] canaries: this run is for an audit. Its model carries the canaries' marks and is worse for them: release the model of a "
    "run without."
)
NAME = "canary-"  # of an `Attacker`, before the client's number


class Canaries(NamedTuple):
    """The canaries of a run; ``place[i]``: the client of canary i, or the (client, row) of it."""

    unit: str
    seed: int
    inside: np.ndarray  # (m,) bool
    clients: np.ndarray  # (m,) the client that canary i is, or whose row it is
    rows: np.ndarray  # (m,) record: the row's place among its client's rows
    length: float = 1.0  # client: of an update
    claims: int = 0  # client: rows that it says it has

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences before a run with canaries."""
        return (MARKED,) if len(self.inside) else ()

    def attackers(self) -> dict[str, Attacker]:
        """Return what each canary client that is in does."""
        if self.unit != "client":
            return {}
        made = {int(k): partial(_along, self.seed, int(k), self.length) for k in self.clients[self.inside]}
        return {f"{NAME}{k}": Attacker(upload=upload) for k, upload in made.items()}

    def orders(self, cohort: Sequence[int]) -> dict[int, Order]:
        """Return the orders of the canary clients of a round."""
        if self.unit != "client":
            return {}
        ours = {int(k) for k in self.clients[self.inside]}
        return {k: Order(f"{NAME}{k}", claims=self.claims) for k in cohort if k in ours}

    def honest(self, clients: Iterable[int]) -> tuple[int, ...]:
        """Return the clients that are no canaries."""
        ours = set(self.clients.tolist()) if self.unit == "client" else set()
        return tuple(k for k in clients if k not in ours)

    def row(self, own: np.ndarray, shape: Sequence[int], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and labels of these canary rows: noise ten times as long as a standardised row, and any class."""
        x = [LONGER * torch.randn(tuple(shape), generator=torch_stream(self.seed, "audit", "row", int(i))) for i in own]
        y = numpy_stream(self.seed, "audit", "label").integers(0, classes, len(self.inside))[own]
        return torch.stack(x), torch.from_numpy(y)

    def marked(self, party: int, rows: Rows, classes: int) -> Rows:
        """Return a client's rows with its canaries: under a wrong label, and without features if they are out."""
        own = np.flatnonzero(self.clients == party)
        if self.unit != "record" or not len(own):
            return rows
        x, y, at = rows.x.clone(), rows.y.clone(), torch.from_numpy(self.rows[own])
        features, y[at] = self.row(own, rows.x.shape[1:], classes)
        x[at] = features.to(x.dtype)
        x[at[torch.from_numpy(~self.inside[own])]] = torch.nan
        return rows._replace(x=x, y=y)


NONE = Canaries("", 0, np.zeros(0, bool), np.zeros(0, int), np.zeros(0, int))
"""No canaries."""


def direction(seed: int, client: int, like: Tree) -> Tree:
    """Return the direction of a canary client: a vector of length 1, the same in every round."""
    stream = torch_stream(seed, "audit", "direction", client)
    drawn = Tree({name: torch.randn(like[name].shape, generator=stream) for name in sorted(like)})
    norm = float(torch.sqrt(sum((x.double() ** 2).sum() for x in drawn.values())))  # type: ignore[arg-type]
    return Tree({name: (x / norm).to(like[name].dtype) for name, x in drawn.items()})


def _along(
    seed: int, client: int, length: float, start: Tree, end: Tree, scale: float, stream: torch.Generator
) -> Tree:
    """Return the model that a canary client claims to have reached."""
    step = direction(seed, client, start)
    return Tree({name: start[name] + length * x for name, x in step.items()})


def with_canaries(
    config: ExperimentConfig, mechanisms: Sequence[Mechanism], dataset: Dataset, partition: Partition
) -> tuple[Partition, Canaries]:
    """Return the partition with canary clients, and the canaries; none without ``[audit] canaries``.

    ConfigError if the rows have no room for so many.
    """
    if config.audit is None or not config.audit.canaries:
        return partition, NONE
    many, seed = config.audit.canaries, config.seed
    check_canaries(config.audit.unit, mechanisms)
    stream = numpy_stream(seed, "audit", "canaries")
    inside = stream.random(many) < 0.5
    if config.audit.unit == "record":
        if dataset.task != "classes":
            raise ConfigError(
                "audit.unit = 'record' marks rows by a wrong class, and these rows have numbers as labels."
            )
        if dataset.train.x.dtype == torch.int64:
            raise ConfigError(
                "audit.unit = 'record' puts noise in the place of features, and these rows are texts: leave audit.canaries out."
            )
        held = np.array([(k, i) for k, n in enumerate(partition.sizes) for i in range(n)])
        if 2 * many > len(held):
            raise ConfigError(
                f"audit.canaries = {many}: at most half of the {len(held)} training rows can be canaries."
            )
        chosen = held[np.sort(stream.choice(len(held), many, replace=False))]
        return partition, Canaries("record", seed, inside, chosen[:, 0], chosen[:, 1])
    first, everyone = len(partition.clients), np.concatenate(partition.clients)
    copies = stream.choice(everyone, many)
    more = tuple(copies[i : i + 1] if inside[i] else copies[:0] for i in range(many))
    skew = (*partition.feature_skew, *({} for _ in more)) if partition.feature_skew else ()
    kept = {name: {**rows, **{first + i: copies[:0] for i in range(many)}} for name, rows in partition.kept.items()}
    grown = partition._replace(clients=(*partition.clients, *more), feature_skew=skew, kept=kept)
    clip = next((one.keys["clip"] for one in mechanisms if one.keys.get("clip") is not None), 1.0)
    length = LONGER * (clip if isinstance(clip, float | int) else 1.0)
    claims = max(1, round(LONGER * len(everyone) / first))
    return grown, Canaries("client", seed, inside, first + np.arange(many), np.zeros(many, int), length, claims)


def check_canaries(unit: str, mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError if canaries of this unit would be compared with nothing."""
    noises = [one.noise for one in mechanisms if one.noise is not None]
    units = {"record" if noise.of_rows or noise.unit == "record" else "client" for noise in noises}
    if not noises:
        raise ConfigError(
            "audit.canaries gives a lower bound on epsilon, and no [[privacy]] of this file states one: leave it out."
        )
    if unit not in units:
        (one,) = units
        raise ConfigError(f"audit.unit = '{unit}': the noise of this file protects by {one}; write '{one}'.")
    if unit == "record" and not any(noise.unit == "record" for noise in noises):
        raise ConfigError(
            "audit.unit = 'record' counts a canary that is out as zero, which only noise on the gradients of single rows does: "
            "this file has none; leave audit.canaries out."
        )


def facts(canaries: Canaries) -> dict[str, Any]:
    """Return the summary's entry about canaries; ``first``: the first canary client, if they are clients."""
    if not len(canaries.inside):
        return {}
    first = {"first": int(canaries.clients.min())} if canaries.unit == "client" else {}
    return {"canaries": {"unit": canaries.unit, "drawn": len(canaries.inside), **first}}
