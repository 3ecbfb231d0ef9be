"""`fedatlas audit` on whole runs: every verdict, the page, the games that a file declares, and mechanisms with a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedatlas
from fedatlas import Experiment
from fedatlas.aggregation.changes import map_leaves
from fedatlas.aggregation.reducers import Reducer
from fedatlas.algorithm import by_samples
from fedatlas.auditing import LEAK_SEEN, NONE_SEEN, NOT_TRIED, VIOLATED
from fedatlas.auditing.cells import cells
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError, DivergedError
from fedatlas.privacy import noise
from fedatlas.privacy.central_dp.clipped_sum import clipped_sum
from fedatlas.record.run_folder import AUDIT, RELEASE, baseline_path
from fedatlas.runs.baselines import gain
from fedatlas.runs.price import UNPROTECTED
from fedatlas.setup.canaries import Canaries
from fedatlas.weighting import uniform

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [8]},
    "engine": {"name": "loop"},
}
NOISED: dict[str, Any] = {
    "rounds": 3,
    "algorithm": {"name": "fedavg", "weights": "uniform"},
    "privacy": [{"name": "central_dp", "clip": 1.0, "noise_multiplier": 5.0, "noise": "seed"}],
    "local": {"steps": 1},
    "model": {"hidden": [64]},
    "audit": {"canaries": 600},
}


CLIENTS = 304  # half of the canaries, and those of the partition
ROWS = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-6, "noise": "seed"}


def by_rows(clip: float, transform: Any) -> Reducer:
    """A clipped sum with a fault: each change has its client's weight, as many rows as it has among all."""
    right = clipped_sum(clip, transform)

    def lift(client: int, update: Any, weight: Any) -> Any:
        return map_leaves(lambda path, x: x * weight * CLIENTS, right.lift(client, update, weight))

    return right._replace(lift=lift)


def run(path: Path, **more: Any) -> Path:
    return fedatlas.run(Experiment.of(**{**SMALL, **more}), out=path, baselines=False).path


def test_a_run_without_games_is_not_tried_and_the_page_says_what_to_add(tmp_path: Path) -> None:
    done = fedatlas.audit(run(tmp_path / "run"))
    assert done.verdict.name == NOT_TRIED
    assert not done.violated
    page = done.page.read_text()
    for words in ("Not tried.", "no epsilon is stated", "[[attack]]", "Decision (release", "not stated: write purpose"):
        assert words in page
    assert {one["attack"] for one in done.record["not_tried"]} >= {"membership", "dlg", "inverting_gradients"}
    assert json.loads((tmp_path / "run" / AUDIT).read_text())["verdict"] == NOT_TRIED


def test_an_overfitted_model_leaks_and_the_page_shows_it(tmp_path: Path) -> None:
    """Twenty rows a client, trained long: the membership game sees it; its terms stand beside it."""
    game = {"evaluation": {"clients": 0.5}, "attack": [{"name": "membership"}]}
    few = {"data": {"name": "digits", "limit": 240}, "model": {"hidden": [64]}, "local": {"epochs": 80, "lr": 0.05}}
    done = fedatlas.audit(run(tmp_path / "run", **few, **game, audit={"purpose": "Reads forms.", "min_cell": 1}))
    assert done.verdict.name == LEAK_SEEN
    (one,) = done.record["attacks"]
    assert one["attack"] == "membership by loss"
    assert one["p"] < 0.05
    assert one["smallest"] > 0
    page = done.page.read_text()
    assert "Reads forms." in page
    assert "Smallest leak seen" in page


