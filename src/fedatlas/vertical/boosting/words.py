"""Texts about SecureBoost: its trees, what leaves a party, who learns what."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.scheme import LearnsRow, Words


def learns(protected: bool) -> Sequence[LearnsRow]:
    """List who learns what while trees grow and predict."""
    shown = (
        "nothing of g and h, which are encrypted"
        if protected
        else "g and h of every training row, and with them the labels"
    )
    sums = (
        "the sums of g, h and rows at every node by bin of the others' columns (with three or more classes encrypted together: g and h "
        "of all classes at a node of any class's tree), and from them the order of the bins in a column"
    )
    return (
        LearnsRow("histograms", shown, sums, "how many candidates there are"),
        LearnsRow(
            "splits",
            "which rows are at every node; of its own splits column and threshold",
            "which rows are at every node, and whose split it is",
            "who owns how many nodes",
        ),
        LearnsRow(
            "prediction",
            "which of the asked rows reach its nodes, and whether it has them",
            "the way that each row takes at others' nodes",
            "how many rows are asked about",
        ),
        LearnsRow(
            "importance",
            "the gain of its own nodes",
            "the gain of every node",
            "the gain of each column, by its place in its table",
        ),
    )


WORDS = Words(
    round="tree",
    several="round",
    model="trees",
    keeps="its columns, its lookup table; the party with the label also labels, margins and the trees' shape",
    leaves="g and h, under [[privacy]] paillier encrypted; sums of a node by bin; which rows go left",
    clear="gradients crossed as they are, and betray the label of every training row. [[privacy]] paillier encrypts them.",
    hidden="Gradients crossed encrypted, under a Paillier key of the party that holds the label.",
    learns=learns,
    gain="How much of the loss's fall the splits on a column brought, over all trees",
    caution=(
        "The purer the leaves of the first trees, the more the rows at a node say of the labels: complete_secure = 1 grows the first "
        "tree, or round of trees, from the label holder's own columns."
    ),
    phases={
        "bins": "cutting columns into bins",
        "start": "beginning",
        "keys": "making the key",
        "gradients": "forming g and h, and encrypting them",
        "histogram": "adding up histograms",
        "open": "opening sums and choosing splits",
        "split": "splitting nodes",
        "leaves": "settling leaves",
    },
)
