"""Texts about split learning: what leaves a party, who learns what."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.networks.settings import SplitLearning
from fedatlas.vertical.scheme import LearnsRow, Words

KNOWN = (
    "the gradients that a party is sent tell it the labels of the training rows, and embeddings can be turned back towards the columns "
    "that they are computed from: count labels as known to all parties, and columns as known to the party with the label."
)


def learns(how: SplitLearning, protected: bool) -> Sequence[LearnsRow]:
    """List who learns what while networks train and predict."""
    return (
        LearnsRow(
            "embeddings",
            "which rows are in a batch, which follows from the seed",
            "in every round the embedding of every training row at every party, which can be turned back towards its columns",
            "the same, from the letters that it carries",
        ),
        LearnsRow(
            "gradients",
            "in every round the gradient of each training row's loss at its own embedding, which tells the label",
            "it computes them",
            "the gradients at every party's embeddings, and with them the labels",
        ),
        LearnsRow(
            "judging",
            "nothing",
            "after every round the embeddings of the rows that do not train",
            "the same, from the letters",
        ),
        LearnsRow(
            "prediction",
            "which rows are asked about, and whether it has them",
            "the embedding of each of these rows at every party",
            "the same, from the letters",
        ),
        LearnsRow(
            "importance",
            "the size of its own weights",
            "the size of its own weights",
            "the size of the weights on each column, by its place in its table",
        ),
    )


WORDS = Words(
    round="round",
    model="cut networks",
    keeps="its columns and its network; the party with the label also labels, outputs and the fusion",
    leaves="embeddings of rows; gradients of the loss at these embeddings",
    clear=f"embeddings and gradients crossed as they are: {KNOWN}",
    learns=learns,
    gain="How large the weights are with which a party's first layer reads a column, scaled; they begin above 0 for every column",
    caution=f"In split learning {KNOWN}",
    phases={
        "draw network": "drawing networks",
        "draw networks": "drawing the fusion",
        "embed": "embedding rows, and steps of the parties without the label",
        "fuse": "joining embeddings, and steps of the party with the label",
        "settle network": "keeping networks",
        "score": "scoring rows",
        "size of weights": "measuring weights",
    },
)
