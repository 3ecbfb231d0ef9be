"""For old_folders.py: federations of a server and nodes in real processes, killed half-way and taken up from their folders.

Each federation holds two runs of the same experiment: a finished one, and one in which the server and then every node was killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from run_files import RESUMED, CommandError, Values, call, command, differences, environment, folder_values
from same_configurations import write_table
from same_whole import write_parties

Table = dict[str, Any]
SITES = ("north", "east", "south", "west")
PATIENCE = 180.0
UNREAD = ("checkpoint", "lock", "report.html", "report-shop.html")

ROWS: Table = {
    "rounds": 6,
    "data": {"name": "file", "label": "y", "missing": "drop", "drop": ["site", "amount"]},
    "partition": {"name": "iid", "clients": 4},
    "algorithm": {"name": "scaffold"},
    "model": {"hidden": [16]},
    "local": {"batch_size": 4, "epochs": 10},
}
TREES: Table = {
    "parties": [{"name": "bank", "id": "customer", "label": "default"}, {"name": "shop", "id": "client"}],
    "algorithm": {"name": "secureboost", "trees": 4, "bins": 6, "depth": 2},
    "privacy": [{"name": "paillier"}],
}


class Federation(NamedTuple):
    """An experiment between nodes."""

    tables: Table
    nodes: Sequence[str]
    rows: int  # of metrics.jsonl, after which it is killed


FEDERATIONS: Mapping[str, Federation] = {
    "deployed": Federation(ROWS, SITES, 3),
    "deployed_secagg": Federation(ROWS | {"algorithm": {"name": "fedavg"}, "privacy": [{"name": "secagg"}]}, SITES, 3),
    "deployed_columns": Federation(TREES, ("bank", "shop"), 2),
}


def until(true: Callable[[], bool], otherwise: str) -> None:
    """Waits for something; CommandError where it does not come."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise CommandError(otherwise)
        time.sleep(0.002)


def split_table(folder: Path) -> None:
    """A table of each site's rows, and one of all rows to judge by."""
    write_table(folder / "all.csv")
    head, *rows = (folder / "all.csv").read_text().splitlines()
    whole = [row for row in rows if all(row.split(","))]  # without holes, which would have to be agreed on
    for site in SITES:
        (folder / f"{site}.csv").write_text("\n".join([head, *(row for row in whole if f",{site}," in row)]) + "\n")
    (folder / "test.csv").write_text("\n".join([head, *whole[::3]]) + "\n")


