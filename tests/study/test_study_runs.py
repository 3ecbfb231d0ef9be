"""A study that runs: nothing twice, nothing lost, whatever is killed; what the table says of every run."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedatlas.cli import main
from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.run_key import RESULTS, described, keys, written
from fedatlas.study.frame import rounds_to
from fedatlas.study.heterogeneity import heterogeneity
from fedatlas.study.levels import overridden
from fedatlas.study.outcomes import outcome_of_longer
from fedatlas.study.study import Study
from fedatlas.study.table import VERSION, NewRun, Outcome, Table, started
from test_study import AVG, BASE, NODES, SCHEME

WILD = {"name": "wild", "set": {"local.lr": 1e30}}
SECRET = {"name": "secret", "set": {"privacy": [{"name": "secagg"}]}}
NOISED = {
    "name": "noised",
    "set": {
        "privacy": [{"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.1}],
        "algorithm.weights": "uniform",
        "data.scale": "none",
        "cohort": {"fraction": 0.5, "sampling": "poisson"},
    },
}
SPENT = ["cpu_seconds", "seconds", "memory_mib"]  # that differ from one time to the next
DEADLINE = 300.0


def study(**tables: Any) -> Study:
    base = {**BASE, "evaluation": {"clients": 0.2}}
    factors = [{**NODES, "levels": [2, 4]}, {**SCHEME, "level": [AVG, SECRET, WILD]}]
    return Study.of("small", **{"base": base, "factor": factors, "seeds": [1], **tables})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of a study that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "table.sqlite"
    assert study().run(table=path)
    return path


def told(path: Path) -> list[dict[str, Any]]:
    """What two tables of the same study have alike."""
    frame = Table.open(path).frame().drop(columns=SPENT).astype(object)
    return frame.where(frame.notna(), "none").to_dict("records")


def rows_of(path: Path) -> dict[str, list[Any]]:
    table = Table.open(path)
    keys = [key for (key,) in table.db.execute("SELECT run_key FROM runs ORDER BY run_key")]
    timed = ("seconds", "seconds_by_phase", "peak_memory_bytes")
    return {key: [{k: v for k, v in row.items() if k not in timed} for row in table.rows(key)] for key in keys}


def test_refused_and_diverged_runs_stay_with_their_sentence(whole: Path):
    frame = Table.open(whole).frame()
    assert frame.status.value_counts().to_dict() == {"done": 5, "diverged": 2, "refused": 1}
    refused, wild = frame[frame.status == "refused"], frame[frame.status == "diverged"]
    assert set(refused.nodes) == {"2"}
    assert refused.reason.str.contains("fewer than 3").all()
    assert wild.reason.str.contains("lower local.lr").all()
    assert set(wild.scheme) == {"wild"}
    assert not list((whole.parent / "runs").iterdir())  # only rows are kept


def test_a_level_taken_out_of_the_file_is_left_out_and_told(whole: Path, tmp_path: Path):
    """Of the analysis, of the frame, and of the counts; nothing is run, and the table keeps all."""
    shorter = study(factor=[{**NODES, "levels": [2, 4]}, {**SCHEME, "level": [AVG, SECRET]}])
    said = "Level 'wild' of factor 'scheme' is no longer in the study's file; left out: 2 runs."
    found = shorter.analyse(tmp_path / "out", whole)
    assert found["sentences"][-1] == said
    assert "wild" not in found["choices"]
    assert "diverged" not in found["runs"]
    assert said in (tmp_path / "out" / "analysis.html").read_text(encoding="utf-8").replace("&#39;", "'")
    kept, told = shorter.opened(table=whole)
    assert told == [said]
    assert set(kept.frame().scheme.dropna()) == {"fedavg", "secret"}
    assert kept.factors()["scheme"]["levels"] == ["fedavg", "secret"]
    assert kept.counts("small")["diverged"] == 0
    everything, nothing = study().opened(table=whole)
    assert (everything.counts("small")["diverged"], nothing) == (2, [])


def test_responses_are_those_of_the_runs(whole: Path):
    table = Table.open(whole)
    frame = table.frame()
    done = frame[(frame.status == "done") & (frame.kind == "cell")]
    one = done[(done.nodes == "4") & (done.scheme == "fedavg")].iloc[0]
    rows, summary = table.rows(one.run_key), table.summary(one.run_key)
    assert summary is not None
    assert one.accuracy == rows[-1]["accuracy"] == summary["final"]["accuracy"]
    assert one.client_min == rows[-1]["client_accuracy"]["min"]
    assert one.bytes_up == summary["cost"]["bytes_up"]
    assert (one.messages_up, one.messages_down) == (8, 8)  # two rounds of four clients
    assert one.cpu_seconds > 0
    assert one.memory_mib > 1
    assert one.epsilon == float("inf")
    beside = frame[(frame.kind == "baseline") & (frame.nodes == "4") & (frame.seed == one.seed)].iloc[0]
    assert one.gap == pytest.approx(beside.accuracy - one.accuracy)
    masked = done[(done.nodes == "4") & (done.scheme == "secret")].iloc[0]
    assert masked.messages_up > one.messages_up  # keys, shares and masks come beside the updates
    curves = table.curves()
    assert curves[curves.run_key == one.run_key]["round"].tolist() == [0, 1, 2]
    assert frame.attrs["factors"]["scheme"]["role"] == "choice"


def test_a_row_says_what_its_federation_was(whole: Path):
    frame = Table.open(whole).frame()
    one = frame.query("kind == 'cell' and nodes == '4' and scheme == 'secret'").iloc[0]
    assert (one.node_count, one.class_count, one.data_set, one.server_sees) == (4, 10, "digits", "sums")
    facts = (Table.open(whole).summary(one.run_key) or {})["partition_facts"]
    assert one.train_rows == sum(facts["sizes"])
    assert one.h == pytest.approx(heterogeneity(facts["histogram"]))
    assert 0.1 <= one.majority < 0.2
    assert set(frame[frame.baseline == "centralised"].server_sees) == {"anything"}
    assert one.seconds > 0


def test_rounds_to_a_level_are_censored_where_it_was_not_reached(whole: Path):
    frame, curves = Table.open(whole).frame(), Table.open(whole).curves()
    one = frame.query("kind == 'cell' and nodes == '4' and scheme == 'fedavg'").iloc[0]
    beside = frame.query("kind == 'baseline' and nodes == '4'").iloc[0]
    reached = curves[(curves.run_key == one.run_key) & (curves["round"] > 0)]
    late = reached[reached.accuracy >= 0.95 * beside.accuracy]["round"]
    assert (one.rounds_to, one.censored) == ((late.min(), False) if len(late) else (2, True))
    rows = [{"round": r, "accuracy": 0.1 * r} for r in range(6)]
    assert rounds_to(rows, 0.4, 5) == (4, False)
    assert rounds_to(rows, 0.6, 5) == (5, True)


def test_a_longer_run_answers_a_shorter_question(tmp_path: Path):
    length = {"name": "length", "role": "setting", "key": "rounds", "levels": [1, 2]}
    rounds = study(factor=[length, {**SCHEME, "level": [AVG, WILD]}], base={**BASE, "evaluation": {"clients": 0.2}})
    assert rounds.run(table=tmp_path / "both.sqlite")
    table = Table.open(tmp_path / "both.sqlite")
    short = table.frame().query("kind == 'cell' and length == '1' and scheme == 'fedavg'").iloc[0]
    long = table.frame().query("kind == 'cell' and length == '2' and scheme == 'fedavg'").iloc[0]
    assert table.responses(short.run_key)["prefix_of"] == long.run_key
    alone = study(factor=[{**length, "levels": [1]}, {**SCHEME, "level": [AVG]}])
    assert alone.run(table=tmp_path / "alone.sqlite")
    own = Table.open(tmp_path / "alone.sqlite").frame().query("kind == 'cell'").iloc[0]
    different = [*SPENT, "length"]
    assert short.drop(different).equals(own.drop(different))
    cosine = overridden(BASE, [{"local.schedule": {"name": "cosine"}}])
    keys_of = {keys(described(written({**cosine, "rounds": r}, 1)).plain, {}).curve_key for r in (1, 2)}
    assert len(keys_of) == 2  # the rates of its rounds are made for its length


def test_a_run_that_was_rolled_back_answers_only_for_the_rounds_before(tmp_path: Path):
    """Round 4 began from version 1: a run of four rounds has another round 4."""
    rows = [{"round": number, "loss": 1.0, "accuracy": 0.5} for number in (0, 1, 2, 4, 5)]
    with closing(Table.open(tmp_path / "table.sqlite", write=True)) as table:
        every = {rounds: described(written({**BASE, "rounds": rounds}, 1)).plain for rounds in (2, 4, 5)}
        of = {rounds: keys(plain, {}) for rounds, plain in every.items()}
        table.begin("study", {}, {}, "")
        table.enter("study", [NewRun(*of[n], plain, "cell", {}, {}, "") for n, plain in every.items()])
        table.finish(of[5].run_key, Outcome("done", "", rows, {"guard": {"rollbacks": [[3, 1]]}}, {"accuracy": 0.5}))
        assert outcome_of_longer(table, of[4].run_key) is None
        short = outcome_of_longer(table, of[2].run_key)
        assert short is not None
        assert [row["round"] for row in short.rows] == [0, 1, 2]


def test_a_cell_reproduces_from_its_configuration(whole: Path, tmp_path: Path):
    from fedatlas import run
    from fedatlas.api import Experiment
    from fedatlas.config import parse

    table = Table.open(whole)
    key = table.frame().query("kind == 'cell' and status == 'done'").iloc[0].run_key
    (text,) = table.db.execute("SELECT configuration FROM runs WHERE run_key = ?", (key,)).fetchone()
    done = run(Experiment(parse(json.loads(text))), out=tmp_path / "again", baselines=False)
    again = RunFolder.open(done.path).rows()
    assert [row["loss"] for row in again] == [row["loss"] for row in table.rows(key)]


def test_what_is_there_is_not_run_again_and_studies_share_runs(whole: Path, tmp_path: Path):
    attempts = "SELECT run_key, attempts FROM runs ORDER BY run_key"
    before = Table.open(whole).db.execute(attempts).fetchall()
    said: list[str] = []
    assert study().run(table=whole, say=said.append)
    assert not said
    assert Table.open(whole).db.execute(attempts).fetchall() == before

    copy = tmp_path / "table.sqlite"
    copy.write_bytes(whole.read_bytes())
    fewer = study(factor=[{**NODES, "levels": [4]}, {**SCHEME, "level": [AVG, SECRET]}])
    other = Study(fewer.file._replace(name="other"))
    assert other.run(table=copy, say=said.append)
    assert not said
    assert len(Table.open(copy).frame("other")) == 3
    with pytest.raises(ConfigError, match="name one of them"):
        Table.open(copy).frame()


def test_rates_are_picked_on_validation_rows_and_kept(tmp_path: Path):
    factors = [{**SCHEME, "level": [AVG]}]
    given = study(factor=factors, seeds=[1], tuning={"keys": {"local.lr": [1e30, 0.1]}}, base={**BASE, "rounds": 3})
    assert given.run(table=tmp_path / "t.sqlite")
    table = Table.open(tmp_path / "t.sqlite")
    frame = table.frame()
    (cell,) = frame[frame.kind == "cell"].to_dict("records")
    trials = frame[frame.kind == "tuning"]
    assert trials.status.tolist().count("diverged") == 1
    assert cell["rates"] == '{"local.lr": 0.1}' == trials.loc[trials.accuracy.idxmax()].rates


def test_under_secret_cohorts_costs_are_expectations(tmp_path: Path):
    """Who takes part stays secret: bytes come from the dry run, and epsilon from the ledger."""
    assert study(factor=[{**SCHEME, "level": [NOISED]}]).run(table=tmp_path / "t.sqlite")
    table = Table.open(tmp_path / "t.sqlite")
    (cell,) = table.frame().query("kind == 'cell'").to_dict("records")
    assert cell["status"] == "done", cell["reason"]
    assert all(row["bytes_up"] is None for row in table.rows(cell["run_key"])[1:])
    assert cell["bytes_up"] > 0
    assert 0 < cell["epsilon"] < float("inf")


@pytest.mark.timing
def test_runs_that_take_too_long_are_ended_and_tried_again_on_request_and_staying_alone_gives_the_gain(tmp_path: Path):
    path, short = tmp_path / "t.sqlite", {"factor": [{**SCHEME, "level": [AVG]}], "alone": True}
    assert not study(**short, execute={"seconds": 0.001}).run(table=path)
    table = Table.open(path, write=True)
    assert set(table.frame().status) == {"timeout"}
    assert table.retry("small", "timeout") == 3
    table.close()
    assert study(**short).run(table=path)
    frame = Table.open(path).frame()
    assert set(frame.status) == {"done"}
    alone = frame[frame.baseline == "local_only"].iloc[0]
    cell = frame[frame.kind == "cell"].iloc[0]
    assert cell.gain == pytest.approx(cell.client_mean - alone.client_mean)


def children_of(pid: int) -> list[int]:
    try:
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def begun(path: Path) -> int:
    """A process, forked here, that runs the study."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if study().run(table=path) else 1
        finally:
            os._exit(code)
    return pid


