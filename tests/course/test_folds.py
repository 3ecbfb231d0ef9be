"""``evaluation.fold``: five folds of each client's rows, the same under every method, and a run's draws by the fold."""

from __future__ import annotations

import numpy as np
import pytest

from configured import set_up
from fedatlas import config
from fedatlas.errors import ConfigError
from fedatlas.setup.assembly import Setup, fold_owners, judged_rows, pooled
from fedatlas.setup.folds import FEWEST, folds_of

SPLIT = ("partition={name='dirichlet', clients=4, alpha=0.5}", "rounds=2", "data.limit=200")


def of_fold(fold: int, *more: str) -> Setup:
    return set_up(config.read(None, [*SPLIT, "evaluation.on=validation", f"evaluation.fold={fold}", *more]), 1)


def test_folds_are_dealt_by_class_and_differ_by_at_most_one_row() -> None:
    labels = np.random.default_rng(1).choice(3, size=53, p=[0.7, 0.2, 0.1])
    folds = folds_of(labels, seed=3, client=2)
    for rows in (folds, *(folds[labels == c] for c in range(3))):
        counts = np.bincount(rows, minlength=6)
        assert counts[0] == 0
        assert np.ptp(counts[1:]) <= 1
    assert (folds_of(labels, seed=3, client=2) == folds).all()
    assert (folds_of(labels, seed=4, client=2) != folds).any()


def test_a_client_with_few_rows_gives_none() -> None:
    assert not folds_of(np.zeros(FEWEST - 1, int), 1, 1).any()
    with pytest.raises(ConfigError, match=r"evaluation.fold: no client has 10 rows"):
        set_up(
            config.read(
                None,
                [
                    "partition={name='iid', clients=30}",
                    "data.limit=200",
                    "evaluation.on=validation",
                    "evaluation.fold=1",
                ],
            ),
            1,
        )


def test_each_row_is_judged_on_in_one_fold_and_trained_on_in_the_others() -> None:
    setups = [of_fold(fold) for fold in range(1, 6)]
    held = [pooled(one.validation) for one in setups]
    assert sorted(np.concatenate(held)) == list(range(200))
    for one, rows in zip(setups, held, strict=True):
        assert not set(rows) & {int(row) for client in one.partition.clients for row in client}
    for k in range(4):  # who holds which rows is the same in all folds
        every = [sorted([*one.partition.clients[k], *one.validation[k]]) for one in setups]
        assert all(rows == every[0] for rows in every)


def test_owners_stand_beside_the_judged_rows() -> None:
    one = of_fold(2)
    rows = pooled(one.validation)
    assert [row in one.validation[k] for row, k in zip(rows, fold_owners(one), strict=True)] == [True] * len(rows)
    assert judged_rows(one).n == len(rows)


def test_held_out_rows_are_those_of_the_run_without_folds_and_are_not_read() -> None:
    whole = set_up(config.read(None, [*SPLIT, "evaluation.clients=0.2"]), 1)
    own = pooled(whole.held_out)
    one = of_fold(3, "evaluation.clients=0.2")
    used = [*one.partition.clients, *one.validation.values()]
    assert not one.held_out
    assert not set(own) & set(np.concatenate(used))
    assert len(own) + sum(map(len, used)) == 200


def test_a_fold_has_draws_of_its_own_on_the_same_data() -> None:
    seeds = [of_fold(fold).seed for fold in range(1, 6)]
    assert len({1, *seeds}) == 6


def test_a_fold_without_validation_is_refused_and_no_fold_leaves_the_hash() -> None:
    with pytest.raises(ConfigError, match=r"evaluation.fold names validation rows: set evaluation.on"):
        config.read(None, ["evaluation.fold=1"])
    with pytest.raises(ConfigError, match=r"evaluation.fold"):
        config.read(None, ["evaluation.on=validation", "evaluation.fold=6"])
    assert "fold" not in config.read(None, []).plain()["evaluation"]
