"""The mechanism `anonymise`: k, l and t of the rows that clients train on, by brute force, per client or in the union; predict follows."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agreements import Agreements, write_rows
from fedatlas import Experiment, load
from fedatlas.algorithm import SERVER
from fedatlas.api import resume, run
from fedatlas.config import parse
from fedatlas.deployment.refusals import refuse
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.privacy.anonymise.agreed_cuts import agree, by_agreed
from fedatlas.privacy.anonymise.choice import AnonymityKeys
from fedatlas.privacy.own_rows import OwnRows, RowsHow
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.mechanism_choice import mechanisms_of
from fedatlas.setup.refusals import checked
from nodes_in_process import run_here
from oracles import anonymity as oracle
from reports import Page, summary

BOUNDS = {"age": [20, 90], "dose": [-1, 1]}
QUASI = ["age", "dose", "kind"]
COUNTS = {"boundaries": "counts", "bounds": BOUNDS, "bins": 10}
MASKED = {"name": "secagg"}


def patients(path: Path, n: int = 400, gaps: bool = False) -> Path:
    """Two numbers, two categories and two classes; with ``gaps`` some ages and kinds are missing."""
    stream = np.random.default_rng(3)
    age, dose, kind = stream.integers(20, 90, n), stream.uniform(-1, 1, n), stream.integers(0, 3, n)
    ill, lost = age + 20 * kind + 10 * dose > 75, stream.random((n, 2)) < (0.1 if gaps else 0)
    rows = [
        f"{'' if a_lost else a},{d:.4f},{'' if k_lost else 'abc'[k]},{'uvw'[j % 3]},{'yes' if y else 'no'}"
        for j, (a, d, k, y, (a_lost, k_lost)) in enumerate(zip(age, dose, kind, ill, lost, strict=True))
    ]
    path.write_text("\n".join(["age,dose,kind,town,ill", *rows]) + "\n")
    return path


def experiment(path: Path, keys: dict[str, Any] | None, *more: dict[str, Any], **tables: Any) -> Experiment:
    mine = [] if keys is None else [{"name": "anonymise", "quasi": QUASI, **keys}]
    return Experiment.of(
        **{
            "rounds": 2,
            "data": {"name": "file", "path": str(path), "label": "ill", "test": 0.25},
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            "engine": {"name": "loop"},
            "privacy": [*mine, *more],
            **tables,
        }
    )


def setup(path: Path, keys: dict[str, Any] | None, *more: dict[str, Any], **tables: Any) -> Setup:
    return set_up(checked(experiment(path, keys, *more, **tables).config))


def trained(found: Setup, columns: int = 3) -> list[list[tuple[float, ...]]]:
    """The quasi-identifiers of the rows that each client trains on; a missing cell is -99."""
    x = torch.nan_to_num(found.held.raw.train.x[:, :columns], -99.0)
    return [[tuple(row) for row in x[at].tolist()] for at in found.partition.clients]


def targets(found: Setup) -> list[list[int]]:
    return [found.held.raw.train.y[at].tolist() for at in found.partition.clients]


# ---------------------------------------------------------------------- boundaries = "local"


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    "rules", [{"k": 7}, {"k": 4, "l": 2}, {"k": 3, "t": 0.3}, {"k": 3, "l": 1.6, "diversity": "entropy"}]
)
def test_each_clients_rows_keep_the_rules(tmp_path: Path, rules: dict[str, Any], gaps: bool) -> None:
    path = patients(tmp_path / "rows.csv", gaps=gaps)
    more = {} if {*rules} == {"k"} else {"sensitive": ["label"]}
    missing = (
        {"data": {"name": "file", "path": str(path), "label": "ill", "test": 0.25, "missing": "median"}} if gaps else {}
    )
    found, plain = setup(path, {**rules, **more}, **missing), setup(path, None, **missing)
    for rows, y in zip(trained(found), targets(found), strict=True):
        parts = oracle.classes(rows)
        assert min(map(len, parts)) >= rules["k"]
        assert len(parts) > 1
        for part in parts:
            own = [y[i] for i in part]
            assert oracle.entropy(own) >= rules.get("l", 1) - 1e-9 or rules.get("diversity") is None
            assert oracle.distinct(own) >= rules.get("l", 1) or rules.get("diversity") == "entropy"
            if "t" in rules:
                assert oracle.closeness(own, y, lambda a, b: float(a != b)) <= rules["t"] + 1e-9
    before, after = plain.held.raw, found.held.raw
    assert torch.equal(before.train.x[:, 3], after.train.x[:, 3])
    assert torch.equal(before.train.y, after.train.y)
    assert torch.equal(torch.nan_to_num(before.test.x, -9), torch.nan_to_num(after.test.x, -9))
    assert found.held.told == {}


def test_a_class_has_the_mean_of_its_numbers_and_its_most_frequent_category(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    before, after = setup(path, None), setup(path, {"k": 5})
    for at in after.partition.clients:
        raw, made = before.held.raw.train.x[at].double().numpy(), after.held.raw.train.x[at].numpy()
        for part in oracle.classes([tuple(row[:3]) for row in made.tolist()]):
            assert made[part[0], :2] == pytest.approx(raw[part][:, :2].mean(axis=0), rel=1e-6)
            kinds = np.bincount(raw[part][:, 2].astype(int))
            assert made[part[0], 2] == kinds.argmax()


def test_with_k_1_the_run_is_the_plain_one(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    changed, plain = (
        run(experiment(path, keys), out=tmp_path / name, baselines=False).path
        for name, keys in (("changed", {"k": 1}), ("plain", None))
    )
    assert (changed / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    found = summary(changed)["privacy"]["anonymise"]
    assert (found["loss"], found["risk_before"]) == (0.0, found["risk_after"])


def test_the_summary_and_the_page_say_where_k_holds(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {"k": 6}), out=tmp_path / "run", baselines=False).path
    found, rows = summary(done)["privacy"]["anonymise"], trained(setup(path, {"k": 6}))
    parts = [part for own in rows for part in oracle.classes(own)]
    assert found["holds"] == "for every client"
    assert found["classes"] == len(parts)
    assert found["smallest_class"] == found["smallest_class_of_a_client"] == min(map(len, parts)) >= 6
    union = oracle.classes([row for own in rows for row in own])
    assert found["risk_after"]["highest"] == 1 / min(map(len, union))
    assert found["risk_after"]["mean"] == pytest.approx(len(union) / 300)
    assert found["risk_before"] == {"highest": 1.0, "mean": 1.0, "unique": 1.0}
    assert 0 < found["loss"] < 0.5
    text = Page(done / "report.html").text()
    assert "k holds in the rows of each client, and so in the union" in text
    assert "k = 6 holds for every client" in text
    assert "there is no epsilon" in text


# ---------------------------------------------------------------------- boundaries = "counts"


def binned(path: Path, at: np.ndarray) -> list[tuple[int, ...]]:
    """Rows on the public grid of `COUNTS`."""
    table = pandas.read_csv(path).iloc[at]
    age = np.clip((table["age"] - 20) // 7, 0, 9)
    dose = np.clip(np.floor((table["dose"] + 1) / 0.2 + 1e-6), 0, 9)
    return [tuple(map(int, row)) for row in zip(age, dose, table["kind"].map("abc".index), strict=True)]


@pytest.mark.parametrize("rules", [{"k": 12}, {"k": 5, "l": 2}, {"k": 5, "t": 0.25}])
def test_the_union_keeps_the_rules_and_the_cuts_are_mondrians_on_the_grid(
    tmp_path: Path, rules: dict[str, Any]
) -> None:
    """Through masks that only show sums: the classes of the oracle on all rows in one place."""
    path = patients(tmp_path / "rows.csv")
    found = setup(path, {**COUNTS, **rules, **({"sensitive": ["label"]} if len(rules) > 1 else {})}, MASKED)
    rows, y = [*chain(*trained(found))], [*chain(*targets(found))]
    parts = oracle.classes(rows)
    assert min(map(len, parts)) >= rules["k"]
    for part in parts:
        own = [y[i] for i in part]
        assert oracle.distinct(own) >= rules.get("l", 1)
        assert oracle.closeness(own, y, lambda a, b: float(a != b)) <= rules.get("t", 1) + 1e-9

    def fine(part: list[int]) -> bool:
        own = [y[i] for i in part]
        close = oracle.closeness(own, y, lambda a, b: float(a != b)) if "t" in rules else 0.0
        return oracle.distinct(own) >= rules.get("l", 1) and close <= rules.get("t", 1) + 1e-9

    grid = binned(path, found.held.raw.train.row[np.concatenate(found.partition.clients)].numpy())
    expected = {frozenset(part) for part in oracle.mondrian(grid, rules["k"], fine)}
    assert {frozenset(part) for part in parts} == expected
    assert len(expected) > 3


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_shared_cuts_of_random_tables_keep_k_and_l(
    table: list[tuple[int, ...]],
    k: int,
    l: int,  # noqa: E741
) -> None:
    """Rows of three clients, of which one may have none of a class: the oracle's classes of all rows in one place."""
    x, y = torch.tensor([row[:2] for row in table]).float() + torch.tensor([0.5, 0.0]), [row[2] for row in table]
    columns = (("age", ()), ("town", ("A", "B", "C", "D")))
    whole = OwnRows(x, torch.tensor(y), torch.arange(len(x)), columns, ("u", "v", "w"))
    parts = [whole._replace(x=x[i::3], y=whole.y[i::3], row=whole.row[i::3]) for i in range(3)]
    chosen = AnonymityKeys(("age", "town"), ("label",), k, l, 1.0, "distinct", "counts", {"age": (0.0, 10.0)}, 10)

    def fine(part: list[int]) -> bool:
        return len({y[i] for i in part}) >= l

    def agreed() -> Any:
        return agree(chosen, columns, whole.classes, lambda counted: sum(counted(part) for part in parts))

    if len(table) < k or not fine([*range(len(table))]):
        with pytest.raises(FedatlasError, match="choose a smaller"):
            agreed()
        return
    made = by_agreed(chosen, whole, RowsHow(0, 3, b"", b"", {SERVER: json.loads(json.dumps(agreed()))}))
    found = {frozenset(part) for part in oracle.classes(made.x.tolist())}
    assert found == {frozenset(part) for part in oracle.mondrian([row[:2] for row in table], k, fine)}
    assert min(map(len, found)) >= k


