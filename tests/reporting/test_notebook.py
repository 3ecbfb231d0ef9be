"""What a notebook shows: short texts, cards with figures and a link, curves, one line of progress, and the tutorial."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

from fedatlas import ConfigError, Experiment, load, run
from fedatlas.notebook import InPlace, RunResult, SvgPicture, watched

SMALL = {"rounds": 3, "partition": {"name": "iid", "clients": 3}, "data": {"name": "digits", "limit": 300}}
LOOP = {"engine": {"name": "loop"}, "model": {"name": "logistic"}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(Experiment.of(**SMALL, **LOOP), out=tmp_path_factory.mktemp("runs") / "one", baselines=True)


def shown(html: str) -> ElementTree.Element:
    """A card as a tree: it is well formed, holds no script, and takes nothing from another place."""
    assert len(html) < 5000
    assert not re.search(r"<script|<style|https?:|src=", html)
    return ElementTree.fromstring(html)  # noqa: S314  (our own)


def test_an_experiment_is_a_line_and_a_small_table():
    experiment = Experiment.of(**SMALL, seed=3)
    assert repr(experiment).startswith(
        "<Experiment: algorithm fedavg, data digits, partition iid (3 clients), model mlp"
    )
    assert len(repr(experiment)) < 200
    cells = [cell.text for cell in shown(experiment._repr_html_()).iter("td")]
    assert dict(zip(cells[::2], cells[1::2], strict=True))["seed"] == "3"
    odd = Experiment.of(data={"name": "file", "path": "<b>.csv", "label": "a&b"})
    assert "<b>.csv, target a&b" in [cell.text for cell in shown(odd._repr_html_()).iter("td")]


def test_a_run_shows_its_main_figures_and_links_to_its_page(done, monkeypatch):
    monkeypatch.chdir(done.path.parent)
    card = shown(done._repr_html_())
    found = dict(zip([x.text for x in card.iter("th")], [x.text for x in card.iter("td")], strict=True))
    assert list(found) == ["Clients", "Accuracy", "Alone", "Pooled", "Rounds", "Sent", "Time"]
    assert found["Accuracy"].startswith(f"{done.summary['final']['accuracy']:.3f} (")
    assert found["Alone"] == f"{done.summary['gain']['summary']['local_only']['mean']:.3f}"
    (link,) = card.iter("a")
    assert (Path.cwd() / link.attrib["href"]).read_text().startswith("<!doctype html>")
    assert f"accuracy {found['Accuracy']}" in repr(done)
    assert len(repr(done)) < 300
    assert len(repr(load(done.path))) < 200
    path, summary = done  # still a pair
    assert summary["rounds"] == 3
    assert path == done.path


def test_runs_side_by_side_are_a_row_each(done):
    other = run(Experiment.of(**{**SMALL, "rounds": 1}, **LOOP, seed=2), out=done.path.parent / "two", baselines=False)
    both = done.beside(other)
    assert [row[0].text for row in shown(both._repr_html_()).iter("tr")] == [None, "one", "two"]
    assert both.page == done.path / "comparison.html"
    assert "two" in both.page.read_text()
    assert repr(both).startswith("<2 runs: ")
    assert both.plot("loss").count('class="line') == 2


def test_a_run_of_parties_that_hold_columns_is_shown_too(tmp_path):
    from test_vertical_run import experiment, tables

    tables(tmp_path)
    found = run(experiment(tmp_path), out=tmp_path / "run", baselines=False)
    assert "Accuracy" in [cell.text for cell in shown(found._repr_html_()).iter("th")]
    assert "secureboost" in repr(found)
    assert "Loss" in found.plot("loss")
    assert "secureboost" in repr(experiment(tmp_path))


def test_curves_are_pictures_that_a_notebook_draws(done, tmp_path):
    picture = done.plot()
    assert isinstance(picture, SvgPicture)
    drawn = ElementTree.fromstring(picture._repr_svg_())  # noqa: S314  (our own)
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Accuracy" in picture
    assert len(repr(picture)) < 60
    assert "bytes" in done.plot("loss", against="bytes") or "sent so far" in done.plot("loss", against="bytes")
    assert picture.save(tmp_path / "curve.svg").read_text() == picture
    with pytest.raises(ConfigError, match=r"figure = 'acuracy': these runs have accuracy, macro_f1"):
        done.plot("acuracy")
    with pytest.raises(ConfigError, match="against = 'days': choose one of round, bytes, seconds"):
        done.plot(against="days")


class Display(ModuleType):
    """IPython.display, which counts what a cell shows."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[str] = []
        self.updates: list[str] = []

    def display(self, content, raw, display_id=False):
        assert raw
        self.shown.append(content["text/plain"])
        return (
            SimpleNamespace(update=lambda content, raw: self.updates.append(content["text/plain"]))
            if display_id
            else None
        )


def test_progress_in_a_notebook_is_one_line(monkeypatch, tmp_path):
    assert type(watched()).__name__ == "Silent"
    shell, display = ModuleType("IPython"), Display()
    shell.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert isinstance(watched(), InPlace)
    monkeypatch.setattr("fedatlas.notebook.APART", 1e9)  # no clock decides: the first and the last round are shown
    done = run(Experiment.of(**{**SMALL, "rounds": 30}, **LOOP), out=tmp_path / "run", baselines=True)
    assert [text.split(", accuracy")[0] for text in display.shown] == ["round 0 of 30"], "one line"
    *seen, last = display.updates
    assert last == repr(done)[len("<Run ") : -1]
    assert [text.split(", accuracy")[0] for text in seen if "baseline" not in text] == ["round 30 of 30"]
    assert seen[-1].startswith("baseline centralised, round 30 of 30")


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """Each cell in one plain namespace, as "Restart and run all" does. The file itself holds no outputs."""
    book = json.loads(TUTORIAL.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    ids = [cell["id"] for cell in book["cells"]]
    assert len({*ids}) == len(ids)
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            exec(compile("".join(cell["source"]), f"cell {cell['id']}", "exec"), names)  # noqa: S102  (our own)
    assert names["comparison"].page.exists()
    assert names["model"].score(names["households"], names["households"]["poor"]) > 0.75
