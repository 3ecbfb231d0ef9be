"""A run's data on another machine: the same files if they are there, which their SHA-256 tells, else copies of them."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

from fedatlas.config import ExperimentConfig
from fedatlas.data.kept import stand_in
from fedatlas.data.store import ENVIRONMENT, sha256
from fedatlas.errors import DataError, FedatlasError
from fedatlas.runs.run_key import DataPlace, data_places, files_of, sha256_of

PREPARED = "prepared"  # folder of copies that are searched as files under FEDATLAS_DATA
Listed = list[list[Any]]  # per place: its name, whether it is prepared, and [path below it, SHA-256] of each file


def listed(config: ExperimentConfig) -> Listed:
    """Return the data files of a run as plain values, equal on every machine that has the same ones."""
    return [[one.named, one.prepared, hashes_of(one)] for one in data_places(config)]


def hashes_of(place: DataPlace) -> list[list[str]]:
    """Return the files at a place with their SHA-256."""
    out = []
    for file in files_of(place):
        told = file.stat()
        out.append([str(file.relative_to(place.path)), sha256_of(str(file.resolve()), told.st_size, told.st_mtime_ns)])
    return out


def here(config: ExperimentConfig, wanted: Listed) -> bool:
    """Return whether this machine has the data of a run."""
    try:
        return listed(config) == wanted
    except (FedatlasError, OSError):
        return False


def packed(config: ExperimentConfig) -> bytes:
    """Return all data files of a run, to be unpacked elsewhere."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, place in enumerate(data_places(config)):
            archive.add(place.path, arcname=inside(number, place.named, place.path.name, prepared=place.prepared))
    return out.getvalue()


def named_copies(config: ExperimentConfig) -> tuple[list[str], bytes]:
    """Return the names that `unpacked` takes, and the files."""
    return [one.path.name for one in data_places(config)], packed(config)


def unpacked(data: memoryview | bytes, names: list[str], wanted: Listed, folder: Path) -> None:
    """Write copies below ``folder``, and have them stand for the files of these names; DataError if one is not as ``wanted``.

    ``names``: the last part of each place's path, by which a report calls it.
    """
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
    for number, ((named, prepared, files), name) in enumerate(zip(wanted, names, strict=True)):
        place = folder / inside(number, named, name, prepared=prepared)
        for below, digest in files:
            if sha256(place / below) != digest:
                raise DataError(f"the copy of '{named}' differs from the original: run the same command again.")
        if prepared:
            os.environ[ENVIRONMENT] = str(folder / PREPARED)
        else:
            stand_in(named, place)


def inside(number: int, named: str, name: str, *, prepared: bool) -> str:
    """Return where a copy lies: its name stays, since its suffix tells what it holds."""
    return f"{PREPARED}/{named}" if prepared else f"{number}/{name}"
