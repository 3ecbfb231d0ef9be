"""The gain of each party: alone, together and pooled, compared for every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.metric import METRICS
from fedatlas.record.run_folder import BASELINES
from fedatlas.reporting.blocks import Block, Cells, Figure, TableBlock, TableCell, Text, lead, notice, optional
from fedatlas.reporting.client_rows import drawn_clients, drawn_note
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots
from fedatlas.reporting.entries import Entry, Plain, Subject
from fedatlas.verdict.answer import of_plain
from fedatlas.verdict.whom import whom_text
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
    plural,
    signed,
    where,
)

MEANT = {
    "local_only": "the {party} trains on its own rows only",
    "federated": "the federation of this run",
    "centralised": "a model like the {party}'s, trained on the rows of all {parties}, as if they could be collected in one place",
}
LISTED, OPEN = 200, 24  # most clients in the table, and most without a fold
NAMED = 30  # most clients shown in their order; more are sorted


class Gains(NamedTuple):
    """The figures of each client: as written by `fedatlas.runs.baselines`, or by the run's metric."""

    rows: Sequence[Plain]
    parts: Sequence[str]
    summary: Mapping[str, Mapping[str, float | None]]
    words: str  # the figure's name
    lower: bool  # whether less of it is better
    root: str  # place of a client's figure in summary.json, from its number among the rows and its part
    judged_on: str  # the rows

    @property
    def both(self) -> bool:
        """Return whether training alone and training together can be compared."""
        return "local_only" in self.parts and "federated" in self.parts


def gain_blocks(subject: Subject) -> list[Block]:
    """Return the section of one run."""
    if not subject.summary.get("gain"):
        return [notice(_absent(subject)), *_federated(subject)]
    gains = gains_of(subject)
    return [*_verdict(subject, gains), Text(_method(subject, gains)), _picture(subject, gains), _table(subject, gains)]


def gains_of(subject: Subject) -> Gains:
    """Return the figures by the run's metric, on clients' own test rows if there are any."""
    found = subject.summary["gain"]
    parts, by = [part for part in PARTS if part in found["summary"]], found.get("metric")
    own = by is not None and any(one["own"] for one in by["clients"])
    if by is None or (by["name"] == subject.headline and not (own and not subject.own_rows)):
        words, lower, rows = NAMES[subject.headline], subject.numbers, _as_answered(subject, found["clients"])
        return Gains(rows, parts, found["summary"], words, lower, "gain.clients.{}.{}", subject.judged_on)
    metric = METRICS[by["name"]]
    rows = [_by_metric(row, one, parts, own) for row, one in zip(found["clients"], by["clients"], strict=True)]
    root = "gain.metric.clients.{}.own.{}" if own else "gain.metric.clients.{}.{}"
    judged = f"each {subject.config.party}'s own {where(subject.config)}" if own else subject.judged_on
    return Gains(_as_answered(subject, rows), parts, {}, metric.words, metric.lower_is_better, root, judged)


def _as_answered(subject: Subject, rows: Sequence[Plain]) -> Sequence[Plain]:
    """Return the rows with the answer's intervals, if it names clients, so that a page states one interval per gain."""
    found = {one["client"]: one["gain"] for one in subject.summary.get("answer", {}).get("parties", ())}
    if not found:
        return rows
    nothing = {"low": None, "high": None}
    return [
        {**row, "gain": {**row["gain"], **(found.get(row["client"]) or nothing)}} if "gain" in row else row
        for row in rows
    ]


def _by_metric(row: Plain, one: Plain, parts: Sequence[str], own: bool) -> Plain:
    """Return a client's row with its figures by the metric: on its own rows, or on those it is judged on."""
    held = one["own"] if own else {"test_rows": row["test_rows"], **one}
    nothing = dict.fromkeys(("value", "low", "high"))
    figures = {part: nothing if held is None else held[part] for part in parts}
    gain = None if held is None else held["gain"]
    known = {"gain": gain} if gain is not None and gain["value"] is not None else {}
    rows = {"test_rows": 0 if held is None else held["test_rows"], "own_rows": own and held is not None}
    return {**{key: row[key] for key in ("client", "train_rows")}, **rows, **figures, **known}


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
            each = [_spread_of(gains_of(s), part) for s in entry.subjects]
            mean, worst = (over_seeds([found[k] for found in each]) for k in ("mean", "min"))
            sd = f"sd {number(mean.sd)}; " if mean.sd is not None else ""
            rows[-1].append(TableCell(number(mean.mean), f"{sd}worst {number(worst.mean)}"))
            table.append((entry.label, part, mean.mean, mean.sd, worst.mean, worst.sd, mean.n))
    several = any(len(e.subjects) > 1 for e in known)
    over = "; averages over the seeds (sd: standard deviation between them)" if several else ""
    words = gains_of(known[0].subjects[0]).words
    caption = f"{words} over the {plural(known[0].config.party)}: mean, with the worst one below{over}"
    columns = ("run", "part", "mean", "mean_sd", "worst", "worst_sd", "seeds")
    head = ["run", *(PARTS[p] for p in parts)]
    return TableBlock("gain-runs", capital(caption), head, rows, csv_text(columns, table))


