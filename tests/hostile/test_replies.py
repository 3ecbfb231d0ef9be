"""Nodes that lie in their replies: the server compares with what an honest one looks like, and loses the node, not the run."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agreements import Agreements, write_rows
from deployments import NAMES, answers_of, deployment, experiment, rows_of
from fedatlas.algorithm import Work
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import parse
from fedatlas.config.experiment import RoundConfig
from fedatlas.course.rounds import Parties, Simulation
from fedatlas.deployment import node_setup
from fedatlas.deployment.node_judging import judges, with_judging
from fedatlas.deployment.node_rows import RowCounts, agreed, coded, read_rows
from fedatlas.deployment.nodes_link import NodesLink
from fedatlas.deployment.refusals import deployable, undeployable
from fedatlas.deployment.server_run import MOST_ROWS, WIDEST, InitialAnswers, read_facts, read_sums
from fedatlas.deployment.streams_host import rows_host
from fedatlas.deployment.terms import Sums, encoded
from fedatlas.deployment.trial_rows import deal
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.errors import ProtocolError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.record.run_folder import RunFolder
from fedatlas.summaries import COLUMN_MOMENTS
from fedatlas.tree import Tree
from fedatlas.wire import codec
from fedatlas.wire.agreement import digest_of
from fedatlas.wire.fields import plain
from fedatlas.wire.listener import StreamEnded
from fedatlas.wire.messages import FactsQuestion, NodeFacts, NodeHello, RunUnknown, TaskReply
from lying_trainer import PLAIN
from nodes_in_process import run_here

LOOP = Plan("loop", "loop", 1, 1, 1, "float32", "cpu", "a test")
DEPLOYABLE = [name for name, made in ALGORITHMS.items() if not undeployable(made())]
Lie = Callable[[Request, Reply, Work], tuple[Reply, Work]]


class Played:
    """The server's half of a run against three nodes in this process, the last of which may lie in what it sends."""

    run = "r"

    def __init__(self, folder: Path, lie: Lie | None = None, judge: str = "nodes", **tables: Any) -> None:
        config = parse(experiment(**{"rounds": 2, "local": {"epochs": 1}, **tables}))
        deal(config, NAMES, folder, judge)
        whole = deployable(config, NAMES)
        self.lie, self.work, self.verdicts = lie, dict[int, Work](), dict[int, Any]()
        self.rollbacks: dict[int, int] = {}
        self.closed = SimpleNamespace(attempt=lambda number: 0)
        self.check: Any = None
        self.lost: list[tuple[str, str]] = []  # (task, why)
        held = [read_rows(folder / f"{name}.rows", whole.config) for name in NAMES]
        about, answers = agreed({name: one.facts for name, one in zip(NAMES, held, strict=True)}), made(whole)
        splits = [coded(one, about) for one in held]
        asked = lambda summary, message: [node_setup.answered(summary, message, one["train"]) for one in splits]  # noqa: E731
        sizes = {name: len(one["train"].y) for name, one in zip(NAMES, splits, strict=True)}
        setup = node_setup.server_setup(whole, about, sizes, node_setup.asking(asked, answers.totals), None)
        setup, answers.about = with_judging(setup), about
        self.halves = []
        for k, one in enumerate(splits):
            own = node_setup.node_setup(whole, about, one, k, len(NAMES), node_setup.replayed(about, answers.totals))
            own = with_judging(own, judges(own))
            rows = {k: len(one["train"].y)}
            executor = make_executor(LOOP, own.bench, rows.values())
            self.halves.append(PartyHalf(own.bench, executor, PartyState(), rows, config.seed))
        self.host = rows_host(setup, self, None, [0, 1, 2], answers.example)  # type: ignore[arg-type]
        self.course = Simulation(
            setup, RunFolder.create(folder / "run", whole.config), parties=Parties(LOOP, self.host)
        )

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:  # noqa: ARG002
        for request in requests:
            (answer,) = self.halves[request.client].answer([request])
            reply, work = answer.reply, answer.work
            if self.lie is not None and request.client == 2:
                reply, work = self.lie(request, reply, work)
            if why := self.check(request, reply, work):
                self.lost.append((request.what, why))
                continue
            self.work[request.client] = work
            yield reply

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:  # noqa: ARG002
        for half in self.halves:
            half.commit(round, counted)

    def landed(self, number: int) -> None:
        """Nothing is kept here."""

    def play(self) -> list[Mapping[str, Any]]:
        rows = [self.course.begin()]
        for _ in range(2):
            rows.append(self.course.step())
            self.course.land(rows[-1])
        return rows


