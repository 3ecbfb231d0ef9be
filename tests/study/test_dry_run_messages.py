"""The messages that a dry run foretells are those that a run sends: of counts, key exchanges, masks and decryption, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedatlas.config import parse
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.runs.preview import dry_run
from fedatlas.setup.refusals import checked
from fedatlas.study.messages import MessageCounter, count_messages

BASE: dict[str, Any] = {
    "rounds": 2,
    "algorithm": {"name": "fedavg"},
    "data": {"name": "digits", "limit": 120},
    "partition": {"name": "iid", "clients": 4},
}


@pytest.mark.parametrize(
    ("more", "each"),
    [
        ({}, 8),  # four clients, down and up
        ({"cohort": {"fraction": 0.5}}, 4),
        ({"algorithm": {"name": "hwfedavg"}}, 24),  # it counts labels, and scores
        ({"privacy": [{"name": "secagg"}]}, 40),
        pytest.param({"privacy": [{"name": "paillier"}]}, 10, marks=pytest.mark.slow),  # one client opens the sum
    ],
)
def test_a_dry_run_foretells_the_messages_of_a_run(more: dict[str, Any], each: int, tmp_path: Path):
    whole = checked(parse({**BASE, **more}))
    looked = dry_run(whole, baselines=False)
    counter = MessageCounter(tmp_path)
    ensure(whole, tmp_path / "run", More(report=False, intervals=False), observers=[counter])
    counter.close()
    assert looked["messages_setup"] + 2 * looked["messages_per_round"] == 2 * each
    assert sum(count_messages(tmp_path)) == 2 * each
