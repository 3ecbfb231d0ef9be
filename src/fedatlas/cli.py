"""``fedatlas``: the command line. Every wrong input is answered by one sentence and exit code 2."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedatlas import cli_anonymise, cli_compare, cli_deploy, cli_study
from fedatlas.commands import (
    INTERRUPTED,
    File,
    Json,
    Plugin,
    Quiet,
    align,
    component_names,
    emit,
    export,
    fid_proxy,
    noticing,
    plug,
    predict,
    probe,
    rollback,
    spelled,
    split,
    stoppable,
    versions,
    without_gpus,
)
from fedatlas.errors import ConfigError, FedatlasError, first_line, lacks_memory, not_utf8
from fedatlas.files import name_too_long

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning you can trust: simulate, measure, report.",
)

KINDS = "data partitions models algorithms transforms reducers privacy attacks rules losses experiments".split()
"""The kinds of `catalogue`, which takes seconds to import."""


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fedatlas {metadata.version('fedatlas')}\n")
        raise typer.Exit


app.add_typer(cli_deploy.app, name="deploy")
app.command()(align)
app.command()(probe)
app.command()(fid_proxy)
app.command()(predict)
app.command()(export)
app.command()(versions)
app.command()(rollback)
app.command()(cli_anonymise.anonymise)
app.command()(cli_compare.compare)
app.command()(cli_compare.tune)
app.command()(cli_study.study)
app.command()(cli_study.recommend)


@app.callback()
def main_options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options before a command."""


