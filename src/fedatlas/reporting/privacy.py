"""The privacy section for a data protection officer: what was protected from whom, what could be learnt, and the price."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup, escape

from fedatlas.privacy.mechanism import Mechanism, on_rows, on_updates
from fedatlas.privacy.mechanisms import of_tables
from fedatlas.privacy.terms import CHOSEN, about, trust_model
from fedatlas.record.run_folder import won_a_tuning
from fedatlas.reporting.blocks import (
    NARROW,
    Block,
    Figure,
    Figures,
    Key,
    KeyFigures,
    TableBlock,
    TableCell,
    TermList,
    Text,
)
from fedatlas.reporting.costs import DIRECTIONS, PROTECTING, phase_name
from fedatlas.reporting.drawing.charts import Axis, Bars, Point, Series, bars, lines
from fedatlas.reporting.entries import Subject
from fedatlas.reporting.reproduction import told_before
from fedatlas.reporting.uncovered import of_class_names
from fedatlas.wording import (
    DASH,
    NOT_TOLD,
    beyond_delta,
    bytes_text,
    capital,
    count,
    csv_text,
    facts_text,
    given_up_text,
    number,
    odds_text,
    plural,
    printed,
    second_unit,
    seconds_text,
    share,
    tick,
    total_of,
    worthless,
)

UNITS = {"client": "one client", "record": "one row", None: "no one: nothing was released"}
WHO = {"server": "the server", "clients": "another client", "colluding": "several of them together"}
SIMULATED = (
    "This was a simulation: the keys and secrets of all parties were in the memory of one process. It shows what a federation would "
    "exchange and what that costs, but nothing was hidden from the person who ran it."
)
PRICED = (
    "These figures are from one machine that simulated all clients. Bytes without protection are those of the same messages unsealed. "
    "Seconds without protection leave out the phases named, although adding up would be needed anyway."
)
UNPRICED = " To measure what it costs in accuracy, add --price to the command below: it also makes the same run without protection."
ROUNDS_AS_BEFORE = "Rows were changed before the run, so its rounds cost what they cost without it."
UNPROTECTED = " The baselines, each client alone and all rows pooled, were trained without protection."


def privacy_blocks(subject: Subject) -> list[Block]:
    """Return the section of a run under ``[[privacy]]``; empty for any other."""
    found = subject.summary.get("privacy")
    if not found:
        return []
    made = of_tables(found["mechanisms"])
    covers = "" if any(one.noise for one in made) else next((one.words.covers for one in made if one.entered), "")
    beside = found.get("beside", ())
    promised = [promise_text(found, covers), *(promise_text(found[name], found[name]["covers"]) for name in beside)]
    chosen = CHOSEN if "epsilon" in found and won_a_tuning(subject.folder.path) else ""
    said = [text for text in (*promised, chosen, _helped(found)) if text]
    return [
        *(Text(_done(one), tone="lead") for one in made),
        *(Text(warned, tone="notice") for warned in warnings_of(found, made)),
        KeyFigures(key_figures(subject, found, covers)),
        *(Text(said) for one in made for said in one.words.rows(found.get(one.name, {}))),
        *_learns(found),
        *_before(subject, made),
        *terms_of(found, made, covers),
        *(block for name in beside for block in terms_of(found[name], made, found[name]["covers"], {name})),
        *map(Text, said),
        *(
            _accounts(subject, one.words.accounts, found["accounts"])
            for one in made
            if one.words.accounts and found.get("accounts")
        ),
        *([_price(subject)] if on_updates(made) else []),
        Text(_priced(subject, made)),
        Figures(
            [*_epsilons(subject, found), *_bounds(subject, found), *(_phases(subject) if on_updates(made) else [])]
        ),
        TermList([(one["name"], facts_text(given_keys(one))) for one in found["mechanisms"]]),
    ]


def _priced(subject: Subject, made: Sequence[Mechanism]) -> str:
    """Return an explanation of the figures of the price, and how to measure its cost in accuracy if that was not done."""
    summary = subject.summary
    measured = summary.get("answer", {}).get("price")
    said = PRICED if on_updates(made) else ROUNDS_AS_BEFORE
    return f"{said}{'' if measured else UNPRICED}{UNPROTECTED if summary.get('gain') else ''}"


def given_keys(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mechanism's keys that were given, without its name."""
    given = {key: value for key, value in one.items() if key != "name" and value not in (None, [])}
    return {key: _in_text(value) for key, value in given.items()}


