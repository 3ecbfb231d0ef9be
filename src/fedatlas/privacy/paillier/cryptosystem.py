"""Paillier's cryptosystem: whole vectors of numbers, encrypted, that can be added up without the key to read them.

    keys.py         making keys, and their plain forms for messages
    primes.py       safe primes from the operating system's randomness
        encryption.py   encryption by combs for key holders and by only the public key; decryption
        threshold.py    a private key in shares, all of which are needed to decrypt
        knowledge.py    proofs that a sender knows the plaintexts of its ciphertexts
        sums.py         operations without the secret key: weighted sums, differences, multiples, packing of sums
        fixed.py        real numbers as whole ones, many per plaintext, so that no sum can overflow
        batches.py      ciphertexts as bytes of fixed width, and checks of those that come from elsewhere
        spread.py       the work of a batch on several processes

Nothing here knows about rounds, clients or configuration. gmpy2 (``pip install "fedatlas[he]"``) is imported when it is used. Every
random draw comes from the operating system where it is needed: no generator outlives a fork. Powers are not computed in constant time.
Somebody who can time a key holder's machine to the microsecond is not kept out.

Source: Paillier, EUROCRYPT 1999; P10, P11. The holder of the secret key reads every ciphertext. If clients share the key, a client
that colludes with the party that adds the ciphertexts reads those of all others.
"""

from fedatlas.privacy.paillier.batches import Batch, received
from fedatlas.privacy.paillier.encryption import (
    Base,
    Holder,
    Sealer,
    base,
    base_of,
    decrypt,
    encrypt,
    full,
    holder,
    sealer,
)
from fedatlas.privacy.paillier.fixed import (
    Layout,
    dequantise,
    join,
    layout,
    pack,
    quantise,
    separate,
    slot_bits,
    unpack,
)
from fedatlas.privacy.paillier.keys import PrivateKey, PublicKey, generate, generate_plain, private_key, public_key
from fedatlas.privacy.paillier.sums import add, gather, running, subsets, subtract, times, weighted_sum, weighted_sums

__all__ = [
    "Base",
    "Batch",
    "Holder",
    "Layout",
    "PrivateKey",
    "PublicKey",
    "Sealer",
    "add",
    "base",
    "base_of",
    "decrypt",
    "dequantise",
    "encrypt",
    "full",
    "gather",
    "generate",
    "generate_plain",
    "holder",
    "join",
    "layout",
    "pack",
    "private_key",
    "public_key",
    "quantise",
    "received",
    "running",
    "sealer",
    "separate",
    "slot_bits",
    "subsets",
    "subtract",
    "times",
    "unpack",
    "weighted_sum",
    "weighted_sums",
]
