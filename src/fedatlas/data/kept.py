"""Rows given in Python, kept as a file named by its content: ``data/<fingerprint>.table`` or ``.npz``.

A configuration names them by that path, so different content makes a different configuration. Before a run begins, the
file is in a temporary folder. The run copies it into its folder, where later readers find it: next to ``config.toml``,
or above it for seeds and baselines.

A ``.table`` is a .npz without pickles. ``names`` holds the columns' names. Column i is ``numbers_i`` (also dates), or
``texts_i[codes_i]`` with the text of each cell ("" = missing). `frame` reads only the text of a column that does not
hold plain numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.data.cells import texts
from fedatlas.data.store import Arrays, read_npz, sha256, write_npz
from fedatlas.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

TABLE, ARRAYS = ".table", ".npz"
CALLED = {TABLE: "data frame", ARRAYS: "arrays"}
"""Suffix -> name of such rows in a report."""
FOLDER = "data"
NAME = re.compile(rf"{FOLDER}/([0-9a-f]{{32}})(\.table|\.npz)")
ABOVE = 3  # folders above a configuration that may hold its rows: RUN/seed-1/baselines/local_only

_MOVED: dict[str, Path] = {}  # path of a configuration -> the copy that stands for it on a node of a cluster
_PLACES: dict[Path, None] = {}  # folders of configurations read in this process, and those of `Held`


class Held:
    """Rows in a temporary folder, kept until the last reference to them is gone."""

    def __init__(self, suffix: str, arrays: Arrays) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="fedatlas-")).resolve()
        weakref.finalize(self, _remove, self.place, os.getpid())
        first = self.place / FOLDER / suffix
        write_npz(first, np.savez, **arrays)
        self.name = f"{FOLDER}/{sha256(first)[:32]}{suffix}"
        first.rename(self.place / self.name)
        look_in(self.place)


def _remove(place: Path, process: int) -> None:
    """Remove a folder, but not from a forked child, whose parent still needs it."""
    if os.getpid() == process:
        _PLACES.pop(place, None)
        shutil.rmtree(place, ignore_errors=True)


def look_in(folder: Path) -> None:
    """Also look for kept rows in this folder, and in those above it."""
    _PLACES[folder.resolve()] = None


def stand_in(path: str, place: Path) -> None:
    """Have a copy stand for a file of configurations in this process."""
    _MOVED[path] = place


def is_elsewhere(path: str) -> bool:
    """Return whether a path of a configuration is not that of the file itself."""
    return path in _MOVED or is_kept(path)


def is_kept(path: str) -> bool:
    """Return whether a path of a configuration names rows that were given in Python."""
    return NAME.fullmatch(path) is not None


def located(path: str) -> Path:
    """Return the place of a file of a configuration. DataError for given rows that are gone or were altered."""
    if path in _MOVED:
        return _MOVED[path]
    if (found := NAME.fullmatch(path)) is None:
        return Path(path).expanduser()
    places = [each for place in reversed(list(_PLACES)) for each in (place, *list(place.parents)[:ABOVE])]
    if (place := next((each for each in places if (each / path).is_file()), None)) is None:
        raise DataError(
            f"'{path}', rows that were handed over in Python, is not in the run's folder: put the file back, or hand the rows over again."
        )
    if not sha256(place / path).startswith(found[1]):
        raise DataError(f"'{place / path}' was altered since the run began: put the original back.")
    return place / path


def keep(paths: Iterable[str], folder: Path) -> None:
    """Copy given rows into a run's folder, unless it, or a run that contains it, has them."""
    for path in filter(is_kept, paths):
        if not any((place / path).is_file() for place in (folder.resolve(), *list(folder.resolve().parents)[:ABOVE])):
            source, target = located(path), folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.part")
            shutil.copyfile(source, part)
            os.replace(part, target)
    look_in(folder)


def forget(paths: Iterable[str], folder: Path) -> None:
    """Undo `keep`."""
    for path in filter(is_kept, paths):
        (folder / path).unlink(missing_ok=True)
        if (folder / FOLDER).is_dir() and not any((folder / FOLDER).iterdir()):
            (folder / FOLDER).rmdir()


def table_arrays(frame: pd.DataFrame, drop: Collection[str] = ()) -> Arrays:
    """Return a table as arrays (see above). DataError for a table that a file cannot hold, or without rows."""
    names = [str(name).strip() for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"the data frame has two columns called '{twice[0]}': rename one.")
    if not len(frame):
        raise DataError("the data frame has no rows.")
    out: Arrays = {"names": np.array(names, str)}
    for i, name in enumerate(names):
        column = frame.iloc[:, i]
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufM":
            out[f"numbers_{i}"] = column.to_numpy()
            continue
        cells = np.array([""] * len(column)) if name in drop else texts(column)  # a dropped column may hold lists
        out[f"texts_{i}"], codes = np.unique(cells, return_inverse=True)
        out[f"codes_{i}"] = codes.astype(np.min_scalar_type(len(out[f"texts_{i}"])))
    return out


def read_kept(path: Path) -> pd.DataFrame:
    """Return the table of a file of `table_arrays`. The index is the row number."""
    return table_of(read_npz(path, (), whole=True))


def table_of(arrays: Arrays) -> pd.DataFrame:
    """Invert `table_arrays`. The index is the row number."""
    import pandas as pd

    def column(i: int) -> np.ndarray:
        if f"numbers_{i}" in arrays:
            return arrays[f"numbers_{i}"]
        cells: np.ndarray = arrays[f"texts_{i}"].astype(object)[arrays[f"codes_{i}"]]
        return cells

    names = arrays["names"].tolist()
    return pd.DataFrame(dict(enumerate(map(column, range(len(names)))))).set_axis(names, axis=1)
