"""What malicious clients did, who was left out, and what became of the classes that they attacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup, escape

from fedatlas.reporting.blocks import NARROW, Block, Cell, Facts, Figure, Figures, Key, Keys, Table, Text
from fedatlas.reporting.drawing.charts import Axis, Point, Series, lines
from fedatlas.reporting.entries import Subject
from fedatlas.wording import count, csv_text, printed, share, tick

DONE = {
    "label_flip": "<b>Label flipping.</b> {who} trained on rows whose labels had changed places ({classes}), and sent what came of it.",
    "sign_flip": "<b>Reversed updates.</b> {who} trained honestly and sent the change reversed, {c} times as long.",
    "gaussian": "<b>Noise.</b> {who} sent Gaussian noise in place of what had been learnt, {sigma} times as long as an honest change.",
    "model_replacement": "<b>Model replacement.</b> {who} trained on flipped labels ({classes}) and scaled the change so that the mean "
    "would become their model.",
}
RULED = {
    "mean": "The server took the <b>weighted mean</b>, which is no defence: it leaves out only what is no update at all.",
    "krum": "The server took one change a round, by <b>Krum</b>: the one whose nearest others were nearest.",
    "multi_krum": "The server took the mean of the changes that <b>Multi-Krum</b> likes best: those whose nearest others were nearest.",
    "trimmed_mean": "The server took of each coordinate the <b>mean without the largest and the smallest values</b>.",
    "median": "The server took of each coordinate the <b>median</b>.",
    "norm_clip": "The server <b>shortened every change to one length</b> before it took the weighted mean.",
}
MODEL = {
    "who": "who",
    "how": "how",
    "when": "when",
    "where": "what it touches",
    "why": "what it is after",
    "knowledge": "what it knows",
    "budget": "how much it may do",
}
CURVES = {
    "accuracy": "all classes",
    "rest_accuracy": "classes that were left alone",
    "swapped_accuracy": "attacked classes",
    "attack_success": "rows that became what was wanted",
}


def attacker_blocks(subject: Subject) -> list[Block]:
    """The section of a run with ``[[attack]]`` tables of clients, or with a rule; nothing for any other."""
    attacks, ruled = subject.summary.get("attacks", []), subject.summary.get("aggregation")
    if not ruled:
        return []
    return [
        *(Text(_done(subject, one), tone="lead") for one in attacks),
        Text(_ruled(ruled), tone="" if attacks else "lead"),
        *_notices(subject, ruled),
        Keys(_keys(subject, attacks, ruled)),
        _left_out(subject, ruled),
        *([Figures([_curves(subject)])] if any(one.get("pairs") for one in attacks) else []),
        *(Facts([(MODEL[key], text) for key, text in one["declaration"].items() if text]) for one in attacks),
    ]


def _done(subject: Subject, one: Mapping[str, Any]) -> Markup:
    keys = next((table.parameters() for table in subject.config.attack if table.name == one["name"]), {})
    whole = " (whole superclients)" if one["unit"] == "superclient" else ""
    who = f"{count(len(one['clients']), 'client')} of {subject.summary['clients']}{whole}"
    shown = {key: f"{value:g}" for key, value in keys.items() if isinstance(value, int | float)}
    sign = "taken for" if one.get("kind") == "flip" else "and"
    classes = ", ".join(f"{a} {sign} {b}" for a, b in one.get("classes", ()))
    drawn = "; each attacker drew its own pairs" if one.get("draw") == "random" else ""
    text = DONE[one["name"]].format(**{**shown, "who": who, "classes": escape(classes + drawn)})
    when = f" This was so in {count(one['attacked_rounds'], 'round')} of {subject.summary['rounds']}."
    names = ", ".join(map(str, one["clients"]))
    return Markup(f"{text}{when} Attackers: {names or 'nobody'}.")  # noqa: S704  (the words are ours, names are escaped)


def _ruled(ruled: Mapping[str, Any]) -> Markup:
    f = f" It was made for up to {count(ruled['f'], 'hostile client')} a round." if ruled.get("f") is not None else ""
    return Markup(RULED[ruled["name"]] + f)  # noqa: S704  (the words are ours)


def _notices(subject: Subject, ruled: Mapping[str, Any]) -> list[Block]:
    out: list[Block] = []
    if rounds := ruled["unchanged_rounds"]:
        said = f"{count(len(rounds), 'round')} changed nothing, because too few changes came for the rule (first: round {rounds[0]})."
        out.append(Text(said, tone="notice"))
    if "diverged" in subject.summary:
        said = "The attackers made the model diverge. Its figures are those of guessing; curves and models are from the round before."
        out.append(Text(said, tone="notice"))
    return out


def _keys(subject: Subject, attacks: Sequence[Mapping[str, Any]], ruled: Mapping[str, Any]) -> list[Key]:
    out = []
    for i, one in enumerate(attacks):
        for key, term, note in (
            ("swapped_accuracy", "accuracy on attacked classes", f"{one['name']}, at the end"),
            ("rest_accuracy", "accuracy on all others", "at the end"),
            ("attack_success", "attack success", "share of the rows that became what the attackers wanted"),
        ):
            if one.get(key) is not None:
                out.append(Key(term, printed(one[key], subject.at(f"attacks.{i}.{key}"), share), note))
    hostile = printed(ruled["hostile_updates"], subject.at("aggregation.hostile_updates"), lambda n: f"{n:.0f}")
    out.append(Key("updates that were none", hostile, "not finite, misshapen or incomplete: left out and counted"))
    return out


def _left_out(subject: Subject, ruled: Mapping[str, Any]) -> Table:
    """How many times clients took part, and how many times their work was left out whole."""
    rows, table = [], []
    for who in ("attackers", "honest"):
        took, left = ruled[who]["took_part"], ruled[who]["left_out"]
        at = subject.at(f"aggregation.{who}.left_out")
        rows.append(
            [
                Cell("attackers" if who == "attackers" else "honest clients"),
                Cell(f"{took:,}"),
                Cell(printed(left, at, lambda n: f"{n:,.0f}")),
                Cell(share(left / took) if took else ""),
            ]
        )
        table.append((who, took, left))
    head = [Cell("who"), Cell("took part"), Cell("left out"), Cell("share")]
    caption = "Who was left out: updates of all rounds that did not count at all"
    return Table(f"{subject.key}-left-out", caption, head, rows, csv_text(("who", "took_part", "left_out"), table))


def _curves(subject: Subject) -> Figure:
    """Accuracy on attacked classes and on the others, round by round."""
    seen = [row for row in subject.rows if row.get("accuracy") is not None]
    series = []
    for style, (key, name) in enumerate(CURVES.items()):
        points = [
            Point(r["round"], r[key], f"round {r['round']}: {name} {share(r[key])}")
            for r in seen
            if r.get(key) is not None
        ]
        if points:
            series.append(Series(name, style, points))
    how = (
        "Accuracy on the test rows of the classes that were attacked, on the others, and on all; test labels are as they are. "
        "The last line, where there is one, is the share of the attacked rows that the model takes for what the attackers wanted."
    )
    text = csv_text(("round", *CURVES), [(r["round"], *(r.get(key) for key in CURVES)) for r in seen])
    draw = partial(_lines, series, "Accuracy on attacked classes and on the others over the rounds")
    return Figure(f"{subject.key}-attacked", "What became of the attacked classes", how, draw, text, (NARROW,))


def _lines(series: Sequence[Series], label: str, width: int) -> str:
    return lines(width, Axis("round", whole=True), Axis("Share of the rows", tick), series, label)
