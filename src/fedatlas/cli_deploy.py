"""``fedatlas deploy``: the commands of deployment. Only the processes that need torch import it."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedatlas.commands import INTERRUPTED, File, Json, Quiet, emit, spelled
from fedatlas.errors import ConfigError
from fedatlas.wording import took_text

if TYPE_CHECKING:
    from fedatlas.wire.messages import StatusEvent

app = typer.Typer(
    no_args_is_help=True,
    help="Run an experiment between real parties: bundles, server, nodes, runs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
FederationFolder = Annotated[Path, typer.Argument(help="The folder that 'deploy init' made.")]
Operator = Annotated[Path, typer.Option("--bundle", help="The operator's bundle.")]
Late = Annotated[bool, typer.Option("--late", hidden=True)]


def dated(text: str) -> None:
    """Write a line with the time to standard error."""
    sys.stderr.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def names_of(text: str) -> list[str]:
    """Split a text at commas into names. ConfigError if one of them is empty."""
    names = [part.strip() for part in text.split(",")] if text.strip() else []
    if "" in names:
        raise ConfigError(
            f"--nodes {text}: a name is missing beside a comma; write them as in --nodes north,south,west."
        )
    return names


def opened(path: Path, role: str = "operator") -> Any:
    """Open the bundle in a folder."""
    from fedatlas.wire.bundle import Bundle

    return Bundle.open(path, role)


def ask_server(bundle: Path, kind: str, *fields: Any) -> Any:
    """Return the server's answer to a message from an operator."""
    from fedatlas.deployment.operator_client import ask_server as ask
    from fedatlas.wire.messages import FROM_OPERATOR

    return ask(opened(bundle), FROM_OPERATOR[kind].record(*fields))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the authority and a bundle for each party.")],
    nodes: Annotated[str, typer.Option(help="Names of the nodes, separated by commas.")],
    host: Annotated[str, typer.Option(help="The name or address by which nodes find the server.")],
    port: Annotated[int, typer.Option(help="Port of the server.", min=1, max=65535)] = 8443,
    operator: Annotated[str, typer.Option(help="Name of the operator.")] = "operator",
) -> None:
    """Make a federation: a certificate authority, and a bundle for the server, each node and an operator."""
    from fedatlas.wire import bundle

    if not (names := names_of(nodes)):
        raise ConfigError("--nodes: name at least one node, as in --nodes north,south,west.")
    made = bundle.init(folder, names, host, port, operator)
    for name, path in made.items():
        typer.echo(f"{path}  for {name}: hand it over in a way that nobody else can read")
    typer.echo(
        f"{folder / bundle.AUTHORITY}  stays here: its holder can add parties. This machine has seen all keys that it made."
    )


@app.command()
def add(
    folder: FederationFolder,
    name: Annotated[str, typer.Argument(help="Name of the new party.")],
    operator: Annotated[bool, typer.Option("--operator", help="An operator, not a node.")] = False,
) -> None:
    """Add a node or an operator: make its bundle, and new lists for all others."""
    from fedatlas.wire import bundle

    path = bundle.add(folder, name, "operator" if operator else "node")
    typer.echo(f"{path}  for {name}: hand it over in a way that nobody else can read")
    typer.echo(
        f"{folder / bundle.AUTHORITY / 'members.json'}  copy it into the bundles of the server, of each node and of each operator"
    )


@app.command()
def revoke(
    folder: FederationFolder,
    name: Annotated[str, typer.Argument(help="Name of the party.")],
) -> None:
    """Revoke a party's certificate: the server cuts its stream when it has the new list."""
    from fedatlas.wire import bundle

    bundle.revoke(folder, name)
    where = folder / bundle.AUTHORITY / "revoked.json"
    typer.echo(f"{where}  copy it into the server's bundle; it takes effect at the next ask")


@app.command()
def server(
    bundle: Annotated[Path, typer.Argument(help="The server's bundle.")],
    test: Annotated[Path | None, typer.Option(help="Test rows that the server holds, for evaluation.")] = None,
    listen: Annotated[
        str, typer.Option(help="Address to listen on (default: all, or loopback if that was --host).")
    ] = "",
    late: Late = False,
) -> None:
    """Run the server of a federation until it is stopped, always with mutual TLS."""
    from fedatlas.deployment.server import Server

    own = opened(bundle, "server")
    while late and test is not None and not test.exists():
        time.sleep(0.05)
    made = Server(own, test, listen)
    try:
        made.serve()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def node(
    bundle: Annotated[Path, typer.Argument(help="The node's bundle.")],
    data: Annotated[Path, typer.Option(help="This node's rows: a table, a .npz, or a folder of pictures.")],
    late: Late = False,
) -> None:
    """Run a node: it keeps its rows and its state here, and talks to the server over one outbound stream."""
    from fedatlas.wire.bundle import POLICY
    from fedatlas.wire.policy import Policy
    from fedatlas.wire.speaker import Speaker

    own = opened(bundle, "node")
    Policy.read(bundle / POLICY)
    if not late and not data.exists():
        raise ConfigError(f"--data {data}: no such file or folder.")
    command = [sys.executable, "-m", "fedatlas.deployment.trainer", str(bundle), str(data)]
    speaker = Speaker(own, command, dated)
    try:
        speaker.speak()
    except KeyboardInterrupt:
        speaker.end()
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(2)


