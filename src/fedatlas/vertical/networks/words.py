"""Texts about split learning: what leaves a party, who learns what."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.networks.settings import CutNetworks
from fedatlas.vertical.scheme import LearnsRow, Words

KNOWN = (
    "the gradients that a party is sent tell it the labels of the training rows, and embeddings can be turned back towards the columns "
    "that they are computed from: count labels as known to all parties, and columns as known to the party with the label."
)


def learns(how: CutNetworks, protected: bool) -> Sequence[LearnsRow]:
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


def learns_hybrid(how: CutNetworks, protected: bool) -> Sequence[LearnsRow]:
    """List who learns what in a hybrid federation."""
    return (
        LearnsRow(
            "shared columns",
            "which of its columns all parties have; their mean and deviation over all parties, and those of a label that is a number",
            "the same; a digest of the name of each column of the others, from which it can guess the name",
            "the digests; each party's numbers of rows and of columns, and the sums over all parties",
        ),
        LearnsRow(
            "averaging",
            "in every round the mean of the networks on shared columns",
            "the same",
            "the same; no party's network by itself, in a simulation",
        ),
        LearnsRow(
            "own test rows",
            "nothing of others",
            "nothing of others",
            "how well the network on shared columns does on the test rows of each party",
        ),
        *learns(how, protected),
    )


WORDS_OF_HYBRID = WORDS._replace(
    model="shared and cut networks",
    keeps="its columns, its rows and labels, and the network on its own columns; the party with the label also outputs and the fusion",
    leaves=f"the network on shared columns, trained on a party's rows; sums over shared columns; {WORDS.leaves}",
    learns=learns_hybrid,
    caution=f"In a hybrid federation {KNOWN}",
    gain="How large the weights are with which a party's first layer reads a column, scaled; shared columns count at the party with the "
    "label; they begin above 0 for every column",
    phases={
        **WORDS.phases,
        "name columns": "telling names of columns",
        "meet columns": "finding shared columns",
        "outline rows": "drawing test rows of single parties",
        "sums of columns": "adding up shared columns",
        "scale columns": "scaling shared columns",
        "draw all networks": "drawing networks",
        "train on shared columns": "training on shared columns",
        "judge own rows": "judging rows of single parties",
        "embed to judge": "embedding rows",
    },
)
