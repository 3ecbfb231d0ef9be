"""Effects of planted tables, and that their intervals cover all of them at once as often as they say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedatlas.study.effects import effects, grouped_levels
from fedatlas.study.front import fronts, not_dominated
from fedatlas.study.measurements import measurements_of
from fedatlas.study.seed_noise import noise_between
from fedatlas.study.slopes import slopes
from study_tables import federations

NODES, ALPHAS, SCHEMES = ("2", "10", "50"), ("0.1", "1"), ("fedavg", "scaffold", "yogi", "prox")
NOISE = {"fedavg": 0.01, "scaffold": 0.03, "yogi": 0.06, "prox": 0.02}  # unequal by choice
COMMON = 0.02  # what all choices of a setting and seed share


def planted(nodes: str, alpha: str, scheme: str) -> float:
    main = {"2": 0.1, "10": 0.0, "50": -0.1}[nodes] + {"0.1": -0.05, "1": 0.05}[alpha]
    main += {"fedavg": 0.01, "scaffold": 0.03, "yogi": -0.05, "prox": 0.01}[scheme]
    return 0.7 + main + (0.04 if (nodes, scheme) == ("50", "scaffold") else 0.0)


def table(stream: np.random.Generator | None, seeds: int = 3) -> list[dict[str, Any]]:
    rows = []
    for nodes, alpha, seed in itertools.product(NODES, ALPHAS, range(seeds)):
        shared = COMMON * stream.normal() if stream else 0.0
        for scheme in SCHEMES:
            noise = shared + NOISE[scheme] * stream.normal() if stream else 0.0
            rows.append(
                {"run_key": f"{nodes} {alpha} {scheme} {seed}", "kind": "cell", "status": "done", "seed": seed, "rounds": 5,
                 "nodes": nodes, "alpha": alpha, "scheme": scheme, "accuracy": planted(nodes, alpha, scheme) + noise,
                 "cpu_seconds": 10.0 * np.exp(noise), "bytes_up": 100, "bytes_down": 100 + 10 * SCHEMES.index(scheme)}
            )  # fmt: skip
    return rows


def analyse(rows: list[dict[str, Any]], **more: Any):
    return effects(measurements_of(rows, ["nodes", "alpha"], ["scheme"]), "accuracy", **more)


def by_name(found) -> dict[Any, float]:
    return {(e.factors, e.levels): e.estimate for e in found.effects}


TRUE = by_name(analyse(table(None)))


def test_effects_of_a_full_grid_are_the_usual_differences_of_means():
    found = by_name(analyse(table(np.random.default_rng(3))))
    rows = table(np.random.default_rng(3))
    grand = np.mean([r["accuracy"] for r in rows])

    def mean(**levels: str) -> float:
        return float(np.mean([r["accuracy"] for r in rows if all(r[k] == v for k, v in levels.items())]))

    for scheme in SCHEMES:
        assert found[("scheme",), (scheme,)] == pytest.approx(mean(scheme=scheme) - grand)
    both = mean(nodes="50", scheme="scaffold") - mean(nodes="50") - mean(scheme="scaffold") + grand
    assert found[("nodes", "scheme"), ("50", "scaffold")] == pytest.approx(both)
    assert found.keys() == TRUE.keys()


def covered(number: int, first: int) -> float:
    """The share of tables whose intervals hold every planted effect."""
    hits = 0
    for k in range(number):
        found = analyse(table(np.random.default_rng(first + k)), seed=k, draws=400).effects
        hits += all(e.low <= TRUE[e.factors, e.levels] <= e.high for e in found)
    return hits / number


def test_planted_effects_are_covered_at_once():
    """300 tables: 95% with a standard error of 1.3%."""
    assert 0.915 <= covered(300, 1000) <= 0.985


@pytest.mark.slow
def test_planted_effects_are_covered_at_once_in_a_thousand_tables():
    assert 0.93 <= covered(1000, 5000) <= 0.97


def test_the_noise_is_that_of_each_choice_and_what_they_share():
    stream = np.random.default_rng(0)
    sd = np.array([0.01, 0.05])
    values = 0.02 * stream.normal(size=(500, 1, 3)) + sd[:, None] * stream.normal(size=(500, 2, 3))
    noise = noise_between(values + stream.normal(size=(500, 2, 1)))
    assert noise.df == 1000
    np.testing.assert_allclose(noise.covariance, 0.02**2 + np.diag(sd**2), rtol=0.15)
    np.testing.assert_allclose(noise.scales, 1.0, atol=0.5)  # equal noise: drawn together


def test_one_seed_has_effects_and_no_intervals():
    found = analyse(table(np.random.default_rng(0), seeds=1)).effects
    assert found
    assert all(e.low is None and e.high is None for e in found)


def test_permuting_rows_factors_levels_and_seeds_changes_nothing():
    rows = table(np.random.default_rng(5))
    renamed = [{**r, "seed": {0: 7, 1: 3, 2: 5}[r["seed"]]} for r in rows]
    np.random.default_rng(1).shuffle(renamed)
    one = analyse(rows)
    other = effects(measurements_of(renamed, ["alpha", "nodes"], ["scheme"]), "accuracy")
    assert [e[:2] for e in one.effects] == [e[:2] for e in other.effects]
    np.testing.assert_allclose([e[2:] for e in one.effects], [e[2:] for e in other.effects], atol=1e-12)


def test_what_cannot_be_told_is_named_and_lost_runs_are_counted():
    rows = table(np.random.default_rng(0))
    for row in rows:
        if (row["nodes"], row["scheme"]) == ("50", "yogi"):
            row["status"] = "diverged"
    found = analyse(rows)
    assert found.left_out == {"diverged": 6}
    assert (("nodes", "scheme"), ("50", "yogi")) in found.open
    assert (("alpha", "scheme"), ("0.1", "yogi")) not in found.open


def test_numbers_of_many_levels_are_taken_in_thirds():
    assert grouped_levels(["2", "50", "2"]) == ["2", "50", "2"]
    assert grouped_levels([str(k) for k in range(1, 10)]) == ["low"] * 3 + ["middle"] * 3 + ["high"] * 3
    assert grouped_levels([f"d{k}" for k in range(9)]) == [f"d{k}" for k in range(9)]


def test_the_front_is_what_nothing_beats():
    better = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, -1.0], [1.0, -0.5], [0.0, 1.0]])
    assert not_dominated(better).tolist() == [True, True, False, False, True], "equal points do not beat each other"


def test_the_chance_of_a_front_is_that_of_noise_known_exactly():
    """Two choices of equal seconds, the second dearer in bytes: it is on the front exactly where its quality is the larger one."""
    rows = [r for r in table(np.random.default_rng(8)) if r["scheme"] in {"fedavg", "yogi"}]
    for row in rows:
        row["cpu_seconds"] = 10.0
    found = fronts(measurements_of(rows, ["nodes", "alpha"], ["scheme"]), draws=20_000)
    values = np.array([[[r["accuracy"] for r in rows if r["nodes"] == n and r["alpha"] == a and r["scheme"] == s]
                        for s in ("fedavg", "yogi")] for n in NODES for a in ALPHAS])  # fmt: skip
    difference = values[:, 1] - values[:, 0]
    error = np.sqrt(np.square(difference - difference.mean(axis=1, keepdims=True)).sum() / 12 / 3)
    from scipy.stats import norm

    order = [(a, n) for n in NODES for a in ALPHAS]  # factors by the alphabet
    for at, mean in zip(order, difference.mean(axis=1), strict=True):
        members = {m.choice: m for m in found[at]}
        assert members["fedavg"].chance == 1.0, "the cheaper one is always on it"
        assert members["yogi"].chance == pytest.approx(norm.cdf(mean / error), abs=0.015)
        assert members["yogi"].on_front == (mean > 0)


def of_federations(accuracy: Any, settings: int = 60, data: int = 6, seed: int = 0) -> Any:
    """A study of federations drawn at random, each choice with two seeds; ``accuracy(choice, setting, stream)``."""
    stream, rows = np.random.default_rng(seed), []
    for at in federations(settings, data, seed=seed):
        for choice, run in itertools.product(("fedavg", "scaffold"), range(2)):
            facts = {key: at[key] for key in ("federation", "data", "nodes", "rows", "heterogeneity", "classes")}
            rows.append(
                {**facts, "run_key": f"{at['federation']} {choice} {run}", "kind": "cell", "status": "done", "seed": run, "rounds": 5,
                 "scheme": choice, "accuracy": accuracy(choice, at, stream)}
            )  # fmt: skip
    return measurements_of(rows, ["federation", "data"], ["scheme"])


def falling(choice: str, at: dict[str, Any], stream: np.random.Generator) -> float:
    """2 points less with each doubling of nodes, 1 more with one of rows, 3 less with each 0.1 of h, for fedavg 1 more of these."""
    worse = 0.4 if choice == "fedavg" else 0.2
    at_random = 0.02 * (hash_of(at["data"]) % 7) + 0.003 * stream.normal()
    return float(
        0.8 - 0.02 * np.log2(at["nodes"]) + 0.01 * np.log2(at["rows"]) - worse * at["heterogeneity"] + at_random
    )


def hash_of(name: str) -> int:
    return sum(map(ord, name))


def test_slopes_are_those_planted_within_data_sets():
    found = slopes(of_federations(falling), "accuracy")
    each = {(one.fact, one.choice): one for one in found.slopes}
    assert found.over == "data sets"
    want = {("nodes", None): -0.02, ("rows", None): 0.01, ("heterogeneity", None): -0.03}
    want |= {("heterogeneity", "fedavg"): -0.01, ("heterogeneity", "scaffold"): 0.01, ("nodes", "fedavg"): 0.0}
    for key, value in want.items():
        assert each[key].estimate == pytest.approx(value, abs=0.004)
        assert each[key].low <= value <= each[key].high
    assert each["heterogeneity", None].high < 0, "told apart from nothing"


def test_what_was_not_varied_has_no_slope():
    same = of_federations(falling)
    runs = [{**run, "nodes": 10, "rows": 1000 + run["seed"]} for run in same.runs]
    assert {one.fact for one in slopes(same._replace(runs=runs), "accuracy").slopes} == {"heterogeneity"}
    tied = [{**run, "rows": 100 * run["nodes"]} for run in same.runs]
    assert {one.fact for one in slopes(same._replace(runs=tied), "accuracy").slopes} == {"heterogeneity"}, (
        "rows in step with nodes are not told from them"
    )


def test_data_sets_are_random():
    """A choice that is better on average, by an amount of each data set: intervals over seeds would be far too narrow."""
    shift = np.random.default_rng(3).normal(size=200)

    def uneven(choice: str, at: dict[str, Any], stream: np.random.Generator) -> float:
        return 0.7 + (0.05 * shift[hash_of(at["data"]) % 200] if choice == "fedavg" else 0.0) + 0.001 * stream.normal()

    hits, tables = 0, 60
    for k in range(tables):
        shift = np.random.default_rng(100 + k).normal(size=200)
        found = effects(of_federations(uneven, 24, 6, seed=k), "accuracy")
        assert found.over == "data sets"
        own = {e.levels: e for e in found.effects if e.factors == ("scheme",)}
        assert ("data",) not in {e.factors for e in found.effects}, "a random data set is no effect"
        hits += own["fedavg",].low <= 0 <= own["fedavg",].high
    assert hits / tables >= 0.9


def test_a_pair_that_cannot_be_told_leaves_the_others():
    """Of a random design some levels never meet: main effects and the other pairs stand."""
    rows = [r for r in table(np.random.default_rng(0)) if (r["nodes"], r["alpha"]) != ("50", "1")]
    found = analyse(rows)
    named = {e.factors for e in found.effects}
    assert named == {("alpha",), ("nodes",), ("scheme",), ("alpha", "scheme"), ("nodes", "scheme")}
    assert {factors for factors, _ in found.open} == {("alpha", "nodes")}
