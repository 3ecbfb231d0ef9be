"""The command line: what goes where, and what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedatlas
from fedatlas import Algorithm, Experiment, catalogue, plugins, registry
from fedatlas.aggregation import PRE, RULES
from fedatlas.api import run
from fedatlas.attacks import ATTACKS
from fedatlas.cli import app
from fedatlas.config.parties import HYBRID, VERTICAL, hybrid, vertical
from fedatlas.data.by_name import SOURCES
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import MECHANISMS
from fedatlas.vertical import SCHEMES


def test_the_command_line_prints_one_object_and_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedatlas", "run"]
    timed = [command[0], "-X", "importtime", *command[1:], "rounds=1", "--no-baselines", "--json"]
    good = subprocess.run([*timed, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert good.returncode == 0
    assert json.loads(good.stdout)["run_dir"] == str(tmp_path / "run")
    imported = {line.rsplit("|")[-1].strip() for line in good.stderr.splitlines()}
    assert "torch" in imported
    assert not imported & {
        "torch._dynamo",
        "sympy",
        "sklearn",
        "scipy.stats",
        "pandas",
    }  # seconds, where a run takes one
    bad = subprocess.run([*command, "local.lrr=1"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stdout == ""
    assert "did you mean 'local.lr'" in bad.stderr
    assert "Traceback" not in bad.stderr
    twice = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert twice.returncode == 2
    assert "--resume" in twice.stderr


def test_the_version_is_the_installed_one() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.output) == (0, f"fedatlas {fedatlas.__version__}\n")
    as_module = subprocess.run(
        [sys.executable, "-m", "fedatlas", "--version"], check=True, capture_output=True, text=True
    )
    assert as_module.stdout == said.output


def test_tables_in_a_dict_are_told_how_to_be_passed() -> None:
    for call in (run, Experiment.of):
        with pytest.raises(ConfigError, match=r"Experiment.of\(rounds=2\)"):
            call({"rounds": 2})


def test_a_plugin_brings_an_algorithm(tmp_path: Path) -> None:
    from fedatlas.plugins import load_plugins

    (tmp_path / "mine.py").write_text(
        "from fedatlas import Algorithm\n"
        "def half(*, share: float = 0.5) -> Algorithm:\n"
        '    """w <- w + share (mean - w)."""\n'
        "    def update(server, mean, round):\n"
        "        return {**server, 'model': server['model'] + share * (mean['model'] - server['model'])}\n"
        "    return Algorithm('half', server_update=update)\n"
        "ALGORITHMS = {'half': half}\n"
    )
    load_plugins([tmp_path / "mine.py"])
    done = run(Experiment.of(rounds=2, algorithm={"name": "half", "share": 0.0}), out=tmp_path / "run", baselines=False)
    start, end = (load_file(done.path / f"{name}.safetensors") for name in ("initial", "model"))
    assert all(torch.equal(start[name], end[name]) for name in start)
    (tmp_path / "ours.py").write_text("ALGORITHMS = {'fedavg': print}\n")
    with pytest.raises(ConfigError, match="fedatlas already has 'fedavg' among its algorithms"):
        load_plugins([tmp_path / "ours.py"])
    with pytest.raises(ConfigError, match="no such Python file"):
        load_plugins([tmp_path / "other.py"])


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    catalogue.show_entry(catalogue.entry(name))
    return capsys.readouterr().out


def test_every_parameter_of_every_component_says_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its docstring or its annotation, and `show` prints it once."""
    monkeypatch.setattr(registry, "PLUGINS", {kind: {} for kind in registry.PLUGINS})
    tables = {
        **plugins.OURS,
        "data": {name: source.builder for name, source in SOURCES.items()},
        "privacy": MECHANISMS,
        "attacks": ATTACKS,
        "rules": {**RULES, **PRE},
    }
    of_columns: dict[str, Any] = {
        "algorithms": {name: scheme.build for name, scheme in SCHEMES.items()},
        "partitions": {VERTICAL: vertical, HYBRID: hybrid},
    }
    silent, twice = [], []
    for kind in catalogue.KINDS:
        for row in (row for row in catalogue.rows(kind) if row.get("parameters")):
            builder = {**tables[kind], **of_columns.get(kind, {})}[row["name"]]
            said = registry.meanings(builder)
            silent += [f"{kind} {row['name']}: {key}" for key in registry.undescribed(builder) - said.keys()]
            assert all(row["accepts"][key].endswith(f"; {words}") for key, words in said.items()), row["name"]
            twice += [f"{kind} {row['name']}: {key}" for key in said if f"\n{key}: " in row.get("source", "")]
    assert not silent, (
        "write a line 'key: what it means, with its unit.' behind the first line of the builder's docstring, or into the head "
        f"of its file, for {'; '.join(silent)}"
    )
    assert not twice


@pytest.mark.parametrize("pre", PRE)
def test_what_comes_before_a_rule_is_found_among_the_rules(pre: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line that names it, and the algorithms of a rule without weights."""
    assert pre in {row["name"] for row in catalogue.rows("rules")}
    said = shown(pre, capsys)
    assert f'written pre = "{pre}"' in said
    assert "needs more than 2 f changes" in said
    assert ("hwfedavg" in said) == (pre == "arc"), "the mean keeps its weights only behind shortened changes"


def test_show_says_what_a_parameter_means_and_prints_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown("cfl", capsys)
    assert (
        "eps1 = 0.4  # number, 0 or more; a cluster is at rest if its mean update is shorter than this (Euclid" in said
    )
    assert "gamma    gamma: least separation of a split             linkage " in said  # columns stay where they were
    assert "``" not in said
    assert "path  # text; required; a .npz, a .csv[.gz]" in shown("file", capsys)
    said = shown("natural", capsys)
    assert said.count("rows kept of each owner, a seeded sample; 0 = all") == 1
    assert "Source: D11" in said


def test_a_plug_in_that_explains_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mute(*, share: float = 0.5) -> Algorithm:
        return Algorithm("mute")

    def half(*, share: float = 0.5, other: int) -> Algorithm:
        """share: this is the title.

        other things: no line of a parameter.
        share: part of the way,
            from 0 to 1.

        The end.
        """
        return Algorithm("half")

    for builder in (mute, half):
        monkeypatch.setitem(registry.PLUGINS["algorithms"], builder.__name__, builder)
    assert "share = 0.5  # number\n" in shown("mute", capsys)
    assert "other  # whole number; required\n" in shown("half", capsys)
    assert registry.meanings(half) == {"share": "part of the way, from 0 to 1"}
    assert registry.prose(half) == "share: this is the title.\n\nother things: no line of a parameter.\n\nThe end."
