"""The answer of a comparison: each scheme's figures over the seeds, and which of them did best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.comparison.remarks import baselines_remark, epsilon_remark, pooled_remark, rate_remark, rounds_remark
from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.metric import METRICS
from fedatlas.record.run_folder import BASELINES, SUMMARY, RunFolder
from fedatlas.reporting.ranking import Ranked, ranked
from fedatlas.reporting.ranking_rows import resampled
from fedatlas.verdict.price import of_plain, price_text
from fedatlas.wording import PARTS, bytes_text, number, seconds_text, total_of

Plain = Mapping[str, Any]
TOGETHER = ("federated", "local_only")
JOINED = "joined"  # baseline of parties that hold columns, with all of them in one table
NOTHING = "No runs came to their end that could be compared."
UNLIKE = (
    "The runs are judged by different figures, so they have no ranking: name one (evaluation.metric), and run again."
)


def answer_of(
    schemes: Sequence[Mapping[str, Any]], out: Path, keys: Sequence[str] = (), file: str = "FILE.toml"
) -> dict[str, Any]:
    """Return the answer: the figure, one row per scheme from best to worst, the pairs, and the sentences.

    ``schemes``: their entries of the record, each with the seeds that ended well. ``keys``: those with several values.
    ``file``: the experiment, for commands that a sentence names.
    """
    runs: dict[str, dict[int, Plain]] = {
        one["label"]: {seed: summary_of(out / one["label"], seed) for seed in one["seeds"]} for one in schemes
    }
    ends = [line for one in schemes for line in end_lines(one)]
    found = ranked(
        {name: seeds for name, seeds in runs.items() if seeds},
        lambda name, seed: resampled(RunFolder(out / name / f"seed-{seed}"), runs[name][seed]),
    )
    if found is None:
        return {
            "figure": None,
            "words": "",
            "rows": [],
            "pairs": [],
            "take": "",
            "sentences": [UNLIKE if any(runs.values()) else NOTHING, *ends],
            "remarks": ends,
        }
    rows = [row(name, runs[name], found) for name in found.ranking.order]
    prices = [line for one in rows if one["scheme"] != found.chosen for line in price_lines(out, one, found)]
    remarked = [*baselines_remark(runs[found.chosen]), *remarks(rows, found, out, keys, file)] if rows else []
    remarked += epsilon_remark({name: [*each.values()] for name, each in runs.items()})
    told = [found.text, *taken_text(out, found.chosen), *prices, *remarked, *ends]
    pairs = [one.plain() for one in found.ranking.pairs]
    head = {"figure": found.figure, "words": found.words, "rows": rows, "pairs": pairs}
    return {**head, "take": found.chosen, "sentences": told, "remarks": [*remarked, *ends]}


def taken_text(out: Path, name: str) -> list[str]:
    """Return the answer of the scheme to take over its seeds: whether to federate with it, at which cost, for whom."""
    top = RunFolder(out / name) if name else None
    if top is None or not (top.path / SUMMARY).exists() or "answer" not in (summary := top.summary()):
        return []
    return [f"{name}: {summary['answer']['text']}"]


def price_lines(out: Path, row: dict[str, Any], found: Ranked) -> list[str]:
    """Return the cost of protection for a scheme other than the one to take; nothing if it was not measured."""
    top = RunFolder(out / row["scheme"])
    summary = top.summary() if (top.path / SUMMARY).exists() else {}
    price = of_plain(summary.get("answer", {}).get("price"))
    if price is None:
        return []
    told = price_text(price, found.words, lower_is_better=found.lower_is_better, several=len(row["seeds"]) > 1)
    return [f"{row['scheme']}: {told}"]


def remarks(rows: Sequence[Mapping[str, Any]], found: Ranked, out: Path, keys: Sequence[str], file: str) -> list[str]:
    """Return cautions about the figures of a comparison."""
    lower = found.lower_is_better
    runs = {one["scheme"]: [RunFolder(out / one["scheme"] / f"seed-{seed}") for seed in one["seeds"]] for one in rows}
    curves = {name: [curve_of(run.rows(), found.figure) for run in each] for name, each in runs.items()}
    configs = [each[0].config() for each in runs.values() if each]
    rates = [one.local.lr for one in configs if not one.columns]  # parties that hold columns train by no local settings
    taken = [one for one in rows if one["scheme"] == found.chosen and rates]
    pooled = [line for one in taken for line in pooled_remark(one, lower_is_better=lower)]
    return [*pooled, *rounds_remark(curves, lower_is_better=lower), *rate_remark(keys, rates, file)]


def curve_of(rows: Sequence[Mapping[str, Any]], figure: str) -> list[float | None]:
    """Return the figure of the judged rounds, or the accuracy if rounds lack that figure and more of it is better."""
    known = next((key for key in (figure, "accuracy") if any(key in row for row in rows)), None)
    usable = known == figure or (figure not in METRICS or not METRICS[figure].lower_is_better)
    return [row.get(known) for row in rows[1:]] if known is not None and usable else []


def end_lines(one: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each run of a scheme that did not end well."""
    return [
        f"{one['label']}, seed {seed}, {end['status']}: {end['reason'].rstrip('.')}."
        for seed, end in one.get("ended", {}).items()
    ]


