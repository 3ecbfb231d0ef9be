"""What a run wrote, read whole from its folder as values by name, and how two of them are compared; for scripts that import no package.

A value's name is "FILE: path.in.it", as in "summary.json: final.accuracy" or "metrics.jsonl: 3.loss". Files of arrays and of weights are
their SHA-256. Pages are not read: they are prose around these values. What may differ between two runs of the same stands in `IGNORED`.
"""

from __future__ import annotations

import contextlib
import csv
import fnmatch
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Values = dict[str, Any]
LONGEST = 240  # characters of a list of numbers that is kept as it is; a longer one is its beginning and its SHA-256
ABSENT = "(absent)"

CLOCK = "a clock decides it"
MACHINE = "the machine, its processes or the commit decide it"
WORDING = "prose, which may be written anew: its numbers are compared"
RANDOM = "bytes that the operating system draws: keys, and with them masks and what they hide"
IGNORED: Mapping[str, str] = {
    "*: *seconds": CLOCK,  # of rounds, costs, answers, responses of a study
    "*: *seconds_by_phase.*": CLOCK,
    "*: *cost.seconds.*": CLOCK,  # mean and deviation over seeds
    "*/analysis.json: *cpu_seconds.*": CLOCK,  # effects of a study
    "*answers.jsonl: *.at": CLOCK,
    "*answers.jsonl: *.work": CLOCK,
    "*: *peak_memory_bytes": MACHINE,
    "*: *memory_mib": MACHINE,
    "*/analysis.json: effects.memory.*": MACHINE,
    "*/table.sqlite: runs *.pid": MACHINE,
    "*/table.sqlite: runs *.start": MACHINE,
    "*/table.sqlite: runs *.owner": MACHINE,
    "*: *commit": MACHINE,
    "*: *versions.fedatlas": MACHINE,
    "*: *data_facts.citation": WORDING,
    "*: *data_facts.read": WORDING,
    "*: *data_facts.test": WORDING,
    "*: *leaves": WORDING,
    "*: *notices": WORDING,
    "*: *plan.reason": WORDING,
    "*: *plan.steps": WORDING,
    "*: *privacy.how": WORDING,
    "*: *privacy.learns.*": WORDING,
    "*: *declaration.*": WORDING,  # of an attack
    "*: *diverged": WORDING,
    "*: *.reason": WORDING,  # of a run of a study
    "*/analysis.json: sentences": WORDING,
    "whole_secagg/observed/*: bytes": RANDOM,
    "whole_secagg/observed/index.json: *.sha256": RANDOM,
}
"""Pattern of names -> why another value there is no difference; that the value is there on one side alone is one in any case.

Each entry was seen to differ between two recordings of the same package, or says which commit it is, or is prose.
"""

RESUMED: Mapping[str, str] = {
    "*: *plan.steps": "what was traced by the process that ended the run",
    "*: *seconds_by_phase*": "a phase that is over is not passed again",
    "*/metrics.jsonl: *.bytes_*": "a sum under masks that was opened is not asked for again",
    "*: cost.bytes_*": "the sums of these",
    "*/opened.jsonl: *": "a journal: it names the folder, and a round that began anew stands there twice",
    "*/ledger.jsonl: *": "a journal: a round that began anew counts twice",
    "*/table.sqlite: *.attempts": "of a run that was killed with its study",
    "*/table.sqlite: *.summary.diverged": "a sentence that names the folder",
    "*/answers.jsonl: *": "a journal: asks under masks that began anew stand there twice",
    "*/own-view.jsonl: *": "a journal: a round that began anew stands there twice",
}
"""The same, and whether it is there, between a run that was stopped and resumed and one that nobody stopped."""


