"""What the tests of derived steps share: small networks, inputs that differ in everything, and the oracle's own steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithm import Batch
from fedatlas.engine import optim
from fedatlas.engine.gradient import with_grad
from fedatlas.engine.model import detached
from fedatlas.engine.optim import Optimizer
from fedatlas.engine.program import StepProgram
from fedatlas.engine.step import StepSpec, batch_arguments, fresh_memory, local_copy
from fedatlas.engine.tuned import TunedStep
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree

DIRECTIONS: dict[str, Callable[[Tree, Tree, Any], Tree] | None] = {
    "fedavg": None,
    "fedprox": lambda g, w, i: g + i["message"]["mu"] * (w - i["message"]["model"]),
    "scaffold": lambda g, w, i: g + (i["message"]["c"] - i["client"]["c_k"]),
    "feddyn": lambda g, w, i: g - i["client"]["h_k"] + i["alpha"] * (w - i["message"]["model"]),
}
OPTIMIZERS = {
    "sgd": Optimizer(),
    "momentum": Optimizer(momentum=0.9),
    "nesterov": Optimizer(momentum=0.9, nesterov=True),
    "adam": Optimizer("adam"),
}


class Smooth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 9), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class InPlace(nn.Module):
    """Writes into its activations, as many published networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 9), nn.ReLU(inplace=True), nn.Linear(9, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        y[:, 0] *= 2
        return y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def made(model: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return model().to(dtype)


def cross_entropy(module: nn.Module) -> Callable[..., Tensor]:
    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Mapping[str, Any]) -> Tensor:
        logits = functional_call(module, {**params, **buffers, **batch.extra}, (batch.x,))
        if batch.weight is None:
            return F.cross_entropy(logits, batch.y)
        return (F.cross_entropy(logits, batch.y, reduction="none") * batch.weight).sum() / batch.weight.sum()

    return loss


def spec_of(module: nn.Module, **options: Any) -> StepSpec:
    return StepSpec(module, options.pop("loss", None) or cross_entropy(module), **options)


def parts(module: nn.Module) -> tuple[Tree, Tree]:
    params = Tree({name: x.detach().clone() for name, x in module.named_parameters()})
    return params, Tree({n: x.detach().clone() for n, x in module.state_dict().items() if n not in params})


def noise(like: Mapping[str, Tensor], key: int) -> Tree:
    stream = torch_stream(0, "test", key)
    return Tree({n: 0.05 * torch.randn(x.shape, generator=stream, dtype=x.dtype) for n, x in like.items()})


def inputs_of(params: Tree, k: int, decay: bool = True) -> dict[str, Any]:
    """Everything a direction may read; all of it differs between k = 0 and k = 1."""
    message = {"model": params + noise(params, 10 + k), "c": noise(params, 20 + k), "mu": 0.1 + 0.3 * k}
    client = {"c_k": noise(params, 30 + k), "h_k": noise(params, 40 + k)}
    rest = {"weight_decay": 0.01 + 0.02 * k} if decay else {}
    return {"lr": 0.05 + 0.04 * k, "alpha": 0.2 + 0.1 * k, "message": message, "client": client, **rest}


def batches_of(
    shape: tuple[int, ...], sizes: list[int], dtype: torch.dtype = torch.float64, **more: Any
) -> list[Batch]:
    stream = torch_stream(0, "test", 99)
    out = []
    for size in sizes:
        x = torch.randn((size, *shape), generator=stream, dtype=dtype)
        masks = {
            name: 2 * (torch.rand((size, *mask), generator=stream, dtype=dtype) < 0.5).to(dtype)
            for name, mask in more.get("masks", {}).items()
        }
        weight = torch.rand(size, generator=stream, dtype=dtype) + 0.1 if more.get("weighted") else None
        out.append(Batch(x, torch.randint(4, (size,), generator=stream), weight, masks))
    return out


def oracle(
    spec: StepSpec, params: Tree, buffers: Tree, inputs: Mapping[str, Any], batches: list[Batch]
) -> tuple[Tree, Tree, list[float]]:
    """The loop's own step: decay -> direction -> clip -> optimiser, out of place."""
    memory, losses, buffers = optim.start(spec.optimizer, params), [], buffers.clone()
    spec.module.train()
    for batch in batches:
        leaves = with_grad(params)
        loss = spec.loss(leaves, buffers, batch, inputs)
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        g = leaves.map(lambda w, d: torch.zeros_like(w) if d is None else d, dict(zip(leaves, found, strict=True)))
        g = g + inputs["weight_decay"] * params if "weight_decay" in inputs else g
        g = spec.direction(g, params, inputs) if spec.direction else g
        params, memory = optim.step(spec.optimizer, params, optim.clip(g, spec.clip), memory, inputs["lr"])
        params = detached(params)
        losses.append(loss.item())
    return params, buffers, losses


def stepped(
    steps: Mapping[int, StepProgram | TunedStep], params: Tree, buffers: Tree, inputs: Any, batches: list[Batch]
) -> tuple[Tree, Tree, list[float]]:
    """The same by programs, one for each batch size, that share parameters and memory."""
    first = next(iter(steps.values()))
    optimizer = first.optimizer if isinstance(first, StepProgram) else first.spec.optimizer
    own, buffers = local_copy(params), buffers.clone()
    memory, losses = fresh_memory(optimizer, own), []
    bound = {}
    for size, made_step in steps.items():
        with made_step.mode():
            bound[size] = made_step.bind(own, memory, inputs, buffers)
    for batch in batches:
        size = len(batch.x) if len(batch.x) in steps else 0
        with steps[size].mode():
            losses.append(float(bound[size](*batch_arguments(batch))))
    return own, buffers, losses


def furthest(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    return max((float((left[n].double() - right[n].double()).abs().max()) for n in right), default=0.0)


class Odd(nn.Module):
    """Tied and split weights, a scale without dimensions, grouped and one-dimensional convolutions, an average pool."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.table = nn.Parameter(0.3 * torch.randn(12, 6))
        self.pair = nn.Linear(6, 12)
        self.along = nn.Conv1d(2, 4, 3, padding=1, groups=2)
        self.plane = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.pair(x @ self.table).chunk(2, dim=1)
        gate = self.scale * left * torch.sigmoid(right)
        back = gate @ self.table.T  # the table a second time
        signal = self.along(back.view(-1, 2, 6)).amax(2)
        plane = nn.functional.avg_pool2d(self.plane(back.view(-1, 2, 2, 3)).relu(), (2, 3)).flatten(1)
        a, b = self.head.weight.split(4, dim=1)
        return signal @ a.T + plane @ b.T + self.head.bias
