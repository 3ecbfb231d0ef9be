"""Tune keys on validation rows, by runs in a study's table. Then train the winner once, as the file says."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedatlas import plugins
from fedatlas.comparison.draws import Searched, searched_keys, trials_of
from fedatlas.comparison.folder import refuse_other
from fedatlas.comparison.tune_notices import near_end, told_apart
from fedatlas.comparison.values import given_keys, stopped
from fedatlas.config import EvaluationConfig, ExperimentConfig, parse, value_of
from fedatlas.course.progress import Progress, Run
from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.files import write_json, write_text
from fedatlas.machine import one_thread_an_operator
from fedatlas.metrics.metric import METRICS
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.privacy.terms import CHOSEN
from fedatlas.record.run_folder import TUNED, WON, RunFolder
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from fedatlas.study.answers import judged_of
from fedatlas.study.cells import Cell
from fedatlas.study.configurations import Configurations
from fedatlas.study.design import StudyFile, level_name, study_of
from fedatlas.study.execute import Say, execute
from fedatlas.study.levels import overridden
from fedatlas.study.plain import Plain, toml_of
from fedatlas.study.plan import CellRuns, PlannedRun, StudyPlan, judge_on_validation, with_seeds
from fedatlas.study.study import TABLE
from fedatlas.study.table import Table
from fedatlas.verdict.evidence import Difference, of_draws

WINNER = "winner.toml"
NAME = "tune"  # of the study in the table


class Tuning(NamedTuple):
    """The keys to search, and the experiment."""

    name: str  # of its default folder
    key: str  # of the experiment and what is searched; a folder continues a tuning with the same key
    values: Plain  # the experiment as written
    config: ExperimentConfig
    keys: tuple[Searched, ...]

    def with_values(self, trial: Mapping[str, Any]) -> Plain:
        """Return the experiment with the values of a trial."""
        return overridden(self.values, [trial])

    def judged(self, trial: Mapping[str, Any]) -> Plain:
        """Return the experiment of a trial, judged on validation rows."""
        values = self.with_values(trial)
        share = values.get("evaluation", {}).get("validation", EvaluationConfig().validation)
        judge_on_validation(values, share, often="stop" in values)  # [stop] looks at every judged round
        return values


def tuning_of(path: Path | None, words: Sequence[str]) -> Tuning:
    """Return what to tune from ``key=a..b`` and ``key=a,b`` words. ConfigError with all errors in one sentence."""
    given = given_keys(words)
    keys = searched_keys(given)
    tried = {one.key for one in keys}
    fixed = {one.key: value_of(one.values[0]) for one in given if one.key not in tried}
    values = overridden({} if path is None else toml_of(path, "experiment")[1], [fixed])
    if "seeds" in values:
        raise ConfigError(
            "a tuning has one seed, since the test rows of another would be rows that it chose by: write seed=1, and run "
            f"{WINNER} with several seeds afterwards."
        )
    config = parse(values)
    ends = [repr((one.key, one.values, one.ends)) for one in keys]
    text = [json.dumps(values, sort_keys=True, default=repr), *sorted(ends), *sorted(plugins.LOADED.values())]
    key = hashlib.sha256("\0".join(text).encode()).hexdigest()
    found = Tuning(f"{path.stem if path else 'default'}-{key[:8]}", key, values, config, tuple(keys))
    refuse_wrong(found)
    return found


def refuse_wrong(given: Tuning) -> None:
    """Raise ConfigError that names every listed value, or end of a range, with which the experiment cannot run."""
    first, wrong = {one.key: one.limits[0] for one in given.keys}, dict[str, list[str]]()
    with read_once(), one_thread_an_operator():
        for one in given.keys:
            for value in one.limits:
                try:
                    set_up(checked(parse(given.judged({**first, one.key: value}))).of_rows())
                except FedatlasError as error:
                    wrong.setdefault(str(error).rstrip("."), []).append(f"{one.key}={level_name(value)}")
    if not wrong:
        return
    if len(wrong) == 1 and len(next(iter(wrong.values()))) == sum(len(one.limits) for one in given.keys):
        raise ConfigError(stopped(next(iter(wrong))))  # the same for all values: the file is at fault
    raise ConfigError(stopped("; ".join(f"{', '.join(names)}: {why}" for why, names in wrong.items())))


def plan_of_trials(given: Tuning, trials: Sequence[Mapping[str, Any]], parallel: int) -> StudyPlan:
    """Return the trials as the plan of a study with one cell each."""
    known, seed = Configurations(), given.config.seed
    cells = []
    for trial in trials:
        levels = tuple(sorted((key, level_name(value)) for key, value in trial.items()))
        runs = with_seeds("trial", levels, tuple(trial.items()), known.described(given.judged(trial), seed), [seed])
        cells.append(CellRuns(Cell(levels, (), holdout=False), (), runs))
    return StudyPlan(study_file(given, parallel), (), (), known, (), tuple(cells))


def study_file(given: Tuning, parallel: int) -> StudyFile:
    """Return the study under which the table keeps the trials."""
    levels = [{"name": one.key, "set": {}} for one in given.keys]
    tables = {"base": given.values, "factor": [{"name": "tried", "role": "choice", "level": levels}]}
    return study_of({**tables, "execute": {"parallel": parallel}}, NAME, Path(), given.key)


def tune(
    given: Tuning, out: Path, budget: int, progress: Progress, *, parallel: int = 2, say: Say = print
) -> tuple[Run, Plain]:
    """Try up to ``budget`` combinations, and train the one that does best on validation rows as the file says.

    Returns the winner's run, whose figures are on test rows, and the record in ``out / TUNED``. Finished runs are kept,
    also for a larger budget. ConfigError if no trial came to its end.
    """
    refuse_other(out, TUNED, given.key, "tuning")
    with RunFolder(out).claimed():
        head: Plain = {"key": given.key, "seed": given.config.seed, "budget": budget}
        write_json(out / TUNED, head)
        trials = trials_of(given.keys, budget, given.config.seed)
        plan = plan_of_trials(given, trials, parallel)
        with closing(Table.open(out / TABLE, write=True)) as table:
            execute(plan, table, say)
            tried = [said(table, one.runs[0]) for one in plan.cells]
            best = winner(tried)
            ordered = [one for one in sorted(tried, key=better, reverse=True) if one["validation"] is not None]
            gap = paired(table, *ordered[:2]) if len(ordered) > 1 else None
        values = given.with_values(best["values"])
        write_winner(out / WINNER, values, best)
        say(f"The winner, {values_text(best['values'])}, is trained as the file says, and judged once.")
        done = ensure(checked(parse(values)), out / WON, More(None, attacks=True), progress)
        notices = [*told_apart(ordered, gap), *near_end(given.keys, best["values"])]
        notices += [CHOSEN] if "epsilon" in done.summary.get("privacy", {}) else []
        record = {
            **head,
            "notices": notices,
            "trials": tried,
            "winner": best["values"],
            "validation": best["validation"],
        }
        write_json(out / TUNED, record)
    return done, record


def said(table: Table, run: PlannedRun) -> Plain:
    """Return a trial's entry of the record: its values, how it ended, and its figure on validation rows."""
    key = run.keys.run_key
    status, summary = table.status(key), table.summary(key)
    figure, value = figure_of(summary) if status == "done" and summary else ("", None)
    rows = summary.get("metric", {}).get("test_rows") if summary else None
    return {
        "run_key": key,
        "values": dict(run.rates),
        "status": status,
        "figure": figure,
        "validation": value,
        "rows": rows,
    }


