"""The rows of every client: classes or targets, numbers, and the client's weight in the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from fedatlas.reporting.blocks import Block, Figure, TableBlock, TableCell, Text
from fedatlas.reporting.drawing.charts import Axis, Bars, Point, Series, Shaded, bars, dots, heat, shaded
from fedatlas.reporting.entries import Subject
from fedatlas.reporting.uncovered import of_held_rows
from fedatlas.wording import count, csv_text, held_text, number, share

DRAWN = 240  # most clients drawn with one column each
ROUNDS_DRAWN = 6000  # most cells of client x round drawn
ALIKE = 1.02  # ratio of largest to smallest below which a picture would show nothing


NAMED = 60  # most clients named in a sentence


def held_blocks(subject: Subject) -> list[Block]:
    """Return the section of one run."""
    facts = subject.summary["partition_facts"]
    out: list[Block] = [Text(_sentence(subject)), *map(Text, of_held_rows(subject))]
    if "histogram" in facts:
        out.append(_classes(subject))
    if "target_mean" in facts:
        out.append(_targets(subject))
    out += [_sizes(subject)] if max(facts["sizes"]) > ALIKE * min(facts["sizes"]) else []
    return [*out, *_shared(subject), _table(subject), *weight_blocks(subject)]


def _shared(subject: Subject) -> list[Block]:
    """Return which clients share a model or are grouped."""
    found, groups = subject.summary.get("clusters"), subject.summary.get("groups")
    if found:
        members: dict[int, list[str]] = {}
        for k, cluster in found["assignment"].items():
            members.setdefault(cluster, []).append(k)
        who = "; ".join(f"cluster {cluster}: {_listed(members[cluster])}" for cluster in sorted(members))
        return [Text(f"At the end the clients share {count(found['number'], 'model')}: {who}.")]
    if groups:
        sizes = [len(group) for group in groups]
        who = "; ".join(map(_listed, groups)) if sum(sizes) <= NAMED else f"of {min(sizes)} to {max(sizes)}"
        return [
            Text(
                f"The clients form {count(len(groups), 'superclient')}; a model is trained through each in a chain: {who}."
            )
        ]
    return []


def _listed(clients: Sequence[object]) -> str:
    """Return '0, 3, 5', or the number of clients if they are too many to list."""
    return ", ".join(map(str, clients)) if len(clients) <= NAMED else count(len(clients), "client")


def _sentence(subject: Subject) -> str:
    facts, held = subject.summary["partition_facts"], subject.partition
    text = f"{count(facts['clients'], subject.config.party)} held {held_text(facts['sizes'])}, {count(sum(facts['sizes']), 'row')} in all"
    if facts["left_out"]:
        text += f"; {count(facts['left_out'], 'row')} went to no client"
    text += f". The split is '{subject.summary['partition']}'. "
    if "tv_mean" in facts:
        text += (
            f"On average a client's mix of classes is {share(facts['tv_mean'])} away from the mix of all rows (total variation "
            f"distance: the share of its rows that would have to change class to match; 0% = same mix)."
        )
    if held["feature_skew"]:
        text += " A separate transform was applied to the rows of each client (feature skew)."
    return text


def drawn_clients(clients: int) -> list[int]:
    """Return the clients to draw: all, or evenly spaced ones if there are too many."""
    return list(range(0, clients, math.ceil(clients / DRAWN)))


def names_of(subject: Subject, clients: Sequence[int]) -> list[str]:
    """Return the names of some clients."""
    return [subject.name(k) for k in clients]


def drawn_note(clients: int, party: str = "client") -> str:
    """Return a sentence if not all clients are drawn."""
    drawn = len(drawn_clients(clients))
    return f" {count(drawn)} of the {count(clients, party)} are drawn; the CSV has all." if drawn < clients else ""


def _classes(subject: Subject) -> Figure:
    facts, names = subject.summary["partition_facts"], subject.summary["class_names"]
    columns, held, sizes = drawn_clients(facts["clients"]), facts["histogram"], facts["sizes"]
    cells = [
        [shaded(f"{subject.client(k)}, class {name}", held[k][c], sizes[k]) for k in columns]
        for c, name in enumerate(names)
    ]
    how = (
        f"One column per {subject.config.party}, one row per class. The stronger a cell's colour, the larger the class's share of its "
        f"rows; the number is the count of rows (printed if there is room).{drawn_note(facts['clients'], subject.config.party)}"
    )
    label = f"Rows of each class at each of {count(facts['clients'], subject.config.party)}"
    heads = names_of(subject, columns)
    draw = partial(heat, rows=names, columns=heads, cells=cells, titles=("class", subject.config.party), label=label)
    table = [(k, subject.name(k), *row) for k, row in enumerate(held)]
    text = csv_text(("client", "name", *names), table)
    return Figure(f"{subject.key}-classes", f"Classes at each {subject.config.party}", how, draw, text)


def _targets(subject: Subject) -> Figure:
    facts = subject.summary["partition_facts"]
    columns = drawn_clients(facts["clients"])
    means, sds = facts["target_mean"], facts["target_sd"]
    points = [
        Point(
            i,
            means[k],
            f"{subject.client(k)}: mean {number(means[k])}, sd {number(sds[k])}",
            means[k] - sds[k],
            means[k] + sds[k],
        )
        for i, k in enumerate(columns)
        if means[k] is not None
    ]
    party = subject.config.party
    note = drawn_note(facts["clients"], party)
    how = f"The target (in its own unit) at each {party}: mean, with one standard deviation either way.{note}"
    series = [Series("mean", 0, points)]
    axis = Axis("Target, mean and standard deviation")
    draw = partial(dots, names=names_of(subject, columns), title=subject.config.party, y=axis, series=series, label=how)
    table = [(k, subject.name(k), facts["sizes"][k], means[k], sds[k]) for k in range(facts["clients"])]
    text = csv_text(("client", "name", "rows", "target_mean", "target_sd"), table)
    return Figure(f"{subject.key}-targets", f"The target at each {subject.config.party}", how, draw, text)


def _sizes(subject: Subject) -> Figure:
    facts = subject.summary["partition_facts"]
    columns, sizes = drawn_clients(facts["clients"]), facts["sizes"]
    tips = [f"{subject.client(k)}: {count(sizes[k], 'row')}" for k in columns]
    how = (
        f"Training rows of each {subject.config.party}. Gini coefficient {number(facts['gini'])}: 0 = all equal, towards 1 = one "
        f"has nearly all.{drawn_note(facts['clients'], subject.config.party)}"
    )
    stack = [Bars("rows", 0, [sizes[k] for k in columns], tips)]
    label = f"Training rows of {count(facts['clients'], subject.config.party)}"
    names = names_of(subject, columns)
    draw = partial(bars, names=names, title=subject.config.party, y=Axis("Rows"), stacks=stack, label=label)
    text = csv_text(("client", "name", "rows"), [(k, subject.name(k), n) for k, n in enumerate(sizes)])
    return Figure(f"{subject.key}-sizes", f"Rows at each {subject.config.party}", how, draw, text)


def _table(subject: Subject) -> TableBlock:
    facts, names = subject.summary["partition_facts"], subject.summary["class_names"]
    known = "histogram" in facts
    head: list[TableCell | str] = [subject.config.party, "rows"]
    columns, rows, table = ["client", "name", "rows"], list[list[TableCell | str]](), list[list[object]]()
    if known:
        head += ["largest class", TableCell("distance", "total variation")]
        columns += ["largest_class", "largest_share", "total_variation"]
    for k, n in enumerate(facts["sizes"]):
        rows.append([subject.name(k), count(n)])
        table.append([k, subject.name(k), n])
        if known:
            counts, tv = facts["histogram"][k], facts["tv"][k]
            top, part = names[counts.index(max(counts))], facts["majority"][k]
            rows[-1] += [TableCell(top, share(part)), share(tv)]
            table[-1] += [top, part, tv]
    fold = f"The same as a table, {count(len(rows), subject.config.party)}"
    caption = "Rows, largest class with its share, and distance between its class mix and that of all rows"
    return TableBlock(
        f"{subject.key}-clients", caption if known else "Rows", head, rows, csv_text(columns, table), folded=fold
    )


def weights_of(subject: Subject) -> dict[int, dict[int, float]]:
    """Return client -> round -> its weight in the mean; empty if a round's weights do not belong to single clients."""
    out: dict[int, dict[int, float]] = {k: {} for k in range(subject.summary["clients"])}
    for row in subject.rows:
        who, weights = row["clients"], row["weights"]
        if who is None or weights is None or len(who) != len(weights) or any(not isinstance(k, int) for k in who):
            return {}
        for k, w in zip(who, weights, strict=True):
            out[k][row["round"]] = w
    return out if any(out.values()) else {}


