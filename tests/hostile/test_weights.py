"""A server that weighs a masked sum otherwise than the experiment does: one opened sum would show what one node sent, or what each did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agreements import write_rows
from fedatlas.deployment.audit import LOG, left_text, verified
from fedatlas.deployment.node_judging import JUDGE
from fedatlas.privacy.reasons import weighs
from fedatlas.privacy.secagg import secure_sum
from fedatlas.wire.policy import TEMPLATE
from federation import brief
from protected import ADMITTED
from test_same_answer import NAMES, Federation

DIGITS = tuple(2.0 ** (5 * k - 18) for k in range(4))  # in base 32 the counts of four nodes side by side
ALONE = (1.0, 2e-6, 2e-6, 2e-6)  # above what counts as none, and north's update to six digits
WEIGHS = "weighs this sum otherwise than the experiment"


@pytest.fixture
def four(tmp_path: Path) -> Federation:
    """Under the policy that a bundle begins with."""
    made = Federation(tmp_path)
    for name in NAMES:
        (made.made.paths[name] / "policy.toml").write_text(TEMPLATE)
    return made


def lines(four: Federation, name: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (four.made.paths[name] / LOG).read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def lie(
    monkeypatch: pytest.MonkeyPatch, what: str, weights: Any = None, head: Callable[[Any], Any] = lambda x: x
) -> None:
    """The server tells these weights in an ask for ``what``, and a ``head`` of its own."""
    honest, usual = secure_sum.weights, secure_sum.headed

    def told(ask: Any, place: Any, asked: Any) -> Any:
        given = honest(ask, place, asked)
        return weights(given) if ask.what == what and weights is not None else given

    monkeypatch.setattr(secure_sum, "weights", told)
    monkeypatch.setattr(secure_sum, "weighty", lambda pulls, who: None)
    monkeypatch.setattr(
        secure_sum, "headed", lambda ask, *more: (head if ask.what == what else lambda x: x)(usual(ask, *more))
    )


def each(*weights: float) -> Callable[[Any], Any]:
    return lambda given: {k: {"": ["told", weights[k], weights[k]]} for k in given}


def by_rows(given: Any) -> Any:
    return {k: {"": ["rows", 1.0, 1.0]} for k in given}


@pytest.mark.parametrize("what", [JUDGE, "counts"])
def test_a_sum_is_not_weighed_as_a_mean(four: Federation, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits of the one sum that was opened were the rows of each class at each node."""
    lie(monkeypatch, what, each(*DIGITS), lambda head: head._replace(mean=True))
    tables = {} if what == JUDGE else {"algorithm": {"name": "hwfedavg"}}
    four.run("first", judge="nodes" if what == JUDGE else "server", rounds=1, **tables)
    for name in NAMES:
        left = {"figures", "label counts"} & {line.get("left", "") for line in lines(four, name, "answer")}
        assert not left
        assert any(WEIGHS in line["why"] for line in lines(four, name, "refusal"))