@app.command()
def run(
    arguments: File = None,
    engine: Annotated[str | None, Option(help="fast | loop")] = None,
    device: Annotated[str | None, Option(help="auto | cpu | cuda")] = None,
    out: Annotated[Path | None, Option(help="Folder of the run (default: a new one in runs/).")] = None,
    resume: Annotated[Path | None, Option(help="Continue the run in this folder.")] = None,
    baselines: Annotated[
        bool | None,
        Option(
            "--baselines/--no-baselines",
            help="Also train the baselines: each client alone, and all data pooled (default: only if cheap).",
        ),
    ] = None,
    price: Annotated[
        bool, Option("--price", help="Also run the same without protection, to measure what protection costs.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print who holds what, how many bytes and how long; train nothing.")
    ] = False,
    every: Annotated[
        bool, Option("--all", help="With --dry-run: name every column of the table that was read.")
    ] = False,
    plugin: Plugin = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment; without arguments, the embedded default. Exit code 1 if an attack that it declares fails."""
    path, overrides = spelled(arguments, plugin) if resume is None else split(arguments)
    from fedatlas import api, config
    from fedatlas.record.run_folder import RunFolder
    from fedatlas.runs import preview
    from fedatlas.terminal import watcher

    plug(plugin)
    overrides += [f"engine.name={engine}"] if engine else []
    overrides += [f"engine.device={device}"] if device else []
    _refuse_together(resume, path, dry_run, out, every, price)
    progress = watcher(quiet or as_json)
    try:
        with contextlib.closing(progress):
            asked = config.read(path, overrides) if resume is None else RunFolder.open(resume).config()
            without_gpus(asked.engine.device)
            if dry_run:
                found = api.dry_run(asked, baselines=baselines, all_columns=every)
                emit(found) if as_json else preview.show(found)
                return
            if resume is not None:
                done = api.resume(resume, overrides, baselines=baselines, price=price, progress=progress)
            else:
                done = api.run(api.Experiment(asked), out=out, baselines=baselines, price=price, progress=progress)
    except KeyboardInterrupt:
        begun = progress.folder  # with several seeds, the current one: all are continued
        begun = begun.parent if begun is not None and begun.name.startswith("seed-") else begun
        folder = resume or begun
        kept = (
            f"completed work is kept, continue with: fedatlas run --resume {folder}" if folder else "nothing had begun"
        )
        sys.stderr.write(f"fedatlas: stopped; {kept}\n")
        raise typer.Exit(INTERRUPTED) from None
    _ended(done, as_json, quiet)


def _refuse_together(
    resume: Path | None, path: Path | None, dry_run: bool, out: Path | None, every: bool, price: bool
) -> None:
    """Raise ConfigError for options of `run` that exclude each other."""
    if resume is not None and path is not None:
        raise ConfigError("--resume uses the configuration of the run it continues: give no file with it.")
    if resume is not None and (dry_run or out is not None):
        raise ConfigError("--resume continues a run in its own folder: leave out --dry-run and --out.")
    if dry_run and out is not None:
        raise ConfigError("--dry-run writes nothing: leave out --out.")
    if dry_run and price:
        raise ConfigError(
            "--dry-run measures no price: leave out --price; privacy=[] previews the run without protection."
        )
    if every and not dry_run:
        raise ConfigError("--all names the columns of a dry run: add --dry-run.")


def _ended(done: Any, as_json: bool, quiet: bool) -> None:
    """Print the summary of a run if requested, else the answer if no progress showed it.

    Exit code 1 if an attack that the run declares could not be carried out.
    """
    if as_json:
        emit({**done.summary, "run_dir": str(done.path)})
    elif quiet and done.answer:
        typer.echo(done.answer)
    if done.summary.get("failed_attacks"):
        raise typer.Exit(1)


@app.command()
def watch(run: Annotated[Path, Argument(help="Folder of a run, of several seeds, or of a comparison.")]) -> None:
    """Follow a run in another process, live, until it ends. For a finished run, show the figures."""
    from fedatlas.watching import watch as watch_

    watch_(run)


@app.command()
def report(
    runs: Annotated[list[Path], Argument(help="One or more run folders.")],
    out: Annotated[
        Path | None,
        Option(help="File to write (default: report.html in the run, comparison.html in the first of several)."),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Write report.html for a run, or for several side by side."""
    from fedatlas.reporting import write_report

    plug(plugin)
    typer.echo(write_report(runs, out))


@app.command()
def epsilon(
    runs: Annotated[list[Path], Argument(help="Folders of runs, of several seeds, or of a comparison or study.")],
    delta: Annotated[float | None, Option(help="Delta of each sum (default: the largest that its runs state).")] = None,
    as_json: Json = False,
) -> None:
    """Add up the privacy that runs on the same rows cost together; runs on other rows stand side by side."""
    from fedatlas.runs.epsilon import account, lines

    found = account(runs, delta)
    emit(found) if as_json else typer.echo("\n".join(lines(found)))


@app.command()
def partition(
    arguments: File = None,
    out: Annotated[Path | None, Option(help="Also write the picture to this SVG file.")] = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Show who would hold what: class distribution per client."""
    path, overrides = spelled(arguments, plugin)
    from fedatlas import api, config

    plug(plugin)
    found = api.partition(config.read(path, overrides), out)
    emit(found.facts) if as_json else typer.echo(found.text)
    if out is not None and not as_json:
        typer.echo(f"Picture: {out}")


@app.command(name="list")
def list_(
    kind: Annotated[
        str,
        Argument(help=" | ".join(KINDS), autocompletion=_kinds),
    ],
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """List the components of a kind."""
    from fedatlas import catalogue

    plug(plugin)
    with noticing():
        rows = catalogue.rows(kind)
    emit(rows) if as_json else catalogue.show_rows(rows)


@app.command()
def show(
    name: Annotated[str, Argument(help="A component or experiment.", autocompletion=component_names)],
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Show everything about one name: parameters, defaults, ranges, units, paper."""
    from fedatlas import catalogue

    plug(plugin)
    with noticing():
        found = catalogue.entries(name)
    if as_json:
        emit(found[0] if len(found) == 1 else {one["kind"]: one for one in found})
        return
    for one in found:
        catalogue.show_entry(one)


@app.command()
def new(file: Path) -> None:
    """Write a commented experiment file to start from."""
    from fedatlas.config.template import write_template

    typer.echo(f"{write_template(file)} written; run it with: fedatlas run {file}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what is installed, the devices, and the data that were found."""
    from fedatlas import catalogue

    found = catalogue.doctor()
    emit(found) if as_json else catalogue.show_doctor(found)


@app.command()
def audit(
    run: Annotated[Path, Argument(help="Run folder.")],
    plugin: Plugin = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try every attack that applies to a run, and write release.html for those who sign. Exit code 1: it breaks what it states."""
    from fedatlas.api import audit as audit_
    from fedatlas.auditing.audit_text import audit_lines

    plug(plugin)
    without_gpus("cpu")
    with noticing():
        done = audit_(run, said=None if as_json or quiet else typer.echo)
    emit({**done.record, "page": str(done.page)}) if as_json else typer.echo("\n".join(audit_lines(done)))
    if done.violated:
        raise typer.Exit(1)


@app.command()
def attack(
    run: Annotated[Path, Argument(help="Run folder.")],
    name: Annotated[str, Option(help="An attack on what a role has seen, such as inverting_gradients.")],
    keys: Annotated[
        list[str] | None,
        Argument(metavar="[key=value ...]", help="Keys of the attack; 'fedatlas show NAME' lists them."),
    ] = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Attack what a role saw of a finished run, and print what leaks beyond a placebo."""
    from fedatlas.api import attack as attack_
    from fedatlas.config import override
    from fedatlas.leakage.attack_text import attack_lines

    plug(plugin)
    without_gpus("cpu")
    given: dict[str, Any] = {}
    for text in keys or ():
        override(given, text)
    found = attack_(run, name, **given)
    emit(found) if as_json else typer.echo("\n".join(attack_lines(found)))


@app.command()
def reproduce(
    name: Annotated[str, Argument(help="An experiment from 'fedatlas list experiments'.")],
    quick: Annotated[bool, Option("--quick", help="A smaller, clearly labelled version for a laptop.")] = False,
    rounds: Annotated[int | None, Option(help="Fewer rounds than published, labelled as such.", min=1)] = None,
    only: Annotated[list[str] | None, Option("--only", help="Only these parts, such as mlp1-iid.")] = None,
    out: Annotated[Path, Option(help="Folder for the runs; finished runs are kept.")] = Path("runs/reproduce"),
    publish: Annotated[Path | None, Option(help="Also write the record and results.md below this folder.")] = None,
    device: Annotated[str, Option(help="'cuda' trains on a GPU; a run that began stays on its device.")] = "auto",
) -> None:
    """Run a published experiment as written, and print published and obtained figures, gate by gate."""
    from fedatlas.published import reproduce as reproduce_
    from fedatlas.terminal import standing

    without_gpus(device)
    how: dict[str, Any] = {"quick": quick, "rounds": rounds, "only": only, "device": device}
    with stoppable():
        passed = reproduce_(name, **how, out=out, publish=publish, watch=standing)
    if not passed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line. Turn every error into one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not codecs.lookup(stream.encoding).name.startswith("utf-"):
            stream.reconfigure(errors="replace")  # a letter that the terminal lacks becomes a question mark
    signal.signal(signal.SIGTERM, _terminate)
    code: Any = None
    try:
        code = app(prog_name="fedatlas", standalone_mode=False)
    except FedatlasError as error:
        sys.stderr.write(f"fedatlas: {error}\n")
        code = 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except PermissionError as error:
        what = f"'{error.filename}'" if error.filename else "a file"
        sys.stderr.write(f"fedatlas: you may not read or write {what}: ask its owner, or name another place.\n")
        code = 2
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        sys.stderr.write(f"fedatlas: {name_too_long(error.filename)}\n")
        code = 2
    except UnicodeEncodeError as error:  # in printed text; writers of files handle their own
        sys.stderr.write(f"fedatlas: {not_utf8(error)}\n")
        code = 2
    except Exception as error:
        if lacks_memory(error):
            sys.stderr.write(
                f"fedatlas: {first_line(error)}: use a smaller model, smaller batches or a smaller engine.chunk.\n"
            )
            sys.exit(2)
        if not hasattr(error, "format_message"):  # not typer's error for a wrong option or argument
            from fedatlas.plugins import blamed

            if not (said := blamed(error)):
                raise
            sys.stderr.write(f"fedatlas: {said}\n")
            sys.exit(2)
        sys.stderr.write(f"{wrong_usage(error)}\n")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def wrong_usage(error: Any) -> str:
    """Return one line about a wrong option or argument; the help itself if there were no arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    said = " ".join(str(error.format_message()).split())
    command = getattr(getattr(error, "ctx", None), "command_path", "fedatlas")
    return f"fedatlas: {said[:1].lower()}{said[1:].rstrip('.?')}: '{command} --help' lists the options."


def _terminate(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
