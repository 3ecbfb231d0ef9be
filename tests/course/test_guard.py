"""``[guard]``: rows of the server's own decide which models are committed; versions and the way back (spec, section 8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedatlas
from configured import set_up
from fedatlas import ConfigError, Experiment
from fedatlas.config import parse
from fedatlas.course.guard import CommitGuard
from fedatlas.course.progress import Silent
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.link import Observer, Request
from fedatlas.record.checkpoint import Checkpoints
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.versions import versions_of
from fedatlas.setup.refusals import checked
from fedatlas.terminal import columns
from fedatlas.tree import Tree

SMALL: dict[str, Any] = {
    "rounds": 5,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "local": {"lr": 0.01, "epochs": 3},
    "engine": {"workers": 1, "plan": "tuned", "precision": "float64"},
}
GUARD = {"rows": 100, "tol": 0.05}
POISON = [{"name": "sign_flip", "clients": [0, 1], "c": 20.0, "rounds": [3, 3]}]


def tables(**more: Any) -> dict[str, Any]:
    return {**SMALL, "guard": GUARD, **more}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def states(path: Path) -> tuple[Any, PartyState, int]:
    """Return the server's state, the clients' and the round of the newest checkpoint."""
    party = PartyState()
    found = Checkpoints(path / "checkpoint", RunFolder.open(path).config().hash()).load(party)
    return found.run.server, party, found.run.round


def run(path: Path, **more: Any) -> Path:
    fedatlas.run(Experiment.of(**tables(**more)), out=path, baselines=False)
    return path


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SCAFFOLD run whose third round is poisoned."""
    return run(tmp_path_factory.mktemp("guard") / "run", algorithm={"name": "scaffold"}, attack=POISON)


def test_a_poisoned_round_is_rejected_and_the_version_before_it_served(poisoned: Path):
    rows = rows_of(poisoned)
    assert [row["committed"] for row in rows] == [True, True, True, False, True, True]
    assert [row["version"] for row in rows] == [0, 1, 2, 2, 4, 5]
    assert rows[3]["score"] < rows[2]["score"] - GUARD["tol"]
    assert (rows[3]["accuracy"], rows[3]["loss"]) == (rows[2]["accuracy"], rows[2]["loss"])
    listed = versions_of(poisoned)
    assert [one.begun_from for one in listed] == [0, 0, 1, 2, 2, 4]
    assert [one.version for one in listed if one.current] == [5]
    summary = json.loads((poisoned / "summary.json").read_text())
    assert summary["guard"]["rejected_rounds"] == [3]
    assert "Which models were committed" in (poisoned / "report.html").read_text()
    assert dict(columns(rows[3]))["guard"].endswith(" rejected")
    assert dict(columns(rows[2]))["guard"] == f"{rows[2]['score']:.4f}"


class Heard(Silent):
    """Keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def said(self, notice: str) -> None:
        self.notices.append(notice)


def test_whoever_watches_is_told_of_a_rejection(tmp_path: Path):
    heard = Heard()
    fedatlas.run(
        Experiment.of(**tables(rounds=3, attack=POISON)), out=tmp_path / "run", baselines=False, progress=heard
    )
    (told,) = [one for one in heard.notices if one.startswith("Round 3 is rejected")]
    assert f"macro F1 {rows_of(tmp_path / 'run')[3]['score']:.4f} on the guard's rows" in told
    assert told.endswith("Version 2 stays.")


def test_infinite_tolerance_is_bitwise_off(tmp_path: Path):
    off = {**SMALL, "rounds": 3, "attack": POISON}
    fedatlas.run(Experiment.of(**off), out=tmp_path / "off", baselines=False)
    run(tmp_path / "inf", rounds=3, attack=POISON, guard={"rows": 100, "tol": float("inf")})
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("off", "inf")]
    assert models[0] == models[1]
    assert all(row["committed"] for row in rows_of(tmp_path / "inf"))
    assert "tol = inf" in (tmp_path / "inf" / "config.toml").read_text()


def test_without_a_guard_hash_and_rows_are_as_before():
    assert "guard" not in parse(SMALL).plain()
    assert parse(SMALL).hash() != parse(tables()).hash()


class Fixed(CommitGuard):
    """A guard that is told each score."""

    told: float | None = 0.0

    def score(self, model: Any) -> float | None:  # noqa: ARG002
        return self.told


def walked(tol: float, step: float, rounds: int) -> tuple[float, int]:
    """Return the score of the model after an attacker has taken ``step`` in every round, and how often it got through."""
    guard = Fixed(set_up(parse({**tables(), "guard": {"rows": 100, "tol": tol}})))
    guard.told = held = 0.9
    guard.decide(0, None)  # type: ignore[arg-type]
    through = 0
    for number in range(1, rounds + 1):
        guard.told = held - step
        if guard.decide(number, None)["committed"]:  # type: ignore[arg-type]
            held, through = guard.told, through + 1
    return held, through


def test_half_the_tolerance_a_round_does_not_walk_the_model_down():
    held, through = walked(0.02, 0.01 - 1e-9, 200)
    assert through == 2
    assert held >= 0.9 - 0.02
    assert walked(float("inf"), 0.01, 50)[1] == 50, "the attacker walks where nothing is rejected"


def test_a_lower_figure_may_be_better():
    numbers = {**tables(), "data": {"name": "diabetes_lars"}, "guard": {"rows": 40, "metric": "rmse", "tol": 1.0}}
    guard = Fixed(set_up(parse(numbers)))
    for number, (score, committed) in enumerate(
        [(60.0, True), (50.0, True), (51.5, False), (50.9, True), (40.0, True)]
    ):
        guard.told = score
        assert guard.decide(number, None)["committed"] is committed  # type: ignore[arg-type]


def test_a_model_that_is_not_finite_is_rejected():
    guard = Fixed(set_up(parse(tables())))
    guard.decide(0, None)  # type: ignore[arg-type]
    guard.told = None
    assert guard.decide(1, None) == {"committed": False, "version": 0, "score": None}  # type: ignore[arg-type]
    assert "numbers that are not finite" in guard.rejection(1)
    first = Fixed(set_up(parse(tables())))
    first.told = None
    with pytest.raises(ConfigError, match=r"guard.metric = 'macro_f1' is undefined on the guard's rows"):
        first.decide(0, None)  # type: ignore[arg-type]


class PoisonedControl(Observer):
    """A client of SCAFFOLD that trains honestly in round 3, and sends another change of its control."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def replied(self, request: Request, update: Any) -> None:
        if (request.round, request.client) == (3, 0):
            update["c"] = update["c"].map(lambda x: self.scale * (torch.arange(x.numel()) % 7 - 3.0).view_as(x))


