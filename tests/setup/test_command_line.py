"""One sentence also where a name, the terminal or a user's own code is at fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done
from tables import table


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", "{}", "rounds=1"),
        ("run", "--out", "a/{}/b", "rounds=1"),
        ("run", "--resume", "{}"),
        ("run", "data.name=file", "data.path={}.csv", "data.label=y"),
        ("run", "--plugin", "{}.py"),
        ("new", "{}.toml"),
        ("report", "{}"),
        ("study", "{}.toml"),
        ("partition", "--out", "{}.svg"),
    ],
)
def test_a_name_that_is_too_long_is_one_sentence(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Done]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*(word.format("x" * 300) for word in words))
    assert done.code == 2
    said = (
        r"fedatlas: .*the name 'x{20}\.\.\.' of 30\d letters is too long for a file or folder: choose a shorter one\.\n"
    )
    assert re.fullmatch(said, done.stderr), done.stderr


@pytest.mark.parametrize(
    "encoding", ["cp1252", *(pytest.param(name, marks=pytest.mark.slow) for name in ("latin-1", "ascii"))]
)
def test_a_terminal_that_is_not_utf8_gets_question_marks(encoding: str, tmp_path: Path) -> None:
    table(tmp_path / "Köln▇.csv")
    words = [
        f"data.path={tmp_path / 'Köln▇.csv'}",
        "data.name=file",
        "data.label=y",
        "partition={name='iid', clients=2}",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for command, code, said in (
        (["run", "--dry-run", *words], 0, rb"client 0 .* rows +\?\?"),
        (["report", str(tmp_path / "Łódź")], 2, rb"\?.*is not a run: it has no config\.toml"),
    ):
        whole = [sys.executable, "-m", "fedatlas", *command]
        done = subprocess.run(whole, capture_output=True, env=environment, check=False)
        assert done.returncode == code, done.stderr
        assert re.search(said, done.stderr if code else done.stdout), done


RAISING = '''
from fedatlas import Algorithm
from fedatlas.algorithm import Task

def raising(*, where: str):
    """Fails where it is told to."""
    def now(place, value=None):
        return {}["nothing"] if place == where else value
    now("builder")
    tasks = {"train": Task(direction=lambda g, w, message, client, facts: now("client", g))}
    return Algorithm("raising", server_update=lambda server, mean, round: now("server", server), tasks=tasks)

ALGORITHMS = {"raising": raising}
if not ALGORITHMS["raising"].__doc__:
    raise ValueError
'''


@pytest.mark.parametrize(("where", "workers"), [("builder", 1), ("server", 1), ("client", 1), ("client", 2)])
def test_a_plugin_that_raises_is_one_sentence_with_its_line(
    tmp_path: Path, command: Callable[..., Done], where: str, workers: int
) -> None:
    (tmp_path / "mine.py").write_text(RAISING)
    keys = ("algorithm.name=raising", f"algorithm.where={where}", "rounds=1", f"engine.workers={workers}")
    done = command("run", "--plugin", str(tmp_path / "mine.py"), *keys, "--no-baselines", "--quiet")
    assert done.code == 2
    named = "the plug-in 'mine.py'" if workers == 1 else r"the work of client \d+"
    line = re.escape('return {}["nothing"] if place == where else value')
    assert re.fullmatch(
        rf"fedatlas: {named} failed with KeyError: 'nothing' \(.*mine.py, line 8: {line}\)\.\n", done.stderr
    )


def test_a_plugin_that_cannot_be_run_is_told_with_its_line(tmp_path: Path, command: Callable[..., Done]) -> None:
    (tmp_path / "mine.py").write_text(RAISING.replace("if not ", "if "))
    done = command("list", "models", "--plugin", str(tmp_path / "mine.py"))
    assert done.code == 2
    assert re.search(
        r"mine\.py could not be run: ValueError \(.*mine\.py, line 15: raise ValueError\)\.\n$", done.stderr
    )
