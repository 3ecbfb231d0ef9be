"""``flower_round.py BYTES ROUNDS``: seconds of a round of a minimal Flower app between real processes, as JSON on the last line.

A SuperLink, three SuperNodes and an app of the Message API that sends so many bytes to each node, which sends them back; without TLS.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
PORT = 18000  # of the SuperLink; the nodes listen for their apps on those that follow
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


def until_there(port: int) -> None:
    """Waits until somebody listens on this port."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        with socket.socket() as way:
            if not way.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.2)
    raise SystemExit(f"nobody listens on port {port}")


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
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{PORT}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    environment.pop("PYTHONPATH", None)
    started = [[str(BIN / "flower-superlink"), "--insecure", f"--port={PORT}"]]
    started += [
        [str(BIN / "flower-supernode"), "--insecure", f"--superlink=127.0.0.1:{PORT}", f"--port={PORT + 1 + k}"]
        for k in range(3)
    ]
    log = open(folder / "log", "w")  # noqa: SIM115
    processes = []
    try:
        for command in started:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            if command is started[0]:
                until_there(PORT)
        asked = subprocess.run(
            [str(BIN / "flwr"), "run", str(folder / "app"), "here"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            raise SystemExit(asked.stdout[-2000:] + asked.stderr[-2000:])
        until = time.monotonic() + 240
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.2)
        if not out.exists():
            raise SystemExit((folder / "log").read_text()[-3000:])
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
