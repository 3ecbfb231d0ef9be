"""The basis of answers, separate from the table: fitted arrays that load in milliseconds, without torch, pandas or SQLite.

A shipped study is a folder with ``study.json`` (names, hashes, the keys set by each choice, the picked rates) and ``study.npz``
(arrays, and the configurations that were run, packed), together with the STUDY.toml it was made with.
"""

from __future__ import annotations

import copy
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.errors import ConfigError, DataError, unknown_name
from fedatlas.files import write_bytes, write_json
from fedatlas.recommender.contest import Fitted, fit_study, fits
from fedatlas.recommender.epsilon import for_any_nodes
from fedatlas.recommender.masks import admitted_nodes
from fedatlas.recommender.predictors import Kernel, scales
from fedatlas.study.measurements import Floats, Ints, Measurements
from fedatlas.study.plain import Plain, Row
from fedatlas.study.read_measurements import measured
from fedatlas.study.table import Table, packed, unpacked

VERSION = 1
HERE = Path(__file__).parent  # a shipped study is a folder in this one
NAMES, ARRAYS, TABLE = "study.json", "study.npz", "table.sqlite"
PLAIN = (
    "choices",
    "settings",
    "data",
    "rounds",
    "ranges",
    "sees",
    "against",
    "way",
    "score",
    "references",
)  # fields of `Fitted`
ARRAY = ("x", "scale", "finishes")
BY_NAME = ("costs", "gaps", "levels", "by_setting", "by_data")  # response -> array
OF_BASIS = ("twins", "sets", "rates", "epsilon", "baseline")


class Basis(NamedTuple):
    """A study in the form that answers need."""

    name: str
    folder: Path  # base of relative paths in its configurations
    fitted: Fitted
    twins: Mapping[str, str]
    sets: Mapping[str, Row]  # choice -> the keys it sets
    rates: Mapping[str, list[Any]]  # key -> values tried in every cell
    picked: Mapping[tuple[int, str], Row]  # (setting, choice) -> the rates that did best there
    configurations: Mapping[tuple[int, str], Row]  # (setting, choice) -> the configuration that was run
    epsilon: Mapping[
        str, list[float]
    ]  # choice -> epsilon after `Fitted.rounds`, if it is the same for any number of nodes
    about: Row  # hashes, seeds, runs by status
    baseline: Row  # local work of the baseline that gaps are measured to; {} if unknown
    apart: Floats  # (n, J) largest difference of accuracy between seeds at the last round; nan if unknown
    masked: Ints | None = None  # (n, J, 2) fewest and most nodes under masks (`masks`); None: not asked yet
    without_runs: tuple[str, ...] = ()  # choices that were never run: masked twins (`twins`)

    def near(self, order: np.ndarray, choice: str) -> int:
        """Return the first of some settings in which a choice was run."""
        return next(int(i) for i in order if (int(i), choice) in self.configurations)

    def configuration(self, place: int, choice: str) -> Plain:
        """Return a copy of the configuration of a choice in a setting, with absolute paths of files that exist."""
        plain = copy.deepcopy(dict(self.configurations[place, choice]))
        data = plain.get("data", {})
        for key in ("constants", "path", "test_file"):
            if isinstance(data.get(key), str) and (self.folder / data[key]).is_file():
                data[key] = str((self.folder / data[key]).resolve())
        return plain

    def nodes_under_masks(self) -> Ints:
        """Return (n, J, 2) the fewest and most nodes of each choice under masks, as kept or as the refusals say now."""
        if self.masked is not None:
            return self.masked
        plains = {at: self.configuration(*at) for at in self.configurations}
        return admitted_nodes(plains, len(self.fitted.settings), self.fitted.choices)


def basis_of(table: Table, study: str | None = None, *, whole: bool = False) -> Basis:
    """Return the study of a table, fitted: some seconds for a thousand runs; ``whole``: only its finished settings."""
    study = table.name_of(study)
    read, found = measured(table, study), table.members(study)
    if whole:
        read = finished_settings(read, found)
    fitted = fit_study(read)
    place = {name: i for i, name in enumerate(fitted.settings)}
    factors = {name: factor for name, factor in table.factors(study).items() if factor["role"] == "choice"}
    if any("set" not in factor for factor in factors.values()):
        raise DataError(
            f"the table of '{study}' does not record the keys of its levels: run 'fedatlas study' on it again."
        )
    here = [row for row in found if read.setting_of(row) in place]
    done = [row for row in here if row["kind"] == "cell" and row["status"] == "done"]
    first = {(place[read.setting_of(row)], read.choice_of(row)): row for row in reversed(done)}
    first = dict(reversed(first.items()))
    tried = [row["rates"] for row in found if row["kind"] == "tuning"]
    sets, plains = (
        {},
        {choice: [row["configuration"] for at, row in first.items() if at[1] == choice] for choice in fitted.choices},
    )
    for (_, choice), row in first.items():
        sets[choice] = {k: v for name, one in factors.items() for k, v in one["set"][row["levels"][name]].items()}
    known = {choice: for_any_nodes(each, fitted.rounds) for choice, each in plains.items()}
    statuses = Counter({row["run_key"]: row["status"] for row in here}.values())
    return Basis(
        name=study,
        folder=table.path.parent,
        fitted=fitted,
        twins=read.twins,
        sets=sets,
        rates={key: sorted({one[key] for one in tried}) for key in (tried[0] if tried else ())},
        picked={at: row["rates"] for at, row in first.items()},
        configurations={at: row["configuration"] for at, row in first.items()},
        epsilon={choice: values for choice, values in known.items() if values},
        about={
            "data": table.data_of(study),
            "study_sha256": table.file_of(study),
            "runs": dict(sorted(statuses.items())),
            "seeds": sorted({row["seed"] for row in found if row["kind"] == "cell"}),
        },
        baseline=next((row["configuration"]["local"] for row in here if row["kind"] == "baseline"), {}),
        apart=seeds_apart(read),
    )


