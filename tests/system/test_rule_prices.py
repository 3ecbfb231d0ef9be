"""The benchmark of what rules cost without attack: paired, and tuned on other seeds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from configured import share_out
from fedatlas.config import parse
from fedatlas.errors import ConfigError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("rule_prices")


def test_a_price_is_paired_seed_by_seed_and_a_refusal_is_a_cell(
    prices: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Free runs 0.9, 0.8, 0.7; the rule 1, 2 and 3 points below. Mean 2, half-width 4.303 / sqrt(3)."""
    found = {1: 0.89, 2: 0.78, 3: 0.67}
    monkeypatch.setattr(prices, "accuracy", lambda out, seed, table: found[seed])
    assert prices.price(tmp_path, [1, 2, 3], {}, [0.9, 0.8, 0.7]) == "78.0, +2.0 [-0.5, +4.5]"

    def refused(out: Path, seed: int, table: Any) -> float:
        raise ConfigError("aggregation: too few; lower f.")

    monkeypatch.setattr(prices, "accuracy", refused)
    assert prices.price(tmp_path, [1], {}, [0.9]) == "refused: too few"


def test_the_set_that_is_best_under_its_worst_attack_is_chosen(
    prices: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scores = {("", "label_flip"): 0.9, ("", "sign_flip"): 0.2, ("q", "label_flip"): 0.6, ("q", "sign_flip"): 0.5}
    monkeypatch.setattr(prices, "CHOICES", {"multi_krum": ({}, {"q": 4})})
    monkeypatch.setattr(prices, "HOSTILE", {"label_flip": {}, "sign_flip": {}})
    monkeypatch.setattr(
        prices, "accuracy", lambda out, seed, table, attack: scores["q" if "q" in table else "", attack]
    )
    assert prices.chosen(tmp_path, [11, 12]) == {"multi_krum": {"q": 4}}


def test_every_set_is_one_that_its_rule_knows_and_the_seeds_differ(
    prices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rule, sets in prices.CHOICES.items():
        for given in sets:
            share_out(parse({**prices.DIGITS, "aggregation": prices.aggregation(rule, "none", **given)}))
    monkeypatch.setattr("sys.argv", ["rule_prices.py", "--seeds", "1", "--tuning", "1"])
    with pytest.raises(SystemExit):
        prices.main()
