"""Costs: bytes by direction, seconds by phase, arithmetic, memory; in all, and by round or by tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedatlas.privacy.mechanism import PHASES as PROTECTED
from fedatlas.reporting.blocks import NARROW, Block, Figure, Figures, Table, Text
from fedatlas.reporting.drawing.charts import Axis, Bars, bars
from fedatlas.reporting.entries import Plain, Subject, value_at
from fedatlas.wording import (
    NOT_TOLD,
    byte_unit,
    bytes_text,
    count,
    csv_text,
    flops_text,
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
PROTECTING = tuple(PROTECTED)  # phases of what protects a round
PHASES = {"train": "training", "evaluate": "evaluating", **PROTECTED}
HIDDEN = (*DIRECTIONS, "flops")  # totals that are not told where they would show how many took part
DRAWN = 150  # bars; more rounds are averaged in groups


def cost_blocks(subject: Subject) -> list[Block]:
    """The section of one run."""
    out: list[Block] = [
        Text(
            "Bytes are the size of the messages in this project's format, before what a transport adds. Seconds were measured on one "
            f"machine that played all the clients; real ones would work at the same time.{_secret(subject)}"
        ),
        _table(subject),
    ]
    if subject.summary["rounds"] > 0:
        told = subject.summary["cost"]["bytes_up"] is not None
        out.append(Figures([*([_bytes(subject)] if told else []), _seconds(subject)]))
    return out


def _table(subject: Subject) -> Table:
    cost, rounds, first = subject.summary["cost"], max(subject.summary["rounds"], 1), subject.rows[0]
    visits = sum(_visits(row) for row in subject.rows)
    rows: list[list[str]] = []
    table: list[tuple[object, ...]] = []

    def add(name: str, key: str, text: Callable[[float], str], *, each: bool = False) -> None:
        """Rounds are those from 1: what came before them stands in a line of its own."""
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
    head = ["what", "in all", "per round", "per client and round"]
    return Table(f"{subject.key}-costs", f"Cost of {count(subject.summary['rounds'], 'round')}", head, rows, text)


def phase_name(name: str) -> str:
    """'training', or what the algorithm calls its task."""
    return PHASES.get(name, f"the task '{name}'")


def _secret(subject: Subject) -> str:
    """Why figures are missing."""
    if subject.summary["cost"]["bytes_up"] is not None:
        return ""
    return (
        " Who takes part in a round is part of what was protected: bytes and operations would show how many they were, so they are not "
        "told; a simulation keeps them in own-view.jsonl, which is not to be handed on."
    )


def _expected(subject: Subject, key: str) -> str:
    """What is to be expected of bytes in a round that are not told."""
    found = subject.summary.get("privacy", {}).get("expected") or {}
    return f"about {bytes_text(found[key] / max(subject.summary['rounds'], 1))} expected" if key in found else ""


def _visits(row: Plain) -> int:
    """Clients that returned in a round; those of chains lie in lists."""
    return sum(len(who) if isinstance(who, list) else 1 for who in row["clients"] or ())


def _rounds(subject: Subject) -> Sequence[Plain]:
    return [row for row in subject.rows if row["round"] > 0] or subject.rows


def _bytes(subject: Subject) -> Figure:
    rows = _rounds(subject)
    kinds = {key: name for key, name in DIRECTIONS.items() if any(row[key] for row in rows)}
    kinds = kinds or {"bytes_up": DIRECTIONS["bytes_up"]}
    text = csv_text(("round", *DIRECTIONS), [(row["round"], *(row[key] for key in DIRECTIONS)) for row in rows])
    values = {key: [float(row[key]) for row in rows] for key in kinds}
    return _by_round(subject, "bytes", "Bytes in each round", kinds, values, text)


def _seconds(subject: Subject) -> Figure:
    rows = _rounds(subject)
    spent = _phases(rows)
    table = [(row["round"], row["seconds"], *each) for row, *each in zip(rows, *spent.values(), strict=True)]
    text = csv_text(("round", "seconds", *spent), table)
    kinds = {phase: phase_name(phase) for phase in spent}
    return _by_round(subject, "seconds", "Seconds in each round", kinds, spent, text)


def _by_round(
    subject: Subject, name: str, title: str, kinds: Mapping[str, str], values: Mapping[str, Sequence[float]], csv: str
) -> Figure:
    early = " What the set-up before round 1 took is not drawn." if subject.rows[0]["flops"] else ""
    how = f"One bar a round; its parts add up to the whole.{{grouped}}{early}"
    whose = ", all clients" if name == "bytes" else ""
    figure = stacked(
        _rounds(subject), name, title, how, kinds, values, csv, "round", whose, f": {', '.join(kinds.values())}"
    )
    return figure._replace(id=f"{subject.key}-{name}")


def stacked(
    rows: Sequence[Plain],
    name: str,
    title: str,
    how: str,
    kinds: Mapping[str, str],
    values: Mapping[str, Sequence[float]],
    csv: str,
    thing: str,
    whose: str = "",
    parts: str = "",
) -> Figure:
    """Bars of each round or tree (``thing``): ``values`` of a row by kind, named by ``kinds``; of "bytes", or of "seconds"."""
    unit_of, text = (byte_unit, bytes_text) if name == "bytes" else (second_unit, seconds_text)
    size = math.ceil(len(rows) / DRAWN)
    groups = [range(at, min(at + size, len(rows))) for at in range(0, len(rows), size)]
    ends = [(rows[group[0]]["round"], rows[group[-1]]["round"]) for group in groups]
    spans = [f"{thing} {a}" if a == b else f"{thing}s {a} to {b}, mean" for a, b in ends]
    stacks = []
    for style, (key, label) in enumerate(kinds.items()):
        means = [math.fsum(values[key][i] for i in group) / len(group) for group in groups]
        tips = [f"{span}, {label}: {text(v)}" for span, v in zip(spans, means, strict=True)]
        stacks.append(Bars(label, style, means, tips))
    unit, divisor = unit_of(
        max(row["seconds"] if name == "seconds" else sum(row[key] for key in kinds) for row in rows)
    )
    y = Axis(f"{unit} a {thing}{whose}", lambda v: tick(v / divisor), divisor)
    draw = partial(bars, names=[str(a) for a, _ in ends], title=thing, y=y, stacks=stacks, label=title + parts)
    grouped = f" Each bar is the mean of up to {size} {thing}s." if size > 1 else ""
    return Figure(name, title, how.format(grouped=grouped), draw, csv, (NARROW,))


def _phases(rows: Sequence[Plain]) -> dict[str, list[float]]:
    """phase -> its seconds in each row."""
    names = dict.fromkeys(phase for row in rows for phase in row["seconds_by_phase"])
    return {phase: [row["seconds_by_phase"].get(phase, 0.0) for row in rows] for phase in names}


# ---------------------------------------------------------------------- parties that hold columns

TREE_PHASES = {
    "mask ids": "masking ids",
    "mask again": "masking the other's ids",
    "pass on": "masking the others' ids",
    "pass back": "handing the answers back",
    "match": "finding the common rows",
    "split rows": "drawing test rows",
    "told rows": "telling the others the test rows",
    "bins": "cutting columns into bins",
    "start": "beginning",
    "keys": "making the key",
    "gradients": "forming g and h, and encrypting them",
    "histogram": "adding up histograms",
    "open": "opening sums and choosing splits",
    "split": "splitting nodes",
    "leaves": "settling leaves",
    "judge": "judging",
}
SENT = {"bytes_up": "sent by parties", "bytes_down": "sent to parties"}
LARGEST = 5  # phases whose seconds are drawn by tree; the table has all


def columns_cost_blocks(subject: Subject) -> list[Block]:
    """Bytes and seconds by phase, of a run of parties that hold columns."""
    s, first, rows = subject.summary, subject.rows[0], _rounds(subject)
    spent = s["cost"]["seconds_by_phase"]
    lines = [
        *([name, subject.printed(f"cost.{key}", bytes_text)] for key, name in SENT.items()),
        ["of these, alignment and set-up", bytes_text(first["bytes_up"] + first["bytes_down"])],
        ["time", subject.printed("cost.seconds", seconds_text)],
        *([f"of which {TREE_PHASES.get(p, p)}", seconds_text(v)] for p, v in spent.items()),
        *([name, f"{n:,}"] for name, n in s["counts"].items() if n),
    ]
    text = csv_text(("phase", "seconds"), list(spent.items()))
    table = Table("costs", f"Cost of {count(max(len(s['trees']), 1), 'tree')}", ["what", "in all"], lines, text)
    said = (
        "Bytes are the size of the messages, each counted on its way to the coordinator and on its way from it. Seconds were measured on "
        "one machine that played all parties, one after another."
    )
    phases = _phases(rows)
    most = sorted(sorted(phases, key=lambda p: -sum(phases[p]))[:LARGEST], key=list(phases).index)
    which = "all" if len(most) == len(phases) else "the longest"
    numbers = [row["round"] for row in rows]
    seconds = stacked(
        rows,
        "seconds",
        "Seconds of each tree",
        f"One bar a tree, of {which} phases.{{grouped}}",
        {p: TREE_PHASES.get(p, p) for p in most},
        phases,
        csv_text(("tree", *phases), list(zip(numbers, *phases.values(), strict=True))),
        "tree",
    )
    crossed = {key: [float(row[key]) for row in rows] for key in SENT}
    table_of = csv_text(("tree", *SENT), [(row["round"], *(row[key] for key in SENT)) for row in rows])
    how = "One bar a tree, both directions.{grouped}"
    sizes = stacked(rows, "bytes", "Bytes of each tree", how, SENT, crossed, table_of, "tree")
    return [Text(said), table, Figures([seconds, sizes])]
