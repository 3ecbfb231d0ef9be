"""The facts that each party could learn about the others, step by step, according to the protocols."""

from __future__ import annotations

from fedatlas.registry import arguments
from fedatlas.reporting.blocks import Block, TableBlock, Text, notice
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.vertical import SCHEMES
from fedatlas.wording import csv_text


def columns_leak_blocks(subject: Subject) -> list[Block]:
    """List what each party learns, step by step."""
    s = subject.summary
    rows = leaks(subject)
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


def leaks(subject: Subject) -> list[tuple[str, str, str, str]]:
    """Return (step, what a passive party learns, what the active party learns, what the coordinator learns)."""
    s = subject.summary
    scheme = SCHEMES[s["algorithm"]]
    how = scheme.build(**arguments("algorithm", scheme.build, subject.config.algorithm.parameters()))
    return [
        *aligning(s),
        ("split", "which common rows train, stop and test", "it draws them", "how many there are"),
        *scheme.words.learns(how, s["protected"]),
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
    if s["align"].get("group") == "x25519":
        found.append(
            ("alignment on x25519", "a bit of each masked id: on which of two curves it lies", "the same", "the same")
        )
    return found
