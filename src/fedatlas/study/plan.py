"""From cells to runs: each cell with each seed, the baselines of its setting, and the trials of rates in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError, ValueMistake
from fedatlas.runs.baselines import baseline_config
from fedatlas.runs.run_key import Described, RunKeys, data_hashes, keys, of_columns
from fedatlas.setup.checked import Checked
from fedatlas.study.cells import Cell, Levels, cells_of
from fedatlas.study.configurations import Configurations
from fedatlas.study.design import StudyFile
from fedatlas.study.levels import Factor, factors_of, overridden
from fedatlas.study.plain import Plain, Row

Kind = Literal["cell", "baseline", "tuning", "holdout", "trial"]
"""A trial is a run of `fedatlas tune`, which never looks at test rows."""
Rates = tuple[tuple[str, Any], ...]


class PlannedRun(NamedTuple):
    """One run that the study needs."""

    kind: Kind
    levels: Levels
    rates: Rates  # tried or picked
    keys: RunKeys
    plain: Row  # the configuration, as complete as possible
    checked: Checked | None  # None if refused
    refused: str
    data: Mapping[str, str]  # file -> SHA-256
    seed: int

    @property
    def config(self) -> ExperimentConfig | None:
        """The configuration, every key written out; None if refused."""
        return None if self.checked is None else self.checked.config


class CellRuns(NamedTuple):
    """The runs of one cell: planned now, or after its rates are picked."""

    cell: Cell
    trials: tuple[PlannedRun, ...]  # empty without [tuning]
    runs: tuple[PlannedRun, ...]  # with the base's rates


class StudyPlan(NamedTuple):
    """The plan of a study."""

    study: StudyFile
    factors: tuple[Factor, ...]
    notices: tuple[str, ...]
    configurations: Configurations
    baselines: tuple[PlannedRun, ...] = ()
    cells: tuple[CellRuns, ...] = ()

    def known(self) -> list[PlannedRun]:
        """Return the runs whose configuration is known before anything has run."""
        return [*self.baselines, *(run for one in self.cells for run in one.trials or one.runs)]

    def values_of(self, levels: Levels, rates: Rates = ()) -> Plain:
        """Return the experiment's values under some levels and rates."""
        by_name = {factor.name: factor for factor in self.factors}
        return overridden(self.study.base, [*(by_name[name].level(level).set for name, level in levels), dict(rates)])

    def meant(self, values: Plain, seed: int) -> Described:
        """Return what the values of an experiment mean; ConfigError for a value that is wrong, whatever else the file says."""
        found = self.configurations.described(values, seed)
        if found.mistaken:
            raise ValueMistake(found.refused)
        return found

    def picked_runs(self, cell: Cell, rates: Rates = ()) -> tuple[PlannedRun, ...]:
        """Return the runs of a cell with each seed, with the rates picked for it."""
        seeds = sorted(self.study.table.seeds)
        found = self.meant(self.values_of(cell.levels, rates), seeds[0])
        return with_seeds("holdout" if cell.holdout else "cell", cell.levels, rates, found, seeds)


def plan_of(study: StudyFile) -> StudyPlan:
    """Return the plan of a study; ConfigError for any error in it."""
    known = Configurations()
    factors, notices = factors_of(study, known)
    cells, plan = cells_of(study, factors), StudyPlan(study, factors, tuple(notices), known)
    planned = tuple(runs_of_cell(plan, cell) for cell in cells)
    if all(run.refused for one in planned for run in one.runs):
        raise ConfigError(f"the study has no cell that can run: {planned[0].runs[0].refused}")
    settings = dict.fromkeys(cell.setting for cell in cells)
    names = ("centralised", "local_only") if study.table.alone else ("centralised",)
    rows = [setting for setting in settings if not of_columns(plan.values_of(setting))]
    if study.table.alone and len(rows) < len(settings):
        raise ConfigError(
            "alone = true trains clients that hold rows; parties that hold columns have their baselines in 'fedatlas run' and "
            "'fedatlas compare': leave the key out."
        )
    baselines = [run for setting in rows for name in names for run in baselines_of(plan, setting, name)]
    return plan._replace(baselines=tuple(baselines), cells=planned)


def with_seeds(
    kind: Kind, levels: Levels, rates: Rates, found: Described, seeds: Iterable[int]
) -> tuple[PlannedRun, ...]:
    """Return the runs of a configuration with each seed; no refusal before the data are read depends on the seed."""
    out = []
    for seed in seeds:
        whole = None if found.checked is None else found.checked.with_seed(seed)
        plain, data = {**found.plain, "seed": seed}, data_hashes(whole.config) if whole is not None else {}
        out.append(PlannedRun(kind, levels, rates, keys(plain, data), plain, whole, found.refused, data, seed))
    return tuple(out)


def runs_of_cell(plan: StudyPlan, cell: Cell) -> CellRuns:
    """Return the runs of one cell. A cell refused with the base's rates is recorded as refused, and no rates are tried in it."""
    runs, tuning = plan.picked_runs(cell), plan.study.table.tuning
    if tuning is None or all(run.refused for run in runs):
        return CellRuns(cell, (), runs)
    trials: list[PlannedRun] = []
    for tried in itertools.product(*tuning.keys.values()):
        rates = tuple(zip(tuning.keys, tried, strict=True))
        values = plan.values_of(cell.levels, rates)
        judge_on_validation(values, tuning.validation)
        found = plan.meant(values, tuning.seed)
        trials += with_seeds("tuning", cell.levels, rates, found, [tuning.seed])
    return CellRuns(cell, tuple(trials), runs)


def judge_on_validation(values: Plain, share: float, *, often: bool = False) -> None:
    """Have an experiment judged on a share of its training rows; only after the last round, which decides, unless ``often``."""
    drop = () if often else ("every", "rounds")
    judged = {key: x for key, x in values.get("evaluation", {}).items() if key not in drop}
    last = max(values.get("rounds", ExperimentConfig.model_fields["rounds"].default), 1)
    values["evaluation"] = {**judged, "on": "validation", "validation": share} | ({} if often else {"every": last})


def baselines_of(plan: StudyPlan, setting: Levels, name: str) -> tuple[PlannedRun, ...]:
    """Return pooled training, or each client alone, in a setting, with each seed: the base's ``[local]``, evaluated like the cells (H0)."""
    values, seeds = plan.values_of(setting), sorted(plan.study.table.seeds)
    for table in ("algorithm", "privacy", "compression"):
        values.pop(table, None)
    first = plan.configurations.described(values, seeds[0])
    found = Described({**first.plain, "algorithm": {"name": name}}, None, first.refused)
    if first.checked is not None:
        base = first.checked.config
        try:
            baseline = baseline_config(base, name, base.rounds).plain()
            baseline["evaluation"] = base.plain()["evaluation"]
            found = plan.configurations.described(baseline, seeds[0])
        except ConfigError as error:
            found = found._replace(refused=str(error))
    return with_seeds("baseline", setting, (), found, seeds)
