"""Keys of one session of secure aggregation: their binding, agreement, signatures and derivation (P14).

Curve25519 serves both pairs of keys (X25519, RFC 7748) and identities (Ed25519, RFC 8032). HKDF with SHA-256 (RFC 5869) turns a shared
secret into a key of 256 bits. AES-256-GCM protects messages between clients through the server. Everything derived carries the tag
of its place, so nothing of one run, round, attempt or cohort is valid in another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from fedatlas import secret
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.privacy.secagg import graph
from fedatlas.secret import Secret

KEY = 32  # bytes of a private key, a public key, a seed, a tag
SIGNATURE = 64
SEEN = 1 << 14  # signatures whose check is remembered: a simulation's parties see the same ones
NONCE, SEAL = 12, 16  # bytes that AES-GCM puts before and after what it encrypts
FEWEST, MOST = 3, 100  # clients of a sum: fewer would reveal each other's, more need a sparse graph
SPARSE_MOST = 1000  # clients of a sum with a sparse graph of masks (`graph`)

Source = Callable[[int], bytes]
Neighbours = int | Literal["auto"] | None
"""Clients with which each shares masks: a number, found from the cohort, or all others."""


class Place(NamedTuple):
    """The place of a session: the ask to sum, the clients asked (ids ascending), and the threshold.

    neighbours, graph: of a sparse graph of masks, how many neighbours each client has, and the seed of their circle in hexadecimal.
    """

    federation: str
    run: str
    round: int
    attempt: int
    ask: int | str
    cohort: tuple[int, ...]
    threshold: int
    neighbours: int = 0  # 0: all others
    graph: str = ""

    @property
    def holders(self) -> int:
        """Clients that rebuild a secret together."""
        if not self.neighbours:
            return self.threshold
        return graph.degree_of(len(self.cohort), len(self.cohort) - self.threshold, self.neighbours).needed

    def circle(self, position: int) -> tuple[int, ...]:
        """Return the positions with which a client shares masks and secrets, itself included, ascending."""
        if not self.neighbours:
            return tuple(range(len(self.cohort)))
        return graph.circles(self.graph, len(self.cohort), self.neighbours)[position]

    @property
    def least(self) -> int:
        """Fewest clients with which a phase continues."""
        return max(self.threshold, FEWEST)


class Party(NamedTuple):
    """The secrets of a client, given when it is built: its number, its identity's private key, all identities' public keys."""

    client: int
    federation: str
    private: Secret
    public: Mapping[int, bytes]


def installed() -> None:
    """Raise ConfigError if the package ``cryptography`` is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError('secure aggregation needs cryptography: pip install "fedatlas[he]".') from error


def threshold_of(asked: int, share: float = 2 / 3) -> int:
    """Return t = floor(share * asked) + 1, at most ``asked``. ConfigError unless 0.5 < ``share`` <= 1."""
    if not 0.5 < share <= 1:
        raise ConfigError(f"secagg's threshold is a share of those asked, above 0.5 and at most 1, not {share}.")
    exact = Fraction(share).limit_denominator(
        10**6
    )  # 2/3 as a float times 3 must not fall on either side of 2 by chance
    return min(int(exact * asked) + 1, asked)


def tolerated(asked: int, threshold: int) -> int:
    """Return how many clients may help a dishonest server that still learns only the sum of the others.

    To open two sums it needs two statements (who shared, who is in the sum, what all were told) with t signatures each, because a client
    gives shares only under t signatures over its own statement. An honest client signs one statement, a colluding one both:
    2 t <= (asked - c) + 2 c. This is out of reach while c < 2 t - asked. Two honest clients must remain for their sum to hide either.
    """
    return max(min(2 * threshold - asked - 1, asked - 2), 0)


def place_of(federation: str, run: str, round: int, attempt: int, ask: int | str, cohort: tuple[int, ...],
             threshold: float = 2 / 3, neighbours: Neighbours = None, seed: str = "") -> Place:  # fmt: skip
    """Return the place of a session. ProtocolError unless the cohort is 3 to 100 distinct ids in ascending order.

    With a sparse graph it may be up to 1,000. ``seed``: of its circle.
    """
    if list(cohort) != sorted(set(cohort)):
        raise ProtocolError("the cohort of a secure sum is a list of distinct clients upwards.")
    most = MOST if neighbours is None else SPARSE_MOST
    if not FEWEST <= len(cohort) <= most:
        raise ProtocolError(f"a secure sum is of {FEWEST} to {most} clients, not of {len(cohort)}.")
    needed = threshold_of(len(cohort), threshold)
    each = neighbours_of(neighbours, len(cohort), needed)
    return Place(federation, run, round, attempt, ask, cohort, needed, each, seed if each else "")


