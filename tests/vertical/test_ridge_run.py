"""Private ridge regression from an experiment file: owners of rows, run, resumed after a kill, reported, predicted with; refusals."""

from __future__ import annotations

import json
import os
import signal
import stat
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedatlas
from fedatlas import api, catalogue
from fedatlas.config import parse
from fedatlas.course.keeper import Keeper
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import ConfigError, DataError, FedatlasError, PrivacyError
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.alignment_text import expectations
from fedatlas.vertical import SCHEMES
from fedatlas.vertical.ridge import PRIVATE_RIDGE
from fedatlas.vertical.ridge.scheme import ciphertexts, solved
from test_privacy_runs import forked, needs_fork

SHORT = PRIVATE_RIDGE._replace(under=lambda how, lock: how._replace(key_bits=512, encrypted=True))
"""The scheme with a key that protects nobody, but is made at once."""
OWNERS = {"bank": (70, ("Rome", "Bern")), "shop": (50, ("Rome", "Oslo")), "club": (12, ("Oslo",))}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "private_ridge", SHORT)  # type: ignore[arg-type]


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Three owners' files: each lacks a city, one has only rows of one class."""
    draw, out = np.random.default_rng(5), {}
    for name, (n, cities) in OWNERS.items():
        a, b, city = draw.normal(size=n), draw.normal(30, 20, n), draw.choice(cities, n)
        y = np.round(2 * a - b / 10 + (city == "Rome") + draw.normal(size=n) / 2, 3)
        kind = np.where(y > -2, "high", np.where(y > -4, "mid", "low")) if name != "club" else "low"
        pair = np.where(y > -3, "yes", "no")
        out[name] = pd.DataFrame({"a": a, "b": b, "city": city, "y": y, "kind": kind, "pair": pair})
        columns = ["city", "b", "a", "y", "kind", "pair"] if name == "shop" else list(out[name])
        out[name].to_csv(folder / f"{name}.csv", index=False, columns=columns)
    return out


def experiment(folder: Path, label: str = "y", sealed: bool = False, **more: Any) -> fedatlas.Experiment:
    others = [one for one in ("y", "kind", "pair") if one != label]
    parties = [{"name": n, "path": str(folder / f"{n}.csv"), "label": label, "drop": others} for n in OWNERS]
    keys = {"algorithm": {"name": "private_ridge", **more.pop("algorithm", {})}}
    return fedatlas.Experiment.of(
        parties=parties, **keys, **({"privacy": [{"name": "paillier"}]} if sealed else {}), **more
    )


def values(folder: Path, **changes: Any) -> dict[str, Any]:
    return experiment(folder).config.plain() | changes


def inputs(table: pd.DataFrame) -> np.ndarray:
    cities = [(table["city"] == name).to_numpy(float) for name in ("Bern", "Oslo", "Rome")]
    return np.stack([table["a"], table["b"], *cities], axis=1)


@pytest.mark.parametrize("label", ["y", "pair", "kind"])
def test_it_runs_is_reported_and_predicts_as_the_closed_form_of_all_training_rows(label: str, tmp_path: Path) -> None:
    held = tables(tmp_path)
    done = api.run(experiment(tmp_path, label, sealed=True, algorithm={"reveal": "owners"}), out=tmp_path / "run")
    s, found = done.summary, done.summary["solved"]
    rows = RunFolder(done.path).rows()
    assert [row["loss"] is None for row in rows] == [True, True, True, False]
    assert s["clients"] == 3
    assert s["rows"]["train"] + s["rows"]["test"] == 132
    model = json.loads((done.path / "model-shop.json").read_text())
    assert (
        model["coefficients"]
        == found["coefficients"]
        == json.loads((done.path / "model.json").read_text())["coefficients"]
    )
    assert found["names"] == ["a", "b", "city=Bern", "city=Oslo", "city=Rome", "intercept"]
    assert found["measured"] <= found["error"] < 0.5  # few bits: a key of 512
    assert found["ciphertexts"] == ciphertexts(3, 6, 3 if label == "kind" else 1)
    assert s["gain"]["sides"]["joined"] == s["gain"]["sides"]["together"]
    assert {*s["gain"]["parties"]} == {*OWNERS}
    assert len(s["answer"]["parties"]) == 3
    for key in ("rmse", "mae", "r2") if label == "y" else ("accuracy", "macro_f1", "loss"):
        assert s["final"][key] == pytest.approx(rows[-1][key])
        low, high = s["final"]["interval"][key]
        assert low <= s["final"][key] <= high
    page = (done.path / "report.html").read_text()
    for said in (
        "The coefficients",
        "city=Oslo",
        "Who learns what",
        "the crypto provider learns",
        "bits after the point",
    ):
        assert said in page
    assert "spent" not in page
    predicted = fedatlas.predict(done.path, {"club": tmp_path / "club.csv"})
    beta = np.array(found["coefficients"])
    scores = inputs(held["club"]) @ beta[:-1] + beta[-1]
    if label == "y":
        assert np.allclose(predicted["prediction"], scores[:, 0])
        assert s["final"]["r2"] > 0.9
    else:
        names = np.array(s["class_names"])
        chosen = scores.argmax(axis=1) if label == "kind" else (scores[:, 0] > 0).astype(int)
        assert [*predicted["prediction"]] == [*names[chosen]]
        assert np.allclose(predicted[[f"p_{name}" for name in names]].sum(axis=1), 1)
    both = fedatlas.predict(done.path, {"club": tmp_path / "club.csv", "bank": tmp_path / "bank.csv"})
    assert [*both["party"]] == ["club"] * 12 + ["bank"] * 70


