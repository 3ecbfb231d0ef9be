"""The answer of a comparison: each scheme's figures over the seeds, and which of them did best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.record.run_folder import RunFolder
from fedatlas.wording import NAMES, PARTS, bytes_text, number, seconds_text, total_of

Plain = Mapping[str, Any]


def answer_of(schemes: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """Return the answer: the figure, one row per scheme from best to worst, and the sentences.

    ``schemes``: their entries of the record, each with the seeds that ended well. Only test rows that were not used for
    a choice count.
    """
    runs: dict[str, dict[int, Plain]] = {
        one["label"]: {seed: summary_of(out / one["label"], seed) for seed in one["seeds"]} for one in schemes
    }
    known = [summary for found in runs.values() for summary in found.values()]
    if not known:
        return {"figure": None, "rows": [], "sentences": ["No run came to its end, so there is nothing to compare."]}
    figure = "rmse" if known[0]["task"] == "numbers" else "accuracy"
    rows = [row(label, found, figure) for label, found in runs.items() if found]
    sign = 1 if figure in LOWER_IS_BETTER else -1
    rows.sort(key=lambda one: (one["mean"] is None, sign * (one["mean"] or 0.0)))
    return {"figure": figure, "rows": rows, "sentences": sentences(schemes, runs, figure)}


def summary_of(folder: Path, seed: int) -> Plain:
    """Return the summary of a scheme's run with a seed."""
    return dict(RunFolder(folder / f"seed-{seed}").summary())


def row(label: str, found: Mapping[int, Plain], figure: str) -> dict[str, Any]:
    """Return a scheme's figures over its seeds: quality, the baselines' means, bytes and seconds."""
    summaries = list(found.values())
    spread = over_seeds([value_of(one, figure) for one in summaries])
    out: dict[str, Any] = {"scheme": label, "mean": spread.mean, "sd": spread.sd, "seeds": sorted(found)}
    for part in ("local_only", "centralised"):
        values = [one["gain"]["summary"][part]["mean"] for one in summaries if part in _gained(one)]
        out[part] = over_seeds(values).mean if len(values) == len(summaries) else None
    keys = ("bytes_up", "bytes_down", "bytes_peer")
    out["bytes"] = over_seeds([total_of(one["cost"][key] for key in keys) for one in summaries]).mean
    out["seconds"] = over_seeds([one["cost"]["seconds"] for one in summaries]).mean
    return out


def value_of(summary: Plain, figure: str) -> float | None:
    """Return a run's figure on test rows: with ``evaluation.on = "validation"`` those that were used for no choice."""
    value: float | None = summary.get("test", summary["final"]).get(figure)
    return value


def _gained(summary: Plain) -> Mapping[str, Any]:
    found: Mapping[str, Any] = summary.get("gain", {}).get("summary", {})
    return found


def sentences(schemes: Sequence[Mapping[str, Any]], runs: Mapping[str, Mapping[int, Plain]], figure: str) -> list[str]:
    """Return the answer in sentences, and one for each run that did not end well."""
    out: list[str] = []
    for one in schemes:
        out += [
            f"{one['label']}, seed {seed}, {end['status']}: {end['reason'].rstrip('.')}."
            for seed, end in one.get("ended", {}).items()
        ]
    return out


def table_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the rows of an answer as aligned lines."""
    if not answer["rows"]:
        return []
    parts = [part for part in ("local_only", "centralised") if any(one[part] is not None for one in answer["rows"])]
    head = ["scheme", f"{NAMES[answer['figure']]}, mean", "sd", "seeds", *(PARTS[p] for p in parts), "sent", "time"]
    cells = [head]
    for one in answer["rows"]:
        sent = bytes_text(one["bytes"])
        values = [number(one["mean"]), number(one["sd"]), str(len(one["seeds"])), *(number(one[p]) for p in parts)]
        cells.append([one["scheme"], *values, sent, seconds_text(one["seconds"])])
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
