"""Published experiments: what is finished is not run again, in the run folder or in the committed record; gates are judged as stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import run, terminal
from fedatlas.config import parse
from fedatlas.errors import ConfigError, DivergedError
from fedatlas.published import reproduction as room
from fedatlas.published.attack_matrix import NAME as MATRIX
from fedatlas.published.attack_matrix import VIEWS
from fedatlas.published.drawing import draw, plain
from fedatlas.published.gates import (
    CurvePicture,
    FigurePicture,
    Gate,
    GateVerdict,
    Part,
    PartRuns,
    Runs,
    Target,
    at_round,
)
from fedatlas.published.reproduction import DRAWN, EXPERIMENTS, KEPT, of_common_seeds, verdict_on
from fedatlas.published.t3_encryption import COUNTS
from fedatlas.published.t10_federated_forest import joining
from fedatlas.record.judged_rows import said_of
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.rng import numpy_stream
from fedatlas.runs.columns_baselines import drawn_rows
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked


def small(rounds: int, floor: float) -> Target:
    def check(parts: Runs) -> GateVerdict:
        best = parts["one"].mean(at_round(-1))
        return GateVerdict(f"{best:.2f}", best >= floor)

    tables = {"rounds": rounds, "partition": {"clients": 12}}
    gate = Gate("floor", "some", f"at least {floor}", ("one",), check)
    return Target("small", "A small study", "nobody", (Part("one", tables, (1, 2)),), (gate,))


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> dict[str, Target]:
    made = {"small": small(1, 0.05)}
    monkeypatch.setattr(room, "EXPERIMENTS", {"small": lambda quick, rounds: made["small"]})
    return made


def seconds(folder: Path) -> list[float]:
    return [run["seconds"] for run in json.loads((folder / "small.json").read_text())["runs"]]


def test_what_is_published_is_not_run_again(
    studies: dict[str, Target], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second machine, with other run folders, takes the finished seeds from the committed record."""
    docs = tmp_path / "docs"
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)
    first = seconds(docs / "results")
    (docs / "results" / "small.txt").write_text("It learns.\n")
    assert room.reproduce("small", out=tmp_path / "b", publish=docs)
    assert "**What was found.** It learns." in (docs / "results.md").read_text()
    assert seconds(docs / "results") == first
    assert len(first) == 2
    assert not (tmp_path / "b" / "small" / "one").exists()
    assert "seed 1" not in capsys.readouterr().err.split("seed 2")[-1]


def test_another_configuration_is_run_anew(studies: dict[str, Target], tmp_path: Path) -> None:
    """A record of other settings counts for nothing, and a gate that is missed is said to be."""
    docs = tmp_path / "docs"
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)
    studies["small"] = small(2, 0.999)
    assert not room.reproduce("small", out=tmp_path / "b", publish=docs)
    record = json.loads((docs / "results" / "small.json").read_text())
    assert [len(run["rows"]) for run in record["runs"]] == [3, 3]
    assert [gate["passed"] for gate in record["gates"]] == [False]
    assert "| FAIL |" in (docs / "results.md").read_text()


def test_a_folder_of_another_configuration_is_not_taken_for_a_parts(studies: dict[str, Target], tmp_path: Path) -> None:
    assert room.reproduce("small", only=["one"], out=tmp_path)
    (part,) = studies["small"].parts
    other = part._replace(tables={**part.tables, "local": {"lr": 0.01}})
    studies["small"] = studies["small"]._replace(parts=(other,))
    with pytest.raises(ConfigError, match="seed-1' holds a run of another configuration: remove it"):
        room.reproduce("small", out=tmp_path)


def test_a_gate_is_open_until_all_seeds_are_in(
    studies: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seed that diverges is said and keeps no other from being run; the gate passes when it is there."""
    ensure = room.ensure

    def diverging(whole: Checked, folder: Path, **how: Any) -> Any:
        if whole.config.seed == 1:
            raise DivergedError("the run diverged in round 1")
        return ensure(whole, folder, **how)

    monkeypatch.setattr(room, "ensure", diverging)
    assert room.reproduce("small", out=tmp_path)
    assert "one, seed 1 (run 1 of 2): the run diverged in round 1" in capsys.readouterr().err
    (gate,) = json.loads((tmp_path / "small.json").read_text())["gates"]
    assert (gate["seeds"], gate["passed"]) == (1, None)
    assert "| 1 | open |" in (tmp_path / "small.md").read_text()
    monkeypatch.setattr(room, "ensure", ensure)
    assert room.reproduce("small", out=tmp_path)
    assert "| 2 | pass |" in (tmp_path / "small.md").read_text()


def test_a_long_run_says_how_far_it_is(
    studies: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal one line a minute; then what came of it."""
    studies["small"] = small(2, 0.05)
    monkeypatch.setattr(terminal, "MINUTE", 0.0)
    assert room.reproduce("small", out=tmp_path, watch=terminal.standing)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[1] for line in lines[:4]] == [
        " seed 1 (run 1 of 2) ...",
        " seed 1 (run 1 of 2): round 0 of 2",
        " seed 1 (run 1 of 2): round 1 of 2",
        " seed 1 (run 1 of 2): round 2 of 2",
    ]
    assert lines[4].startswith("one, seed 1 (run 1 of 2): accuracy ")


