"""Over seeds nothing is lost that one seed has: classes, clients and gain as means, worked by hand."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedatlas import Experiment, run
from fedatlas.record.seed_means import detail_over, mean_of
from fedatlas.terminal import end_table


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, 2.0], 1.5),
        ([3, 3], 3),  # a client's number stays whole
        ([None, 2.0], 2.0),
        ([None, None], None),
        ([True, True], True),
        ([True, False], None),
        (["a", "a"], "a"),
        (["a", "b"], None),
        ([[1.0, 2.0], [3.0, 2.0]], [2.0, 2.0]),
        ([[1.0], [1.0, 2.0]], None),
        ([{"value": 1.0, "low": 0.5}, {"value": 2.0, "low": 1.5}], {"value": 1.5, "low": None}),
        ([{"a": 1.0, "b": 2.0}, {"a": 1.0}], {"a": 1.0}),
    ],
)
def test_means_follow_the_shape(values: list[Any], mean: Any) -> None:
    found = mean_of(values)
    assert found == mean
    assert type(found) is type(mean)


def summary_of(partition: str, value: float) -> dict[str, Any]:
    row = {"client": 0, "train_rows": 9, "value": value, "low": 0.0}
    gain = {"figure": "accuracy", "summary": {"local_only": {"mean": value}}, "clients": [row]}
    return {"partition": partition, "final": {"per_class_f1": [value, None]}, "per_client": [row], "gain": gain}


def test_single_clients_are_told_where_they_are_the_same_in_each_seed() -> None:
    natural = detail_over([summary_of("natural", x) for x in (0.25, 0.75)])
    assert natural["final"] == {"per_class_f1": [0.5, None]}
    assert natural["per_client"] == [{"client": 0, "train_rows": 9, "value": 0.5, "low": None}]
    assert natural["gain"]["summary"] == {"local_only": {"mean": 0.5}}
    dealt = detail_over([summary_of("iid", x) for x in (0.25, 0.75)])
    assert "per_client" not in dealt
    assert dealt["gain"] == {"figure": "accuracy", "summary": {"local_only": {"mean": 0.5}}}


def test_owners_that_are_other_clients_in_a_seed_have_no_mean() -> None:
    """As where each seed draws the owners that take part, or has one without a training row."""
    one, other = summary_of("natural", 0.25), summary_of("natural", 0.75)
    for found, name in ((one, "Wien"), (other, "Tirol")):
        found["per_client"][0]["name"] = name
    assert "per_client" not in detail_over([one, other])
    assert "clients" not in detail_over([one, other])["gain"]
    assert detail_over([one, one])["per_client"][0]["name"] == "Wien"


def test_figures_by_different_metrics_have_no_mean() -> None:
    one, other = summary_of("natural", 0.25), summary_of("natural", 0.75)
    for found, name in ((one, "auc"), (other, "accuracy")):
        found["metric"] = {"name": name}
        found["gain"]["metric"] = {"name": name, "values": {"federated": 0.5}}
    assert "metric" not in detail_over([one, other])["gain"]
    same = {**other, "metric": {"name": "auc"}, "gain": {**other["gain"], "metric": one["gain"]["metric"]}}
    assert detail_over([one, same])["gain"]["metric"] == {"name": "auc", "values": {"federated": 0.5}}


def test_the_page_of_several_seeds_has_every_class_and_the_terminal_the_gain(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "rounds": 1,
        "data": {"limit": 200},
        "partition": {"name": "iid", "clients": 2},
        "seeds": [1, 2],
    }
    done = run(Experiment.of(**small), out=tmp_path / "run", baselines=True)
    page = (done.path / "report.html").read_text()
    top = page.partition('id="run-seed1')[0]
    assert re.search(r"Every class on the test rows: mean of (two|2) seeds", top)
    assert done.summary["gain"] is not None
    assert done.summary["gain"]["summary"]["local_only"]["mean"] is not None
    assert len(done.summary["final"]["per_class_f1"] or ()) == 10
    printed = io.StringIO()
    Console(file=printed, width=120).print(end_table(done.summary))
    assert "accuracy, local only" in printed.getvalue()
