"""The finished runs of a report, read back from their folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import ATTACK, ATTACKED, CONFIG, FOUND, METRICS, SUMMARY, RunFolder
from fedatlas.record.summary import over
from fedatlas.vertical import SCHEMES
from fedatlas.wording import count, interval_note, number, printed, where

Plain = Mapping[str, Any]
ROWS, COLUMNS, PARTY, OWNERS = "rows", "columns", "party", "owners"
"""The kinds of page: clients that hold rows; the party with the label, if parties hold columns; another such party; owners of rows."""


class Subject(NamedTuple):
    """One finished run: one configuration, one seed."""

    key: str  # prefix of the ids of its elements on the page
    label: str
    folder: RunFolder
    config: ExperimentConfig
    rows: Sequence[Plain]  # of metrics.jsonl
    summary: Plain
    partition: Plain  # partition.json
    preprocess: Plain  # preprocess.json; empty if parties hold columns
    leaks: Sequence[tuple[Plain, Mapping[str, np.ndarray]]] = ()  # attacks on its views: the record, and the findings
    page: str = ROWS
    party: str = ""  # the party of this page, if parties hold columns

    def at(self, path: str) -> str:
        """Return the place of a figure: this run, and the keys of its summary.json."""
        return f"{self.key}:{path}"

    def printed(self, path: str, text: Any = number) -> Markup:
        """Return the figure at a place of summary.json; a dash if absent."""
        return printed(value_at(self.summary, path), self.at(path), text)

    def interval(self, part: str, key: str) -> Markup:
        """Return the interval of a figure as a note; empty if there is none."""
        return interval_note(*self.summary.get(part, {}).get("interval", {}).get(key, (None, None)))

    @property
    def numbers(self) -> bool:
        """Return whether the target is a number, so that errors are measured and lower is better."""
        return bool(self.summary["task"] == "numbers")

    @property
    def headline(self) -> str:
        """The figure shown first."""
        return "rmse" if self.numbers else "accuracy"

    @property
    def test_rows(self) -> int | None:
        """Number of rows behind the final figures; None in older runs, and if a server has no rows."""
        rows: int | None = self.summary.get("metric", {}).get("test_rows")
        return rows

    @property
    def personal(self) -> bool:
        """Return whether clients use their own models, or their cluster's, so that figures are means over clients."""
        return "interval" not in self.summary["final"]

    @property
    def own_rows(self) -> bool:
        """Return whether clients are judged on their own rows."""
        return any(row["own_rows"] for row in self.summary.get("per_client", ()))

    @property
    def judged_on(self) -> str:
        """The rows that clients are judged on."""
        if self.own_rows:
            few = sum(not row["own_rows"] for row in self.summary["per_client"])
            less = (
                f" ({count(few, self.config.party)} with too few rows for this are judged on the common ones, outside the means)"
                if few
                else ""
            )
            return f"each {self.config.party}'s own rows, kept out of training{less}"
        return f"the same {where(self.config)} for every {self.config.party}"

    def name(self, k: int) -> str:
        """Return the name of client ``k``: its natural owner if there is one, else its number."""
        names = self.partition["info"].get("names", ())
        return str(names[k]) if k < len(names) else str(k)

    def client(self, k: int) -> str:
        """Return client ``k`` as words for a sentence."""
        name = self.name(k)
        numbered = f"{self.config.party} {k}"
        return numbered if name == str(k) else f"{name} ({numbered})"


class Entry(NamedTuple):
    """One folder named on the command line: a run, or several seeds of one configuration."""

    key: str
    label: str
    config: ExperimentConfig
    config_text: str  # text of config.toml
    summary: Plain
    subjects: tuple[Subject, ...]

    def printed(self, path: str, text: Any = number) -> Markup:
        """Return the figure at a place of the folder's summary.json; a dash if absent."""
        return printed(value_at(self.summary, path), f"{self.key}:{path}", text)

    @property
    def headline(self) -> str:
        """The figure shown first."""
        return self.subjects[0].headline


def value_at(found: Any, path: str) -> Any:
    """Return the value under a dotted path of nested tables and lists; None if absent."""
    for key in path.split("."):
        if isinstance(found, list):
            found = found[int(key)]
        else:
            found = (found or {}).get(key)
    return found


