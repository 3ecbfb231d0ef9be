"""``observed/``: the recorded views of roles, one file per role and round, with the SHA-256 of each.

    observed/
      index.json                        role -> file -> SHA-256, size, frames, bytes by direction; why recording stopped
      server/round-000001.frames        frames one after another: 8 bytes of length, then the codec's bytes

A round's files have the suffix ``.part`` until its checkpoint is written, which renames them all. A resumed run repeats
the rounds after its checkpoint, and records their views again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedatlas.attacks.roles import ViewRole
from fedatlas.errors import ConfigError, DiskError, TransportError
from fedatlas.files import disk_error, write_json
from fedatlas.wire import codec

FOLDER, INDEX, FORMAT = "observed", "index.json", 1
DIRECTIONS = ("up", "down", "peer")
NAME = re.compile(r"round-(\d{6})\.frames(\.part)?")


class ViewFrame(NamedTuple):
    """One message as a role saw it. ``bytes`` counts the encoded ``body``."""

    client: int
    direction: str  # "up" from the client, "down" to it, "peer" to it from ``sender``; "published": the final model
    sender: int | None
    ask: tuple[Any, ...]  # (run, round, attempt, number)
    what: str  # the task
    bytes: int
    body: Mapping[str, Any]  # "message", "word", "anchor", or the update
    lr: float | None = None  # local learning rate that a request contains

    def plain(self) -> dict[str, Any]:
        """Return the frame as plain values for the codec."""
        return {**self._asdict(), "ask": list(self.ask), "body": dict(self.body)}


def frames_file(number: int) -> str:
    """Return the name of a round's file."""
    return f"round-{number:06d}.frames"


