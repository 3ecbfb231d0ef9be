"""Studies whose choices are mechanisms: what has the quality of what by construction, whom each epsilon is about, what repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedatlas.privacy.mechanisms import every, made
from fedatlas.privacy.terms import protects
from fedatlas.recommender.command import recommend
from fedatlas.runs.run_key import written
from fedatlas.study.analyse import analysis
from fedatlas.study.read_measurements import masked_only, measured
from fedatlas.study.study import Study
from fedatlas.study.table import Table
from study_tables import filled

CLIP = {"clip": 1.0}
TABLES: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    "secagg": [{"name": "secagg"}],
    "paillier": [{"name": "paillier"}],
    "bfv": [{"name": "bfv"}],
    "two_server": [{"name": "two_server"}],
    "distributed_dp": [{"name": "distributed_dp", **CLIP}],
    "central_dp": [{"name": "central_dp", **CLIP}],
    "central_dp over masks": [{"name": "central_dp", **CLIP}, {"name": "secagg"}],
    "dp_ftrl": [{"name": "dp_ftrl", **CLIP}],
    "local_dp": [{"name": "local_dp", **CLIP, "epsilon": 5.0}],
    "nbafl": [{"name": "nbafl", **CLIP, "epsilon": 50.0}],
    "dp_sgd": [{"name": "dp_sgd", **CLIP}],
    "dp_sgd over masks": [{"name": "dp_sgd", **CLIP}, {"name": "secagg"}],
    "randomised_response": [{"name": "randomised_response", "epsilon": 1.0, "classes": [*"0123456789"]}],
}
SAME = {"secagg", "paillier", "bfv", "two_server"}  # the quality of plain, by construction
CLIENT, ROW = "one client with all its rows", "one row"


def study(*choices: str) -> Study:
    base = {
        "rounds": 2,
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 4},
        "algorithm": {"name": "fedavg", "weights": "uniform"},
    }
    levels = [{"name": name, "set": {"privacy": TABLES[name]}} for name in choices]
    factors = [
        {"name": "skew", "role": "setting", "key": "partition.alpha", "levels": [1.0]},
        {"name": "scheme", "role": "choice", "level": levels},
    ]
    return Study.of("mechanisms", base=base, seeds=[1, 2], factor=factors)


def analysed(path: Path, *choices: str) -> Any:
    table = Table.open(filled(study(*choices), path / "table.sqlite", lambda job: 0.5))
    try:
        return analysis(measured(table))
    finally:
        table.close()


def test_only_what_adds_no_noise_has_the_quality_of_the_same_without_it(tmp_path: Path) -> None:
    """Of more choices than the analysis takes for levels of a factor, too."""
    found = analysed(tmp_path, *TABLES)
    assert {*found["twins"]} == SAME
    assert {*found["choices"]} == {*TABLES}


@pytest.mark.parametrize("name", sorted(every()))
def test_a_mechanism_with_noise_is_no_mask(name: str) -> None:
    row = {"configuration": {"privacy": [{"name": name}]}}
    assert masked_only(row) == (bool(every()[name].sums_only) and every()[name].noise is None)


def test_an_analysis_says_whom_each_epsilon_is_about(tmp_path: Path) -> None:
    found = analysed(tmp_path, *TABLES)
    about = found["epsilon_of"]
    assert {name for name, whom in about.items() if whom == CLIENT} == {
        "distributed_dp", "central_dp", "central_dp over masks", "dp_ftrl", "local_dp",
    }  # fmt: skip
    assert {name for name, whom in about.items() if whom == ROW} == {"nbafl", "dp_sgd", "dp_sgd over masks"}
    assert about["randomised_response"] == "the class of a row"
    assert len(about) == 9
    said = [one for one in found["sentences"] if one.startswith("Epsilon is about")]
    assert len(said) == 1
    assert said[0].endswith("figures of different kinds do not compare.")


def test_epsilons_of_one_kind_need_no_such_sentence(tmp_path: Path) -> None:
    found = analysed(tmp_path, "plain", "central_dp", "local_dp")
    assert not [one for one in found["sentences"] if "different kinds" in one]


def test_noise_in_rounds_stands_in_a_summary_before_that_of_rows() -> None:
    rows = made("randomised_response", {"epsilon": 1.0, "classes": ("a", "b")})
    assert protects([rows, made("central_dp")]) == CLIENT
    assert protects([rows]) == "the class of a row"
    assert protects([made("additive_noise"), made("secagg")]) == ""


def test_runs_of_a_study_repeat_whatever_their_noise_is_in() -> None:
    """Noise of rows comes from the seed like that of rounds; what draws none gets no such key."""
    plain = {"privacy": [{"name": name} for name in every()]}
    for table in written(plain, 1)["privacy"]:
        assert ("noise" in table) == ("noise" in every()[table["name"]].keys), table


def test_a_recommendation_says_whom_an_epsilon_protects_and_that_a_run_measured_it(tmp_path: Path) -> None:
    given = study("plain", "dp_sgd", "local_dp")
    filled(given, tmp_path / "kept" / "table.sqlite", lambda job: 0.5, epsilon=4.5)
    asked = {
        "study": str(tmp_path / "kept"),
        "federation": {"nodes": 4, "rows": 360, "heterogeneity": 0.3, "classes": 10},
        "at_most": {"epsilon": 6},
    }
    answer = recommend(asked, out=tmp_path / "out")
    assert answer["epsilon_of_runs"] == ["dp_sgd"]
    notes = [one for one in answer["notes"] if "psilon" in one]
    assert any(
        one.startswith("Epsilon of dp_sgd protects one row, and 4.5 is that of the nearest measured run")
        for one in notes
    )
    assert any("protects one node with all its rows" in one and "local_dp" in one for one in notes)
    assert any("such figures do not compare" in one for one in notes)