def _spread_of(gains: Gains, part: str) -> Mapping[str, float | None]:
    """Return mean and worst figure over the clients.

    The mean is weighted by test rows if they are judged on their own rows.
    """
    if gains.summary:
        return gains.summary[part]
    known = [(row["test_rows"], row[part]["value"]) for row in gains.rows if row[part]["value"] is not None]
    total = sum(n for n, _ in known)
    if not total:
        return {"mean": None, "min": None}
    worst = (max if gains.lower else min)(value for _, value in known)
    return {"mean": sum(n * value for n, value in known) / total, "min": worst}


def gain_of_parties(entry: Entry, labelled: bool) -> TableBlock | None:
    """Return each owner's figures over the seeds of one experiment: mean, with the standard deviation below."""
    found = [gains_of(s) for s in entry.subjects if s.summary.get("gain")]
    first = entry.subjects[0]
    same = entry.config.partition.name == "natural"  # otherwise client k differs between seeds
    if len(found) < 2 or len(found) < len(entry.subjects) or not same:
        return None
    each = [{s.name(row["client"]): row for row in g.rows} for s, g in zip(entry.subjects, found, strict=True)]
    parts = [p for p in PARTS if all(p in one.parts for one in found)]
    rows, table = list[Cells](), list[tuple[object, ...]]()
    common = [k for k in each[0] if all(k in one for one in each)]  # names: client k may differ in the next seed
    for k in sorted(common, key=lambda k: int(each[0][k]["client"])):
        values = [[one[k][part]["value"] for one in each] for part in parts]
        values.append([gained(s, one[k]) for s, one in zip(entry.subjects, each, strict=True)])
        if any(v is None for group in values for v in group):
            continue
        spread = [over_seeds(group) for group in values]
        texts, judged = [*[number] * len(parts), signed], over_seeds([one[k]["test_rows"] for one in each]).mean
        cells = [TableCell(text(x.mean), f"sd {number(x.sd)}") for text, x in zip(texts, spread, strict=True)]
        client = each[0][k]["client"]
        rows.append([_named(first, client), count(round(judged or 0)), *cells])
        table.append((client, k, judged, *(v for x in spread for v in (x.mean, x.sd))))
    if not rows:
        return None
    columns = ("client", "name", "test_rows", *(f"{part}{end}" for part in (*parts, "gain") for end in ("", "_sd")))
    less = f" (the first {LISTED}; the CSV has all)" if len(rows) > LISTED else ""
    whose, party = f"{entry.label}: " if labelled else "", first.config.party
    caption = f"{whose}{capital(found[0].words)} of every {party}{less}, "
    caption += f"mean of {count(len(found), 'seed')}; sd: standard deviation between them"
    folded = f"The table of {count(len(rows), party)}" if len(rows) > OPEN else ""
    head = _head(first, parts, True, TableCell(where(first.config)))
    return TableBlock(f"{entry.key}-gain-parties", caption, head, rows[:LISTED], csv_text(columns, table), [], folded)


def _named(subject: Subject, k: int, *notes: str) -> TableCell:
    name = subject.name(k)
    return TableCell(name, ", ".join([*([] if name == str(k) else [f"{subject.config.party} {k}"]), *notes]))


def _head(subject: Subject, parts: Sequence[str], gain: bool = True, *between: TableCell) -> list[TableCell]:
    head = [TableCell(subject.config.party), *between, *(TableCell(PARTS[p], p.replace("_", " ")) for p in parts)]
    return [*head, TableCell("gain", "less error" if subject.numbers else "")] if gain else head


def _absent(subject: Subject) -> str | Markup:
    if subject.summary["algorithm"] in BASELINES:
        return f"This run is itself a baseline ({subject.summary['algorithm']}): run another algorithm to see what federation adds."
    if "diverged" in subject.summary:
        return "The attackers made the model diverge, so there is no gain to report."
    if subject.summary.get("answer", {}).get("asked", {}).get("judge"):
        return "Not measured: nobody trains alone in a deployed run."
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
    words, lower = NAMES[subject.headline], subject.numbers
    rows = [{**row, "federated": row} for row in rows]
    gains = Gains(rows, ["federated"], {}, words, lower, "per_client.{}", subject.judged_on)
    return [_picture(subject, gains), _table(subject, gains)]


def gained(subject: Subject, row: Plain) -> float | None:
    """Return the gain of a client from the federation: accuracy gained over training alone, or error avoided."""
    if "value" in (row.get("gain") or {}):
        return float(row["gain"]["value"])
    if "local_only" not in row or "federated" not in row:
        return None
    alone, together = row["local_only"]["value"], row["federated"]["value"]
    if alone is None or together is None:
        return None
    return float(alone - together if subject.numbers else together - alone)


def _verdict(subject: Subject, gains: Gains) -> list[Block]:
    """Return for whom federation is certain to help, in the words of the answer, so that the two agree."""
    found = subject.summary.get("answer")
    said = whom_text(of_plain(found)) if found and gains.both else ""
    return [lead(f"{capital(said)}.")] if said else []


