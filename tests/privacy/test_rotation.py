"""Rotated rows (P6): what distances and networks keep, who can judge and predict, and the attacks that undo a rotation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from agreements import Agreements
from fedatlas import Experiment, load
from fedatlas.api import resume, run
from fedatlas.errors import ConfigError, DataError
from fedatlas.prediction.onnx_file import export_onnx
from fedatlas.privacy.own_rows import OwnRows, RowsHow
from fedatlas.privacy.rotation.attacks import figures_of, independent_components, known_sample, likeness, procrustes
from fedatlas.privacy.rotation.mechanism import drawn, in_units, rotated
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from reports import Page, rows, summary

HOW = RowsHow(0, 3, bytes(range(32)), bytes(range(1, 33)))
BOUNDS = {"age": [20, 90], "dose": [-1, 1], "mass": [40, 120]}
VALIDATION = {"evaluation": {"on": "validation", "validation": 0.25}}


def numbers(n: int = 300, p: int = 5, seed: int = 0) -> OwnRows:
    """Two groups of rows, far from normal."""
    stream = np.random.default_rng(seed)
    group = stream.integers(0, 2, n)
    x = stream.uniform(0, 1, (n, p)) * 6 + 4 * group[:, None] * (np.arange(p) % 2)
    columns = tuple((f"c{j}", ()) for j in range(p))
    return OwnRows(torch.from_numpy(x).float(), torch.from_numpy(group), torch.arange(n), columns)


def before_and_after(n: int = 300, p: int = 5, scale: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in units of their ranges, the same rotated, and their groups."""
    own = numbers(n, p)
    made = rotated(own, HOW, (0, 10), scale=scale)
    return in_units(own, range(p), (0, 10)).numpy(), made.x.double().numpy(), own.y.numpy()


# ---------------------------------------------------------------------- what stays


@pytest.mark.parametrize("p", [1, 2, 17, 200])
def test_the_matrix_is_orthogonal_and_the_translation_no_zero(p: int) -> None:
    R, t = drawn(p, bytes(range(32)))
    assert torch.allclose(R.T @ R, torch.eye(p, dtype=torch.float64), atol=1e-12)
    assert bool((t != 0).all())
    again, _ = drawn(p, bytes(range(32)))
    assert torch.equal(R, again)
    assert not torch.allclose(R, drawn(p, bytes(32))[0])


def test_matrices_are_uniform() -> None:
    """Each entry of a uniform rotation has mean 0 and variance 1 / p, and half of all have determinant 1."""
    each = torch.stack([drawn(3, bytes([i, j]) * 16)[0] for i in range(40) for j in range(25)])
    assert each.mean(0).abs().max() < 5 * (1 / 3 / 1000) ** 0.5
    assert ((each**2).mean(0) - 1 / 3).abs().max() < 0.06
    assert abs(float((torch.linalg.det(each) > 0).double().mean()) - 0.5) < 0.08


def test_distances_stay() -> None:
    u, z, _ = before_and_after()
    assert np.abs(u - z).max() > 0.5
    distance = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (u, z)]
    assert np.abs(distance[0] - distance[1]).max() < 1e-5


def test_learners_by_distances_find_the_same() -> None:
    u, z, y = before_and_after()
    y = np.where(np.random.default_rng(1).random(len(y)) < 0.15, 1 - y, y)  # no learner is right everywhere
    for make in (lambda: KNeighborsClassifier(5), lambda: SVC(kernel="rbf", gamma=0.7)):
        plain, turned = (make().fit(x[:200], y[:200]).predict(x[200:]) for x in (u, z))
        assert 0 < plain.mean() < 1
        assert (plain == turned).all()
    R, t = drawn(5, HOW.shared)
    start = u[:4]
    groups = [
        KMeans(4, init=first, n_init=1).fit(x).labels_
        for x, first in ((u, start), (z, start @ R.numpy().T + t.numpy()))
    ]
    assert len(set(groups[0])) == 4
    assert (groups[0] == groups[1]).all()


def test_noise_moves_distances_by_its_size() -> None:
    _, plain, _ = before_and_after(4000)
    _, noisy, _ = before_and_after(4000, scale=0.3)
    assert (noisy - plain).std() == pytest.approx(0.3, rel=0.03)


def test_a_network_on_rotated_rows_is_one_with_its_first_layer_rotated() -> None:
    """Both are trained by plain steps: after them the rotated network's first layer is W R^T, and all else is equal."""
    own = numbers(p=6)
    u = in_units(own, range(6), (0, 10))
    R, _ = drawn(6, HOW.shared)
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    turned = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    turned.load_state_dict(plain.state_dict())
    with torch.no_grad():
        turned[0].weight.copy_(plain[0].weight @ R.T)
    for network, x in ((plain, u), (turned, u @ R.T)):
        optimiser = torch.optim.SGD(network.parameters(), 0.1)
        for _ in range(50):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(x), own.y).backward()
            optimiser.step()
    assert torch.allclose(plain(u), turned(u @ R.T), atol=1e-9)
    assert torch.allclose(plain[0].weight @ R.T, turned[0].weight, atol=1e-9)
    assert torch.allclose(plain[2].weight, turned[2].weight, atol=1e-9)


