"""``fedatlas compare`` and ``fedatlas tune``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedatlas.commands import (
    Json,
    Plugin,
    Quiet,
    component_words,
    emit,
    noticing,
    plug,
    spelled_several,
    stoppable,
    without_gpus,
)

Several = Annotated[
    list[str] | None,
    Argument(
        metavar="[FILE.toml] table.key=a,b,c ...",
        help="Experiment file (none: the embedded default) and keys, at least one with several values.",
        autocompletion=component_words,
    ),
]


def compare(
    arguments: Several = None,
    seeds: Annotated[
        str | None, Option(help="How many seeds (5: from 1 to 5), or which (1,4,9); default: the file's.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of the comparison (default: one in runs/compare, named by the file).")
    ] = None,
    baselines: Annotated[
        bool | None,
        Option(
            "--baselines/--no-baselines",
            help="Also train each client alone, and all data pooled, once a seed (default: only if cheap).",
        ),
    ] = None,
    price: Annotated[
        bool,
        Option("--price", help="Also run each scheme without its protection, to measure what that costs."),
    ] = False,
    parallel: Annotated[int, Option(help="Runs at once.", min=1)] = 2,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check every scheme, and say what would be run; run nothing.")
    ] = False,
    plugin: Plugin = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment with every value of its keys and every seed, and say which did best.

    Exit code 1 if a run failed; one that diverged is a result.
    """
    path, words = spelled_several(arguments, plugin)
    from fedatlas.comparison.answer import table_lines
    from fedatlas.comparison.compare import compare as compare_
    from fedatlas.comparison.compare import plan_lines
    from fedatlas.comparison.schemes import comparison_of

    plug(plugin)
    without_gpus("cpu")
    with stoppable(), noticing():
        given = comparison_of(path, words, seeds)
        place = out or Path("runs") / "compare" / given.name
        if dry_run:
            typer.echo("\n".join(plan_lines(given, place)))
            return
        say = _untold if quiet or as_json else _told
        record = compare_(given, place, baselines=baselines, price=price, parallel=parallel, say=say)
    if as_json:
        emit({**record, "run_dir": str(place)})
    else:
        shown = [*table_lines(record["answer"]), *record["answer"]["sentences"]]
        page = [f"The page: {place / record['page']}"] if "page" in record else []
        if out is None:
            page.append(f"To add schemes or seeds: the same command with these too, and --out {place}")
        typer.echo("\n".join([*shown, *page]))
    ended = [end for one in record["schemes"] for end in one.get("ended", {}).values()]
    if any(end["status"] != "diverged" for end in ended):
        raise typer.Exit(1)


def _told(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")


def _untold(line: str) -> None:
    """Write nothing."""


def tune(
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILE.toml] table.key=a..b table.key=a,b ...",
            help="Experiment file (none: the embedded default) and keys; a..b is drawn on a log scale, a,b,c are choices.",
            autocompletion=component_words,
        ),
    ] = None,
    budget: Annotated[int, Option(help="How many combinations to try.", min=1)] = 20,
    out: Annotated[
        Path | None, Option(help="Folder of the tuning (default: one in runs/tune, named by the file).")
    ] = None,
    parallel: Annotated[int, Option(help="Trials at once.", min=1)] = 2,
    plugin: Plugin = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try values of keys on validation rows, then train the best and judge it once on test rows."""
    path, words = spelled_several(arguments, plugin)
    from fedatlas.comparison.tune import lines, tuning_of
    from fedatlas.comparison.tune import tune as tune_
    from fedatlas.terminal import watcher

    plug(plugin)
    without_gpus("cpu")
    progress = watcher(quiet or as_json)
    with stoppable(), noticing(), contextlib.closing(progress):
        given = tuning_of(path, words)
        place = out or Path("runs") / "tune" / given.name
        say = _untold if quiet or as_json else _told
        done, record = tune_(given, place, budget, progress, parallel=parallel, say=say)
    if as_json:
        emit({**record, "summary": done.summary, "run_dir": str(done.path)})
    else:
        typer.echo("\n".join(lines(record, done, place)))
