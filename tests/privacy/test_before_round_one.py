"""Protected runs before round 1: the experiments that docs/privacy.md shows, and columns that are prepared in secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from configured import set_up
from fedatlas import config
from fedatlas.api import Experiment, run
from reports import rows

EXAMPLES = re.findall(r"```toml\n(.*?)```", (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_page_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    found = set_up(config.read(tmp_path / "experiment.toml"), 1)
    assert found.bench.protection is not None


def test_preparing_columns_in_secret_is_among_the_bytes_of_protection(tmp_path: Path) -> None:
    """Those of row 0 without it are those of a run without it."""
    table = {"name": "file", "path": str(tmp_path / "rows.csv"), "label": "y"}
    lines = [f"{i % 7},{i * i % 11},{'ab'[i % 2]},{'no yes'.split()[i % 2]}" for i in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,y", *lines]))
    given: dict[str, Any] = {"data": table, "rounds": 0, "partition": {"name": "iid", "clients": 4}}
    first = {}
    for kind in ("secagg", "paillier"):
        first[kind] = rows(
            run(Experiment.of(**given, privacy=[{"name": kind}]), out=tmp_path / kind, baselines=False).path
        )[0]
    plain = rows(run(Experiment.of(**given), out=tmp_path / "plain", baselines=False).path)[0]
    for row in first.values():
        assert row["bytes_up"] + row["bytes_down"] - row["bytes_privacy"] == plain["bytes_up"] + plain["bytes_down"]
        assert row["bytes_privacy"] > 0
