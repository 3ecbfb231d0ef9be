"""Whatever is wrong is said in one sentence of our own, with what would be right; nothing that is written is ignored."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedatlas
from command_line import Done
from configured import set_up
from fedatlas import Experiment, catalogue, config
from fedatlas.api import run
from fedatlas.errors import ConfigError, DataError, DivergedError, FedatlasError
from fedatlas.runs import ensure
from tables import table

PYDANTIC = ("Input", "should be", "valid dictionary", "instance of", "Field required", "validation error")


def refusal(*overrides: str, path: Path | None = None) -> str:
    """The sentence with which a configuration is refused."""
    with pytest.raises(FedatlasError) as error:
        set_up(config.read(path, overrides), 1)
    said = str(error.value)
    assert "\n" not in said
    assert not any(word in said for word in PYDANTIC), said
    return said


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("local.lr=fast", "local.lr = 'fast': expected a number."),
        ("local.epochs=1.5", "local.epochs = 1.5: expected a whole number."),
        ("local.nesterov=maybe", "local.nesterov = 'maybe': expected true or false."),
        ("rounds=true", "rounds = true: expected a whole number, 0 or more."),
        ("local.schedule.gamma=false", "local.schedule.gamma = false: expected a number, above 0, or left out."),
        ("data.limit=true", "data.limit = true: expected a whole number, 0 or more."),
        ("algorithm={name='fedprox', mu=true}", "algorithm.mu = true: expected a number"),
        ("local.lr=0", "local.lr = 0: expected a number above 0."),
        ("cohort.fraction=1.5", "cohort.fraction = 1.5: expected a number of 1 or less."),
        ("local=3", "local = 3: expected a table."),
        ("data=digits", "'data=digits': write data.name=digits."),
        ("data.name=3", "data.name = 3: expected a text."),
        ("local.betas=0.9", "local.betas = 0.9: expected a list."),
        ("local.betas=[0.9]", "local.betas: its value number 2 is missing"),
        ("local.betas=[0.9, 1.0]", "local.betas: its value number 2 is 1.0, expected a number below 1."),
        ("local.betas=[0.9, 'x']", "local.betas: its value number 2 is 'x', expected a number."),
        ("local.optimizer=sdg", "local.optimizer = 'sdg': expected 'sgd' or 'adam' (did you mean 'sgd'?)."),
        ("model.hidden=[10, 'x']", "model.hidden: its value number 2 is 'x', expected a whole number."),
        ("model.loss=cross_entrpy", "did you mean 'cross_entropy'"),
        ("model.loss=foo", "model.loss = 'foo': unknown loss 'foo': known: auto, bce"),
        ("model.loss=3", "model.loss = 3: expected a text or a table."),
        ("model.loss={nam='mse'}", "did you mean"),
        ("algorithm={name='fedprox', mu='x'}", "algorithm.mu = 'x': expected a number."),
        ("algorithm={name='scaffold', option='III'}", "algorithm.option = 'III': expected 'I' or 'II'"),
        ("algorithm={name='fedprox', mu=-1.0}", "algorithm.mu = -1.0: expected a number of 0 or more."),
        ("data.test=1.5", "data.test: 1.5 is not 'own', a share between 0 and 1, or a file name."),
        ("engine.memory=0", "engine.memory: '0' is not a size: write a number above 0"),
        ("engine.memory=0GiB", "'0GiB' is not a size"),
        ("lr=0.1", "unknown key 'lr': it belongs to a table, local.lr, in Python local={'lr': ...}."),
        ("mu=0.1", "unknown key 'mu': it belongs to a table, algorithm.mu, in Python"),
        ("seeds=5", "seeds = 5: expected a list, such as seeds = [1, 2, 3]; one alone is seed = 5."),
        ("seed=-1", "seed = -1: expected a number of 0 or more."),
        ("seeds=[1, -1]", "seeds: its value number 2 is -1, expected a number of 0 or more."),
        ("cohort.size=13", "cohort.size = 13: there are 12 clients"),
        ("engine={name='loop', workers=2}", "engine.workers = 2: the loop trains one client after another"),
        ("engine={name='loop', plan='stacked'}", "engine.plan = 'stacked': the loop"),
        ("engine={name='loop', precision='bfloat16'}", "the loop computes only in float32 or float64"),
        ("cohort={fraction=0.5, size=3}", "give cohort.fraction or cohort.size, not both"),
    ],
)
def test_one_sentence_of_ours(override: str, expected: str) -> None:
    assert expected in refusal(override)


def test_a_key_on_the_command_line_takes_the_place_of_its_alternative(tmp_path: Path) -> None:
    """The file says a fraction and epochs, the command a number and steps: the command holds, both in one place do not."""
    (tmp_path / "e.toml").write_text("seed = 4\n[cohort]\nfraction = 0.5\n[local]\nepochs = 2\n")
    read = config.read(tmp_path / "e.toml", ["cohort.size=3", "local.steps=7", "seeds=[1, 2]"])
    assert (read.cohort.size, read.local.steps, read.local.epochs, read.seeds) == (3, 7, None, (1, 2))
    assert config.parse(read.plain()) == read  # what a run writes down is what it reads back
    with pytest.raises(ConfigError, match="not both"):
        config.read(tmp_path / "e.toml", ["cohort.size=3", "cohort.fraction=0.2"])


def test_no_accuracy_to_stop_at_where_the_target_is_a_number(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", x_train=np.zeros((20, 2), np.float32), y_train=np.arange(20) / 8)
    given = ("data.name=file", f"data.path={tmp_path / 'n.npz'}", "partition.name=iid", "partition.clients=3")
    assert "use stop.patience" in refusal(*given, "stop.accuracy=0.9")
    assert set_up(config.read(None, [*given, "stop.patience=3"]), 1).config.stop is not None


def test_bfloat16_says_what_it_acts_on() -> None:
    def notices(*overrides: str) -> str:
        return " ".join(set_up(config.read(None, ["engine.precision=bfloat16", *overrides]), 1).notices)

    assert "this model has none" in notices()
    assert "only the convolutions are computed in it" in notices("model.name=cnn1")
    assert not set_up(config.read(None, []), 1).notices


def test_a_class_that_training_does_not_know(tmp_path: Path) -> None:
    """In a test file it is a mistake; where we cut the test rows ourselves it is chance, and said."""
    table(tmp_path / "train.csv")
    table(tmp_path / "test.csv", seed=1, n=12)
    text = (tmp_path / "test.csv").read_text().replace(",yes\n", ",Yes\n", 1)
    (tmp_path / "test.csv").write_text(text)
    given = (
        "data.name=file", f"data.path={tmp_path / 'train.csv'}", "data.label=y", "partition.name=iid", "partition.clients=2",
    )  # fmt: skip
    said = refusal(*given, f"data.test={tmp_path / 'test.csv'}")
    assert "1 test rows have a class that no training row has ('Yes')" in said
    x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=np.where(y == 1, 7, 0))
    assert "('7')" in refusal("data.name=file", f"data.path={tmp_path / 'a.npz'}", "partition.name=iid")
    y = np.array([0, 1] * 10 + [2])
    np.savez(tmp_path / "b.npz", x_train=np.zeros((21, 2), np.float32), y_train=y)
    given = ("data.name=file", f"data.path={tmp_path / 'b.npz'}", "data.test=0.5", *given[3:])
    found = set_up(config.read(None, given), 1)
    assert found.dataset.train.y.tolist().count(2) == 1  # its only row is learnt from
    y = np.append(y, 2)
    np.savez(tmp_path / "b.npz", x_train=np.zeros((22, 2), np.float32), y_train=y)
    found = set_up(config.read(None, [*given, "data.limit=2"]), 1)
    assert 2 not in found.dataset.train.y.tolist()
    assert any("One test row has a class that no training row has ('2')" in notice for notice in found.notices)


def test_the_label_that_is_wrong_is_the_one_named(tmp_path: Path) -> None:
    x = np.zeros((6, 4), np.int64)
    y = np.array([[0, 1, 2, -7]] + [[0, 1, 2, 3]] * 5)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x, y_test=np.abs(y))
    assert "training label -7" in refusal("data.name=file", f"data.path={tmp_path / 't.npz'}", "partition.name=iid")


def test_a_partition_that_cannot_be_names_one_that_can(tmp_path: Path) -> None:
    """Six classes of unequal sizes, as har has them: the number that is named works, and iid does."""
    y = np.repeat(np.arange(6), [120, 110, 100, 130, 140, 140])
    np.savez(
        tmp_path / "six.npz",
        x_train=np.zeros((len(y), 2), np.float32),
        y_train=y,
        x_test=np.zeros((6, 2)),
        y_test=np.arange(6),
    )
    given = ("data.name=file", f"data.path={tmp_path / 'six.npz'}")
    said = refusal(*given)
    number = said.split("partition.clients = ")[1].split(" ")[0]
    assert said.endswith("works, and so does partition.name = 'iid'.")
    assert len(set_up(config.read(None, [*given, f"partition.clients={number}"]), 1).partition.clients) == int(number)


def test_har_under_the_default_partition_names_a_setting_that_works(shared_data: object) -> None:
    shared_data("har_smartphones_561.npz")  # type: ignore[operator]
    said = refusal("data.name=har")
    number = said.split("partition.clients = ")[1].split(" ")[0]
    assert set_up(config.read(None, ["data.name=har", f"partition.clients={number}"]), 1).partition.left_out < 20


def test_show_prints_ranges_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(name: str) -> str:
        catalogue.show_entry(catalogue.entry(name))
        return capsys.readouterr().out

    assert "mu = 0.01  # number, 0 or more" in shown("fedprox")
    assert "beta1 = 0.9  # number, 0 or more and below 1" in shown("fedadam")
    assert 'option = "II"  # "I" | "II"' in shown("scaffold")
    assert "rule  # table, or left out" in shown("fedseq")
    assert "path  # text; required" in shown("file")
    assert "rotate = []  # list of numbers; degrees anticlockwise" in shown("feature_skew")
    assert "majority = 0.7  # number; above 0, at most 1; share of a client's rows" in shown("majority_even")
    assert "hidden = [64]  # list of whole numbers" in shown("mlp")
    assert 'split = "official"  # "official" | "pooled"' in shown("har")
    for kind in catalogue.KINDS:
        for row in catalogue.rows(kind):
            assert set(row.get("parameters", {})) == set(row.get("accepts", {})), row["name"]


PLUGIN = '''
import torch
from torch import nn
from fedatlas.data.partition.sizes import iid
from fedatlas.algorithms.fedavg import fedavg

def tiny(shape, outputs, *, width: int = 4) -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.tensor(shape).prod()), width), nn.ReLU(), nn.Linear(width, outputs))

def halves(labels, clients, seed):
    """Two halves."""
    return iid(labels, 2, seed)

def mine():
    """FedAvg under another name."""
    return fedavg()

MODELS, PARTITIONS, ALGORITHMS = {"tiny": tiny}, {"halves": halves}, {"mine": mine}
'''


LATIN = os.fsdecode(b"caf\xe9")  # a name in another encoding than UTF-8, as a disk may hold it


@pytest.mark.skipif(sys.platform in {"darwin", "win32"}, reason="names of files are Unicode there")
def test_a_name_that_is_not_utf8_is_one_sentence(tmp_path: Path, command: Callable[..., Done]) -> None:
    """Where a record would have to hold it; where none does, such files and folders are read and written."""
    own, few = f"{LATIN}.csv", ("partition={name='iid', clients=2}", "rounds=1", "--no-baselines")
    table(tmp_path / own)
    data = ("run", "data.name=file", "data.label=y")
    for words, where in (
        ((*data, f"data.path={tmp_path / own}", *few), "data.path: "),
        ((*data, f"data.path={tmp_path / own}", *few, "--dry-run"), "data.path: "),
        (("run", f"model.init={LATIN}.safetensors"), "model.init: "),
        (("new", str(tmp_path / f"{LATIN}.toml")), ""),
        (("run", "--plugin", str(tmp_path / f"{LATIN}.py")), "--plugin "),
    ):
        done = command(*words)
        assert done.code == 2, words
        named = rf"fedatlas: {where}'.*caf\\udce9[.a-z]*' is not UTF-8: give that file or folder another name.\n"
        assert re.fullmatch(named, done.stderr), done.stderr
    folder = tmp_path / LATIN
    table(tmp_path / "plain.csv")
    done = command(*data, f"data.path={tmp_path / 'plain.csv'}", *few, "--out", str(folder), "--quiet")
    assert done.code == 0, done.stderr
    assert len(fedatlas.predict(folder, tmp_path / own)) == len((tmp_path / own).read_text().splitlines()) - 1
    with pytest.raises(ConfigError, match="is not UTF-8"):
        fedatlas.report([folder, shutil.copytree(folder, tmp_path / "copy")], tmp_path / "both.html")
    assert not (tmp_path / "both.html").exists()


def test_a_class_that_is_not_utf8_is_one_sentence(tmp_path: Path) -> None:
    for name in (LATIN, "plain"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
    said = refusal("data.name=file", f"data.path={tmp_path / 'pictures'}")
    assert said.endswith("the class 'caf\\udce9' is not UTF-8: give that file or folder another name.")


def test_a_plugin_reaches_every_command(tmp_path: Path, command: Callable[..., Done]) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    plugin = ("--plugin", str(tmp_path / "mine.py"))
    keys = ("model.name=tiny", "partition.name=halves", "algorithm.name=mine", "rounds=1")
    out = tmp_path / "run"
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    for words, said in (
        (("run", *keys, "--out", str(out), "--no-baselines"), ""),
        (("list", "models"), "tiny"),
        (("show", "tiny"), "width = 4  # whole number"),
        (("partition", *keys), "2 clients"),
        (("predict", str(out), str(tmp_path / "new.npz")), "prediction"),
        (("report", str(out)), "report.html"),
    ):
        done = command(*words, *plugin)
        assert done.code == 0, (words, done.stderr)
        assert said in done.stdout, (words, done.stdout)
    assert "unknown model 'tiny'" in command("predict", str(out), str(tmp_path / "new.npz")).stderr
    (tmp_path / "mine.py").write_text(PLUGIN + "# changed\n")
    refused = command("run", "--resume", str(out), "rounds=2", *plugin)
    assert refused.code == 2
    assert "no file with its text" in refused.stderr
    (tmp_path / "mine.py").write_text(PLUGIN)
    assert command("run", "--resume", str(out), "rounds=2", *plugin).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--ot", "x"), "--out"),
        (("run", "--out"), "--out"),
        (("rnu",), "run"),
        (("show",), "name"),
        (("show", "fedprx"), "did you mean 'fedprox'"),
    ],
)
def test_wrong_usage_is_one_line(words: tuple[str, ...], said: str, command: Callable[..., Done]) -> None:
    """No box, no traceback: one line, exit code 2."""
    done = command(*words)
    assert done.code == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("fedatlas: ")
    assert said in done.stderr.lower()


def test_an_interrupted_command_says_how_to_go_on(
    command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without progress, and of several seeds the folder of all."""
    begun = [None, Path("a"), Path("b/seed-2")]

    def interrupt(*given: object, progress: Any, **keys: object) -> None:
        progress.folder = begun.pop(0)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedatlas.api.run", interrupt)
    for said in ("nothing had begun", "--resume a\n", "--resume b\n"):
        done = command("run", "--quiet")
        assert done.code == 130
        assert said in done.stderr