def made(whole: Any) -> InitialAnswers:
    """The server's answers of round 0, without a server."""
    answers = object.__new__(InitialAnswers)
    answers.whole, answers.names, answers.totals, answers.judging, answers.plan = (
        whole,
        tuple(NAMES),
        [],
        [0, 1, 2],
        LOOP,
    )
    return answers


@pytest.mark.parametrize("name", DEPLOYABLE)
@pytest.mark.parametrize("compression", [{}, {"compression": {"name": "topk"}}], ids=["plain", "topk"])
def test_no_honest_reply_is_refused_and_the_form_of_each_is_known(tmp_path: Path, name: str, compression: Any):
    played = Played(tmp_path, algorithm={"name": name}, **compression)
    rows = played.play()
    assert [row["clients"] for row in rows[1:]] == [[0, 1, 2]] * 2
    assert not played.lost
    forms = played.host.forms
    assert forms is not None
    assert all(form is not None for form in forms.known.values())
    assert {what for what, *_ in forms.known} == {*played.host.server.algorithm.tasks}


def in_update(part: str, value: Any) -> Lie:
    return lambda request, reply, work: (reply._replace(update={**reply.update, part: value}), work)


ODD_PARTS: Mapping[str, Any] = {
    "text": "none of the kind",
    "None": None,
    "5": 5,
    "inf": math.inf,
    "True": True,
    "a list": [1.0],
    "another tree": Tree({"x": torch.zeros(3)}),
    "a table": {},
    "a tensor": torch.zeros(3),
}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "hwfedavg"])
@pytest.mark.parametrize("odd", ODD_PARTS)
def test_something_else_in_the_place_of_a_part_loses_the_node_at_every_ask(tmp_path: Path, name: str, odd: str):
    def lie(request: Request, reply: Reply, work: Work) -> tuple[Reply, Work]:
        return in_update(next(iter(reply.update)), ODD_PARTS[odd])(request, reply, work)

    played = Played(tmp_path, lie, algorithm={"name": name})
    rows = played.play()
    assert [row["clients"] for row in rows[1:]] == [[0, 1]] * 2
    assert {what for what, _ in played.lost} >= {"judge"}
    assert all(why for _, why in played.lost)


def scaled(by: float) -> Lie:
    return lambda request, reply, work: (
        reply._replace(update={part: value * by for part, value in reply.update.items()}), work
    )  # fmt: skip