def _in_text(value: Any) -> Any:
    """Return ranges by column, and names, as a text."""
    if isinstance(value, Mapping):
        return _listed(value)
    names = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
    return ", ".join(value) if names else value


def _listed(values: Mapping[str, Any]) -> str:
    """Return the ranges or categories of a table as a text: 'age 20 to 90; dose -1 to 1', 'kind a, b'."""

    def text(one: Sequence[Any]) -> str:
        return ", ".join(one) if isinstance(one[0], str) else " to ".join(f"{end:g}" for end in one)

    return "; ".join(f"{name} {text(one)}" for name, one in values.items())


def times_text(ratio: float) -> str:
    """Return '1.67 times', or 'the same' for a negligible difference."""
    return "the same" if abs(ratio - 1) < 5e-3 else f"{_plainly(ratio)} times"


def _plainly(value: float) -> str:
    """Return a number with three digits: '3.04', '50', '8,128,150'."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _done(one: Mechanism) -> Markup:
    keys = {key: ", ".join(map(str, x)) if isinstance(x, list | tuple) else x for key, x in one.keys.items()}
    return Markup(one.words.done).format(**keys)  # noqa: S704  (the words are ours, the keys are escaped)


def warnings_of(found: Mapping[str, Any], made: Sequence[Mechanism]) -> list[str]:
    """Return warnings, for readers who read nothing else."""
    out = [SIMULATED]
    drawing = [one for one in made if one.keys.get("noise")]
    if seeded := [one.name for one in drawing if one.keys["noise"] == "seed"]:
        whose = "" if len(seeded) == len(drawing) else f" of {' and '.join(seeded)}"
        out.append(
            f'The noise{whose} follows from the seed (noise = "seed"), which the record contains: anyone who has it can remove the noise. '
            "This protects no one; it is for tests."
        )
    if (lost := found.get("given_up", {})).get("rounds"):
        out.append(f"Given up: {given_up_text(lost['rounds'], lost['of'])}. The last time: {lost['why']}.")
    if warned := worthless(found):
        out.append(capital(warned))
    return out + [warned for one in made for warned in one.words.warnings]


def key_figures(subject: Subject, found: Mapping[str, Any], covers: str) -> list[Key]:
    """Return the figures that stand first. ``covers``: what epsilon is about, if not its whole unit."""
    cost, out = subject.summary["cost"], []
    if "epsilon" in found:
        out.append(_epsilon(subject, found, covers, "privacy.epsilon"))
    beside = found.get("beside", ())
    out += [_epsilon(subject, found[name], found[name]["covers"], f"privacy.{name}.epsilon") for name in beside]
    if found.get("withstood"):
        most = found["withstood"]
        body = printed(most["colluding"], subject.at("privacy.withstood.colluding"), count)
        out.append(
            Key(
                "clients that may help a dishonest server",
                body,
                f"of {count(most['asked'])}, while it still sees only sums",
            )
        )
    if "bytes_privacy" not in cost:  # no mechanism acts in rounds
        return out
    sent, more = total_of(cost[key] for key in DIRECTIONS), cost["bytes_privacy"]
    if sent is not None and more is not None:
        text = times_text(sent / (sent - more)) if sent > more else DASH
        out.append(Key("bytes", text, f"compared with {bytes_text(sent - more)} without protection"))
    spent = _protecting(cost["seconds_by_phase"])
    out.append(Key("time for protection", seconds_text(spent), f"{share(spent / cost['seconds'])} of the run's time"))
    return out


def _epsilon(subject: Subject, account: Mapping[str, Any], covers: str, at: str) -> Key:
    """Return the figure of an account; ``at``: its place in the summary."""
    more = beyond_delta(account)
    if "delta_too_large_for" in account:
        return Key("epsilon", DASH, more)
    bound = "an upper bound, " if account["upper_bound"] else ""
    unless = "if the noise were secret: " if account["noise"] == "seed" else ""
    text = account["epsilon"] if isinstance(account["epsilon"], str) else None
    whole = text or printed(account["epsilon"], subject.at(at), _plainly)
    of = f"of {covers or UNITS[account['unit']]}, {more or 'at delta = ' + number(account['delta'])}"
    return Key("epsilon", whole, f"{unless}{bound}{of}")


def _protecting(phases: Mapping[str, float]) -> float:
    return math.fsum(phases.get(phase, 0.0) for phase in PROTECTING)


def _learns(found: Mapping[str, Any]) -> list[Block]:
    """List what each role learns, by mechanism."""
    out: list[Block] = []
    for name, learnt in found["learns"].items():
        by = f" under {name}" if len(found["learns"]) > 1 else ""
        out.append(Text(f"What could be learnt about a client{by}, besides the models sent to all", tone="subhead"))
        out.append(TermList([(who, _code(learnt[key])) for key, who in WHO.items()]))
    return out


def _before(subject: Subject, made: Sequence[Mechanism]) -> list[Block]:
    """List what crosses before round 1, and how it is protected: no mechanism's noise covers it."""
    told, party = told_before(subject.preprocess), subject.config.party
    hiding = next((one.name for one in made if one.sums_only), None)
    how = f"each {party}'s own, in the clear: no noise covers them, and no epsilon counts them"
    if on_rows(made):
        how = f"each {party}'s own, in the clear, computed from its changed rows"
    if hiding is not None:
        how = f"their sums over all {plural(party)}, under {hiding}"
    told = f"{told}; {how}" if told else ""
    server = "; ".join(filter(None, (told, of_class_names(subject)))) or "nothing about anybody's rows"
    clients = (
        f"the constants made of all {plural(party)}' sums, with which every {party} prepares its rows"
        if told
        else of_class_names(subject) or "nothing"
    )
    pairs = [(WHO["server"], server), (WHO["clients"], clients)]
    return [Text("What crosses before round 1", tone="subhead"), TermList(pairs)]