def weight_blocks(subject: Subject) -> list[Block]:
    """Return the weights of the clients: mean and range, and values by round if they change."""
    found = weights_of(subject)
    if not found:
        return []
    every = [w for by in found.values() for w in by.values()]
    rounds = [row["round"] for row in subject.rows if row["clients"]]
    always = all(len(w) == len(rounds) for w in found.values())
    out: list[Block] = []
    if max(every) <= ALIKE * min(every):
        low, high = number(min(every)), number(max(every))
        nearly = "" if max(every) - min(every) < 1e-9 else " nearly"
        weight = low if low == high else f"{low} to {high}"
        who = "All clients" if always else "The clients that took part"
        out.append(Text(f"{who} had{nearly} the same weight in every round's mean: {weight}."))
    else:
        out.append(_weights(subject, found))
    changes = not always or any(max(w.values()) - min(w.values()) > 1e-9 for w in found.values())
    if changes and len(rounds) * len(drawn_clients(len(found))) <= ROUNDS_DRAWN:
        out.append(_by_round(subject, found, rounds))
    return out


def _weights(subject: Subject, found: dict[int, dict[int, float]]) -> Figure:
    columns = drawn_clients(len(found))
    points = []
    for i, k in enumerate(columns):
        w = list(found[k].values())
        if w:
            mean, low, high = math.fsum(w) / len(w), min(w), max(w)
            span = f", {number(low)} to {number(high)}" if high > low else ""
            said = f"{subject.client(k)}: weight {number(mean)}{span} ({count(len(w), 'round')})"
            points.append(Point(i, mean, said, low, high))
    party = subject.config.party
    how = (
        f"How much each {party}'s update counted in the server's mean; the weights of a round add up to 1. The mark is the mean "
        "over the rounds in which it took part; a line spans its smallest to its largest weight."
        f"{drawn_note(len(found), party)}"
    )
    axis = Axis("Weight in the mean", zero=True)
    names, series = names_of(subject, columns), [Series("weight", 0, points)]
    draw = partial(dots, names=names, title=subject.config.party, y=axis, series=series, label=how)
    return Figure(
        f"{subject.key}-weights", f"Weight of each {subject.config.party}", how, draw, _weights_csv(subject, found)
    )


