"""The experiment as a value, and its uses: preview it, run it, report on the run, predict with the model."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedatlas.config import COMPONENTS, ExperimentConfig, bound_to_rounds, override, parse, read
from fedatlas.course.progress import Progress
from fedatlas.data.by_name import find_source
from fedatlas.data.config import DataConfig
from fedatlas.data.handed import hand_over, is_rows
from fedatlas.data.kept import Held
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.federation.link import Observer
from fedatlas.files import disk_error
from fedatlas.notebook import LoadedRun, RunResult, experiment_html, experiment_text, watched
from fedatlas.prediction import finished_run
from fedatlas.prediction.parties import predict as predict_between
from fedatlas.record.initial_files import same_beginning
from fedatlas.record.run_folder import CONFIG, OPTIONS, RunFolder, asked
from fedatlas.record.versions import Version, roll_back, versions_of
from fedatlas.registry import keywords
from fedatlas.reporting import write_report
from fedatlas.runs.ensure import carry_out, rounds_done, start_of
from fedatlas.runs.finish import More
from fedatlas.runs.price import check_price
from fedatlas.runs.seeds import run_seeds
from fedatlas.setup.columns_method import rounds_key, rounds_of
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.setup.resolution import apply_fixes
from fedatlas.spelling import unknown_key

if TYPE_CHECKING:
    import pandas

    from fedatlas.auditing import Audited
    from fedatlas.runs.preview import Shown
    from fedatlas.setup.checked import Checked


class Experiment(NamedTuple):
    """A configuration, and optionally a custom network whose weights every run begins with.

    The network replaces ``[model]``, of which only ``loss`` and ``bn`` still apply.
    ``Experiment.of(rounds=5, algorithm={"name": "fedprox", "mu": 0.1})`` or ``Experiment.read("FILE.toml", "local.lr=0.01")``.
    ``Experiment.of(data=FRAME, label="poor", client="region")`` takes rows that are in memory.
    """

    config: ExperimentConfig
    module: nn.Module | None = None
    held: tuple[Held, ...] = ()  # keeps given rows until a run has them

    def __repr__(self) -> str:
        return experiment_text(self.config)

    def _repr_html_(self) -> str:
        return experiment_html(self.config)

    @classmethod
    def of(cls, module: nn.Module | None = None, **tables: Any) -> Experiment:
        """Make an experiment from tables as keyword arguments; keys that are left out have their defaults.

        A name may replace a table that names a component: ``model="logistic"`` is ``model={"name": "logistic"}``.
        ``data`` may be rows: a DataFrame, arrays ``(x, y)`` or ``(x, y, owner)``, a mapping with ``x_train`` and ``y_train``,
        a torch Dataset or a Hugging Face data set. The keys of ``[data]``, such as ``label``, are then keyword arguments, and
        ``test`` may also be rows. Known owners are the clients, unless ``partition`` is given.
        """
        if isinstance(module, Mapping):
            raise ConfigError(
                "Experiment.of takes tables as keyword arguments: Experiment.of(rounds=2), or of(**tables)."
            )
        named = {key: {"name": tables[key]} for key in ("data", *COMPONENTS) if isinstance(tables.get(key), str)}
        tables = {**tables, **named}
        table = tables.get("model")
        for key in table if module is not None and isinstance(table, Mapping) else ():
            if key not in ("loss", "bn"):
                raise ConfigError(
                    f"model.{key} has no effect on a network that is given as module=...: remove one of the two."
                )
        tables, held = rows_in(tables)
        return cls(parse(tables), module, held)

    @classmethod
    def read(cls, path: str | Path, *overrides: str, module: nn.Module | None = None) -> Experiment:
        """Read an experiment file and apply ``table.key=value`` overrides."""
        return cls(read(Path(path), overrides), module)


def rows_in(tables: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Held, ...]]:
    """Return tables in which rows given as ``data`` are named by their content, and the values that keep these rows."""
    if not is_rows(tables.get("data")):
        return dict(tables), ()
    tops = ExperimentConfig.model_fields
    own = [*keywords(find_source("file").builder), *DataConfig.model_fields]
    for key in tables:
        if key not in tops and key not in own:
            raise unknown_key("", key, [*tops, *own])
    handed = hand_over(tables["data"], {key: value for key, value in tables.items() if key not in tops})
    out = {key: value for key, value in tables.items() if key in tops} | {"data": handed.keys}
    return {**({"partition": {"name": "natural"}} if handed.owned else {}), **out}, handed.held


def run(
    experiment: Experiment | ExperimentConfig | None = None,
    *,
    out: str | Path | None = None,
    baselines: bool | None = None,
    price: bool = False,
    progress: Progress | bool | None = None,
    observers: Iterable[Observer] = (),
) -> RunResult:
    """Run an experiment (None: the embedded default), and return its folder and summary.

    ``baselines``: also train each client alone and all data pooled, for the table of gains; by default only if that is
    cheap. ``price``: also run the same without ``[[privacy]]``, to measure what protection costs. ``progress``: True shows
    the progress, False nothing; by default one line in a notebook, nothing elsewhere. With ``seeds``, every seed has a separate
    folder in ``out``. ``observers`` see the messages between server and parties (`fedatlas.federation.link.Observer`), for every
    seed but not for baselines; they change no result.
    """
    given = _whole(experiment)
    whole, progress = checked(given.config, given.module), watched(progress)
    if price:
        check_price(whole.config)
    path, observers = Path(out) if out is not None else new_folder(given.config), tuple(observers)
    more = More(baselines, attacks=True, price=price, options=asked(baselines, price))
    try:
        with RunFolder(path).claimed():
            if whole.config.seeds is None:
                return RunResult(*carry_out(whole, path, "new", more, progress, observers))
            fixed, _ = apply_fixes(given.config, whole.algorithm)  # config.toml names every key, including fixed ones
            folder = RunFolder.create(path, fixed, more.options)
            try:
                return RunResult(*run_seeds(whole, path, more, progress, observers))
            except FedatlasError:
                if not any(path.glob(f"seed-*/{CONFIG}")):  # refused before any run began: leave no folder behind
                    folder.discard()
                raise
    finally:
        if out is None:
            with contextlib.suppress(OSError):  # removes only an empty folder, after a refusal
                path.rmdir()


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    module: nn.Module | None = None,
    baselines: bool | None = None,
    price: bool = False,
    progress: Progress | bool | None = None,
    observers: Iterable[Observer] = (),
) -> RunResult:
    """Continue a run from its last intact checkpoint; the result is the same as without the stop.

    Only ``rounds`` and ``engine.cluster`` may change. ``module``: the network of a run with a custom one.
    ``baselines`` and ``price`` default to the choice made when the run began. ``observers`` as in `run`; they see only the
    rounds that are run now.
    """
    path, progress, observers = Path(path), watched(progress), tuple(observers)
    folder = RunFolder.open(path)
    with folder.claimed():
        config = longer(folder, overrides) if overrides else folder.config()
        if price:
            check_price(config)
        baselines, price = remember(path, baselines, price)
        more = More(baselines, attacks=True, price=price, options=asked(baselines, price))
        if config.seeds is None:
            if (start := start_of(path)) == "resume":
                same_beginning(path, module)  # before names that only a plug-in defines are looked up
            return RunResult(*carry_out(checked(config, module), path, start, more, progress, observers))
        if overrides:
            folder.reopen()
            folder.rewrite(config)
        return RunResult(*run_seeds(checked(config, module), path, more, progress, observers))


def longer(folder: RunFolder, overrides: Sequence[str]) -> ExperimentConfig:
    """Return the run's configuration with another number of rounds, or on another cluster ("": on this machine).

    ConfigError for any other key, for fewer rounds than were run, and if the run's schedule or noise depends on the
    number of rounds.
    """
    config = folder.config()
    values, own, keys = config.plain(), rounds_key(config), set()
    for text in overrides:
        given, equals, value = text.partition("=")
        key = own if given.strip() in {"rounds", own} else given.strip()
        if key not in (own, "engine.cluster"):
            said = "only rounds=N and engine.cluster=ADDRESS may change"
            raise ConfigError(f"'{text}': a resumed run keeps its configuration; {said}.")
        override(values, f"{key}{equals}{value}")
        keys.add(key)
    wanted = parse(values)
    if own not in keys:
        return wanted
    if config.local.schedule.name == "cosine" and config.local.schedule.rounds is None:
        raise ConfigError("rounds: the cosine schedule depends on the number of rounds, so it cannot change now.")
    if mechanism := bound_to_rounds(config.privacy):
        raise ConfigError(
            f"rounds: the noise of '{mechanism}' depends on the number of rounds, so it cannot change now; begin a new run."
        )
    parts = [folder.path / f"seed-{seed}" for seed in config.seeds or ()] or [folder.path]
    done = max(rounds_done(part) for part in parts)
    # After a rollback the number of a round that has begun must not come again.
    begun, more = (1, " and may have begun another") if config.guard is not None and done < config.rounds else (0, "")
    if (rounds := rounds_of(wanted)) < done + begun:
        raise ConfigError(
            f"rounds = {rounds}: '{folder.path}' has already run {done} rounds{more}; ask for {done + begun} or more, or start a new run."
        )
    return wanted


def remember(path: Path, baselines: bool | None, price: bool = False) -> tuple[bool | None, bool]:
    """Return the choices about baselines (None = only if cheap) and price: those given now, else those of the run's beginning.

    Choices given now are stored with the run.
    """
    before = RunFolder(path).read_json(OPTIONS) if (path / OPTIONS).exists() else {}
    found = before.get("baselines") if baselines is None else baselines, price or before.get("price", False)
    if asked(*found) != before:
        RunFolder(path).write_json(OPTIONS, asked(*found))
    return found


def new_folder(config: ExperimentConfig) -> Path:
    """Make and return an empty folder under ``runs/``, named by data, algorithm and time.

    It is created at once, so that no other run takes the same name.
    """
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
    """Make a folder; return False if another process was faster."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def dry_run(
    experiment: Experiment | ExperimentConfig | None = None,
    *,
    baselines: bool | None = None,
    all_columns: bool = False,
) -> dict[str, Any]:
    """Preview a run: who would hold which rows, how many bytes would be sent and about how long it would take.

    Raises every refusal of the run. Trains nothing. ``all_columns``: name every column of a table that was read.
    """
    from fedatlas.data.reading import all_named
    from fedatlas.runs import preview

    with all_named() if all_columns else contextlib.nullcontext():
        return preview.dry_run(_checked(experiment), baselines)


