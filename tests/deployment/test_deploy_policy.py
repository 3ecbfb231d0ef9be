"""What a node takes part in, and what a deployed run refuses, a sentence each; no processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreements import Agreements
from fedatlas import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import parse
from fedatlas.data.dataset import Split
from fedatlas.deployment.node_rows import RowsFacts
from fedatlas.deployment.node_rows_run import cohort_of
from fedatlas.deployment.node_state import same_rows
from fedatlas.deployment.refusals import refuse, undeployable
from fedatlas.deployment.terms import SumTerms, encoded
from fedatlas.errors import ConfigError, DataError, PrivacyError
from fedatlas.federation.link import Request
from fedatlas.files import OWN_FILES
from fedatlas.models.dense import mlp
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.mechanisms import MECHANISMS, secagg
from fedatlas.privacy.secagg import secure_sum
from fedatlas.privacy.secagg.keys import place_of
from fedatlas.privacy.secagg.session import Session, carried
from fedatlas.record.fingerprint import fingerprint, of_splits
from fedatlas.record.run_folder import RunFolder
from fedatlas.registry import PLUGINS
from fedatlas.secret import Secret
from fedatlas.setup.resolution import resolve
from fedatlas.wire.messages import FactsQuestion, SumQuestion, written
from fedatlas.wire.policy import TEMPLATE, Asked, Policy

FACTS = RowsFacts("digits", "classes", ("a", "b"), (), (), (), -100, (), {}, ("f32", (4,)), ("i64", ()))
FIRST = {"run": "run", "round": 1, "attempt": 0, "ask": "train"}
ASKED = Asked("operator", "fedavg", epochs=1, rounds=10, cohort=3, masked=False)


@pytest.mark.parametrize(
    ("policy", "asked", "why"),
    [
        ({"algorithms": ("scaffold",)}, {}, "the algorithm 'fedavg' (algorithms = ['scaffold'])"),
        ({"operators": ("chief",)}, {}, "the operator 'operator' (operators = ['chief'])"),
        ({"local_epochs": 0.5}, {}, "local epochs = 1, more than 0.5"),
        ({"rounds": 9}, {}, "rounds = 10, more than 9"),
        ({"min_rows": 9}, {"rows": 8}, "an answer made of 8 rows that the server sees alone, fewer than min_rows = 9"),
        (
            {},
            {"rows": 7, "light": 33, "masked": True},
            "40 rows that data.weight makes count as 7, fewer than min_rows",
        ),
        ({"max_weight_share": 0.9}, {"share": 0.91, "masked": True}, "more than max_weight_share = 0.9 of all"),
        ({}, {"rows": 9, "masked": True, "alone": True}, "an answer made of 9 rows that the server sees alone"),
        ({"min_cohort": 4}, {}, "a round of 3 nodes, fewer than min_cohort = 4"),
        ({"secure_aggregation": True}, {}, "a run without secure aggregation"),
        ({}, {"counts_labels": True}, "an ask for label counts, which label_counts = 'masked' forbids here"),
        ({"label_counts": "no"}, {"counts_labels": True, "masked": True}, "label_counts = 'no'"),
        ({}, {"cohort": 2, "masked": True}, "a round of 2 nodes, fewer than 3, which a secure sum needs"),
        (
            {"members": ("a", "b"), "min_cohort": 2},
            {"members": ("a", "c", "d")},
            "a round of 1 nodes of its members, fewer than min_cohort = 2",
        ),
        (
            {},
            {"tells_labels": True},
            "'fedavg', by which labels count as known to all parties: known_labels does not name it",
        ),
        ({"known_labels": ("other",)}, {"tells_labels": True}, "known_labels does not name it"),
        ({"label": "y"}, {"data": {"label": "x"}}, "data.label, which is not the one that label pins"),
        ({"drop": ("a", "b")}, {"data": {"drop": ["a"]}}, "data.drop, which is not the one that drop pins"),
        (
            {},
            {"counts_labels": True, "masked": True, "alone": True},
            "tells label counts outside a sum, which label_counts",
        ),
    ],
)
def test_a_policy_refuses_with_the_reason(policy: dict[str, Any], asked: dict[str, Any], why: str):
    with pytest.raises(PrivacyError) as said:
        Policy(**policy).check(ASKED._replace(**asked))
    assert str(said.value).startswith("its policy.toml refuses ")
    assert why in str(said.value)


@pytest.mark.parametrize(
    ("what", "message", "cohort"),
    [
        (secure_sum.KEYS, {**FIRST, "cohort": torch.tensor([0, 2, 3])}, (0, 2, 3)),
        (secure_sum.AGREE, {"survivors": torch.tensor([True, False, True, True, True])}, (0, 4, 6, 8)),
        ("train", {}, None),
    ],
)
def test_of_whom_a_masked_sum_is_the_node_sees_for_itself(what: str, message: dict[str, Any], cohort: Any):
    request = Request("run", 1, 0, 0, 0, what, message, 0.1, 9, 100, "mean")
    place = place_of("some", "run", 1, 0, "train", (0, 2, 4, 6, 8))
    session = {"secagg": carried(Session(place, bytes(32), 0, "masked", Secret(), Secret(), Secret(bytes(32))))}
    assert cohort_of(request, Protection((secagg(),), 5, 1, 1.0, 0), session) == cohort


@pytest.mark.parametrize("kind", ["facts", "learn"])
def test_a_question_before_round_1_is_checked_too(tmp_path: Path, kind: str):
    """Before anything is read: the file of rows is not there."""
    made = Agreements(tmp_path, ["north", "south"])
    (made.paths["north"] / "policy.toml").write_text('operators = ["chief"]')
    signed = made.signed("r")
    asked = {
        "facts": FactsQuestion("r", signed),
        "learn": SumQuestion("r", signed, 0, encoded(SumTerms(FACTS, ()))),
    }[kind]
    (said,) = made.trainer("north", tmp_path / "rows.csv").serve(written(asked))
    assert said.head["why"] == "its policy.toml refuses the operator 'operator' (operators = ['chief'])"


def test_what_it_allows_passes():
    Policy().check(ASKED)
    Policy(algorithms=("fedavg",), operators=("operator",), local_epochs=1, rounds=10, min_cohort=3).check(ASKED)
    Policy(secure_aggregation=True).check(ASKED._replace(masked=True))
    Policy().check(ASKED._replace(rows=10))
    Policy().check(ASKED._replace(rows=1, masked=True))
    Policy(label_counts="plain").check(ASKED._replace(counts_labels=True))
    Policy(known_labels=("fedavg",)).check(ASKED._replace(tells_labels=True))
    Policy().check(ASKED._replace(counts_labels=True, masked=True))
    Policy(label_counts="plain").check(ASKED._replace(counts_labels=True, masked=True, alone=True))


def test_the_template_is_what_holds_without_a_file(tmp_path: Path):
    path = tmp_path / "policy.toml"
    without = Policy.read(path)
    path.write_text(TEMPLATE)
    assert Policy.read(path) == without == Policy(min_cohort=2)
    path.write_text(re.sub(r"^# (\w+ =)", r"\1", TEMPLATE, flags=re.MULTILINE))
    assert Policy.read(path).local_epochs == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("local_epoch = 3", "unknown key of a policy 'local_epoch': did you mean 'local_epochs'?"),
        ("local_epochs = -1", "local_epochs = -1 is not a number above 0"),
        ('algorithms = "fedavg"', "is not a list of names"),
        ('label_counts = "yes"', 'is not "masked", "plain" or "no"'),
        ("min_cohort = true", "is not a whole number above 0"),
        ("rounds =", "is not valid TOML"),
    ],
)
def test_a_policy_that_is_wrong_is_said_in_a_sentence(tmp_path: Path, text: str, why: str):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as said:
        Policy.read(path)
    assert why in str(said.value)


WHY_NOT = {
    "centralised": "pools all rows",
    "gossip": "lets nodes hear each other",
    "push_sum": "lets nodes hear each other",
    "fedseq": "hands models from client to client",
    "fedseq_inter": "hands models from client to client",
    "fedmd": "works with public rows",
    "feddf": "works with public rows",
    "fedma": "sends layers",
    **dict.fromkeys(["cfl", "fesem", "ifca", "ditto", "fedbn", "local_only"], "gives clients models of their own"),
}
DEPLOYED = {
    "fedsgd", "fedavg", "fedavgm", "hwfedavg", "nwfedavg", "fedadagrad", "fedadam", "fedyogi", "fedprox", "feddyn", "scaffold",
    "moon", "fednova",
}  # fmt: skip


def test_what_is_deployed_follows_from_an_algorithms_record():
    found = {name: undeployable(made()) for name, made in ALGORITHMS.items()}
    assert {name for name, why in found.items() if not why} == DEPLOYED
    assert found.keys() - DEPLOYED == WHY_NOT.keys()
    assert not [name for name, why in WHY_NOT.items() if not found[name].startswith(why)]
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    listed = page.partition("A deployed run uses one of these algorithms")[2].partition(". Those")[0]
    assert {*re.findall(r"`(\w+)`", listed)} - {*MECHANISMS} == DEPLOYED
    said = "counts rows by the hour"
    assert undeployable(Algorithm("own", refuses={"deployment": said})) == said


def test_a_plug_in_is_not_deployed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PLUGINS["algorithms"], "mine", lambda: Algorithm("mine"))
    monkeypatch.setitem(PLUGINS["models"], "own", mlp)
    for tables in ({"algorithm": {"name": "mine"}}, {"model": {"name": "own"}}):
        found = resolve(parse({"partition": {"name": "iid", "clients": 3}, **tables}))
        with pytest.raises(ConfigError, match="is a plug-in, and nodes run only what fedatlas brings"):
            refuse(found, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"algorithm": {"name": "fedseq"}}, "hands models from client to client"),
        ({"algorithm": {"name": "centralised"}}, "'centralised': it pools all rows"),
        ({"algorithm": {"name": "gossip"}}, "would see what only neighbours may"),
        ({"model": {"name": "cnn2", "norm": "batch", "bn": "local"}}, "model.bn = 'local'"),
        ({"public": {"per_class": 2}}, "[public]"),
        ({"evaluation": {"drift": True}}, "evaluation.drift"),
        ({"evaluation": {"clients": 0.2}}, "evaluation.clients"),
        ({"privacy": [{"name": "paillier"}]}, "of the mechanisms it has 'secagg'"),
        ({"privacy": [{"name": "paillier", "reveal": "clients"}]}, "of the mechanisms it has 'secagg'"),
        ({"privacy": [{"name": "threshold_paillier"}]}, "threshold_paillier"),
        ({"privacy": [{"name": "bfv"}]}, "of the mechanisms it has 'secagg'"),
        ({"privacy": [{"name": "ckks"}]}, "of the mechanisms it has 'secagg'"),
        ({"engine": {"plan": "stacked"}}, "engine.plan = 'stacked'"),
        ({"partition": {"name": "iid", "clients": 4}}, "write partition.clients = 3"),
        ({"seeds": [1, 2]}, "a deployed run has one seed"),
    ],
)
def test_what_is_not_deployed_is_refused(tables: dict[str, Any], why: str):
    found = resolve(parse({"partition": {"name": "iid", "clients": 3}, **tables}))
    with pytest.raises(ConfigError) as said:
        refuse(found, ("a", "b", "c"))
    assert why in str(said.value)


@pytest.mark.parametrize(
    "tables",
    [
        {"data": {"name": "file", "label": "y", "path": OWN_FILES}},
        {
            "parties": [
                {"name": "a", "path": OWN_FILES, "id": "i", "label": "y"},
                {"name": "b", "path": OWN_FILES, "id": "i"},
            ],
            "algorithm": {"name": "secureboost"},
        },
    ],
)
def test_what_repeats_a_run_between_nodes_is_no_simulation(tmp_path: Path, tables: dict[str, Any]):
    folder = RunFolder.create(tmp_path / "run", parse(tables))
    assert "'fedatlas deploy run config.toml' repeats it" in (folder.path / "config.toml").read_text()


def test_the_table_round_is_outside_of_the_hash():
    plain, given = parse({}), parse({"round": {"on_loss": "wait", "minimum": 3}})
    assert plain.hash() == given.hash()
    assert "round" not in plain.plain()


def test_rows_that_a_run_began_with_are_known_again() -> None:
    """By the fingerprint that nodes have written down: one that is made otherwise would end their runs."""
    split = Split(torch.arange(6, dtype=torch.float32).reshape(2, 3), torch.tensor([1, 0]))
    found = fingerprint(of_splits({"train": split, "test": split.take(np.array([1]))}))
    assert found == "fe8822c403d1252d3f1c5d1f9d444ccd"
    assert same_rows("", found) == same_rows(found, found) == found
    with pytest.raises(DataError, match="put the original file back"):
        same_rows(found, fingerprint(of_splits({"train": split})))
