"""Costs of a choice: always those of one federation, so that a protected choice is never cheaper than the same without protection."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.recommender.choice_costs import costs_at, costs_in, measured_in
from fedatlas.recommender.contest import Fitted, fit_study
from fedatlas.recommender.shipped import load_study
from fedatlas.recommender.twins import with_twins
from fedatlas.study.measurements import Floats, measurements_of
from study_tables import federations, runs

PRICE = {"fedavg": 1.0, "masked": 1.5, "noisy": 1.0, "rare": 4.0}


def without(fitted: Fitted, i: int) -> Fitted:
    """The study as if a setting had not been measured, as far as costs are concerned."""
    rest = np.arange(len(fitted.x)) != i
    return fitted._replace(x=fitted.x[rest], costs={cost: y[rest] for cost, y in fitted.costs.items()})


def asked_places(fitted: Fitted) -> list[Floats]:
    """Places within the measured range and beyond it."""
    stream, low, high = np.random.default_rng(5), fitted.x.min(axis=0), fitted.x.max(axis=0)
    return [low + stream.uniform(-0.3, 1.3, low.shape) * (high - low) for _ in range(300)]


def test_masks_are_never_cheaper_than_none():
    """In every measured federation left out, and at many places; the bytes are 1.5 to 3.3 times those without masks, as measured."""
    fitted = with_twins(load_study("small")).fitted
    cases = [(without(fitted, i), x) for i, x in enumerate(fitted.x)] + [(fitted, x) for x in asked_places(fitted)]
    pairs = [(fitted.choices.index(a), fitted.choices.index(b)) for a, b in fitted.twins.items()]
    assert len(pairs) == 5
    for study, at in cases:
        found = costs_at(study, at)
        for masked, plain in pairs:
            ratio = found["bytes"][masked] / found["bytes"][plain]
            assert (ratio >= 1.5).all()
            assert (ratio <= 3.3).all()
            assert (found["messages"][masked] > found["messages"][plain]).all()


@pytest.fixture(scope="module")
def planted() -> Fitted:
    """A study in which "masked" and "rare" were measured in a third of the settings; costs differ tenfold between data sets."""
    settings = federations(36)
    rows = runs(
        settings, lambda c, at: -0.3, list(PRICE), noise=0.0, cost=PRICE.__getitem__,
        sees=lambda c: "noisy_sums" if c == "noisy" else "models",
    )  # fmt: skip
    kept = []
    for row in rows:
        place = int(row["federation"][1:])
        if row["kind"] == "cell" and row["scheme"] in ("masked", "rare") and place % 3:
            continue
        more = 10.0 ** (place % 2)
        kept.append({**row, "bytes_up": row["bytes_up"] * more, "bytes_down": row["bytes_down"] * more})
    return fit_study(measurements_of(kept, ["federation"], ["scheme"], twins={"masked": "fedavg"}))


def test_a_choice_that_was_not_measured_nearby_costs_in_proportion_to_one_that_was(planted: Fitted):
    assert measured_in(planted).sum(axis=0).tolist() == [36, 12, 36, 12]
    for i in range(36):
        found = costs_in(planted, i)
        for j, name in enumerate(planted.choices):
            np.testing.assert_allclose(found["bytes"][j], PRICE[name] * found["bytes"][0])
            np.testing.assert_allclose(found["cpu_seconds"][j], PRICE[name] * found["cpu_seconds"][0])


def test_epsilon_is_of_the_choice_and_in_no_proportion(planted: Fitted):
    for i in range(36):
        epsilon = costs_in(planted, i)["epsilon"]
        assert (epsilon[planted.choices.index("noisy")] == 3.0).all()
        assert np.isposinf(epsilon[[planted.choices.index(name) for name in ("fedavg", "masked", "rare")]]).all()


def test_costs_grow_with_nodes_and_rows_from_one_setting(planted: Fitted):
    at = planted.x[7] + [np.log(2.0), np.log(3.0), 0.0, 0.0]
    near = int(planted.nearest(at)[0])
    grown = np.exp(at - planted.x[near])
    here, there = costs_at(planted, at), costs_in(planted, near)
    np.testing.assert_allclose(here["bytes"], there["bytes"] * grown[0])
    np.testing.assert_allclose(here["flops"], there["flops"] * grown[0] * grown[1])
    np.testing.assert_allclose(here["memory"], there["memory"])
