"""Versions of a run under ``[guard]``: their list, the way back, and what survives a kill around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedatlas
from fedatlas import ConfigError, Experiment
from fedatlas.cli import main
from fedatlas.engine.pool import can_fork
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.link import Observer, Request
from fedatlas.privacy import ledger
from fedatlas.record.checkpoint import Checkpoints, rollbacks_of
from fedatlas.record.run_folder import AUDIT, RELEASE, RunFolder
from fedatlas.wire import codec
from test_guard import POISON, SMALL, rows_of, run, tables


def held(path: Path) -> tuple[int, bytes, list[bytes]]:
    """Return round, server's state and clients' states of the newest checkpoint, as bytes."""
    party = PartyState()
    found = Checkpoints(path / "checkpoint", RunFolder.open(path).config().hash()).load(party)
    states = [bytes(codec.encode(dict(party.get(k) or {}))) for k in range(4)]
    return found.run.round, bytes(codec.encode(dict(found.run.server))), states


class Stopping(Observer):
    """Keeps the server's first message of each round, and stops the run in the middle of one."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.asked_in = at, list[tuple[int, int]]()

    def asked(self, request: Request) -> None:
        self.asked_in.append((request.round, request.attempt))
        if request.round == self.at and request.client == 2:
            raise KeyboardInterrupt


