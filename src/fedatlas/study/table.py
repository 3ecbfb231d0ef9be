"""The table of runs: one SQLite file that studies share. One process writes at a time, readers open it read-only.

A run is identified by its ``run_key``. A process claims a run before it works on it. Host, process id and the process's start time tell
whether the owner is still alive, so that the run of a killed process is taken up again. Refused and diverged runs stay as outcomes
with their reason: a mean over only the surviving runs would favour unstable choices.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedatlas.errors import ConfigError, DiskError, unknown_name
from fedatlas.files import write_text
from fedatlas.study import frame as frames
from fedatlas.study.plain import Plain, Row
from fedatlas.wording import count

if TYPE_CHECKING:
    import pandas

VERSION = 1
STATUSES = ("planned", "running", "done", "refused", "diverged", "timeout", "memory", "failed")
ENDED = STATUSES[2:]
MEMBER = ("run_key", "kind", "levels", "rates", "status", "reason", "seed", "rounds", "responses", "configuration")
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


class NewRun(NamedTuple):
    """A run as a study plans it; ``refused``: the reason for refusal, "" if it is to be run."""

    run_key: str
    curve_key: str
    configuration: Row
    kind: str
    levels: Mapping[str, str]
    rates: Row
    refused: str


class Outcome(NamedTuple):
    """The outcome of a run."""

    status: str
    reason: str = ""
    rows: Sequence[Row] = ()
    summary: Row | None = None
    responses: Mapping[str, Any] = {}


def packed(value: Any) -> bytes:
    """Return plain values, compressed."""
    return zlib.compress(json.dumps(value, separators=(",", ":"), sort_keys=True).encode(), 9)


def unpacked(data: bytes | None) -> Any:
    """Invert `packed`; None for None."""
    return None if data is None else json.loads(zlib.decompress(data))


def started(pid: int) -> str | None:
    """Return when a process of this machine was started, in the kernel's ticks; None if it does not exist or is dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _alive(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> str | None:
    """Return "?" if a process exists, else None, on systems that do not report start times."""
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
        self.without: dict[str, set[str]] = {}  # factor -> its levels that do not count, see `narrow`

    @classmethod
    def open(cls, path: Path | str, *, write: bool = False) -> Table:
        """Open a table; read-only unless ``write``, which creates a missing one. ConfigError if it is damaged or newer."""
        path = Path(path)
        if not write and not path.is_file():
            raise ConfigError(f"there is no table '{path}': 'fedatlas study STUDY.toml' creates it.")
        try:
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
            name = str(path) if write else f"{path.resolve().as_uri()}?mode=ro"
            table = cls(path, sqlite3.connect(name, timeout=60.0, isolation_level=None, uri=not write))
            table._check(write)
        except (sqlite3.DatabaseError, OSError) as error:
            raise ConfigError(
                f"'{path}' is damaged or not a table of runs ({error}): restore a copy, or name another."
            ) from None
        return table

    def _check(self, write: bool) -> None:
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            self.db.close()
            raise ConfigError(
                f"the table '{self.path}' was made by a newer fedatlas: update fedatlas, or name another table."
            )
        if version == 0 and write:
            with self.writing():  # of two processes that start at once, the second finds it made
                if not self.db.execute("PRAGMA user_version").fetchone()[0]:
                    for statement in SCHEMA.split(";"):
                        self.db.execute(statement)
                    self.db.execute(f"PRAGMA user_version = {VERSION}")
        self.db.execute("SELECT count(*) FROM runs").fetchone()

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run the block as a transaction: all of it takes effect, or nothing. DiskError if the disk is full."""
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
                f"'{self.path}' could not be written: {error}; free some space and run the same command to continue."
            ) from error

    def _set(self, where: str, key: str, **values: Any) -> None:
        """Write columns of the run with this key, if ``where`` holds for it."""
        names = ", ".join(f'"{name}" = ?' for name in values)
        self.db.execute(f"UPDATE runs SET {names} WHERE run_key = ?{where}", (*values.values(), key))  # noqa: S608  (names of columns)

    def _get(self, column: str, key: str, of: str = "runs") -> Any:
        """Return a column of the run with this key (or in ``studies``, of the study); None if absent."""
        name = "study" if of == "studies" else "run_key"
        found = self.db.execute(f"SELECT {column} FROM {of} WHERE {name} = ?", (key,)).fetchone()  # noqa: S608  (names of columns)
        return found[0] if found else None

    def begin(self, study: str, factors: Row, data: Mapping[str, str], file: str) -> None:
        """Record a study; its members are entered again, its runs stay."""
        with self.writing():
            self.db.execute("DELETE FROM members WHERE study = ?", (study,))
            row = (study, json.dumps(factors), json.dumps(data), file)
            self.db.execute("INSERT OR REPLACE INTO studies VALUES (?, ?, ?, ?)", row)

    def data_of(self, study: str) -> dict[str, str]:
        """Return the data files, name -> SHA-256, that a study began with; {} for a new study."""
        return dict(json.loads(self._get("data", study, "studies") or "{}"))

    def file_of(self, study: str) -> str:
        """Return the SHA-256 of a study's file."""
        return str(self._get("file", study, "studies"))

    def enter(self, study: str, runs: Iterable[NewRun]) -> None:
        """Enter runs as members of a study; existing runs are unchanged."""
        with self.writing():
            for one in runs:
                config = one.configuration
                self.db.execute(
                    "INSERT OR IGNORE INTO runs (run_key, curve_key, configuration, seed, rounds, status, reason, attempts)"
                    " VALUES (?, ?, ?, ?, ?, 'planned', 'It has not started.', 0)",
                    (*one[:2], json.dumps(config, sort_keys=True), config["seed"], config.get("rounds")),
                )
                if one.refused:  # also one that is to be retried
                    self._set(" AND status = 'planned'", one.run_key, status="refused", reason=one.refused)
                levels, rates = json.dumps(one.levels, sort_keys=True), json.dumps(one.rates)
                row = (study, one.run_key, one.kind, levels, rates)
                self.db.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?)", row)

    def status(self, run_key: str) -> str:
        """Return the status of a run; "" if it is absent."""
        return str(self._get("status", run_key) or "")

    def reason(self, run_key: str) -> str:
        """Return why a run has its status; "" if it is absent."""
        return str(self._get("reason", run_key) or "")

    def shorter(self, run_key: str) -> list[str]:
        """Return the finished runs that this one continues beyond their end, the longest first."""
        found = self.db.execute(
            "SELECT other.run_key FROM runs AS mine JOIN runs AS other USING (curve_key)"
            " WHERE mine.run_key = ? AND other.rounds < mine.rounds AND other.status = 'done' ORDER BY other.rounds DESC",
            (run_key,),
        )
        return [str(key) for (key,) in found.fetchall()]

    def claim(self, run_key: str) -> bool:
        """Claim a run for this process, if it was planned or its owner is dead; return whether the claim succeeded."""
        pid, host = os.getpid(), socket.gethostname()
        with self.writing():
            status, owner_host, owner, start = self.db.execute(
                "SELECT status, host, pid, start FROM runs WHERE run_key = ?", (run_key,)
            ).fetchone()
            if status in ENDED or (status == "running" and (owner_host != host or started(owner) == start)):
                return False
            user = os.environ.get("USER", str(os.getuid()) if hasattr(os, "getuid") else "")
            self.db.execute("UPDATE runs SET attempts = attempts + 1 WHERE run_key = ?", (run_key,))
            at_work = {"status": "running", "reason": "It is running."}
            self._set("", run_key, **at_work, owner=user, host=host, pid=pid, start=started(pid))
            return True

    def longer(self, run_key: str) -> tuple[str, int] | None:
        """Return (run_key, rounds to take) of the shortest finished run that continues this one beyond its end; None if there is none."""
        found = self.db.execute(
            "SELECT other.run_key, mine.rounds FROM runs AS mine JOIN runs AS other USING (curve_key)"
            " WHERE mine.run_key = ? AND other.rounds > mine.rounds AND other.status = 'done' ORDER BY other.rounds",
            (run_key,),
        ).fetchone()
        return (str(found[0]), int(found[1])) if found else None

    def release(self, run_key: str, reason: str) -> None:
        """Release a claim without an outcome."""
        with self.writing():
            self._set("", run_key, status="planned", reason=reason)

    def finish(self, run_key: str, outcome: Outcome) -> None:
        """Write the outcome of a run in one transaction."""
        summary = outcome.summary or {}
        plan, blob = json.dumps(summary.get("plan")), None if outcome.summary is None else packed(outcome.summary)
        told = {
            "plan": plan,
            "commit": summary.get("commit"),
            "responses": json.dumps(outcome.responses),
            "summary": blob,
        }
        with self.writing():
            self._set("", run_key, status=outcome.status, reason=outcome.reason, **told)
            if outcome.rows:
                row = (run_key, len(outcome.rows), packed(list(outcome.rows)))
                self.db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", row)

    def retry(self, study: str, status: str) -> int:
        """Plan the runs of a study with this status again, discarding their results; return their number."""
        if status not in STATUSES:
            raise unknown_name("status", status, STATUSES)
        again = {"status": "planned", "reason": "It will be retried.", "summary": None, "responses": None}
        with self.writing():
            found = {one["run_key"] for one in self.members(study) if one["status"] == status}
            for key in found:
                self.db.execute("DELETE FROM rounds WHERE run_key = ?", (key,))
                self._set("", key, **again)
        return len(found)

    def studies(self) -> list[str]:
        """Return the studies whose runs are in the table."""
        return [name for (name,) in self.db.execute("SELECT study FROM studies ORDER BY study")]

    def name_of(self, study: str | None) -> str:
        """Return the study meant: the one named, or the only one; ConfigError if there are several, or none of this name."""
        known = self.studies()
        if study is None and len(known) == 1:
            return known[0]
        if study is None:
            raise ConfigError(f"'{self.path}' holds {len(known)} studies ({', '.join(known)}): name one of them.")
        if study not in known:
            raise unknown_name("study", study, known)
        return study

    def narrow(self, study: str, levels: Mapping[str, Collection[str]]) -> list[str]:
        """Count only runs at these levels from now on (factor -> levels, as the study's file has them now).

        Returns a sentence for each level that the table has beside them, with the number of its runs; none for an unknown study.
        """
        known = self.factors(study) if study in self.studies() else {}
        gone = {name: set(one["levels"]) - set(levels[name]) for name, one in known.items() if name in levels}
        self.without = {}
        runs = self._levels(study) if any(gone.values()) else []
        told = [
            f"Level '{level}' of factor '{name}' is no longer in the study's file; left out: "
            f"{count(sum(at.get(name) == level for _, _, at in runs), 'run')}."
            for name, one in gone.items()
            for level in sorted(one)
        ]
        self.without = {name: one for name, one in gone.items() if one}
        return told

    def _counts(self, levels: Row) -> bool:
        return not any(levels.get(name) in gone for name, gone in self.without.items())

    def _levels(self, study: str) -> list[tuple[str, str, Plain]]:
        """Return (run_key, status, levels) of the members of a study that count; much faster than `members`."""
        found = self.db.execute(
            "SELECT run_key, status, levels FROM members JOIN runs USING (run_key) WHERE study = ?", (study,)
        )
        rows = [(key, status, json.loads(levels)) for key, status, levels in found]
        return [row for row in rows if self._counts(row[2])]

    def counts(self, study: str) -> dict[str, int]:
        """Return status -> runs of a study, each counted once."""
        if self.without:
            once = {key: status for key, status, _ in self._levels(study)}
            return dict.fromkeys(STATUSES, 0) | Counter(once.values())
        found = self.db.execute(
            "SELECT status, count(DISTINCT run_key) FROM runs JOIN members USING (run_key) WHERE study = ? GROUP BY status",
            (study,),
        )
        return dict.fromkeys(STATUSES, 0) | dict(found.fetchall())

    def members(self, study: str, statuses: Sequence[str] = STATUSES) -> list[Plain]:
        """Return the runs of a study that have one of these statuses, with their levels, in a fixed order."""
        found = self.db.execute(
            f"SELECT {', '.join(MEMBER)} FROM members JOIN runs USING (run_key)"  # noqa: S608  (names of columns)
            f" WHERE study = ? AND status IN ({', '.join('?' * len(statuses))}) ORDER BY kind, levels, rates, seed",
            (study, *statuses),
        )
        rows = [dict(zip(MEMBER, row, strict=True)) for row in found]
        for row in rows:
            row |= {key: json.loads(row[key] or "{}") for key in ("levels", "rates", "configuration", "responses")}
        return [row for row in rows if self._counts(row["levels"])]

    def responses(self, run_key: str) -> Plain:
        """Return the responses of a run at its last round; {} for none."""
        return dict(json.loads(self._get("responses", run_key) or "{}"))

    def rows(self, run_key: str) -> list[Plain]:
        """Return all rows of a run; [] for none."""
        return unpacked(self._get("rows", run_key, "rounds")) or []

    def summary(self, run_key: str) -> Plain | None:
        """Return the summary of a run; None if it has none."""
        found: Plain | None = unpacked(self._get("summary", run_key))
        return found

    def factors(self, study: str | None = None) -> dict[str, Plain]:
        """Return factor -> ``role`` ("setting" or "choice"), ``scale`` and the names of its ``levels``."""
        found: dict[str, Plain] = json.loads(self._get("factors", self.name_of(study), "studies"))
        for name, gone in self.without.items():
            found[name]["levels"] = [level for level in found[name]["levels"] if level not in gone]
        return found

    def frame(self, study: str | None = None) -> pandas.DataFrame:
        """Return one row per run of a study: identity, levels, and responses at the last round (`study.frame.frame`)."""
        study = self.name_of(study)
        return frames.frame(study, self.factors(study), self.members(study), self.rows)

    def curves(self, study: str | None = None) -> pandas.DataFrame:
        """Return one row per round of each run: quality, and cost so far (`study.frame.curves`)."""
        study = self.name_of(study)
        return frames.curves(study, self.factors(study), self.members(study), self.rows)

    def export(self, path: Path, study: str | None = None) -> int:
        """Write the frame as CSV, with ``role`` in place of ``kind``; return its number of rows."""
        if path.suffix != ".csv":
            raise ConfigError(f"--export {path}: give a file name that ends with .csv.")
        found = self.frame(study).rename(columns={"kind": "role"})
        write_text(path, found.to_csv(index=False))
        return len(found)
