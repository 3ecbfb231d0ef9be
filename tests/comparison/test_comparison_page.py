"""The page of a comparison: the answer of the scheme to take first, then what its figures do not say, as in the terminal."""

from __future__ import annotations

import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fedatlas.comparison.compare import compare
from fedatlas.comparison.remarks import baselines_remark
from fedatlas.comparison.schemes import comparison_of
from fedatlas.record.run_folder import RunFolder

SMALL = "rounds = 2\nengine = {name = 'loop'}\n[data]\nlimit = 200\n[partition]\nname = 'iid'\nclients = 3\n"


def compared(folder: Path, seeds: str, baselines: bool) -> dict[str, Any]:
    given = comparison_of(folder / "small.toml", ["algorithm.name=fedprox,fedavg"], seeds)
    return compare(given, folder / "out", baselines=baselines, say=lambda line: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> tuple[Path, dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("made")
    (folder / "small.toml").write_text(SMALL)
    return folder, compared(folder, "2", True)


def test_the_page_opens_with_the_scheme_to_take_and_has_every_remark(made: tuple[Path, dict[str, Any]]) -> None:
    folder, record = made
    page, answer = unescape((folder / "out" / "comparison.html").read_text()), record["answer"]
    taken = RunFolder(folder / "out" / answer["take"]).summary()["answer"]["text"]
    first = page.index(f"<b>{answer['take']}</b>, the one to take. {taken}")
    assert first < page.index("By mean accuracy: ") < page.index("Schemes from best to worst")
    assert page.count(taken) == 1
    (rate,) = (line for line in answer["remarks"] if "All schemes ran with local.lr" in line)
    assert f"'fedatlas tune {folder / 'small.toml'} algorithm.name=SCHEME" in rate
    for line in answer["remarks"]:
        assert line in answer["sentences"]
        assert first < page.index(line) < page.index("Schemes from best to worst")


def test_baselines_of_some_seeds_are_used_and_said(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made[0], tmp_path / "more"))
    answer = compared(folder, "3", False)["answer"]
    said, page = " ".join(answer["sentences"]), unescape((folder / "out" / "comparison.html").read_text())
    remark = "Only seeds 1 and 2 of 3 seeds have baselines, and the answer whether to federate is over these"
    for text in (said, page):
        assert remark in text
        assert "nothing was trained to compare with" not in text
    found = RunFolder(folder / "out" / answer["take"]).summary()
    assert (found["answer"]["seeds"], found["answer"]["compared"]) == ([1, 2], True)
    assert len(answer["rows"][0]["seeds"]) == 3


def test_baselines_of_all_seeds_or_of_none_need_no_remark() -> None:
    runs = [{seed: {"answer": {"compared": x}} for seed, x in enumerate(each)} for each in ([True] * 3, [False] * 3)]
    assert [baselines_remark(one) for one in (*runs, {1: {}})] == [[], [], []]
