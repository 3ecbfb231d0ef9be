"""Costs: bytes by direction, seconds by phase, arithmetic, memory; in total, and by round or by tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fedatlas.privacy.mechanism import PHASES as PROTECTED
from fedatlas.reporting.blocks import NARROW, Block, Figure, Figures, TableBlock, Text
from fedatlas.reporting.drawing.charts import Axis, Bars, bars
from fedatlas.reporting.entries import Plain, Subject, value_at
from fedatlas.vertical import SCHEMES
from fedatlas.wording import (
    NOT_TOLD,
    byte_unit,
    bytes_text,
    capital,
    count,
    csv_text,
    flops_text,
    plural,
    printed,
    second_unit,
    seconds_text,
    tick,
    total_of,
)

DIRECTIONS = {
    "bytes_up": "from clients to server",
    "bytes_down": "from server to clients",
    "bytes_peer": "between clients",
}
PROTECTING = tuple(PROTECTED)  # phases of the protection of a round
PHASES = {"train": "training", "evaluate": "evaluating", **PROTECTED}
HIDDEN = (*DIRECTIONS, "flops")  # totals that are hidden if they would reveal how many took part
DRAWN = 150  # most bars; more rounds are averaged in groups


def cost_blocks(subject: Subject) -> list[Block]:
    """Return the section of one run."""
    out: list[Block] = [
        Text(
            "Bytes are the size of the messages in this project's format, before transport overhead. Seconds were measured on one "
            f"machine that simulated all clients; real clients would work at the same time.{_secret(subject)}"
        ),
        _table(subject),
    ]
    if subject.summary["rounds"] > 0:
        told = subject.summary["cost"]["bytes_up"] is not None
        figures = cost_figures(subject, ROUND)
        out.append(Figures(figures if told else figures[1:]))
    return out


def _table(subject: Subject) -> TableBlock:
    cost, rounds, first = subject.summary["cost"], max(subject.summary["rounds"], 1), subject.rows[0]
    visits = sum(_visits(row) for row in subject.rows)
    rows: list[list[str]] = []
    table: list[tuple[object, ...]] = []

    def add(name: str, key: str, text: Callable[[float], str], *, each: bool = False) -> None:
        """Add a line. Its rounds are those from 1, since the set-up before them has a separate line."""
        if key in HIDDEN and cost[key] is None:
            rows.append([name, NOT_TOLD, _expected(subject, key), ""])
            table.append((name, None, None, None))
            return
        total = float(value_at(cost, key) or 0.0)
        spent = total - float(value_at(first, key) or 0.0)
        per_visit = spent / visits if each and visits else None
        told = printed(total, subject.at(f"cost.{key}"), text)
        rows.append([name, told, text(spent / rounds), "" if per_visit is None else text(per_visit)])
        table.append((name, total, spent / rounds, per_visit))

    def once(name: str, said: str, value: float, short: str) -> None:
        rows.append([name, said, "", ""])
        table.append((short, value, None, None))

    for key, name in DIRECTIONS.items():
        if cost[key] or key != "bytes_peer":
            add(f"sent {name}", key, bytes_text, each=True)
    add("time", "seconds", seconds_text)
    for phase in cost["seconds_by_phase"]:
        add(f"of which {phase_name(phase)}", f"seconds_by_phase.{phase}", seconds_text)
    add("floating-point operations", "flops", flops_text, each=True)
    early = total_of(first[key] for key in DIRECTIONS) or 0.0
    if early or first["flops"]:
        said = f"{bytes_text(early)}, {seconds_text(first['seconds'])}"
        once("before round 1, of the bytes and time above", said, early, "bytes before round 1")
    prepared = subject.preprocess.get("bytes_up", 0) + subject.preprocess.get("bytes_down", 0)
    if early and prepared:
        said = bytes_text(prepared)
        once("of these bytes, to prepare the columns", said, prepared, "bytes to prepare the columns")
    peak, memory = "peak memory of the main process", "peak_memory_bytes"
    once(peak, subject.printed(f"cost.{memory}", bytes_text), cost[memory], peak)
    text = csv_text(("what", "total", "per_round", "per_client_and_round"), table)
    head = ["what", "total", "per round", "per client and round"]
    return TableBlock(f"{subject.key}-costs", f"Cost of {count(subject.summary['rounds'], 'round')}", head, rows, text)


def phase_name(name: str) -> str:
    """Return 'training', or the algorithm's name for its task."""
    return PHASES.get(name, f"the task '{name}'")


def _secret(subject: Subject) -> str:
    """Return why figures are missing."""
    if subject.summary["cost"]["bytes_up"] is not None:
        return ""
    return (
        " The number of clients in a round is protected. Bytes and operations would reveal it, so they are not "
        "reported; a simulation keeps them in own-view.jsonl, which must not be shared."
    )


def _expected(subject: Subject, key: str) -> str:
    """Return the expected bytes of a round, if the real ones are hidden."""
    found = subject.summary.get("privacy", {}).get("expected") or {}
    return f"about {bytes_text(found[key] / max(subject.summary['rounds'], 1))} expected" if key in found else ""


def _visits(row: Plain) -> int:
    """Return the number of clients that returned in a round; those of chains are in lists."""
    return sum(len(who) if isinstance(who, list) else 1 for who in row["clients"] or ())


class CostUnit(NamedTuple):
    """A round or a tree, and its words in the figures of its cost."""

    thing: str
    each: str  # in titles
    sent: Mapping[str, str]  # directions and their names
    phase: Callable[[str], str]  # a phase and its name
    most: int  # most phases drawn, the longest ones; the CSV has all
    whose: str = ""  # bytes


