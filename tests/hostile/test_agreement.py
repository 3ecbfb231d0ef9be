"""A server that asks for what no operator signed, and an operator that signs what the node does not allow: what comes out.

Each test plays the server by hand against a node's own program. Before there were agreements, most of what is asked here was answered.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agreements import TABLE, Agreements, write_rows
from fedatlas.config import parse
from fedatlas.deployment.node_rows import RowsFacts, read_rows
from fedatlas.deployment.node_setup import LearntSum
from fedatlas.deployment.terms import RowsSetup, Sums, SumTerms, decoded, encoded
from fedatlas.deployment.trainer import Trainer
from fedatlas.federation.link import Request
from fedatlas.wire import codec, messages
from fedatlas.wire.agreement import PURPOSE, agreement_of, digest_of, run_digest, sign
from fedatlas.wire.bundle import Bundle, add, init, revoke
from fedatlas.wire.certificates import CERT, KEY
from fedatlas.wire.fields import record
from fedatlas.wire.messages import FactsQuestion, RunStart, Signed, SumQuestion, TaskRequest, written

RUN = "r"


@pytest.fixture
def made(tmp_path: Path) -> Agreements:
    return Agreements(tmp_path)


@pytest.fixture
def node(made: Agreements, tmp_path: Path) -> Trainer:
    return made.trainer("north", write_rows(tmp_path / "north.csv"))


def said(node: Trainer, asked: Any) -> Any:
    """The node's answer, read as the server reads it."""
    (answer,) = node.serve(written(asked))
    return messages.read(answer, messages.FROM_TRAINER)


def why(node: Trainer, asked: Any) -> str:
    """Why the node refuses; "" where it answers."""
    return str(getattr(said(node, asked), "why", ""))


def facts(node: Trainer, signed: Signed) -> RowsFacts:
    found: RowsFacts = record(RowsFacts, said(node, FactsQuestion(RUN, signed)).facts, "facts")
    return found


def question(
    signed: Signed, about: RowsFacts, totals: tuple[LearntSum, ...] = (), index: int | None = None
) -> SumQuestion:
    return SumQuestion(RUN, signed, len(totals) if index is None else index, encoded(SumTerms(about, totals)))


# ------------------------------------------------------------------------------------------------- who signed what


def by_a_node(made: Agreements) -> Signed:
    """The server has a node's key at most; an operator's it has not."""
    agreement = agreement_of(made.operator, RUN, made.config(), made.names)
    return sign(made.node("south"), agreement)


def altered(made: Agreements) -> Signed:
    """Another experiment under an operator's signature."""
    signed = made.signed(RUN)
    return signed._replace(text=signed.text.replace('"rounds":3', '"rounds":300'))


def foreign(made: Agreements) -> Signed:
    """Signed by an operator of the same name, of an authority that the server made."""
    paths = init(made.folder / "foreign", list(made.names), "localhost")
    agreement = agreement_of(made.operator, RUN, made.config(), made.names)
    return sign(Bundle.open(paths["operator"], "operator"), agreement)


def another_name(made: Agreements) -> Signed:
    return made.signed(RUN, operator="chief")


def expired(made: Agreements) -> Signed:
    return made.signed(RUN, expires=1.0)


def other_protocol(made: Agreements) -> Signed:
    return made.signed(RUN, protocol=1)


def other_key(made: Agreements) -> Signed:
    """The server's own key in place of a node's."""
    agreement = agreement_of(made.operator, RUN, made.config(), made.names)
    return made.signed(RUN, identities=("0" * 64, *agreement.identities[1:]))


def without_this_node(made: Agreements) -> Signed:
    agreement = agreement_of(made.operator, RUN, made.config(), made.names)
    return made.signed(RUN, names=agreement.names[1:], identities=agreement.identities[1:])


def outside(made: Agreements) -> Signed:
    return made.signed("../../../x")


