"""``local.last_batch = "merge"``: a last batch that is shorter joins the one before it, in every engine alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedatlas import Experiment, run
from fedatlas.algorithm import Batch, Budget
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import parse
from fedatlas.data.batches import Draw, Rows, batches, cut, examples_of
from fedatlas.engine.fast import FastRunner, batch_sizes
from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.pool import PoolExecutor
from fedatlas.engine.stacked_executor import StackedExecutor
from fedatlas.record.run_folder import RunFolder
from federation import SIZES, fast, federation, gap, play, same, stacked, tuned

MERGED = {5: [5], 12: [4, 4, 4], 9: [4, 5], 21: [4, 4, 4, 4, 5], 7: [7], 3: [3], 1: [1]}


@pytest.mark.parametrize("n", MERGED)
def test_every_row_is_used_and_no_batch_is_short(n: int) -> None:
    rows = Rows(torch.arange(n)[:, None], torch.arange(n))
    found = [*batches(rows, Budget(epochs=2), Draw(1, 1, 1, 4, merge=True))]
    assert [len(batch.x) for batch in found] == MERGED[n] * 2
    kept = [*batches(rows, Budget(epochs=2), Draw(1, 1, 1, 4))]
    assert same(_order(found), _order(kept)), "which rows, and in which order, is the same"
    assert sorted(_order(found)[:n].tolist()) == list(range(n))


def _order(found: list[Batch]) -> Tensor:
    return torch.cat([batch.y for batch in found])


@pytest.mark.parametrize("n", MERGED)
@pytest.mark.parametrize("steps", range(1, 12))
def test_a_budget_of_steps_takes_as_many(n: int, steps: int) -> None:
    rows, budget = Rows(torch.zeros(n, 1), torch.zeros(n)), Budget(steps=steps)
    found = [len(batch.x) for batch in batches(rows, budget, Draw(1, 1, 1, 4, merge=True))]
    assert len(found) == steps
    assert sum(found) == examples_of(budget, n, 4, merge=True)


def test_sizes_that_are_worth_a_program_are_those_of_the_batches() -> None:
    assert batch_sizes(4, SIZES, merge=True) == {4, 5}, "12 steps: 8 of 4 rows, 3 of 5, 1 of 7"
    assert batch_sizes(4, [96, 97, 6], merge=True) == {4}
    assert cut(9, 0, merge=True) == (0, 9)


def pool(bench: Bench) -> PoolExecutor:
    return PoolExecutor(bench, FastRunner(bench, SIZES, "program", "float64"), workers=2, chunk=2)


def rare(bench: Bench) -> StackedExecutor:
    """Merged batches without a stacked program of their own."""
    runner = FastRunner(bench, [400, 400], "stacked", "float64")
    return StackedExecutor(bench, runner, 8)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("budget", [Budget(epochs=2), Budget(steps=7)])
def test_engines_agree(algorithm: str, budget: Budget) -> None:
    fed = federation(ALGORITHMS[algorithm](), batch_size=4, budget=budget, merge=True)
    (oracle, host), plain = play(fed), play(federation(ALGORITHMS[algorithm](), batch_size=4, budget=budget))[0]
    assert gap(oracle["model"], plain["model"]) > 1e-4, "other batches make another model"
    makes: list[Callable[[Bench], Executor]] = [fast, tuned, stacked, rare]
    for make in makes:
        found, view = play(fed, make=make)
        assert gap(found, oracle) < 1e-11
        steps = {k: (work.steps, work.examples) for k, work in view.view.work.items()}
        assert steps == {k: (work.steps, work.examples) for k, work in host.view.work.items()}
    shared, view = play(fed, make=pool)
    view.executor.close()
    assert same(shared, play(fed, make=fast)[0])


def test_a_run_counts_its_steps_and_the_default_keeps_its_hash(tmp_path: Path) -> None:
    keys = {
        "data": {"name": "digits"},
        "rounds": 1,
        "model": {"name": "logistic"},
        "partition": {"name": "iid", "clients": 5},
    }
    plain, kept, merged = (
        parse({**keys, "local": local}) for local in ({}, {"last_batch": "keep"}, {"last_batch": "merge"})
    )
    assert plain.hash() == kept.hash() != merged.hash()
    assert "last_batch" not in plain.plain()["local"]
    assert parse(merged.plain()).hash() == merged.hash()
    steps = {}
    for name, config in {"keep": plain, "merge": merged}.items():
        done = run(Experiment(config), out=tmp_path / name, baselines=False)
        rows = [row["train_rows"] for row in done.summary["per_client"]]
        whole, last = zip(*(cut(n, 32, name == "merge") for n in rows), strict=True)
        steps[name] = RunFolder.open(tmp_path / name).rows()[1]["steps"]
        assert steps[name] == [a + (b > 0) for a, b in zip(whole, last, strict=True)]
    assert sum(steps["merge"]) < sum(steps["keep"])
