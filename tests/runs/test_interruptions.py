"""Nothing is lost on a crash, and nothing is different after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.job import Bench, Job, Result
from fedatlas.engine.loop import run_job
from fedatlas.engine.pool import PoolExecutor, can_fork
from federation import federation, play

pytestmark = [
    pytest.mark.timing,
    pytest.mark.skipif(not can_fork(), reason="this system has no fork, which the harness uses"),
]

PATIENCE = 120.0  # seconds after which a test gives up; a quiet machine needs a few
WORKERS = """
import sys
from fedatlas import Experiment, run
run(Experiment.of(rounds=10000, engine={"workers": 3}, model={"hidden": [400]}, local={"epochs": 5}), out=sys.argv[1], baselines=False)
"""


@pytest.mark.parametrize(
    ("kills", "apart"),
    [(4, 13), pytest.param(20, 3, marks=pytest.mark.slow)],  # 13: at another file of the checkpoint each time
)
def test_interrupted_runs_end_as_if_never_stopped(tmp_path: Path, kills: int, apart: int) -> None:
    """Kills at random times, kills around writes of a checkpoint, full disks, Ctrl-C, SIGTERM."""
    script = Path(__file__).parents[1] / "support" / "interruptions.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(kills), str(apart)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=20 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout)
    assert counts["random"] >= kills
    assert counts["writes"] >= 60 // apart
    assert counts["full"] == [2, 2, 2]  # our one sentence, not a traceback
    assert counts["signals"] == [130, 130]


def children(pid: int) -> list[int]:
    """Living children of a process, from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_run(tmp_path: Path, number: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", WORKERS, str(tmp_path / "run")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while len(workers := children(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 3
    process.send_signal(number)
    process.wait(timeout=PATIENCE)
    end = time.monotonic() + PATIENCE
    while any(map(alive, workers)):
        assert time.monotonic() < end, "workers outlive their run"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_dead_worker_is_an_error_with_its_clients_name(tmp_path: Path) -> None:
    """The out-of-memory killer takes a worker: a sentence, not a hang."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKERS, str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE
    while len(workers := children(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "the worker that trained client" in said
    assert "signal 9" in said


def test_a_worker_whose_run_was_stopped_says_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C closes the pipes while a client trains; nobody hears its answer."""

    def slowly(bench: Bench, job: Job) -> Result:
        time.sleep(0.3)
        return run_job(bench, job)

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    fed = federation(ALGORITHMS["fedavg"]())
    made: list[PoolExecutor] = []

    def pool(bench: Bench) -> PoolExecutor:
        made.append(PoolExecutor(bench, slowly, 2, 8))
        return made[0]

    monkeypatch.setattr("fedatlas.engine.pool.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        play(fed, 1, make=pool)
    workers = [worker.process for worker in made[0].workers]
    for worker in made[0].workers:  # as `close` does, which kills who takes longer than a second
        worker.pipe.close()
    for process in workers:
        process.join(PATIENCE)
    made[0].close()
    assert [process.exitcode for process in workers] == [0, 0]  # not killed: they found the pipe closed
    assert capfd.readouterr().err == ""
