"""Values as whole numbers in agreed steps, for cryptosystems that add whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from fedatlas.privacy.encrypted.cryptosystem import Numbers
from fedatlas.privacy.numbers import Leaf
from fedatlas.privacy.paillier.fixed import dequantise, quantise


def whole(bits: int, range: float, leaf: Leaf, owner: str) -> tuple[Numbers, Tensor]:
    """Return the codes of a leaf, times its factor, and the values that they encode. PrivacyError for a value outside of the range."""
    codes = quantise(leaf.numbers * leaf.factor, bits=bits, range=range, owner=owner, part=leaf.name)
    decoded = torch.from_numpy(dequantise(codes, bits=bits, range=range))
    return codes, decoded / leaf.factor if leaf.factor else leaf.numbers


def values(bits: int, range: float, codes: Tensor, unit: int) -> Tensor:
    """Return the values of an opened sum whose weights of 1 stood for ``unit``."""
    return torch.from_numpy(dequantise(codes.numpy(), bits=bits, range=range, total=float(unit)))
