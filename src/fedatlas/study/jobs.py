"""From cells to runs: each cell by each seed, the baselines of its setting, and the rates that are tried in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.runs.baselines import baseline_config
from fedatlas.runs.run_key import Described, Keys, data_hashes, described, keys, written
from fedatlas.setup.checked import Checked
from fedatlas.study.cells import Cell, Levels, cells_of
from fedatlas.study.design import StudyFile
from fedatlas.study.levels import Factor, factors_of, overridden

Kind = Literal["cell", "baseline", "tuning", "holdout"]
Rates = tuple[tuple[str, Any], ...]


class Job(NamedTuple):
    """One run that has to be there."""

    kind: Kind
    levels: Levels
    rates: Rates  # that are tried, or were picked
    keys: Keys
    plain: Mapping[str, Any]  # the configuration, as far as it could be completed
    checked: Checked | None  # None where it is refused
    refused: str
    data: Mapping[str, str]  # file -> SHA-256
    seed: int

    @property
    def config(self) -> ExperimentConfig | None:
        """The configuration, every key written out; None where it is refused."""
        return None if self.checked is None else self.checked.config


class Place(NamedTuple):
    """What is to be run in one cell: at once, or once its rates are picked."""

    cell: Cell
    trials: tuple[Job, ...]  # none without [tuning]
    jobs: tuple[Job, ...]  # with the base's rates


class Plan(NamedTuple):
    """A study, laid out."""

    study: StudyFile
    factors: tuple[Factor, ...]
    baselines: tuple[Job, ...]
    places: tuple[Place, ...]
    notices: tuple[str, ...]

    def known(self) -> list[Job]:
        """The runs whose configuration is known before anything has run."""
        trials = [job for place in self.places for job in place.trials]
        ready = [job for place in self.places for job in place.jobs if not place.trials]
        return [*self.baselines, *trials, *ready]


def plan_of(study: StudyFile) -> Plan:
    """The runs of a study; ConfigError for whatever is wrong with it."""
    factors, notices = factors_of(study)
    cells = cells_of(study, factors)
    places = tuple(place_of(study, factors, cell) for cell in cells)
    settings = dict.fromkeys(cell.setting for cell in cells)
    names = ("centralised", *(("local_only",) if study.table.alone else ()))
    baselines = [job for setting in settings for name in names for job in baselines_of(study, factors, setting, name)]
    return Plan(study, factors, tuple(baselines), places, tuple(notices))


def values_of(
    study: StudyFile, factors: Sequence[Factor], levels: Levels, rates: Iterable[tuple[str, Any]] = ()
) -> dict[str, Any]:
    """The experiment's values under some levels and rates."""
    by_name = {factor.name: factor for factor in factors}
    return overridden(study.base, [*(by_name[name].level(level).set for name, level in levels), dict(rates)])


def made(kind: Kind, levels: Levels, rates: Rates, values: Mapping[str, Any], seed: int) -> Job:
    """The run of an experiment's values with a seed."""
    found = described(written(values, seed))
    return job_of(kind, levels, rates, found, seed)


def job_of(kind: Kind, levels: Levels, rates: Rates, found: Described, seed: int) -> Job:
    """A run with its keys."""
    plain, whole, refused = found
    data = data_hashes(whole.config) if whole is not None else {}
    return Job(kind, levels, rates, keys(plain, data), plain, whole, refused, data, seed)


def place_of(study: StudyFile, factors: Sequence[Factor], cell: Cell) -> Place:
    """The runs of one cell. A cell that is refused with the base's rates is recorded so, and nothing is tried in it."""
    jobs = cell_jobs(study, factors, cell, ())
    tuning = study.table.tuning
    if tuning is None or all(job.refused for job in jobs):
        return Place(cell, (), jobs)
    tried = [tuple(zip(tuning.keys, values, strict=True)) for values in itertools.product(*tuning.keys.values())]
    trials = []
    for rates in tried:
        values = values_of(study, factors, cell.levels, rates)
        judged = {key: x for key, x in values.get("evaluation", {}).items() if key not in ("every", "rounds")}
        last = max(values.get("rounds", ExperimentConfig.model_fields["rounds"].default), 1)  # it alone decides
        values["evaluation"] = {**judged, "on": "validation", "validation": tuning.validation, "every": last}
        trials.append(made("tuning", cell.levels, rates, values, tuning.seed))
    return Place(cell, tuple(trials), jobs)


def cell_jobs(study: StudyFile, factors: Sequence[Factor], cell: Cell, rates: Rates) -> tuple[Job, ...]:
    """A run a seed of a cell, with the rates that were picked for it."""
    kind: Kind = "holdout" if cell.holdout else "cell"
    values = values_of(study, factors, cell.levels, rates)
    seeds = sorted(study.table.seeds)
    found = described(written(values, seeds[0]))
    return tuple(with_seed(kind, cell.levels, rates, found, seed) for seed in seeds)


def with_seed(kind: Kind, levels: Levels, rates: Rates, found: Described, seed: int) -> Job:
    """The run of a configuration with a seed, by which nothing is refused before data are read."""
    whole = None if found.checked is None else found.checked.with_seed(seed)
    return job_of(kind, levels, rates, Described({**found.plain, "seed": seed}, whole, found.refused), seed)


def baselines_of(study: StudyFile, factors: Sequence[Factor], setting: Levels, name: str) -> list[Job]:
    """All rows together, or each client alone, in a setting, by each seed: the base's ``[local]``, evaluated as the cells are (H0)."""
    values, seeds = values_of(study, factors, setting), sorted(study.table.seeds)
    for table in ("algorithm", "privacy", "compression"):
        values.pop(table, None)
    first = described(written(values, seeds[0]))
    found = Described({**first.plain, "algorithm": {"name": name}}, None, first.refused)
    if first.checked is not None:
        base = first.checked.config
        try:
            made_of = baseline_config(base, name, base.rounds).plain()
            made_of["evaluation"] = base.plain()["evaluation"]
            found = described(written(made_of, seeds[0]))
        except ConfigError as error:
            found = found._replace(refused=str(error))
    return [with_seed("baseline", setting, (), found, seed) for seed in seeds]
