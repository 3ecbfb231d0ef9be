"""The answer of a finished run, and of several seeds, from their folders: see `fedatlas.verdict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.algorithms.titles import title_of
from fedatlas.config import ExperimentConfig
from fedatlas.data.batches import cut
from fedatlas.files import OWN_FILES
from fedatlas.metrics.metric import OF_ONE_CLASS, Metric, Said
from fedatlas.metrics.resampling import Weighted
from fedatlas.record.judged_rows import TRIVIAL, Arrays, own_of, said_of
from fedatlas.record.run_folder import BASELINES, JUDGED, RunFolder, baseline_path
from fedatlas.runs.metric_gain import metric_of
from fedatlas.runs.price import SENT, effort_of, unprotected
from fedatlas.verdict.answer import Answer, Asked, OwnFrom, PartyEvidence, answer, of_plain, over
from fedatlas.verdict.evidence import RARITY, SEEDS, Evidence
from fedatlas.verdict.noise import last_swing, matters
from fedatlas.verdict.sentences import text
from fedatlas.wording import NAMES, number, total_of, where

Summary = Mapping[str, Any]
HOLD = "evaluation.clients = 0.2"
DRAWS = 400  # of test rows: the standard error of a difference is then known to 4%


class Models(NamedTuple):
    """The outputs of the models of a run on its test rows, by row."""

    together: Arrays
    alone: Arrays  # empty without a baseline
    pooled: Arrays  # empty without a baseline
    unprotected: Arrays  # empty unless the price of protection was measured


def answer_of(run: Path, summary: Summary) -> Answer | None:
    """Return whether the run's parties should federate.

    None for a run without an answer: a baseline, parties that hold columns, a run that diverged, or one whose rows were not kept.
    """
    if summary["algorithm"] in BASELINES or "diverged" in summary or not {"metric", "per_client"} <= summary.keys():
        return None
    config = RunFolder.open(run).config()
    bare, kept = unprotected(run), RunFolder(run).arrays(JUDGED)
    alone, pooled = (_of_baseline(run, name) for name in ("local_only", "centralised"))
    models = Models(kept, alone, pooled, {} if bare is None else bare.arrays(JUDGED))
    metric, parties = metric_of(summary), parties_of(summary, models)
    if not parties:
        return None
    train = sum(row["train_rows"] or 0 for row in summary["per_client"])
    efforts = None if bare is None else (effort_of(bare.summary()), effort_of(summary))
    asked, judged_on = asked_of(config, summary, metric), str(summary.get("judged_on"))
    found = answer(asked, parties, summary["seed"], judged_on, train, DRAWS, efforts)
    return _with_swing(run, config, summary, found)


def _of_baseline(run: Path, name: str) -> Arrays:
    folder = RunFolder(baseline_path(run, name))
    return folder.arrays(JUDGED) if folder.finished() else {}


def answer_over(summaries: Sequence[Summary], config: ExperimentConfig) -> Answer | None:
    """Return the answer of several seeds of an experiment from their summaries; None if one of them has none."""
    known = [of_plain(one["answer"]) for one in summaries if "answer" in one]
    if not known or len(known) < len(summaries):
        return None
    both = [one for one in known if one.compared]
    bare = len(known) - len(both) if len(both) >= SEEDS else 0
    sent = [total_of(one["cost"][key] for key in SENT) for one in summaries]
    total = total_of(sent)
    same = config.columns or config.partition.name == "natural"  # otherwise client k is another in each seed
    found = over(both if bare else known, None if total is None else total / len(sent), same)
    return found._replace(bare_seeds=bare)


def told(found: Answer) -> dict[str, Any]:
    """Return the answer as ``answer`` of summary.json, with its paragraph in front."""
    return {"text": text(found), "verdict": found.verdict, **found.plain()}


def asked_of(config: ExperimentConfig, summary: Summary, metric: Metric) -> Asked:
    """Return what is asked of a run."""
    sent = total_of(summary["cost"][key] for key in SENT)
    return Asked(
        title_of(summary["algorithm"]),
        metric.name,
        metric.words + _of_class(summary, metric),
        metric.lower_is_better,
        config.evaluation.margin or 0.0,
        config.party,
        sent,
        where(config).removesuffix("s"),
        _reference(summary),
        "" if config.data.options().get("path") == OWN_FILES else HOLD,
        own_from(summary),
    )


def own_from(summary: Summary) -> OwnFrom:
    """Return the key that takes a share of each party's rows as its own test rows; "" where they are given, or it has none."""
    if any(row["own_rows"] for row in summary.get("per_client", ())):
        return "evaluation.clients"
    return "data.test" if str(summary.get("data_facts", {}).get("test", "")).startswith("a share of") else ""


def _of_class(summary: Summary, metric: Metric) -> str:
    """Return " of 'yes'" for a figure that says more of one class than of the other."""
    positive = summary["metric"].get("positive")
    return f" of '{positive}'" if positive is not None and metric.name in OF_ONE_CLASS else ""


def _reference(summary: Summary) -> str:
    found = summary.get("trivial", {})
    if "answer" not in found:
        return ""
    constant = found["answer"]
    where = ", the best on these rows," if found.get("source") == "test rows" else ""
    if summary["task"] == "numbers":
        return f"always answering the mean ({number(constant)}){where}"
    return f"always answering '{constant}'{where}"


