"""Hybrid federation: FedAvg where no row is common, split learning where no column is shared, both groups of rows, files (V5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedatlas
from boosting_federation import Table
from fedatlas import api, catalogue
from fedatlas.algorithm import Budget
from fedatlas.config import parse
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError, DataError, DivergedError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.start import RoundStart
from fedatlas.models import make_loss
from fedatlas.models.dense import mlp
from fedatlas.prediction.parties import outputs_of
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.columns_labels import LettersHeard
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.setup.refusals import checked
from fedatlas.tree import Tree
from fedatlas.vertical.align import placed
from fedatlas.vertical.ids import seed_key
from fedatlas.vertical.networks import HYBRID, SPLIT, CutNetworks, hybrid
from fedatlas.vertical.networks.network import first_shared, shared_of
from fedatlas.vertical.parties import Columns, of_classes, order, places, tensor
from federation import brief, everyone, federation, play
from test_secureboost import made
from test_softmax import made as made_classes
from test_vertical_run import plain_rows

HOW = hybrid(rounds=3, shared=(4, 3), hidden=(5, 3), learning_rate=0.2, batch_size=7)
TABLES = {"two classes": made(n=90), "three classes": made_classes(90), "a number": made(n=90, task="numbers")}
COMMON, ALONE = np.arange(30), [np.arange(30, 55), np.arange(55, 70), np.arange(70, 90)]
COLUMNS = [[0, 1, 2], [3, 0, 1], [1, 0, 4, 5]]  # 0 and 1 are at all


def parties_of(
    table: Table, rows: Sequence[np.ndarray], columns: Sequence[Sequence[int]] = COLUMNS, active: int = 0
) -> list[Columns]:
    """Parties with these rows and columns; labels of common rows are only at the party ``active``."""
    names = tuple(f"p{k}" for k in range(len(rows)))
    classes = int(table.y.max()) + 1 if table.task == "classes" else 0
    common = set.intersection(*({*own.tolist()} for own in rows))
    out = []
    for k, (own, some) in enumerate(zip(rows, columns, strict=True)):
        y = np.array([np.nan if k != active and i in common else table.y[i] for i in own.tolist()])
        one = Columns(k, names[k], active, names, tuple(f"id-{i}" for i in own), table.x[own][:, list(some)], ())
        out.append(one._replace(names=tuple(f"x{c}" for c in some), y=y, task=table.task, classes=classes))
    return out


class Done:
    """A training in this process, whose common rows are aligned."""

    def __init__(self, parties: list[Columns], how: CutNetworks = HOW, scheme: Any = HYBRID, observers: Any = ()):
        self.parties, self.scheme, states = parties, scheme, PartyState()
        common = set.intersection(*({*one.ids} for one in parties))
        for one in parties:
            at = np.array([i for i, name in enumerate(one.ids) if name in common], np.int64)
            state = placed(one, {}, seed_key(0), at)
            split = {
                "train": np.arange(len(at) * 3 // 4),
                "held": np.arange(0),
                "test": np.arange(len(at) * 3 // 4, len(at)),
            }
            states.after.put(one.party, {**state, "split": {part: tensor(one) for part, one in split.items()}})
        self.held = columns_federation(parties, scheme.questions(how), states, observers=observers)
        active = parties[0].active
        task = {"task": parties[active].task, **of_classes(parties[active].classes)}
        server = {"names": [one.name for one in parties], "active": active, **task}
        self.server = self.held.drive(lambda: scheme.begin(how, server), RoundStart(1, 0.0))
        for number in range(1, how.rounds + 1):
            self.server = self.held.drive(
                lambda n=number: scheme.step(how, self.server, n), RoundStart(1 + number, 0.0)
            )

    def state(self, party: int) -> Any:
        return self.held.states.get(party)

    @property
    def outputs(self) -> np.ndarray:
        return self.scheme.outputs(self.state(self.parties[0].active))


def owned(*, common: np.ndarray = COMMON) -> list[np.ndarray]:
    return [np.concatenate([common, own]) for own in ALONE]


# ------------------------------------------------------------------------------------------------ the two ends


@pytest.mark.parametrize("kind", TABLES)
def test_without_common_rows_it_is_fedavg_on_the_shared_columns_bit_for_bit(kind: str) -> None:
    """The oracle is the reference engine of runs on rows, on columns scaled here once more."""
    table = TABLES[kind]
    found = Done(parties_of(table, ALONE))
    x, own = np.concatenate([table.x[rows][:, [0, 1]] for rows in ALONE]), {}
    mean, sd = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    unit = (table.y[30:].mean(), table.y[30:].std()) if table.task == "numbers" else (0.0, 1.0)
    for k, one in enumerate(found.parties):
        rows = found.state(k)["nets"]["train"].numpy()
        assert sorted(one.ids[i] for i in rows) == sorted(one.ids)
        shared = [one.names.index(name) for name in ("x0", "x1")]
        scaled = np.nan_to_num((one.x[rows][:, shared] - mean) / sd)
        y = (one.y[rows] - unit[0]) / unit[1]
        own[k] = Rows(
            torch.from_numpy(scaled).float(),
            torch.from_numpy(y).float() if table.task == "numbers" else torch.from_numpy(y.astype(np.int64)),
        )
    loss = make_loss("auto", table.task, found.parties[0].classes)
    outputs = loss.width()
    house = federation(
        brief("fedavg"),
        own,
        lambda: mlp((2,), outputs, hidden=(4, 3)),
        loss.mean,
        torch.float32,
        batch_size=7,
        budget=Budget(epochs=1),
    )
    first = Tree(first_shared(2, (4, 3), outputs, 0))
    server, _ = play(house, everyone(house, 3), seed=0, lr=0.2, server={"model": first})
    for name, weights in server["model"].items():
        assert torch.equal(found.server["nets"]["model"][name], weights), name
        assert torch.equal(found.state(0)["nets"]["model"][name], weights), "the party with the label predicts by it"
        assert not torch.equal(first[name], weights)


@pytest.mark.parametrize("kind", TABLES)
def test_without_shared_columns_it_is_split_learning_bit_for_bit(kind: str) -> None:
    parties = parties_of(TABLES[kind], [COMMON] * 3, [[0, 2], [3], [1, 4, 5]], active=1)
    one, other = Done(parties), Done(parties, HOW._replace(shared=()), SPLIT)
    for k in range(3):
        for name, weights in other.state(k)["nets"]["weights"].items():
            assert torch.equal(one.state(k)["nets"]["weights"][name], weights)
    assert torch.equal(one.state(1)["nets"]["fusion"]["weight"], other.state(1)["nets"]["fusion"]["weight"])
    assert one.outputs.tolist() == other.outputs.tolist()


def test_a_rate_that_is_too_large_is_told_by_the_party_that_diverges() -> None:
    with pytest.raises(DivergedError, match=r"the training loss of 'p0' is (nan|inf): lower algorithm\.learning_rate"):
        Done(parties_of(TABLES["two classes"], ALONE), HOW._replace(learning_rate=1e25))


def test_parties_that_share_neither_rows_nor_columns_are_refused() -> None:
    with pytest.raises(DataError, match="share neither a row nor a column"):
        Done(parties_of(TABLES["two classes"], ALONE, [[0, 2], [3], [1, 4, 5]]))


# ------------------------------------------------------------------------------------------------ in between


@pytest.mark.parametrize("kind", TABLES)
def test_the_order_of_rows_changes_nothing(kind: str) -> None:
    one = Done(parties_of(TABLES[kind], owned()))
    shuffled = [np.random.default_rng(k).permutation(rows) for k, rows in enumerate(owned())]
    other = Done(parties_of(TABLES[kind], shuffled))
    for name, weights in one.server["nets"]["model"].items():
        assert torch.equal(other.server["nets"]["model"][name], weights)
    assert one.outputs.tolist() == other.outputs.tolist()


@pytest.mark.parametrize("tune", [True, False])
def test_the_second_part_trains_the_shared_network_only_if_asked_and_never_its_head(tune: bool) -> None:
    """Parties without rows of their own: all labels of the first part are those of the common rows, at one party."""
    how, parties = HOW._replace(tune_shared=tune, rounds=1), parties_of(TABLES["two classes"], [COMMON] * 3)
    heard = LettersHeard()
    found = Done(parties, how, observers=[heard])
    averaged = Done(parties_of(TABLES["two classes"], [COMMON] * 3), how._replace(learning_rate=1e-30))
    first, last = averaged.server["nets"]["model"], found.server["nets"]["model"]
    assert not torch.equal(first["head.weight"], last["head.weight"])
    assert found.server["nets"]["train"] == [22, 0, 0]
    still = Done(parties, how._replace(tune_shared=not tune)).server["nets"]["model"]
    assert torch.equal(still["head.weight"], last["head.weight"])
    assert not torch.equal(still["body.1.weight"], last["body.1.weight"])


def test_only_the_listed_letters_cross_and_no_label_of_a_common_row_is_read_elsewhere() -> None:
    heard, table = LettersHeard(), TABLES["three classes"]
    parties = parties_of(table, owned(), active=1)
    found = Done(parties, observers=[heard])
    assert all(np.isnan(one.y[:30]).all() for one in parties if one.party != 1)
    for party in (0, 2):
        came = {one["topic"] for one in heard.letters[party] if one["from"] != party}
        sent = {one["topic"] for one in heard.letters[party] if one["from"] == party}
        assert came == {"shared columns", "cut gradients"}
        assert sent == {"names of columns", "embeddings", "embeddings to judge"}
    assert found.server["nets"]["shared"] == 2
    assert found.server["nets"]["train"] == [18, 22 + 11, 15]
    assert found.server["nets"]["test"] == [7, 4, 5]


def test_a_party_with_shared_columns_only_sends_no_embedding() -> None:
    heard = LettersHeard()
    found = Done(parties_of(TABLES["two classes"], owned(), [[0, 1, 2], [0, 1], [1, 0, 4]]), observers=[heard])
    assert {one["topic"] for one in heard.letters[1]} == {"names of columns", "shared columns"}
    assert found.server["nets"]["embed"] == [0, 2]
    assert np.isfinite(found.outputs).all()


@pytest.mark.parametrize("kind", TABLES)
def test_rows_that_a_party_lacks_are_predicted_from_shared_columns(kind: str) -> None:
    table = TABLES[kind]
    found, states = Done(parties_of(table, owned(), active=1)), PartyState()
    model = HYBRID.export(found.parties[1], found.state(1))["model"]
    for one in found.parties:
        exported = HYBRID.export(one, found.state(one.party))
        loaded = HYBRID.load(one, {**exported, "model": model if one.party == 1 else None})
        at = {name: i for i, name in enumerate(one.ids)}
        rows = np.array([at.get(name, -1) for name in found.parties[1].ids])
        states.after.put(one.party, {**loaded, "align": {"order": tensor(rows)}})
    said = outputs_of(found.parties, states, HYBRID, HOW)[0]
    own, state = found.parties[1], found.state(1)
    tested = order(state)[places(state, "test")]
    np.testing.assert_allclose(said[tested], found.outputs[places(state, "test")], rtol=1e-4, atol=1e-5)
    mean, sd = state["nets"]["shared_scale"].numpy()
    x = np.nan_to_num((own.x[:, [own.names.index(n) for n in model["shared"]["columns"]]] - mean) / sd)
    with torch.no_grad():
        out = shared_of(found.server["nets"]["model"], torch.float32)(torch.from_numpy(x).float()).double()
    alone = HYBRID.outputs({"nets": {**state["nets"], "out": out}})
    np.testing.assert_allclose(said[30:], alone[30:], rtol=1e-4, atol=1e-5)
    assert not np.allclose(said[:30], alone[:30], rtol=1e-3)


@pytest.mark.parametrize("kind", ["two classes", "a number"])
def test_both_groups_of_test_rows_are_told_with_their_mean(kind: str) -> None:
    found = Done(parties_of(TABLES[kind], owned()))
    assert found.server["nets"]["judged"]["rows"] == 7 + 4 + 5
    name = "rmse" if kind == "a number" else "accuracy"
    server = {**found.server, "quality": {name: 0.5}, "rows": {"test": 8, "held": 0}}
    server["nets"]["judged"] = {"rows": 2, "score": 1.5}
    told = HYBRID.counts(server)
    assert HYBRID.facts({"nets": found.server["nets"]}) == {"figures": {"shared_columns": 2}}, (
        "in a probe nothing is judged yet"
    )
    assert told == HYBRID.facts(server)["figures"]
    assert (
        told["common_rows_judged"]
        == HYBRID.counts({**server, "rows": {"test": 99, "held": 8}})["common_rows_judged"]
        == 8
    )
    if name == "accuracy":
        assert told["accuracy_of_other_rows"] == 0.75
        assert told["accuracy_of_both"] == pytest.approx((8 * 0.5 + 1.5) / 10)
    else:
        assert told["rmse_of_other_rows"] == pytest.approx(0.75**0.5)
        assert told["rmse_of_both"] == pytest.approx(((8 * 0.25 + 1.5) / 10) ** 0.5)


# ------------------------------------------------------------------------------------------------ whole runs


def dealt(rounds: int = 2, **partition: Any) -> fedatlas.Experiment:
    keys = {"parties": 3, "overlap_rows": 0.4, "overlap_cols": 0.3, "label_party": 1, **partition}
    algorithm = {"name": "hybrid", "rounds": rounds, "learning_rate": 0.1, "batch_size": 16}
    return fedatlas.Experiment.of(
        data={"name": "breast_cancer_wdbc"}, partition={"name": "hybrid", **keys}, algorithm=algorithm
    )


def test_a_table_is_dealt_by_rows_and_columns() -> None:
    held = consortium(checked(dealt().config))
    rows = [{*one.ids} for one in held.parties]
    columns = [{*one.names} for one in held.parties]
    n, width = len(set.union(*rows)), len(set.union(*columns))
    assert (n, width) == (569, 30)
    assert len(set.intersection(*rows)) == int(0.4 * n)
    assert len(set.intersection(*columns)) == int(0.3 * width)
    for every in (rows, columns):
        assert all(len(one - set.intersection(*every)) for one in every)
        assert sum(len(one - set.intersection(*every)) for one in every) == len(
            set.union(*every) - set.intersection(*every)
        )
    assert held.active == 1
    for k, one in enumerate(held.parties):
        lacks = {name for name, y in zip(one.ids, one.y, strict=True) if np.isnan(y)}
        assert lacks == (set() if k == 1 else set.intersection(*rows))


def test_a_run_tells_both_groups_is_resumed_and_looked_at_before(tmp_path: Path) -> None:
    whole = api.run(dealt(), out=tmp_path / "whole")
    figures = whole.summary["figures"]
    assert figures["shared_columns"] == 9
    assert figures["common_rows_judged"] == whole.summary["rows"]["test"]
    groups = [figures[f"accuracy_of_{name}"] for name in ("common_rows", "other_rows")]
    assert min(groups) <= figures["accuracy_of_both"] <= max(groups)
    assert whole.summary["gain"] is not None
    page = (whole.path / "report.html").read_text()
    assert "Rows that all parties have, and others" in page
    assert f"{figures['other_rows_judged']:,}" in page
    short = api.run(dealt(rounds=1), out=tmp_path / "short", baselines=False)
    api.resume(short.path, ["algorithm.rounds=2"], baselines=False)
    assert plain_rows(short.path) == plain_rows(whole.path)
    for file in ("model.json", "model-party-0.json", "model-party-1.json", "model-party-2.json"):
        assert RunFolder(short.path).read_json(file) == RunFolder(whole.path).read_json(file)
    assert fedatlas.dry_run(dealt())["bytes_per_tree"] > 0


def test_parties_of_files_have_labels_of_their_own_rows_and_one_list_of_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"id": range(60), "age": rng.normal(size=60), "x": rng.normal(size=60)})
    bank["label"] = np.where(bank["age"] > 0, "a", "c")
    shop = pd.DataFrame({"id": range(30, 90), "age": rng.normal(size=60), "y": rng.normal(size=60)})
    shop["label"] = np.where(shop["age"] > 0, "a", "b")
    bank.to_csv(tmp_path / "bank.csv", index=False)
    shop.to_csv(tmp_path / "shop.csv", index=False)
    parties = [{"name": n, "path": str(tmp_path / f"{n}.csv"), "id": "id", "label": "label"} for n in ("bank", "shop")]
    made = fedatlas.Experiment.of(parties=parties, algorithm={"name": "hybrid", "rounds": 1})
    held = consortium(checked(made.config))
    assert held.tables[0].class_names == held.tables[1].class_names == ("a", "b", "c")
    assert {*held.parties[0].y} == {0, 2}
    assert {*held.parties[1].y} == {0, 1}
    assert "'shop' has no row of class 'c'." in held.notices
    done = api.run(made, out=tmp_path / "run", baselines=False)
    assert done.summary["figures"]["shared_columns"] == 1
    said = fedatlas.predict(done.path, {n: tmp_path / f"{n}.csv" for n in ("bank", "shop")})
    assert len(said) == 60
    shop["label"] = rng.normal(size=60)
    shop.to_csv(tmp_path / "shop.csv", index=False)
    with pytest.raises(ConfigError, match="the label of 'bank' is of classes, and that of 'shop' of numbers"):
        consortium(checked(made.config))


def test_rows_are_predicted_where_a_party_has_shared_columns_only(tmp_path: Path) -> None:
    """It sends no embedding; rows that it lacks are still those that not all parties have."""
    rng = np.random.default_rng(0)
    age = rng.normal(size=60)
    every = pd.DataFrame({"id": range(60), "age": age, "x": rng.normal(size=60), "label": np.where(age > 0, "a", "b")})
    every.to_csv(tmp_path / "bank.csv", index=False)
    every[["id", "age"]].to_csv(tmp_path / "shop.csv", index=False)
    files = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}
    parties = [{"name": name, "path": str(path), "id": "id"} for name, path in files.items()]
    asked = fedatlas.Experiment.of(
        parties=[{**parties[0], "label": "label"}, parties[1]], algorithm={"name": "hybrid", "learning_rate": 0.3}
    )
    done = api.run(asked, out=tmp_path / "run", baselines=False)
    whole = fedatlas.predict(done.path, files)
    assert (np.asarray(whole["prediction"]) == every["label"]).mean() > 0.9
    every[["id", "age"]][:30].to_csv(files["shop"], index=False)
    some = fedatlas.predict(done.path, files)
    same = np.asarray(some["p_a"]) == np.asarray(whole["p_a"])
    assert same[:30].all()
    assert not same[30:].any(), "by the network on shared columns"


def test_a_party_may_lack_labels_of_common_rows_and_all_but_one_class(tmp_path: Path) -> None:
    """The label holder has those of common rows; which of the others' rows have one changes nothing there."""
    rng = np.random.default_rng(0)
    ids, age = np.arange(90), rng.normal(size=90)
    label = np.where(age > 0, "a", "b")
    every = pd.DataFrame({"id": ids, "age": age, "label": label})
    every[:60].to_csv(tmp_path / "bank.csv", index=False)

    def shop(known: np.ndarray, text: str) -> Consortium:
        table = every[30:].assign(y=0.5, label=np.where(known, text, ""))
        table.to_csv(tmp_path / text, index=False)
        files = {"bank": "bank.csv", "shop": text}
        parties = [{"name": n, "path": str(tmp_path / path), "id": "id", "label": "label"} for n, path in files.items()]
        return consortium(checked(fedatlas.Experiment.of(parties=parties, algorithm={"name": "hybrid"}).config))

    held = shop(ids[30:] >= 60, "a")
    y = held.parties[1].y
    assert y is not None
    assert np.isnan(y[:30]).all()
    assert (y[30:] == 0).all()
    assert held.tables[1].class_names == ("a", "b")
    assert "'shop' has no row of class 'b'." in held.notices
    assert "30 rows of 'shop' without a label: they train only if all parties have them." in held.notices
    done = api.run(held.config, out=tmp_path / "run", baselines=False)
    assert done.summary["rows"] == {"train": 23, "held": 0, "test": 7}
    assert done.summary["figures"]["other_rows_judged"] == 14, (
        "as large a share of 30 rows that only one party has, at both"
    )
    with pytest.raises(DataError, match="'label' is missing in every row: leave the party's key 'label' out"):
        shop(ids[30:] < 0, "none")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"algorithm": {"name": "secureboost"}}, "only algorithm 'hybrid' trains on"),
        ({"partition": {"name": "hybrid", "overlap_rows": 0.0}}, "overlap_rows"),
        ({"algorithm": {"name": "hybrid", "shared": [0]}}, "shared"),
        ({"algorithm": {"name": "hybrid", "hidden": []}}, "hidden"),
    ],
)
def test_what_cannot_be_dealt_or_trained_is_refused(changed: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked(parse({**dealt().config.plain(), **changed}))


def test_the_page_says_what_the_table_of_the_report_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vertical.md").read_text()
    for row in HYBRID.words.learns(HOW, False):
        assert f"| {' | '.join(row)} |" in page


def test_show_tells_of_the_partition_and_of_the_algorithm() -> None:
    assert [one["kind"] for one in catalogue.entries("hybrid")] == ["partitions", "algorithms"]
