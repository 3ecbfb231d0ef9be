"""Files of a run whose parties hold columns: the record of columns and rows, each party's part of the model, the summary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fedatlas.algorithm import State
from fedatlas.config import ExperimentConfig
from fedatlas.course.metric_figures import COMMON, drawn_of
from fedatlas.course.metric_rows import kept
from fedatlas.data.cells import OLDEST
from fedatlas.data.party_tables import PartyTable
from fedatlas.metrics.intervals import usual_draws
from fedatlas.metrics.metric import Task, chosen
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.fingerprint import fingerprint
from fedatlas.record.judged_rows import TRIVIAL
from fedatlas.record.run_folder import JUDGED
from fedatlas.record.summary import FIGURES, of_all_runs
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.parties import Columns, labels, order, places

MODEL = "model.json"  # the active party's: the model without any party's thresholds


def model_file(name: str) -> str:
    """Return the file of a party's lookup table."""
    return f"model-{name}.json"


def own_file(name: str) -> str:
    """Return the file of results that only one party receives: its thresholds and the importance of its columns."""
    return f"party-{name}.json"


def partition_record(held: Consortium, server: State) -> dict[str, Any]:
    """Return ``partition.json``: each party's columns, rows and number of matched ids, but never an id."""
    reading_ = {"reading": {"rules": rules}} if (rules := held.tables[0].reading.rules) > 1 else {}
    if held.rows:
        columns = [column.name for column in held.holder.schema]
        own = [
            {"name": one.name, "columns": columns, "rows": len(one.ids), **server["own"][one.name]}
            for one in held.tables
        ]
        return {"parties": own, "rows": dict(server["rows"]), **reading_}
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
        "align": {**held.align.record(), "ids": server["align"]["ids"], "common": server["align"]["common"]},
        "rows": dict(server["rows"]),
        **reading_,
    }


def part(whole: Checked, data: Columns, table: PartyTable, state: State, gains: Sequence[float]) -> dict[str, Any]:
    """Map files to a party's part of the model and its private results.

    The active party also gets the model and the scores.
    """
    scheme = whole.of_columns()
    found = scheme.export(data, state)
    about = {"party": data.name, "rows": len(table.ids), "importance": named(table, gains)}
    out: dict[str, Any] = {
        model_file(data.name): {"party": data.name, **reading(whole.config, data, table), **found["table"]},
        own_file(data.name): {**about, **found.get("own", {})},
    }
    if found["model"] is not None:
        out[MODEL] = found["model"]
    if found["model"] is not None and scheme.layout == "columns":
        out |= judged_rows(Judged(data, state, scheme.outputs(state), "test"))
    return out


def judged_rows(judged: Judged) -> dict[str, Any]:
    """Return the file with what the model and a constant say of the test rows."""
    said, constant = judged.said(), judged.by_constant(judged.constant())
    return {JUDGED: {**kept(said, COMMON), **kept(constant, COMMON, TRIVIAL)}}


def reading(config: ExperimentConfig, data: Columns, table: PartyTable) -> dict[str, Any]:
    """Return how a party's file was read, so that new rows can be read in the same way."""
    file = config.parties[data.party] if config.parties else None
    schema = [{"name": c.name, "categories": list(c.categories)} for c in table.schema]
    label = {"class_names": list(table.class_names), "task": table.task} if table.y is not None else {}
    how = {"reading": {**table.reading.to_json(), "bits": table.bits}} if table.reading != OLDEST else {}
    normalised = {"normalise": file.normalise} if file and file.normalise else {}
    return {"id": (file.id or "") if file else "row", **normalised, "schema": schema, **label, **how}


def named(table: PartyTable, gains: Sequence[float]) -> dict[str, float]:
    """Map columns with a gain above 0 to it, largest first. Only column positions cross the link, never names."""
    pairs = [(name, float(gain)) for name, gain in zip(table.names, gains, strict=True) if gain > 0]
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def by_metric(held: Consortium, server: State, judged: Judged | None) -> dict[str, Any]:
    """Return the summary's ``metric`` and, in a simulation, ``trivial``.

    ``judged``: the model's predictions for the judged rows; None if the party with the label is elsewhere. That party then
    told the figure with its interval, and the number of rows per class is unknown here.
    """
    asked = held.config.evaluation.metric
    rows = server["rows"]["held" if held.config.evaluation.on == "validation" else "test"]
    about = {"asked": asked is not None, "test_rows": rows, "own": None}
    if judged is None:
        task: Task = "numbers" if held.holder.task == "numbers" else "classes"
        name = asked or chosen(task, None)
        told = server["intervals"].get(name, (None, None, None))
        return {"metric": {"name": name, **dict(zip(("value", "low", "high"), told[:3], strict=True)), **about}}
    metric, constant = judged.metric(asked), judged.constant()
    said = {0: judged.said(), 1: judged.by_constant(constant)}
    seed, draws = held.parties[held.active].seed, usual_draws(len(judged.y))
    one, other = drawn_of(metric, said, seed, ("test",), draws).values()
    answer = constant.predicted
    named = answer if judged.task == "numbers" else held.holder.class_names[int(answer)]
    better = one.better_than(other, metric).ends()
    return {
        "metric": {"name": metric.name, **one.ends(), **about},
        "trivial": {**other.ends(), "better_by": better, "answer": named, "source": "training rows"},
    }


