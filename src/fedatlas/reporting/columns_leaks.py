"""The facts that each party could learn about the others, step by step, according to the protocols."""

from __future__ import annotations

from fedatlas.reporting.blocks import Block, TableBlock, Text, notice
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.vertical import SCHEMES
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
    table = TableBlock("leaks", "Who learns what", head, rows, text)
    words = SCHEMES[s["algorithm"]].words
    intro = (
        "All parties are taken to follow the protocol and to look at whatever they are sent. Nobody sends an id in the clear. A party "
        f"keeps {words.keeps}. This is what is learnt all the same."
    )
    out: list[Block] = [Text(intro), table]
    if not s["protected"]:
        out.append(notice(f"This run was in the clear: {words.clear} Only a simulation may do that."))
    return [*out, Text(words.caution)] if words.caution else out


def leaks(s: Plain) -> list[tuple[str, str, str, str]]:
    """Return (step, what a passive party learns, what the active party learns, what the coordinator learns)."""
    return [
        *aligning(s),
        ("split", "which common rows train, stop and test", "it draws them", "how many there are"),
        *SCHEMES[s["algorithm"]].words.learns(s["protected"]),
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
    holder = mine if two else f"{several}, and the sizes of all overlaps"
    found = [("alignment", mine if two else several, holder, f"{helper}; no id")]
    if s["align"].get("linked"):
        which = "the other party" if two else "all others"
        more = f"by each further key, which of its rows without a match agree with a row of {which} in that key"
        counts = "how many rows each party tried by each key, and left out because another row has the same id"
        found.append(("keys in turn", f"{more}; how many rows the others tried", "the same", counts))
    return found
