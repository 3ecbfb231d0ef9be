"""A run of parties whose label has three classes of texts: files, figures, resume, early stop, predictions, pages, separate parties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedatlas
from agreements import Agreements
from column_parties import ColumnParties, all_questions, method
from fedatlas import api
from fedatlas.algorithm import Algorithm
from fedatlas.config import parse
from fedatlas.data.party_tables import PartyFile
from fedatlas.errors import ConfigError
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.prediction.parties import predict
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs import preview
from fedatlas.setup.refusals import checked
from fedatlas.vertical import align, boosting, judging, split
from lying_relay import experiment as of_nodes
from lying_relay import write_tables
from nodes_in_process import run_here
from test_vertical_run import growing_in, grown, models, plain_rows

ROUNDS, N = 4, 300
NAMES = ["high", "low", "middle"]
LABEL = "size"


def write(folder: Path) -> None:
    """What decides the class is half the bank's and half the shop's."""
    stream = np.random.default_rng(0)
    a, b, noise, city = *stream.normal(size=(3, N)), stream.choice(["Rome", "Oslo"], N)
    signal = a + b + 0.3 * noise + (city == "Rome")
    size = np.select([signal < -0.3, signal < 1.2], ["low", "middle"], "high")
    pd.DataFrame({"id": range(N), "a": a, "noise": noise, LABEL: size}).to_csv(folder / "bank.csv", index=False)
    shop = pd.DataFrame({"id": range(N), "b": b, "city": city}).sample(frac=1, random_state=1)
    shop.to_csv(folder / "shop.csv", index=False)


def experiment(folder: Path, keys: Mapping[str, Any] = {}, **tables: Any) -> fedatlas.Experiment:
    parties = [{"name": name, "path": str(folder / f"{name}.csv"), "id": "id"} for name in ("bank", "shop")]
    parties[0]["label"] = LABEL
    algorithm = {"name": "secureboost", "trees": ROUNDS, "bins": 16, **keys}
    return fedatlas.Experiment(parse({"parties": parties, "algorithm": algorithm, **tables}))


def files(folder: Path) -> dict[str, str]:
    return {name: str(folder / f"{name}.csv") for name in ("bank", "shop")}


@pytest.fixture(scope="module", params=[{}, {"multi_output": True}], ids=["a tree a class", "one tree"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tables' folder, keys, the run's folder and summary."""
    folder = tmp_path_factory.mktemp("classes")
    write(folder)
    found = api.run(experiment(folder, request.param), out=folder / "run")
    return folder, request.param, found.path, found.summary


def test_a_row_is_a_round_and_the_figures_are_those_of_the_classes(done: Any) -> None:
    _, keys, path, summary = done
    rows = RunFolder(path).rows()
    assert [row["round"] for row in rows] == list(range(ROUNDS + 1))
    assert rows[0]["loss"] == pytest.approx(np.log(3))
    assert rows[0]["auc"] == 0.5
    assert rows[-1]["loss"] < rows[1]["loss"] < rows[0]["loss"]
    assert len(rows[-1]["per_class_f1"]) == 3
    assert summary["class_names"] == NAMES
    assert summary["final"]["auc"] > 0.9
    low, high = summary["final"]["interval"]["auc"]
    assert low < summary["final"]["auc"] < high
    assert summary["gain"]["sides"]["together"] == summary["gain"]["sides"]["joined"]
    assert summary["gain"]["parties"]["shop"]["auc"]["value"] > 0
    assert summary["trivial"]["answer"] in NAMES
    model = json.loads((path / "model.json").read_text())
    trees, leaves = model["trees"], [node["leaf"] for one in model["trees"] for node in one["nodes"] if "leaf" in node]
    assert model["classes"] == 3
    if keys:
        assert len(trees) == ROUNDS
        assert {len(one) for one in leaves} == {3}
    else:
        assert [one["class"] for one in trees] == [0, 1, 2] * ROUNDS
        assert {type(one) for one in leaves} == {float}


def test_figures_are_those_of_the_predictions(done: Any) -> None:
    """Judged with scikit-learn, from the probabilities that the inference protocol gives the test rows."""
    from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

    folder, keys, path, summary = done
    growing = growing_in(folder / f"again{len(keys)}", checked(experiment(folder, keys).config))
    grown(growing, ROUNDS)
    active, state = growing.held.parties[0], growing.federation.states.get(0)
    found = judging.Judged(active, state, boosting.outputs(state), "test")
    ids = np.array(active.ids)[state["align"]["order"].numpy()][state["split"]["test"].numpy()]
    growing.close()
    table = predict(path, files(folder)).table.set_index("id").loc[ids]
    p = table[[f"p_{name}" for name in NAMES]].to_numpy()
    said = table["prediction"].map(NAMES.index).to_numpy()
    assert np.array_equal(p, np.exp(found.out))
    final, y = summary["final"], found.y.astype(int)
    assert final["accuracy"] == pytest.approx(accuracy_score(y, said), abs=1e-12)
    assert final["macro_f1"] == pytest.approx(f1_score(y, said, average="macro"), abs=1e-12)
    assert final["loss"] == pytest.approx(log_loss(y, p), abs=1e-12)
    assert final["auc"] == pytest.approx(roc_auc_score(y, p, multi_class="ovr"), abs=1e-12)


