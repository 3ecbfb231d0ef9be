"""The sparse graph of masks: its circle, its chances, sums that open exactly whoever leaves, and what is refused."""

from __future__ import annotations

import itertools
import json
import os
from fractions import Fraction
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedatlas import Experiment, config
from fedatlas.api import dry_run, run
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.mechanisms import secagg
from fedatlas.privacy.secagg import client, graph, keys
from fedatlas.privacy.secagg.graph import Degree
from fedatlas.privacy.secagg.mechanism import too_few
from fedatlas.wire import codec
from reports import Page, summary
from secagg_sessions import PHASES, drawn, hold, plain

pytestmark = pytest.mark.timing


def connected(left: set[int], near: tuple[tuple[int, ...], ...]) -> bool:
    """Whether those left reach each other through each other."""
    reached, todo = set[int](), [*left][:1]
    while todo:
        v = todo.pop()
        reached.add(v)
        todo += [u for u in near[v] if u in left and u not in reached]
    return reached == left


# The circle


@pytest.mark.parametrize(("clients", "neighbours"), [(12, 2), (12, 6), (101, 32), (1000, 126)])
def test_each_has_as_many_neighbours_and_all_hang_together(clients: int, neighbours: int) -> None:
    near = graph.circles(os.urandom(32).hex(), clients, neighbours)
    assert all(len(circle) == neighbours + 1 and v in circle for v, circle in enumerate(near))
    assert all(list(circle) == sorted(set(circle)) for circle in near)
    assert all(v in near[u] for v, circle in enumerate(near) for u in circle)
    assert connected({*range(clients)}, near)


def test_every_order_of_a_circle_is_as_likely() -> None:
    """Of five clients in a ring there are twelve circles; by 6,000 seeds each comes as often as the others."""
    seen: dict[Any, int] = {}
    for seed in range(6000):
        near = graph.circles(seed.to_bytes(32, "big").hex(), 5, 2)
        seen[near] = seen.get(near, 0) + 1
    assert len(seen) == 12
    assert stats.chisquare([*seen.values()]).pvalue > 1e-6


# The chances


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_the_tail_is_the_hypergeometric_one(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 60))
    marked, taken, least = (data.draw(st.integers(0, total)) for _ in range(3))
    found = float(graph.at_least(total, marked, taken, least))
    assert found == pytest.approx(float(stats.hypergeom(total, marked, taken).sf(least - 1)), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("clients", "neighbours", "colluding", "leaving"), [(8, 2, 2, 2), (8, 4, 2, 2), (9, 4, 2, 3)])
