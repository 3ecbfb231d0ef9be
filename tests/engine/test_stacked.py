"""Several clients in one stack against each of them alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fedatlas import Experiment, run
from fedatlas.algorithm import Batch
from fedatlas.engine import stacked
from fedatlas.engine.program import step_for
from fedatlas.engine.stacked import StackedProgram, any_count, derive_stacked
from fedatlas.engine.stacked_training import Member, Trained, train_together
from fedatlas.engine.step import NotTraceable, StepSpec
from fedatlas.models.registry import MODELS
from fedatlas.tree import Tree
from steps import (
    DIRECTIONS,
    OPTIMIZERS,
    Recurrent,
    Smooth,
    batches_of,
    furthest,
    inputs_of,
    made,
    noise,
    oracle,
    parts,
    spec_of,
)


def client_inputs(params: Tree, k: int) -> dict[str, Any]:
    """Trees differ from client to client; numbers do not, in a round."""
    inputs = inputs_of(params, 0)
    return {**inputs, "client": {"c_k": noise(params, 200 + k), "h_k": noise(params, 300 + k)}}


def pieces(data: Batch, size: int, epochs: int) -> Iterator[Batch]:
    for _ in range(epochs):
        for at in range(0, len(data.x), size):
            yield Batch(*(None if x is None else x[at : at + size] for x in (data.x, data.y, data.weight)))  # type: ignore[arg-type]


def trained(
    spec: StepSpec,
    rows: list[int],
    stacked_sizes: tuple[int, ...] = (10,),
    shape: tuple[int, ...] = (12,),
    epochs: int = 2,
) -> tuple[list[Trained], list[tuple[Tree, Tree, list[float]]]]:
    """The work of clients with so many rows each, in one stack and by the oracle."""
    params, buffers = parts(spec.module)
    inputs = [client_inputs(params, k) for k in range(len(rows))]
    data = batches_of(shape, rows)
    starts = [params + noise(params, 400 + k) for k in range(len(rows))]
    example = batches_of(shape, [10])[0]

    def cut(size: int) -> Batch:
        return Batch(example.x[:size], example.y[:size])

    programs = {size: derive_stacked(spec, cut(size), inputs[0]) for size in stacked_sizes}
    singles = {size: step_for(spec, cut(size), inputs[0]) for size in {10, *(n % 10 for n in rows)} - {0}}
    assert all(program.fits(inputs) for program in programs.values())
    members = [Member(starts[k], buffers, inputs[k], pieces(data[k], 10, epochs)) for k in range(len(rows))]
    out = train_together(programs, singles.__getitem__, members)
    expected = [
        oracle(spec, starts[k], buffers, inputs[k], list(pieces(data[k], 10, epochs))) for k in range(len(rows))
    ]
    return out, expected


@pytest.mark.parametrize(
    ("direction", "optimizer"),
    [("fedavg", "nesterov"), ("fedprox", "sgd"), ("scaffold", "momentum"), ("feddyn", "sgd")],
)
def test_a_stack_equals_its_clients_one_by_one(direction: str, optimizer: str) -> None:
    spec = spec_of(made(Smooth), direction=DIRECTIONS[direction], optimizer=OPTIMIZERS[optimizer])
    rows = [20, 37, 10, 4, 43]
    out, expected = trained(spec, rows)
    for n, got, (params, _, losses) in zip(rows, out, expected, strict=True):
        assert furthest(got.params, params) < 1e-12
        assert (got.steps, got.examples) == (len(losses), 2 * n)
        sizes = [10] * (n // 10) + [n % 10] * (n % 10 > 0)
        assert got.loss == pytest.approx(sum(a * b for a, b in zip(losses, 2 * sizes, strict=True)), rel=1e-12)


def test_clipping_is_by_client() -> None:
    out, expected = trained(spec_of(made(Smooth), clip=0.2), [20, 30, 10])
    assert max(furthest(got.params, params) for got, (params, _, _) in zip(out, expected, strict=True)) < 1e-12


def test_short_batches_of_one_size_stack_too() -> None:
    out, expected = trained(spec_of(made(Smooth)), [13, 13, 23], stacked_sizes=(10, 3))
    assert max(furthest(got.params, params) for got, (params, _, _) in zip(out, expected, strict=True)) < 1e-12


@pytest.mark.parametrize("hidden", [(), (6, 5)])
def test_dense_networks_of_the_registry(hidden: tuple[int, ...]) -> None:
    spec = spec_of(made(lambda: MODELS["mlp"]((12,), 4, hidden=hidden, norm="group")), direction=DIRECTIONS["fedprox"])
    out, expected = trained(spec, [20, 31])
    assert max(furthest(got.params, params) for got, (params, _, _) in zip(out, expected, strict=True)) < 1e-12


def test_the_same_stack_gives_the_same_bits() -> None:
    first, second = (trained(spec_of(made(Smooth, torch.float64)), [20, 33])[0] for _ in range(2))
    assert all(furthest(a.params, b.params) == 0 for a, b in zip(first, second, strict=True))


def test_updates_are_batched_products() -> None:
    params = parts(made(Smooth))[0]
    program = derive_stacked(spec_of(made(Smooth)), batches_of((12,), [10])[0], client_inputs(params, 0))
    step = program.source.split("def step")[1]
    assert step.count(".baddbmm_(") == 2
    assert step.count("bmm(") == 3
    twin: StackedProgram = pickle.loads(pickle.dumps(program))  # noqa: S301  # our own bytes
    assert twin.source == program.source


def test_a_graph_met_before_has_the_text_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing that the text depends on differs; what it does is compared with autograd each time."""
    derived: list[object] = []
    monkeypatch.setattr(stacked, "_TEXTS", {})
    monkeypatch.setattr(stacked, "verify", lambda *given: derived.append("verified"))
    written = stacked.written
    monkeypatch.setattr(stacked, "written", lambda one: derived.append("written") or written(one))

    def source(size: int = 10, dtype: torch.dtype = torch.float64, **options: Any) -> str:
        module = made(Smooth, dtype)
        return derive_stacked(
            spec_of(module, **options), batches_of((12,), [size], dtype)[0], client_inputs(parts(module)[0], 0)
        ).source

    first = source()
    assert source() == first
    assert derived == ["written", "verified", "verified"]
    others = [
        source(size=7),
        source(clip=0.2),
        source(clip=0.3),
        source(optimizer=OPTIMIZERS["momentum"]),
        source(optimizer=OPTIMIZERS["nesterov"]),
        source(direction=DIRECTIONS["fedprox"]),
    ]
    assert len({first, *others}) == 7
    source(dtype=torch.float32)  # whose text may be the same
    assert derived.count("written") == 8
    assert source(clip=0.3) == others[2]
    assert derived.count("written") == 8


