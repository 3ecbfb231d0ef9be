"""A run between parties that hold columns, from two or three files to a report and to predictions."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedatlas
from column_parties import ColumnParties, all_questions, method
from fedatlas import api
from fedatlas.algorithm import Algorithm
from fedatlas.config import parse
from fedatlas.course import matching
from fedatlas.course.columns import Growing
from fedatlas.data.party_tables import PartyFile
from fedatlas.errors import ConfigError, DataError
from fedatlas.federation.link import Observer
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.prediction.parties import predict
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs import columns_preview, preview
from fedatlas.runs.loop import run_one
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.vertical import align, boosting, split
from fedatlas.vertical.judging import probabilities
from fedatlas.vertical.parties import PartyLeft, order
from fedatlas.wire import codec
from fedatlas.wording import seconds_text

TREES = 4


def tables(folder: Path, n: int = 400, task: str = "classes") -> dict[str, pd.DataFrame]:
    """Three parties that each know a part of what decides the label; "bank" and "shop" lack some rows of each other."""
    rng = np.random.default_rng(0)
    ids = [f"customer-{i:05d}" for i in range(n)]
    age, income, spent, visits, late = rng.uniform(18, 80, n), rng.normal(30, 8, n), *rng.normal(size=(3, n))
    city = rng.choice(["Rome", "Oslo", ""], n)
    z = 0.05 * (age - 49) - 0.1 * (income - 30) + 3 * spent + late + (city == "Rome")
    label = z + rng.normal(size=n) if task == "numbers" else np.where(z + rng.logistic(size=n) > 0, "yes", "no")
    out = {
        "bank": pd.DataFrame({"customer": ids, "age": age, "income": income, "city": city, "default": label})[: n - 40],
        "shop": pd.DataFrame({"client": ids, "spent": spent, "visits": visits})[30:],
        "phone": pd.DataFrame({"nr": ids, "late": late}),
    }
    out["shop"].loc[out["shop"].index[::9], "visits"] = np.nan
    for k, (name, table) in enumerate(out.items()):
        table.sample(frac=1, random_state=k).to_csv(folder / f"{name}.csv", index=False)
    return out


IDS = {"bank": "customer", "shop": "client", "phone": "nr"}


def experiment(folder: Path, *names: str, **changed: object) -> fedatlas.Experiment:
    parties = [{"name": n, "path": str(folder / f"{n}.csv"), "id": IDS[n]} for n in names or ("bank", "shop")]
    parties[0]["label"] = "default"
    made = {"parties": parties, "algorithm": {"name": "secureboost", "trees": TREES, "bins": 16}, **changed}
    return fedatlas.Experiment(parse(made))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory):
    """A run of two parties: its tables' folder, its own, its summary."""
    folder = tmp_path_factory.mktemp("parties")
    tables(folder)
    run = api.run(experiment(folder), out=folder / "run")
    return folder, run.path, run.summary


def growing_in(path: Path, whole: Checked) -> Growing:
    """The course of a new run of all parties in this process."""
    return Growing(consortium(whole), RunFolder.create(path, whole.config))


def grown(growing: Growing, rounds: int) -> None:
    """The first rounds of a run."""
    growing.land(growing.begin())
    for _ in range(rounds):
        growing.land(growing.step())


def plain_rows(path: Path) -> list[dict]:
    """The rows of a run without what time and memory it took."""
    rows = RunFolder(path).rows()
    return [{k: v for k, v in r.items() if not k.startswith(("seconds", "peak"))} for r in rows]


def models(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(path.glob("*.json")) if p.name.startswith(("model", "party"))}