def test_all_clients_have_one_rotation_and_each_its_own_noise() -> None:
    own = numbers()
    other = HOW._replace(party=1, own=bytes(32))
    assert torch.equal(rotated(own, HOW, (0, 10)).x, rotated(own, other, (0, 10)).x)
    assert not torch.equal(rotated(own, HOW, (0, 10), scale=0.1).x, rotated(own, other, (0, 10), scale=0.1).x)
    assert not torch.equal(rotated(own, HOW, (0, 10)).x, rotated(own, HOW._replace(shared=bytes(32)), (0, 10)).x)


# ---------------------------------------------------------------------- attacks


@pytest.mark.parametrize("p", [2, 5, 20])
def test_one_known_row_more_than_columns_undoes_it(p: int) -> None:
    u, z, _ = before_and_after(p=p)
    assert known_sample(u, z, p + 1) < 1e-4
    R, t = procrustes(u[: p + 1], z[: p + 1])
    true, moved = (x.numpy() for x in drawn(p, HOW.shared))
    assert np.abs(R - true).max() < 1e-4
    assert np.abs(t - moved).max() < 1e-4
    assert known_sample(u, z, max(p // 2, 1)) > 0.1


def test_noise_hinders_the_known_sample_attack() -> None:
    errors = [known_sample(*before_and_after(p=8, scale=scale)[:2], 9) for scale in (0.0, 0.05, 0.5)]
    assert errors[0] < 1e-4 < errors[1] < errors[2]


def test_independent_components_find_columns_again() -> None:
    stream = np.random.default_rng(0)
    u = stream.uniform(-1, 1, (2000, 4))
    R, t = (x.numpy() for x in drawn(4, HOW.shared))
    found = independent_components(u @ R.T + t)
    assert found is not None
    assert likeness(u, found) > 0.98 > likeness(u, u @ R.T)
    normal = stream.normal(size=(2000, 4))  # of normal columns no rotation can be told from another
    found = independent_components(normal @ R.T + t)
    assert found is None or likeness(normal, found) < 0.95


def test_figures_of_few_rows_and_of_one_column() -> None:
    u, z, _ = before_and_after(n=3, p=2)
    found = figures_of(u, z)
    assert (found["columns"], list(found["known_sample"]), found["ica"]) == (2, [1], None)
    u, z, _ = before_and_after(p=1)
    assert figures_of(u, z)["ica"] is None
    assert figures_of(u[:0], z[:0])["known_sample"] == {}


# ---------------------------------------------------------------------- a run


def patients(path: Path, n: int = 400) -> Path:
    stream = np.random.default_rng(3)
    age, dose, mass = (stream.uniform(low, high, n) for low, high in BOUNDS.values())
    kind = stream.integers(0, 2, n)
    ill = age + mass / 2 + 20 * dose > 95
    cells = zip(age, dose, mass, kind, ill, strict=True)
    lines = [f"{a:.2f},{d:.3f},{m:.2f},{'ab'[k]},{'yes' if y else 'no'}" for a, d, m, k, y in cells]
    path.write_text("\n".join(["age,dose,mass,kind,ill", *lines]) + "\n")
    return path


def experiment(path: Path, mechanism: dict[str, Any] | None, **tables: Any) -> Experiment:
    table = [] if mechanism is None else [{"name": "rotation", "bounds": BOUNDS, **mechanism}]
    return Experiment.of(
        **{
            "rounds": 5,
            "data": {"name": "file", "path": str(path), "label": "ill", "test": 0.1, "drop": ["kind"]},
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            "local": {"lr": 0.5},
            "privacy": table,
            **VALIDATION,
            **tables,
        }
    )


def test_a_run_is_judged_by_clients_and_predicts_with_their_secret(tmp_path: Path) -> None:
    """New rows are rotated before the model reads them: it classifies the table about as well as one without the rotation."""
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {}), out=tmp_path / "run").path
    plain = run(experiment(path, None), out=tmp_path / "plain", baselines=False).path
    truth = [line.rsplit(",", 1)[1] for line in path.read_text().split()[1:]]
    right = [(load(one).predict(path)["prediction"] == truth).mean() for one in (done, plain)]
    assert min(right) > 0.85
    assert abs(right[0] - right[1]) < 0.06
    assert rows(done)[-1]["accuracy"] > 0.85
    assert "test" not in summary(done)
    assert "test" in summary(plain)
    found = summary(done)["privacy"]["rotation"]
    assert found["columns"] == 3
    assert found["known_sample"]["4"] < 1e-4
    assert found["known_sample"]["1"] > 0.05
    assert found["ica"] > 0.95
    text = Page(done / "report.html").text()
    assert "rotation states no epsilon" in text
    assert "undoes the rotation of 3 columns" in text
    assert json.loads((done / "rows.json").read_text())["columns"] == [["age", []], ["dose", []], ["mass", []]]
    with pytest.raises(ConfigError, match="the secret is in no exported file"):
        export_onnx(load(done), tmp_path / "model.onnx")
    root = (done / "rows.secret").read_bytes()
    (done / "rows.secret").write_bytes(bytes(32))
    assert (load(done).predict(path)["prediction"] == truth).mean() < max(right) - 0.1
    (done / "rows.secret").write_bytes(root)
    before = (done / "preprocess.json").read_bytes()
    resume(done, ["rounds=6"], baselines=False)
    assert (done / "preprocess.json").read_bytes() == before