def kind_of_parties(held: Consortium) -> str:
    """Return how the parties came to their tables, as summaries name it."""
    if held.rows:
        return "owners" if held.config.parties else held.config.partition.name
    return "hybrid" if not held.config.parties and held.checked.of_columns().several_labels else "vertical"


def judged_on(held: Consortium, state: State, on: str) -> str:
    """Return a fingerprint of the rows judged, in any order: equal for runs that can be compared. ``state``: the active party's."""
    return of_judged(held, held.parties[held.active], state, on)


def of_judged(held: Consortium, own: Columns, state: State, on: str = "test") -> str:
    """Return the same for the rows of a party, or of all owners of rows as one."""
    y, of = labels(own, state), order(state)  # with noise, if validation rows have it: a digest confirms a guess
    assert y is not None
    at = sorted(places(state, on), key=lambda place: own.ids[of[place]])
    rows = of[at]
    about = repr((label_of(held), on if on == "test" else "validation"))
    weight = None if own.weight is None else own.weight[rows]
    return fingerprint((about, "\x1f".join(own.ids[row] for row in rows), y[at], weight))


def figures(
    held: Consortium, server: State, rows: Sequence[RoundRow], judged: Judged | None, on: Mapping[str, str] = {}
) -> RunSummary:
    """Return the summary of these rows and of the finished model.

    For ``judged`` see `by_metric`. ``on``: "test" and "held" -> the fingerprint of these rows, where they are known here.
    """
    scheme, final, table = held.checked.of_columns(), dict(server["quality"]), held.holder
    brought, last = scheme.brought(server), rows[-1]["round"]
    out: dict[str, Any] = {
        **of_all_runs(held.config, rows, [key for key in (*FIGURES, "auc") if key in final]),
        "algorithm": scheme.name,
        "data": table.called or held.config.data.name,
        "data_facts": {
            "label": label_of(held),
            "test": f"a share of {held.test} of the {'rows of each owner' if held.rows else 'aligned rows'}",
        },
        "model": scheme.words.model,
        "partition": kind_of_parties(held),
        "clients": len(held.tables),
        "task": table.task,
        "class_names": list(table.class_names),
        "protected": scheme.protected(held.checked.how),
        "final": {"round": last, **final, "interval": ends(server["intervals"])},
        **by_metric(held, server, judged),
        "rows": dict(server["rows"]),
        **(
            {}
            if held.rows
            else {"align": {**held.align.record(), **{k: x for k, x in server["align"].items() if k != "notices"}}}
        ),
        "parties": parties_of(held, server),
        "importance": {one.name: named(one, brought[one.name]) for one in held.tables},
        **scheme.facts(server),
        **({"judged_on": on["held" if "tested" in server else "test"]} if on else {}),
        "weighted": table.weight is not None,
        "notices": [*held.notices, *server.get("align", {}).get("notices", [])],
        "plan": {"workers": held.parties[0].workers},
        "data_sha256": hashlib.sha256("".join(one.called for one in held.tables).encode()).hexdigest(),
    }
    if "tested" in server:
        tested = server["tested"]
        name, told = out["metric"]["name"], tested["intervals"].get(out["metric"]["name"], (None, None, None))
        metric = {"name": name, "value": told[0], "low": told[1], "high": told[2], "test_rows": server["rows"]["test"]}
        out["test"] = {**tested["quality"], "interval": ends(tested["intervals"]), "metric": metric}
        out["test"] |= {"judged_on": on["test"]} if on else {}
    return cast(RunSummary, out)


def ends(intervals: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Map each figure to [low, high], and add the confidence level."""
    level = next((one[3] for one in intervals.values()), 0.95)
    return {**{name: [one[1], one[2]] for name, one in intervals.items()}, "level": level}


def label_of(held: Consortium) -> str:
    """Return the name of the target."""
    if held.config.parties:
        return held.config.parties[held.active].label or ""
    return str(held.config.data.options().get("label") or "the target")


def parties_of(held: Consortium, server: State) -> list[dict[str, Any]]:
    """List each party's columns and rows, and how many rows all parties share."""
    return [
        {
            "name": one.name,
            "active": k == held.active,
            "columns": len(one.schema),
            "rows": len(one.ids),
            **(server["own"][one.name] if held.rows else {"matched": server["align"]["rows"]}),
        }
        for k, one in enumerate(held.tables)
    ]
