"""Learning curves: every figure of the rows against rounds, bytes and seconds, several runs in one picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.reporting.blocks import NARROW, Choice, Figure, Option
from fedatlas.reporting.drawing.charts import Axis, Point, Series, lines
from fedatlas.reporting.entries import Entry, Plain, Subject, whole
from fedatlas.wording import (
    MEANING,
    NAMES,
    byte_unit,
    bytes_text,
    capital,
    csv_text,
    number,
    plural,
    second_unit,
    seconds_text,
    tick,
    total_of,
    where,
)

CLASSES, NUMBERS = ("accuracy", "macro_f1", "weighted_f1", "loss"), ("rmse", "mae", "r2", "loss")
NAMED = ("auc", "balanced_accuracy", "pr_auc", "log_loss")  # in the rows if it is the run's metric
LOWER = LOWER_IS_BETTER | {"log_loss"}
AXES = {"round": "rounds", "bytes": "bytes sent so far", "seconds": "seconds so far"}
TRAINING = "training rows of the {}"
ERRORS = {"mean": "mean", "p10": "90th percentile", "min": "largest"}
CLIENTS = {"mean": "mean", "p10": "10th percentile", "min": "worst"}
MODELS, DRIFT = "models", "drift_correlation"
DRAWN = 12  # most models drawn with one line each


Reached = tuple[int, float | None, float, float]
"""(round, bytes so far, seconds so far, value); bytes are None if they would reveal who took part."""


class Curve(NamedTuple):
    """The evaluated rounds of a run."""

    label: str
    style: int
    points: Sequence[Reached]
    thin: bool = False


class CurveFigure(NamedTuple):
    """One figure of the rows, drawn as curves."""

    key: str
    found: Sequence[Curve]
    how: str  # how to read it
    name: str  # the name of the value at a point
    whose: str = ""  # a suffix of the title


def curves(entries: Sequence[Entry]) -> list[Choice]:
    """Return one picture per figure, for each of the three horizontal axes."""
    first = entries[0].subjects[0]
    single = len(entries) == len(entries[0].subjects) == 1
    panels = []
    named = [key for key in NAMED if key in first.rows[0]]
    for key in (*named, *(NUMBERS if first.numbers else CLASSES)):
        found = _single(first, key) if single else _overlaid(entries, key)
        panels.append(CurveFigure(key, found, _how(first, key, found), NAMES[key]))
    panels += _further(first) if single else []
    axes = {axis: label for axis, label in AXES.items() if all(_known(figure.found, axis) for figure in panels)}
    parties = plural(first.config.party)
    options = [Option(axis, label, [_figure(one, axis, parties) for one in panels]) for axis, label in axes.items()]
    return [Choice("axis", "Against", options)]


def _known(found: Sequence[Curve], axis: str) -> list[Curve]:
    """Return the curves that can be drawn along an axis."""
    return [c for c in found if axis != "bytes" or all(point[1] is not None for point in c.points)]


def _further(subject: Subject) -> list[CurveFigure]:
    """Return the further figures of one run: clients, drift, several models, the algorithm's own state."""
    rows, name, out = subject.rows, NAMES[subject.headline], list[CurveFigure]()
    party, parties = subject.config.party, plural(subject.config.party)
    if any(row.get(f"client_{subject.headline}") for row in rows):
        names = ERRORS if subject.numbers else CLIENTS
        parts = enumerate(names.items())
        found = [Curve(label, i, points(subject, f"client_{subject.headline}", key)) for i, (key, label) in parts]
        how = (
            f"{capital(name)} of the model at each {party}, on {subject.judged_on}: the mean over the {parties}, "
            f"the {party} at the {names['p10']}, and the worst one. If the lines stay apart, the model serves some {parties} poorly."
        )
        out.append(CurveFigure("client", found, how, name, f" over the {parties}"))
    if any(row.get(DRIFT) is not None for row in rows):
        how = (
            f"After each round, over the pairs of {parties} that returned a model: whether {parties} with more different class mixes also "
            "have more different models. Rank correlation: 1 = same order, 0 = no relation."
        )
        out.append(CurveFigure(DRIFT, [Curve(NAMES[DRIFT], 0, points(subject, DRIFT))], how, NAMES[DRIFT]))
    if any(MODELS in row for row in rows):
        out.append(_models(subject))
    how = f"After each round, what the algorithm '{subject.config.algorithm.name}' reports about its own state."
    own = rows[0].get("figures") or {}
    return [*out, *(CurveFigure(key, [Curve(key, 0, points(subject, "figures", key))], how, key) for key in own)]


def points(subject: Subject, *path: str) -> list[Reached]:
    """Return the points of the rows in which the figure under ``path`` is known."""
    each = [total_of(row[key] for key in ("bytes_up", "bytes_down", "bytes_peer")) for row in subject.rows]
    sent = accumulate(each, lambda a, b: total_of((a, b)))
    spent = accumulate(row["seconds"] for row in subject.rows)
    values = [_at(row, path) for row in subject.rows]
    rows = zip(subject.rows, sent, spent, values, strict=True)
    return [(row["round"], b, s, v) for row, b, s, v in rows if v is not None]


def _at(row: Plain, path: Sequence[str]) -> float | None:
    value: Any = row
    for key in path:
        value = None if value is None else value.get(key)
    return None if value is None else float(value)


