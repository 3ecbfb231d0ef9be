"""Checkpoints: a manifest, swapped atomically, over files that never change.

    checkpoint/
      manifest-000012.json     round, files with SHA-256, length of metrics.jsonl, plan, configuration hash, its own hash
      server-000012.bin        the server's state (codec bytes)
      client-7-000012.bin      client 7's state as of round 12; written only when it changed
    versions/000012.json       under [guard], of each judged model: its score and, if it was committed, its files

A manifest names a client's newest file, however old. Files that no kept manifest and no version names are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.algorithm import State
from fedatlas.errors import CheckpointError, TransportError
from fedatlas.federation.client_states import PartyState
from fedatlas.files import write_bytes
from fedatlas.privacy.ask_protocol import MEMORY
from fedatlas.wire import codec

FORMAT = 1
GUARD = "guard"  # in a manifest's extra contents: the state of the guard
VERDICTS, ROLLBACKS = "verdicts", "rollbacks"  # there too, in a deployed run: what nodes are still to be told
VERSIONS = "versions"  # the folder beside that of checkpoints


def rollbacks_of(guard: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return (the round number that it took, its version) of each rollback, oldest first, from a manifest's state of the guard.

    A manifest of an older version of fedatlas knows only the last one.
    """
    last = guard.get("rollback")
    every = guard.get("rollbacks", [] if last is None else [last])
    return tuple((at, version) for at, version in every)


class RunState(NamedTuple):
    """The state of a run on the server's side; `PartyState` is the rest. The ledger of releases is separate."""

    round: int
    server: State
    rows: int  # bytes of metrics.jsonl that belong to it


class Restored(NamedTuple):
    """The state of a run, read back."""

    run: RunState
    extra: Mapping[str, Any]
    refused: tuple[str, ...]  # newer checkpoints that could not be used, and why


