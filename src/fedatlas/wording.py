"""Format numbers and names for people."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "weighted_f1": "weighted F1",
    "loss": "loss",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "drift_correlation": "drift against labels",
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "pr_auc": "average precision",
    "log_loss": "log-loss",
}
MEANING = {
    "accuracy": "the share of rows whose class was predicted correctly",
    "macro_f1": "F1 (harmonic mean of precision and recall) averaged over the classes, so that rare classes count as much as common ones",
    "weighted_f1": "F1 averaged over the classes with their numbers of rows as weights",
    "loss": "the mean loss, which training reduces",
    "auc": "the chance that a row of the second class scores above one of the first; of more classes, of each above the rest, averaged",
    "balanced_accuracy": "the mean of the classes' accuracies, so that rare classes count as much as common ones",
    "pr_auc": "average precision: the precision at each rank of a row of the second class, averaged",
    "log_loss": "the mean of -log of the true class's probability",
    "rmse": "root mean squared error, in the unit of the target",
    "mae": "mean absolute error, in the unit of the target",
    "r2": "share of the target's variance that the model explains; 1 is perfect, 0 is no better than the mean",
}
PARTS = {"local_only": "alone", "federated": "together", "centralised": "pooled"}
DASH = "–"
CODED = re.compile(r"[\w/-]*\w[._]\w")  # the beginning of a text whose first word is a file or a key
NOT_TOLD = "not told"  # text for a figure that would reveal who took part


def number(v: float | None) -> str:
    """Format a number: 0.81111 -> '0.811', 59317.9 -> '59,318', 0.000123 -> '0.00012'; a dash for None."""
    if v is None:
        return DASH
    size = abs(v)
    if size >= 100:
        text = f"{v:,.0f}" if size >= 1000 else f"{v:.1f}"
    else:
        text = f"{v:.3f}" if size >= 0.0005 or v == 0 else f"{v:.2g}"
    return text.replace("-", "−")


def signed(v: float | None) -> str:
    """Return `number` with its sign."""
    return f"+{number(v)}" if v is not None and v > 0 else number(v)


def capital(text: str) -> str:
    """Return the text with a capital first letter, unless it begins with a file or a key, as in 'rows.csv' or 'label_inference'."""
    return text if CODED.match(text) else text[:1].upper() + text[1:]


def tick(v: float) -> str:
    """Return a value on an axis in its shortest form."""
    return f"{v:,.10g}".replace("-", "−")


def share(v: float | None) -> str:
    """Format a share: 0.724 -> '72%'."""
    return DASH if v is None else f"{v:.0%}"


def count(n: float, thing: str = "", things: str = "") -> str:
    """Format a count: 1234 -> '1,234'; with a noun '1 round', '1,234 rounds'."""
    text = f"{n:,.0f}" if float(n).is_integer() else f"{n:,.1f}"
    return f"{text} {thing if n == 1 else things or plural(thing)}" if thing else text


def plural(word: str) -> str:
    """Return the plural: 'office' -> 'offices', 'agency' -> 'agencies', 'bus' -> 'buses'."""
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"


def listed(names: Sequence[str]) -> str:
    """Join names: 'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def total_of(parts: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part is None."""
    found = list(parts)
    return None if any(part is None for part in found) else sum(part for part in found if part is not None)


def bytes_text(n: float | None) -> str:
    """Format bytes: 1234567 -> '1.23 MB' (powers of ten)."""
    if n is None:
        return NOT_TOLD
    unit, divisor = byte_unit(n)
    return f"{n:.0f}\xa0{unit}" if divisor == 1 else f"{_three(n / divisor)}\xa0{unit}"  # no line break inside


