"""How runs begin and end: folders of their own, several seeds, divergence in the set-up, an early stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configured import set_up
from fedatlas import Experiment, api, config
from fedatlas.aggregation.reducers import WeightedSum
from fedatlas.algorithm import Algorithm, Ask, Card
from fedatlas.algorithms.superclients import Grouping, notices
from fedatlas.api import resume, run
from fedatlas.course.progress import Silent
from fedatlas.course.rounds import floats_in
from fedatlas.errors import ConfigError, DivergedError, ProtocolError
from fedatlas.federation.in_process import InProcess
from fedatlas.setup.assembly import first_server, state_notices
from federation import federation


@pytest.mark.parametrize("name", ["fedsgd", "cfl"])
def test_several_seeds_of_an_algorithm_that_fixes_keys(name: str, tmp_path: Path) -> None:
    """What it fixes stands in config.toml, so that the run can be continued and repeated."""
    path = run(
        Experiment.of(rounds=1, seeds=[1, 2], algorithm={"name": name}), out=tmp_path / "run", baselines=False
    ).path
    notices = json.loads((path / "seed-2" / "summary.json").read_text())["notices"]
    assert any(f"'{name}' sets" in notice for notice in notices) == (name == "fedsgd")
    again = run(Experiment.read(path / "config.toml"), out=tmp_path / "again", baselines=False)
    assert again.summary["seeds"] == [1, 2]
    assert len(resume(path, ["rounds=2"]).summary["seeds"]) == 2


def test_runs_begun_at_the_same_time_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.of(rounds=1)
    assert len({api.new_folder(experiment.config) for _ in range(3)}) == 3
    with pytest.raises(ConfigError):
        run(Experiment.of(rounds=1, data={"name": "nothing"}))
    assert len(list((tmp_path / "runs").iterdir())) == 3  # a refused run leaves no folder


@pytest.mark.timing
def test_a_run_is_written_by_one_process(tmp_path: Path) -> None:
    path = run(Experiment.of(rounds=1), out=tmp_path / "run", baselines=False).path
    hold = (
        "import sys\nfrom pathlib import Path\nfrom fedatlas.record.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).claimed():\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="is being run by another process"):
            resume(path, ["rounds=2"])
        other.kill()
    assert resume(path, ["rounds=2"]).summary["rounds"] == 2  # a lock ends with its process
    assert not (path / "lock").exists()


def test_baselines_of_a_run_that_stopped_early_fall_by_the_same_schedule(tmp_path: Path) -> None:
    tables = {"rounds": 9, "stop": {"accuracy": 0.01}, "local": {"schedule": {"name": "cosine"}}}
    path = run(Experiment.of(**tables), out=tmp_path / "run", baselines=True).path
    first, other = (
        [json.loads(line)["lr"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (path, path / "baselines" / "centralised")
    )
    assert first == other
    assert len(first) < 9
    values = {"local": {"schedule": {"name": "cosine"}}}
    hashes = {config.parse({**values, "rounds": rounds}).hash() for rounds in (5, 9)}
    values["local"]["schedule"]["rounds"] = 9  # type: ignore[assignment]
    hashes |= {config.parse({**values, "rounds": rounds}).hash() for rounds in (5, 9)}
    assert len(hashes) == 2


def test_a_run_in_which_no_cluster_can_be_split_says_so(tmp_path: Path) -> None:
    class Heard(Silent):
        def __init__(self) -> None:
            self.notices: list[str] = []

        def said(self, notice: str) -> None:
            self.notices.append(notice)

    for rounds, said in ((2, 1), (4, 0)):
        heard = Heard()
        chosen = Experiment.of(rounds=rounds, algorithm={"name": "cfl", "after_round": 3})
        run(chosen, out=tmp_path / str(rounds), baselines=False, progress=heard)
        assert sum("No cluster can be split" in notice for notice in heard.notices) == said


TOLD = "'feddf' distils on 180 of 200 public rows, at most 30 steps per round (algorithm.passes, steps)."
WORKS = "'fedmd' works on 40 of 200 public rows per round, in batches of 2."
SHORT = "superclient 1 has 2 clients and 224 examples, fewer than the 300 asked for."  # 1347 rows over 12 clients: 112 or 113
PUBLIC = {"public": {"from": "test", "per_class": 20}}


@pytest.mark.parametrize(
    ("algorithm", "tables", "formed", "said"),
    [
        ({"name": "feddf", "steps": 30}, PUBLIC, {}, [TOLD]),
        ({"name": "feddf", "steps": 0}, PUBLIC, {}, []),
        ({"name": "fedmd", "rows": 40}, PUBLIC, {}, [WORKS]),
        ({"name": "fedseq", "min_examples": 300, "phi": "random"}, {}, {"groups": [[0, 1, 2], [3, 4]]}, [SHORT]),
        ({"name": "fedseq", "phi": "random"}, {}, {"groups": [[0, 1, 2], [3, 4]]}, []),
        ({"name": "fedavg"}, {}, {}, []),
    ],
)
def test_what_an_algorithm_says_of_its_beginning_follows_from_state_and_facts(
    algorithm: dict[str, Any], tables: dict[str, Any], formed: dict[str, Any], said: list[str]
) -> None:
    chosen = Experiment.of(algorithm=algorithm, partition={"name": "iid", "clients": 12}, **tables)
    setup = set_up(chosen.config, 1)
    server = first_server(setup)
    assert "notices" not in server
    assert list(state_notices(setup, {**server, **formed})) == said


def test_chains_say_what_their_rule_says_too() -> None:
    """Of the same state and facts, and first; who has no rows makes no superclient larger."""
    rule = Card("averaging", notices=lambda server, facts: [f"{facts['K']} clients, {len(server['groups'])} chain."])
    how = Grouping("conf", "random", "cosine", 2, 0, 11, 1, "all", "sum", "best", "norm")  # full with two of 49 rows
    facts = {"K": 4, "sizes": {0: 50, 1: 47, 2: 0, 3: 50}}
    short = "superclient 0 has 2 clients and 97 examples, fewer than the 98 asked for."
    assert notices(how, rule, {"groups": [[0, 1]]}, facts) == ["4 clients, 1 chain.", short]


def test_a_set_up_that_diverges_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates above the limit are refused beforehand; a loss that is no number in the set-up is said to be one before round 1."""

    def broken(*given: Any, **options: Any) -> Any:
        raise DivergedError("the training loss of client 3 is nan")

    monkeypatch.setattr(InProcess, "drive", broken)
    with pytest.raises(DivergedError, match="diverged before round 1: the training loss of client 3 is nan"):
        run(Experiment.of(rounds=1, algorithm={"name": "fesem"}), out=tmp_path / "run", baselines=False)


