"""Malicious clients: who they are, what they train on and send, what the server does about it, and what a run records (A4, B18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacked import ALIE, DOOR, FAST, FLIP, SEQ, SIGN, TABLES, Sent, done, experiment, model, rows, summary
from configured import set_up
from fedatlas import Experiment
from fedatlas.api import resume, run
from fedatlas.attacks import superclasses
from fedatlas.attacks.labels import mapping, pairs_of, relabelled
from fedatlas.attacks.poisoning import POISONING
from fedatlas.data.images import CIFAR100
from fedatlas.engine.pool import can_fork
from fedatlas.errors import ConfigError
from fedatlas.setup.cohort import draw_round
from fedatlas.tree import Tree
from federation import gap, same

# ---------------------------------------------------------------------- labels


@given(st.permutations(range(10)), st.integers(1, 5), st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_a_swap_undoes_itself_and_keeps_the_counts_of_each_pair(order: list[int], n: int, labels: list[int]) -> None:
    pairs = tuple((order[2 * i], order[2 * i + 1]) for i in range(n))
    y = torch.tensor(labels)
    swapped = relabelled(y, pairs, "swap")
    assert torch.equal(relabelled(swapped, pairs, "swap"), y)
    for pair in pairs:
        there = torch.tensor(pair)
        assert int(torch.isin(swapped, there).sum()) == int(torch.isin(y, there).sum())


def test_chained_pairs_do_not_undo_each_other() -> None:
    """0 -> 2 and 2 -> 0 as two flips are one exchange, whatever their order."""
    assert mapping(((0, 2), (2, 0)), "flip", 3).tolist() == [2, 1, 0]
    assert relabelled(torch.tensor([0, 1, 2, -100]), ((0, 2),), "flip").tolist() == [2, 1, 2, -100]


def test_each_attacker_draws_one_of_the_perfect_matchings() -> None:
    """Of four classes there are three, all of them come up, and a client's stays what it is."""
    table = ((0, 2), (5, 3))
    drawn = [pairs_of(table, "random", 1, 0, k) for k in range(60)]
    matchings = {frozenset(frozenset(pair) for pair in pairs) for pairs in drawn}
    assert len(matchings) == 3
    assert drawn[7] == pairs_of(table, "random", 1, 0, 7)
    assert pairs_of(table, "fixed", 1, 0, 7) == table


def test_pairs_across_and_inside_the_superclasses_of_cifar_100() -> None:
    """Twenty classes in ten pairs: one of each superclass, paired across; or two of each of ten, paired inside."""
    assert superclasses.known(CIFAR100)
    assert not superclasses.known(CIFAR100[:50])
    of = {CIFAR100.index(name): i for i, names in enumerate(superclasses.SUPERCLASSES) for name in names}
    across, inside = (superclasses.drawn(which, CIFAR100, 1) for which in ("extra_SC", "intra_SC"))
    assert sorted(of[c] for pair in across for c in pair) == list(range(20))
    assert all(of[a] == of[b] for a, b in inside)
    assert len({of[a] for a, _ in inside}) == len(across) == len(inside) == 10
    assert superclasses.drawn("extra_SC", CIFAR100, 2) != across


# ---------------------------------------------------------------------- exactness


@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, SEQ, {"name": "gossip"}], ids=lambda a: a["name"])
def test_nobody_and_an_identity_are_the_plain_run_bit_for_bit(algorithm: dict[str, Any], tmp_path: Path) -> None:
    plain = done(tmp_path / "plain", algorithm=algorithm)
    nobody = done(tmp_path / "nobody", {**FLIP, "share": 0}, algorithm=algorithm)
    identity = done(tmp_path / "identity", {**SIGN, "c": -1.0}, algorithm=algorithm)
    assert model(plain) == model(nobody) == model(identity)
    assert [row["loss"] for row in rows(plain)] == [row["loss"] for row in rows(identity)]
    assert "attackers" not in rows(plain)[-1]
    assert rows(nobody)[-1]["attackers"] == []
    assert len(rows(identity)[-1]["attackers"]) == 2