LIES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "one node's alone": (each(*ALONE), lambda head: head),
    "a sign of its own": (each(1.0, 1.0, 1.0, -1.0), lambda head: head),
    "beyond the range": (each(*[1e9] * 4), lambda head: head),
    "a sum": (None, lambda head: head._replace(mean=False)),
    "a part as a sum": (None, lambda head: head._replace(sums=("model",))),
    "a part that there is not": (
        lambda given: {k: {**one, "spy": ["told", 1.0, 1.0]} for k, one in each(*ALONE)(given).items()},
        lambda head: head,
    ),
}


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("one", [*LIES, "the other way"])
def test_an_update_is_weighed_as_the_experiment_says(
    four: Federation, one: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = each(*[0.25] * 4) if weights == "samples" else by_rows
    lie(monkeypatch, "train", *LIES.get(one, (other, lambda head: head)))
    four.run("first", rounds=1, algorithm={"name": "fedavg", "weights": weights})
    for name in NAMES:
        assert "updates" not in {line.get("left") for line in lines(four, name, "answer")}
        assert any(WEIGHS in line["why"] for line in lines(four, name, "refusal"))


@pytest.mark.parametrize("name", ["hwfedavg", pytest.param("nwfedavg", marks=pytest.mark.slow)])
def test_weights_that_the_server_computes_hide_nobody_below_a_hundredth(
    four: Federation, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What weights follow from the labels of all nodes no node can compute."""
    for node in NAMES:
        four.policy(node, 'label_counts = "plain"')
        path = four.made.paths[node] / "policy.toml"
        path.write_text(path.read_text().replace('label_counts = "masked"', "", 1))
    first = four.run("first", rounds=1, algorithm={"name": name})
    assert first.state.status == "finished", first.state.why
    lie(monkeypatch, "train", each(1.0, 5e-3, 5e-3, 5e-3))
    four.run("second", rounds=1, seed=2, algorithm={"name": name})
    for node in NAMES:
        assert any("too few of those in the sum have a weight" in line["why"] for line in lines(four, node, "refusal"))


@pytest.mark.parametrize("weights", ["samples", pytest.param("uniform", marks=pytest.mark.slow)])
def test_an_honest_server_is_answered(four: Federation, weights: str) -> None:
    run = four.run("first", judge="nodes", algorithm={"name": "fedavg", "weights": weights})
    assert run.state.status == "finished", run.state.why
    assert not lines(four, "north", "refusal")


# ---------------------------------------------------------------------- one node that holds nearly all rows


ROWS_AND_WEIGHTS = pytest.mark.parametrize(
    ("rows", "weights"),
    [(600, "samples"), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(600, "uniform"), (300, "samples")])],
)


def told_of(four: Federation, run: Any) -> list[str]:
    notices: list[str] = json.loads((run.folder / "run" / "summary.json").read_text())["notices"]
    return [one for one in notices if "is nearly its own update" in one]


@ROWS_AND_WEIGHTS
def test_a_mean_that_is_nearly_one_update_is_called_so(four: Federation, rows: int, weights: str) -> None:
    """North holds 600 rows, the others 12 each: nothing is refused unasked, since such offices are common."""
    sized(four, rows)
    run = four.run("first", rounds=1, algorithm={"name": "fedavg", "weights": weights})
    assert run.state.status == "finished", run.state.why
    lopsided = (rows, weights) == (600, "samples")
    assert bool(told_of(four, run)) is lopsided
    for name in NAMES:
        said = left_text(verified(four.made.paths[name]).lines)
        assert ("held up to 94.3% of the training rows" in said) is (lopsided and name == "north")


@ROWS_AND_WEIGHTS
def test_a_node_may_refuse_to_be_nearly_the_whole_sum(four: Federation, rows: int, weights: str) -> None:
    sized(four, rows)
    four.policy("north", "max_weight_share = 0.9")
    run = four.run("first", rounds=1, judge="nodes", algorithm={"name": "fedavg", "weights": weights})
    left = {line.get("left") for line in lines(four, "north", "answer")}
    refused = [line["why"] for line in lines(four, "north", "refusal")]
    if (rows, weights) == (600, "samples"):
        assert run.state.status == "failed"
        assert not {"updates", "figures"} & left
        assert all(
            "more than max_weight_share = 0.9 of all: it would be nearly its own update" in why for why in refused
        )
        assert refused
        assert "max_weight_share" in run.state.why
    else:
        assert run.state.status == "finished", run.state.why
        assert not refused


@pytest.mark.parametrize("share", [0.95, pytest.param(0.9, marks=pytest.mark.slow)])
def test_nor_by_weights_that_the_server_computes(
    four: Federation, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North would be 94% of a sum of hwfedavg, in which each of the others weighs more than a hundredth of that."""
    for node in NAMES:
        four.policy(node, 'label_counts = "plain"')
        path = four.made.paths[node] / "policy.toml"
        path.write_text(path.read_text().replace('label_counts = "masked"', "", 1))
    four.policy("north", f"max_weight_share = {share}")
    lie(monkeypatch, "train", each(1.0, 0.02, 0.02, 0.02))
    four.run("first", rounds=1, algorithm={"name": "hwfedavg"})
    refused = [line["why"] for line in lines(four, "north", "refusal")]
    assert ("updates" in {line.get("left") for line in lines(four, "north", "answer")}) is (share == 0.95)
    assert any("weighs more than 0.9 of this sum" in why for why in refused) is (share == 0.9)


def sized(four: Federation, rows: int) -> None:
    """North holds so many rows, the others twelve each; with 300, nearly nine tenths of all."""
    for seed, name in enumerate(NAMES):
        write_rows(four.rows[name], rows if name == "north" else 12, seed)


def test_of_most_algorithms_a_node_knows_the_weights() -> None:
    """Those of which it does not, by name, are in docs/security.md."""
    unknown = {name for name in ADMITTED if not weighs(brief(name), "model")}
    assert unknown == {"hwfedavg", "nwfedavg"}
