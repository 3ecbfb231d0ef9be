"""Two judgements of which one lacks a node: their difference would be that node's rows by class, or its mean target, for any two models."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedatlas.deployment import node_judging
from fedatlas.deployment.audit import LOG
from fedatlas.deployment.node_judging import JUDGE
from fedatlas.deployment.nodes_link import NodesLink
from fedatlas.deployment.opened_answers import ANSWERS
from fedatlas.deployment.server_run import InitialAnswers, SubmittedRun
from fedatlas.deployment.terms import decoded
from fedatlas.deployment.trainer import Trainer
from fedatlas.federation.link import Request
from fedatlas.privacy.secagg import secure_sum
from fedatlas.privacy.secagg.secure_sum import KEYS
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import RawMessage
from nodes_in_process import LocalListener, serve_run
from test_same_answer import EVERYTHING, NAMES, Federation

DATA = {"name": "file", "label": "y", "test": 0.2}


@pytest.fixture
def four(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


OTHERWISE: dict[str, dict[str, Any]] = {
    "another share": {"data": {**DATA, "test": 0.3}},
    "another seed": {"seed": 2},
    "another label": {"data": {**DATA, "label": "a", "drop": ["y"]}},
    "another kind of target": {"data": {**DATA, "label": "b", "task": "numbers", "drop": ["y"]}},
    "cells left out": {"data": {**DATA, "na": ["0.5"], "missing": "drop"}},
}


# That no key makes another file of one is held for all of them by test_file_judged.
@pytest.mark.parametrize(
    "other", [pytest.param(one, marks=() if one == "another seed" else pytest.mark.slow) for one in OTHERWISE]
)
def test_other_rows_of_the_same_file_are_judged_among_the_same_nodes(
    four: Federation, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of a file are stratified: the rows of each class in one, with east, and in another, without, show those of east."""
    opens_what_it_can(monkeypatch)
    assert four.run("first", judge="nodes", rounds=1).state.status == "finished"
    four.run("second", Away(0, 1), judge="nodes", rounds=1, **OTHERWISE[other])
    for name in NAMES[:3]:
        assert not [who for who in sums_of(four, name) if "east" not in who]
        assert any("it has judged on rows of its file among other nodes before" in w for w in refusals_of(four, name))


def test_all_judge_where_few_are_drawn_for_a_round(four: Federation) -> None:
    """Every node refused to judge before round 1, as in a round of more nodes than the experiment draws."""
    run = four.run("first", judge="nodes", rounds=3, cohort={"fraction": 0.75})
    assert run.state.status == "finished", run.state.why
    assert sorted(NAMES) in sums_of(four, "north")