@pytest.mark.parametrize("attack", [FLIP, SIGN, ALIE, DOOR], ids=lambda a: a["name"])
@pytest.mark.parametrize("engine", [{"name": "loop"}, {"name": "fast", "plan": "stacked"}], ids=lambda e: e["name"])
def test_honest_clients_keep_their_bits(attack: dict[str, Any], engine: dict[str, Any], tmp_path: Path) -> None:
    """In round 1 all are told the same: only what attackers send differs, also where they share a stack."""
    honest, mixed = Sent(), Sent()
    done(tmp_path / "honest", observers=[honest], rounds=1, engine=engine)
    path = done(tmp_path / "mixed", attack, observers=[mixed], rounds=1, engine=engine)
    differing = [k for k in range(6) if not same(honest.models[1, k], mixed.models[1, k])]
    assert differing == rows(path)[-1]["attackers"] == summary(path)["attacks"][0]["clients"]


@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, SEQ, {"name": "gossip"}], ids=lambda a: a["name"])
def test_attacked_runs_agree_across_workers_chunks_engines_and_resume(
    algorithm: dict[str, Any], tmp_path: Path
) -> None:
    """Bit for bit within a plan, to rounding across plans; noise is drawn from the seed alone."""
    attacks = ({"name": "gaussian", "share": 0.2, "sigma": 1.0}, {**FLIP, "share": 0.34})
    given: dict[str, Any] = {"algorithm": algorithm, "aggregation": {"name": "norm_clip"}}
    one = done(tmp_path / "one", *attacks, engine=FAST, **given)
    several = {"chunk 2": {**FAST, "chunk": 2}}
    if can_fork():
        several["workers 2"] = {**FAST, "workers": 2, "chunk": 3}
    for name, engine in several.items():
        assert model(one) == model(done(tmp_path / name, *attacks, engine=engine, **given)), name
    loop = done(tmp_path / "loop", *attacks, **given)
    assert [r["attackers"] for r in rows(one)] == [r["attackers"] for r in rows(loop)]
    assert rows(one)[-1]["loss"] == pytest.approx(rows(loop)[-1]["loss"], rel=1e-4)
    begun = done(tmp_path / "begun", *attacks, engine=FAST, **{**given, "rounds": 2})
    assert model(resume(begun, ["rounds=4"], baselines=False).path) == model(one)
    assert [r["attackers"] for r in rows(begun)] == [r["attackers"] for r in rows(one)]


# ---------------------------------------------------------------------- who and when


def test_attackers_are_so_many_and_stay_who_they_are(tmp_path: Path) -> None:
    """floor(0.5 x 6) = 3 and floor(0.34 x 6) = 2, nobody twice; the second begins in round 2 and ends after round 3."""
    path = done(tmp_path / "run", FLIP, {**SIGN, "rounds": [2, 3]})
    flips, signs = (set(one["clients"]) for one in summary(path)["attacks"])
    assert (len(flips), len(signs), len(flips & signs)) == (3, 2, 0)
    assert [set(row["attackers"]) for row in rows(path)] == [set(), flips, flips | signs, flips | signs, flips]


def test_whole_superclients_attack_as_one(tmp_path: Path) -> None:
    """One of three: its two clients train in turn, and the last sends -c times what the chain changed."""
    attack = {**SIGN, "unit": "superclient", "c": 2.0}
    honest, hostile = Sent(), Sent()
    done(tmp_path / "honest", algorithm=SEQ, observers=[honest], rounds=1)
    path = done(tmp_path / "hostile", attack, algorithm=SEQ, observers=[hostile], rounds=1)
    mine = set(rows(path)[-1]["attackers"])
    assert sorted(mine) in summary(path)["groups"]
    w0 = next(told for (_, k), told in hostile.told.items() if same(told, honest.told[1, k]))
    ends = [k for k in mine if not same(honest.models[1, k], hostile.models[1, k])]
    assert len(ends) == 1  # inside the chain all was honest
    change, sent = honest.models[1, ends[0]] - w0, hostile.models[1, ends[0]] - w0
    assert gap(sent, -2.0 * change) < 1e-5


