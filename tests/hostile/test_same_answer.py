"""A server that has the same answers opened in two sums, which differ by one node: the difference would be that node's answer."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from agreements import Agreements, write_rows
from fedatlas.deployment.audit import LOG
from fedatlas.deployment.node_judging import JUDGE
from fedatlas.deployment.nodes_link import NodesLink
from fedatlas.deployment.opened_answers import ANSWERS, KEY, OpenedAnswers
from fedatlas.deployment.server_run import SubmissionState, SubmittedRun
from fedatlas.errors import DataError, PrivacyError
from fedatlas.privacy.protection import MADE, made_of
from fedatlas.privacy.secagg import secure_sum
from fedatlas.tree import Tree
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import RawMessage
from nodes_in_process import LocalListener, Tap, serve_run

NAMES = ("north", "south", "west", "east")
EVERYTHING: Tap = lambda name, message: message  # noqa: E731


class Federation:
    """Four nodes whose programs outlive a run, and a server that may lie."""

    def __init__(self, folder: Path) -> None:
        self.made = Agreements(folder, NAMES)
        self.rows = {name: write_rows(folder / f"{name}.csv", seed=k) for k, name in enumerate(NAMES)}
        self.rows["test"] = write_rows(folder / "test.csv", seed=9)
        self.restart()

    def restart(self) -> None:
        self.trainers = {name: self.made.trainer(name, self.rows[name]) for name in NAMES}

    def policy(self, name: str, line: str) -> None:
        path = self.made.paths[name] / "policy.toml"
        path.write_text(f"{line}\n{path.read_text()}")

    def run(self, name: str, tap: Tap = EVERYTHING, judge: str = "server", **tables: Any) -> SubmittedRun:
        data = {"name": "file", "label": "y", **({"test": 0.2} if judge == "nodes" else {})}
        config = self.made.config(**{"privacy": [{"name": "secagg"}], "rounds": 2, "data": data, **tables})
        signed, test = self.made.signed(name, config), None if judge == "nodes" else self.rows["test"]
        bundle, listener = Bundle.open(self.made.paths["server"], "server"), LocalListener(self.trainers, tap)
        rules = {"on_loss": "continue", "minimum": 3, "deadline": 3.0}
        run = SubmittedRun.create(bundle.path / "runs" / name, SubmissionState(signed, 0.0, "queued", "", rules))
        serve_run(run, bundle, listener, test)
        return run


@pytest.fixture
def four(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def without_east(name: str, message: RawMessage) -> RawMessage | None:
    """The server says that one node has left."""
    return None if name == "east" and message.kind == "ask" else message


@pytest.mark.parametrize("judge", ["server", "nodes"])
def test_the_same_run_again_is_not_opened_without_one_node(
    four: Federation, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 1 is equal bit for bit, and so is the judging of the first model: both sums together would show the one left out."""
    monkeypatch.setattr(NodesLink, "together", lambda link, patient: nullcontext())  # a server that opens what it can
    first = four.run("first", judge=judge)
    assert first.state.status == "finished", first.state.why
    known = {name: (four.made.paths[name] / ANSWERS).read_text() for name in NAMES}
    second = four.run("second", without_east, judge=judge)
    assert second.state.status == "failed"
    again = {
        "server": "repeat = false forbids: take another seed",
        "nodes": "repeat = false forbids: it has judged on rows",
    }
    assert second.state.why.count(again[judge]) == 3
    assert known == {name: (four.made.paths[name] / ANSWERS).read_text() for name in NAMES}
    for name in NAMES[:3]:  # no share has left
        lines = [json.loads(line) for line in (four.made.paths[name] / LOG).read_text().splitlines()]
        second_s = [line for line in lines if line.get("run") == "second" and line.get("what") == "secagg unmask"]
        assert [line["kind"] for line in second_s] == []
        assert lines[-1]["kind"] == "refusal"


def test_among_the_same_nodes_it_is_opened_again_also_after_a_restart(four: Federation) -> None:
    first = four.run("first")
    four.restart()
    second = four.run("second")
    assert second.state.status == "finished", second.state.why
    models = [run.folder / "run" / "model.safetensors" for run in (first, second)]
    assert models[0].read_bytes() == models[1].read_bytes()
    four.restart()
    assert four.run("third", without_east).state.status == "failed"


