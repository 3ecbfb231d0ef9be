"""The first section: a summary sentence and the figures of the run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

from markupsafe import Markup

from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.metric import skewed
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.reporting.blocks import Block, Cells, Key, KeyFigures, TableBlock, TableCell, Text, lead, notice, optional
from fedatlas.reporting.columns_result import columns_sentence
from fedatlas.reporting.entries import COLUMNS, OWNERS, Entry, Plain, Subject, whole
from fedatlas.reporting.owners_result import owners_sentence
from fedatlas.reporting.uncovered import of_kept_rows
from fedatlas.wording import (
    DASH,
    NAMES,
    bytes_text,
    capital,
    count,
    csv_text,
    flat,
    held_text,
    interval_text,
    number,
    plural,
    seconds_text,
    total_of,
    where,
)

SHOWN = ("accuracy", "macro_f1", "weighted_f1", "rmse", "mae", "r2", "loss")
COMPARED = ("auc", "accuracy", "macro_f1", "rmse", "r2", "loss")
FEW = 8  # most differences shown without a fold
TOTALS = ("bytes_up", "bytes_down", "bytes_peer")


def run_title(entries: Sequence[Entry]) -> str:
    """Return the title of the page."""
    if len(entries) > 1:
        runs = sum(len(entry.subjects) for entry in entries)
        alone = runs == len(entries)
        return f"{runs} runs compared" if alone else f"{len(entries)} schemes compared in {runs} runs"
    s = entries[0].subjects[0].summary
    return f"{s['algorithm']} on {data_name(s)}"


def sentence(entry: Entry) -> Markup:
    """Return the run in a sentence."""
    if entry.subjects[0].page == COLUMNS:
        return columns_sentence(entry)
    if entry.subjects[0].page == OWNERS:
        return owners_sentence(entry)
    s = entry.subjects[0].summary
    n = len(entry.subjects)
    seeds = (
        f"seed {s['seed']}"
        if n == 1
        else f"{n} times, with the seeds {', '.join(str(x.summary['seed']) for x in entry.subjects)}"
    )
    who = entry.config.cohort
    part = (
        ""
        if who.size is None and who.fraction == 1
        else f"; {who.size or format(who.fraction, '.0%')} of the clients per round"
    )
    return Markup(
        "The algorithm <b>{}</b> trained the model <b>{}</b> ({}) on <b>{}</b>, split over <b>{}</b> with {} ({}), in {}{}; {}."
    ).format(
        s["algorithm"],
        s["model"],
        sizes_text(s),
        data_name(s),
        count(s["clients"], entry.config.party),
        held_text(s["partition_facts"]["sizes"]),
        s["partition"],
        count(max(x.summary["rounds"] for x in entry.subjects), "round"),
        part,
        seeds,
    )


def data_name(summary: Plain) -> str:
    """Return the familiar name of the data: for a custom file, the file's name."""
    facts = summary["data_facts"]
    called = str(facts.get("called", summary["data"]))
    return f"{called} (target {facts['label']})" if facts.get("label") else called


def sizes_text(summary: Plain) -> str:
    """Return the size of the model, or of several, the size of each and its number of clients."""
    several = summary.get("models") or {}
    said = [
        f"{name}: {count(m['parameters'], 'parameter')}, {count(len(m['clients']), 'client')}"
        for name, m in several.items()
    ]
    return "; ".join(said) or count(summary["parameters"], "parameter")


def opening(entries: Sequence[Entry]) -> list[Block]:
    """Return the first screen."""
    ended = [*_diverged(entries), *_stopped(entries)]
    noted = [*_means(entries), *_released(entries)]
    if len(entries) > 1:
        said = [Text(Markup("<b>{}</b>. {}").format(e.label, sentence(e))) for e in entries]
        return [*said, *ended, *_incomparable(entries), *noted, *_differences(entries), _runs(entries)]
    (entry,) = entries
    out = [lead(sentence(entry)), KeyFigures(_keys(entry)), *ended, *_own_rows(entry), *noted]
    unnoised = [Text(said) for said in of_kept_rows(entry.subjects[0])]
    if len(entry.subjects) == 1:
        return [*out, _figures(entry.subjects[0]), *unnoised, *_weighted(entry)]
    parts: list[Literal["final", "test"]] = ["final", "test"]
    tables = [_seeds(entry, part) for part in parts if part in entry.summary["over_seeds"]]
    return [*out, *tables, *unnoised, *_weighted(entry)]


