"""A shell completes commands, options, kinds and names, at once: it asks the program, which then imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedatlas import catalogue, cli

HEAVY = {"torch", "numpy", "pandas"}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedatlas re", ["recommend", "report", "reproduce"]),
        ("fedatlas deploy tr", ["trial"]),
        ("fedatlas an", ["anonymise"]),
        ("fedatlas anonymise --su", ["--suppress"]),
        ("fedatlas run --dr", ["--dry-run"]),
        ("fedatlas list al", ["algorithms"]),
        ("fedatlas list p", ["partitions", "privacy"]),
        ("fedatlas show sec", ["secagg", "secureboost"]),
        ("fedatlas show fedseq-c", ["fedseq-cifar10"]),
        ("fedatlas run algorithm.name=fedp", ["algorithm.name=fedprox"]),
        ("fedatlas run algorithm.name = fedp", ["fedprox"]),  # bash parts words at the sign
        ("fedatlas run rounds = 3 partition.name = v", ["vertical"]),
        ("fedatlas run rounds = fedp", []),
        ("fedatlas compare algorithm.name=fedavg,sec", ["algorithm.name=fedavg,secureboost"]),
        ("fedatlas deploy run model.name=lenet5", ["model.name=lenet5"]),
    ],
)
def test_a_shell_is_answered_without_anything_heavy(typed, offered):
    """As bash asks: by environment variables."""
    asked = {"_FEDATLAS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import sys\nfrom fedatlas.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == offered
    assert not HEAVY & set(done.stderr.split())


def test_the_kinds_are_those_of_the_catalogue():
    assert list(catalogue.KINDS) == cli.KINDS
