"""The published drift (X13): each cell reports recovery, depth, area and refused rounds; nothing is gated."""

from __future__ import annotations

from typing import Any

from fedatlas.published.gates import GateVerdict, PartRuns
from fedatlas.published.reproduction import EXPERIMENTS


def test_the_drift_reports_recovery_and_refused_rounds() -> None:
    """A curve that comes back in the third round, one that never does, and a guard that refuses all rounds but one."""
    study = EXPERIMENTS["drift"](False, None)
    assert len(study.parts) == 24
    assert {part.seeds for part in study.parts} == {(1, 2, 3)}
    back, gone = [0.8] * 15 + [0.4, 0.6] + [0.8] * 24, [0.8] * 15 + [0.4] * 26
    curves = {"hwfedavg": gone, "nwfedavg": back, "fedavg": back, "fedyogi": back}

    def rows(name: str, *, guarded: bool) -> list[dict[str, Any]]:
        found = [{"round": i, "macro_f1": x} for i, x in enumerate(curves[name])]
        return [{**row, "committed": row["round"] <= 15} for row in found] if guarded else found

    outcomes = {}
    for part in study.parts:
        _, name, guard = part.name.split("-")
        outcomes[part.name] = PartRuns({1: rows(name, guarded=guard == "old")})
    found = {gate.name: gate.judged({name: outcomes[name] for name in gate.parts}) for gate in study.gates}
    off = found["prior, no guard"].obtained.split("; ")
    assert off[0] == "fedavg 2.0 rounds, depth 0.400, area 0.60, 0.0 rejected"
    assert off[1] == "hwfedavg 25.0 rounds (never in 1 of 1), depth 0.400, area 10.40, 0.0 rejected"
    assert "25.0 rejected" in found["feature, guard on old test rows"].obtained
    assert found["11 prior"] == GateVerdict("25.0 and 2.0 rounds: does not hold", None)
    assert found["feature, refused by old rows"].obtained == "96% of the rounds since the drift"
    assert all(verdict.passed is None for verdict in found.values())