def test_unknown_names_are_refused(studies: dict[str, Target], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="small"):
        room.reproduce("smal", out=tmp_path)
    with pytest.raises(ConfigError, match="one"):
        room.reproduce("small", only=["on"], out=tmp_path)


def rounds_of(part: Part) -> int:
    """The rounds of a part's runs, which are trees if its parties hold columns."""
    rounds: int = part.tables["rounds"] if "rounds" in part.tables else part.tables["algorithm"]["trees"]
    return rounds


def test_every_study_is_made_of_experiments_that_parse() -> None:
    """Configurations as published, quick, and shortened; every gate asks for parts that exist."""
    for make in room.EXPERIMENTS.values():
        for study in (make(False, None), make(True, None), make(False, 7)):
            names = {part.name for part in study.parts}
            assert all(set(gate.parts) <= names for gate in study.gates)
            runs = [part for part in study.parts if part.measure is None]
            parsed = [(part, parse({**part.tables, "seed": 1})) for part in runs]
            assert all(found.rounds == rounds_of(part) for part, found in parsed if "rounds" in part.tables)
        shortened = [
            part for part in runs if part.name not in COUNTS and not any(f"-{name}-" in part.name for name in VIEWS)
        ]  # have their own
        assert {rounds_of(part) for part in shortened} <= {7}


def test_a_shortened_study_passes_no_gate(
    studies: dict[str, Target], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert room.reproduce("small", rounds=1, out=tmp_path)
    assert "smaller version" in capsys.readouterr().out
    record = json.loads((tmp_path / "small-1-rounds.json").read_text())
    assert [gate["passed"] for gate in record["gates"]] == [None]
    assert "`fedatlas reproduce small --rounds 1`" in (tmp_path / "small-1-rounds.md").read_text()
    assert room.reproduce("small", quick=True, rounds=1, out=tmp_path)
    assert "`fedatlas reproduce small --quick --rounds 1`" in (tmp_path / "small-quick-1-rounds.md").read_text()


def test_curves_are_drawn_from_the_record_and_beside_what_was_published(
    studies: dict[str, Target], tmp_path: Path
) -> None:
    """The record keeps the evaluated rounds alone; the picture lies beside it and is linked."""
    picture = CurvePicture("", "A curve", {"one": "first", "two": "never run"}, {"one": [(4, 0.5), (999, 0.9)]})
    study = small(4, 0.05)
    (part,) = study.parts
    part = part._replace(tables={**part.tables, "evaluation": {"every": 2}})
    studies["small"] = study._replace(curves=(picture,), parts=(part,))
    docs = tmp_path / "docs"
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)
    record = json.loads((docs / "results" / "small.json").read_text())
    assert [[row["round"] for row in run["rows"]] for run in record["runs"]] == [[0, 2, 4], [0, 2, 4]]
    assert {key for run in record["runs"] for row in run["rows"] for key in row} == {"round", "accuracy", "loss"}
    drawn = (docs / "results" / "small.svg").read_text()
    assert drawn == draw(plain(picture, "small"), record["runs"])
    assert drawn.count('class="line') == 1  # the mean over both seeds
    assert drawn.count("scale(1.8)") == 1  # what was published behind the last round is not shown
    assert "![A curve](results/small.svg)" in (docs / "results.md").read_text()
    assert "![A curve](small.svg)" in (tmp_path / "a" / "small.md").read_text()
    before = (docs / "results" / "small.json").read_text()
    assert room.reproduce("small", out=tmp_path / "b", publish=docs)
    assert (docs / "results" / "small.json").read_text() == before