KIND = {"accuracy": "classes", "rmse": "numbers"}


HOLD = {
    COLUMNS: "parties hold columns",
    ROWS: "clients hold rows",
    OWNERS: "owners of rows have a protocol of their own",
}


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """Return the runs of these folders. ConfigError if one is not a run, is not finished, or cannot be compared with the others."""
    if not paths:
        raise ConfigError("name at least one run folder: fedatlas report RUN.")
    keys = ["run"] if len(paths) == 1 else [f"run{i}" for i in range(1, len(paths) + 1)]
    entries = [_entry(*given) for given in zip(paths, labels(paths), keys, strict=True)]
    first = entries[0]
    for other in entries[1:]:
        pages = first.subjects[0].page, other.subjects[0].page
        if pages[0] != pages[1]:
            one, two = (
                f"in '{e.label}' {HOLD[page]}"
                for e, page in sorted(zip((first, other), pages, strict=True), key=lambda x: x[1])
            )
            raise ConfigError(f"{one}, {two}: write a report for each.")
        if other.headline != first.headline:
            raise ConfigError(
                f"'{first.label}' predicts {KIND[first.headline]}, but '{other.label}' {KIND[other.headline]}: write a report for each."
            )
    return entries


def labels(paths: Sequence[Path]) -> list[str]:
    """Return the shortest endings of the paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(part[-length:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    raise ConfigError(f"the same run is named twice: {', '.join(map(str, paths))}.")


def _entry(path: Path, label: str, key: str) -> Entry:
    folder = RunFolder.open(path)
    config, text = folder.config(), (path / CONFIG).read_text(encoding="utf-8")
    ended = [s for s in config.seeds or () if (path / f"seed-{s}" / SUMMARY).exists()]
    subjects = [_subject(path / f"seed-{s}", f"{label}, seed {s}", f"{key}-seed{s}") for s in ended]
    if not any("diverged" in subject.summary for subject in subjects):
        return Entry(key, label, config, text, folder.summary(), tuple(subjects) or (_subject(path, label, key),))
    summary = over([subject.summary for subject in whole(subjects)], config.hash())  # the folder itself has no summary
    return Entry(key, label, config, text, summary, tuple(subjects))


def whole(subjects: Sequence[Subject]) -> list[Subject]:
    """Return the subjects that finished; all of them if all diverged."""
    return [subject for subject in subjects if "diverged" not in subject.summary] or list(subjects)


def _subject(path: Path, label: str, key: str) -> Subject:
    folder = RunFolder.open(path)
    config, summary = folder.config(), folder.summary()
    if folder.of_columns:
        own = next(one["name"] for one in summary["parties"] if one["active"])
        partition = folder.read_json("partition.json")
        page = COLUMNS if SCHEMES[config.algorithm.name].layout == "columns" else OWNERS
        return Subject(key, label, folder, config, folder.rows(), summary, partition, {}, page=page, party=own)
    partition = folder.read_json("partition.json", "clients", "held_out", "feature_skew", "info")
    preprocess = folder.read_json("preprocess.json", "kind", "rules", "scale")
    if not (rows := folder.rows()):
        raise folder.damaged(METRICS, "it has no rows")
    return Subject(key, label, folder, config, rows, summary, partition, preprocess, leaks_of(folder))


def party_entries(entry: Entry) -> Iterator[Entry]:
    """Yield the entry as the page of each party without the label whose own file is in the folder."""
    (subject,) = entry.subjects
    for one in entry.summary["parties"]:
        if not one["active"] and (subject.folder.path / f"party-{one['name']}.json").exists():
            yield entry._replace(subjects=(subject._replace(page=PARTY, party=one["name"]),))


def leaks_of(folder: RunFolder) -> list[tuple[Plain, Mapping[str, np.ndarray]]]:
    """Return the findings of attacks on the run's views, by name."""
    names = sorted(path.parent.name for path in (folder.path / ATTACKED).glob(f"*/{ATTACK}"))
    read = ("name", "kind", "role", "declaration", "metrics", "leaks")
    return [
        (folder.read_json(f"{ATTACKED}/{name}/{ATTACK}", *read), folder.arrays(f"{ATTACKED}/{name}/{FOUND}"))
        for name in names
    ]