def test_help_is_still_help(command: Callable[..., Done]) -> None:
    for words in ((), ("--help",), ("run", "--help")):
        done = command(*words)
        assert "Usage" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_baseline_that_diverges_is_left_out(tmp_path: Path) -> None:
    """FedAvg with clipped steps holds where the baseline would not: the run is finished all the same."""
    said: list[str] = []

    class Listener:
        def started(self, *given: object) -> None: ...
        def row(self, row: object) -> None: ...
        def finished(self, *given: object) -> None: ...
        def beside(self, name: str) -> contextlib.AbstractContextManager[object]:
            return contextlib.nullcontext(self if name in ("local_only", "centralised") else None)

        def said(self, notice: str) -> None:
            said.append(notice)

    def diverge(*given: object, **keys: object) -> None:
        raise DivergedError("the run diverged in round 1: made to.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensure, "renew", diverge)
        done = run(Experiment.of(rounds=1), out=tmp_path / "run", baselines=True, progress=Listener())  # type: ignore[arg-type]
    assert done.summary["rounds"] == 1
    assert any("left out" in notice for notice in said)
    assert (tmp_path / "run" / "report.html").exists()


def test_an_infinite_target_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "i.npz", x_train=np.zeros((6, 2), np.float32), y_train=np.array([0.5, 1.5, np.inf, 2.5, 1.0, 3.0])
    )
    with pytest.raises(DataError, match="NaN or infinite"):
        set_up(config.read(None, ["data.name=file", f"data.path={tmp_path / 'i.npz'}", "data.task=numbers"]), 1)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("public.per_class=2",), r"\[public\]: 'fedavg' uses no public rows"),
        (("failures.dropout=1",), "no client ever returns"),
        (("algorithm.name=fedbn",), "'fedbn' changes nothing: the model has no batch norm"),
    ],
)
def test_what_is_written_and_does_nothing_is_said(overrides: tuple[str, ...], words: str) -> None:
    notices = set_up(config.read(None, overrides), 1).notices
    assert any(re.search(words, notice) for notice in notices)


