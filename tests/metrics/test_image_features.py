"""Features of pictures: the FID-proxy follows damage, and Inception weights are read without running what a file says."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import socket
import sys
import types
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedatlas.errors import ConfigError, DataError
from fedatlas.metrics.fid_proxy import accuracy, train_proxy, training_set
from fedatlas.metrics.image_features import (
    FeatureSource,
    features,
    picture_distance,
    read_source,
    source_sentence,
)

HALF = 400  # pictures in each of two halves that the network was not trained on


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """(1797, 1, 8, 8) in [0, 1], in an order that mixes the writers, and classes."""
    bundled = load_digits()
    order = torch.randperm(len(bundled.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(bundled.images)[order, None].float() / 16, torch.from_numpy(bundled.target)[order]


@pytest.fixture(scope="module")
def proxy(digits: tuple[Tensor, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    images, labels = digits
    path = tmp_path_factory.mktemp("proxy") / "proxy.safetensors"
    path.write_bytes(train_proxy(rows_of(images[2 * HALF :], labels[2 * HALF :])))
    return path


def rows_of(images: Tensor, labels: Tensor):
    return training_set((images * 255).round().to(torch.uint8), labels)


@pytest.fixture
def damages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("picture_distances")


# ---------------------------------------------------------------------- the proxy


@pytest.mark.parametrize(("damage", "steps"), [("noised", (0.2, 0.4, 0.8)), ("blurred", (1, 2, 4))])
def test_the_proxy_rises_with_damage_and_is_near_zero_between_halves(digits, proxy: Path, damages, damage: str, steps):
    """On rows that the network has not seen, each step of damage lies beyond the one before.

    Between two halves KID is near 0. FID is biased upwards there, and falls with the number of rows.
    """
    source = read_source(proxy)
    one, other = digits[0][:HALF], digits[0][HALF : 2 * HALF]
    found = [
        picture_distance(one, x, source)
        for x in (one, other, *(getattr(damages, damage)(other, much) for much in steps))
    ]
    assert found[0].value < 1e-6
    assert {x.name for x in found} == {"FID-proxy"}
    for name in ("value", "kid"):
        figures = [getattr(x, name) for x in found]
        assert figures == sorted(figures)
    assert abs(found[1].kid) < 0.2 * found[2].kid
    assert found[1].value < 0.1 * found[-1].value
    assert found[1].value < 0.5 * picture_distance(one[::4], other[::4], source).value


def test_the_proxy_learns_and_equal_rows_make_equal_bytes(digits, proxy: Path):
    images, labels = digits
    again = rows_of(images[2 * HALF :].flip(0), labels[2 * HALF :].flip(0))
    assert again.digest == rows_of(images[2 * HALF :], labels[2 * HALF :]).digest
    before, state = torch.get_num_threads(), torch.get_rng_state()
    assert train_proxy(again) == proxy.read_bytes(), "whatever the order of the rows"
    assert (torch.get_num_threads(), torch.get_rng_state().tolist()) == (before, state.tolist())
    assert read_source(proxy).sha256 == hashlib.sha256(proxy.read_bytes()).hexdigest()
    assert accuracy(proxy.read_bytes(), (images[:HALF] * 255).round().to(torch.uint8), labels[:HALF]) > 0.8
    seen = features(images[2 * HALF :], read_source(proxy))
    assert (seen**2).mean() == pytest.approx(1.0, rel=1e-5)
    other = labels.clone()
    other[-1] = (other[-1] + 1) % 10
    assert rows_of(images[2 * HALF :], other[2 * HALF :]).digest != again.digest


def test_pictures_that_do_not_fit_are_refused(digits, proxy: Path):
    source, x = read_source(proxy), digits[0][:10]
    for wrong, why in (
        (torch.zeros(10, 1, 6, 6), "reads pictures of 1x8x8, not 1x6x6"),
        (torch.zeros(10, 2, 8, 8), "1 or 3"),
        (torch.zeros(10, 8, 8), "1 or 3"),
        (x * 2, "from 0 to 1"),
        (x - 0.5, "from 0 to 1"),
        (x * float("nan"), "from 0 to 1"),
    ):
        with pytest.raises(DataError, match=why):
            features(wrong, source)
    with pytest.raises(DataError, match="equally many"):
        picture_distance(x, x[:5], source)
    with pytest.raises(DataError, match="two classes"):
        training_set(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3))
    with pytest.raises(DataError, match="4 x 4"):
        training_set(torch.zeros(3, 1, 3, 8, dtype=torch.uint8), torch.arange(3))


@pytest.mark.parametrize("content", [b"", b"nothing", pickle.dumps({"a": 1})])
def test_a_file_that_is_no_proxy_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="fedatlas fid-proxy"):
        read_source(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_source(tmp_path / "absent.pth")


# ---------------------------------------------------------------------- Inception weights


class Small(nn.Module):
    """Stands for torch-fidelity's class: its arguments, its way of loading, and what it wants; a mean of each colour and its square."""

    def __init__(self, name, features_list, feature_extractor_weights_path=None):  # noqa: ARG002  # as there
        assert feature_extractor_weights_path is not None, "without a path torch-fidelity downloads"
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
        self.load_state_dict(torch.load(feature_extractor_weights_path, weights_only=False))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        assert x.dtype == torch.uint8
        assert x.shape[1] == 3
        means = x.float().mean((2, 3)) * self.scale
        return (torch.cat([means, means**2], 1),)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch-fidelity with a small network, whether or not it is installed."""
    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = Small
    monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", module)


def saved(path: Path, state: object) -> Path:
    torch.save(state, path)
    return path


def closed(*arguments: object, **keywords: object) -> None:
    raise AssertionError("no network is used")


def test_weights_of_the_user_are_used_and_named(tmp_path: Path, small, monkeypatch: pytest.MonkeyPatch, digits):
    """Grey pictures become three equal colours; other weights than the original ones do not give an "FID"."""
    monkeypatch.setattr(socket, "socket", closed)
    path = saved(tmp_path / "w.pth", {"scale": torch.tensor(2.0)})
    source = read_source(path)
    assert source.name == "FID-other"
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    x = digits[0][:60]  # more than a batch
    means = (x * 255).round().mean((1, 2, 3)) * 2
    found = features(x, source)
    assert found.shape == (60, 6)
    for column in range(3):
        assert found[:, column] == pytest.approx(means.double().numpy(), rel=1e-5)
    assert picture_distance(x[:30], x[30:], source).sha256 == source.sha256
    monkeypatch.setattr("fedatlas.metrics.image_features.ORIGINAL", source.sha256[:8])
    assert read_source(path).name == "FID"


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_file_that_would_run_code_runs_none(tmp_path: Path, small):
    mark = tmp_path / "ran"
    path = saved(tmp_path / "w.pth", {"scale": torch.tensor(1.0), "more": Hostile(mark)})
    with pytest.raises(ConfigError, match="holds no plain weights"):
        read_source(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists(), "the file does run code where it may"


def test_what_is_read_first_is_what_is_loaded(tmp_path: Path, small, monkeypatch: pytest.MonkeyPatch):
    """A file that is exchanged between the two readings is not read again."""
    path, mark = saved(tmp_path / "w.pth", {"scale": torch.tensor(1.0)}), tmp_path / "ran"
    load = torch.load

    def exchanged(*arguments, **keywords):
        found = load(*arguments, **keywords)
        saved(path, {"scale": Hostile(mark)})
        return found

    monkeypatch.setattr(torch, "load", exchanged)
    read_source(path)
    assert not mark.exists()


@pytest.mark.parametrize("state", [{}, {"scale": torch.zeros(3)}, [1, 2]])
def test_weights_of_another_network_are_refused(tmp_path: Path, small, state: object):
    with pytest.raises(ConfigError, match="does not fit Inception-v3"):
        read_source(saved(tmp_path / "w.pth", state))


@pytest.mark.parametrize("content", [b"", b"nothing", bytes(range(256))])
def test_a_file_without_weights_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "w.pth"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no plain weights"):
        read_source(path)


def test_without_torch_fidelity_the_line_to_install_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[fid\]"'):
        read_source(saved(tmp_path / "w.pth", {}))


def test_each_source_is_said_with_its_hash():
    def said(name: str) -> str:
        return source_sentence(FeatureSource(name, "ab" * 32, lambda x: x))

    assert all("ab" * 32 in said(name) for name in ("FID", "FID-proxy", "FID-other"))
    assert "no Inception weights" in said("FID-proxy")
    assert "fedatlas fid-proxy" in said("FID-proxy")
    assert all("not compare with published" in said(name) for name in ("FID-proxy", "FID-other"))
    assert "not compare" not in said("FID")


@pytest.mark.slow  # the real network: 25 million numbers, 299 x 299 pixels
def test_torch_fidelity_reads_a_file_of_the_right_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits):
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torch-fidelity: {error}")
    monkeypatch.setattr(socket, "socket", closed)
    with monkeypatch.context() as plain:
        plain.setattr(FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        path = saved(tmp_path / "empty.pth", {})
        random = FeatureExtractorInceptionV3("x", ["2048"], feature_extractor_weights_path=str(path)).state_dict()
    source = read_source(saved(tmp_path / "w.pth", random))
    found = features(digits[0][:4], source)
    assert found.shape == (4, 2048)
    assert source.name == "FID-other"
    assert picture_distance(digits[0][:2], digits[0][2:4], source).features == 2048
    with pytest.raises(ConfigError, match="does not fit Inception-v3"):
        read_source(path)
