"""An adversary that sees all that a run under noise tells: whether one client failed, or changed nothing, must not show in it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from fedatlas.cli import main
from fedatlas.config import parse
from fedatlas.data.batches import Rows
from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.engine import job as jobs
from fedatlas.errors import PrivacyError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import central_dp, local_dp
from fedatlas.setup.party_rows import PartyRows
from fedatlas.setup.resolution import resolve
from fedatlas.tree import Tree
from fedatlas.wire.agreement import Agreement
from fedatlas.wire.messages import Signed
from fedatlas.wire.policy import Policy

CLOCK = {"seconds", "seconds_by_phase", "peak_memory_bytes"}
WHO = 0  # whose job comes first: steps are derived from it
TABLES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 5},
    "model": {"hidden": [8]},
    "local": {"lr": 0.05},
    "algorithm": {"name": "fedavg", "weights": "uniform"},
}
CENTRAL = {"name": "central_dp", "clip": 0.5, "noise_multiplier": 0.1, "noise": "seed"}
ADAPTIVE = {"name": "central_dp", "clip": "adaptive", "noise_multiplier": 0.1, "noise": "seed"}
FTRL = {"name": "dp_ftrl", "clip": 0.5, "noise_multiplier": 0.1, "noise": "seed"}
LOCAL = {"name": "local_dp", "epsilon": 1000.0, "clip": 0.5, "noise": "seed"}
NBAFL = {"name": "nbafl", "epsilon": 1000.0, "clip": 30.0, "noise": "seed"}
DISTRIBUTED = {"name": "distributed_dp", "clip": 0.5, "noise_multiplier": 0.1, "noise": "seed"}
POISSON = {"sampling": "poisson", "fraction": 0.7}
RUNS: Mapping[str, dict[str, Any]] = {
    "central_dp, one after another": {"privacy": [CENTRAL], "engine": {"name": "loop"}},
    "central_dp, programs": {"privacy": [CENTRAL], "engine": {"plan": "program", "workers": 2}},
    "central_dp, stacked": {"privacy": [CENTRAL], "engine": {"plan": "stacked"}},
    "central_dp, sampled": {"privacy": [{**CENTRAL, "noise_multiplier": 1.0}], "cohort": POISSON},
    "central_dp, scaffold": {
        "privacy": [CENTRAL],
        "algorithm": {"name": "scaffold", "weights": "uniform", "option": "I"},
        "engine": {"plan": "program"},
    },
    "central_dp, adaptive": {"privacy": [ADAPTIVE]},
    "central_dp, adaptive, compressed": {"privacy": [ADAPTIVE], "compression": {"name": "topk", "share": 0.2}},
    "dp_ftrl": {"privacy": [FTRL], "cohort": {"sampling": "passes", "size": 4}},
    "dp_ftrl, compressed": {"privacy": [FTRL], "compression": {"name": "topk", "share": 0.2}},
    "local_dp": {"privacy": [LOCAL]},
    "local_dp, compressed": {"privacy": [LOCAL], "compression": {"name": "clip", "norm": 0.1}},
    "local_dp, masked": {"privacy": [LOCAL, {"name": "secagg", "range": 64.0}]},
    "nbafl": {"privacy": [NBAFL], "algorithm": {"name": "fedavg"}},
    "central_dp, masked": {"privacy": [CENTRAL, {"name": "secagg"}]},
    "distributed_dp": {"privacy": [DISTRIBUTED]},
    "distributed_dp, stacked": {"privacy": [DISTRIBUTED], "engine": {"plan": "stacked"}},
    "distributed_dp, scaffold": {"privacy": [DISTRIBUTED], "algorithm": {"name": "scaffold", "option": "I"}},
}
QUICK = {
    *(
        "central_dp, programs",
        "central_dp, stacked",
        "central_dp, scaffold",
        "central_dp, adaptive, compressed",
        "dp_ftrl",
    ),
    *("local_dp", "local_dp, masked", "nbafl", "distributed_dp, stacked"),
}
"""Each mechanism and each engine; the other runs are marked slow."""
Corrupt = Callable[[Rows], Rows]


def raising(rows: Rows) -> Rows:
    raise MemoryError("the rows of this client")


FAILURES: Mapping[str, Corrupt] = {
    "no numbers": lambda rows: rows._replace(x=rows.x * torch.nan),
    "raises": raising,
}


class Told:
    """All that whoever watches a run is told, but for what the clock decides."""

    def __init__(self, run: Path, exit: int, text: str) -> None:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.rows = [{key: x for key, x in row.items() if key not in CLOCK} for row in rows]
        summary = json.loads((run / "summary.json").read_text())
        summary["cost"] = {key: x for key, x in summary["cost"].items() if key not in CLOCK}
        self.summary, self.exit, self.text = summary, exit, text
        self.own = [json.loads(line) for line in (run / "own-view.jsonl").read_text().splitlines()]
        self.model = (run / "model.safetensors").read_bytes()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Runs an experiment from the command line, with one client's rows, or its change, as they are told to be."""
    monkeypatch.setattr("fedatlas.terminal.columns", lambda row: [("round", str(row["round"]))])
    monkeypatch.setattr("fedatlas.terminal.seconds_text", lambda seconds: "")
    monkeypatch.setattr("fedatlas.terminal.Plain.last", -math.inf)
    monkeypatch.setattr("fedatlas.terminal.time.perf_counter", itertools.count().__next__)
    of_party, protected = PartyRows.__call__, jobs.protected

    def run(name: str, tables: Mapping[str, Any], corrupt: Corrupt | None) -> Told:
        def rows(self: PartyRows, party: int) -> Rows:
            found = of_party(self, party)
            return corrupt(found) if corrupt and party == WHO else found

        def still(bench: Any, job: Any, task: Any, update: Any, rows: int) -> Any:
            if corrupt is None and job.client == WHO:
                zeros = {part: Tree(x).zeros() for part, x in update.items()}
                told = {part: Tree(job.message[part]) for part in update if part in {"model", "buffers"}}
                update = {**update, **zeros, **told}
            return protected(bench, job, task, update, rows)

        monkeypatch.setattr(PartyRows, "__call__", rows)
        monkeypatch.setattr(jobs, "protected", still)
        monkeypatch.setattr("fedatlas.engine.failing.protected", protected)
        file, out = tmp_path / "experiment.toml", tmp_path / name / "run"
        file.write_text(tomli_w.dumps({**TABLES, **tables}))
        monkeypatch.setattr("sys.argv", ["fedatlas", "run", str(file), "--out", str(out), "--no-baselines"])
        monkeypatch.setattr("signal.signal", lambda *given: None)
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        text = capfd.readouterr()
        said = re.sub(r"took .*? on", "took a while on", (text.out + text.err).replace(str(out), "RUN"))
        return Told(out, int(end.value.code or 0), said)

    return run


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in RUNS])
def test_a_client_that_fails_is_one_that_changes_nothing(told: Any, how: str) -> None:
    """The same rows, summary, model, exit and words, whatever it was that failed."""
    still = told("still", RUNS[how], None)
    assert still.exit == 0
    for name, corrupt in FAILURES.items():
        found = told(name, RUNS[how], corrupt)
        assert found.exit == still.exit
        assert found.text == still.text
        assert found.rows == still.rows
        assert found.summary == still.summary
        assert found.model == still.model
        why = {"no numbers": "DivergedError", "raises": "MemoryError"}[name]
        assert found.own[1]["failed"][str(WHO)].startswith(why)  # which a simulation alone knows
    assert not any("failed" in one for one in still.own)


def test_too_long_a_change_is_clipped(told: Any) -> None:
    """One of 1e30 counts no more than the bound; nobody is named."""
    found = told("long", RUNS["central_dp, one after another"], lambda rows: rows._replace(x=rows.x * 1e9))
    assert found.exit == 0
    assert "failed" not in found.own[1]


@pytest.mark.parametrize("mechanism", [central_dp(clip=1e6, noise_multiplier=0.0), local_dp(epsilon=1.0, clip=1e6)])
def test_a_server_that_clips_sees_every_update(mechanism: Mechanism) -> None:
    """A policy that wants sums only must not take a large clip without noise for them."""
    assert mechanism.sums_only == ""
    whole = resolve(parse({"partition": {"name": "iid", "clients": 3}, "algorithm": TABLES["algorithm"]}))
    agreement = Agreement("run", "some", {}, ("a", "b", "c"), (), "operator", 3, "", 0.0)
    run = AgreedRun(Signed("", "", ""), agreement, whole._replace(mechanisms=(mechanism,)), 0)
    with pytest.raises(PrivacyError, match="secure_aggregation = true forbids"):
        Policy(secure_aggregation=True).check(run.asked(cohort=3))
