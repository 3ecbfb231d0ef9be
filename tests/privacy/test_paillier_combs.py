"""Powers of a fixed number by a comb: compared with Python's own, at the ends of exponents and of limbs."""

from __future__ import annotations

import gmpy2
import numpy as np
import pytest

from fedatlas.privacy.paillier import encryption


@pytest.mark.parametrize("bits", [24, 40, 100, 512])
def test_a_comb_gives_the_power(bits):
    # h^s (1 + log p) modulo p^2, with exponents at both ends; 24 and 40 bits have an odd number of bytes.
    p = gmpy2.next_prime(1 << (bits - 1))
    h = pow(3, int(p), int(p) ** 2)
    comb = encryption.Comb(p, p * p, *encryption._comb(p, h, bits))
    exponents = [
        0,
        1,
        255,
        (1 << bits) - 1,
        12345 % (1 << bits),
        *(pow(5, 40 * i, 1 << bits) for i in range(1, 21)),
    ]
    logs = [(1 << 3 * i) % int(p) for i in range(len(exponents))]
    found = encryption.powers(comb, exponents, logs)
    square = int(p) ** 2
    expected = [pow(h, s, square) * (1 + log * int(p)) % square for s, log in zip(exponents, logs, strict=True)]
    assert [int(x) % square for x in found] == expected


def test_limbs_are_carried():
    limbs = np.array([[272 * 0xFFFFFFFF] * 5, [0, 1 << 40, 0, 0, 1]], np.uint64)
    expected = [sum(int(x) << 32 * j for j, x in enumerate(row)) for row in limbs]
    assert [int(x) for x in encryption._numbers(limbs)] == expected
