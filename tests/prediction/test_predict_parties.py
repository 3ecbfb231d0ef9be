"""New rows that parties predict together: rows that one lacks, columns that no split uses, categories that nobody knew, 64 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedatlas
from fedatlas import Experiment, run
from fedatlas.errors import DataError
from fedatlas.prediction.parties import predict
from fedatlas.vertical.boosting import inference, passive
from fedatlas.vertical.parties import Columns, aligned, tensor

N = 600


def tables(folder: Path) -> None:
    """A rare label (12%) that hangs on the shop's columns."""
    rng = np.random.default_rng(3)
    x, noise = rng.normal(size=(N, 3)), rng.normal(size=N)
    y = (x[:, 0] + x[:, 1] + 0.4 * noise) < -1.75
    city = rng.choice(["Rome", "Oslo"], N)
    pd.DataFrame({"id": range(N), "age": noise.round(2), "y": y.astype(int)}).to_csv(folder / "bank.csv", index=False)
    shop = pd.DataFrame({"id": range(N), "a": x[:, 0] + 9, "b": x[:, 1] + 9, "c": x[:, 2].round(1), "city": city})
    shop.to_csv(folder / "shop.csv", index=False)


def experiment(folder: Path, **keys: Any) -> Experiment:
    parties = [{"name": name, "path": str(folder / f"{name}.csv"), "id": "id"} for name in ("bank", "shop")]
    parties[0]["label"] = "y"
    return Experiment.of(
        parties=parties, algorithm={"name": "secureboost", "trees": 12, "depth": 3, "bins": 16, **keys}
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parties")
    tables(folder)
    run(experiment(folder), out=folder / "run", baselines=False)
    return folder


def files(folder: Path, **changed: Path) -> dict[str, str]:
    return {name: str(changed.get(name, folder / f"{name}.csv")) for name in ("bank", "shop")}


def without_rows(done: Path, where: Path) -> Path:
    """The shop's file with one row: of all others nobody knows anything there."""
    pd.read_csv(done / "shop.csv").head(1).to_csv(where, index=False)
    return where


def test_a_row_that_a_party_lacks_is_predicted_as_the_most(done: Path, tmp_path: Path) -> None:
    """All went left, so that the mean was .5 at a base rate of .12; with most training rows it stays near the rate."""
    rate = pd.read_csv(done / "bank.csv")["y"].mean()
    known = predict(done / "run", files(done)).table["p_1"]
    lacking = predict(done / "run", files(done, shop=without_rows(done, tmp_path / "s.csv")))
    assert lacking.lacking == {"shop": N - 1}
    assert known.mean() == pytest.approx(rate, abs=0.03)
    assert lacking.table["p_1"][1:].mean() < 1.5 * rate


def test_a_row_that_a_party_lacks_is_a_row_of_holes(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of zeros, which would be values: with that fault the predictions differ."""
    shop = pd.read_csv(done / "shop.csv")
    shop.loc[1:, ["a", "b", "c", "city"]] = None
    shop.to_csv(tmp_path / "holes.csv", index=False)
    holes = predict(done / "run", files(done, shop=tmp_path / "holes.csv")).table
    given = files(done, shop=without_rows(done, tmp_path / "s.csv"))
    pd.testing.assert_frame_equal(predict(done / "run", given).table, holes)

    def zeros(data: Columns, state: Any) -> Columns:
        found = aligned(data, state)
        return found._replace(x=np.nan_to_num(found.x, nan=0.0))

    monkeypatch.setattr(inference, "aligned", zeros)
    assert not predict(done / "run", given).table.equals(holes)


def test_an_absent_row_has_no_values() -> None:
    data = Columns(0, "p", 0, ("p",), ("a", "b"), np.array([[1.0, 2.0], [3.0, 4.0]]), ("x", "z"))
    found = aligned(data, {"align": {"order": tensor(np.array([1, -1, 0]))}})
    assert np.array_equal(found.x, [[3, 4], [np.nan, np.nan], [1, 2]], equal_nan=True)


def test_the_way_is_stored_with_the_node_and_not_found_again(done: Path) -> None:
    records = json.loads((done / "run" / "model-shop.json").read_text())["records"]
    assert {one["missing"] for one in records} == {"left", "right"}


def test_a_column_that_no_split_uses_may_be_absent(done: Path, tmp_path: Path) -> None:
    used = {
        one["column"].split("=")[0] for one in json.loads((done / "run" / "model-shop.json").read_text())["records"]
    }
    shop = pd.read_csv(done / "shop.csv")
    unused = [name for name in shop.columns if name not in {*used, "id"}]
    assert unused
    shop.drop(columns=unused).to_csv(tmp_path / "less.csv", index=False)
    found = predict(done / "run", files(done, shop=tmp_path / "less.csv"))
    pd.testing.assert_frame_equal(found.table, predict(done / "run", files(done)).table)
    pd.read_csv(done / "bank.csv").drop(columns="y").to_csv(tmp_path / "bank.csv", index=False)  # nor is the label
    assert predict(done / "run", files(done, bank=tmp_path / "bank.csv")).table.equals(found.table)
    shop.drop(columns=min(used)).to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(DataError, match=f"party 'shop': the rows lack column '{min(used)}'"):
        predict(done / "run", files(done, shop=tmp_path / "less.csv"))


def test_the_form_of_new_files_can_be_said(done: Path, tmp_path: Path) -> None:
    """A file of the shop's that decimal points and commas fit alike is read as ``form`` says."""
    shop = pd.read_csv(done / "shop.csv", dtype=str)
    odd, plain = tmp_path / "odd.csv", tmp_path / "plain.csv"
    shop.assign(a="6.000", b="6", c="0").to_csv(odd, sep=";", index=False)
    shop.assign(a="6000", b="6", c="0").to_csv(plain, index=False)
    as_said = predict(done / "run", files(done, shop=odd), form={"decimal": "shop=,", "separator": ""}).table
    pd.testing.assert_frame_equal(as_said, predict(done / "run", files(done, shop=plain)).table)
    with pytest.raises(DataError, match=r"party 'bank': .*'age' holds numbers with a decimal point"):
        predict(done / "run", files(done, shop=odd), form={"decimal": ","})
    assert not as_said.equals(predict(done / "run", files(done, shop=odd)).table)


def test_an_unseen_category_at_a_party_is_counted(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = pd.read_csv(done / "shop.csv")
    shop.loc[:6, "city"] = "Paris"
    shop.to_csv(tmp_path / "s.csv", index=False)
    said = "7 rows of 'shop' hold a category of column 'city' that no training row had"
    assert any(said in one for one in predict(done / "run", files(done, shop=tmp_path / "s.csv")).notices)
    assert not any("category" in one for one in predict(done / "run", files(done)).notices)


def test_models_cut_64_bits_and_the_record_says_so(tmp_path: Path) -> None:
    """A column whose two values are one in 32 bits; a model of before is read with 32, where both go the same way."""
    rows = range(120)
    pd.DataFrame({"id": rows, "c": 1, "y": [i % 2 for i in rows]}).to_csv(tmp_path / "bank.csv", index=False)
    fine = pd.DataFrame({"id": rows, "a": [100000001 + i % 2 for i in rows], "b": [0.1 + 1e-9 * (i % 2) for i in rows]})
    fine.to_csv(tmp_path / "shop.csv", index=False)
    made = run(experiment(tmp_path, trees=1), out=tmp_path / "run", baselines=False)
    assert made.summary["final"]["accuracy"] == 1
    assert not any("of 'shop' with a single value" in one for one in made.summary["notices"])
    part = json.loads((made.path / "model-shop.json").read_text())
    assert part["reading"] == {"rules": 3, "thousands": "", "units": [], "background": "white", "bits": 64}
    assert part["records"][0]["threshold"] == 100000001.5
    given = {name: str(tmp_path / f"{name}.csv") for name in ("bank", "shop")}
    assert fedatlas.predict(made.path, given)["prediction"].tolist() == [str(i % 2) for i in rows]
    del part["reading"]
    (made.path / "model-shop.json").write_text(json.dumps(part))
    assert len({*fedatlas.predict(made.path, given)["p_1"]}) == 1


def test_the_fault_of_all_going_left_is_found(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passive, "_ways_of_holes", lambda now, x, nodes, wanted: [True] * len(wanted))
    run(experiment(done), out=tmp_path / "run", baselines=False)
    rate = pd.read_csv(done / "bank.csv")["y"].mean()
    lacking = predict(tmp_path / "run", files(done, shop=without_rows(done, tmp_path / "s.csv"))).table["p_1"]
    assert lacking[1:].mean() > 2 * rate
