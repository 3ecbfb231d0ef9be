"""Who counts in a sum: an authority that adds nodes of its own, a server that gives them all the weight, and a node that is revoked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agreements import Agreements, write_rows
from fedatlas.deployment.audit import LOG
from fedatlas.deployment.server_run import SubmissionState, SubmittedRun
from fedatlas.deployment.terms import decoded
from fedatlas.federation.link import Request
from fedatlas.privacy.secagg import secure_sum
from fedatlas.privacy.secagg.secure_sum import KEYS, SHARES
from fedatlas.wire.bundle import Bundle, revoke
from fedatlas.wire.frames import RawMessage
from nodes_in_process import LocalListener, Tap, serve_run

NAMES = ("north", "south", "west", "east", "isle")


class Federation:
    """Five nodes, and one run of theirs in one process. ``policy``: of north, before what the others have, too."""

    def __init__(self, folder: Path, policy: str, names: Sequence[str] = NAMES) -> None:
        self.made = Agreements(folder, names)
        path = self.made.paths["north"] / "policy.toml"
        text = path.read_text().replace("min_cohort = 2", f"{policy}  ")
        path.write_text(text)
        rows = {name: write_rows(folder / f"{name}.csv", seed=k) for k, name in enumerate(names)}
        self.test = write_rows(folder / "test.csv", seed=9)
        self.trainers = {name: self.made.trainer(name, rows[name]) for name in names}

    def run(self, tap: Tap = lambda name, message: message, **tables: Any) -> SubmittedRun:
        config = self.made.config(**{"rounds": 1, **tables})
        bundle = Bundle.open(self.made.paths["server"], "server")
        rules = {"on_loss": "continue", "minimum": 3, "deadline": 1.0}
        state = SubmissionState(self.made.signed("run", config), 0.0, "queued", "", rules)
        run = SubmittedRun.create(bundle.path / "runs" / "run", state)
        serve_run(run, bundle, LocalListener(self.trainers, tap), self.test)
        return run

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.made.paths[name] / LOG).read_text().splitlines()]

    def updates(self, name: str) -> list[dict[str, Any]]:
        """The answers of a node that held an update."""
        return [line for line in self.lines(name) if line["kind"] == "answer" and line.get("left") == "updates"]

    def refusals(self, name: str) -> str:
        return "; ".join(line["why"] for line in self.lines(name) if line["kind"] == "refusal")


def rows_of(run: SubmittedRun) -> list[Any]:
    return [json.loads(line) for line in (run.folder / "run" / "metrics.jsonl").read_text().splitlines()]


def told(
    ask: Any, given: dict[int, dict[str, list[Any]]], weights: dict[int, float]
) -> dict[int, dict[str, list[Any]]]:
    """Other weights in place of those given, of updates."""
    if ask.what != "train":
        return given
    return {k: {part: ["told", weights[k], weights[k]] for part in one} for k, one in given.items()}


FREE = {"algorithm": {"name": "hwfedavg"}, "privacy": [{"name": "secagg"}]}
"""Of this algorithm's weights a node knows nothing before it is told them."""


class Leaves:
    """Isle goes silent once its shares are with the others; ``since``: it is asked for this, before which it answers all."""

    def __init__(self, since: str = "") -> None:
        self.since = since

    def __call__(self, name: str, message: RawMessage) -> RawMessage | None:
        asked = decoded(Request, message.body).what if message.kind == "ask" else ""
        if name == "isle" and asked == self.since:
            self.since = ""
        return None if name == "isle" and not self.since and asked not in {"", KEYS, SHARES} else message


def test_what_one_node_wants_of_a_sum_holds_without_its_shares(tmp_path: Path) -> None:
    """North wants six. Of a sum of five that holds its input the four others could give all the shares; so it leaves before."""
    six = Federation(tmp_path, "min_cohort = 6", (*NAMES, "cape"))
    run = six.run(Leaves(), privacy=[{"name": "secagg", "threshold": 0.51}])
    assert not six.updates("north")
    assert "4 others could open a sum in which 5 count for client 0, which wants 6 (min_cohort)" in six.refusals(
        "north"
    )
    assert "write privacy.secagg.threshold = 0.67 or more" in six.refusals("north")
    assert all(0 not in row["clients"] for row in rows_of(run))