def partition(experiment: Experiment | ExperimentConfig | None = None, out: str | Path | None = None) -> Shown:
    """Return who would hold which rows: row indices and figures of each client, and a text. ``out``: also draw it as SVG."""
    from fedatlas.runs import preview

    return preview.partition_of(_checked(experiment), None if out is None else Path(out))


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
    """Apply a run's model to new rows (a file, a table or an array), with the preprocessing it was trained with.

    If parties hold columns, ``rows`` is {"NAME": file} with each party's file, and no other argument applies.

    ``client``: use the model that this client would use, its own if it has one; ``model``: use this one of several
    models. ``holes``: rows with a missing or infinite value raise DataError, or get "empty" predictions. ``keep``:
    columns of the table, such as a key, to put before the predictions.
    """
    if RunFolder.open(Path(path)).of_columns:
        if not isinstance(rows, Mapping):
            raise ConfigError(
                'parties predict from files of their own: give {"NAME": file} with a file for each party (owners of rows: for one).'
            )
        return predict_between(Path(path), {str(name): str(file) for name, file in rows.items()}).table
    return load(path, module).predict(rows, client=client, model=model, holes=holes, keep=keep)


def load(path: str | Path, module: nn.Module | None = None) -> LoadedRun:
    """Read a finished run: its model, configuration and rows, with the methods of a run in Python: ``answer``, ``plot``, ``estimator``.

    ``module``: the network of a run with a custom one. Of several seeds, one is read, such as ``load("RUN/seed-1")``.
    `resume` of a finished folder trains nothing and returns all of them.
    """
    return LoadedRun(*finished_run.load(path, module))


