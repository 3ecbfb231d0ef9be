"""What a node's policy says of its rows holds at every ask: of a run that is under way, and of an answer made of a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedatlas.privacy.mechanisms import every
from fedatlas.wire.frames import RawMessage
from test_asks import Node
from test_columns_relay import Ended


def written(node: Node, text: str) -> None:
    (node.trainer.bundle.path / "policy.toml").write_text(text)


def test_names_that_a_site_takes_back_end_its_part_in_a_run(tmp_path: Path) -> None:
    """Its rows are coded by all ten classes; with nine they would be other rows. What changes no row changes nothing."""
    node, digits = Node(tmp_path), [f'"{digit}"' for digit in range(10)]
    assert node.ask().kind == "reply"
    written(node, f"min_rows = 1\nnames = [{', '.join(digits[:9])}]\n")
    for restart in (False, True):
        said = node.ask(landed=1, round=2)
        assert said.kind == "refused"
        assert ("cannot be set up" if restart else "other names of classes and categories than when") in said.head[
            "why"
        ]
        node.trainer = type(node.trainer)(node.trainer.bundle, node.trainer.data)
    written(node, f"min_rows = 1\nnames = [{', '.join(reversed(digits))}]\n")
    assert node.ask(landed=1, round=2).kind == "reply"


@pytest.mark.parametrize(("steps", "kind"), [(2, "refused"), (4, "refused"), (5, "reply")])
def test_an_update_made_of_few_rows_does_not_leave_by_itself(tmp_path: Path, steps: int, kind: str) -> None:
    """Batches of four, where the site wants twenty rows in whatever the server sees alone; it holds more."""
    node = Node(tmp_path, local={"batch_size": 4, "steps": steps, "lr": 0.05})
    written(node, "min_rows = 20\n")
    said = node.ask()
    assert said.kind == kind, said.head
    if kind == "refused":
        assert (
            f"an answer made of {4 * steps} rows that the server sees alone, fewer than min_rows = 20"
            in said.head["why"]
        )


def test_a_site_with_few_rows_trains_in_the_clear_for_nobody(tmp_path: Path) -> None:
    node = Node(tmp_path)
    rows = node.trainer.running("run").half.sizes[0]  # type: ignore[union-attr]
    written(node, f"min_rows = {rows + 1}\n")
    assert f"an answer made of {rows} rows" in node.ask().head["why"]


def test_an_order_of_the_seed_ends_where_a_party_wants_a_secret_one(tmp_path: Path) -> None:
    """The order was agreed on under the old policy; the coordinator knows it, and the next tree is asked for in it."""
    ended = Ended(tmp_path, ["bank", "shop"], {}, order="seed")
    relay, changed = ended.relay, list[Any]()

    def narrowing(name: str, message: RawMessage) -> RawMessage | None:
        if message.kind == "ask" and message.head["place"][0] == 1 and not changed:
            changed.append(name)
            ended.policy("shop", 'row_order = "secret"\n')
        told: RawMessage | None = relay(name, message)
        return told

    ended.relay = narrowing  # type: ignore[assignment]
    state = ended.run().state
    assert changed
    assert state.status == "failed"
    assert "shop" in state.why
    assert "refuses the order of the rows, which follows from the seed" in state.why


def test_no_mechanism_with_noise_runs_between_real_parties() -> None:
    """So there is no epsilon that a policy could limit."""
    deployed = {name: one for name, one in every().items() if one.limits.deployed}
    assert deployed
    assert all(one.noise is None for one in deployed.values())
