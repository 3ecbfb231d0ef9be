"""The outcome of a run, read from its folder when its process has ended, or from a longer finished run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedatlas.config import ExperimentConfig
from fedatlas.privacy import mechanisms
from fedatlas.record.judged_rows import TRIVIAL
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.study.children import Ended
from fedatlas.study.heterogeneity import heterogeneity
from fedatlas.study.judged import judged_figures
from fedatlas.study.messages import count_messages
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import prefix, responses
from fedatlas.study.table import Outcome, Table
from fedatlas.study.test_rows import RIGHT, kept

DONE = "It finished."
JUDGED_ROWS = "judged_rows"  # key of the table's summaries: the rows of ``evaluation.fold``, for comparisons row by row


def outcome_of(folder: Path, ended: Ended, peak: int) -> Outcome:
    """Return the outcome of a run whose process ended and used at most ``peak`` bytes."""
    run, said = RunFolder(folder / "run"), ended.said
    if ended.status != "done" and not said.get("kept"):
        return Outcome(ended.status, ended.reason or DONE)
    rows, summary = run.rows(), dict(run.summary())
    found = responses(rows, summary)
    if found:
        found["messages_up"], found["messages_down"] = count_messages(folder)
        found |= said.get("expected", {})
        memory = max(peak, said.get("memory", 0))
        found |= {"cpu_seconds": ended.cpu_seconds, "memory_mib": memory / 2**20 if memory else None}
        found |= facts(run.config(), summary)
    arrays = run.arrays(JUDGED)
    if "score" in arrays and "weight" in arrays and (right := kept(arrays["score"], arrays["weight"])):
        summary[RIGHT] = right
    if ended.status == "done" and (judged := judged_figures(run, summary)):
        summary["judged"] = judged
    if ended.status == "done" and run.config().evaluation.fold is not None:
        summary[JUDGED_ROWS] = judged_rows(run)
    return Outcome(ended.status, ended.reason or DONE, rows, summary, found)


def judged_rows(run: RunFolder) -> Plain | None:
    """Return the score, client and weight of each row of the fold that a run is judged on, and the constant model's score.

    Where clients use their own models, a row's score is the mean over these. None where the rows were too many to be kept.
    """
    arrays = run.arrays(JUDGED)
    scores = [x for name, x in arrays.items() if name == "score" or name.startswith("score-")]
    if not scores or f"{TRIVIAL}score" not in arrays:
        return None
    found = {"score": np.mean(scores, axis=0), "constant": arrays[f"{TRIVIAL}score"], "weight": arrays["weight"]}
    owners = run.read_json("partition.json", "fold_owners")["fold_owners"]
    return {name: [float(x) if x % 1 else int(x) for x in each] for name, each in found.items()} | {"client": owners}


def outcome_of_longer(table: Table, run_key: str) -> Outcome | None:
    """Return the outcome of a run whose rounds are the first ones of a longer, finished run; None if there is no such run.

    None also if the longer run was not evaluated at that round, or if somebody had rolled it back by then: the shorter run would
    not have been.
    """
    other = table.longer(run_key)
    if other is None or rolled_back(table.summary(other[0]) or {}, other[1]):
        return None
    rows = table.rows(other[0])
    mine = [row for row in rows if row["round"] <= other[1]]
    if not mine or mine[-1]["round"] != other[1] or mine[-1].keys() != rows[-1].keys() or mine[-1].get("loss") is None:
        return None
    found = prefix(rows, table.responses(other[0]), other[1])
    return Outcome("done", DONE, mine, None, {**found, "prefix_of": other[0]})


def rolled_back(summary: Row, rounds: int) -> bool:
    """Return whether a run was rolled back within its first rounds, by its guard's record in the summary."""
    return any(at <= rounds for at, _ in (summary.get("guard") or {}).get("rollbacks", ()))


def facts(config: ExperimentConfig, summary: Row) -> Plain:
    """Return the federation of a run, measured on its rows (`responses.FACTS`); ``h`` and classes are None for a numeric target."""
    if config.columns:
        return facts_of_columns(summary)
    held = summary["partition_facts"]
    counts, path = held.get("histogram"), dict(config.data.model_extra or {}).get("path")
    named = [score for score in summary["final"].get("per_class_f1") or () if score]
    shares = [sum(column) for column in zip(*counts, strict=True)] if counts else []
    majority = max(shares) / max(sum(shares), 1) if shares else None
    if (
        majority is not None and len(named) == 1
    ):  # it predicts only one class, so its accuracy is that class's share of the rows judged
        majority = max(majority, summary["final"]["accuracy"])
    return {
        "node_count": sum(size > 0 for size in held["sizes"]),
        "train_rows": sum(held["sizes"]),
        "h": heterogeneity(counts) if counts and sum(shares) else None,
        "class_count": len(summary["class_names"]) or None,
        "data_set": Path(path).stem if isinstance(path, str) and config.data.name == "file" else summary["data"],
        "majority": majority,
        "server_sees": server_sees(config),
    }


def facts_of_columns(summary: Row) -> Plain:
    """Return the same of parties that hold columns of the same rows, which have no mixes of classes that could differ."""
    return {
        "node_count": len(summary["parties"]),
        "train_rows": summary["rows"]["train"],
        "h": None,
        "class_count": len(summary["class_names"]) or None,
        "data_set": Path(summary["data"]).stem,
        "majority": None,
        "server_sees": None,
    }


def server_sees(config: ExperimentConfig) -> str:
    """Return what the server sees of single clients: "anything" (their rows), "models", "sums", or "noisy_sums"."""
    if config.algorithm.name == "centralised":
        return "anything"
    return mechanisms.server_sees(mechanisms.made(table.name, table.parameters()) for table in config.privacy)
