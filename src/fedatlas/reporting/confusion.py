"""Errors of the final model: the confusion matrix, F1 of every class, and for two classes the reliability of probabilities.

For a numeric target: predictions for small to large true values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedatlas.metrics.intervals import Spread, over_seeds
from fedatlas.reporting.blocks import (
    NARROW,
    WIDE,
    Block,
    Cells,
    Figure,
    Figures,
    Key,
    KeyFigures,
    TableBlock,
    TableCell,
    Text,
)
from fedatlas.reporting.drawing.charts import Axis, Bars, Point, Series, bars, diagonal, dots, heat, shaded
from fedatlas.reporting.entries import Entry, Plain, Subject, whole
from fedatlas.reporting.outcome import models_used
from fedatlas.wording import capital, count, csv_text, interval_text, number, share, where

CLASSES_OPEN = 24
WIDE_FROM = 16  # number of classes above which a matrix takes the whole width


def error_blocks(subject: Subject) -> list[Block]:
    """Return the section of one run; empty if nothing is known about its rows."""
    final = subject.summary["final"]
    if subject.numbers:
        return _by_target(subject, final["by_target"]) if final.get("by_target") else []
    if not final.get("per_class_f1"):
        whose = capital(models_used(subject))
        return [Text(f"{whose}, so there is no single confusion matrix to show.")]
    if "per_class_accuracy" not in final:  # it diverged: the model no longer returns numbers
        return []
    pictures = [*([_matrix(subject)] if "confusion" in final else []), _f1(subject)]
    many = len(final["per_class_f1"]) >= WIDE_FROM
    return [*_words(subject), *(pictures if many else [Figures(pictures)]), _table(subject), *_two_class(subject)]


def errors_over(entries: Sequence[Entry]) -> list[Block]:
    """Return the section of several runs: each class, and the probabilities of two classes, over the seeds of each."""
    several = [(e, [s.summary["final"] for s in whole(e.subjects)]) for e in entries if len(whole(e.subjects)) > 1]
    known = [(e, finals) for e, finals in several if all("per_class_accuracy" in final for final in finals)]
    return [table for entry, finals in known for table in _classes_over(entry, finals, len(entries) > 1)]


def _classes_over(entry: Entry, finals: Sequence[Mapping[str, Any]], labelled: bool) -> list[TableBlock]:
    names, parts = entry.summary["class_names"], {"per_class_f1": "F1", "per_class_accuracy": "recall"}
    spreads = [[over_seeds([final[part][c] for final in finals]) for part in parts] for c in range(len(names))]
    head, whose = ["class", *parts.values()], f"{entry.label}: " if labelled else ""
    below = f"mean of {count(len(finals), 'seed')}, with the standard deviation (sd) between them"
    fold = f"The table of {count(len(names), 'class', 'classes')}" if len(names) > CLASSES_OPEN else ""
    text = csv_text(
        ("class", "f1", "f1_sd", "recall", "recall_sd"),
        [(name, *(v for x in line for v in (x.mean, x.sd))) for name, line in zip(names, spreads, strict=True)],
    )
    rows: list[Cells] = [[name, *map(_spread, line)] for name, line in zip(names, spreads, strict=True)]
    caption = f"{whose}Every class on the {where(entry.config)}: {below}"
    out = [TableBlock(f"{entry.key}-classes-seeds", caption, head, rows, text, [], fold)]
    if all(final.get("two_class") for final in finals):
        found = {name: over_seeds([final["two_class"][key] for final in finals]) for key, name in PROBABILITIES.items()}
        csv = csv_text(("figure", "mean", "sd", "seeds"), [(name, *x) for name, x in found.items()])
        caption = f"{whose}Quality of the probabilities of '{names[1]}': {below}"
        cells: list[Cells] = [[name, _spread(x)] for name, x in found.items()]
        out.append(TableBlock(f"{entry.key}-two-class-seeds", caption, ["figure", "mean"], cells, csv))
    return out


PROBABILITIES = {"auc": "AUC", "log_loss": "log-loss", "calibration_error": "calibration error"}


def _spread(found: Spread) -> TableCell:
    return TableCell(number(found.mean), f"sd {number(found.sd)}")


def _by_target(subject: Subject, spans: Sequence[Mapping[str, float]]) -> list[Block]:
    thing = ("of weight", "of weight") if subject.summary.get("weighted") else ("row", "rows")
    names = [_between(span) for span in spans]
    facts = [
        f"true {name}: {count(span['weight'], *thing)}, mean true {number(span['true'])}, mean predicted {number(span['predicted'])}, "
        f"predicted {number(span['p10'])} to {number(span['p90'])} in eight of ten"
        for name, span in zip(names, spans, strict=True)
    ]
    true = [Point(i, span["true"], said) for i, (span, said) in enumerate(zip(spans, facts, strict=True))]
    said = [
        Point(i, span["predicted"], said, span["p10"], span["p90"])
        for i, (span, said) in enumerate(zip(spans, facts, strict=True))
    ]
    how = (
        f"The {where(subject.config)} in order of their true target, in {count(len(spans), 'span')}: the mean of the true values and of "
        "the predictions; a line spans the tenth to the ninetieth percentile of the predictions. If the two marks lie "
        "apart, the model is off on average. If predictions rise less than the true values, they stay too close to the middle."
    )
    columns = ("low", "high", "weight", "true", "predicted", "p10", "p90", "rmse")
    text = csv_text(columns, [[span[c] for c in columns] for span in spans])
    series = [Series("true", 0, true), Series("predicted", 1, said)]
    heads = [name if " " not in name else f"≤ {number(span['high'])}" for name, span in zip(names, spans, strict=True)]
    axis, label = Axis("Target, true and predicted"), "Predicted against true numbers"
    draw = partial(dots, names=heads, title="true target", y=axis, series=series, label=label)
    figure = Figure(f"{subject.key}-by-target", "Predicted against true", how, draw, text)
    head = ["true target", thing[1].removeprefix("of "), "mean true", "mean predicted", "RMSE"]
    rows = [
        [
            name,
            count(span["weight"]),
            *(subject.printed(f"final.by_target.{i}.{key}") for key in ("true", "predicted", "rmse")),
        ]
        for i, (name, span) in enumerate(zip(names, spans, strict=True))
    ]
    caption = f"Errors by the size of the target on the {where(subject.config)}"
    return [figure, TableBlock(f"{subject.key}-spans", caption, head, rows, text)]


def _between(span: Mapping[str, float]) -> str:
    low, high = number(span["low"]), number(span["high"])
    return low if low == high else f"{low} to {high}"


def _words(subject: Subject) -> list[Block]:
    """Return the accuracy on words, if some classes are not words."""
    found = subject.summary["final"].get("word_accuracy")
    if not found:
        return []
    said = {name: share(value) for name, value in found.items()}
    return [
        Text(
            f"Accuracy counts words, including those outside the vocabulary: {said['words']} of them are right. Padding and ends of "
            f"sentences are skipped. Counting the ends it is {said['words_and_ends']}; counting only words in the vocabulary "
            f"{said['known_words']}, and with the ends {said['known_words_and_ends']}."
        )
    ]


def _matrix(subject: Subject) -> Figure:
    names, matrix = subject.summary["class_names"], subject.summary["final"]["confusion"]
    thing = ("of weight", "of weight") if subject.summary.get("weighted") else ("row", "rows")
    cells = [
        [shaded(f"true {true}, predicted {name}", n, sum(row), thing) for name, n in zip(names, row, strict=True)]
        for true, row in zip(names, matrix, strict=True)
    ]
    how = (
        "Rows are the true classes, columns the predicted ones. Correct predictions lie on the diagonal. The stronger a cell's colour, "
        f"the larger its share of the {where(subject.config)} of that true class; the number is {counted(subject)}."
    )
    text = csv_text(("true_class", *names), [(name, *row) for name, row in zip(names, matrix, strict=True)])
    label, titles = "Confusion matrix: true against predicted classes", ("true class", "predicted class")
    draw = partial(heat, rows=names, columns=names, cells=cells, titles=titles, label=label)
    widths = (NARROW, WIDE) if len(names) >= WIDE_FROM else (NARROW,)
    return Figure(f"{subject.key}-confusion", "Confusion matrix", how, draw, text, widths)


def counted(subject: Subject) -> str:
    """Describe the content of a matrix's cells."""
    return "the sum of their survey weights" if subject.summary.get("weighted") else "the count of rows"


