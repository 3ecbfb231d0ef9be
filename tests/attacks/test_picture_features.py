"""The FID-proxy of a run: who holds its rows, and in what order, does not matter; the command names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedatlas import api, cli
from fedatlas.attacks.picture_features import FOLDER, in_pixels, source_of
from fedatlas.config import parse
from fedatlas.data import store
from fedatlas.errors import ConfigError
from fedatlas.metrics.image_features import features
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


def truth(**tables):
    return truth_of(set_up(checked(parse({"data": {"name": "digits", "limit": 300}, **tables}))))


def test_the_proxy_depends_on_the_rows_not_on_who_holds_them(cached: Path):
    one = source_of(truth(partition={"name": "iid", "clients": 3}))
    other = source_of(truth(partition={"name": "dirichlet", "clients": 5, "alpha": 0.5}))
    assert one.sha256 == other.sha256
    assert len(list(cached.iterdir())) == 1, "and is trained once"
    assert source_of(truth(data={"name": "digits", "limit": 200})).sha256 != one.sha256


def test_a_cached_proxy_is_used_and_a_named_file_comes_first(cached: Path, tmp_path: Path):
    held = truth()
    first = source_of(held)
    (path,) = cached.iterdir()
    other = source_of(truth(data={"name": "digits", "limit": 200}))
    (second,) = set(cached.iterdir()) - {path}
    assert source_of(held, str(second)).sha256 == other.sha256 != first.sha256
    path.write_bytes(second.read_bytes())
    assert source_of(held).sha256 == other.sha256, "nothing is trained again"


@pytest.mark.parametrize("damage", [lambda data: data[:3000], lambda data: b""])
def test_a_damaged_proxy_in_the_cache_is_trained_again(cached: Path, damage: Callable[[bytes], bytes]):
    held = truth()
    first = source_of(held)
    (path,) = cached.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert source_of(held).sha256 == first.sha256


def test_rows_become_pixels(cached: Path):
    held = truth()
    x = in_pixels(held.rows(0).x, held)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert features(x, source_of(held)).shape == (len(x), 64)


def test_the_command_names_file_hash_and_accuracy(cached: Path):
    words = ["fid-proxy", "data.name=digits", "data.limit=300"]
    told = CliRunner().invoke(cli.app, [*words, "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert Path(found["file"]).parent == cached
    assert found["sha256"] == source_of(truth()).sha256
    assert 0.5 < found["accuracy"] <= 1.0
    said = CliRunner().invoke(cli.app, words).stdout
    assert said.startswith("FID-proxy of")
    assert found["sha256"] in said


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        (
            {"data": {"name": "synthetic"}, "partition": {"name": "natural"}, "model": {"name": "logistic"}},
            "compares pictures",
        ),
        ({"data": {"name": "digits", "scale": "client"}}, "to train one"),
    ],
)
def test_rows_that_are_no_pictures_are_refused(tables, why: str):
    with pytest.raises(ConfigError, match=why):
        api.fid_proxy(parse(tables))
