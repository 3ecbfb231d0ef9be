"""Secrets of a simulation's parties: identities, the federation's key, and the sums that they have opened so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.errors import CheckpointError
from fedatlas.federation.server import Guard
from fedatlas.files import write_bytes
from fedatlas.privacy import ledger
from fedatlas.privacy.mechanism import Protection
from fedatlas.wire import codec

OPENED, JOURNAL, LEDGER = "opened.jsonl", "journal", "ledger.jsonl"
RECORD, BEGUN = "record", "begun"  # in a session: asks whose sum a party helped to open, asks that it began one for


class Keyring:
    """All parties' secrets of one run, in memory alone; it writes no key. ``folder``: the run's, where what was opened is noted."""

    def __init__(self, how: Protection, clients: int, federation: str, folder: Path | None = None) -> None:
        self.how, self.federation, self.folder = how, federation, folder
        self.records: dict[int, dict[str, Any]] = {}
        self.begun: dict[int, dict[str, Any]] = {}  # sessions of the last round, by client and run
        self.keys = None if how.protocol is None else how.protocol.keys(clients, federation, how.testing)
        if folder is not None and (folder / OPENED).exists():
            for line in whole_lines(folder / OPENED):
                client, run, asked = json.loads(line)
                self.records.setdefault(client, {}).setdefault(run, []).append(asked)

    def session(self, client: int) -> Any:
        """Return what a party's questions begin with in a round."""
        if self.keys is None:
            return None
        return {**self.keys.session(client, self.records.get(client, {})), BEGUN: self.begun.get(client, {})}

    def keep(self, client: int, session: Any) -> None:
        """Put the record of what a party has opened away, on the disk before its reply leaves."""
        path = None if self.folder is None else self.folder / OPENED
        self.records[client] = noted(path, self.records.get(client, {}), session, client)
        begun = session.get(BEGUN, {})
        self.begun[client] = {run: [one for one in asks if one[0] == asks[-1][0]] for run, asks in begun.items()}

    def forget(self, done: int) -> None:
        """The journal's sums of rounds up to ``done``, which are not repeated, go."""
        if self.folder is not None:
            FolderJournal(self.folder, "", self).forget(done)

    def guard(self, run: str, workers: int = 1) -> Guard:
        """Return what the server half is given: public keys, the journal, the ledger; none of the secrets."""
        folder = self.folder
        return Guard(
            self.how,
            self.federation,
            None if self.keys is None else self.keys.public,
            FolderJournal(folder, run, self) if folder is not None and self.how.masks else None,
            (lambda events: ledger.append(folder / LEDGER, events)) if folder is not None else (lambda events: None),
            workers,
        )


class FolderJournal:
    """Opened sums with their survivors, a file each, written before the sum is used."""

    def __init__(self, folder: Path, run: str, keyring: Keyring) -> None:
        self.folder, self.run, self.keyring = folder / JOURNAL, run, keyring

    def _path(self, round: int, ask: int) -> Path:
        return self.folder / f"round-{round:06d}-{ask}.bin"

    def read(self, round: int, ask: int) -> dict[str, Any] | None:
        """The opened sum of an ask; None where there is none, or half of one: that was not used."""
        path = self._path(round, ask)
        if not path.exists():
            return None
        found: dict[str, Any] = codec.decode(path.read_bytes(), own=True)
        return found

    def write(self, round: int, ask: int, opened: Mapping[str, Any]) -> None:
        """Writes an opened sum whole."""
        write_bytes(self._path(round, ask), codec.encode(dict(opened)))

    def forget(self, done: int) -> None:
        """Sums of rounds up to ``done`` go: no checkpoint that is kept would repeat them."""
        for old in self.folder.glob("round-*.bin"):
            if int(old.name.split("-")[1]) <= done:
                old.unlink()

    def given(self, run: str, round: int, ask: str) -> bool:
        """Whether a party helped to open this ask."""
        return any([round, ask] in record.get(run, []) for record in self.keyring.records.values())


def noted(path: Path | None, known: Mapping[str, Any], session: Any, *who: int, of: str = RECORD) -> dict[str, Any]:
    """Return the asks that a party has noted in its session, and append those that are not ``known`` to a file."""
    found = {run: [list(one) for one in asks] for run, asks in session.get(of, {}).items()}
    new = [[run, one] for run, asks in found.items() for one in asks[len(known.get(run, [])) :]]
    if path is not None:
        for one in new:
            append(path, json.dumps([*who, *one]))
    return found


def append(path: Path, line: str) -> None:
    """Append a line, on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger.add(path, line + "\n")


def whole_lines(path: Path) -> list[str]:
    """The lines of a file but for those that were cut short: what they would have said had not happened yet."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    if any(not line.startswith("[") for line in lines):
        raise CheckpointError(f"'{path}' was altered: put the original back, or begin a new run.")
    return [line for line in lines if _whole(line)]


def _whole(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
