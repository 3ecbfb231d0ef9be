"""The runs of a study on one node of a cluster, in forked children, as `local_runs` makes them. The driver keeps the table.

A run gets a folder of the node, which its answer carries back if the study keeps folders. Its key is computed here again: it is equal
only if this machine reads the experiment and the data as the driver does.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedatlas.cluster.frames import head_and_body, with_head
from fedatlas.errors import ConfigError
from fedatlas.runs.carried_data import here, unpacked
from fedatlas.runs.run_key import described, keys
from fedatlas.runs.surroundings import take_over
from fedatlas.setup.checked import Checked
from fedatlas.study.design import ExecuteTable
from fedatlas.study.local_runs import LocalRuns, warm

PAUSE = 0.02  # seconds between checks of the children


class StudyHandler:
    """A `cluster.worker.Handler`."""

    def __init__(self, hello: bytes, folder: Path) -> None:
        told = json.loads(hello)
        self.folder, self.pause = folder, PAUSE
        self.asked: dict[str, int] = {}  # run -> the call that waits for it
        self.data: set[str] = set()  # lists of data files that are as they should be
        take_over(told, folder)
        self.how = ExecuteTable(**told["execute"])
        self.runs = LocalRuns(self.how)
        self.warmth = contextlib.ExitStack()
        self.warmth.enter_context(warm())

    def answer(self, number: int, message: bytes) -> bytes | None:
        """Begin a run, or ask for its data with ``{"need": true}``; or take data that were asked for."""
        told, body = head_and_body(message)
        if "names" in told:
            unpacked(body, told["names"], told["data"], self.folder / f"data-{number}")
            return b""
        whole = self.read(told)
        if whole is None:
            return with_head({"need": True})
        place = self.place(told["key"])
        if len(body):
            unpacked_folder(body, place)
        self.asked[told["key"]] = number
        self.runs.begin(told["key"], whole, place, tested=told["tested"])
        return None

    def read(self, told: dict[str, Any]) -> Checked | None:
        """Return the experiment of a run; None if its data are not here. ConfigError if it means something else here."""
        found = described(told["plain"])
        if found.checked is None:
            raise ConfigError(f"this machine refuses a run that the driver allows: {found.refused}")
        if (wanted := json.dumps(told["data"])) not in self.data:
            if not here(found.checked.config, told["data"]):
                return None
            self.data.add(wanted)
        if keys({**found.plain, "seed": told["seed"]}, told["hashes"]).run_key != told["key"]:
            raise ConfigError(
                "this machine reads the experiment otherwise than the driver: install the same packages there."
            )
        return found.checked

    def place(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / key

    def look(self) -> Iterable[tuple[int, bytes]]:
        """Return the answers of runs that have ended: how, their outcome, and their folder if it is kept."""
        for key, ending in self.runs.endings(0.0):
            kept = packed_folder(self.place(key)) if self.how.keep == "folder" and ending.outcome is not None else b""
            shutil.rmtree(self.place(key), ignore_errors=True)
            yield self.asked.pop(key), with_head({"ended": ending.ended, "outcome": ending.outcome}, kept)

    def close(self) -> None:
        """End all runs."""
        self.runs.stop()


def packed_folder(folder: Path) -> bytes:
    """Return a folder with all that it holds; b"" if there is none."""
    out = io.BytesIO()
    if not folder.exists():
        return b""
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(folder, arcname=".")
    return out.getvalue()


def unpacked_folder(data: memoryview | bytes, folder: Path) -> None:
    """Invert `packed_folder`; what the folder held is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
