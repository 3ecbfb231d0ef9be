"""The runs of a race, in a study's table: what is there already is not run again, also of a race that was killed.

A run goes on from the folder of the shorter one, so that a look costs only its further rounds. All runs judge a fold of the
training rows, and none reads test rows but `final`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.race.course import AskedRun, FoldRows
from fedatlas.race.work import LOOKS, TUNED_ON, ArmCost
from fedatlas.study.cells import Cell
from fedatlas.study.configurations import Configurations
from fedatlas.study.design import StudyFile, level_name, study_of
from fedatlas.study.execute import Say, begin, carry_out
from fedatlas.study.levels import overridden
from fedatlas.study.local_runs import Runs
from fedatlas.study.outcomes import JUDGED_ROWS
from fedatlas.study.plain import Plain, Row
from fedatlas.study.plan import CellRuns, Kind, PlannedRun, StudyPlan, with_seeds
from fedatlas.study.study import TABLE
from fedatlas.study.table import ENDED, Table

NAME = "race"  # of the study in the table
TIMED = 2  # the round that is timed


class ArmFile(NamedTuple):
    """The experiments behind an arm."""

    run: Row  # that of its runs, without rounds and rates
    file: Row  # that of the answer: the same, or its masked twin
    points: Sequence[Row]  # the rates that are tried, one mapping of keys each


class RaceRuns:
    """The runs of a race."""

    def __init__(
        self,
        files: Mapping[str, ArmFile],
        seed: int,
        out: Path,
        say: Say,
        *,
        parallel: int = 0,
        seconds: float | None = None,
        runs: Runs | None = None,
    ) -> None:
        """``seed``: that of the user's experiment; ``seconds``: the most that one run may take; ``runs``: makes them elsewhere."""
        self.files, self.seed, self.out, self.say = files, seed, out, say
        self.known, self.cells = Configurations(), dict[str, CellRuns]()
        self.parallel, self.seconds, self.runs = parallel, seconds, runs

    def measure(self, asked: Sequence[AskedRun]) -> dict[AskedRun, FoldRows | None]:
        """Make runs on folds; return the judged rows of each, None for one without a model."""
        planned = {one: self.planned(one) for one in asked}
        found: dict[AskedRun, FoldRows | None] = {}
        with self.made(list(planned.values())) as table:
            for one, run in planned.items():
                key = run.keys.run_key
                found[one] = fold_rows(table.summary(key) or {}) if table.status(key) == "done" else None
        return found

    def timed(self) -> dict[str, ArmCost]:
        """Time every arm for one round; return its costs in seconds of a process."""
        asked = {AskedRun(name, 0, TUNED_ON, TIMED): 0 for name in self.files}
        with self.made([self.planned(one) for one in asked]):
            return self.costs(asked)

    def costs(self, asked: Mapping[AskedRun, int]) -> dict[str, ArmCost]:
        """Return the costs of arms by runs that were made, each with the rounds that an earlier one had made of it.

        The first round of a run does not count: in it the local step is compiled, which belongs to the start of a run.
        """
        seconds, whole = dict[str, list[float]](), dict[str, list[tuple[float, int]]]()
        with closing(Table.open(self.out / TABLE)) as table:
            for one, first in asked.items():
                key = self.planned(one).keys.run_key
                rounds = [float(row["seconds"]) for row in table.rows(key) if row["round"] > max(first, 1)]
                stopped = self.seconds if table.status(key) == "timeout" else None
                spent = float(table.responses(key).get("cpu_seconds") or stopped or 0.0)
                seconds.setdefault(one.arm, []).extend(rounds)
                whole.setdefault(one.arm, []).append((spent, one.rounds - first))
        out = {}
        for name, runs in whole.items():
            each = float(np.mean(seconds[name] or [0.0]))
            out[name] = ArmCost(float(np.mean([max(spent - each * rounds, 0.0) for spent, rounds in runs])), each)
        return out

    def responses(self, asked: AskedRun) -> Plain:
        """Return the responses of a run that was made; {} for one without a model."""
        with closing(Table.open(self.out / TABLE)) as table:
            return table.responses(self.planned(asked).keys.run_key)

    def final(self, name: str, point: int, rounds: int) -> Plain:
        """Run the file of an answer on all training rows, and judge it on the test rows; return its responses and summary."""
        values = overridden(self.files[name].file, [self.files[name].points[point], {"rounds": rounds}])
        run = self.run_of("cell", name, {"rows": "all", "rounds": rounds}, values, {})
        with self.made([run]) as table:
            key = run.keys.run_key
            rows = (table.summary(key) or {}).get("metric", {}).get("test_rows")
            return {
                "status": table.status(key),
                "reason": table.reason(key),
                "test_rows": rows,
                **table.responses(key),
            }

    def planned(self, asked: AskedRun) -> PlannedRun:
        """Return the run of an arm on a fold."""
        one = self.files[asked.arm]
        rates = one.points[asked.point]
        values = overridden(one.run, [rates, {"rounds": asked.rounds}])
        given = values.get("evaluation", {})
        kept = {key: x for key, x in given.items() if key not in ("every", "validation")}
        values["evaluation"] = {**kept, "on": "validation", "fold": asked.fold, "rounds": list(LOOKS)}
        return self.run_of("trial", asked.arm, {"fold": asked.fold, "rounds": asked.rounds, **rates}, values, rates)

    def run_of(self, kind: Kind, name: str, told: Row, values: Row, rates: Row) -> PlannedRun:
        """Return a run as the study plans it."""
        levels = (("choice", name), *sorted((key, level_name(x)) for key, x in told.items()))
        found = self.known.described(values, self.seed)
        return with_seeds(kind, levels, tuple(rates.items()), found, [self.seed])[0]

    def made(self, runs: Sequence[PlannedRun]) -> closing[Table]:
        """Make the runs that are missing; return the table."""
        for run in runs:
            cell = Cell(run.levels, (), holdout=False)
            self.cells.setdefault(run.keys.run_key, CellRuns(cell, (), (run,)))
        study = study_file(sorted(self.files), self.parallel, self.seconds)
        plan = StudyPlan(study, (), (), self.known, (), tuple(self.cells.values()))
        with closing(Table.open(self.out / TABLE, write=True)) as table:
            begin(plan, table)
            missing = [one for key, one in self.cells.items() if table.status(key) not in ENDED]
            carry_out(plan._replace(cells=tuple(missing)), table, self.say, self.runs)
        return closing(Table.open(self.out / TABLE))


def fold_rows(summary: Row) -> FoldRows | None:
    """Return the judged rows that a run's summary keeps; None if there are none."""
    kept: Any = summary.get(JUDGED_ROWS)
    if kept is None:
        return None
    arrays = {key: np.asarray(kept[key], dtype=float) for key in ("score", "constant", "weight")}
    return FoldRows(**arrays, client=np.asarray(kept["client"], dtype=np.intp))


def study_file(names: Sequence[str], parallel: int, seconds: float | None) -> StudyFile:
    """Return the study in whose name the table keeps the runs."""
    levels = [{"name": name, "set": {}} for name in names]
    how: Plain = {"parallel": parallel, "keep": "folder"} | ({} if seconds is None else {"seconds": seconds})
    tables: Plain = {"factor": [{"name": "choice", "role": "choice", "level": levels}], "execute": how}
    return study_of(tables, NAME, Path())
