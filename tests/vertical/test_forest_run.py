"""Federated Forest as runs: parties in processes, the price beforehand, comparisons, studies, and tables that teach nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

import fedatlas
from column_parties import ColumnParties, all_questions, method
from fedatlas import Experiment, Study, api, compare, run
from fedatlas.algorithm import Algorithm
from fedatlas.data.party_tables import PartyFile
from fedatlas.errors import DataError
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.refusals import checked
from fedatlas.vertical import align, split
from fedatlas.vertical.forest import FEDERATED_FOREST as SCHEME
from test_columns_metric import given
from test_vertical_run import IDS, growing_in, grown, tables

pytestmark = pytest.mark.timing

KEYS = {"trees": 3, "depth": 4, "features": 1.0}
FOREST = {"name": "federated_forest", **KEYS}


def experiment(folder: Path, *names: str, **changed: Any) -> Experiment:
    parties = [{"name": n, "path": str(folder / f"{n}.csv"), "id": IDS[n]} for n in names or ("bank", "shop")]
    parties[0]["label"] = "default"
    return Experiment.of(parties=parties, **{"algorithm": FOREST, **changed})


@pytest.mark.parametrize("task", ["classes", pytest.param("numbers", marks=pytest.mark.slow)])
def test_parties_in_processes_that_open_only_their_own_file_grow_the_same_forest(task: str, tmp_path: Path) -> None:
    tables(tmp_path, 150, task)
    config = experiment(tmp_path).config
    growing = growing_in(tmp_path / "run", checked(config))
    grown(growing, KEYS["trees"])
    expected = SCHEME.outputs(growing.federation.states.get(0))
    files = [PartyFile("bank", str(tmp_path / "bank.csv"), "customer", label="default")._asdict()]
    files.append(PartyFile("shop", str(tmp_path / "shop.csv"), "client")._asdict())
    settings = {"scheme": SCHEME.name, **KEYS}
    how = method(settings)
    with ColumnParties(files, 0, settings, seed=config.seed) as link:
        server = ServerHalf(Algorithm(SCHEME.name, tasks=all_questions(settings)), link, {0: 110, 1: 120}, config.seed)

        def first() -> Any:
            state = yield from align.align(align.Align(), {"names": ["bank", "shop"], "active": 0})
            state = yield from split.split(state, 0.25)
            return (yield from SCHEME.begin(how, state))

        state = server.drive(first(), RoundStart(0, 1.0))
        server.commit(0)
        for number in range(1, KEYS["trees"] + 1):
            state = server.drive(SCHEME.step(how, state, number), RoundStart(number, 1.0))
            server.commit(number)
        assert np.array_equal(link.outputs(0), expected)
        assert np.unique(expected).size > 5


def test_the_price_is_told_beforehand(tmp_path: Path) -> None:
    tables(tmp_path)
    asked = experiment(tmp_path, "bank", "shop", "phone")
    before = fedatlas.dry_run(asked)
    rows = RunFolder(run(asked, out=tmp_path / "run", baselines=False).path).rows()
    sent = np.mean([row["bytes_up"] + row["bytes_down"] for row in rows[1:]])
    assert 0.7 * sent < before["bytes_per_tree"] < 1.5 * sent
    assert before["bytes_beginning"] > 4 * before["rows_at_most"] / 2, "the coded labels, a number for most rows"
    assert (
        before["bytes"]
        == before["bytes_alignment"] + before["bytes_beginning"] + KEYS["trees"] * before["bytes_per_tree"]
    )
    (said,) = [one for one in before["notices"] if one.startswith("federated_forest: ")]
    assert "count the labels as known to all parties" in said
    assert "shows the party with the label the leaves that each party's splits leave open to each row" in said


def test_forests_are_compared_by_seeds(tmp_path: Path) -> None:
    base = Experiment.of(**given(tmp_path, 0.5, algorithm=FOREST))
    found = compare(base, {"algorithm.depth": [1, 6]}, seeds=3, out=tmp_path / "cmp", baselines=True, parallel=1)
    answer = {one["scheme"]: one for one in found.record["answer"]["rows"]}
    assert set(answer) == {"depth=1", "depth=6"}
    for label, one in answer.items():
        each = [RunFolder(tmp_path / "cmp" / label / f"seed-{seed}").summary() for seed in (1, 2, 3)]
        assert len({tuple(s["importance"]["two"].items()) for s in each}) == 3, "each seed draws rows of its own"
        assert one["mean"] == pytest.approx(np.mean([s["final"]["accuracy"] for s in each]))
        assert one["centralised"] == pytest.approx(np.mean([s["gain"]["metric"]["values"]["joined"] for s in each]))
        assert all(s["gain"]["metric"]["values"]["together"] == s["gain"]["metric"]["values"]["joined"] for s in each)


@pytest.mark.slow
def test_the_price_is_that_of_several_trees_as_they_draw_columns_of_other_parties(tmp_path: Path) -> None:
    """With a column a tree some trees send rows of nodes to nobody; by the first tree all would."""
    tables(tmp_path)
    for seed in (1, 2, 3):
        asked = experiment(tmp_path, algorithm={**FOREST, "trees": 12, "features": 0.01}, seed=seed)
        rows = RunFolder(run(asked, out=tmp_path / f"run-{seed}", baselines=False).path).rows()[1:]
        sent = [row["bytes_up"] + row["bytes_down"] for row in rows]
        assert max(sent) > 1.5 * min(sent)
        assert 0.7 < fedatlas.dry_run(asked)["bytes_per_tree"] / np.mean(sent) < 1.5


@pytest.mark.slow
def test_a_study_makes_the_runs_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = given(tmp_path, 0.5)
    base = {"parties": rows["parties"], "data": {"test": 0.4}, "algorithm": FOREST}
    factors = [{"name": "depth", "role": "choice", "key": "algorithm.depth", "levels": [1, 6]}]
    text = {"seeds": [1, 2, 3], "base": base, "factor": factors, "execute": {"keep": "folder", "parallel": 1}}
    (tmp_path / "study.toml").write_text(tomli_w.dumps(text))
    study = Study.read(tmp_path / "study.toml")
    plan = study.dry_run()
    assert (plan["cells"], plan["runs"], plan["refused"]) == (2, 6, [])
    study.run()
    found = study.analyse()
    assert found["runs"] == {"done": 6}
    (one,) = found["settings"]
    quality = {each["choice"]: each["quality"] for each in one["choices"]}
    asked = {**rows, "algorithm": {**FOREST, "depth": 6}}
    made = [run(Experiment.of(**asked, seed=s), out=tmp_path / f"s{s}", baselines=False).summary for s in (1, 2, 3)]
    assert quality["6"] == pytest.approx(np.mean([one["final"]["accuracy"] for one in made]))
    assert quality["6"] != quality["1"]


def test_a_party_without_columns_is_refused_in_a_sentence_and_one_that_has_only_constants_takes_part(
    tmp_path: Path,
) -> None:
    held = tables(tmp_path, 120)
    pd.DataFrame({"nr": held["phone"]["nr"]}).to_csv(tmp_path / "phone.csv", index=False)
    asked = experiment(tmp_path, "bank", "shop", "phone")
    with pytest.raises(DataError, match=r"^party 'phone': no column is left as an input"):
        api.run(asked, out=tmp_path / "run", baselines=False)
    assert not (tmp_path / "run").exists()
    pd.DataFrame({"nr": held["phone"]["nr"], "one": 1.0}).to_csv(tmp_path / "phone.csv", index=False)
    summary = api.run(asked, out=tmp_path / "run", baselines=False).summary
    assert summary["importance"]["phone"] == {}
    assert [tree["phone"] for tree in summary["trees"]] == [0, 0, 0]
