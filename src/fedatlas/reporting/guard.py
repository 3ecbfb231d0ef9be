"""The guard of a run: the score of each round's model, and the version that was the model after the round."""

from __future__ import annotations

from functools import partial

from fedatlas.metrics.metric import METRICS
from fedatlas.reporting.blocks import NARROW, Block, Figure, Figures, lead, notice
from fedatlas.reporting.drawing.charts import Axis, Point, Series, lines
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.wording import count, csv_text, listed, tick

NAMED = 10  # most rejected rounds that are listed


def guard_blocks(subject: Subject) -> list[Block]:
    """Return the section of a run with a guard; empty for any other."""
    said, undone = guard_words(subject.summary)
    if not said:
        return []
    metric = METRICS[subject.summary["guard"]["metric"]].words
    return [lead(said), *map(notice, undone), Figures([_curve(subject, metric)])]


def guard_words(summary: Plain) -> tuple[str, list[str]]:
    """Return a sentence on the guard and the version that is the model, and those on rejected rounds and rollbacks.

    The first is empty for a run without a guard.
    """
    guard = summary.get("guard")
    if not guard or "rejected_rounds" not in guard:
        return "", []
    metric = METRICS[guard["metric"]].words
    tolerance = "any amount" if guard["tol"] is None else f"{guard['tol']:g}"
    said = (
        f"The server judged the model of each round on {count(guard['rows'], 'row')} of its own, on which nobody trains: by {metric}, "
        f"which may be worse than the best of the last ten committed versions by {tolerance}. "
        f"The model is that of round {guard['version']}."
    )
    undone, gone = list[str](), guard["rejected_rounds"]
    if gone:
        named = listed([str(number) for number in gone[:NAMED]])
        more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
        undone.append(f"The models of {count(len(gone), 'round')} were rejected (round {named}{more}).")
    undone += [
        f"The run was rolled back to version {version} at round {at}: later models go on from that version."
        for at, version in guard.get("rollbacks", ())
    ]
    return said, undone


def _curve(subject: Subject, metric: str) -> Figure:
    """Return the curves of the scores by round."""
    rows = [row for row in subject.rows if "committed" in row]
    of = {row["round"]: row["score"] for row in rows if row["committed"]}
    judged = [
        Point(
            row["round"],
            row["score"],
            f"round {row['round']}: {row['score']:.4f}{'' if row['committed'] else ', rejected'}",
        )
        for row in rows
        if row["score"] is not None
    ]
    held = [
        Point(row["round"], of[row["version"]], f"after round {row['round']}: version {row['version']}")
        for row in rows
        if of.get(row["version"]) is not None
    ]
    series = [Series("the round's model", 0, judged), Series("the committed version", 1, held)]
    how = (
        "The score of each round's model on the server's own rows, and of the version that was the model after the round. "
        "Where the lines are apart, the round's model was rejected, and clients next began from the version."
    )
    text = csv_text(
        ("round", "committed", "version", "score"),
        [(r["round"], r["committed"], r["version"], r["score"]) for r in rows],
    )
    draw = partial(lines, x=Axis("round", whole=True), y=Axis(metric, tick), series=series, label=f"{metric} by round")
    return Figure(f"{subject.key}-guard", "Versions and rejected rounds", how, draw, text, (NARROW,))