def test_a_run_that_is_resumed_is_the_run_that_never_stopped(done: Any, tmp_path: Path) -> None:
    folder, keys, path, _ = done
    api.run(experiment(folder, {**keys, "trees": 2}), out=tmp_path / "run", baselines=False)
    api.resume(tmp_path / "run", [f"rounds={ROUNDS}"], baselines=True)
    assert plain_rows(tmp_path / "run") == plain_rows(path)
    assert models(tmp_path / "run") == models(path)


def test_the_pages_lead_to_a_tree_by_round_and_class(done: Any) -> None:
    _, keys, path, _ = done
    pages = [(path / name).read_text() for name in ("report.html", "report-shop.html")]
    for page in pages:
        assert ("Round 2, class middle" in page) == (not keys)
        assert ("Tree 2" in page) == bool(keys)
        assert "g and h of all classes" in page
    assert "F1 of each class" in pages[0]
    assert "high +" in pages[0] if keys else "leaf: +" in pages[0]
    assert "high +" not in pages[1]


def test_early_stopping_counts_rounds(done: Any, tmp_path: Path) -> None:
    folder, keys, _, _ = done
    made = experiment(
        folder,
        {**keys, "trees": 40, "learning_rate": 1.0},
        evaluation={"on": "validation", "validation": 0.2},
        stop={"patience": 2},
    )
    summary = api.run(made, out=tmp_path / "run", baselines=False).summary
    assert summary["rounds"] == summary["best"]["accuracy"]["round"] + 2 < 40
    assert summary["stopped"].startswith("after round")
    assert summary["test"]["auc"] > 0.7


def test_a_dry_run_counts_rounds(done: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, keys, path, _ = done
    found = fedatlas.dry_run(experiment(folder, keys))
    row = RunFolder(path).rows()[1]
    assert (
        0.6 * (row["bytes_up"] + row["bytes_down"])
        < found["bytes_per_tree"]
        < 1.6 * (row["bytes_up"] + row["bytes_down"])
    )
    preview.show(found)
    assert "One round, in the clear, would send about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("label", "keys", "said"),
    [
        ("two", {"multi_output": True}, "multi_output is for a label of three or more classes"),
        ("number", {"softmax_hess": "xgboost"}, "softmax_hess is for a label of three or more classes"),
        ("two", {"square_scale": 2}, "square_scale is for a label that is a number"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(label: str, keys: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    bank = pd.read_csv(tmp_path / "bank.csv")
    bank[LABEL] = bank["a"] if label == "number" else np.where(bank["a"] > 0, "yes", "no")
    bank.to_csv(tmp_path / "bank.csv", index=False)
    with pytest.raises(ConfigError, match=said):
        api.run(experiment(tmp_path, keys), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.timing
@pytest.mark.parametrize("bits", [pytest.param(0, marks=pytest.mark.slow), 512], ids=["clear", "encrypted"])
def test_parties_in_processes_grow_the_same_rounds(bits: int, tmp_path: Path) -> None:
    write(tmp_path)
    config = experiment(tmp_path, {"trees": 2}).config
    growing = growing_in(tmp_path / "run", checked(config))
    grown(growing, 2)
    expected = boosting.outputs(growing.federation.states.get(0))
    paths = files(tmp_path)
    parts = [
        PartyFile("bank", paths["bank"], "id", label=LABEL)._asdict(),
        PartyFile("shop", paths["shop"], "id")._asdict(),
    ]
    keys = {"trees": 2, "bins": 16, "key_bits": bits}
    how = method(keys)
    with ColumnParties(parts, 0, keys, seed=config.seed) as link:
        server = ServerHalf(Algorithm("secureboost", tasks=all_questions(keys)), link, {0: N, 1: N}, config.seed)

        def first() -> Any:
            state = yield from align.align(align.Align(), {"names": ["bank", "shop"], "active": 0, "classes": 3})
            state = yield from split.split(state, 0.25)
            return (yield from boosting.begin(how, state))

        state = server.drive(first(), RoundStart(0, 1.0))
        server.commit(0)
        for number in (1, 2):
            state = server.drive(boosting.grow(how, state, number), RoundStart(number, 1.0))
            server.commit(number)
        assert np.array_equal(link.outputs(0), expected)


@pytest.mark.timing
def test_nodes_grow_rounds_of_three_classes(tmp_path: Path) -> None:
    """Deployed: the server knows the number of classes by the label holder's facts, a passive node by the gradients' letter."""
    names = ["bank", "shop"]
    made, paths = Agreements(tmp_path, names), write_tables(tmp_path, names)
    table = pd.read_csv(paths["bank"])
    table["label"] = np.select([table["bank-x"] < -1, table["bank-x"] < 1], ["a", "b"], "c")
    label = of_nodes(names)["parties"][0]["label"]
    table.drop(columns=[label]).rename(columns={"label": label}).to_csv(paths["bank"], index=False)
    trainers = {name: made.trainer(name, paths[name]) for name in names}
    state = run_here(made, trainers, made.signed("r", of_nodes(names))).state
    assert (state.status, state.why) == ("finished", "")
