"""Malicious clients: their actions, the updates left out, and the accuracy on the classes they attacked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from fedatlas.aggregation import RULES, before
from fedatlas.attacks.poisoning import POISONING
from fedatlas.config.attacks import AttackConfig
from fedatlas.registry import arguments
from fedatlas.reporting.blocks import (
    NARROW,
    Block,
    Figure,
    Figures,
    Key,
    KeyFigures,
    TableBlock,
    Text,
    emphasised,
    lead,
    notice,
)
from fedatlas.reporting.drawing.charts import Axis, Point, Series, lines
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.reporting.view_attacks import threat_facts
from fedatlas.wording import count, csv_text, share, tick

CURVES = {
    "accuracy": "all classes",
    "rest_accuracy": "classes not attacked",
    "swapped_accuracy": "attacked classes",
    "attack_success": "rows predicted as the attackers wanted",
}


def attacker_blocks(subject: Subject) -> list[Block]:
    """Return the section of a run with ``[[attack]]`` tables of clients, or with a rule; empty for any other."""
    attacks, ruled = subject.summary.get("attacks", []), subject.summary.get("aggregation")
    if not ruled:
        return []
    tables = [table for table in subject.config.attack if table.poisons]
    return [
        *(lead(_done(subject, *one)) for one in zip(tables, attacks, strict=True)),
        Text(_ruled(ruled), tone="" if attacks else "lead"),
        *_notices(subject, ruled),
        KeyFigures(_keys(subject, attacks, ruled)),
        _left_out(subject, ruled),
        *([Figures([_curves(subject)])] if any(one.get("pairs") for one in attacks) else []),
        *(threat_facts(one["declaration"]) for one in attacks),
    ]


def _done(subject: Subject, table: AttackConfig, one: Plain) -> Markup:
    """Return a sentence on what the attackers did, in the words of their attack."""
    builder = POISONING[table.name]
    said = builder(**arguments("attack", builder, table.parameters())).said
    whole = " (whole superclients)" if one["unit"] == "superclient" else ""
    who = f"{count(len(one['clients']), 'client')} of {subject.summary['clients']}{whole}"
    sign = "taken for" if one.get("kind") == "flip" else "and"
    classes = ", ".join(f"{a} {sign} {b}" for a, b in one.get("classes", ()))
    drawn = "; each attacker drew separate pairs" if one.get("draw") == "random" else ""
    when = f" The attack was active in {count(one['attacked_rounds'], 'round')} of {subject.summary['rounds']}."
    names = ", ".join(map(str, one["clients"]))
    return emphasised(f"{said.format(who=who, classes=classes + drawn)}{when} Attackers: {names or 'none'}.")


def _ruled(ruled: Plain) -> Markup:
    f = (
        f" It was set to withstand up to {count(ruled['f'], 'hostile client')} per round."
        if ruled.get("f") is not None
        else ""
    )
    rule = RULES[ruled["name"]]()
    return emphasised((before(ruled["pre"], rule) if "pre" in ruled else rule).said + f)


def _notices(subject: Subject, ruled: Plain) -> list[Block]:
    out: list[Block] = []
    if rounds := ruled["unchanged_rounds"]:
        first = f"too few updates for the rule (first: round {rounds[0]})"
        said = f"{count(len(rounds), 'round')} left the model, or that of some clients, unchanged: {first}."
        out.append(notice(said))
    if "diverged" in subject.summary:
        said = "The attackers made the model diverge. Its figures are those of guessing; curves and models are from the round before."
        out.append(notice(said))
    return out


def _keys(subject: Subject, attacks: Sequence[Plain], ruled: Plain) -> list[Key]:
    out = []
    for i, one in enumerate(attacks):
        for key, term, note in (
            ("swapped_accuracy", "accuracy on attacked classes", f"{one['name']}, at the end"),
            ("rest_accuracy", "accuracy on all others", "at the end"),
            ("attack_success", "attack success", "share of the attacked rows predicted as the attackers wanted"),
        ):
            if one.get(key) is not None:
                out.append(Key(term, subject.printed(f"attacks.{i}.{key}", share), note))
    hostile = subject.printed("aggregation.hostile_updates", lambda n: f"{n:.0f}")
    out.append(Key("invalid updates", hostile, "not finite, wrong shape or incomplete: left out and counted"))
    return out


def _left_out(subject: Subject, ruled: Plain) -> TableBlock:
    """Return a table of how often clients took part, and how often their update was left out entirely."""
    rows, table = [], []
    for who, name in (("attackers", "attackers"), ("honest", "honest clients")):
        took, left = ruled[who]["took_part"], ruled[who]["left_out"]
        out = subject.printed(f"aggregation.{who}.left_out", lambda n: f"{n:,.0f}")
        rows.append([name, f"{took:,}", out, share(left / took) if took else ""])
        table.append((who, took, left))
    head = ["clients", "took part", "left out", "share"]
    caption = "Updates of all rounds that were left out entirely"
    return TableBlock(f"{subject.key}-left-out", caption, head, rows, csv_text(("who", "took_part", "left_out"), table))


def _curves(subject: Subject) -> Figure:
    """Return the curves of accuracy on attacked classes and on the others, by round."""
    seen = [row for row in subject.rows if row.get("accuracy") is not None]
    series = [
        Series(name, style, points)
        for style, (key, name) in enumerate(CURVES.items())
        if (points := [_point(row, key, name) for row in seen if row.get(key) is not None])
    ]
    how = (
        "Accuracy on the test rows of the attacked classes, of the others, and of all; test labels are unchanged. "
        "The last line, if there is one, is the share of the attacked rows that the model predicts as the attackers wanted."
    )
    text = csv_text(("round", *CURVES), [(r["round"], *(r.get(key) for key in CURVES)) for r in seen])
    label = "Accuracy on attacked classes and on the others over the rounds"
    x, y = Axis("round", whole=True), Axis("Share of the rows", tick)
    draw = partial(lines, x=x, y=y, series=series, label=label)
    return Figure(f"{subject.key}-attacked", "Accuracy on the attacked classes", how, draw, text, (NARROW,))


def _point(row: Plain, key: str, name: str) -> Point:
    return Point(row["round"], row[key], f"round {row['round']}: {name} {share(row[key])}")
