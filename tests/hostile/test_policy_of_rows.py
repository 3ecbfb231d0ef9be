"""What a node's policy says of its rows holds at every ask: of a run that is under way, and of an answer made of a few rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from agreements import write_rows
from fedatlas.deployment.audit import verified
from fedatlas.deployment.node_rows import rows_that_count
from fedatlas.deployment.plain_refusals import of_rows
from fedatlas.deployment.terms import Sums, decoded
from fedatlas.privacy.mechanisms import every
from fedatlas.wire import codec
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.policy import TEMPLATE
from test_asks import Node
from test_columns_relay import Ended
from test_same_answer import NAMES
from test_same_answer import Federation as Masked


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


def test_noise_of_a_deployed_run_is_the_nodes_own_and_secret() -> None:
    """No policy limits epsilon: the agreement states the noise, each node draws it, and one from the seed is refused."""
    deployed = {name: one for name, one in every().items() if one.limits.deployed}
    assert {name for name, one in deployed.items() if one.noise is not None} == {"distributed_dp"}
    assert deployed["distributed_dp"].trust == "nobody"
    seeded = {"privacy": [{"name": "distributed_dp", "clip": 1.0, "noise": "seed"}]}
    assert [*of_rows(seeded)] == [
        "[[privacy]] noise = 'seed' protects nobody: not between real parties; remove the key."
    ]


# ------------------------------------------------------------------------------------------------ rows that count


def with_weights(path: Path, weight: Callable[[int], float], seed: int = 0) -> Path:
    """Rows as `write_rows`', each with a weight."""
    first, *rows = write_rows(path, seed=seed).read_text().splitlines()
    path.write_text("\n".join([f"{first},w", *(f"{row},{weight(i)}" for i, row in enumerate(rows))]) + "\n")
    return path


def one_row(i: int) -> float:
    return float(i == 7)


def nearly_one_row(i: int) -> float:
    return 1.0 if i == 7 else 1e-6


def hardly_more_than_one_row(i: int) -> float:
    return 1.0 if i == 7 else 0.011


def survey(i: int) -> float:
    return 0.5 + (i % 5)


def even(i: int) -> float:
    return 0.3


PLAIN = ('label_counts = "masked"', 'label_counts = "plain"')
WEIGHTED = {"name": "file", "label": "y", "weight": "w"}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", [one_row, nearly_one_row, hardly_more_than_one_row, survey])
def test_rows_without_a_weight_hide_no_other(tmp_path: Path, masked: bool, weight: Callable[[int], float]) -> None:
    """The update was the gradient of the one row that an operator's column of weights picks."""
    four = Masked(tmp_path)
    for seed, name in enumerate(NAMES):
        with_weights(four.rows[name], weight if name == "north" else survey, seed)
        (four.made.paths[name] / "policy.toml").write_text(TEMPLATE)
    with_weights(four.rows["test"], survey, 9)
    run = four.run("first", data=WEIGHTED, rounds=1, **({} if masked else {"privacy": []}))
    left = [line.said["left"] for line in verified(four.made.paths["north"]).lines if "left" in line.said]
    assert ("updates" in left) is (weight is survey)
    assert ("sums" in left) is (weight is survey)
    if weight is survey:
        assert run.state.status == "finished", run.state.why


def test_nor_do_they_in_a_few_steps_under_masks(tmp_path: Path) -> None:
    """Fifteen of forty rows count; of the sixteen that two batches take it may be one, and they passed as fifteen."""
    four = Masked(tmp_path)
    for seed, name in enumerate(NAMES):
        with_weights(four.rows[name], (lambda i: 1.0 if i < 15 else 1e-6) if name == "north" else survey, seed)
        (four.made.paths[name] / "policy.toml").write_text(TEMPLATE)
    with_weights(four.rows["test"], survey, 9)
    local = {"batch_size": 8, "steps": 2}
    four.run("first", data=WEIGHTED, rounds=1, local=local, algorithm={"name": "fedavg", "weights": "uniform"})
    lines = [line.said for line in verified(four.made.paths["north"]).lines]
    assert "updates" not in [line.get("left") for line in lines]
    assert "16 rows that data.weight makes count as 1, fewer than min_rows = 10" in str(lines)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", [one_row, even])
def test_nor_in_judging(tmp_path: Path, masked: bool, weight: Callable[[int], float]) -> None:
    """Under masks judging counts rows alike, so that no weights can pick one."""
    four = Masked(tmp_path)
    for seed, name in enumerate(NAMES):
        with_weights(four.rows[name], weight if name == "north" else survey, seed)
        (four.made.paths[name] / "policy.toml").write_text(
            TEMPLATE.replace(*PLAIN).replace("min_rows = 10", "min_rows = 8")
        )
    plain = {} if masked else {"privacy": []}
    four.run("first", judge="nodes", data={**WEIGHTED, "test": 0.2}, rounds=1, **plain)
    left = [line.said["left"] for line in verified(four.made.paths["north"]).lines if "left" in line.said]
    assert ("figures" in left) is (masked or weight is even)


