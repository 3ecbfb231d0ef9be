"""Checkpoints: a manifest, swapped atomically, over files that never change.

    checkpoint/
      manifest-000012.json     round, files with SHA-256, length of metrics.jsonl, plan, configuration hash, its own hash
      server-000012.bin        the server's state (codec bytes)
      client-7-000012.bin      client 7's state as of round 12; written only when it changed

A manifest names a client's newest file, however old. Files that no kept manifest names are removed.
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
        self.clients: dict[str, list[str]] = {}  # client -> [file, SHA-256]

    def save(self, run: RunState, party: PartyState, extra: Mapping[str, Any]) -> None:
        """Write what changed since the last call, then the manifest, then remove files that no manifest names."""
        number, server_file = run.round, f"server-{run.round:06d}.bin"
        private = MEMORY in run.server  # it may hold keys of noise that is in the model
        server_sum = write_bytes(self.folder / server_file, codec.encode(dict(run.server)), private=private)
        for k in party.after.take_changed():
            name = f"client-{k}-{number:06d}.bin"
            state = party.get(k)
            if state is None:  # the only round it worked in did not count
                self.clients.pop(str(k), None)
                continue
            written = write_bytes(
                self.folder / name, codec.encode(dict(state)), private=True
            )  # it may hold a party's key
            self.clients[str(k)] = [name, written]
        body = {
            "format": FORMAT,
            "round": number,
            "config": self.config_hash,
            "server": [server_file, server_sum],
            "clients": self.clients,
            "metrics_bytes": run.rows,
            "extra": dict(extra),
        }
        write_bytes(self.folder / f"manifest-{number:06d}.json", _sealed(body))
        self._forget()

    def oldest(self) -> int:
        """Return the round of the oldest kept checkpoint, or -1; a resumed run repeats no round before it."""
        return min((int(path.stem.split("-")[1]) for path in self.folder.glob("manifest-*.json")), default=-1)

    def load(self, party: PartyState) -> Restored:
        """Return the newest intact checkpoint. CheckpointError if there is none."""
        refused: list[str] = []
        for path in sorted(self.folder.glob("manifest-*.json"), reverse=True):
            try:
                body = _open(path, self.config_hash)
                server = self._read(body["server"])
                for entry in body["clients"].values():
                    self._read(entry)  # only a check: all of them at once may exceed the memory
            except CheckpointError as error:
                refused.append(str(error))
                continue
            for k, entry in body["clients"].items():
                party.after.restore(int(k), self._read(entry))
            self.clients = dict(body["clients"])
            run = RunState(body["round"], server, body["metrics_bytes"])
            return Restored(run, body["extra"], tuple(refused))
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
        named: set[str] = set()
        for path in manifests[: self.keep]:
            try:
                body = _open(path, self.config_hash)
            except CheckpointError:
                continue
            named |= {path.name, body["server"][0], *(entry[0] for entry in body["clients"].values())}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)


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
