"""FedDyn where its mathematics says what must hold (H10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import parse
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.setup.resolution import make_algorithm
from fedatlas.tree import Tree
from federation import SIZES, cohorts, everyone, federation, gap, play, rows

K = len(SIZES)
UNEVEN = [(0, 2, 4), (1,), (), (0, 1, 2, 3, 4), (3, 4), (2,), (0, 1, 3), ()]
"""Who returns: cohorts of every size, and rounds in which nobody does."""


def h_is_the_mean_of_the_duals(build: Callable[..., Algorithm], by_size: bool = False) -> None:
    """h = (1/K) sum g_k; with alpha_k: h/alpha = (1/K) sum g_k/alpha_k. After every round, whoever took part."""
    fed = federation(build(alpha=0.1, alpha_by_size=by_size))
    server, host = fed.begin(), fed.host()
    for number, cohort in enumerate(UNEVEN, start=1):
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
        mean = fed.params.zeros()
        for k in host.states.after.clients():
            share = SIZES[k] / sum(SIZES) if by_size else 1 / K  # (1/K) alpha/alpha_k = n_k/n
            mean = mean + share * (host.states.get(k) or {})["g_k"]
        assert gap(server["h"], mean) < 1e-14
    assert server["h"].norm() > 1e-3


@pytest.mark.parametrize("by_size", [False, True])
def test_h_is_the_mean_of_the_duals(by_size: bool) -> None:
    h_is_the_mean_of_the_duals(ALGORITHMS["feddyn"], by_size)


def test_the_mean_of_the_local_models_is_evaluated_beside_the_servers() -> None:
    """models() gives w_t first, and mean(w_k), which is what the server would hold without h."""
    fed = federation(ALGORITHMS["feddyn"](alpha=0.1, variant="fedseq_code"))
    prox = federation(ALGORITHMS["fedprox"](mu=0.1, weights="uniform"))
    found = fed.bench.algorithm.models(play(fed, 1)[0])
    assert list(found) == ["global", "mean"]
    assert gap(found["mean"], play(prox, 1)[0]["model"]) < 1e-14
    # h = -alpha (m/K) (mean - w_0) after one round of m = 3 clients
    assert gap(found["global"], found["mean"] + 3 / K * (found["mean"] - fed.params)) < 1e-14


def test_the_thesis_variant_keeps_nothing_on_its_clients() -> None:
    """No linear term: its first round is the paper's, its second is not."""
    paper, code = (federation(ALGORITHMS["feddyn"](alpha=0.1, variant=v)) for v in ("paper", "fedseq_code"))
    assert gap(play(paper, everyone(paper, 1))[0]["model"], play(code, everyone(code, 1))[0]["model"]) == 0
    server, host = play(code, everyone(code, 2))
    assert gap(play(paper, everyone(paper, 2))[0]["model"], server["model"]) > 1e-3
    assert list(host.states.after.clients()) == []


def test_a_client_without_rows_keeps_its_dual() -> None:
    """It has no alpha_k, sends the model back as it came, and counts in the uniform mean."""
    held = rows((6, 9))
    empty = Rows(held[0].x[:0], held[0].y[:0])
    fed = federation(ALGORITHMS["feddyn"](alpha=0.1, alpha_by_size=True), {**held, 2: empty})
    server, host = play(fed, everyone(fed, 2))
    assert (host.states.get(2) or {})["g_k"].norm() == 0
    assert 0 < gap(server["model"], fed.params) < 10


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"alpha": 0.0}, "algorithm.alpha"),
        ({"variant": "thesis"}, "algorithm.variant"),
        ({"alpha_by_size": True, "variant": "fedseq_code"}, "one alpha for all; remove the key"),
    ],
)
def test_what_cannot_work_is_refused(keys: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm(parse({"algorithm": {"name": "feddyn", **keys}}))


def test_a_dual_points_against_the_clients_drift() -> None:
    """g_k sums up -alpha (w_k - w_t) over the rounds that client k took part in."""
    fed = federation(ALGORITHMS["feddyn"](alpha=0.1))
    server, host = fed.begin(), fed.host()
    expected: dict[int, Tree] = {}
    for number, cohort in enumerate(cohorts(4), start=1):
        before = server["model"]
        alone = {k: fed.host() for k in cohort}
        for k, other in alone.items():
            if k in expected:
                other.states.after.restore(k, host.states.get(k) or {})
            other_server, _ = play(fed, [(k,)], server=server, host=other, first=number)
            w_k = fed.bench.algorithm.models(other_server)["mean"]
            expected[k] = expected.get(k, before.zeros()) - 0.1 * (w_k - before)
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
    for k, g_k in expected.items():
        assert gap((host.states.get(k) or {})["g_k"], g_k) < 1e-13