def no_json(made: Agreements) -> Signed:
    return made.signed(RUN)._replace(text="[" * 100_000)


def revoked_operator(made: Agreements) -> Signed:
    signed = made.signed(RUN)
    revoke(made.folder / "federation", "operator")
    return signed


SIGNED = {
    by_a_node: "its certificate is not that of an operator of this federation",
    altered: "its signature does not hold",
    foreign: "its certificate is not that of an operator|its signature does not hold",
    another_name: "it names another operator",
    expired: "it has expired",
    other_protocol: "it is of protocol 1",
    other_key: "'north' is not a node in this party's members.json, or has another key there",
    without_this_node: "this node is not one of its nodes",
    outside: "is not the name of a run",
    no_json: "the agreement is not JSON",
    revoked_operator: "the operator's certificate is revoked",
}


@pytest.mark.parametrize("make", SIGNED)
def test_nothing_is_said_without_an_operator_s_signature(made: Agreements, node: Trainer, make: Any) -> None:
    """Neither facts, nor sums, nor a run: and no row is read."""
    signed = make(made)
    about = facts_of_file(made, node)
    for asked in (
        FactsQuestion(RUN, signed),
        question(signed, about),
        RunStart(RUN, signed, -1, bytes(encoded(settled(about)))),
    ):
        found = why(node, asked)
        assert found, asked
        assert any(words in found for words in SIGNED[make].split("|")), found
    assert node.kept[1] is None
    assert not (made.folder / "x").exists()


def facts_of_file(made: Agreements, node: Trainer) -> RowsFacts:
    return read_rows(node.data, parse(made.config())).facts


def settled(about: RowsFacts, totals: tuple[LearntSum, ...] = (), **fields: Any) -> RowsSetup:
    return RowsSetup(about, totals, (8,), 40, 120, (0, 1, 2), ())._replace(**fields)


def test_one_agreement_a_run(made: Agreements, node: Trainer) -> None:
    """An operator that changes its mind needs another run; so does a server that has two agreements of one name."""
    facts(node, made.signed(RUN))
    other = made.signed(RUN, made.config(seed=5))
    assert "this node accepted another one on a run of this name" in why(node, FactsQuestion(RUN, other))
    again = made.trainer("north", node.data)
    assert "this node accepted another one on a run of this name" in why(again, FactsQuestion(RUN, other))


def test_a_node_with_a_new_key_needs_a_new_agreement(made: Agreements, node: Trainer) -> None:
    signed = made.signed(RUN)
    revoke(made.folder / "federation", "north")
    add(made.folder / "federation", "north", "node")
    assert "has another key there" in why(made.trainer("north", node.data), FactsQuestion(RUN, signed))


def test_a_revoked_operator_s_run_ends_at_the_next_ask(made: Agreements, node: Trainer) -> None:
    """The list comes with the server's hello, signed by the authority; an older list is not taken again."""
    signed = made.signed(RUN)
    facts(node, signed)
    authority = made.folder / "federation" / "authority"
    old = (authority / "revoked.json").read_text()
    own = made.node("north")
    kept = (own.path / "revoked.json").read_text()
    revoke(made.folder / "federation", "operator")
    new = (authority / "revoked.json").read_text()
    (own.path / "revoked.json").write_text(kept)
    assert not why(node, FactsQuestion(RUN, signed))
    assert own.take_revocations(new)
    assert not own.take_revocations(old)
    assert "revoked" in why(node, FactsQuestion(RUN, signed))
    with pytest.raises(ValueError, match="signature"):
        own.take_revocations(json.dumps({"list": json.dumps({"date": "9", "serials": []}), "signature": "AAAA"}))


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"data": {"name": "file", "label": "y", "path": "x", "limit": 1}}, "data.limit takes a part of the rows"),
        ({"data": {"name": "file", "label": "y", "path": "x", "test": 0.97}}, "trains on half of its own at least"),
        ({"data": {"name": "file", "label": "y", "path": "x", "client": "a"}}, "data.client"),
        (
            {"data": {"name": "file", "label": "y", "path": "x", "constants": "/etc/passwd"}},
            "data.constants names a file",
        ),
        ({"model": {"hidden": [4], "init": "/etc/passwd"}}, "model.init names a file"),
        ({"algorithm": {"name": "gossip"}}, "would see what only neighbours may"),
        ({"privacy": [{"name": "paillier"}]}, "not in this version of deployment"),
        ({"privacy": [{"name": "two_server"}]}, "not in this version of deployment"),
    ],
)
def test_a_node_refuses_with_its_own_code_what_cannot_be_deployed(
    made: Agreements, node: Trainer, tables: Mapping[str, Any], words: str
) -> None:
    """An operator's program that was made to sign anything."""
    config = {**made.config(), **tables}
    assert words in why(node, FactsQuestion(RUN, made.signed(RUN, config)))
    assert node.kept[1] is None


