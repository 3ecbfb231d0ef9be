"""Several schemes over several seeds in one command: the same runs as by hand, each baseline trained once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedatlas import Experiment, report, resume, run
from fedatlas.cli import app
from fedatlas.comparison.compare import RECORD, SHARED, compare
from fedatlas.comparison.schemes import comparison_of, seeds_of
from fedatlas.comparison.values import given_keys, label_of, split_values
from fedatlas.errors import ConfigError
from fedatlas.study import children

SMALL = "rounds = 2\n[data]\nlimit = 200\n[partition]\nname = 'iid'\nclients = 3\n"
BOTH = ("algorithm.name=fedavg,fedprox",)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def compared(file: Path, out: Path, words: Sequence[str] = BOTH, seeds: str | None = "2", **how: Any) -> dict[str, Any]:
    return compare(comparison_of(file, words, seeds), out, say=lambda line: None, **how)


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Path:
    """A folder with the experiment file and a comparison with baselines; tests that change it take a copy."""
    folder: Path = tmp_path_factory.mktemp("made")
    (folder / "small.toml").write_text(SMALL)
    compared(folder / "small.toml", folder / "out", baselines=True)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


def models(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.glob("*.*") if path.suffix in (".safetensors", ".npz")}
    assert found
    return found


def test_commas_part_values_only_outside_brackets_and_quotes() -> None:
    assert split_values("a,b") == ["a", "b"]
    assert split_values("[1,2],[3]") == ["[1,2]", "[3]"]
    assert split_values('{name="a",mu=1},{name="b"}') == ['{name="a",mu=1}', '{name="b"}']
    assert split_values('"a,b"') == ['"a,b"']
    assert split_values("") == [""]


@pytest.mark.parametrize(
    ("texts", "label"),
    [
        (["algorithm.name=fedavg"], "fedavg"),
        (["algorithm.name=fedavg", "local.lr=0.1"], "fedavg-lr=0.1"),
        (['algorithm={name="fedprox", mu=0.1}'], "fedprox-mu=0.1"),
        (["data.path=../a b/c.csv"], "path=.._a_b_c.csv"),
    ],
)
def test_the_name_of_a_scheme_is_short_and_can_be_a_folder(texts: list[str], label: str) -> None:
    assert label_of(texts) == label


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["local.lr=0.1,,0.2"], "no spaces"),
        (["local.lr=0.1,0.1"], "names 0.1 twice"),
        (["local.lr=0.1,0.2", "local.lr=0.3"], "given twice"),
        (["algorithm=fedavg,fedprox"], r"algorithm\.name=fedavg"),
        (["lr", "local.lr=0.1,0.1"], "'lr'.*names 0.1 twice"),  # all that is wrong at once
    ],
)
def test_words_that_are_wrong_are_all_named(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        given_keys(words)


def test_seeds_are_counted_or_listed() -> None:
    assert seeds_of("3") == (1, 2, 3)
    assert seeds_of("4,9") == (4, 9)
    with pytest.raises(ConfigError, match="names 1 twice"):
        seeds_of("1,1")
    for wrong in ("0", "x", "-2", "", ",", "1,"):
        with pytest.raises(ConfigError, match="--seeds"):
            seeds_of(wrong)


def test_all_refused_schemes_are_named_before_any_run(file: Path, tmp_path: Path) -> None:
    words = ["algorithm.name=fedavg,fedaavg,fedprx"]
    with pytest.raises(ConfigError, match=r"2 of 3 schemes .* did you mean 'fedavg'.* did you mean 'fedprox'"):
        compared(file, tmp_path / "out", words)
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        ConfigError, match=r"^client 200 would be empty"
    ):  # of the data, and the same for all: said once
        compared(file, tmp_path / "out", ["algorithm.name=fedavg,fedprox", "partition.clients=4000"])
    for words, said in (
        (["local.lr=0.1"], "nothing to compare"),
        (["local.lr=0.01..0.3"], "'fedatlas tune' searches a range"),
        (["local.lr=0.01..0.3,0.5"], "'fedatlas tune' searches a range"),
        (["algorithm.name=fedavg,fedprx"], r"did you mean 'fedprox'\?$"),  # one mark at the end
        (["seed=1,2"], "--seeds"),
        (["local.lr=0.1,0.10"], "same experiment"),
        (["data.limit=" + ",".join(map(str, range(50, 120)))], "at most 64"),
    ):
        with pytest.raises(ConfigError, match=said):
            compared(file, tmp_path / "out", words)
    assert not (tmp_path / "out").exists()


def test_runs_and_baselines_are_those_of_runs_by_hand(file: Path, tmp_path: Path, made: Path) -> None:
    out, record = made / "out", json.loads((made / "out" / RECORD).read_text())
    assert len(list((out / SHARED).iterdir())) == 4  # two baselines for each of two seeds, not for each scheme
    for name in ("fedavg", "fedprox"):
        alone = run(Experiment.read(file, f"algorithm.name={name}", "seeds=[1,2]"), out=tmp_path / name, baselines=True)
        for seed in (1, 2):
            ours, theirs = out / name / f"seed-{seed}", alone.path / f"seed-{seed}"
            for part in (".", "baselines/local_only", "baselines/centralised"):
                assert models(ours / part) == models(theirs / part)
                assert (ours / part / "config.toml").read_text() == (theirs / part / "config.toml").read_text()
            assert summary(ours)["gain"] == summary(theirs)["gain"]
        assert summary(out / name)["final"] == summary(tmp_path / name)["final"]
    assert {row["scheme"] for row in record["answer"]["rows"]} == {"fedavg", "fedprox"}
    page = (out / record["page"]).read_text()
    assert "2 schemes compared in 4 runs" in page
    order = [row["scheme"] for row in record["answer"]["rows"]]
    assert [page.index(f"<td>{name}") for name in order] == sorted(page.index(f"<td>{name}") for name in order)
    assert "Each pair of schemes" in page
    assert [(pair["one"], pair["other"], pair["p"]) for pair in record["answer"]["pairs"]] == [(*order, None)]
    ranking, *answers = record["answer"]["sentences"]
    assert ranking in page  # the terminal, the record and the page say the same
    assert "no verdict over seeds" in ranking
    taken = record["answer"]["take"]
    assert taken == order[0]
    assert answers[0] == f"{taken}: {summary(out / taken)['answer']['text']}"
    assert any(line.startswith("All schemes ran with local.lr=0.05") for line in answers)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_moved_scheme_is_whole_without_the_shared_baselines(copy: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    (copy / "fedavg").rename(moved)
    shutil.rmtree(copy)
    shown = report(moved / "seed-1").read_text()
    assert "each alone, mean" in shown
    assert re.search(r"worst \w+ [\d.]+; each on everybody.{1,6}s test rows", shown), "not on rows of its own"
    before = models(moved / "seed-1" / "baselines" / "local_only")
    resume(moved, ["rounds=3"])
    assert summary(moved / "seed-1" / "baselines" / "local_only")["rounds"] == 3
    assert models(moved / "seed-1" / "baselines" / "local_only") != before


@pytest.mark.slow
def test_schemes_with_other_local_work_have_baselines_of_their_own(file: Path, tmp_path: Path) -> None:
    compared(file, tmp_path / "out", ["local.lr=0.01,0.1"], "1", baselines=True)
    assert len(list((tmp_path / "out" / SHARED).iterdir())) == 4


def test_what_is_there_is_not_run_again_and_more_may_be_asked(made: Path, copy: Path, monkeypatch: Any) -> None:
    file, out, begun = made / "small.toml", copy, list[str]()

    def forked(work: Callable[[], dict[str, Any]], folder: Path) -> children.Child:
        begun.append(folder.name)
        return real(work, folder)

    real = children.forked
    monkeypatch.setattr(children, "forked", forked)
    first = json.loads((out / RECORD).read_text())
    assert compared(file, out, baselines=True) == first
    assert begun == []
    compared(file, out, ["algorithm.name=fedavg,fedprox,fedadam"], "3", baselines=True)
    assert begun == ["fedavg-seed-3", "fedprox-seed-3", "fedadam-seed-1", "fedadam-seed-2", "fedadam-seed-3"]
    assert summary(out / "fedavg")["seeds"] == [1, 2, 3]
    kept = (out / RECORD).read_text()
    with pytest.raises(ConfigError, match=r"larger comparison, with fedadam and seed 3: "):
        compared(file, out, baselines=True)  # the smaller one would replace it
    for other in ([*BOTH, "rounds=3"], ["local.lr=0.1,0.2"]):
        with pytest.raises(ConfigError, match="another comparison"):
            compared(file, out, other)
    assert (out / RECORD).read_text() == kept
    with pytest.raises(ConfigError, match="holds no comparison"):
        compared(file, out / "fedavg")


def test_a_folder_is_named_by_schemes_and_seeds_and_not_by_words_of_the_answer(file: Path) -> None:
    name = comparison_of(file, BOTH, "2").name
    others = [
        comparison_of(file, BOTH, "3"),
        comparison_of(file, ["algorithm.name=fedavg,fedadam"], "2"),
        comparison_of(file, [*BOTH, "rounds=3"], "2"),
    ]
    assert len({name, *(one.name for one in others)}) == 4
    file.write_text(SMALL + "[evaluation]\nmargin = 0.05\n[words]\nparty = 'office'\n")
    assert comparison_of(file, BOTH, "2").name == name


def test_another_margin_makes_another_answer_without_a_run(file: Path, copy: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(children, "forked", lambda *given: pytest.fail("a run began"))
    compared(file, copy, [*BOTH, "evaluation.margin=0.3", 'words={party="office"}'], baselines=True)
    for folder in (copy / "fedavg", copy / "fedavg" / "seed-1"):
        assert summary(folder)["answer"]["asked"]["margin"] == 0.3
        assert summary(folder)["answer"]["asked"]["party"] == "office"
    assert "office" in (copy / "comparison.html").read_text()


def test_a_comparison_that_was_stopped_goes_on(file: Path, tmp_path: Path, made: Path) -> None:
    given, out = comparison_of(file, BOTH, "2"), tmp_path / "out"

    def pulled(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(given, out, baselines=True, say=pulled)
    assert "answer" not in json.loads((out / RECORD).read_text())
    whole = json.loads((made / "out" / RECORD).read_text())
    again = compared(file, out, baselines=True)
    timeless = [{**row, "seconds": 0} for row in again["answer"]["rows"]]
    assert timeless == [{**row, "seconds": 0} for row in whole["answer"]["rows"]]
    assert not (out / "working").exists()


def test_a_scheme_that_diverges_is_a_result(file: Path, tmp_path: Path) -> None:
    record = compared(file, tmp_path / "out", ["local.lr=0.05,1e30"], "1")
    assert [row["scheme"] for row in record["answer"]["rows"]] == ["lr=0.05"]
    assert record["schemes"][1]["ended"]["1"]["status"] == "diverged"
    assert any("lr=1e30, seed 1, diverged" in line for line in record["answer"]["sentences"])


def test_the_command_prints_the_answer_and_the_page(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["compare", str(file), *BOTH, "--seeds", "1", "--out", str(out), "--quiet", "--no-baselines"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "accuracy, mean" in said.output
    assert str(out / "comparison.html") in said.output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert found["answer"]["figure"] == "accuracy"
    refused = CliRunner().invoke(app, ["compare", str(file), "local.lr=0.1"])
    assert isinstance(refused.exception, ConfigError)


def test_a_dry_run_says_what_would_be_run_and_runs_nothing(file: Path, copy: Path, tmp_path: Path) -> None:
    def said(seeds: str, out: Path) -> str:
        words = ["compare", str(file), *BOTH, "--seeds", seeds, "--out", str(out), "--dry-run"]
        return CliRunner().invoke(app, words, catch_exceptions=False).output

    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert "2 schemes: fedavg and fedprox; seeds 1 and 2." in said("2", copy)
    assert "4 runs, of which 0 would be run" in said("2", copy)
    assert "6 runs, of which 2 would be run" in said("3", copy)
    assert before == {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert "4 runs, of which 4 would be run" in said("2", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_price_of_protection_stands_beside_each_scheme_that_has_one(tmp_path: Path) -> None:
    """Two mechanisms over one algorithm share the run without them, which is that of the scheme that never had any."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL + "[algorithm]\nname = 'fedavg'\nweights = 'uniform'\n")
    noisy = "privacy=[],[{name='secagg'}],[{name='local_dp',epsilon=1.0,clip=1.0,noise='seed'}]"
    given = comparison_of(file, [noisy], "3")
    out = tmp_path / "out"
    record = compare(given, out, baselines=False, price=True, say=lambda line: None)
    bare, masked, noised = (summary(out / one.label)["answer"] for one in given.schemes)
    assert bare["price"] is None
    assert masked["price"]["without"] == pytest.approx(bare["together"])
    assert masked["price"]["lost"]["value"] == pytest.approx(0.0, abs=0.01)
    assert noised["price"]["lost"]["value"] == pytest.approx(bare["together"] - noised["together"])
    assert len(list((out / SHARED).iterdir())) == 3  # one run without protection for each seed
    told = [line for line in record["answer"]["sentences"] if "Without protection" in line]
    assert len(told) == 2
    with pytest.raises(ConfigError, match="this experiment has none"):
        compare(comparison_of(file, BOTH, "1"), tmp_path / "none", price=True, say=lambda line: None)
