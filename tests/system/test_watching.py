"""``fedatlas watch``: a run's folder in a terminal, live, while another process writes it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedatlas import Experiment, run
from fedatlas.cli import app
from fedatlas.watching import Tail, Watched, curve, rounds_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminals")
SUMMARY = {"final": {"accuracy": 0.9876, "loss": 0.1}, "cost": {"bytes_up": 3e6, "bytes_down": 3e6, "seconds": 8.0}}


def row(number: int, accuracy: float) -> dict[str, Any]:
    sent = {"bytes_up": 1000.0, "bytes_down": 1000.0, "bytes_peer": 0.0}
    return {"round": number, "accuracy": accuracy, "macro_f1": accuracy, "loss": 1 - accuracy, "seconds": 2.0, **sent}


def folder(path: Path, more: str = "") -> Path:
    """A run's folder before its first row, while a process holds it."""
    path.mkdir()
    config = f'rounds = 4\n{more}\n[algorithm]\nname = "fedavg"\n[data]\nname = "digits"\n'
    (path / "config.toml").write_text(config)
    (path / "lock").touch()
    return path


def add(path: Path, *rows: dict[str, Any]) -> None:
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


class Screen:
    """`fedatlas watch` in a pseudo terminal."""

    def __init__(self, path: Path) -> None:
        import pty

        self.text, (self.master, inner) = "", pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        command = [sys.executable, "-m", "fedatlas", "watch", str(path)]
        kept = {"stdin": inner, "stdout": inner, "stderr": inner, "env": environment}
        self.process = subprocess.Popen(command, start_new_session=True, preexec_fn=owns_terminal, **kept)  # noqa: PLW1509
        os.close(inner)

    def until(self, words: str, limit: float = 300.0) -> None:
        """Read the screen until it shows these words."""
        end = time.monotonic() + limit
        while words not in self.text:
            assert time.monotonic() < end, self.text[-2000:]
            if not select.select([self.master], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the terminal's other side is closed
                data = b""
            assert data, f"it ended without '{words}': {self.text[-2000:]}"
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))

    def close(self) -> int:
        """Return the exit status."""
        status = self.process.wait(300)  # before the terminal goes, which would hang up on it
        os.close(self.master)
        return status


def owns_terminal() -> None:
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell that starts tests in the background has it ignored
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.timing
def test_the_screen_follows_a_run_until_it_ends(tmp_path: Path):
    path = folder(tmp_path / "run")
    add(path, row(0, 0.1), row(1, 0.5))
    screen = Screen(path)
    screen.until("1/4")
    screen.until("6.00\xa0s left")  # three rounds of two seconds
    assert "fedavg on digits" in screen.text
    add(path, row(2, 0.7))
    screen.until("2/4")
    screen.until("accuracy ▁▆█ 0.1000 to 0.7000")
    add(path, row(3, 0.8), row(4, 0.9876))
    (path / "summary.json").write_text(json.dumps(SUMMARY))
    screen.until("what follows the rounds")
    (path / "lock").unlink()
    screen.until("fedatlas report")
    assert screen.close() == 0
    assert "0.9876" in screen.text


@pytest.mark.timing
def test_ctrl_c_leaves_quietly(tmp_path: Path):
    path = folder(tmp_path / "run")
    add(path, row(0, 0.1), row(1, 0.5))
    screen = Screen(path)
    screen.until("1/4")
    os.write(screen.master, b"\x03")
    assert screen.process.wait(60) == 0
    rest = os.read(screen.master, 65536).decode(errors="replace")
    assert "Traceback" not in screen.text + rest
    assert (path / "lock").exists()
    screen.close()


@pytest.mark.timing
def test_several_seeds_stand_in_one_table(tmp_path: Path):
    path = folder(tmp_path / "run", "seeds = [7, 8]")
    first = folder(path / "seed-7")
    add(first, *(row(t, 0.2 * t) for t in range(4)))
    screen = Screen(path)
    screen.until("3/8")
    screen.until("12 s left".replace(" ", "\xa0", 1))  # two seconds here, and eight more and their row 0 for the other
    assert re.search(r"7\s+running\s+3/4", screen.text)
    assert re.search(r"8\s+not begun\s+0/4", screen.text)
    (path / "summary.json").write_text(json.dumps(SUMMARY))
    (path / "lock").unlink()
    screen.until("fedatlas report")
    assert screen.close() == 0


def test_a_real_run_and_one_that_was_stopped(tmp_path: Path, no_terminal: Callable[..., str]):
    small = {"rounds": 2, "data": {"limit": 200}, "partition": {"name": "iid", "clients": 3}, "engine": {"workers": 1}}
    done = run(Experiment.of(**small), out=tmp_path / "run", baselines=False)
    said = no_terminal(done.path)
    assert f"{done.summary['final']['accuracy']:.4f}" in said
    assert "round 2" in said
    assert " ".join(done.summary["answer"]["text"].split()) in said
    (done.path / "summary.json").unlink()
    assert f"fedatlas run --resume {done.path}" in no_terminal(done.path)
    seeds = run(Experiment.of(seeds=[1, 2], **small), out=tmp_path / "seeds", baselines=False)
    said = no_terminal(seeds.path)
    assert "seed 1, round 2" in said
    assert "(sd" in said


