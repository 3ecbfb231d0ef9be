"""Texts about Federated Forest: its trees, what leaves a party, who learns what."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.forest.settings import FederatedForest
from fedatlas.vertical.scheme import LearnsRow, Words

KNOWN = (
    "every party sees which training rows share a class, or numbers up to a factor and a shift; a rare class names itself, and two known "
    "numbers undo the code: count the labels as known to all parties."
)

SETS = (
    "Prediction takes one round, which shows the party with the label the leaves that each party's splits leave open to each row: of "
    "the rows that test, and of every row that is predicted later."
)


def learns(how: FederatedForest, protected: bool) -> Sequence[LearnsRow]:
    """List who learns what while trees grow and predict."""
    return (
        LearnsRow(
            "labels",
            "the coded label of every training row: which rows share a class, or numbers up to a factor and a shift",
            "how many columns each party has",
            "the same as both, from the letters that it carries",
        ),
        LearnsRow(
            "best splits",
            "which of its columns a tree is grown on, and how often each row was drawn, which follows from the seed",
            "of each open node the sums on the left of every party's best split: rows of each class, or rows and their sum",
            "the same in code, from the letters",
        ),
        LearnsRow(
            "splits",
            "which drawn rows are at every node that can be split, and whose split led there; which way its own splits send rows, and "
            "their column and threshold",
            "which drawn rows are at every node, and whose split it is",
            "who owns how many nodes; from the letters, which places are at these nodes",
        ),
        LearnsRow(
            "shape",
            "the shape of every tree after pruning; no leaf's value",
            "the same, whose split each node is, and the leaves' values",
            "the shape, from the letters",
        ),
        LearnsRow(
            "prediction",
            "which rows are asked about, and whether it has them; nothing of where they go",
            "the leaves that each party's splits leave open to each row, in every tree",
            "the same, from the letters",
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
    model="trees",
    keeps=(
        "its columns, its lookup table, the shape of the trees and the coded labels; the party with the label also labels, votes and "
        "leaves"
    ),
    leaves="labels in code; sums of the best split of a node; which rows go left; the leaves that a row can reach",
    clear=f"labels crossed in a code that hides little: {KNOWN}",
    learns=learns,
    gain="How much the splits on a column lowered the impurity of the drawn rows, over all trees",
    caution=f"In a federated forest {KNOWN}",
    phases={
        "number of columns": "counting columns",
        "code labels": "coding labels",
        "learn labels": "keeping coded labels",
        "plant": "drawing columns",
        "best split": "finding the best splits",
        "choose": "choosing among the parties' splits",
        "divide": "splitting nodes",
        "ripen": "pruning, and settling leaves",
        "keep tree": "keeping the tree, and finding leaf sets",
        "vote": "meeting of leaf sets",
    },
)
