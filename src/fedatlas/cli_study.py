"""``fedatlas study`` and ``fedatlas recommend``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedatlas.commands import Json, Plugin, Quiet, emit, noticing, plug, stoppable, without_gpus
from fedatlas.errors import ConfigError

Cluster = Annotated[
    str | None,
    Option(metavar="HOST:PORT | auto", help="Ray cluster whose nodes make the runs, instead of this machine."),
]


def study(
    file: Annotated[Path, Argument(metavar="STUDY.toml", help="The study: factors, levels, seeds, design.")],
    out: Annotated[Path | None, Option(help="Folder of the study (default: runs/studies/NAME).")] = None,
    table: Annotated[
        Path | None, Option(help="Table of runs (default: table.sqlite in that folder); studies may share one.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print cells, refusals, runs and hours; train nothing.")] = False,
    status: Annotated[bool, Option("--status", help="Print the progress; run nothing.")] = False,
    retry: Annotated[
        str | None,
        Option(help="Repeat the runs with this status: failed | memory | timeout | diverged | refused."),
    ] = None,
    export: Annotated[
        Path | None, Option(help="Write one row per run, with its responses, to this .csv; run nothing.")
    ] = None,
    analyse: Annotated[
        bool, Option("--analyse", help="Write analysis.json and analysis.html from the finished runs; run nothing.")
    ] = False,
    cluster: Cluster = None,
    plugin: Plugin = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every configuration of a study; finished runs are kept.

    Exit code 1 if a run failed. Refused or diverged configurations are results and give exit code 0.
    """
    from fedatlas.study.study import Study
    from fedatlas.study.study_status import show_status

    wanted = (("--dry-run", dry_run), ("--status", status), ("--export", export), ("--analyse", analyse))
    asked = [name for name, on in wanted if on]
    if len(asked) > 1 or (asked and retry is not None):
        raise ConfigError(f"{' and '.join([*asked, *(['--retry'] if retry is not None else [])])}: give one of them.")
    if cluster is not None and asked not in ([], ["--dry-run"]):
        raise ConfigError(f"{asked[0]} runs nothing: leave out --cluster.")
    plug(plugin)
    without_gpus("cpu")
    given = Study.read(file)
    place = given.table(out, table)
    if dry_run or analyse:
        with noticing():
            found = given.dry_run(cluster) if dry_run else given.analyse(out, table)
        _show_found(found, as_json, None if dry_run else given.folder(out) / "analysis.html")
        return
    if export is not None:
        kept, told = given.opened(out, table)
        typer.echo("\n".join([f"{kept.export(export, given.file.name)} runs written to {export}", *told]))
        return
    fine = True
    if not status:
        fine = _run_study(given, out, place, retry, quiet or as_json, cluster)
    found = given.status(out, table)
    hint = [_analysis_hint(file, out, table)] if found["runs"].get("done") else []
    emit(found) if as_json else typer.echo("\n".join([*show_status(found), *hint]))
    if not fine:
        raise typer.Exit(1)


def _analysis_hint(file: Path, out: Path | None, table: Path | None) -> str:
    """Return the command that answers from the finished runs."""
    options = [f" {name} {path}" for name, path in (("--out", out), ("--table", table)) if path is not None]
    return f"The answer from these runs: fedatlas study {file}{''.join(options)} --analyse"


def _show_found(found: Any, as_json: bool, page: Path | None) -> None:
    """Print an analysis, whose page is ``page``, or the preview of a study."""
    if as_json:
        emit(found)
        return
    from fedatlas.study.study_preview import show_preview

    typer.echo("\n".join(show_preview(found) if page is None else [*found["sentences"], f"The page: {page}"]))


def _run_study(given: Any, out: Path | None, place: Path, retry: str | None, quiet: bool, cluster: str | None) -> bool:
    """Run a study, repeating runs with the status ``retry``; return whether no run failed."""
    from fedatlas.study.table import Table

    tell = None if quiet else _tell
    with stoppable():
        if retry is not None:
            with contextlib.closing(Table.open(place, write=True)) as kept:
                many = kept.retry(given.file.name, retry)
            if tell:
                tell(f"{many} {retry} runs will be repeated")
        return bool(given.run(out, place, tell, cluster))


def _tell(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")


def recommend(
    file: Annotated[
        Path, Argument(metavar="REQUIREMENTS.toml", help="What you need: limits, weights, your federation.")
    ],
    out: Annotated[Path | None, Option(help="Folder of the answer (default: runs/recommendations/NAME).")] = None,
    cluster: Cluster = None,
    plugin: Plugin = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recommend a configuration for your requirements, with the evidence and experiment files that run.

    With an experiment file, the allowed configurations are raced on its training rows. Stop and start it as you like.

    Exit code 1 if none is known to fit: the nearest miss is named, or what to measure.
    """
    from fedatlas.recommender.command import recommend as answer_to
    from fedatlas.recommender.race_text import lines_of
    from fedatlas.recommender.requirements import read_requirements

    plug(plugin)
    asked = read_requirements(file)
    if asked.experiment is not None:
        without_gpus("cpu")
    with stoppable(), noticing():
        answer = answer_to(file, out=out, say=None if quiet or as_json else _tell, cluster=cluster)
    emit(answer) if as_json else typer.echo("\n".join(lines_of(answer, asked.confidence)))
    if answer["answer"] != "found":
        raise typer.Exit(1)
