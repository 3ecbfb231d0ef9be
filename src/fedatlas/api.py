"""The experiment as a value, and the things to do with it: look before, run it, look at what came of it, use the model."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedatlas.config import ExperimentConfig, bound_to_rounds, override, parse, read
from fedatlas.course.progress import Progress, Run, Silent
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.federation.link import Observer
from fedatlas.files import disk_error
from fedatlas.prediction.parties import predict as predict_between
from fedatlas.record.initial_files import same_beginning
from fedatlas.record.run_folder import CONFIG, OPTIONS, RunFolder, asked
from fedatlas.reporting import write_report
from fedatlas.runs.ensure import carry_out, rounds_done, start_of
from fedatlas.runs.finish import More
from fedatlas.runs.seeds import run_seeds
from fedatlas.setup.columns_method import rounds_key, rounds_of
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.setup.resolution import apply_fixes

if TYPE_CHECKING:
    import pandas

    from fedatlas.prediction.finished_run import FinishedRun
    from fedatlas.runs.preview import Shown


class Experiment(NamedTuple):
    """A configuration, and optionally a network of one's own, an object whose weights are what every run begins with.

    It stands in place of ``[model]``, whose ``loss`` and ``bn`` alone hold for it, too.
    ``Experiment.of(rounds=5, algorithm={"name": "fedprox", "mu": 0.1})`` or ``Experiment.read("FILE.toml", "local.lr=0.01")``.
    """

    config: ExperimentConfig
    module: nn.Module | None = None

    @classmethod
    def of(cls, module: nn.Module | None = None, **tables: Any) -> Experiment:
        """From tables as keyword arguments; what is left out has its default."""
        if isinstance(module, Mapping):
            raise ConfigError(
                "Experiment.of takes tables as keyword arguments: Experiment.of(rounds=2), or of(**tables)."
            )
        table = tables.get("model")
        for key in table if module is not None and isinstance(table, Mapping) else ():
            if key not in ("loss", "bn"):
                raise ConfigError(
                    f"model.{key} builds no network where one is given as module=...: leave one of them out."
                )
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
    observers: Iterable[Observer] = (),
) -> Run:
    """Runs an experiment (None: the embedded default) and returns its folder and summary.

    ``baselines``: also train every client alone and all rows together, for the table of what each party gains; by default
    where that is cheap. With ``seeds`` every seed has a folder of its own in ``out``. ``observers`` are shown what crosses
    between server and parties (`fedatlas.federation.link.Observer`), of every seed, of no baseline; they change no result.
    """
    given = _whole(experiment)
    whole, progress = checked(*given), progress or Silent()
    path = Path(out) if out is not None else new_folder(given.config)
    more, observers = More(baselines, attacks=True, options=asked(baselines)), tuple(observers)
    try:
        with RunFolder(path).claimed():
            if whole.config.seeds is None:
                return carry_out(whole, path, "new", more, progress, observers)
            fixed, _ = apply_fixes(given.config, whole.algorithm)  # config.toml names every key, also those it fixes
            folder = RunFolder.create(path, fixed, more.options)
            try:
                return run_seeds(whole, path, more, progress, observers)
            except FedatlasError:
                if not any(path.glob(f"seed-*/{CONFIG}")):  # refused before anything began: no folder stands in the way
                    folder.discard()
                raise
    finally:
        if out is None:
            with contextlib.suppress(OSError):  # goes only where it is empty: the run was refused
                path.rmdir()


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    module: nn.Module | None = None,
    baselines: bool | None = None,
    progress: Progress | None = None,
    observers: Iterable[Observer] = (),
) -> Run:
    """Continues a run from its last whole checkpoint; it ends as if it had never stopped.

    The one key that may change is ``rounds``. ``module`` where the run had a network of one's own. What was asked about
    ``baselines`` when the run began still holds. ``observers`` as in `run`: they see the rounds that are done now.
    """
    path, progress, observers = Path(path), progress or Silent(), tuple(observers)
    folder = RunFolder.open(path)
    with folder.claimed():
        config = longer(folder, overrides) if overrides else folder.config()
        baselines = remember(path, baselines)
        more = More(baselines, attacks=True, options=asked(baselines))
        if config.seeds is None:
            if (start := start_of(path)) == "resume":
                same_beginning(path, module)  # before a name that only a plug-in knows is looked for
            return carry_out(checked(config, module), path, start, more, progress, observers)
        if overrides:
            folder.reopen()
            folder.rewrite(config)
        return run_seeds(checked(config, module), path, more, progress, observers)


def longer(folder: RunFolder, overrides: Sequence[str]) -> ExperimentConfig:
    """The run's configuration with another number of rounds; ConfigError for any other key, and for fewer than are done."""
    config = folder.config()
    values, own = config.plain(), rounds_key(config)
    for text in overrides:
        given, equals, value = text.partition("=")
        key = "rounds" if given.strip() in {"rounds", own} else given.strip()
        if key != "rounds":
            raise ConfigError(f"'{text}': a run that is resumed keeps its configuration; only rounds=N may change.")
        override(values, f"{own}{equals}{value}")
    if config.local.schedule.name == "cosine" and config.local.schedule.rounds is None:
        raise ConfigError("rounds: the cosine schedule depends on the number of rounds, so it cannot change now.")
    if mechanism := bound_to_rounds(config.privacy):
        raise ConfigError(
            f"rounds: the noise of '{mechanism}' is made for the number of rounds, so it cannot change now: begin a new run."
        )
    wanted = parse(values)
    parts = [folder.path / f"seed-{seed}" for seed in config.seeds or ()] or [folder.path]
    done = max(rounds_done(part) for part in parts)
    if (rounds := rounds_of(wanted)) < done:
        raise ConfigError(
            f"rounds = {rounds}: '{folder.path}' has done {done} rounds already; ask for {done} or more, or start a new run."
        )
    return wanted


