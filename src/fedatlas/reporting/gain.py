"""The gain of each party: alone, together and pooled, compared for every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from fedatlas.metrics.intervals import over_seeds
from fedatlas.record.run_folder import BASELINES
from fedatlas.reporting.blocks import Block, Cells, Figure, TableBlock, TableCell, Text, lead, notice, optional
from fedatlas.reporting.client_rows import drawn_clients, drawn_note
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots
from fedatlas.reporting.entries import Entry, Plain, Subject
from fedatlas.wording import (
    NAMES,
    PARTS,
    capital,
    count,
    csv_text,
    interval_note,
    interval_text,
    is_spread,
    number,
    signed,
    where,
)

MEANT = {
    "local_only": "the client trains on its own rows only",
    "federated": "the federation of this run",
    "centralised": "a model like the client's, trained on the rows of all clients, as if they could be collected in one place",
}
LISTED, OPEN = 200, 24  # most clients in the table, and most without a fold
ROOM = 8  # most clients, and letters of a name, for names under the picture
NAMED = 30  # most clients shown in their order; more are sorted


class Gains(NamedTuple):
    """Rows written by `fedatlas.runs.baselines`, and the parts they hold."""

    rows: Sequence[Plain]
    parts: Sequence[str]
    summary: Mapping[str, Mapping[str, float | None]]

    @property
    def both(self) -> bool:
        """Return whether training alone and training together can be compared."""
        return "local_only" in self.parts and "federated" in self.parts


def gain_blocks(subject: Subject) -> list[Block]:
    """Return the section of one run."""
    found = subject.summary.get("gain")
    if not found:
        return [notice(_absent(subject)), *_federated(subject)]
    gains = Gains(found["clients"], [part for part in PARTS if part in found["summary"]], found["summary"])
    out = [lead(_verdict(subject, gains)), Text(_method(subject, gains))]
    return [*out, _picture(subject, gains), _table(subject, gains)]


def gain_over(entries: Sequence[Entry]) -> list[Block]:
    """Return the section of several runs: means over the clients of each, and each owner's figures over the seeds."""
    parties = [table for entry in entries if (table := gain_of_parties(entry, len(entries) > 1))]
    hint = Markup("No run here has baselines to compare with: <code>fedatlas run --baselines</code> trains them.")
    return [_means(entries) or notice(hint), *parties]


def _means(entries: Sequence[Entry]) -> TableBlock | None:
    """Return one line per folder: the clients' mean and worst, alone, together and pooled; over seeds, the mean of each."""
    known = [e for e in entries if all(s.summary.get("gain") for s in e.subjects)]
    if not known:
        return None
    parts = [p for p in PARTS if all(p in s.summary["gain"]["summary"] for e in known for s in e.subjects)]
    rows, table = [], []
    alike = len({e.subjects[0].judged_on for e in known}) == 1
    for entry in known:
        rows.append([TableCell(entry.label, "" if alike else f"judged on {entry.subjects[0].judged_on}")])
        for part in parts:
            each = [s.summary["gain"]["summary"][part] for s in entry.subjects]
            mean, worst = (over_seeds([found[k] for found in each]) for k in ("mean", "min"))
            sd = f"sd {number(mean.sd)}; " if mean.sd is not None else ""
            rows[-1].append(TableCell(number(mean.mean), f"{sd}worst {number(worst.mean)}"))
            table.append((entry.label, part, mean.mean, mean.sd, worst.mean, worst.sd, mean.n))
    several = any(len(e.subjects) > 1 for e in known)
    over = "; averages over the seeds (sd: standard deviation between them)" if several else ""
    caption = f"{NAMES[known[0].headline]} over the clients: mean, with the worst client below{over}"
    columns = ("run", "part", "mean", "mean_sd", "worst", "worst_sd", "seeds")
    head = ["run", *(PARTS[p] for p in parts)]
    return TableBlock("gain-runs", capital(caption), head, rows, csv_text(columns, table))


