"""Recurrent networks over token ids (M9, M10)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedatlas.errors import ConfigError
from fedatlas.models.network import HeadedModel, Projection, Shape
from fedatlas.registry import Count, Whole

Token = Annotated[int, Field(ge=-1)]


class RecurrentBody(nn.Module):
    """Embedding, LSTM, optionally a dense layer without activation; at every step, or at the last real token.

    Steps after the last token that is not ``pad`` affect nothing before them (an LSTM only looks back), and the
    last step is read at that token, so the output does not depend on the padding. Token ids below
    zero are allowed only as ``pad``; they are embedded as 0, where no output is read.
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, layers: int, dense: int, pad: int, every_step: bool
    ) -> None:
        super().__init__()
        self.pad, self.every_step = pad, every_step
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.dense = nn.Linear(hidden, dense) if dense else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, length) int64 to (n, length, h) at every step, or (n, h) at the last real token."""
        states, _ = self.lstm(self.embedding(x.clamp_min(0)))
        if not self.every_step:
            states = states[torch.arange(len(x), device=x.device), self.last(x)]
        y: Tensor = self.dense(states)
        return y

    def last(self, x: Tensor) -> Tensor:
        """Return (n,) the index of each row's last token that is not ``pad``; 0 if there is none."""
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)
        return ((x != self.pad) * steps).amax(1).sub(1).clamp_min(0)


def _sequence(model: str, shape: Shape) -> None:
    if len(shape) != 1:
        raise ConfigError(
            f"model '{model}' needs rows of token ids (length,), but a row here has shape {tuple(shape)}: "
            "use 'cnn2' or 'resnet1' for pictures, 'mlp' for tables."
        )


def shakespeare_lstm(
    shape: Shape,
    outputs: int,
    *,
    vocabulary: Count = 0,
    embedding: Whole = 8,
    hidden: Whole = 100,
    pad: Token = -1,
    projection: Projection = 0,
) -> nn.Module:
    """M9 Shakespeare LSTM: embed 8, two LSTM layers of 100, one output from the last step (next character, S3).

    vocabulary: number of symbols in the embedding; 0 = as many as outputs.
    embedding: numbers per symbol.
    hidden: units of each LSTM layer; LEAF and McMahan et al. use 256, FedDyn and the FedSeq thesis 100.
    pad: token id that pads a row at its end; the output is read at the last other token; -1 = no padding.
    """
    _sequence("shakespeare_lstm", shape)
    body = RecurrentBody(vocabulary or outputs, embedding, hidden, 2, 0, pad, every_step=False)
    return HeadedModel(body, hidden, outputs, projection)


def stackoverflow_lstm(
    shape: Shape,
    outputs: int,
    *,
    targets: Literal["per_step", "last_step"] = "per_step",
    vocabulary: Count = 0,
    embedding: Whole = 96,
    hidden: Whole = 670,
    pad: Token = 0,
    projection: Projection = 0,
) -> nn.Module:
    """M10 StackOverflow LSTM: embed 96, LSTM of 670, fc96, outputs at every step (next word, S3, as in TFF).

    No activation between the two dense layers; the last is not tied to the embedding.

    targets: output at every step, or only at the last real token, as in the FedSeq thesis' code; must agree with
        data.target. The two accuracies differ, so results name the one used.
    vocabulary: number of tokens in the embedding; 0 = as many as outputs.
    embedding: numbers per token, and units of the dense layer after the LSTM.
    hidden: units of the LSTM.
    pad: with targets "last_step": token id that pads a row at its end; the output is read at the last other token.
    """
    _sequence("stackoverflow_lstm", shape)
    body = RecurrentBody(vocabulary or outputs, embedding, hidden, 1, embedding, pad, targets == "per_step")
    return HeadedModel(body, embedding, outputs, projection)
