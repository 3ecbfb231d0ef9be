"""`fedatlas epsilon`: what several runs on the same rows cost together, and what is not added up."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedatlas import Experiment
from fedatlas.api import run
from fedatlas.cli import app
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy import accountant
from fedatlas.privacy.gaussian import epsilon_of
from fedatlas.privacy.ledger import Event, read
from fedatlas.privacy.mechanisms import made
from fedatlas.privacy.terms import trust_model
from fedatlas.reporting.epsilon_of_seeds import ADDED
from fedatlas.runs.epsilon import account, lines
from fedatlas.terminal import end_table, together_texts
from fedatlas.wording import number
from reports import Page

EVENT = Event("central_dp", 1, "gaussian", 2.0, 1.0, "client", "add or remove", 1e-5)
TABLES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 200, "scale": "none"},
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "logistic"},
    "algorithm": {"weights": "uniform"},
    "engine": {"name": "loop"},
}
CENTRAL = {"name": "central_dp", "clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-3}
LOCAL = {"name": "local_dp", "epsilon": 20.0, "clip": 1.0, "delta": 1e-4}


# ---------------------------------------------------------------------- the mathematics


def test_gaussian_runs_together_are_one_release() -> None:
    runs = [[EVENT._replace(round=t) for t in range(1, n + 1)] for n in (3, 5)]
    found = accountant.spent_together(runs, 1e-5)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(8) / 2, 1e-5), rel=1e-12)
    assert not found.upper_bound
    one = accountant.spent_together(runs[:1], 1e-5)
    assert one.epsilon == accountant.spent(runs[0], 1e-5).epsilon
    assert one.epsilon < found.epsilon < one.epsilon + accountant.spent(runs[1], 1e-5).epsilon


def test_a_seeded_release_is_another_one_in_another_run() -> None:
    seeded = EVENT._replace(source="seed")
    again = accountant.spent_together([[seeded, seeded]], 1e-5)
    assert again.epsilon == accountant.spent([EVENT], 1e-5).epsilon
    two = accountant.spent_together([[seeded], [seeded]], 1e-5)
    assert two.epsilon == accountant.spent([EVENT, EVENT], 1e-5).epsilon


def test_a_unit_may_have_been_any_client_of_each_run() -> None:
    """Client 0 paid in one run and client 1 in the other: a unit that was the one and then the other paid both."""
    first, second = [EVENT._replace(clients=(0,))], [EVENT._replace(clients=(1,))] * 2
    found = accountant.spent_together([first, second], 1e-5)
    assert found.epsilon == accountant.spent([EVENT] * 3, 1e-5).epsilon
    assert not found.upper_bound
    mixed = [EVENT._replace(clients=(0,)), EVENT._replace(clients=(1,), multiplier=3.0)]
    bound = accountant.spent_together([mixed, first], 1e-5)
    assert bound.upper_bound  # nobody paid both kinds
    assert bound.epsilon >= accountant.spent([EVENT] * 2, 1e-5).epsilon


def test_one_run_costs_what_it_says_itself() -> None:
    """Its clients are known: nobody pays the dearest of each kind of release."""
    lines = [EVENT._replace(clients=(0,)), EVENT._replace(multiplier=3.0, clients=(1,))]
    assert accountant.spent_together([lines], 1e-5) == accountant.spent(lines, 1e-5)


def test_a_single_release_is_told_as_one() -> None:
    laplace, skellam = EVENT._replace(noise="laplace"), EVENT._replace(noise="skellam", steps=1000.0)
    sampled = EVENT._replace(rate=0.5)
    for events, one in [
        ([laplace], "Basic composition of 1 Laplace release."),
        ([EVENT._replace(noise="response")], "Basic composition of 1 release of pure epsilon."),
        ([EVENT], "Closed form: 1 Gaussian release is one with noise multiplier 2."),
        ([skellam, EVENT], "Sum of the Rényi divergences of 1 Skellam release and 1 plain Gaussian one."),
        (
            [sampled, EVENT, laplace],
            "Privacy loss distributions of 1 Poisson round, 1 plain Gaussian release, 1 Laplace release.",
        ),
    ]:
        assert accountant.spent(events, 1e-5).how == one
        assert "2 " in accountant.spent(events * 2, 1e-5).how


def test_noises_without_an_account_together_are_composed_as_they_stand() -> None:
    skellam = EVENT._replace(noise="skellam", steps=1000.0, neighbours="zero out")
    laplace = EVENT._replace(noise="laplace", neighbours="zero out", delta=0.0)
    found = accountant.spent_together([[skellam], [laplace]], 1e-5)
    parts = accountant.spent([skellam], 1e-5), accountant.spent([laplace], 0.0)
    assert found.epsilon == pytest.approx(sum(one.epsilon for one in parts))
    assert found.delta == 1e-5
    assert found.upper_bound
    two = [[skellam], [laplace, EVENT._replace(neighbours="zero out")], [laplace]]
    for delta in (1e-5, 1e-9):  # whatever the runs stated
        found = accountant.spent_together(two, delta)
        half = [accountant.spent(run, delta / 2).epsilon for run in two]
        assert found.epsilon == pytest.approx(sum(half))
        assert found.delta == delta
    assert found.how == "Basic composition of 3 accounts, each at delta = 5e-10 or 0."
    with pytest.raises(PrivacyError, match="protect different units"):
        accountant.spent_together([[skellam], [EVENT._replace(unit="record")]], 1e-5)
    assert accountant.spent_together([[EVENT], [EVENT._replace(multiplier=0.0)]], 1e-5).epsilon == math.inf


# ---------------------------------------------------------------------- folders


def made_run(path: Path, *privacy: dict[str, Any], **tables: Any) -> Path:
    return run(Experiment.of(**{**TABLES, "privacy": list(privacy), **tables}), out=path, baselines=False).path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("epsilon")
    return {
        "seeds": made_run(folder / "seeds", CENTRAL, seeds=[1, 2]),
        "more": made_run(folder / "more", CENTRAL, rounds=1, data={"name": "digits", "scale": "none"}),
        "local": made_run(folder / "local", LOCAL),
        "other": made_run(folder / "other", CENTRAL, data={"name": "breast_cancer_wdbc", "scale": "none"}),
        "bare": made_run(folder / "bare"),
    }


def test_seeds_are_added_up_and_other_rows_are_not(runs: dict[str, Path]) -> None:
    found = account([runs["seeds"], runs["more"], runs["other"]])
    same, other = found["accounts"]
    assert found["runs"] == 4
    assert [Path(one["run"]).name for one in same["runs"]] == ["seed-1", "seed-2", "more"]
    events = [read(Path(one["run"]) / "ledger.jsonl").events for one in same["runs"]]
    assert same["epsilon"] == accountant.spent([event for each in events for event in each], 1e-3).epsilon
    assert same["epsilon"] > max(one["epsilon"] for one in same["runs"])
    assert (same["unit"], same["neighbours"], same["delta"]) == ("client", "add or remove", 1e-3)
    assert [Path(one["run"]).name for one in other["runs"]] == ["other"]
    assert not {*same["rows"]} & {*other["rows"]}
    assert any("seeds of an experiment are runs on the same rows" in note for note in same["notes"])
    assert any("clients did not hold the same rows" in note for note in same["notes"])  # each seed deals anew


def test_seeds_say_what_they_cost_together(runs: dict[str, Path]) -> None:
    """In the summary, on the page and in the terminal, each of which shows all of them."""
    summary = json.loads((runs["seeds"] / "summary.json").read_text())
    (whole,) = account([runs["seeds"]])["accounts"]
    (told,) = summary["epsilon_together"]
    assert (told["epsilon"], told["delta"], told["seeds"], told["unit"]) == (whole["epsilon"], 1e-3, 2, "client")
    assert told["epsilon"] > max(one["epsilon"] for one in whole["runs"])
    text = " ".join(Page(runs["seeds"] / "report.html").text().split())
    assert f"epsilon of 2 seeds together{number(told['epsilon'])}" in text.replace("together ", "together")
    assert ADDED in text
    assert together_texts(told) == ("epsilon of 2 seeds", f"{told['epsilon']:.4g} at delta 0.001, about one client")
    drawn = Console(width=120, file=io.StringIO())
    drawn.print(end_table(summary))
    assert "epsilon of 2 seeds" in drawn.file.getvalue()  # type: ignore[attr-defined]
    assert "epsilon_together" not in json.loads((runs["more"] / "summary.json").read_text())
    assert ADDED not in " ".join(Page(runs["more"] / "report.html").text().split())


def test_another_neighbourhood_stands_beside(runs: dict[str, Path]) -> None:
    found = account([runs["local"], runs["more"]])
    assert [one["neighbours"] for one in found["accounts"]] == ["replace", "add or remove"]
    assert len({*found["accounts"][0]["rows"]} & {*found["accounts"][1]["rows"]}) == 1
    text = "\n".join(lines(found))
    assert "Two accounts side by side" in text or "2 accounts side by side" in text
    assert "Unit of privacy: one client with all its rows." in text
    assert "Trust model: local: every client adds its own noise" in text
    assert "Trust model: central: the server sees every update" in text


def test_a_run_without_noise_promises_nothing(runs: dict[str, Path]) -> None:
    found = account([runs["bare"], runs["more"]])
    assert [one["epsilon"] == "infinite" for one in found["accounts"]] == [True, False]
    assert "bare had no noise: if its model is passed on, nothing is promised about these rows." in "\n".join(
        lines(found)
    )


def test_a_run_given_twice_counts_once_and_baselines_not_at_all(runs: dict[str, Path], tmp_path: Path) -> None:
    once = account([runs["more"]])["accounts"][0]["epsilon"]
    assert account([runs["more"], runs["more"]])["accounts"][0]["epsilon"] == once
    copy = tmp_path / "copy"
    shutil.copytree(runs["more"], copy)
    shutil.copytree(runs["bare"], copy / "baselines" / "unprotected")
    (one,) = account([copy])["accounts"]
    assert one["epsilon"] == once
    assert "also holds models that were trained on these rows without noise" in " ".join(one["notes"])


def test_a_folder_that_somebody_named_baselines_is_read(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["seeds"] / "seed-1", tmp_path / "baselines" / "mine")
    found = account([tmp_path])
    assert (found["runs"], found["accounts"][0]["runs"][0]["releases"]) == (1, 2)


def test_a_run_that_was_killed_counts_what_it_released(runs: dict[str, Path], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    shutil.copytree(runs["more"], killed)
    (killed / "summary.json").unlink()
    assert account([killed])["accounts"][0]["epsilon"] == account([runs["more"]])["accounts"][0]["epsilon"]
    (killed / "ledger.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has lost its releases, which 'ledger.jsonl' lists"):
        account([killed])
    (killed / "metrics.jsonl").write_text((killed / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    (nothing,) = account([killed])["accounts"]
    assert nothing["epsilon"] == nothing["runs"][0]["epsilon"] == 0.0
    assert lines(account([killed]))[0] == (
        f"{killed} released nothing with its noise so far: its account is 0 until it goes on."
    )
    (killed / "row_sources.json").unlink()
    with pytest.raises(ConfigError, match="does not say on which rows it ran: continue it to its end"):
        account([killed])
    older = tmp_path / "older"  # made before row_sources.json was written
    shutil.copytree(runs["more"], older)
    (older / "row_sources.json").unlink()
    assert account([older, runs["more"]])["sums"] == 1


def test_rows_are_identified_without_being_shown(runs: dict[str, Path], tmp_path: Path) -> None:
    """A file counts by its bytes, whatever it is called and wherever it lies; one other cell makes other rows."""
    table = tmp_path / "a.csv"
    table.write_text("x,y,label\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(200)))
    shutil.copy(table, tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text(table.read_text().replace("6,4,", "6,3,", 1))
    paths = [
        made_run(
            tmp_path / name,
            CENTRAL,
            rounds=1,
            data={"name": "file", "path": str(tmp_path / f"{name}.csv"), "label": "label", "scale": "none"},
        )
        for name in "abc"
    ]
    found = account(paths)
    assert [[Path(one["run"]).name for one in each["runs"]] for each in found["accounts"]] == [["a", "b"], ["c"]]
    (token,) = json.loads((paths[0] / "row_sources.json").read_text())["rows"]
    assert token.startswith("sha256:")
    assert len(token) == len("sha256:") + 64
    assert json.loads((runs["more"] / "row_sources.json").read_text())["rows"][0].startswith(("sha256:", "source:"))
    assert not (runs["bare"] / "row_sources.json").exists()


def test_the_command(runs: dict[str, Path], tmp_path: Path) -> None:
    call = CliRunner().invoke
    done = call(app, ["epsilon", str(runs["seeds"]), "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found == json.loads(json.dumps(account([runs["seeds"]])))
    text = call(app, ["epsilon", str(runs["seeds"]), "--delta", "1e-6"]).stdout
    assert "2 runs on the same rows: epsilon = " in text
    assert "at delta = 1e-06" in text
    assert "The account knows of no runs that it was not given." in text
    for wrong, said in [(tmp_path / "no", "is not a folder"), (tmp_path, "holds no run")]:
        with pytest.raises(ConfigError, match=said):
            account([wrong])
    with pytest.raises(ConfigError, match="between 0 and 1"):
        account([runs["more"]], 1.0)


# ---------------------------------------------------------------------- the terms


def test_the_terms_stand_in_the_report(runs: dict[str, Path]) -> None:
    text = " ".join(Page(runs["more"] / "report.html").text().split())
    assert "one client with all its rows" in text
    assert "the unit is there, or it is not" in text
    assert "central: the server sees every update" in text


def test_trust_models() -> None:
    assert trust_model([made("central_dp")]).startswith("central: the server sees every update")
    assert trust_model([made("central_dp"), made("secagg")]).startswith("central: the server sees sums")
    assert trust_model([made("local_dp"), made("secagg")]).startswith("local")
    assert trust_model([made("distributed_dp")]).startswith("distributed")


@pytest.mark.parametrize("rounds", [CENTRAL, {"name": "distributed_dp", "clip": 1.0, "noise_multiplier": 2.0}])
def test_random_responses_ask_to_trust_nobody_whatever_the_rounds_ask(tmp_path: Path, rounds: dict[str, Any]) -> None:
    responses = {"name": "randomised_response", "epsilon": 2.0, "classes": [str(i) for i in range(10)]}
    path = made_run(tmp_path / "both", responses, rounds, rounds=1)
    own, other = account([path])["accounts"]
    assert own["unit"] == "record"
    assert own["runs"][0]["trust"].startswith("local: every client adds its own noise")
    assert other["runs"][0]["trust"].startswith(("central: the server sees every update", "distributed"))
    text = " ".join(Page(path / "report.html").text().split())
    assert text.count("local: every client adds its own noise; nobody else has to be trusted") == 1
    assert text.count(other["runs"][0]["trust"]) == 1
