"""A server that asks what its experiment does not: hand-written requests to a party half, and to a node's own process loop."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from agreements import Agreements
from deployments import NAMES, experiment
from fedatlas.algorithm import Algorithm, Budget
from fedatlas.config import parse
from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.deployment.node_rows import agreed, read_rows
from fedatlas.deployment.terms import RowsSetup, encoded
from fedatlas.deployment.trial_rows import deal
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.federation import expected
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.expected import Expected, Rules
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.mechanisms import local_dp, secagg
from fedatlas.privacy.secagg.secure_sum import KEYS, UNMASK
from fedatlas.rounds import federated
from fedatlas.setup.resolution import resolve
from fedatlas.tree import Tree
from fedatlas.wire import codec
from fedatlas.wire.agreement import Agreement, digest_of, run_digest
from fedatlas.wire.messages import RunStart, Signed, TaskRequest, written
from fedatlas.wire.policy import Policy
from federation import SIZES, Federation, brief, federation
from protected import protected

RULES = Rules(rounds=5, rate=lambda number: 0.1 if number else 0.0, budget=Budget(epochs=2), cohort=3)
COHORT = (0, 1, 2)


class Idle:
    """An executor that must not be reached."""

    def run(self, jobs: Any) -> Any:  # noqa: ARG002
        raise AssertionError("the party began to work")

    def close(self) -> None:
        """Nothing."""


def honest(name: str | Algorithm, *mechanisms: Any) -> tuple[Federation, InProcess, list[Request]]:
    """A federation, a host whose parties expect its rules, and what an honest server asks client 1 in round 1."""
    fed, host = protected(name, *mechanisms) if mechanisms else plain(name)
    host.party.expected = Expected(fed.bench, host.server.of.run, 5, sum(SIZES), RULES)
    asked: list[Request] = []
    usual = host.server.link

    def noting(requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        asked.extend(request for request in requests if request.client == 1)
        return usual(requests, deadline)

    noting.commit = usual.commit  # type: ignore[attr-defined]
    host.server.link = noting  # type: ignore[assignment]
    drawn = fed.round(1, COHORT)
    host.server.drive((fed.bench.algorithm.rounds or federated)(fed.bench.algorithm, fed.begin(host), drawn), START)
    return fed, host, asked


START = RoundStart(1, 0.1)


def plain(name: str | Algorithm) -> tuple[Federation, InProcess]:
    fed = federation(brief(name) if isinstance(name, str) else name)
    return fed, fed.host()


def half_of(fed: Federation, host: InProcess, **more: Any) -> PartyHalf:
    """A fresh party half that trains nothing, round 0 landed."""
    state = PartyState()
    state.landed = 0
    knows = Expected(fed.bench, host.server.of.run, 5, sum(SIZES), RULES)
    return PartyHalf(fed.bench, Idle(), state, dict(enumerate(SIZES)), 1, **{"expected": knows, **more})


def refused(half: PartyHalf, request: Request, sentence: str) -> None:
    place = half.state.place
    with pytest.raises(ProtocolError, match=re.escape(sentence)):
        list(half.answer([request]))
    assert half.state.place == place, "a refused request began a round"


def spoilt(change: Any) -> Any:
    """The same message with another model."""
    return lambda request: request._replace(message={**request.message, "model": change(request.message["model"])})


def first_row(model: Tree) -> Tree:
    return model.map(lambda x: x[:1])


LIES: Mapping[str, tuple[Any, str]] = {
    "another run": (lambda r: r._replace(run="another"), expected.RUN),
    "more clients": (lambda r: r._replace(K=500), expected.RUN),
    "more examples": (lambda r: r._replace(n=1), expected.RUN),
    "a round to come": (lambda r: r._replace(round=2), expected.ROUND),
    "a round that there is not": (lambda r: r._replace(round=900), expected.ROUND),
    "a round that has landed": (lambda r: r._replace(round=0), expected.ROUND),
    "the fourth attempt": (lambda r: r._replace(attempt=3), expected.ATTEMPT),
    "attempt 7": (lambda r: r._replace(attempt=7), expected.ATTEMPT),
    "an attempt before the first": (lambda r: r._replace(attempt=-1), expected.ATTEMPT),
    "a number that no ask has": (lambda r: r._replace(number=50), expected.NUMBER),
    "a number below 0": (lambda r: r._replace(number=-1), expected.NUMBER),
    "no rate": (lambda r: r._replace(lr=0.0), expected.RATE),
    "a large rate": (lambda r: r._replace(lr=1e6), expected.RATE),
    "a rate that is no number": (lambda r: r._replace(lr=math.nan), expected.RATE),
    "much work": (lambda r: r._replace(budget=Budget(epochs=900)), expected.BUDGET),
    "one step": (lambda r: r._replace(budget=Budget(steps=1)), expected.BUDGET),
    "another sum": (lambda r: r._replace(reduce="sum"), "does not declare"),
    "a mix of neighbours": (lambda r: r._replace(reduce="neighbours"), "does not declare"),
    "a rule of its own": (lambda r: r._replace(reduce="median"), "does not declare"),
    "alone": (lambda r: r._replace(reduce="each", single=True), "on its own"),
    "alone, by its word": (lambda r: r._replace(single=True), "on its own"),
    "alone, by its name": (lambda r: r._replace(reduce="each"), "on its own"),
    "as if to a peer": (lambda r: r._replace(reduce="each", single=True, peer=True), "does not declare"),
    "from a peer": (lambda r: r._replace(sender=3), "does not declare"),
    "a visit after none": (lambda r: r._replace(visits=4), "more often"),
    "another network": (lambda r: r._replace(architecture="nine"), "does not declare"),
    "a word where nothing is protected": (lambda r: r._replace(word={}), "does not declare"),
    "NaN": (spoilt(lambda model: model.map(lambda x: x * torch.nan)), expected.FINITE),
    "infinity": (spoilt(lambda model: model.map(lambda x: x / 0)), expected.FINITE),
    "other shapes": (spoilt(first_row), expected.CONTENT),
    "another type": (spoilt(lambda model: model.to(torch.float32)), expected.CONTENT),
    "a tensor less": (spoilt(lambda model: Tree(list(model.items())[1:])), expected.CONTENT),
    "a tensor more": (spoilt(lambda model: Tree({**model, "spy": torch.zeros(1)})), expected.CONTENT),
    "no model": (lambda r: r._replace(message={}), expected.CONTENT),
    "statistics of a network without": (
        lambda r: r._replace(message={**r.message, "buffers": Tree(x=torch.zeros(1))}),
        expected.CONTENT,
    ),
    # The change from it would be another answer by its digest, and is the same but for what the server knows.
    "an anchor outside a chain": (lambda r: r._replace(anchor=r.message["model"]), expected.FORM.format("fedavg")),
    "an anchor in its message": (
        lambda r: r._replace(message={**r.message, "anchor": r.message["model"]}),
        expected.FORM.format("fedavg"),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_no_honest_server_asks_is_refused_before_anything_begins(lie: str) -> None:
    fed, host, asked = honest("fedavg")
    change, sentence = LIES[lie]
    half = half_of(fed, host)
    if lie == "a visit after none":  # which alone takes the count of the round to see
        with pytest.raises(ProtocolError, match=sentence):
            list(half.answer([change(asked[0])]))
        return
    refused(half, change(asked[0]), sentence)


def test_what_comes_twice_in_a_round_is_refused() -> None:
    """Under another number, as another ask of the same; in another attempt it may come again, after the round no more."""
    fed, host, (asked,) = honest("fedavg")
    half = half_of(fed, host)
    half.executor = host.executor
    assert len(list(half.answer([asked]))) == 1
    with pytest.raises(ProtocolError, match="more often in a round"):
        list(half.answer([asked._replace(number=1)]))
    assert len(list(half.answer([asked._replace(attempt=1)]))) == 1
    with pytest.raises(ProtocolError, match=re.escape(expected.ATTEMPT)):
        list(half.answer([asked]))
    half.commit(1, (1,))
    with pytest.raises(ProtocolError, match=re.escape(expected.ROUND)):
        list(half.answer([asked._replace(attempt=2)]))
    assert len(list(half.answer([asked._replace(round=2)]))) == 1


def test_an_experiment_has_no_round_behind_its_last() -> None:
    fed, host, (asked,) = honest("fedavg")
    half = half_of(fed, host)
    half.state.landed = 5
    refused(half, asked._replace(round=6), expected.ROUND)


def test_stragglers_may_work_less_where_the_experiment_has_some() -> None:
    fed, host, (asked,) = honest("fedavg")
    knows = Expected(fed.bench, "", 5, sum(SIZES), RULES._replace(stragglers=2))
    half = half_of(fed, host, expected=knows)
    half.executor = host.executor
    assert len(list(half.answer([asked._replace(budget=Budget(epochs=1))]))) == 1
    for told in (Budget(epochs=3), Budget(epochs=0), Budget(epochs=1, first_epoch=7), Budget(epochs=True)):
        refused(half, asked._replace(round=1, budget=told), expected.BUDGET)


def test_control_variates_and_numbers_of_a_message_are_looked_at_too() -> None:
    fed, host, (asked,) = honest("scaffold")
    for c in (first_row(asked.message["c"]), asked.message["c"].map(lambda x: x + torch.inf)):
        with pytest.raises(ProtocolError, match="a party is sent"):
            list(half_of(fed, host).answer([asked._replace(message={**asked.message, "c": c})]))
    fed, host, (asked,) = honest("fedprox")
    refused(half_of(fed, host), asked._replace(message={**asked.message, "mu": math.inf}), expected.FINITE)


# ------------------------------------------------------------------------------------------------ under [[privacy]]


@pytest.mark.parametrize("name", ["fedavg", "hwfedavg"])
def test_under_masks_nothing_leaves_without_a_word(name: str) -> None:
    """The row of the issue: without ``word`` the update came in the clear."""
    fed, host, asked = honest(name, secagg())
    worded = [request for request in asked if request.word is not None]
    assert {request.what for request in worded} == ({"train"} if name == "fedavg" else {"counts", "train"})
    for request in worded:
        bare = request._replace(word=None)
        refused(half_of(fed, host), bare._replace(reduce="mean" if request.what == "train" else "sum"), expected.CLEAR)
        refused(half_of(fed, host), bare, "does not declare")
        refused(half_of(fed, host), request._replace(reduce="neighbours"), "does not declare")
        refused(half_of(fed, host), request._replace(reduce="each"), "on its own")
        refused(half_of(fed, host), request._replace(peer=True), "does not declare")


def test_a_word_has_its_fields_and_no_others() -> None:
    fed, host, asked = honest("fedavg", secagg())
    request = next(request for request in asked if request.word is not None)
    word, silent = dict(request.word or {}), {**(request.word or {}), "send": False}
    odd: list[dict[str, Any]] = [
        {**word, "more": 1},
        {**word, "session": {**word["session"], "more": 1}},
        {**word, "session": [1]},
        {**word, "clients": "3"},
        {**word, "clients": 1 << 40},
        {**word, "mean": 1},
        {**word, "weights": {"": [None, 1.0, 1.0]}},
        {**word, "weights": {"": ["told", math.nan, 1.0]}},
        {**word, "weights": {}},
        {**word, "sums": "x"},
        silent,  # with a session that it does not need
        {**word, "send": None},
        *({name: x for name, x in word.items() if name != key} for key in word),
    ]
    for one in odd:
        half = half_of(fed, host, secrets=host.party.secrets)
        half.sessions[1] = host.party.sessions[1]
        with pytest.raises(ProtocolError, match=r"not of this protocol|another round|never began|does not declare"):
            list(half.answer([request._replace(word=one)]))


def test_a_visit_goes_on_from_work_alone() -> None:
    """Questions of a protocol leave nothing that a further visit could go on from."""
    fed, host, asked = honest("fedavg", secagg())
    half = half_of(fed, host, secrets=host.party.secrets)
    keys, work = (next(one for one in asked if one.what == what) for what in (KEYS, "train"))
    half._begin(keys)
    with pytest.raises(ProtocolError, match="more often"):
        half._begin(work._replace(visits=1))


def test_a_model_is_a_table_of_tensors() -> None:
    fed, host, asked = honest("fedavg")
    request = next(one for one in asked if one.what == "train")
    for x in (None, 5, "x", [1]):
        refused(half_of(fed, host), request._replace(message={**request.message, "model": x}), expected.CONTENT)


def test_local_noise_is_not_left_out_either() -> None:
    fed, host, asked = honest("fedavg", local_dp(clip=1.0, epsilon=1.0, delta=1e-5, noise="seed"))
    refused(half_of(fed, host), asked[-1]._replace(word=None), expected.CLEAR)


def test_a_question_of_the_protocol_belongs_to_what_it_protects() -> None:
    fed, host, asked = honest("hwfedavg", secagg())
    keys = next(request for request in asked if request.what == KEYS)
    half = half_of(fed, host)
    for message in (
        {"ask": "score"},
        {"ask": "spy"},
        {"ask": 3},
        {"cohort": torch.arange(4)},
        {"cohort": torch.arange(7, 9)},
    ):
        refused(half, keys._replace(message={**keys.message, **message}), expected.FOREIGN)
    for name, x in (
        ("ask", {}),
        ("ask", None),
        ("cohort", None),
        ("cohort", torch.rand(3)),
        ("round", True),
        ("more", 1),
    ):
        refused(
            half, keys._replace(message={**keys.message, name: x}), "does not say run, round, attempt, ask and cohort"
        )
    for change in ({"single": False}, {"reduce": "sum"}, {"peer": True}, {"sender": 2}, {"word": {}}, {"visits": 1}):
        with pytest.raises(ProtocolError):
            list(half.answer([keys._replace(**change)]))
    half = half_of(fed, host, secrets=host.party.secrets)
    half.executor = host.executor
    for number in range(2):  # a sum of counts, and one of models
        list(half.answer([keys._replace(number=number)]))
    with pytest.raises(ProtocolError, match="more often"):
        list(half.answer([keys._replace(number=2)]))
    assert any(request.what == UNMASK for request in asked)


def test_a_party_without_protection_knows_no_question_of_one() -> None:
    fed, host, (asked,) = honest("fedavg")
    with pytest.raises(ProtocolError, match="does not know"):
        list(half_of(fed, host).answer([asked._replace(what=KEYS)]))


# ------------------------------------------------------------------------------------------------ a node


class Node:
    """A node's trainer without a process, and a server that says what it likes."""

    def __init__(
        self, folder: Path, policy: str = 'label_counts = "plain"', judging: bool = False, **tables: Any
    ) -> None:
        given = experiment(**{"data": {"name": "digits", "limit": 400, "scale": "none"}, "rounds": 5, **tables})
        dealt = {key: table for key, table in given.items() if key not in {"privacy", "algorithm"}}
        deal(parse(dealt), NAMES, folder, "nodes")
        made = Agreements(folder, NAMES)
        (made.paths["north"] / "policy.toml").write_text("min_rows = 1\n" + policy)
        config = resolve(parse(given)).config.plain()
        facts = {name: read_rows(folder / f"{name}.rows", parse(config)).facts for name in NAMES}
        rows = [one.rows.train for one in facts.values()]
        self.n = sum(rows)
        setup = RowsSetup(agreed(facts), (), (32,), max(rows), self.n, (0, 1, 2), (0, 1, 2) if judging else ())
        signed, body = made.signed("run", config), bytes(encoded(setup))
        self.digest = run_digest(signed, body)
        self.trainer = made.trainer("north", folder / "north.rows")
        self.start = written(RunStart("run", signed, -1, body))
        (started,) = self.trainer.serve(self.start)
        assert started.kind == "begun", started.head
        self.model = self.trainer.running("run").setup.first.params  # type: ignore[union-attr]

    def ask(self, what: str = "train", message: Any = None, landed: int = 0, **change: Any) -> Any:
        told = {"model": self.model} if message is None else message
        asked = Request("run", 1, 0, 0, 0, what, told, 0.05, len(NAMES), self.n, "mean")._replace(**change)
        body = codec.encode(asked.plain())
        verdicts = tuple((at, True, -1) for at in range(landed + 1))
        task = TaskRequest("run", asked.ask[1:], digest_of(body), self.digest, verdicts, body)
        (said,) = self.trainer.serve(written(task))
        return said


