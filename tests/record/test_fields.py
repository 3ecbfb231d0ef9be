"""`RoundRow` and `RunSummary`: every key that a run writes is declared, and the page's tables are made of them.

As a script it writes the tables of docs/experiment.md: ``python tests/record/test_fields.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from fedatlas import Experiment, RoundRow, RunSummary, run
from fedatlas.record.fields import Effort, Final, Unit
from fedatlas.record.run_folder import RunFolder
from test_vertical_run import experiment, tables

PAGE = Path(__file__).parents[2] / "docs" / "experiment.md"
RECORDS = (RoundRow, RunSummary, Final, Effort)
SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [8]},
    "engine": {"workers": 1},
}
KINDS: dict[str, dict[str, Any]] = {
    "gain": {"evaluation": {"clients": 0.3, "drift": True}},
    "validation": {"evaluation": {"on": "validation"}, "stop": {"patience": 1}, "profile": "device"},
    "seeds": {"seeds": [1, 2], "evaluation": {"on": "validation"}},
    "groups": {"algorithm": {"name": "fedseq"}},
    "clusters": {"algorithm": {"name": "ifca", "clusters": 2}, "partition": {"name": "feature_skew", "clients": 4}},
    "architectures": {
        "algorithm": {"name": "feddf"},
        "model": {},
        "models": [{"name": "mlp", "share": 0.5}, {"name": "logistic", "share": 0.5}],
    },
    "noise": {
        "privacy": [{"name": "central_dp", "clip": 0.5, "noise_multiplier": 0.3, "noise": "seed"}],
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "data": {**SMALL["data"], "scale": "none"},
    },
    "masks": {"privacy": [{"name": "secagg"}]},
    "attack": {
        "attack": [{"name": "label_flip", "share": 0.3, "pairs": [[3, 5]]}],
        "aggregation": {"name": "median"},
        "guard": {"rows": 50},
    },
    "numbers": {"data": {"name": "diabetes"}, "drift": {"kind": "feature", "at": 2}},
    "units": {"algorithm": {"name": "fedma"}, "model": {"hidden": [4]}},
}


def fields(record: Any) -> dict[str, tuple[str, str]]:
    """name -> (unit, meaning), those of its bases first."""
    found = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        _, *units, meaning = get_args(hint)
        found[name] = "".join(one.name for one in units if isinstance(one, Unit)), meaning
    return found


def table(record: Any) -> str:
    """The fields as a table of the page."""
    every = sorted(fields(record).items(), key=lambda pair: pair[0] != "round")
    lines = [f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in every]
    return "\n".join(["| field | unit | meaning |", "|---|---|---|", *lines])


def written(page: str) -> str:
    """The page with its tables as they are to be."""
    for record in RECORDS:
        mark = f"<!-- fields of {record.__name__} -->"
        assert page.count(mark) == 1, f"docs/experiment.md has no place for {record.__name__}"
        there = re.escape(mark) + r"\n+(\|[^\n]*\n)*"
        page = re.sub(there, lambda _, mark=mark, record=record: f"{mark}\n\n{table(record)}\n\n", page)
        page = re.sub(r"(\|\n)\n\n+", r"\1\n", page)
    return page


def undeclared(record: Any, value: Mapping[str, Any]) -> set[str]:
    return set(value) - set(fields(record))


def check(folder: Path) -> None:
    run_ = RunFolder(folder)
    summary = run_.summary()
    assert not undeclared(RunSummary, summary)
    assert not undeclared(Final, summary["final"])
    assert not undeclared(Final, summary.get("test", {}))
    assert not undeclared(Effort, summary["cost"])
    for row in run_.rows():
        assert not undeclared(RoundRow, row)


DRAWS = [pytest.param(kind, marks=pytest.mark.timing) for kind, given in KINDS.items() if "privacy" in given]


@pytest.mark.parametrize("kind", [*(kind for kind, given in KINDS.items() if "privacy" not in given), *DRAWS])
def test_every_key_that_a_run_writes_is_declared(kind: str, tmp_path: Path) -> None:
    given = {**SMALL, **KINDS[kind]}
    if kind == "numbers":
        given["data"] = {"name": "file", "path": str(tmp_path / "rows.csv"), "label": "y"}
        (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{i % 7},{i * 0.37}\n" for i in range(80)))
    done = run(Experiment.of(**given), out=tmp_path / "run", baselines=kind == "gain")
    assert not undeclared(RunSummary, done.summary)
    assert done.summary["final"]["loss"] is not None or kind == "architectures"
    for folder in [tmp_path / "run", *(tmp_path / "run").glob("seed-*")]:
        check(folder)


@pytest.mark.timing
def test_every_key_of_a_run_between_parties_is_declared(tmp_path: Path) -> None:
    tables(tmp_path)
    run(experiment(tmp_path, evaluation={"on": "validation"}), out=tmp_path / "run")
    check(tmp_path / "run")


@pytest.mark.parametrize("record", RECORDS)
def test_each_field_says_what_it_means_in_a_line(record: Any) -> None:
    for name, (_, meaning) in fields(record).items():
        assert isinstance(meaning, str), name
        assert meaning, name
        assert "\n" not in meaning, name


def test_the_tables_of_the_page_are_those_of_the_records() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "python tests/record/test_fields.py writes them"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
