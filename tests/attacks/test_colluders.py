"""Colluders in a run: they are given what the threat model grants, and honest clients keep their bits (B18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attacked import FAST, SEQ, Sent, done, experiment, model, rows, summary
from fedatlas.api import resume
from fedatlas.attacks.collusion import Scene, z_max
from fedatlas.attacks.poisoning import POISONING
from fedatlas.engine.pool import can_fork
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protection import protect
from fedatlas.privacy.protocol import Doing
from fedatlas.setup.refusals import checked
from fedatlas.tree import Tree
from federation import gap, same

GOSSIP = {"name": "gossip"}
ALGORITHMS = [{"name": "fedavg"}, {"name": "scaffold"}, SEQ, GOSSIP]
NOISE = {"name": "local_dp", "epsilon": 50.0, "clip": 0.01, "noise": "seed"}


def of(algorithm: dict[str, Any], attack: dict[str, Any]) -> dict[str, Any]:
    """The attack by whole superclients where clients form chains."""
    return {**attack, "unit": "superclient"} if "psi" in algorithm or algorithm["name"] == "fedseq" else attack


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a["name"])
def test_nobody_and_an_identity_are_the_plain_run_bit_for_bit(algorithm: dict[str, Any], tmp_path: Path) -> None:
    """One attacker that takes no deviation from the mean of its own change sends this change, later than the others."""
    plain = done(tmp_path / "plain", algorithm=algorithm)
    one = {"share": 0.34} if algorithm == SEQ else {"clients": [2]}
    identity = done(tmp_path / "identity", of(algorithm, {"name": "alie", "z": 0.0, **one}), algorithm=algorithm)
    nobody = done(tmp_path / "nobody", of(algorithm, {"name": "alie", "share": 0}), algorithm=algorithm)
    assert model(plain) == model(identity) == model(nobody)
    assert [row["train_loss"] for row in rows(plain)] == [row["train_loss"] for row in rows(identity)]
    assert len(rows(identity)[-1]["attackers"]) == (2 if algorithm == SEQ else 1)


@pytest.mark.parametrize(
    "algorithm", [*ALGORITHMS[1:3], pytest.param(GOSSIP, marks=pytest.mark.slow)], ids=lambda a: a["name"]
)
def test_runs_agree_across_workers_chunks_engines_and_resume(algorithm: dict[str, Any], tmp_path: Path) -> None:
    attacks = [of(algorithm, {"name": "alie", "share": 0.34, "z": 1.5, "knows": "all"})]
    if algorithm != SEQ:
        attacks.append({"name": "inner_product", "share": 0.34, "epsilon": 0.5 if algorithm == GOSSIP else "optimal"})
    given: dict[str, Any] = {"algorithm": algorithm, "aggregation": {"name": "norm_clip"}, "evaluation": {"every": 1}}
    one = done(tmp_path / "one", *attacks, engine=FAST, **given)
    several = {"chunk 2": {**FAST, "chunk": 2}}
    if can_fork():
        several["workers 2"] = {**FAST, "workers": 2, "chunk": 3}
    for name, engine in several.items():
        assert model(one) == model(done(tmp_path / name, *attacks, engine=engine, **given)), name
    loop = done(tmp_path / "loop", *attacks, **given)
    assert rows(one)[1]["loss"] == pytest.approx(rows(loop)[1]["loss"], rel=1e-4)  # later, rounding may flip a choice
    begun = done(tmp_path / "begun", *attacks, engine=FAST, **{**given, "rounds": 2})
    assert model(resume(begun, ["rounds=4"], baselines=False).path) == model(one)


# ---------------------------------------------------------------------- what they are given


def test_what_colluders_send(tmp_path: Path) -> None:
    """mu - z sigma of their own changes, or of those of all honest clients; a mean reversed; one client's change."""
    honest = Sent()
    done(tmp_path / "honest", observers=[honest], rounds=1)
    w = honest.told[1, 0]
    change = {k: (honest.models[1, k] - w).flatten().double() for k in range(6)}

    def sent(name: str, **keys: Any) -> list[torch.Tensor]:
        seen = Sent()
        table = {"name": name, "clients": [1, 4], **keys}
        done(tmp_path / f"{name}-{keys}", table, observers=[seen], rounds=1)
        assert all(same(seen.models[1, k], honest.models[1, k]) for k in (0, 2, 3, 5))
        return [(seen.models[1, k] - w).flatten().double() for k in (1, 4)]

    own, others = torch.stack([change[1], change[4]]), torch.stack([change[k] for k in (0, 2, 3, 5)])
    expected = {
        ("alie", "coalition"): own.mean(0) - z_max(6, 2) * own.std(0),
        ("alie", "all"): others.mean(0) - z_max(6, 2) * others.std(0),
        ("inner_product", "coalition"): -0.5 * own.mean(0),
        ("inner_product", "all"): -0.5 * others.mean(0),
    }
    for (name, knows), wanted in expected.items():
        found = sent(name, knows=knows)
        assert torch.equal(*found)
        assert float((found[0] - wanted).abs().max()) < 1e-6, (name, knows)
    assert float((sent("mimic")[0] - change[0]).abs().max()) < 1e-7
    assert float((sent("mimic", client=3)[0] - change[3]).abs().max()) < 1e-7


