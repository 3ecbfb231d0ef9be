"""Progress of a run for people: a live table in a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from fedatlas.record.fields import RoundRow
from fedatlas.wording import (
    NOT_TOLD,
    beyond_delta,
    bytes_text,
    given_up_text,
    is_spread,
    seconds_text,
    took_text,
    total_of,
    worthless,
)

if TYPE_CHECKING:  # readers of only a folder (`watching`) import no torch
    from fedatlas.course.course import Course

SHOWN = 12  # rounds in the live table
MINUTE = 60.0


def console() -> Console:
    """Return a console on standard error; standard output is reserved for results."""
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def figure_text(value: Any) -> str:
    """Return a quality figure as text, or a dash if there is none."""
    return f"{value:.4f}" if isinstance(value, (int, float)) else "-"


def guard_texts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return heading and text of the guard's score of a round, if it has a guard."""
    if "committed" not in row:
        return []
    return [("guard", f"{figure_text(row['score'])}{' rejected' if row['committed'] is False else ''}")]


def columns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return heading and text of each figure of a round."""
    quality = (
        [("accuracy", "accuracy"), ("macro F1", "macro_f1")] if "accuracy" in row else [("RMSE", "rmse"), ("R2", "r2")]
    )
    sent = total_of(row[key] for key in ("bytes_up", "bytes_down", "bytes_peer"))
    return [
        ("round", str(row["round"])),
        *((title, figure_text(row[key])) for title, key in quality),
        ("loss", figure_text(row["loss"])),
        *guard_texts(row),
        ("s/round", f"{row['seconds']:.2f}"),
        ("bytes", bytes_text(sent)),
    ]


def answer_line(summary: Mapping[str, Any]) -> str:
    """Return the answer of a run and how long it took, with rich's marks."""
    return f"[bold]{escape(summary['answer']['text'])}[/] {took_text(summary)}"