def paired(table: Table, one: Plain, other: Plain) -> Difference | None:
    """Return the difference of two trials by the same draws of the validation rows; None if the table keeps no draws."""
    kept = [judged_of({"judged": table.summary(each["run_key"]) or {}}, each["figure"]) for each in (one, other)]
    means = [each.mean for each in kept if each is not None and each.drawn]
    return of_draws(means[0].values - means[1].values, means[0].rows) if len(means) > 1 else None


def figure_of(summary: Plain) -> tuple[str, float | None]:
    """Return the name of the figure that decides (``evaluation.metric``), and its value on the rows that a run is judged on."""
    usual = "rmse" if summary["task"] == "numbers" else "accuracy"
    found = summary.get("metric") or {"name": usual, "value": summary["final"].get(usual)}
    return found["name"], found["value"]


def better(one: Plain) -> float:
    """Return a trial's sort key: more is better; minus infinity without a figure."""
    if one["validation"] is None:
        return -math.inf
    lower = one["figure"] in LOWER_IS_BETTER or (one["figure"] in METRICS and METRICS[one["figure"]].lower_is_better)
    return -float(one["validation"]) if lower else float(one["validation"])


def winner(tried: Sequence[Plain]) -> Plain:
    """Return the trial that did best, the earlier among equals. ConfigError if none came to its end."""
    best = max(tried, key=better)
    if best["validation"] is None:
        ends = ", ".join(dict.fromkeys(one["status"] for one in tried))
        raise ConfigError(f"no trial came to its end ({ends}): try other values.")
    return best


def write_winner(path: Path, values: Plain, best: Plain) -> None:
    """Write the experiment with the winner's values."""
    head = f"# The winner of 'fedatlas tune': {values_text(best['values'])};\n"
    head += f"# {best['figure']} {best['validation']:.4f} on validation rows. Relative paths start in the current folder.\n\n"
    write_text(path, head + tomli_w.dumps(values))


def values_text(values: Mapping[str, Any]) -> str:
    """Return values as overrides in one line."""
    return " ".join(f"{key}={level_name(value)}" for key, value in values.items())


def winner_text(record: Plain, done: Run) -> str:
    """Return the winner's figure on test rows, as a sentence."""
    shown_by: Plain = {**done.summary}
    if tested := done.summary.get("test"):
        shown_by |= {"final": tested, "metric": tested.get("metric")}
    figure, value = figure_of(shown_by)
    reached = "-" if value is None else f"{value:.4f}"
    return f"The winner, {values_text(record['winner'])}, reaches {figure} {reached} on test rows, which no choice has used."


def lines(record: Plain, done: Run, out: Path) -> list[str]:
    """Return the answer: the best trials, the winner's figure on test rows, and the files."""
    best = sorted(record["trials"], key=better, reverse=True)
    shown = [one for one in best if one["validation"] is not None][:SHOWN]
    figure = best[0]["figure"]
    lost = [one for one in record["trials"] if one["validation"] is None]
    told = [f"{figure} {one['validation']:.4f} on validation rows: {values_text(one['values'])}" for one in shown]
    if lost:
        told.append(f"{len(lost)} of {len(record['trials'])} trials did not come to their end.")
    answer = [done.summary["answer"]["text"]] if "answer" in done.summary else []
    return [
        *told,
        *record["notices"],
        winner_text(record, done),
        *answer,
        f"Its file: {out / WINNER}; its run: {done.path}",
    ]


SHOWN = 5  # trials that are printed