@pytest.mark.parametrize("leaves", [False, True])
def test_with_the_threshold_that_it_names_the_node_takes_part(tmp_path: Path, leaves: bool) -> None:
    six = Federation(tmp_path, "min_cohort = 6", (*NAMES, "cape"))
    run = six.run(*([Leaves()] if leaves else []), rounds=1, privacy=[{"name": "secagg", "threshold": 0.67}])
    assert six.updates("north")
    counted = [row["clients"] for row in rows_of(run)[1:]]
    assert counted == [[]] if leaves else counted == [[0, 1, 2, 3, 4, 5]], "no sum without all six"


def test_only_members_count_among_those_that_have_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """South and west stay in the sum with a weight of 0: it holds north's update and those of the authority's own nodes."""
    usual = secure_sum.weights

    def lying(ask: Any, place: Any, asked: tuple[int, ...]) -> dict[int, dict[str, list[Any]]]:
        heavy = {k: 0.0 if k in {1, 2} else 1.0 for k in asked}
        return told(ask, usual(ask, place, asked), heavy)

    five = Federation(tmp_path, 'min_cohort = 3\nmembers = ["north", "south", "west"]')
    monkeypatch.setattr(secure_sum, "weights", lying)
    five.run(**FREE)
    assert not five.updates("north")
    assert "too few of those in the sum have a weight in it" in five.refusals("north")


@pytest.mark.parametrize("privacy", [[], [{"name": "secagg"}]])
def test_a_revoked_node_does_not_count(tmp_path: Path, privacy: list[Any]) -> None:
    """The server goes on with a node whose certificate the others know to be revoked."""
    five = Federation(tmp_path, "min_cohort = 5")
    revoke(tmp_path / "federation", "isle")
    run = five.run(privacy=privacy)
    assert run.state.status == "failed"
    assert "a round of 4 nodes, fewer than min_cohort = 5" in run.state.why


def test_a_weight_of_somebody_outside_the_sum_hides_no_single_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Isle is said to be gone, with a weight beside which north's seems none; all others' are 0, so that the sum is north's update."""
    usual = secure_sum.weights

    def lying(ask: Any, place: Any, asked: tuple[int, ...]) -> dict[int, dict[str, list[Any]]]:
        heavy = {**dict.fromkeys(asked, 0.0), 0: 1.0, 4: 1e9}
        return told(ask, usual(ask, place, asked), heavy)

    def without_isle(name: str, message: RawMessage) -> RawMessage | None:
        return None if name == "isle" and message.kind == "ask" else message

    five = Federation(tmp_path, "min_cohort = 3")
    monkeypatch.setattr(secure_sum, "weights", lying)
    monkeypatch.setattr(secure_sum, "weighty", lambda pulls, who: None)
    five.run(without_isle, **FREE)
    assert not five.updates("north")
    assert "too few of those in the sum have a weight in it" in five.refusals("north")


def test_what_one_node_wants_holds_for_the_weights_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """South weighs nothing, so of five that count one may leave: the four others could then open a sum of four with north's input."""
    usual = secure_sum.weights

    def lying(ask: Any, place: Any, asked: tuple[int, ...]) -> dict[int, dict[str, list[Any]]]:
        return told(ask, usual(ask, place, asked), {k: 0.0 if k == 1 else 1.0 for k in asked})

    six = Federation(tmp_path, "min_cohort = 5", (*NAMES, "cape"))
    monkeypatch.setattr(secure_sum, "weights", lying)
    six.run(Leaves("train"), **{**FREE, "privacy": [{"name": "secagg", "threshold": 0.51}]})
    assert not six.updates("north")
    assert "others could open a sum in which 4 count for client 0, which wants 5 (min_cohort)" in six.refusals("north")