def time_left(rows: Sequence[Mapping[str, Any]], rounds: int) -> float | None:
    """Return the seconds left until round ``rounds``, from the median of the last ones; None without any."""
    times = sorted(row["seconds"] for row in rows[-9:] if row["round"])
    return float(times[len(times) // 2] * (rounds - rows[-1]["round"])) if times else None


class Watcher:
    """Base of all views of a run's progress."""

    folder: Path | None = None  # of the run, once it has begun

    def __init__(self) -> None:
        self.out = console()
        self.rounds = 0
        self.seen: list[RoundRow] = []

    def started(self, course: Course) -> None:
        """Print the run and its folder."""
        self.rounds, self.seen, self.folder = course.config.rounds, [], course.keeper.folder.path
        first, *more = course.lines
        self.out.print(f"[bold]{escape(first)}[/]")
        for line in (*more, f"Folder: {self.folder}"):
            self.out.print(escape(line))
        if course.number:
            self.out.print(f"Resumed after {course.word} {course.number}.")

    def said(self, notice: str) -> None:
        """Print a notice."""
        self.out.print(f"[yellow]{escape(notice)}[/]")

    def left(self) -> str:
        """Return the time left as text, from the median of the last rounds."""
        left = time_left(self.seen, self.rounds)
        return "?" if left is None else seconds_text(left)

    def beside(self, name: str) -> AbstractContextManager[Standing]:
        """Return a line with the progress of a baseline."""
        return standing(f"Baseline for comparison: {name}")

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Print a short table and the path of the report."""
        if why := not_derived(summary):
            self.out.print(
                f"[yellow]Local training used plain autograd, which is slower than a derived step: {escape(why)}.[/]"
            )
        if "answer" in summary:
            self.out.print(answer_line(summary), soft_wrap=True)
        self.out.print(end_table(summary))
        report = folder / "report.html"
        self.out.print(f"Report: {report if report.exists() else folder}")

    def close(self) -> None:
        """Release the terminal. Call it however the run ended."""


class Plain(Watcher):
    """View with one line per round, for pipes and logs; at most two lines per second."""

    last = 0.0

    def row(self, row: RoundRow) -> None:
        """Print the round."""
        self.seen.append(row)
        now = time.perf_counter()
        if now - self.last < 0.5 and row["round"] not in (0, self.rounds):
            return
        self.last = now
        text = ", ".join(f"{title} {value}" for title, value in columns(row))
        self.out.print(f"{text}, left {self.left()}", soft_wrap=True)


class Lively(Watcher):
    """View with a table that grows in place, and a progress bar."""

    live: Live | None = None

    def started(self, course: Course) -> None:
        """Open the live table."""
        super().started(course)
        bar = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
        )
        self.bar = Progress(*bar)
        self.task = self.bar.add_task(f"{course.word}s", total=self.rounds, completed=course.number, left="?")
        self.live = Live(self.bar, console=self.out, refresh_per_second=8)
        self.live.start()

    def row(self, row: RoundRow) -> None:
        """Redraw the table."""
        self.seen.append(row)
        table = Table(box=None, pad_edge=False)
        for title, _ in columns(row):
            table.add_column(title, justify="right")
        for shown in self.seen[-SHOWN:]:
            table.add_row(*(value for _, value in columns(shown)))
        self.bar.update(self.task, completed=row["round"], left=self.left())
        assert self.live is not None
        self.live.update(Group(table, self.bar))
        if row["round"] == self.rounds:
            self.close()

    def said(self, notice: str) -> None:
        """Print a notice above the table."""
        (self.live.console if self.live else self.out).print(f"[yellow]{escape(notice)}[/]")

    def close(self) -> None:
        """Stop updating; the table stays on the screen."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Close the live table and print the final one."""
        self.close()
        super().finished(folder, summary)


class Standing(Watcher):
    """View with one line of progress for a run among many: updated in place in a terminal, once a minute elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.told = name, time.perf_counter()
        self.status = self.out.status(f"{name} ...") if sys.stderr.isatty() else None
        if self.status is not None:
            self.status.start()
        else:
            self.out.print(f"{name} ...")

    def started(self, course: Course) -> None:
        """Remember the number of rounds and the folder."""
        self.rounds, self.folder = course.config.rounds, course.keeper.folder.path

    def said(self, notice: str) -> None:
        """Do nothing, since notices of single runs would clutter the output."""

    def row(self, row: RoundRow) -> None:
        """Update the line."""
        self.seen.append(row)
        text = f"{self.name}: round {row['round']} of {self.rounds}, left {self.left()}"
        if self.status is not None:
            self.status.update(text)
        elif time.perf_counter() - self.told >= MINUTE:
            self.told = time.perf_counter()
            self.out.print(text)

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Do nothing: the study reports the result."""

    def close(self) -> None:
        """Remove the line."""
        if self.status is not None:
            self.status.stop()


@contextmanager
def standing(name: str) -> Iterator[Standing]:
    """Show the progress line of one run while the block lasts."""
    line = Standing(name)
    try:
        yield line
    finally:
        line.close()


def watcher(quiet: bool) -> Any:
    """Return the view to use: live in a terminal, lines elsewhere, silent if asked."""
    if quiet:
        from fedatlas.course.progress import Silent

        return Silent()
    return Lively() if sys.stderr.isatty() else Plain()


def not_derived(summary: Mapping[str, Any]) -> str:
    """Return why no step program could be derived although one was wanted; else ""."""
    from fedatlas.engine.fast import ASKED, FEW, RARE

    found = [note.partition("tuned step: ")[2] for note in summary.get("plan", {}).get("steps", ())]
    return next((why for why in found if why and why not in {ASKED, RARE, FEW}), "")


def end_table(summary: Mapping[str, Any]) -> Table:
    """Return a table of final figures, cost, and the parties' gains."""
    table = Table(box=None, show_header=False, pad_edge=False)
    final, cost = summary["final"], summary["cost"]
    for key in ("accuracy", "macro_f1", "rmse", "r2", "loss"):
        if final.get(key) is not None:
            spread = summary.get("over_seeds", {}).get("final", {}).get(key, {})
            sd = f" (sd {spread['sd']:.4f}, n {spread['n']})" if spread.get("sd") is not None else ""
            whose = "" if "interval" in final or "over_seeds" in summary else ", mean over clients' models"
            table.add_row(f"{key.replace('_', ' ')}{whose}", f"[bold]{final[key]:.4f}[/]{sd}")
    for key in ("accuracy", "rmse"):
        if summary.get("test", {}).get(key) is not None:
            table.add_row(f"{key} on test rows", f"{summary['test'][key]:.4f}")
    table.add_row("sent up / down", sent_text(summary))
    if cost.get("bytes_peer"):
        table.add_row("between clients", bytes_text(cost["bytes_peer"]))
    table.add_row("time", seconds_text(cost["seconds"]))
    if guard := summary.get("guard"):
        gone = f", {len(guard['rejected_rounds'])} rounds rejected" if guard["rejected_rounds"] else ""
        table.add_row("guard", f"version {guard['version']} is the model; {guard['committed']} committed{gone}")
    for name, text in protected_texts(summary):
        table.add_row(name, text)
    for one in summary.get("epsilon_together", ()):
        table.add_row(*together_texts(one))
    gained, answer = summary.get("gain"), summary.get("answer")
    if gained and "sides" in gained:
        for name, line in between_texts(gained):
            table.add_row(name, line)
    elif answer and answer["asked"]["figure"] not in {"accuracy", "rmse"}:
        for side in ("together", "alone", "trivial"):
            if answer[side] is not None:
                table.add_row(f"{answer['asked']['words']}, {side}", figure_text(answer[side]))
    elif gained:
        own = " (own rows)" if any(row["own_rows"] for row in summary.get("per_client", ())) else ""
        error = gained["figure"] == "rmse"  # for errors the same keys hold the largest values
        words = {"mean": "mean", "p10": "p90" if error else "p10", "min": "worst"}
        for name, spread in gained["summary"].items():
            shown = words.items() if is_spread(spread) else [("mean", "")]
            line = ", ".join(f"{word} {figure_text(spread[key])}".strip() for key, word in shown)
            table.add_row(f"{gained['figure']}, {name.replace('_', ' ')}{own}", line)
    return table


TOGETHER = {
    "together": "all parties",
    "alone": "the label's holder alone",
    "alone_all": "the same on all its rows",
    "joined": "all columns in one table",
}


def between_texts(gained: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return lines about the figures of the run and its baselines, and about the gain from each party's columns."""
    figure = gained["figure"]
    titles = (
        TOGETHER if "alone" in gained["sides"] else {**TOGETHER, "joined": "all rows in one table"}
    )  # owners of rows
    out = [
        (f"{figure}, {titles.get(name, name)}".replace("_", " "), figure_text(side[figure]))
        for name, side in gained["sides"].items()
    ]
    for name, found in gained["parties"].items():
        one = found[figure]
        ends = f" ({figure_text(one['low'])} to {figure_text(one['high'])})" if one["low"] is not None else ""
        whose = (
            f"by {name}'s columns" if "alone" in gained["sides"] else f"by {name}, which alone would have its own rows"
        )
        out.append((f"{figure}, gained {whose}", f"{figure_text(one['value'])}{ends}"))
    return out


def protected_texts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return lines about the protection of one run under ``[[privacy]]``, its guarantee and its cost."""
    found, cost = summary.get("privacy"), summary["cost"]
    if not found:
        return []
    names = ", ".join(one["name"] for one in found["mechanisms"])
    more = "" if cost.get("bytes_privacy") is None else f", {bytes_text(cost['bytes_privacy'])} of what was sent"
    out = [(names, f"in force{more}")]
    if lost := found.get("given_up", {}).get("rounds"):
        of = found["given_up"]["of"]
        out.append(("given up", f"{given_up_text(lost, of)}: {found['given_up']['why']}"))
    if "epsilon" in found:
        epsilon = found["epsilon"] if isinstance(found["epsilon"], str) else f"{found['epsilon']:.4g}"
        seeded = ' (noise = "seed": protects nobody)' if found["noise"] == "seed" else ""
        bound = "at most " if found["upper_bound"] else ""
        stated = f" (the paper's: {found['accounts']['nominal']:.4g})" if found.get("accounts") else ""
        more = beyond_delta(found)
        told = f"{bound}{epsilon}, {more}" if more else f"{bound}{epsilon} at delta {found['delta']:.3g}"
        little = " (promises next to nothing)" if worthless(found) else ""
        out.append(("epsilon", more if "delta_too_large_for" in found else f"{told}{stated}{seeded}{little}"))
    for name in found.get("beside", ()):
        own = found[name]
        seeded = ' (noise = "seed": protects nobody)' if own["noise"] == "seed" else ""
        out.append(
            (f"epsilon of {own['covers'] or 'one row'}", f"{own['epsilon']:.4g} at delta {own['delta']:.3g}{seeded}")
        )
    return out


def together_texts(one: Mapping[str, Any]) -> tuple[str, str]:
    """Return a line about what several seeds cost together."""
    whole = one["epsilon"] if isinstance(one["epsilon"], str) else f"{one['epsilon']:.4g}"
    whom = one["covers"] or f"one {'row' if one['unit'] == 'record' else one['unit']}"
    bound = "at most " if one["upper_bound"] else ""
    return f"epsilon of {one['seeds']} seeds", f"{bound}{whole} at delta {one['delta']:.3g}, about {whom}"


def sent_text(summary: Mapping[str, Any]) -> str:
    """Return bytes up and down as text; if they would reveal who took part, their expected values."""
    cost, expected = summary["cost"], summary.get("privacy", {}).get("expected")
    if cost["bytes_up"] is not None:
        return f"{bytes_text(cost['bytes_up'])} / {bytes_text(cost['bytes_down'])}"
    if not expected:
        return NOT_TOLD
    return f"{NOT_TOLD}; expected about {bytes_text(expected['bytes_up'])} / {bytes_text(expected['bytes_down'])}"