@pytest.mark.parametrize(
    ("attack", "rule"),
    [
        ({"name": "alie"}, {"name": "krum", "f": 1}),
        ({"name": "min_max"}, {"name": "krum", "f": 1}),
        ({"name": "alie", "z": "optimal"}, {"name": "krum", "f": 1}),
        ({"name": "alie", "z": "optimal"}, {"name": "norm_clip"}),
        ({"name": "inner_product", "epsilon": "optimal"}, {"name": "median"}),
    ],
    ids=str,
)
def test_a_coalition_sends_the_same_bits_whatever_the_others_send(
    attack: dict[str, Any], rule: dict[str, Any], tmp_path: Path
) -> None:
    """Two further clients send something else in the second run; only who is omniscient notices."""
    other = {"name": "sign_flip", "clients": [0, 3], "c": 5.0}

    def noticed(knows: str) -> bool:
        sent = []
        for name, more in (("a", []), ("b", [other])):
            seen, table = Sent(), {**attack, "clients": [1, 4], "knows": knows}
            done(tmp_path / f"{knows}-{name}", table, *more, observers=[seen], rounds=1, aggregation=rule)
            assert same(seen.models[1, 1], seen.models[1, 4])
            sent.append(seen.models[1, 1])
        return not same(*sent)

    assert not noticed("coalition")
    assert noticed("all") or "optimal" in attack.values()  # the best factor may be 0 in both


def test_in_gossip_each_adds_what_they_agreed_on_to_its_own_model(tmp_path: Path) -> None:
    seen = Sent()
    attack = {"name": "inner_product", "clients": [1, 4]}
    done(tmp_path / "run", attack, observers=[seen], rounds=2, algorithm=GOSSIP)
    assert gap(seen.told[2, 1], seen.told[2, 4]) > 1e-3
    assert gap(seen.models[2, 1] - seen.told[2, 1], seen.models[2, 4] - seen.told[2, 4]) < 1e-6


def test_the_record_says_whose_changes_are_seen(tmp_path: Path) -> None:
    path = done(tmp_path / "run", {"name": "inner_product", "share": 0.34, "knows": "all"}, rounds=1)
    declared = summary(path)["attacks"][0]["declaration"]
    assert declared["knows"] == "all"
    assert declared["knowledge"].startswith("omniscient")
    page = (path / "report.html").read_text()
    assert "whose honest changes it sees" in page
    assert "(omniscient: a client under a server never sees those)" in page


@pytest.mark.parametrize("keys", [{"z": "max"}, {"z": "optimal"}, {"z": 1.0}], ids=str)
def test_who_counts_the_changes_of_a_round_declares_that_it_knows_their_number(keys: dict[str, Any]) -> None:
    """Of one attacker and one attacker of ten the changes sent differ only if the number was used."""
    made = POISONING["alie"](share=0.2, **keys)
    own = {0: torch.tensor([1.0], dtype=torch.float64), 1: torch.tensor([3.0], dtype=torch.float64)}
    few, many = (
        made.craft(Scene(own, {}, n, lambda changes: torch.stack([*changes]).mean(0), torch.Generator().manual_seed(1)))
        for n in (5, 50)
    )
    declares = "how many changes a round has" in made.declares.knowledge
    assert declares == (keys["z"] != 1.0)
    assert declares or torch.equal(few, many)


