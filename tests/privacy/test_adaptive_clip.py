"""A bound that follows a quantile (B17): where it settles, what both sums cost, what a client can tell, and what a resume finds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedatlas import Experiment
from fedatlas.aggregation.reducers import Closing
from fedatlas.algorithms import ALGORITHMS
from fedatlas.api import dry_run, resume, run
from fedatlas.config import parse
from fedatlas.errors import PrivacyError
from fedatlas.privacy import ledger
from fedatlas.privacy.ask_protocol import MEMORY
from fedatlas.privacy.central_dp.adaptive_clip import WITHIN, Adaptive, counted
from fedatlas.privacy.central_dp.clipped_sum import counted_sum, within
from fedatlas.privacy.mechanism import Noise, Protection
from fedatlas.privacy.mechanisms import central_dp
from fedatlas.tree import Tree
from federation import gap, play
from protected import protected, without_noise

pytestmark = pytest.mark.timing

SEED = Noise("seed", 3)
RULE = Adaptive(0.5, 0.2, 0.1, None)
ADAPTIVE = {"name": "central_dp", "clip": "adaptive", "noise_multiplier": 0.8}
TABLES: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "iid", "clients": 20},
    "model": {"hidden": [8]},
    "engine": {"name": "loop"},
    "evaluation": {"every": 4},
    "algorithm": {"name": "fedavg", "weights": "uniform"},
}


def experiment(**tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, "privacy": [ADAPTIVE], **tables})


# ---------------------------------------------------------------------- the bound


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.8])
def test_without_noise_the_bound_goes_to_the_quantile_of_fixed_lengths(quantile: float) -> None:
    """Between the lengths below and above it, by a step: from far below, and from far above."""
    lengths = np.exp(np.random.default_rng(1).normal(size=101))
    for first in (1e-3, 1e3):
        rule, bound = Adaptive(quantile, 0.05, first, None), first
        for number in range(1, 2000):
            centred = float(((lengths <= bound) - 0.5).sum())
            bound = rule.moved(bound, centred, len(lengths), SEED, 0.0, number)
        low, high = np.quantile(lengths, [quantile - 0.02, quantile + 0.02])
        assert low * math.exp(-0.05) <= bound <= high * math.exp(0.05)


def test_with_noise_on_the_counts_the_bound_stays_near_the_quantile() -> None:
    lengths = np.exp(np.random.default_rng(2).normal(size=200))
    bound, seen = 0.1, []
    for number in range(1, 400):
        centred = float(((lengths <= bound) - 0.5).sum())
        bound = RULE.moved(bound, centred, len(lengths), SEED, 1.0, number)
        seen.append(float((lengths <= bound).mean()))
    assert np.mean(seen[100:]) == pytest.approx(0.5, abs=0.03)
    assert np.std(seen[100:]) > 0.001  # there is noise


@given(z=st.floats(0.05, 20), m=st.integers(1, 5000))
def test_both_sums_together_cost_the_noise_multiplier(z: float, m: int) -> None:
    """mu^2 of the changes plus mu^2 of the centred counts is 1 / z^2; infeasible if 2 sigma_b <= z."""
    spread = RULE.spread(m, z)
    assert spread == m / 20
    if 2 * spread <= z:
        with pytest.raises(PrivacyError, match=f"set count_noise above {z / 2:g}"):
            RULE.multiplier(m, z)
        return
    own = RULE.multiplier(m, z)
    assert own >= z
    assert math.hypot(1 / own, 1 / (2 * spread)) == pytest.approx(1 / z)


def test_the_noise_of_the_counts_is_sigma_b() -> None:
    rule = Adaptive(0.5, 1.0, 1.0, 3.0)
    found = [-math.log(rule.moved(1.0, 0.0, 10, Noise(), 1.0, t)) * 10 for t in range(4000)]
    assert np.std(found) == pytest.approx(3.0, rel=0.07)  # six deviations
    assert abs(np.mean(found)) < 6 * 3 / math.sqrt(4000)


def test_a_bound_stays_a_number_whatever_the_counts_say() -> None:
    rule = Adaptive(0.5, 50.0, 1.0, None)
    for centred, end in ((-1000.0, 1e9), (1000.0, 1e-9)):
        bound = 1.0
        for number in range(50):
            bound = rule.moved(bound, centred, 10, SEED, 0.0, number)
        assert bound == end


# ---------------------------------------------------------------------- the sum


def update(*values: float, **more: Any) -> dict[str, Any]:
    return {"model": Tree(w=torch.tensor(values, dtype=torch.float64)), **more}


def summed(updates: Mapping[int, dict[str, Any]], clip: float) -> dict[str, Any]:
    reducer = counted_sum(clip, None)
    total: Any = None
    for k, one in updates.items():
        total = reducer.add(total, reducer.lift(k, one, 1.0))
    return dict(reducer.close(total, Closing(tuple(updates), lambda part: 1.0, None)).value or {})


@given(
    values=st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=6), gone=st.integers(0, 5)
)
def test_removing_a_client_moves_the_two_sums_by_the_bound_and_by_a_half(values: list[list[float]], gone: int) -> None:
    clip = 1.3
    updates = {k: update(*each, **{WITHIN: within(update(*each), clip)}) for k, each in enumerate(values)}
    rest = {k: one for k, one in updates.items() if k != gone % len(updates)}
    both = [summed(one, clip) or update(0.0, 0.0, 0.0, **{WITHIN: 0.0}) for one in (updates, rest)]
    moved = both[0]["model"]["w"] - both[1]["model"]["w"]
    assert float(moved.norm()) <= clip * (1 + 1e-12)
    assert abs(both[0][WITHIN] - both[1][WITHIN]) == 0.5


@pytest.mark.parametrize("lie", [1e9, -3, "yes", None, 1, 0.5, [True], {"a": True}])
def test_a_client_that_tells_no_yes_or_no_counts_as_absent(lie: Any) -> None:
    assert counted({WITHIN: lie}) == 0.0
    assert counted({}) == 0.0
    assert (counted({WITHIN: True}), counted({WITHIN: False})) == (0.5, -0.5)


def test_a_client_that_lies_about_its_length_moves_the_count_by_a_half() -> None:
    """It sends a change of 1e6 and says that it is within; the server clips it all the same."""
    found = summed({0: update(1e6, 0.0, 0.0, within=True), 1: update(0.1, 0.0, 0.0, within=True)}, 1.0)
    assert float(found["model"]["w"][0]) == pytest.approx(1.1, rel=1e-9)
    assert found[WITHIN] == 1.0


def test_a_change_without_a_length_is_left_out_with_its_count() -> None:
    found = summed({0: update(math.nan, 0.0, 0.0, within=True), 1: update(0.1, 0.0, 0.0, within=False)}, 1.0)
    assert found[WITHIN] == -0.5


def test_a_hostile_reply_ends_no_round() -> None:
    fed, host = protected(ALGORITHMS["fedavg"](weights="uniform"), central_dp(clip="adaptive", noise_multiplier=0.0))
    lies: list[Any] = [1e9, None, {"model": Tree(w=torch.ones(2))}, True, math.nan]
    host.alter = lambda request, sent: {**sent, WITHIN: lies[request.client]}
    after, _ = play(fed, [tuple(range(5))], host=host)
    share = 0.5 + 0.5 / 5  # one of five told something that counts
    assert after[MEMORY]["central_dp"]["clip"] == pytest.approx(0.1 * math.exp(-0.2 * (share - 0.5)))


# ---------------------------------------------------------------------- rounds


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedyogi"])
def test_without_noise_each_round_is_the_clipped_mean_under_its_bound(name: str) -> None:
    """Bit by bit central_dp's with the bound of the round, over states as well; the bound is told and moves."""
    made = ALGORITHMS[name]() if name == "scaffold" else ALGORITHMS[name](weights="uniform")
    fed, host = protected(made, central_dp(clip="adaptive", noise_multiplier=0.0, first_clip=0.02))
    server, bound, bounds = fed.begin(host), 0.02, []
    for number in (1, 2, 3):
        plain, other = protected(made, without_noise(clip=bound))
        for k in host.states.after.clients():
            other.states.after.restore(k, dict(host.states.get(k)))
        other.states.landed = number - 1
        bare = {key: x for key, x in server.items() if key != MEMORY}
        expected, _ = play(plain, [tuple(range(5))], server=bare, host=other, first=number)
        server, _ = play(fed, [tuple(range(5))], server=server, host=host, first=number)
        assert gap({key: x for key, x in server.items() if key != MEMORY}, expected) == 0
        told = {request.word["clip"] for request in host.requests if request.round == number and request.word}
        assert told == {bound}
        bound = server[MEMORY]["central_dp"]["clip"]
        bounds.append(bound)
    assert bounds == sorted({*bounds})  # all changes are longer


