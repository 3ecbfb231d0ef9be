"""``release.html``: the page that somebody signs before a model leaves the house.

Its order follows what output checkers of secure research environments ask for: what is to be released and what for, from
whose data, what was tried against it with which power, what is promised, who could find out more together, which counts
are small, and who decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedatlas.auditing.cells import parties
from fedatlas.auditing.verdict import CONFIDENCE, ERROR, POWER, Found, RowCount, UntriedAttack, Verdict
from fedatlas.record.run_folder import RunFolder
from fedatlas.reporting.blocks import Block, Code, Section, TableBlock, TermList, Text, lead, notice
from fedatlas.reporting.guard import guard_words
from fedatlas.reporting.page import document
from fedatlas.reporting.privacy import WHO
from fedatlas.wording import DASH, capital, count, csv_text, interval_text, listed, number, share

MEANING: Mapping[str, str] = {
    "violated": "It breaks what it states, or this page would tell of too few rows. Do not release it.",
    "leak seen": "An attack found more than its placebo does. Release it only to those who may know what leaks.",
    "none seen": "No attack found more than its placebo does. A leak smaller than those below could have been missed.",
    "not tried": "Nothing was tried, so nothing is known.",
}
WITHOUT_NOISE = (
    "This run had no noise, so no epsilon is stated: there is no bound on what an attack that was not tried finds."
)
ALONE = (
    "No mechanism protected this run: the server, or who reads its messages, sees every client's updates. Parties that pool "
    "what they know learn what the others sent only through the models."
)
LIMITS = (
    ("of the attacks", "Only those above were tried, each on one run. A stronger attacker may find more."),
    (
        "of other releases",
        (
            "Every further release on the same rows, such as another model or a table, adds to what can be learnt; "
            "fedatlas epsilon adds up the runs that it is given."
        ),
    ),
    (
        "of these files",
        (
            "The run's report and summary hold finer counts than this page, such as classes by party and single wrong "
            "predictions. They are for the house; hand out the model and this page."
        ),
    ),
)
SIGN = ("Prepared by", "Checked by", "Decision (release, release with changes, refuse)", "Date")


def render(
    run: RunFolder,
    summary: Mapping[str, Any],
    found: Found,
    verdict: Verdict,
    told: Sequence[RowCount],
    least: int,
    purpose: str,
) -> str:
    """Return the page of an audit."""
    sections = [
        Section("verdict", "Verdict", verdict_blocks(verdict), "Verdict"),
        Section("model", "What is to be released", card(run, summary, purpose), "Model"),
        Section("quality", "Quality by party", quality(summary), "Quality"),
        Section("tried", "What was tried", tried_blocks(found, verdict), "Tried"),
        Section("untried", "What was not tried", untried_blocks(found.untried), "Not tried"),
        Section("promised", "What is promised", promised(found), "Epsilon"),
        Section("collude", "Who could collude", colluders(summary), "Colluders"),
        Section("counts", "Small counts", counts(told, found.small, least), "Counts"),
        Section("limits", "Limits", [TermList([(capital(a), b) for a, b in LIMITS])], "Limits"),
        Section("sign", "Who decides", [TermList([(one, "____________________") for one in SIGN])], "Sign"),
    ]
    return document(f"Release of {run.path.name}", sections, [], [], version("fedatlas"))


def verdict_blocks(verdict: Verdict) -> list[Block]:
    """Return the verdict and its reasons."""
    return [
        lead(f"{capital(verdict.name)}. {MEANING[verdict.name]}"),
        *(Text(f"{capital(one)}.") for one in verdict.reasons),
    ]


def card(run: RunFolder, summary: Mapping[str, Any], purpose: str) -> list[Block]:
    """Return the model card: purpose, data, parties, training, files by SHA-256."""
    facts, who = summary.get("data_facts") or {}, parties(summary)
    rows = sum(one["train_rows"] for one in who)
    named = summary.get("sha256") or {}
    pairs = [
        ("purpose", purpose or 'not stated: write purpose = "..." under [audit], so that it can be judged'),
        ("data", ". ".join(str(x) for x in (summary.get("data"), facts.get("citation"), facts.get("licence")) if x)),
        ("parties", f"{count(len(who), 'party', 'parties')} with {count(rows, 'training row')}"),
        ("learning scheme", f"{summary['algorithm']}, {count(summary['rounds'], 'round')}"),
        ("network", f"{summary.get('model', DASH)}, {count(summary.get('parameters', 0), 'number')}"),
        *((name, f"SHA-256 {digest}") for name, digest in named.items()),
    ]
    out: list[Block] = [TermList([(a if a in named else capital(a), b) for a, b in pairs if b])]
    said, undone = guard_words(summary)
    return [*out, *([Text(said)] if said else []), *(notice(one) for one in (*undone, *summary.get("notices", ())))]


def quality(summary: Mapping[str, Any]) -> list[Block]:
    """Return the headline figure of the model, and that of each party."""
    metric = summary.get("metric") or {}
    if not metric:
        return [Text("The run states no figure of its model.")]
    name = str(metric["name"]).replace("_", " ")
    at = interval_text(metric.get("low"), metric.get("high"))
    out: list[Block] = [
        lead(
            f"{capital(name)} {number(metric['value'])}{f' ({at})' if at else ''} on {count(metric['test_rows'], 'row')}."
        )
    ]
    trivial = summary.get("trivial")
    if trivial:
        out.append(Text(f"A constant answer reaches {number(trivial['value'])}."))
    rows = [
        (
            one["name"],
            count(one["train_rows"]),
            number(one.get("value")),
            interval_text(one.get("low"), one.get("high")),
        )
        for one in parties(summary)
    ]
    head = ["Party", "Training rows", capital(name), "95% interval"]
    own = all(one.get("own_rows") for one in parties(summary))
    caption = f"{capital(name)} on {'rows of each party' if own else 'the common test rows'}"
    return [*out, TableBlock("quality-by-party", caption, head, rows, csv_text(head, rows))]


def tried_blocks(found: Found, verdict: Verdict) -> list[Block]:
    """Return the attacks with their figures, leaks, and the smallest leak that they would have shown."""
    if not found.tried:
        return [Text("Nothing was tried.")]
    head = ["Attack", "Seen by", "Figure", "Placebo", "Leak", "p (Holm)", "Smallest leak seen"]
    rows = []
    for place, one in enumerate(found.tried):
        leak = f"{number(one.leak)} ({interval_text(one.low, one.high)})" if one.low is not None else number(one.leak)
        least = one.smallest(len(found.tried))
        rows.append(
            (
                f"{one.attack}, {count(one.targets, 'target')}",
                one.role,
                f"{one.figure} {number(one.value)}",
                number(one.placebo),
                leak,
                number(verdict.p[place]),
                "none: too few targets" if least is None else number(least),
            )
        )
    said = (
        f"A leak is the figure above the placebo, which learns nothing about its target. It is called seen where Holm's rule over "
        f"all {count(len(rows), 'attack')} rejects chance, {share(ERROR)} in all. The last column is the smallest leak that so many "
        f"targets would have shown with {share(POWER)} chance."
    )
    return [Text(said), TableBlock("tried", "Attacks on the recorded views", head, rows, csv_text(head, rows))]


def untried_blocks(untried: Sequence[UntriedAttack]) -> list[Block]:
    """Return what was not tried, the reason, and the lines with which it can be."""
    if not untried:
        return [Text("Every attack of this version was tried.")]
    out: list[Block] = [TermList([(one.attack, f"{capital(one.reason).rstrip('.')}.") for one in untried])]
    lines = list(dict.fromkeys(one.add for one in untried if one.add))
    return [
        *out,
        *([Code("add", "Lines for the experiment file, before the next run", "\n\n".join(lines))] if lines else []),
    ]


def promised(found: Found) -> list[Block]:
    """Return each stated epsilon beside its lower bound."""
    if not found.accounts:
        return [Text(WITHOUT_NOISE)]
    head = ["Mechanism", "Unit", "Epsilon", "Delta", "Lower bound", "compared with", "Canaries"]
    rows = [
        (
            one.mechanism,
            one.unit,
            number(one.epsilon),
            number(one.delta),
            "not measured" if one.empirical_epsilon is None else number(one.empirical_epsilon),
            DASH
            if one.compared_epsilon is None
            else f"{number(one.compared_epsilon)} at delta {number(one.compared_delta)}",
            count(one.canaries),
        )
        for one in found.accounts
    ]
    said = (
        f"Epsilon is what the ledger states. The lower bound is what canaries of this run show, with {CONFIDENCE:.2%} confidence: "
        "above epsilon it would prove the statement wrong; below, it proves nothing."
    )
    return [Text(said), TableBlock("accounts", "Stated and shown", head, rows, csv_text(head, rows))]


def colluders(summary: Mapping[str, Any]) -> list[Block]:
    """Return what parties learn together, by mechanism."""
    learns = (summary.get("privacy") or {}).get("learns") or {}
    if not learns:
        return [Text(ALONE)]
    return [
        TermList([(f"{who}, under {name}", str(one[key])) for key, who in WHO.items()]) for name, one in learns.items()
    ]


def counts(told: Sequence[RowCount], small: Sequence[RowCount], least: int) -> list[Block]:
    """Return every count of rows on this page, and those below the threshold."""
    if not told:
        return [Text("This page tells no count of rows.")]
    few = f"{count(len(small))} of {count(len(told), 'count')} on this page are of fewer than {least} rows"
    said = (
        f"{few}: {listed([one.what for one in small])}."
        if small
        else f"All counts on this page are 0, or {least} or more."
    )
    rows = [(one.what, count(one.rows)) for one in told]
    head = ["Count", "Rows"]
    return [
        lead(said),
        TableBlock("cells", "Counts on this page", head, rows, csv_text(head, rows), folded="All counts"),
    ]