def test_an_office_of_twelve_with_survey_weights_is_masked_as_before(tmp_path: Path) -> None:
    """They count as nine: fewer than min_rows, which holds under masks where weights leave less than half of the rows."""
    four = Masked(tmp_path)
    for seed, name in enumerate(NAMES):
        path = with_weights(four.rows[name], survey, seed)
        if name == "north":
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:13]))
        (four.made.paths[name] / "policy.toml").write_text(TEMPLATE)
    with_weights(four.rows["test"], survey, 9)
    run = four.run("first", data=WEIGHTED, rounds=1)
    assert run.state.status == "finished", run.state.why
    assert "updates" in [line.said.get("left") for line in verified(four.made.paths["north"]).lines]


@pytest.mark.parametrize("rows", range(1, 8))
def test_rows_count_as_the_fewest_of_any_choice_of_them(rows: int) -> None:
    """Which batches a round takes is the experiment's word, so the weights of the worst ones are counted."""
    drawn = torch.Generator().manual_seed(rows)
    for weight in (torch.rand(7, generator=drawn) ** 4, torch.tensor([0.0, 0.0, 1, 2, 3, 4, 100])):
        each = [
            float(one.sum()) ** 2 / float((one**2).sum()) if bool(one.any()) else 0.0
            for one in (weight.double()[list(chosen)] for chosen in combinations(range(7), rows))
        ]
        assert rows_that_count(weight, rows) == int(min(each) + 1e-6)
    assert rows_that_count(torch.full((7,), 0.1), rows) == rows == rows_that_count(None, rows)
    assert rows_that_count(torch.zeros(7), rows) == 0


def test_what_judging_and_scores_are_made_of_is_counted(tmp_path: Path) -> None:
    """Both in the clear, at a site that wants more rows than it has."""
    node = Node(tmp_path, judging=True)
    judged = {"what": "judge", "message": {"judged": node.model}, "reduce": "sum", "landed": -1, "round": 0, "lr": 0.0}
    running = node.trainer.running("run")
    tested, trained = running.weights["test"][0], running.weights["train"][0]  # type: ignore[union-attr]
    written(node, f'label_counts = "plain"\nmin_rows = {tested + 1}\n')
    assert f"an answer made of {tested} rows that the server sees alone" in node.ask(**judged).head["why"]
    written(node, f'label_counts = "plain"\nmin_rows = {tested}\n')
    assert node.ask(**judged).kind == "reply"
    node = Node(tmp_path / "score", algorithm={"name": "hwfedavg"})
    score = {"what": "score", "message": {"P": torch.full((10,), 0.1, dtype=torch.float64)}}
    written(node, f'label_counts = "plain"\nmin_rows = {trained + 1}\n')
    said = node.ask(**score, reduce="each", single=True)
    assert f"an answer made of {trained} rows that the server sees alone" in said.head["why"]
    written(node, 'label_counts = "plain"\nmin_rows = 1\n')
    assert node.ask(**score, reduce="each", single=True).kind == "reply"


@pytest.mark.parametrize("filled", [1, 9, 10])
def test_a_column_of_a_few_cells_is_told_as_an_empty_one(tmp_path: Path, filled: int) -> None:
    """North has measured b of few: the sum over its column, the others filled with the median, was that cell."""
    four = Masked(tmp_path)
    for name in NAMES:
        (four.made.paths[name] / "policy.toml").write_text(TEMPLATE)
    first, *rows = [row.split(",") for row in four.rows["north"].read_text().splitlines()]
    short = [first, *([a, b if i < filled else "", y] for i, (a, b, y) in enumerate(rows))]
    four.rows["north"].write_text("\n".join(map(",".join, short)) + "\n")
    run = four.run("first", rounds=1, privacy=[], data={"name": "file", "label": "y", "missing": "median"})
    assert run.state.status == "finished", run.state.why
    kept = sorted((four.made.paths["north"] / "state" / "first" / "answers").glob("*.bin"))
    told = [decoded(Sums, codec.decode(path.read_bytes(), own=True)["body"].numpy().tobytes()).answer for path in kept]
    missing, *steps, moments = told
    assert missing["missing"].tolist() == [0, 40 - filled if filled == 10 else 40]
    assert any(step["at_most"][1].any() for step in steps) is (filled == 10)
    median = json.loads((run.folder / "run" / "preprocess.json").read_text())["rules"][1]["median"]
    assert bool(abs(moments["total"][1] - 40 * median) < 1e-6) is (filled < 10)