def test_what_attackers_send(tmp_path: Path) -> None:
    """The honest change times -c; noise as long as sigma of them; the change that makes the mean the attacker's model."""
    honest = Sent()
    done(tmp_path / "honest", observers=[honest], rounds=1)

    def sent(name: str, attack: dict[str, Any]) -> tuple[Tree, Tree, Sent]:
        seen = Sent()
        done(tmp_path / name, {"name": name, "clients": [2], **attack}, observers=[seen], rounds=1)
        w = honest.told[1, 2]
        return honest.models[1, 2] - w, seen.models[1, 2] - w, seen

    change, found, _ = sent("sign_flip", {"c": 3.0})
    assert gap(found, -3.0 * change) < 1e-5
    change, found, _ = sent("gaussian", {"sigma": 10.0})
    assert found.norm() == pytest.approx(10 * change.norm(), rel=0.1)
    assert abs(found.dot(change)) < 0.5 * found.norm() * change.norm()
    _, flipped, _ = sent("label_flip", {"pairs": [[3, 5]], "kind": "flip"})
    _, replaced, _ = sent("model_replacement", {"pairs": [[3, 5]]})
    factor = 300 / 50
    assert gap(replaced, factor * flipped) < 1e-4


def test_the_factor_of_a_replacement_follows_the_round() -> None:
    """n / (eta_g n_a): by rows of those drawn, by clients under uniform weights, by the server's rate, by superclients in chains."""

    def factors(**tables: Any) -> set[float]:
        attack = {"name": "model_replacement", "pairs": [[3, 5]], **tables.pop("attack", {"share": 0.34})}
        setup = set_up(experiment(attack, **tables).config, 1)
        groups = ((0, 1, 2), (3, 4), (5,)) if "algorithm" in tables and "psi" in tables["algorithm"] else None
        drawn = draw_round(setup.config, setup.sizes, 1, 1, groups)
        return {round(order.scale, 6) for order in setup.cast.orders(drawn, groups).values()}

    assert factors() == {3.0}  # two of six alike
    assert factors(attack={"clients": [1]}) == {6.0}
    assert factors(attack={"clients": [1], "scale": 4.5}) == {4.5}
    assert factors(attack={"clients": [1]}, algorithm={"name": "fedavgm", "server_lr": 0.5}) == {12.0}
    assert factors(attack={"clients": [1]}, algorithm={"name": "gossip"}) == {3.0}  # a neighbour's weight is 1/3
    assert factors(attack={"clients": [3]}, algorithm={"name": "fedseq", "psi": "conf"}) == {3.0}


# ---------------------------------------------------------------------- what a run records


def test_a_run_says_what_attackers_did_and_the_classes_suffered(tmp_path: Path) -> None:
    path = done(tmp_path / "run", FLIP, aggregation={"name": "multi_krum", "f": 1}, rounds=8)
    found, last = summary(path), rows(path)[-1]
    assert found["attacks"][0]["pairs"] == [[3, 5], [0, 8]]
    assert found["attacks"][0]["attacked_rounds"] == 8
    assert found["attacks"][0]["declaration"]["who"] == "insider: clients"
    assert found["attacks"][0]["swapped_accuracy"] == last["swapped_accuracy"]
    assert last["swapped_accuracy"] < last["rest_accuracy"]
    accuracy = found["final"]["per_class_accuracy"]
    counts = {c: sum(row) for c, row in enumerate(found["final"]["confusion"])}
    attacked = (0, 3, 5, 8)
    expected = sum(accuracy[c] * counts[c] for c in attacked) / sum(counts[c] for c in attacked)
    assert last["swapped_accuracy"] == pytest.approx(expected)
    assert "source_recall" not in last  # swapped classes are in it
    hits = sum(found["final"]["confusion"][a][b] for a, b in ((3, 5), (5, 3), (0, 8), (8, 0)))
    assert last["attack_success"] == pytest.approx(hits / sum(counts[c] for c in attacked))
    ruled = found["aggregation"]
    assert ruled["name"] == "multi_krum"
    assert ruled["attackers"]["left_out"] + ruled["honest"]["left_out"] == 8  # one of six a round
    assert [len(row["left_out"]) for row in rows(path)[1:]] == [1] * 8
    page = (path / "report.html").read_text()
    assert "The attackers and the defence" in page
    assert "Multi-Krum" in page
    assert "accuracy on attacked classes" in page