def _code(text: str) -> Markup:
    """Return the text with names of keys between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  (escaped before)


def promise_text(found: Mapping[str, Any], covers: str = "") -> str:
    """Explain epsilon in a sentence."""
    epsilon = found.get("epsilon")
    if epsilon is None or isinstance(epsilon, str):
        return ""
    if "delta_too_large_for" in found:
        return f"There is no epsilon to state: {beyond_delta(found).removeprefix('none: ')}. Set a far smaller delta. {found['how']}"
    content = found.get("neighbours", "replace") == "replace"
    row = "about the content of a given row" if content else "that a given row was used"
    whom = "that a given client took part" if found["unit"] == "client" else row
    if found["unit"] == "client" and found.get("neighbours") == "zero out":  # who takes part is known
        whom = "about what a given client holds"
    whom = f"about {covers}" if covers else whom
    chance = f", except with a probability of {number(found['delta'])} (delta)" if found["delta"] else ""
    torn = f" {count(found['torn'], 'line')} of the ledger ended before a release was used." if found["torn"] else ""
    means = "would mean if the noise were secret" if found["noise"] == "seed" else "means"
    return (
        f"What epsilon = {_plainly(epsilon)} {means}: anyone who sees everything that was released, whatever else they know, can "
        f"shift the odds {whom} by {odds_text(epsilon)}{chance}. It is the price of the whole run, {count(found['releases'], 'release')}, "
        f"read from ledger.jsonl, which is append-only. {found['how']}{torn}"
    )


def _helped(found: Mapping[str, Any]) -> str:
    """Return a paragraph on collusion and drop-outs under masks."""
    if sparse := found.get("sparse"):
        return (
            f"Of {count(sparse['asked'], 'client')} asked in a round, the most in this run, each shared masks with "
            f"{count(sparse['neighbours'])} others. A server that keeps the rules, with the help of up to "
            f"{count(sparse['colluding'], 'client')}, learns only the sum of the others' updates, and the sum can be opened while no more "
            f"than {count(sparse['leaving'])} leave: either fails with a chance of at most 2^-40. Masks do not limit what the sum and "
            "the models themselves reveal: that takes noise."
        )
    if not (most := found.get("withstood")):
        return ""
    return (
        f"Of {count(most['asked'], 'client')} asked in a round, the fewest in this run, at least {count(most['needed'])} had to stay to "
        f"its end; otherwise its sum was given up. Clients that leave midway cost the others nothing. A server that breaks the rules, "
        f"with the help of up to {count(most['colluding'], 'client')} of them, still learns only the sum of the others' updates."
        + ("" if "epsilon" in found else MASKS_ONLY)
    )


MASKS_ONLY = " That sum is exact up to rounding. Masks do not limit what the sum and the models themselves reveal: that takes noise."


def terms_of(
    found: Mapping[str, Any], made: Sequence[Mechanism], covers: str, accounted: Collection[str] = ()
) -> list[Block]:
    """List what an epsilon is about, in the terms of NIST SP 800-226; empty without one. ``accounted``: as `trust_model` has it."""
    if not found.get("unit") or not found.get(
        "neighbours"
    ):  # a run made before this version does not say its neighbours
        return []
    pairs = [*about(found["unit"], found["neighbours"], covers), ("trust model", trust_model(made, accounted))]
    return [Text("What its epsilon is about (NIST SP 800-226)", tone="subhead"), TermList(pairs)]


def _accounts(subject: Subject, words: Mapping[str, tuple[str, str]], accounts: Mapping[str, Any]) -> TableBlock:
    """Return a paper's epsilon under each set of assumptions."""
    shown = [(key, *words[key], accounts[key]) for key in words if key in accounts]
    rows = [
        [
            TableCell(name, why),
            TableCell(
                value if isinstance(value, str) else printed(value, subject.at(f"privacy.accounts.{key}"), _plainly)
            ),
        ]
        for key, name, why, value in shown
    ]
    caption = "Epsilon of a single row: the paper's statement, and its value under fewer assumptions"
    text = csv_text(("account", "epsilon"), [(name, value) for _, name, _, value in shown])
    return TableBlock(f"{subject.key}-accounts", caption, [TableCell("account"), TableCell("epsilon")], rows, text)