def test_a_run_writes_its_folder(done):
    _, path, summary = done
    names = {p.name for p in path.iterdir()}
    assert {"model.json", "model-bank.json", "model-shop.json", "party-bank.json", "party-shop.json"} <= names
    assert {"partition.json", "summary.json", "metrics.jsonl", "report.html", "config.toml", "checkpoint"} <= names
    rows = RunFolder(path).rows()
    assert [row["round"] for row in rows] == list(range(TREES + 1))
    assert rows[0]["bytes_up"] > 20_000, "the alignment stands in row 0"
    assert rows[-1]["auc"] > rows[0]["auc"] == 0.5
    assert summary["align"]["rows"] == 330
    assert sum(summary["rows"].values()) == 330
    assert len(summary["trees"]) == TREES
    assert set(summary["importance"]) == {"bank", "shop"}
    assert summary["importance"]["shop"]["spent"] > 0
    told = [n["gain"] for n in json.loads((path / "party-shop.json").read_text())["nodes"] if n["column"] == "spent"]
    assert sum(told) == pytest.approx(summary["importance"]["shop"]["spent"]), "an owner is told what its nodes gained"
    assert summary["final"]["interval"]["auc"][0] < summary["final"]["auc"] < summary["final"]["interval"]["auc"][1]


def test_no_file_holds_an_id_and_no_party_anothers_threshold(done):
    _, path, _ = done
    for file in path.rglob("*"):
        if file.is_file():
            assert b"customer-00" not in file.read_bytes(), file
    assert "threshold" not in (path / "model.json").read_text()
    for name, others in (("bank", ("spent", "visits")), ("shop", ("age", "income", "city"))):
        for file in (f"model-{name}.json", f"party-{name}.json"):
            text = (path / file).read_text()
            assert not any(f'"{other}' in text for other in others), file
    page = (path / "report.html").read_text()
    own = [n for n in json.loads((path / "party-bank.json").read_text())["nodes"] if n["column"] in {"age", "income"}]
    assert f"{own[0]['column']} ≤" in page
    other = (path / "report-shop.html").read_text()
    for node in json.loads((path / "party-shop.json").read_text())["nodes"]:
        assert f"{node['column']} ≤" not in page
        assert f"{node['column']} ≤" in other
    assert not any(f"{column} ≤" in other for column in ("age", "income", "city=Rome", "city=Oslo"))