@app.command()
def run(
    arguments: File = None,
    bundle: Operator = Path(),
    nodes: Annotated[
        str, typer.Option(help="Nodes of the run, separated by commas (default: all that are registered).")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run's directory (default: a new one in runs/).")
    ] = None,
    attach: Annotated[str, typer.Option(help="Watch this submitted run instead.")] = "",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit an experiment, watch it, and fetch its run directory. Exit code 0 only if it finished."""
    path, overrides = spelled(arguments)
    from fedatlas.deployment import operator_client, plain_refusals

    if not attach:
        plain_refusals.check(path, overrides, len(names_of(nodes)) or None)

    if attach and (path is not None or overrides or nodes):
        raise ConfigError("--attach watches a run as it was submitted: give no experiment with it.")
    own, say = opened(bundle), operator_client.silent if quiet or as_json else operator_client.to_stderr
    if out is not None:
        operator_client.check_out(out)
    name = attach or operator_client.submit(own, path, overrides, names_of(nodes))
    again = f"fedatlas deploy run --attach {name} --bundle {bundle}"
    if not attach:
        say(f"Run {name} is submitted; '{again}' reconnects to it.")
    try:
        ended = operator_client.watch(own, name, say)
    except KeyboardInterrupt:
        sys.stderr.write(f"fedatlas: the run continues at the server; reconnect with: {again}\n")
        raise typer.Exit(INTERRUPTED) from None
    where = out or Path("runs") / name
    if ended.status != "failed":
        operator_client.fetch(own, name, where)
        say(f"Run directory: {where}")
    finish(ended, name, where, as_json, quiet)


def finish(ended: StatusEvent, name: str, where: Path, as_json: bool, quiet: bool) -> None:
    """Print how a run ended, and its answer; exit code 1 unless it finished."""
    summary = where / "summary.json"
    found = json.loads(summary.read_text(encoding="utf-8")) if ended.status != "failed" and summary.exists() else {}
    if "answer" in found and not as_json and not quiet:
        typer.echo(f"{found['answer']['text']} {took_text(found)}")
    if as_json:
        emit({**found, "run": name, "run_dir": str(where), "status": ended.status, "why": ended.why})
    elif ended.status != "finished":
        sys.stderr.write(f"fedatlas: {ended.why or ended.status}\n")
    if ended.status != "finished":
        raise typer.Exit(1)


@app.command()
def status(bundle: Operator = Path(), as_json: Json = False) -> None:
    """Show which nodes are connected, and the state of each run."""
    from fedatlas.wire.fields import plain

    found = ask_server(bundle, "status")
    if as_json:
        emit(plain(found))
        return
    typer.echo(found.federation)
    for one in found.nodes:
        heard = f"heard {time.time() - one.heard:.0f} s ago" if one.heard else "never heard"
        typer.echo(f"  {one.name:<20} {'connected' if one.connected else 'away':<10} {heard}")
    for one in found.runs:
        typer.echo(f"  {one.run:<40} {one.status:<9} round {one.done}/{one.rounds}  {one.why}".rstrip())


@app.command()
def stop(
    run: Annotated[str, typer.Argument(help="Name of the run.")], bundle: Operator = Path(), as_json: Json = False
) -> None:
    """Stop a run; completed rounds are kept."""
    found = ask_server(bundle, "stop", run)
    emit({"run": run, "status": found.status}) if as_json else typer.echo(f"{run} is being stopped")


@app.command()
def audit(
    bundle: Annotated[Path, typer.Argument(help="The node's bundle.")],
    known: Annotated[
        str, typer.Option("--known", help="A digest that an earlier call showed: it must be in the log.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Verify a node's audit log, show it, and list what has left this site. Exit code 1 if it was altered."""
    from fedatlas.deployment import audit as log

    found = log.verified(bundle, known)
    left = log.left_text(found.lines)
    if as_json:
        lines = [line.said for line in found.lines]
        emit({"lines": lines, "torn": found.torn, "problem": found.problem, "head": found.head, "left": left})
    else:
        for text in (*log.table(found.lines), "", left, f"Digest of the last line: {found.head} (note it elsewhere)."):
            typer.echo(text)
    if found.problem:
        sys.stderr.write(f"fedatlas: the audit log was altered or damaged: {found.problem}.\n")
        raise typer.Exit(1)


@app.command()
def trial(
    arguments: File = None,
    nodes: Annotated[
        int | None, typer.Option(help="How many nodes (default: 3, or one for each natural owner of rows).", min=1)
    ] = None,
    judge: Annotated[
        Literal["server", "nodes"], typer.Option(help="Who holds the test rows: the server, or each node a part.")
    ] = "server",
    out: Annotated[Path | None, typer.Option(help="The run's directory (default: a new one in runs/).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try an experiment on this machine: real processes, mutual TLS, everything that a deployed run does."""
    path, overrides = spelled(arguments)
    from fedatlas.deployment import plain_refusals

    plain_refusals.check_trial(path, overrides, nodes)
    from fedatlas.deployment.trial import trial as run_trial

    where = out or Path("runs") / f"trial-{datetime.now():%Y%m%d-%H%M%S}"
    name, ended = run_trial(path, overrides, nodes, where, quiet=quiet or as_json, judge=judge)
    if not as_json and ended.status == "finished" and not quiet:
        typer.echo(f"Run directory: {where}")
    finish(ended, name, where, as_json, quiet)
