"""What a node keeps of its own between rounds: only what counted, whichever process asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas.deployment.node_state import NodeState, StoredReply
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request

ME = 3


def worked(kept: NodeState, round: int, value: float, attempt: int = 0) -> None:
    """The node answers an ask of a round, which leaves this value in its state."""
    place = (round, attempt, 0)
    assert kept.known(place, f"{round}-{attempt}") is None
    kept.party.begin(round, attempt)
    kept.party.put(ME, {"c": torch.tensor(value)})
    request = Request("run", round, attempt, 0, ME, "train", {}, 0.1, 3, 30, "mean")
    kept.keep(place, StoredReply(f"{round}-{attempt}", (1, 1, 1, 1.0, 1.0), bytearray(b"reply")), request)


def value(kept: NodeState) -> Any:
    state = kept.party.get(ME)
    return None if state is None else float(state["c"])


def again(kept: NodeState) -> NodeState:
    """The same folder in another process."""
    return NodeState(kept.folder, ME)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_round_in_which_the_node_did_not_count_leaves_no_state(tmp_path: Path, reopened: bool) -> None:
    kept = NodeState(tmp_path, ME)

    def then() -> NodeState:
        return again(kept) if reopened else kept

    worked(kept, 1, 10.0)
    kept = then()
    assert value(kept) == 10.0
    kept.commit(1, False)
    kept = then()
    assert value(kept) is None  # as if it had never been asked
    worked(kept, 2, 20.0)
    kept = then()
    kept.commit(2, True)
    kept = then()
    assert value(kept) == 20.0
    worked(kept, 3, 30.0)
    kept = then()
    kept.commit(3, False)
    kept = then()
    assert value(kept) == 20.0  # that of the last round in which it counted
    kept.commit(3, True)  # a verdict that comes again changes nothing
    kept = then()
    assert value(kept) == 20.0
    assert not list((tmp_path / "pending").glob("*"))


def test_a_new_attempt_and_a_round_without_verdict_begin_from_what_counted(tmp_path: Path) -> None:
    kept = NodeState(tmp_path, ME)
    worked(kept, 1, 10.0)
    kept.commit(1, True)
    worked(kept, 2, 20.0)
    assert kept.known((2, 1, 0), "other") is None
    assert value(kept) == 10.0
    worked(kept, 2, 21.0, attempt=1)
    kept.commit(3, True)  # of round 2 no verdict came
    assert value(again(kept)) == 10.0
    with pytest.raises(ProtocolError, match="round 3 has landed"):
        kept.known((3, 0, 0), "late")


@pytest.mark.parametrize("reopened", [False, True])
def test_a_rollback_restores_the_state_after_an_earlier_round(tmp_path: Path, reopened: bool) -> None:
    kept = NodeState(tmp_path, ME, versions=True)

    def then() -> NodeState:
        return NodeState(tmp_path, ME, versions=True) if reopened else kept

    for number, counted in ((1, True), (2, False), (3, True)):
        worked(kept, number, 10.0 * number)
        kept.commit(number, counted)
        kept = then()
    worked(kept, 4, 40.0)
    kept.commit(4, False, back=2)
    kept = then()
    assert (value(kept), kept.round) == (10.0, 4), "the node did not count in round 2, so its state is that of round 1"
    worked(kept, 5, 50.0)
    kept.commit(5, True)
    kept.commit(6, False, back=4)
    kept = then()
    assert value(kept) == 10.0, "version 4 is what the rollback made"
    kept.commit(7, False, back=0)
    kept = then()
    assert value(kept) is None
    kept.commit(8, False, back=5)
    assert value(then()) == 50.0, "no version is removed"
