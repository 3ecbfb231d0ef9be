"""Several seeds of one experiment: one run each, unless it already exists, and the spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedatlas.course.progress import Progress, Run
from fedatlas.errors import DivergedError
from fedatlas.federation.link import Observer
from fedatlas.record.fields import RunSummary
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import over, write_summary
from fedatlas.reporting import write_report
from fedatlas.runs.answer import answer_over, told
from fedatlas.runs.ensure import ensure
from fedatlas.runs.epsilon import of_seeds
from fedatlas.runs.finish import More, closed
from fedatlas.setup.checked import Checked
from fedatlas.tracking.follower import tracked


def run_seeds(whole: Checked, path: Path, more: More, progress: Progress, observers: Iterable[Observer] = ()) -> Run:
    """Run every seed in a separate folder in ``path``. DivergedError, after the last, if one of them diverged."""
    with tracked(whole.config, path, progress) as told:
        return _run_seeds(whole, path, more, told, observers)


def _run_seeds(whole: Checked, path: Path, more: More, progress: Progress, observers: Iterable[Observer]) -> Run:
    summaries, diverged = [], dict[int, DivergedError]()
    for seed in whole.config.seeds or ():
        progress.said(f"Seed {seed}.")
        one, folder = whole.with_seed(seed), path / f"seed-{seed}"
        try:
            summaries.append(ensure(one, folder, more, progress, observers).summary)
        except DivergedError as error:
            diverged[seed] = error
            progress.said(f"Seed {seed}: {error}")
    if diverged:
        write_report([path])
        raise DivergedError(" ".join(f"seed {seed}: {error}" for seed, error in diverged.items()))
    return closed(summed_up(path, summaries), more, progress)


def summed_up(path: Path, summaries: Sequence[RunSummary]) -> Run:
    """Write the summary over the seeds of a folder, and return it as a run.

    Where only some seeds have baselines, the answer is over these.
    """
    top = RunFolder.open(path)
    summary = over(summaries, top.config().hash())
    compared = [one for one in summaries if one.get("answer", {}).get("compared")]
    if (found := answer_over(compared or summaries, top.config())) is not None:
        summary["answer"] = told(found)
    if any("epsilon" in one.get("privacy", {}) for one in summaries):
        summary["epsilon_together"] = of_seeds(path)
    write_summary(top, summary)
    return Run(path, summary)
