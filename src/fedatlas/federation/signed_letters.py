"""Letters between real parties (`vertical.letters`): signed by their sender for one run, round and attempt, and relayed as bytes.

    on the way   {from, to, topic, step, text, signature}       text: the codec's bytes of all that a letter says
    signed       text = {of: [run's digest, round, attempt], from, to, topic, step, secret, content}

The signature is Ed25519 by the sender's identity over the BLAKE2b digest of the text. The other fields only tell the relay where to
bring it. A secret letter holds one box for each receiver: X25519 from a fresh key to the receiver's identity, as in
`crypto_box_seal` of libsodium.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedatlas.errors import FedatlasError, ProtocolError
from fedatlas.federation.link import Request
from fedatlas.secret import Secret
from fedatlas.vertical.letters import LETTERS, Letter, well_addressed
from fedatlas.vertical.psi import sodium
from fedatlas.wire import codec

PURPOSE = b"fedatlas letter 1\n"

SIGNATURE = 64  # bytes


class SignedLetters:
    """A party's means to sign its letters and to open those of others. ``run`` is the digest of the agreement."""

    def __init__(
        self, number: int, names: Sequence[str], run: str, private: Secret, identities: Mapping[int, bytes]
    ) -> None:
        self.number, self.names, self.run = number, names, run
        self.private, self.identities = private, identities

    def sealed(self, request: Request, update: Mapping[str, Any]) -> dict[str, Any]:
        """Return a reply with its letters signed."""
        if LETTERS not in update:
            return dict(update)
        return {**update, LETTERS: [self._signed(request, one) for one in update[LETTERS]]}

    def opened(self, request: Request) -> Request:
        """Return a request with its letters in the form that questions take.

        ProtocolError unless the sender signed a letter for this party and for this run, round and attempt.
        """
        came = request.message.get(LETTERS, [])
        if not isinstance(came, list):
            raise ProtocolError("the letters of a message are no list.")
        return request._replace(message={**request.message, LETTERS: [self._verified(request, one) for one in came]})

    def _signed(self, request: Request, plain: Letter) -> Letter:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        content = plain["content"]
        if plain["secret"]:
            content = {str(k): self._box(k, content) for k in plain["to"]}
        text = codec.encode({**plain, "of": self._place(request), "content": content})
        signature = Ed25519PrivateKey.from_private_bytes(self.private).sign(_signable(text))
        about = {name: plain[name] for name in ("from", "to", "topic", "step")}
        return {**about, "text": _tensor(text), "signature": _tensor(signature)}

    def _verified(self, request: Request, came: Any) -> Letter:
        sender = came.get("from") if isinstance(came, Mapping) else None
        if type(sender) is not int or sender not in self.identities:
            raise ProtocolError("a letter names no party of this run as its sender.")
        text, name = _view(came.get("text")), self.names[sender]
        if not self._holds(sender, text, bytes(_view(came.get("signature")))):
            raise ProtocolError(
                f"a letter in the name of '{name}' is not signed by it: it was altered, or is another's."
            )
        try:
            plain = codec.decode(text)
            if not well_addressed(plain, sender, len(self.names)):
                raise TypeError
            right = plain["of"] == self._place(request) and self.number in plain["to"]
            box = plain["content"][str(self.number)] if right and plain["secret"] else None
        except (FedatlasError, LookupError, TypeError):
            raise ProtocolError(f"a letter of '{name}' cannot be read.") from None
        if not right:
            raise ProtocolError(
                f"a letter of '{name}' is for another party, or of another run, round or attempt: it is not taken."
            )
        return plain if box is None else {**plain, "content": self._unboxed(name, box)}

    def _holds(self, sender: int, text: memoryview, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.identities[sender]).verify(signature, _signable(text))
        except (InvalidSignature, ValueError):
            return False
        return len(signature) == SIGNATURE

    def _place(self, request: Request) -> list[Any]:
        return [self.run, request.round, request.attempt]

    def _box(self, to: int, content: Any) -> torch.Tensor:
        key = sodium().crypto_sign_ed25519_pk_to_curve25519(self.identities[to])
        return _tensor(sodium().crypto_box_seal(bytes(codec.encode(content)), key))

    def _unboxed(self, name: str, box: Any) -> Any:
        public, private = sodium().crypto_sign_seed_keypair(bytes(self.private))
        keys = (
            sodium().crypto_sign_ed25519_pk_to_curve25519(public),
            sodium().crypto_sign_ed25519_sk_to_curve25519(private),
        )
        try:
            return codec.decode(bytearray(sodium().crypto_box_seal_open(bytes(_view(box)), *keys)))
        except Exception:  # noqa: BLE001  # PyNaCl has its own error type
            raise ProtocolError(f"a secret letter of '{name}' cannot be opened.") from None


def _signable(text: bytearray | memoryview) -> bytes:
    return PURPOSE + hashlib.blake2b(text).digest()


def _tensor(data: bytes | bytearray) -> torch.Tensor:
    return torch.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype=torch.uint8)


def _view(value: Any) -> memoryview:
    """Return the bytes of a received tensor. ProtocolError for anything else."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8 or value.ndim != 1:
        raise ProtocolError("a letter has no text or no signature where these were due.")
    return value.contiguous().numpy().data
