"""The pictures of a target: accuracy against rounds, published values as hollow marks; or a figure of its parts against a quantity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedatlas.published.gates import CurvePicture, FigurePicture, Runs
from fedatlas.reporting.drawing.charts import Axis, Point, Series, lines
from fedatlas.reporting.page import standalone
from fedatlas.study.plain import Plain, Row
from fedatlas.wording import number

WIDTH = 720


def plain(picture: CurvePicture, record: str) -> Plain:
    """Return a picture in the form of the record, with the name of its file."""
    name = "-".join(filter(None, (record, picture.name)))
    published = {part: [list(point) for point in points] for part, points in picture.published.items()}
    return {"file": f"{name}.svg", "title": picture.title, "lines": dict(picture.lines), "published": published}


def points(picture: FigurePicture, record: str, runs: Runs) -> Plain:
    """Return a picture of figures in the form of the record, with the points of the parts that were run."""
    found = {
        label: [[x, runs[part].mean(picture.figure)] for part, x in parts if part in runs]
        for label, parts in picture.lines.items()
    }
    return {
        "file": f"{record}-{picture.name}.svg",
        "title": picture.title,
        "axes": [picture.x, picture.y],
        "points": found,
    }


def draw_points(picture: Row) -> str:
    """Return a picture of figures as an SVG file: one line per label."""
    series = [
        Series(label, style, [Point(x, y) for x, y in found])
        for style, (label, found) in enumerate(picture["points"].items())
    ]
    x, y = picture["axes"]
    ends = [f"{s.label} ends at {number(s.points[-1].y)}" for s in series if s.points]
    said = f"{picture['title']}: {y} against {x}; {', '.join(ends)}."
    return standalone(lines(WIDTH, Axis(x, whole=True), Axis(y, zero=True), series, said))


def draw(picture: Row, runs: Sequence[Row]) -> str:
    """Return the picture as an SVG file, from a record only: one line per part, the mean over its seeds."""
    if "points" in picture:
        return draw_points(picture)
    series, ends = [], []
    found = {part: mean_points([run["rows"] for run in runs if run["part"] == part]) for part in picture["lines"]}
    last = max((points[-1][0] for points in found.values() if points), default=0)
    for style, (part, label) in enumerate(picture["lines"].items()):
        known = [Point(x, y) for x, y in picture["published"].get(part, ()) if x <= last]
        series.append(Series(label, style, known, hollow=True))
        if found[part]:
            series.append(Series(label, style, [Point(x, y) for x, y in found[part]]))
            ends.append(f"{label} ends at {number(found[part][-1][1])}")
    said = "accuracy (hollow marks: published)" if any(s.hollow and s.points for s in series) else "accuracy"
    label = f"{picture['title']}: accuracy against rounds; {', '.join(ends)}."
    return standalone(lines(WIDTH, Axis("round", whole=True), Axis(said), series, label))


def mean_points(seeds: Sequence[Sequence[Row]]) -> list[tuple[int, float]]:
    """Return (round, mean accuracy over the seeds), at the rounds that all of them evaluated."""
    each = [{row["round"]: row["accuracy"] for row in rows if row["accuracy"] is not None} for rows in seeds]
    shared = [x for x in each[0] if all(x in one for one in each)] if each else []
    return [(x, math.fsum(one[x] for one in each) / len(each)) for x in shared]
