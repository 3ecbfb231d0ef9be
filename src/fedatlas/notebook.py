"""Results in a notebook: short texts, small cards with the main figures and a link to the page, and curves as SVG."""

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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from urllib.parse import quote

from fedatlas.config import ExperimentConfig
from fedatlas.course.course import Course
from fedatlas.course.progress import Progress, Run, Silent
from fedatlas.data.kept import CALLED, is_kept
from fedatlas.errors import ConfigError
from fedatlas.metrics.metric import METRICS
from fedatlas.prediction.finished_run import FinishedRun, load
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.reporting import REPORT, write_report
from fedatlas.reporting.answer import ranking_of
from fedatlas.reporting.entries import Entry, read_entries
from fedatlas.verdict.answer import Answer, of_plain
from fedatlas.wording import (
    NAMES,
    bytes_text,
    capital,
    count,
    interval_text,
    listed,
    number,
    seconds_text,
    signed,
    total_of,
)

if TYPE_CHECKING:
    from fedatlas.prediction.fitted import FittedClassifier, FittedRegressor

WIDTH = 560  # of a picture, in SVG units
HEADLINES = ("rmse", "accuracy")


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


class OnDisk(Protocol):
    """A finished run by its folder and its figures."""

    @property
    def path(self) -> Path: ...
    @property
    def summary(self) -> Any: ...


class Viewed:
    """Methods for viewing a finished run and using its model. The results of `run`, `resume` and `load` have them."""

    __slots__ = ()

    def __repr__(self: OnDisk) -> str:
        return f"<Run {self.path}: {', '.join(_words(self.summary))}>"

    def _repr_html_(self: OnDisk) -> str:
        facts = self.summary.get("data_facts", {})
        title = f"{self.summary['algorithm']} on {facts.get('called', self.summary['data'])}"
        return card(title, Run(*_pair(self)).answer, figures(self.summary), self.path / REPORT)

    @property
    def answer(self: OnDisk) -> str:
        """The answer: should we federate, with which scheme, at which cost, for whom, how sure; "" if a run has no answer."""
        return Run(*_pair(self)).answer

    def plot(self: OnDisk, figure: str = "", against: str = "round") -> SvgPicture:
        """Draw a figure of each round against "round", "bytes" or "seconds"; by default the figure that decides the answer."""
        return curve([self.path], figure, against)

    def beside(self: OnDisk, *others: OnDisk | str | Path) -> SideBySide:
        """Compare this run with others, and write comparison.html into its folder."""
        paths = [self.path, *(Path(each) if isinstance(each, str | Path) else each.path for each in others)]
        return SideBySide(tuple(paths), write_report(paths))

    def estimator(self: OnDisk) -> FittedClassifier | FittedRegressor:
        """Return the trained model as a scikit-learn estimator over the run's raw columns, which needs no folder.

        It predicts the same as ``fedatlas predict``. Classes that are whole numbers, true or false become numbers and booleans
        again. ConfigError if no model is common to all clients.
        """
        from fedatlas.prediction.fitted import fitted

        return fitted(_loaded(self))

    def export_onnx(self: OnDisk, file: str | Path, *, client: int | None = None, model: str = "") -> Path:
        """Write the model with its preprocessing as an ONNX file, as ``fedatlas export`` does, and return its path."""
        from fedatlas.prediction.onnx_file import export_onnx

        return export_onnx(_loaded(self), Path(file), client=client, model=model)


class RunResult(Viewed, Run):
    """A finished run: its folder (``path``), its figures (``summary``), and methods to view and use it."""

    __slots__ = ()


class LoadedRun(Viewed, FinishedRun):
    """A finished run read from its folder: its model and rows, and methods to view and use it."""

    __slots__ = ()


def _pair(run: OnDisk) -> tuple[Path, RunSummary]:
    return run.path, run.summary


def _loaded(run: OnDisk) -> FinishedRun:
    return FinishedRun(*run) if isinstance(run, FinishedRun) else load(run.path)


