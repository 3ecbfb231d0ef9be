"""What a notebook shows: short texts, cards with figures and a link, curves, one line of progress, and the tutorial."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from fedatlas import ConfigError, Experiment, load, resume, run
from fedatlas.notebook import NotebookLine, PlainLines, RunResult, SvgPicture, watched
from fedatlas.record.run_folder import RunFolder
from fedatlas.verdict.answer import of_plain
from fedatlas.wording import number, signed

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


def cells_of(html: str) -> dict[str, str]:
    """The figures of a card by name."""
    card = shown(html)
    return dict(zip([x.text for x in card.iter("th")], [x.text for x in card.iter("td")], strict=True))


def test_a_run_shows_its_answer_and_main_figures_and_links_to_its_page(done, monkeypatch):
    monkeypatch.chdir(done.path.parent)
    card, found = shown(done._repr_html_()), cells_of(done._repr_html_())
    assert [text.text for text in card.iter("p")] == [done.answer]
    assert list(card)[1].tag == "p", "behind the title alone"
    assert list(found) == ["Clients", "Accuracy", "Alone", "Gain", "Trivial", "Pooled", "Rounds", "Sent", "Time"]
    answer = of_plain(done.summary["answer"])
    assert found["Accuracy"] == number(answer.together)
    assert found["Alone"] == number(answer.alone)
    assert found["Gain"].startswith(f"{signed(answer.gain.value)} ({signed(answer.gain.low)} to ")
    (link,) = card.iter("a")
    assert (Path.cwd() / link.attrib["href"]).read_text().startswith("<!doctype html>")
    assert f"accuracy {found['Accuracy']}" in repr(done)
    assert len(repr(done)) < 300
    path, summary = done  # still a pair
    assert summary["rounds"] == 3
    assert path == done.path


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run of two owners, one of them with rows unlike the other's, that is judged by AUC."""
    rng = np.random.default_rng(5)
    x = pd.DataFrame({"a": rng.normal(size=400), "site": np.where(np.arange(400) < 300, "North", "South")})
    x["y"] = (x["a"] * np.where(x["site"] == "North", 1, -1) + rng.normal(size=400) > 1).astype(int)
    experiment = Experiment.of(
        data=x, label="y", client="site", rounds=2, evaluation={"metric": "auc"}, engine={"name": "loop"}
    )
    return run(experiment, out=tmp_path_factory.mktemp("runs") / "skewed", baselines=True)


def test_the_card_and_the_curve_show_the_figure_that_decides(skewed):
    found, answer = cells_of(skewed._repr_html_()), of_plain(skewed.summary["answer"])
    assert "Accuracy" not in found
    assert (found["AUC"], found["Alone"]) == (number(answer.together), number(answer.alone))
    assert answer.own_rows
    assert "Pooled" not in found, "it is judged on everybody's rows"
    assert f"together AUC {found['AUC']}, alone {found['Alone']} " in skewed.answer
    last = RunFolder(skewed.path).rows()[-1]
    assert last["auc"] == pytest.approx(skewed.summary["metric"]["value"])
    assert skewed.plot() == skewed.plot("auc") != skewed.plot("accuracy")


def test_the_curve_is_that_of_a_metric_that_the_run_chose_itself(tmp_path):
    """Of two classes of which one holds nine rows of ten the answer compares by AUC, though no key says so."""
    rng = np.random.default_rng(5)
    x = pd.DataFrame({"a": rng.normal(size=300)})
    x["y"] = (x["a"] + rng.normal(size=300) > 1.8).astype(int)
    given = Experiment.of(data=x, label="y", partition={"name": "iid", "clients": 2}, rounds=2, **LOOP)
    found = run(given, out=tmp_path / "run", baselines=False)
    assert (found.summary["metric"]["name"], found.summary["metric"]["asked"]) == ("auc", False)
    assert found.plot() == found.plot("auc") != found.plot("accuracy")
    assert [row["auc"] is not None for row in RunFolder(found.path).rows()] == [True] * 3