def _weights_csv(subject: Subject, found: dict[int, dict[int, float]]) -> str:
    table = sorted((r, k, subject.name(k), w) for k, by in found.items() for r, w in by.items())
    return csv_text(("round", "client", "name", "weight"), table)


def _by_round(subject: Subject, found: dict[int, dict[int, float]], rounds: Sequence[int]) -> Figure:
    columns = drawn_clients(len(found))
    most = max(w for by in found.values() for w in by.values())
    cells = [[_weighed(subject, k, r, found[k].get(r), most) for k in columns] for r in rounds]
    how = (
        f"One column per {subject.config.party}, one row per round. The stronger the colour, the more its update counted (strongest: "
        f"{number(most)}); empty: it did not take part or did not return.{drawn_note(len(found), subject.config.party)}"
    )
    names, titles = names_of(subject, columns), ("round", subject.config.party)
    draw = partial(heat, rows=[*map(str, rounds)], columns=names, cells=cells, titles=titles, label=how)
    name = f"{subject.key}-weights-by-round"
    return Figure(name, "Weights round by round", how, draw, _weights_csv(subject, found))


def _weighed(subject: Subject, k: int, r: int, w: float | None, most: float) -> Shaded:
    if w is None:
        return Shaded(None)
    return Shaded(max(w / most, 0.05) if most else 0.05, "", f"round {r}, {subject.client(k)}: weight {number(w)}")
