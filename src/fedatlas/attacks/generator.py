"""A generator of pictures, trained against copies of the federation's model (A2).

    D(x) = sigmoid(head(f(x)))      a copy of the model f of a round, and one dense unit after its outputs
    D:  min BCE(D(x), t_1) + BCE(D(G(z)), t_0)                  x the attacker's own rows
    G:  min BCE(D(G(z)), t_1) [+ CE(f(G(z)), a)]                f itself is fixed

======  ======================================  ======  ==============================================
G       the generator, which stays over rounds  z       (n, 100) from N(0, 1)
t_1     targets from N(1, 0.1)                  t_0     targets from N(0, 0.1)
a       the class sought, if one is             n       64 pictures, or as many as the attacker has rows
======  ======================================  ======  ==============================================

Generator: DCGAN (Radford, Metz, Chintala 2015), transposed convolutions with batch norm and ReLU between and tanh at the end, no bias.
Pictures of 28 x 28 have sides 3, 7, 15, 28. Those of 4 2^n have 4, 8, ..., and 128 2^(n-1) channels at first, halved each time.
The model is in evaluation mode in both its parts: dropout is off, and batch norm uses the statistics that were sent.

Source: Hitaj, Ateniese, Perez-Cruz, CCS 2017, in the passive form of the seed's thesis.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.errors import ConfigError

LATENT = 100
BATCH = 64
RATE, BETAS = 2e-4, (0.5, 0.999)  # of Adam, for both
SPREAD = 0.1  # standard deviation of the targets
DRAWN = 0.02  # of a generator's first weights
TOGETHER = 512  # pictures drawn at once
SIDES = "pictures of 28 x 28, or with a side of 8, 16, 32 or 64 pixels"


class Upscaling(NamedTuple):
    """A transposed convolution: channels, kernel, stride, padding."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    more: int = 0  # output padding