def test_a_stand_in_passes_nothing_and_says_whether_the_rule_holds() -> None:
    outcomes: Runs = {}
    for passed, word in ((True, "holds"), (False, "does not hold")):
        gate = Gate("g", "p", "r", (), lambda parts, passed=passed: GateVerdict("x", passed), stand_in=True)  # type: ignore[misc]
        assert gate.judged(outcomes) == GateVerdict(f"x; the rule {word}", None)
    assert Gate("g", "p", "r", (), lambda parts: GateVerdict("x", True)).judged(outcomes) == GateVerdict("x", True)


def curve(*values: float) -> PartRuns:
    """Evaluated every fifth round."""
    return PartRuns({1: [{"round": 5 * i, "accuracy": value} for i, value in enumerate(values)]})


def test_what_is_measured_is_kept_and_drawn_against_its_quantity(studies: dict[str, Target], tmp_path: Path) -> None:
    """A part that is measured is measured once, counts like a run, and its figure is a point of a picture."""
    taken: list[int] = []

    def part(size: int) -> Part:
        def measure(seed: int) -> list[dict[str, Any]]:
            taken.append(size)
            return [{"spent": size / 2}]

        return Part(f"size-{size}", {"size": size}, (1,), None, measure)

    def figure(runs: PartRuns, seed: int) -> float:
        return float(runs.rows[seed][-1]["spent"])

    parts = (part(2), part(6))
    gate = Gate("grows", "some", "grows", ("size-2", "size-6"), lambda runs: GateVerdict("", True))
    picture = FigurePicture("sizes", "Sizes", "size", "seconds", {"ours": [("size-2", 2), ("size-6", 6)]}, figure)
    studies["small"] = Target("small", "A small study", "nobody", parts, (gate,), pictures=(picture,))
    docs = tmp_path / "docs"
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)
    assert room.reproduce("small", out=tmp_path / "a", publish=docs)  # from its folder
    assert room.reproduce("small", out=tmp_path / "b", publish=docs)  # from the committed record
    assert taken == [2, 6]
    record = json.loads((docs / "results" / "small.json").read_text())
    assert record["curves"][0]["points"] == {"ours": [[2, 1.0], [6, 3.0]]}
    assert record["gates"][0]["passed"] is True
    assert (docs / "results" / "small-sizes.svg").read_text().count('class="mark s0') == 2


def shakespeare(**curves: PartRuns) -> dict[str, GateVerdict]:
    """The verdicts on one setting, and on all of them being alike."""
    study = room.EXPERIMENTS["fedseq-shakespeare"](False, None)
    parts = {part.name: curves[part.name.split("-", 2)[2].replace("-", "_")] for part in study.parts}
    return {gate.name.removeprefix("niid-0.2, "): gate.check(parts) for gate in study.gates}


def test_the_gates_of_the_shakespeare_study() -> None:
    slow, fast = curve(0.02, 0.2, 0.3, 0.4, 0.46), curve(0.02, 0.47, 0.48, 0.49, 0.495)
    dyn, paper = curve(0.02, 0.2, 0.3, 0.47, 0.49), curve(0.02, 0.1, 0.1, 0.1, 0.3)
    methods = {"fedavg": slow, "scaffold": slow, "fedprox": slow, "feddyn": dyn, "fedseq": fast}
    found = shakespeare(**methods, scaffold_paper=paper, feddyn_paper=paper)
    assert [found[key].passed for key in ("fastest", "order", "lead", "correct forms")] == [True, True, True, None]
    assert "fedseq 5" in found["fastest"].obtained
    assert found["rounds, FedAvg / FedSeq"] == GateVerdict(
        "iid-0.1 4.0, niid-0.1 4.0, iid-0.2 4.0, niid-0.2 4.0", False
    )
    assert found["correct forms"].obtained == "scaffold-paper 30.0%, feddyn-paper 30.0%"
    level = {**methods, "fedprox": dyn, "fedavg": fast}
    found = shakespeare(**level, scaffold_paper=paper, feddyn_paper=paper)
    assert [found[key].passed for key in ("fastest", "order", "lead")] == [False, False, False]


def test_the_gates_of_the_grouping_study() -> None:
    study = room.EXPERIMENTS["fedseq-grouping"](False, None)
    alike = {part.name: curve(0.8, 0.82 if part.name.startswith("cifar10-") else 0.47) for part in study.parts}
    found = {gate.name: gate.judged(alike) for gate in study.gates}
    assert len(found) == 36 + 6 + 1 + 2
    assert found["cifar10-0-conf-kl"].passed
    assert found["cifar10-0-clf-cosine"].passed is False  # 79.95%
    assert found["cifar10, alpha 0.2, spread"].passed
    assert found["cifar10, alpha 0.5, informed rules"].passed
    assert found["cifar100, alpha 0, random"].passed is None
    worse = {**alike, "cifar10-0.5-conf-kl": curve(0.8, 0.78)}
    found = {gate.name: gate.judged(worse) for gate in study.gates}
    assert found["cifar10, alpha 0.5, informed rules"] == GateVerdict("below random: conf-kl", False)
    assert found["cifar10, alpha 0.5, spread"].passed is False