def test_an_experiment_that_leaves_defaults_to_the_node_is_refused(made: Agreements, node: Trainer) -> None:
    config = made.config()
    del config["local"]
    assert "not written out with all defaults" in why(node, FactsQuestion(RUN, made.signed(RUN, config)))


# ------------------------------------------------------------------------------------------------------------- round 0


def test_round_0_asks_what_is_due_and_nothing_else(made: Agreements, node: Trainer) -> None:
    """300 questions with other labels, limits, seeds or thresholds read all rows before; now each needs a signature of its own."""
    signed = made.signed(RUN)
    about = facts(node, signed)
    first = said(node, question(signed, about))
    assert decoded(Sums, first.body).answer.keys()
    for index in (1, 2, 300):
        assert "no question of this number is due" in why(node, question(signed, about, index=index))
    again = said(made.trainer("north", node.data), question(signed, about))
    assert bytes(again.body) == bytes(first.body)
    twisted = about._replace(class_names=("maybe", "no", "yes"))
    assert "another question was asked under this number" in why(node, question(signed, twisted))
    total = LearntSum("column moments", {}, 0, 0)
    assert why(node, question(signed, about, (total,) * 5))


def test_round_0_goes_on_from_what_a_node_was_told(made: Agreements, node: Trainer) -> None:
    """With other sums or facts on the way a server would choose which question is due; a median's thresholds follow from the sums."""
    signed = made.signed(RUN, made.config(data={"name": "file", "label": "y", "missing": "median"}))
    about = facts(node, signed)
    totals: tuple[LearntSum, ...] = ()
    for _ in range(3):
        found = decoded(Sums, said(node, question(signed, about, totals)).body).answer
        totals = (*totals, LearntSum(due_name(node, signed, about, totals), found, 1, 1))
    assert totals[-1].name == "cells at most a threshold"
    missing = LearntSum(totals[1].name, {key: x * 0 for key, x in totals[1].sum.items()}, 1, 1)
    for odd in ((about, (totals[0], missing, totals[2])), (about._replace(class_names=("maybe", "no", "yes")), totals)):
        assert "not those that this node was told before" in why(node, question(signed, *odd))
    assert decoded(Sums, said(node, question(signed, about, totals)).body).answer.keys()


def test_a_sum_has_the_form_of_the_answers_to_its_question(
    made: Agreements, node: Trainer, capfd: pytest.CaptureFixture[str]
) -> None:
    signed = made.signed(RUN)
    about = facts(node, signed)
    name = due_name(node, signed, about, ())
    found = dict(decoded(Sums, said(node, question(signed, about)).body).answer)
    assert set(found) == {"n", "total", "squares"}
    odd: list[dict[str, Any]] = [
        {key: x for key, x in found.items() if key != "n"},
        {**found, "more": 1},
        *({**found, "n": n} for n in (None, "4", 4.0, True, -1, 1 << 64)),
        *({**found, "total": x} for x in (None, 1.0, [1.0], found["total"][:0], found["total"].float())),
    ]
    for one in odd:
        totals = (LearntSum(name, one, 1, 1),)
        assert "not of the form of its answers" in why(node, question(signed, about, totals))
        body = bytes(encoded(settled(about, totals)))
        assert "not of the form of its answers" in why(node, RunStart(RUN, signed, -1, body))
    assert "Error" not in capfd.readouterr().err


