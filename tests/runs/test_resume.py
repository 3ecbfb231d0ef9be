"""What a run that is continued must find again, what it remembers, and what it refuses: one sentence each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment, config, load
from fedatlas.api import resume, run
from fedatlas.course import rounds
from fedatlas.course.progress import Silent
from fedatlas.errors import CheckpointError, ConfigError, FedatlasError
from fedatlas.setup.assembly import first_server
from tables import of_table, table


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("what", ["label", "cell", "row"])
def test_other_data_are_noticed(tmp_path: Path, what: str) -> None:
    """One label turned, one number changed, one row more: the run is not continued on them."""
    file = tmp_path / "data.csv"
    table(file)
    path = run(of_table(file), out=tmp_path / "run", baselines=False).path
    lines = file.read_text().splitlines()
    if what == "label":
        lines[7] = lines[7].replace("yes", "?").replace("no", "yes").replace("?", "no")
    elif what == "cell":
        lines[7] = "0.25," + lines[7].split(",", 1)[1]
    else:
        lines.append(lines[7])
    original = file.read_text()
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(CheckpointError, match=r"data are not those that .* began with") as error:
        resume(path, ["rounds=3"], baselines=False)
    assert "\n" not in str(error.value)
    assert len(rows(path)) == 3
    assert config.read(path / "config.toml").rounds == 2  # nothing of the run was changed
    file.write_text(original)
    assert resume(path, ["rounds=3"], baselines=False).summary["rounds"] == 3


@pytest.mark.parametrize("name", ["initial.safetensors", "partition.json", "preprocess.json"])
@pytest.mark.parametrize("content", [None, b"{}"])
def test_what_follows_from_the_configuration_is_written_anew(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = run(Experiment.of(rounds=1), out=tmp_path / "run", baselines=False).path
    before = (path / name).read_bytes()
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)
    resume(path, ["rounds=2"], baselines=False)
    assert (path / name).read_bytes() == before


@pytest.mark.parametrize("name", ["options.json", "plugins.json", "module.json"])
def test_what_was_asked_for_and_cannot_be_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    path = run(Experiment.of(rounds=1), out=tmp_path / "run", baselines=False).path
    (path / name).write_text("x")
    with pytest.raises(ConfigError, match=rf"{name}' is damaged"):
        resume(path, ["rounds=2"])


def test_rows_that_were_edited_are_noticed(tmp_path: Path) -> None:
    """The same length, one digit another: the figures would no longer be those of the run."""
    path = run(Experiment.of(rounds=2), out=tmp_path / "run", baselines=False).path
    file = path / "metrics.jsonl"
    text = file.read_text()
    at = text.index('"accuracy": 0.') + len('"accuracy": 0.')
    file.write_text(text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :])
    with pytest.raises(CheckpointError, match="altered or cut short"):
        resume(path, ["rounds=3"], baselines=False)
    file.write_text(text)
    assert resume(path, ["rounds=3"], baselines=False).summary["rounds"] == 3
    assert resume(path, ["rounds=4"], baselines=False).summary["rounds"] == 4  # also with rows written after a resume


def test_sentences_in_the_state_of_an_older_checkpoint_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until 0.1.0 the server's state held them under "notices"."""
    chosen = {"algorithm": {"name": "cfl", "after_round": 1, "eps1": 5.0, "eps2": 0.01}, "data": {"limit": 300}}
    whole = run(Experiment.of(rounds=3, **chosen), out=tmp_path / "whole", baselines=False)
    with monkeypatch.context() as older:
        older.setattr(rounds, "first_server", lambda setup: {**first_server(setup), "notices": ["No cluster"]})
        path = run(Experiment.of(rounds=1, **chosen), out=tmp_path / "part", baselines=False).path
    assert b'"notices":["No cluster"]' in (path / "checkpoint" / "server-000001.bin").read_bytes()
    assert resume(path, ["rounds=3"], baselines=False).summary["clusters"] == whole.summary["clusters"]
    assert (path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_whether_baselines_were_asked_for_is_remembered(tmp_path: Path) -> None:
    """By default they would be trained: the default experiment is cheap."""
    path = run(Experiment.of(rounds=1), out=tmp_path / "run", baselines=False).path
    assert "gain" not in resume(path, ["rounds=2"]).summary
    assert not (path / "baselines").exists()
    assert "gain" in resume(path, baselines=True).summary
    assert "gain" in resume(path, ["rounds=3"]).summary
    seeds = run(Experiment.of(rounds=1, seeds=[1, 2]), out=tmp_path / "seeds", baselines=False).path
    resume(seeds, ["rounds=2"])
    assert not list(seeds.glob("seed-*/baselines"))


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path) -> None:
    path = run(Experiment.of(rounds=3), out=tmp_path / "run", baselines=False).path
    with pytest.raises(ConfigError, match=r"rounds = 2: .* has already run 3 rounds; ask for 3 or more"):
        resume(path, ["rounds=2"])
    assert config.read(path / "config.toml").rounds == 3
    assert len(rows(path)) == 4
    seeds = run(Experiment.of(rounds=2, seeds=[1, 2]), out=tmp_path / "seeds", baselines=False).path
    with pytest.raises(ConfigError, match="has already run 2 rounds"):
        resume(seeds, ["rounds=1"])