def test_a_count_below_the_threshold_is_a_violation_and_ends_with_1(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedatlas.cli import app

    path = run(tmp_path / "run", partition={"name": "iid", "clients": 90}, data={"name": "digits", "limit": 600})
    ended = CliRunner().invoke(app, ["audit", str(path), "--json"])
    assert ended.exit_code == 1
    told = json.loads(ended.stdout)
    assert told["verdict"] == VIOLATED
    assert told["small_cells"][0]["rows"] < 10
    assert "fewer than may be told" in (path / RELEASE).read_text()


@pytest.mark.parametrize("fault", ["", "noise forgotten", "clipping forgotten"])
def test_canary_clients_contradict_a_faulty_mechanism_and_no_right_one(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger states the same in all three; the run is repeatable, since its noise is that of the seed."""
    if fault == "noise forgotten":
        monkeypatch.setattr(noise, "_drawn", lambda n, *given: torch.zeros(n, dtype=torch.float64))
    if fault == "clipping forgotten":
        monkeypatch.setattr("fedatlas.privacy.central_dp.clipped_sum.clipped", lambda changes, clip: changes)
    done = fedatlas.audit(run(tmp_path / "run", **NOISED))
    (one,) = done.record["accounts"]
    assert one["compared_delta"] * one["canaries"] < 1 - one["confidence"]
    assert done.violated == bool(fault)
    assert (one["empirical_epsilon"] > one["compared_epsilon"]) == bool(fault)
    if not fault:
        assert done.verdict.name == NONE_SEEN
        assert "canaries" in done.verdict.reasons[0]
        assert not any("client 4" in each for each in done.verdict.reasons), "canaries are no parties"


def test_canary_rows_are_found_where_gradients_are_not_noised_enough(tmp_path: Path) -> None:
    """DP-SGD with next to no noise: rows of noise under any label are learnt, those that count as zero are not."""
    private = {"privacy": [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1e-3, "delta": 1e-6, "noise": "seed"}]}
    more = {"rounds": 30, "local": {"lr": 0.5}, "model": {"hidden": [32]}, "audit": {"canaries": 300, "unit": "record"}}
    done = fedatlas.audit(run(tmp_path / "run", **private, **more))
    (one,) = done.record["accounts"]
    assert one["unit"] == "record"
    assert one["empirical_epsilon"] > 0.3
    assert not done.violated, "next to no noise is what the ledger states"
    assert done.verdict.name == NOT_TRIED, "so many canaries could not have contradicted it"


@pytest.mark.parametrize("engine", [{"name": "loop", "precision": "float64"}, {"name": "fast"}])
def test_a_canary_row_that_is_out_changes_no_bit(
    engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its label is replaced, which would change the gradient of a row that counts."""
    plain = Canaries.marked

    def relabelled(self: Canaries, party: int, rows: Rows, classes: int) -> Rows:
        y = (found := plain(self, party, rows, classes)).y.clone()
        y[self.rows[(self.clients == party) & ~self.inside]] = 0
        return found._replace(y=y)

    more = {"privacy": [ROWS], "engine": engine, "audit": {"canaries": 200, "unit": "record"}}
    one = run(tmp_path / "one", **more)
    monkeypatch.setattr(Canaries, "marked", relabelled)
    models = [(path / "model.safetensors").read_bytes() for path in (one, run(tmp_path / "other", **more))]
    assert models[0] == models[1]
    monkeypatch.undo()
    assert fedatlas.audit(one).record["accounts"][0]["canaries"] == 200


def test_a_mechanism_that_weighs_by_rows_is_contradicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canary clients say that they have ten times as many rows as others."""
    monkeypatch.setattr("fedatlas.privacy.central_dp.clipped_sum.clipped_sum", by_rows)
    monkeypatch.setattr("fedatlas.weighting.uniform", lambda drawn: (by_samples if drawn.m > 7 else uniform)(drawn))
    assert fedatlas.audit(run(tmp_path / "run", **NOISED)).violated


def test_attackers_are_drawn_among_clients_that_are_no_canaries(tmp_path: Path) -> None:
    path = run(tmp_path / "run", **{**NOISED, "audit": {"canaries": 20}}, attack=[{"name": "sign_flip", "share": 0.5}])
    (one,) = json.loads((path / "summary.json").read_text())["attacks"]
    assert len(one["clients"]) == 2
    assert max(one["clients"]) < 4


def test_lines_to_add_are_those_that_a_run_takes(tmp_path: Path) -> None:
    done = fedatlas.audit(run(tmp_path / "run", privacy=[ROWS]))
    (one,) = (one for one in done.record["not_tried"] if one["attack"] == "canaries")
    assert 'unit = "record"' in one["add"]
    none = fedatlas.audit(run(tmp_path / "none", privacy=[{"name": "nbafl", "clip": 1.0, "epsilon": 5.0}]))
    (one,) = (one for one in none.record["not_tried"] if one["attack"] == "canaries")
    assert "which only noise on the gradients of single rows does" in one["reason"]
    assert not one["add"]


@pytest.mark.slow
def test_a_declared_attack_is_tried_on_every_recorded_role(tmp_path: Path) -> None:
    """Its own findings stay in the folder of the run."""
    game = {"evaluation": {"clients": 0.5}, "attack": [{"name": "membership", "method": "worst_case"}]}
    path = run(tmp_path / "run", **game, observe={"roles": ["server"]})
    before = [(path / "attacks" / "membership" / name).read_bytes() for name in ("attack.json", "found.npz")]
    done = fedatlas.audit(path)
    tried = [(one["attack"], one["role"]) for one in done.record["attacks"]]
    games = [one for one in tried if one[0].startswith("membership")]
    assert games == [("membership by worst_case", "outsider"), ("membership by worst_case", "server")]
    assert any("rmia" in one["attack"] for one in done.record["not_tried"])
    assert before == [(path / "attacks" / "membership" / name).read_bytes() for name in ("attack.json", "found.npz")]


def test_counts_on_the_page_leave_canaries_out(tmp_path: Path) -> None:
    """A class of few rows stays one, however many canaries copy a row of it."""
    path = run(tmp_path / "run", **{**NOISED, "audit": {"canaries": 40}})
    summary = json.loads((path / "summary.json").read_text())
    told = {one.what: one.rows for one in cells(summary)}
    assert sum(n for what, n in told.items() if what.startswith("training rows of class")) == 600
    assert told["rows that judged the model"] == summary["metric"]["test_rows"]


def test_a_run_that_diverges_in_its_first_round_says_so(tmp_path: Path) -> None:
    loose = {"privacy": [{**NOISED["privacy"][0], "clip": 1e30}], "algorithm": NOISED["algorithm"]}
    with pytest.raises(DivergedError):
        run(tmp_path / "run", **loose, local={"lr": 1e30, "steps": 5})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"audit": {"canaries": 10}}, r"no \[\[privacy\]\] of this file states one"),
        ({**NOISED, "audit": {"canaries": 10, "unit": "record"}}, "protects by client; write 'client'"),
        (
            {
                "privacy": [{"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}],
                "audit": {"canaries": 400, "unit": "record"},
            },
            "at most half of the 600 training rows",
        ),
    ],
)
def test_canaries_that_would_show_nothing_are_refused(more: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "run", **more)


def test_canaries_change_a_run_and_the_rest_of_the_table_does_not() -> None:
    plain = Experiment.of(**SMALL).config.hash()
    assert Experiment.of(**SMALL, audit={"purpose": "x", "min_cell": 3}).config.hash() == plain
    assert (
        Experiment.of(**{**SMALL, **NOISED}).config.hash()
        != Experiment.of(**{**SMALL, **NOISED, "audit": {}}).config.hash()
    )


def test_several_seeds_have_to_be_named(tmp_path: Path) -> None:
    path = fedatlas.run(Experiment.of(**SMALL, seeds=[1, 2]), out=tmp_path / "run", baselines=False).path
    with pytest.raises(ConfigError, match="holds several seeds"):
        fedatlas.audit(path)


def test_a_run_with_canaries_has_baselines_and_a_price_without_them(tmp_path: Path) -> None:
    """Both train without noise, where canaries have nothing to contradict."""
    given = Experiment.of(**{**SMALL, **NOISED, "audit": {"canaries": 40}})
    done = fedatlas.run(given, out=tmp_path / "run", baselines=True, price=True)
    assert [one["client"] for one in (gain(done.path) or {})["clients"]] == [0, 1, 2, 3]
    assert (baseline_path(done.path, UNPROTECTED) / "summary.json").exists()
