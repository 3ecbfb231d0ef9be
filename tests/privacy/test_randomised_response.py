"""Randomised response of classes (P4): exact odds, an unbiased estimate, one draw a run, and one line of the ledger."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreements import Agreements
from fedatlas import Experiment, load
from fedatlas.api import resume, run
from fedatlas.errors import ConfigError, DataError
from fedatlas.privacy import ledger
from fedatlas.privacy.accountant import spent
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.randomised_response.response import OTHER, Odds, below, estimate, odds, responses
from fedatlas.runs.epsilon import account, lines
from fedatlas.runs.preview import dry_run
from fedatlas.runs.privacy_preview import sentences
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.refusals import checked
from fedatlas.terminal import protected_texts
from reports import Page, summary

SECRET = Noise(secret=bytes(range(32)))
CLASSES = ["no", "yes"]


def exponential(x: Fraction, terms: int = 400) -> tuple[Fraction, Fraction]:
    """Bounds of e^x in whole numbers: a Taylor sum, and the same with a bound of its rest."""
    term, total = Fraction(1), Fraction(1)
    for n in range(1, terms):
        term = term * x / n
        total += term
        if n > 2 * x and term < Fraction(1, 1 << 200):
            break
    return total, total + 2 * term


# ---------------------------------------------------------------------- the odds


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.5, 1.0, math.log(3), 3.0, 8.0, 20.0, 64.0])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_the_likelihood_ratio_is_at_most_e_to_epsilon_exactly(epsilon: float, k: int) -> None:
    """Against e^epsilon as a fraction, and with the distribution of a response counted out: no draw is left over."""
    of = odds(epsilon, k)
    low, high = exponential(Fraction(epsilon))
    assert of.p / of.q <= low
    assert of.p / of.q > high - Fraction(1, OTHER) - Fraction(1, 1 << 60)
    assert of.p + (k - 1) * of.q == 1


def test_every_number_leads_to_its_response() -> None:
    """Small odds, every number tried for every value: exactly `keep` lead to the value, `other` to each other one."""
    of = Odds(5, 2, 4)
    for value in range(4):
        led = Counter(
            value if number < of.keep else (step := (number - of.keep) // of.other) + (step >= value)
            for number in range(of.total)
        )
        assert led == {other: of.keep if other == value else of.other for other in range(4)}


def test_numbers_below_a_bound_are_uniform_and_repeat() -> None:
    drawn = below(7, 70_000, SECRET, "a")
    assert drawn == below(7, 70_000, SECRET, "a")
    assert drawn != below(7, 70_000, SECRET, "b")
    counts = np.bincount(drawn, minlength=7)
    assert len(counts) == 7
    chi = float(((counts - 10_000) ** 2 / 10_000).sum())
    assert chi < 22.5  # 0.999 of chi-square with 6 degrees
    wide = below((1 << 100) + 1, 3, SECRET, "a")
    assert max(wide) > 1 << 64


@pytest.mark.parametrize(("epsilon", "k"), [(0.5, 2), (1.0, 4)])
def test_responses_have_their_probabilities(epsilon: float, k: int) -> None:
    of, n = odds(epsilon, k), 40_000
    for value in range(k):
        found = np.bincount(responses(np.full(n, value), of, SECRET, "v", value), minlength=k) / n
        expected = np.where(np.arange(k) == value, float(of.p), float(of.q))
        assert np.abs(found - expected).max() < 4.5 * math.sqrt(0.25 / n)


def test_a_large_epsilon_changes_nothing() -> None:
    values = np.random.default_rng(0).integers(0, 5, 20_000)
    assert (responses(values, odds(64.0, 5), SECRET) == values).all()


def test_the_estimate_is_unbiased() -> None:
    """In expectation exactly, for any shares; and over 200 draws within the error that it states."""
    of, true = odds(1.0, 3), [0.7, 0.25, 0.05]
    expected = [float(of.p) * share + float(of.q) * (1 - share) for share in true]
    found, _ = estimate([round(1e12 * f) for f in expected], of)
    assert found == pytest.approx(true, abs=1e-9)
    values = np.repeat([0, 1, 2], [700, 250, 50])
    each = [estimate(np.bincount(responses(values, of, SECRET, i), minlength=3).tolist(), of) for i in range(200)]
    shares = np.array([share for share, _ in each])
    assert np.abs(shares.mean(0) - true).max() < 4 * shares.std(0).max() / math.sqrt(200)
    assert shares.std(0) == pytest.approx(np.array([error for _, error in each]).mean(0), rel=0.25)


# ---------------------------------------------------------------------- a run


def patients(path: Path, n: int = 240, hole: bool = False) -> Path:
    stream = np.random.default_rng(3)
    age, kind = stream.integers(20, 90, n), stream.integers(0, 2, n)
    lines = [f"{a},{'ab'[k]},{'yes' if a + 20 * k > 70 else 'no'}" for a, k in zip(age, kind, strict=True)]
    lines[5] = "40,,no" if hole else lines[5]
    path.write_text("\n".join(["age,kind,ill", *lines]) + "\n")
    return path


def experiment(path: Path, mechanism: dict[str, Any] | None, *others: dict[str, Any], **tables: Any) -> Experiment:
    own = (
        [] if mechanism is None else [{"name": "randomised_response", "epsilon": 1.0, "classes": CLASSES, **mechanism}]
    )
    return Experiment.of(
        **{
            "rounds": 3,
            "data": {"name": "file", "path": str(path), "label": "ill", "test": 0.25},
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            "engine": {"name": "loop"},
            "privacy": [*own, *others],
            **tables,
        }
    )


def setup(path: Path, mechanism: dict[str, Any] | None, **tables: Any) -> Setup:
    return set_up(checked(experiment(path, mechanism, **tables).config))


def test_only_classes_of_training_rows_change(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    own = {"evaluation": {"on": "validation", "validation": 0.2}}
    plain, random = (setup(path, how, **own).held.raw for how in (None, {}))
    held = setup(path, None, **own)
    at = np.concatenate(held.partition.clients)
    changed = (plain.train.y != random.train.y).numpy()
    p = 1 - float(odds(1.0, 2).p)
    assert changed[at].mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(at)))
    assert not changed[np.setdiff1d(np.arange(len(changed)), at)].any()
    assert torch.equal(plain.train.x, random.train.x)
    assert torch.equal(plain.test.y, random.test.y)


def test_classes_that_no_row_has_are_there(tmp_path: Path) -> None:
    """Whether a class occurs would tell something of the rows."""
    held = setup(patients(tmp_path / "rows.csv"), {"classes": ["yes", "maybe", "no"]}).held.raw
    assert held.class_names == ("maybe", "no", "yes")
    assert set(held.train.y.tolist()) == {0, 1, 2}
    assert set(held.test.y.tolist()) == {1, 2}


def test_named_columns_are_randomised_with_all_their_categories(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    plain, random = setup(path, None).held.raw, setup(path, {"columns": {"kind": ["a", "b", "c"]}}).held.raw
    assert random.schema[1] == ("kind", ("a", "b", "c"))
    assert set(random.train.x[:, 1].tolist()) == {0, 1, 2}
    assert torch.equal(plain.train.x[:, 0], random.train.x[:, 0])
    assert set(random.test.x[:, 1].tolist()) == {0, 1}


def test_a_run_enters_one_line_and_states_its_epsilon(tmp_path: Path) -> None:
    """Pure, of a record by replacing its class; resumed rounds add nothing, as no other responses are drawn."""
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {}), out=tmp_path / "run", baselines=False).path
    (event,) = ledger.read(done / "ledger.jsonl").events
    assert (event.unit, event.neighbours, event.delta, event.multiplier) == ("record", "replace", 0.0, 1.0)
    prepared = (done / "partition.json").read_bytes()
    resume(done, ["rounds=5"], baselines=False)
    assert ledger.read(done / "ledger.jsonl").events == (event,)
    assert (done / "partition.json").read_bytes() == prepared
    found = summary(done)["privacy"]
    assert (found["epsilon"], found["delta"], found["unit"], found["releases"]) == (1.0, 0.0, "record", 1)
    assert found["randomised_response"]["epsilon"] == 1.0
    shares = found["randomised_response"]["classes"]["values"]
    assert sum(one["share"] for one in shares.values()) == pytest.approx(1)
    truth = setup(path, None).held.raw.train.y.double().mean()
    assert abs(shares["yes"]["share"] - truth) < 4 * shares["yes"]["error"]
    assert "epsilon = 1 for each replaced value, of which a row has 1" in " ".join(summary(done)["notices"])
    text = Page(done / "report.html").text()
    assert "shift the odds about the class of a row by" in text
    assert "of the class of a row, at delta = 0" in text
    assert "protects the class of a row (and categories that it names), not the other columns" in text
    assert load(done).preprocess.change is None
    assert set(load(done).predict(path)["prediction"]) <= {"no", "yes"}


def test_columns_cost_an_epsilon_each(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {"columns": {"kind": ["a", "b"]}}), out=tmp_path / "run", baselines=False).path
    assert summary(done)["privacy"]["epsilon"] == 2.0
    assert spent(ledger.read(done / "ledger.jsonl").events, 0.0).epsilon == 2.0


def test_beside_noise_in_rounds_each_has_its_own_account(tmp_path: Path) -> None:
    """A record's class and a client are different units: their epsilons are not added up."""
    path = patients(tmp_path / "rows.csv")
    noise = {"name": "local_dp", "epsilon": 8.0, "clip": 1.0}
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.25, "scale": "none", "drop": ["kind"]}
    asked = experiment(path, {}, noise, algorithm={"weights": "uniform"}, data=data)
    done = run(asked, out=tmp_path / "run", baselines=False).path
    found = summary(done)["privacy"]
    assert found["unit"] == "client"
    assert found["epsilon"] == pytest.approx(8.0, rel=0.01)
    assert (found["randomised_response"]["unit"], found["randomised_response"]["epsilon"]) == ("record", 1.0)
    assert len(ledger.read(done / "ledger.jsonl").events) == 4


