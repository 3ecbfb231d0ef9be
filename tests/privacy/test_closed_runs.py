"""Whole runs with ``reveal = "clients"``: what resumes, what is written in the clear, what is refused, and what is marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedatlas.api import predict, resume, run
from fedatlas.attacks.roles import ViewRole
from fedatlas.errors import CheckpointError, ConfigError, ProtocolError
from fedatlas.federation.closed_models import Opener
from fedatlas.federation.secrets import JOURNAL, OPENED, SHARED
from fedatlas.leakage.view_gradients import read_gradients
from fedatlas.privacy.mechanism import OWN_FIGURES
from fedatlas.privacy.paillier.words import OWN_NOTICE
from fedatlas.record.observed import RoleView
from fedatlas.runs.preview import dry_run
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from fedatlas.tree import Tree
from reports import Page
from test_privacy_runs import Killed, experiment, rows, stop_at, toy_keys

__all__ = ["toy_keys"]
CLOSED = {"name": "paillier", "reveal": "clients"}
CLIENTS_JUDGE = {"evaluation": {"on": "validation", "every": 2}}


def closed(**tables: Any) -> Any:
    keys = tables.pop("keys", {})
    return experiment({**CLOSED, **keys}, **{**CLIENTS_JUDGE, **tables})


# ---------------------------------------------------------------------- resume


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_killed_run_ends_as_one_never_stopped(
    monkeypatch: pytest.MonkeyPatch, toy_keys: None, tmp_path: Path, every: int, dropout: float
) -> None:
    what = closed(checkpoint={"every": every}, failures={"dropout": dropout}, rounds=5)
    whole = run(what, out=tmp_path / "whole", baselines=False).path
    heal = stop_at(monkeypatch, 3)
    with pytest.raises(Killed):
        run(what, out=tmp_path / "killed", baselines=False)
    heal()
    key = (tmp_path / "killed" / SHARED).read_bytes()
    done = resume(tmp_path / "killed", baselines=False).path
    for key_of in ("accuracy", "loss", "clients", "weights"):
        assert [row[key_of] for row in rows(done)] == [row[key_of] for row in rows(whole)]
    assert (done / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (done / SHARED).read_bytes() == key
    assert not (done / OPENED).exists()  # nobody opened a sum


def test_the_clients_key_is_a_file_for_its_owner_and_needed_to_go_on(
    monkeypatch: pytest.MonkeyPatch, toy_keys: None, tmp_path: Path
) -> None:
    heal = stop_at(monkeypatch, 3)
    with pytest.raises(Killed):
        run(closed(), out=tmp_path / "killed", baselines=False)
    heal()
    path = tmp_path / "killed" / SHARED
    assert path.stat().st_mode & 0o777 == 0o600
    key = path.read_bytes()
    path.write_bytes(key[:-70])
    with pytest.raises(CheckpointError, match="cannot be read: put the original back"):
        resume(tmp_path / "killed", baselines=False)
    path.unlink()
    with pytest.raises(
        CheckpointError, match=r"has lost 'clients.secret', the clients' key, without which nobody opens"
    ):
        resume(tmp_path / "killed", baselines=False)
    run(closed(rounds=1), out=tmp_path / "other", baselines=False)
    path.write_bytes((tmp_path / "other" / SHARED).read_bytes())
    with pytest.raises(ProtocolError, match=r"ciphertexts of key '.*' arrived where key '.*' is in use"):
        resume(tmp_path / "killed", baselines=False)
    path.write_bytes(key)
    assert len(rows(resume(tmp_path / "killed", baselines=False).path)) == 5


def test_a_run_goes_on_for_as_many_rounds_as_its_ciphertexts_have_room(toy_keys: None, tmp_path: Path) -> None:
    done = run(closed(), out=tmp_path / "run", baselines=False).path
    assert len(rows(resume(done, ["rounds=6"], baselines=False).path)) == 7
    with pytest.raises(ProtocolError, match="has other places for its numbers than a run of 64 sums: begin a new run"):
        resume(done, ["rounds=40"], baselines=False)


# ---------------------------------------------------------------------- what the server has


def test_no_file_of_the_server_holds_a_model(monkeypatch: pytest.MonkeyPatch, toy_keys: None, tmp_path: Path) -> None:
    """Every model that clients opened is looked for in every file, as bytes and as numbers; the last one is what a client exports."""
    found: list[Tree] = []
    opened = Opener.opened

    def noted(self: Opener, *given: Any) -> Tree:
        found.append(opened(self, *given))
        return found[-1]

    monkeypatch.setattr(Opener, "opened", noted)
    what = closed(checkpoint={"every": 1, "keep": 9}, observe={"roles": ["server", "client:1"], "rounds": [1, 4]})
    done = run(what, out=tmp_path / "run", baselines=False).path
    first, last = load_file(done / "initial.safetensors"), load_file(done / "model.safetensors")
    models = {id(model): model for model in found}.values()
    assert len(models) == 5
    later = [model for model in models if not all(torch.equal(x, first[name]) for name, x in model.items())]
    assert len(later) == 4
    assert all(torch.equal(x, last[name]) for name, x in later[-1].items())
    clients = {"initial.safetensors", "model.safetensors"}
    files = {path: path.read_bytes() for path in done.rglob("*") if path.is_file() and path.name not in clients}
    assert {path.parent.name for path in files} >= {"checkpoint", JOURNAL, "run"}
    assert any("server-000004.bin" in path.name for path in files)
    assert len(files) > 12
    for model in later:
        for x in model.values():
            for path, data in files.items():
                assert x.numpy().tobytes()[:16] not in data, path
                assert x.double().numpy().tobytes()[:32] not in data, path
                assert f"{float(x.flatten()[0])!r}".encode() not in data, path


@pytest.mark.parametrize(("role", "said"), [("client:1", "encrypted models"), ("server", "encrypted updates")])
def test_a_view_holds_nothing_that_an_attack_could_read(toy_keys: None, tmp_path: Path, role: str, said: str) -> None:
    what = closed(rounds=2, observe={"roles": [role], "rounds": [1, 2]})
    done = run(what, out=tmp_path / "run", baselines=False).path
    with pytest.raises(ConfigError, match=f"holds {said}: only"):
        read_gradients(RoleView(done, ViewRole.parse(role, "role")), what.config, 0)


def test_the_search_finds_a_model_in_a_server_that_learns_it(toy_keys: None, tmp_path: Path) -> None:
    done = run(experiment({"name": "paillier"}, **CLIENTS_JUDGE), out=tmp_path / "run", baselines=False).path
    x = next(iter(load_file(done / "model.safetensors").values()))
    assert x.numpy().tobytes()[:16] in (done / "checkpoint" / "server-000004.bin").read_bytes()


def test_it_ends_with_the_model_of_a_server_that_learns_it(toy_keys: None, tmp_path: Path) -> None:
    paths = [
        run(experiment(one, **CLIENTS_JUDGE), out=tmp_path / name, baselines=False).path
        for name, one in (("closed", CLOSED), ("known", {"name": "paillier"}))
    ]
    a, b = (load_file(path / "model.safetensors") for path in paths)
    assert all(torch.allclose(a[name], b[name], rtol=0, atol=2e-6) for name in a)
    assert [r["accuracy"] for r in rows(paths[0])] == [r["accuracy"] for r in rows(paths[1])]


def test_the_exported_model_predicts(toy_keys: None, tmp_path: Path) -> None:
    done = run(closed(), out=tmp_path / "run", baselines=False)
    assert done.summary["sha256"].keys() == {"model.safetensors"}
    assert len(predict(done.path, torch.zeros(3, 1, 8, 8).numpy())) == 3


@pytest.mark.parametrize("scale", ["federated", "none"])
def test_sums_before_round_one_are_said_to_be_opened(tmp_path: Path, scale: str) -> None:
    """They prepare the columns of all clients, so that the server of a closed model learns them as any other does."""
    data = {"name": "breast_cancer_wdbc", "scale": scale}
    what = closed(data=data, model={"name": "logistic"}, local={"lr": 1e-6}, rounds=1)
    done = run(what, out=tmp_path / "run", baselines=False)
    text = " ".join(Page(done.path / "report.html").text().split())
    assert ("their sums over all clients, under paillier" in text) == (scale == "federated")
    learns = done.summary["privacy"]["learns"]["paillier"]["server"]
    assert "sums of columns, where such are needed before round 1; no update, no sum of updates and no model" in learns
    assert "neither a sum nor a model" not in text


# ---------------------------------------------------------------------- the dry run, and what is marked


@pytest.mark.parametrize("weights_by", ["server", "client"])
def test_a_dry_run_counts_ciphertexts_down(toy_keys: None, tmp_path: Path, weights_by: str) -> None:
    what = closed(keys={"weights_by": weights_by})
    looked = dry_run(checked(what.config), baselines=False)
    *_, row = rows(run(what, out=tmp_path / "run", baselines=False).path)
    assert (looked["bytes_up_per_round"], looked["bytes_down_per_round"]) == (row["bytes_up"], row["bytes_down"])
    assert looked["privacy"]["bytes_more_per_round"] == row["bytes_privacy"]
    assert looked["privacy"]["seconds_by_phase"]["decrypt"] > 0
    assert OWN_NOTICE in looked["notices"]


def test_figures_of_the_model_are_marked(toy_keys: None, tmp_path: Path) -> None:
    done = run(closed(), out=tmp_path / "run", baselines=False)
    every = rows(done.path)
    assert all({"accuracy", "loss", "macro_f1"} <= set(row["simulation_only"]) for row in every)
    assert all("bytes_down" not in row["simulation_only"] for row in every)
    assert done.summary["privacy"]["simulation_only"] == OWN_FIGURES
    page = (done.path / "report.html").read_text(encoding="utf-8")
    assert OWN_FIGURES.replace("'", "&#39;") in page
    phases = [json.loads(line)["seconds_by_phase"] for line in (done.path / "metrics.jsonl").read_text().splitlines()]
    assert all(phase["decrypt"] > 0 for phase in phases[1:])
    usual = rows(run(experiment({"name": "paillier"}), out=tmp_path / "usual", baselines=False).path)
    assert all("simulation_only" not in row for row in usual)


# ---------------------------------------------------------------------- refusals

INVERTED = {"attack": [{"name": "inverting_gradients", "role": "client:1"}], "cohort": {"fraction": 1.0}}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"evaluation": {"on": "test"}}, "the server has no model that it could judge by rows of its own; write evaluation.on = 'valid"),
    ({}, {"stop": {"patience": 1}}, "the server sees no figure of a model by which it could stop; remove the table."),
    ({}, {"algorithm": {"name": "fedavgm"}}, "its server computes with the models; use another algorithm"),
    ({}, {"algorithm": {"name": "fedyogi"}}, "its server computes with the models; use another algorithm"),
    ({}, {"algorithm": {"name": "scaffold"}}, "its rounds need more than one plain mean of models; use another algorithm"),
    ({}, {"algorithm": {"name": "hwfedavg"}}, "its rounds need more than one plain mean of models; use another algorithm"),
    ({}, {"model": {"name": "mlp", "norm": "batch"}}, "whose ciphertext holds what is trained and no statistics of batch norm"),
    ({}, {"aggregation": {"name": "median"}}, "not under 'paillier', which shows the server only sums; remove one of the two tables."),
    ({"encrypt": "output"}, {}, "the server would see what encrypt leaves out; write encrypt = 'all'."),
    ({"bits": 30}, {}, "privacy.paillier.bits = 30: sums of values of 30 bits need 64 bits each, and at most 62 fit: lower bits."),
    ({"bits": 24}, {"rounds": 20000}, "the sums of all rounds are added up, and sums of values of 24 bits need 63 bits each"),
    ({"weights_by": "client"}, {"failures": {"dropout": 0.1}}, "nobody can make up for the weight of a client that leaves"),
    ({"reveal": "nobody"}, {}, "privacy.paillier.reveal = 'nobody': expected 'server' or 'clients'"),
    ({}, INVERTED, "no message holds a model that could be read, and this attack needs one"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "tables", "said"), REFUSED)
def test_what_needs_a_model_at_the_server_is_refused(keys: dict[str, Any], tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        set_up(checked(closed(keys=keys, **tables).config))
    assert said in str(error.value)
    assert str(error.value).count(". ") == 0


@pytest.mark.parametrize(
    "other", [{"name": "secagg"}, {"name": "local_dp", "epsilon": 8, "clip": 1}, {"name": "dp_sgd", "clip": 1}]
)
def test_no_other_mechanism_of_rounds_goes_beside_it(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"both hide updates|cannot be combined: with reveal = 'clients'|constants"):
        checked(experiment(CLOSED, other, algorithm={"name": "fedavg", "weights": "uniform"}, **CLIENTS_JUDGE).config)


def test_a_default_is_not_written_out() -> None:
    """So that the file and the hash of a run under paillier stay as they were."""
    plain = checked(experiment({"name": "paillier"}).config).config.plain()
    assert plain["privacy"] == [
        {"name": "paillier", "key_bits": 2048, "bits": 24, "range": 16.0, "encrypt": "all", "weights_by": "server"}
    ]