def remember(path: Path, baselines: bool | None) -> bool | None:
    """What is asked about baselines: now, else when the run began (None = where they are cheap). Kept with the run."""
    if baselines is not None:
        RunFolder(path).write_json(OPTIONS, asked(baselines))
        return baselines
    before: bool | None = (
        RunFolder(path).read_json(OPTIONS, "baselines")["baselines"] if (path / OPTIONS).exists() else None
    )
    return before


def new_folder(config: ExperimentConfig) -> Path:
    """An empty folder under ``runs/`` named by data, algorithm and time; made here, so that no other run begun now takes it."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{config.data.name}-{config.algorithm.name}-{stamp}"
    path, number = base, 2
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        while path.exists() or not made(path):
            path, number = base.with_name(f"{base.name}-{number}"), number + 1
    except OSError as error:
        raise disk_error(path, error) from error
    return path


def made(path: Path) -> bool:
    """Makes a folder; False where another process was faster."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def dry_run(
    experiment: Experiment | ExperimentConfig | None = None, *, baselines: bool | None = None
) -> dict[str, Any]:
    """Who would hold what, how many bytes would be sent and about how long it would take; every refusal; trains nothing."""
    from fedatlas.runs import preview

    return preview.dry_run(checked(*_whole(experiment)), baselines)


def partition(experiment: Experiment | ExperimentConfig | None = None, out: str | Path | None = None) -> Shown:
    """Who would hold what: row indices and figures of each client, and as text; ``out``: also draw it as SVG."""
    from fedatlas.runs import preview

    return preview.partition_of(checked(*_whole(experiment)), None if out is None else Path(out))


def predict(
    path: str | Path,
    rows: str | Path | pandas.DataFrame | Mapping[str, Sequence[Any]] | np.ndarray | Tensor,
    module: nn.Module | None = None,
    *,
    client: int | None = None,
    model: str = "",
    holes: Literal["error", "empty"] = "error",
    keep: Sequence[str] = (),
) -> pandas.DataFrame:
    """A run's model on new rows (a file, a table or an array), with the preprocessing it was trained with.

    Of a run whose parties hold columns ``rows`` is {"NAME": file} of each party, and no other argument has a meaning.

    ``client``: by the model that this client would use, its own where it has one; ``model``: by one of several, by name;
    ``holes``: rows with a missing or infinite value are a DataError or have "empty" predictions; ``keep``: columns of the table
    that stand in front of the predictions, such as a key.
    """
    if RunFolder.open(Path(path)).of_columns:
        if not isinstance(rows, Mapping):
            raise ConfigError(
                'parties that hold columns predict together: give {"NAME": file} with a file of each party.'
            )
        return predict_between(Path(path), {str(name): str(file) for name, file in rows.items()}).table
    return load(path, module).predict(rows, client=client, model=model, holes=holes, keep=keep)


def load(path: str | Path, module: nn.Module | None = None) -> FinishedRun:
    """Model, configuration and rows of a run. ``module`` where the run had a network of one's own."""
    from fedatlas.prediction import finished_run as reading

    return reading.load(path, module)


def align(experiment: Experiment | ExperimentConfig, *, dry_run: bool = False) -> dict[str, Any]:
    """How many rows the parties of an experiment have in common, matched privately; ``dry_run``: what that would take."""
    from fedatlas.runs import alignment

    whole = checked(*_whole(experiment))
    whole.of_columns()
    return alignment.looked_at(consortium(whole)) if dry_run else alignment.aligned(whole)


def attack(path: str | Path, name: str, **keys: Any) -> dict[str, Any]:
    """Attacks what a role saw of a run (``[observe]``), beside a placebo: ``declaration``, ``metrics``, ``leaks``.

    ``keys``: those of the attack, such as ``role`` and ``targets``. The attacker works in a process without data; the record also stands
    in ``attacks/NAME/`` of the run, and in its report.
    """
    from fedatlas.leakage import attack_view

    found = attack_view(path, name, keys)
    write_report([Path(path)])
    return found


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes report.html for a run, or for several side by side; returns where it is."""
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    return write_report([Path(path) for path in paths], None if out is None else Path(out))


def _whole(experiment: Experiment | ExperimentConfig | None) -> Experiment:
    if isinstance(experiment, Mapping):
        raise ConfigError("run takes an Experiment: Experiment.of(rounds=2), or Experiment.of(**tables).")
    whole = experiment if isinstance(experiment, Experiment) else Experiment(experiment or parse({}))
    if whole.module is None:
        return whole
    model = whole.config.model.given(whole.module)
    return whole._replace(config=whole.config.model_copy(update={"model": model}))
