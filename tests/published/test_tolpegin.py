"""Label flipping of Tolpegin et al.: numbers of attackers, a gate that can be missed, and the whole command on tiny rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedatlas.config import parse
from fedatlas.published import reproduction as room
from fedatlas.published import tolpegin_label_flipping as study
from fedatlas.published.gates import PartRuns
from fedatlas.published.tolpegin_label_flipping import PUBLISHED, part_name, rank_correlation, tables, tolpegin
from fedatlas.study.plain import Plain


def test_the_attackers_are_as_many_as_in_the_paper() -> None:
    parts = {part.name: parse(part.tables) for part in tolpegin().parts}
    shares = [parts[part_name(level)].attack[0].parameters()["share"] for level in (0, *PUBLISHED)]
    assert [math.floor(50 * share + 1e-9) for share in shares] == [0, 1, 2, 5, 10, 15, 20, 25]
    assert {config.rounds for config in parts.values()} == {200}


def of_recalls(*recalls: float) -> dict[str, PartRuns]:
    """Runs whose recall is far away until round 100, and then varies around a level."""
    out = {}
    for level, recall in zip((0, *PUBLISHED), recalls, strict=True):
        rows = [
            {"round": r, "source_recall": 0.0 if r <= 100 else recall + (0.3 if r % 20 else -0.3)}
            for r in range(0, 201, 10)
        ]
        out[part_name(level)] = PartRuns({1: rows})
    return out


def test_the_gate_follows_the_order_of_the_losses() -> None:
    """Two neighbours may change places, three falling ones may not; without an attack's effect it fails."""
    (gate,) = tolpegin().gates
    rising = gate.judged(of_recalls(0.8, 0.79, 0.77, 0.7, 0.66, 0.3, 0.07, 0.095))
    assert rising.passed is True
    assert rising.obtained.startswith("Spearman 0.96: 2% 1.0 points, 4% 3.0 points, 10% 10.0 points")
    assert gate.judged(of_recalls(0.8, 0.79, 0.77, 0.7, 0.5, 0.66, 0.68, 0.095)).passed is False
    assert gate.judged(of_recalls(*[0.8] * 8)).passed is False
    assert rank_correlation([*PUBLISHED.values()]) == pytest.approx(
        27 / 28
    )  # one pair of neighbours: 1 - 6 * 2 / (7 * 48)


def on_digits(level: int, rounds: int, quick: bool) -> Plain:
    """The same experiment with tiny rows."""
    return {
        **tables(level, rounds, quick),
        "data": {"name": "digits", "limit": 500},
        "model": {"name": "mlp", "hidden": [8]},
        "evaluation": {"every": 2},
    }


def test_the_command_finds_the_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "tables", on_digits)
    assert room.reproduce(study.NAME, quick=True, rounds=4, out=tmp_path)
    record = json.loads((tmp_path / "tolpegin-quick-4-rounds.json").read_text())
    (gate,) = record["gates"]
    assert gate["whole"] is True
    assert gate["obtained"].startswith("Spearman ")
    recalls = {run["part"]: run["rows"][-1]["source_recall"] for run in record["runs"]}
    assert len(recalls) == 8
    assert record["curves"][0]["points"] == {"recall": [[x, recalls[part_name(x)]] for x in (0, *PUBLISHED)]}
    assert (tmp_path / "tolpegin-quick-4-rounds-recall.svg").exists()
    assert "LeNet-5 in place of six convolutions" in (tmp_path / "tolpegin-quick-4-rounds.md").read_text()