def test_the_servers_rows_are_not_read(tmp_path: Path) -> None:
    """In a simulation they would be there: they are blanked, so that no figure can come from them."""
    held = set_up(checked(experiment(patients(tmp_path / "rows.csv"), {}).config)).held.raw
    assert not held.test.x.any()
    assert [column.name for column in held.schema] == ["rotated 1", "rotated 2", "rotated 3"]


def test_columns_that_are_not_named_stay(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.1}
    some = {"columns": ["age", "mass"], "bounds": {"age": [20, 90], "mass": [40, 120]}}
    plain, turned = (set_up(checked(experiment(path, how, data=data).config)).held.raw for how in (None, some))
    assert [column.name for column in turned.schema] == ["rotated 1", "dose", "rotated 2", "kind"]
    assert torch.equal(plain.train.x[:, [1, 3]], turned.train.x[:, [1, 3]])
    done = run(experiment(path, some, data=data, rounds=1), out=tmp_path / "run", baselines=False).path
    assert len(load(done).predict(path)) == 400


def test_a_missing_cell_makes_its_rotated_columns_missing(tmp_path: Path) -> None:
    own = numbers(4, 3)
    x = own.x.clone()
    x[1, 2] = torch.nan
    made = rotated(own._replace(x=x), HOW, (0, 10)).x
    assert torch.isnan(made).all(1).tolist() == [False, True, False, False]
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {}, rounds=1), out=tmp_path / "run", baselines=False).path
    row = {"age": [50.0], "dose": [float("nan")], "mass": [70.0]}
    with pytest.raises(DataError, match="is missing in 1 rows"):
        load(done).predict(row)
    with pytest.warns(UserWarning, match="their predictions are empty"):
        assert load(done).predict(row, holes="empty")["prediction"].isna().all()


@pytest.mark.parametrize(
    ("mechanism", "tables", "said"),
    [
        ({}, {"evaluation": {"on": "test"}}, "the server cannot judge by rows of its own, as only the clients know"),
        ({}, {"public": {"rows": 20}}, "[public]: not under 'rotation'"),
        ({}, {"algorithm": {"name": "fedmd"}}, "the server does not know the rotation of its public rows"),
        ({}, {"engine": {"cluster": "auto"}}, "the keys of 'rotation' stay in one process"),
        ({"bounds": {"age": [20, 90]}}, {}, "privacy.rotation.bounds: the range of column 'dose' is missing"),
        ({"bounds": {"age": [20, 20]}}, {}, "privacy.rotation.bounds.age = [20.0, 20.0]"),
        ({"columns": ["size"]}, {}, "privacy.rotation.columns: 'size' is no input"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, mechanism: dict[str, Any], tables: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        set_up(checked(experiment(patients(tmp_path / "rows.csv"), mechanism, **tables).config))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_categories_and_pictures_are_refused(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.1}
    with pytest.raises(ConfigError, match="column 'kind' holds categories, which have no rotation"):
        set_up(checked(experiment(path, {}, data=data).config))
    pictures = {"data": {"name": "digits", "limit": 100}, "partition": {"name": "iid", "clients": 2}, **VALIDATION}
    with pytest.raises(ConfigError, match="these rows are pictures or texts"):
        set_up(checked(Experiment.of(**pictures, privacy=[{"name": "rotation", "bounds": [0, 1]}]).config))


def test_nodes_refuse_it(tmp_path: Path) -> None:
    """They have no secret in common that the server does not know, in this version."""
    with pytest.raises(ConfigError, match=r"name = 'rotation': not in this version of deployment"):
        Agreements(tmp_path).config(privacy=[{"name": "rotation", "bounds": [0, 1]}], **VALIDATION)