def test_a_finished_run_is_opened_again_with_all_that_it_had(done, skewed):
    for one in (done, skewed):
        again = load(one.path)
        assert (again.answer, again.path, repr(again)) == (one.answer, one.path, repr(one))
        assert again._repr_html_() == one._repr_html_()
        assert again.plot() == one.plot()
        assert repr(again.estimator()) == repr(one.estimator())
        assert len(again.rows) == one.summary["rounds"] + 1
    assert done.beside(load(skewed.path)).paths == (done.path, skewed.path)


def test_several_seeds_are_opened_again_without_training(tmp_path):
    made = run(Experiment.of(**{**SMALL, "rounds": 1}, **LOOP, seeds=[1, 2]), out=tmp_path / "two", baselines=False)
    with pytest.raises(
        ConfigError,
        match=r"holds several seeds: name one of them.*, in Python load\('.*seed-1'\); resume\('.*two'\) opens all",
    ):
        load(made.path)
    again = resume(made.path)
    assert (again.answer, again.summary["cost"]) == (made.answer, made.summary["cost"])
    assert load(made.path / "seed-1").answer
    with pytest.raises(ConfigError, match=r"already holds a run: .*, in Python resume\('"):
        run(Experiment.of(**SMALL), out=made.path)


def test_runs_side_by_side_are_a_row_each(done):
    other = run(Experiment.of(**{**SMALL, "rounds": 1}, **LOOP, seed=2), out=done.path.parent / "two", baselines=False)
    both = done.beside(other)
    card = shown(both._repr_html_())
    assert [row[0].text for row in card.iter("tr")] == [None, "one", "two"]
    assert [row[1].text for row in card.iter("tr")] == ["Algorithm", "fedavg", "fedavg"]
    assert [row[3].text for row in card.iter("tr")] == [
        "Accuracy",
        *(number(each.summary["answer"]["together"]) for each in (done, other)),
    ]
    assert [text.text for text in card.iter("p")] == both.answer.split("\n")
    assert both.answer.endswith(f"one: {done.answer}\ntwo: {other.answer}")
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
    assert isinstance(vars(watched())["screen"], NotebookLine)
    monkeypatch.setattr(NotebookLine, "apart", 1e9)  # no clock decides: the first and the last round are shown
    done = run(Experiment.of(**{**SMALL, "rounds": 30}, **LOOP), out=tmp_path / "run", baselines=True)
    assert [text.split(", accuracy")[0] for text in display.shown] == ["round 0 of 30"], "one line"
    *seen, last = display.updates
    assert last == repr(done)[len("<Run ") : -1]
    assert [text.split(", accuracy")[0] for text in seen if "baseline" not in text] == ["round 30 of 30"]
    assert seen[-1].startswith("baseline centralised, round 30 of 30")
    assert isinstance(vars(watched(True))["screen"], NotebookLine)
    assert type(watched(False)).__name__ == "Silent"


def test_progress_outside_a_notebook_is_lines_for_whoever_asks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(PlainLines, "apart", 1e9)  # no clock decides: the first and the last round are shown
    done = run(Experiment.of(**SMALL, **LOOP, seeds=[1, 2]), out=tmp_path / "run", baselines=False, progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    lines = [line.split(", accuracy")[0] for line in told.err.splitlines()]
    assert [lines.count(line) for line in ("Seed 1.", "Seed 2.", "round 0 of 3", "round 3 of 3")] == [1, 1, 2, 2]
    resume(done.path, progress=True)
    assert "Seed 2." in capsys.readouterr().err
    run(Experiment.of(**SMALL, **LOOP), out=tmp_path / "quiet", baselines=False, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="progress = 'yes': give True to see each step, or False to see nothing"):
        run(Experiment.of(**SMALL, **LOOP), out=tmp_path / "none", progress="yes")  # type: ignore[arg-type]


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
    assert names["again"].answer == names["done"].answer
    assert names["done"].answer.startswith("These data cannot tell whether to federate"), "which the text explains"
    assert len(names["scores"]) == 3
    assert names["model"].score(names["households"], names["households"]["poor"]) > 0.75