def gain_of_parties(entry: Entry, labelled: bool) -> TableBlock | None:
    """Return each owner's figures over the seeds of one experiment: mean, with the standard deviation below."""
    found = [s.summary["gain"] for s in entry.subjects if s.summary.get("gain")]
    first = entry.subjects[0]
    same = entry.config.partition.name == "natural"  # otherwise client k differs between seeds
    if len(found) < 2 or len(found) < len(entry.subjects) or not same:
        return None
    each = [{row["client"]: row for row in one["clients"]} for one in found]
    parts = [p for p in PARTS if all(p in one["summary"] for one in found)]
    rows, table = [], []
    for k in (k for k in sorted(each[0]) if all(k in one for one in each)):
        values = [[one[k][part]["value"] for one in each] for part in parts]
        values.append([gained(s, one[k]) for s, one in zip(entry.subjects, each, strict=True)])
        if any(v is None for group in values for v in group):
            continue
        spread = [over_seeds(group) for group in values]
        texts = [*[number] * len(parts), signed]
        cells = [TableCell(text(x.mean), f"sd {number(x.sd)}") for text, x in zip(texts, spread, strict=True)]
        rows.append([_named(first, k), *cells])
        table.append((k, first.name(k), *(v for x in spread for v in (x.mean, x.sd))))
    if not rows:
        return None
    columns = ("client", "name", *(f"{part}{end}" for part in (*parts, "gain") for end in ("", "_sd")))
    less = f" (the first {LISTED}; the CSV has all)" if len(rows) > LISTED else ""
    whose = f"{entry.label}: " if labelled else ""
    caption = f"{whose}{capital(NAMES[entry.headline])} of every client{less}, "
    caption += f"mean of {count(len(found), 'seed')}; sd: standard deviation between them"
    folded = f"The table of {count(len(rows), 'client')}" if len(rows) > OPEN else ""
    csv = csv_text(columns, table)
    return TableBlock(f"{entry.key}-gain-parties", caption, _head(first, parts), rows[:LISTED], csv, [], folded)


def _named(subject: Subject, k: int, *notes: str) -> TableCell:
    name = subject.name(k)
    return TableCell(name, ", ".join([*([] if name == str(k) else [f"client {k}"]), *notes]))


def _head(subject: Subject, parts: Sequence[str], gain: bool = True, *between: TableCell) -> list[TableCell]:
    head = [TableCell("client"), *between, *(TableCell(PARTS[p], p.replace("_", " ")) for p in parts)]
    return [*head, TableCell("gain", "less error" if subject.numbers else "")] if gain else head


def _absent(subject: Subject) -> str | Markup:
    if subject.summary["algorithm"] in BASELINES:
        return f"This run is itself a baseline ({subject.summary['algorithm']}): run another algorithm to see what federation adds."
    if "diverged" in subject.summary:
        return "The attackers made the model diverge, so there is no gain to report."
    return Markup(
        "Not measured in this run. To see each client's gain, run again with <code>fedatlas run --baselines</code>, which also "
        "trains every client alone and all rows pooled, and compares the three here."
    )


def _federated(subject: Subject) -> list[Block]:
    """Return each client's figures if there are no baselines, with a table if they differ."""
    rows = subject.summary["per_client"]
    if len({row["value"] for row in rows}) == 1:
        return [
            Text(
                f"All clients use the same model and are judged on the same {where(subject.config)}: "
                f"{NAMES[subject.headline]} {number(rows[0]['value'])} for each."
            )
        ]
    gains = Gains([{**row, "federated": row} for row in rows], ["federated"], {})
    return [_picture(subject, gains), _table(subject, gains)]


def gained(subject: Subject, row: Plain) -> float | None:
    """Return the gain of a client from the federation: accuracy gained over training alone, or error avoided."""
    if "local_only" not in row or "federated" not in row:
        return None
    alone, together = row["local_only"]["value"], row["federated"]["value"]
    if alone is None or together is None:
        return None
    return float(alone - together if subject.numbers else together - alone)


def _certain(row: Plain) -> bool:
    """Return whether the interval of the gain excludes 0."""
    found = row.get("gain")
    return found is not None and bool(found["low"] > 0 or found["high"] < 0)