def test_classes_turned_into_others_have_their_recall(tmp_path: Path) -> None:
    """Of labels flipped one way: the accuracy on rows of the class that is lost, not on those of the class that it becomes."""
    one_way = {"name": "label_flip", "share": 0.34, "pairs": [[3, 5], [0, 8]], "kind": "flip"}
    path = done(tmp_path / "run", one_way, rounds=3)
    found, last = summary(path), rows(path)[-1]
    confusion = found["final"]["confusion"]
    lost = (confusion[3][3] + confusion[0][0]) / (sum(confusion[3]) + sum(confusion[0]))
    assert last["source_recall"] == found["attacks"][0]["source_recall"] == pytest.approx(lost)
    assert last["source_recall"] != last["swapped_accuracy"]


def test_the_baselines_of_an_attacked_run_are_those_of_the_plain_one(tmp_path: Path) -> None:
    """Where no update is sent nobody can alter one, and no rule can judge."""
    attacked = run(experiment(SIGN, aggregation={"name": "median"}), out=tmp_path / "attacked", baselines=True).path
    plain = run(experiment(), out=tmp_path / "plain", baselines=True).path
    for name in ("local_only", "centralised"):
        found = [summary(path / "baselines" / name)["final"]["accuracy"] for path in (attacked, plain)]
        assert found[0] == found[1]


def test_a_model_that_attackers_made_diverge_is_an_outcome(tmp_path: Path) -> None:
    path = run(experiment({**SIGN, "c": 1e30}), out=tmp_path / "run", baselines=True).path
    assert not (path / "baselines").exists()  # with which nothing could be compared
    assert "The attackers made the model diverge" in (path / "report.html").read_text()
    found = summary(path)
    assert "diverged" in found["diverged"]
    assert found["final"]["accuracy"] == 0.1
    assert "made the model diverge" in (path / "report.html").read_text()
    assert [row["round"] for row in rows(path)] == list(range(len(rows(path))))


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "trimmed_mean", "median", "norm_clip"])
@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, {"name": "scaffold"}], ids=lambda a: a["name"])
def test_a_rule_keeps_a_run_that_the_mean_loses(rule: str, algorithm: dict[str, Any], tmp_path: Path) -> None:
    attack = {**SIGN, "share": 0.17, "c": 1e6}
    table = {"name": rule, **({} if rule == "norm_clip" else {"f": 1})}
    found = summary(done(tmp_path / "run", attack, aggregation=table, algorithm=algorithm, rounds=6))
    assert "diverged" not in found
    assert found["final"]["loss"] < 3
    lost = summary(done(tmp_path / "lost", attack, algorithm=algorithm, rounds=6))
    assert "diverged" in lost or lost["final"]["loss"] > 10