def test_another_seed_is_another_answer(four: Federation) -> None:
    assert four.run("first", rounds=1).state.status == "finished"
    assert four.run("second", without_east, seed=2, rounds=1).state.status == "finished"


def test_another_algorithm_may_share_a_part_of_the_answer(four: Federation) -> None:
    """FedAvg's model is SCAFFOLD's of round 1: four times the one mean less three times the other was east's update, to 4e-6."""
    fedavg: dict[str, Any] = {"name": "fedavg", "weights": "uniform"}
    assert four.run("first", algorithm=fedavg, rounds=1).state.status == "finished"
    second = four.run("second", without_east, algorithm={"name": "scaffold"}, rounds=1)
    assert second.state.status == "failed"
    assert second.state.why.count("repeat = false forbids: take another seed") == 3
    third = four.run("third", algorithm={"name": "scaffold"})
    assert third.state.status == "finished", third.state.why
    assert four.run("fourth", without_east, algorithm=fedavg).state.status == "failed"


def test_counts_that_may_leave_in_the_clear_are_counted_among_others(four: Federation) -> None:
    """HWFedAvg counts the same labels in each round, and needs label_counts = "plain": east may leave in the second."""

    def without_east_later(name: str, message: RawMessage) -> RawMessage | None:
        later = message.kind == "ask" and message.head["place"][0] > 1
        return None if name == "east" and later else message

    run = four.run("first", without_east_later, algorithm={"name": "hwfedavg"}, rounds=2)
    assert run.state.status == "finished", run.state.why
    again = four.run("second", without_east, algorithm={"name": "hwfedavg"}, rounds=1)
    assert again.state.status == "failed"  # the update of round 1 is no count


def test_a_policy_may_allow_it(four: Federation) -> None:
    for name in NAMES:
        four.policy(name, "repeat = true")
    assert four.run("first", rounds=1).state.status == "finished"
    second = four.run("second", without_east, rounds=1)
    assert second.state.status == "finished", second.state.why


def test_the_log_names_those_who_shared(four: Federation) -> None:
    """East has left before: three are in the sum that hides the update."""
    four.run("first", without_east, rounds=1)
    lines = [json.loads(line) for line in (four.made.paths["north"] / LOG).read_text().splitlines()]
    assert [line["cohort"] for line in lines if line.get("left") == "updates"] == [[*NAMES[:3]]]


def test_the_log_names_them_again_after_a_restart(four: Federation) -> None:
    """The session is gone by then, and a line named all four, who were asked."""
    asked, again = list[RawMessage](), list[RawMessage]()

    def noting(name: str, message: RawMessage) -> RawMessage | None:
        if name == "north" and message.kind == "ask":
            asked.append(message)
        if name == "north" and message.kind == "commit" and not again:
            four.trainers["north"] = four.made.trainer("north", four.rows["north"])
            again.extend(said for one in asked for said in four.trainers["north"].serve(one))
        return without_east(name, message)

    four.run("first", noting, rounds=1)
    lines = [json.loads(line) for line in (four.made.paths["north"] / LOG).read_text().splitlines()]
    updates = [line for line in lines if line.get("left") == "updates"]
    assert [bool(line.get("again")) for line in updates] == [False, True], [said.kind for said in again]
    assert [line["cohort"] for line in updates] == [[*NAMES[:3]]] * 2
    assert len([line for line in lines if line.get("again")]) == len(asked)