def _verdict(subject: Subject, gains: Gains) -> Markup | str:
    found = [(v, row) for row in gains.rows if (v := gained(subject, row)) is not None]
    if not found:
        return "The clients' figures with their intervals."
    better, worse = ([row for v, row in found if sign * v > 0] for sign in (1, -1))
    least, row = min(found, key=lambda pair: pair[0])
    who, figure = subject.client(row["client"]), NAMES[subject.headline]
    text = Markup("<b>{} of {} do better together than alone</b>{}. ").format(
        count(len(better)), count(len(found), "client"), _sure(subject, better)
    )
    if not least:
        return text + f"{capital(who)} gains nothing: its {figure} is the same as alone."
    if not worse:
        return (
            text
            + f"The smallest gain is that of {who}: {figure} {number(least)} {'lower' if subject.numbers else 'higher'}."
        )
    than = f"its {figure} is {number(-least)} {'higher' if subject.numbers else 'lower'} than alone"
    return (
        text
        + f"{count(len(worse))} {'does' if len(worse) == 1 else 'do'} worse{_sure(subject, worse)}, most of all {who}: {than}."
    )


def _sure(subject: Subject, rows: Sequence[Plain]) -> str:
    """Return for how many of the clients the difference exceeds the chance in the rows judged on."""
    if not any("gain" in row for row in rows):
        return ""
    sure = sum(map(_certain, rows))
    which = where(subject.config)
    return f" (for {count(sure) if sure else 'none'} of them by more than the choice of {which} can explain)"


def _method(subject: Subject, gains: Gains) -> Markup:
    meant = Markup("; ").join(Markup("<b>{}</b>: {}").format(PARTS[p], MEANT[p]) for p in gains.parts)
    started = "All start from the same model"
    if subject.config.models:
        started = "Each client starts from the model of its architecture, and pooled training from the first of the models; all"
    judged = Markup("{}. {} and are judged by {} on {}.").format(
        meant, started, NAMES[subject.headline], subject.judged_on
    )
    return judged + Markup("").join(Markup(" {}").format(line) for line in _unequal(subject, gains))


def _unequal(subject: Subject, gains: Gains) -> list[str]:
    """Return sentences on the differences in the amount of work between the sides."""
    out: list[str] = []
    if len(gains.parts) == 1:
        return out
    if subject.rows[0]["flops"]:
        out.append(
            "Together began with a set-up before round 1, which the others did not have; its effect counts towards together."
        )
    part = any(row["selected"] is None or len(row["selected"]) < len(gains.rows) for row in subject.rows[1:])
    if part or subject.config.failures.dropout or subject.config.failures.stragglers:
        out.append(
            "Together and pooled, a round trains only the rows of clients that take part and return, as many as they manage; "
            "alone, every client trains in every round."
        )
    return out


def _picture(subject: Subject, gains: Gains) -> Figure:
    title, first = NAMES[subject.headline], PARTS[gains.parts[0]]
    order = [i for i, row in enumerate(gains.rows) if all(row[p]["value"] is not None for p in gains.parts)]
    names, axis, less = column_names(subject, [gains.rows[i]["client"] for i in order]), "client", ""
    if len(order) > NAMED:
        order.sort(key=lambda i: gains.rows[i][gains.parts[0]]["value"])
        names = [str(i + 1) for i in drawn_clients(len(order))]
        axis, less = f"clients, sorted by their {title} {first}", drawn_note(len(order))
        order = [order[i] for i in drawn_clients(len(order))]
    series = [
        Series(PARTS[part], STYLES[part], [_point(subject, slot, gains.rows[i], part) for slot, i in enumerate(order)])
        for part in gains.parts
    ]
    parts = ", ".join(s.label for s in series)
    how = (
        f"One column per client. Marks show {title} {parts}"
        f"{'; the longer the line between alone and together, the larger the effect of federation' if len(series) > 1 else ''}. "
        f"Short vertical lines are 95% intervals, drawn if there is room. {'Lower' if subject.numbers else 'Higher'} is "
        f"better.{less}"
    )
    text = capital(f"{title} of every client{f': {parts}' if len(series) > 1 else ''}")
    join = {s.style for s in series} >= {0, 1}
    draw = partial(dots, names=names, title=axis, y=Axis(capital(title)), series=series, label=text, join=join)
    return Figure(f"{subject.key}-gain", text, how, draw, _csv(subject, gains))


