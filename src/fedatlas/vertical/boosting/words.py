"""Texts about SecureBoost: its trees, what leaves a party, who learns what."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.boosting.settings import MODES, SecureBoost, secureboost
from fedatlas.vertical.scheme import LearnsRow, Words

SEVERAL = " (with three or more classes encrypted together: g and h of all classes at a node of any class's tree)"


def learns(how: SecureBoost, protected: bool) -> Sequence[LearnsRow]:
    """List who learns what while trees grow and predict, in a mode."""
    mix, (own, others) = how.mode == "mix", _nodes(how)
    grown = "its own trees are" if mix else "a tree is"
    shown = (
        "nothing of g and h, which are encrypted"
        if protected
        else f"g and h of the rows that {grown} grown on, and with them labels"
    )
    first = "round" if how.complete_secure == 1 else f"{how.complete_secure} rounds"
    secure = f"; nothing of the first {first}" if how.complete_secure else ""
    rest = {"mix": "; nothing of the trees of others", "layered": "; nothing of the levels below"}.get(how.mode, "")
    found = [
        LearnsRow(
            "histograms",
            shown + secure,
            f"the sums of g, h and rows at {others} by bin of the others' columns{SEVERAL}, and from them the order of the bins in "
            "a column",
            "how many candidates there are",
        ),
        LearnsRow(
            "splits",
            f"which rows are at {own} that can be split, and whose split led there; which way its own splits send rows, and their "
            f"column and threshold{rest}{secure}",
            "which rows are at every node, and whose split it is",
            "who owns how many nodes; from the letters that it carries, which places are at these nodes",
        ),
    ]
    if how.sampled:
        hint = ", most of which have large gradients: this tells labels" if how.goss else ""
        found.append(
            LearnsRow(
                "drawn rows",
                f"which rows {grown} grown on{hint}{secure}",
                "it draws them",
                "the same, from the letters",
            )
        )
    return (
        *found,
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


def _nodes(how: SecureBoost) -> tuple[str, str]:
    """Return the nodes at which parties without the label add up sums, in the words of such a party, and of the other."""
    if how.mode == "mix":
        return "every node of its own trees", "every node of the others' trees"
    level = "level" if how.passive_depth == 1 else f"{how.passive_depth} levels"
    every = f"every node of the first {level}" if how.mode == "layered" else "every node"
    return every, every


WORDS = Words(
    round="tree",
    several="round",
    model="trees",
    keeps="its columns, its lookup table; the party with the label also labels, margins and the trees' shape",
    leaves="g and h, under [[privacy]] paillier encrypted; sums of a node by bin; which rows go left",
    clear="gradients crossed as they are, and betray the label of every training row. [[privacy]] paillier encrypts them.",
    hidden="Gradients crossed encrypted, under a Paillier key of the party that holds the label.",
    learns=learns,
    cases={mode: secureboost(mode=mode) for mode in MODES},
    gain="How much of the loss's fall the splits on a column brought, over all trees",
    caution=(
        "The purer the leaves of the first trees, the more the rows at a node say of the labels: complete_secure = 1 grows the first "
        "tree, or round of trees, from the label holder's own columns, and the later ones hint as before."
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
