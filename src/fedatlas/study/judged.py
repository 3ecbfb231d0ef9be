"""A run's figure in draws of its test rows, kept in the table, so that runs of one setting are compared on the same draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedatlas.metrics.metric import METRICS
from fedatlas.metrics.quality import Floats
from fedatlas.record.judged_rows import TRIVIAL, said_of
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.runs.answer import Models, evidence_of, parties_of
from fedatlas.study.plain import Plain, Row
from fedatlas.verdict.answer import PartyEvidence, counting
from fedatlas.verdict.evidence import Evidence, drawn_figures, mean_gap
from fedatlas.verdict.whom import NAMED

DRAWS = 200  # the standard error of a difference is then known to 5%
DIGITS = 6  # of a kept figure
KINDS = ("together", "trivial")
EVERYBODY = -1  # in place of a client, where parties are not told apart


def judged_figures(run: RunFolder, summary: Row) -> Plain | None:
    """Return what the table keeps of how a run was judged; None for a run whose rows were not kept.

    ``own``: whether parties are judged on rows of their own; ``train_rows``; ``parties``: each with its test rows and its
    figure, first on all of them, then in each draw, also that of the constant model. Few natural owners are kept one by one,
    others as one with their mean by test rows.
    """
    if "parties" in summary:
        return _of_columns(run, summary)
    if "diverged" in summary or not {"metric", "per_client"} <= summary.keys():
        return None
    found = [p for p in parties_of(summary, Models(run.arrays(JUDGED), {}, {}, {})) if p.train_rows != 0]
    counted, figure = counting(found), str(summary["metric"]["name"])
    if not counted:
        return None
    own = any(p.own for p in counted)
    if not own and all(p.judged.models["together"] is counted[0].judged.models["together"] for p in counted):
        counted = counted[:1]  # all share the model and the rows
    each = _drawn(counted, figure, own)
    train = sum(row["train_rows"] or 0 for row in summary["per_client"])
    if own and summary["partition"] == "natural" and len(counted) <= NAMED:
        parties = [_kept(p.client, p.name, p.judged, p.train_rows, one) for p, one in zip(counted, each, strict=True)]
    else:
        rows = [p.judged.rows for p in counted]
        kinds = [kind for kind in KINDS if all(kind in one for one in each)]
        mean = {kind: mean_gap([one[kind] for one in each], rows) for kind in kinds}
        parties = [_kept(EVERYBODY, "", _together([p.judged for p in counted], own), train, mean)]
    return {"own": own, "train_rows": train, "parties": parties}


def _of_columns(run: RunFolder, summary: Row) -> Plain | None:
    """Return the same of parties that hold columns: one of them judges, on the test rows."""
    metric, arrays = METRICS[str(summary["metric"]["name"])], run.arrays(JUDGED)
    said = {"together": said_of(arrays), "trivial": said_of(arrays, kind=TRIVIAL)}
    known = {kind: one.at(one.weight > 0) for kind, one in said.items() if one is not None}
    models = {kind: (one, metric.weighted(one)) for kind, one in known.items()}
    if "together" not in models:
        return None
    k, holder = next((k, one) for k, one in enumerate(summary["parties"]) if one["active"])
    judged, train = evidence_of(summary, models), summary["rows"]["train"]
    found = PartyEvidence(k, holder["name"], judged, own=True, train_rows=train)
    (figures,) = _drawn([found], metric.name, own=True)
    return {"own": True, "train_rows": train, "parties": [_kept(k, holder["name"], judged, train, figures)]}


def _drawn(parties: Sequence[PartyEvidence], figure: str, own: bool) -> list[dict[str, Floats]]:
    """Return each party's figures by model, (1 + draws,): the same draws for every run with the same test rows."""
    if own:
        each = [drawn_figures([p.judged], figure, 0, "study", p.client, draws=DRAWS) for p in parties]
        return [{kind: table[:, 0] for kind, table in one.items()} for one in each]
    tables = drawn_figures([p.judged for p in parties], figure, 0, "study", draws=DRAWS)
    return [{kind: table[:, i] for kind, table in tables.items()} for i in range(len(parties))]


def _together(each: Sequence[Evidence], own: bool) -> Evidence:
    """Return the rows of all parties as those of one."""
    judged = each if own else each[:1]
    rarer = [one.rarer for one in judged if one.rarer is not None]
    return Evidence(sum(one.rows for one in judged), {}, sum(rarer) if rarer else None)


def _kept(client: int, name: str, judged: Evidence, train_rows: int | None, figures: dict[str, Floats]) -> Plain:
    told = {kind: [_short(x) for x in figures[kind].tolist()] for kind in KINDS if kind in figures}
    return {
        "client": client,
        "name": name,
        "rows": judged.rows,
        "rarer": judged.rarer,
        "train_rows": train_rows,
        **told,
    }


def _short(x: float) -> float | None:
    return float(f"{x:.{DIGITS}g}") if math.isfinite(x) else None