def test_of_several_models_the_first_is_judged_under_masks(four: Federation) -> None:
    """FedDyn has two, and a second sum of judgements of round 0 ended every such run."""
    run = four.run("first", judge="nodes", algorithm={"name": "feddyn"})
    assert run.state.status == "finished", run.state.why
    rows = [json.loads(line) for line in (run.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["accuracy"] is None for row in rows] == [False] * 3
    assert not any("models" in row for row in rows)
    assert any("only the first of the algorithm's models is judged" in notice for notice in summary_of(run)["notices"])


def test_all_together_judge_on_other_rows_too(four: Federation) -> None:
    """Which costs an honest operator nothing as long as the nodes are the same."""
    for place, other in enumerate(({}, OTHERWISE["another share"], OTHERWISE["another label"])):
        run = four.run(f"run-{place}", judge="nodes", **{"rounds": 1, **other})
        assert run.state.status == "finished", run.state.why
        assert not any(row["loss"] is None for row in rows_of(run))
    assert not [why for name in NAMES for why in refusals_of(four, name)]


def test_weights_that_differ_between_nodes_are_no_digits_of_a_judgement(
    four: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In base 1,000 the sum of the weights of each class was the rows of each class at each node; the server is honest."""
    opened, usual = list[Any](), secure_sum.decoded

    def decoded_sums(*given: Any) -> Any:
        found = usual(*given)
        opened.extend([found["true"]] if "true" in found else [])
        return found

    monkeypatch.setattr(secure_sum, "decoded", decoded_sums)
    for place, name in enumerate(NAMES):
        first, *rows = four.rows[name].read_text().splitlines()
        four.rows[name].write_text("\n".join([f"{first},w", *(f"{row},{1000**place}" for row in rows)]) + "\n")
    run = four.run("first", judge="nodes", rounds=1, data={**DATA, "weight": "w"})
    assert run.state.status == "finished", run.state.why
    assert len(opened) == 2
    assert all(sums.sum() == 4 * 8 for sums in opened), "every test row counts once"
    assert summary_of(run)["weighted"] is False
    assert any("counts every test row alike" in notice for notice in summary_of(run)["notices"])


def test_a_column_of_weights_makes_no_other_rows_of_them(four: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are all 1: with and without them the same rows of each class are told, once with east and once without."""
    opens_what_it_can(monkeypatch)
    for name in NAMES:
        first, *rows = four.rows[name].read_text().splitlines()
        four.rows[name].write_text("\n".join([f"{first},one", *(f"{row},1" for row in rows)]) + "\n")
    assert four.run("first", judge="nodes", data={**DATA, "drop": ["one"]}).state.status == "finished"
    four.run("second", Away(0, 1, 2), judge="nodes", data={**DATA, "weight": "one"})
    for name in NAMES[:3]:
        assert not [who for who in sums_of(four, name) if "east" not in who]
        assert any(
            "it has judged on rows of its file among other nodes before" in why for why in refusals_of(four, name)
        )


Lie = Callable[[dict[str, Any]], dict[str, Any]]


def lies(monkeypatch: pytest.MonkeyPatch, lie: Lie, number: int) -> None:
    """East judges so in this round."""
    honest, usual, lying = node_judging.sums_of, Trainer._answer, [False]

    def answer(trainer: Trainer, running: Any, request: Request) -> Any:
        lying[0] = trainer.bundle.name == "east" and request.round == number
        return usual(trainer, running, request)

    monkeypatch.setattr(Trainer, "_answer", answer)
    monkeypatch.setattr(node_judging, "sums_of", lambda *a: lie(honest(*a)) if lying[0] else honest(*a))


def judged_by(label: str) -> dict[str, Any]:
    return {"name": "file", "label": label, "test": 0.2, **({"drop": ["y"]} if label == "a" else {})}


def negative(sums: dict[str, Any]) -> dict[str, Any]:
    return {name: -1000 * x for name, x in sums.items()}


def of(place: int, value: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(sums: dict[str, Any]) -> dict[str, Any]:
        sums["sums"][place] = value
        return sums

    return changed


@pytest.mark.parametrize(
    ("label", "lie"),
    [
        ("y", negative),
        ("a", of(3, -1e6)),
        ("a", of(0, -24.0)),
        ("a", of(0, -25.0)),
        ("y", lambda sums: {"odd": sums["loss"]}),
    ],
)
def test_a_masked_judgement_that_cannot_be_costs_its_round_its_figures(
    four: Federation, label: str, lie: Lie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """East's numbers, which nobody sees but in the sum: below 0, or such that the weights of all add up to nothing."""
    lies(monkeypatch, lie, 1)
    run = four.run("first", judge="nodes", data=judged_by(label))
    assert run.state.status == "finished", run.state.why
    assert [row["loss"] is None for row in rows_of(run)] == [False, True, False]


@pytest.mark.parametrize(("label", "lie"), [("y", negative), ("a", of(0, -25.0))])
def test_one_in_the_last_round_leaves_the_run_its_model(
    four: Federation, label: str, lie: Lie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes were asked again, in a round that had landed, and the run ended as failed."""
    lies(monkeypatch, lie, 2)
    run = four.run("first", judge="nodes", data=judged_by(label))
    assert run.state.status == "finished", run.state.why
    assert [row["loss"] is None for row in rows_of(run)] == [False, False, True]
    assert "The final model could not be judged; the figures are those of round 1." in summary_of(run)["notices"]
    assert (run.folder / "run" / "model.safetensors").exists()
    assert not [why for name in NAMES for why in refusals_of(four, name)], "nobody is asked twice"


@pytest.mark.parametrize("masked", [False, True])
def test_a_node_without_test_rows_judges_nothing(
    four: Federation, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It judged on its first training row: two models whose answers are a cell each, and both columns were read."""

    def lie(answers: InitialAnswers, about: Any) -> Any:
        answers.judging = [0, 1, 2, 3]
        return None, about

    monkeypatch.setattr(InitialAnswers, "_test", lie)
    run = four.run("first", judge="nodes", data={"name": "file", "label": "y"}, **({} if masked else {"privacy": []}))
    assert run.state.status == "failed"
    for name in NAMES:
        lines = [json.loads(line) for line in (four.made.paths[name] / LOG).read_text().splitlines()]
        assert not [line for line in lines if line.get("left") == "figures"]
    assert "the nodes that judge are not those with test rows" in refusals_of(four, "north")[0]


class Away:
    """East hears nothing while the models of these rounds are judged."""

    def __init__(self, *rounds: int) -> None:
        self.rounds, self.judging = rounds, False

    def __call__(self, name: str, message: RawMessage) -> RawMessage | None:
        if message.kind == "ask":
            asked: Request = decoded(Request, message.body)
            if asked.what == KEYS:
                self.judging = asked.round in self.rounds and asked.message["ask"] == JUDGE
        else:
            self.judging = False
        return None if self.judging and name == "east" else message


def opens_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that opens the judgement of those who are there."""
    monkeypatch.setattr(NodesLink, "together", lambda link, patient: nullcontext())


def rows_of(run: SubmittedRun) -> list[Any]:
    return [json.loads(line) for line in (run.folder / "run" / "metrics.jsonl").read_text().splitlines()]


def summary_of(run: SubmittedRun) -> Any:
    return json.loads((run.folder / "run" / "summary.json").read_text())


def said_by(run: SubmittedRun) -> str:
    return (run.folder / "events.jsonl").read_text()


def sums_of(four: Federation, name: str) -> list[list[str]]:
    """The nodes of each sum that a node helped to open."""
    return [json.loads(line)["nodes"] for line in (four.made.paths[name] / ANSWERS).read_text().splitlines()]


def refusals_of(four: Federation, name: str) -> list[str]:
    lines = [json.loads(line) for line in (four.made.paths[name] / LOG).read_text().splitlines()]
    return [line["why"] for line in lines if line["kind"] == "refusal"]


@pytest.mark.parametrize("label", ["y", "a"])
def test_a_judgement_without_one_node_is_not_opened_after_one_with_it(
    four: Federation, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lies: it opens what it can. Of classes and of numbers; the model has changed in between."""
    opens_what_it_can(monkeypatch)
    run = four.run("first", Away(1), judge="nodes", data=judged_by(label))
    assert run.state.status == "finished", run.state.why
    for name in NAMES[:3]:
        assert sorted(NAMES) in sums_of(four, name)
        assert not [who for who in sums_of(four, name) if "east" not in who]
        assert any(
            "it has judged on rows of its file among other nodes before" in why for why in refusals_of(four, name)
        )
    assert [row["loss"] is None for row in rows_of(run)] == [False, True, False]


def test_nor_in_another_run_on_the_same_rows(four: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    opens_what_it_can(monkeypatch)
    assert four.run("first", judge="nodes").state.status == "finished"
    second = four.run("second", Away(0, 1, 2), judge="nodes", model={"hidden": [5]})
    assert second.state.status == "failed"
    assert second.state.why.count("give the server test rows of its own (--test)") == 3, "nothing was trained for it"
    assert all(len(who) == 4 for name in NAMES[:3] for who in sums_of(four, name))


def test_an_honest_server_leaves_out_the_figures_of_such_a_round(four: Federation) -> None:
    """Nothing is opened, so nothing is given up: with all nodes the next model is judged again."""
    run = four.run("first", Away(1), judge="nodes")
    assert run.state.status == "finished", run.state.why
    assert [row["loss"] is None for row in rows_of(run)] == [False, True, False]
    assert rows_of(run)[1]["clients"] == [0, 1, 2, 3], "who did not judge has trained all the same"
    assert "Not judged: round 1: 3 of 4 nodes answered, and the run needs 4 (east: no reply" in said_by(run)
    assert summary_of(run)["final"]["round"] == 2
    assert not [why for name in NAMES for why in refusals_of(four, name)]


def test_the_last_figures_stand_where_the_last_model_is_not_judged(four: Federation) -> None:
    run = four.run("first", Away(2), judge="nodes", stop={"patience": 5})
    assert run.state.status == "finished", run.state.why
    summary = summary_of(run)
    assert summary["final"]["round"] == 1
    assert summary["final"]["accuracy"] == rows_of(run)[1]["accuracy"]
    assert summary["best"]["accuracy"]["round"] in {0, 1}
    assert "The final model could not be judged; the figures are those of round 1." in summary["notices"]
    assert len(summary["per_client"]) == 4
    assert (run.folder / "run" / "report.html").exists()


def test_a_run_that_no_round_of_was_judged_says_so(four: Federation) -> None:
    run = four.run("first", Away(0, 1, 2), judge="nodes", stop={"patience": 5})
    assert run.state.status == "failed"
    assert run.state.why.startswith("the nodes could not judge any round: give the server test rows")
    assert len(rows_of(run)) == 3


def test_a_server_that_ended_before_the_summary_asks_nobody_again(four: Federation) -> None:
    """All rounds have landed, and a judgement of one that has is refused."""
    run = four.run("first", judge="nodes")
    before = summary_of(run)
    (run.folder / "run" / "summary.json").unlink()
    bundle = Bundle.open(four.made.paths["server"], "server")
    again = SubmittedRun(run.folder)
    serve_run(again, bundle, LocalListener(four.trainers, EVERYTHING), None)
    assert again.state.status == "finished", again.state.why
    assert summary_of(run)["final"].items() >= {"round": 2, "accuracy": before["final"]["accuracy"]}.items()
