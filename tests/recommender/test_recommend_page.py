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
