"""Options and output shared by the commands, and seven: ``align``, ``probe``, ``fid-proxy``, ``predict``, ``export`` and so on."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from fedatlas.errors import ConfigError
from fedatlas.spelling import GROUPS, check, names

INTERRUPTED = 130  # exit code


def component_names(incomplete: str) -> list[str]:
    """Complete a name for `fedatlas show`."""
    return [name for name in names() if name.startswith(incomplete)]


def component_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``algorithm.name=fed`` for a shell; bash passes the key, the sign and the value as separate words."""
    key, sign, value = incomplete.rpartition("=")
    before = [*(ctx.params.get("arguments") or ())]
    if not sign and before[-1:] == ["="]:
        key = "".join(before[-2:-1])
    table, _, last = key.partition(".")
    if last != "name" or table not in {"data", "aggregation", *GROUPS}:
        return []
    done = incomplete[: len(incomplete) - len(value.rpartition(",")[2])]  # up to the last of several values
    return [done + name for name in names(table)]


File = Annotated[
    list[str] | None,
    Argument(
        metavar="[FILE.toml] [table.key=value ...]",
        help="Experiment file (none: the embedded default) and overrides.",
        autocompletion=component_words,
    ),
]
Json = Annotated[bool, Option("--json", help="Print one JSON object to standard output, and nothing else.")]
Plugin = Annotated[
    list[Path] | None,
    Option("--plugin", help="Python file that defines your ALGORITHMS, MODELS, PARTITIONS, TRANSFORMS or REDUCERS."),
]

Quiet = Annotated[bool, Option("--quiet", help="Print no progress.")]


def split(arguments: list[str] | None) -> tuple[Path | None, list[str]]:
    """Split arguments into the experiment file, if the first is not an override, and the overrides."""
    words = list(arguments or [])
    path = Path(words.pop(0)) if words and "=" not in words[0] else None
    return path, words


def spelled(arguments: list[str] | None, plugin: list[Path] | None = None) -> tuple[Path | None, list[str]]:
    """Split arguments as `split` does. ConfigError at once for a misspelt key or name, unless plug-ins may know it."""
    path, overrides = split(arguments)
    if not plugin:
        check(path, overrides)
    return path, overrides


def spelled_several(arguments: list[str] | None, plugin: list[Path] | None) -> tuple[Path | None, list[str]]:
    """Split arguments as `spelled` does, for keys with several values. Only the full check matches keys to several components."""
    path, words = split(arguments)
    named = [word for word in words if "," in word and word.partition("=")[0].strip().endswith(".name")]
    if not plugin and named:
        check_names(named)
    elif not plugin:
        check(path, [word.partition(",")[0] for word in words])
    return path, words


def check_names(words: list[str]) -> None:
    """Raise one ConfigError for all unknown names in ``table.name=a,b``. The full check handles tables and quoted names."""
    wrong = []
    for word in words:
        key, _, raw = word.partition("=")
        for value in () if set(raw) & set("[{('\"") else raw.split(","):
            try:
                check(None, [f"{key}={value.strip()}"])
            except ConfigError as error:
                wrong.append(str(error))
    if wrong:
        raise ConfigError(" ".join(wrong))


def plug(plugin: list[Path] | None) -> None:
    """Load the plug-in files, if there are any."""
    if plugin:
        from fedatlas.plugins import load_plugins

        load_plugins(plugin)


def emit(value: Any) -> None:
    """Print one JSON value to standard output."""
    sys.stdout.write(json.dumps(value) + "\n")


def without_gpus(device: str) -> None:
    """Hide GPUs unless one is used: with a visible GPU, autograd cannot be forked, and there would be one worker."""
    if device != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@contextlib.contextmanager
def noticing() -> Iterator[None]:
    """Print each warning raised inside the block once, as one line on standard error."""
    with warnings.catch_warnings(record=True, category=UserWarning) as noticed:
        warnings.simplefilter("always", UserWarning)
        yield
    for said in dict.fromkeys(str(notice.message) for notice in noticed):
        sys.stderr.write(f"fedatlas: {said}\n")


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Print how to continue if the user interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("fedatlas: stopped; completed work is kept, and the same command continues it\n")
        raise typer.Exit(INTERRUPTED) from None


