"""docs/recommend.md: its requirement files are read, and answered in the way that the page says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import fedatlas
from fedatlas.config import parse
from fedatlas.recommender.answer_text import lines
from fedatlas.recommender.requirements import requirements

PAGE = (Path(__file__).parents[2] / "docs" / "recommend.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
FILES = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
KINDS = {"**Found": "found", "**Not known": "not known", "**None": "none"}
RACED = {name for name, text in FILES.items() if "experiment = " in text}


def section(name: str) -> str:
    """The section with the command on a requirement file."""
    (found,) = (part for part in SECTIONS.values() if f"$ fedatlas recommend {name}\n" in part)
    return found


def kind(name: str) -> str:
    """The kind of answer that the page gives to a requirement file."""
    (found,) = {one for words, one in KINDS.items() if words in section(name)}
    return found


def asked() -> list[str]:
    """The requirement files of the page; others are experiments."""
    return [name for name, text in FILES.items() if "[federation]" in text]


def test_there_are_five_questions_each_with_a_command():
    assert len(asked()) == len(SECTIONS) == 5
    for name in asked():
        assert kind(name) in KINDS.values()


def numbers(**more: dict[str, float]) -> dict[str, object]:
    """Requirements of the page's office, with numbers only, without its law."""
    return {"federation": {"nodes": 12, "rows": 5000, "heterogeneity": 0.3, "classes": 2}, **more}


def test_it_says_to_stay_with_fedavg_where_the_first_choice_is_not_told_apart(tmp_path: Path):
    """The first answer is FedYogi, whose lead over FedAvg may as well be a loss."""
    answer = fedatlas.recommend(numbers(), out=tmp_path)
    assert (answer["top"][0]["choice"], answer["stay_with_fedavg"]) == ("fedyogi", True)
    assert answer["against_fedavg"]["low"] < 0 < answer["against_fedavg"]["high"]
    said = "Stay with FedAvg: fedyogi is not told apart from fedavg"
    assert said in "\n".join(lines(answer, 0.9))
    assert said not in "\n".join(lines({**answer, "stay_with_fedavg": False}, 0.9))


def test_fedavg_is_named_where_the_answer_says_to_stay_with_it(tmp_path: Path):
    """Three other choices are foreseen to be better here, none of them told apart."""
    federation = {"nodes": 8, "rows": 12000, "heterogeneity": 0.17, "classes": 2, "centralised": 0.97}
    answer = fedatlas.recommend({"federation": federation, "at_least": {"client_accuracy_p10": 0.4}}, out=tmp_path)
    assert answer["stay_with_fedavg"]
    assert [one["choice"] for one in answer["top"]] == ["fedyogi", "scaffold", "fedavg"]


def test_whether_fedavg_is_told_apart_is_known_of_a_choice_to_measure_too(tmp_path: Path):
    """The banks' first choice lies above FedAvg by less than its error."""
    answer = fedatlas.recommend(tomllib.loads(FILES["banks.toml"]), out=tmp_path)
    assert answer["against_fedavg"]["low"] < 0
    assert answer["stay_with_fedavg"]


def test_a_question_on_epsilon_only_is_answered_at_once(tmp_path: Path):
    """Epsilon is computed for these nodes: it keeps the limit, so nothing needs to be measured."""
    answer = fedatlas.recommend(numbers(at_most={"epsilon": 10.0}), out=tmp_path)
    assert answer["answer"] == "found"
    assert answer["top"][0]["predicted"]["epsilon"]["value"] <= 10
    said = "\n".join(lines(answer, 0.9))
    assert "It keeps all limits, which are computed for your federation" in said
    assert "no choice can be promised" not in said


def test_none_by_the_costs_of_another_model_is_said_with_its_condition(tmp_path: Path):
    none = [fedatlas.recommend(numbers(at_most={cost: 1e-3}), out=tmp_path) for cost in ("bytes", "epsilon")]
    assert {one["answer"] for one in none} == {"none"}
    by_model, by_epsilon = ("\n".join(lines(one, 0.9)) for one in none)
    assert "None fits if choices cost in your federation what they do in the nearest measured one" in by_model
    assert "None fits. The nearest miss is" in by_epsilon  # which is computed for these nodes


@pytest.mark.parametrize("name", asked())
def test_every_file_of_the_page_is_read(name: str):
    read = requirements(tomllib.loads(FILES[name]))
    if read.experiment is not None:
        assert parse(tomllib.loads(FILES[read.experiment])).data.name


@pytest.mark.parametrize("name", [name for name in asked() if name not in RACED])
def test_answers_from_numbers_are_what_the_page_says(name: str, tmp_path: Path):
    answer = fedatlas.recommend(tomllib.loads(FILES[name]), out=tmp_path)
    assert answer["answer"] == kind(name)
    said = " ".join(" ".join(lines(answer, 0.9)).split())
    shown = section(name).split(f"$ fedatlas recommend {name}\n")[1].split("```")[0]
    parts = [part.strip(" ,;") for line in " ".join(shown.split()).split("...") for part in [line]]
    for part in filter(None, parts):
        for sentence in re.split(r"(?<=[.:;]) (?=[A-Z0-9])", part):
            assert sentence in said, sentence