def stopped(path: Path, at: int, **more: Any) -> Stopping:
    """Run until the middle of a round."""
    seen = Stopping(at)
    with pytest.raises(KeyboardInterrupt):
        fedatlas.run(Experiment.of(**tables(**more)), out=path, baselines=False, observers=[seen])
    return seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SCAFFOLD run of four rounds."""
    return run(tmp_path_factory.mktemp("versions") / "run", algorithm={"name": "scaffold"}, rounds=4)


def test_a_rollback_restores_server_and_clients_and_a_resume_goes_on_there(tmp_path: Path):
    given: dict[str, Any] = {"algorithm": {"name": "scaffold"}}
    run(tmp_path / "short", rounds=2, **given)
    path = tmp_path / "run"
    stopped(path, at=5, rounds=7, **given)
    fedatlas.rollback(path, 2)
    number, *states = held(path)
    assert states == [*held(tmp_path / "short")[1:]]
    assert number == 5, "the round that had begun is passed over"
    before = sorted(one.name for one in (path / "versions").iterdir())
    seen = Stopping()
    fedatlas.resume(path, observers=[seen])
    assert [row["round"] for row in rows_of(path)] == [0, 1, 2, 3, 4, 6, 7]
    assert {number for number, _ in seen.asked_in} == {6, 7}
    listed = fedatlas.versions(path)
    assert [(one.version, one.begun_from) for one in listed] == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (6, 2), (7, 6)]
    assert {*before} <= {one.name for one in (path / "versions").iterdir()}, "nothing is deleted"
    said = "The run was rolled back to version 2 at round 5: later models go on from that version."
    assert said in (path / "report.html").read_text()
    page = fedatlas.audit(path).page.read_text()
    assert said in page
    assert "The model is that of round 7." in page
    assert "rows of the guard" in page, "the sentence on the guard tells its rows"
    fedatlas.rollback(path, 4)
    assert fedatlas.versions(path)[4].current
    assert held(path)[0] == 7


def test_stop_looks_at_rows_since_the_rollback(tmp_path: Path):
    """Three rejected rounds end the run by patience. From an earlier version it gets as many rounds again."""
    attack = [{**POISON[0], "rounds": [3, 5]}]
    path = run(tmp_path / "run", rounds=9, attack=attack, stop={"patience": 3})
    assert [row["round"] for row in rows_of(path)] == [0, 1, 2, 3, 4, 5]
    fedatlas.rollback(path, 1)
    summary = fedatlas.resume(path).summary
    assert [row["round"] for row in rows_of(path)] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert "stopped" not in summary
    fedatlas.rollback(path, 2)
    summary = fedatlas.resume(path, ["rounds=10"]).summary
    assert summary["rounds"] == 10, "the figures of version 2 stand for round 9, not those of rounds 7 to 9"
    fedatlas.rollback(path, 7)
    assert fedatlas.resume(path).summary["guard"]["version"] == 7


def test_a_level_that_the_version_has_reached_ends_the_run(tmp_path: Path):
    path = run(tmp_path / "run", rounds=6, stop={"accuracy": 0.5})
    reached = [row["round"] for row in rows_of(path) if row["accuracy"] >= 0.5]
    assert len(reached) == 1
    fedatlas.rollback(path, reached[0] - 1)
    again = fedatlas.resume(path).summary
    assert again["rounds"] > reached[0], "the old branch had reached it, the version has not"
    fedatlas.rollback(path, reached[0])
    assert fedatlas.resume(path).summary["rounds"] == again["rounds"]


def test_a_version_whose_round_never_landed_is_gone_after_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kill comes between the record of version 3 and the manifest of round 3; the rollback takes the number 3."""
    path, replace = tmp_path / "run", Checkpoints.replace

    def killed(self: Checkpoints, body: Any) -> None:
        if body["round"] == 3 and body["extra"]["guard"]["version"] == 3:
            raise KeyboardInterrupt
        replace(self, body)

    monkeypatch.setattr(Checkpoints, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run(path, rounds=4)
    assert (path / "versions" / "000003.json").exists()
    fedatlas.rollback(path, 1)
    assert [one.version for one in fedatlas.versions(path)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="has no version 3"):
        fedatlas.rollback(path, 3)
    fedatlas.resume(path)
    assert [(one.version, one.begun_from) for one in fedatlas.versions(path)][3:] == [(4, 1)]


def test_rounds_are_not_lowered_to_before_a_round_that_may_have_begun(tmp_path: Path):
    """Else a rollback at that end, and rounds raised again, would repeat the number with another model."""
    path = tmp_path / "run"
    stopped(path, at=3, rounds=5)
    with pytest.raises(ConfigError, match="has already run 2 rounds and may have begun another; ask for 3 or more"):
        fedatlas.resume(path, ["rounds=2"])
    assert fedatlas.resume(path, ["rounds=3"]).summary["rounds"] == 3


@pytest.mark.parametrize("on", ["rollback", "rounds"])
def test_a_page_to_sign_goes_with_the_model_that_it_is_about(on: str, tmp_path: Path):
    path = run(tmp_path / "run", rounds=2)
    for name in (AUDIT, RELEASE):
        (path / name).write_text("{}")
    fedatlas.resume(path)
    assert (path / AUDIT).exists(), "nothing was trained"
    if on == "rollback":
        fedatlas.rollback(path, 1)
    else:
        fedatlas.resume(path, ["rounds=3"])
    assert not [name for name in (AUDIT, RELEASE) if (path / name).exists()]


def test_after_a_rollback_at_the_end_the_summary_is_of_the_version(whole: Path):
    rows = rows_of(whole)
    fedatlas.rollback(whole, 2)
    assert not (whole / "summary.json").exists()
    summary = fedatlas.resume(whole).summary
    assert rows_of(whole) == rows
    assert summary["final"]["accuracy"] == rows[2]["accuracy"] != rows[4]["accuracy"]
    assert summary["guard"]["version"] == 2
    fedatlas.rollback(whole, 4)
    summary = fedatlas.resume(whole).summary
    assert summary["final"]["accuracy"] == rows[4]["accuracy"]
    assert summary["guard"]["rollbacks"] == [[4, 2], [4, 4]]


def test_a_checkpoint_of_an_older_version_knows_its_last_rollback():
    assert rollbacks_of({"version": 2, "scores": [0.5], "rollback": [5, 2]}) == ((5, 2),)
    assert rollbacks_of({"version": 2, "scores": [0.5], "rollback": None}) == ()


def test_what_was_released_stays_released(tmp_path: Path):
    noisy = [{"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.5, "noise": "seed"}]
    given: dict[str, Any] = {
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "privacy": noisy,
        "data": {**SMALL["data"], "scale": "none"},
    }
    path = tmp_path / "run"
    stopped(path, at=4, **given)
    spent = ledger.read(path / "ledger.jsonl").events
    fedatlas.rollback(path, 1)
    fedatlas.resume(path)
    after = ledger.read(path / "ledger.jsonl").events
    assert after[: len(spent)] == spent
    assert [one.round for one in after] == [1, 2, 3, 5]
    assert fedatlas.versions(path)[-1].begun_from == 1


def test_rejected_rounds_cost_and_are_not_repeated_under_masks(tmp_path: Path):
    path = run(tmp_path / "run", privacy=[{"name": "secagg"}], attack=POISON, rounds=4)
    rows = rows_of(path)
    assert [row["round"] for row in rows if row["committed"] is False] == [3]
    opened = [json.loads(line) for line in (path / "opened.jsonl").read_text().splitlines()]
    assert len(opened) == len({json.dumps(one) for one in opened}) == 4 * 4, "nobody opens a sum twice"


@pytest.mark.parametrize(
    ("version", "said"),
    [("9", "has no version 9: 'fedatlas versions"), ("3", "version 3 was rejected"), ("2", "is the model of")],
)
def test_wrong_versions_are_refused_in_one_sentence(
    version: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path = run(tmp_path / "run", rounds=3, attack=POISON)
    monkeypatch.setattr(sys, "argv", ["fedatlas", "rollback", str(path), version])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_the_commands_list_versions_and_go_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path = run(tmp_path / "run", rounds=3, attack=POISON)
    shown = []
    for command in (["rollback", str(path), "1"], ["versions", str(path)], ["versions", str(path), "--json"]):
        monkeypatch.setattr(sys, "argv", ["fedatlas", *command])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert "fedatlas run --resume" in shown[0]
    assert [line.split()[-1] for line in shown[1].splitlines()[1:]] == ["committed", "current", "committed", "rejected"]
    assert [one["current"] for one in json.loads(shown[2])] == [False, True, False, False]


def test_a_run_under_way_or_without_versions_is_refused(whole: Path, tmp_path: Path):
    code = "import sys; from pathlib import Path; from fedatlas.record.run_folder import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).claimed(): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(whole)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="is being run by another process"):
            fedatlas.rollback(whole, 1)
        other.communicate()
    run(tmp_path / "several", rounds=0, seeds=[3, 4])
    with pytest.raises(ConfigError, match=r"name the folder of one, such as '.*several/seed-3'"):
        fedatlas.versions(tmp_path / "several")
    assert [one.version for one in fedatlas.versions(tmp_path / "several" / "seed-3")] == [0]
    fedatlas.run(Experiment.of(**{**SMALL, "rounds": 1}), out=tmp_path / "plain", baselines=False)
    with pytest.raises(ConfigError, match=r"keeps no versions: a run with a \[guard\] table does"):
        fedatlas.versions(tmp_path / "plain")


def test_versions_share_files(tmp_path: Path):
    path = run(tmp_path / "run", attack=POISON, algorithm={"name": "scaffold"}, checkpoint={"keep": 1})
    names = {one.name for one in (path / "checkpoint").iterdir()}
    assert not [name for name in names if name.endswith("000003.bin")], "a rejected round leaves no file"
    assert {f"server-{n:06d}.bin" for n in (0, 1, 2, 4, 5)} <= names
    assert [name for name in names if name.startswith("manifest")] == ["manifest-000005.json"]


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="this system has no fork, which the harness uses")
def test_kills_around_a_rejection_or_a_rollback_lose_nothing(tmp_path: Path):
    script = Path(__file__).parents[1] / "support" / "killed_versions.py"
    given = tables(rounds=4, algorithm={"name": "scaffold"}, attack=POISON)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), json.dumps(given)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 6
