"""Runs whose labels have noise: what they state, show with and without it, resume, add up and refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedatlas
from fedatlas import api
from fedatlas.comparison.remarks import epsilon_remark
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import CheckpointError, ConfigError, DataError
from fedatlas.privacy import ledger
from fedatlas.privacy.accountant import spent
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.alignment_text import expectations
from fedatlas.runs.columns_baselines import finished
from fedatlas.runs.epsilon import account, lines
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.terminal import protected_texts
from fedatlas.vertical import SCHEMES
from reports import Page
from test_label_noise import NAME, ROOT, YES
from test_vertical_run import experiment, plain_rows, tables

NUMBER = {"name": NAME, "epsilon": 1.0, "range": [-4.0, 4.0]}


def small(folder: Path, *names: str, trees: int = 2, **tables: Any) -> fedatlas.Experiment:
    """Few and small trees, as no test here is about them."""
    return experiment(
        folder, *names, algorithm={"name": "secureboost", "trees": trees, "depth": 2, "bins": 8}, **tables
    )


def noised(path: Path) -> np.ndarray:
    """The labels with noise that a finished run trained on."""
    found = finished(path, checked(RunFolder(path).config())).active.noised
    assert found is not None
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    """A run with epsilon 1, its baselines and its page."""
    folder = tmp_path_factory.mktemp("noised")
    tables(folder)
    return api.run(small(folder, "bank", "shop", "phone", privacy=[{**YES, "noise": "seed"}]), out=folder / "run")


def test_a_run_states_its_epsilon_everywhere(done: api.Run) -> None:
    (event,) = ledger.read(done.path / "ledger.jsonl").events
    assert (event.noise, event.unit, event.neighbours, event.delta, event.round) == (
        "response",
        "record",
        "replace",
        0.0,
        0,
    )
    assert spent([event], 0.0).epsilon == 1.0
    found = done.summary["privacy"]
    assert (found["epsilon"], found["delta"], found["releases"], found["noise"]) == (1.0, 0.0, 1, "seed")
    assert found[NAME]["covers"] == "the class of a row"
    assert ("epsilon", '1 at delta 0 (noise = "seed": protects nobody)') in protected_texts(done.summary)
    said = "\n".join(lines(account([done.path])))
    assert "Epsilon = 1 at delta = 0" in said
    assert "Unit of privacy: the class of a row; nothing else of one row is covered." in said
    text = Page(done.path / "report.html").text()
    for sentence in (
        "would mean if the noise were secret: anyone who sees everything that was released",
        "can shift the odds about the class of a row by at most a factor of 2.72",
        "No epsilon covers what is computed from labels without noise: figures on test rows",
        "The party with the label alone and all columns in one table were trained on labels without noise",
        "and those without one of them on labels with noise",
        "This protects no one; it is for tests.",
        "Labels had noise before anything was sent",
        "Every tree was trained on labels with noise, but for the second line",
    ):
        assert sentence in text
    assert "Labels had noise before anything was sent" in Page(done.path / "report-shop.html").text()
    assert any("Labels of test rows have no noise" in line for line in done.summary["notices"])


def test_a_run_shows_accuracy_and_the_attack_with_and_without_noise(done: api.Run) -> None:
    gain, cases = done.summary["gain"], {one["case"]: one["auc"] for one in done.summary["labels_told"]["cases"]}
    assert [*gain["sides"]][-2:] == ["joined", "true_labels"]
    assert gain["sides"]["true_labels"] == gain["sides"]["joined"], (
        "the trees of one table, with the labels as they are"
    )
    both = [gain["sides"][name]["auc"] for name in ("together", "true_labels")]
    assert gain["against"]["true_labels"]["auc"]["value"] == pytest.approx(both[0] - both[1])
    assert [*cases][:2] == ["default", "default, labels without noise"]
    rules = {name: [auc for one in cases[name].values() for auc in one.values()] for name in [*cases][:2]}
    assert sum(rules["default, labels without noise"]) > sum(rules["default"])


def test_a_run_without_noise_has_the_figures_of_that_baseline(done: api.Run, tmp_path: Path) -> None:
    """An oracle apart: the attack and the model of a run whose noise changes nothing are those of labels without noise."""
    same = api.run(small(done.path.parent, privacy=[{**YES, "epsilon": 64.0}]), out=tmp_path / "run").summary
    assert same["gain"]["sides"]["together"] == same["gain"]["sides"]["true_labels"]
    cases = [one["auc"] for one in same["labels_told"]["cases"]]
    assert cases[0] == cases[1]


def test_a_resume_draws_no_label_again(tmp_path: Path) -> None:
    tables(tmp_path)
    short, whole = (small(tmp_path, trees=n, privacy=[YES]) for n in (2, 4))
    path = api.run(short, out=tmp_path / "run", baselines=False).path
    before = noised(path)
    api.resume(path, ["algorithm.trees=4"], baselines=False)
    assert (noised(path) == before).all()
    assert len(ledger.read(path / "ledger.jsonl").events) == 1
    (tmp_path / "same").mkdir()
    shutil.copy(path / "rows.secret", tmp_path / "same")
    assert plain_rows(api.run(whole, out=tmp_path / "same", baselines=False).path) == plain_rows(path)
    other = api.run(short, out=tmp_path / "other", baselines=False).path
    assert (noised(other) != before).any(), "another run draws other noise"
    rows = {RunFolder(one).summary()["judged_on"] for one in (path, other)}
    assert len(rows) == 1, "the split looks at no label, so that runs are judged on the same rows"
    assert account([path, other])["accounts"][0]["epsilon"] == pytest.approx(2.0), "on the same labels they add up"


def test_a_run_killed_in_its_first_round_draws_no_label_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret and the ledger are on the disk before anything is computed, so that what was sent is sent again."""
    tables(tmp_path)
    asked, scheme = small(tmp_path, privacy=[YES]), SCHEMES["secureboost"]

    def killed(*given: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(SCHEMES, "secureboost", scheme._replace(begin=killed))  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            api.run(asked, out=tmp_path / "run", baselines=False)
    secret, entered = (tmp_path / "run" / "rows.secret").read_bytes(), (tmp_path / "run" / "ledger.jsonl").read_bytes()
    api.resume(tmp_path / "run", baselines=False)
    assert (tmp_path / "run" / "rows.secret").read_bytes() == secret
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == entered
    assert (tmp_path / "run" / "rows.secret").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("gone", "said"), [("rows.secret", "has lost 'rows.secret'"), ("ledger.jsonl", "releases are missing")]
)
def test_a_run_that_lost_its_secret_or_its_ledger_does_not_go_on(gone: str, said: str, tmp_path: Path) -> None:
    tables(tmp_path)
    path = api.run(small(tmp_path, privacy=[YES]), out=tmp_path / "run", baselines=False).path
    (path / gone).unlink()
    with pytest.raises((ConfigError, CheckpointError), match=said):
        api.resume(path, ["algorithm.trees=9"], baselines=False)


