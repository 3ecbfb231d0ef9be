"""Sentences about a probe."""

from __future__ import annotations

from typing import Any

from fedatlas.reporting.columns_gain import verdict
from fedatlas.wording import NAMES, bytes_text, count, listed, number, seconds_text


def sentences(found: dict[str, Any]) -> list[str]:
    """Return what a probe found, how sure that is, what it cost, and what it showed."""
    figure, active = found["figure"], found["active"]
    others = [name for name in found["parties"] if name != active]
    values = f"{NAMES[figure]} {number(found['together'][figure])} together, {number(found['alone'][figure])} for {active} alone"
    trees = count(found["trees"], found["round"])
    before = f" after {found['trees_before']} on columns of {active} only" if found["trees_before"] else ""
    kind = "encrypted as in the run" if found["protected"] else "in the clear: the experiment has no [[privacy]]"
    ciphertexts = f" and {count(found['ciphertexts'], 'ciphertext')}" if found["ciphertexts"] else ""
    judged = f"{found['train_rows']:,} of them, judged on {count(found['test_rows'], 'other')}"
    learnt = f"Each party learns what a run with these {found['round']}s shows it, of the rows drawn"
    sent = f"{bytes_text(found['bytes_alignment'])} for matching, {bytes_text(found['bytes_trees'])} for {trees}{before}{ciphertexts}"
    return [
        f"All parties have {found['rows']:,} rows in common. {trees}{before}, {kind}, on {judged}: {values}.",
        verdict("' and '".join(others), found["gain"][figure], figure),
        f"This is a small sample's gain: all common rows and more {found['round']}s may gain more, or less.",
        f"Sent: {sent}; {seconds_text(found['seconds'])} in all, on this machine.",
        learnt + (f"; to {listed(others)} the labels stay hidden behind ciphertexts." if found["protected"] else "."),
        *(f"Notice: {said}" for said in found["notices"]),
    ]
