"""What answers are made of, kept apart from the table: fitted arrays that load in milliseconds, without torch, pandas or SQLite.

A shipped study is a folder with ``study.json`` (names, hashes, what each choice sets, the picked rates) and ``study.npz`` (arrays, and
the configurations that were run, packed); beside them lies the STUDY.toml that it was made with.
"""

from __future__ import annotations

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
from fedatlas.recommender.contest import Fitted, fit_study
from fedatlas.recommender.epsilon import for_any_nodes
from fedatlas.recommender.predictors import Kernel
from fedatlas.study.frame import factors_of, members, which
from fedatlas.study.measurements import Study, choice_of, setting_of
from fedatlas.study.read_measurements import measured
from fedatlas.study.table import Table

VERSION = 1
HERE = Path(__file__).parent  # a shipped study is a folder beside this file
NAMES, ARRAYS, TABLE = "study.json", "study.npz", "table.sqlite"
PER_QUALITY = ("gaps", "levels", "by_setting", "by_data")


class Basis(NamedTuple):
    """A study as answers need it."""

    name: str
    folder: Path  # where it lies, for files that its configurations name
    fitted: Fitted
    references: tuple[str, ...]  # FedAvg, then its masked twin
    twins: Mapping[str, str]
    sets: Mapping[str, Mapping[str, Any]]  # choice -> the keys that it sets
    rates: Mapping[str, list[Any]]  # key -> values that were tried in every cell
    picked: Mapping[tuple[int, str], Mapping[str, Any]]  # (setting, choice) -> the rates that did best there
    configurations: Mapping[tuple[int, str], Mapping[str, Any]]  # (setting, choice) -> what was run
    epsilon: Mapping[
        str, list[float]
    ]  # choice -> epsilon after `Fitted.rounds`, where it is the same for any number of nodes
    about: Mapping[str, Any]  # hashes, seeds, runs by status

    def near(self, order: np.ndarray, choice: str) -> int:
        """The first of some settings in which a choice was run."""
        return next(int(i) for i in order if (int(i), choice) in self.configurations)


def basis_of(table: Table, study: str | None = None, *, whole: bool = False) -> Basis:
    """The study of a table, fitted: some seconds for a thousand runs; ``whole``: of its finished settings alone."""
    study = which(table, study)
    read, found = measured(table, study), members(table, study)
    if whole:
        read = finished_settings(read, found)
    fitted = fit_study(read)
    place = {name: i for i, name in enumerate(fitted.settings)}
    factors = {name: factor for name, factor in factors_of(table, study).items() if factor["role"] == "choice"}
    if any("set" not in factor for factor in factors.values()):
        raise DataError(
            f"the table of '{study}' does not say what its levels set: run 'fedatlas study' on it once more."
        )
    sets: dict[str, dict[str, Any]] = {}
    picked: dict[tuple[int, str], Mapping[str, Any]] = {}
    configurations: dict[tuple[int, str], Mapping[str, Any]] = {}
    rates: dict[str, list[Any]] = {}
    for row in found:
        for key, value in row["rates"].items() if row["kind"] == "tuning" else ():
            rates.setdefault(key, []).append(value)
        if row["kind"] == "cell" and row["status"] == "done" and setting_of(read, row) in place:
            at = place[setting_of(read, row)], choice_of(read, row)
            picked.setdefault(at, row["rates"])
            configurations.setdefault(at, row["configuration"])
            sets[at[1]] = {k: v for name in factors for k, v in factors[name]["set"][row["levels"][name]].items()}
    ended = {row["run_key"]: row["status"] for row in found if setting_of(read, row) in place}
    data, file = table.db.execute("SELECT data, file FROM studies WHERE study = ?", (study,)).fetchone()
    about = {
        "data": json.loads(data),
        "study_sha256": file,
        "runs": dict(sorted(Counter(ended.values()).items())),
        "seeds": sorted({row["seed"] for row in found if row["kind"] == "cell"}),
    }
    tried = {key: sorted(set(values)) for key, values in rates.items()}
    known = {
        choice: for_any_nodes([plain for (_, one), plain in configurations.items() if one == choice], fitted.rounds)
        for choice in fitted.choices
    }
    return Basis(
        name=study,
        folder=table.path.parent,
        fitted=fitted,
        references=read.references,
        twins=read.twins,
        sets=sets,
        rates=tried,
        picked=picked,
        configurations=configurations,
        epsilon={choice: values for choice, values in known.items() if values},
        about=about,
    )


def finished_settings(read: Study, found: Sequence[Mapping[str, Any]]) -> Study:
    """A study without the settings in which a run is still to be made; DataError where that leaves none."""
    waiting = {setting_of(read, row) for row in found if row["status"] in ("planned", "running")}
    kept = [run for run in read.runs if setting_of(read, run) not in waiting]
    if not kept:
        raise DataError(f"no setting of the study '{read.name}' is finished: run it further.")
    return read._replace(runs=kept)


