"""When a derived step may be trusted: values read outside of torch, other rows, other inputs, results that are no numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import federation as small
from fedatlas.algorithm import Algorithm, Batch
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine import compiler
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.engine.program import check, derive, outcome, step_for
from fedatlas.engine.stacked import derive_stacked
from fedatlas.engine.stacked_executor import StackedExecutor
from fedatlas.engine.step import NotTraceable, StepSpec, batch_arguments, fresh_memory, local_copy
from fedatlas.engine.trace import Example
from fedatlas.engine.tuned import TunedStep
from fedatlas.tree import Tree, stack
from steps import OPTIMIZERS, Smooth, batches_of, furthest, made, oracle, parts, spec_of, stepped


def in_stack(spec: StepSpec, params: Tree, inputs: Any, batches: list[Batch]) -> Tree:
    """The end of a client that shares a stack with its twin."""
    together = derive_stacked(spec, batches[0], inputs)
    with together.mode():
        own = stack([local_copy(params)] * 2)
        step = together.bind(own, None, [inputs] * 2)
        for batch in batches:
            step(*(torch.stack([each] * 2) for each in batch_arguments(batch)))
    return Tree({name: x[1] for name, x in own.items()})


def reading(read: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network that scales its rows by what ``read`` takes from them."""

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) * read(x).to(x.dtype).reshape(-1, 1)

    return made(Reading)


def by_address(x: Tensor) -> Tensor:
    """Reads a value where no trace sees it."""
    rows = (ctypes.c_double * x.numel()).from_address(x.data_ptr())
    return torch.tensor([rows[12 * row] for row in range(len(x))], dtype=torch.float64)


READS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "list": (lambda x: torch.tensor((x > 0).sum(1).tolist()), "outside of torch"),
    "numpy": (lambda x: torch.from_numpy(np.abs(np.fft.rfft(x.numpy()))[:, 1]), "outside of torch"),
    "array": (lambda x: torch.from_numpy(np.asarray(x.detach()).max(1)), "outside of torch"),
    "data": (lambda x: torch.tensor(x.data.tolist())[:, 0], "outside of torch"),
    "address": (by_address, "departs"),
}


@pytest.mark.parametrize("case", READS)
def test_a_value_read_outside_of_torch_becomes_no_constant(case: str) -> None:
    read, reason = READS[case]
    spec = spec_of(reading(read))
    first, second = batches_of((12,), [5, 5])
    params, inputs = parts(spec.module)[0], {"lr": 0.1}
    with pytest.raises(NotTraceable, match=reason):
        derive(spec, first, inputs)
    expected = oracle(spec, params, Tree(), inputs, [first, second])[0]
    got = stepped({5: step_for(spec, first, inputs)}, params, Tree(), inputs, [first, second])[0]
    assert furthest(got, expected) < 1e-12


