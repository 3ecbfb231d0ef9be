"""`fedatlas study --status`: how far a study is, from its table only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedatlas.study.study import Study
from study_tables import filled
from test_study import BASE

TEXT = """
[base]
rounds = 2
data = { name = "digits", limit = 100 }
[[factor]]
name = "scheme"
role = "choice"
key = "algorithm.name"
levels = ["fedavg", "fedprox"]
"""
NOTHING_HEAVY = """
import sys
from fedatlas.cli import main
try:
    main()
except SystemExit as end:
    assert not {"torch", "pandas", "sklearn", "scipy"} & set(sys.modules), "heavy"
    raise
"""


def test_a_look_at_the_progress_loads_neither_torch_nor_pandas(tmp_path: Path):
    file, out = tmp_path / "STUDY.toml", tmp_path / "out"
    file.write_text(TEXT)
    filled(Study.read(file), out / "table.sqlite", lambda _: 0.8)
    words = ["study", str(file), "--out", str(out), "--status"]
    done = subprocess.run([sys.executable, "-c", NOTHING_HEAVY, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Study STUDY in ")
    assert "3 done" in done.stdout


def test_levels_that_the_file_no_longer_has_are_left_out(tmp_path: Path):
    levels = ["fedavg", "fedprox", "scaffold"]
    factor = {"name": "scheme", "role": "choice", "key": "algorithm.name"}
    tables = {"base": BASE, "seeds": [1, 2]}
    path = filled(
        Study.of("s", **tables, factor=[{**factor, "levels": levels}]), tmp_path / "table.sqlite", lambda _: 0.8
    )
    found = Study.of("s", **tables, factor=[{**factor, "levels": levels[:2]}]).status(table=path)
    assert found["runs"]["done"] == 6, "two baselines, two choices with two seeds"
    assert found["notices"] == [
        "Level 'scaffold' of factor 'scheme' is no longer in the study's file; left out: 2 runs."
    ]