class _Open:
    """The file of one role's round while it is written."""

    def __init__(self, path: Path) -> None:
        self.path, self.sum = path, hashlib.sha256()
        self.record: dict[str, int] = {"size": 0, "frames": 0, **dict.fromkeys(DIRECTIONS, 0)}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file: IO[bytes] = open(path, "wb")  # noqa: SIM115  (held open over a round)

    def write(self, data: bytes | bytearray, direction: str, counted: int) -> None:
        for piece in (len(data).to_bytes(8, "little"), data):
            self.file.write(piece)
            self.sum.update(piece)
        self.record["size"] += 8 + len(data)
        self.record["frames"] += 1
        if direction in self.record:
            self.record[direction] += counted

    def close(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return {"sha256": self.sum.hexdigest(), **self.record}


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


class Recording:
    """Writer of a run's views. DiskError if the disk is full; the caller then ends the recording, not the run."""

    def __init__(self, run: Path, roles: Iterable[ViewRole]) -> None:
        self.folder, self.roles = run / FOLDER, tuple(roles)
        self.index: dict[str, dict[str, Any]] = {str(role): {} for role in self.roles}
        self.stopped: dict[str, Any] | None = None
        self.open: dict[ViewRole, _Open] = {}
        self.waiting: dict[ViewRole, dict[str, Any]] = {
            role: {} for role in self.roles
        }  # rounds before their checkpoint

    @property
    def size(self) -> int:
        """Bytes of all views so far."""
        kept: list[int] = [
            one["size"] for files in (*self.index.values(), *self.waiting.values()) for one in files.values()
        ]
        return sum(kept) + sum(one.record["size"] for one in self.open.values())

    def begin(self, number: int) -> None:
        """Begin a round, for all roles."""
        with _writing(self.folder):
            self.open = {role: _Open(self._path(role, f"{frames_file(number)}.part")) for role in self.roles}

    def write(self, role: ViewRole, data: bytes | bytearray, direction: str, counted: int) -> None:
        """Write one frame to a role's view of the open round; ``counted``: bytes to count in its direction."""
        with _writing(self.open[role].path):
            self.open[role].write(data, direction, counted)

    def end(self, number: int) -> None:
        """End the round; it waits for its checkpoint."""
        opened, self.open = self.open, {}
        for role, one in opened.items():
            with _writing(one.path):
                self.waiting[role][frames_file(number)] = one.close()

    def drop(self) -> None:
        """Discard the round that is being written."""
        opened, self.open = self.open, {}
        for one in opened.values():
            with contextlib.suppress(OSError):
                one.file.close()
            one.path.unlink(missing_ok=True)

    def keep(self) -> None:
        """Rename the files of whole rounds and write the index; called with each checkpoint."""
        for role, files in self.waiting.items():
            for name, record in files.items():
                path = self._path(role, name)
                with _writing(path):
                    os.replace(self._path(role, f"{name}.part"), path)
                self.index[str(role)][name] = record
            files.clear()
        self._write_index()

    def stop(self, number: int, why: str) -> None:
        """Record no round from this one on, and note why."""
        self.drop()
        self.stopped = {"round": number, "why": why}
        with contextlib.suppress(DiskError):
            self._write_index()

    def resume(self, number: int) -> None:
        """Continue after round ``number``; remove views of later rounds. ConfigError if the index cannot be read."""
        found = found_index(self.folder)
        for role in self.roles:
            files = found["roles"].get(str(role), {})
            self.index[str(role)] = {name: one for name, one in files.items() if _number(name) <= number}
            for path in (self.folder / role.folder).glob("round-*"):
                if path.name not in self.index[str(role)]:
                    path.unlink(missing_ok=True)
        stopped = found["stopped"]
        self.stopped = stopped if stopped and stopped["round"] <= number else None
        self._write_index()

    def _path(self, role: ViewRole, name: str) -> Path:
        return self.folder / role.folder / name

    def _write_index(self) -> None:
        write_json(self.folder / INDEX, {"format": FORMAT, "roles": self.index, "stopped": self.stopped})


def _number(name: str) -> int:
    found = NAME.fullmatch(name)
    return int(found[1]) if found else -1


def found_index(folder: Path) -> dict[str, Any]:
    """Return ``index.json``, empty if it does not exist; ConfigError if it is damaged."""
    if not (folder / INDEX).exists():
        return {"roles": {}, "stopped": None}
    try:
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if found["format"] != FORMAT or not isinstance(found["roles"], dict):
            raise ValueError("it has another format")
        found.setdefault("stopped", None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"'{folder / INDEX}' is damaged ({error}): put the original back, or run again.") from None
    whole: dict[str, Any] = found
    return whole


class RoleView:
    """Reader of one role's view. ConfigError for a view that was not recorded, or was cut short or altered."""

    def __init__(self, run: Path, role: ViewRole) -> None:
        self.folder, self.role = run / FOLDER / role.folder, role
        index = found_index(run / FOLDER)
        if str(role) not in index["roles"]:
            raise ConfigError(
                f"'{run}' has no view of '{role}'. Add roles = [\"{role}\"] under [observe] and run again."
            )
        self.files: Mapping[str, Mapping[str, Any]] = index["roles"][str(role)]

    @property
    def rounds(self) -> list[int]:
        """Rounds that were recorded, ascending."""
        return sorted(map(_number, self.files))

    def frames(self, number: int) -> Iterator[ViewFrame]:
        """Yield the frames of a round in order. ConfigError for a round that was not recorded or is damaged."""
        name = frames_file(number)
        if name not in self.files:
            known = f"rounds {self.rounds[0]} to {self.rounds[-1]}" if self.files else "no round"
            raise ConfigError(
                f"the view of '{self.role}' holds {known}, not round {number}. Write rounds = [{number}, {number}] under "
                "[observe] and run again."
            )
        data, at = self.read(name), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            try:
                plain = codec.decode(memoryview(data)[at + 8 : at + 8 + length], own=True)
            except TransportError as error:
                raise self._damaged(name, str(error)) from None
            yield ViewFrame(**{**plain, "ask": tuple(plain["ask"])})
            at += 8 + length

    def read(self, name: str) -> bytes:
        """Return the content of a file of the view. ConfigError if it is missing or altered."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            raise self._damaged(name, "missing") from None
        if hashlib.sha256(data).hexdigest() != self.files[name]["sha256"]:
            raise self._damaged(name, "cut short or altered: its SHA-256 differs")
        return data

    def _damaged(self, name: str, why: str) -> ConfigError:
        return ConfigError(
            f"the view '{self.folder / name}' cannot be used ({why}): put the original back, or run the experiment again."
        )
