"""Rules in whole runs: FLTrust's root rows, what comes before a rule, and servers that average models or scores themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configured import set_up, share_out
from fedatlas import Experiment
from fedatlas.aggregation import RULES
from fedatlas.algorithms import ALGORITHMS
from fedatlas.api import run
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.federation.link import Observer, Request
from fedatlas.setup.aggregation_rule import why_not
from fedatlas.setup.refusals import checked

TABLES: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 10},
    "model": {"hidden": [32]},
    "local": {"lr": 0.05, "epochs": 2, "batch_size": 10},
    "engine": {"name": "fast", "workers": 1},
    "evaluation": {"every": 3},
}
FLIPPED = [{"name": "sign_flip", "clients": [1, 4], "c": 50.0}]
FLIPS = [{"name": "label_flip", "clients": [1, 4], "pairs": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]}]
PUBLIC = {"from": "test", "per_class": 5}
SMALL: dict[str, dict[str, Any]] = {
    "cfl": {},
    "ifca": {"clusters": 1},
    "fesem": {"clusters": 1},
    "fedseq_inter": {"phi": "random", "group_size": 1, "period": 1},
    "feddf": {"steps": 30},
    "fedmd": {"start_epochs": 2, "private_epochs": 2},
}
"""Algorithms whose server averages models or scores itself, with as little other work as they allow."""


def done(out: Path, observers: Any = (), **tables: Any) -> Path:
    return run(Experiment.of(**{**TABLES, **tables}), out=out, baselines=False, observers=observers).path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def accuracy(path: Path) -> float:
    return float(rows(path)[-1]["accuracy"])


def refused(**tables: Any) -> str:
    with pytest.raises(ConfigError) as error:
        share_out(parse({**TABLES, **tables}))
    assert str(error.value).count(". ") == 0
    return str(error.value)


# ---------------------------------------------------------------------- FLTrust


def test_fltrust_asks_the_server_once_a_round_and_trusts_nobody_who_points_away(tmp_path: Path) -> None:
    class Asked(Observer):
        what: list[tuple[int, int, str]] = []  # noqa: RUF012

        def asked(self, request: Request) -> None:
            self.what.append((request.round, request.client, request.what))

    seen = Asked()
    path = done(tmp_path / "run", [seen], attack=FLIPPED, aggregation={"name": "fltrust"}, public=PUBLIC)
    assert [one for one in seen.what if one[1] < 0] == [(number, -2, "root") for number in (1, 2, 3)]
    for row in rows(path)[1:]:
        assert row["left_out"] == row["attackers"] == [1, 4]
        assert [row["weights"][k] for k in (1, 4)] == [0.0, 0.0]
        assert sum(row["weights"]) == pytest.approx(1)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["aggregation"]["attackers"] == {"took_part": 6, "left_out": 6}
    plain = done(tmp_path / "mean", attack=FLIPPED)
    assert accuracy(path) > accuracy(plain) + 0.2
    without = rows(done(tmp_path / "free", public=PUBLIC))[-1]
    assert rows(path)[-1]["bytes_up"] == without["bytes_up"]  # its own training costs no bytes


def test_fltrust_says_why_it_cannot_be() -> None:
    trust = {"name": "fltrust"}
    assert "there are none: add a table [public]" in refused(aggregation=trust)
    for name, why in {
        "gossip": "no server takes part",
        "scaffold": "no control variate",
        "fednova": "which public rows do not give",
        "ifca": "its own rows train only one",
        "nwfedavg": "the method consists in its weights",
    }.items():
        assert why in refused(aggregation=trust, public=PUBLIC, algorithm={"name": name})
    noise = {"name": "dp_sgd", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0, "noise": "seed"}
    assert "not under 'dp_sgd', whose account" in refused(aggregation=trust, public=PUBLIC, privacy=[noise])
    assert "shows the server only sums" in refused(aggregation=trust, public=PUBLIC, privacy=[{"name": "secagg"}])


def test_fltrust_judges_noised_changes_too_and_the_row_has_its_weights(tmp_path: Path) -> None:
    noise = {"name": "local_dp", "epsilon": 5000.0, "clip": 5.0, "noise": "seed"}
    tables = {"privacy": [noise], "algorithm": {"name": "fedavg", "weights": "uniform"}, "attack": FLIPPED}
    row = rows(done(tmp_path / "run", aggregation={"name": "fltrust"}, public=PUBLIC, **tables))[-1]
    assert row["left_out"] == [1, 4]
    assert [row["weights"][k] for k in (1, 4)] == [0.0, 0.0]
    assert sum(row["weights"]) == pytest.approx(1)


# ---------------------------------------------------------------------- less than a name promises


def said(**tables: Any) -> str:
    return "\n".join(set_up(parse({**TABLES, **tables})).notices)


def test_rules_that_go_by_length_hold_beside_statistics_of_batch_norm(tmp_path: Path) -> None:
    """Two reversed changes of ten, ten times as long, are shorter than the statistics beside them."""
    attack = [{"name": "sign_flip", "clients": [1, 4], "c": 10.0}]
    tables = {"rounds": 8, "evaluation": {"every": 8}, "model": {"hidden": [32], "norm": "batch"}}
    rule = {"name": "norm_clip"}
    clean, attacked = (
        accuracy(done(tmp_path / name, **tables, attack=who, aggregation=rule))
        for name, who in (("clean", []), ("attacked", attack))
    )
    assert attacked > clean - 0.2


def test_a_rule_that_assumes_nobody_hostile_says_so() -> None:
    """floor(0.2 n) is 0 below five changes: of four clients, or of what a node on a ring hears."""
    nobody, four = "assumes that none of {} changes is hostile", {"name": "iid", "clients": 4}
    assert nobody.format(4) in said(aggregation={"name": "trimmed_mean"}, partition=four)
    assert nobody.format(4) in said(aggregation={"name": "median", "pre": "nnm"}, partition=four)
    assert nobody.format(3) in said(aggregation={"name": "multi_krum"}, algorithm={"name": "gossip"})
    for table in ({"name": "trimmed_mean", "f": 1}, {"name": "median"}, {"name": "mean"}):
        assert "is hostile" not in said(aggregation=table, partition=four)
    assert "is hostile" not in said(aggregation={"name": "trimmed_mean"})


def test_slots_that_wait_for_an_average_turn_hostile_and_the_run_says_so(tmp_path: Path) -> None:
    """The median of ten slots withstands two hostile ones, but in three rounds they are more than two."""
    slots = {"name": "fedseq_inter", "phi": "random", "group_size": 1}
    table = {"name": "median", "f": 2}
    assert "a hostile model stays in its slot" in said(aggregation=table, algorithm=slots)
    assert "a hostile model stays in its slot" not in said(aggregation=table, algorithm={**slots, "period": 1})
    assert "a hostile model stays in its slot" not in said(algorithm=slots)
    given = {"rounds": 6, "evaluation": {"every": 6}, "attack": FLIPPED, "aggregation": table}
    each, third = (done(tmp_path / str(n), algorithm={**slots, "period": n}, **given) for n in (1, 3))
    assert accuracy(third) < accuracy(each) - 0.2


def test_statistics_that_no_rule_judges_are_refused() -> None:
    """Recalibrated statistics are sums of what clients say, next to the changes."""
    model = {"hidden": [32], "norm": "batch", "bn": "recalibrate"}
    assert "whose statistics are sums that no rule judges" in refused(aggregation={"name": "median"}, model=model)
    share_out(parse({**TABLES, "model": model, "aggregation": {"name": "mean"}}))


def test_scores_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    """Two finite models of FedDF have scores beyond the range of float32; lengths would be lost with them."""
    path = done(
        tmp_path / "run",
        rounds=1,
        model={"hidden": [32, 32]},
        algorithm={"name": "feddf", "steps": 30},
        attack=[{"name": "sign_flip", "clients": [1, 4], "c": 1e25}],
        aggregation={"name": "geometric_median"},
        evaluation={"every": 1},
    )
    assert rows(path)[-1]["hostile"] == [1, 4]
    taught = accuracy(path)
    untaught = done(
        tmp_path / "untaught",
        rounds=1,
        model={"hidden": [32, 32]},
        algorithm={"name": "feddf", "steps": 0},
        attack=[{"name": "sign_flip", "clients": [1, 4], "c": 1e25}],
        aggregation={"name": "geometric_median"},
        evaluation={"every": 1},
    )
    assert taught != accuracy(untaught)


# ---------------------------------------------------------------------- before a rule


@pytest.mark.parametrize("pre", ["nnm", "bucketing", "arc"])
def test_what_comes_before_a_rule_is_in_the_run_and_in_its_record(pre: str, tmp_path: Path) -> None:
    table = {"name": "trimmed_mean", "f": 2, "pre": pre}
    path = done(tmp_path / pre, attack=FLIPPED, aggregation=table)
    assert accuracy(path) > 0.4
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["aggregation"]["pre"], summary["aggregation"]["f"]) == (pre, 2)
    again = done(tmp_path / "again", attack=FLIPPED, aggregation=table, engine={"name": "loop"})
    assert accuracy(again) == pytest.approx(accuracy(path), abs=0.02)


def test_keys_of_what_comes_before_a_rule() -> None:
    plain = checked(parse({**TABLES, "aggregation": {"name": "median"}}))
    buckets = checked(parse({**TABLES, "aggregation": {"name": "median", "pre": "bucketing"}}))
    assert plain.config.hash() != buckets.config.hash()
    assert buckets.config.aggregation is not None
    assert buckets.config.aggregation.s == 2
    none = checked(parse({**TABLES, "aggregation": {"name": "median", "pre": "none"}}))
    assert none.rule is not None
    assert none.rule.pre == ""
    assert "aggregation.s is the size of a bucket" in refused(aggregation={"name": "median", "s": 3})
    assert "unknown key 'aggregation.f'" in refused(aggregation={"name": "mean", "f": 2})
    assumed = checked(parse({**TABLES, "aggregation": {"name": "mean", "f": 2, "pre": "nnm"}}))
    assert assumed.rule is not None
    assert assumed.rule.f == 2
    for pre in ("nnm", "bucketing", "arc"):
        table = {"name": "mean", "pre": pre}
        assert "shows the server only sums" in refused(aggregation=table, privacy=[{"name": "secagg"}])
        assert "not with 'push_sum'" in refused(aggregation=table, algorithm={"name": "push_sum"})
    assert "in buckets of 4: 10" in refused(aggregation={"name": "krum", "f": 1, "pre": "bucketing", "s": 4})
    said = refused(aggregation={"name": "norm_clip", "pre": "nnm"}, algorithm={"name": "hwfedavg"})
    assert "the method consists in its weights" in said
    assert "write aggregation.name" not in said


# ---------------------------------------------------------------------- servers that average themselves


@pytest.mark.parametrize("name", SMALL)
def test_a_rule_keeps_what_the_mean_of_models_or_scores_loses(name: str, tmp_path: Path) -> None:
    """The rule's run under attack is hardly worse than its run without; the mean's is. FedMD's attackers can only learn wrong labels."""
    algorithm = {"name": name, **SMALL[name]}
    table = {"name": "median", "f": 2}
    attack = FLIPPED if name != "fedmd" else FLIPS
    struck = done(tmp_path / "rule", attack=attack, aggregation=table, algorithm=algorithm)
    clean = done(tmp_path / "clean", aggregation=table, algorithm=algorithm)
    assert accuracy(struck) > accuracy(clean) - 0.15
    if name != "fedmd":
        assert accuracy(done(tmp_path / "mean", attack=FLIPPED, algorithm=algorithm)) < accuracy(struck) - 0.15
    assert "unchanged" not in rows(struck)[-1]