def test_a_policy_for_batch_norm_without_any_in_ones_own_network_is_said() -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert any(
        "'recalibrate' changes nothing" in n
        for n in set_up(config.read(None, ["model.bn=recalibrate"]), 1, own).notices
    )


def test_a_run_that_stops_early_says_why(tmp_path: Path) -> None:
    asked = ["run", "rounds=5", "stop.accuracy=0.01", "--no-baselines", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "fedatlas", *asked]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert re.search(r"Stopped after round 0 of 5: accuracy 0\.\d+ has reached 0\.01", said)


def test_a_table_that_is_not_utf8_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("cafü,y\n1,2\n".encode("cp850"))
    with pytest.raises(
        DataError, match=r"it is neither UTF-8 nor cp1252 text \(byte 0x81 in line 1\): save it as UTF-8"
    ):
        set_up(config.read(None, ["data.name=file", f"data.path={tmp_path / 'latin.csv'}", "data.label=y"]), 1)


def test_a_damaged_summary_is_one_sentence(tmp_path: Path) -> None:
    path = run(Experiment.of(rounds=0), out=tmp_path / "run", baselines=False).path
    (path / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match=r"is damaged .*--resume"):
        fedatlas.report(path)
    assert fedatlas.resume(path).summary["rounds"] == 0