class SideBySide(NamedTuple):
    """Several finished runs, and the page that compares them."""

    paths: tuple[Path, ...]
    page: Path

    def __repr__(self) -> str:
        return f"<{len(self.paths)} runs: {listed([str(path) for path in self.paths])}>"

    def _repr_html_(self) -> str:
        entries = read_entries(self.paths)
        shown = [{"Algorithm": entry.summary["algorithm"], **figures(entry.summary)} for entry in entries]
        heads = list(dict.fromkeys(name for each in shown for name in each))
        rows = [
            [entry.label, *(found.get(name, "") for name in heads)] for entry, found in zip(entries, shown, strict=True)
        ]
        said = "".join(f"<p>{escape(line)}</p>" for line in answers(entries))
        return block(said + table(rows, ["", *heads]), self.page)

    @property
    def answer(self) -> str:
        """The best run, as far as it can be told, and the answer of each, as on the page; "" without any."""
        return "\n".join(answers(read_entries(self.paths)))

    def plot(self, figure: str = "", against: str = "round") -> SvgPicture:
        """Draw a figure of each round, one line per run, like `RunResult.plot`."""
        return curve(self.paths, figure, against)


def answers(entries: Sequence[Entry]) -> list[str]:
    """Return the paragraphs with which the page of these runs begins."""
    found = ranking_of(entries)
    each = [f"{entry.label}: {entry.summary['answer']['text']}" for entry in entries if entry.summary.get("answer")]
    return [*([] if found is None else [found.text]), *each]


def experiment_text(config: ExperimentConfig) -> str:
    """Return an experiment as one line."""
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
    """Map the main figures of a finished run to their texts. The deciding figure is that of its answer, if it has one."""
    cost, found = summary["cost"], summary.get("answer")
    out = headline(summary) if not found else decisive(of_plain(found))
    pooled = summary.get("gain", {}).get("metric", {}).get("values", {}).get("centralised")
    if found and not found["own_rows"] and pooled is not None:  # else it describes other rows than these figures
        out["Pooled"] = number(pooled)
    sent = total_of(cost.get(each) for each in ("bytes_up", "bytes_down", "bytes_peer"))
    out |= {"Rounds": count(summary["rounds"]), "Sent": bytes_text(sent), "Time": seconds_text(cost["seconds"])}
    return {**({"Clients": count(summary["clients"])} if "clients" in summary else {}), **out}


def decisive(found: Answer) -> dict[str, str]:
    """Map the figures of an answer to their texts."""
    out = {capital(found.asked.words): number(found.together)}
    if found.compared:
        out["Alone"] = number(found.alone)
    if found.gain is not None:
        out["Gain"] = f"{signed(found.gain.value)} ({interval_text(found.gain.low, found.gain.high, signed)})"
    return out if found.trivial is None else {**out, "Trivial": number(found.trivial)}


def headline(summary: Mapping[str, Any]) -> dict[str, str]:
    """Map the figures of a run without an answer to their texts: ``evaluation.metric``, else accuracy or rmse."""
    usual, final = "rmse" if summary["task"] == "numbers" else "accuracy", summary["final"]
    low, high = final.get("interval", {}).get(usual, (None, None))
    by = summary.get("metric") or {"name": usual, "value": final.get(usual), "low": low, "high": high}
    low, high = by.get("low"), by.get("high")
    shown = number(by["value"]) + (f" ({interval_text(low, high)})" if low is not None else "")
    return {capital(METRICS[by["name"]].words if by["name"] in METRICS else NAMES[by["name"]]): shown}


def _words(summary: Mapping[str, Any]) -> list[str]:
    return [str(summary["algorithm"]), *(f"{name.lower()} {value}" for name, value in figures(summary).items())]


