"""``flower_round.py BYTES ROUNDS``: seconds of a round of a minimal Flower app between real processes, as JSON on the last line.

A SuperLink, three SuperNodes and an app of the Message API that sends so many bytes to each node, which sends them back; without TLS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
PROJECT = """
[project]
name = "echo"
version = "0.1.0"
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "echo.server:app"
clientapp = "echo.client:app"
[tool.flwr.app.config]
"""
SERVER = """
import json, time
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context) -> None:
    while len(list(grid.get_node_ids())) < 3:
        time.sleep(0.2)
    taken = []
    for number in range({rounds}):
        began = time.monotonic()
        record = ArrayRecord([np.zeros({size} // 4, np.float32)])
        messages = [
            Message(content=RecordDict({{"arrays": record}}), message_type="train", dst_node_id=node)
            for node in grid.get_node_ids()
        ]
        replies = list(grid.send_and_receive(messages))
        assert len(replies) == 3
        taken.append(time.monotonic() - began)
    open({out!r}, "w").write(json.dumps(taken))
"""
CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(msg, context):
    return Message(msg.content, reply_to=msg)
"""


def main() -> None:
    """Measures, and prints."""
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    folder = Path(tempfile.mkdtemp(prefix="flower-"))
    package, out = folder / "app" / "echo", folder / "times.json"
    package.mkdir(parents=True)
    (folder / "app" / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER.format(rounds=rounds, size=size, out=str(out)))
    (package / "client.py").write_text(CLIENT)
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:9093"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    environment.pop("PYTHONPATH", None)
    started = [[str(BIN / "flower-superlink"), "--insecure"]]
    started += [
        [
            str(BIN / "flower-supernode"),
            "--insecure",
            "--superlink=127.0.0.1:9092",
            f"--clientappio-api-address=127.0.0.1:{9100 + k}",
        ]
        for k in range(3)
    ]
    log = open(folder / "log", "w")  # noqa: SIM115
    processes = []
    try:
        for command in started:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            time.sleep(12 if command is started[0] else 0)
        time.sleep(12)
        asked = subprocess.run(
            [str(BIN / "flwr"), "run", str(folder / "app"), "here"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            sys.stderr.write(asked.stdout[-2000:] + asked.stderr[-2000:])
        until = time.monotonic() + 240
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.2)
        if not out.exists():
            sys.stderr.write((folder / "log").read_text()[-3000:])
            raise SystemExit(1)
        time.sleep(0.2)
        taken = json.loads(out.read_text())
        sys.stdout.write(
            json.dumps({"round, s": sorted(taken)[len(taken) // 2], "slowest round, s": max(taken)}) + "\n"
        )
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
