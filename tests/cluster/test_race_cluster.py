"""A race whose runs are made by the workers of nodes ends with the answer of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedatlas
from fedatlas.cluster.nodes import Nodes
from fedatlas.errors import ConfigError
from piped_nodes import PipedNodes, connecting
from test_race import asked, comparable, first, known  # noqa: F401  (fixtures)


@pytest.mark.slow  # a race, twice
def test_a_race_on_nodes_gives_the_answer_of_one_machine(
    known: Path,  # noqa: F811
    first: tuple[Path, dict[str, Any]],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Its runs go on from shorter ones, whose folders travel, on whichever node."""
    seen: list[PipedNodes] = []
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(Nodes, "connect", connecting(tmp_path / "node", seen))
    answer = fedatlas.recommend(asked(known, tmp_path / "asked"), out=tmp_path / "out", cluster="pipes:1")
    out, whole = first
    assert comparable(answer, tmp_path / "out") == comparable(whole, out / "out")
    assert len(seen) == 1
    assert not list((tmp_path / "node").iterdir())


def test_a_cluster_without_a_race_is_refused(known: Path, tmp_path: Path):  # noqa: F811
    numbers = {"study": str(known), "federation": {"nodes": 5, "rows": 450, "heterogeneity": 0.4}}
    with pytest.raises(ConfigError, match="--cluster spreads the runs of a race: give an experiment"):
        fedatlas.recommend(numbers, out=tmp_path, cluster="pipes:1")