def disturbed(path: Path, kills: int, seed: int) -> Iterator[list[int]]:
    """Kills the parent or one of its children at so many moments, then lets the study end; yields the processes that must be gone."""
    stream = random.Random(seed)  # noqa: S311  (moments, no secrets)
    end = time.monotonic() + DEADLINE
    pid = begun(path)
    for number in range(kills):
        time.sleep(stream.uniform(0.05, 0.6))
        below = children_of(pid)
        if number % 2 and below:
            os.kill(stream.choice(below), signal.SIGKILL)
            continue
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        yield below
        pid = begun(path)
    while not os.waitpid(pid, os.WNOHANG)[0]:
        assert time.monotonic() < end
        time.sleep(0.05)


def check_killed(path: Path, whole: Path, kills: int, seed: int) -> None:
    for orphans in disturbed(path, kills, seed):
        end = time.monotonic() + DEADLINE
        while any(started(pid) is not None for pid in orphans):
            assert time.monotonic() < end, "children outlive their parent"
            time.sleep(0.01)
    assert study().run(table=path)
    assert told(path) == told(whole)
    assert rows_of(path) == rows_of(whole)


@pytest.mark.timing
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up under /proc")
def test_killed_anywhere_the_table_ends_as_one_that_was_not(tmp_path: Path, whole: Path):
    check_killed(tmp_path / "table.sqlite", whole, kills=3, seed=1)


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up under /proc")
def test_killed_at_fifty_moments(tmp_path: Path, whole: Path):
    for part in range(5):
        check_killed(tmp_path / str(part) / "table.sqlite", whole, kills=10, seed=part)