def _overlaid(entries: Sequence[Entry], key: str) -> list[Curve]:
    """Return one line per entry; several seeds as thin lines behind their mean."""
    out = []
    for style, entry in enumerate(entries):
        each = [points(subject, key) for subject in entry.subjects]
        if len(each) == 1:
            out.append(Curve(entry.label, style, each[0]))
            continue
        out += [Curve(s.label, style, found, thin=True) for s, found in zip(entry.subjects, each, strict=True)]
        ended = [points(subject, key) for subject in whole(entry.subjects)]
        out.append(Curve(f"{entry.label}, mean of {len(ended)} seeds", style, mean_curve(ended)))
    return out


def mean_curve(each: Sequence[Sequence[Reached]]) -> list[Reached]:
    """Return the mean over seeds of bytes, seconds and value, at the rounds that all of them evaluated."""
    by_round = [{point[0]: point for point in found} for found in each]
    shared = [number for number in by_round[0] if all(number in found for found in by_round)]
    n = len(by_round)
    sums = {r: [total_of(found[r][i] for found in by_round) for i in (1, 2, 3)] for r in shared}
    return [(r, *(None if x is None else x / n for x in sums[r])) for r in shared]  # type: ignore[misc]


def _single(subject: Subject, key: str) -> list[Curve]:
    if key != "loss":
        return [Curve(NAMES[key], 0, points(subject, key))]
    train = Curve(_training(subject), 1, points(subject, "train_loss"))
    return [Curve(where(subject.config), 0, points(subject, "loss")), *([train] if train.points else [])]


def _training(subject: Subject) -> str:
    return TRAINING.format(plural(subject.config.party))


def _models(subject: Subject) -> CurveFigure:
    """Return one line per cluster or architecture, over the rounds in which it existed, or one per model that the algorithm names."""
    names, name = dict.fromkeys(name for row in subject.rows for name in row.get(MODELS, ())), NAMES[subject.headline]
    each, parties = (
        {name: points(subject, MODELS, name, subject.headline) for name in names},
        plural(subject.config.party),
    )
    said = f"A cluster's model is made for the rows of its own {parties}, which may differ from these."
    if subject.config.models:
        said = f"An architecture's model is shared by the {parties} that have it."
    elif "clusters" not in subject.summary:  # a row's own figures are those of the one model missing from ``models``
        each = {"global": points(subject, subject.headline), **each}
        said = "Other figures are those of 'global'; the algorithm's page explains the other models."
    drawn = f" {DRAWN} of the {len(names)} models are drawn; the CSV has all." if len(names) > DRAWN else ""
    how = f"{capital(name)} of every model on the {where(subject.config)}. {said}{drawn}"
    found = [Curve(label, i, reached) for i, (label, reached) in enumerate(each.items())]
    return CurveFigure(MODELS, found, how, name, " of each model")


def _figure(figure: CurveFigure, axis: str, parties: str) -> Figure:
    key, found = figure.key, _known(figure.found, axis)
    column = list(AXES).index(axis)
    x = _x_axis(axis, max((p[column] or 0.0 for curve in found for p in curve.points), default=0.0), parties)
    several = len({curve.label for curve in found}) > 1
    series = [
        Series(
            c.label,
            c.style,
            [Point(p[column] or 0.0, p[3], _tip(c, p, figure.name, several)) for p in c.points],
            c.thin,
        )
        for c in (found[:DRAWN] if key == MODELS else found)
    ]
    title = capital(figure.name + figure.whose)
    ends = [f"{c.label} ends at {number(c.points[-1][3])}" for c in found if c.points and not c.thin]
    label = f"{title} against {AXES[axis]}: {'; '.join(ends)}."
    draw = partial(lines, x=x, y=Axis(title), series=series, label=label)
    head = ("curve", "round", "bytes_so_far", "seconds_so_far", key)
    csv = csv_text(head, [(c.label, *p) for c in found for p in c.points])
    return Figure(re.sub(r"\W+", "-", f"{key}-by-{axis}"), title, figure.how, draw, csv, (NARROW,))


def _x_axis(axis: str, most: float, parties: str) -> Axis:
    if axis == "bytes":
        unit, size = byte_unit(most)
        return Axis(f"{unit} sent so far, all {parties}", lambda v: tick(v / size), size)
    if axis == "seconds":
        unit, size = second_unit(most)
        return Axis(f"{unit} since the start", lambda v: tick(v / size), size)
    return Axis("round", whole=True)


def _tip(curve: Curve, point: Reached, what: str, several: bool) -> str:
    who = f"{curve.label}: " if several else ""
    sent = "" if point[1] is None else f"{bytes_text(point[1])}, "
    return f"{who}round {point[0]}, {what} {number(point[3])} ({sent}{seconds_text(point[2])})"


def _how(subject: Subject, key: str, found: Sequence[Curve]) -> str:
    parties = plural(subject.config.party)
    better = "Lower is better." if key in LOWER else "Higher is better."
    trained = (
        f" On the {_training(subject)} it is measured during training; if it stays far below, {parties} fit only their own rows."
        if any(c.label == _training(subject) for c in found)
        else ""
    )
    thin = " Thin lines are single seeds, the thick one is their mean." if any(c.thin for c in found) else ""
    return f"After each round, on the {where(subject.config)}: {MEANING[key]}. {better}{trained}{thin}"
