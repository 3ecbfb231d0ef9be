"""Parties with columns for tests of schemes of trees, aligned and split without asking anybody, and whole trainings in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer
from fedatlas.federation.start import RoundStart
from fedatlas.vertical import boosting
from fedatlas.vertical.parties import Columns, of_classes
from fedatlas.vertical.scheme import Scheme


class Table(NamedTuple):
    """Columns, a label, and what it is."""

    x: np.ndarray
    y: np.ndarray
    task: str
    weight: np.ndarray | None = None


class Trained(NamedTuple):
    """What is left of a training."""

    federation: InProcess
    server: Any
    parties: list[Columns]
    scheme: Scheme = boosting.SECUREBOOST

    def state(self, party: int) -> Any:
        """What a party keeps."""
        return self.federation.states.get(party)

    @property
    def outputs(self) -> np.ndarray:
        """Of all rows, at the active party."""
        return self.scheme.outputs(self.state(self.parties[0].active))

    @property
    def trees(self) -> list[Any]:
        """By tree its nodes; a split names party, column, threshold, missing direction."""
        tables = {one.name: self.scheme.export(one, self.state(one.party))["table"]["records"] for one in self.parties}
        active = self.parties[0].active
        model = self.scheme.export(self.parties[active], self.state(active))["model"]
        return [[spelled(node, tables) for node in tree["nodes"]] for tree in model["trees"]]


def spelled(node: Any, tables: Any) -> Any:
    """A node with its split in it."""
    if "leaf" in node:
        return {"leaf": node["leaf"], "rows": node["rows"]}
    record = tables[node["party"]][node["record"]]
    split = {name: record[name] for name in ("column", "threshold", "missing")}
    return {"party": node["party"], **split, "left": node["left"], "right": node["right"], "gain": node["gain"]}


def parties_of(table: Table, owners: Sequence[Sequence[int]], active: int = 0, seed: int = 0) -> list[Columns]:
    """One party for each list of columns, whose names say where they stand in the table."""
    names = tuple(f"p{k}" for k in range(len(owners)))
    ids = tuple(map(str, range(len(table.y))))
    classes = int(np.max(table.y)) + 1 if table.task == "classes" else 0
    return [
        Columns(
            k,
            names[k],
            active,
            names,
            ids,
            table.x[:, list(columns)],
            tuple(f"x{c}" for c in columns),
            table.y if k == active else None,
            table.weight if k == active else None,
            table.task if k == active else "",
            seed,
            1,
            classes=classes if k == active else 0,
        )
        for k, columns in enumerate(owners)
    ]


def states_of(parties: Sequence[Columns], train: np.ndarray) -> PartyState:
    """All have the same rows in the same order; those that do not train test."""
    n = len(parties[0].x)
    states = PartyState()
    test = np.setdiff1d(np.arange(n), train)
    places = {"train": train, "held": np.arange(0), "test": test}
    split = {name: torch.from_numpy(np.asarray(rows, np.int64)) for name, rows in places.items()}
    states.begin(0, 0)
    for one in parties:
        states.put(one.party, {"align": {"order": torch.arange(n)}, "split": split})
    states.commit(0, [one.party for one in parties])
    return states


def federation_of(
    parties: Sequence[Columns],
    how: Any,
    train: np.ndarray,
    observers: Iterable[Observer] = (),
    scheme: Scheme = boosting.SECUREBOOST,
) -> tuple[InProcess, Any]:
    """A federation whose rows are aligned, with its server's state."""
    held = columns_federation(parties, scheme.questions(how), states_of(parties, train), observers=observers)
    active = parties[0].active
    return held, {"names": [one.name for one in parties], "active": active, **of_classes(parties[active].classes)}


def trained(
    table: Table,
    owners: Sequence[Sequence[int]],
    how: Any,
    *,
    active: int = 0,
    train: np.ndarray | None = None,
    observers: Iterable[Observer] = (),
    scheme: Scheme = boosting.SECUREBOOST,
) -> Trained:
    """All trees."""
    parties = parties_of(table, owners, active)
    rows = np.arange(len(table.y)) if train is None else train
    held, server = federation_of(parties, how, rows, observers, scheme)
    server = held.drive(scheme.begin(how, server), RoundStart(1, 0.0))
    for number in range(1, how.trees + 1):
        server = held.drive(scheme.step(how, server, number), RoundStart(1 + number, 0.0))
    return Trained(held, server, parties, scheme)