def test_rows_of_one_table_are_dealt_and_the_clear_run_has_the_bits_of_the_encrypted_one(tmp_path: Path) -> None:
    tables(tmp_path)
    common = {"data": {"name": "file", "path": str(tmp_path / "bank.csv"), "label": "y", "drop": ["kind", "pair"]}}
    common |= {"partition": {"name": "iid", "clients": 4}, "algorithm": {"name": "private_ridge", "precision": 20}}
    clear = api.run(fedatlas.Experiment.of(**common), out=tmp_path / "clear", baselines=False)
    keyed = fedatlas.Experiment.of(**common, privacy=[{"name": "paillier"}])
    sealed = api.run(keyed, out=tmp_path / "sealed", baselines=False)
    assert clear.summary["protected"] is False
    assert clear.summary["solved"]["ciphertexts"] == 0
    assert sealed.summary["solved"]["coefficients"] == clear.summary["solved"]["coefficients"]
    assert [one["name"] for one in sealed.summary["parties"]] == [f"party-{k}" for k in range(4)]
    assert "This was a simulation in the clear: the engine sees each owner" in (
        clear.path / "report.html"
    ).read_text().replace("&#39;", "'")
    x, y = (
        inputs(pd.read_csv(tmp_path / "bank.csv"))[:, [0, 1, 2, 4]],
        pd.read_csv(tmp_path / "bank.csv")["y"].to_numpy(),
    )
    near = solved(x, y[:, None], 1.0)  # of all rows, a quarter of which only test
    assert near is not None
    assert np.allclose(np.array(clear.summary["solved"]["coefficients"])[0], near[0], atol=0.2)


def test_a_dry_run_says_cost_and_precision_and_the_run_keeps_to_it(tmp_path: Path) -> None:
    tables(tmp_path)
    asked = experiment(tmp_path, sealed=True)
    before = fedatlas.dry_run(asked)
    done = api.run(asked, out=tmp_path / "run", baselines=False)
    found, cost = done.summary["solved"], done.summary["cost"]
    assert before["ciphertexts"] == found["ciphertexts"]
    assert before["precision"] == found["precision"]
    assert before["error"] == pytest.approx(found["error"], rel=0.01)
    assert before["bytes"] == pytest.approx(
        cost["bytes_up"] + cost["bytes_down"], rel=0.4
    )  # a key of 512 bits: heads count
    assert before["seconds"] > 0
    lines = expectations(before)
    assert any(line.startswith("Numbers have ") and "changes no prediction by more than" in line for line in lines)
    assert lines[-1] == "Nothing was sent or trained."


def life(run: Path, what: fedatlas.Experiment, dies: int) -> None:
    """Begin a run or go on with it, and die by kill -9 after the checkpoint of a phase."""
    save = Keeper.save

    def killed(self: Keeper, state: Any, *more: Any) -> None:
        save(self, state, *more)
        if state.round == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    Keeper.save = killed  # type: ignore[method-assign]  # of a process that dies
    if run.exists():
        api.resume(run, baselines=False)
    else:
        api.run(what, out=run, baselines=False)