def column_names(subject: Subject, clients: Sequence[int]) -> list[str]:
    """Return the names under the columns: owners' names if all fit, else the clients' numbers."""
    names = [subject.name(k) for k in clients]
    fit = len(names) <= ROOM and all(len(name) <= ROOM for name in names)
    return names if fit else [str(k) for k in clients]


STYLES = {"local_only": 1, "federated": 0, "centralised": 2}


def _point(subject: Subject, slot: int, row: Plain, part: str) -> Point:
    found = row[part]
    span = interval_text(found["low"], found["high"])
    said = f"{subject.client(row['client'])}, {PARTS[part]}: {number(found['value'])}{f' ({span})' if span else ''}"
    return Point(slot, found["value"], said, found["low"], found["high"])


def _table(subject: Subject, gains: Gains) -> TableBlock:
    rows = list(enumerate(gains.rows))
    if gains.both and len(rows) > LISTED:
        rows = sorted(rows, key=lambda pair: gained(subject, pair[1]) or 0.0)[:LISTED]
    root = "gain.clients.{}.{}" if subject.summary.get("gain") else "per_client.{}"
    body: list[Cells] = []
    for i, row in rows:
        cells = [
            TableCell(subject.printed(f"{root.format(i, p)}.value"), interval_note(row[p]["low"], row[p]["high"]))
            for p in gains.parts
        ]
        if gains.both:
            low, high = (row.get("gain", {}).get(end) for end in ("low", "high"))
            ends = interval_text(low, high, signed)
            cells.append(TableCell(signed(gained(subject, row)), ends))
        notes = ["on the common rows"] if subject.own_rows and not row["own_rows"] else []
        body.append([_named(subject, row["client"], *notes), optional(count(row["train_rows"])), *cells])
    head = _head(subject, gains.parts, gains.both, optional("rows"))
    less = f" (the {LISTED} with the smallest gain; the CSV has all)" if len(gains.rows) > LISTED else ""
    title = NAMES[subject.headline]
    paired = (
        f"; below the gain the interval of the difference, bootstrapped over the same {where(subject.config)} for both models"
        if any("gain" in row for row in gains.rows)
        else ""
    )
    caption = f"{capital(title)} of every client{less}, with the 95% bootstrap interval below{paired}"
    folded = f"The table of {count(len(rows), 'client')}" if len(rows) > OPEN else ""
    foot = _foot(subject, gains) if not folded else []
    return TableBlock(f"{subject.key}-gain-table", caption, head, body, _csv(subject, gains), foot, folded)


def _foot(subject: Subject, gains: Gains) -> list[Cells]:
    """Return three figures over the clients, or one where all have the same; for an error the keys are the same.

    See `fedatlas.runs.baselines`.
    """
    if not gains.summary:
        return []
    names = {
        "mean": "mean" if len({row["test_rows"] for row in gains.rows}) == 1 else f"mean, by {where(subject.config)}",
        "p10": "90th percentile" if subject.numbers else "10th percentile",
        "min": "largest" if subject.numbers else "worst client",
    }
    means = {part: {"value": found["mean"]} for part, found in gains.summary.items()}
    last = {"mean": signed(gained(subject, means))}
    told = {part: set(names) if is_spread(found) else {"mean"} for part, found in gains.summary.items()}
    return [
        [
            name,
            optional(""),
            *(subject.printed(f"gain.summary.{p}.{key}") if key in told[p] else "" for p in gains.parts),
            *([last.get(key, "")] if gains.both else []),
        ]
        for key, name in names.items()
        if any(key in keys for keys in told.values())
    ]


def _csv(subject: Subject, gains: Gains) -> str:
    ends = ("value", "low", "high")
    head = [
        "client",
        "name",
        "train_rows",
        "test_rows",
        *(f"{p}{'' if e == 'value' else f'_{e}'}" for p in gains.parts for e in ends),
    ]
    rows = [
        [
            row["client"],
            subject.name(row["client"]),
            row["train_rows"],
            row["test_rows"],
            *(row[p][e] for p in gains.parts for e in ends),
            *([gained(subject, row), *(row.get("gain", {}).get(e) for e in ("low", "high"))] if gains.both else []),
        ]
        for row in gains.rows
    ]
    return csv_text([*head, "gain", "gain_low", "gain_high"] if gains.both else head, rows)
