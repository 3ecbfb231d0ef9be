"""What each party could learn about the others, step by step, according to the protocols."""

from __future__ import annotations

from fedatlas.reporting.blocks import Block, Table, Text, notice
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.wording import csv_text


def columns_leak_blocks(subject: Subject) -> list[Block]:
    """List what each party learns, step by step."""
    s = subject.summary
    rows = leaks(s)
    head = [
        "step",
        *(f"{who} learns" for who in ("a party without the label", "the party with the label", "the coordinator")),
    ]
    text = csv_text(("step", "passive", "active", "coordinator"), rows)
    table = Table("leaks", "Who learns what", head, rows, text)
    intro = (
        "All parties are assumed to follow the protocol but to inspect everything they receive. No party sends a column, a threshold "
        "or an id in the clear. The table lists what is learnt nevertheless."
    )
    out: list[Block] = [Text(intro), table]
    if not s["protected"]:
        out.append(
            notice(
                "This run was in the clear: the gradients sent to the other parties reveal the label of every training row. Only a "
                "simulation may do that."
            )
        )
    out.append(
        Text(
            "The purer the leaves of the first trees, the more the rows at a node reveal about the labels: complete_secure = 1 grows "
            "the first tree from the label holder's own columns."
        )
    )
    return out


def leaks(s: Plain) -> list[tuple[str, str, str, str]]:
    """Return (step, what a passive party learns, what the active party learns, what the coordinator learns)."""
    shown = "g and h of every training row, and with them the labels"
    if s["protected"]:
        shown = "nothing about g and h, which are encrypted"
    return [
        *aligning(s),
        ("split", "which common rows are for training, stopping and testing", "it draws them", "how many there are"),
        (
            "histograms",
            shown,
            "the sums of g and h at every node by bin of the others' columns, in an order that hides column and bin",
            "how many candidates there are",
        ),
        (
            "splits",
            "which rows are at every node; column and threshold of its own splits",
            "which rows are at every node, and which party owns the split",
            "how many nodes each party owns",
        ),
        (
            "prediction",
            "which of the requested rows reach its nodes, and whether it has them",
            "the path of each row at others' nodes",
            "how many rows are requested",
        ),
        (
            "importance",
            "the gain of its own nodes",
            "the gain of every node",
            "the gain of each column, by its place in its table",
        ),
    ]


def aligning(s: Plain) -> list[tuple[str, str, str, str]]:
    """Return the same for the alignment."""
    if s["align"]["name"] == "none":
        return [
            (
                "alignment",
                "that all hold the same ids in the same order",
                "the same",
                "the same, and how many rows there are",
            )
        ]
    two, sizes = len(s["parties"]) == 2, "how many ids each party has"
    mine = "which of its rows the other party has, and how many ids that party has"
    several = "which of its rows all others have; how many ids each party has"
    helper = sizes if two else f"{sizes}, and the sizes of all overlaps"
    found = [("alignment", mine if two else several, mine if two else several, f"{helper}; no id")]
    if s["align"].get("group") == "x25519":
        found.append(
            ("alignment on x25519", "a bit of each masked id: on which of two curves it lies", "the same", "the same")
        )
    return found