def test_figures_that_are_no_numbers_end_a_run() -> None:
    assert list(floats_in({"models": {"a": {"loss": float("inf"), "n": 3}}, "figures": [1.5]})) == [float("inf"), 1.5]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Ask((0, 1), "train", {0: {}, 1: {}}), "asks for a mean of 'train' without weights"),
        (Ask((0, 1), "train", {0: {}}, "each"), "asks client 1 for 'train' without a message"),
        (Ask((0,), "trian", {0: {}}, "each"), "asks for the task 'trian', but its tasks are train"),
        (Ask((0,), "train", {0: {}}, "neighbours"), "but declares a server"),
        (Ask((0,), "train", {0: {}}, "each"), "which looks at single clients, but the task declares"),
        (Ask((0,), "train", {0: {}}, "medain"), "unknown reducer 'medain'"),
    ],
)
def test_an_algorithm_that_asks_for_what_cannot_be_answered_is_told(asked: Ask, said: str) -> None:
    """A mean without weights was a plain sum: twelve clients, twelve times the model."""
    with pytest.raises(ProtocolError, match=said):
        federation(Algorithm("mine")).host().server.answer(asked)


def test_updates_that_are_added_up_have_the_same_parts() -> None:
    added = WeightedSum()
    added.add({"model": 1.0, "c": 2.0}, 0.5)
    with pytest.raises(ProtocolError, match="not every client sent 'c'"):
        added.add({"model": 1.0}, 0.5)


def test_scaffold_stands_still_where_the_rate_has_fallen_to_zero(tmp_path: Path) -> None:
    """Its control is (w_t - y) over the sum of the rates, which is 0 from there on."""
    local = {"schedule": {"name": "cosine", "rounds": 2}}
    done = run(
        Experiment.of(rounds=4, algorithm={"name": "scaffold"}, local=local), out=tmp_path / "run", baselines=False
    )
    rows = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["lr"] for row in rows[3:]] == [0.0, 0.0]
    assert rows[3]["accuracy"] == rows[4]["accuracy"]
