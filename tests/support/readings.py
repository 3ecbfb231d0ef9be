"""Small files to read, and the reader of a user's own files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl

from fedatlas.data.files import load_file
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.store import Store


def load(path: Path, test: Path | None = None, **keys: Any) -> Loaded:
    return load_file(
        LoadRequest(Store.default(), 1, test_file=str(test or "")), path=str(path), **{"label": "y", **keys}
    )


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def workbook(path: Path, rows: list[list[Any]], change: Callable[[bytes], bytes]) -> Path:
    """A workbook whose first sheet's XML was changed."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, held in parts.items():
            archive.writestr(name, change(held) if name.endswith("sheet1.xml") else held)
    return path
