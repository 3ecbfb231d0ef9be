"""What a large delta does to the epsilon that stands on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedatlas.api import Experiment, run
from fedatlas.terminal import end_table
from reports import Page


def said(table: Any) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@pytest.mark.parametrize(
    ("mechanism", "headline", "noted"),
    [
        (
            {"name": "local_dp", "epsilon": 8.0, "clip": 1.0, "delta": 0.9},
            "none: delta = 0.9 is 1/12 or more, and whoever publishes one of 12 clients whole keeps that",
            "There is no epsilon to state: delta = 0.9 is 1/12 or more",
        ),
        (
            {"name": "local_dp", "epsilon": 8.0, "clip": 1.0, "delta": 0.05},
            "8, and with a chance of up to 0.05 no promise at all",
            "and with a chance of up to 0.05 no promise at all",
        ),
        (
            {"name": "central_dp", "clip": 1.0, "noise_multiplier": 1.0},
            f"and with a chance of up to {12**-1.1:.3g} no promise at all",
            f"and with a chance of up to {12**-1.1:.3g} no promise at all",
        ),
        ({"name": "local_dp", "epsilon": 8.0, "clip": 1.0}, "8 at delta 1e-05", "at delta = 1e−05"),
    ],
    ids=["1/n", "likely", "default", "small"],
)
def test_a_large_delta_stands_in_the_headline(
    tmp_path: Path, mechanism: dict[str, Any], headline: str, noted: str
) -> None:
    given = {
        "rounds": 1,
        "partition": {"name": "iid", "clients": 12},
        "algorithm": {"name": "fedavg", "weights": "uniform"},
    }
    data = {"name": "digits", "scale": "none"}
    done = run(Experiment.of(**given, data=data, privacy=[mechanism]), out=tmp_path / "run", baselines=False)
    assert headline in " ".join(said(end_table(done.summary)).split())
    page = Page(tmp_path / "run" / "report.html").text()
    assert noted in page
    assert ("delta_too_large_for" in done.summary["privacy"]) == headline.startswith("none")
    assert ("What epsilon =" in page) != headline.startswith("none")
