"""Several seeds of one experiment: each its own run, as far as it is not there, and the spread over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from fedatlas.config import ExperimentConfig
from fedatlas.course.progress import Progress, Run
from fedatlas.data.sources import read_once
from fedatlas.errors import DivergedError
from fedatlas.federation.link import Observer
from fedatlas.files import write_json
from fedatlas.record.run_folder import SUMMARY, RunFolder, asked
from fedatlas.record.summary import over
from fedatlas.reporting import write_report
from fedatlas.runs.baselines import compared
from fedatlas.runs.ensure import ensure


def run_seeds(
    config: ExperimentConfig,
    path: Path,
    module: nn.Module | None,
    baselines: bool | None,
    progress: Progress,
    observers: Iterable[Observer] = (),
) -> Run:
    """Every seed in a folder of its own in ``path``, with baselines where they are wanted; DivergedError, behind the last, if one did."""
    summaries, diverged = [], dict[int, DivergedError]()
    for seed in config.seeds or ():
        one = config.model_copy(update={"seed": seed, "seeds": None})
        progress.said(f"Seed {seed}.")
        try:
            done = ensure_seed(one, path / f"seed-{seed}", module, baselines, progress, observers)
            summaries.append(done.summary)
        except DivergedError as error:
            diverged[seed] = error
            progress.said(f"Seed {seed}: {error}")
    if diverged:
        write_report([path])
        raise DivergedError(" ".join(f"seed {seed}: {error}" for seed, error in diverged.items()))
    summary = over(summaries, RunFolder.open(path).config().hash())
    write_json(path / SUMMARY, summary)
    write_report([path])
    progress.finished(path, summary)
    return Run(path, summary)


def ensure_seed(
    config: ExperimentConfig,
    path: Path,
    module: nn.Module | None,
    baselines: bool | None,
    progress: Progress,
    observers: Iterable[Observer] = (),
) -> Run:
    """One of several seeds: its run and its baselines, as far as they are not there; the data are read once for all of them."""
    with contextlib.nullcontext() if baselines is False else read_once():
        done = ensure(
            config,
            path,
            module=module,
            options=asked(baselines),
            report=False,
            progress=progress,
            observers=observers,
        )
        with RunFolder(path).claimed():
            return compared(done, config, module, baselines, progress)
