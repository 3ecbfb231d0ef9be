"""Identify a run by the SHA-256 of everything that decides its result, and of nothing else.

``run_key`` identifies a run, ``curve_key`` a run of any length. A configuration that is refused has both, too: the
refusal is its result.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas import plugins
from fedatlas.config import ExperimentConfig, parse
from fedatlas.config.parties import DEALS
from fedatlas.data.by_name import find_source
from fedatlas.data.cells import now
from fedatlas.data.kept import located
from fedatlas.data.store import Store, sha256
from fedatlas.data.store import cache as cache_folder
from fedatlas.errors import ConfigError, DataError, FedatlasError, ValueMistake
from fedatlas.files import write_json
from fedatlas.privacy.mechanisms import every, for_all_rounds
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import check
from fedatlas.setup.resolution import resolve

RESULTS = 1
"""Number that is raised whenever a change of the program changes a result, so that older results are not reused.

Rules by which files are read have a number of their own (`reading_of`): they change only runs on such files.
"""
CHUNK = 64  # clients held at once, in every configuration of a study
WITHOUT = (
    "workers",
    "chunk",
    "memory",
    "state_memory",
    "cluster",
)  # keys of [engine] that change the speed, never a result
HASHES = "hashes.json"  # of data files, by path


class Described(NamedTuple):
    """A configuration with all defaults written out if possible, and the sentence that refuses it, or ""."""

    plain: Mapping[str, Any]
    checked: Checked | None
    refused: str
    resolved: Checked | None = None  # also where only the checks refuse it
    mistaken: bool = False  # refused for a value that is wrong, whatever else the file says


class RunKeys(NamedTuple):
    """The two keys that identify a run."""

    run_key: str
    curve_key: str


def written(values: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the values of one configuration of a study, with the settings that all its runs share.

    These are one process, a fixed chunk, few checkpoints, and noise from the seed, so that a run can be repeated.
    """
    out = copy.deepcopy(dict(values))
    out["seed"] = seed
    engine = out.setdefault("engine", {})
    if isinstance(engine, dict) and engine.get("name") != "loop":
        engine |= {"workers": 1} if of_columns(out) else {"workers": 1, "chunk": CHUNK}
        engine.pop("cluster", None)  # a run stays whole: nodes are dealt runs, not clients
    rounds = out.get("rounds", ExperimentConfig.model_fields["rounds"].default)
    out["checkpoint"] = {"every": max(rounds // 4, 5) if isinstance(rounds, int) else 5, "keep": 1}
    noised = {name for name, one in every().items() if "noise" in one.keys}  # also in rows before a run
    for table in out.get("privacy", ()) if isinstance(out.get("privacy"), list) else ():
        if isinstance(table, dict) and table.get("name") in noised:
            table["noise"] = "seed"
    return out


def of_columns(values: Mapping[str, Any]) -> bool:
    """Return whether the parties of written values hold columns."""
    dealt = values.get("partition")
    return bool(values.get("parties")) or (isinstance(dealt, dict) and dealt.get("name") in DEALS)


def described(values: Mapping[str, Any]) -> Described:
    """Resolve written values, and find out whether they are refused before any data are read."""
    plain: Mapping[str, Any] = values
    whole = None
    try:
        config = parse(values)
        plain = config.plain()
        whole = resolve(config)
        plain = {**whole.config.plain(), "rounds": whole.config.rounds}  # of columns, it stands with the scheme's keys
        check(whole)
    except FedatlasError as error:
        return Described(plain, None, str(error), whole, isinstance(error, ValueMistake))
    return Described(plain, whole, "", whole)


def keys(plain: Mapping[str, Any], data: Mapping[str, str]) -> RunKeys:
    """Return the keys of a configuration and its data files; ``data`` maps file names to SHA-256."""
    rest = copy.deepcopy({key: value for key, value in plain.items() if key not in ("checkpoint", "observe", "seeds")})
    rounds = rest.pop("rounds", None)
    if isinstance(rest.get("engine"), dict):
        rest["engine"] = {key: value for key, value in rest["engine"].items() if key not in WITHOUT}
    whole = {"configuration": rest, "data": dict(data), "plugins": sorted(plugins.LOADED.values()), "results": RESULTS}
    whole |= reading_of(rest)
    if bound_to_length(rest):
        whole["horizon"] = rounds
    return RunKeys(digest({**whole, "rounds": rounds}), digest(whole))


def reading_of(plain: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of the reading rules for a run that reads a user's files, from the second rules on.

    Registered tables are read alike by all rules.
    """
    data, rules = plain.get("data", {}), now().rules
    own = data.get("name") == "file" or (isinstance(test := data.get("test"), str) and test != "own")
    own = own or bool(plain.get("parties"))
    return {"reading": rules} if own and rules > 1 else {}


def bound_to_length(plain: Mapping[str, Any]) -> bool:
    """Return whether the first rounds of a run depend on its length, through rates, noise or an early stop."""
    schedule = plain.get("local", {}).get("schedule", {}).get("name")
    private = [str(table.get("name")) for table in plain.get("privacy") or ()]
    return schedule == "cosine" or bool(plain.get("stop")) or bool(for_all_rounds(private))


def digest(value: Any) -> str:
    """Return the SHA-256 of plain values, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class DataPlace(NamedTuple):
    """A file or folder of a run's data."""

    named: str  # in the configuration; of a prepared one, below the folder of data files
    path: Path
    prepared: bool = False


def data_files(config: ExperimentConfig) -> list[Path]:
    """Return the files of a run's rows and of its constants; none for data that come with a package.

    ConfigError if one does not exist.
    """
    return [file for place in data_places(config) for file in files_of(place)]


def data_places(config: ExperimentConfig) -> list[DataPlace]:
    """Return where the files of `data_files` lie."""
    out = [DataPlace(one.path, located(one.path)) for one in config.parties]
    out = out or source_places(config.data.name, dict(config.data.model_extra or {}).get("path"))
    named = (config.data.test_file, config.data.constants)
    out += [DataPlace(name, located(name)) for name in named if name and isinstance(name, str)]
    if config.public is not None and config.public.source not in ("test", "train"):
        out += source_places(config.public.source, None)
    for place in out:
        if not place.path.exists():
            raise ConfigError(f"there is no data file '{place.path}': put the file there, or name another one.")
    return out


def files_of(place: DataPlace) -> list[Path]:
    """Return the files at a place, in order."""
    path = place.path
    return [each for each in (sorted(path.rglob("*")) if path.is_dir() else [path]) if each.is_file()]


def source_places(name: str, path: Any) -> list[DataPlace]:
    """Return the files of a source: the one that is named, or the prepared ones that exist."""
    source = find_source(name)
    if isinstance(path, str) and path:
        return [DataPlace(path, located(path))]
    found = [(files, place) for files in source.files if (place := Store.default().find(files))]
    return [
        DataPlace(file, path, prepared=True)
        for files, place in found
        for file, path in zip(files, place.paths, strict=True)
    ]


def data_hashes(config: ExperimentConfig) -> dict[str, str]:
    """Map each data file to the SHA-256 of its content; a file of known path, size and time is not read again."""
    return {
        f"{path.parent.name}/{path.name}": sha256_of(str(path.resolve()), *_stat(path)) for path in data_files(config)
    }


def _stat(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@cache
def sha256_of(path: str, size: int, time: int) -> str:
    """Return the SHA-256 of a file with this size and time, from the notes of earlier studies or by reading it.

    DataError if it cannot be read.
    """
    notes = cache_folder("study") / HASHES
    try:
        known = json.loads(notes.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if known.get(path, [])[:2] == [size, time]:
        return str(known[path][2])
    try:
        found = sha256(Path(path))
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}.") from None
    with contextlib.suppress(FedatlasError):  # without the note, the file is read again next time
        write_json(notes, {**known, path: [size, time, found]})
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> Sequence[str]:
    """Return the files whose content has changed."""
    return [name for name, value in before.items() if now.get(name, value) != value]