def test_what_is_stored_are_points_of_the_grid_and_no_values_of_rows(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {**COUNTS, "k": 12}, MASKED), out=tmp_path / "run", baselines=False).path
    told = json.loads((done / "rows.json").read_text())["told"]["anonymise"]
    assert told.keys() == {str(SERVER)}
    cuts = told[str(SERVER)]["cuts"]
    edges = {0: np.linspace(20, 90, 11), 1: np.linspace(-1, 1, 11), 2: np.arange(4) - 0.5}
    used = {(column, at) for column, at in zip(cuts["column"], cuts["at"], strict=True) if column >= 0}
    assert {column for column, _ in used} == {0, 1, 2}
    for column, at in used:
        assert np.abs(edges[column] - (at - (column == 2))).min() < 1e-9
    found = summary(done)["privacy"]["anonymise"]
    assert found["holds"] == "in the union"
    assert found["smallest_class"] >= 12 > found["smallest_class_of_a_client"]
    text = Page(done / "report.html").text()
    assert "k holds in the union, not in the rows of a client" in text
    assert "quasi age, dose, kind" in text
    assert summary(done)["cost"]["bytes_up"] > summary(setup_of(tmp_path, path))["cost"]["bytes_up"]


def setup_of(tmp_path: Path, path: Path) -> Path:
    return run(experiment(path, None, MASKED), out=tmp_path / "masked", baselines=False).path