MORE = (
    "gains",
    "spent",
    "nominal",
    "exposed",
    "uploads",
    "drawn_fid",
    "placebo_fid",
    "honest",
    "training",
    "training_core_seconds",
    "prediction",
    "outputs",
)
"""Figures of parts that are measured, and of summaries."""


@pytest.mark.parametrize("rounds", [None, 1, 3])
@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - {MATRIX}))  # its cells are reported, never judged
def test_a_study_is_judged_as_its_runs_come_in(name: str, rounds: int | None) -> None:
    """After every run of a study all its gates are asked, whichever parts and seeds are there by then."""
    study = EXPERIMENTS[name](False, rounds)
    stream, outcomes, asked = numpy_stream(1, "test"), dict[str, PartRuns](), 0
    for part in study.parts:
        for seed in part.seeds:
            values = 0.5 + 0.1 * stream.random(int(part.tables.get("rounds", 0)) + 1)
            figures = [dict.fromkeys({*KEPT, *DRAWN, *study.keeps, *MORE}, float(v)) for v in values]
            lists = [{name: [float(v)] * 8 for name in ("per_class_f1", "weights")} for v in values]
            lists = [{**one, "seconds_by_phase": {"encrypt": float(v)}} for one, v in zip(lists, values, strict=True)]
            rows = [{**a, **b, "round": r} for r, (a, b) in enumerate(zip(figures, lists, strict=True))]
            outcomes[part.name] = PartRuns({**outcomes.get(part.name, PartRuns({})).rows, seed: rows})
            for gate in study.gates:
                alike = of_common_seeds(outcomes, gate.parts)
                asked += bool(alike)
                assert not alike or verdict_on(gate, alike, "" if rounds is None else f"{rounds}-rounds").obtained
    assert asked


def boosted(step: float, gain: float = 1.0) -> PartRuns:
    rows = [{"round": k, "auc": 0.5 + step * k, "accuracy": 0.5, "loss": 0.7 - step * k} for k in range(3)]
    return PartRuns({1: [*rows[:-1], {**rows[-1], "gains": {"age": gain}}]})


def test_the_gates_of_secureboost_can_be_missed() -> None:
    """Another curve, another gain of a column, an AUC far below boosting's, and seconds that grow faster than depth."""
    gates = {gate.name: gate for gate in EXPERIMENTS["secureboost"](False, None).gates}
    name = "give_me_some_credit"
    one = {part: boosted(0.1) for part in ("givemesomecredit-parties", "givemesomecredit-one-table")}
    lossless = gates[f"{name}, lossless"]
    assert lossless.judged(one) == GateVerdict("2 trees, all equal", passed=True)
    for other in (boosted(0.1001), boosted(0.1, gain=1.1)):
        assert lossless.judged({**one, "givemesomecredit-one-table": other}).passed is False
    near = gates[f"{name}, curve"]
    for least, passed in ((0.1, True), (0.104, True), (0.106, False)):
        verdict = near.judged({"givemesomecredit-parties": boosted(0.1), "givemesomecredit-boosting": boosted(least)})
        assert verdict.passed is passed
    depths = gates["time over depth"].parts
    assert len(depths) == 5
    for power, passed in ((1, True), (6, False)):
        spent = {part: PartRuns({1: [{"spent": 1.0 + k**power}]}) for k, part in enumerate(depths, start=1)}
        assert gates["time over depth"].judged(spent).passed is passed


