"""What is suggested for a name that is unknown: the nearest by typing errors."""

import re

import pytest

from configured import set_up
from fedatlas import catalogue, config
from fedatlas.errors import ConfigError, edits, unknown_name
from fedatlas.study.study import Study


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [("", "ab", 2), ("abc", "acb", 1), ("kitten", "sitting", 3), ("same", "same", 0), ("ca", "abc", 3)],
)
def test_typing_errors_by_hand(one, other, wanted):
    """Optimal string alignment: Damerau's four errors, none inside another (so ca, abc needs 3)."""
    assert edits(one, other) == edits(other, one) == wanted


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("algorithm.nam=fedprox", "algorithm.name"),
        ("partition.nmae=iid", "partition.name"),
        ("model.nme=mlp", "model.name"),
        ("data.nme=digits", "data.name"),
        ("compression.nam=topk", "compression.name"),
        ("local.ecpohs=3", "local.epochs"),
        ("engine.wrkers=1", "engine.workers"),
    ],
)
def test_the_nearest_key_is_suggested(given, near):
    with pytest.raises(ConfigError, match=rf"unknown key '.*': did you mean '{near}'\?"):
        set_up(config.read(None, [given, *(["compression.name=topk"] if "compression" in given else [])]), 1)


def test_a_far_name_among_many_is_told_the_nearest_and_not_all():
    with pytest.raises(ConfigError) as told:
        catalogue.entry("zzzzqqqqxxxx")
    assert re.fullmatch(
        r"unknown name 'zzzzqqqqxxxx': the nearest of \d+ names are [\w:]+, [\w:]+, [\w:]+\.", str(told.value)
    )
    assert str(unknown_name("colour", "qqqq", ["red", "blue"])) == "unknown colour 'qqqq': known: blue, red."


def test_a_study_file_that_is_not_there_is_told_how_to_begin_one(tmp_path):
    with pytest.raises(
        ConfigError, match=r"there is no study file '.*nofile\.toml': docs/study\.md begins with one to copy\."
    ):
        Study.read(tmp_path / "nofile.toml")
    (tmp_path / "nofil.toml").touch()
    with pytest.raises(ConfigError, match=r"there is no study file '.*nofile\.toml': did you mean '.*nofil\.toml'\?"):
        Study.read(tmp_path / "nofile.toml")
