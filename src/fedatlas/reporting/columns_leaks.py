"""The facts that each party could learn about the others, step by step, according to the protocols."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.config import ExperimentConfig
from fedatlas.registry import arguments
from fedatlas.reporting.blocks import Block, TableBlock, TableCell, Text, notice
from fedatlas.reporting.columns_privacy import CROSSED, label_noise
from fedatlas.reporting.entries import PARTY, Plain, Subject
from fedatlas.vertical import SCHEMES
from fedatlas.wording import count, csv_text


def columns_leak_blocks(subject: Subject) -> list[Block]:
    """List what each party learns, step by step."""
    s = subject.summary
    words = SCHEMES[s["algorithm"]].words
    intro = (
        "All parties are taken to follow the protocol and to look at whatever they are sent. Nobody sends an id in the clear. A party "
        f"keeps {words.keeps}. This is what is learnt all the same."
    )
    out: list[Block] = [Text(intro), learns_table(s, subject.config)]
    if not s["protected"]:
        out.append(notice(f"This run was in the clear: {words.clear} Only a simulation may do that."))
    out += [notice(CROSSED)] if label_noise(s) else []
    out += [Text(words.caution)] if words.caution else []
    return out if subject.page == PARTY else [*out, *told_blocks(s)]


def told_blocks(s: Plain) -> list[Block]:
    """Return the measured attack: what a party without the label makes of the rows that it is told, by settings."""
    found = s.get("labels_told")
    attack, words = SCHEMES[s["algorithm"]].attack, SCHEMES[s["algorithm"]].words
    if found is None or attack is None:
        return []
    names = list(dict.fromkeys(rule for case in found["cases"] for one in case["auc"].values() for rule in one))
    rows = [[case["case"], *(cell(case["auc"], name) for name in names)] for case in found["cases"]]
    csv = [(case["case"], party, *one.values()) for case in found["cases"] for party, one in case["auc"].items()]
    rules = "; ".join(f"'{name}' {found['rules'][name]}" for name in names)
    rounds = count(found["rounds"], "round")
    which = "whether it is above the median" if s["task"] == "numbers" else "its class"
    said = (
        f"Measured in this simulation, where the labels are known, on the first {rounds} in the clear: how well a curious party without "
        f"the label ranks the training rows by {which}, from nothing but {attack.told}. The figure is the AUC; 0.5 is "
        f"chance, 1 tells all. Of several such parties it is the one that learns most. The first line is this run's settings. {rules}."
    )
    if label_noise(s):
        said += (
            f" Every {words.product(len(s['class_names']))} was trained on labels with noise, but for the second line; the guesses are "
            "compared with the labels as they are."
        )
    head = ["settings", *(f"AUC, {name}" for name in names)]
    return [
        Text(said),
        TableBlock("labels-told", attack.title, head, rows, csv_text(("settings", "party", *names), csv)),
    ]


def cell(by_party: Plain, rule: str) -> TableCell:
    """Return the largest AUC of a rule over parties, with the party's name."""
    name = max(by_party, key=lambda one: by_party[one][rule])
    return TableCell(f"{by_party[name][rule]:.3f}", name if len(by_party) > 1 else "")


def learns_table(s: Plain, config: ExperimentConfig) -> TableBlock:
    """Return the table of what each role of a scheme learns, step by step."""
    scheme = SCHEMES[s["algorithm"]]
    how = scheme.build(**arguments("algorithm", scheme.build, config.algorithm.parameters()))
    rows: list[Sequence[str]] = [*scheme.words.learns(how, s["protected"])]
    if scheme.layout == "columns":
        split = ("split", "which common rows train, stop and test", "it draws them", "how many there are")
        rows = [*aligning(s), split, *rows]
    head = ["step", *(f"{who} learns" for who in scheme.words.who.values())]
    return TableBlock("leaks", "Who learns what", head, rows, csv_text(("step", *scheme.words.who), rows))


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
