"""A key holder's work by SEAL: keys, encryption, decryption. The only import of `seal`.

Keys encrypt symmetrically, as all who encrypt hold the secret key. SEAL seeds each encryption from the operating system. Its parser
sees only bytes that are built here from residues, and it checks each residue.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedatlas import secret
from fedatlas.errors import ConfigError, PrivacyError, ProtocolError
from fedatlas.privacy.bfv.parameters import Parameters
from fedatlas.privacy.encrypted import residues
from fedatlas.privacy.encrypted.residues import ServerKey

Whole = NDArray[np.int64]

KEPT = 8  # keys made ready in a process


def seal() -> Any:
    """Return the module seal. ConfigError if it is not installed."""
    try:
        import seal as library
    except ImportError as error:
        raise ConfigError(
            'BFV encryption needs seal-python (Python 3.11 to 3.13): pip install "fedatlas[he]".'
        ) from error
    return library


class Holder(NamedTuple):
    """A key made ready."""

    server: ServerKey
    form: Parameters
    context: Any
    encoder: Any
    encryptor: Any
    decryptor: Any
    plain: int  # t
    head: bytes  # of a ciphertext as SEAL writes it, up to its residues


@cache
def context(form: Parameters) -> Any:
    """Return SEAL's context of these parameters. PrivacyError if they do not reach 128 bits of security."""
    library = seal()
    made = library.EncryptionParameters(library.scheme_type.bfv)
    made.set_poly_modulus_degree(form.degree)
    made.set_coeff_modulus(library.CoeffModulus.Create(form.degree, list(form.primes)))
    made.set_plain_modulus(library.PlainModulus.Batching(form.degree, form.plain))
    found = library.SEALContext(made, True, library.sec_level_type.tc128)
    if not found.parameters_set():
        raise PrivacyError(f"SEAL refuses these parameters: {found.parameter_error_message()}")
    return found


def generate(form: Parameters) -> tuple[str, bytes]:
    """Return a new key: its name and its secret."""
    return secret.random_bytes(16).hex(), bytes(seal().KeyGenerator(context(form)).secret_key().to_string())


@lru_cache(maxsize=KEPT)
def holder(form: Parameters, name: str, key: bytes) -> Holder:
    """Return the key made ready. A process keeps a few; workers that are forked later share them."""
    library, found = seal(), context(form)
    private = found.from_secret_str(key)
    primes = tuple(one.value() for one in found.first_context_data().parms().coeff_modulus())
    server = ServerKey(name, form.degree, primes)
    encryptor, encoder = library.Encryptor(found, private), library.BatchEncoder(found)
    zero = encryptor.encrypt_symmetric(encoder.encode(np.zeros(form.degree, dtype=np.int64))).to_string()
    plain = found.first_context_data().parms().plain_modulus().value()
    head = bytes(zero[: len(zero) - 16 * len(primes) * form.degree])
    return Holder(server, form, found, encoder, encryptor, library.Decryptor(found, private), plain, head)


def encrypt(keys: Holder, numbers: Whole) -> list[Tensor]:
    """Return packed ciphertexts of whole numbers (n,), N to each, the last filled up with zeros."""
    out = []
    for at in range(0, len(numbers), keys.form.degree):
        row = np.zeros(keys.form.degree, dtype=np.int64)
        here = numbers[at : at + keys.form.degree]
        row[: len(here)] = here
        data = keys.encryptor.encrypt_symmetric(keys.encoder.encode(row)).to_string()
        words = np.frombuffer(data, dtype="<u8", offset=len(keys.head))
        found = words.reshape(2, len(keys.server.primes), keys.form.degree).transpose(1, 0, 2)
        out.append(residues.packed(keys.server, found))
    return out


def decrypt(keys: Holder, rows: Tensor) -> Whole:
    """Return the numbers (count N,) of packed ciphertexts, those above t / 2 as negative. ProtocolError without noise budget."""
    out = []
    for row in rows:
        words = residues.unpacked(keys.server, row).transpose(1, 0, 2)
        one = seal().Ciphertext()
        one.load_bytes(keys.context, keys.head + np.ascontiguousarray(words).tobytes())
        if keys.decryptor.invariant_noise_budget(one) <= 0:
            raise ProtocolError(
                "a sum has no noise budget left: it is of another key, has more summands than agreed, or is forged."
            )
        out.append(keys.encoder.decode(keys.decryptor.decrypt(one)))
    return np.concatenate(out) if out else np.zeros(0, dtype=np.int64)