def test_a_control_that_is_not_finite_is_rejected_though_the_model_is_sound(tmp_path: Path):
    given = Experiment.of(**tables(rounds=4, algorithm={"name": "scaffold"}))
    fedatlas.run(given, out=tmp_path / "run", baselines=False, observers=[PoisonedControl(float("nan"))])
    rows = rows_of(tmp_path / "run")
    assert [(row["committed"], row["version"]) for row in rows[2:]] == [(True, 2), (False, 2), (True, 4)]
    assert rows[3]["score"] is None


def test_a_rollback_takes_a_poisoned_control_out(tmp_path: Path):
    """The guard judges models: it commits the round that poisons a control, and rejects those after it."""
    path = tmp_path / "run"
    given = Experiment.of(**tables(rounds=5, algorithm={"name": "scaffold"}))
    fedatlas.run(given, out=path, baselines=False, observers=[PoisonedControl(10.0)])
    assert [row["committed"] for row in rows_of(path)] == [True, True, True, True, False, False]
    fedatlas.rollback(path, 2)
    fedatlas.resume(path, ["rounds=7"])
    assert [row["committed"] for row in rows_of(path)[-2:]] == [True, True]


def test_a_round_that_diverges_before_it_is_judged_takes_no_version_back():
    guard = Fixed(set_up(parse(tables())))
    for number in range(3):
        guard.decide(number, None)  # type: ignore[arg-type]
        guard.taken()
    guard.undo()
    assert guard.standing.version == 2
    guard.decide(3, None)  # type: ignore[arg-type]
    guard.undo()
    assert guard.standing.version == 2


def test_nobody_trains_or_tests_on_the_guards_rows():
    plain, guarded = set_up(parse(SMALL)), set_up(parse(tables()))
    assert guarded.rows.common("guard").n == 100
    assert guarded.rows.common("test").n == plain.rows.common("test").n - 100
    assert torch.equal(guarded.dataset.train.x, plain.dataset.train.x)
    held, own = guarded.dataset.splits["test"].row, guarded.dataset.splits["guard"]
    assert held is not None
    assert own.client is None
    of_train = set_up(parse({**SMALL, "guard": {**GUARD, "from": "train"}}))
    assert sum(of_train.partition.sizes) == sum(plain.partition.sizes) - 100


def mean_of_controls(path: Path) -> tuple[Tree, Tree]:
    server, party, _ = states(path)
    held = [party.get(k) for k in range(4)]
    zero = Tree({name: torch.zeros_like(x) for name, x in server["c"].items()})
    return server["c"], sum((0.25 * Tree(one["c_k"]) for one in held if one), zero)


def test_controls_still_add_up_after_a_rejection(poisoned: Path):
    c, mean = mean_of_controls(poisoned)
    assert float((c - mean).norm()) < 1e-12 * float(c.norm())