def _price(subject: Subject) -> TableBlock:
    """Return bytes and seconds, compared with those without protection."""
    cost, phases = subject.summary["cost"], subject.summary["cost"]["seconds_by_phase"]
    sent, more = total_of(cost[key] for key in DIRECTIONS), cost["bytes_privacy"]
    spent = _protecting(phases)
    rows: list[list[TableCell]] = []
    table: list[tuple[object, ...]] = []
    for name, whole, own, text in (
        ("bytes", sent, more, bytes_text),
        ("seconds", cost["seconds"], spent, seconds_text),
    ):
        if whole is None or own is None:
            rows.append([TableCell(name), TableCell(NOT_TOLD), TableCell(""), TableCell("")])
            table.append((name, None, None))
            continue
        rest = whole - own
        rows.append(
            [
                TableCell(name),
                TableCell(text(whole)),
                TableCell(text(rest)),
                TableCell(times_text(whole / rest) if rest > 0 else DASH),
            ]
        )
        table.append((name, whole, rest))
    for phase in (p for p in PROTECTING if p in phases):
        rows.append(
            [
                TableCell(f"of the seconds, {phase_name(phase)}"),
                TableCell(seconds_text(phases[phase])),
                TableCell(""),
                TableCell(""),
            ]
        )
        table.append((phase, phases[phase], None))
    head = [TableCell("what"), TableCell("this run"), TableCell("without protection"), TableCell("ratio")]
    return TableBlock(
        f"{subject.key}-price", "The price of the whole run", head, rows, csv_text(("what", "with", "without"), table)
    )


