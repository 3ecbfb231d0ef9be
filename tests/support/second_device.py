"""Asks the process that works on the second device (elsewhere_server.py); started with the first question."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("elsewhere_server.py")


@functools.cache
def server() -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", str(SERVER)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        started.communicate()  # it ends with its questions

    atexit.register(end)
    return started


def ask(function: str, *arguments: Any) -> Any:
    """What a function of elsewhere_server.py answers."""
    questions, answers = server().stdin, server().stdout
    assert questions is not None
    assert answers is not None
    questions.write(json.dumps([function, *arguments]) + "\n")
    questions.flush()
    line = answers.readline()
    assert line, "the process that works on the second device has ended"
    said = json.loads(line)
    assert "error" not in said, said["error"]
    return said["answer"]
