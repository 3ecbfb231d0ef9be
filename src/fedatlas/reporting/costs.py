"""What it cost: bytes by direction, seconds by phase, arithmetic, memory; in all and round by round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from fedatlas.reporting.blocks import NARROW, Block, Cell, Figure, Figures, Table, Text
from fedatlas.reporting.drawing.charts import Axis, Bars, bars
from fedatlas.reporting.entries import Plain, Subject
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
PROTECTED = {
    "keys": "making and exchanging keys",
    "noise": "clipping and noise at the clients",
    "mask": "masking",
    "encrypt": "encrypting",
    "aggregate": "the server's arithmetic",
    "decrypt": "opening the sum",
    "unmask": "handing over shares of the masks",
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
    cost, rounds = subject.summary["cost"], max(subject.summary["rounds"], 1)
    visits = sum(_visits(row) for row in subject.rows)
    rows: list[list[Cell]] = []
    table: list[tuple[object, ...]] = []

    def add(name: str, key: str, text: Callable[[float], str], *, each: bool = False) -> None:
        """Rounds are those from 1: what came before them stands in a line of its own."""
        total, before = _at(cost, key), _at(subject.rows[0], key)
        if key in HIDDEN and cost[key] is None:
            rows.append([Cell(name), Cell(NOT_TOLD), Cell(_expected(subject, key)), Cell("")])
            table.append((name, None, None, None))
            return
        spent = total - before
        per_visit = text(spent / visits) if each and visits else ""
        rows.append(
            [
                Cell(name),
                Cell(printed(total, subject.at(f"cost.{key}"), text)),
                Cell(text(spent / rounds)),
                Cell(per_visit),
            ]
        )
        table.append((name, total, spent / rounds, spent / visits if each and visits else None))

    for key, name in DIRECTIONS.items():
        if cost[key] or key != "bytes_peer":
            add(f"sent {name}", key, bytes_text, each=True)
    add("time", "seconds", seconds_text)
    for phase in cost["seconds_by_phase"]:
        add(f"of which {phase_name(phase)}", f"seconds_by_phase.{phase}", seconds_text)
    add("floating-point operations", "flops", flops_text, each=True)
    first = subject.rows[0]
    early = total_of(first[key] for key in DIRECTIONS) or 0.0
    if early or first["flops"]:
        said = f"{bytes_text(early)}, {seconds_text(first['seconds'])}"
        rows.append([Cell("before round 1, of the bytes and time above"), Cell(said), Cell(""), Cell("")])
        table.append(("bytes before round 1", early, None, None))
    prepared = subject.preprocess.get("bytes_up", 0) + subject.preprocess.get("bytes_down", 0)
    if early and prepared:
        rows.append([Cell("of these bytes, to prepare the columns"), Cell(bytes_text(prepared)), Cell(""), Cell("")])
        table.append(("bytes to prepare the columns", prepared, None, None))
    memory = printed(cost["peak_memory_bytes"], subject.at("cost.peak_memory_bytes"), bytes_text)
    rows.append([Cell("peak memory of the main process"), Cell(memory), Cell(""), Cell("")])
    table.append(("peak memory of the main process", cost["peak_memory_bytes"], None, None))
    head = [Cell("what"), Cell("in all"), Cell("per round"), Cell("per client and round")]
    text = csv_text(("what", "total", "per_round", "per_client_and_round"), table)
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


def _at(held: Plain, path: str) -> float:
    """The figure under a dotted path; nothing where it is absent."""
    first, _, rest = path.partition(".")
    return _at(held[first], rest) if rest else float(held.get(first) or 0.0)


def _visits(row: Plain) -> int:
    """Clients that returned in a round; those of chains lie in lists."""
    return sum(len(who) if isinstance(who, list) else 1 for who in row["clients"] or ())


def _grouped(rows: Sequence[Plain]) -> list[Sequence[Plain]]:
    size = math.ceil(len(rows) / DRAWN)
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _bytes(subject: Subject) -> Figure:
    rows = [row for row in subject.rows if row["round"] > 0]
    kinds = [key for key in DIRECTIONS if any(row[key] for row in rows)] or ["bytes_up"]
    values = {key: [[float(row[key]) for row in group] for group in _grouped(rows)] for key in kinds}
    most = max((sum(row[key] for key in kinds) for row in rows), default=0)
    unit, size = byte_unit(most)
    axis = Axis(f"{unit} a round, all clients", lambda v: tick(v / size), size)
    table = [(row["round"], *(row[key] for key in DIRECTIONS)) for row in rows]
    text = csv_text(("round", *DIRECTIONS), table)
    names = {key: DIRECTIONS[key] for key in kinds}
    return _figure(subject, "bytes", "Bytes in each round", names, values, axis, bytes_text, text)


def _seconds(subject: Subject) -> Figure:
    rows = [row for row in subject.rows if row["round"] > 0]
    phases = list(dict.fromkeys(phase for row in rows for phase in row["seconds_by_phase"]))
    values = {p: [[row["seconds_by_phase"].get(p, 0.0) for row in group] for group in _grouped(rows)] for p in phases}
    unit, size = second_unit(max((row["seconds"] for row in rows), default=0.0))
    axis = Axis(f"{unit} a round", lambda v: tick(v / size), size)
    table = [(row["round"], row["seconds"], *(row["seconds_by_phase"].get(p, 0.0) for p in phases)) for row in rows]
    text = csv_text(("round", "seconds", *phases), table)
    return _figure(
        subject,
        "seconds",
        "Seconds in each round",
        {p: phase_name(p) for p in phases},
        values,
        axis,
        seconds_text,
        text,
    )


def _figure(
    subject: Subject,
    name: str,
    title: str,
    kinds: Plain,
    values: dict[str, list[list[float]]],
    y: Axis,
    text: Callable[[float], str],
    csv: str,
) -> Figure:
    rounds = [[row["round"] for row in group] for group in _grouped([row for row in subject.rows if row["round"] > 0])]
    spans = [f"round {r[0]}" if len(r) == 1 else f"rounds {r[0]} to {r[-1]}, mean" for r in rounds]
    stacks = []
    for style, (key, label) in enumerate(kinds.items()):
        means = [math.fsum(group) / len(group) for group in values[key]]
        tips = [f"{span}, {label}: {text(v)}" for span, v in zip(spans, means, strict=True)]
        stacks.append(Bars(label, style, means, tips))
    grouped = f" Each bar is the mean of up to {len(rounds[0])} rounds." if len(rounds[0]) > 1 else ""
    early = " What the set-up before round 1 took is not drawn." if subject.rows[0]["flops"] else ""
    how = f"One bar a round; its parts add up to the whole.{grouped}{early}"
    draw = partial(_draw, [str(r[0]) for r in rounds], y, stacks, f"{title}: {', '.join(kinds.values())}")
    return Figure(f"{subject.key}-{name}", title, how, draw, csv, (NARROW,))


def _draw(names: Sequence[str], y: Axis, stacks: Sequence[Bars], label: str, width: int) -> str:
    return bars(width, names, "round", y, stacks, label)