def test_every_seed_is_continued_with_the_new_rounds(tmp_path: Path) -> None:
    """As long, and as good, as if it had been asked for at once."""
    whole = run(Experiment.of(rounds=3, seeds=[1, 2]), out=tmp_path / "whole", baselines=False)
    path = run(Experiment.of(rounds=1, seeds=[1, 2]), out=tmp_path / "part", baselines=False).path
    done = resume(path, ["rounds=3"], baselines=False)
    for seed in (1, 2):
        folder = path / f"seed-{seed}"
        assert config.read(folder / "config.toml").rounds == 3
        assert [row["round"] for row in rows(folder)] == [0, 1, 2, 3]
        assert (folder / "model.safetensors").read_bytes() == (
            whole.path / f"seed-{seed}" / "model.safetensors"
        ).read_bytes()
    assert config.read(path / "config.toml").rounds == 3
    assert done.summary["final"] == whole.summary["final"]


def test_a_seed_stopped_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    done = run(Experiment.of(rounds=1, seeds=[1, 2]), out=tmp_path / "run", baselines=False)
    begun = done.path / "seed-2"  # row 0 is written before the first checkpoint
    (begun / "summary.json").unlink()
    (begun / "metrics.jsonl").write_text(json.dumps(rows(begun)[0]) + "\n")
    for file in (begun / "checkpoint").iterdir():
        file.unlink()
    assert resume(done.path, baselines=False).summary["final"] == done.summary["final"]


def test_a_run_that_is_continued_before_its_first_checkpoint_loses_nothing_to_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    table(file)
    path = run(of_table(file), out=tmp_path / "run", baselines=False).path
    whole, model = rows(path), (path / "model.safetensors").read_bytes()
    for name in ("summary.json", "checkpoint"):  # as it stands between row 0 and the first checkpoint
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    (path / "metrics.jsonl").write_text(json.dumps(whole[0]) + "\n")
    text, original = (path / "config.toml").read_text(), file.read_text()
    file.unlink()
    with pytest.raises(FedatlasError):
        resume(path, baselines=False)
    assert (path / "config.toml").read_text() == text
    file.write_text(original)
    resume(path, baselines=False)
    assert [(row["round"], row["accuracy"]) for row in rows(path)] == [(row["round"], row["accuracy"]) for row in whole]
    assert (path / "model.safetensors").read_bytes() == model


def test_a_run_whose_checkpoints_were_deleted_is_not_begun_anew(tmp_path: Path) -> None:
    path = run(Experiment.of(rounds=2), out=tmp_path / "run", baselines=False).path
    shutil.rmtree(path / "checkpoint")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(ConfigError, match="has lost its checkpoint"):
        resume(path, ["rounds=3"], baselines=False)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_run_that_goes_further_is_not_finished_until_it_is(tmp_path: Path) -> None:
    """Old figures beside new rows would be taken for theirs."""
    path = run(Experiment.of(rounds=2), out=tmp_path / "run", baselines=False).path

    class Stopper(Silent):
        def row(self, row: Mapping[str, Any]) -> None:
            if row["round"] == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(path, ["rounds=5"], baselines=False, progress=Stopper())
    with pytest.raises(ConfigError, match="is not finished"):
        load(path)
    assert resume(path, baselines=False).summary["rounds"] == 5


def test_seeds_do_not_run_over_another_run(tmp_path: Path) -> None:
    """A folder that holds a run is refused; one left by a refused configuration does not stand in the way."""
    with pytest.raises(ConfigError, match="clients"):
        run(Experiment.of(seeds=[1, 2], partition={"name": "iid", "clients": 9999}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(Experiment.of(rounds=1, seeds=[1]), out=tmp_path / "run", baselines=False)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(Experiment.of(rounds=2, seeds=[1]), out=tmp_path / "run", baselines=False)


def test_the_summary_over_seeds_has_what_one_run_has(tmp_path: Path) -> None:
    done = run(Experiment.of(rounds=2, seeds=[1, 2]), out=tmp_path / "run", baselines=False)
    each = [json.loads((done.path / f"seed-{s}" / "summary.json").read_text()) for s in (1, 2)]
    s = done.summary
    assert s["best"]["accuracy"]["value"] == pytest.approx(np.mean([e["best"]["accuracy"]["value"] for e in each]))
    assert s["best"]["accuracy"]["rounds"] == [e["best"]["accuracy"]["round"] for e in each]
    assert s["mean_last"]["loss"] == pytest.approx(np.mean([e["mean_last"]["loss"] for e in each]))
    assert s["over_seeds"]["mean_last"]["loss"]["n"] == 2
    assert s["config_hash"] == config.read(done.path / "config.toml").hash()
    assert set(each[0]) - set(s) <= {
        "seed", "judged_on", "algorithm_facts", "forward_flops", "partition_facts", "leaves", "notices", "per_client",
        "sha256",
    }  # what belongs to one seed  # fmt: skip