def _f1(subject: Subject) -> Figure:
    names, f1 = subject.summary["class_names"], subject.summary["final"]["per_class_f1"]
    tips = [f"{name}: F1 {number(v)}" for name, v in zip(names, f1, strict=True)]
    how = (
        "F1 of a class: the harmonic mean of precision (how often the model is right when it predicts this class) and recall (how many "
        "of the class it finds). 1 is perfect; a short bar marks a class that the model predicts poorly."
    )
    stack = [Bars("F1", 0, [v or 0.0 for v in f1], tips)]
    title = "F1 of every class"
    draw = partial(bars, names=names, title="class", y=Axis("F1"), stacks=stack, label=title)
    widths = (NARROW, WIDE) if len(names) >= WIDE_FROM else (NARROW,)
    csv = csv_text(("class", "f1"), zip(names, f1, strict=True))
    return Figure(f"{subject.key}-f1", title, how, draw, csv, widths)


def _table(subject: Subject) -> TableBlock:
    final, names = subject.summary["final"], subject.summary["class_names"]
    f1, recall, matrix = final["per_class_f1"], final["per_class_accuracy"], final.get("confusion")
    rows, table = [], []
    for c, name in enumerate(names):
        n = sum(matrix[c]) if matrix else None
        said = sum(row[c] for row in matrix) if matrix else 0.0
        precision = matrix[c][c] / said if matrix and said else None
        parts = ("per_class_f1", "per_class_accuracy")
        ours, recalled = (subject.printed(f"final.{part}.{c}") for part in parts)
        rows.append([name, "" if n is None else count(n), ours, number(precision), recalled])
        table.append((name, n, f1[c], precision, recall[c]))
    head = ["class", "weight" if subject.summary.get("weighted") else "rows", "F1", "precision", "recall"]
    text = csv_text(("class", "rows", "f1", "precision", "recall"), table)
    fold = f"The table of {count(len(names), 'class', 'classes')}" if len(names) > CLASSES_OPEN else ""
    return TableBlock(
        f"{subject.key}-per-class", f"Every class on the {where(subject.config)}", head, rows, text, folded=fold
    )