def save(table: Table, study: str | None, folder: Path) -> Basis:
    """Writes the basis of a study, as far as its settings are finished, into a folder; what was written."""
    basis = basis_of(table, study, whole=True)
    write(basis, folder)
    return basis


def write(basis: Basis, folder: Path) -> None:
    """study.json and study.npz of a basis."""
    f = basis.fitted
    arrays: dict[str, Any] = {"x": f.x, "scale": f.scale, "finishes": f.finishes}
    arrays |= {f"costs/{cost}": values for cost, values in f.costs.items()}
    arrays |= {f"{kind}/{quality}": values for kind in PER_QUALITY for quality, values in getattr(f, kind).items()}
    arrays["kernels"] = np.array([[*k.lengths, k.left_over, k.noise] for k in f.kernels])
    told = [
        [i, choice, dict(basis.picked[i, choice]), dict(plain)] for (i, choice), plain in basis.configurations.items()
    ]
    packed = zlib.compress(json.dumps(told, sort_keys=True, separators=(",", ":")).encode(), 9)
    arrays["configurations"] = np.frombuffer(packed, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    kept = io.BytesIO()
    np.savez_compressed(kept, **arrays)
    write_bytes(folder / ARRAYS, kept.getvalue())
    write_json(
        folder / NAMES,
        {
            "version": VERSION,
            "name": basis.name,
            "about": dict(basis.about),
            "choices": f.choices,
            "settings": [list(name) for name in f.settings],
            "data": f.data,
            "rounds": list(f.rounds),
            "ranges": f.ranges,
            "sees": f.sees,
            "against": f.against,
            "way": f.way,
            "score": f.score,
            "references": list(basis.references),
            "twins": dict(basis.twins),
            "sets": {choice: dict(keys) for choice, keys in basis.sets.items()},
            "rates": dict(basis.rates),
            "epsilon": dict(basis.epsilon),
        },
    )


def shipped() -> list[str]:
    """The names of the studies that come with this program."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{NAMES}"))


def load_study(name: str, beside: Path = Path()) -> Basis:
    """A study by name, or the folder of one (absolute, or relative to ``beside``); ConfigError where it is neither, newer or damaged."""
    if name in shipped():
        return read(HERE / name)
    folder = beside / name if (beside / name).is_dir() else Path(name)
    if (folder / NAMES).is_file():
        return read(folder)
    if (folder / TABLE).is_file():
        return basis_of(Table.open(folder / TABLE))
    if folder.is_dir():
        raise ConfigError(
            f"the folder '{folder}' holds no study: 'fedatlas study STUDY.toml --out {folder}' makes one."
        )
    if not shipped():
        raise ConfigError(f"there is no study '{name}', and none comes with this version: name the folder of one.")
    raise unknown_name("study", name, shipped())


def read(folder: Path) -> Basis:
    """A basis that `write` wrote."""
    try:
        names = json.loads((folder / NAMES).read_text(encoding="utf-8"))
        if names["version"] > VERSION:
            raise ConfigError(f"the study in '{folder}' was made by a newer fedatlas: update this one.")
        with np.load(io.BytesIO((folder / ARRAYS).read_bytes())) as file:
            arrays = {key: file[key] for key in file.files}
        told = json.loads(zlib.decompress(arrays["configurations"].tobytes()))
        return _basis(names, arrays, told, folder)
    except (OSError, ValueError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"the study in '{folder}' is damaged ({type(error).__name__}: {error}): put a copy back."
        ) from error


def _basis(names: Mapping[str, Any], arrays: Mapping[str, np.ndarray], told: list[Any], folder: Path) -> Basis:
    kinds: dict[str, dict[str, Any]] = {kind: {} for kind in (*PER_QUALITY, "costs")}
    for key, values in arrays.items():
        kind, _, name = key.partition("/")
        if name:
            kinds[kind][name] = values
    fitted = Fitted(
        choices=list(names["choices"]),
        settings=[tuple(name) for name in names["settings"]],
        data=list(names["data"]),
        rounds=tuple(names["rounds"]),
        x=arrays["x"],
        scale=arrays["scale"],
        ranges={key: (low, high) for key, (low, high) in names["ranges"].items()},
        sees=list(names["sees"]),
        finishes=arrays["finishes"],
        kernels=[Kernel(row[:-2], float(row[-2]), float(row[-1])) for row in arrays["kernels"]],
        against=names["against"],
        way=names["way"],
        score=dict(names["score"]),
        **kinds,  # gaps, levels, by_setting, by_data, costs
    )
    return Basis(
        names["name"],
        folder,
        fitted,
        tuple(names["references"]),
        names["twins"],
        names["sets"],
        names["rates"],
        {(i, choice): rates for i, choice, rates, _ in told},
        {(i, choice): plain for i, choice, _, plain in told},
        names["epsilon"],
        names["about"],
    )
