"""Whole runs under a key in shares: the model of a run without protection, who is needed, what the report and the dry run say."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment
from fedatlas.api import dry_run, run
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.mechanisms import MECHANISMS, threshold_paillier
from fedatlas.runs.privacy_preview import sentences
from fedatlas.setup import mechanism_choice
from reports import Page, rows, summary

TABLES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [8]},
}
NAME = "threshold_paillier"


@pytest.fixture(autouse=True)
def toy_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of 256 bits, which protect nobody."""
    short = functools.wraps(threshold_paillier)(lambda **keys: threshold_paillier(**{**keys, "key_bits": 256}))
    monkeypatch.setitem(MECHANISMS, NAME, short)
    monkeypatch.setattr(mechanism_choice, "Protection", lambda *given: Protection(*given, testing=True))


def experiment(*, keys: dict[str, Any] | None = None, **tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, "privacy": [{"name": NAME, **(keys or {})}], **tables})


@pytest.mark.parametrize("engine", ["loop", "fast"])
def test_a_run_ends_with_the_model_of_a_run_without(engine: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"engine": {"name": engine}, "algorithm": {"name": "scaffold"}}
    done = run(experiment(keys={"bits": 29}, **given), out=tmp_path / "run", baselines=False).path
    free = run(experiment(**given, privacy=[]), out=tmp_path / "free", baselines=False).path
    assert [row["accuracy"] for row in rows(done)] == [row["accuracy"] for row in rows(free)]
    assert summary(done)["privacy"]["mechanisms"][0]["name"] == NAME
    assert summary(done)["privacy"]["given_up"]["rounds"] == 0


def test_chains_are_summed_at_their_ends_and_opened_by_all(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "algorithm": {"name": "fedseq", "phi": "random", "max_clients": 3, "min_examples": 10, "pretrain_epochs": 1},
        "partition": {"name": "iid", "clients": 9},
    }
    done = run(experiment(**given), out=tmp_path / "run", baselines=False).path
    assert summary(done)["privacy"]["given_up"]["rounds"] == 0


def test_the_report_says_who_made_the_key_and_on_what_it_rests(tmp_path: Path) -> None:
    done = run(experiment(keys={"short_exponent": 512}), out=tmp_path / "run", baselines=False).path
    text = Page(done / "report.html").text()
    assert "whose private half nobody holds: every client has a share, and opening takes all of them" in text
    assert "between real parties the dealer has to be trusted" in text
    assert "Short exponents: privacy rests on one more assumption" in text
    plain = Page(run(experiment(), out=tmp_path / "plain", baselines=False).path / "report.html").text()
    assert "one more assumption" not in plain


def test_all_ciphertexts_go_to_all_parties_and_are_counted(tmp_path: Path) -> None:
    """A dry run, in which one party's answer stands for all, counts the bytes of a run; they grow with the square of the clients."""
    asked = experiment(algorithm={"weights": "uniform"})
    row, looked = rows(run(asked, out=tmp_path / "run", baselines=False).path)[2], dry_run(asked, baselines=False)
    found = looked["privacy"]
    assert found["bytes_per_round"] == row["bytes_up"] + row["bytes_down"]
    assert found["bytes_more_per_round"] == row["bytes_privacy"]
    assert found["seconds_keys"] > 0
    assert {"encrypt", "decrypt"} <= found["seconds_by_phase"].keys()
    assert any(said.startswith(f"Under {NAME} this is ") and "keys take about" in said for said in sentences(found, 2))
    more = dry_run(
        experiment(algorithm={"weights": "uniform"}, partition={"name": "iid", "clients": 8}), baselines=False
    )
    assert more["privacy"]["bytes_more_per_round"] > 3.3 * found["bytes_more_per_round"]


def test_columns_are_prepared_under_the_same_protection(tmp_path: Path) -> None:
    lines = [f"{i % 7},{i * i % 11},{'no yes'.split()[i % 2]}" for i in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y", *lines]))
    table = {"name": "file", "path": str(tmp_path / "rows.csv"), "label": "y"}
    monkey: dict[str, Any] = {"data": table, "rounds": 1}
    with pytest.MonkeyPatch.context() as patch:  # whose sums are made with the lengths that protect
        from fedatlas.privacy.paillier import cryptosystem

        made = cryptosystem.generate
        patch.setattr(cryptosystem, "generate", lambda key_bits, **_: made(key_bits, testing=True))
        done = run(experiment(**monkey), out=tmp_path / "run", baselines=False).path
    free = run(experiment(**monkey, privacy=[]), out=tmp_path / "free", baselines=False).path
    found, wanted = (json.loads((path / "preprocess.json").read_text()) for path in (done, free))
    traffic = {"bytes_up", "bytes_down"}
    assert {key: x for key, x in found.items() if key not in traffic} == {
        key: x for key, x in wanted.items() if key not in traffic
    }
