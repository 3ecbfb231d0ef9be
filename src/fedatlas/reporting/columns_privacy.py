"""The privacy section of a run whose parties hold columns and whose labels have noise: its epsilon, and what that does not cover."""

from __future__ import annotations

from fedatlas.privacy.mechanisms import of_tables
from fedatlas.reporting.blocks import Block, KeyFigures, TermList, Text, lead, notice
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.reporting.privacy import given_keys, key_figures, promise_text, terms_of, warnings_of
from fedatlas.wording import facts_text

DONE = (
    "Each party with labels gave them noise once, before anything was computed from them. The rounds, the model, importance and the "
    "trivial model follow from labels with noise, so the same epsilon covers them. The rows were split without looking at labels."
)
HELD = " Figures on rows held out to stop by are compared with their labels with noise, so it covers these, too."
UNCOVERED = (
    "No epsilon covers what is computed from labels without noise: figures on test rows; the baselines that train on such labels (the "
    "party with the label by itself, all columns in one table, all parties without the noise); the attack on labels, whose guesses are "
    "compared with the labels as they are. These are figures of this simulation and of the label's holder: publish them only if these "
    "labels need no protection."
)
MIXED = (
    "Labels of this run have noise. The party with the label alone and all columns in one table were trained on labels without noise, as "
    "their owner needs none; the model of all parties{} on labels with noise. All are judged on test labels without noise, and no epsilon "
    "covers these figures."
)
CROSSED = "Labels had noise before anything was sent, so what this table says of labels is about labels with noise."


def label_noise(s: Plain) -> bool:
    """Return whether a run over columns gave noise to labels, by its summary."""
    return "epsilon" in s.get("privacy", {})


def label_privacy_blocks(subject: Subject) -> list[Block]:
    """Return the section; [] if labels have no noise."""
    s = subject.summary
    if not label_noise(s):
        return []
    found = s["privacy"]
    made = of_tables(found["mechanisms"])
    covers = next(one.words.covers for one in made if one.entered)
    return [
        lead(DONE + (HELD if s["rows"].get("held") else "")),
        *(Text(warned, tone="notice") for warned in warnings_of(found, made)),
        KeyFigures(key_figures(subject, found, covers)),
        *(Text(said) for one in made for said in one.words.rows(found.get(one.name, {}))[:1]),
        *terms_of(found, made, covers),
        Text(promise_text(found, covers)),
        notice(UNCOVERED),
        TermList([(one["name"], facts_text(given_keys(one))) for one in found["mechanisms"]]),
    ]


def mixed(s: Plain) -> list[Block]:
    """Return the notice beside the baselines of a run whose labels have noise."""
    if not label_noise(s):
        return []
    others = " and those without one of them" if any(name.startswith("without_") for name in s["gain"]["sides"]) else ""
    return [notice(MIXED.format(others))]