def test_texts_of_many_graphs_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "_TEXTS", {})
    monkeypatch.setattr(stacked, "_KEPT", 2)
    for size in (3, 4, 3, 5):
        derive_stacked(spec_of(made(Smooth)), batches_of((12,), [size])[0], client_inputs(parts(made(Smooth))[0], 0))
    assert ["(3, 12)" in graph for graph in stacked._TEXTS] == [True, False]


def test_a_step_that_holds_tensors_is_written_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its description does not have their values."""
    monkeypatch.setattr(stacked, "_TEXTS", {})
    found = []
    for shift in (1.0, 2.0):
        module, away = made(Smooth), torch.full((4,), shift, dtype=torch.float64)

        def loss(
            params: Tree, buffers: Tree, batch: Batch, inputs: Any, at: nn.Module = module, by: torch.Tensor = away
        ) -> Any:
            return torch.nn.functional.cross_entropy(
                torch.func.functional_call(at, dict(params), (batch.x,)) * by, batch.y
            )

        program = derive_stacked(
            spec_of(module, loss=loss), batches_of((12,), [10])[0], client_inputs(parts(module)[0], 0)
        )
        found.append([x.flatten()[0].item() for x in program.constants.values()])
    assert not stacked._TEXTS
    assert found == [[1.0], [2.0]]


def test_clients_whose_numbers_differ_do_not_fit() -> None:
    module = made(Smooth)
    params = parts(module)[0]
    spec = spec_of(module, direction=DIRECTIONS["fedprox"])
    one, other, third = (client_inputs(params, k) for k in range(3))
    program = derive_stacked(spec, batches_of((12,), [10])[0], one)
    other["message"] = {**other["message"], "mu": 0.7}
    third["alpha"] = 0.9  # nobody reads it
    assert program.fits([one, third])
    assert not program.fits([one, other])


REFUSED: dict[str, tuple[Callable[[], StepSpec], tuple[int, ...], str]] = {
    "convolution": (lambda: spec_of(made(lambda: MODELS["cnn1"]((1, 8, 8), 4))), (1, 8, 8), "convolutions"),
    "batch norm": (lambda: spec_of(made(lambda: MODELS["mlp"]((12,), 4, norm="batch"))), (12,), "batch statistics"),
    "adam": (lambda: spec_of(made(Smooth), optimizer=OPTIMIZERS["adam"]), (12,), "Adam"),
    "recurrent": (lambda: spec_of(made(Recurrent)), (7, 5), "recurrent"),
    "random": (lambda: spec_of(made(lambda: nn.Sequential(nn.Linear(12, 4), nn.Dropout()))), (12,), "random"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_stack_says_why(case: str) -> None:
    build, shape, reason = REFUSED[case]
    spec = build()
    with pytest.raises(NotTraceable, match=reason):
        derive_stacked(spec, batches_of(shape, [5])[0], inputs_of(parts(spec.module)[0], 0))


def test_sizes_become_formulas_in_the_number_of_clients() -> None:
    """7, 11 and 13 clients: 21, 33, 39 = 3 M; 15, 23, 27 = 2 M + 1; 49, 121, 169 = M squared is refused."""
    text = any_count(
        ["def bind(T):\n x_2(21, 15, 5)", "def bind(T):\n x_2(33, 23, 5)", "def bind(T):\n x_2(39, 27, 5)"]
    )
    assert text == "def bind(T):\n    M = T['M']\n x_2((3 * M), (2 * M + 1), 5)"
    with pytest.raises(NotTraceable, match="linear"):
        any_count(["f(49)", "f(121)", "f(169)"])


def test_the_number_of_workers_changes_no_bit_within_a_plan_and_no_draw_at_all(tmp_path):
    """`auto` may take another plan for another number of workers: the numbers then agree, not their last bits."""
    ends, first = dict[str, list[bytes]](), dict[str, float]()
    for plan, workers in (("program", 1), ("program", 2), ("auto", 1), ("auto", 2)):
        given = Experiment.of(rounds=2, engine={"plan": plan, "workers": workers})
        done = run(given, out=tmp_path / f"{plan}-{workers}", baselines=False)
        used = done.summary["plan"]["step"].split()[0]
        ends.setdefault(used, []).append((done.path / "model.safetensors").read_bytes())
        loss = done.summary["final"]["loss"]
        assert loss == pytest.approx(first.setdefault("loss", loss), rel=1e-5)
    assert all(len(set(same)) == 1 for same in ends.values())
