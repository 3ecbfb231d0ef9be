"""Original files from their official addresses: downloaded once, checked, turned into prepared files, then removed.

A checksum is listed here only with the place that publishes it. Otherwise the SHA-256 of the first download is kept in
``downloads.json``, marked unverified. Later downloads must match it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedatlas.data.store import ENVIRONMENT, Found, Store, read_json, sha256, write_atomically
from fedatlas.errors import DataError

RECORDS = "downloads.json"

Originals = Mapping[str, Path]
Prepare = Callable[[Originals, Path], None]
"""(original files by name, target folder) -> writes the prepared files there."""


class Remote(NamedTuple):
    """One original file: its address, and its checksum if a citable source publishes one."""

    url: str
    file: str  # name of the local copy
    checksum: str = ""  # "md5:..." or "sha256:..."
    cited: str = ""  # who publishes the checksum


def obtain(
    store: Store,
    name: str,
    files: Sequence[str],
    remotes: Sequence[Remote] = (),
    prepare: Prepare | None = None,
    hint: str = "",
) -> Found:
    """Return the prepared ``files`` of data set ``name``: found, or else downloaded, prepared and kept.

    DataError if they are neither present nor available: it names the missing files, the folders searched and the way to get them.
    """
    found = store.find(files)
    if found is not None:
        return found
    wanted = files[0] if len(files) == 1 else f"{files[0]} ... {files[-1]}"
    absent = f"data set '{name}' is not on this machine: {wanted} is not in {store}"
    if prepare is None or not remotes:
        raise DataError(f"{absent} and cannot be downloaded automatically: {hint}")
    by_hand = (
        f"with a network, run this again; without one, put the prepared file into the folder named by {ENVIRONMENT}; "
        f"source: {remotes[0].url}"
    )
    home = store.home()
    originals = fetch(remotes, home, lambda why: f"{absent} and could not be downloaded ({why}): {hint or by_hand}")
    prepare(originals, home)
    for path in originals.values():
        path.unlink(missing_ok=True)
    found = store.find(files)
    assert found is not None, f"{name}: prepare() did not write {wanted}"
    return found


def fetch(remotes: Sequence[Remote], home: Path, complain: Callable[[str], str]) -> dict[str, Path]:
    """Download the original files into ``home/originals``. DataError with ``complain(why)`` if one is unavailable."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    records = read_json(home / RECORDS)
    originals = {}
    for remote in remotes:
        known = remote.checksum or (f"sha256:{records[remote.url]['sha256']}" if remote.url in records else None)
        with _Bar(remote.file) as bar:
            loader = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=30)
            try:
                path = pooch.retrieve(remote.url, known, remote.file, home / "originals", downloader=loader)
            except OSError as error:  # requests raises subclasses of it
                if (response := getattr(error, "response", None)) is not None:
                    response.close()  # pooch leaves the connection of a refused request open
                raise DataError(complain(f"{remote.url}: {type(error).__name__}")) from error
            except ValueError as error:  # pooch raises it for a checksum mismatch
                published = remote.cited or "the first download"
                raise DataError(
                    f"{remote.url} is not the expected file: its checksum differs from that of {published}."
                ) from error
        originals[remote.file] = Path(path)
        records[remote.url] = {"file": remote.file, "sha256": sha256(Path(path)), "verified": bool(remote.checksum)}
        records[remote.url] |= {"cited": remote.cited} if remote.cited else {}
    write_atomically(home / RECORDS, json.dumps(records, indent=2, sort_keys=True).encode())
    return originals


class _Bar:
    """A progress bar on stderr with the four methods that pooch calls; silent without a terminal."""

    def __init__(self, title: str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(
            *columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True
        )
        self.task = self.progress.add_task(title, total=None)
        self.total = 0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.progress.stop()

    def update(self, n: int) -> None:
        self.progress.update(self.task, total=self.total or None, advance=n)

    def reset(self) -> None:
        self.progress.reset(self.task)

    def close(self) -> None:
        self.progress.refresh()