def test_every_account_is_stated_before_and_after_a_run(tmp_path: Path) -> None:
    """The dry run, the terminal, the summary and the page list the same epsilons: that of rounds and that of changed rows."""
    noise = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}
    data = {"name": "file", "path": str(patients(tmp_path / "rows.csv")), "label": "ill", "test": 0.25, "scale": "none"}
    asked = experiment(tmp_path / "rows.csv", {"epsilon": 1.5}, noise, data={**data, "drop": ["kind"]})
    before = dry_run(checked(asked.config))
    done = run(asked, out=tmp_path / "run", baselines=False).path
    after = summary(done)["privacy"]
    stated = before["privacy"]["rows"]["randomised_response"]
    assert stated["epsilon"] == after["randomised_response"]["epsilon"] == 1.5
    assert stated.items() <= after["randomised_response"].items()
    assert before["privacy"]["epsilon"] == pytest.approx(after["epsilon"])
    assert after["epsilon"] != pytest.approx(1.5)
    assert after["beside"] == ["randomised_response"]
    said = " ".join(sentences(before["privacy"], 3))
    assert (
        "Under randomised_response the changed rows will cost epsilon = 1.5 at delta = 0, once, for the class of a row."
        in said
    )
    assert f"3 rounds will cost epsilon = {after['epsilon']:.4g}" in said
    assert [name for name, _ in protected_texts(summary(done))][-2:] == ["epsilon", "epsilon of the class of a row"]
    page = Page(done / "report.html").text()
    assert (
        "What epsilon = 1.5 means: anyone who sees everything that was released, whatever else they know, can shift the odds"
        in page
    )
    assert "of the class of a row, at delta = 0" in page


