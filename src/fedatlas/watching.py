"""``fedatlas watch RUN``: follow a run, its seeds, or a comparison, in the terminal until it ends. It only reads the folder."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedatlas.errors import ConfigError
from fedatlas.terminal import SHOWN, answer_line, columns, console, end_table, figure_text, time_left
from fedatlas.wording import seconds_text

CONFIG, METRICS, SUMMARY, LOCK = "config.toml", "metrics.jsonl", "summary.json", "lock"
COMPARED, PAGE = "comparison.json", "comparison.html"  # of a folder that `fedatlas compare` writes
TICK = 0.5  # seconds between two looks
BARS, WIDTH = "▁▂▃▄▅▆▇█", 48
HEADLINES = ("accuracy", "rmse", "loss")
Row = Mapping[str, Any]


class Tail:
    """The rows of a metrics.jsonl that grows; after a resumed run cut it back, those that are left."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, list[Row]()
        self._at, self._file = 0, 0

    def look(self) -> bool:
        """Read what was added; return whether there was anything."""
        try:
            with open(self.path, "rb") as file:
                now = self.path.stat()
                if now.st_ino != self._file or now.st_size < self._at:
                    self._at, self._file, self.rows = 0, now.st_ino, []
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return False
        whole = data[: data.rfind(b"\n") + 1]  # a line that is still being written counts later
        self._at += len(whole)
        self.rows += [json.loads(line) for line in whole.splitlines()]
        return bool(whole)


class WatchedRun:
    """A run with one seed, as described by its folder."""

    def __init__(self, path: Path, label: str = "") -> None:
        self.path, self.label, self.tail = path, label, Tail(path / METRICS)
        self.rounds, self.summary = 0, dict[str, Any]()

    @property
    def rows(self) -> list[Row]:
        """Rows so far."""
        return self.tail.rows

    @property
    def done(self) -> int:
        """The last completed round."""
        return int(self.rows[-1]["round"]) if self.rows else 0

    def look(self) -> bool:
        """Read what is new; return whether anything is."""
        above = self.path.parent if self.label and not (self.path / CONFIG).exists() else self.path
        self.rounds = rounds_of(config_of(above))
        before, self.summary = self.summary, read_json(self.path / SUMMARY)
        return self.tail.look() or before != self.summary

    def left(self) -> float | None:
        """Return the seconds left, from the median of the last rounds; None if unknown."""
        return 0.0 if self.summary else time_left(self.rows, self.rounds)

    def state(self) -> str:
        """Return the state of the run."""
        if self.summary:
            return "diverged" if "diverged" in self.summary else "finished"
        return "running" if self.rows else "not begun"


class Watched:
    """The folder of a run, which may hold several seeds, or of a comparison with several schemes."""

    def __init__(self, path: Path) -> None:
        self.path, self.compared = path, (path / COMPARED).exists() and not (path / CONFIG).exists()
        if self.compared:
            record = read_json(path / COMPARED)
            labels = [str(one["label"]) for one in record.get("schemes", ())]
            self.name, self.several, self.heading = f"comparison of {', '.join(labels)}", True, "run"
            self.runs = [
                WatchedRun(path / label / f"seed-{seed}", f"{label}, seed {seed}")
                for label in labels
                for seed in record.get("seeds", ())
            ]
            return
        config = config_of(path)
        seeds = config.get("seeds")
        self.name, self.heading = f"{config['algorithm']['name']} on {config['data']['name']}", "seed"
        self.runs = [WatchedRun(path / f"seed-{seed}", str(seed)) for seed in seeds or ()] or [WatchedRun(path)]
        self.several = seeds is not None

    def called(self, run: WatchedRun) -> str:
        """Return a run's name for the start of a line; "" for the only run."""
        return (run.label if self.compared else f"seed {run.label}") if self.several else ""

    @property
    def comparison(self) -> Path | None:
        """The folder of the comparison that this is or belongs to, as a scheme or a run; None if it belongs to none."""
        return next((one for one in (self.path, *self.path.resolve().parents[:2]) if (one / COMPARED).exists()), None)

    def look(self) -> bool:
        """Read what is new; return whether there is anything."""
        return sum(run.look() for run in self.runs) > 0  # sum(), so that every run is read

    def goes_on(self) -> bool:
        """Whether a process is working on the folder, which then holds a lock."""
        if sys.platform == "win32":  # no locks there
            end = read_json(self.path / COMPARED).get("answer") if self.compared else (self.path / SUMMARY).exists()
            return not end
        if (self.path / LOCK).exists():
            return True
        above = self.comparison  # its lock covers its schemes and its runs that have not begun
        return above is not None and (above / LOCK).exists() and not (self.path / SUMMARY).exists()

    def left(self) -> str:
        """Return the time left as text. A seed that has not begun is expected to take as long as those before it."""
        begun = [run for run in self.runs if run.rows]
        found = [run.left() for run in begun]
        known = [one for one in found if one is not None]
        if not known or len(known) < len(found):
            return "?"
        spent = [sum(row["seconds"] for row in run.rows) for run in begun]
        whole = sum(spent) + sum(known)
        return seconds_text(sum(known) + whole / len(begun) * (len(self.runs) - len(begun)))


def watch(path: Path) -> None:
    """Show a run until it ends, then its figures. ConfigError for a folder that is not a run's."""
    watched, out = Watched(path), console()
    out.print(f"[bold]{escape(watched.name)}[/] in {escape(str(path))}")
    watched.look()
    try:
        follow_live(watched, out) if sys.stderr.isatty() else follow_lines(watched, out)
    except KeyboardInterrupt:
        return
    say_end(watched, out)