def test_encryption_hides_counts_as_masks_do(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    masked, sealed = (setup(path, {**COUNTS, "k": 12}, {"name": name}) for name in ("secagg", "paillier"))
    assert masked.held.told == sealed.held.told
    with pytest.raises(ConfigError, match="needs a mechanism that hides what single clients send"):
        setup(path, {**COUNTS, "k": 12}, {"name": "paillier", "encrypt": "output"})


def test_a_prediction_generalises_new_rows_by_the_stored_cuts(tmp_path: Path) -> None:
    """Rows of one class get one prediction; a category that no row had counts as missing, with its notice."""
    path = patients(tmp_path / "rows.csv")
    keys = {**COUNTS, "k": 40, "quasi": [*QUASI, "town"]}
    done = run(experiment(path, keys, MASKED), out=tmp_path / "run", baselines=False).path
    table, model = pandas.read_csv(path), load(done)
    found = model.predict(table)["p_yes"].round(6).to_numpy()
    classes = len(set(found.tolist()))
    assert 1 < classes <= summary(done)["privacy"]["anonymise"]["classes"]
    near = table.assign(age=table["age"] + 0.01)
    assert np.array_equal(model.predict(near)["p_yes"].round(6).to_numpy(), found)
    assert len(model.predict(table.assign(kind="new").head(3))) == 3
    (done / "rows.secret").unlink()
    assert np.array_equal(load(done).predict(table)["p_yes"].round(6).to_numpy(), found), "cuts are no secret"
    plain = load(run(experiment(path, {"k": 40}), out=tmp_path / "local", baselines=False).path)
    assert plain.preprocess.change is None, "rows of nobody are in no client's class"


def test_a_resumed_run_ends_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    for name, keys, more in (("local", {"k": 5}, ()), ("counts", {**COUNTS, "k": 5}, (MASKED,))):
        short = run(experiment(path, keys, *more), out=tmp_path / name, baselines=False).path
        whole = run(experiment(path, keys, *more, rounds=4), out=tmp_path / f"{name}-whole", baselines=False).path
        resume(short, ["rounds=4"], baselines=False)
        assert (short / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_missing_cells_have_a_bin(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv", gaps=True)
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.25, "missing": "drop"}
    asked = experiment(path, {**COUNTS, "k": 12}, MASKED, data={**data, "missing": "median", "constants": None})
    with pytest.raises(
        ConfigError, match=r"data\.missing = 'median'"
    ):  # refused beside masks, with or without this mechanism
        checked(asked.config)
    found = setup(path, {**COUNTS, "k": 12}, MASKED, data=data)
    assert min(map(len, oracle.classes([*chain(*trained(found))]))) >= 12


def test_shared_cuts_come_back_from_the_runs_configuration() -> None:
    """With ranges as values of a table, which a file holds as lists."""
    asked = experiment(Path("rows.csv"), {**COUNTS, "k": 12}, MASKED).config
    again = parse(asked.plain())
    assert again.hash() == asked.hash()
    one = next(one for one in mechanisms_of(again) if one.name == "anonymise")
    assert one.keys["bounds"] == {"age": (20.0, 90.0), "dose": (-1.0, 1.0)}


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("keys", "more", "said"),
    [
        ({"quasi": []}, (), "privacy.anonymise.quasi names no column: name those by which somebody may know a person"),
        ({"quasi": ["agee"]}, (), "privacy.anonymise: unknown column 'agee': did you mean 'age'?"),
        ({"sensitive": ["ill"]}, (), "write 'label' for the target"),
        ({"sensitive": ["age"]}, (), "column 'age' is in quasi and in sensitive; give it one role."),
        ({"l": 2}, (), "l and t are about sensitive columns; name them, 'label' for the target"),
        ({"l": 1.5, "sensitive": ["label"]}, (), "privacy.anonymise.l = 1.5: a whole number, unless diversity = 'entropy'."),
        ({"l": 3, "sensitive": ["label"]}, (), "l = 3, but 'label' has only 2 different values: choose a smaller l."),
        ({"k": 101}, (), "k = 101, but there are only 100 rows: choose a smaller k. This is about the training rows of client 0"),
        ({"k": 0}, (), "privacy.anonymise.k = 0: expected"),
        ({"t": 2}, (), "privacy.anonymise.t = 2: expected a number of 1 or less"),
        ({"bounds": BOUNDS}, (), "privacy.anonymise.bounds has no effect with boundaries = 'local'"),
        (COUNTS, (), "'anonymise' needs a mechanism that hides what single clients send, such as 'secagg'"),
        ({**COUNTS, "bounds": {"age": [20, 90]}}, (MASKED,), "'dose' is a column of numbers and has no public range; add dose ="),
        ({**COUNTS, "bounds": {"age": [90, 20]}}, (MASKED,), "privacy.anonymise.bounds.age = [90.0, 20.0]: give the lowest"),
        ({**COUNTS, "bounds": {**BOUNDS, "town": [0, 1]}}, (MASKED,), "bounds names 'town', which is not in quasi"),
        ({**COUNTS, "k": 301}, (MASKED,), "privacy.anonymise: k = 301, but there are only 300 rows: choose a smaller k."),
        ({**COUNTS, "l": 3, "sensitive": ["label"]}, (MASKED,), "l = 3, but 'label' has only 2 different values"),
        ({**COUNTS, "quasi": ["age"], "bounds": {"age": [20, 90]}, "l": 2, "sensitive": ["dose"]}, (MASKED,), "'dose' is a number"),
        ({}, ({"name": "additive_noise", "bounds": [0, 1]},), "'anonymise' cannot be combined: other changes of rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, keys: dict[str, Any], more: tuple[dict[str, Any], ...], said: str
) -> None:
    with pytest.raises(FedatlasError) as error:
        setup(patients(tmp_path / "rows.csv"), keys, *more)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_pictures_are_refused() -> None:
    data = {"data": {"name": "digits", "limit": 100}, "partition": {"name": "iid", "clients": 2}}
    table = [{"name": "anonymise", "quasi": ["age"]}]
    with pytest.raises(FedatlasError, match="it takes a table whose columns have names; these rows have none"):
        set_up(checked(Experiment.of(**data, privacy=table).config))


# ---------------------------------------------------------------------- deployed


def test_nodes_cut_their_own_rows(tmp_path: Path) -> None:
    made = Agreements(tmp_path / "made")
    files = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}
    trainers = {name: made.trainer(name, file) for name, file in files.items()}
    config = made.config(privacy=[{"name": "anonymise", "quasi": ["a", "b"], "k": 4}])
    ran = run_here(made, trainers, made.signed("r", config), test=files["north"])
    assert ran.state.status == "finished", ran.state.why
    for trainer in trainers.values():
        assert trainer.run is not None
        x = trainer.run.setup.held.raw.train.x  # type: ignore[union-attr]
        parts = oracle.classes([tuple(row) for row in x.tolist()])
        assert min(map(len, parts)) >= 4
        assert len(parts) > 1


def test_shared_cuts_are_refused_between_real_parties(tmp_path: Path) -> None:
    asked = experiment(patients(tmp_path / "rows.csv"), COUNTS, MASKED)
    with pytest.raises(
        ConfigError, match=r"boundaries = 'counts': agreed in a simulation in this version; write 'local'\."
    ):
        refuse(checked(asked.config), ["a", "b", "c"])


def test_nobody_sees_counts_of_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client sends for a sum of counts is masked."""
    from fedatlas.setup import secure_learning

    sent: dict[int, list[Any]] = defaultdict(list)
    before = secure_learning.Hidden._answer

    def heard(self: Any, ask: Any, k: int, answer: Any, session: Any) -> Any:
        reply, session = before(self, ask, k, answer, session)
        if ask.what == secure_learning.LEARN and "counts" in answer:
            sent[k].append((answer["counts"], reply))
        return reply, session

    monkeypatch.setattr(secure_learning.Hidden, "_answer", heard)
    setup(patients(tmp_path / "rows.csv"), {**COUNTS, "k": 12}, MASKED)
    assert {*sent} == {0, 1, 2}
    for counts, reply in chain(*sent.values()):
        words = torch.cat([x.flatten() for x in reply["masked"].values()])
        assert len(words) >= len(counts)
        assert (words.abs() > 1000).float().mean() > 0.95, "counts are small, masks are not"