class Checkpoints:
    """The checkpoint folder of a run."""

    def __init__(self, folder: Path, config_hash: str, keep: int = 2) -> None:
        self.folder, self.config_hash, self.keep = folder, config_hash, keep
        self.server: list[str] = []  # file and SHA-256
        self.clients: dict[str, list[str]] = {}  # client -> the same
        self._of_versions: set[str] | None = None  # files that a version names, once they have been looked up

    def save(
        self, run: RunState, party: PartyState, extra: Mapping[str, Any], version: Mapping[str, Any] | None = None
    ) -> None:
        """Write what changed since the last call, then the manifest, then remove files that nothing names.

        ``version``: the record of the round's version, whose files are kept for good if it was committed. A state that a
        rejection restored shares the file that it had.
        """
        number = run.round
        private = MEMORY in run.server  # it may hold keys of noise that is in the model
        known = [] if version is None else self.server
        self.server = self._written(f"server-{number:06d}.bin", run.server, known, private=private)
        for k in party.after.take_changed():
            state = party.get(k)
            if state is None:  # the only round it worked in did not count
                self.clients.pop(str(k), None)
                continue
            known = [] if version is None else self.clients.get(str(k), [])
            self.clients[str(k)] = self._written(
                f"client-{k}-{number:06d}.bin", state, known, private=True
            )  # it may hold a party's key
        held = {"format": FORMAT, "config": self.config_hash, "server": self.server, "clients": self.clients}
        if version is not None:
            self._keep_version({**held, **version})
        body = {**held, "round": number, "metrics_bytes": run.rows, "extra": dict(extra)}
        self.replace(body)
        self._forget()

    def replace(self, body: Mapping[str, Any]) -> None:
        """Write the manifest of a round."""
        write_bytes(self.folder / f"manifest-{body['round']:06d}.json", _sealed(body))

    def newest(self) -> dict[str, Any]:
        """Return the newest intact manifest. CheckpointError if there is none."""
        return self._intact([])

    def versions(self) -> list[dict[str, Any]]:
        """Return the records of all versions, ascending. CheckpointError for a damaged one."""
        return [_open(path, self.config_hash) for path in sorted(self._beside().glob("*.json"))]

    def forget_versions(self, after: int) -> None:
        """Remove the records of later rounds. These never landed: a kill came between record and manifest."""
        for path in self._beside().glob("*.json"):
            if int(path.stem) > after:
                path.unlink()
        self._of_versions = None

    def check_files(self, body: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a file that a manifest or a version names is missing or altered."""
        for entry in (body["server"], *body["clients"].values()):
            self._read(entry)  # only a check: all of them at once may exceed the memory

    def _beside(self) -> Path:
        return self.folder.with_name(VERSIONS)

    def _written(self, name: str, state: State, known: list[str], *, private: bool = False) -> list[str]:
        """Write a state and return its file and SHA-256; if it equals the ``known`` one, return that."""
        data = codec.encode(dict(state))
        if known and known[1] == hashlib.sha256(data).hexdigest():
            return known
        return [name, write_bytes(self.folder / name, data, private=private)]

    def _keep_version(self, record: dict[str, Any]) -> None:
        if not record["committed"]:
            record = {key: x for key, x in record.items() if key not in {"server", "clients"}}
        self._named_by_versions().update(_named(record))
        write_bytes(self._beside() / f"{record['version']:06d}.json", _sealed(record))

    def _named_by_versions(self) -> set[str]:
        if self._of_versions is None:
            self._of_versions = {name for one in self.versions() for name in _named(one)}
        return self._of_versions

    def oldest(self) -> int:
        """Return the round of the oldest kept checkpoint, or -1; a resumed run repeats no round before it."""
        return min((int(path.stem.split("-")[1]) for path in self.folder.glob("manifest-*.json")), default=-1)

    def load(self, party: PartyState) -> Restored:
        """Return the newest intact checkpoint. CheckpointError if there is none."""
        refused: list[str] = []
        body = self._intact(refused)
        for k, entry in body["clients"].items():
            party.after.restore(int(k), self._read(entry))
        self.server, self.clients = body["server"], dict(body["clients"])
        run = RunState(body["round"], self._read(self.server), body["metrics_bytes"])
        return Restored(run, body["extra"], tuple(refused))

    def _intact(self, refused: list[str]) -> dict[str, Any]:
        """Return the newest intact manifest, and add to ``refused`` why newer ones cannot be used."""
        for path in sorted(self.folder.glob("manifest-*.json"), reverse=True):
            try:
                body = _open(path, self.config_hash)
                self.check_files(body)
            except CheckpointError as error:
                refused.append(str(error))
                continue
            return body
        why = (
            " ".join(refused)
            or f"'{self.folder}' holds none, as the run ended before its first checkpoint; start it again."
        )
        raise CheckpointError(f"no usable checkpoint: {why}")

    def _read(self, entry: list[str]) -> State:
        name, expected = entry
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            raise CheckpointError(f"checkpoint file '{name}' is missing.") from None
        if hashlib.sha256(data).hexdigest() != expected:
            raise CheckpointError(f"checkpoint file '{name}' is cut short or altered (its SHA-256 differs).")
        try:
            state: State = codec.decode(data, own=True)
        except TransportError as error:
            raise CheckpointError(f"checkpoint file '{name}': {error}") from error
        return state

    def _forget(self) -> None:
        manifests = sorted(self.folder.glob("manifest-*.json"), reverse=True)
        named = {*self._named_by_versions()}
        for path in manifests[: self.keep]:
            try:
                body = _open(path, self.config_hash)
            except CheckpointError:
                continue
            named |= {path.name, *_named(body)}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)


def _named(body: Mapping[str, Any]) -> set[str]:
    """Return the files that a manifest or a version names; a rejected version names none."""
    return {entry[0] for entry in (body["server"], *body["clients"].values())} if "server" in body else set()


def _sealed(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}, sort_keys=True).encode()


def _open(path: Path, config_hash: str) -> dict[str, Any]:
    try:
        whole = json.loads(path.read_bytes())
        body: dict[str, Any] = whole["body"]
        text = json.dumps(body, sort_keys=True)
        if hashlib.sha256(text.encode()).hexdigest() != whole["sha256"]:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"'{path.name}' is cut short or altered.") from None
    if body["format"] != FORMAT:
        raise CheckpointError(f"'{path.name}' has format {body['format']}, but this version reads {FORMAT}.")
    if body["config"] != config_hash:
        raise CheckpointError(f"'{path.name}' belongs to another configuration (the run's config.toml was changed).")
    return body
