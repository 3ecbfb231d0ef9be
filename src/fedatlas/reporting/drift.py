"""The drift of the clients' rows: the figure by round, before and after, and the rounds in which it could be seen."""

from __future__ import annotations

from functools import partial

from fedatlas.metrics.metric import METRICS
from fedatlas.reporting.blocks import NARROW, Block, Figure, Figures, Text, lead
from fedatlas.reporting.drawing.charts import Axis, Point, Series, lines
from fedatlas.reporting.entries import Subject
from fedatlas.wording import capital, count, csv_text, listed, tick

CHANGES = {
    "feature": "the inputs of {}' rows were turned",
    "prior": "other classes were frequent in {}' rows",
    "concept": "classes of {}' rows changed places",
}
SIGNALS = {"score": "the guard's score", "train_loss": "the clients' mean loss"}


def drift_blocks(subject: Subject) -> list[Block]:
    """Return the section of a run with a drift; empty for any other."""
    drift = subject.summary.get("drift")
    if not drift or "alarms" not in drift:
        return []
    words, at = METRICS[drift["figure"]].words, drift["at"]
    over = "" if drift["ramp"] == 1 else f", over {count(drift['ramp'], 'round')}"
    said = f"From round {at} on{over}, {CHANGES[drift['kind']].format(count(drift['clients'], 'client'))}, and so were the test rows. "
    if drift["before"] is not None:
        back = f"after {count(drift['rounds'], 'round')}" if drift["recovered"] else "never in this run"
        said += (
            f"The model's {words} was {drift['before']:.4f} before and fell by {drift['depth']:.4f}. It was back at 95% of that "
            f"{back}; the area lost is {drift['area']:.2f} (figure times rounds)."
        )
    seen = [_seen(SIGNALS[key], found, at) for key, found in drift["alarms"].items()]
    chance = f"On a run without drift, at most {drift['false_alarms']:.0%} of such tests are meant to raise any alarm."
    told = " ".join([*seen, chance] if seen else ["The server saw no figure that could have told it."])
    return [lead(said), Text(told), Figures([_curve(subject, drift["figure"], words, at)])]


def _seen(name: str, alarms: list[int], at: int) -> str:
    since, early = [n for n in alarms if n >= at], [str(n) for n in alarms if n < at]
    found = f"{name} raised an alarm in round {since[0]}." if since else f"{name} raised no alarm after the drift."
    false = f" Before it, round {listed(early)} was a false alarm." if early else ""
    return capital(found) + false


def _curve(subject: Subject, key: str, words: str, at: int) -> Figure:
    """Return the curve of the figure, in one line before the drift and another since."""
    points = [
        Point(row["round"], row[key], f"round {row['round']}: {row[key]:.4f}")
        for row in subject.rows
        if row.get(key) is not None
    ]
    series = [
        Series("before the drift", 0, [p for p in points if p.x < at]),
        Series("since", 1, [p for p in points if p.x >= at]),
    ]
    how = "Each model is judged on the test rows of its round: those before the drift, and the changed ones since."
    table = csv_text(("round", key), [(p.x, p.y) for p in points])
    shown = [one for one in series if one.points]
    draw = partial(lines, x=Axis("round", whole=True), y=Axis(words, tick), series=shown, label=f"{words} by round")
    return Figure(f"{subject.key}-drift", "Before and after the drift", how, draw, table, (NARROW,))