def card(title: str, answer: str, found: Mapping[str, str], page: Path) -> str:
    """Return an answer and figures as a small table under a title, with a link to the page if it exists."""
    said = f"<p>{escape(answer)}</p>" if answer else ""
    return block(f"<b>{escape(title)}</b>{said}" + table([list(found.values())], list(found)), page)


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
    from fedatlas.reporting.page import standalone

    entries = read_entries(paths)
    (choice,) = curves(entries)
    drawn = {option.value: option.figures for option in choice.options}
    if against not in drawn:
        raise ConfigError(f"against = '{against}': choose one of {', '.join(drawn)}.")
    by_name = {each.id.removesuffix(f"-by-{against}"): each for each in drawn[against]}
    if figure and figure not in by_name:
        raise ConfigError(f"figure = '{figure}': these runs have {', '.join(by_name)}.")
    decides = entries[0].subjects[0].summary.get("metric", {}).get("name", "")
    found = by_name[figure] if figure else by_name.get(decides, next(iter(by_name.values())))
    return SvgPicture(standalone(found.draw(WIDTH)))


# ------------------------------------------------------------------------------------------------ progress


def watched(progress: Progress | bool | None = None) -> Progress:
    """Return the receiver of progress in Python. True: a line now and then; in a notebook, one line that is rewritten.

    None: as True in a notebook, else silent. False: silent. A receiver is returned as it is. ConfigError for anything else.
    """
    if progress is None or isinstance(progress, bool):
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if getattr(shell, "kernel", None) is not None and progress is not False:
            return OnScreen(NotebookLine())
        return OnScreen(PlainLines()) if progress else Silent()
    if not all(hasattr(progress, name) for name in ("started", "said", "row", "finished", "beside")):
        raise ConfigError(f"progress = {progress!r}: give True to see each step, or False to see nothing.")
    return progress


class Screen(Protocol):
    """An output for progress: a line that the next one may replace, or one that stays."""

    apart: float  # seconds between two shown rounds

    def show(self, text: str) -> None: ...
    def keep(self, text: str) -> None: ...


class PlainLines:
    """Lines on standard error."""

    apart = 5.0

    def show(self, text: str) -> None:
        """Write a line."""
        self.keep(text)

    def keep(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class NotebookLine:
    """One line of a notebook's cell, rewritten at most twice a second; notices have separate lines."""

    apart = 0.5

    def __init__(self) -> None:
        self.module = importlib.import_module("IPython.display")
        self.handle: Any = None

    def show(self, text: str) -> None:
        """Rewrite the line."""
        content = {"text/plain": text}
        if self.handle is None:
            self.handle = self.module.display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)

    def keep(self, text: str) -> None:
        """Write a separate line, which stays."""
        self.module.display({"text/plain": text}, raw=True)


class OnScreen(Silent):
    """Progress on a screen. ``of``: the baseline whose rounds it shows."""

    def __init__(self, screen: Screen, of: str = "") -> None:
        self.screen, self.of = screen, of
        self.rounds, self.last = 0, -math.inf
        self.figures: tuple[str, ...] = HEADLINES

    def started(self, course: Course) -> None:
        """Begin to count the rounds."""
        super().started(course)
        self.rounds, self.last = course.config.rounds, -math.inf
        self.figures = (*filter(None, [course.config.evaluation.metric]), *HEADLINES)

    def row(self, row: RoundRow) -> None:
        """Show the round, if it is the last one or if enough time has passed."""
        now = time.perf_counter()
        if now - self.last < self.screen.apart and row["round"] != self.rounds:
            return
        self.last = now
        known = cast(Mapping[str, Any], row)
        figure = next(
            (f", {METRICS[key].words} {number(known[key])}" for key in self.figures if known.get(key) is not None), ""
        )
        self.screen.show(f"{self.of}round {row['round']} of {self.rounds}{figure}")

    def said(self, notice: str) -> None:
        """Show a notice, which stays."""
        self.screen.keep(notice)

    def finished(self, folder: Path, summary: RunSummary) -> None:
        """End with the figures of the run."""
        if not self.of:
            self.screen.show(f"{folder}: {', '.join(_words(summary))}")

    def beside(self, name: str) -> AbstractContextManager[Progress]:
        """Show a baseline on the same screen."""
        return contextlib.nullcontext(OnScreen(self.screen, f"baseline {name}, "))