def test_an_empty_cohort_moves_the_bound_by_noise_only() -> None:
    fed, host = protected(
        ALGORITHMS["fedavg"](weights="uniform"), central_dp(clip="adaptive", noise_multiplier=0.1, quantile=0.9)
    )
    after, _ = play(fed, [()], host=host)
    moved = -math.log(after[MEMORY]["central_dp"]["clip"] / 0.1) / 0.2 + 0.9
    assert moved == pytest.approx(0.5, abs=10 * 0.05)
    assert moved != 0.5


# ---------------------------------------------------------------------- runs


def test_a_file_with_a_fixed_bound_is_what_it_was() -> None:
    """No new key is written out, so its hash is that of before."""
    asked = parse({"privacy": [{"name": "central_dp", "clip": 0.5}]})
    assert asked.plain()["privacy"] == [{"name": "central_dp", "clip": 0.5}]
    assert asked.hash() == "5390ae93ed009572ac706d5613cdc75d03aec42c03a0340f7ec6a969b131ce2e"


def test_a_run_shows_its_bounds_and_a_resume_goes_on_with_them(tmp_path: Path) -> None:
    what = experiment(checkpoint={"every": 1}, privacy=[{**ADAPTIVE, "noise": "seed"}])
    whole = run(what, out=tmp_path / "whole", baselines=False)
    parts = run(
        experiment(checkpoint={"every": 1}, privacy=[{**ADAPTIVE, "noise": "seed"}], rounds=2),
        out=tmp_path / "parts",
        baselines=False,
    )
    done = resume(parts.path, ["rounds=4"], baselines=False)
    assert (done.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert done.summary["privacy"] == whole.summary["privacy"]
    bounds = whole.summary["privacy"]["clip_by_round"]
    assert [at for at, _ in bounds] == [1, 2, 3, 4]
    assert bounds[0][1] == 0.1
    assert len({bound for _, bound in bounds}) == 4
    events = ledger.read(whole.path / "ledger.jsonl").events
    assert [(event.multiplier, event.sensitivity) for event in events] == [(0.8, bound) for _, bound in bounds]
    page = (whole.path / "report.html").read_text()
    assert "The bound on changes over the rounds" in page
    assert "followed the lengths of changes" in page


@pytest.mark.parametrize("compression", [{"name": "topk", "share": 0.2}, {"name": "clip", "norm": 0.01}])
def test_compressed_changes_are_clipped_under_the_bound(compression: dict[str, Any], tmp_path: Path) -> None:
    """Without noise the model moves no further than the sum of the bounds; a change that is longer than its code is one bound long."""
    what = experiment(compression=compression, privacy=[{**ADAPTIVE, "noise_multiplier": 0.0, "first_clip": 0.005}])
    done = run(what, out=tmp_path / "run", baselines=False)
    bounds = [bound for _, bound in done.summary["privacy"]["clip_by_round"]]
    assert bounds == sorted({*bounds})
    first, last = (
        torch.cat([x.flatten() for x in load_file(done.path / f"{name}.safetensors").values()])
        for name in ("initial", "model")
    )
    assert 0 < float((last - first).norm()) <= sum(bounds) * (1 + 1e-5)


def test_it_costs_what_a_fixed_bound_costs(tmp_path: Path) -> None:
    cohort = {"sampling": "poisson", "fraction": 0.5}
    found = run(experiment(cohort=cohort), out=tmp_path / "run", baselines=False).summary["privacy"]
    fixed = dry_run(experiment(cohort=cohort, privacy=[{**ADAPTIVE, "clip": 0.5}]), baselines=False)["privacy"]
    assert found["epsilon"] == pytest.approx(fixed["epsilon"], rel=1e-9)
    assert dry_run(experiment(cohort=cohort), baselines=False)["privacy"]["epsilon"] == pytest.approx(found["epsilon"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["clients"] is None for row in rows)


def test_the_plan_is_a_line_per_round() -> None:
    how = Protection((central_dp(clip="adaptive", delta=1e-5),), 30, 5, 0.5, 0)
    assert [event.round for event in how.planned(5)] == [1, 2, 3, 4, 5]
    assert how.released(1, (0,)) == []  # in a run the lines follow from the memory