def test_the_gates_of_the_forest_can_be_missed() -> None:
    """Accuracy that falls, a training that gets no longer, a prediction that gets longer, and another forest."""
    study = EXPERIMENTS["federated-forest"](False, None)
    gates = {gate.name: gate for gate in study.gates}
    name = "breast_cancer_wdbc"

    def parts(gate: str, key: str, values: list[Any]) -> dict[str, PartRuns]:
        named = zip(gates[gate].parts, values, strict=True)
        return {part: PartRuns({1: [{"round": 1, key: value}]}) for part, value in named}

    def passed(gate: str, key: str, values: list[Any]) -> bool | None:
        return gates[gate].judged(parts(gate, key, values)).passed

    up = [0.80, 0.83, 0.82, 0.86]
    for title, key in (("accuracy", "accuracy"), ("training time", "training")):
        gate = f"{name}, joining: {title}"
        assert passed(gate, key, up) is True
        assert passed(gate, key, up[::-1]) is False
        assert passed(gate, key, [0.80, 0.86, 0.85, 0.81]) is False
    constant = f"{name}, dealt: prediction time"
    assert passed(constant, "prediction", [1.0, 1.1, 0.9, 1.2]) is True
    assert passed(constant, "prediction", [1.0, 1.1, 1.2, 1.6]) is False
    assert passed(f"{name}, dealt", "outputs", ["a"] * 5) is True
    assert passed(f"{name}, dealt", "outputs", ["a"] * 4 + ["b"]) is False


def test_the_forests_of_a_study_have_the_columns_of_their_domains(shared_data: Any) -> None:
    """More domains have more columns, and another order with another seed; dealt to any number of domains the forest is the same."""
    shared_data("tables/breast_cancer_wdbc.csv.gz")
    study = EXPERIMENTS["federated-forest"](True, 2)
    measure = {part.name: part.measure for part in study.parts if part.name.startswith("cancer")}
    assert all(measure.values())
    (two,), (four,), (every,), (dealt,), (one,) = (
        measure[f"cancer-{name}"](1)
        for name in ("joining-2", "joining-4", "joining-8", "dealt-8", "dealt-1")  # type: ignore[misc]
    )
    assert two["columns"] < four["columns"] < every["columns"] == dealt["columns"] == one["columns"] == 30
    assert dealt["outputs"] == one["outputs"] != two["outputs"]
    assert one["training_bytes"] < two["training_bytes"] < four["training_bytes"]
    assert 0 < dealt["prediction"] < dealt["training"] <= dealt["training_core_seconds"]
    assert joining(1) != joining(2)
    assert sorted(joining(1)) == list(range(8))


def test_the_gates_of_private_ridge_can_be_missed() -> None:
    """A prediction beyond the stated bound, a ciphertext too many, and seconds that follow no line."""
    gates = {gate.name: gate for gate in EXPERIMENTS["private-ridge"](False, None).gates}
    rows = {"away": 1e-7, "bound": 1e-6, "ciphertexts": 30, "counted": 30, "spent": 1.0}
    exact = gates["power_plant, exact"]
    for away, passed in ((1e-6, True), (1.1e-6, False)):
        assert exact.judged({"power_plant": PartRuns({1: [{**rows, "away": away}]})}).passed is passed
    sent = gates["ciphertexts"]
    for last, passed in ((30, True), (31, False)):
        found = {part: PartRuns({1: [rows]}) for part in sent.parts} | {
            sent.parts[-1]: PartRuns({1: [{**rows, "ciphertexts": last}]})
        }
        assert sent.judged(found).passed is passed
    for name, over, power in (
        ("time over columns", (4, 8, 12, 16), 2),
        ("time over rows, in the clear", (5, 10, 20, 40), 1),
    ):
        for more, passed in ((0, True), (4, False)):
            spent = {
                part: PartRuns({1: [{**rows, "spent": float(x) ** (power + more)}]})
                for part, x in zip(gates[name].parts, over, strict=True)
            }
            assert gates[name].judged(spent).passed is passed


def test_private_ridge_is_measured_on_drawn_rows_and_counts_what_crosses() -> None:
    (part,) = [one for one in EXPERIMENTS["private-ridge"](True, None).parts if one.name == "columns-2"]
    assert part.measure is not None
    (row,) = part.measure(1)
    assert row["away"] <= row["bound"]
    assert row["ciphertexts"] == row["counted"] == 10 * (6 + 3) + 3 * 4
    assert row["spent"] > 0


def test_secureboost_s_boosting_has_the_rows_of_the_run(tmp_path: Path) -> None:
    """Its rows are drawn as those of the party that holds one whole table: the trivial figures of both agree."""
    target = EXPERIMENTS["secureboost"](True, 1)
    parts = {part.name: part for part in target.parts}
    asked = {**parts["taiwan-one-table"].tables, "seed": 1}
    (_, y), (_, test) = drawn_rows(checked(parse(asked)))
    done = run(parse(asked), out=tmp_path / "run", baselines=False).summary
    assert done["rows"] == {"train": len(y), "held": 0, "test": len(test)}
    kept = said_of(RunFolder(tmp_path / "run").arrays(JUDGED))
    assert kept is not None
    assert (np.asarray(kept.true) == test).all()