def summary_of(folder: Path, seed: int) -> Plain:
    """Return the summary of a scheme's run with a seed."""
    return dict(RunFolder(folder / f"seed-{seed}").summary())


def row(label: str, found: Mapping[int, Plain], by: Ranked) -> dict[str, Any]:
    """Return a scheme's figures over its seeds: quality, the baselines' means, bytes and seconds."""
    summaries = list(found.values())
    spread = over_seeds([one.value for one in by.values[label].values()])
    out: dict[str, Any] = {"scheme": label, "mean": spread.mean, "sd": spread.sd, "seeds": sorted(by.values[label])}
    for part in BASELINES:
        values = [_of_baseline(one, part, by.figure) for one in summaries]
        out[part] = None if None in values else over_seeds(values).mean
    keys = ("bytes_up", "bytes_down", "bytes_peer")
    out["bytes"] = over_seeds([total_of(one["cost"][key] for key in keys) for one in summaries]).mean
    out["seconds"] = over_seeds([one["cost"]["seconds"] for one in summaries]).mean
    return out


def _of_baseline(summary: Plain, part: str, figure: str) -> float | None:
    """Return a baseline's figure; None if it was not trained, or its rows are not those of the scheme's figure."""
    gain = summary.get("gain") or {}
    if part == "local_only" and "answer" in summary:
        alone: float | None = summary["answer"]["alone"]
        return alone
    if "parties" in summary:  # of columns: one party judges, by rows that every baseline shares
        joined: float | None = gain.get("metric", {}).get("values", {}).get(JOINED) if part == "centralised" else None
        return joined
    if summary.get("answer", {}).get("own_rows"):  # together and alone are over the parties' own rows, and so is this
        return _on_own_rows(gain.get("metric", {}).get("clients", ()), part)
    if "metric" in gain:
        value: float | None = gain["metric"]["values"].get(part)
        return value
    mean: float | None = gain.get("summary", {}).get(part, {}).get("mean") if gain.get("figure") == figure else None
    return mean


def _on_own_rows(clients: Sequence[Plain], part: str) -> float | None:
    """Return a model's mean over the parties' own test rows, for the parties that the answer compares."""
    own = [one["own"] for one in clients if one.get("own")]
    told = [(one["test_rows"], [one.get(name, {}).get("value") for name in (part, *TOGETHER)]) for one in own]
    known = [(n, values[0]) for n, values in told if None not in values]
    total = sum(n for n, _ in known)
    return sum(n * value for n, value in known) / total if total else None


def table_cells(answer: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of an answer as texts, below their heads; nothing without a row."""
    if not answer["rows"]:
        return []
    parts = [part for part in BASELINES if any(one[part] is not None for one in answer["rows"])]
    cells = [["scheme", f"{answer['words']}, mean", "sd", "seeds", *(PARTS[p] for p in parts), "sent", "time"]]
    for one in answer["rows"]:
        sent = bytes_text(one["bytes"])
        values = [number(one["mean"]), number(one["sd"]), str(len(one["seeds"])), *(number(one[p]) for p in parts)]
        cells.append([one["scheme"], *values, sent, seconds_text(one["seconds"])])
    return cells


def table_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the rows of an answer as aligned lines."""
    cells = table_cells(answer)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