def test_a_node_compares_what_it_is_asked(tmp_path: Path) -> None:
    """Each of these was answered. Afterwards the honest request is."""
    node = Node(tmp_path)
    for change, why in (
        ({"round": 900}, expected.ROUND),
        ({"attempt": 7}, expected.ATTEMPT),
        ({"lr": 0.0}, expected.RATE),
        ({"budget": Budget(epochs=30)}, expected.BUDGET),
        ({"K": 30}, expected.RUN),
        ({"reduce": "sum"}, "does not declare"),
        ({"peer": True, "reduce": "each", "single": True}, "does not declare"),
        ({"message": {"model": first_row(node.model)}}, expected.CONTENT),
        ({"message": {"model": node.model * torch.nan}}, expected.FINITE),
    ):
        said = node.ask(**change)
        assert said.kind == "refused", change
        assert why in said.head["why"]
    assert node.ask().kind == "reply"
    assert node.ask().kind == "reply", "the same again gets the same bytes"
    assert "more often" in node.ask(number=1).head["why"]


def test_a_node_judges_as_often_as_the_experiment_says(tmp_path: Path) -> None:
    node = Node(tmp_path, judging=True, rounds=9, evaluation={"every": 2})
    judge = partial(node.ask, "judge", {"judged": node.model}, reduce="sum")
    assert judge(landed=-1, round=0, lr=0.0).kind == "reply"
    assert "more often" in judge(landed=-1, round=0, lr=0.0, number=1).head["why"]
    assert "on its own" in node.ask("judge", {"judged": node.model}, reduce="each").head["why"]
    for attempt in range(3):
        assert judge(landed=1, round=2, attempt=attempt).kind == "reply"
        assert "more often" in judge(landed=1, round=2, attempt=attempt, number=1).head["why"]
    assert expected.ATTEMPT in judge(landed=1, round=2, attempt=3).head["why"]
    assert judge(landed=2, round=3).kind == "reply", "once, with which a run may end"
    assert judge(landed=3, round=4).kind == "reply"
    assert "does not declare" in judge(landed=4, round=5).head["why"]


