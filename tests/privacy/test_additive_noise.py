"""Additive perturbation of rows (P5): noise of a published law, the distribution that EM finds again, and what is left of privacy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from agreements import Agreements, write_rows
from fedatlas import Experiment, load
from fedatlas.api import run
from fedatlas.errors import ConfigError
from fedatlas.privacy.additive_noise.mechanism import noisy
from fedatlas.privacy.additive_noise.reconstruction import ColumnDensity, privacy_of, reconstruct
from fedatlas.privacy.own_rows import OwnRows, RowsHow, how_of
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.refusals import checked
from nodes_in_process import run_here
from reports import Page, summary

BOUNDS = {"age": [20, 90], "dose": [-1, 1]}
Law = Literal["uniform", "gaussian"]


def patients(path: Path, n: int = 400) -> Path:
    stream = np.random.default_rng(3)
    age, dose, kind = stream.integers(20, 90, n), stream.uniform(-1, 1, n), stream.integers(0, 2, n)
    ill = age + 20 * kind + 10 * dose > 65
    lines = [f"{a},{d:.4f},{'ab'[k]},{'yes' if y else 'no'}" for a, d, k, y in zip(age, dose, kind, ill, strict=True)]
    path.write_text("\n".join(["age,dose,kind,ill", *lines]) + "\n")
    return path


def experiment(path: Path, mechanism: dict[str, Any] | None, **tables: Any) -> Experiment:
    table = [] if mechanism is None else [{"name": "additive_noise", "bounds": BOUNDS, **mechanism}]
    data = {"name": "file", "path": str(path), "label": "ill", "test": 0.25}
    return Experiment.of(
        **{
            "rounds": 3,
            "data": data,
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            "engine": {"name": "loop"},
            "privacy": table,
            **tables,
        }
    )


def setup(path: Path, mechanism: dict[str, Any] | None, **tables: Any) -> Setup:
    return set_up(checked(experiment(path, mechanism, **tables).config))


def table(n: int = 4000) -> OwnRows:
    x = torch.from_numpy(np.random.default_rng(0).uniform(0, 10, (n, 2))).float()
    return OwnRows(x, torch.zeros(n, dtype=torch.int64), torch.arange(n), (("a", ()), ("b", ())))


HOW = RowsHow(0, 1, bytes(range(32)), bytes(32))


# ---------------------------------------------------------------------- the noise


@pytest.mark.parametrize("kind", ["uniform", "gaussian"])
def test_the_noise_has_its_law_and_its_scale(kind: Law) -> None:
    rows = table(20000)
    y = (noisy(rows, HOW, {"a": (0, 10), "b": (0, 20)}, kind, 0.5).x - rows.x).double().numpy()
    for j, s in enumerate((5.0, 10.0)):
        assert abs(y[:, j].mean()) < 4 * s / math.sqrt(len(y))
        assert y[:, j].std() == pytest.approx(s / math.sqrt(3) if kind == "uniform" else s, rel=0.02)
        assert (np.abs(y[:, j]).max() <= s + 1e-3) == (kind == "uniform")
    assert abs(np.corrcoef(y.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(y[:, 0], rows.x[:, 0])[0, 1]) < 0.03


def test_other_parties_and_other_columns_draw_other_noise() -> None:
    rows = table()
    mine, theirs = (noisy(rows, HOW._replace(own=bytes([k]) * 32), (0, 10), "uniform", 0.5).x for k in (1, 2))
    assert abs(np.corrcoef(mine[:, 0] - rows.x[:, 0], theirs[:, 0] - rows.x[:, 0])[0, 1]) < 0.06
    assert torch.equal(mine, noisy(rows, HOW._replace(own=bytes([1]) * 32), (0, 10), "uniform", 0.5).x)


def test_only_named_columns_of_numbers_change_and_missing_cells_stay() -> None:
    rows = table()
    x = rows.x.clone()
    x[3, 0] = torch.nan
    rows = rows._replace(x=x, columns=(("a", ()), ("b", ("no", "yes"))))
    made = noisy(rows, HOW, {"a": (0, 10)}, "uniform", 0.5)
    assert torch.isnan(made.x[:, 0]).nonzero().flatten().tolist() == [3]
    assert torch.equal(made.x[:, 1], rows.x[:, 1])
    both = table()
    assert torch.equal(noisy(both, HOW, (0, 10), "gaussian", 0.5, ["b"]).x[:, 0], both.x[:, 0])


def test_without_noise_the_run_is_the_plain_one(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    none, plain = (
        run(experiment(path, how), out=tmp_path / name, baselines=False).path
        for name, how in (("none", {"scale": 0.0}), ("plain", None))
    )
    assert (none / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_clients_train_on_noise_and_are_judged_without(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    own = {"evaluation": {"on": "validation", "validation": 0.2, "clients": 0.2}}
    noised, plain = (setup(path, how, **own) for how in ({"noise": "seed"}, None))
    before, after = plain.held.raw, noised.held.raw
    at = np.concatenate(plain.partition.clients)
    moved = (after.train.x - before.train.x)[:, :2]
    assert bool((moved[at] != 0).all())
    kept = np.setdiff1d(np.arange(len(moved)), at)
    assert len(kept)
    assert bool((moved[kept] == 0).all())
    assert torch.equal(after.test.x, before.test.x)
    assert torch.equal(after.train.x[:, 2], before.train.x[:, 2])
    assert torch.equal(after.train.y, before.train.y)


# ---------------------------------------------------------------------- the distribution


def bimodal(n: int, seed: int = 0) -> np.ndarray:
    stream = np.random.default_rng(seed)
    return np.clip(np.where(stream.random(n) < 0.5, stream.normal(2, 0.5, n), stream.normal(8, 0.5, n)), 0, 10)


def with_noise(x: np.ndarray, law: Law, s: float, seed: int = 1) -> np.ndarray:
    stream = np.random.default_rng(seed)
    return x + (stream.uniform(-s, s, len(x)) if law == "uniform" else stream.normal(0, s, len(x)))


def error(found: ColumnDensity, law: Law) -> float:
    """L1 distance to the density of 2,000,000 values without noise."""
    true = np.histogram(bimodal(2_000_000, 9), found.edges)[0] / 2_000_000
    return float(np.abs(found.p - true).sum())


@pytest.mark.parametrize("law", ["uniform", "gaussian"])
def test_em_never_lowers_the_likelihood_and_finds_both_modes(law: Law) -> None:
    s = 2.5 if law == "uniform" else 1.5
    found = reconstruct(with_noise(bimodal(20000), law, s), 0, 10, law, s, gain=0.0)
    assert len(found.likelihoods) > 10
    assert all(b >= a - 1e-6 for a, b in zip(found.likelihoods, found.likelihoods[1:], strict=False))
    assert found.p.sum() == pytest.approx(1)
    middle = (found.edges[1:] + found.edges[:-1]) / 2
    low, high = found.density[np.abs(middle - 2) < 1].mean(), found.density[np.abs(middle - 8) < 1].mean()
    between = found.density[np.abs(middle - 5) < 1].mean()
    assert min(low, high) > 5 * between


@pytest.mark.parametrize("law", ["uniform", "gaussian"])
def test_the_error_falls_with_the_number_of_values(law: Law) -> None:
    """Means over five draws: one draw may be lucky."""
    s = 2.0 if law == "uniform" else 1.0
    sizes = (100, 1000, 10000)
    means = [
        np.mean([error(reconstruct(with_noise(bimodal(n, k), law, s, 50 + k), 0, 10, law, s), law) for k in range(5)])
        for n in sizes
    ]
    assert means[0] > 1.3 * means[1] > 1.3**2 * means[2]


def test_the_privacy_of_the_papers_example() -> None:
    """X and Y uniform in intervals of length 1: h(Z) = 1 / (2 ln 2), so that the loss is 1 - 2^-0.7213 = 0.3935."""
    flat = ColumnDensity(np.linspace(0, 1, 51), np.full(50, 0.02), ())
    found = privacy_of(flat, "uniform", 0.5)
    assert found.privacy == pytest.approx(1.0)
    assert found.loss == pytest.approx(1 - 2 ** (-1 / (2 * math.log(2))), abs=1e-4)
    assert found.privacy_left == pytest.approx(2 ** (-1 / (2 * math.log(2))), abs=1e-4)


def test_more_noise_leaves_more_privacy() -> None:
    flat = ColumnDensity(np.linspace(0, 4, 51), np.full(50, 0.02), ())
    left = [privacy_of(flat, "gaussian", s).privacy_left for s in (0.1, 1.0, 10.0, 100.0)]
    assert left == sorted(left)
    assert left[-1] == pytest.approx(4, rel=1e-3)
    narrow = privacy_of(flat, "gaussian", 0.01)  # far below a cell: z tells as much as the noise itself
    assert narrow.privacy_left == pytest.approx(0.01 * math.sqrt(2 * math.pi * math.e), rel=0.05)


def test_values_that_no_x_explains_are_left_out() -> None:
    z = np.array([0.5, 0.7, 99.0, -5.0])
    found = reconstruct(z, 0, 1, "uniform", 0.1, cells=10)
    assert found.p.sum() == pytest.approx(1)
    assert np.isfinite(found.likelihoods).all()
    nothing = reconstruct(z[2:], 0, 1, "uniform", 0.1, cells=10)
    assert nothing.p.tolist() == [0.1] * 10


# ---------------------------------------------------------------------- a run


def test_a_run_says_what_it_protects_and_predicts_on_plain_rows(tmp_path: Path) -> None:
    path = patients(tmp_path / "rows.csv")
    done = run(experiment(path, {}), out=tmp_path / "run", baselines=False).path
    found = summary(done)["privacy"]
    assert "epsilon" not in found
    age = found["additive_noise"]["columns"]["age"]
    assert 40 < age["privacy"] < 72  # 61 to 70 in 18 draws, 54 once; ages spread over nearly the whole range of 70
    assert 0.25 < age["loss"] < 0.55  # uniform noise as wide as the range loses 0.39 of a uniform column
    text = Page(done / "report.html").text()
    assert "additive_noise states no epsilon" in text
    assert "age: a value is as hard to guess as one among an interval of" in text
    assert load(done).preprocess.change is None
    assert len(load(done).predict(path)) == 400


def test_noise_by_the_seed_is_said_to_protect_nobody(tmp_path: Path) -> None:
    """And it is: everybody who has the file draws it again, in every run."""
    path = patients(tmp_path / "rows.csv")
    first, second = (
        run(experiment(path, {"noise": "seed"}), out=tmp_path / name, baselines=False).path for name in ("a", "b")
    )
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert "'additive_noise': noise = 'seed' protects nobody" in " ".join(summary(first)["notices"])
    text = Page(first / "report.html").text()
    assert "This protects no one; it is for tests." in text
    assert "age 20 to 90; dose -1 to 1" in text


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        ({"bounds": {"age": [20, 90]}}, "the range of column 'dose' is missing, and it is not computed from rows"),
        ({"bounds": {"age": [90, 20]}}, "privacy.additive_noise.bounds.age = [90.0, 20.0]: give the lowest and the highest"),
        ({"bounds": [0, 0]}, "privacy.additive_noise.bounds = [0.0, 0.0]: give the lowest"),
        ({"columns": ["kind"]}, "privacy.additive_noise.columns: 'kind' holds categories"),
        ({"columns": ["weight"]}, "privacy.additive_noise.columns: 'weight' is no input"),
        ({"scale": -1}, "privacy.additive_noise.scale = -1: expected a number of 0 or more"),
        ({"kind": "laplace"}, "privacy.additive_noise.kind = 'laplace': expected 'uniform' or 'gaussian'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path: Path, mechanism: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        setup(patients(tmp_path / "rows.csv"), mechanism)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_pictures_are_refused() -> None:
    data = {"data": {"name": "digits", "limit": 100}, "partition": {"name": "iid", "clients": 2}}
    table = [{"name": "additive_noise", "bounds": [0, 16]}]
    with pytest.raises(ConfigError, match="it changes the columns of a table, and these rows are pictures or texts"):
        set_up(checked(Experiment.of(**data, privacy=table).config))


def test_nodes_add_the_noise_of_their_number(tmp_path: Path) -> None:
    """Each from a secret of its own."""
    source = "os"
    made = Agreements(tmp_path / source)
    files = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}
    trainers = {name: made.trainer(name, file) for name, file in files.items()}
    config = made.config(privacy=[{"name": "additive_noise", "bounds": [-3, 3], "noise": source}])
    ran = run_here(made, trainers, made.signed("r", config), test=files["north"])
    assert ran.state.status == "finished", ran.state.why
    for k, (name, file) in enumerate(files.items()):
        plain = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1))
        kept = made.paths[name] / "state" / "r" / "rows.secret"
        assert kept.stat().st_mode & 0o777 == 0o600
        rows = OwnRows(torch.from_numpy(plain).float(), torch.zeros(40), torch.arange(40), (("a", ()), ("b", ())))
        how = how_of("additive_noise", {"noise": source}, kept.read_bytes(), config["seed"], k, 3)
        expected = noisy(rows, how, (-3, 3), "uniform", 0.5).x
        running = trainers[name].run
        assert running is not None
        assert torch.equal(running.setup.held.raw.train.x, expected)  # type: ignore[union-attr]
