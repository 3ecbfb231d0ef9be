"""Run every scheme with every seed in one folder, share the baselines, and answer which scheme did best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.comparison.answer import answer_of
from fedatlas.comparison.folder import refuse_smaller
from fedatlas.comparison.jobs import ComparedRun, JobEnd, JobRunner, Say, there
from fedatlas.comparison.schemes import ComparedScheme, Comparison
from fedatlas.config import ExperimentConfig
from fedatlas.data.sources import read_once
from fedatlas.errors import FedatlasError
from fedatlas.files import write_json
from fedatlas.machine import one_thread_an_operator
from fedatlas.record.run_folder import CONFIG, SUMMARY, RunFolder, asked
from fedatlas.record.summary import write_summary
from fedatlas.reporting import COMPARISON, write_report
from fedatlas.runs.answer import answer_of as run_answer
from fedatlas.runs.answer import told
from fedatlas.runs.columns_answer import columns_answer_again
from fedatlas.runs.ensure import finished
from fedatlas.runs.finish import More
from fedatlas.runs.price import check_price
from fedatlas.runs.seeds import summed_up
from fedatlas.study.local_runs import PARALLEL, preload
from fedatlas.wording import count, listed

RECORD = "comparison.json"
SHARED = "shared-baselines"
NOTES = "working"  # written by the children while they run


def compare(
    given: Comparison,
    out: Path,
    *,
    baselines: bool | None = None,
    price: bool = False,
    parallel: int = PARALLEL,
    say: Say = print,
) -> dict[str, Any]:
    """Make the missing runs, and return the record in ``out / RECORD``: the schemes and the answer.

    If it is stopped at any time, a new call continues from there, also with more schemes or seeds. ConfigError if the
    folder holds something else, or another process works on it. ``price``: also run each scheme without its
    ``[[privacy]]``.
    """
    if price:
        refuse_price(given)
    refuse_smaller(out, RECORD, {one.label: one.key for one in given.schemes}, given.seeds)
    with RunFolder(out).claimed():
        record: dict[str, Any] = {"key": given.key, "keys": list(given.keys), "seeds": list(given.seeds)}
        record["schemes"] = [head_of(one) for one in given.schemes]
        write_json(out / RECORD, record)  # without the answer, which may change
        for one in given.schemes:
            begun(one, out / one.label, asked(baselines, price))
        options = asked(baselines, price)
        more = More(baselines, attacks=True, report=False, options=options, price=price, shared=out / SHARED)
        # In this order parallel runs have different seeds, so that no run waits for another's baselines.
        jobs = [
            ComparedRun(one.label, seed, one.checked.with_seed(seed), out / one.label / f"seed-{seed}")
            for one in given.schemes
            for seed in given.seeds
        ]
        for job in jobs:
            reworded(job)
        ends = carry_out_all([job for job in jobs if not there(job, more)], out, more, parallel, say)
        record |= {"schemes": [ended(one, out / one.label, given.seeds, ends) for one in given.schemes]}
        record |= {"answer": answer_of(record["schemes"], out, given.keys, given.file)}
        order = [one["scheme"] for one in record["answer"]["rows"]]
        shown = [each["label"] for each in record["schemes"] if each["shown"]]
        if paths := [
            out / label for label in sorted(shown, key=lambda x: order.index(x) if x in order else len(order))
        ]:
            record["page"] = write_report(paths, out / COMPARISON, record["answer"]["remarks"]).name
        write_json(out / RECORD, record)
    return record


def plan_lines(given: Comparison, out: Path) -> list[str]:
    """Return the plan of `compare`: the schemes, the seeds, how many runs are missing, and the folder.

    ConfigError as `compare` would raise for the folder.
    """
    refuse_smaller(out, RECORD, {one.label: one.key for one in given.schemes}, given.seeds)
    known = [(one, out / one.label / f"seed-{seed}", seed) for one in given.schemes for seed in given.seeds]
    missing = sum(finished(one.checked.with_seed(seed), folder) is None for one, folder, seed in known)
    seeds = f"{'seed' if len(given.seeds) == 1 else 'seeds'} {listed([*map(str, given.seeds)])}"
    return [
        f"{count(len(given.schemes), 'scheme')}: {listed([one.label for one in given.schemes])}; {seeds}.",
        f"{count(len(known), 'run')}, of which {missing} would be run now, beside baselines that are wanted.",
        f"Folder: {out}",
    ]


def refuse_price(given: Comparison) -> None:
    """Raise ConfigError if no scheme has a price to measure."""
    protected = [one.checked.config for one in given.schemes if one.checked.config.privacy]
    for config in protected or [one.checked.config for one in given.schemes][:1]:
        check_price(config)


def begun(one: ComparedScheme, folder: Path, options: Mapping[str, Any]) -> None:
    """Make the folder of a scheme, which `fedatlas run --resume` and `fedatlas report` read like that of several seeds."""
    if (folder / CONFIG).exists():
        top = RunFolder.open(folder)
        if top.config().seeds != one.config.seeds or words_of(top.config()) != words_of(one.config):
            top.reopen()
            top.rewrite(one.config)
        return
    RunFolder.create(folder, one.config, options)


def reworded(job: ComparedRun) -> None:
    """Give an existing run the current words and margin. They change its answer, not its rounds."""
    if not (job.folder / CONFIG).exists() or finished(job.whole, job.folder) is None:
        return
    folder = RunFolder.open(job.folder)
    if words_of(folder.config()) == words_of(job.whole.config):
        return
    folder.rewrite(job.whole.config)
    summary = folder.summary()
    answered = columns_answer_again if job.whole.columns else run_answer
    if (found := answered(job.folder, summary)) is not None:
        summary["answer"] = told(found)
        write_summary(folder, summary)


def words_of(config: ExperimentConfig) -> tuple[object, ...]:
    """Return the settings of an answer's words and verdict, which change nothing that a run computes."""
    return config.words, config.evaluation.margin


def head_of(one: ComparedScheme) -> dict[str, Any]:
    """Return the beginning of a scheme's entry in the record."""
    return {"label": one.label, "given": list(one.given), "key": one.key}


@one_thread_an_operator()
def carry_out_all(
    jobs: Sequence[ComparedRun], out: Path, more: More, parallel: int, say: Say
) -> dict[tuple[str, int], JobEnd]:
    """Run the jobs in children, which share the data read before they are forked."""
    if not jobs:
        return {}
    with read_once():
        preload(jobs[0].whole.config, jobs[0].seed)
        return JobRunner(jobs, out / NOTES, more, parallel, say).run_all()


def ended(
    one: ComparedScheme, folder: Path, seeds: Sequence[int], ends: dict[tuple[str, int], JobEnd]
) -> dict[str, Any]:
    """Sum up a scheme over its seeds; return its entry of the record."""
    bad = {seed: end for seed in seeds if (end := ends.get((one.label, seed), JobEnd("done"))).status != "done"}
    out = head_of(one)
    if bad:
        out["ended"] = {str(seed): end._asdict() for seed, end in bad.items()}
    runs = [RunFolder(folder / f"seed-{seed}") for seed in seeds if seed not in bad]
    if not bad:
        summed_up(folder, [run.summary() for run in runs])
    # The page shows a run that diverged as it was before, so it needs a summary, but not one of the whole scheme.
    shown = not bad or all(_has_summary(folder / f"seed-{seed}") for seed in seeds)
    return {**out, "seeds": [seed for seed in seeds if seed not in bad], "shown": shown}


def _has_summary(folder: Path) -> bool:
    try:
        return (folder / SUMMARY).exists() and bool(RunFolder(folder).summary())
    except FedatlasError:
        return False
