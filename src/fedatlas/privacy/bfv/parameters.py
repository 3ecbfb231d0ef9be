"""Parameters of BFV at 128 bits of security: the smallest ring whose noise budget suffices for a federation's sums.

A sum of codes of ``bits`` bits with whole weights of total W lies within W 2^(bits-1), and the plaintext modulus t has to be larger
than twice that. Every fresh ciphertext has an error of at most 22 (SEAL draws at most 21, and rounding adds 1/2), which the weights
multiply. A sum decrypts exactly while 2 t W 22 < q. SEAL keeps the last prime back, so 72 of the 109 bits remain at N = 4096.

Source: Fan and Vercauteren, ePrint 2012/144; HomomorphicEncryption.org's table for 128 bits (109 bits at N = 4096, 218 at N = 8192).
"""

from __future__ import annotations

from typing import NamedTuple

from fedatlas.errors import PrivacyError
from fedatlas.privacy.secagg.fixed import LIMB

ERROR = 22
RINGS = ((4096, (36, 36, 37)), (8192, (44, 44, 44)), (8192, (52, 52, 52)), (8192, (60, 60, 60)))
LEAST, MOST = 20, 60  # bits of a plaintext modulus that SEAL has for these rings


class Parameters(NamedTuple):
    """The form of a key."""

    degree: int  # N, the numbers per ciphertext
    primes: tuple[int, ...]  # their bits; the last one is SEAL's own
    plain: int  # bits of t
    total: int  # largest sum of whole weights
    piece: int  # bits of a word of reals that travel together


def parameters(bits: int, clients: int, unit: int) -> Parameters:
    """Return the parameters for these codes. PrivacyError if the noise budget of no ring suffices.

    unit: the whole number that stands for a weight of 1 if the server weighs; 1 if clients do. Weights of a sum that exceed 1 have twice
    the room.
    """
    total = clients if unit == 1 else max(2 * unit, clients)
    plain = max((total << bits).bit_length() + 1, LEAST)  # t > 2^(plain - 1) >= 2 W 2^(bits - 1)
    needed = plain + (ERROR * total).bit_length() + 2
    fitting = [one for one in RINGS if needed < sum(one[1][:-1])]
    if plain > MOST or not fitting:
        raise PrivacyError(
            f"sums of values of {bits} bits need a plaintext modulus of {plain} bits and a ciphertext modulus of {needed}, and at most "
            f"{MOST} and {sum(RINGS[-1][1][:-1])} fit: lower bits."
        )
    degree, primes = fitting[0]
    return Parameters(degree, primes, plain, total, min(LIMB, plain - 1 - clients.bit_length()))
