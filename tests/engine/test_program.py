"""The derived step against autograd, the fused formulas against their meaning, and what is refused."""

from __future__ import annotations

import importlib.util
import multiprocessing
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithm import Batch
from fedatlas.engine.program import StepProgram, derive, step_for
from fedatlas.engine.step import NotTraceable, StepSpec, local_copy
from fedatlas.engine.tuned import TunedStep
from fedatlas.models.dropout import dropout_shapes
from fedatlas.models.registry import MODELS
from fedatlas.tree import Tree
from steps import (
    DIRECTIONS,
    OPTIMIZERS,
    InPlace,
    Odd,
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
    stepped,
)


def law(spec: StepSpec, batches: list[Batch], decay: bool = True, tolerance: float = 1e-12) -> StepProgram:
    """A program, run with two values of every message, state, learning rate and parameter, equals the oracle both times."""
    params, buffers = parts(spec.module)
    sizes = {len(b.x): b for b in batches}
    programs = {size: derive(spec, batch, inputs_of(params, 0, decay)) for size, batch in sizes.items()}
    for k in (0, 1):
        begin, inputs = params + noise(params, 50 + k), inputs_of(params, k, decay)
        expected, expected_buffers, expected_losses = oracle(spec, begin, buffers, inputs, batches)
        got, got_buffers, losses = stepped(programs, begin, buffers, inputs, batches)
        assert furthest(got, expected) < tolerance
        assert furthest(got_buffers, expected_buffers) < tolerance
        assert losses == pytest.approx(expected_losses, rel=tolerance, abs=tolerance)
        assert furthest(begin, expected) > 1e-3  # the steps went somewhere
    return next(iter(programs.values()))


# ---------------------------------------------------------------------- the law


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_is_baked_in(direction: str, optimizer: str) -> None:
    module = made(Smooth)
    spec = spec_of(module, direction=DIRECTIONS[direction], optimizer=OPTIMIZERS[optimizer], clip=0.3)
    law(spec, batches_of((12,), [5] * 6))


