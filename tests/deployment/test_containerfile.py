"""deploy/Containerfile: its steps, run in a fresh environment from the wheel. The image itself is not built here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
STEPS = [line.split(" ", 1) for line in TEXT.splitlines() if re.match(r"[A-Z]+ ", line)]
EXTRAS = {"deploy", "dp", "he", "images", "tables"}


def called(command: Sequence[str] | str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command, and return what it prints."""
    shell = isinstance(command, str)
    done = subprocess.run(
        command, cwd=folder, env=environment, shell=shell, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]} {done.stderr[-2000:]}"
    return done.stdout


def test_its_steps_are_known():
    """A step that the slow test below would not run is seen here."""
    kinds = [kind for kind, _ in STEPS]
    assert kinds == "FROM ARG COPY RUN WORKDIR RUN RUN USER WORKDIR ENTRYPOINT CMD".split()
    runs = [text for kind, text in STEPS if kind == "RUN"]
    assert runs[0].startswith("useradd ")
    assert all(text.startswith("python -m pip install ") for text in runs[1:])
    assert set(re.findall(r"\[([\w,]+)\]", runs[2])[0].split(",")) == EXTRAS
    assert STEPS[kinds.index("USER")][1] == "fedatlas", "not root"
    assert "deploy/Containerfile" in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.mark.slow  # installs torch
def test_its_steps_make_a_demo_a_server_and_nodes(tmp_path: Path):
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    called(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "dist"), str(ROOT)],
        ROOT,
        environment,
    )
    called([sys.executable, "-m", "venv", str(tmp_path / "image")], tmp_path, environment)
    environment["PATH"] = f"{tmp_path / 'image' / 'bin'}{os.pathsep}{environment['PATH']}"
    environment["INDEX"] = ""  # pip's own index also has torch; the step itself says where the smaller one is
    install, work = tmp_path / "install", tmp_path / "work"
    install.mkdir()
    work.mkdir()
    for pattern in next(text for kind, text in STEPS if kind == "COPY").split()[:-1]:
        (found,) = (tmp_path if pattern.startswith("dist/") else ROOT).glob(pattern)
        shutil.copy(found, install)
    for kind, text in STEPS:
        if kind == "RUN" and text.startswith("python "):
            called(text, install, environment)
    entry = json.loads(next(text for kind, text in STEPS if kind == "ENTRYPOINT"))
    demo = json.loads(next(text for kind, text in STEPS if kind == "CMD"))
    called([*entry, *demo, "rounds=1", "--no-baselines", "--out", "runs/demo"], work, environment)
    assert (work / "runs" / "demo" / "report.html").exists()
    where = "import fedatlas; print(fedatlas.__file__)"
    assert str(tmp_path / "image") in called(["python", "-c", where], work, environment)
    trial = shlex.split("deploy trial rounds=1 partition.name=iid --nodes 2 --out runs/trial")
    called([*entry, *trial], work, environment)
    assert (work / "runs" / "trial" / "model.safetensors").exists()
