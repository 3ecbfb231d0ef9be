"""Secrets of a simulation's parties: identities, the federation's key, and the sums that they have opened so far.

Keys stay in memory, except one with which the clients alone can open the model: a run that goes on needs it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.errors import CheckpointError, TransportError
from fedatlas.federation.server import Guard
from fedatlas.files import write_bytes, write_secret
from fedatlas.privacy import ledger
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protocol import Keys
from fedatlas.wire import codec

OPENED, JOURNAL, LEDGER, SHARED = "opened.jsonl", "journal", "ledger.jsonl", "clients.secret"
RECORD, BEGUN = "record", "begun"  # in a session: asks whose sum a party helped to open; asks for which it began one


class Keyring:
    """The secrets of all parties of one run. ``folder`` is the run's, where opened sums are noted.

    resume: the run goes on. CheckpointError if it needs a key that its folder has lost.
    """

    def __init__(
        self, how: Protection, clients: int, federation: str, folder: Path | None = None, *, resume: bool = False
    ) -> None:
        self.how, self.federation, self.folder = how, federation, folder
        self.records: dict[int, dict[str, Any]] = {}
        self.begun: dict[int, dict[str, Any]] = {}  # sessions of the last round, by client and run
        self.keys = self._made(clients, resume)
        if folder is not None and (folder / OPENED).exists():
            for line in whole_lines(folder / OPENED):
                client, run, asked = json.loads(line)
                self.records.setdefault(client, {}).setdefault(run, []).append(asked)

    def _made(self, clients: int, resume: bool) -> Keys | None:
        """Return the keys of all parties: new ones, or those that the run's clients kept."""
        protocol, path = self.how.protocol, None if self.folder is None else self.folder / SHARED
        if protocol is None:
            return None
        if protocol.closed is not None and path is not None and path.exists():
            return protocol.closed.again(read_shared(path))
        if protocol.closed is not None and resume:
            raise CheckpointError(
                f"'{self.folder}' has lost '{SHARED}', the clients' key, without which nobody opens its model: put it back, or begin a "
                "new run."
            )
        keys = protocol.keys(clients, self.federation, self.how.testing)
        if protocol.closed is not None and path is not None:
            write_secret(path, bytes(codec.encode(dict(protocol.closed.secret(keys)))))
        return keys

    def session(self, client: int) -> Any:
        """Return the session with which a party's questions begin in a round."""
        if self.keys is None:
            return None
        return {**self.keys.session(client, self.records.get(client, {})), BEGUN: self.begun.get(client, {})}

    def keep(self, client: int, session: Any) -> None:
        """Keep the record of what a party has opened; it is on the disk before the party's reply leaves."""
        path = None if self.folder is None else self.folder / OPENED
        self.records[client] = noted(path, self.records.get(client, {}), session, client)
        begun = session.get(BEGUN, {})
        self.begun[client] = {run: [one for one in asks if one[0] == asks[-1][0]] for run, asks in begun.items()}

    def forget(self, done: int) -> None:
        """Remove the journal's sums of rounds up to ``done``, which are not repeated."""
        if self.folder is not None:
            FolderJournal(self.folder, "", self).forget(done)

    def guard(self, run: str, workers: int = 1, model: Mapping[str, Any] | None = None) -> Guard:
        """Return what the server half is given: public keys, the journal, the ledger and the first ``model``, but no secrets."""
        folder = self.folder
        return Guard(
            self.how,
            self.federation,
            None if self.keys is None else self.keys.public,
            FolderJournal(folder, run, self) if folder is not None and self.how.masks else None,
            (lambda events: ledger.append(folder / LEDGER, events)) if folder is not None else (lambda events: None),
            workers,
            model or {},
        )


def read_shared(path: Path) -> dict[str, Any]:
    """Return the key that a run's clients kept. CheckpointError if the file is damaged."""
    try:
        found: dict[str, Any] = codec.decode(path.read_bytes(), own=True)
    except (OSError, TransportError):
        raise CheckpointError(f"'{path}' cannot be read: put the original back, or begin a new run.") from None
    return found


class FolderJournal:
    """Opened sums with their survivors, one file per sum, written before the sum is used."""

    def __init__(self, folder: Path, run: str, keyring: Keyring) -> None:
        self.folder, self.run, self.keyring = folder / JOURNAL, run, keyring

    def _path(self, round: int, ask: int) -> Path:
        return self.folder / f"round-{round:06d}-{ask}.bin"

    def read(self, round: int, ask: int) -> dict[str, Any] | None:
        """Return the opened sum of an ask; None if there is no complete one. A sum that was written in part was never used."""
        path = self._path(round, ask)
        if not path.exists():
            return None
        found: dict[str, Any] = codec.decode(path.read_bytes(), own=True)
        return found

    def write(self, round: int, ask: int, opened: Mapping[str, Any]) -> None:
        """Write an opened sum whole."""
        write_bytes(self._path(round, ask), codec.encode(dict(opened)))

    def forget(self, done: int) -> None:
        """Remove the sums of rounds up to ``done``. No checkpoint that is kept would repeat them."""
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
    """Append a line. It is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger.add(path, line + "\n")


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file without those cut short. A line cut short records something that had not happened yet."""
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