LIES: Mapping[str, Lie] = {
    "a part more": in_update("more", torch.zeros(1)),
    "a part less": lambda request, reply, work: (reply._replace(update={}), work),
    "not finite": scaled(math.nan),
    "another type": lambda request, reply, work: (
        reply._replace(update={"model": Tree(reply.update["model"]).to(torch.float64)} if "model" in reply.update else {}), work
    ),
    "too many rows": lambda request, reply, work: (reply, work._replace(n_k=1 << 40)),
    "too many steps": lambda request, reply, work: (reply, work._replace(steps=1 << 40, examples=1 << 41)),
    "examples without steps": lambda request, reply, work: (reply, work._replace(steps=0, examples=10)),
    "too large a loss": lambda request, reply, work: (reply, work._replace(steps=1, examples=1, loss=1e308)),
    "no loss": lambda request, reply, work: (reply, work._replace(steps=1, examples=1, loss=math.nan)),
    "rates": lambda request, reply, work: (reply, work._replace(lr_sum=1e308)),
    "seconds": lambda request, reply, work: (reply._replace(seconds=1e308), work),
    "seconds below 0": lambda request, reply, work: (reply._replace(seconds=-1.0), work),
    "bytes": lambda request, reply, work: (reply._replace(bare=1 << 62), work),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_that_cannot_be_loses_the_node_and_not_the_run(tmp_path: Path, lie: str):
    played = Played(tmp_path, LIES[lie], algorithm={"name": "fedavg"})
    rows = played.play()
    assert [row["clients"] for row in rows[1:]] == [[0, 1]] * 2
    assert played.lost


def test_judgements_below_nothing_are_not_added_up(tmp_path: Path):
    played = Played(tmp_path, lambda request, reply, work: (
        scaled(-1.0)(request, reply, work) if request.what == "judge" else (reply, work)
    ))  # fmt: skip
    played.play()
    assert {why for what, why in played.lost if what == "judge"} == {"the sums of its judgement cannot be"}


def test_numbers_that_an_algorithm_cannot_compute_with_close_the_round_and_not_the_run(tmp_path: Path):
    """A score of 0 has the form of an honest one; 1 / 0 has no value."""

    def lie(request: Request, reply: Reply, work: Work) -> tuple[Reply, Work]:
        zero = {name: torch.zeros_like(x) for name, x in reply.update.items()}
        return (reply._replace(update=zero) if request.what == "score" else reply), work

    played = Played(tmp_path, lie, algorithm={"name": "hwfedavg", "exclude_above": 1.0})
    rows = played.play()
    assert len(rows) == 3
    assert "what the nodes say cannot be computed with" in played.host.given_up


@pytest.mark.parametrize("odd", ["text", None, 5, math.inf, torch.zeros(2), torch.full((3,), torch.inf)])
def test_sums_of_another_form_are_refused_with_a_sentence(odd: Any):
    form = {"n": torch.zeros(3, dtype=torch.float64), "rows": 2}
    assert read_sums(encoded(Sums({"n": torch.ones(3, dtype=torch.float64), "rows": 7})), form)["rows"] == 7
    for name in form:
        if name == "rows" and type(odd) is int:
            continue
        with pytest.raises(ProtocolError, match=r"^'\w+' of its reply is not"):
            read_sums(encoded(Sums({"n": torch.ones(3, dtype=torch.float64), "rows": 7, name: odd})), form)


def test_rows_that_no_memory_holds_are_refused(tmp_path: Path):
    config = parse(experiment())
    deal(config, NAMES, tmp_path)
    facts = read_rows(tmp_path / "north.rows", config).facts
    assert read_facts(type(facts), plain(facts)) == facts
    with pytest.raises(ProtocolError, match="its rows are wider than"):
        read_facts(type(facts), plain(facts._replace(x=("f32", (WIDEST, 2)))))
    for rows in (RowCounts(train=MOST_ROWS + 1), RowCounts(test=10**15)):
        with pytest.raises(ProtocolError, match="it says that it has more than 100,000,000 rows"):
            read_facts(type(facts), plain(facts._replace(rows=rows)))
    assert COLUMN_MOMENTS.name in node_setup.SUMMARIES


def test_rows_that_are_only_claimed_cost_no_memory(tmp_path: Path) -> None:
    """Eight bytes a row, which were 800 MB at the server."""
    made = Agreements(tmp_path)
    files = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}
    trainers = {name: made.trainer(name, files[name]) for name in made.names}
    usual = trainers["west"].answers[FactsQuestion]

    def lie(asked: FactsQuestion) -> NodeFacts:
        told = usual(asked)
        return told._replace(facts={**told.facts, "rows": {"train": MOST_ROWS}})

    trainers["west"].answers[FactsQuestion] = lie
    tracemalloc.start()
    try:
        run = run_here(made, trainers, made.signed("r", made.config(rounds=1)), test=files["south"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run.state.status == "finished", run.state.why
    held = json.loads((run.folder / "run" / "partition.json").read_text())["clients"]
    assert held == {"0": 40, "1": 40, "2": MOST_ROWS}
    assert peak < MOST_ROWS


@pytest.mark.slow  # that real processes lose such a node is held by tests/deployment/test_deployed_faults.py
@pytest.mark.timing
def test_each_lie_over_the_wire_is_a_lost_node_with_its_reason(tmp_path: Path):
    """SCAFFOLD's reply has two parts; from round 2 on the trainer of one node lies in another way each round."""
    hows = [*PLAIN]
    with deployment(tmp_path) as three:
        three.again("west", ",".join(hows))
        given = experiment(rounds=len(hows) + 2, algorithm={"name": "scaffold"}, round={"deadline": 30.0})
        folder, last = three.ended(three.submit(given))
    assert last.status == "finished", last
    said = [line for line in answers_of(folder) if line["outcome"].startswith("lost")]
    assert {line["node"] for line in said} == {"west"}
    assert [line["round"] for line in said] == [*range(2, len(hows) + 2)], said
    assert all("did not" not in line["outcome"] and "no reply" not in line["outcome"] for line in said), said
    rows = rows_of(folder)
    assert [row["clients"] for row in rows[2:-1]] == [[0, 1]] * len(hows)
    assert rows[-1]["clients"] == [0, 1, 2]


class Told:
    """Nodes whose events a test has written down."""

    def __init__(self, events: Sequence[tuple[str, Any]]) -> None:
        self.events, self.there, self.gone = [*events], {*NAMES}, dict[str, str]()
        self.sent: list[tuple[str, Any]] = []

    def next(self, until: float) -> Any:  # noqa: ARG002
        return self.events.pop(0) if self.events else pytest.fail("the round waits for nobody")

    def lost(self, name: str) -> str:  # noqa: ARG002
        return ""

    def send(self, name: str, message: Any, most: int = 0) -> bool:  # noqa: ARG002
        self.sent.append((name, message))
        return True


def asked_of(folder: Path, events: Sequence[tuple[str, Any]]) -> tuple[Told, list[Reply], list[dict[str, Any]]]:
    """An ask of two nodes, of which the first answers in the end."""
    nodes = Told(events)
    link = NodesLink("r", NAMES, nodes, RoundConfig(minimum=1), folder, lambda k, landed: "the run")  # type: ignore[arg-type, return-value]
    requests = [Request("r", 1, 0, 0, k, "train", {}, 0.1, 3, 9, "mean") for k in range(2)]
    body = codec.encode(requests[0].plain())
    reply = codec.encode(Reply(0, {"x": torch.zeros(1)}, 0.0, ("r", 1, 0, 0)).plain())
    nodes.events.append(("north", TaskReply("r", (1, 0, 0), digest_of(body), 0, (3, 1, 1, 0.1, 0.5), reply)))
    return nodes, list(link(requests, None)), answers_of(folder)


def test_a_message_that_cannot_be_read_is_a_lost_node_though_it_comes_again_at_once(tmp_path: Path):
    hello = NodeHello(3, "1", "0", ready=True)
    _, replies, said = asked_of(
        tmp_path, [("south", StreamEnded("the field 'x' is odd.", broken=True)), ("south", hello)]
    )
    assert [reply.client for reply in replies] == [0]
    assert said[0]["outcome"] == "lost: its message cannot be read (the field 'x' is odd)"


def test_a_node_that_never_knows_the_run_is_told_it_three_times(tmp_path: Path):
    nodes, replies, said = asked_of(tmp_path, [("south", RunUnknown("r", (1, 0, 0)))] * 10)
    assert [message for _, message in nodes.sent].count("the run") == 3
    assert [reply.client for reply in replies] == [0]
    assert "does not know the run" in said[0]["outcome"]