def states(run: Path) -> dict[int, bytes]:
    """The newest checkpoint file of each party."""
    newest = max((run / "checkpoint").glob("manifest-*.json"))
    return {
        int(k): (run / "checkpoint" / entry[0]).read_bytes()
        for k, entry in json.loads(newest.read_text())["body"]["clients"].items()
    }


@needs_fork
def test_a_run_killed_after_every_phase_ends_with_the_same_bits_and_the_key_lies_only_with_the_provider(
    tmp_path: Path,
) -> None:
    """A real process is killed with SIGKILL after each checkpoint; another one goes on from it."""
    tables(tmp_path)
    what = experiment(tmp_path, sealed=True, algorithm={"reveal": "owners"})
    whole = api.run(what, out=tmp_path / "whole", baselines=False)
    run, provider = tmp_path / "run", len(OWNERS) + 1
    for phase in range(3):
        assert forked(partial(life, run, what, phase))
        files = [*(run / "checkpoint").glob("client-*.bin")]
        assert files
        assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
        if phase == 1:
            from fedatlas.wire import codec

            held = states(run)
            key = codec.decode(held[provider], own=True)["ridge"]
            for part in ("p", "q"):
                secret = key[part].numpy().tobytes()
                assert len(secret) == 32
                assert [k for k, data in held.items() if secret in data] == [provider]
    done = api.resume(run, baselines=False)
    assert done.summary["solved"]["coefficients"] == whole.summary["solved"]["coefficients"]
    assert done.summary["final"] == whole.summary["final"]
    from fedatlas.wire import codec

    assert codec.decode(states(run)[provider], own=True)["ridge"] == {}
    for file in (run / "checkpoint").glob(f"client-{provider}-*.bin"):
        assert "p" not in codec.decode(file.read_bytes(), own=True)["ridge"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"align": {"name": "psi"}}, r"\[align\] has no meaning for 'private_ridge'"),
        ({"stop": {"patience": 3}}, r"\[stop\] has no meaning"),
        ({"rounds": 7}, "rounds = 7: 'private_ridge' always has 3 phases"),
        ({"evaluation": {"on": "validation"}}, "has nothing to stop by"),
        ({"partition": {"name": "iid"}}, "deals the rows of one table"),
        ({"data": {"missing": "median"}}, "'drop' leaves out rows with a missing cell"),
        ({"data": {"scale": "none"}}, "data.scale: parties hold rows of the same columns"),
        ({"algorithm": {"name": "private_ridge", "l2": -1.0}}, "algorithm.l2"),
        ({"algorithm": {"name": "private_ridge", "precision": 60}}, "algorithm.precision"),
        ({"privacy": [{"name": "secagg"}]}, "'secagg' is for updates"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        api.run(fedatlas.Experiment(parse(values(tmp_path, **changes))), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("label", None, "party 'bank' names no label"),
        ("id", "a", "id is for rows that are matched"),
        ("weight", "a", "all rows count alike"),
        ("name", "engine", "'engine' is the name of a role"),
        ("name", "shop", "two of .* are called 'shop'"),
    ],
)
def test_owners_that_cannot_be_are_refused(tmp_path: Path, key: str, value: Any, said: str) -> None:
    plain = values(tmp_path)
    plain["parties"][0][key] = value
    with pytest.raises(ConfigError, match=said):
        parse(plain)
    with pytest.raises(ConfigError, match="name two or more"):
        parse({**values(tmp_path), "parties": values(tmp_path)["parties"][:1]})


