"""The secret of a simulation's clients from which mechanisms draw that change rows: a file of the run, for its owner only.

It is no part of the model. A resumed run reads it, so that it changes each row as before; so does a prediction, if new rows
are changed like the clients'. What such mechanisms tell in the open lies beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError
from fedatlas.files import write_secret
from fedatlas.privacy.mechanism import on_rows
from fedatlas.record.run_folder import RunFolder
from fedatlas.secret import KEY, Secret
from fedatlas.setup.assembly import Setup
from fedatlas.setup.checked import Checked

ROOT, TOLD = "rows.secret", "rows.json"


class RowsRead(NamedTuple):
    """Facts by which new rows are changed as the clients' were: in the open, the secret excepted."""

    columns: tuple[tuple[str, tuple[str, ...]], ...]  # (name, categories) as the mechanisms saw them
    parties: int
    seed: int
    told: Mapping[str, Mapping[int, Any]]


def write(setup: Setup, folder: RunFolder) -> None:
    """Write the secret of a run, and what its mechanisms told; nothing if no mechanism changes rows."""
    if not (root := setup.held.root):
        return
    keep(root, folder.path)
    if any(one.work().new_rows is not None for one in on_rows(setup.checked.mechanisms)):
        columns = [[column.name, list(column.categories)] for column in setup.held.columns]
        values = {"columns": columns, "parties": len(setup.sizes), "seed": setup.config.seed, "told": setup.held.told}
        folder.write_json(TOLD, values)


def keep(root: bytes, path: Path) -> None:
    """Write a secret into the folder of its run, unless it is there."""
    if read(path) != root:
        write_secret(path / ROOT, root)


def read(path: Path) -> bytes:
    """Return the secret of the run in a folder; b"" if it has none yet. ConfigError if it is damaged."""
    try:
        root = (path / ROOT).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"'{path / ROOT}' cannot be read: {error.strerror or error}.") from error
    if len(root) != KEY:
        raise ConfigError(f"'{path / ROOT}' is damaged: put the original back, or begin a new run.")
    return Secret(root)


def read_again(path: Path, whole: Checked) -> bytes:
    """Return the secret of a run that continues; b"" if it needs none. ConfigError if it is lost, as other rows would be trained on."""
    root = read(path)
    if not root and any(one.keys.get("noise") == "os" for one in on_rows(whole.mechanisms)):
        raise ConfigError(
            f"'{path}' has lost '{ROOT}', by which its clients' rows were changed: put it back, or begin a new run."
        )
    return root


def reading(path: Path) -> RowsRead | None:
    """Return how a run's new rows are changed; None if they are read as they are."""
    if not (path / TOLD).exists():
        return None
    folder = RunFolder(path)
    found = folder.read_json(TOLD, *RowsRead._fields)
    try:
        told = {name: {int(party): one for party, one in each.items()} for name, each in found["told"].items()}
        columns = tuple((name, tuple(categories)) for name, categories in found["columns"])
        good = len(dict(columns)) == len(columns)
        good = good and all(isinstance(x, str) for name, categories in columns for x in (name, *categories))
    except (AttributeError, TypeError, ValueError):
        good = False
    if not good or type(found["parties"]) is not int or type(found["seed"]) is not int:
        raise folder.damaged(TOLD, "it holds other values than a run writes")
    return RowsRead(columns, found["parties"], found["seed"], told)
