"""Rows that a user has in Python, as arrays for `kept`: a DataFrame, arrays, a torch Dataset, a Hugging Face data set."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedatlas.data.dataset import SIDES
from fedatlas.data.dates import by_type
from fedatlas.data.hub import pixels
from fedatlas.data.kept import ARRAYS, TABLE, Held, table_arrays
from fedatlas.data.store import Arrays
from fedatlas.errors import ConfigError, DataError

MEMBERS = ("x", "y", "client", "weight")
FORMS = "give a DataFrame, (x, y), (x, y, owner), a mapping with x_train and y_train, a torch Dataset or a Hugging Face data set"


class Handed(NamedTuple):
    """Rows given in Python: the keys of ``[data]`` that name them, and the objects that keep them until a run has them."""

    keys: dict[str, Any]
    held: tuple[Held, ...]
    owned: bool  # whether each row has a known owner


def is_rows(data: Any) -> bool:
    """Return whether ``data`` are rows, not the keys of ``[data]``."""
    if isinstance(data, Mapping):
        return "x_train" in data or any(is_hub(x) or getattr(x, "ndim", 0) for x in data.values())
    return data is not None


def hand_over(data: Any, keys: Mapping[str, Any]) -> Handed:
    """Return rows as a file of `kept`, with the other ``keys`` of ``[data]``; ``test`` may be rows of the same form.

    ConfigError for another form. DataError for rows that no file could hold.
    """
    keys, test = dict(keys), keys.get("test")
    for key in ("label", "client", "weight"):
        if not isinstance(keys.get(key), str | None):
            raise ConfigError(f"{key} names a column of the table: give its name, not its values.")
    parts = {"train": data} if not is_sides(data) else {side: data[side] for side in SIDES if side in data}
    if test is not None and not isinstance(test, str | int | float):
        parts["test"] = test
        del keys["test"]
    if is_table(parts["train"], keys):
        frames = [with_dates(as_frame(part), keys.get("dates") or ()) for part in parts.values()]
        held = [Held(TABLE, table_arrays(frame, keys.get("drop", ()))) for frame in frames]
        named = {"path": held[0].name, **({"test": held[1].name} if held[1:] else {})}
        return Handed({"name": "file", **named, **keys}, tuple(held), bool(keys.get("client")))
    arrays = {name: x for side, part in parts.items() for name, x in as_arrays(part, side, keys).items()}
    if odd := [name for name, x in arrays.items() if x.dtype == object]:
        raise DataError(f"{odd[0]} holds objects, not numbers: {FORMS}.")
    one = Held(ARRAYS, arrays)
    left = {key: value for key, value in keys.items() if key not in ("label", "client")}
    return Handed({"name": "file", "path": one.name, **left}, (one,), "client_train" in arrays)


def is_sides(data: Any) -> bool:
    """Return whether ``data`` are training and test rows by name, such as a ``datasets.DatasetDict``."""
    return isinstance(data, Mapping) and "train" in data


def is_hub(data: Any) -> bool:
    """Return whether ``data`` is a ``datasets.Dataset``."""
    return hasattr(data, "column_names") and hasattr(data, "features")


def picture_column(data: Any) -> str:
    """Return the first column of pictures of a Hugging Face data set; "" for none."""
    return next((name for name in data.column_names if type(data.features[name]).__name__ == "Image"), "")


def is_table(data: Any, keys: Mapping[str, Any]) -> bool:
    """Return whether rows have named columns. ConfigError for a table without a target."""
    import pandas as pd

    table = isinstance(data, pd.DataFrame) or (is_hub(data) and not picture_column(data))
    if (table or is_hub(data)) and not keys.get("label"):
        columns = list(data.columns if isinstance(data, pd.DataFrame) else data.column_names)
        raise ConfigError(f"label must name the target: one of {', '.join(map(str, columns))}.")
    if not table and not is_hub(data):
        for key in ("label", "client"):
            if keys.get(key) is not None:
                raise ConfigError(f"{key} names a column, but arrays have none: {FORMS}.")
    return table


def as_frame(data: Any) -> Any:
    """Return a table as a DataFrame. The class names of a Hugging Face data set replace their numbers."""
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return data
    if not is_hub(data):
        raise ConfigError("test = ...: give test rows in the form of the training rows, a share, or a file.")
    frame = data.to_pandas()
    for name in data.column_names:
        if known := getattr(data.features[name], "names", None):
            frame[name] = [None if code is None or code < 0 else known[int(code)] for code in data[name]]
    return frame


def with_dates(frame: Any, names: Collection[str]) -> Any:
    """Return a DataFrame in which these columns have a date type, if they hold dates."""
    found = {name: frame[name] for name in frame.columns if name in names and frame[name].ndim == 1}
    known = {name: days.dt.tz_localize(None) for name, column in found.items() if (days := by_type(column)) is not None}
    return frame.assign(**known) if known else frame


def as_arrays(data: Any, side: str, keys: Mapping[str, Any]) -> Arrays:
    """Return rows as the arrays of a .npz: ``x_train y_train client_train``, or ``..._test``. ConfigError for another form."""
    if is_hub(data):
        return _hub_arrays(data, side, keys)
    if isinstance(data, Mapping):
        known = {f"{name}_{each}" for name in MEMBERS for each in SIDES} | {"class_names"}
        if not {"x_train", "y_train"} <= data.keys() <= known:
            raise ConfigError(f"data = {{{', '.join(map(str, data))}}}: {FORMS}.")
        return {str(name): as_array(x) for name, x in data.items()}
    if isinstance(data, TorchDataset):
        data = _columns_of(data)
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        raise ConfigError(f"data = {type(data).__name__}: {FORMS}.")
    return {f"{name}_{side}": as_array(x) for name, x in zip(MEMBERS, data, strict=False)}


def as_array(values: Any) -> np.ndarray:
    """Return a tensor, a Series, a list or an array as an array. Texts get a text type."""
    found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return found.astype(str) if found.dtype == object and {*map(type, found.flat)} == {str} else found


def _columns_of(data: Any) -> tuple[np.ndarray, ...]:
    """Return the rows of a torch Dataset, each (x, y) or (x, y, owner), as arrays. ConfigError for others."""
    if not hasattr(data, "__len__"):
        raise ConfigError("data: a torch Dataset needs a length; give one with __len__, or arrays.")
    rows: Sequence[Any] = [data[i] for i in range(len(data))]
    if not rows or any(not isinstance(row, tuple | list) or len(row) not in (2, 3) for row in rows):
        raise ConfigError("data: each item of a torch Dataset must be (x, y) or (x, y, owner).")
    return tuple(np.stack([_cell(value) for value in values]) for values in zip(*rows, strict=True))


def _cell(value: Any) -> np.ndarray:
    return pixels(value) if hasattr(value, "getbands") else as_array(value)  # a picture of PIL


def _hub_arrays(data: Any, side: str, keys: Mapping[str, Any]) -> Arrays:
    """Return a Hugging Face data set of pictures as arrays."""
    image, label, client = picture_column(data), str(keys["label"]), str(keys.get("client") or "")
    _has(data.column_names, label, client)
    known = getattr(data.features[label], "names", None)
    y = np.asarray(data[label])
    out = {f"x_{side}": np.stack([pixels(picture) for picture in data[image]])}
    out[f"y_{side}"] = np.asarray([known[int(code)] for code in y]) if known else y
    return {
        **out,
        **({f"client_{side}": np.array(["" if one is None else str(one) for one in data[client]])} if client else {}),
    }


def _has(columns: Collection[str], *names: str) -> None:
    if odd := [name for name in names if name and name not in columns]:
        raise ConfigError(f"the data set has no column '{odd[0]}'; its columns are {', '.join(columns)}.")