def test_seeds_noise_the_same_labels_and_add_up(tmp_path: Path) -> None:
    tables(tmp_path)
    asked = small(tmp_path, seeds=[1, 2], privacy=[YES])
    said = " ".join(expectations(fedatlas.dry_run(asked)))
    assert (
        "Under randomised_response the changed rows will cost epsilon = 2 at delta = 0, once in each of 2 seeds, together"
        in said
    )
    done = api.run(asked, out=tmp_path / "run", baselines=False)
    (found,) = done.summary["epsilon_together"]
    assert (found["seeds"], found["covers"]) == (2, "the class of a row")
    assert found["epsilon"] == pytest.approx(2.0)
    assert "epsilon of 2 seeds together" in Page(done.path / "report.html").text()


def test_a_number_gets_laplace_noise_and_a_page(tmp_path: Path) -> None:
    tables(tmp_path, task="numbers")
    asked = small(tmp_path, privacy=[NUMBER])
    assert "cost epsilon = 1 at delta = 0, once, for the label of a row." in " ".join(
        expectations(fedatlas.dry_run(asked))
    )
    done = api.run(asked, out=tmp_path / "run")
    (event,) = ledger.read(done.path / "ledger.jsonl").events
    assert (event.noise, event.multiplier, event.sensitivity, event.delta) == ("laplace", 1.0, 8.0, 0.0)
    assert done.summary["privacy"]["epsilon"] == 1.0
    text = Page(done.path / "report.html").text()
    assert "A label was clipped to -4 to 4 and got Laplace noise of scale 8." in text
    assert "can shift the odds about the label of a row" in text
    assert "Unit of privacy: the label of a row;" in "\n".join(lines(account([done.path])))
    (remark,) = epsilon_remark({"laplace": [done.summary]})
    assert "1 with laplace (delta 0), about the label of a row" in remark
    sides = done.summary["gain"]["sides"]
    assert sides["true_labels"]["rmse"] < sides["together"]["rmse"]
    ratio = [side["loss"] / side["rmse"] ** 2 for side in sides.values()]
    assert ratio == pytest.approx([ratio[0]] * len(ratio)), "losses of all models have one unit"


