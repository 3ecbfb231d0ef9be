"""What a server gains by telling a node of a run again, or by going back and forth between runs: nothing is counted anew."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from test_asks import Node


def told_again(node: Node) -> None:
    """The server begins the run that the node knows."""
    (said,) = node.trainer.serve(node.start)
    assert said.kind == "begun", said.head


def restarted(node: Node) -> None:
    """The node's process is another one."""
    node.trainer = type(node.trainer)(node.trainer.bundle, node.trainer.data)


def elsewhere(node: Node) -> None:
    """The node was asked of another run in between."""
    node.trainer.run = None


WAYS = [told_again, restarted, elsewhere]


@pytest.mark.parametrize("way", WAYS)
def test_a_run_told_again_is_not_asked_more_often(tmp_path: Path, way: Any) -> None:
    node = Node(tmp_path)
    assert node.ask().kind == "reply"
    way(node)
    assert node.ask().kind == "reply", "the same again gets the same bytes"
    assert "more often" in node.ask(number=1, message={"model": node.model * (1 + 1e-6)}).head["why"]
    assert node.ask(landed=1, round=2).kind == "reply"


@pytest.mark.parametrize("way", WAYS)
def test_a_run_told_again_may_end_once(tmp_path: Path, way: Any) -> None:
    node = Node(tmp_path, judging=True, rounds=9, evaluation={"every": 4})
    judge = partial(node.ask, "judge", {"judged": node.model}, reduce="sum")
    assert judge(landed=0, round=1).kind == "reply", "with which a run may end"
    way(node)
    assert "does not declare" in judge(landed=1, round=2).head["why"]
    way(node)
    assert "does not declare" in judge(landed=2, round=3).head["why"]
    assert judge(landed=3, round=4).kind == "reply"