def align(
    arguments: File = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print who holds how many ids, and how long it would take; send nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Match the rows of parties that hold columns, privately, and print how many they have in common."""
    path, overrides = spelled(arguments)
    from fedatlas import api, config
    from fedatlas.runs.alignment_text import sentences

    found = api.align(config.read(path, overrides), dry_run=dry_run, say=lambda line: typer.echo(line, err=True))
    emit(found) if as_json else typer.echo("\n".join(sentences(found)))


def probe(arguments: File = None, as_json: Json = False) -> None:
    """Try on a few common rows whether the columns of the other parties would help, protected as in a run, and print the gain."""
    path, overrides = spelled(arguments)
    from fedatlas import api, config
    from fedatlas.runs.probe_text import sentences

    found = api.probe(config.read(path, overrides))
    emit(found) if as_json else typer.echo("\n".join(sentences(found)))


def fid_proxy(arguments: File = None, plugin: Plugin = None, as_json: Json = False) -> None:
    """Train a small network on the training pictures, by whose features an attack's pictures are compared with real ones."""
    path, overrides = spelled(arguments, plugin)
    from fedatlas import api, config
    from fedatlas.leakage.trained_proxy import proxy_sentence

    plug(plugin)
    with noticing():
        found = api.fid_proxy(config.read(path, overrides))
    emit(found) if as_json else typer.echo(proxy_sentence(found))


def predict(
    run: Annotated[Path, Argument(help="Run folder.")],
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE | NAME=FILE ...",
            help="Rows to predict: a table, a .npz with x, or a folder of pictures; if parties hold columns, a file each.",
        ),
    ],
    out: Annotated[Path | None, Option(help="CSV to write (default: standard output).")] = None,
    client: Annotated[int | None, Option(help="Use the model that this client would use.", min=0)] = None,
    model: Annotated[str, Option(help="Use this one of several models.")] = "",
    holes: Annotated[
        Literal["error", "empty"],
        Option(help="Rows with a missing or infinite value: refuse the file, or leave their predictions empty."),
    ] = "error",
    keep: Annotated[
        list[str] | None,
        Option(help="A column of the table, such as a key, to put before the predictions."),
    ] = None,
    decimal: Annotated[str, Option(help="Decimal mark of the file, where looking does not tell.")] = "",
    separator: Annotated[str, Option(help="Character between columns of the file.")] = "",
    encoding: Annotated[str, Option(help="Encoding of the file's text.")] = "",
    sheet: Annotated[str, Option(help="Sheet of the workbook.")] = "",
    plugin: Plugin = None,
) -> None:
    """Apply a run's model, with its preprocessing, to new rows."""
    from fedatlas.files import write_text
    from fedatlas.prediction.finished_run import load
    from fedatlas.record.run_folder import RunFolder

    plug(plugin)
    form = {"decimal": decimal, "separator": separator, "encoding": encoding, "sheet": sheet}
    if client is not None and model:
        raise ConfigError("give --client or --model, not both.")
    if RunFolder.open(run).of_columns:
        from fedatlas.prediction.parties import predicted

        if client is not None or model or keep or holes != "error":
            raise ConfigError(
                "--client, --model, --keep and --holes: leave these out, as parties that hold columns share one model."
            )
        table, said = predicted(run, files, form)
        sys.stderr.write("".join(f"fedatlas: {line}\n" for line in said))
    elif len(files) > 1:
        raise ConfigError(f"'{files[1]}': this run's model takes one file.")
    else:
        with noticing():
            table = (
                load(run)
                .of_files(**form)
                .predict(Path(files[0]), client=client, model=model, holes=holes, keep=keep or ())
            )
    if out is None:
        sys.stdout.write(table.to_csv(index=False))
    else:
        write_text(out, table.to_csv(index=False))
        typer.echo(f"{len(table)} predictions written to {out}")


def export(
    run: Annotated[Path, Argument(help="Run folder.")],
    onnx: Annotated[Path, Option(help="ONNX file to write.")],
    client: Annotated[int | None, Option(help="Use the model that this client would use.", min=0)] = None,
    model: Annotated[str, Option(help="Use this one of several models.")] = "",
    plugin: Plugin = None,
) -> None:
    """Write a run's model, with its preprocessing, as a file that others run without fedatlas."""
    from fedatlas.prediction.finished_run import load
    from fedatlas.prediction.onnx_file import export_onnx

    plug(plugin)
    if client is not None and model:
        raise ConfigError("give --client or --model, not both.")
    with noticing():
        export_onnx(load(run), onnx, client=client, model=model)
    typer.echo(f"{onnx} written")


Guarded = Annotated[Path, Argument(help="Folder of a run that has a guard.")]


def versions(run: Guarded, as_json: Json = False) -> None:
    """List the models that the guard of a run judged, with their scores."""
    from fedatlas.record.versions import lines_of, versions_of

    found = versions_of(run)
    emit([one._asdict() for one in found]) if as_json else typer.echo("\n".join(lines_of(found)))


def rollback(
    run: Guarded, version: Annotated[int, Argument(help="A committed version that 'fedatlas versions' lists.")]
) -> None:
    """Make an earlier version the model of a run; 'fedatlas run --resume' goes on from it."""
    from fedatlas.record.versions import roll_back

    roll_back(run, version)
    typer.echo(f"Version {version} is the model of {run}; go on with: fedatlas run --resume {run}")