def layers_of(shape: tuple[int, ...]) -> list[Upscaling]:
    """Return the layers of a generator of pictures (channels, h, w). ConfigError for sides that it cannot draw."""
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in (8, 16, 28, 32, 64):
        raise ConfigError(f"attack 'gan' draws {SIDES}, and these rows have the shape {tuple(shape)}: set data.side.")
    channels, side = shape[0], shape[1]
    if side == 28:
        first = [Upscaling(LATENT, 256, 3, 2, 0), Upscaling(256, 128, 3, 2, 0), Upscaling(128, 64, 3, 2, 0)]
        return [*first, Upscaling(64, channels, 3, 2, 2, 1)]
    wide = 16 * side
    out = [Upscaling(LATENT, wide, 4, 1, 0)]
    while wide > 128:
        out.append(Upscaling(wide, wide // 2, 4, 2, 1))
        wide //= 2
    return [*out, Upscaling(wide, channels, 4, 2, 1)]


def unset(kind: type[nn.Module], *sizes: int, **how: Any) -> nn.Module:
    """Return a layer whose weights are not set yet: torch would draw them from its global generator."""
    made: nn.Module = nn.utils.skip_init(kind, *sizes, **how)  # type: ignore[no-untyped-call]
    return made


class Generator(nn.Module):
    """G: noise (n, 100) -> pictures (n, channels, h, w) from -1 to 1; its first weights come from a stream."""

    def __init__(self, shape: tuple[int, ...], stream: torch.Generator) -> None:
        super().__init__()
        layers, parts = layers_of(shape), list[nn.Module]()
        for one in layers:
            how = {"stride": one.stride, "padding": one.padding, "output_padding": one.more, "bias": False}
            parts.append(unset(nn.ConvTranspose2d, one.inputs, one.outputs, one.kernel, **how))
            if one is not layers[-1]:
                parts += [nn.BatchNorm2d(one.outputs), nn.ReLU()]
        self.layers = nn.Sequential(*parts, nn.Tanh())
        for module in self.layers:
            if isinstance(module, nn.ConvTranspose2d | nn.BatchNorm2d):
                mean = float(isinstance(module, nn.BatchNorm2d))
                with torch.no_grad():
                    module.weight.normal_(mean, DRAWN, generator=stream)

    def forward(self, z: Tensor) -> Tensor:
        """Draw pictures."""
        return self.layers(z[:, :, None, None])  # type: ignore[no-any-return]


class Sought(NamedTuple):
    """The class that a generator should draw: its place among the outputs of the models together, -1 for the last."""

    models: tuple[nn.Module, ...]
    label: int

    def cost(self, x: Tensor) -> Tensor:
        """Return the cross entropy of pictures with the class sought."""
        outputs = torch.cat([model(x) for model in self.models], 1)
        return F.cross_entropy(outputs, torch.full((len(x),), self.label % outputs.shape[1]))


class Drawer:
    """A generator with its optimizer, both of which stay over the rounds."""

    def __init__(self, shape: tuple[int, ...], box: tuple[Tensor, Tensor], stream: torch.Generator) -> None:
        self.stream, (self.low, self.high) = stream, box
        self.generator = Generator(shape, stream)
        self.optimizer = torch.optim.Adam(self.generator.parameters(), RATE, BETAS)

    def pixels(self, z: Tensor) -> Tensor:
        """Return pictures as the network reads them."""
        drawn: Tensor = self.generator(z)
        return self.low + (drawn + 1) / 2 * (self.high - self.low)

    def train(
        self, model: nn.Module, own: Tensor, steps: int, *, head_only: bool = False, sought: Sought | None = None
    ) -> None:
        """Train against a copy of ``model`` on the attacker's rows ``own``; the model itself stays as it is.

        ``head_only``: of the copy only the added unit is trained.
        """
        told, n = copy.deepcopy(model).eval(), min(BATCH, len(own))
        with torch.no_grad():
            outputs = told(own[:1]).shape[1]
        head, bound = unset(nn.Linear, outputs, 1), outputs**-0.5
        for x in head.parameters():
            nn.init.uniform_(x, -bound, bound, generator=self.stream)
        told.requires_grad_(not head_only)
        judge = nn.Sequential(told, head)
        against = torch.optim.Adam([p for p in judge.parameters() if p.requires_grad], RATE, BETAS)
        self.generator.train()
        for real in self._batches(own, n, steps):
            drawn = self.pixels(torch.randn((n, LATENT), generator=self.stream))
            against.zero_grad()
            gap = self._gap(judge(real), 1.0) + self._gap(judge(drawn.detach()), 0.0)
            gap.backward()  # type: ignore[no-untyped-call]
            against.step()
            self.optimizer.zero_grad()
            cost = self._gap(judge(drawn), 1.0)
            cost = cost if sought is None else cost + sought.cost(drawn)
            cost.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def seek(self, sought: Sought, steps: int) -> None:
        """Train to draw the class sought, against models that stay as they are: the active form."""
        self.generator.train()
        for _ in range(steps):
            self.optimizer.zero_grad()
            cost = sought.cost(self.pixels(torch.randn((BATCH, LATENT), generator=self.stream)))
            cost.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Return copies of all that stays over the rounds: the generator, its optimizer and the stream."""
        moments = self.optimizer.state_dict()["state"]
        kept = {f"{i} {name}": x for i, own in moments.items() for name, x in own.items()}
        kept |= {f"generator {name}": x for name, x in self.generator.state_dict().items()}
        return {"stream": self.stream.get_state(), **{name: x.detach().clone() for name, x in kept.items()}}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state`."""
        self.stream.set_state(state["stream"].clone())
        weights: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        for named, x in state.items():
            kind, _, name = named.partition(" ")
            if kind == "generator":
                weights[name] = x.clone()
            elif name:
                moments.setdefault(int(kind), {})[name] = x.clone()
        self.generator.load_state_dict(weights)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})

    def _batches(self, own: Tensor, n: int, steps: int) -> Iterator[Tensor]:
        for _ in range(steps):
            yield own[torch.randperm(len(own), generator=self.stream)[:n]]

    def _gap(self, outputs: Tensor, mean: float) -> Tensor:
        """Return the binary cross entropy with noisy targets."""
        wanted = mean + SPREAD * torch.randn(outputs.shape, generator=self.stream)
        return F.binary_cross_entropy_with_logits(outputs, wanted)

    def draw(self, z: Tensor) -> Tensor:
        """Return pictures (n, channels, h, w), pixels from 0 to 1, of noise (n, 100); batch norm with running statistics."""
        self.generator.eval()
        with torch.inference_mode():
            return torch.cat([(self.generator(piece) + 1) / 2 for piece in torch.split(z, TOGETHER)])
