"""Gaussian and Laplace noise in bulk, and the secret random words behind it.

Under ``os`` every draw takes a fresh key of 256 bits from the operating system, reads the AES stream in counter mode under it, and
drops the key. Only draws that are repeated, those that change a party's rows once in a run, follow from a secret (`Noise.secret`) and
their key by SHAKE-256: it takes a key of any length and only the standard library, and a resumed run needs the same bits. AES takes
less than half of its time, which counts where every step draws noise. No generator is made before a fork and used after it, so
two workers never share a stream. Under ``seed`` the words are a function of (seed, key), and the same draw again is the same
release. This makes a simulation repeatable. It protects only those who trust everybody who knows the seed.

Noise in floating-point numbers differs from the ideal in the last bits, and the last bits of x + noise can reveal x (Mironov 2012).
So `noised` rounds the released sum to multiples of a power of two about a millionth of the noise. Every value then has many ways to
arise, and the loss is invisible next to the noise. This is a rounded floating-point Gaussian, not an exactly sampled discrete one.
Gaussian values end at 9.5 standard deviations and Laplace values at 44 scales. Less than 2^-62 of the ideal mass lies beyond.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedatlas import secret
from fedatlas.algorithm import Update
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.clipping import changed, vector
from fedatlas.privacy.mechanism import Noise
from fedatlas.rng import numpy_stream

Words = npt.NDArray[np.uint64]

PIECE = 1 << 18  # words turned into noise at once: intermediate values stay in the processor's cache
GRID = 20  # a release is rounded to 2^-GRID of its noise


def words(noise: Noise, n: int, *key: int | str) -> Words:
    """Return ``n`` uniform words of 64 bits. ``key`` names the draw under "seed" or a secret, so no two draws may share one."""
    if noise.secret:
        stretched = hashlib.shake_256(bytes(noise.secret) + repr(key).encode())  # all secrets have one length
        return np.frombuffer(stretched.digest(8 * n), dtype="<u8")
    if noise.source == "seed":
        return numpy_stream(noise.seed, "noise", *key).bit_generator.random_raw(n)
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError as error:
        raise ConfigError('noise = "os" needs cryptography: pip install "fedatlas[dp]".') from error
    stream = Cipher(algorithms.AES(secret.key()), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")


def gaussian(n: int, std: float, noise: Noise, *key: int | str) -> Tensor:
    """Return ``n`` independent draws of N(0, std^2), float64, by Box and Muller's transform of pairs of uniform words."""

    def normal(raw: Words) -> npt.NDArray[np.float64]:
        half = len(raw) // 2
        radius = np.sqrt(-2 * np.log(_uniform(raw[:half], 64)))
        angle = torch.from_numpy(2 * math.pi * _uniform(raw[half:], 64))  # torch's sine takes a sixth of NumPy's time
        return np.concatenate([radius * angle.cos().numpy(), radius * angle.sin().numpy()])

    return _drawn(n, n + n % 2, std, normal, noise, key)


def uniform(n: int, scale: float, noise: Noise, *key: int | str) -> Tensor:
    """Return ``n`` independent draws from (-scale, scale], float64."""
    return _drawn(n, n, scale, lambda raw: 2 * _uniform(raw, 64) - 1, noise, key)


def gaussian32(n: int, std: float, noise: Noise, *key: int | str) -> Tensor:
    """Return ``n`` independent draws of N(0, std^2), float32: `gaussian` for the noise of every step, in a fourth of its time.

    A pair of draws takes 63 bits for its radius, so that values end at 9.4 standard deviations, and 32 for its angle.
    """
    half = n - n // 2
    raw = words(noise, half + half // 2 + half % 2, *key)
    far = torch.from_numpy((raw[:half] >> np.uint64(1)).view(np.int64)).to(torch.float32)
    radius = far.add_(0.5).mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    angle = torch.from_numpy(raw[half:].view(np.int32)[:half].astype(np.float32)).mul_(math.pi * 2.0**-31)
    return torch.cat([radius * angle.cos(), (radius * angle.sin())[: n // 2]]).mul_(std)


def laplace(n: int, scale: float, noise: Noise, *key: int | str) -> Tensor:
    """Return ``n`` independent draws of density exp(-|x| / scale) / (2 scale), float64. Each word gives an exponential and a sign."""

    def signed(raw: Words) -> npt.NDArray[np.float64]:
        sign = np.where(raw & np.uint64(1), 1.0, -1.0)
        return sign * -np.log(_uniform(raw >> np.uint64(1), 63))

    return _drawn(n, n, scale, signed, noise, key)


def noised(
    update: Update,
    scale: float,
    noise: Noise,
    *key: int | str,
    draw: Callable[..., Tensor] = gaussian,
) -> Update:
    """Return ``update`` plus independent noise of this ``scale`` (standard deviation, or Laplace's) on all parts, as float64 trees.

    scale = 0 adds nothing. PrivacyError if the scale is not a number, or a part is not a tree of finite floats.
    """
    if not (math.isfinite(scale) and scale >= 0):
        raise PrivacyError(f"noise of scale {scale} cannot be drawn: give the mechanism finite numbers.")
    x = vector(update)
    if scale == 0:
        return changed(update, x)
    return changed(update, on_grid(x + draw(len(x), scale, noise, *key), scale))


def on_grid(x: Tensor, scale: float) -> Tensor:
    """Return ``x``, which holds noise of this ``scale``, in multiples of a power of two about a millionth of it."""
    step = math.ldexp(1.0, math.floor(math.log2(scale)) - GRID)
    return torch.round(x / step) * step


def _uniform(raw: Words, bits: int) -> npt.NDArray[np.float64]:
    """Return words below 2^bits as uniform numbers in (0, 1], as fine near 0 as the words are."""
    return (raw.astype(np.float64) + 0.5) * 2.0**-bits


def _drawn(
    n: int,
    needed: int,
    scale: float,
    made: Callable[[Words], npt.NDArray[np.float64]],
    noise: Noise,
    key: tuple[int | str, ...],
) -> Tensor:
    """Return ``n`` numbers that ``made`` makes from ``needed`` words, one number per word, piece by piece."""
    raw = words(noise, needed, *key)
    out = np.empty(needed)
    for at in range(0, needed, PIECE):
        out[at : at + PIECE] = made(raw[at : at + PIECE])
    return torch.from_numpy(out[:n] * scale)
