"""The table of runs: one SQLite file that studies share. One process writes at a time, readers open it read-only.

A run is known by its ``run_key``. Whoever runs it has claimed it: host, process and that process's start tell whether it is still at
work, so that the run of one that was killed is taken up again. A run that was refused or diverged stays as an outcome, with the
sentence that says why: a mean over those that survive would praise what is unstable.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedatlas.errors import ConfigError, DiskError, unknown_name

if TYPE_CHECKING:
    import pandas

VERSION = 1
STATUSES = ("planned", "running", "done", "refused", "diverged", "timeout", "memory", "failed")
ENDED = STATUSES[2:]
SCHEMA = """
CREATE TABLE runs (
  run_key TEXT PRIMARY KEY, curve_key TEXT NOT NULL, configuration TEXT NOT NULL, seed INTEGER NOT NULL, rounds INTEGER,
  status TEXT NOT NULL, reason TEXT NOT NULL, attempts INTEGER NOT NULL, owner TEXT, host TEXT, pid INTEGER, start TEXT,
  plan TEXT, "commit" TEXT, responses TEXT, summary BLOB);
CREATE INDEX curves ON runs (curve_key);
CREATE TABLE rounds (run_key TEXT PRIMARY KEY, number INTEGER NOT NULL, rows BLOB NOT NULL);
CREATE TABLE members (
  study TEXT NOT NULL, run_key TEXT NOT NULL, kind TEXT NOT NULL, levels TEXT NOT NULL, rates TEXT NOT NULL,
  PRIMARY KEY (study, run_key, kind, levels));
