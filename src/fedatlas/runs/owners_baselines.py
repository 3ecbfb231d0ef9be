"""Baselines of owners of rows: the same scheme trained by each alone, and by one that holds all rows, in the clear.

All models are judged on the same test rows, those of all owners; the answer judges each owner on its own. Only a simulation can do this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.config import ExperimentConfig
from fedatlas.course.owners import joint
from fedatlas.runs.answer import DRAWS, asked_of, evidence_of
from fedatlas.runs.columns_baselines import ColumnsGain, Finished, Opened, compared, finished, trained
from fedatlas.setup.checked import Checked
from fedatlas.verdict.answer import Answer, PartyEvidence, answer
from fedatlas.vertical import owners
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import Columns, places
from fedatlas.vertical.scheme import How, Scheme

JOINED = "joined"


def alone_of(name: str) -> str:
    """Return the name of an owner's own baseline."""
    return f"alone_{name}"


def by_owners(which: Side, scheme: Scheme, how: How, everyone: Side) -> Judged:
    """Train the model of some owners in the clear, and judge it on the test rows of all. ``everyone``: all owners as one."""
    federation: Opened = trained(which, scheme, scheme.clear(how), scheme.fixed, "baseline")
    exported = scheme.export(which.parties[0], federation.state(0))
    (one,), (state,) = everyone
    return Judged(one, state, scheme.outputs(scheme.load(one, exported)), "test")


def with_roles(own: Side, scheme: Scheme, roles: Side) -> Side:
    """Return one owner with the roles without data."""
    names = (own.parties[0].name, *scheme.roles)
    parties = [one._replace(party=k, active=0, parties=names) for k, one in enumerate((*own.parties, *roles.parties))]
    return Side(tuple(parties), (*own.states, *roles.states))


def gain_of_owners(path: Path, whole: Checked, said: Callable[[str], None]) -> ColumnsGain:
    """Return ``gain`` of the summary: figures of a finished run and of each baseline, and what each owner gains."""
    scheme, done = whole.of_columns(), finished(path, whole)
    said("Baselines for comparison, in the clear: each owner alone, and all rows in one table ...")
    everyone = owners.pooled(done.side)
    (one,), many = everyone.parties, len(done.side.parties) - len(scheme.roles)
    roles = Side(done.side.parties[many:], done.side.states[many:])
    sides = {
        alone_of(data.name): with_roles(Side((data,), (state,)), scheme, roles)
        for data, state in zip(done.side.parties[:many], done.side.states[:many], strict=True)
    }
    sides[JOINED] = with_roles(everyone, scheme, roles)
    judged = {"together": joint(scheme.outputs, Side(done.side.parties, done.states))}
    judged |= {name: by_owners(side, scheme, whole.how, everyone) for name, side in sides.items()}
    without = {data.name: alone_of(data.name) for data in done.side.parties[:many]}
    told = compared(judged, one, whole, without)
    return ColumnsGain(
        {**told, "rows": {name: len(places(side.states[0], "train")) for name, side in sides.items()}}, judged
    )


def owners_answer(
    config: ExperimentConfig, summary: Mapping[str, Any], judged: Mapping[str, Judged], done: Finished
) -> Answer:
    """Return the answer by the rule of all runs: each owner's own test rows, by the model of all and by its own."""
    together = judged["together"]
    metric = together.metric(config.evaluation.metric)
    held: list[tuple[Columns, int, int]] = [
        (one, len(places(state, "test")), len(places(state, "train")))
        for one, state in zip(*done.side, strict=True)
        if one.y is not None
    ]
    whose = np.repeat(np.arange(len(held)), [n for _, n, _ in held])
    trivial, evidence = together.by_constant(together.constant()), []
    for k, (one, _, rows) in enumerate(held):
        said = {"together": together.said(), "alone": judged[alone_of(one.name)].said(), "trivial": trivial}
        own = {name: each.at(whose == k) for name, each in said.items()}
        models = {name: (each, metric.weighted(each)) for name, each in own.items()}
        evidence.append(PartyEvidence(k, one.name, evidence_of(summary, models), own=True, train_rows=rows))
    party = (config.words and config.words.party) or "party"
    asked = asked_of(config, summary, metric)._replace(party=party)
    return answer(asked, evidence, summary["seed"], str(summary.get("judged_on")), len(together.train), DRAWS)
