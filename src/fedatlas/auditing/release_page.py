"""``release.html``: the page that somebody signs before a model leaves the house.

Its order follows what output checkers of secure research environments ask for: what is to be released and what for, from
whose data, what was tried against it with which power, what is promised, who could find out more together, which counts
are small, and who decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedatlas.auditing.cells import parties, tellable
from fedatlas.auditing.lines_to_add import TO_ADD, joined
from fedatlas.auditing.verdict import CONFIDENCE, ERROR, POWER, Found, RowCount, UntriedAttack, Verdict
from fedatlas.record.run_folder import RunFolder
from fedatlas.reporting.blocks import Block, Cells, Code, Section, TableBlock, TableCell, TermList, Text, lead, notice
from fedatlas.reporting.columns_leaks import learns_table
from fedatlas.reporting.guard import guard_words
from fedatlas.reporting.page import document
from fedatlas.reporting.privacy import WHO
from fedatlas.setup.checked import Checked
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
    "No mechanism protected this run. What leaves a client, as it is, to {who}: {leaves}. Parties that pool what they know learn "
    "of the others what reached them."
)
NAMED = 10  # most reasons that stand under the verdict
HELD = "{} of the run, about fewer than {} rows, stand in its report only."
TOGETHER = "Parties that pool what they know have what stands in all of their columns."
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
    whole: Checked,
) -> str:
    """Return the page of an audit."""
    sections = [
        Section("verdict", "Verdict", verdict_blocks(verdict), "Verdict"),
        Section("model", "What is to be released", card(summary, whole, least), "Model"),
        Section("quality", "Quality by party", quality(summary), "Quality"),
        Section("tried", "What was tried", tried_blocks(found, verdict), "Tried"),
        Section("untried", "What was not tried", untried_blocks(found.untried), "Not tried"),
        Section("promised", "What is promised", promised(found), "Epsilon"),
        Section("collude", "Who could collude", colluders(whole, summary), "Colluders"),
        Section("counts", "Small counts", counts(told, found.small, least), "Counts"),
        Section("limits", "Limits", [TermList([(capital(a), b) for a, b in LIMITS])], "Limits"),
        Section("sign", "Who decides", [TermList([(one, "____________________") for one in SIGN])], "Sign"),
    ]
    return document(f"Release of {run.path.name}", sections, [], [], version("fedatlas"))


def verdict_blocks(verdict: Verdict) -> list[Block]:
    """Return the verdict and its reasons."""
    return [
        lead(f"{capital(verdict.name)}. {MEANING[verdict.name]}"),
        *(Text(f"{capital(one)}.") for one in verdict.reasons[:NAMED]),
        *([Text(f"And {count(more, 'more reason')}, below.")] if (more := len(verdict.reasons) - NAMED) > 0 else []),
    ]


def card(summary: Mapping[str, Any], whole: Checked, least: int) -> list[Block]:
    """Return the model card: purpose, data, parties, training, files by SHA-256."""
    facts, who = summary.get("data_facts") or {}, parties(summary)
    rows = summary["rows"]["train"] if "rows" in summary else sum(one["train_rows"] for one in who)
    asked = whole.config.audit
    numbers = f", {count(summary['parameters'], 'number')}" if "parameters" in summary else ""
    named = summary.get("sha256") or {}
    pairs = [
        (
            "purpose",
            (asked and asked.purpose) or 'not stated: write purpose = "..." under [audit], so that it can be judged',
        ),
        ("data", ". ".join(str(x) for x in (summary.get("data"), facts.get("citation"), facts.get("licence")) if x)),
        ("parties", f"{count(len(who), 'party', 'parties')} with {count(rows, 'training row')}"),
        ("learning scheme", f"{summary['algorithm']}, {count(summary['rounds'], 'round')}"),
        ("model" if summary.get("protected") is not None else "network", f"{summary.get('model', DASH)}{numbers}"),
        *((name, f"SHA-256 {digest}") for name, digest in named.items()),
    ]
    out: list[Block] = [TermList([(a if a in named else capital(a), b) for a, b in pairs if b])]
    said, undone = guard_words(summary)
    told, held = tellable(summary.get("notices", ()), least)
    few = [HELD.format(count(held, "notice"), least)] if held else []
    return [*out, *([Text(said)] if said else []), *(notice(one) for one in (*undone, *told, *few))]


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
    if not any(one.get("value") is not None for one in parties(summary)):
        return [*out, Text("The run states no figure by party.")]
    head = ["Party", "Training rows", capital(name), "95% interval"]
    own = all(one.get("own_rows") for one in parties(summary))
    caption = f"{capital(name)} on {'rows of each party' if own else 'the common test rows'}"
    return [*out, TableBlock("quality-by-party", caption, head, rows, csv_text(head, rows))]


def tried_blocks(found: Found, verdict: Verdict) -> list[Block]:
    """Return the attacks with their figures, leaks, and the smallest leak that they would have shown."""
    if not found.tried:
        return [Text("Nothing was tried.")]
    head = ["Attack", "Figure", "Leak", "Smallest leak seen"]
    names = ("attack", "role", "figure", "targets", "value", "placebo", "leak", "low", "high", "p", "smallest")
    rows, csv = list[Cells](), []
    for place, one in enumerate(found.tried):
        least, p = one.smallest(len(found.tried)), verdict.p[place]
        between = f"{at}; " if (at := interval_text(one.low, one.high)) else ""
        rows.append(
            (
                TableCell(one.attack, f"by {one.role}, {count(one.targets, 'target')}"),
                TableCell(number(one.value), f"{one.figure}; placebo {number(one.placebo)}"),
                TableCell(number(one.leak), f"{between}p {number(p)}"),
                "not known" if least is None else number(least),
            )
        )
        csv.append((*one[:9], p, least))
    said = (
        f"A leak is the figure above the placebo, which learns nothing about its target. It is called seen where Holm's rule over "
        f"all {count(len(rows), 'attack')} rejects chance (p), {share(ERROR)} in all. The last column is the smallest leak that so "
        f"many targets would have shown with {share(POWER)} chance; it is not known where targets are too few, or show all the same."
    )
    table = TableBlock("tried", "Attacks on the recorded views", head, rows, csv_text(names, csv))
    how = [(one.attack, f"It {one.how}.") for one in found.tried if one.how]
    terms: list[Block] = [TermList(list(dict.fromkeys(how)))] if how else []
    return [Text(said), table, *terms]


def untried_blocks(untried: Sequence[UntriedAttack]) -> list[Block]:
    """Return what was not tried, the reason, and the lines with which it can be."""
    if not untried:
        return [Text("Every attack of this version was tried.")]
    out: list[Block] = [TermList([(one.attack, f"{capital(one.reason).rstrip('.')}.") for one in untried])]
    lines = joined(one.add for one in untried)
    more: list[Block] = [Text(f"{TO_ADD}."), Code("add", "Lines to add", lines)] if lines else []
    return [*out, *more]


def promised(found: Found) -> list[Block]:
    """Return each stated epsilon beside its lower bound."""
    if not found.accounts:
        return [Text(WITHOUT_NOISE)]
    head = ["Mechanism", "Epsilon", "Lower bound", "Compared with"]
    names = ("mechanism", "unit", "epsilon", "delta", "lower_bound", "canaries", "compared_epsilon", "compared_delta")
    rows, csv = list[Cells](), []
    for one in found.accounts:
        bound, against = one.empirical_epsilon, one.compared_epsilon
        rows.append(
            (
                TableCell(one.mechanism, f"per {one.unit}"),
                TableCell(number(one.epsilon), f"delta {number(one.delta)}"),
                "not measured"
                if bound is None
                else TableCell(number(bound), count(one.canaries, "canary", "canaries")),
                DASH if against is None else TableCell(number(against), f"at delta {number(one.compared_delta)}"),
            )
        )
        csv.append((*one[:5], one.canaries, against, one.compared_delta))
    said = (
        f"Epsilon is what the ledger states. The lower bound is what canaries of this run show, with {CONFIDENCE:.2%} confidence: "
        "above epsilon it would prove the statement wrong; below, it proves nothing."
    )
    return [Text(said), TableBlock("accounts", "Stated and shown", head, rows, csv_text(names, csv))]


def colluders(whole: Checked, summary: Mapping[str, Any]) -> list[Block]:
    """Return what parties learn together: by mechanism; of a scheme on columns, by role and step."""
    learns = (summary.get("privacy") or {}).get("learns") or {}
    under = [
        TermList([(f"{who}, under {name}", str(one[key])) for key, who in WHO.items()]) for name, one in learns.items()
    ]
    if whole.columns:
        caution = whole.of_columns().words.caution
        return [learns_table(summary, whole.config), Text(f"{TOGETHER} {caution}".rstrip()), *under]
    if under:
        return [*under]
    who = "the nodes that hear it" if whole.algorithm.serverless else "the server, and who reads its messages"
    return [Text(ALONE.format(who=who, leaves=whole.algorithm.card.leaves))]


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
