"""`fedatlas deploy trial`: natural owners become nodes, and what cannot be deployed is refused before any process starts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import tomli_w

from fedatlas import ConfigError, Experiment, cli_deploy, load, run
from fedatlas.config import parse, read
from fedatlas.deployment import plain_refusals
from fedatlas.deployment import trial as trying
from fedatlas.deployment.node_rows import read_rows
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.trial_rows import deal, of_nodes
from fedatlas.wire.messages import StatusEvent

OFFICES = ["Lienz", "Tirol", "Wien"]


def given(folder: Path, owners: int = 3, **more: Any) -> dict[str, Any]:
    """An experiment on a table whose rows have owners: of six rows one, two and three."""
    draw = np.random.default_rng(0)
    names = OFFICES if owners == 3 else [f"office {k}" for k in range(owners)]
    whose = [names[(0, 1, 1, 2, 2, 2)[i % 6] if owners == 3 else i % owners] for i in range(240)]
    x = draw.normal(40, 10, 240)
    lines = [
        f"{a:.1f},{office},{'yes' if a + draw.normal(0, 4) > 42 else 'no'}" for a, office in zip(x, whose, strict=True)
    ]
    (folder / "rows.csv").write_text("\n".join(["age,office,y", *lines]) + "\n")
    return {
        "rounds": 2,
        "data": {"name": "file", "path": str(folder / "rows.csv"), "label": "y", "client": "office"},
        "partition": {"name": "natural"},
        "model": {"hidden": [4]},
        "engine": {"plan": "program", "workers": 1},
        **more,
    }


def written(folder: Path, tables: dict[str, Any]) -> Path:
    file = folder / "experiment.toml"
    file.write_text(tomli_w.dumps(tables))
    return file


@pytest.mark.parametrize("judge", ["server", "nodes"])
def test_each_owner_is_a_node_with_its_rows_and_no_name_of_an_owner_goes_along(judge: str, tmp_path: Path):
    config = parse(given(tmp_path))
    deal(config, [], tmp_path, judge)
    owners = json.loads((tmp_path / "owners.json").read_text())
    assert owners == {"site-1": "Lienz", "site-2": "Tirol", "site-3": "Wien"}
    held = {name: read_rows(tmp_path / f"{name}.rows", config) for name in owners}
    counts = [one.facts.rows for one in held.values()]
    assert sorted(len(one.splits["train"].y) for one in held.values()) == [one.train for one in counts]
    assert sum(one.train + one.test for one in counts) == (
        240 if judge == "nodes" else sum(one.train for one in counts)
    )
    assert all(b"Lienz" not in (tmp_path / f"{name}.rows").read_bytes() for name in owners)
    assert all([column for column, _ in one.about.schema] == ["age"] for one in held.values())


def test_as_many_owners_as_are_asked_for(tmp_path: Path):
    config = parse(given(tmp_path, owners=30))
    with pytest.raises(ConfigError, match=r"30 owners, .* --nodes 5"):
        deal(config, [], tmp_path)
    five = parse({**given(tmp_path, owners=30), "partition": {"name": "natural", "clients": 5}})
    deal(five, [f"site-{k}" for k in range(1, 6)], tmp_path)
    assert len(json.loads((tmp_path / "owners.json").read_text())) == 5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": {"bn": "local"}}, "model.bn = 'local'"),
        ({"algorithm": {"name": "gossip"}}, "a server in the middle"),
        ({"tracking": {"name": "tensorboard"}}, r"\[tracking\]: a deployed run"),
        ({"partition": {"name": "natural", "choose": "all"}}, "choose"),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_any_process(
    more: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def started(*command: Any, **how: Any) -> None:
        raise AssertionError(f"{command} {how}")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(trying, "init", started)
    file = written(tmp_path, given(tmp_path, **more))
    with pytest.raises(ConfigError, match=said):
        trying.trial(file, [], None, tmp_path / "out", quiet=True)
    with pytest.raises(ConfigError, match=r"partition.clients = 7: the run has 3 nodes"):
        trying.trial(written(tmp_path, given(tmp_path)), ["partition.clients=7"], 3, tmp_path / "out", quiet=True)


def test_what_is_submitted_names_no_column_of_owners(tmp_path: Path):
    file = written(tmp_path, given(tmp_path))
    names, dealt, submitted = trying.planned(file, [], None, [])
    assert (names, dealt) == ([], [])
    config = read(file, submitted)
    assert not config.data.options().get("client")
    deployable(config, ["site-1", "site-2", "site-3"])
    names, dealt, _ = trying.planned(file, ["partition.name=iid"], None, [])
    assert (names, dealt[-1]) == (["site-1", "site-2", "site-3"], "partition.clients=3")
    digits = parse({})
    assert of_nodes(digits) is digits


@pytest.mark.slow  # real processes
def test_a_trial_of_natural_owners_ends_as_the_simulation(tmp_path: Path):
    tables = given(tmp_path)
    _, ended = trying.trial(written(tmp_path, tables), [], None, tmp_path / "trial", quiet=True)
    assert ended.status == "finished"
    run(Experiment.of(**tables), out=tmp_path / "run", baselines=False)
    digests = [
        hashlib.sha256((tmp_path / one / "model.safetensors").read_bytes()).hexdigest() for one in ("trial", "run")
    ]
    assert digests[0] == digests[1]
    # what docs/deploy.md tells a site that asks whether it would do as well by itself
    rows = pandas.read_csv(tmp_path / "rows.csv").head(30)
    together = load(tmp_path / "trial" / "nodes" / "site-1").estimator().predict(rows[["age"]])
    assert {*together} <= {"yes", "no"}


def test_the_terminal_ends_with_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cost = {"cost": {"seconds": 12.0}, "cpu": {"cores": 2}}
    (tmp_path / "summary.json").write_text(json.dumps({"answer": {"text": "With FedAvg."}, **cost}))
    cli_deploy.finish(StatusEvent("finished", ""), "run", tmp_path, False, False)
    assert capsys.readouterr().out == "With FedAvg. Its rounds took 12\xa0s on 2 cores.\n"
    cli_deploy.finish(StatusEvent("finished", ""), "run", tmp_path, False, True)
    assert capsys.readouterr().out == ""
    cli_deploy.finish(StatusEvent("finished", ""), "run", tmp_path, True, False)
    assert json.loads(capsys.readouterr().out)["answer"] == {"text": "With FedAvg."}


EARLY = [
    {"algorithm": {"name": "gossip"}},
    {"algorithm": {"name": "ditto", "lam": 0.5}},
    {"privacy": [{"name": "paillier"}]},
    {"privacy": [{"name": "two_server"}]},
    {"seeds": [1, 2]},
    {"model": {"bn": "local"}},
    {"observe": {"roles": ["server"]}},
    {"evaluation": {"drift": True}},
    {"evaluation": {"clients": 0.2}},
    {"evaluation": {"on": "validation"}},
    {"attack": [{"name": "sign_flip", "share": 0.4}]},
    {"aggregation": {"name": "median"}},
    {"engine": {"plan": "stacked"}},
    {"tracking": {"name": "tensorboard"}},
    {"partition": {"name": "vertical"}, "algorithm": {"name": "secureboost"}, "privacy": [{"name": "paillier"}]},
]
"""Experiments that no real parties can run, of which the file alone tells."""


@pytest.mark.parametrize("tables", EARLY, ids=lambda tables: next(iter(tables)))
def test_what_the_file_alone_refuses_has_the_sentence_of_the_full_check(tables: dict[str, Any], tmp_path: Path):
    file = written(tmp_path, {"rounds": 1, "partition": {"name": "iid", "clients": 3}, **tables})
    with pytest.raises(ConfigError) as early:
        plain_refusals.check(file, [])
    try:
        deployable(read(file, []), ["a", "b", "c"])
    except ConfigError as error:
        said = str(error)
    assert str(early.value) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["partition.clients=7", "--nodes", "3"], "partition.clients = 7: the run has 3 nodes"),
        (["partition.name=feature_skew"], "changes rows as they are read"),
        (["data.name=file", "data.test=kept.csv"], "data.test names a file"),
        (["data.name=file", "data.limit=5"], "data.limit takes a part"),
        (["data.name=file", "data.test=0.6"], "data.test = 0.6 leaves few rows"),
    ],
)
def test_a_trial_is_refused_before_anything_heavy_is_imported(words: list[str], said: str, tmp_path: Path):
    """Counted in modules, not in seconds: what takes the seconds is torch."""
    code = (
        "import sys\n"
        "from fedatlas.__main__ import main\n"
        f"sys.argv = ['fedatlas', 'deploy', 'trial', *{words!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n"
        "    print(end.code, [m for m in ('torch', 'numpy', 'pandas', 'scipy', 'fedatlas.config') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said in done.stderr
    assert done.stdout.strip() == "2 []"


def test_what_can_be_deployed_passes_the_early_check(tmp_path: Path):
    for tables in (
        {},
        {"privacy": [{"name": "secagg"}]},
        {"seeds": None, "evaluation": {"on": "test"}},
        given(tmp_path),
    ):
        file = written(tmp_path, {key: value for key, value in tables.items() if value is not None})
        plain_refusals.check_trial(file, ["partition.clients=3"], 3)
        plain_refusals.check_trial(file, [], 5)
    plain_refusals.check(tmp_path / "none.toml", [])