def test_it_goes_beside_encryption(tmp_path: Path) -> None:
    tables(tmp_path)
    whole = checked(small(tmp_path, privacy=[YES, {"name": "paillier"}]).config)
    assert whole.of_columns().protected(whole.how)
    assert consortium(whole, ROOT).parties[0].noised is not None


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("task", "mechanism", "said"),
    [
        (
            "numbers",
            YES,
            "it replaces classes, and this target holds none; remove the table, or for a label of parties that hold",
        ),
        ("numbers", {"name": NAME, "epsilon": 1.0}, "give range = [LOWEST, HIGHEST]"),
        (
            "numbers",
            {**NUMBER, "range": [4.0, 4.0]},
            "privacy.randomised_response.range = [4.0, 4.0]: give the lowest and the highest",
        ),
        ("classes", NUMBER, "range is for a label that is a number, and this label is a class: list its 'classes'"),
        ("classes", {"name": NAME, "epsilon": 1.0}, "privacy.randomised_response.classes: list all of them"),
        ("numbers", {**NUMBER, "classes": ["no", "yes"]}, "and 'range' is for a label that is a number: leave one out"),
        (
            "classes",
            {**YES, "classes": ["no", "maybe"]},
            "privacy.randomised_response.classes lacks 'yes', which the rows have",
        ),
        ("classes", {**YES, "columns": {"city": ["Rome", "Oslo"]}}, "privacy.randomised_response.columns is for"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    task: str, mechanism: dict[str, Any], said: str, tmp_path: Path
) -> None:
    tables(tmp_path, task=task)
    with pytest.raises((ConfigError, DataError)) as error:
        api.run(small(tmp_path, privacy=[mechanism]), out=tmp_path / "run")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_it_is_refused_twice_and_where_no_ledger_is_kept(tmp_path: Path) -> None:
    held = tables(tmp_path)
    with pytest.raises(ConfigError, match=r"\[\[privacy\]\]: 'randomised_response' is given twice"):
        small(tmp_path, privacy=[YES, YES])
    with pytest.raises(ConfigError, match="a probe keeps no ledger"):
        api.probe(small(tmp_path, privacy=[YES]))
    with pytest.raises(
        ConfigError,
        match="name = 'randomised_response': not in this version of deployment; of the mechanisms it has 'paillier'",
    ):
        deployable(small(tmp_path, privacy=[YES, {"name": "paillier"}]).config, ("bank", "shop"))
    ids = held["bank"]["customer"]
    parts = {"bank": held["bank"][["age"]], "shop": pd.DataFrame({"spent": np.arange(len(ids), dtype=float)})}
    rows = fedatlas.vertical.Parties({name: one.assign(id=ids) for name, one in parts.items()})
    with pytest.raises(ConfigError, match="an estimator keeps no ledger"):
        fedatlas.vertical.SecureBoostClassifier(trees=1, privacy=YES).fit(rows, held["bank"]["default"].to_numpy())


def test_rows_refuse_the_range(tmp_path: Path) -> None:
    """Clients that hold rows replace classes only, and list them."""
    rows = {"data": {"name": "digits", "limit": 100}, "partition": {"name": "iid", "clients": 2}}
    for how, said in (
        (NUMBER, "range is for a label of parties that hold columns"),
        ({"name": NAME, "epsilon": 1.0}, "classes: list all"),
    ):
        with pytest.raises(ConfigError, match=said):
            checked(fedatlas.Experiment.of(**rows, privacy=[how]).config)