ROUND = CostUnit("round", "in each round", DIRECTIONS, phase_name, 99, ", all clients")


def cost_figures(subject: Subject, unit: CostUnit) -> list[Figure]:
    """Return the bytes and seconds of each round or tree, in bars."""
    rows = [row for row in subject.rows if row["round"] > 0] or subject.rows
    sent = {key: [row[key] or 0 for row in rows] for key in unit.sent}
    crossed = {key: name for key, name in unit.sent.items() if any(sent[key])} or dict(list(unit.sent.items())[:1])
    names = dict.fromkeys(phase for row in rows for phase in row["seconds_by_phase"])
    spent = {phase: [row["seconds_by_phase"].get(phase, 0.0) for row in rows] for phase in names}
    longest = sorted(names, key=lambda phase: -sum(spent[phase]))[: unit.most]
    drawn = {phase: unit.phase(phase) for phase in names if phase in longest}
    whole = [row["seconds"] for row in rows]
    parties = plural(subject.config.party)
    crossed = {key: name.replace("clients", parties) for key, name in crossed.items()}
    unit = unit._replace(whose=unit.whose.replace("clients", parties))
    return [
        stacked_bars(
            subject, unit, rows, "bytes", crossed, sent, [sum(each) for each in zip(*sent.values(), strict=True)]
        ),
        stacked_bars(subject, unit, rows, "seconds", drawn, {"seconds": whole, **spent}, whole),
    ]


def stacked_bars(
    subject: Subject,
    unit: CostUnit,
    rows: Sequence[Plain],
    name: str,
    kinds: Mapping[str, str],
    values: Mapping[str, Sequence[float]],
    whole: Sequence[float],
) -> Figure:
    """Draw bars of "bytes" or "seconds", by kind; ``values``: one list over the rows per CSV column; ``whole``: total of each row."""
    size, thing = math.ceil(len(rows) / DRAWN), unit.thing
    groups = [range(at, min(at + size, len(rows))) for at in range(0, len(rows), size)]
    ends = [(rows[group[0]]["round"], rows[group[-1]]["round"]) for group in groups]
    spans = [f"{thing} {a}" if a == b else f"{thing}s {a} to {b}, mean" for a, b in ends]
    scale, text, whose = (byte_unit, bytes_text, unit.whose) if name == "bytes" else (second_unit, seconds_text, "")
    measure, divisor = scale(max(whole))
    stacks = []
    for style, (key, label) in enumerate(kinds.items()):
        means = [math.fsum(values[key][i] for i in group) / len(group) for group in groups]
        tips = [f"{span}, {label}: {text(v)}" for span, v in zip(spans, means, strict=True)]
        stacks.append(Bars(label, style, means, tips))
    y = Axis(f"{measure} per {thing}{whose}", lambda v: tick(v / divisor), divisor)
    title = f"{capital(name)} {unit.each}"
    label = f"{title}: {', '.join(kinds.values())}"
    draw = partial(bars, names=[str(a) for a, _ in ends], title=thing, y=y, stacks=stacks, label=label)
    parts = (
        "; its parts add up to the total"
        if len(kinds) < unit.most
        else f"; only the {unit.most} longest phases are drawn"
    )
    grouped = f" Each bar is the mean of up to {size} {thing}s." if size > 1 else ""
    early = " The set-up before round 1 is not drawn." if subject.rows[0].get("flops") else ""
    csv = csv_text((thing, *values), [(r["round"], *each) for r, *each in zip(rows, *values.values(), strict=True)])
    return Figure(f"{subject.key}-{name}", title, f"One bar per {thing}{parts}.{grouped}{early}", draw, csv, (NARROW,))


# ---------------------------------------------------------------------- parties that hold columns

COLUMN_PHASES = {
    "mask ids": "masking ids",
    "order rows": "drawing the order of rows",
    "mask again": "masking the other's ids",
    "pass on": "masking the others' ids",
    "compare sets": "comparing masked ids",
    "pass back": "returning the answers",
    "match": "finding the common rows",
    "split rows": "drawing test rows",
    "told rows": "telling the others the test rows",
    "judge": "judging",
}
SENT = {"bytes_up": "sent by parties", "bytes_down": "sent to parties"}


def columns_cost_blocks(subject: Subject) -> list[Block]:
    """Return bytes and seconds by phase, for a run of parties that hold columns."""
    s, first = subject.summary, subject.rows[0]
    words = SCHEMES[s["algorithm"]].words
    phases = {**COLUMN_PHASES, **words.phases}
    one = words.product(len(s["class_names"]))
    unit = CostUnit(one, f"of each {one}", SENT, lambda phase: phases.get(phase, phase), 5)
    spent = s["cost"]["seconds_by_phase"]
    lines = [
        *([name, subject.printed(f"cost.{key}", bytes_text)] for key, name in SENT.items()),
        [
            f"of these, {'alignment and ' if 'align' in s else ''}set-up",
            bytes_text(first["bytes_up"] + first["bytes_down"]),
        ],
        ["time", subject.printed("cost.seconds", seconds_text)],
        *([f"of which {phases.get(p, p)}", seconds_text(v)] for p, v in spent.items()),
        *([name, f"{n:,}"] for name, n in s.get("counts", {}).items() if n),
    ]
    text = csv_text(("phase", "seconds"), list(spent.items()))
    table = TableBlock("costs", f"Cost of {count(s['rounds'], 'round')}", ["what", "total"], lines, text)
    said = (
        "Bytes are the size of the messages, each counted on its way to the coordinator and on its way from it. Seconds were measured on "
        "one machine that simulated all parties, one after another."
    )
    return [Text(said), table, Figures(cost_figures(subject, unit)[::-1])]
