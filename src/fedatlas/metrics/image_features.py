"""Features of pictures for FID and KID: by Inception weights that the user gives, or by a small network trained here (A3).

Only Inception-v3 with the weights of the original FID gives figures that compare with published ones. Distances by any other weights
have another name, and every result holds the SHA-256 of its weights. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.errors import ConfigError, DataError, first_line
from fedatlas.metrics import fid_proxy
from fedatlas.metrics.frechet import frechet_distance, kernel_distance
from fedatlas.metrics.quality import Floats

ORIGINAL = "6726825d"  # first digits of the SHA-256 of pt_inception-2015-12-05-6726825d.pth, which its name states
BATCH = 50  # pictures
LAYER = "2048"  # torch-fidelity's name for the features before Inception's last layer


class FeatureSource(NamedTuple):
    """A network that turns pictures into features."""

    name: str  # of the distance: "FID", "FID-proxy", or "FID-other" (Inception with other weights)
    sha256: str  # of the file of its weights
    extract: Callable[[Tensor], Tensor]  # (n, C, H, W) uint8 -> (n, D)


class PictureDistance(NamedTuple):
    """Distances between two equally large sets of pictures."""

    name: str  # `FeatureSource.name`
    value: float
    kid: float
    rows: int  # pictures in each set
    features: (
        int  # D; with fewer rows than this FID's covariances lack rank, and it compares with figures of equal rows only
    )
    sha256: str


def read_source(path: str | Path) -> FeatureSource:
    """Return the network in a file: an FID-proxy (``.safetensors``), or else Inception weights. ConfigError if it is neither."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"features: '{path}' cannot be read ({error.strerror}).") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if Path(path).suffix == ".safetensors":
        return FeatureSource(fid_proxy.NAME, sha256, fid_proxy.extractor(data, str(path)))
    return FeatureSource("FID" if sha256.startswith(ORIGINAL) else "FID-other", sha256, _inception(data, str(path)))


def features(images: Tensor, source: FeatureSource) -> Floats:
    """Return the features (N, D), float64, of ``images`` (N, C, H, W) in [0, 1], which are rounded to 256 levels first."""
    pixels = as_bytes(images)
    with torch.inference_mode():
        parts = [source.extract(pixels[i : i + BATCH]) for i in range(0, len(pixels), BATCH)]
    return torch.cat(parts).double().numpy()


def picture_distance(one: Tensor, other: Tensor, source: FeatureSource) -> PictureDistance:
    """Return FID and KID of two sets of pictures (N, C, H, W) in [0, 1]. DataError unless they are equally large."""
    if one.shape != other.shape:
        raise DataError(
            f"pictures of shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared: "
            "give equally many of equal size, because the distance depends on their number."
        )
    a, b = features(one, source), features(other, source)
    return PictureDistance(
        source.name, frechet_distance(a, b), kernel_distance(a, b), len(a), a.shape[1], source.sha256
    )


def source_sentence(source: FeatureSource) -> str:
    """Return which network a distance is by, and with what its figures compare."""
    by = f"{source.name} by the weights with SHA-256 {source.sha256}"
    if source.name == "FID":
        return f"{by}: Inception-v3, for equal numbers of pictures."
    if source.name == fid_proxy.NAME:
        by = f"no Inception weights were given (features = FILE), so this is the {by}, which '{fid_proxy.COMMAND}' trains"
    return f"{by}; figures do not compare with published ones, nor with those by other weights."


def as_bytes(images: Tensor) -> Tensor:
    """Return pictures (N, C, H, W) in [0, 1] as uint8; DataError for other shapes or values."""
    if images.dim() != 4 or not len(images) or images.shape[1] not in (1, 3):
        raise DataError(f"features need pictures (N, 1 or 3, H, W), but these have shape {tuple(images.shape)}.")
    slack = 1e-3  # a generator's tanh and the way back from standardised pixels round
    if not (images.min() >= -slack and images.max() <= 1 + slack):  # also true of NaN
        raise DataError("features need pixels from 0 to 1.")
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _inception(data: bytes, path: str) -> Callable[[Tensor], Tensor]:
    """Return Inception-v3 with the weights in ``data``, by torch-fidelity.

    torch-fidelity unpickles whatever it is given. So the same bytes are read first by the reader that builds nothing but tensors.
    """
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"features: '{path}' holds no plain weights ({first_line(error)}); it was not loaded. "
            f"Give the file pt_inception-2015-12-05-{ORIGINAL}.pth, or an FID-proxy (.safetensors)."
        ) from error
    kind = _extractor()
    try:
        network = kind("inception-v3-compat", [LAYER], feature_extractor_weights_path=io.BytesIO(data))
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ConfigError(f"features: '{path}' does not fit Inception-v3 ({first_line(error)}).") from error

    def extract(pixels: Tensor) -> Tensor:
        found: Tensor = network(pixels.expand(-1, 3, -1, -1).contiguous())[0]
        return found

    return extract


def _extractor() -> Any:
    """Return torch-fidelity's class of Inception-v3."""
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        raise ConfigError('features: Inception weights need torch-fidelity: pip install "fedatlas[fid]".') from error
    except RuntimeError as error:  # torchvision for CUDA beside torch for processors
        raise ConfigError(
            f"features: torch-fidelity cannot be imported ({first_line(error)}): "
            "install torchvision from the same index as torch."
        ) from error
    return FeatureExtractorInceptionV3