def follow_live(watched: Watched, out: Console) -> None:
    """Redraw in place until the run ends."""
    with Live(picture(watched), console=out, refresh_per_second=8) as live:
        while watched.goes_on():
            time.sleep(TICK)
            if watched.look():
                live.update(picture(watched))
        watched.look()
        live.update(picture(watched))


def follow_lines(watched: Watched, out: Console) -> None:
    """Print the rounds so far, at most one line per look and seed, until the run ends."""
    last = dict[str, int]()
    while True:
        over = not watched.goes_on()
        watched.look()
        for run in watched.runs:
            if run.rows and last.get(run.label) != run.done:
                last[run.label] = run.done
                seed = f"{called}, " if (called := watched.called(run)) else ""
                text = ", ".join(f"{title} {value}" for title, value in columns(run.rows[-1]))
                out.print(f"{seed}{text}, left {watched.left()}", soft_wrap=True)
        if over:
            return
        time.sleep(TICK)


def say_end(watched: Watched, out: Console) -> None:
    """Print the final figures, or how to continue a run that was stopped."""
    summary, above = read_json(watched.path / SUMMARY), watched.comparison
    if watched.compared:
        for line in read_json(watched.path / COMPARED).get("answer", {}).get("sentences", ()):
            out.print(escape(line), soft_wrap=True)
    if "answer" in summary:
        out.print(answer_line(summary), soft_wrap=True)
    if "final" in summary and "cost" in summary:
        out.print(end_table(summary))
    ended = bool(read_json(above / COMPARED).get("answer")) if above and watched.compared else bool(summary)
    if ended:
        out.print(escape(report_line(watched, above)), soft_wrap=True)
    else:
        command = "the same 'fedatlas compare' command again" if above else f"fedatlas run --resume {watched.path}"
        out.print(escape(f"Not finished, and no process works on it: {command}"), soft_wrap=True)
    for run in watched.runs:
        if why := run.summary.get("diverged"):
            called = watched.called(run)
            out.print(escape(f"{f'{called[:1].upper()}{called[1:]}: ' if called else ''}{why}"))


def report_line(watched: Watched, above: Path | None) -> str:
    """Return the path of the page; for a run without one, the command that writes it."""
    pages = [watched.path / "report.html", *([above / PAGE] if above else [])]
    found = next((page for page in pages if page.exists()), None)
    return f"Report: {found}" if found else f"Its report: fedatlas report {watched.path}"


def picture(watched: Watched) -> RenderableType:
    """Return the content of the screen."""
    table = Table(box=None, pad_edge=False)
    if watched.several:
        for title in (watched.heading, "", "round", *titles(watched.runs), "curve"):
            table.add_column(title, justify="left" if title in {"", "curve"} else "right")
        for run in watched.runs:
            figures = [text for _, text in columns(run.rows[-1])[1:]] if run.rows else ["-"] * len(titles(watched.runs))
            table.add_row(run.label, run.state(), f"{run.done}/{run.rounds}", *figures, curve(run.rows, WIDTH // 2))
    else:
        (run,) = watched.runs
        for title, _ in columns(run.rows[-1]) if run.rows else ():
            table.add_column(title, justify="right")
        for row in run.rows[-SHOWN:]:
            table.add_row(*(value for _, value in columns(row)))
    return Group(table, *below(watched))


def titles(runs: Sequence[WatchedRun]) -> list[str]:
    """Return the headings of a round's figures."""
    return next(([title for title, _ in columns(run.rows[-1])[1:]] for run in runs if run.rows), [])


def below(watched: Watched) -> list[RenderableType]:
    """Return the curve of one run, the progress of all, and the time left."""
    done, total = (
        sum(run.done for run in watched.runs),
        sum(run.rounds for run in watched.runs),
    )
    out: list[RenderableType] = []
    if not watched.several and (drawn := curve(watched.runs[0].rows, WIDTH)):
        key, values = headline(watched.runs[0].rows)
        out.append(f"{key} {drawn} {figure_text(min(values))} to {figure_text(max(values))}")
    line = Table.grid(padding=(0, 1))
    over = all(run.summary for run in watched.runs)
    rest = "what follows the rounds ..." if over and watched.goes_on() else "" if over else f"{watched.left()} left"
    line.add_row("rounds", ProgressBar(total=max(total, 1), completed=done, width=40), f"{done}/{total}", rest)
    return [*out, line]


def headline(rows: Sequence[Row]) -> tuple[str, list[float]]:
    """Return the name of the first figure that rows have, and its values."""
    for key in HEADLINES:
        if values := [row[key] for row in rows if isinstance(row.get(key), int | float)]:
            return key, values
    return "", []


def curve(rows: Sequence[Row], width: int) -> str:
    """Return the headline figure over all rounds as a line of blocks, at most ``width`` of them."""
    _, values = headline(rows)
    if len(values) < 2:
        return ""
    number = min(width, len(values))
    shown = [values[round(place * (len(values) - 1) / (number - 1))] for place in range(number)]
    low, high = min(shown), max(shown)
    return "".join(BARS[round((value - low) / (high - low) * 7) if high > low else 0] for value in shown)


def config_of(path: Path) -> dict[str, Any]:
    """Return the configuration of a run's folder as plain values. ConfigError if it holds none."""
    try:
        return tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"'{path}' is not a run: it has no {CONFIG}.") from None
    except ValueError as error:
        raise ConfigError(f"'{path / CONFIG}' cannot be read: {error}.") from None


def rounds_of(config: Mapping[str, Any]) -> int:
    """Return the rounds that a configuration asks for; for parties that hold columns, those of their scheme."""
    own = config["algorithm"]
    return int(own.get("trees", own.get("rounds", config.get("rounds", 0))))


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file of the run; {} if there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found