@pytest.mark.timing
def test_a_claim_ends_with_its_process(tmp_path: Path, whole: Path):
    path = tmp_path / "t.sqlite"
    path.write_bytes(whole.read_bytes())
    table = Table.open(path, write=True)
    key = table.frame().run_key.iloc[0]
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    table.release(key, "")
    assert table.claim(key)
    assert not table.claim(key)  # this process is at work on it
    with table.writing():
        table.db.execute("UPDATE runs SET pid = ?, start = ? WHERE run_key = ?", (other.pid, started(other.pid), key))
    assert not table.claim(key)
    other.kill()
    other.wait()
    assert table.claim(key)
    with table.writing():
        table.db.execute("UPDATE runs SET start = 'another process of this number' WHERE run_key = ?", (key,))
    assert table.claim(key)


def test_a_table_that_is_newer_or_damaged_or_not_there_is_refused(tmp_path: Path):
    path = tmp_path / "t.sqlite"
    with pytest.raises(ConfigError, match="there is no table"):
        Table.open(path)
    Table.open(path, write=True).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    with pytest.raises(ConfigError, match="newer fedatlas"):
        Table.open(path)
    path.write_bytes(b"no table at all" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        Table.open(path, write=True)


def test_data_that_changed_since_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "rows.csv"
    file.write_text("x,y\n" + "1,0\n2,1\n" * 40)
    base = {**BASE, "data": {"name": "file", "path": str(file), "label": "y"}}
    given = study(base=base, factor=[{**SCHEME, "level": [AVG]}], seeds=[1])
    assert given.run(table=tmp_path / "t.sqlite")
    file.write_text("x,y\n" + "1,0\n2,1\n" * 41)
    with pytest.raises(ConfigError, match="has changed since the study 'small' began"):
        given.run(table=tmp_path / "t.sqlite")


GOLDEN = {1: [0.1133, 0.2689, 0.6911]}
"""RESULTS -> a curve. Where it changes, results of before are not those of now: raise `run_key.RESULTS` and write the new one here."""


def test_golden_curve(whole: Path):
    table = Table.open(whole)
    one = table.frame().query("kind == 'cell' and nodes == '4' and scheme == 'fedavg' and seed == 1").run_key.iloc[0]
    assert [row["accuracy"] for row in table.rows(one)] == pytest.approx(GOLDEN[RESULTS], abs=0.005)


TEXT = """
alone = true
[base]
rounds = 1
data = { limit = 200 }
partition = { name = "iid", clients = 2 }
[[factor]]
name = "scheme"
role = "choice"
[[factor.level]]
name = "fedavg"
set = { "algorithm.name" = "fedavg" }
[[factor.level]]
name = "secret"
set = { privacy = [{ name = "secagg" }] }
"""


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedatlas", "study", *words])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    file, out = tmp_path / "question.toml", tmp_path / "out"
    file.write_text(TEXT)
    assert call(monkeypatch, str(file), "--out", str(out), "--dry-run") == 0
    assert "1 cell would be refused (scheme secret)" in capsys.readouterr().out
    assert not out.exists()
    assert call(monkeypatch, str(file), "--out", str(out)) == 0  # a refused cell is an outcome
    said = capsys.readouterr()
    assert f"The answer from these runs: fedatlas study {file} --out {out} --analyse" in said.out
    assert {line.split(" (")[0] for line in said.err.splitlines() if line.startswith("baseline")} == {
        "baseline alone",
        "baseline pooled",
    }
    assert "3 done, 1 refused" in said.out
    assert (out / "study.toml").read_text() == TEXT
    assert call(monkeypatch, str(file), "--out", str(out), "--export", str(tmp_path / "runs.csv")) == 0
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("run_key,study,role,status,reason,seed,rounds,scheme,")
    assert call(monkeypatch, str(file), "--out", str(out), "--status", "--dry-run") == 2
    assert call(monkeypatch, str(file), "--out", str(out), "--retry", "failing") == 2
    assert "did you mean 'failed'?" in capsys.readouterr().err