def align(
    experiment: Experiment | ExperimentConfig, *, dry_run: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Match the rows of an experiment's parties privately, and return how many they have in common.

    ``dry_run``: only estimate the effort. ``say``: is told of the progress of a long matching, at most every two seconds.
    """
    from fedatlas.runs import alignment

    whole = _checked(experiment)
    whole.of_matched()
    return alignment.looked_at(consortium(whole)) if dry_run else alignment.aligned(whole, say=say)


def probe(experiment: Experiment | ExperimentConfig) -> dict[str, Any]:
    """Train a few trees on a few common rows, and return what the columns of the others gain there, with its interval and cost."""
    from fedatlas.runs.probe import probed

    return probed(_checked(experiment))


def audit(path: str | Path, said: Callable[[str], None] | None = None) -> Audited:
    """Audit a finished run: attack every recorded view, look for small counts, and write ``release.html`` for those who sign.

    Returns the verdict, the record of ``audit.json`` and the page's path. ``said`` receives a line before each attack.
    """
    from fedatlas.auditing import audit as audit_

    return audit_(path, said or (lambda text: None))


def attack(path: str | Path, name: str, **keys: Any) -> dict[str, Any]:
    """Attack what a role saw of a run (``[observe]``), and return ``declaration``, ``metrics`` and ``leaks``.

    The result is compared with a placebo. ``keys``: those of the attack, such as ``role`` and ``targets``. The attacker
    works in a process without data. The record is also written to ``attacks/NAME/`` in the run, and shown in its report.
    """
    from fedatlas.leakage import attack_view

    found = attack_view(path, name, keys)
    write_report([Path(path)])
    return found


def fid_proxy(experiment: Experiment | ExperimentConfig) -> dict[str, Any]:
    """Train the FID-proxy of an experiment's training pictures, unless it is cached; return its file, SHA-256, rows and accuracy."""
    from fedatlas.leakage.trained_proxy import trained_proxy

    return trained_proxy(_checked(experiment))


def versions(path: str | Path) -> list[Version]:
    """Return the models that the guard of a run judged (``[guard]``), with scores; ``current`` marks the model now."""
    return versions_of(Path(path))


def rollback(path: str | Path, version: int) -> Version:
    """Make a committed version the model of a run, from which `resume` goes on. What the run has released stays released.

    ConfigError for an unknown or rejected version, and for a run that another process runs.
    """
    return roll_back(Path(path), version)


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write report.html for a run, or for several side by side, and return its path."""
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    return write_report([Path(path) for path in paths], None if out is None else Path(out))


def _checked(experiment: Experiment | ExperimentConfig | None) -> Checked:
    whole = _whole(experiment)
    return checked(whole.config, whole.module)


def _whole(experiment: Experiment | ExperimentConfig | None) -> Experiment:
    if isinstance(experiment, Mapping):
        raise ConfigError("run takes an Experiment: Experiment.of(rounds=2), or Experiment.of(**tables).")
    whole = experiment if isinstance(experiment, Experiment) else Experiment(experiment or parse({}))
    if whole.module is None:
        return whole
    model = whole.config.model.given(whole.module)
    return whole._replace(config=whole.config.model_copy(update={"model": model}))
