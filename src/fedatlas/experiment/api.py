"""The experiment as a value, and the three things to do with it: run it, look at what came of it, use the model."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from fedatlas.errors import ConfigError
from fedatlas.experiment.config import ExperimentConfig, override, parse, read
from fedatlas.experiment.files import write_json
from fedatlas.experiment.gain import BASELINES, CHEAP, baseline_config, baseline_path, expected_flops, gain
from fedatlas.experiment.record import CONFIG, METRICS, SUMMARY, RunFolder
from fedatlas.experiment.report import write_report
from fedatlas.experiment.run import Progress, Run, Silent, own_module, run_one
from fedatlas.experiment.summary import over

if TYPE_CHECKING:
    import pandas


class Experiment(NamedTuple):
    """A configuration, and optionally a network of one's own in place of ``[model]``.

    ``Experiment.of(rounds=5, algorithm={"name": "fedprox", "mu": 0.1})`` or ``Experiment.read("FILE.toml", "local.lr=0.01")``.
    """

    config: ExperimentConfig
    module: nn.Module | None = None

    @classmethod
    def of(cls, module: nn.Module | None = None, **tables: Any) -> Experiment:
        """From tables as keyword arguments; what is left out has its default."""
        return cls(parse(tables), module)

    @classmethod
    def read(cls, path: str | Path, *overrides: str, module: nn.Module | None = None) -> Experiment:
        """From an experiment file with ``table.key=value`` overrides."""
        return cls(read(Path(path), overrides), module)


def run(
    experiment: Experiment | ExperimentConfig | None = None,
    *,
    out: str | Path | None = None,
    baselines: bool | None = None,
    progress: Progress | None = None,
) -> Run:
    """Runs an experiment (None: the embedded default) and returns its folder and summary.

    ``baselines``: also train every client alone and all rows together, for the table of what each party gains; by default
    where that is cheap. With ``seeds`` every seed has a folder of its own in ``out``.
    """
    if not isinstance(experiment, Experiment):
        experiment = Experiment(experiment or parse({}))
    config = experiment.config
    path = Path(out) if out is not None else default_path(config)
    if config.seeds is None:
        return _run_seed(experiment, path, False, baselines, progress or Silent())
    return _run_seeds(experiment, path, baselines, progress or Silent())


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    module: nn.Module | None = None,
    baselines: bool | None = None,
    progress: Progress | None = None,
) -> Run:
    """Continues a run from its last whole checkpoint; it ends as if it had never stopped.

    The one key that may change is ``rounds``. ``module`` where the run had a network of one's own.
    """
    path = Path(path)
    folder = RunFolder.open(path)
    config = folder.config()
    if overrides:
        values = config.plain()
        for text in overrides:
            if text.partition("=")[0].strip() != "rounds":
                raise ConfigError(f"'{text}': a run that is resumed keeps its configuration; only rounds=N may change.")
            override(values, text)
        if config.local.schedule.name == "cosine":
            raise ConfigError("rounds: the cosine schedule depends on the number of rounds, so it cannot change now.")
        config = parse(values)
        folder.rewrite(config)
    experiment = Experiment(config, module)
    if config.seeds is not None:
        return _run_seeds(experiment, path, baselines, progress or Silent())
    again = any((path / "checkpoint").glob("manifest-*.json"))
    if not again:  # stopped before its first checkpoint: nothing to continue, so it begins
        for name in (CONFIG, METRICS):
            (path / name).unlink(missing_ok=True)
    return _run_seed(experiment, path, again, baselines, progress or Silent())


def _run_seed(experiment: Experiment, path: Path, again: bool, baselines: bool | None, progress: Progress) -> Run:
    done = run_one(experiment.config, path, resume=again, module=experiment.module, progress=progress)
    summary = dict(done.summary)
    if wants_baselines(experiment.config, summary, baselines):
        for name in BASELINES:
            progress.said(f"Baseline for comparison: {name}.")
            resolved = RunFolder.open(
                path
            ).config()  # with what the algorithm fixes: the same rows, the same local work (H0)
            folder, config = baseline_path(path, name), baseline_config(resolved, name)
            if (folder / CONFIG).exists() and RunFolder.open(folder).config().rounds != config.rounds:
                shutil.rmtree(folder)  # the run was made longer: so are its baselines
            started = any((folder / "checkpoint").glob("manifest-*.json"))
            if not started:
                shutil.rmtree(folder, ignore_errors=True)
            if not (folder / SUMMARY).exists():
                run_one(config, folder, resume=started, module=experiment.module)
        summary["gain"] = gain(path)
        write_json(path / SUMMARY, summary)
    write_report([path], None)
    progress.finished(path, summary)
    return Run(path, summary)


def _run_seeds(experiment: Experiment, path: Path, baselines: bool | None, progress: Progress) -> Run:
    config = experiment.config
    if not (path / CONFIG).exists():
        RunFolder.create(path, config)
    summaries = []
    for seed in config.seeds or ():
        folder = path / f"seed-{seed}"
        one = parse({**{k: v for k, v in config.plain().items() if k != "seeds"}, "seed": seed})
        progress.said(f"Seed {seed}.")
        again = (folder / CONFIG).exists()
        summaries.append(_run_seed(Experiment(one, experiment.module), folder, again, baselines, progress).summary)
    summary = over(summaries)
    write_json(path / SUMMARY, summary)
    write_report([path], None)
    progress.finished(path, summary)
    return Run(path, summary)


def wants_baselines(config: ExperimentConfig, summary: Mapping[str, Any], asked: bool | None) -> bool:
    """Whether the baselines are trained: as asked, else where they cost less than `CHEAP`; never for a baseline itself."""
    if config.algorithm.name in BASELINES:
        return False
    if asked is not None:
        return asked
    examples = sum(row["train_rows"] for row in summary["per_client"]) * (config.local.epochs or 1)
    return 2 * expected_flops(examples, summary["forward_flops"], config.rounds) < CHEAP


def default_path(config: ExperimentConfig) -> Path:
    """A new folder under ``runs/`` named by data, algorithm and time."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{config.data.name}-{config.algorithm.name}-{stamp}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


class Loaded(NamedTuple):
    """A finished run, read back."""

    path: Path
    config: ExperimentConfig
    model: nn.Module
    rows: pandas.DataFrame
    summary: Mapping[str, Any]


def load(path: str | Path, module: nn.Module | None = None) -> Loaded:
    """Model, configuration and rows of a run. ``module`` where the run had a network of one's own."""
    import pandas
    from safetensors.torch import load_file

    from fedatlas.experiment.setup import set_up

    folder = RunFolder.open(Path(path))
    config = folder.config()
    if config.seeds is not None:
        raise ConfigError(
            f"'{path}' holds several seeds: name one of them, such as {Path(path) / f'seed-{config.seeds[0]}'}."
        )
    summary = folder.summary()
    own_module(folder.path, module, resume=True)
    setup = set_up(config, config.seed, module)
    setup.network.module.load_state_dict(load_file(folder.path / "model.safetensors"))
    setup.network.module.eval()
    return Loaded(folder.path, config, setup.network.module, pandas.DataFrame(folder.rows()), summary)


def summary_of(path: str | Path) -> dict[str, Any]:
    """summary.json of a run as plain values."""
    value: dict[str, Any] = json.loads((Path(path) / SUMMARY).read_text(encoding="utf-8"))
    return value