def _two_class(subject: Subject) -> list[Block]:
    part = (
        "test" if "two_class" in subject.summary.get("test", {}) else "final"
    )  # if both exist, the one not used for any choice
    found = subject.summary[part].get("two_class")
    if not found:
        return []
    positive = _positive(subject)
    ends = subject.summary[part].get("interval", {})
    means = {
        "auc": (
            "AUC",
            f"chance that a row of '{positive}' gets a higher score than one of the other class; 0.5 is guessing",
        ),
        "log_loss": ("log-loss", "mean of −log(probability given to the true class); lower is better"),
        "calibration_error": (
            "calibration error",
            "mean gap between stated probability and observed share; 0 is perfect",
        ),
    }
    keys = []
    for key, (name, meaning) in means.items():
        span = interval_text(*ends.get(key, (None, None)))
        note = f"{ends['level']:.0%} interval {span}; {meaning}" if span else meaning
        keys.append(Key(name, subject.printed(f"{part}.two_class.{key}"), note))
    return [
        Text(
            f"Two classes: quality of the probabilities of '{positive}'{', on the test rows' if part == 'test' else ''}.",
            tone="subhead",
        ),
        KeyFigures(keys),
        _reliability(subject, positive, part),
    ]


def _positive(subject: Subject) -> str:
    """Return the class of two that is discussed: the rarer one, or the one asked for; for older records the second one."""
    names: Sequence[str] = subject.summary["class_names"]
    return str(subject.summary.get("metric", {}).get("positive", names[1]))


def _seen_from(bins: Sequence[Plain], second: bool) -> list[dict[str, float]]:
    """Return the bins of the second class's probability, or the same rows by that of the first."""
    if second:
        return [dict(b) for b in bins]
    other = {"low": "high", "high": "low"}
    return [
        {key: b[key] if key == "weight" else round(1 - b[other.get(key, key)], 12) for key in b} for b in reversed(bins)
    ]


def _reliability(subject: Subject, positive: str, part: str) -> Figure:
    found = subject.summary[part]["two_class"]["reliability"]
    bins = _seen_from(found, positive == subject.summary["class_names"][1])
    most = max(b["weight"] for b in bins)
    points = [
        Point(
            b["predicted"],
            b["observed"],
            f"{count(b['weight'], 'row')} with a stated probability near {share(b['predicted'])}: {share(b['observed'])} were '{positive}'",
            size=0.5 + 2 * (b["weight"] / most) ** 0.5,
        )
        for b in bins
    ]
    how = (
        f"Rows are grouped by the probability of '{positive}' that the model stated. On the diagonal, stated and observed frequencies "
        f"agree; below it the model is overconfident in '{positive}', above it underconfident. The larger a mark, the more rows."
    )
    columns = ("low", "high", "weight", "predicted", "observed")
    text = csv_text(columns, [[b[c] for c in columns] for b in bins])
    x, y, label = Axis("mean stated probability"), Axis("Observed share"), f"Reliability diagram for '{positive}'"
    draw = partial(diagonal, x=x, y=y, points=points, label=label)
    return Figure(f"{subject.key}-reliability", "Reliability diagram", how, draw, text, (NARROW,))