def test_the_facts_of_all_rows_include_the_node_s_own(made: Agreements, node: Trainer) -> None:
    signed = made.signed(RUN)
    about = facts(node, signed)
    for odd in (
        about._replace(class_names=("no", "maybe")),
        about._replace(schema=(*about.schema[:1], ("c", ()))),
        about._replace(x=("f32", (3,))),
        about._replace(task="numbers"),
    ):
        assert "the facts of all rows do not fit this node's own" in why(node, question(signed, odd))


def test_few_rows_are_left_out_of_a_sum_that_the_server_sees_alone(made: Agreements, tmp_path: Path) -> None:
    node = made.trainer("south", write_rows(tmp_path / "south.csv", 9))
    (made.paths["south"] / "policy.toml").write_text("min_cohort = 2\n")
    signed = made.signed(RUN)
    found = said(node, question(signed, facts(node, signed)))
    assert (found.few, bytes(found.body)) == (True, b"")


def test_a_policy_pins_the_label_and_lists_the_names_that_may_be_told(made: Agreements, node: Trainer) -> None:
    policy = made.paths["north"] / "policy.toml"
    policy.write_text('label = "a"\n')
    assert "data.label, which is not the one that label pins" in why(node, FactsQuestion(RUN, made.signed(RUN)))
    policy.write_text('label = "y"\nnames = ["no"]\n')
    about = facts(node, made.signed(RUN))
    assert about.class_names == ("no",)
    assert 0 < about.rows.train < 40


def test_no_cell_is_quoted_to_the_server(made: Agreements, tmp_path: Path) -> None:
    """A weight that is a column of names: the reason stays in the node's own log."""
    path = tmp_path / "named.csv"
    path.write_text("a,b,y\n" + "\n".join(f"{i},Mrs Secret {i},yes" for i in range(40)) + "\n")
    node = made.trainer("north", path)
    config = made.config(data={"name": "file", "label": "y", "weight": "b"})
    found = why(node, FactsQuestion(RUN, made.signed(RUN, config)))
    assert found == "its rows cannot be used as the experiment says (the node's own log says why)"


# --------------------------------------------------------------------------------------------------- what was settled


def started(made: Agreements, node: Trainer, signed: Signed, **fields: Any) -> tuple[str, str]:
    """(why the node does not start the run, the digest of the run)."""
    about, totals = learnt(node, signed)
    body = bytes(encoded(settled(about, totals)._replace(**fields)))
    return why(node, RunStart(RUN, signed, -1, body)), run_digest(signed, body)


def learnt(node: Trainer, signed: Signed) -> tuple[RowsFacts, tuple[LearntSum, ...]]:
    """What a node says before round 1, as if it were alone."""
    about = facts(node, signed)
    totals: tuple[LearntSum, ...] = ()
    while not isinstance(answer := said(node, question(signed, about, totals)), messages.Refusal):
        found = decoded(Sums, answer.body).answer
        name = due_name(node, signed, about, totals)
        totals = (*totals, LearntSum(name, found, 1, 1))
    return about, totals


def test_a_run_goes_on_from_the_sums_that_its_questions_came_with(made: Agreements, node: Trainer) -> None:
    """The sums of columns were told to the node with the question about the target."""
    signed = made.signed(RUN, made.config(data={"name": "file", "label": "a", "drop": ["y"]}))
    about, (columns, target) = learnt(node, signed)
    other = columns._replace(sum={**columns.sum, "total": columns.sum["total"] + 1})
    bodies = [bytes(encoded(settled(about, (one, target)))) for one in (other, columns)]
    refused = "the sums of round 0 are not those that this node was told before."
    assert [why(node, RunStart(RUN, signed, -1, body)) for body in bodies] == [refused, ""]