def test_a_round_with_too_few_changes_changes_nothing_and_says_so(tmp_path: Path) -> None:
    path = done(tmp_path / "run", aggregation={"name": "krum", "f": 1}, failures={"dropout": 0.5}, rounds=6)
    unchanged = [row for row in rows(path)[1:] if row.get("unchanged")]
    assert unchanged
    assert all(len(row["clients"]) < 5 for row in unchanged)
    assert unchanged[0]["unchanged"].startswith("'krum' with f = 1 needs 2 f + 3 changes or more, not ")
    assert summary(path)["aggregation"]["unchanged_rounds"] == [row["round"] for row in unchanged]


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"attack": [{"name": "sign_flip", "share": 0.1}]}, "of 6 clients rounds to zero; write 0.167 or more, or 0"),
        ({"attack": [{"name": "sign_flip"}]}, "say who attacks with either share, as in share = 0.2"),
        ({"attack": [{"name": "sign_flip", "share": 0.5, "clients": [1]}]}, "say who attacks"),
        ({"attack": [{"name": "sign_flip", "clients": [6]}]}, "there is no client 6; they are 0 to 5"),
        ({"attack": [SIGN, {**FLIP, "share": 0.9}]}, "only 4 are not attackers yet"),
        ({"attack": [{**SIGN, "unit": "superclient"}]}, "'fedavg' forms none"),
        (
            {"attack": [{**SIGN, "unit": "superclient", "share": 0.2}], "algorithm": SEQ},
            "of 3 superclients rounds to zero",
        ),
        ({"attack": [{**SIGN, "rounds": [9, 0]}]}, "contains no round of this run"),
        ({"attack": [{**SIGN, "rounds": [3, 2]}]}, "contains no round of this run"),
        ({"attack": [{**SIGN, "role": "server"}]}, "only clients can poison"),
        ({"attack": [{**FLIP, "pairs": [[3, 12]]}]}, "'digits' has no class 12; its 10 classes are 0 to 9"),
        ({"attack": [{**FLIP, "pairs": [[3, 3]]}]}, "changes nothing"),
        ({"attack": [{**FLIP, "pairs": [[3, 5], [5, 1]]}]}, "class 5 occurs twice"),
        ({"attack": [{**FLIP, "pairs": "extra_SC"}]}, "needs CIFAR-100's superclasses, which 'digits' does not have"),
        (
            {"attack": [{**FLIP, "pairs": "intra_SC", "draw": "random"}]},
            "this version draws pairs inside superclasses only once",
        ),
        ({"attack": [{**FLIP, "pairs": []}]}, "name the classes to exchange"),
        ({"attack": [{"name": "gan", "share": 0.5}]}, "unknown key 'attack.gan.share'"),
        ({"attack": [{"name": "sign_flp", "share": 0.5}]}, "did you mean 'sign_flip'"),
        ({"attack": [{**SIGN, "d": 2}]}, "unknown key 'attack.sign_flip.d'"),
        ({"attack": [SIGN], "algorithm": {"name": "local_only"}}, "whose clients send no updates"),
        ({"attack": [{**FLIP}], "data": {"name": "diabetes_lars"}}, "the target of 'diabetes_lars' is a number"),
        ({"aggregation": {"name": "krum", "f": 2}}, "'krum' with f = 2 needs 2 f \\+ 3 changes or more, not 6 clients"),
        ({"aggregation": {"name": "median", "f": 3}}, "needs more than 2 f changes, not 6"),
        ({"aggregation": {"name": "fltrust"}}, "add a table \\[public\\]"),
        ({"aggregation": {"name": "medain"}}, "did you mean 'median'"),
        ({"aggregation": {"name": "norm_clip", "f": 1}}, "unknown key 'aggregation.f'"),
        ({"aggregation": {"name": "median"}, "privacy": [{"name": "secagg"}]}, "not under 'secagg'"),
        ({"aggregation": {"name": "krum"}, "privacy": [{"name": "paillier"}]}, "not under 'paillier'"),
        ({"aggregation": {"name": "median"}, "algorithm": {"name": "fedma"}}, "not with 'fedma'"),
        ({"aggregation": {"name": "median"}, "algorithm": {"name": "push_sum"}}, "not with 'push_sum'"),
        ({"aggregation": {"name": "median"}, "algorithm": {"name": "centralised"}}, "not with 'centralised'"),
        ({"aggregation": {"name": "median"}, "algorithm": {"name": "hwfedavg"}}, "the method consists in its weights"),
        ({"aggregation": {"name": "krum"}, "algorithm": {"name": "nwfedavg"}}, "the method consists in its weights"),
        ({"aggregation": {"name": "krum", "f": 1}, "algorithm": {"name": "gossip"}}, "not 3 models that a node hears"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tables: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        run(Experiment.of(**{**TABLES, **tables}), out=tmp_path / "run", baselines=False)
    assert str(refused.value).endswith((".", "?"))
    assert "\n" not in str(refused.value)


def test_a_rule_that_weighs_goes_with_weights_and_with_local_noise(tmp_path: Path) -> None:
    """What ignores weights is refused where they are the point; what clips lengths is not."""
    done(tmp_path / "weighted", algorithm={"name": "hwfedavg"}, aggregation={"name": "norm_clip"}, rounds=1)
    noise = {"name": "local_dp", "epsilon": 50.0, "clip": 1.0, "noise": "seed"}
    given = {"privacy": [noise], "algorithm": {"name": "fedavg", "weights": "uniform"}}
    path = done(tmp_path / "noised", aggregation={"name": "median"}, rounds=1, **given)
    assert rows(path)[-1]["left_out"] == []


@pytest.mark.parametrize("name", POISONING)
def test_every_attack_says_who_how_when_where_and_why(name: str) -> None:
    needed = {"pairs": ((0, 1),)} if name in {"label_flip", "model_replacement"} else {}
    declared = POISONING[name](share=0.2, **needed).declares
    assert all(declared)
    assert declared.knows in {"own", "coalition", "all"}
    assert ("omniscient" in declared.knowledge) == (declared.knows == "all")
