"""The readings with which a node made sums of its files.

Another reading of a few cells would reveal them by the difference.

``data.units = ["432"]`` turns the cells that begin with it into other numbers. So before sums of a reading leave, the
file is also read as in earlier runs. If a number differs, the sums are refused. Cells that are text or missing in one
of the readings are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.config import parse
from fedatlas.deployment.node_rows import NodeRows
from fedatlas.deployment.told_sums import MOST
from fedatlas.errors import FedatlasError, PrivacyError
from fedatlas.files import OWN_FILES, write_json

READINGS = "readings.json"
KEYS = ("thousands", "units", "dates", "background")
OTHERWISE = (
    "its policy.toml refuses sums before round 1 of cells that earlier runs on its file read as other numbers, which repeat = false "
    "forbids: the difference may show a few of them; take the same thousands, units, dates and background as before, or data.constants."
)


def check_reading(folder: Path, data: Mapping[str, Any], read: Callable[[Any], NodeRows]) -> None:
    """Note how a table ``[data]`` reads a file. PrivacyError if that gives other numbers than before.

    ``folder``: of the sums sent of the file. ``read``: reads its rows by an experiment.
    """
    if data["name"] != "file":  # rows of a trial, in stored form
        return
    path, own = folder / READINGS, {key: data[key] for key in KEYS if data.get(key)}
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else [{}] if folder.exists() else []
    whole = {key: x for key, x in data.items() if key not in {*KEYS, "test", "constants"}} | {"path": OWN_FILES}
    others = [one for one in known if one != own]
    if others:
        mine = read(parse({"data": {**whole, **own}}))
        if len(known) > MOST or any(differ(mine, read, {**whole, **one}) for one in others):
            raise PrivacyError(OTHERWISE)
    if own not in known:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, [*known, own])


def differ(mine: NodeRows, read: Callable[[Any], NodeRows], data: Mapping[str, Any]) -> bool:
    """Return whether a number of these rows differs under a table ``[data]``.

    True if the file cannot be read that way.
    """
    try:
        rows = read(parse({"data": data}))
    except FedatlasError:
        return True
    (one, other), about = (held.splits["train"].numbered() for held in (mine, rows)), (mine.about, rows.about)
    assert one.row is not None
    assert other.row is not None
    _, i, j = np.intersect1d(one.row.numpy(), other.row.numpy(), return_indices=True)
    x, y = one.x[i], other.x[j]
    if about[0].schema:
        numbers = [a == b and not a[1] for a, b in zip(*(found.schema for found in about), strict=True)]
        x, y = x[:, numbers], y[:, numbers]
    target = about[0].task == about[1].task == "numbers" and bool((one.y[i] != other.y[j]).any())
    return target or x.shape != y.shape or bool(((x != y) & ~x.isnan() & ~y.isnan()).any())