def test_tokens_and_labels_stay_what_they_are_when_a_program_is_checked() -> None:
    """Rows change places with their labels; no token and no label is made up."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(9, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.words(x)).mean(1))

    spec, stream = spec_of(made(Words)), torch.Generator().manual_seed(1)
    batch = Batch(torch.randint(9, (5, 7), generator=stream), torch.randint(4, (5,), generator=stream), None, {})
    derive(spec, batch, {"lr": 0.1})


def test_labels_that_an_objective_makes_may_leave_rows_out() -> None:
    """The batch that was traced has none such, the next has."""
    module = made(Smooth)

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        logits = functional_call(module, dict(params), (batch.x,))
        return F.cross_entropy(logits, torch.where(batch.y == 3, -100, batch.y))

    spec, params, inputs = spec_of(module, loss=loss), parts(module)[0], {"lr": 0.5}
    first, second = batches_of((12,), [5, 5])
    batches = [first._replace(y=torch.tensor([0, 1, 2, 0, 1])), second._replace(y=torch.tensor([3, 1, 2, 3, 0]))]
    expected, _, losses = oracle(spec, params, Tree(), inputs, batches)
    for native in {False, compiler.find_compiler() is not None}:
        got, _, found = stepped({5: derive(spec, batches[0], inputs, native)}, params, Tree(), inputs, batches)
        assert furthest(got, expected) < 1e-12
        assert found == pytest.approx(losses, rel=1e-12)
    assert furthest(in_stack(spec, params, inputs, batches), expected) < 1e-12


# ---------------------------------------------------------------------- results that are no numbers


def root(module: nn.Module, wrong: float = 0.0) -> StepSpec:
    """A loss that is no number wherever its first weight is above 0.5."""

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        plain = F.cross_entropy(functional_call(module, dict(params), (batch.x,)), batch.y)
        return plain * (1 + wrong) + torch.sqrt(0.5 - params["a.weight"][0, 0])

    return spec_of(module, loss=loss)


@pytest.mark.parametrize(("at", "wrong"), [(0.4999, 0.0), (0.4999, 0.1), (0.7, 0.0)])
def test_where_autograd_ends_in_no_number_nothing_is_taken_for_checked(at: float, wrong: float) -> None:
    """One step beyond 0.5 the noise is too much, and the rows alone are changed; from 0.7 on there is nothing to check by."""
    module = made(Smooth)
    with torch.no_grad():
        module.a.weight[0, 0] = at
    params, batch = parts(module)[0], batches_of((12,), [5])[0]
    example = Example(params, Tree(), fresh_memory(root(module).optimizer, params), {"lr": 1e-6}, batch)
    other = TunedStep(root(module, wrong), batch)

    def judge() -> None:
        check(root(module), example, 1, lambda points: [outcome(other, point) for point in points])

    if at > 0.5:
        with pytest.raises(NotTraceable, match="cannot be checked"):
            judge()
    elif wrong:
        with pytest.raises(NotTraceable, match="departs"):
            judge()
    else:
        judge()


def test_minus_infinity_in_a_mask_is_checked_like_anything_else() -> None:
    class Masked(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(12, 4)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.a(x) + self.mask, 1)

    module = made(Masked)
    params, buffers = parts(module)
    batch = batches_of((12,), [5])[0]
    program = derive(spec_of(module), batch, {"lr": 0.1})
    expected = oracle(spec_of(module), params, buffers, {"lr": 0.1}, [batch])[0]
    assert furthest(stepped({5: program}, params, buffers, {"lr": 0.1}, [batch])[0], expected) < 1e-12


# ---------------------------------------------------------------------- trees in another order


def backwards(grads: Tree, params: Tree, inputs: Any) -> Tree:
    return Tree({name: grads[name] + 0.1 * params[name] for name in reversed(grads)})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_order_of_names_in_a_direction_changes_nothing(optimizer: str) -> None:
    """Square weights of one shape: gradients that change places would fit."""
    module = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    spec = spec_of(module, direction=backwards, optimizer=OPTIMIZERS[optimizer], clip=0.5)
    batches = batches_of((4,), [5] * 3)
    params, inputs = parts(module)[0], {"lr": 0.1}
    ordered: Any = lambda g, w, i: g + 0.1 * w  # noqa: E731
    expected = oracle(spec._replace(direction=ordered), params, Tree(), inputs, batches)[0]
    assert furthest(oracle(spec, params, Tree(), inputs, batches)[0], expected) < 1e-12
    steps = [TunedStep(spec, batches[0]), derive(spec, batches[0], inputs)]
    if compiler.find_compiler() is not None:
        steps.append(derive(spec, batches[0], inputs, native=True))
    for step in steps:
        assert furthest(stepped({5: step}, params, Tree(), inputs, batches)[0], expected) < 1e-12
    if optimizer != "adam":
        assert furthest(in_stack(spec, params, inputs, batches), expected) < 1e-12


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_direction_that_leaves_a_name_out_is_refused(optimizer: str) -> None:
    module, batch = made(Smooth), batches_of((12,), [5])[0]
    short: Any = lambda g, w, i: Tree({name: g[name] for name in list(g)[1:]})  # noqa: E731
    spec = spec_of(module, direction=short, optimizer=OPTIMIZERS[optimizer])
    with pytest.raises(ValueError, match="differ in their names"):
        stepped({5: TunedStep(spec, batch)}, parts(module)[0], Tree(), {"lr": 0.1}, [batch])


# ---------------------------------------------------------------------- new values that read old ones


def masked(g: Tree, w: Tree, i: Any) -> Tree:
    return Tree({name: g[name] + i["mu"] * (x * i["mask"][name]) for name, x in w.items()})


def orthogonal(g: Tree, w: Tree, i: Any) -> Tree:
    return Tree({n: g[n] + i["mu"] * ((x @ x.T - i["one"]) @ x if x.dim() == 2 else x) for n, x in w.items()})


def powers(g: Tree, w: Tree, i: Any) -> Tree:
    return Tree({n: g[n] + i["mu"] * (x @ x if x.dim() == 2 else x * x) for n, x in w.items()})


def turned(g: Tree, w: Tree, i: Any) -> Tree:
    return Tree({n: g[n] - i["mu"] * (x.T if x.dim() == 2 else x.flip(0)) for n, x in w.items()})


def divided(g: Tree, w: Tree, i: Any) -> Tree:
    return Tree({n: g[n] + i["mu"] * (x / (1 + i["mask"][n])) for n, x in w.items()})


def penalised(module: nn.Module) -> Callable[..., Tensor]:
    """Cross entropy + mu |W W' - 1|^2 of every weight."""

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        plain = F.cross_entropy(functional_call(module, dict(params), (batch.x,)), batch.y)
        return plain + inputs["mu"] * sum(
            (x @ x.T - inputs["one"]).square().sum() for x in params.values() if x.dim() == 2
        )

    return loss


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pull", [masked, orthogonal, powers, turned, divided, None])
def test_a_new_value_is_made_of_the_old_one_before_any_of_it_is_written(pull: Any, optimizer: str) -> None:
    module = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    loss = penalised(module) if pull is None else None
    spec = spec_of(module, direction=pull, loss=loss, optimizer=OPTIMIZERS[optimizer])
    params, batches = parts(module)[0], batches_of((4,), [5] * 3)
    mask = params.map(lambda x: (x > 0).to(x.dtype))
    one = torch.eye(4, dtype=torch.float64)
    for decay in ({}, {"weight_decay": 0.03}):
        inputs = {"lr": 0.2, "mu": 0.7, "mask": mask, "one": one, **decay}
        expected = oracle(spec, params, Tree(), inputs, batches)[0]
        for native in {False, compiler.find_compiler() is not None}:
            step = derive(spec, batches[0], inputs, native)
            assert furthest(stepped({5: step}, params, Tree(), inputs, batches)[0], expected) < 1e-10


