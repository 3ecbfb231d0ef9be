"""What a study says: winners with intervals that hold together, the analysis as plain values, its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedatlas.study.analyse import analysis
from fedatlas.study.front import fronts
from fedatlas.study.measurements import Measurements, measurements_of
from fedatlas.study.page import render
from fedatlas.study.page_effects import difference_text
from fedatlas.study.page_parts import heat_figure, shaded
from fedatlas.study.study import Study
from fedatlas.study.winners import standings
from fedatlas.wording import bytes_text
from study_tables import federations, filled, runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHOICES = ["fedavg", "fedavg_secagg", "scaffold"]


def gaps(choice: str, at: dict[str, Any]) -> float:
    """SCAFFOLD is far better where clients differ, and the same where they do not."""
    return -0.3 - 1.5 * at["heterogeneity"] * (choice != "scaffold")


def planted(noise: float = 0.02, seeds: int = 3, h: tuple[float, ...] = (0.0, 0.9)) -> list[dict[str, Any]]:
    settings = [
        {**at, "heterogeneity": h[i], "federation": f"f{i}"} for i, at in enumerate(federations(len(h), data=2, seed=3))
    ]
    rows = runs(
        settings, gaps, ["fedavg", "scaffold"], noise=noise, seeds=seeds, cost=lambda c: 2.0 if c == "scaffold" else 1.0
    )
    masked = [
        {**row, "run_key": f"{row['run_key']}-masked", "scheme": "fedavg_secagg", "cpu_seconds": 2 * row["cpu_seconds"]}
        for row in rows
        if row["kind"] == "cell" and row["scheme"] == "fedavg"
    ]
    return [*rows, *masked]


def study(rows: list[dict[str, Any]]) -> Measurements:
    return measurements_of(rows, ["federation"], ["scheme"], twins={"fedavg_secagg": "fedavg"})


def test_who_wins_is_told_where_it_is_and_not_where_it_is_not():
    found = standings(study(planted()))
    assert found["f1",].first == ["scaffold"]
    lead = found["f1",].lead("scaffold", "fedavg")
    assert lead.low is not None
    assert 0 < lead.low < lead.value
    assert sorted(found["f0",].first) == ["fedavg", "scaffold"]
    assert found["f1",].lead("fedavg", "scaffold").value == -lead.value
    assert "fedavg_secagg" not in found["f1",].means  # it is fedavg's quality, not a rival


def test_one_seed_tells_nothing_apart_and_says_so():
    one = study(planted(seeds=1))
    assert all(len(standing.first) == 2 for standing in standings(one).values())
    assert any("With one seed" in sentence for sentence in analysis(one)["sentences"])


def test_differences_are_covered_together():
    """In 95% of tables all intervals of all settings hold at once; noise differs by choice and is shared by seeds."""
    stream, covered, tables = np.random.default_rng(5), 0, 150
    truth = {"a": 0.5, "b": 0.52, "c": 0.6}
    size = {"a": 0.01, "b": 0.03, "c": 0.02}
    for _ in range(tables):
        rows = []
        for setting in "xyz":
            for seed in range(3):
                common = stream.normal() * 0.01
                for choice, mean in truth.items():
                    value = mean + common + size[choice] * stream.normal()
                    rows.append(
                        {"run_key": f"{setting}{seed}{choice}", "kind": "cell", "status": "done", "seed": seed, "rounds": 1,
                         "setting": setting, "scheme": choice, "accuracy": value}
                    )  # fmt: skip
        found = standings(measurements_of(rows, ["setting"], ["scheme"]), draws=400)
        leads = [lead for standing in found.values() for lead in standing.leads]
        covered += all(
            x.low <= truth[x.choice] - truth[x.over] <= x.high
            for x in leads
            if x.low is not None and x.high is not None
        )
    assert 0.90 <= covered / tables <= 0.99


def test_a_masked_twin_is_beaten_by_its_plain_one_for_certain():
    members = {member.choice: member for member in fronts(study(planted()))["f0",]}
    assert members["fedavg"].chance is not None
    assert members["fedavg"].chance > 0.9
    assert (members["fedavg_secagg"].on_front, members["fedavg_secagg"].chance) == (False, 0.0)


def test_the_analysis_answers_and_the_order_of_the_table_changes_nothing():
    rows = planted()
    found = analysis(study(rows))
    text = " ".join(found["sentences"])
    assert "federation f1: By mean accuracy: scaffold" in text
    assert "scaffold is better than fedavg" in text
    assert "federation f0: " in text
    assert "cannot be told apart" in text
    assert "fedavg_secagg has the same quality as fedavg by construction" in text
    assert all(one["baseline"]["accuracy"] > 0 for one in found["settings"])
    stream = np.random.default_rng(1)
    again = [rows[i] for i in stream.permutation(len(rows))]
    assert json.dumps(analysis(study(again)), allow_nan=False) == json.dumps(found, allow_nan=False)


def test_many_settings_are_told_together():
    settings = federations(24, data=4)
    found = analysis(study(runs(settings, gaps, ["fedavg", "scaffold"], noise=0.02)))
    text = " ".join(found["sentences"])
    assert "scaffold wins in" in text
    assert "of 24 settings" in text
    assert len(found["settings"]) == 24
    page = render(found)
    assert "All 24 settings" not in page  # as many as stand open
    assert page.count("<svg") > 20


def test_shades_say_of_which_range_they_are_and_close_values_have_a_third_digit():
    close, far = ([[(0.6612, ""), (v, "")]] for v in (0.6741, 0.9))
    assert [[cell.text for cell in row] for row in shaded(close)] == [[".661", ".674"]]
    assert [[cell.text for cell in row] for row in shaded(far)] == [[".66", ".90"]]
    assert [cell.text for cell in shaded([[(0.66, "")] * 13])[0]] == [".66"] * 13, "narrow cells"
    found = heat_figure("id", "label", "Darker is more.", ("a", "b"), ["x"], ["y", "z"], close)
    assert found.how == "Darker is more. The palest cell is 0.661, the darkest 0.674."


def test_a_difference_that_is_written_as_nothing_has_no_sign():
    said = [difference_text(v, bytes_text).replace("\xa0", " ") for v in (0.0, -0.2, 3.0, -3.0)]
    assert said == ["0 B", "0 B", "+3 B", "−3 B"]


def test_a_factor_that_names_the_settings_leaves_the_others_their_effects():
    """24 federations with names of their own, at three numbers of clients: a pair without a main effect has no picture."""
    settings = federations(24, data=4)
    rows = runs(settings, gaps, ["fedavg", "scaffold"], noise=0.02)
    clients = {at["federation"]: ("3", "14", "62")[k % 3] for k, at in enumerate(settings)}
    named = [{**row, "clients": clients[row["federation"]]} for row in rows]
    found = analysis(measurements_of(named, ["federation", "clients"], ["scheme"]))
    about = found["effects"]["accuracy"]
    assert {tuple(e["factors"]) for e in about["effects"]} == {("clients",), ("scheme",), ("clients", "scheme")}
    assert about["over"] == "data sets"
    assert {one["fact"] for one in about["slopes"]} == {"nodes", "rows", "heterogeneity"}
    page = render(found)
    assert "0.1 more heterogeneity (h)" in page
    assert "scaffold, beyond that mean" in page
    assert "for all effects on a response at once, over data sets" in page
    about["effects"] = [e for e in about["effects"] if e["factors"] != ["clients"]]
    assert "effect-clients-scheme" not in render(found)


def test_refused_and_diverged_runs_are_said():
    rows = planted()
    lost = [
        {**row, "status": "diverged"} if row["scheme"] == "scaffold" and row["federation"] == "f0" else row
        for row in rows
    ]
    sentences = analysis(study(lost))["sentences"]
    assert "scaffold: 3 diverged of 6 runs; no average above includes them." in sentences
    assert "federation f0: fedavg is the only choice that finished" in " ".join(sentences)


def test_the_baseline_stands_in_every_picture_and_the_page_is_quiet(tmp_path: Path, browser: Browser):
    page = tmp_path / "analysis.html"
    page.write_text(render(analysis(study(planted()))))
    tab, said = browser.new_page(), list[str]()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(page.as_uri())
    pictures = tab.locator("figure")
    assert pictures.count() >= 5
    for i in range(pictures.count()):
        assert "all rows together" in pictures.nth(i).inner_html()
    shown = tab.locator("#front-1"), tab.locator("#front-2")
    assert (shown[0].is_visible(), shown[1].is_visible()) == (True, False)
    tab.locator("input[name=by-front]").nth(1).check()
    assert (shown[0].is_visible(), shown[1].is_visible()) == (False, True)
    for width in (360, 1000):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not said
    tab.close()


def test_of_a_part_it_says_how_much_of_the_plan_has_finished(tmp_path: Path):
    """Two settings with two seeds, of which one seed has run: of the second seed nothing is in the table yet."""
    level = [{"name": "fedavg", "set": {"algorithm.name": "fedavg"}}]
    tables = {
        "base": {"rounds": 1, "data": {"limit": 200}},
        "factor": [{"name": "scheme", "role": "choice", "level": level},
                   {"name": "nodes", "role": "setting", "key": "partition.clients", "levels": [2, 3]}],
    }  # fmt: skip
    path = filled(Study.of("part", seeds=[1], **tables), tmp_path / "t.sqlite", lambda job: 0.5)
    part = Study.of("part", seeds=[1, 2], **tables).analyse(tmp_path, path)
    assert part["sentences"][0] == (
        "This is a part of the plan (50%): 2 of 4 runs of cells have finished, 0 of 2 settings in full."
    )
    assert part["plan"] == {"runs": 4, "finished": 2, "settings": 2, "settings_finished": 0}
    whole = Study.of("part", seeds=[1], **tables).analyse(tmp_path, path)
    assert not any("part of the plan" in sentence for sentence in whole["sentences"])


@pytest.mark.parametrize("wrong", ["--status", "--dry-run", "--export"])
def test_one_thing_at_a_time(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from test_study_runs import TEXT, call

    file = tmp_path / "q.toml"
    file.write_text(TEXT)
    words = [wrong, *(["x.csv"] if wrong == "--export" else [])]
    assert call(monkeypatch, str(file), *words, "--analyse") == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--status"], ["--analyse"], ["--export", "x.csv"]])
def test_no_cluster_where_nothing_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from test_study_runs import TEXT, call

    file = tmp_path / "q.toml"
    file.write_text(TEXT)
    assert call(monkeypatch, str(file), *words, "--cluster", "auto") == 2
    assert f"{words[0]} runs nothing: leave out --cluster." in capsys.readouterr().err