@pytest.mark.parametrize(("decay", "clip"), [(False, 0.0), (True, 0.0), (False, 0.3)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_decay_and_clipping_come_and_go(optimizer: str, decay: bool, clip: float) -> None:
    direction = DIRECTIONS["fedprox" if decay else "fedavg"]
    spec = spec_of(made(Smooth), direction=direction, optimizer=OPTIMIZERS[optimizer], clip=clip)
    law(spec, batches_of((12,), [5] * 4), decay)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "pooled": (lambda: MODELS["cnn1"]((1, 12, 12), 4), (1, 12, 12)),
    "pooled valid": (lambda: MODELS["cnn1"]((1, 16, 16), 4, padding="valid"), (1, 16, 16)),
    "colour": (lambda: MODELS["cnn1"]((3, 12, 12), 4, norm="group"), (3, 12, 12)),
    "residual": (lambda: MODELS["resnet1"]((1, 12, 12), 4, norm="group"), (1, 12, 12)),
    "batch norm": (lambda: MODELS["resnet1"]((1, 12, 12), 4, norm="batch"), (1, 12, 12)),
    "dense batch norm": (lambda: MODELS["mlp"]((12,), 4, hidden=(8, 8), norm="batch"), (12,)),
    "projection": (lambda: MODELS["mlp"]((12,), 4, hidden=(8,), projection=5), (12,)),
    "in place": (InPlace, (12,)),
    "odd": (Odd, (12,)),
    "logistic": (lambda: MODELS["logistic"]((12,), 4), (12,)),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network: str) -> None:
    build, shape = NETWORKS[network]
    optimizer = OPTIMIZERS["sgd" if network in {"pooled", "residual", "logistic"} else "momentum"]
    law(spec_of(made(build), direction=DIRECTIONS["feddyn"], optimizer=optimizer), batches_of(shape, [4, 4, 4]))


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_short_last_batch_has_its_own_program_and_the_same_memory(optimizer: str) -> None:
    law(spec_of(made(Smooth), optimizer=OPTIMIZERS[optimizer]), batches_of((12,), [5, 5, 3] * 3))


def test_dropout_masks_are_inputs() -> None:
    module = made(lambda: MODELS["emnist_cnn"]((1, 8, 8), 4))
    masks = dropout_shapes(module, torch.zeros(2, 1, 8, 8, dtype=torch.float64))
    assert len(masks) == 2
    law(spec_of(module, direction=DIRECTIONS["scaffold"]), batches_of((1, 8, 8), [3, 3, 3], masks=masks))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_that_pull_on_each_other(optimizer: str) -> None:
    """Each reads the other's old value, although one of them is written first."""

    def direction(g: Tree, w: Tree, inputs: Any) -> Tree:
        return Tree({**g, "0.weight": g["0.weight"] + w["2.weight"], "2.weight": g["2.weight"] - 0.5 * w["0.weight"]})

    module = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    law(spec_of(module, direction=direction, optimizer=OPTIMIZERS[optimizer]), batches_of((4,), [5] * 4))


def test_any_name_will_do() -> None:
    """Keywords, digits and signs in the names of parameters and inputs."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ParameterDict({"lambda": torch.ones(12, 4), "_": torch.zeros(4), "step": torch.ones(4)})

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.inner["lambda"] + self.inner["_"]) * self.inner["step"]

    direction: Any = lambda g, w, i: g + i["1-T"] * w  # noqa: E731
    module, batch = made(Named), batches_of((12,), [5])[0]
    program = derive(spec_of(module, direction=direction), batch, {"lr": 0.1, "1-T": 0.3})
    params, inputs = parts(module)[0], {"lr": 0.2, "1-T": 0.5}
    expected = oracle(spec_of(module, direction=direction), params, Tree(), inputs, [batch, batch])[0]
    assert furthest(stepped({5: program}, params, Tree(), inputs, [batch, batch])[0], expected) < 1e-12


def test_row_weights_are_inputs() -> None:
    law(spec_of(made(Smooth)), batches_of((12,), [5, 5], weighted=True))


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
        lambda z, y: F.cross_entropy(z, y, ignore_index=2),
        lambda z, y: F.cross_entropy(z, y, reduction="sum") / 7,
        lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=z.dtype)),
        lambda z, y: F.mse_loss(z[:, 0], y.to(z.dtype)),
        lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], (y > 1).to(z.dtype)),
        lambda z, y: (F.softmax(z, 1) * z.detach()).sum(1).mean(),
    ],
    ids=["smoothed", "ignored", "sum", "class weights", "mse", "bce", "stop gradient"],
)
def test_losses(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = made(Smooth)

    def whole(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        return loss(functional_call(module, dict(params), (batch.x,)), batch.y)

    law(spec_of(module, loss=whole), batches_of((12,), [5, 5]))


def test_a_loss_may_read_messages_and_numbers() -> None:
    """MOON's shape: features of two further models, a temperature, and no gradient into either."""
    module = made(Smooth)

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        z, z_global, z_own = (
            functional_call(module, dict(p), (batch.x,))
            for p in (params, inputs["message"]["model"], inputs["client"]["h_k"])
        )
        near, far = F.cosine_similarity(z, z_global), F.cosine_similarity(z, z_own)
        contrast = -(near / inputs["alpha"]).sub(torch.logaddexp(near / inputs["alpha"], far / inputs["alpha"])).mean()
        return F.cross_entropy(z, batch.y) + inputs["message"]["mu"] * contrast

    law(spec_of(module, loss=loss), batches_of((12,), [5, 5]))


@given(
    widths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    size=st.integers(1, 5),
    key=st.sampled_from(sorted(DIRECTIONS)),
)
@settings(max_examples=6)
def test_any_dense_network(widths: list[int], size: int, key: str) -> None:
    layers = [m for a, b in zip([12, *widths], [*widths, 4], strict=True) for m in (nn.Linear(a, b), nn.Softplus())]
    law(spec_of(made(lambda: nn.Sequential(*layers)), direction=DIRECTIONS[key]), batches_of((12,), [size, size]))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_float32_stays_near_over_many_steps(direction: str) -> None:
    module = made(Smooth, torch.float32)
    spec = spec_of(module, direction=DIRECTIONS[direction])
    batches = batches_of((12,), [8] * 200, torch.float32)
    law(spec, batches, tolerance=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_float32_rounding_is_not_taken_for_a_fault(network: str) -> None:
    """A program that departs from autograd is refused with NotTraceable, which would end this test."""
    build, shape = NETWORKS[network]
    module = made(build, torch.float32)
    derive(spec_of(module), batches_of(shape, [6], torch.float32)[0], {"lr": 0.01})


# ---------------------------------------------------------------------- what is fused


def body(program: StepProgram) -> str:
    return program.source.split("def step")[1]


def test_a_dense_gradient_is_never_stored() -> None:
    program = derive(spec_of(made(Smooth)), batches_of((12,), [5])[0], {"lr": 0.1})
    assert body(program).count(".addmm_(") == 2  # both weights
    assert body(program).count(".addmv_(") == 2  # both biases
    assert body(program).count("mm(") == 3  # beside the updates: two layers forward, one backward


@pytest.mark.parametrize("direction", ["fedprox", "scaffold", "feddyn"])
def test_a_direction_costs_one_operator_a_parameter(direction: str) -> None:
    module, batch = made(Smooth), batches_of((12,), [5])[0]
    inputs = inputs_of(parts(module)[0], 0, decay=False)
    lengths = [
        len(body(derive(spec_of(module, direction=DIRECTIONS[name]), batch, inputs)).splitlines())
        for name in ("fedavg", direction)
    ]
    assert lengths[1] == lengths[0] + 4


def test_relu_moves_behind_the_pool() -> None:
    """maxpool(relu(x)) = relu(maxpool(x)), also where a whole window is negative or its maximum is there twice."""
    module = made(lambda: MODELS["cnn1"]((1, 8, 8), 4))
    batch = batches_of((1, 8, 8), [4])[0]
    batch = batch._replace(x=torch.round(batch.x.clamp(min=0)))  # flat patches: equal neighbours everywhere
    text = body(law(spec_of(module), [batch, batch]))
    assert text.index("max_pool2d") < text.index("relu")
    assert "relu_out" not in text


def test_convolutions_run_channels_last() -> None:
    module = made(lambda: MODELS["cnn1"]((1, 8, 8), 4))
    program = derive(spec_of(module), batches_of((1, 8, 8), [4])[0], {"lr": 0.1})
    weights = [shape for path, shape in program.emitted.reads.items() if path.endswith("weight") and len(shape[0]) == 4]
    assert [stride[1] for _, stride in weights] == [1, 1]
    assert "x.as_strided((4, 1, 8, 8), (64, 1, 8, 1))" in body(program)


def test_the_same_inputs_give_the_same_bits_in_a_worker_too() -> None:
    module = made(lambda: MODELS["cnn1"]((1, 12, 12), 4), torch.float32)
    batches = batches_of((1, 12, 12), [6] * 5, torch.float32)
    params, buffers = parts(module)
    inputs = inputs_of(params, 0)
    program = derive(spec_of(module, direction=DIRECTIONS["fedprox"]), batches[0], inputs)

    def work() -> Tree:
        torch.set_num_threads(1)
        return stepped({6: program}, params, buffers, inputs, batches)[0]

    def send(pipe: Any) -> None:
        pipe.send({name: x.numpy().tobytes() for name, x in work().items()})

    here, there = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; the child uses none of them
        worker = multiprocessing.get_context("fork").Process(target=send, args=(there,))
        worker.start()
    assert here.poll(60)
    forked = here.recv()
    worker.join(60)
    first, second = work(), work()
    assert all(torch.equal(first[name], second[name]) for name in params)
    assert forked == {name: x.numpy().tobytes() for name, x in first.items()}


def test_a_program_survives_pickling() -> None:
    module, batches = made(Smooth), batches_of((12,), [5] * 3)
    params, buffers = parts(module)
    program = derive(spec_of(module), batches[0], inputs_of(params, 0))
    twin = pickle.loads(pickle.dumps(program))  # noqa: S301  # our own bytes
    ends = [stepped({5: p}, params, buffers, inputs_of(params, 1), batches)[0] for p in (program, twin)]
    assert furthest(*ends) == 0


def test_bfloat16_convolutions_keep_float32_weights() -> None:
    module = made(lambda: MODELS["cnn1"]((1, 12, 12), 4), torch.float32)
    batches = batches_of((1, 12, 12), [6] * 5, torch.float32)
    params, buffers = parts(module)
    spec = spec_of(module, precision="bfloat16")
    program = derive(spec, batches[0], {"lr": 0.05})
    low, _, losses = stepped({6: program}, params, buffers, {"lr": 0.05}, batches)
    full, _, expected = oracle(spec._replace(precision="float32"), params, buffers, {"lr": 0.05}, batches)
    assert all(x.dtype == torch.float32 for x in low.values())
    assert "torch.bfloat16" in program.source
    assert losses == pytest.approx(expected, rel=2e-2)
    moved = max(float((full[n] - params[n]).norm()) for n in params)
    assert 0 < max(float((full[n] - low[n]).norm()) for n in params) < 0.05 * moved


# ---------------------------------------------------------------------- what is refused


def branching(grads: Tree, params: Tree, inputs: Any) -> Tree:
    return grads + params if inputs["message"]["mu"] > 0 else grads


class Counting(nn.Module):
    """Holds a number that a trace would freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.calls = nn.Linear(12, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.a(x) * self.calls


def around(module: nn.Module) -> Callable[..., Tensor]:
    """A loss that reads the module's own weight instead of the one it is given."""
    return lambda params, buffers, batch, inputs: F.cross_entropy(
        batch.x @ module.a.weight.T + params["a.bias"], batch.y
    )


REFUSED: dict[str, tuple[Callable[[], StepSpec], tuple[int, ...], str]] = {
    "branch": (lambda: spec_of(made(Smooth), direction=branching), (12,), "branch"),
    "recurrent": (lambda: spec_of(made(Recurrent)), (7, 5), "recurrent"),
    "random": (lambda: spec_of(made(lambda: nn.Sequential(nn.Linear(12, 4), nn.Dropout()))), (12,), "random"),
    "frozen number": (lambda: spec_of(made(Counting)), (12,), "departs"),
    "read around": (lambda: (m := made(Counting)) and spec_of(m, loss=around(m)), (12,), "around"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_derived_is_refused_with_its_reason_and_falls_back(case: str) -> None:
    build, shape, reason = REFUSED[case]
    spec, batch = build(), batches_of(shape, [5])[0]
    inputs = inputs_of(parts(spec.module)[0], 0)
    with pytest.raises(NotTraceable, match=reason):
        derive(spec, batch, inputs)
    step = step_for(spec, batch, inputs)
    assert isinstance(step, TunedStep)
    assert reason in step.note


def test_derivation_leaves_the_module_as_it_was() -> None:
    module = made(NETWORKS["batch norm"][0]).eval()
    before = {name: x.clone() for name, x in module.state_dict().items()}
    derive(spec_of(module), batches_of((1, 12, 12), [4])[0], {"lr": 0.1})
    assert not module.training
    assert furthest(module.state_dict(), before) == 0


def test_a_foreign_layout_is_refused() -> None:
    module = made(lambda: MODELS["cnn1"]((3, 8, 8), 4))
    program = derive(spec_of(module), batches_of((3, 8, 8), [4])[0], {"lr": 0.1})
    with pytest.raises(ValueError, match="local_copy"):
        program.bind(parts(module)[0], None, {"lr": 0.1})


def test_a_program_holds_for_its_own_flags_only() -> None:
    program = derive(spec_of(made(Smooth)), batches_of((12,), [4])[0], {"lr": 0.1, "option": "I"})
    with pytest.raises(ValueError, match="option"):
        program.bind(parts(made(Smooth))[0], None, {"lr": 0.1, "option": "II"})


# ---------------------------------------------------------------------- the tuned step


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", ["smooth", "recurrent", "batch norm"])
def test_the_tuned_step_is_the_oracle(network: str, optimizer: str) -> None:
    build, shape = {"smooth": (Smooth, (12,)), "recurrent": (Recurrent, (7, 5))}.get(network) or NETWORKS[network]
    spec = spec_of(made(build), direction=DIRECTIONS["feddyn"], optimizer=OPTIMIZERS[optimizer], clip=0.5)
    batches = batches_of(shape, [5, 5, 3])
    params, buffers = parts(spec.module)
    inputs = inputs_of(params, 1)
    expected, expected_buffers, expected_losses = oracle(spec, params, buffers, inputs, batches)
    got, got_buffers, losses = stepped({0: TunedStep(spec, batches[0])}, params, buffers, inputs, batches)
    assert furthest(got, expected) < 1e-12
    assert furthest(got_buffers, expected_buffers) < 1e-12
    assert losses == pytest.approx(expected_losses, rel=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tuned_and_derived_steps_share_a_client(optimizer: str) -> None:
    """A rare batch size may take the tuned step between derived ones."""
    spec = spec_of(made(NETWORKS["pooled"][0]), optimizer=OPTIMIZERS[optimizer])
    batches = batches_of((1, 12, 12), [4, 4, 3, 4])
    params, buffers = parts(spec.module)
    inputs = inputs_of(params, 0)
    steps = {3: TunedStep(spec, batches[0]), 4: derive(spec, batches[0], inputs)}
    expected, _, _ = oracle(spec, params, buffers, inputs, batches)
    assert furthest(stepped(steps, params, buffers, inputs, batches)[0], expected) < 1e-12


# ---------------------------------------------------------------------- beside the best by hand


def handwritten() -> Any:
    """benchmarks/handwritten.py, which is no package."""
    path = Path(__file__).parents[2] / "benchmarks" / "handwritten.py"
    found = importlib.util.spec_from_file_location("handwritten", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("model", ["mlp1", "cnn2"])
@pytest.mark.parametrize("direction", ["fedavg", "fedprox", "scaffold"])
def test_the_handwritten_step_computes_the_same(model: str, direction: str) -> None:
    """Else the benchmark would compare two different things."""
    best = handwritten()
    module = made(lambda: MODELS[model]((1, 28, 28), 10), torch.float32)
    params, _ = parts(module)
    inputs = inputs_of(params, 0, decay=False)
    mu, w_t = inputs["message"]["mu"], inputs["message"]["model"]
    correction = {
        "fedavg": None,
        "fedprox": best.Correction(mu, [*local_copy(-mu * w_t).values()]),
        "scaffold": best.Correction(0.0, [*local_copy(inputs["message"]["c"] - inputs["client"]["c_k"]).values()]),
    }[direction]
    batches = batches_of((1, 28, 28), [4] * 3, torch.float32)
    expected, _, losses = oracle(spec_of(module, direction=DIRECTIONS[direction]), params, Tree(), inputs, batches)
    with torch.inference_mode():
        own = local_copy(params)
        step = getattr(best, model)(own, 4, inputs["lr"], correction)
        got = [step(b.x.view(4, 784) if model == "mlp1" else b.x, b.y).item() for b in batches]
    assert got == pytest.approx(losses, rel=1e-4)
    assert furthest(own, expected) < 1e-5