def parties_of(summary: Summary, models: Models) -> list[PartyEvidence]:
    """Return the evidence of each party, on test rows of its own if any party has some; else on everybody's."""
    once: dict[tuple[str, str], tuple[Said, Weighted]] = {}
    clients = [row["client"] for row in summary["per_client"]]
    own = any(own_of(models.together, k) is not None for k in clients)
    out = []
    for row in summary["per_client"]:
        k = row["client"]
        mine = own and own_of(models.together, k) is not None
        said = _said(summary, models, k, mine, bool(row["train_rows"]), once)
        if "together" not in said:
            continue
        judged, always = evidence_of(summary, said), _always(summary, k, said)
        rows = row["train_rows"]
        drawn = mine and own_from(summary) == "data.test"
        taken = row["test_rows"] if row["own_rows"] else judged.rows if drawn else 0
        out.append(PartyEvidence(k, str(row.get("name", k)), judged, mine, always, rows, rows and rows + taken))
    return out


def _said(
    summary: Summary,
    models: Models,
    k: int,
    mine: bool,
    trained: bool,
    once: dict[tuple[str, str], tuple[Said, Weighted]],
) -> dict[str, tuple[Said, Weighted]]:
    """Return what each model of a party said, and its figures; those that several parties share are made once."""
    metric, out = metric_of(summary), dict[str, tuple[Said, Weighted]]()
    sources = {"together": (models.together, ""), "trivial": (models.together, TRIVIAL)}
    if trained:
        sources["alone"] = (models.alone, "")
    sources |= {
        name: (held, "") for name, held in (("pooled", models.pooled), ("unprotected", models.unprotected)) if held
    }
    for name, (arrays, kind) in sources.items():
        shared = not mine and f"{kind}score-{k}" not in arrays
        if shared and (name, "") in once:
            out[name] = once[name, ""]
            continue
        said = (own_of if mine else said_of)(arrays, k, kind)
        if said is None or any(getattr(said, need) is None for need in metric.needs):
            continue
        said = said.at(said.weight > 0)
        out[name] = said, metric.weighted(said)
        if shared:
            once[name, ""] = out[name]
    return out


def evidence_of(summary: Summary, said: Mapping[str, tuple[Said, Weighted]]) -> Evidence:
    """Return the evidence of one party, from what each model said of its test rows."""
    name, first = summary["metric"]["name"], said["together"][0]
    shares = name == "accuracy" and summary["task"] == "classes" and bool((first.weight == 1).all())
    hits = {model: one.score for model, (one, _) in said.items()} if shares else {}
    rarer = None
    if name in RARITY and first.true is not None:
        counts = np.bincount(first.true.astype(np.int64), minlength=len(summary["class_names"]))
        there = counts if len(counts) == 2 else counts[counts > 0]  # of several, those that these rows have
        rarer = int(there.min(initial=first.rows))
    return Evidence(first.rows, {model: figures for model, (_, figures) in said.items()}, rarer, hits)


def _always(summary: Summary, k: int, said: Mapping[str, tuple[Said, Weighted]]) -> str | None:
    """Return the class that a model alone always answers, of a party whose training rows hold no other; else None."""
    held = summary["partition_facts"].get("histogram")
    if held is None or "alone" not in said or sum(n > 0 for n in held[k]) != 1:
        return None
    answers = _answers(said["alone"][0])
    return (
        str(summary["class_names"][int(answers[0])])
        if answers is not None and len(set(answers.tolist())) == 1
        else None
    )


def _answers(said: Said) -> NDArray[Any] | None:
    if said.predicted is not None:
        return said.predicted
    if said.outputs is None:
        return None
    return (said.outputs > 0).astype(np.int64) if said.outputs.ndim == 1 else said.outputs.argmax(1)


def _with_swing(run: Path, config: ExperimentConfig, summary: Summary, found: Answer) -> Answer:
    """Add how far the figure swings over the last rounds, where that matters for the answer, and what calms it.

    Of a metric that rounds are not judged by, the figure of rounds that is nearest to it.
    """
    rows: list[Summary] = [*RunFolder(run).rows()[1:]]
    known = [key for key in (found.asked.figure, "rmse", "macro_f1", "accuracy") if any(key in row for row in rows)]
    if not known:
        return found
    swing = last_swing([row.get(known[0]) for row in rows])
    low, high = summary["final"].get("interval", {}).get(known[0], (None, None))
    gain = found.gain if known[0] == found.asked.figure else None
    if not matters(swing, gain, None if low is None or high is None else (low, high)):
        return found
    return found._replace(swing=swing, swing_of=NAMES.get(known[0], known[0]), cures=_cures(config, summary))


def _cures(config: ExperimentConfig, summary: Summary) -> tuple[str, ...]:
    """Return what calms the last rounds, likeliest first; a last batch of one row makes a step of that row alone."""
    out = [] if config.local.schedule.name != "constant" else ['a rate that falls (local.schedule.name = "cosine")']
    if config.cohort.fraction < 1:
        out.append("more clients in each round's average (cohort.fraction)")
    local = config.local
    rows = [row["train_rows"] or 0 for row in summary["per_client"]]
    if local.batch_size > 1 and any(n > 1 and cut(n, local.batch_size, local.merges)[1] == 1 for n in rows):
        out.insert(0, 'no last batch of one row (local.last_batch = "merge")')
    return (*out, "a smaller local.lr")