def _diverged(entries: Sequence[Entry]) -> list[Block]:
    """Return a warning for each run that diverged, and for the seeds that were skipped after it."""
    before = Markup("<b>{} diverged</b>; shown is its state before: {}{}")
    absent = Markup("<b>{}: seed {} was not run</b>, because an earlier one diverged.")
    out: list[Block] = []
    for entry in entries:
        ended = [s for s in entry.subjects if "diverged" in s.summary]
        means = " Means are over the other seeds." if 0 < len(ended) < len(entry.subjects) else ""
        out += [notice(before.format(called(s, entry, entries), s.summary["diverged"], means)) for s in ended]
        if left := not_run(entry):
            out.append(notice(absent.format(entry.label, ", ".join(map(str, left)))))
    return out


def _stopped(entries: Sequence[Entry]) -> list[Block]:
    """Return a line for each run that ``[stop]`` ended early."""
    said = Markup("<b>{} stopped</b> {}")
    return [
        Text(said.format(called(s, entry, entries), s.summary["stopped"]))
        for entry in entries
        for s in entry.subjects
        if "stopped" in s.summary
    ]


def _own_rows(entry: Entry) -> list[Block]:
    """Return a line if seeds were judged on different rows, since their spread then has two sources."""
    if len({judged_on(s) for s in entry.subjects}) == 1:
        return []
    return [
        Text(
            "Each seed drew different test rows: the spread over seeds includes that of training and that of the rows drawn."
        )
    ]


def called(subject: Subject, entry: Entry, entries: Sequence[Entry]) -> str:
    """Return a run's name for a sentence: its label, if there are several runs."""
    return "This run" if len(entries) == 1 and entry.config.seeds is None else subject.label


def not_run(entry: Entry) -> list[int]:
    """Return the seeds of the configuration without any results."""
    there = {s.summary["seed"] for s in entry.subjects}
    return [seed for seed in entry.config.seeds or () if seed not in there]


def _differences(entries: Sequence[Entry]) -> list[Block]:
    """Return the keys of the configurations that differ between runs."""
    configs = [flat(by_name(entry.config.plain())) for entry in entries]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [(key.replace(" ", "."), *(config.get(key, "") for config in configs)) for key in keys]
    rows = [row for row in rows if len({str(value) for value in row[1:]}) > 1]
    if not rows:
        return [Text("The configurations of these runs are the same.")]
    cells = [[key, *map(str, values)] for key, *values in rows]
    labels = [entry.label for entry in entries]
    folded = f"The {len(rows)} keys in which these runs differ" if len(rows) > FEW else ""
    head = ["key", *labels]
    caption = "Differences between the configurations of these runs"
    return [TableBlock("differences", caption, head, cells, csv_text(head, rows), [], folded)]