def test_duals_still_add_up_after_a_rejection(tmp_path: Path):
    """FedDyn: h = -alpha / K sum (theta_k - theta) over all work that counted, which is the mean of the clients' duals."""
    path = run(tmp_path / "run", algorithm={"name": "feddyn"}, attack=POISON)
    assert [row["round"] for row in rows_of(path) if row["committed"] is False] == [3]
    server, party, _ = states(path)
    duals = [Tree(one[name]) for k in range(4) if (one := party.get(k)) for name in one if not name.startswith("$")]
    zero = Tree({name: torch.zeros_like(x) for name, x in server["h"].items()})
    mean = sum((0.25 * dual for dual in duals), zero)
    off = min(float((server["h"] - mean).norm()), float((server["h"] + mean).norm()))
    assert off < 1e-12 * float(server["h"].norm())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gossip": ({"algorithm": {"name": "gossip"}}, "has no server that could judge a model"),
    "ditto": ({"algorithm": {"name": "ditto"}}, "models of their own"),
    "fedmd": ({"algorithm": {"name": "fedmd"}}, "models of their own"),
    "local norms": ({"model": {"name": "mlp", "norm": "batch", "bn": "local"}}, "models of their own"),
    "closed": (
        {"privacy": [{"name": "paillier", "reveal": "clients"}], "evaluation": {"on": "validation"}},
        "the server has no model that it could judge",
    ),
    "blind": (
        {"privacy": [{"name": "rotation", "bounds": [0.0, 16.0]}], "evaluation": {"on": "validation"}},
        "does not know how the clients' rows were changed",
    ),
    "repeated draws": (
        {
            "privacy": [{"name": "dp_ftrl", "noise": "seed"}],
            "algorithm": {"name": "fedavg", "weights": "uniform"},
            "data": {**SMALL["data"], "scale": "none"},
        },
        "would draw the same noise again",
    ),
}


@pytest.mark.parametrize("what", [*REFUSED])
def test_a_server_that_cannot_judge_is_refused(what: str):
    more, said = REFUSED[what]
    with pytest.raises(ConfigError) as error:
        checked(parse(tables(**more)))
    assert said in str(error.value)


def test_a_mechanism_that_draws_by_the_round_is_not_refused():
    adaptive = {"name": "central_dp", "clip": "adaptive", "count_noise": 2.0, "noise": "seed"}
    algorithm, data = {"name": "fedavg", "weights": "uniform"}, {**SMALL["data"], "scale": "none"}
    checked(parse(tables(privacy=[adaptive], algorithm=algorithm, data=data)))


def test_a_guard_of_few_rows_says_what_it_does_not_see():
    few = set_up(parse(tables(guard={"rows": 8}))).notices
    assert any("none of its rows is of class '" in said and "harm to that is not seen" in said for said in few)
    assert any("a single row of its 8 is 0.12 of an accuracy, more than tol = 0.02" in said for said in few)
    for guard in ({"rows": 100}, {"rows": 40, "tol": float("inf")}, {"rows": 40, "metric": "log_loss"}):
        assert not [said for said in set_up(parse(tables(guard=guard))).notices if "[guard]" in said]


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"rows": 451}, "guard.rows = 451: 'digits' has 450 test rows; ask for fewer"),
        ({"rows": 450}, r"\[guard\] takes all 450 test rows"),
        ({"rows": 50, "metric": "rmse"}, "guard.metric = 'rmse': the target of 'digits' is a class"),
    ],
)
def test_rows_and_metrics_that_do_not_fit_are_refused(guard: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        CommitGuard(set_up(parse(tables(guard=guard))))


def test_a_baseline_leaves_the_guards_rows_out_and_judges_nothing(tmp_path: Path):
    fedatlas.run(Experiment.of(**tables(rounds=1)), out=tmp_path / "run", baselines=True)
    baseline = tmp_path / "run" / "baselines" / "local_only"
    assert "version" not in rows_of(baseline)[-1]
    assert not (baseline / "versions").exists()
    own, its = (json.loads((path / "summary.json").read_text()) for path in (tmp_path / "run", baseline))
    assert own["judged_on"] == its["judged_on"]
    assert own["gain"] is not None


@pytest.mark.parametrize("name", ["secagg", "central_dp"])
def test_sums_suffice(name: str, tmp_path: Path):
    more = {"clip": 1.0, "noise_multiplier": 0.1, "noise": "seed"} if name == "central_dp" else {}
    path = run(
        tmp_path / "run",
        rounds=2,
        privacy=[{"name": name, **more}],
        algorithm={"name": "fedavg", "weights": "uniform"},
        data={**SMALL["data"], "scale": "none"},
    )
    assert [row["committed"] for row in rows_of(path)] == [True, True, True]