def test_the_dry_run_of_changed_rows_only_states_their_epsilon(tmp_path: Path) -> None:
    found = dry_run(checked(experiment(patients(tmp_path / "rows.csv"), {}).config))["privacy"]
    assert "epsilon" not in found
    assert len(sentences(found, 3)) == 1
    assert "will cost epsilon = 1 at delta = 0, once, for the class of a row." in sentences(found, 3)[0]


def test_responses_from_the_seed_are_said_beside_secret_noise(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    noise = {"name": "local_dp", "epsilon": 8.0, "clip": 1.0}
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.25, "scale": "none", "drop": ["kind"]}
    asked = experiment(path, {"noise": "seed"}, noise, algorithm={"weights": "uniform"}, data=data)
    done = run(asked, out=tmp_path / "run", baselines=False).path
    text = Page(done / "report.html").text()
    assert "The noise of randomised_response follows from the seed" in text
    assert "What epsilon = 8 means" in text  # that of local_dp, whose noise is secret


def test_an_account_is_about_the_class_of_a_row(tmp_path: Path) -> None:
    """Not about the whole row, neither in the report nor in an account of several runs."""
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {}), out=tmp_path / "run", baselines=False).path
    said = "the class of a row; nothing else of one row is covered"
    assert f"Unit of privacy: {said}." in "\n".join(lines(account([done])))
    assert said in Page(done / "report.html").text()


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        ({"classes": ["no"]}, "privacy.randomised_response.classes: list all of them, at least two"),
        ({"classes": ["no", "no"]}, "'no' is listed twice"),
        ({"classes": ["no", "maybe"]}, "privacy.randomised_response.classes lacks 'yes', which the rows have"),
        ({"columns": {"age": ["1", "2"]}}, "'age' is no column of categories"),
        ({"columns": {"kind": ["a", "c"]}}, "privacy.randomised_response.columns.kind lacks 'b'"),
        ({"epsilon": 0}, "privacy.randomised_response.epsilon = 0: expected a number above 0"),
        ({"epsilon": 65}, "privacy.randomised_response.epsilon = 65: expected a number"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, mechanism: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        setup(patients(tmp_path / "rows.csv"), mechanism)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_categories_and_other_targets_are_refused(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv", hole=True)
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.25, "missing": "median"}
    with pytest.raises(DataError, match="column 'kind' has missing cells, which have no random response"):
        setup(path, {"columns": {"kind": ["a", "b"]}}, data=data)
    number = {"name": "file", "path": str(path), "label": "age", "test": 0.25, "missing": "drop"}
    with pytest.raises(ConfigError, match="it replaces classes, and this target holds none"):
        setup(path, {}, data=number)
    with pytest.raises(ConfigError, match="cannot decide when to stop"):
        setup(path, {}, evaluation={"on": "validation", "validation": 0.2}, stop={"patience": 1})


def test_nodes_refuse_it(tmp_path: Path) -> None:
    """No policy could limit its epsilon in this version."""
    with pytest.raises(ConfigError, match=r"name = 'randomised_response': not in this version of deployment"):
        Agreements(tmp_path).config(privacy=[{"name": "randomised_response", "epsilon": 1.0, "classes": CLASSES}])


def test_pictures_have_classes_too() -> None:
    names = [str(i) for i in range(10)]
    table = [{"name": "randomised_response", "epsilon": 2.0, "classes": names}]
    data = {"data": {"name": "digits", "limit": 300}, "partition": {"name": "iid", "clients": 2}}
    plain, random = (set_up(checked(Experiment.of(**data, privacy=how).config)).held.raw for how in ([], table))
    assert torch.equal(plain.train.x, random.train.x)
    assert 0.3 < (plain.train.y != random.train.y).double().mean() < 0.8