def byte_unit(n: float) -> tuple[str, float]:
    """Return the most readable unit for n bytes, and its size."""
    for unit, size in (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if abs(n) < 1000 * size:
            return unit, size
    return "TB", 1e12


def seconds_text(s: float) -> str:
    """Format a duration: 75 -> '1 min 15 s'."""
    if s < 60:
        return f"{s:.0f}\xa0s" if s >= 10 else f"{s:.2f}\xa0s" if s >= 0.1 else f"{1000 * s:.3g}\xa0ms"
    minutes, rest = divmod(round(s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def took_text(summary: Mapping[str, Any]) -> str:
    """Return "Its rounds took 12 s on 2 cores.". Being measured, it is separate from the answer, which is equal on every machine."""
    several = " a seed" if "seeds" in summary else ""
    return f"Its rounds took {seconds_text(summary['cost']['seconds'])}{several} on {count(summary['cpu']['cores'], 'core')}."


def second_unit(s: float) -> tuple[str, float]:
    """Return the most readable unit for durations up to s seconds, and its size."""
    return ("s", 1.0) if s < 300 else ("min", 60.0) if s < 10800 else ("h", 3600.0)


def flops_text(n: float) -> str:
    """Format operations: 6.4e9 -> '6.40 billion'."""
    for name, size in (("quadrillion", 1e15), ("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if n >= size:
            return f"{_three(n / size)}\xa0{name}"
    return f"{n:,.0f}"


def interval_text(low: float | None, high: float | None, text: Any = number) -> str:
    """Format an interval as in '0.776 to 0.847'; "" if there is none."""
    return "" if low is None or high is None else f"{text(low)} to {text(high)}"


def interval_note(low: float | None, high: float | None, text: Any = number) -> Markup:
    """Return an interval for a table cell, with a dash after which the line may break."""
    if low is None or high is None:
        return Markup()
    return Markup("{}–<wbr>{}").format(text(low), text(high))


def printed(value: float | None, key: str, text: Any = number) -> Markup:
    """Return a figure of summary.json for the page: rounded for people, exact for machines, with its key."""
    if value is None:
        return Markup("–")
    return Markup('<data value="{}" data-key="{}">{}</data>').format(repr(value), key, text(value))


def where(config: Any) -> str:
    """Name the rows on which the figures are computed."""
    return "test rows" if config.evaluation.on == "test" else "validation rows"


def held_text(sizes: Sequence[int]) -> str:
    """Format the range of row counts: '112 rows each', '161 to 4,512 rows each'."""
    low, high = min(sizes), max(sizes)
    return f"{count(low, 'row')} each" if low == high else f"{count(low)} to {count(high)} rows each"


def csv_text(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table as CSV (RFC 4180) with unrounded numbers; a cell without a value is empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows(["" if v is None else v for v in row] for row in rows)
    return out.getvalue()


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested tables: {'a': {'b': 1}} -> {'a b': 1}."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        out |= flat(value, f"{name} ") if isinstance(value, Mapping) else {name: value}
    return out


def _three(v: float) -> str:
    """Return a number above 1 with three significant digits, without an exponent."""
    return f"{v:.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def facts_text(facts: Mapping[str, Any]) -> str:
    """Return named facts in one line: "graph ring, degrees 2 to 2, spectral gap 0.08932"."""

    def text(value: Any) -> str:
        if isinstance(value, list | tuple):
            return " to ".join(text(x) for x in value)
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{key.replace('_', ' ')} {text(value)}" for key, value in facts.items())


def given_up_text(lost: int, of: int) -> str:
    """Describe the rounds whose sum was never opened, as in '2 of 10 rounds, which changed nothing'."""
    return (
        "every round, so the model is the initial one"
        if lost == of
        else f"{lost} of {count(of, 'round')}, which changed nothing"
    )


def is_spread(found: Mapping[str, float | None]) -> bool:
    """Return whether mean, 10th percentile and worst client are different figures.

    Clients that share one model and one common test set have one figure.
    """
    return len({None if value is None else round(value, 9) for value in found.values()}) > 1


LITTLE = 1e4
"""The factor on the odds from which an epsilon promises next to nothing."""


def odds_text(epsilon: float) -> str:
    """Return how much an epsilon lets the odds shift: 'at most a factor of 2.72'."""
    odds = math.exp(epsilon) if epsilon < 700 else math.inf
    if odds >= LITTLE:
        return "a factor above ten thousand"
    return f"at most a factor of {odds:,.0f}" if odds >= 100 else f"at most a factor of {odds:.3g}"


def worthless(found: Mapping[str, Any]) -> str:
    """Return the warning about an epsilon that promises next to nothing, the same in page, terminal and dry run; "" for any other.

    ``found``: ``privacy`` of a summary, or of a dry run.
    """
    epsilon = found.get("epsilon")
    if epsilon == "infinite":
        return "A release had no noise, so differential privacy promises nothing here."
    if epsilon is None or isinstance(epsilon, str) or "delta_too_large_for" in found:
        return ""
    if odds_text(epsilon) != odds_text(math.inf):
        return ""
    return f"epsilon = {epsilon:.3g} promises next to nothing: use more noise, fewer rounds, or smaller cohorts of more clients."


LIKELY = 0.01
"""A delta above which an epsilon is never shown without it."""


def beyond_delta(found: Mapping[str, Any]) -> str:
    """Return the effect of a large delta on a run's epsilon (``privacy`` of its summary), for its headline; "" for a small one.

    A written delta of 1/n or more, where n are protected, replaces the epsilon: publishing one of the n whole, drawn at
    random, would keep any such promise.
    """
    delta = found["delta"]
    if n := found.get("delta_too_large_for"):
        what = "clients" if found["unit"] == "client" else "rows"
        return (
            f"none: delta = {delta:.3g} is 1/{n:,} or more, and whoever publishes one of {n:,} {what} whole keeps that"
        )
    return f"and with a chance of up to {delta:.3g} no promise at all" if delta > LIKELY else ""


NO_LEAK = "no leak seen"


def no_leak(leak: Mapping[str, float | None], things: str, figure: str) -> str:
    """Return the sentence for an attack without a leak. For a figure with known power it gives the ``smallest`` visible leak.

    ``things``: the number of targets, in words; ``figure``: the name of the measured figure.
    """
    if "smallest" not in leak:
        return NO_LEAK
    if leak["smallest"] is None:
        return f"{NO_LEAK}: {things} {'is' if things.startswith('1 ') else 'are'} too few to show any {figure} with 80% power"
    return f"{NO_LEAK}: {things} would have shown {figure} of {number(leak['smallest'])} or more with 80% power"
