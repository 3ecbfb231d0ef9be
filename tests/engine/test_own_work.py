"""Local work with options of its own: public rows, targets, optimisers, batches, and an early end (algorithm.Local)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Batch,
    Budget,
    Facts,
    Local,
    Message,
    Network,
    Patience,
    Public,
    Solver,
    State,
    Task,
)
from fedatlas.data.batches import examples_of, parted_rows, public_rows
from fedatlas.engine.job import Bench, Executor, Job, batch_size_of, job_batches, prepare
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.optim import Optimizer
from federation import Federation, Smooth, fast, federation, gap, play, rows, stacked


class Normed(Smooth):
    """With batch norm behind the hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.hidden(x)))


def worker(options: Local, make: Callable[[], nn.Module] = Smooth, **fields: Any) -> Federation:
    """A federation whose one task has these options."""
    return federation(Algorithm("odd", tasks={"train": Task(options=options, **fields)}), make=make)


def job(fed: Federation, **message: Any) -> Job:
    host = fed.host()
    told = {"model": fed.params, **message}
    return Job(1, "train", told, {}, host.facts(1, 3, 0.1), Budget(epochs=2), 1)


def test_public_rows_are_the_same_for_everybody_and_new_each_round() -> None:
    first, again, later = (public_rows(50, 7, 1, number).tolist() for number in (1, 1, 2))
    assert first == again == sorted(set(first))
    assert len(first) == 7
    assert first != later
    fed = worker(Local(public=Public(rows=5)))
    ready = prepare(fed.bench, job(fed))
    public = fed.bench.rows(SERVER)
    assert torch.equal(ready.rows.x, public.x[public_rows(12, 5, 1, 3)])
    assert ready.facts.n_k == 5


def test_targets_stand_in_the_labels_place() -> None:
    target = torch.rand((12, 3), dtype=torch.float64)
    fed = worker(Local(public=Public(targets="wanted")))
    assert torch.equal(prepare(fed.bench, job(fed, wanted=target)).rows.y, target)


def test_an_optimiser_of_its_own_has_its_rate_and_no_clipping() -> None:
    fed = worker(Local(solver=Solver("adam", lr=1e-3)))
    fed = fed._replace(bench=fed.bench._replace(local=fed.bench.local._replace(clip=0.1)))
    one = job(fed)
    bench = fed.bench.of(one)
    assert (bench.local.optimizer, bench.local.clip, prepare(bench, one).lr) == (Optimizer("adam"), 0.0, 1e-3)
    plain = worker(Local())
    assert plain.bench.of(job(plain)) is plain.bench  # the common case makes nothing anew


def test_batches_shrink_where_rows_are_few() -> None:
    """FedMD's: 5,000 rows in batches of 256, 200 in batches of 10, 12 one by one; [local]'s where nothing is said."""
    few = Local(solver=Solver(batch_size=256, pass_steps=19))
    assert [batch_size_of(few, 32, n) for n in (5000, 200, 12)] == [256, 10, 1]
    assert batch_size_of(Local(), 32, 12) == 32


def test_batches_shrink_no_further_than_batch_norm_can_follow() -> None:
    """Of twelve public rows one by one nothing would be left: it takes two."""
    fed = worker(Local(epochs=1, public=Public(), solver=Solver(batch_size=256, pass_steps=19)), make=Normed)
    assert [len(batch.x) for batch in job_batches(prepare(fed.bench, job(fed)))] == [2] * 6


def test_of_two_budgets_the_one_that_ends_first_counts() -> None:
    assert examples_of(Budget(epochs=3, steps=100), 10, 4) == 30
    assert examples_of(Budget(epochs=3, steps=4), 10, 4) == 14


@pytest.mark.parametrize("make", [SerialExecutor, fast, stacked])
def test_work_without_a_gain_ends_early(make: Callable[[Bench], Executor]) -> None:
    """A rate of 0 never gains: the first pass sets the mark, and three more are waited for."""
    fed = worker(Local(epochs=50, solver=Solver(lr=0.0), patience=Patience(passes=3)))
    server, host = play(fed, [(1,)], make=make)
    assert host.view.work[1].steps == 4 * 3  # 12 rows in batches of 4
    assert gap(server["model"], fed.params) == 0


@pytest.mark.parametrize("make", [SerialExecutor, fast, stacked])
@pytest.mark.parametrize(("client", "a_pass"), [(0, 1), (1, 3), (2, 2)])
def test_a_pass_is_over_without_the_row_that_batch_norm_leaves_out(
    make: Callable[[Bench], Executor], client: int, a_pass: int
) -> None:
    """5, 12 and 9 rows in batches of 4: the last batch of 5 and 9 would be of one row."""

    def level(
        model: Network, params: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
    ) -> Tensor:
        return 1 + 0 * params["head.bias"].sum()

    fed = worker(Local(epochs=50, solver=Solver(lr=0.0), patience=Patience(passes=3)), make=Normed, objective=level)
    _, host = play(fed, [(client,)], make=make)
    assert host.view.work[client].steps == 4 * a_pass  # the first pass sets the mark, three more are waited for


def test_steps_without_a_gain_are_counted_too() -> None:
    fed = worker(Local(epochs=50, solver=Solver(lr=0.0), patience=Patience(steps=7)))
    _, host = play(fed, [(1,)])
    assert host.view.work[1].steps == 4 * 3  # after 3, 6 and 9 more: judged after whole passes only


@pytest.mark.parametrize("make", [SerialExecutor, fast])
def test_the_best_model_on_held_out_rows_is_kept(make: Callable[[Bench], Executor]) -> None:
    """A rate that is far too large: the start is the best there ever was."""
    fed = worker(Local(epochs=9, solver=Solver(lr=200.0), patience=Patience(passes=5, held_out=0.25)))
    server, host = play(fed, [(1,)], make=make)
    assert gap(server["model"], fed.params) == 0
    assert host.view.work[1].examples % 9 == 0  # three of twelve rows are not trained on


def test_held_out_rows_are_a_share_at_least_one_and_never_all() -> None:
    held = rows()[3]
    for share, n in ((0.1, 2), (0.001, 1), (0.999, 20)):
        trained, judged = parted_rows(held, share, 1, 2, 3)
        assert judged is not None
        assert (judged.n, trained.n) == (n, 21 - n)
        both = torch.cat([trained.x, judged.x])
        assert sorted(both.sum(1).tolist()) == sorted(held.x.sum(1).tolist())
    assert parted_rows(held.take(torch.tensor([0])), 0.5, 1, 2, 3)[1] is None