def test_another_weight_of_one_node_is_another_sum_to_all(four: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """East's answer would be the difference; that east refuses is not enough, since the others' shares open the sum without it."""
    usual, of_east = secure_sum.weights, [1.0]

    def told(ask: Any, place: Any, asked: tuple[int, ...]) -> dict[int, dict[str, list[Any]]]:
        given = usual(ask, place, asked)
        if ask.what != "train":
            return given
        weights = {k: of_east[0] if k == 3 else 1.0 for k in asked}
        return {k: {part: ["told", weights[k], weights[k]] for part in one} for k, one in given.items()}

    monkeypatch.setattr(secure_sum, "weights", told)
    assert four.run("first", algorithm={"name": "hwfedavg"}).state.status == "finished"
    of_east[0] = 0.5
    second = four.run("second", algorithm={"name": "hwfedavg"})
    assert second.state.status == "failed"
    assert second.state.why.count("repeat = false forbids: take another seed") == 4


# ---------------------------------------------------------------------- the record by itself


def session(*numbers: float, weight: float = 1.0, what: str = "train") -> dict[str, Any]:
    """A session whose answer is these numbers."""
    return {MADE: made_of({"model": Tree(w=torch.tensor(numbers))}, {"weights": {"": ["told", weight, weight]}}, what)}


def test_what_is_opened_is_told_by_the_node_s_key_alone(tmp_path: Path) -> None:
    opened = OpenedAnswers(tmp_path)
    opened.opening(session(1.0, 2.0), ("a", "b", "c"), repeat=False)
    (line,) = (tmp_path / ANSWERS).read_text().splitlines()
    assert session(1.0, 2.0)[MADE]["answer"] not in line
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600
    with pytest.raises(PrivacyError, match="repeat = false"):
        opened.opening(session(1.0, 2.0), ("a", "b"), repeat=False)
    with pytest.raises(PrivacyError, match="repeat = false"):  # two weightings of the same answers are two equations
        opened.opening(session(1.0, 2.0, weight=0.5), ("a", "b", "c"), repeat=False)
    opened.opening(session(1.0, 2.0), ("c", "b", "a"), repeat=False)
    opened.opening(
        session(1.0, 2.5), ("a", "b"), repeat=False
    )  # with fresh noise in it the same work is another answer
    opened.opening(session(0.0), ("a", "b", "c"), repeat=False)
    opened.opening(session(0.0), ("a", "b"), repeat=False)  # zeros tell nothing
    with pytest.raises(PrivacyError, match="in which this node has no answer"):
        opened.opening({MADE: {}}, ("a", "b", "c"), repeat=False)


def test_judgements_of_two_models_are_one_answer(tmp_path: Path) -> None:
    """The rows of each class are in both; a constant class shows them once more, as its hits."""
    opened = OpenedAnswers(tmp_path)
    opened.opening(session(5.0, 3.0, 4.0, what=JUDGE), ("a", "b", "c"), repeat=False, source="this")
    opened.opening(session(5.0, 3.0, 5.0, what=JUDGE), ("a", "b", "c"), repeat=False, source="this")
    with pytest.raises(PrivacyError, match="repeat = false forbids: it has judged on rows of its file"):
        opened.opening(session(5.0, 3.0, 5.0, what=JUDGE), ("a", "b"), repeat=False, source="this")
    opened.opening(session(5.0, 3.0, 5.0, what=JUDGE), ("a", "b"), repeat=False, source="another")
    opened.opening(session(5.0, 3.0, 5.0, what=JUDGE), ("a", "b"), repeat=True, source="this")


def test_each_part_with_tensors_is_an_answer(tmp_path: Path) -> None:
    """A plain number, or zeros, is none: every round may have the same."""
    opened, word = OpenedAnswers(tmp_path), {"weights": {"": ["told", 1.0, 1.0]}}

    def of(**parts: Any) -> dict[str, Any]:
        return {MADE: made_of(parts, word, "train")}

    one, other, none = (Tree(w=torch.tensor([x])) for x in (1.0, 2.0, 0.0))
    opened.opening(of(model=one, more=none, steps=5.0), ("a", "b", "c"), repeat=False)
    opened.opening(of(model=other, more=none, steps=5.0), ("a", "b"), repeat=False)
    for parts in ({"model": one}, {"model": one, "more": other}, {"model": one, "steps": 6.0}):
        with pytest.raises(PrivacyError, match="repeat = false"):
            opened.opening(of(**parts), ("a", "b"), repeat=False)
        opened.opening(of(**parts), ("a", "b", "c"), repeat=False)


def test_a_record_without_its_key_is_said_to_be_one(tmp_path: Path) -> None:
    OpenedAnswers(tmp_path).opening(session(1.0), ("a", "b", "c"), repeat=False)
    with (tmp_path / ANSWERS).open("a") as file:
        file.write('{"answer": "cut sho')
    again = OpenedAnswers(tmp_path)
    with pytest.raises(PrivacyError, match="repeat = false"):
        again.opening(session(1.0), ("a", "b"), repeat=False)
    (tmp_path / KEY).unlink()
    with pytest.raises(DataError, match=r"'opened\.key' is gone"):
        again.opening(session(2.0), ("a", "b", "c"), repeat=False)