def neighbours_of(neighbours: Neighbours, asked: int, needed: int) -> int:
    """Return how many neighbours each client has; 0: all others. ConfigError for a number that is odd.

    "auto" takes all others up to 100 clients, above the fewest with which a session fails with a chance of at most 2^-40.
    """
    if neighbours is None or (neighbours == "auto" and asked <= MOST):
        return 0
    if neighbours == "auto":
        found = graph.smallest(asked, asked - needed)
        return 0 if found is None else found.neighbours
    if neighbours % 2:
        raise ConfigError(f"privacy.secagg.neighbours = {neighbours}: as many to either side, so an even number.")
    return neighbours if neighbours < asked - 1 else 0


def tag_of(place: Place) -> bytes:
    """Return 32 bytes that represent a place: SHA-256 of all its fields, each with its bounds and its type."""
    sparse = [place.neighbours, place.graph] if place.neighbours or place.graph else []
    return hashlib.sha256(
        b"fedatlas secagg 1" + json.dumps([*place[:5], list(place.cohort), place.threshold, *sparse]).encode()
    ).digest()


def bound(tag: bytes, head: bytes) -> bytes:
    """Bind a place's tag to the digest of what all clients were told there. Keys of pair masks are derived with it."""
    return hashlib.sha256(b"head" + tag + head).digest()


def statement(tag: bytes, members: Sequence[int], survivors: Sequence[int], head: bytes) -> bytes:
    """Return what clients sign before they help to open a sum: its place, who shared, who is in it, what all were told."""
    return b"agree" + tag + head + json.dumps([[*members], [*survivors]]).encode()


def drawn(source: Source = secret.random_bytes) -> Secret:
    """Draw a new private key or seed."""
    return Secret(source(KEY))


def identity(source: Source = secret.random_bytes) -> tuple[Secret, bytes]:
    """Return a new identity: the private key, only for its party, and the public key, for the list that all parties hold."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = drawn(source)
    return private, Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signed(party: Party, tag: bytes, keys: bytes) -> bytes:
    """Return a client's signature over its place, itself and both of its public keys."""
    return sign(party, _advertised(tag, party.client, keys))


def sign(party: Party, text: bytes) -> bytes:
    """Return a signature by a client's identity."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(party.private).sign(text)


def verify(public: Mapping[int, bytes], tag: bytes, client: int, keys: bytes, signature: bytes) -> None:
    """Raise ProtocolError unless ``client`` is on the list and signed these keys for this place."""
    if client not in public:
        raise ProtocolError(f"client {client} is not on the list of identities: add its public key, or leave it out.")
    if not signed_by(public[client], _advertised(tag, client, keys), signature):
        raise ProtocolError(
            f"the keys of client {client} are not signed by its identity for this round: they are not its own."
        )


@lru_cache(SEEN)
def signed_by(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether a text was signed with the private key of a public one."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, others: Mapping[int, bytes], cohort: Sequence[int]) -> dict[int, Secret]:
    """Return the secrets that a client shares with others, by position: X25519 of its private key and the public key of each.

    ProtocolError if a public key is of small order, since the secret would then be zero for every private key.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    mine, found = X25519PrivateKey.from_private_bytes(private), {}
    for v, public in others.items():
        try:
            found[v] = Secret(mine.exchange(X25519PublicKey.from_public_bytes(public)))
        except ValueError:
            raise ProtocolError(f"client {cohort[v]} advertised a key that agrees on nothing.") from None
    return found


def derived(secret: bytes, tag: bytes, *purpose: int | str) -> Secret:
    """Return a key of 256 bits for one purpose at one place, by HKDF."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = tag + json.dumps(purpose).encode()
    return Secret(HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret))


def sealed(key: bytes, text: bytes, about: bytes, source: Source) -> bytes:
    """Return ``text`` encrypted and authenticated together with ``about``: nonce, ciphertext, seal."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = source(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, about)


def opened(key: bytes, text: bytes, about: bytes) -> Secret | None:
    """Return the text that ``sealed`` hid; None if it was not made with this key and ``about``."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return Secret(AESGCM(key).decrypt(text[:NONCE], text[NONCE:], about))
    except InvalidTag:
        return None


def _advertised(tag: bytes, client: int, keys: bytes) -> bytes:
    return b"keys" + tag + client.to_bytes(8, "little", signed=True) + keys
