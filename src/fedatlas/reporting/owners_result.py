"""Owners of rows of the same columns: the result, the coefficients, what each owner gains, the owners themselves, who learns what."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedatlas.reporting.blocks import Block, Cells, TableBlock, TableCell, Text, lead, notice
from fedatlas.reporting.columns_leaks import learns_table
from fedatlas.reporting.columns_result import cards, classes_table
from fedatlas.reporting.entries import Entry, Plain, Subject
from fedatlas.vertical import SCHEMES
from fedatlas.wording import NAMES, count, csv_text, interval_note, number, signed

RUN = "fedatlas run --resume FOLDER --baselines"
SHOWN = 60  # coefficients on the page; the file has all


def owners_title(entries: Sequence[Entry]) -> str:
    """Return the title of the page."""
    s = entries[0].subjects[0].summary
    return f"{count(len(s['parties']), 'owner')} of rows, one model: {s['data_facts']['label']}"


def owners_sentence(entry: Entry) -> Markup:
    """Return the run, or the runs with several seeds, in a sentence."""
    s, seeds = entry.subjects[0].summary, [str(one.summary["seed"]) for one in entry.subjects]
    often = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} times, with the seeds {', '.join(seeds)}"
    clear = "" if s["protected"] else ", in the clear"
    return Markup("{} fitted a <b>{}</b>{}, to predict <b>{}</b>; {}.").format(
        count(len(s["parties"]), "owner"), s["model"], clear, s["data_facts"]["label"], often
    )


def result_blocks(subject: Subject) -> list[Block]:
    """Return the figures to show first, and how exact the coefficients are."""
    s, words = subject.summary, SCHEMES[subject.summary["algorithm"]].words
    hidden = words.hidden if s["protected"] else f"This was a simulation in the clear: {words.clear}"
    first = (
        f"{count(len(s['parties']), 'owner')} of rows of the same {count(s['solved']['columns'], 'column')} fitted a {s['model']} on "
        f"{s['rows']['train']:,} rows. It predicts '{s['data_facts']['label']}' on {s['rows']['test']:,} test rows of all owners."
    )
    out: list[Block] = [lead(first), cards(subject), Text(hidden, tone="" if s["protected"] else "notice")]
    if len(s["class_names"]) > 2:
        out.append(classes_table(subject))
    return [*out, *(notice(f"Notice: {said}") for said in s["notices"])]


def exactness(found: Plain) -> str:
    """Return the precision of the numbers in a sentence, with the bound of its error and the measured one."""
    bound = (
        f"changes no prediction of a row within the range of the training rows by more than {found['error']:.2g}"
        if found["error"] is not None
        else "has no bound below the label's spread here: a longer key or fewer columns leave more bits, a larger l2 lowers the bound"
    )
    seen = (
        ""
        if found["measured"] is None
        else f"; on this simulation's rows it was at most {found['measured']:.2g}, against doubles"
    )
    return f"Numbers had {found['precision']} bits after the point. This rounding {bound}{seen}."


def coefficient_blocks(subject: Subject) -> list[Block]:
    """Return the coefficients of every target, and the precision that they have."""
    s = subject.summary
    found, names = s["solved"], s["class_names"]
    heads = names if len(names) > 2 else [f"score of '{names[1]}'" if names else "coefficient"]
    rows: list[Cells] = [
        [name, *map(number, values)] for name, values in zip(found["names"], found["coefficients"], strict=True)
    ]
    text = csv_text(("column", *heads), [(n, *v) for n, v in zip(found["names"], found["coefficients"], strict=True)])
    few = rows if len(rows) <= SHOWN else [*rows[: SHOWN - 1], rows[-1]]
    more = "" if few is rows else f" The first {SHOWN - 1} of {len(rows) - 1} columns, and the intercept."
    kind = (
        "A score is that of a class against all others, 1 and -1."
        if names
        else "A coefficient is the change of the label by one unit."
    )
    title = f"Coefficients, l2 = {found['l2']:g}"
    return [Text(exactness(found)), TableBlock("coefficients", title, ["column", *heads], few, text), Text(kind + more)]


def gain_blocks(subject: Subject) -> list[Block]:
    """Return what each owner would reach alone; a hint if no baseline was trained."""
    found = subject.summary.get("gain")
    if not found:
        said = Markup(
            "This run has no baseline to compare with: <code>{}</code> fits the same model for each owner alone."
        )
        return [notice(said.format(RUN))]
    figure, together = found["figure"], found["sides"]["together"]
    rows, table = list[Cells](), []
    for name, one in found["parties"].items():
        side, gain = found["without"][name], one[figure]
        cell = TableCell(signed(gain["value"]), interval_note(gain["low"], gain["high"], signed))
        rows.append(
            [name, f"{found['rows'][side]:,}", number(together[figure]), number(found["sides"][side][figure]), cell]
        )
        table.append((name, together[figure], found["sides"][side][figure], gain["value"], gain["low"], gain["high"]))
    head = ["owner", "rows alone", f"{NAMES[figure]} together", "alone", "gain"]
    text = csv_text(("owner", "together", "alone", "gain", "low", "high"), table)
    joined = number(found["sides"]["joined"][figure])
    about = f"On the test rows of all owners. The same model of all rows in one table gives {joined}."
    return [TableBlock("gain-parties", "Each owner alone", head, rows, text), Text(about)]


def held_blocks(subject: Subject) -> list[Block]:
    """Return the rows of each owner."""
    s = subject.summary
    rows: list[Cells] = [[one["name"], *(f"{one[key]:,}" for key in ("rows", "train", "test"))] for one in s["parties"]]
    text = csv_text(
        ("owner", "rows", "train", "test"),
        [[one[k] for k in ("name", "rows", "train", "test")] for one in s["parties"]],
    )
    return [TableBlock("parties", "The owners", ["owner", "rows", "to train on", "to test on"], rows, text)]


def leak_blocks(subject: Subject) -> list[Block]:
    """List what each role learns, step by step."""
    s = subject.summary
    scheme = SCHEMES[s["algorithm"]]
    intro = (
        f"All are taken to follow the protocol and to look at whatever they are sent. An owner keeps {scheme.words.keeps}. This is what "
        "is learnt all the same."
    )
    out: list[Block] = [Text(intro), learns_table(s, subject.config), Text(scheme.words.caution)]
    if not s["protected"]:
        out.append(notice(f"This run was in the clear: {scheme.words.clear} Only a simulation may do that."))
    return out
