"""The hook `rows`: a party's rows are changed in one place, before anything is computed from them, and new rows follow."""

from __future__ import annotations

import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from fedatlas import Experiment, load
from fedatlas.api import resume, run
from fedatlas.data.dataset import Column
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.mechanism import Learns, Mechanism, Work
from fedatlas.privacy.mechanisms import MECHANISMS
from fedatlas.privacy.own_rows import OwnRows, RowsHow
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from reports import summary

HOLD_OUT = {"on": "validation", "validation": 0.2, "clients": 0.2}


def patients(path: Path, factor: float = 1.0, names: str = "ab", n: int = 80) -> Path:
    """A table of a number, a category and two classes."""
    stream = np.random.default_rng(3)
    age, kind = stream.integers(20, 90, n), stream.integers(0, 2, n)
    lines = [f"{a * factor:g},{names[k]},{'yes' if a + 20 * k > 60 else 'no'}" for a, k in zip(age, kind, strict=True)]
    path.write_text("\n".join(["age,kind,ill", *lines]) + "\n")
    return path


def experiment(path: Path, *mechanisms: str, **tables: Any) -> Experiment:
    return Experiment.of(
        **{
            "rounds": 2,
            "data": {"name": "file", "path": str(path), "label": "ill", "test": 0.2},
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            "engine": {"name": "loop"},
            "privacy": [{"name": name} for name in mechanisms],
            **tables,
        }
    )


def toy(name: str, rows: Any, new_rows: Any = None, **work: Any) -> Callable[[], Mechanism]:
    return lambda: Mechanism(
        name, {}, 0, "server", Learns("", "", ""), lambda: Work(rows=rows, new_rows=new_rows, **work), acts_on="rows"
    )


def doubled(rows: OwnRows, how: RowsHow) -> OwnRows:
    x = rows.x.clone()
    x[:, 0] *= 2
    return rows._replace(x=x)


def drawn(rows: OwnRows, how: RowsHow) -> OwnRows:
    """Noise from the party's own secret."""
    x = rows.x.clone()
    x[:, 0] += torch.from_numpy(np.random.default_rng([*how.own]).normal(size=len(x))).to(x.dtype)
    return rows._replace(x=x)


def renamed(rows: OwnRows, how: RowsHow) -> OwnRows:
    """Party 0 merges its categories, and says so; the column gets a category that no file has."""
    name, known = rows.columns[1]
    if how.party:
        return rows
    x = rows.x.clone()
    x[:, 1] = float(len(known))
    return rows._replace(x=x, columns=(rows.columns[0], (name, (*known, "a or b"))), told={"merged": [name]})


def shifted(rows: OwnRows, how: RowsHow) -> OwnRows:
    """By a number that the clients share and the server does not know."""
    x = rows.x.clone()
    x[:, 0] += float(how.shared[0] + 1)
    return rows._replace(x=x)


def fewer(rows: OwnRows, how: RowsHow) -> OwnRows:
    return rows._replace(x=rows.x[1:], y=rows.y[1:], row=rows.row[1:])


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, made in {
        "doubled": toy("doubled", doubled, doubled, row_figures=lambda pairs: {"clients": len(pairs)}),
        "trained": toy("trained", doubled),
        "drawn": toy("drawn", drawn),
        "renamed": toy("renamed", renamed),
        "shifted": toy("shifted", shifted, shifted),
        "fewer": toy("fewer", fewer),
    }.items():
        monkeypatch.setitem(MECHANISMS, name, made)


def predictions(folder: Path, rows: Path) -> Any:
    return load(folder).predict(rows, client=0)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "cfl", "gossip", "local_only", "centralised"])
def test_a_run_is_that_of_the_changed_table(tmp_path: Path, algorithm: str) -> None:
    """Doubling a column by a mechanism is doubling it in the file: constants, held-out rows, figures, bits and predictions."""
    once, twice = patients(tmp_path / "once.csv"), patients(tmp_path / "twice.csv", 2.0)
    more = {"algorithm": {"name": algorithm}, "evaluation": {"clients": 0.2}}
    changed = run(experiment(once, "doubled", **more), out=tmp_path / "changed", baselines=False).path
    plain = run(experiment(twice, **more), out=tmp_path / "plain", baselines=False).path
    for name in ("model.safetensors", "preprocess.json", "partition.json"):
        assert not (plain / name).exists() or (changed / name).read_bytes() == (plain / name).read_bytes(), name
    assert summary(changed)["final"] == summary(plain)["final"]
    assert summary(changed)["per_client"] == summary(plain)["per_client"]
    found = summary(changed)["privacy"]
    assert (found["mechanisms"], found["doubled"]) == ([{"name": "doubled"}], {"clients": 3})
    if (plain / "model.safetensors").exists():
        pandas.testing.assert_frame_equal(predictions(changed, once), predictions(plain, twice))