CREATE TABLE studies (study TEXT PRIMARY KEY, factors TEXT NOT NULL, data TEXT NOT NULL, file TEXT NOT NULL);
"""


class Entry(NamedTuple):
    """A run as a study plans it; ``refused``: the sentence that it was refused with, "" where it is to be run."""

    run_key: str
    curve_key: str
    configuration: Mapping[str, Any]
    kind: str
    levels: Mapping[str, str]
    rates: Mapping[str, Any]
    refused: str


class Outcome(NamedTuple):
    """What came of a run."""

    status: str
    reason: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] | None = None
    responses: Mapping[str, Any] = {}


def packed(value: Any) -> bytes:
    """Plain values, compressed."""
    return zlib.compress(json.dumps(value, separators=(",", ":"), sort_keys=True).encode(), 9)


def unpacked(data: bytes | None) -> Any:
    """The inverse of `packed`; None for nothing."""
    return None if data is None else json.loads(zlib.decompress(data))


def started(pid: int) -> str | None:
    """When a process of this machine was started, in the kernel's ticks; None where there is none, or it is dead already."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _alive(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> str | None:
    """Where the system does not say when processes began: whether there is one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "?"
    return "?"


class Table:
    """The table of runs."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.db = path, connection

    @classmethod
    def open(cls, path: Path | str, *, write: bool = False) -> Table:
        """A table; read-only unless ``write``, which makes one where there is none. ConfigError where it is damaged or newer."""
        path = Path(path)
        if not write and not path.is_file():
            raise ConfigError(f"there is no table '{path}': 'fedatlas study STUDY.toml' makes one.")
        try:
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
                db = sqlite3.connect(path, timeout=60.0, isolation_level=None)
            else:
                db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", timeout=60.0, isolation_level=None, uri=True)
            table = cls(path, db)
            table._check(write)
        except (sqlite3.DatabaseError, OSError) as error:
            raise ConfigError(
                f"the table '{path}' is damaged, or is none ({error}): put a copy back, or name another."
            ) from None
        return table

    def _check(self, write: bool) -> None:
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            self.db.close()
            raise ConfigError(
                f"the table '{self.path}' was made by a newer fedatlas: update this one, or name another table."
            )
        if version == 0 and write:
            with self.writing():  # of two that begin at once the second finds it made
                if not self.db.execute("PRAGMA user_version").fetchone()[0]:
                    for statement in SCHEMA.split(";"):
                        self.db.execute(statement)
                    self.db.execute(f"PRAGMA user_version = {VERSION}")
        self.db.execute("SELECT count(*) FROM runs").fetchone()

    def close(self) -> None:
        """Gives the file back."""
        self.db.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """What is done inside is there whole, or not at all. DiskError where the disk is full."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise DiskError(
                f"'{self.path}' could not be written: {error}; make room, the same command goes on."
            ) from error

    def begin(self, study: str, factors: Mapping[str, Any], data: Mapping[str, str], file: str) -> None:
        """Notes a study; its members are told anew, its runs stay."""
        with self.writing():
            self.db.execute("DELETE FROM members WHERE study = ?", (study,))
            self.db.execute(
                "INSERT OR REPLACE INTO studies VALUES (?, ?, ?, ?)",
                (study, json.dumps(factors), json.dumps(data), file),
            )

    def data_of(self, study: str) -> dict[str, str]:
        """The data files, name -> SHA-256, that a study began with; {} for one that is new."""
        found = self.db.execute("SELECT data FROM studies WHERE study = ?", (study,)).fetchone()
        return json.loads(found[0]) if found else {}

    def enter(self, study: str, entries: Iterable[Entry]) -> None:
        """Takes up runs as members of a study; one that is there already stays as it is."""
        with self.writing():
            for one in entries:
                status = "refused" if one.refused else "planned"
                config = one.configuration
                self.db.execute(
                    "INSERT OR IGNORE INTO runs (run_key, curve_key, configuration, seed, rounds, status, reason, attempts)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    (
                        one.run_key,
                        one.curve_key,
                        json.dumps(config, sort_keys=True),
                        config["seed"],
                        config.get("rounds"),
                        status,
                        one.refused or "It has not been begun.",
                    ),
                )
                if one.refused:  # also one that is to be tried again
                    self.db.execute(
                        "UPDATE runs SET status = 'refused', reason = ? WHERE run_key = ? AND status = 'planned'",
                        (one.refused, one.run_key),
                    )
                self.db.execute(
                    "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?)",
                    (study, one.run_key, one.kind, json.dumps(one.levels, sort_keys=True), json.dumps(one.rates)),
                )

    def status(self, run_key: str) -> str:
        """Of a run; "" where it is not there."""
        found = self.db.execute("SELECT status FROM runs WHERE run_key = ?", (run_key,)).fetchone()
        return str(found[0]) if found else ""

    def claim(self, run_key: str) -> bool:
        """Whether the run is this process's now: it was planned, or whoever ran it is no more."""
        me, host = os.getpid(), socket.gethostname()
        with self.writing():
            status, owner_host, pid, start = self.db.execute(
                "SELECT status, host, pid, start FROM runs WHERE run_key = ?", (run_key,)
            ).fetchone()
            if status in ENDED or (status == "running" and (owner_host != host or started(pid) == start)):
                return False
            self.db.execute(
                "UPDATE runs SET status = 'running', reason = 'It is being run.', attempts = attempts + 1, owner = ?, host = ?,"
                " pid = ?, start = ? WHERE run_key = ?",
                (
                    os.environ.get("USER", str(os.getuid()) if hasattr(os, "getuid") else ""),
                    host,
                    me,
                    started(me),
                    run_key,
                ),
            )
            return True

    def longer(self, run_key: str) -> tuple[str, int] | None:
        """(run_key, rounds) of the shortest finished run that is this one and goes on behind its end; None where there is none."""
        found = self.db.execute(
            "SELECT other.run_key, mine.rounds FROM runs AS mine JOIN runs AS other USING (curve_key)"
            " WHERE mine.run_key = ? AND other.rounds > mine.rounds AND other.status = 'done' ORDER BY other.rounds",
            (run_key,),
        ).fetchone()
        return (str(found[0]), int(found[1])) if found else None

    def release(self, run_key: str, reason: str) -> None:
        """Gives a claim back without an outcome."""
        with self.writing():
            self.db.execute("UPDATE runs SET status = 'planned', reason = ? WHERE run_key = ?", (reason, run_key))

    def finish(self, run_key: str, outcome: Outcome) -> None:
        """Writes what came of a run, all at once."""
        summary = outcome.summary or {}
        with self.writing():
            self.db.execute(
                'UPDATE runs SET status = ?, reason = ?, plan = ?, "commit" = ?, responses = ?, summary = ? WHERE run_key = ?',
                (
                    outcome.status,
                    outcome.reason,
                    json.dumps(summary.get("plan")),
                    summary.get("commit"),
                    json.dumps(outcome.responses),
                    None if outcome.summary is None else packed(outcome.summary),
                    run_key,
                ),
            )
            if outcome.rows:
                self.db.execute(
                    "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)",
                    (run_key, len(outcome.rows), packed(list(outcome.rows))),
                )

    def retry(self, study: str, status: str) -> int:
        """Runs of a study with a status become planned again, what is known of them forgotten; how many there were."""
        if status not in STATUSES:
            raise unknown_name("status", status, STATUSES)
        with self.writing():
            found = self.db.execute(
                "SELECT DISTINCT run_key FROM runs JOIN members USING (run_key) WHERE study = ? AND status = ?",
                (study, status),
            ).fetchall()
            for key in found:
                self.db.execute("DELETE FROM rounds WHERE run_key = ?", key)
                self.db.execute(
                    "UPDATE runs SET status = 'planned', reason = 'It is to be tried again.', summary = NULL, responses = NULL"
                    " WHERE run_key = ?",
                    key,
                )
        return len(found)

    def studies(self) -> list[str]:
        """The studies whose runs are here."""
        return [name for (name,) in self.db.execute("SELECT study FROM studies ORDER BY study")]

    def counts(self, study: str) -> dict[str, int]:
        """status -> runs of a study, each counted once."""
        found = dict(
            self.db.execute(
                "SELECT status, count(DISTINCT run_key) FROM runs JOIN members USING (run_key) WHERE study = ? GROUP BY status",
                (study,),
            ).fetchall()
        )
        return {status: found.get(status, 0) for status in STATUSES}

    def reasons(self, study: str, *statuses: str) -> list[tuple[str, str, dict[str, str], int]]:
        """(status, sentence, levels, seed) of a study's runs with one of these statuses."""
        marks = ", ".join("?" * len(statuses))
        found = self.db.execute(
            # Only marks are put in, one a status.
            f"SELECT status, reason, levels, seed FROM runs JOIN members USING (run_key) WHERE study = ? AND status IN ({marks})"  # noqa: S608
            " ORDER BY status, levels, seed",
            (study, *statuses),
        )
        return [(status, reason, json.loads(levels), seed) for status, reason, levels, seed in found]

    def responses(self, run_key: str) -> dict[str, Any]:
        """The responses of a run at its last round; {} where it has none."""
        found = self.db.execute("SELECT responses FROM runs WHERE run_key = ?", (run_key,)).fetchone()
        return json.loads(found[0]) if found and found[0] else {}

    def rows(self, run_key: str) -> list[dict[str, Any]]:
        """All rows of a run; [] where it has none."""
        found = self.db.execute("SELECT rows FROM rounds WHERE run_key = ?", (run_key,)).fetchone()
        return unpacked(found[0]) if found else []

    def summary(self, run_key: str) -> dict[str, Any] | None:
        """The summary of a run; None where it has none."""
        found = self.db.execute("SELECT summary FROM runs WHERE run_key = ?", (run_key,)).fetchone()
        return unpacked(found[0]) if found else None

    def factors(self, study: str | None = None) -> dict[str, dict[str, Any]]:
        """factor -> ``role`` ("setting" or "choice"), ``scale`` and the names of its ``levels``."""
        from fedatlas.study.frame import factors_of, which

        return factors_of(self, which(self, study))

    def frame(self, study: str | None = None) -> pandas.DataFrame:
        """A row a run of a study: what it is, its levels, and its responses at the last round (`study.frame`)."""
        from fedatlas.study.frame import frame

        return frame(self, study)

    def curves(self, study: str | None = None) -> pandas.DataFrame:
        """A row a round of each run: quality, and cost so far (`study.frame`)."""
        from fedatlas.study.frame import curves

        return curves(self, study)
