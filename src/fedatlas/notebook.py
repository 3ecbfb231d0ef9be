"""Results as a notebook shows them: short texts, small cards with the main figures and a link to the page, and curves as SVG."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from fedatlas.config import ExperimentConfig
from fedatlas.course.course import Course
from fedatlas.course.progress import Progress, Run, Silent
from fedatlas.data.kept import CALLED, is_kept
from fedatlas.errors import ConfigError
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.reporting import REPORT, write_report
from fedatlas.wording import NAMES, bytes_text, capital, count, interval_text, listed, number, seconds_text, total_of

if TYPE_CHECKING:
    from fedatlas.prediction.fitted import FittedClassifier, FittedRegressor

WIDTH = 560  # of a picture, in SVG units
HEADLINES = ("rmse", "accuracy")
APART = 0.5  # seconds between two updates of a notebook's line


class SvgPicture(str):
    """A picture as the text of an SVG file, which a notebook draws."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<SvgPicture, {len(self)} bytes of SVG>"

    def save(self, path: str | Path) -> Path:
        """Write the SVG file and return its path."""
        Path(path).write_text(self, encoding="utf-8")
        return Path(path)


class RunResult(Run):
    """A finished run: its folder (``path``), its figures (``summary``), and how to look at it and use it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Run {self.path}: {', '.join(_words(self.summary))}>"

    def _repr_html_(self) -> str:
        facts = self.summary.get("data_facts", {})
        title = f"{self.summary['algorithm']} on {facts.get('called', self.summary['data'])}"
        return card(title, figures(self.summary), self.path / REPORT)

    def plot(self, figure: str = "", against: str = "round") -> SvgPicture:
        """Draw a figure of each round: accuracy or rmse by default, ``against`` "round", "bytes" or "seconds"."""
        return curve([self.path], figure, against)

    def beside(self, *others: Run | str | Path) -> SideBySide:
        """Compare this run with others, and write comparison.html into its folder."""
        paths = [self.path, *(each.path if isinstance(each, Run) else Path(each) for each in others)]
        return SideBySide(tuple(paths), write_report(paths))

    def estimator(self) -> FittedClassifier | FittedRegressor:
        """Return the trained model as a scikit-learn estimator over the run's raw columns, which needs no folder.

        It predicts what ``fedatlas predict`` does. ConfigError if no model is common to all clients.
        """
        from fedatlas.prediction.finished_run import load
        from fedatlas.prediction.fitted import fitted

        return fitted(load(self.path))


class SideBySide(NamedTuple):
    """Several finished runs, and the page that compares them."""

    paths: tuple[Path, ...]
    page: Path

    def __repr__(self) -> str:
        return f"<{len(self.paths)} runs: {listed([str(path) for path in self.paths])}>"

    def _repr_html_(self) -> str:
        from fedatlas.reporting.entries import read_entries

        entries = read_entries(self.paths)
        heads = list(dict.fromkeys(name for entry in entries for name in figures(entry.summary)))
        rows = [[entry.label, *(figures(entry.summary).get(name, "") for name in heads)] for entry in entries]
        return block(table(rows, ["", *heads]), self.page)

    def plot(self, figure: str = "", against: str = "round") -> SvgPicture:
        """Draw a figure of each round, one line per run, as `RunResult.plot`."""
        return curve(self.paths, figure, against)


def experiment_text(config: ExperimentConfig) -> str:
    """Return an experiment in a line."""
    return f"<Experiment: {', '.join(f'{key} {value}' for key, value in described(config).items())}>"


def experiment_html(config: ExperimentConfig) -> str:
    """Return an experiment as a small table."""
    return block(table([[key, value] for key, value in described(config).items()]))


def described(config: ExperimentConfig) -> dict[str, str]:
    """Map the main choices of an experiment to their texts."""
    named = config.data.options()
    path, roles = str(named.get("path") or ""), {"target": named.get("label"), "owner": named.get("client")}
    source = CALLED[Path(path).suffix] if is_kept(path) else path or config.data.name
    data = ", ".join([source, *(f"{role} {name}" for role, name in roles.items() if name)])
    who = f"{config.partition.clients} clients" if config.partition.clients else "one client per owner"
    model = listed([each.name for each in config.models]) if config.models else config.model.name
    seeds = config.seeds or (config.seed,)
    out = {"algorithm": config.algorithm.name, "data": data, "partition": f"{config.partition.name} ({who})"}
    out |= {
        "model": model,
        "rounds": str(config.rounds),
        "seed" if len(seeds) == 1 else "seeds": listed([*map(str, seeds)]),
    }
    return out | ({"privacy": listed([one.name for one in config.privacy])} if config.privacy else {})


def figures(summary: Mapping[str, Any]) -> dict[str, str]:
    """Map the main figures of a finished run to their texts."""
    final, cost, gain = summary["final"], summary["cost"], summary.get("gain") or {}
    key = "rmse" if summary["task"] == "numbers" else "accuracy"
    low, high = final.get("interval", {}).get(key, (None, None))
    shown = number(final.get(key)) + (f" ({interval_text(low, high)})" if low is not None else "")
    out = {capital(NAMES[key]): shown}
    for name, part in (("alone", "local_only"), ("pooled", "centralised")):
        if (value := gain.get("summary", {}).get(part, {}).get("mean")) is not None:
            out[capital(name)] = number(value)
    sent = total_of(cost.get(each) for each in ("bytes_up", "bytes_down", "bytes_peer"))
    out |= {"Rounds": count(summary["rounds"]), "Sent": bytes_text(sent), "Time": seconds_text(cost["seconds"])}
    return {**({"Clients": count(summary["clients"])} if "clients" in summary else {}), **out}


def _words(summary: Mapping[str, Any]) -> list[str]:
    return [str(summary["algorithm"]), *(f"{name.lower()} {value}" for name, value in figures(summary).items())]


def card(title: str, found: Mapping[str, str], page: Path) -> str:
    """Return figures as a small table under a title, with a link to the page if it exists."""
    return block(f"<b>{escape(title)}</b>" + table([list(found.values())], list(found)), page)


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return texts as an HTML table."""

    def line(cells: Sequence[str], tag: str) -> str:
        cell = f'<{tag} style="text-align:left">{{}}</{tag}>'
        return f"<tr>{''.join(cell.format(escape(str(text))) for text in cells)}</tr>"

    return f"<table>{line(head, 'th') if head else ''}{''.join(line(row, 'td') for row in rows)}</table>"