@pytest.fixture
def no_terminal() -> Callable[..., str]:
    def watched(path: Path) -> str:
        found = CliRunner().invoke(app, ["watch", str(path)], catch_exceptions=False)
        assert found.exit_code == 0
        return " ".join(found.output.split())

    return watched


def test_rows_that_a_resumed_run_cut_back_are_forgotten(tmp_path: Path):
    tail = Tail(tmp_path / "metrics.jsonl")
    assert not tail.look()
    add(tmp_path, row(0, 0.1), row(1, 0.2))
    with open(tail.path, "a") as file:
        file.write('{"round": 2, "accu')
    assert tail.look()
    assert [one["round"] for one in tail.rows] == [0, 1]
    cut = tmp_path / "part"
    cut.write_text(tail.path.read_text().splitlines()[0] + "\n")
    cut.replace(tail.path)
    add(tmp_path, row(1, 0.3), row(2, 0.4))
    assert tail.look()
    assert [one["accuracy"] for one in tail.rows] == [0.1, 0.3, 0.4]


def test_curves_and_numbers_of_rounds(tmp_path: Path):
    assert curve([row(t, 0.1 * t) for t in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert len(curve([row(t, 0.1) for t in range(500)], 48)) == 48
    assert curve([row(0, 0.1)], 48) == ""
    assert rounds_of({"rounds": 20, "algorithm": {"name": "boosting", "trees": 7}}) == 7
    path = folder(tmp_path / "run")
    assert Watched(path).left() == "?"


def test_watching_takes_no_torch_and_refuses_other_folders(tmp_path: Path):
    path = folder(tmp_path / "run")
    add(path, row(0, 0.1))
    (path / "summary.json").write_text(json.dumps(SUMMARY))
    (path / "lock").unlink()
    code = (
        "import sys\nfrom fedatlas.cli import main\ntry: main()\nexcept SystemExit as end: assert not end.code\n"
        "print(*sorted({'torch', 'numpy', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, "watch", str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert "0.9876" in done.stderr
    command = [sys.executable, "-m", "fedatlas", "watch", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr) == (2, f"fedatlas: '{tmp_path}' is not a run: it has no config.toml.\n")


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A comparison's folder while a process holds it: one scheme's seed has ended, the other's has not begun."""
    out = tmp_path / "compared"
    out.mkdir()
    (out / "lock").touch()
    labels = ("fedavg", "fedprox")
    (out / "comparison.json").write_text(json.dumps({"schemes": [{"label": name} for name in labels], "seeds": [7]}))
    for name in labels:
        folder(out / name, "seeds = [7]")
        (out / name / "lock").unlink()
    first = folder(out / "fedavg" / "seed-7")
    (first / "lock").unlink()
    add(first, *(row(t, 0.2 * t) for t in range(5)))
    (first / "summary.json").write_text(json.dumps(SUMMARY))
    return out


def test_a_scheme_whose_comparison_is_at_work_goes_on(comparison: Path, no_terminal: Callable[..., str]):
    assert Watched(comparison / "fedprox").goes_on()
    assert not Watched(comparison / "fedavg" / "seed-7").goes_on()  # it is finished
    (comparison / "lock").unlink()
    assert not Watched(comparison / "fedprox").goes_on()
    said = no_terminal(comparison / "fedprox")
    assert "the same 'fedatlas compare' command again" in said
    assert "--resume" not in said  # which would keep the comparison from going on


def test_a_comparison_is_watched_until_its_answer(comparison: Path, no_terminal: Callable[..., str]):
    watched = Watched(comparison)
    assert watched.goes_on()
    watched.look()
    assert [(run.label, run.state()) for run in watched.runs] == [
        ("fedavg, seed 7", "finished"),
        ("fedprox, seed 7", "not begun"),
    ]
    (comparison / "lock").unlink()
    said = no_terminal(comparison)
    assert "comparison of fedavg, fedprox" in said
    assert "fedavg, seed 7, round 4" in said
    assert "the same 'fedatlas compare' command again" in said
    record = json.loads((comparison / "comparison.json").read_text())
    (comparison / "comparison.json").write_text(json.dumps({**record, "answer": {"sentences": ["Take fedavg."]}}))
    (comparison / "comparison.html").touch()
    said = no_terminal(comparison)
    assert "Take fedavg." in said
    assert f"Report: {comparison / 'comparison.html'}" in said


def test_a_report_is_named_only_where_there_is_one(comparison: Path, no_terminal: Callable[..., str]):
    run = comparison / "fedavg" / "seed-7"
    assert f"Its report: fedatlas report {run}" in no_terminal(run)
    (comparison / "comparison.html").touch()
    assert f"Report: {comparison / 'comparison.html'}" in no_terminal(run)
    (run / "report.html").touch()
    assert f"Report: {run / 'report.html'}" in no_terminal(run)