def _method(subject: Subject, gains: Gains) -> Markup:
    party, parties = subject.config.party, plural(subject.config.party)
    meant = Markup("; ").join(
        Markup("<b>{}</b>: {}").format(PARTS[p], MEANT[p].format(party=party, parties=parties)) for p in gains.parts
    )
    started = "All start from the same model"
    if subject.config.models:
        started = "Each client starts from the model of its architecture, and pooled training from the first of the models; all"
    judged = Markup("{}. {} and are judged by {} on {}.").format(meant, started, gains.words, gains.judged_on)
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
    title, first, party = gains.words, PARTS[gains.parts[0]], subject.config.party
    order = [i for i, row in enumerate(gains.rows) if all(row[p]["value"] is not None for p in gains.parts)]
    names, axis, less = [subject.name(gains.rows[i]["client"]) for i in order], party, ""
    if len(order) > NAMED:
        order.sort(key=lambda i: gains.rows[i][gains.parts[0]]["value"])
        names = [str(i + 1) for i in drawn_clients(len(order))]
        axis, less = f"{plural(party)}, sorted by their {title} {first}", drawn_note(len(order), party)
        order = [order[i] for i in drawn_clients(len(order))]
    series = [
        Series(PARTS[part], STYLES[part], [_point(subject, slot, gains.rows[i], part) for slot, i in enumerate(order)])
        for part in gains.parts
    ]
    parts = ", ".join(s.label for s in series)
    how = (
        f"One column per {party}. Marks show {title} {parts}"
        f"{'; the longer the line between alone and together, the larger the effect of federation' if len(series) > 1 else ''}. "
        f"Short vertical lines are 95% intervals, drawn if there is room. {'Lower' if gains.lower else 'Higher'} is "
        f"better.{less}"
    )
    text = capital(f"{title} of every {party}{f': {parts}' if len(series) > 1 else ''}")
    join = {s.style for s in series} >= {0, 1}
    draw = partial(dots, names=names, title=axis, y=Axis(capital(title)), series=series, label=text, join=join)
    return Figure(f"{subject.key}-gain", text, how, draw, _csv(subject, gains))


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
    body: list[Cells] = []
    for i, row in rows:
        cells = [
            TableCell(subject.printed(f"{gains.root.format(i, p)}.value"), interval_note(row[p]["low"], row[p]["high"]))
            for p in gains.parts
        ]
        if gains.both:
            low, high = (row.get("gain", {}).get(end) for end in ("low", "high"))
            ends = interval_text(low, high, signed)
            cells.append(TableCell(signed(gained(subject, row)), ends))
        notes = ["on the common rows"] if subject.own_rows and not row["own_rows"] else []
        counts = optional(count(row["train_rows"])), count(row["test_rows"])
        body.append([_named(subject, row["client"], *notes), *counts, *cells])
    head = _head(subject, gains.parts, gains.both, optional("rows"), TableCell(where(subject.config)))
    less = f" (the {LISTED} with the smallest gain; the CSV has all)" if len(gains.rows) > LISTED else ""
    title, party = gains.words, subject.config.party
    answered = bool(subject.summary.get("answer", {}).get("parties"))
    paired = (
        "; below the gain its interval, as in the answer"
        if answered and gains.both
        else f"; below the gain the interval of the difference, bootstrapped over the same {where(subject.config)} for both models"
        if any("gain" in row for row in gains.rows)
        else ""
    )
    caption = f"{capital(title)} of every {party}{less}, with the 95% bootstrap interval below{paired}"
    folded = f"The table of {count(len(rows), party)}" if len(rows) > OPEN else ""
    foot = _foot(subject, gains) if not folded else []
    return TableBlock(f"{subject.key}-gain-table", caption, head, body, _csv(subject, gains), foot, folded)


def _foot(subject: Subject, gains: Gains) -> list[Cells]:
    """Return three figures over the clients, or one if all have the same. For an error the keys are the same.

    See `fedatlas.runs.baselines`.
    """
    if not gains.summary:
        return _mean_foot(subject, gains)
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
            "",
            *(subject.printed(f"gain.summary.{p}.{key}") if key in told[p] else "" for p in gains.parts),
            *([last.get(key, "")] if gains.both else []),
        ]
        for key, name in names.items()
        if any(key in keys for keys in told.values())
    ]


def _mean_foot(subject: Subject, gains: Gains) -> list[Cells]:
    """Return the means of the answer, over the clients that have the figure."""
    found = subject.summary.get("answer")
    if not found or not gains.both:
        return []
    values = {"local_only": found["alone"], "federated": found["together"]}
    gain = signed(found["gain"]["value"]) if found["gain"] else ""
    name = f"mean, by {where(subject.config)}"
    return [
        [
            name,
            optional(""),
            count(found.get("mean_rows") or found["test_rows"]),
            *(number(values[p]) if p in values else "" for p in gains.parts),
            gain,
        ]
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