def block(inside: str, page: Path | None = None) -> str:
    """Return a card, with a link to ``page`` if it exists, relative to the working directory if it lies below it."""
    if page is None or not page.exists():
        return f"<div>{inside}</div>"
    below = page.resolve().is_relative_to(Path.cwd())
    link = quote(os.path.relpath(page).replace(os.sep, "/")) if below else page.resolve().as_uri()
    return f'<div>{inside}<a href="{link}" target="_blank">{escape(str(page))}</a></div>'


def curve(paths: Sequence[Path], figure: str, against: str) -> SvgPicture:
    """Return a learning curve of these runs. ConfigError for a figure or an axis that they do not have."""
    from fedatlas.reporting.curves import curves
    from fedatlas.reporting.entries import read_entries
    from fedatlas.reporting.page import standalone

    (choice,) = curves(read_entries(paths))
    drawn = {option.value: option.figures for option in choice.options}
    if against not in drawn:
        raise ConfigError(f"against = '{against}': choose one of {', '.join(drawn)}.")
    by_name = {each.id.removesuffix(f"-by-{against}"): each for each in drawn[against]}
    if figure and figure not in by_name:
        raise ConfigError(f"figure = '{figure}': these runs have {', '.join(by_name)}.")
    found = by_name[figure] if figure else next(iter(by_name.values()))
    return SvgPicture(standalone(found.draw(WIDTH)))


# ------------------------------------------------------------------------------------------------ progress


def watched() -> Progress:
    """Return the progress of a run in Python: a line that is rewritten in a notebook, nothing elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return InPlace() if getattr(shell, "kernel", None) is not None else Silent()


class InPlace(Silent):
    """Progress as one line of a notebook's cell, rewritten twice a second at most. ``of``: a baseline whose rounds it shows."""

    def __init__(self, of: str = "", handle: Any = None) -> None:
        self.module = importlib.import_module("IPython.display")
        self.of, self.handle = of, handle
        self.rounds, self.last = 0, -math.inf

    def started(self, course: Course) -> None:
        """Begin to count the rounds."""
        super().started(course)
        self.rounds, self.last = course.config.rounds, -math.inf

    def row(self, row: RoundRow) -> None:
        """Show the round."""
        now = time.perf_counter()
        if now - self.last < APART and row["round"] != self.rounds:
            return
        self.last = now
        figure = next((f", {NAMES[key]} {number(row[key])}" for key in HEADLINES if row.get(key) is not None), "")  # type: ignore[literal-required]
        self._show(f"{self.of}round {row['round']} of {self.rounds}{figure}")

    def said(self, notice: str) -> None:
        """Show a notice in a line of its own, which stays."""
        self.module.display({"text/plain": notice}, raw=True)

    def finished(self, folder: Path, summary: RunSummary) -> None:
        """End the line with the figures of the run."""
        if not self.of:
            self._show(f"{folder}: {', '.join(_words(summary))}")

    def beside(self, name: str) -> AbstractContextManager[Progress]:
        """Show a baseline in the same line."""
        return contextlib.nullcontext(InPlace(f"baseline {name}, ", self.handle))

    def _show(self, text: str) -> None:
        content = {"text/plain": text}
        if self.handle is None:
            self.handle = self.module.display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)