@pytest.mark.parametrize("name", SMALL)
def test_too_few_for_the_rule_change_nothing_and_the_row_says_what(name: str, tmp_path: Path) -> None:
    """Clients drop out, so that Krum with f = 1 has fewer than the five that it needs."""
    algorithm = {"name": name, **SMALL[name]}
    cohort = {} if name == "cfl" else {"cohort": {"fraction": 1.0}}
    path = done(
        tmp_path / "run",
        rounds=6,
        algorithm=algorithm,
        failures={"dropout": 0.6},
        **cohort,
        aggregation={"name": "krum", "f": 1},
    )
    where = {"fedseq_inter": "(slots)", "feddf": "(architecture global)", "fedmd": "not "}.get(name, "(cluster 0)")
    said = [row["unchanged"] for row in rows(path) if "unchanged" in row]
    assert said
    assert all("'krum' with f = 1 needs 2 f + 3 changes or more" in one and where in one for one in said)


def test_scores_are_judged_and_a_server_that_averages_without_the_rule_is_refused(tmp_path: Path) -> None:
    """Of FedMD's ten clients Krum takes one's scores. An algorithm of one's own must say that it leaves averages to the rule."""
    path = done(
        tmp_path / "run", algorithm={"name": "fedmd", **SMALL["fedmd"]}, aggregation={"name": "krum", "f": 2}, rounds=1
    )
    row = rows(path)[-1]
    assert len(row["left_out"]) == 9
    assert sorted(row["weights"]) == [0.0] * 9 + [1.0]
    for name in SMALL:
        made = ALGORITHMS[name]()
        assert why_not(RULES["median"](), made) == ""
        assert "does not leave that to the rule" in why_not(RULES["median"](), made._replace(ruled=False))
        assert why_not(RULES["mean"](), made._replace(ruled=False)) == ""


def test_two_clusters_are_judged_apart(tmp_path: Path) -> None:
    """IFCA with two models: Krum takes one of eight, and two are too few for it. They change nothing, and the row says where."""
    algorithm = {"name": "ifca", "clusters": 2, "starts": 1}
    path = done(tmp_path / "run", seed=4, rounds=1, algorithm=algorithm, aggregation={"name": "krum", "f": 0})
    row = rows(path)[-1]
    assert len(row["left_out"]) == 7
    assert "not 2 (cluster " in row["unchanged"]
