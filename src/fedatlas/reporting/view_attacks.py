"""What the views of a run leak: each attack that was tried on them, its figures beside the placebo's, pictures and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedatlas.reporting.blocks import NARROW, WIDE, Block, Cell, Facts, Figure, Figures, Table, Text
from fedatlas.reporting.drawing.pixels import Pair, logarithmic, pairs
from fedatlas.reporting.entries import Subject
from fedatlas.wording import DASH, count, csv_text, interval_text, number

FIGURES = {
    "psnr": "PSNR, dB",
    "mse": "mean squared error of a pixel",
    "label": "labels found, share",
    "above_20_dB": "targets above 20 dB, share",
    "auc": "AUC",
    "accuracy": "balanced accuracy",
    "advantage": "advantage: true minus false positives",
    "tpr_at_fpr_0.001": "true positives at 0.1% false ones",
}
FIELDS = ("who", "how", "when", "where", "why", "knowledge", "budget")
INTRO = (
    "Attacks that were tried on what a role saw of this run. Each stands beside a placebo, which is what the attack gets without "
    "learning anything of its target; what is above the placebo leaked. An interval that holds 0 shows no leak; it does not prove that "
    "there is none."
)
SEVERAL = 20  # points of a curve to a power of ten
PICTURES = 16


def leak_blocks(subject: Subject) -> list[Block]:
    """The section of a run whose views were attacked; nothing for any other."""
    out: list[Block] = [Text(INTRO)] if subject.leaks else []
    for record, arrays in subject.leaks:
        out += _one(subject, record, arrays)
    return out


def _one(subject: Subject, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Block]:
    name, role = record["name"], _role(record["role"])
    many = count(record["targets"], "candidate" if record["kind"] == "membership" else "target")
    if "unscored" in record:
        return [Text(f"{name}, from the view of {role}: {record['unscored']}", tone="notice")]
    leak = record["leaks"].get("psnr" if record["kind"] == "inversion" else "auc", {})
    verdict = "no leak to be seen" if not leak.get("low") or leak["low"] <= 0 else "a leak"
    picture = _pairs if record["kind"] == "inversion" else _roc
    return [
        Text(f"{name}, from the view of {role}, {many}: {verdict}.", tone="lead"),
        _table(subject, record),
        Figures([picture(subject, name, arrays)]),
        Facts([(field, record["declaration"][field]) for field in FIELDS]),
    ]


def _role(text: str) -> str:
    kind, _, client = text.partition(":")
    return {"client": f"client {client}", "successor": f"the client after client {client}"}.get(kind, f"the {kind}")


def _table(subject: Subject, record: Mapping[str, Any]) -> Table:
    rows, plain = [], []
    for key, one in record["metrics"].items():
        leak = record["leaks"].get(key)
        placebo = number(one["placebo"]) if one["placebo"] is not None else DASH
        rows.append([Cell(FIGURES.get(key, key)), _value(one), Cell(placebo), _value(leak) if leak else Cell(DASH)])
        plain.append(
            [
                key,
                one["value"],
                one["low"],
                one["high"],
                one["placebo"],
                *((leak or {}).get(k) for k in ("value", "low", "high")),
            ]
        )
    head = [Cell("figure"), Cell("value"), Cell("placebo"), Cell("leak")]
    columns = ("figure", "value", "low", "high", "placebo", "leak", "leak_low", "leak_high")
    name = record["name"]
    return Table(f"{subject.key}-{name}", f"Figures of {name}", head, rows, csv_text(columns, plain))


def _value(one: Mapping[str, Any]) -> Cell:
    if one["value"] is None:
        return Cell("not resolved", "fewer than 10,000 non-members")
    between = interval_text(one["low"], one["high"]) if one["low"] is not None else ""
    return Cell(number(one["value"]), between)


def _pairs(subject: Subject, name: str, arrays: Mapping[str, np.ndarray]) -> Figure:
    """Reconstructions below their originals, in the order of the clients."""
    many = min(len(arrays["found"]), PICTURES)
    shown = [
        Pair(arrays["original"][i], arrays["found"][i], f"client {arrays['client'][i]}: {arrays['psnr'][i]:.1f} dB")
        for i in range(many)
    ]
    how = (
        "Above the rows that clients trained on, below what the attacker made of its view. Noise, or the same blur for all, is what a "
        "placebo looks like; the figure under the pointer is the PSNR, and 20 dB or more is a likeness."
    )
    columns = ("client", "label", "label_found", "psnr", "placebo")
    rows = zip(*(arrays[key].tolist() for key in ("client", "label", "said", "psnr", "placebo")), strict=True)
    draw = partial(_drawn, shown, f"Originals above what {name} found")
    return Figure(
        f"{subject.key}-{name}-pictures",
        "Originals and reconstructions",
        how,
        draw,
        csv_text(columns, rows),
        (NARROW, WIDE),
    )


def _drawn(shown: Sequence[Pair], label: str, width: int) -> str:
    return pairs(width, ("original", "found"), shown, label)


def _roc(subject: Subject, name: str, arrays: Mapping[str, np.ndarray]) -> Figure:
    points = roc(arrays["score"], arrays["member"])
    how = (
        "For every threshold, the share of members that are found against the share of non-members that are accused, both on logarithmic "
        "axes: what counts is the left end, where few are accused wrongly. The dashed line is guessing."
    )
    titles = ("non-members accused, share", "Members found, share")
    draw = partial(_curve, titles, points, f"Receiver operating characteristic of {name}")
    return Figure(
        f"{subject.key}-{name}-roc",
        "Who is told apart",
        how,
        draw,
        csv_text(("false_positives", "true_positives"), points),
        (NARROW, WIDE),
    )


def _curve(titles: tuple[str, str], points: Sequence[tuple[float, float]], label: str, width: int) -> str:
    return logarithmic(width, titles, points, label)


def roc(score: np.ndarray, member: np.ndarray) -> list[tuple[float, float]]:
    """(false positive rate, true positive rate) by falling threshold, from the first false positive on; few to a power of ten."""
    order = np.argsort(-score, kind="stable")
    ends = np.flatnonzero(np.diff(score[order], append=np.nan) != 0)  # ties are passed at once
    true = np.cumsum(member[order])[ends] / max(int(member.sum()), 1)
    false = np.cumsum(~member[order])[ends] / max(int((~member).sum()), 1)
    out: list[tuple[float, float]] = []
    for x, y in zip(false.tolist(), true.tolist(), strict=True):
        if not x:
            continue
        near = out and np.log10(x / out[-1][0]) < 1 / SEVERAL and x < 1
        if not near:
            out.append((x, y))
    return out
