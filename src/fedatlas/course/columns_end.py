"""What a run of parties that hold columns writes: who holds what, each party's part of the model, the summary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas import machine
from fedatlas.algorithm import State
from fedatlas.config import ExperimentConfig
from fedatlas.course.progress import Row
from fedatlas.data.party_tables import PartyTable
from fedatlas.federation.client_states import PartyState
from fedatlas.metrics.intervals import mean_last
from fedatlas.record.run_folder import JUDGED, SUMMARY, RunFolder
from fedatlas.record.summary import FIGURES, best, cost
from fedatlas.setup.consortium import Consortium
from fedatlas.vertical import boosting
from fedatlas.vertical.boosting import SecureBoost
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.parties import Columns

MODEL = "model.json"  # the active party's: the trees without anybody's thresholds


def model_file(name: str) -> str:
    """A party's lookup table."""
    return f"model-{name}.json"


def own_file(name: str) -> str:
    """What a party alone is told of the run: its own thresholds and the importance of its columns."""
    return f"party-{name}.json"


def partition_record(held: Consortium, server: State) -> dict[str, Any]:
    """``partition.json``: columns of each party, its rows, how many of its ids were matched; never an id."""
    return {
        "parties": [
            {
                "name": one.name,
                "columns": [column.name for column in one.schema],
                "rows": len(one.ids),
                "without_id": one.without_id,
                "matched": server["align"]["rows"],
                "label": k == held.active,
            }
            for k, one in enumerate(held.tables)
        ],
        "align": {**held.align._asdict(), "ids": server["align"]["ids"], "common": server["align"]["common"]},
        "rows": dict(server["rows"]),
    }


def write_end(
    held: Consortium,
    how: SecureBoost,
    server: State,
    states: PartyState,
    folder: RunFolder,
    rows: Sequence[Row],
    early: str = "",
) -> dict[str, Any]:
    """Models, each party's own file, the scores of the rows that the model is judged on, and the summary."""
    for data, table in zip(held.parties, held.tables, strict=True):
        state = states.get(data.party)
        if state is not None:  # a party that is elsewhere writes its own part there
            write_part(held.config, data, table, state, importance_of(table, server), folder)
    summary = summarise(held, how, server, rows, early)
    folder.write_json(SUMMARY, summary)
    return summary


def write_part(
    config: ExperimentConfig,
    data: Columns,
    table: PartyTable,
    state: State,
    importance: Mapping[str, float],
    folder: RunFolder,
) -> None:
    """A party's part of the model, and what it alone is told; of the party with the label the trees and the scores, too."""
    found = boosting.export(data, state)
    folder.write_json(model_file(data.name), {"party": data.name, **reading(config, data, table), **found["table"]})
    own = {"party": data.name, "rows": len(table.ids), "importance": importance, "nodes": found["table"]["records"]}
    folder.write_json(own_file(data.name), own)
    if found["model"] is not None:
        folder.write_json(MODEL, found["model"])
        judged = Judged(data, state, boosting.outputs(state), "test")
        arrays = {"score": judged.scores.astype(np.float32), "weight": judged.weight.astype(np.float32)}
        folder.save_arrays(JUDGED, arrays)


def reading(config: ExperimentConfig, data: Columns, table: PartyTable) -> dict[str, Any]:
    """How a party's file was read, so that new rows are read alike."""
    file = config.parties[data.party] if config.parties else None
    schema = [{"name": c.name, "categories": list(c.categories)} for c in table.schema]
    label = {"class_names": list(table.class_names), "task": table.task} if data.party == data.active else {}
    return {"id": file.id if file else "row", "schema": schema, **label}


def importance_of(table: PartyTable, server: State) -> dict[str, float]:
    """column -> gain, largest first, of those that were of use. What crosses the link is the columns' places, not their names."""
    return named(table, server["boost"]["importance"][table.name])


def named(table: PartyTable, gains: Sequence[float]) -> dict[str, float]:
    """Gains by place as gains by column."""
    pairs = [(name, float(gain)) for name, gain in zip(table.names, gains, strict=True) if gain > 0]
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def summarise(held: Consortium, how: SecureBoost, server: State, rows: Sequence[Row], early: str) -> dict[str, Any]:
    """``summary.json``."""
    evaluated = [row for row in rows if row["loss"] is not None]
    final = dict(server["quality"])
    figures = [key for key in (*FIGURES, "auc") if key in final]
    counts, table = server["boost"].get("total", {}), held.holder
    out = {
        "algorithm": "secureboost",
        "data": table.called or held.config.data.name,
        "data_facts": {"label": label_of(held), "test": f"a share of {held.test} of the aligned rows"},
        "model": "trees",
        "partition": "vertical",
        "clients": len(held.names),
        "rounds": rows[-1]["round"],
        "seed": held.config.seed,
        "task": table.task,
        "class_names": list(table.class_names),
        "protected": how.key_bits > 0,
        "final": {"round": rows[-1]["round"], **final, "interval": ends(server["intervals"])},
        "best": best(evaluated, figures),
        "mean_last": {key: mean_last([row.get(key) for row in rows]) for key in figures},
        "cost": cost(rows),
        "rows": dict(server["rows"]),
        "align": {**held.align._asdict(), **{k: server["align"][k] for k in ("ids", "rows", "common")}},
        "parties": parties_of(held, server),
        "trees": server["boost"]["nodes"],
        "importance": {one.name: importance_of(one, server) for one in held.tables},
        "ciphertexts": counts.get("ciphertexts", 0),
        "exponentiations": counts.get("exponentiations", 0),
        "counts": counts,
        "weighted": table.weight is not None,
        "notices": [*held.notices, *server["align"]["notices"]],
        "plan": {"workers": held.parties[0].workers},
        "config_hash": held.config.hash(),
        "data_sha256": hashlib.sha256("".join(one.called for one in held.tables).encode()).hexdigest(),
        **machine.describe(),
    }
    if "tested" in server:
        tested = server["tested"]
        out["test"] = {**tested["quality"], "interval": ends(tested["intervals"])}
    if early:
        out["stopped"] = early
    return out


def ends(intervals: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """figure -> [low, high], and the level."""
    level = next((one[3] for one in intervals.values()), 0.95)
    return {**{name: [one[1], one[2]] for name, one in intervals.items()}, "level": level}


def label_of(held: Consortium) -> str:
    """The name of the target."""
    if held.config.parties:
        return held.config.parties[held.active].label or ""
    return str(held.config.data.options().get("label") or "the target")


def parties_of(held: Consortium, server: State) -> list[dict[str, Any]]:
    """Each party's columns and rows, and how many of them all have."""
    return [
        {
            "name": one.name,
            "active": k == held.active,
            "columns": len(one.schema),
            "rows": len(one.ids),
            "matched": server["align"]["rows"],
        }
        for k, one in enumerate(held.tables)
    ]
