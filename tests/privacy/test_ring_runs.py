"""Whole runs under BFV and CKKS: resumed, with constants from secure sums, and without a trace of a key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedatlas.api import resume, run
from fedatlas.privacy.bfv import filling as bfv_filling
from fedatlas.privacy.ckks import filling as ckks_filling
from test_privacy_runs import Killed, experiment, left, stop_at

pytest.importorskip("seal")
pytest.importorskip("tenseal")


def model(path: Path) -> torch.Tensor:
    return torch.cat([x.double().flatten() for _, x in sorted(load_file(path / "model.safetensors").items())])


def test_a_killed_run_by_ckks_ends_within_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other keys and other noise after the kill; no party opens a sum twice."""
    what = experiment({"name": "ckks"}, checkpoint={"every": 1}, rounds=4)
    whole = run(what, out=tmp_path / "whole", baselines=False).path
    heal = stop_at(monkeypatch, 3)
    with pytest.raises(Killed):
        run(what, out=tmp_path / "killed", baselines=False)
    heal()
    done = resume(tmp_path / "killed", baselines=False).path
    apart = float((model(done) - model(whole)).abs().max())
    assert 0 < apart < 4 * 2e-5
    asked = [json.dumps(json.loads(line)) for line in (done / "opened.jsonl").read_text().splitlines()]
    assert len(asked) == len(set(asked)) == 4


@pytest.mark.parametrize(("kind", "filling"), [("bfv", bfv_filling), ("ckks", ckks_filling)])
def test_no_part_of_a_key_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, filling: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """No 16 bytes of the secret stand in files of the run, its report, or what it prints."""
    made: list[bytes] = []
    original = filling.generate

    def kept(*given: Any) -> tuple[str, bytes]:
        name, key = original(*given)
        made.append(key)
        return name, key

    monkeypatch.setattr(filling, "generate", kept)
    path = run(experiment({"name": kind}, rounds=2), out=tmp_path / "run", baselines=False).path
    said = capfd.readouterr()
    texts = [*left(path), said.out.encode(), said.err.encode()]
    assert made
    for key in made:
        for at in range(4096, len(key) - 16, 4096):
            some = key[at : at + 16]
            assert len(set(some)) > 4  # not a stretch of zeros
            assert not any(some in text or some.hex().encode() in text for text in texts)


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_constants_are_those_without_encryption(tmp_path: Path, kind: str) -> None:
    """Moments of columns are words of reals: they come out as without encryption."""
    tables = {"data": {"name": "digits", "limit": 200, "scale": "federated"}, "rounds": 1}
    found = []
    for privacy in ((), ({"name": kind},)):
        path = run(experiment(*privacy, **tables), out=tmp_path / f"run{len(found)}", baselines=False).path
        found.append(json.loads((path / "preprocess.json").read_text()))
    plain, hidden = ({key: x for key, x in one.items() if not key.startswith("bytes")} for one in found)
    assert "mean" in json.dumps(plain)
    assert plain == hidden
    assert found[0]["bytes_up"] < found[1]["bytes_up"]