def sha256(data: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The values in nested tables by name; a list of plain values is one value."""
    nested = isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)
    if value and (isinstance(value, dict) or nested):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(one, f"{name}.{key}" if not name.endswith(": ") else f"{name}{key}")
        return
    numbers = isinstance(value, list) and not any(isinstance(one, str) for one in value)
    text = json.dumps(value, sort_keys=True) if numbers else ""
    yield name, value if len(text) <= LONGEST else f"{text[:60]} ... sha256 {sha256(text.encode())}"


def answers(path: Path) -> list[Any]:
    """Who answered when, of a deployed run, in the order of asks and nodes: who is first is for the clock to say."""
    return sorted(lines(path), key=lambda one: (one["round"], one["attempt"], one["ask"], one["node"]))


def lines(path: Path) -> list[Any]:
    """Of a file with a JSON value on each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table_rows(path: Path) -> list[Any]:
    """Of a .csv, each row as a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def study_tables(path: Path) -> dict[str, Any]:
    """All tables of a study's SQLite file: rows by their first columns, JSON and compressed JSON as values."""
    found: dict[str, Any] = {}
    with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            keys = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")') if row[5]]
            for row in db.execute(f'SELECT * FROM "{table}"'):  # noqa: S608  # its own tables
                values = {name: stored(value) for name, value in zip(columns, row, strict=True)}
                found[f"{table} {' '.join(str(values[key]) for key in keys)}"] = values
        found["version"] = db.execute("PRAGMA user_version").fetchone()[0]
    return found


def stored(value: Any) -> Any:
    """A cell: compressed JSON and JSON as values, all else as it is."""
    if isinstance(value, bytes):
        return json.loads(zlib.decompress(value))
    if isinstance(value, str) and value[:1] in {"{", "["}:
        with contextlib.suppress(ValueError):  # a sentence that begins with a table's name
            return json.loads(value)
    return value


READERS: Mapping[str, Callable[[Path], Any]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".jsonl": lines,
    ".toml": lambda path: tomllib.loads(path.read_text(encoding="utf-8")),
    ".csv": table_rows,
    ".sqlite": study_tables,
}
NAMED: Mapping[str, Callable[[Path], Any]] = {"answers.jsonl": answers}
HASHED = (".safetensors", ".npz", ".frames")
UNREAD = ("checkpoint", "lock")  # folders and files that say how far a run was, not what it came to


def folder_values(path: Path, unread: Sequence[str] = UNREAD) -> Values:
    """Every value of every file below a folder."""
    found: Values = {}
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        inner = file.relative_to(path)
        if set(inner.parts) & set(unread):
            continue
        if reader := NAMED.get(file.name) or READERS.get(file.suffix):
            found |= flat(reader(file), f"{inner.as_posix()}: ")
        elif file.suffix in HASHED:
            found[f"{inner.as_posix()}: bytes"] = sha256(file.read_bytes())
        else:
            found[f"{inner.as_posix()}: is there"] = True
    return found


def matching(name: str, patterns: Mapping[str, str]) -> str:
    """What stands at the first pattern that a name matches; "" where there is none."""
    return next((why for pattern, why in patterns.items() if fnmatch.fnmatchcase(name, pattern)), "")


def numbers_in(value: Any) -> list[str]:
    """The numbers in a sentence, or in several."""
    return re.findall(r"\d+(?:\.\d+)?", json.dumps(value))


def alike(name: str, before: Any, after: Any) -> bool:
    """Whether two values count as the same."""
    if before == after:
        return True
    why = "" if ABSENT in (before, after) else matching(name, IGNORED)
    return numbers_in(before) == numbers_in(after) if why == WORDING else bool(why)


def differences(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    run: str = "",
    more: Mapping[str, str] = {},
    *,
    bare: bool = False,
) -> list[str]:
    """What differs, a line each. ``run`` stands in front of names as patterns see them.

    ``more``: patterns beside `IGNORED`; ``bare``: nothing is passed over.
    """
    found = []
    for name in {**before, **after}:
        a, b, full = before.get(name, ABSENT), after.get(name, ABSENT), f"{run}/{name}"
        if a != b and (bare or not (matching(full, more) or alike(full, a, b))):
            found.append(f"{name}: {shown(a)} before, {shown(b)} after")
    return found


def shown(value: Any) -> str:
    """A value, cut after 80 characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def environment(source: Path | None, **more: str) -> dict[str, str]:
    """Of a process that takes the package from ``source``; None: as this one."""
    path = {} if source is None else {"PYTHONPATH": str(source.resolve())}
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **path, **more}


def command(*words: str | Path) -> list[str]:
    """``fedatlas WORDS`` of the package that the environment finds."""
    return [sys.executable, "-m", "fedatlas", *map(str, words)]


class CommandError(Exception):
    """A command that did not come to its end."""


def call(words: Sequence[str | Path], where: Path, source: Path | None = None, **more: str) -> str:
    """Runs ``fedatlas WORDS`` in a folder; what it printed. CommandError with its last line where it failed."""
    done = subprocess.run(
        command(*words), cwd=where, env=environment(source, **more), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise CommandError(f"fedatlas {' '.join(map(str, words))}: exit code {done.returncode}: {last}")
    return done.stdout