# ---------------------------------------------------------------------- sealed like anyone's


@pytest.mark.parametrize("name", ["secagg", "paillier"])
def test_under_masks_and_encryption_they_seal_like_anyone(name: str, tmp_path: Path) -> None:
    """The model is that of the run without the mechanism, up to the rounding of its integers."""
    attack = {"name": "inner_product", "clients": [1, 4], "epsilon": 3.0}
    given: dict[str, Any] = {"rounds": 1, "model": {"name": "logistic"}}
    bare = done(tmp_path / "bare", attack, **given)
    sealed = done(tmp_path / "sealed", attack, privacy=[{"name": name}], **given)
    assert rows(sealed)[-1]["loss"] == pytest.approx(rows(bare)[-1]["loss"], rel=1e-3)
    assert rows(sealed)[-1]["clients"] == [0, 1, 2, 3, 4, 5]


def test_a_change_beyond_the_range_of_masks_is_left_out(tmp_path: Path) -> None:
    """Nobody sees it, so it is left out like that of a client who left."""
    attack = {"name": "inner_product", "clients": [1], "epsilon": 1e6}
    path = done(tmp_path / "run", attack, rounds=1, privacy=[{"name": "secagg"}], model={"name": "logistic"})
    assert rows(path)[-1]["clients"] == [0, 2, 3, 4, 5]


def test_they_skip_their_own_clip_and_noise() -> None:
    """Of a mechanism that clips and noises at the client: an attacker's change leaves as it is, an honest one's does not."""
    how = checked(experiment(privacy=[NOISE], algorithm={"name": "fedavg", "weights": "uniform"}).config)
    assert [one.name for one in how.mechanisms] == ["local_dp"]
    update = {"model": Tree({"w": torch.tensor([3.0, 4.0])})}
    message = {"model": Tree({"w": torch.zeros(2)})}
    protection = Protection(how.mechanisms, 6, 4, 1.0, 1)

    def sent(*, hostile: bool) -> Tree:
        doing = Doing(1, 1, "train", 0, 50, hostile=hostile)
        task = how.algorithm.tasks["train"]
        found = protect(protection, None, task, message, update, None, torch.Generator(), {}, None, doing)
        return Tree(found.sent["model"])

    assert same(sent(hostile=True), update["model"])
    assert gap(sent(hostile=False), update["model"]) > 1.0


def test_a_transform_seals_what_they_agreed_on(tmp_path: Path) -> None:
    """Of which it sends the largest tenth, and keeps the rest for their next update."""
    attack = {"name": "inner_product", "clients": [1, 4], "epsilon": 3.0}
    path = done(tmp_path / "run", attack, rounds=2, compression={"name": "topk", "share": 0.1})
    assert rows(path)[-1]["bytes_up"] < 0.5 * rows(done(tmp_path / "bare", attack, rounds=2))[-1]["bytes_up"]


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("attack", "tables", "said"),
    [
        ({"name": "alie", "share": 0.34}, {"algorithm": SEQ}, "work one after another, so they cannot compare"),
        (
            {"name": "inner_product", "share": 0.34, "epsilon": "optimal"},
            {"algorithm": GOSSIP},
            "not optimised with 'gossip', where every node hears other changes",
        ),
        ({"name": "alie", "share": 0.34, "knows": "own"}, {}, "attack.alie.knows"),
        ({"name": "alie", "share": 0.34, "z": "best"}, {}, "attack.alie.z"),
        ({"name": "mimic", "share": 0.34, "client": 9}, {}, "attack.mimic.client = 9: there is no client 9"),
        ({"name": "mimic", "clients": [1], "client": 1}, {}, "attack.mimic.client = 1: it is an attacker itself"),
        ({"name": "alie", "share": 0.34}, {"algorithm": {"name": "local_only"}}, "whose clients send no updates"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_sentence(
    attack: dict[str, Any], tables: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        done(tmp_path / "run", attack, **tables)
    assert "\n" not in str(refused.value)