def seeds_apart(read: Measurements) -> Floats:
    """Return (n, J) the largest difference of accuracy between the seeds of a cell at its last round; nan with fewer than two."""
    values = read.by_cell("accuracy")
    known = np.isfinite(values)
    spread = np.where(known, values, -np.inf).max(axis=2) - np.where(known, values, np.inf).min(axis=2)
    return np.where(known.sum(axis=2) > 1, spread, np.nan)


def finished_settings(read: Measurements, found: Sequence[Row]) -> Measurements:
    """Return a study without the settings that have runs left to make; DataError if none is left."""
    waiting = {read.setting_of(row) for row in found if row["status"] in ("planned", "running")}
    kept = [run for run in read.runs if read.setting_of(run) not in waiting]
    if not kept:
        raise DataError(f"no setting of the study '{read.name}' is finished: continue the study.")
    return read._replace(runs=kept)


def save(table: Table, study: str | None, folder: Path) -> Basis:
    """Write the basis of a study's finished settings into a folder; return it."""
    basis = basis_of(table, study, whole=True)
    write(basis, folder)
    return basis


def refit(folder: Path) -> Basis:
    """Repeat the contest of predictors on the measurements in a folder, after these have changed; write and return the basis."""
    basis = refitted(read(folder))
    write(basis, folder)
    return basis


def refitted(basis: Basis) -> Basis:
    """Return a study with its features scaled, its kernels fitted and its contest of predictors held on its own settings only."""
    f, scale = basis.fitted, scales(basis.fitted.x)
    noise = np.array([kernel.noise for kernel in f.kernels])
    found = fits(f.x / scale, np.array(f.data), f.gaps, noise, f.against)
    return basis._replace(fitted=f._replace(scale=scale, **found._asdict()))


def write(basis: Basis, folder: Path) -> None:
    """Write a basis into a folder."""
    f = basis.fitted
    arrays: Plain = {name: getattr(f, name) for name in ARRAY}
    arrays |= {f"{kind}/{name}": values for kind in BY_NAME for name, values in getattr(f, kind).items()}
    arrays["kernels"] = np.array([[*k.lengths, k.left_over, k.noise] for k in f.kernels])
    told = [[*at, basis.picked[at], plain] for at, plain in basis.configurations.items()]
    arrays |= {"apart": basis.apart, "masked": basis.nodes_under_masks()}
    arrays["configurations"] = np.frombuffer(packed(told), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    kept = io.BytesIO()
    np.savez_compressed(kept, **arrays)
    write_bytes(folder / ARRAYS, kept.getvalue())
    plain = {name: getattr(f, name) for name in PLAIN} | {name: getattr(basis, name) for name in OF_BASIS}
    write_json(folder / NAMES, {"version": VERSION, "name": basis.name, "about": basis.about, **plain})


def shipped() -> list[str]:
    """Return the names of the studies shipped with this package."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{NAMES}"))


def load_study(name: str, beside: Path = Path()) -> Basis:
    """Load a study by name or folder (absolute, or relative to ``beside``); ConfigError if it is neither, newer or damaged."""
    if name in shipped():
        return read(HERE / name)
    folder = beside / name if (beside / name).is_dir() else Path(name)
    if (folder / NAMES).is_file():
        return read(folder)
    if (folder / TABLE).is_file():
        return basis_of(Table.open(folder / TABLE))
    if folder.is_dir():
        raise ConfigError(
            f"the folder '{folder}' holds no study: 'fedatlas study STUDY.toml --out {folder}' creates one."
        )
    if not shipped():
        raise ConfigError(f"there is no study '{name}', and this version includes none: name the folder of one.")
    raise unknown_name("study", name, shipped())


def read(folder: Path) -> Basis:
    """Read a basis written by `save`."""
    try:
        names = json.loads((folder / NAMES).read_text(encoding="utf-8"))
        if names["version"] > VERSION:
            raise ConfigError(f"the study in '{folder}' was made by a newer fedatlas: update fedatlas.")
        with np.load(io.BytesIO((folder / ARRAYS).read_bytes())) as file:
            arrays = {key: file[key] for key in file.files}
        return _basis(names, arrays, folder)
    except (OSError, ValueError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"the study in '{folder}' is damaged ({type(error).__name__}: {error}): restore a copy."
        ) from error


def _basis(names: Row, arrays: Mapping[str, np.ndarray], folder: Path) -> Basis:
    fields: Plain = {name: names[name] for name in PLAIN} | {name: arrays[name] for name in ARRAY}
    fields |= {name: {} for name in BY_NAME}
    for key, values in arrays.items():
        kind, _, name = key.partition("/")
        if name:
            fields[kind][name] = values
    fields["settings"] = [tuple(name) for name in names["settings"]]
    fields["kernels"] = [Kernel(row[:-2], float(row[-2]), float(row[-1])) for row in arrays["kernels"]]
    told = unpacked(arrays["configurations"].tobytes())
    names = {"baseline": {}, **names}  # not kept by older versions
    return Basis(
        name=names["name"],
        folder=folder,
        fitted=Fitted(**fields, twins=names["twins"]),
        picked={(i, choice): rates for i, choice, rates, _ in told},
        configurations={(i, choice): plain for i, choice, _, plain in told},
        about=names["about"],
        apart=arrays.get("apart", np.full(fields["finishes"].shape, np.nan)),
        masked=arrays.get("masked"),
        **{name: names[name] for name in OF_BASIS},
    )
