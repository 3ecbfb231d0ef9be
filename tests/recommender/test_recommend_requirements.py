"""REQUIREMENTS.toml: what it says, and one sentence for each way in which it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedatlas.errors import ConfigError
from fedatlas.recommender.requirements import read_requirements, requirements

FEDERATION = {"nodes": 10, "rows": 2000, "heterogeneity": 0.4}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"at_least": {"accuracy": 0.9}, "at_most": {"accuracy": 0.8}}, "exclude each other"),
    ({"at_least": {"accuracy": 90}}, "give a share, from 0 to 1"),
    ({"at_most": {"bytes": -1}}, "give a limit of 0 or more"),
    ({"at_most": {"bytes": "many"}}, "at_most.bytes is 'many': give a number"),
    ({"weights": {"accuracy": 0.0, "bytes": 0}}, "weights.* are all 0"),
    ({"weights": {"accuracy": -1.0}}, "are all 0 or one is negative"),
    ({"at_most": {"byte": 1}}, "unknown response 'byte': did you mean 'bytes'"),
    ({"at_most": {"joules": 1}}, "at_most.joules is not supported in this version"),
    ({"at_most": {"leak": 1}}, "at_most.leak is not supported in this version"),
    ({"federation": {**FEDERATION, "profile": "phone-2018"}}, "federation.profile is not supported in this version"),
    ({"federation": {**FEDERATION, "server": "x"}}, "federation.server is not supported in this version"),
    ({"limits": {}}, "unknown table of the requirements 'limits'"),
    ({"at_least": 3}, r"at_least is a table: write \[at_least\]"),
    ({"confidence": 1.0}, "a probability from 0.5 to below 1"),
    ({"privacy": {"server_sees": "sum"}}, "did you mean 'sums'"),
    ({"federation": {"nodes": 10}}, "lacks rows, heterogeneity"),
    ({"federation": {**FEDERATION, "rows": 5}}, "at least as large"),
    ({"federation": {**FEDERATION, "heterogeneity": 1.5}}, "from 0"),
    ({"federation": {**FEDERATION, "classes": 1}}, "below 2"),
    ({"federation": {**FEDERATION, "centralised": 93}}, "an accuracy between 0 and 1"),
    ({"federation": {**FEDERATION, "experiment": "mine.toml"}}, "leave out nodes"),
]


@pytest.mark.parametrize(("raw", "sentence"), WRONG)
def test_wrong_input_gets_one_sentence(raw: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=sentence) as caught:
        requirements({"federation": FEDERATION, **raw})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_what_is_not_said_has_a_default():
    found = requirements({"federation": FEDERATION})
    assert (found.study, found.confidence, found.server_sees, found.weights) == (
        "small",
        0.9,
        "anything",
        {"accuracy": 1.0},
    )
    assert found.classes is None
    assert found.centralised is None


def test_a_file_with_counts_beside_it(tmp_path: Path):
    (tmp_path / "counts.csv").write_text("yes,no\n50,0\n0,50\n0,0\n")
    path = tmp_path / "REQUIREMENTS.toml"
    path.write_text('[federation]\ncounts = "counts.csv"\n[at_least]\naccuracy = 0.8\n')
    found = read_requirements(path)
    assert (found.nodes, found.rows, found.classes, found.heterogeneity) == (2, 100, 2, 1.0)
    assert found.at_least == {"accuracy": 0.8}
    path.write_text('[federation]\ncounts = "counts.csv"\nclasses = 5\n')
    with pytest.raises(ConfigError, match=r"2 classes, but federation\.classes is 5"):
        read_requirements(path)
    path.write_text("[federation\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_requirements(path)