def test_the_bounds_hold_over_every_choice(clients: int, neighbours: int, colluding: int, leaving: int) -> None:
    """All sets that collude and leave, against one circle: its order is uniform, so the choices may as well be."""
    near = graph.circles("00" * 32, clients, neighbours)
    bare = split = closed = total = 0
    needed = neighbours // 2 + 1
    for bad in itertools.combinations(range(clients), colluding):
        rest = [v for v in range(clients) if v not in bad]
        for gone in itertools.combinations(rest, leaving):
            left = {v for v in rest if v not in gone}
            total += 1
            bare += any(len({*bad} & {*near[v]} - {v}) >= needed for v in left)
            split += not connected(left, near)
            closed += any(len([u for u in near[v] if u != v and u not in gone]) < needed for v in left)
    chances = clients * graph.at_least(clients - 1, colluding, neighbours, needed)
    chances += graph.in_a_row(clients, colluding + leaving, neighbours // 2)
    assert bare + split > 0
    assert Fraction(bare + split, total) <= chances
    assert Fraction(closed, total) <= clients * graph.at_least(
        clients - 1, leaving, neighbours, neighbours - needed + 1
    )


@pytest.mark.parametrize(
    ("clients", "threshold", "neighbours", "needed"),
    [(101, 2 / 3, 58, 11), (200, 2 / 3, 68, 21), (1000, 2 / 3, 126, 43), (1000, 0.8, 82, 35), (1000, 0.9, 58, 29)],
)
def test_the_smallest_degree_is_safe_and_no_smaller_one_is(
    clients: int, threshold: float, neighbours: int, needed: int
) -> None:
    """By scipy's distributions: its chances are below 2^-40, and with two neighbours less no number of holders is both."""
    leaving, bad = clients - keys.threshold_of(clients, threshold), clients // 10
    assert graph.smallest(clients, leaving) == Degree(neighbours, needed)
    assert keys.neighbours_of("auto", clients, clients - leaving) == neighbours

    def worst(k: int, t: int) -> float:
        some = clients * stats.hypergeom(clients - 1, bad, k).sf(t - 1)
        row = clients * np.prod([max(bad + leaving - i, 0) / (clients - i) for i in range(k // 2)])
        return max(some + row, clients * stats.hypergeom(clients - 1, leaving, k).sf(k - t))

    assert worst(neighbours, needed) <= 2.0**-40
    assert min(worst(neighbours - 2, t) for t in range(1, neighbours - 1)) > 2.0**-40
    chances = graph.chances(clients, leaving, Degree(neighbours, needed))
    assert float(max(chances)) == pytest.approx(worst(neighbours, needed), rel=1e-6)
    assert log2(float(chances.secrecy)) <= -40


def test_where_no_sparse_graph_is_safe_all_share_masks_with_all() -> None:
    assert graph.smallest(5, 1) is None
    assert keys.neighbours_of("auto", 101, 101) == graph.smallest(101, 0).neighbours
    assert (
        keys.neighbours_of("auto", 12, 9)
        == keys.neighbours_of("auto", 100, 67)
        == keys.neighbours_of(None, 50, 34)
        == 0
    )
    assert keys.neighbours_of(20, 21, 15) == 0
    assert keys.neighbours_of(18, 21, 15) == 18


# Sessions


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_the_opened_sum_is_the_plain_sum_of_the_survivors(data: st.DataObject) -> None:
    """Twelve clients with six neighbours each, in either ring; up to three leave, each in some phase."""
    ring = data.draw(st.sampled_from([32, 64]))
    seed, words = os.urandom(32).hex(), drawn(data.draw(st.integers(0, 99)), 12, 5, ring)
    cohort = list(words)
    leaving = data.draw(st.lists(st.sampled_from(cohort), unique=True, max_size=3))
    phases = {who: data.draw(st.sampled_from(PHASES)) for who in leaving}
    leave = {phase: [who for who in leaving if phases[who] == phase] for phase in PHASES}
    if closed({cohort.index(who): phase for who, phase in phases.items()}, graph.circles(seed, 12, 6)):
        with pytest.raises(PrivacyError, match="this sum stays closed"):
            hold(words, leave, neighbours=6, seed=seed)
        return
    seen = hold(words, leave, neighbours=6, seed=seed)
    there = [who for who in cohort if who not in leaving or phases[who] in {"agree", "unmask"}]
    assert seen.survivors == there
    assert np.array_equal(seen.sums["x"], plain(words, there))


def closed(left: dict[int, str], near: tuple[tuple[int, ...], ...]) -> bool:
    """Whether too few holders of a secret stay of twelve; ``left``: position -> the phase in which it leaves."""
    everybody, needed = {*range(12)}, graph.degree_of(12, 3, 6).needed

    def without(*phases: str) -> set[int]:
        return everybody - {v for v, phase in left.items() if phase in phases}

    signed = without("keys", "shares", "masked", "agree")
    able = {v for v in signed if len(signed & {*near[v]}) >= needed}
    gave = able & without("unmask")
    return len(gave) < 9 or any(len(gave & {*near[v]}) < needed for v in without("keys", "shares"))


def test_drop_outs_in_every_phase_among_more_than_256() -> None:
    """Places beyond a byte; two leave in each phase."""
    words = drawn(3, 300, 4)
    cohort = list(words)
    leave = {phase: [cohort[2 * i], cohort[255 + 2 * i]] for i, phase in enumerate(PHASES)}
    seen = hold(words, leave, neighbours=80)
    gone = {who for phase in ("keys", "shares", "masked") for who in leave[phase]}
    assert seen.survivors == [who for who in cohort if who not in gone]
    assert np.array_equal(seen.sums["x"], plain(words, seen.survivors))
    assert not any(seen.refused.values())


def test_a_client_masks_with_its_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams are one of its own and one for each neighbour; bytes of tables follow the neighbours, not the cohort."""
    counted: list[int] = []
    added = client.masks.added

    def noted(words: Any, plus: Any, minus: Any = ()) -> Any:
        counted.append(len(plus) + len(minus))
        return added(words, plus, minus)

    monkeypatch.setattr(client.masks, "added", noted)
    seen = hold(drawn(1, 40, 6), neighbours=10)
    assert counted[:40] == [11] * 40
    whole = hold(drawn(1, 40, 6))
    for phase in ("shares", "masked", "unmask"):
        few, many = (codec.size(x.down[phase][1]) for x in (seen, whole))
        assert few < 0.6 * many, phase
    assert {
        phase: codec.size(seen.up[phase][1]) < 0.4 * codec.size(whole.up[phase][1]) for phase in ("shares", "unmask")
    } == {
        "shares": True,
        "unmask": True,
    }


def test_what_one_client_sends_is_uniform() -> None:
    words = {k: {"x": np.zeros(20_000, np.uint32)} for k in range(12)}
    seen = hold(words, neighbours=4)
    assert not seen.sums["x"].any()
    for k in range(12):
        counts = np.bincount(seen.up["masked"][k]["masked"]["x"].numpy().view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_too_few_neighbours_of_one_keep_the_sum_closed() -> None:
    """Three of a client's four neighbours leave at the end: two of the five holders are left where three are needed."""
    words = drawn(2, 12, 3)
    cohort, seed = list(words), "cd" * 32
    near = [v for v in graph.circles(seed, 12, 4)[0] if v != 0]
    assert graph.degree_of(12, 3, 4).needed == 3
    with pytest.raises(PrivacyError, match=r"gave a true share of client .*this sum stays closed"):
        hold(words, {"unmask": [cohort[v] for v in near[:3]]}, neighbours=4, seed=seed)


# Refusals


def test_numbers_of_neighbours_that_do_not_protect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"neighbours = 7: expected an even number.*8 would do"):
        secagg(neighbours=7)
    assert too_few(126, 1000, 2 / 3) == ""
    assert "126 are enough" in too_few(60, 1000, 2 / 3)
    assert "leave the key out" in too_few(2, 5, 0.7)
    assert too_few(12, 12, 2 / 3) == ""  # all others


def refusal(*overrides: str) -> str:
    from fedatlas.setup.refusals import check
    from fedatlas.setup.resolution import resolve

    with pytest.raises(ConfigError) as error:
        check(resolve(config.read(None, overrides)))
    return str(error.value)


def test_cohorts_beyond_a_graph_are_refused() -> None:
    assert 'neighbours = "auto", which masks up to 1,000 in a simulation' in refusal(
        "partition={name='iid', clients=101}", "privacy.secagg={}"
    )
    assert "masks at most 1000; lower cohort.fraction." in refusal(
        "partition={name='iid', clients=1001}", "privacy.secagg.neighbours=auto"
    )
    assert "neighbours = 40: too few for 500 clients" in refusal(
        "partition={name='iid', clients=500}", "privacy.secagg.neighbours=40"
    )


def test_a_deployed_node_refuses_it() -> None:
    for neighbours in ("auto", 60):
        experiment = Experiment.of(
            partition={"name": "iid", "clients": 4}, privacy=[{"name": "secagg", "neighbours": neighbours}]
        )
        with pytest.raises(ConfigError, match="covers only a server that keeps the rules"):
            deployable(experiment.config, ["a", "b", "c", "d"])
        one = secagg(neighbours=neighbours)
        assert one.work().protocol.node is None
        assert one.trust == "clients"


# Whole runs

LARGE: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 120},
    "model": {"name": "logistic"},
    "local": {"steps": 1},
    "failures": {"dropout": 0.05},
    "engine": {"name": "loop"},
    "evaluation": {"every": 2},
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("large")
    tables: dict[str, list[Any]] = {
        "sparse": [{"name": "secagg", "neighbours": "auto"}],
        "servers": [{"name": "two_server"}],
    }
    return {
        name: run(Experiment.of(**LARGE, privacy=privacy), out=folder / name, baselines=False).path
        for name, privacy in tables.items()
    }


def test_a_run_of_120_clients_opens_the_plain_sums(large: dict[str, Path]) -> None:
    """The words are those of another mechanism, and so is their sum to the bit, with drop-outs."""
    one, other = ((large[name] / "model.safetensors").read_bytes() for name in ("sparse", "servers"))
    assert one == other
    rows = [json.loads(line) for line in (large["sparse"] / "metrics.jsonl").read_text().splitlines()]
    assert any(len(row["clients"]) < 120 for row in rows[1:])
    assert all(row["given_up"] is None for row in rows[1:])


def test_the_summary_and_the_page_say_whom_the_masks_cover(large: dict[str, Path]) -> None:
    found = summary(large["sparse"])["privacy"]
    assert found["sparse"] == {"asked": 120, "neighbours": 60, "needed": 13, "leaving": 39, "colluding": 12}
    assert "withstood" not in found
    text = " ".join(Page(large["sparse"] / "report.html").text().split())
    assert "each shared masks with 60 others. A server that keeps the rules" in text
    assert "a server that breaks the rules is not covered" in text
    assert "A server that breaks the rules, with the help" not in text


def test_a_dry_run_counts_the_bytes_of_the_neighbours() -> None:
    few, more = (
        dry_run(Experiment.of(**{**LARGE, "failures": {}}, privacy=[{"name": "secagg", **keys_}]), baselines=False)[
            "privacy"
        ]
        for keys_ in ({"neighbours": "auto", "threshold": 0.9}, {"neighbours": "auto"})
    )
    assert few["bytes_more_per_round"] < more["bytes_more_per_round"]
    assert few["parties"] == 120
    assert ceil(few["seconds_by_phase"]["mask"] * 1e9) > 0