def broken(folder: Path, name: str, change: Any) -> None:
    file = folder / f"{name}.csv"
    change(pd.read_csv(file)).to_csv(file, index=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.iloc[:0], "shop.*no rows"),
        (lambda t: t.drop(columns="b"), "party 'shop' has no column 'b', which 'bank' has"),
        (lambda t: t.assign(new=1), "party 'bank' has no column 'new', which 'shop' has"),
        (
            lambda t: t.assign(a=t["a"].mask(t.index == 3)),
            "party 'shop': 1 row without a number in some column, first 'a'",
        ),
        (lambda t: t.assign(b="x"), "column 'b' holds texts at 'shop' and numbers at 'bank'"),
        (lambda t: t.assign(y="word"), "the label of 'bank' is of numbers and that of 'shop' of classes"),
        (lambda t: t.drop(columns="y"), "party 'shop'.*'y'"),
    ],
)
def test_tables_that_do_not_fit_are_a_sentence_and_nothing_is_written(tmp_path: Path, change: Any, said: str) -> None:
    tables(tmp_path)
    broken(tmp_path, "shop", change)
    for act in (lambda one: api.run(one, out=tmp_path / "run"), fedatlas.dry_run):
        with pytest.raises(FedatlasError, match=said) as raised:
            act(experiment(tmp_path))
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_rows_with_missing_cells_are_left_out_if_asked_and_said(tmp_path: Path) -> None:
    tables(tmp_path)
    broken(tmp_path, "shop", lambda t: t.assign(a=t["a"].mask(t.index < 4)))
    done = api.run(experiment(tmp_path, data={"missing": "drop"}), out=tmp_path / "run", baselines=False)
    assert sum(one["rows"] for one in done.summary["parties"]) == 128
    assert "4 rows of 'shop' left out: no label, or a missing cell." in done.summary["notices"]


def test_a_class_at_one_owner_only_is_learnt_a_constant_column_said_and_one_class_refused(tmp_path: Path) -> None:
    tables(tmp_path)
    for name in OWNERS:
        broken(tmp_path, name, lambda t: t.assign(b=7.0))
    done = api.run(experiment(tmp_path, "kind"), out=tmp_path / "run", baselines=False)
    said = " ".join(done.summary["notices"])
    assert "'club' has no row of class 'high': others teach it." in said
    assert "Columns with a single value carry no information; their coefficient is 0: b." in said
    assert done.summary["solved"]["coefficients"][1] == [0.0, 0.0, 0.0]
    singular = experiment(tmp_path, algorithm={"l2": 0.0})
    with pytest.raises(DataError, match=r"a column is constant or follows from others: set algorithm\.l2 above 0"):
        api.run(singular, out=tmp_path / "singular")
    for name in OWNERS:
        broken(tmp_path, name, lambda t: t.assign(kind="low"))
    with pytest.raises(DataError, match="only one class"):
        api.run(experiment(tmp_path, "kind"), out=tmp_path / "one")


def test_columns_without_room_in_the_key_are_refused_before_a_key_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedatlas.privacy.paillier import cryptosystem

    monkeypatch.setattr(cryptosystem, "generate_plain", lambda *a, **k: pytest.fail("a key was made"))
    tables(tmp_path)
    for name in OWNERS:
        broken(tmp_path, name, lambda t: t.assign(**{f"x{j}": np.arange(len(t)) % (j + 2) for j in range(20)}))
    asked = experiment(tmp_path, sealed=True, algorithm={"precision": 24})
    for act in (lambda one: api.run(one, out=tmp_path / "run"), fedatlas.dry_run):
        with pytest.raises(PrivacyError, match=r"needs a key of [\d,]+ bits, and this key has 512"):
            act(asked)
    assert not (tmp_path / "run").exists()


def test_it_is_listed_and_refused_where_it_has_no_place(tmp_path: Path) -> None:
    tables(tmp_path)
    (row,) = [row for row in catalogue.rows("algorithms") if row["name"] == "private_ridge"]
    assert row["partitioning"] == "horizontal"
    assert "the private key" in row["learns_engine_provider"]
    assert "the coefficients" in row["learns_engine_engine"]
    assert "the coefficients" not in row["learns_owners_engine"]
    with pytest.raises(ConfigError, match="nobody else could be the provider"):
        deployable(experiment(tmp_path, sealed=True).config, tuple(OWNERS))
    with pytest.raises(ConfigError, match="there is nothing to align"):
        api.align(experiment(tmp_path))
    with pytest.raises(ConfigError, match="there is nothing to align"):
        api.probe(experiment(tmp_path))
    for name in ("secureboost", "fedavg"):
        long = {"privacy": [{"name": "paillier", "key_bits": 4096}], "algorithm": {"name": name}}
        more = {"partition": {"name": "vertical"}} if name == "secureboost" else {}
        with pytest.raises(ConfigError, match=r"privacy\.paillier\.key_bits = 4096"):
            api.dry_run(fedatlas.Experiment.of(**long, **more))