@pytest.mark.parametrize("masked", [False, True])
def test_a_score_tells_label_counts_whatever_else_is_masked(tmp_path: Path, masked: bool) -> None:
    """By P = e_j one after another each p_kj comes out, since s_k = p_kj^2; the P that a server sends cannot be checked."""
    privacy = {"privacy": [{"name": "secagg"}]} if masked else {}
    node = Node(tmp_path, 'label_counts = "masked"', algorithm={"name": "hwfedavg"}, **privacy)
    e = torch.zeros(10, dtype=torch.float64)
    e[3] = 1.0
    asked = partial(node.ask, "score", reduce="each", single=True)
    assert "label_counts = 'masked' forbids" in asked({"P": e}).head["why"]
    policy = node.trainer.bundle.path / "policy.toml"
    policy.write_text('label_counts = "plain"')
    assert asked({"P": e}).kind == "reply"
    assert expected.FINITE in asked({"P": e * torch.nan}, number=1).head["why"]


def test_only_sums_pass_as_secure_aggregation() -> None:
    """A clip of 1e6 and no noise is a mechanism, too, and a node reads in its record what the server sees."""
    clear = {"name": "central_dp", "clip": 1e6, "noise_multiplier": 0.0, "noise": "seed"}
    whole = resolve(parse(experiment(privacy=[clear], algorithm={"name": "fedavg", "weights": "uniform"})))
    agreement = Agreement("r", "f", whole.config.plain(), tuple(NAMES), (), "operator", 3, "", 0.0)
    asked = AgreedRun(Signed("", "", ""), agreement, whole, 0).asked()
    with pytest.raises(PrivacyError, match="secure_aggregation = true forbids"):
        Policy(secure_aggregation=True).check(asked)
    masked = asked._replace(masked=True)
    Policy(secure_aggregation=True).check(masked)


def test_another_attempt_at_a_round_is_no_other_round(tmp_path: Path) -> None:
    """What a node drops has not landed: a round that is begun again is still the next one."""
    node = Node(tmp_path)
    assert node.ask().kind == "reply"
    for attempt in (1, 2):
        assert node.ask(attempt=attempt).kind == "reply"
    assert expected.ATTEMPT in node.ask(attempt=3).head["why"]
    assert (
        "is over" in node.ask(attempt=1, number=1).head["why"]
        or expected.ATTEMPT in node.ask(attempt=1, number=1).head["why"]
    )
    assert node.ask(landed=1, round=2).kind == "reply"