def due_name(node: Trainer, signed: Signed, about: RowsFacts, totals: tuple[LearntSum, ...]) -> str:
    from fedatlas.deployment.node_setup import question_due

    agreed = node.agreements.accept(RUN, signed)
    due = question_due(agreed.whole, about, node.kept[1].splits, 0, 3, totals)
    assert due is not None
    return due[0].name


def test_an_honest_run_starts(made: Agreements, node: Trainer) -> None:
    refused, digest = started(made, node, made.signed(RUN))
    assert not refused
    assert node.run is not None
    assert node.run.digest == digest


@pytest.mark.parametrize(
    "fields",
    [
        {"most": 3},
        {"examples": 10},
        {"holders": (1, 2)},
        {"holders": (0, 1, 7)},
        {"totals": ()},
        {"worth": (8, 1 << 40)},
    ],
)
def test_what_round_0_settled_fits_what_the_node_holds_and_was_told(
    made: Agreements, node: Trainer, fields: dict[str, Any]
) -> None:
    assert started(made, node, made.signed(RUN), **fields)[0]


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [("holders", "the numbers of rows do not fit"), ("judging", "the nodes that judge are not those with test rows")],
)
def test_a_node_without_rows_counts_nowhere(made: Agreements, tmp_path: Path, listed: str, sentence: str) -> None:
    """The server listed it: so a sum of three answers, two of them made of no rows, was north's answer."""
    south = made.trainer("south", write_rows(tmp_path / "south.csv"))
    (made.paths["south"] / "policy.toml").write_text('names = ["maybe"]\nmin_rows = 1\n')
    signed = made.signed(RUN, made.config(data={**TABLE["data"], "scale": "none", "test": 0.2}))
    about = facts(south, signed)
    assert about.rows == (0, 0)
    honest = settled(about._replace(class_names=("no", "yes")), holders=(0, 2), judging=(0, 2))
    for terms in (honest, honest._replace(**{listed: (0, 1, 2)})):
        said = why(south, RunStart(RUN, signed, -1, bytes(encoded(terms))))
        assert (sentence in said) is (terms is not honest), said


def test_a_task_is_of_the_run_that_was_agreed_on(made: Agreements, node: Trainer) -> None:
    """A request that names no run's digest, or that of another agreement, is refused before anything is computed."""
    _, digest = started(made, node, made.signed(RUN))
    request = Request(RUN, 1, 0, 0, 0, "train", {}, 0.1, 3, 120, "mean")
    body = bytes(codec.encode(request.plain()))
    for odd in ("0" * 32, run_digest(made.signed(RUN))):
        asked = TaskRequest(RUN, (1, 0, 0), digest_of(body), odd, (), body)
        assert why(node, asked) == "it is not of the run that this node agreed to."
    assert digest != "0" * 32


def test_another_end_of_round_0_is_refused_after_the_first(made: Agreements, node: Trainer) -> None:
    signed = made.signed(RUN)
    started(made, node, signed)
    about = facts(node, signed)
    body = bytes(encoded(settled(about, most=41)))
    assert "told something else of this run before" in why(node, RunStart(RUN, signed, -1, body))


def test_a_signature_is_over_the_text_and_nothing_shorter(made: Agreements) -> None:
    """The purpose stands in front, so that no other signature of the operator's key is one under an agreement."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    signed = made.signed(RUN)
    assert (made.operator.path / KEY).exists()
    key: Any = x509.load_pem_x509_certificate((made.operator.path / CERT).read_bytes()).public_key()
    seal = base64.b64decode(signed.signature)
    key.verify(seal, PURPOSE + signed.text.encode(), ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        key.verify(seal, signed.text.encode(), ec.ECDSA(hashes.SHA256()))
