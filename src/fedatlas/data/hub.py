"""Data sets of the Hugging Face hub, through flwr-datasets (the ``hub`` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.cells import missing, now
from fedatlas.data.dataset import Names, Split, TaskKind
from fedatlas.data.frame import check_roles, is_quantity
from fedatlas.data.images import owners
from fedatlas.data.loaded import Loaded, LoadRequest, divided
from fedatlas.data.pictures import GREY, eight_bits, upright
from fedatlas.errors import ConfigError, DataError, first_line


def load_hub(
    request: LoadRequest,
    *,
    path: str,
    label: str = "label",
    image: str = "",
    client: str = "",
    subset: str = "",
    train: str = "train",
    test_split: str = "test",
) -> Loaded:
    """A data set of the hub. Rows keep the source's order. Licence: as stated on the data set's page.

    path: the data set's name on the hub, such as flwrlabs/femnist, or a local folder in a format that datasets reads.
    label: column of the target.
    image: column of pictures; "" = the only one; without any, the columns of numbers form a table.
    client: column of natural owners; "" = rows have none.
    subset: configuration of the data set on the hub; "" = its default.
    train: name of the training split.
    test_split: name of the test split; if it is absent, a quarter of the training split (data.test).
    """
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise ConfigError('data.name = "hub" needs flwr-datasets: pip install "fedatlas[hub]"') from error
    try:
        source = FederatedDataset(dataset=path, subset=subset or None, partitioners={}, shuffle=False)
        splits = {"train": source.load_split(train)}
        with suppress(ValueError):  # raised by flwr-datasets for an absent split
            splits["test"] = source.load_split(test_split)
    except Exception as error:
        raise DataError(
            f"'{path}' could not be read from the hub ({type(error).__name__}: {first_line(error)})."
        ) from error
    return from_hub(splits, path, label, image, client)


def from_hub(splits: dict[str, Any], name: str, label: str, image: str, client: str) -> Loaded:
    """Turn ``datasets.Dataset`` splits into rows: pictures to uint8, numeric columns to float32, labels to class ids or numbers."""
    first = splits["train"]
    columns = list(first.column_names)
    check_roles(columns, {"label": label, "image": image, "client": client}, "data.", f"'{name}'")
    pictures = [c for c in columns if type(first.features[c]).__name__ == "Image"]
    image = image or (pictures[0] if pictures else "")
    numeric = [c for c in columns if c not in {label, client} and _is_number(first.features[c])]
    if not image and not numeric:
        raise DataError(
            f"'{name}' has neither pictures nor numeric columns: save it as a file and use data.name = 'file'."
        )
    task, class_names = _task(first, label)
    parts = {side: _part(rows, label, image, numeric, class_names, task) for side, rows in splits.items()}
    named = {side: _owners(rows[client], client, name) for side, rows in splits.items() if client in rows.column_names}
    codes, names = owners(list(named.values()), "") if named else ([], ())
    for side, code in zip(named, codes, strict=True):
        parts[side] = parts[side]._replace(client=torch.from_numpy(code))
    return Loaded(
        parts["train"],
        parts.get("test"),
        task,
        class_names,
        () if image else tuple(numeric),
        client_names=names,
        **(divided(parts["train"].x.shape[1]) if image else {}),
        facts={"files": [], "hub": name},
    )


def _owners(values: Sequence[Any], client: str, name: str) -> np.ndarray:
    """Return the rows' owners as texts. DataError if one is missing."""
    found = np.array(values).astype(str)
    lost = int((missing(found) | (found == str(None))).sum()) if now().rules > 1 else 0
    if lost:
        raise DataError(f"'{name}': the owner '{client}' is missing in {lost} rows: choose another column, or none.")
    return found


def _is_number(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")).startswith(("float", "int", "uint"))


def _task(rows: Any, label: str) -> tuple[TaskKind, Names]:
    names = getattr(rows.features[label], "names", None)
    if names:
        return "classes", tuple(names)
    values = np.asarray(rows[label])
    if values.dtype.kind == "f" and is_quantity(values):
        return "numbers", ()
    return "classes", tuple(str(v) for v in np.unique(values))


def _part(rows: Any, label: str, image: str, numeric: Sequence[str], class_names: Names, task: TaskKind) -> Split:
    if image:
        x = torch.from_numpy(np.stack([pixels(picture) for picture in rows[image]]))
    else:
        x = torch.from_numpy(np.stack([np.asarray(rows[c], np.float32) for c in numeric], axis=1))
    return Split(x, _target(rows, label, class_names, task))


def _target(rows: Any, label: str, class_names: Names, task: TaskKind) -> Tensor:
    values = np.asarray(rows[label])
    if task == "numbers":
        return torch.from_numpy(values.astype(np.float32))
    if getattr(rows.features[label], "names", None):
        return torch.from_numpy(values.astype(np.int64))
    code = {name: i for i, name in enumerate(class_names)}
    return torch.tensor([code.get(str(v), -1) for v in values])


def pixels(picture: Any) -> np.ndarray:
    """Return a picture of the hub as uint8 (channels, height, width)."""
    picture = upright(picture)
    grey = picture.mode in GREY
    pixels = np.asarray(eight_bits(picture, "of the hub").convert("L" if grey else "RGB"), np.uint8)
    return np.ascontiguousarray(pixels[None] if grey else pixels.transpose(2, 0, 1))
