"""`fedatlas recommend` with an experiment: a race on its rows, killed and resumed, its files, limits, and what it says."""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import fedatlas
from fedatlas.cli import main
from fedatlas.race.best import end_statement
from fedatlas.race.course import RaceFigures
from fedatlas.race.estimates import ArmRows, estimated
from fedatlas.race.runs import RaceRuns
from fedatlas.race.work import ArmCost
from fedatlas.recommender.race_limits import measured_here
from fedatlas.recommender.race_text import lines_of
from fedatlas.setup.party_rows import VALIDATION, PartyRows
from fedatlas.study.plan import PlannedRun
from fedatlas.study.study import Study
from fedatlas.study.table import Table, packed, unpacked
from fedatlas.wording import listed
from study_tables import filled

BASE: dict[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits", "limit": 500},
    "partition": {"name": "dirichlet", "clients": 4},
    "evaluation": {"clients": 0.2, "rounds": [10, 20, 30]},
}
NOISE = [{"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.5, "delta": 0.001}]
LEVELS = [
    {"name": "fedavg", "set": {"algorithm.name": "fedavg"}},
    {"name": "fedyogi", "set": {"algorithm.name": "fedyogi"}},
    {
        "name": "noised",
        "set": {"algorithm.name": "fedavg", "algorithm.weights": "uniform", "data.scale": "none", "privacy": NOISE},
    },
]
MINE = {
    "rounds": 20,
    "data": {"name": "digits", "limit": 240},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 5.0},
}
WORK = 2 * 40 * 3 + 60  # two choices with two rates reach 20 rounds in a third, and all the rest fits


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study in which both choices are alike, and noise costs."""
    return study_of_choices(tmp_path_factory.mktemp("known"), LEVELS)


def study_of_choices(out: Path, levels: list[dict[str, Any]]) -> Path:
    """Make a table of that study, its choices in this order; return its folder."""
    out.mkdir(exist_ok=True)
    factors = [
        {"name": "skew", "role": "setting", "key": "partition.alpha", "levels": [0.3, 30.0]},
        {"name": "scheme", "role": "choice", "level": levels},
    ]

    def accuracy(job: PlannedRun) -> float:
        if job.kind == "baseline":
            return 0.93
        return (0.7 if dict(job.levels)["scheme"] == "noised" else 0.85) + 0.005 * (job.seed % 3)

    given = Study.of("known", base=BASE, seeds=[1, 2], factor=factors, tuning={"keys": {"local.lr": [0.02, 0.1]}})
    filled(given, out / "table.sqlite", accuracy)
    return out


def asked(known: Path, folder: Path, mine: dict[str, Any] | None = None, **more: Any) -> Path:
    """Write requirements and their experiment into a folder; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.toml").write_text(tomli_w.dumps({**MINE, **(mine or {})}))
    federation = {"experiment": "mine.toml", **more.pop("federation", {})}
    tables = {"study": str(known), "work": WORK, **more, "federation": federation}
    path = folder / "requirements.toml"
    path.write_text(tomli_w.dumps({key: x for key, x in tables.items() if x is not None}))
    return path


@pytest.fixture(scope="module")
def first(known: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a race that has ended, and its answer; no run on a fold may read test rows."""
    folder, plain = tmp_path_factory.mktemp("first"), PartyRows.common

    def common(self: PartyRows, name: str) -> Any:
        if name == "test" and VALIDATION in self.partition.kept:
            raise AssertionError("A race read the test rows.")
        return plain(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartyRows, "common", common)
        return folder, fedatlas.recommend(asked(known, folder), out=folder / "out")


def comparable(answer: dict[str, Any], out: Path) -> Any:
    """Return an answer without paths, and without what seconds and memory decide, of which another table has others.

    Of equal forecasts, such as those of this study, the prior names the one first that a dry run found faster.
    """
    text = json.dumps(answer, sort_keys=True).replace(str(out), "OUT")
    found = json.loads(re.sub(r'"(cpu_seconds|seconds|memory)": \{[^}]*\}', '"\\1": 0', text))
    found["prior"]["top"].sort(key=lambda one: one["choice"])
    for entry in (*found["entries"], *found["top"]):
        del entry["front"]  # it counts seconds
    return found


def test_a_race_answers_on_training_rows_and_tests_the_file_once(first: tuple[Path, dict[str, Any]]):
    folder, answer = first
    race, top = answer["race"], answer["top"][0]
    assert answer["answer"] == "found"
    assert race["started"] == ["fedavg", "fedyogi"]
    assert race["statement"]["judged_rows"] == pytest.approx(0.6 * 240, abs=8)
    assert {one["choice"]: one["reason"][:13] for one in answer["refused"]} == {"noised": "it adds noise"}
    done = fedatlas.run(fedatlas.Experiment.read(top["experiment"]), out=folder / "again", baselines=False)
    assert done.summary["final"]["accuracy"] == pytest.approx(race["final"]["accuracy"], abs=1e-9)
    assert sum(done.summary["partition_facts"]["sizes"]) == 240  # the file trains on all training rows


def test_every_run_is_in_the_table_and_only_the_last_is_tested(first: tuple[Path, dict[str, Any]]):
    folder, answer = first
    frame = Table.open(folder / "out" / "race" / "table.sqlite").frame()
    assert set(frame.status) == {"done"}
    assert (frame.kind == "cell").sum() == 1
    assert len(frame) == 2 * 2 + 2 + 2 * 3 + 1  # rates on the first fold, the second fold, the end, the file
    assert answer["race"]["spent"] == 20 * len(frame)


def test_the_text_says_who_is_best_by_which_margin_and_the_page_shows_it(first: tuple[Path, dict[str, Any]]):
    folder, answer = first
    said = answer["race"]["statement"]
    text = "\n".join(lines_of(answer, 0.9))
    if len(said["among"]) > 1:
        assert f"{said['first']} is within {100 * said['margin']:.1f} points of the best of the 2 choices raced" in text
        assert "These rows cannot tell it from" in text
        assert "The cheapest of them is" not in text  # both send the same
    assert (
        f"on {answer['race']['final']['test_rows']} test rows, which no rate, no cut and no comparison has read" in text
    )
    ends = [answer["entries"][0]["predicted"]["accuracy"][key] for key in ("low", "high")]
    rows, value = said["judged_rows"], answer["entries"][0]["predicted"]["accuracy"]["value"]
    assert (ends[1] - ends[0]) / 2 < 1.7 * math.sqrt(value * (1 - value) / rows)  # the ends are no 95% interval
    assert "each end with 90% confidence) on" in text
    assert "so the choice itself is not private" in text
    assert "it read the training rows of all nodes on this machine" in text
    page = (folder / "out" / "front.html").read_text()
    assert "<svg" in page
    assert "fedyogi" in page
    entry = answer["entries"][0]["predicted"]["accuracy"]
    below = f"{entry['low']:.3f} to {entry['high']:.3f}"
    assert re.search(
        rf"<td>{entry['value']:.3f}\s*<[^>]+>{below}", page
    )  # below its figure, so that a phone shows both


def test_runs_without_a_model_are_told(first: tuple[Path, dict[str, Any]]):
    answer = {**first[1], "race": {**first[1]["race"], "failed": {"fedavg": 2}}}
    text = "\n".join(lines_of(answer, 0.9))
    assert "counted as always naming the most frequent class: fedavg (2 runs)." in text
    assert "most frequent class" not in "\n".join(lines_of(first[1], 0.9))


def test_other_figures_are_measured_on_the_judged_rows(first: tuple[Path, dict[str, Any]]):
    one = first[1]["top"][0]["predicted"]
    assert one["client_accuracy_p10"]["value"] <= one["accuracy"]["value"]
    assert one["macro_f1"]["low"] < one["macro_f1"]["value"] < one["macro_f1"]["high"]


def test_stopped_again_and_again_a_race_goes_on_to_the_same_answer(
    known: Path, first: tuple[Path, dict[str, Any]], tmp_path: Path
):
    heard, file = list[str](), asked(known, tmp_path)

    def runs() -> int:
        return sum(line.startswith(("trial", "cell")) for line in heard)

    for stopped_at in (2, 6, 12):  # while rates are tried; and after that, after a look, after the end statement

        def stop(line: str, at: int = stopped_at) -> None:
            heard.append(line)
            if runs() == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fedatlas.recommend(file, out=tmp_path / "out", say=stop)
    again = fedatlas.recommend(file, out=tmp_path / "out", say=heard.append)
    assert comparable(again, tmp_path / "out") == comparable(first[1], first[0] / "out")
    assert runs() == 13  # none is made twice


def test_asked_again_nothing_is_run(known: Path, first: tuple[Path, dict[str, Any]]):
    folder, answer = first
    said = list[str]()
    again = fedatlas.recommend(asked(known, folder), out=folder / "out", say=said.append)
    assert again == answer
    assert not [line for line in said if line.startswith(("trial", "cell"))]


def test_limits_end_an_arm_and_what_they_cost_is_foreseen_by_the_study(known: Path, first: tuple[Path, dict[str, Any]]):
    folder, plain = first  # its runs answer again
    sent = plain["top"][0]["predicted"]["bytes"]["value"] / 20
    file = asked(known, folder, {"rounds": 50}, at_most={"bytes": 20.5 * sent})
    answer = fedatlas.recommend(file, out=folder / "out")
    assert set(answer["race"]["rounds"].values()) == {20}
    assert all(entry["predicted"]["bytes"]["value"] <= 20.5 * sent for entry in answer["top"])
    assert answer["top"][0]["binding"] == ["at_most.bytes"]
    (line, *_) = answer["race"]["changes"]
    assert re.search(
        r"ends fed\w+ after 20 rounds[.;] (In the study's other data sets it gained|the study has no runs that long)",
        line,
    )


def test_where_no_choice_keeps_a_limit_the_nearest_miss_is_measured(
    known: Path, first: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
):
    folder, _ = first  # its runs answer again
    file = asked(known, folder, at_least={"accuracy": 0.999})
    assert main_code(["recommend", str(file), "--out", str(folder / "out"), "--quiet"]) == 1
    text = capsys.readouterr().out
    assert "None fits. The nearest miss is" in text
    assert "measured on your rows" in text
    answer = json.loads((folder / "out" / "answer.json").read_text())
    assert answer["race"]["final"] is None  # nothing is to be taken, so the test rows stay unread
    assert answer["answer"] == "none"


def test_none_fits_is_not_said_where_a_choice_may_fit(known: Path, first: tuple[Path, dict[str, Any]]):
    """A limit at the accuracy measured is kept with a chance of about one half; and a choice that was not tried may keep any."""
    folder, plain = first  # its runs answer again
    reached = max(entry["predicted"]["accuracy"]["value"] for entry in plain["entries"])
    even = fedatlas.recommend(asked(known, folder, at_least={"accuracy": reached}), out=folder / "out")
    assert 0.2 < max(entry["chance"] for entry in even["entries"]) < 0.9
    text = "\n".join(lines_of(even, 0.9))
    assert even["answer"] == "not known"
    assert "None fits" not in text
    assert "Not known: no choice raced can be promised to keep all limits with 90% confidence, and one may." in text
    untried = fedatlas.recommend(asked(known, folder, work=200, at_least={"accuracy": 0.999}), out=folder / "out")
    assert len(untried["race"]["not_tried"]) == 1
    assert untried["answer"] == "not known"


def test_a_race_of_masked_choices_says_that_it_ran_without_masks(known: Path, first: tuple[Path, dict[str, Any]]):
    folder, plain = first  # its runs answer again: they have no masks
    answer = fedatlas.recommend(asked(known, folder, privacy={"server_sees": "sums"}), out=folder / "out")
    note = "fedavg_secagg and fedyogi_secagg were raced without masks, which change a result only by rounding; the files have them."
    assert note in answer["notes"]
    assert "secagg" in Path(answer["top"][0]["experiment"]).read_text()
    assert not [one for one in plain["notes"] if "without masks" in one]


def test_no_end_of_an_interval_lies_beyond_a_share():
    rows = ArmRows(np.ones((2, 36)), np.ones(36), np.repeat([3, 4, 5], 12), np.arange(36) % 4)
    rows.score[:, :2] = 0.0
    found, told = estimated(rows, 1), end_statement(estimated(rows, 1), 2)
    assert (found.value[0] + found.draws[:, 0]).max() > 1.0
    measured = measured_here(
        RaceFigures(rows, found, told, found, told), 0, [{"macro_f1": x} for x in (0.9, 1.0, 1.0)], 1
    )
    assert all(draws.min() >= 0.0 and draws.max() <= 1.0 for _, draws in measured.values())


def test_one_choice_is_compared_with_nothing(known: Path, first: tuple[Path, dict[str, Any]]):
    folder, _ = first  # its runs answer again
    answer = fedatlas.recommend(asked(known, folder, work=200), out=folder / "out")
    text = "\n".join(lines_of(answer, 0.9))
    assert f"Only {answer['race']['started'][0]} was raced, so it is compared with nothing." in text
    assert "is the best" not in text


def test_the_limit_that_ended_a_choice_early_is_told_from_the_look(known: Path, first: tuple[Path, dict[str, Any]]):
    about = {**first[1]["race"], "rounds": {"fedavg": 20, "fedyogi": 8}}
    text = "\n".join(lines_of({**first[1], "race": about}, 0.9))
    assert "compared after 20 rounds, fedyogi after at most 8 (" in text
    assert "after at most" not in "\n".join(lines_of(first[1], 0.9))


def test_a_limit_on_seconds_that_the_runs_break_is_told(known: Path, first: tuple[Path, dict[str, Any]]):
    folder, _ = first
    slow = slower(folder / "out", folder / "slow", 1e5)
    answer = fedatlas.recommend(asked(known, folder, at_most={"seconds": 1000.0}), out=slow)
    name, took = answer["top"][0]["choice"], answer["top"][0]["predicted"]["seconds"]["value"]
    assert took > 1000.0
    text = "\n".join(lines_of(answer, 0.9))
    assert f"The runs of {name} took" in text
    assert "break the limit at_most.seconds" in text
    assert "ends fed" not in text  # the limit did not end it: the file's rounds did


def main_code(words: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedatlas", *words])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


@pytest.mark.slow
def test_a_race_of_runs_that_all_add_noise_has_an_epsilon_of_the_run_and_none_with_the_race(
    known: Path, tmp_path: Path
):
    file = asked(known, tmp_path, {"rounds": 4}, at_most={"epsilon": 1e4}, work=100)
    answer = fedatlas.recommend(file, out=tmp_path / "out")
    why = {one["choice"]: one["reason"] for one in answer["refused"]}
    assert why["fedyogi"] == "it exceeds a limit from the first round on: epsilon, which is infinite without noise."
    assert answer["race"]["started"] == ["noised"]
    (one,) = answer["top"]
    final = fedatlas.dry_run(fedatlas.Experiment.read(one["experiment"]), baselines=False)["privacy"]["epsilon"]
    assert answer["race"]["epsilon"] == {"final": pytest.approx(final), "with_race": None, "choice_is_private": False}
    strict = fedatlas.recommend(
        asked(known, tmp_path, {"rounds": 4}, at_most={"epsilon": 1e4}, work=100, privacy={"delta": 1e-6}),
        out=tmp_path / "out",
    )["race"]
    assert strict["final"]["epsilon"] == pytest.approx(strict["epsilon"]["final"])  # at the same delta
    assert strict["epsilon"]["final"] > answer["race"]["epsilon"]["final"]
    text = "\n".join(lines_of(answer, 0.9))
    assert "With the race there is none: it reads scores of your rows without noise" in text
    assert "picked in the study" not in text  # its rate was picked here


def test_own_rows_get_the_prior_two_files_for_a_pilot_and_no_test(known: Path, first: tuple[Path, dict[str, Any]]):
    folder, _ = first
    answer = fedatlas.recommend(asked(known, folder, federation={"rows_of": "own"}), out=folder / "out")
    assert answer["race"]["final"] is None
    assert len(answer["top"]) == 2
    assert all("for a pilot with your partners" in Path(one["experiment"]).read_text() for one in answer["top"])
    text = "\n".join(lines_of(answer, 0.9))
    assert "This race had your rows dealt out, not your partners'" in text
    assert "Measured in other federations" in text
    assert "of all nodes on this machine" not in text


def test_too_little_work_names_what_would_do(known: Path, tmp_path: Path):
    answer = fedatlas.recommend(asked(known, tmp_path, work=100), out=tmp_path / "out")
    assert answer["answer"] == "undecided"
    assert not (tmp_path / "out" / "race" / "runs").exists()
    text = "\n".join(lines_of(answer, 0.9))
    assert "it read the training rows" not in text
    assert "No race: none of 2 choices reaches 20 rounds in a third of the rounds given" in text
    assert "240 rounds of runs" in text  # 2 choices, 2 rates, 20 rounds, in a third


def test_where_the_work_is_up_those_left_are_named_in_no_order_with_their_files(
    known: Path, first: tuple[Path, dict[str, Any]]
):
    folder, _ = first  # its runs answer again
    answer = fedatlas.recommend(asked(known, folder, work=250), out=folder / "out")
    race, text = answer["race"], "\n".join(lines_of(answer, 0.9))
    assert (answer["answer"], race["decided"], race["statement"], race["final"]) == ("undecided", False, None, None)
    best = sorted(entry["choice"] for entry in answer["entries"] if entry["among_best"])
    assert [entry["choice"] for entry in answer["top"]] == best
    for entry in answer["top"]:
        assert fedatlas.Experiment.read(entry["experiment"]).config.rounds == entry["rounds"] == 20
    assert f"Left after 20 rounds, in no order: {listed(best)}. 260 rounds of runs would decide." in text
    assert "on the rows by which rates and cuts were picked" in text
    assert "no comparison has read" not in text
    assert "each end of an interval with 90% confidence." in text
    again = fedatlas.recommend(asked(known, folder, work=260), out=folder / "out")
    assert again["race"]["decided"]


def slower(out: Path, copy: Path, times: float) -> Path:
    """Copy the folder of a race's answer with other seconds in its table, as another machine would measure them."""
    shutil.copytree(out, copy)
    with closing(sqlite3.connect(copy / "race" / "table.sqlite")) as table, table:
        for key, rows in table.execute("SELECT run_key, rows FROM rounds").fetchall():
            longer = [{**row, "seconds": times * (row["seconds"] or 0)} for row in unpacked(rows)]
            table.execute("UPDATE rounds SET rows = ? WHERE run_key = ?", (packed(longer), key))
        for key, told in table.execute("SELECT run_key, responses FROM runs WHERE responses IS NOT NULL").fetchall():
            found = json.loads(told)
            found |= {name: times * found[name] for name in ("seconds", "cpu_seconds") if found.get(name) is not None}
            table.execute("UPDATE runs SET responses = ? WHERE run_key = ?", (json.dumps(found), key))
    return copy


def test_by_work_what_the_clock_measured_changes_nothing(
    known: Path, first: tuple[Path, dict[str, Any]], tmp_path: Path
):
    folder, answer = first
    out = slower(folder / "out", tmp_path / "out", 50.0)
    again = fedatlas.recommend(asked(known, folder), out=out)
    before = answer["entries"][0]["predicted"]["seconds"]["value"]
    assert again["entries"][0]["predicted"]["seconds"]["value"] == pytest.approx(50 * before)
    assert comparable(again, out) == comparable(answer, folder / "out")


@pytest.mark.slow
def test_by_minutes_the_same_table_gives_the_same_answer_and_a_slower_one_says_what_the_clock_decided(
    known: Path, first: tuple[Path, dict[str, Any]], tmp_path: Path
):
    folder, plain = first
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    by_minutes = asked(known, folder, work=None, minutes=30)
    answer = fedatlas.recommend(by_minutes, out=out)
    assert answer["race"]["statement"] == plain["race"]["statement"]
    assert comparable(fedatlas.recommend(by_minutes, out=out), out) == comparable(answer, out)
    spent = answer["race"]["spent"]
    late = slower(out, tmp_path / "late", 1000 * 30 / spent)
    again = fedatlas.recommend(by_minutes, out=late)
    text = "\n".join(lines_of(again, 0.9))
    assert again["race"]["started"] == []
    assert "reaches 20 rounds in a third of the minutes given" in text


def test_the_order_of_the_choices_changes_nothing(first: tuple[Path, dict[str, Any]], tmp_path: Path):
    folder, answer = first
    shutil.copytree(folder / "out", tmp_path / "out")
    turned = study_of_choices(tmp_path / "known", LEVELS[::-1])
    again = fedatlas.recommend(asked(turned, folder), out=tmp_path / "out")
    mine, theirs = (
        {key: one[key] for key in ("answer", "top", "entries", "race", "prior")}
        for one in (comparable(again, tmp_path / "out"), comparable(answer, folder / "out"))
    )
    assert mine == theirs


def test_in_minutes_the_clock_decides_on_the_work_and_is_named(
    known: Path, first: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    folder, plain = first
    costs = {"fedavg": ArmCost(1.0, 0.5), "fedyogi": ArmCost(1.0, 0.5)}
    monkeypatch.setattr(RaceRuns, "timed", lambda self: costs)
    monkeypatch.setattr(RaceRuns, "costs", lambda self, asked: costs)
    answer = fedatlas.recommend(asked(known, folder, work=None, minutes=30), out=folder / "out")
    race = answer["race"]
    assert race["costs"] == {"fedavg": [1.0, 0.5], "fedyogi": [1.0, 0.5]}
    # two timed runs of 2 rounds, and 13 of 20 rounds, by two processes
    assert race["spent"] == pytest.approx((2 * 2 + 13 * 11) / 120)
    assert race["statement"] == plain["race"]["statement"]
    assert "The clock decided how many choices are tried: each was timed" in "\n".join(lines_of(answer, 0.9))
    longer = asked(known, folder, {"rounds": 50}, work=None, minutes=1.25)
    far = fedatlas.recommend(longer, out=folder / "out")
    assert set(far["race"]["rounds"].values()) == {20}  # at 30 rounds the end would cost more than is left
    assert "The clock decided how many choices are tried and how far they run" in "\n".join(lines_of(far, 0.9))
    short = fedatlas.recommend(asked(known, folder, work=None, minutes=0.6), out=folder / "out")
    assert short["race"]["started"] == []  # 24 s in a third, less 4 s of timing; one choice takes 22
    assert "All of them would take 1.2 minutes" in "\n".join(lines_of(short, 0.9))