def test_held_out_rows_are_changed_only_if_new_rows_are(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    named = (["doubled"], ["trained"], [])
    both, one, none = (set_up(checked(experiment(path, *m, evaluation=HOLD_OUT).config)) for m in named)
    held = [int(rows[0]) for rows in (*none.validation.values(), *none.held_out.values()) if len(rows)]
    for setup, factor, kept in ((both, 2, 2), (one, 2, 1)):
        plain, mine = none.held.raw.train.x, setup.held.raw.train.x
        at = none.partition.clients[1]
        assert torch.equal(mine[at, 0], factor * plain[at, 0])
        assert torch.equal(mine[held, 0], kept * plain[held, 0])
        assert torch.equal(setup.held.raw.test.x[:, 0], kept * none.held.raw.test.x[:, 0])


def test_new_categories_are_joined_over_all_parties(tmp_path: Path) -> None:
    setup = set_up(checked(experiment(patients(tmp_path / "rows.csv"), "renamed").config))
    assert setup.held.raw.schema == (Column("age"), Column("kind", ("a", "a or b", "b")))
    code = setup.held.raw.train.x[:, 1]
    assert set(code[setup.partition.clients[0]].tolist()) == {1.0}
    assert set(code[setup.partition.clients[1]].tolist()) == {0.0, 2.0}
    assert set(setup.held.raw.test.x[:, 1].tolist()) == {0.0, 2.0}
    assert setup.held.told == {"renamed": {0: {"merged": ["kind"]}}}


def test_rows_may_be_left_out(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    fewer, all_ = (set_up(checked(experiment(path, *m).config)) for m in (["fewer"], []))
    assert [*fewer.sizes.values()] == [n - 1 for n in all_.sizes.values()]
    assert fewer.partition.clients[0].tolist() == all_.partition.clients[0].tolist()[1:]


def test_draws_are_the_same_in_a_resumed_run_and_others_in_another_run(tmp_path: Path) -> None:
    """The secret lies in the run's folder, for its owner only, and in no other file."""
    path = patients(tmp_path / "rows.csv")
    first = run(experiment(path, "drawn"), out=tmp_path / "first", baselines=False).path
    whole = run(experiment(path, "drawn", rounds=4), out=tmp_path / "other", baselines=False).path
    assert (first / "rows.secret").read_bytes() != (whole / "rows.secret").read_bytes()
    assert (first / "preprocess.json").read_bytes() != (whole / "preprocess.json").read_bytes()
    assert stat.S_IMODE((first / "rows.secret").stat().st_mode) == 0o600
    before = (first / "preprocess.json").read_bytes()
    resume(first, ["rounds=4"], baselines=False)
    assert (first / "preprocess.json").read_bytes() == before
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "rows.secret").write_bytes((first / "rows.secret").read_bytes())
    again = run(experiment(path, "drawn", rounds=4), out=tmp_path / "again", baselines=False).path
    assert (again / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    root = (first / "rows.secret").read_bytes()
    for file in first.rglob("*"):
        if file.is_file() and file.name != "rows.secret":
            assert root not in file.read_bytes(), file
            assert root.hex().encode() not in file.read_bytes(), file


def test_a_prediction_needs_the_clients_secret(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, "shifted"), out=tmp_path / "run", baselines=False).path
    expected = predictions(done, path)
    assert load(done).preprocess.change is not None
    with pytest.raises(PrivacyError, match="never written"):
        pickle.dumps(load(done).preprocess)
    root = (done / "rows.secret").read_bytes()
    (done / "rows.secret").write_bytes(bytes(32))
    other = predictions(done, path)
    assert not np.allclose(other["p_yes"], expected["p_yes"])
    (done / "rows.secret").write_bytes(root[:5])
    with pytest.raises(ConfigError, match=r"rows\.secret' is damaged"):
        predictions(done, path)
    (done / "rows.secret").unlink()
    with pytest.raises(ConfigError, match=r"lacks 'rows\.secret'"):
        predictions(done, path)


def test_a_mechanism_on_rows_leaves_rounds_as_they_are(tmp_path: Path) -> None:
    setup = set_up(checked(experiment(patients(tmp_path / "rows.csv"), "doubled").config))
    assert setup.bench.protection is None


def test_a_cluster_cannot_hold_the_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the keys of 'doubled' stay in one process"):
        checked(experiment(patients(tmp_path / "rows.csv"), "doubled", engine={"cluster": "auto"}).config)