def _epsilons(subject: Subject, found: Mapping[str, Any]) -> list[Figure]:
    """Return epsilon over the rounds, if it is finite."""
    curve = found.get("curve", [])
    if not curve or "delta_too_large_for" in found or any(isinstance(epsilon, str) for _, epsilon in curve):
        return []
    points = [Point(0, 0.0, "before round 1: epsilon 0")]
    points += [Point(at, epsilon, f"after round {at}: epsilon {_plainly(epsilon)}") for at, epsilon in curve]
    how = (
        f"Total cost of all releases up to a round, at delta = {number(found['delta'])}. Lower is more private; it never falls, "
        "because a release cannot be undone."
    )
    label = f"Epsilon over the rounds: it ends at {_plainly(curve[-1][1])}."
    draw = partial(_lines, "Epsilon", [Series("epsilon", 0, points)], label)
    return [
        Figure(
            f"{subject.key}-epsilon",
            "Epsilon over the rounds",
            how,
            draw,
            csv_text(("round", "epsilon"), curve),
            (NARROW,),
        )
    ]


def _bounds(subject: Subject, found: Mapping[str, Any]) -> list[Figure]:
    """Return the bound on changes over the rounds, if it moved."""
    bounds = found.get("clip_by_round", [])
    if not bounds:
        return []
    points = [Point(at, bound, f"in round {at}: {_plainly(bound)}") for at, bound in bounds]
    how = "The longest change that a client could make in each round. It follows from noisy counts and reveals nothing beyond epsilon."
    label = f"The bound on changes over the rounds: from {_plainly(bounds[0][1])} to {_plainly(bounds[-1][1])}."
    draw = partial(_lines, "Longest change", [Series("bound", 0, points)], label)
    title, table = "The bound on changes over the rounds", csv_text(("round", "bound"), bounds)
    return [Figure(f"{subject.key}-bound", title, how, draw, table, (NARROW,))]


def _lines(axis: str, series: Sequence[Series], label: str, width: int) -> str:
    return lines(width, Axis("round", whole=True), Axis(axis, zero=True), series, label)


def _phases(subject: Subject) -> list[Figure]:
    """Return seconds of the whole run by phase, except evaluation; nothing if no round ended."""
    spent = {phase: s for phase, s in subject.summary["cost"]["seconds_by_phase"].items() if phase != "evaluate"}
    if not spent:
        return []
    order = sorted(spent, key=lambda phase: PROTECTING.index(phase) if phase in PROTECTING else -1)
    unit, size = second_unit(max(spent.values(), default=0.0))
    kinds = (("work", False), ("protection", True))
    stacks = [
        Bars(
            label,
            style,
            [spent[phase] if (phase in PROTECTING) == ours else 0.0 for phase in order],
            [f"{phase_name(phase)}: {seconds_text(spent[phase])}" for phase in order],
        )
        for style, (label, ours) in enumerate(kinds)
    ]
    axis = Axis(f"{unit} in all rounds", lambda v: tick(v / size), size)
    how = "One bar per phase: " + "; ".join(f"{phase}: {phase_name(phase)}" for phase in order) + "."
    label = "Seconds by phase: " + ", ".join(f"{phase} {seconds_text(spent[phase])}" for phase in order)
    draw = partial(_bars, order, axis, stacks, label)
    text = csv_text(("phase", "seconds"), [(phase, spent[phase]) for phase in order])
    return [Figure(f"{subject.key}-phases", "Seconds by phase", how, draw, text, (NARROW,))]


def _bars(names: Sequence[str], y: Axis, stacks: Sequence[Bars], label: str, width: int) -> str:
    return bars(width, names, "phase", y, stacks, label)