class Processes:
    """The server and the nodes of a federation by name."""

    def __init__(self, folder: Path, one: Federation, source: Path | None) -> None:
        self.folder, self.one, self.source = folder, one, source
        self.bundles = folder / "federation"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """All of them."""
        test = [] if "parties" in self.one.tables else ["--test", self.folder / "test.csv"]
        self._start("server", ["deploy", "server", self.bundles / "server", *test])
        for name in self.one.nodes:
            self._start(name, ["deploy", "node", self.bundles / name, "--data", self.folder / f"{name}.csv"])
        until(self._there, "the server and its nodes do not find each other")

    def _start(self, name: str, words: Sequence[str | Path]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                command(*words), cwd=self.folder, env=environment(self.source), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip

    def _there(self) -> bool:
        try:
            found = json.loads(
                call(["deploy", "status", "--bundle", self.bundles / "operator", "--json"], self.folder, self.source)
            )
        except CommandError:
            return False
        return all(node["connected"] for node in found["nodes"])  # fmt: skip

    def kill(self) -> None:
        """With -9: the server, then every node; the trainer of a node ends by itself."""
        for name in ("server", *self.one.nodes):
            self.running[name].send_signal(signal.SIGKILL)
            self.running[name].wait()

    def end(self) -> None:
        """All that still run."""
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def run(self, *words: str | Path, out: str) -> str:
        """Submits or attaches, and fetches to ``out``; the run's name."""
        said = call(
            ["deploy", "run", *words, "--bundle", self.bundles / "operator", "--out", self.folder / out, "--json"],
            self.folder,
            self.source,
        )
        return str(json.loads(said)["run"])  # fmt: skip


@contextlib.contextmanager
def processes(folder: Path, one: Federation, source: Path | None) -> Iterator[Processes]:
    """Started, and ended with the block."""
    held = Processes(folder, one, source)
    try:
        held.start()
        yield held
    finally:
        held.end()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def made(name: str, folder: Path, source: Path | None) -> None:
    """A federation with a finished run and a killed one."""
    one = FEDERATIONS[name]
    folder.mkdir(parents=True)
    split_table(folder)
    write_parties(folder)
    (folder / "experiment.toml").write_text(tomli_w.dumps(one.tables))
    nodes = ",".join(one.nodes)
    call(["deploy", "init", "federation", "--nodes", nodes, "--host", "localhost", "--port", str(free_port())], folder, source)  # fmt: skip
    with processes(folder, one, source) as held:
        names = {"whole": held.run("experiment.toml", out="whole")}
        until(lambda: all(at_home(folder, node, names["whole"]) for node in one.nodes), "the model does not come home")
        for node in one.nodes:
            shutil.copytree(held.bundles / node / "runs" / names["whole"], folder / "homes" / node)
        (folder / "predictions.json").write_text(json.dumps(predicted(folder, one, names["whole"], source)))
        words = ["deploy", "run", "experiment.toml", "--bundle", held.bundles / "operator", "--out", folder / "never"]
        watching = subprocess.Popen(
            command(*words), cwd=folder, env=environment(source), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until(lambda: any(half_way(folder, one, names["whole"])), "the second run does not begin")
            held.kill()
        finally:
            watching.kill()
            watching.wait()
    names["half"] = half_way(folder, one, names["whole"])[0]
    (folder / "names.json").write_text(json.dumps(names))


def at_home(folder: Path, node: str, run: str) -> bool:
    """Whether a node has the folder of a run that has ended: its model, or with columns its page, is written last."""
    home = folder / "federation" / node / "runs" / run
    return any(home.glob("model*.safetensors")) or any(home.glob("report.html"))


def half_way(folder: Path, one: Federation, whole: str) -> list[str]:
    """The runs at the server that have some rounds and no end."""
    found = (folder / "federation" / "server" / "runs").glob("*/run/metrics.jsonl")
    return [
        path.parts[-3]
        for path in found
        if path.parts[-3] != whole
        and path.read_bytes().count(b"\n") >= one.rows
        and not path.with_name("summary.json").exists()
    ]


def predicted(folder: Path, one: Federation, run: str, source: Path | None) -> Values:
    """What the model of a run says, as it lies at the first node; of columns with the other party's part beside it."""
    home = folder / "federation" / one.nodes[0] / "runs" / run
    if "parties" not in one.tables:
        return {"predictions": call(["predict", home, "test.csv"], folder, source)}
    together = folder / f"together-{run}"
    shutil.copytree(home, together, dirs_exist_ok=True)
    for file in (folder / "federation" / "shop" / "runs" / run).glob("*shop*.json"):
        shutil.copy(file, together)
    return {"predictions": call(["predict", together, "bank=bank.csv", "shop=shop.csv"], folder, source)}


def moved(folder: Path) -> None:
    """The copy of a federation to a port of its own: the first may be taken by now."""
    bundles = list((folder / "federation").rglob("bundle.toml"))
    line = next(line for line in bundles[0].read_text().splitlines() if line.startswith("port = "))
    port = f"port = {free_port()}"
    for path in bundles:
        path.write_text(path.read_text().replace(line, port))


def checked(name: str, folder: Path, source: Path | None) -> dict[str, list[str]]:
    """What differs of the finished run as it is fetched again, and of the one that is taken up."""
    one, names = FEDERATIONS[name], json.loads((folder / "names.json").read_text())
    moved(folder)
    whole, kept = folder_values(folder / "whole", UNREAD), json.loads((folder / "predictions.json").read_text())
    homes = folder_values(folder / "homes", UNREAD)
    out = {}
    with processes(folder, one, source) as held:
        for which, run in names.items():
            held.run("--attach", run, out=f"{which}-again")
            until(lambda run=run: all(at_home(folder, node, run) for node in one.nodes), "the model does not come home")
            found = folder_values(folder / f"{which}-again", UNREAD)
            lines = differences(whole | kept, found | predicted(folder, one, run, source), f"{name}-{which}", RESUMED)
            for node in one.nodes:
                shutil.copytree(held.bundles / node / "runs" / run, folder / f"homes-{which}" / node)
            lines += differences(homes, folder_values(folder / f"homes-{which}", UNREAD), f"{name}-{which}", RESUMED)
            call(["report", folder / f"{which}-again", "--out", folder / "page.html"], folder, source)
            out[which] = lines
    return out