def by_name(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its privacy mechanisms under their names, so that they and their keys can be compared."""
    if "privacy" not in plain:
        return plain
    made = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in plain["privacy"]}
    return {**plain, "privacy": {"name": ", ".join(made), **made}}  # a mechanism without keys would leave no trace else


def _incomparable(entries: Sequence[Entry]) -> list[Block]:
    """Return a warning if the runs were not judged on the same rows."""
    judged = [{judged_on(s) for s in e.subjects} for e in entries]  # for several seeds, those of each seed
    if all(one & other for one, other in combinations(judged, 2)):
        return []
    return [notice("These runs were judged on different rows, so their figures are not directly comparable.")]


def judged_on(subject: Subject) -> str:
    """Return an identifier of the rows a run was judged on; in runs older than this record, built from the configuration."""
    config = subject.config
    return str(subject.summary.get("judged_on", (subject.summary["data"], config.data.test, config.evaluation.on)))


def _means(entries: Sequence[Entry]) -> list[Block]:
    """Explain the first figures if no model is shared by all: they understate a method that adapts to its clients."""
    out: list[Block] = []
    for entry in (e for e in entries if e.subjects[0].personal):
        one = entry.subjects[0]
        whose = "This run's" if len(entries) == 1 else f"{entry.label}:"
        advice = (
            "for figures on rows like a client's own, see the table of each party's gain."
            if one.own_rows
            else "evaluation.clients = 0.2 also judges each client on rows like its own."
        )
        out.append(
            Text(
                f"{whose} first figures and curves are means over the clients ({models_used(one)}), each judged on all of the "
                f"{where(entry.config)}, including classes it may never meet; {advice}{_of_clients(entry)}"
            )
        )
    return out


def _released(entries: Sequence[Entry]) -> list[Block]:
    """Return a warning if several runs released noised values from the same rows: each states only its own epsilon."""
    runs = [
        s.summary["privacy"] for entry in entries for s in entry.subjects if "epsilon" in s.summary.get("privacy", {})
    ]
    if len(runs) < 2:
        return []
    return [
        notice(
            f"{count(len(runs), 'run')} here released noised values. Each run's epsilon counts only that run. If they used the same rows, "
            "an observer of several of them can learn up to the sum of their epsilons."
        )
    ]


def _of_clients(entry: Entry) -> str:
    """Return figures on rows like the clients' own, and the agreement of clusters with the planted groups (C14)."""
    key, summaries = f"client_{entry.subjects[0].headline}", [s.summary for s in whole(entry.subjects)]
    own = [s["final"][key] for s in summaries if s["final"].get(key)]
    agree = [s["clusters"] for s in summaries if "purity" in s.get("clusters", {})]
    out = ""
    if own and entry.subjects[0].own_rows:
        end = "90th" if entry.subjects[0].numbers else "10th"
        mean, tail = (number(over_seeds([found[part] for found in own]).mean) for part in ("mean", "p10"))
        out += f" On rows like a client's own: {NAMES[entry.subjects[0].headline]} {mean} on average, {tail} at the {end} percentile."
    if agree:
        rand, pure = (number(over_seeds([found[part] for found in agree]).mean) for part in ("adjusted_rand", "purity"))
        out += f" Clusters compared with the planted groups: adjusted Rand index {rand}, purity {pure}."
    return out


def _weighted(entry: Entry) -> list[Block]:
    """Explain how figures count rows that have survey weights."""
    if not entry.summary.get("weighted"):
        return []
    return [
        Text(
            "Figures on these rows count a row by its survey weight: shares and numbers of rows are those of the weights. "
            "Intervals treat rows as drawn independently; strata, clusters and calibration are ignored."
        )
    ]


def _keys(entry: Entry) -> list[Key]:
    s, first = entry.summary, entry.subjects[0]
    key = entry.headline
    several = len(entry.subjects) > 1
    spread = s.get("over_seeds", {}).get("final", {}).get(key)
    note = (
        f"{count(spread['n'], 'seed')}; standard deviation {number(spread['sd'])}"
        if spread
        else interval_words(first, key)
    )
    rare, constant = _skewed(entry) if key == "accuracy" and not several else ([], "")
    out = [Key(f"{NAMES[key]}{', mean' if several else ''}", entry.printed(f"final.{key}"), f"{constant}{note}"), *rare]
    decided = s.get("answer")
    if decided and decided["asked"]["figure"] != key:
        out = [*_decisive(entry, decided), *out]
    gained = None if several or len(out) > 1 + len(rare) else s.get("gain")
    own = first.own_rows
    terms = {"federated": "together, mean"} if own else {}
    for part, term in (terms | {"local_only": "each alone, mean", "centralised": "all rows pooled"}).items():
        if gained and part in gained["summary"]:
            found = gained["summary"][part]
            worst = (
                "result if rows could be shared" if part == "centralised" else f"worst client {number(found['min'])}"
            )
            if own:
                worst += "; on the clients' own rows"
            elif part == "local_only":
                worst += f"; each on everybody's {where(entry.config)}"
            out.append(Key(f"{NAMES[key]}, {term}", entry.printed(f"gain.summary.{part}.mean"), worst))
    sent = bytes_text(total_of(s["cost"][k] for k in TOTALS))
    time = f"{'mean of the seeds, ' if several else ''}{count(s['cpu']['cores'], 'core')}"
    return [
        *out,
        Key(f"sent in total{', mean' if several else ''}", sent, sent_note(s)),
        Key("time", entry.printed("cost.seconds", seconds_text), time),
    ]


def _skewed(entry: Entry) -> tuple[list[Key], str]:
    """Return the recall of the rarest class, and the figure of a constant answer, if one class is too large for accuracy to be useful."""
    matrix = entry.summary["final"].get("confusion")
    rows = [sum(row) for row in matrix or ()]
    if not any(rows) or not skewed(rows):
        return [], ""
    c, names = min((c for c, n in enumerate(rows) if n), key=rows.__getitem__), entry.summary["class_names"]
    recall = entry.printed(f"final.per_class_accuracy.{c}")
    note = f"share of its {count(rows[c])} {where(entry.config)} that the model finds"
    always = names[rows.index(max(rows))]
    return [
        Key(f"recall of '{names[c]}'", recall, note)
    ], f"always answering '{always}': {number(max(rows) / sum(rows))}; "


def _decisive(entry: Entry, decided: Plain) -> list[Key]:
    """Return the figure that decides, if another one is shown first: together, and alone."""
    words = capital(decided["asked"]["words"])
    mean = f"mean of the {plural(entry.config.party)} by test rows" if decided["own_rows"] else ""
    out = [Key(f"{words}, together", entry.printed("answer.together"), mean)]
    if decided["alone"] is not None:
        out.append(Key(f"{words}, each alone", entry.printed("answer.alone"), mean))
    return out


def sent_note(summary: Plain) -> str:
    """Return bytes up and down; if hidden because they would reveal who took part, the expected bytes."""
    cost, expected = summary["cost"], summary.get("privacy", {}).get("expected")
    if cost["bytes_up"] is not None:
        return f"{bytes_text(cost['bytes_up'])} up, {bytes_text(cost['bytes_down'])} down"
    said = "hidden: it would reveal how many took part"
    if not expected:
        return said
    return f"{said}; expected: {bytes_text(expected['bytes_up'])} up, {bytes_text(expected['bytes_down'])} down"


def interval_words(subject: Subject, key: str) -> str:
    """Return the bootstrap interval of a final figure in words."""
    interval = subject.summary["final"].get("interval", {})
    if subject.personal:
        return f"no interval: {models_used(subject)}"
    low, high = interval.get(key, (None, None))
    if low is None:
        return f"no interval of these {where(subject.config)}"
    rows = {row["test_rows"] for row in subject.summary["per_client"] if not row["own_rows"]}
    n = f"{count(rows.pop())} " if len(rows) == 1 else ""
    alike = ", which all gave the same result: they cannot show the spread on other rows" if low == high else ""
    return f"{interval['level']:.0%} interval {interval_text(low, high)}, from resampling the {n}{where(subject.config)}{alike}"


def models_used(subject: Subject) -> str:
    """Return whose models the clients use, if they do not share one."""
    found = subject.summary.get("clusters")
    if not found:
        return "every client uses its own model"
    return f"the clients share {count(found['number'], 'model')}, one per cluster"


def _figures(subject: Subject) -> TableBlock:
    """Return final and best figures of one run; if these are of validation rows, also the final model's on the test rows."""
    final, best, test = (subject.summary.get(part, {}) for part in ("final", "best", "test"))
    rows, table, tested = list[Cells](), [], ["test"] if test else []
    for key in (k for k in SHOWN if k in final):
        reached = best.get(key, {})
        peak = TableCell(subject.printed(f"best.{key}.value"), f"round {reached['round']}" if reached else "")
        judged = [_judged(subject, part, key) for part in ("final", *tested)]
        rows.append([capital(NAMES[key]), judged[0], peak, *judged[1:]])
        table.append((key, final[key], reached.get("value"), reached.get("round"), *(test.get(key) for _ in tested)))
    head = ["figure", f"after round {final['round']}", "best round", *(f"{part} rows" for part in tested)]
    text = csv_text(("figure", "final", "best", "best_round", *tested), table)
    flatters = "" if test else "; the best round is chosen on these rows, so its figures are slightly optimistic"
    below = f", with {found['level']:.0%} bootstrap intervals below" if (found := final.get("interval")) else ""
    n = "" if subject.test_rows is None else f"{count(subject.test_rows)} "
    return TableBlock("figures", f"Figures on the {n}{where(subject.config)}{below}{flatters}", head, rows, text)


def _seeds(entry: Entry, part: Literal["final", "test"]) -> TableBlock:
    """Return the figures of every seed, with mean and standard deviation."""
    keys, spread = [k for k in COMPARED if k in entry.summary[part]], entry.summary["over_seeds"][part]
    rows: list[Cells] = [
        [s.label.rsplit(", ")[-1], _rows_of(s, part), *(_judged(s, part, k) for k in keys)] for s in entry.subjects
    ]
    means = {"mean": "mean", "sd": "standard deviation"}
    foot = [[name, "", *(entry.printed(f"over_seeds.{part}.{k}.{x}") for k in keys)] for x, name in means.items()]
    table = [(s.summary["seed"], *(s.summary.get(part, {}).get(k) for k in keys)) for s in entry.subjects]
    table += [(x, *(spread[k][x] for k in keys)) for x in means]
    which = where(entry.config) if part == "final" else "test rows"
    caption = f"Figures after the last round on the {which}, by seed, with bootstrap intervals below"
    name = "figures" if part == "final" else "test-figures"
    return TableBlock(name, caption, ["seed", which, *map(_head, keys)], rows, csv_text(("seed", *keys), table), foot)


def _runs(entries: Sequence[Entry]) -> TableBlock:
    """Return the table of all runs."""
    keys = [k for k in COMPARED if k in entries[0].summary["final"]]
    rows: list[Cells] = []
    for entry in entries:
        cost = entry.summary["cost"]
        spread = entry.summary.get("over_seeds", {}).get("final", {})
        cells = [
            TableCell(entry.printed(f"final.{k}"), f"sd {number(spread[k]['sd'])}")
            if spread
            else _judged(entry.subjects[0], "final", k)
            for k in keys
        ]
        n = f", {len(entry.subjects)} seeds" if spread else ""
        name = TableCell(entry.label, f"{entry.summary['algorithm']}{n}")
        sent = bytes_text(total_of(cost[k] for k in TOTALS))
        judged = _rows_of(entry.subjects[0], "final")
        rows.append([name, judged, *cells, sent, optional(seconds_text(cost["seconds"]))])
    head: Cells = ["run", where(entries[0].config), *map(_head, keys), "sent", optional("time")]
    records = [
        flat({k: v for k, v in e.summary.items() if k in {"algorithm", "data", "rounds", "final", "cost"}})
        for e in entries
    ]
    columns = list(dict.fromkeys(key for record in records for key in record))
    values = [[None if isinstance(v, list) else v for v in map(record.get, columns)] for record in records]
    table = [(entry.label, *line) for entry, line in zip(entries, values, strict=True)]
    caption = (
        "After the last round; below each figure its bootstrap interval, or its standard deviation (sd) over seeds"
    )
    return TableBlock("runs", caption, head, rows, csv_text(("run", *columns), table))


def _rows_of(subject: Subject, part: str) -> str:
    """Return the number of rows behind a figure."""
    if part == "final":
        return DASH if subject.test_rows is None else count(subject.test_rows)
    rows = subject.summary.get("test", {}).get("metric", {}).get("test_rows")
    return DASH if rows is None else count(rows)


def _judged(subject: Subject, part: str, key: str) -> TableCell:
    """Return a figure of the final model with its interval; a seed that diverged has no test figures."""
    return TableCell(subject.printed(f"{part}.{key}"), subject.interval(part, key))


def _head(key: str) -> TableCell:
    return TableCell(NAMES[key], "lower is better" if key in LOWER_IS_BETTER and key != "loss" else "")