def test_the_joined_table_comes_to_the_same_and_each_side_is_compared(done):
    _, _, summary = done
    gain = summary["gain"]
    assert gain["sides"]["together"] == gain["sides"]["joined"]
    assert set(gain["sides"]) == {"together", "alone", "alone_all", "joined"}
    assert gain["rows"]["alone_all"] == gain["rows"]["alone"] + 30
    brought = gain["parties"]["shop"]["auc"]
    expected = gain["sides"]["together"]["auc"] - gain["sides"]["alone"]["auc"]
    assert brought["value"] == pytest.approx(expected)
    assert 0 < brought["low"] < brought["value"] < brought["high"], "its column decides much of the label"
    assert gain["against"]["joined"]["auc"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_of_several_parties_each_is_left_out_in_turn(tmp_path):
    tables(tmp_path, task="numbers")
    summary = api.run(experiment(tmp_path, "bank", "shop", "phone", seed=2), out=tmp_path / "run").summary
    assert set(summary["gain"]["sides"]) == {
        *("together", "alone", "alone_all", "joined"),
        *("without_shop", "without_phone"),
    }
    assert summary["gain"]["sides"]["together"] == summary["gain"]["sides"]["joined"]
    assert summary["gain"]["parties"]["shop"]["rmse"]["value"] > 0, "less error with it"
    assert summary["final"]["r2"] > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The columns of &#39;shop&#39; help: lower error with them" in page


def test_a_run_that_is_resumed_is_the_run_that_never_stopped(done, tmp_path):
    folder, path, _ = done
    short = experiment(folder, algorithm={"name": "secureboost", "trees": 2, "bins": 16})
    api.run(short, out=tmp_path / "run", baselines=False)
    api.resume(tmp_path / "run", ["rounds=4"], baselines=True)
    assert plain_rows(tmp_path / "run") == plain_rows(path)
    assert models(tmp_path / "run") == models(path)
    with pytest.raises(ConfigError, match="has already run 4 rounds"):
        api.resume(tmp_path / "run", ["algorithm.trees=3"])


def test_a_party_that_leaves_in_the_middle_of_a_tree_ends_the_run_after_the_last_whole_one(done, tmp_path):
    folder, path, _ = done
    whole = checked(experiment(folder).config)
    growing = growing_in(tmp_path / "run", whole)
    grown(growing, 1)
    drive = growing.federation.drive
    leaves = {1: "split"}
    growing.federation.drive = lambda make, start, **how: drive(make, start._replace(leaving=leaves), **how)  # type: ignore[method-assign]
    with pytest.raises(PartyLeft) as raised:
        growing.step()
    said = str(raised.value)
    assert said.startswith("party 'shop' left when it was asked for 'split', in tree 2: 1 whole tree is kept; ")
    assert "fedatlas run --resume" in said
    growing.federation.close()
    assert len(growing.keeper.folder.rows()) == 2
    run_one(whole, tmp_path / "run", start="resume")
    assert models(tmp_path / "run") == models(path)
    assert plain_rows(tmp_path / "run") == plain_rows(path)


def test_other_tables_are_not_gone_on_with(done, tmp_path):
    folder, path, _ = done
    shutil.copytree(folder, tmp_path / "there")
    table = pd.read_csv(tmp_path / "there" / "shop.csv")
    table.loc[0, "spent"] = 9.0
    table.to_csv(tmp_path / "there" / "shop.csv", index=False)
    config = experiment(tmp_path / "there").config
    shutil.copytree(path, tmp_path / "run")
    text = (tmp_path / "run" / "config.toml").read_text().replace(str(folder), str(tmp_path / "there"))
    (tmp_path / "run" / "config.toml").write_text(text)
    for file in (tmp_path / "run" / "checkpoint").glob("manifest*"):
        old, new = checked(experiment(folder).config).config.hash(), checked(config).config.hash()
        body = json.loads(file.read_text())["body"]
        assert body["config"] == old
        body["config"] = new
        from fedatlas.record.checkpoint import _sealed

        file.write_bytes(_sealed(body))
    with pytest.raises(fedatlas.CheckpointError, match="the data are not those"):
        api.resume(tmp_path / "run", ["rounds=5"])


def test_predictions_are_those_of_the_run_and_rows_that_a_party_lacks_are_counted(done, tmp_path):
    folder, path, _ = done
    found = predict(path, {"bank": str(folder / "bank.csv"), "shop": str(folder / "shop.csv")})
    assert found.lacking == {"shop": 30}
    assert found.notices == ("30 of 360 rows are not at 'shop': its columns are missing there.",)
    assert found.bytes > 0
    assert list(found.table.columns) == ["customer", "prediction", "p_no", "p_yes"]
    label = pd.read_csv(folder / "bank.csv").set_index("customer")["default"]
    told = found.table.set_index("customer")
    common = told.index.isin(pd.read_csv(folder / "shop.csv")["client"])
    assert (told["prediction"] == label[told.index])[common].mean() > 0.7

    growing = growing_in(tmp_path / "run", checked(experiment(folder).config))
    grown(growing, TREES)
    state = growing.federation.states.get(0)
    ids = [growing.held.tables[0].ids[i] for i in order(state)]
    assert np.array_equal(told.loc[ids, "p_yes"], probabilities(boosting.outputs(state)))


def test_prediction_asks_for_a_file_of_each_party(done):
    folder, path, _ = done
    with pytest.raises(
        ConfigError, match="party 'shop' has no rows: give a file for each party, as in bank=FILE shop=FILE"
    ):
        predict(path, {"bank": str(folder / "bank.csv")})
    with pytest.raises(ConfigError, match="unknown party 'shp': did you mean 'shop'"):
        predict(path, {"bank": "a", "shp": "b"})


class Crossed(Observer):
    """All that crosses, as bytes, and the texts in it: three letters may stand in random bytes by chance."""

    def __init__(self):
        self.bytes, self.texts = b"", set()

    def asked(self, request):
        self.note(dict(request.message))

    def replied(self, request, update):  # noqa: ARG002
        self.note(dict(update))

    def note(self, value):
        self.bytes += bytes(codec.encode(value))
        self.texts |= set(texts(value))


def texts(value):
    """The texts of a nested value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for item in value.items() for text in texts(item))
    elif isinstance(value, list | tuple):
        yield from (text for each in value for text in texts(each))


@pytest.mark.timing
def test_nothing_that_crosses_holds_a_column_a_threshold_or_an_id(done, tmp_path):
    folder, path, _ = done
    seen = Crossed()
    api.run(experiment(folder), out=tmp_path / "run", baselines=False, observers=[seen])
    predict(path, {"bank": str(folder / "bank.csv"), "shop": str(folder / "shop.csv")}, observers=[seen])
    assert len(seen.bytes) > 100_000
    words = ["customer", "client", "age", "income", "city", "Rome", "default", "spent", "visits"]
    assert "bank" in seen.texts, "the search does find what is there"
    assert [word for word in words if any(re.search(rf"\b{word}", text) for text in seen.texts)] == []
    assert [word for word in words if len(word) > 5 and word.encode() in seen.bytes] == []
    nodes = [n for name in ("bank", "shop") for n in json.loads((path / f"party-{name}.json").read_text())["nodes"]]
    assert len(nodes) > 10
    for node in nodes:
        if node["threshold"] is not None and "=" not in node["column"]:
            assert np.float64(node["threshold"]).tobytes() not in seen.bytes
            assert repr(node["threshold"]).encode() not in seen.bytes


@pytest.mark.parametrize("bits", [pytest.param(0, marks=pytest.mark.slow), 512])  # 0: in the clear; a key for tests
def test_parties_in_processes_that_open_only_their_own_file_grow_the_same_trees(done, tmp_path, bits):
    folder, _, _ = done
    config = experiment(folder).config
    growing = growing_in(tmp_path / "run", checked(config))
    grown(growing, TREES)
    expected = boosting.outputs(growing.federation.states.get(0))
    files = [PartyFile("bank", str(folder / "bank.csv"), "customer", label="default")._asdict()]
    files.append(PartyFile("shop", str(folder / "shop.csv"), "client")._asdict())
    keys = {"trees": TREES, "bins": 16, "key_bits": bits}
    how = method(keys)
    with ColumnParties(files, 0, keys, seed=config.seed) as link:
        server = ServerHalf(Algorithm("secureboost", tasks=all_questions(keys)), link, {0: 360, 1: 370}, config.seed)

        def first():
            state = yield from align.align(align.Align(), {"names": ["bank", "shop"], "active": 0})
            state = yield from split.split(state, 0.25)
            return (yield from boosting.begin(how, state))

        state = server.drive(first(), RoundStart(0, 1.0))
        server.commit(0)
        for number in range(1, TREES + 1):
            state = server.drive(boosting.grow(how, state, number), RoundStart(number, 1.0))
            server.commit(number)
        assert np.array_equal(link.outputs(0), expected)
        for k in range(2):
            with pytest.raises(DataError, match="another party's file"):
                link.attempt(k, Path(files[1 - k]["path"]))


def test_early_stopping_looks_at_rows_held_out_and_the_end_at_test_rows(done, tmp_path):
    folder, _, _ = done
    made = experiment(
        folder,
        algorithm={"name": "secureboost", "trees": 40, "bins": 16, "depth": 5, "learning_rate": 1.0},
        evaluation={"on": "validation", "validation": 0.2},
        stop={"patience": 3},
    )
    summary = api.run(made, out=tmp_path / "run", baselines=False).summary
    assert summary["rounds"] < 40
    assert summary["stopped"].startswith("after tree")
    assert summary["rows"]["held"] == 66
    assert 0.5 < summary["test"]["auc"] <= 1
    assert summary["rounds"] == summary["best"]["accuracy"]["round"] + 3


def test_what_ends_a_run_before_its_first_tree_leaves_nothing(done, tmp_path):
    folder, _, _ = done
    table = pd.read_csv(folder / "shop.csv")
    table["client"] = table["client"].str.removeprefix("customer-").astype(int)
    table.to_csv(tmp_path / "shop.csv", index=False)
    shutil.copy(folder / "bank.csv", tmp_path)
    with pytest.raises(
        DataError, match="no id is in the tables of all parties: 100% of the ids of 'bank' have letters"
    ):
        api.run(experiment(tmp_path), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trees_stand_for_rounds(done, tmp_path):
    folder, _, _ = done
    with pytest.raises(ConfigError, match=r"rounds = 3, but algorithm\.trees = 4"):
        api.run(experiment(folder, rounds=3), out=tmp_path / "run")
    made = experiment(folder, rounds=2, algorithm={"name": "secureboost"})
    assert checked(made.config).config.algorithm.parameters()["trees"] == 2
    with pytest.raises(ConfigError, match=r"depht.*depth"):
        checked(experiment(folder, algorithm={"name": "secureboost", "depht": 2}).config)


def test_one_tables_columns_are_dealt_and_trained_on(tmp_path):
    made = fedatlas.Experiment.of(
        data={"name": "breast_cancer_wdbc", "limit": 300},
        partition={"name": "vertical", "parties": 4, "overlap": 0.8},
        algorithm={"name": "secureboost", "trees": 3},
    )
    summary = api.run(made, out=tmp_path / "run").summary
    assert [one["name"] for one in summary["parties"]] == [f"party-{k}" for k in range(4)]
    assert summary["final"]["auc"] > 0.9
    assert summary["gain"]["sides"]["together"] == summary["gain"]["sides"]["joined"]


def test_test_rows_of_one_class_still_give_a_report(tmp_path):
    """Nobody has an AUC then, so there is no picture of gains; the section says that nothing can be shown."""
    table = tables(tmp_path)["bank"]
    table["default"] = np.where(np.arange(len(table)) == 50, "yes", "no")  # a row that all parties have
    table.to_csv(tmp_path / "bank.csv", index=False)
    one_tree = {"name": "secureboost", "trees": 1}
    run = api.run(experiment(tmp_path, algorithm=one_tree, seed=1), out=tmp_path / "run")
    assert run.summary["final"]["auc"] is None, "the row of the class is a training row"
    page = (run.path / "report.html").read_text()
    assert "These test rows cannot show what the columns of" in page
    assert "gain-sides" not in page
    assert "gain-table" in page


def test_experiments_of_rows_do_not_take_it(done):
    folder, _, _ = done
    with pytest.raises(ConfigError, match="this experiment's parties hold columns"):
        fedatlas.partition(experiment(folder))


def test_a_dry_run_says_what_matching_and_trees_would_cost_and_leaves_nothing(done, capsys):
    folder, path, _ = done
    before = sorted(p.name for p in folder.iterdir())
    found = fedatlas.dry_run(experiment(folder))
    assert found["ids"] == {"bank": 360, "shop": 370}
    assert found["rows_at_most"] == 360
    first, second = RunFolder(path).rows()[:2]
    assert 0.8 * first["bytes_up"] < found["bytes_alignment"] / 2 < 1.2 * first["bytes_up"]
    tree = second["bytes_up"] + second["bytes_down"]
    assert 0.7 * tree < found["bytes_per_tree"] < 1.5 * tree
    assert found["bytes"] == found["bytes_alignment"] + found["bytes_beginning"] + TREES * found["bytes_per_tree"]
    preview.show(found)
    said = capsys.readouterr().out
    assert "bank: 360 ids, which holds the label." in said
    assert "One tree, in the clear, would send about" in said
    assert sorted(p.name for p in folder.iterdir()) == before
    assert found["privacy"] == {"mechanisms": []}
    lock = columns_preview.protection(
        consortium(checked(experiment(folder, privacy=[{"name": "paillier"}]).config)), 360
    )
    preview.show({**found, "privacy": lock})
    said = capsys.readouterr().out
    assert f"A key of {lock['key']['bits']} bits takes {seconds_text(lock['key']['seconds'])} on average" in said


def test_python_predicts_and_aligns_as_the_command_line_does(done):
    folder, path, _ = done
    table = fedatlas.predict(path, {name: folder / f"{name}.csv" for name in ("bank", "shop")})
    assert len(table) == 360
    with pytest.raises(ConfigError, match="with a file for each party"):
        fedatlas.predict(path, folder / "bank.csv")
    with pytest.raises(ConfigError, match="is held by several parties"):
        fedatlas.load(path)
    assert api.align(experiment(folder))["rows"] == 330
    with pytest.raises(ConfigError, match="there is nothing to align"):
        api.align(fedatlas.Experiment.of(rounds=1))


def test_a_run_tells_how_far_its_matching_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "EVERY", 0.0)
    tables(tmp_path)
    heard: list[str] = []
    whole = checked(experiment(tmp_path).config)
    growing = Growing(consortium(whole), RunFolder.create(tmp_path / "run", whole.config), say=heard.append)
    growing.land(growing.begin())
    assert heard[-1].startswith("Matching: ")
    assert heard[-1].endswith("masked ids, 100%.")
