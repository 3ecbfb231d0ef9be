"""The active GAN attack (A2): an attacker draws a class that others hold, and trains on its pictures under one more class, fake.

    G:  min CE(f(G(z)), a)      f the model of the round, which stays as it is; G stays over the rounds
    the attacker's rows: its own, and G(z) with the label fake

So the model learns to tell drawn pictures from rows of a, and G must come nearer to these in the next round. All networks of the
federation have the further output, also in the honest run that it is compared with (``model.loss.fake``).

Source: Hitaj, Ateniese, Perez-Cruz, CCS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatlas.attacks.generator import LATENT, Drawer, Sought
from fedatlas.rng import torch_stream

Box = tuple[Tensor, Tensor]


def unfit(attack: str) -> str:
    """Return why an attack on a view does not go with the class fake; "" for one that does."""
    return (
        ""
        if attack == "gan"
        else f"attack '{attack}' does not go with model.loss.fake in this version: leave fake out."
    )


class FakeClass(NamedTuple):
    """The class that an attacker draws, and how; ``shape``, ``box`` and ``label`` are known with the data."""

    target: int
    steps: int
    added: int  # pictures
    shape: tuple[int, ...] = ()  # of a row: channels, height, width
    box: Box = (torch.zeros(1), torch.ones(1))  # black and white as the network reads them
    label: int = 0  # the class fake

    def first(self, seed: int) -> dict[str, Tensor]:
        """Return the state of the generator before its first round: that of the first generator of attack `gan`."""
        return Drawer(self.shape, self.box, torch_stream(seed, "attack", "gan", 0)).state()

    def drawn(
        self, model: nn.Module, state: Mapping[str, Tensor], stream: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Train the generator against a model, and return its pictures (added, channels, h, w) and its new state.

        ``stream`` draws the noise of the pictures.
        """
        one = Drawer(self.shape, self.box, torch.Generator())
        one.resume(state)
        one.seek(Sought((model,), self.target), self.steps)
        one.generator.eval()  # its batch norm keeps the statistics of its training
        with torch.no_grad():
            pictures = one.pixels(torch.randn((self.added, LATENT), generator=stream))
        return pictures, one.state()