# ---------------------------------------------------------------------- inputs that are made otherwise


def pulled(model: Any, params: Tree, batch: Batch, message: Any, client: Any, facts: Any) -> Tensor:
    """Towards the model of last time, once there is one, and half as much after a flag."""
    loss: Tensor = model.loss(params, batch)
    if "previous" in client:
        weight = 0.5 if client["tired"] else 1.0
        loss = loss + weight * sum((x - client["previous"][name]).square().sum() for name, x in params.items())
    return loss


def keep(params: Tree, work: Any, message: Any, client: Any, facts: Any) -> Any:
    return {"model": params}, {"previous": params, "tired": facts.round > 1}


def pulling() -> Algorithm:
    plain = ALGORITHMS["fedavg"]()
    return plain._replace(
        client_init=lambda model, facts: {},
        tasks={"train": plain.tasks["train"]._replace(objective=pulled, finish=keep)},
    )


def stacks(bench: Bench) -> StackedExecutor:
    return StackedExecutor(bench, FastRunner(bench, small.SIZES, "program", "float64"), 3)


def pool(bench: Bench) -> PoolExecutor:
    return PoolExecutor(bench, FastRunner(bench, small.SIZES, "program", "float64"), 2, 3)


def alone(bench: Bench) -> SerialExecutor:
    return SerialExecutor(bench, FastRunner(bench, small.SIZES, "program", "float64"))


@pytest.mark.parametrize("make", [alone, stacks, pool])
def test_a_state_that_is_empty_at_first_has_a_program_of_its_own(make: Callable[[Bench], Any]) -> None:
    """Nobody's state holds anything in round 1, some clients' in round 2; a flag changes behind it."""
    if make is pool and not can_fork():
        pytest.skip("this system cannot fork workers")
    fed = small.federation(pulling())
    cohorts = [(0, 1), (1, 2), (0, 1, 2), (0, 1, 2)]
    expected, _ = small.play(fed, cohorts)
    found, host = small.play(fed, cohorts, make=make)
    host.executor.close()
    assert small.gap(expected, found) < 1e-11
    notes = host.executor.run_job.notes()
    assert {note.partition(",")[0] for note in notes} == {"train", "train (2)", "train (3)"}
    assert not [note for note in notes if "tuned" in note and "rare" not in note]


def test_a_flag_that_differs_keeps_clients_out_of_a_stack() -> None:
    module, batch = made(Smooth), batches_of((12,), [10])[0]

    def direction(grads: Tree, params: Tree, inputs: Any) -> Tree:
        return grads + params if inputs["pull"] else grads

    inputs = [{"lr": 0.1, "pull": pull} for pull in (True, True, False)]
    program = derive_stacked(spec_of(module, direction=direction), batch, inputs[0])
    assert program.fits(inputs[:2])
    assert not program.fits(inputs)
    assert not program.fits(inputs[2:])
    assert not program.fits([{**inputs[0], "more": Tree()}] * 2)
