"""The mechanisms of ``[[privacy]]`` by name: one record of parameters each. `fedatlas list privacy` prints this table.

========== ============================================================ ==================================================
secagg     secure aggregation: the server learns the sum alone          P14, Bonawitz et al. 2017
paillier   encryption: clients hold the key, one of them opens the sum  P10, P11
central_dp a trusted server clips and adds noise                        P3, McMahan et al. 2018
local_dp   every client adds noise to what it sends                     P4
nbafl      noise at the clients and at the server, as the paper has it  P2, Wei et al. 2020
========== ============================================================ ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedatlas.registry import Positive, Rate, Whole

Source = Literal["os", "seed"]
Share = Annotated[float, Field(gt=0.5, le=1)]
Small = Annotated[float, Field(gt=0, lt=1)]
Bits = Annotated[int, Field(ge=2, le=40)]


class SecAgg(NamedTuple):
    """Secure aggregation (P14)."""

    threshold: float
    bits: int
    range: float
    n_cap: int
    name: str = "secagg"


class Paillier(NamedTuple):
    """Additively homomorphic encryption whose key all clients hold (P10, P11)."""

    key_bits: int
    bits: int
    range: float
    encrypt: str | tuple[str, ...]
    weights_by: Literal["server", "client"]
    name: str = "paillier"


class CentralDP(NamedTuple):
    """DP-FedAvg at a trusted server (P3)."""

    clip: float
    noise_multiplier: float
    delta: float | None
    noise: Source
    name: str = "central_dp"


class LocalDP(NamedTuple):
    """Noise at every client (P4)."""

    epsilon: float
    delta: float
    clip: float
    kind: Literal["gaussian", "laplace"]
    noise: Source
    name: str = "local_dp"


class NbAFL(NamedTuple):
    """Noising before aggregation (P2)."""

    epsilon: float
    delta: float
    clip: float
    sensitivity: Literal["paper", "worst_case"]
    noise: Source
    name: str = "nbafl"


Mechanism = SecAgg | Paillier | CentralDP | LocalDP | NbAFL


def secagg(*, threshold: Share = 2 / 3, bits: Bits = 24, range: Positive = 16.0, n_cap: Whole = 1 << 20) -> Mechanism:
    """The server learns the sum of the clients' updates and no client's own; clients may leave in the middle.

    threshold: share of the clients asked that have to stay until the sum is opened, above 0.5.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    n_cap: the most rows of a client, where clients weigh by their rows: a lower cap may halve the bytes.
    """
    return SecAgg(threshold, bits, range, n_cap)


def paillier(
    *,
    key_bits: Literal[2048, 3072] = 2048,
    bits: Bits = 24,
    range: Positive = 16.0,
    encrypt: str | tuple[str, ...] = "all",
    weights_by: Literal["server", "client"] = "server",
) -> Mechanism:
    """Clients encrypt what they send; the server adds ciphertexts up without reading any, and one client opens the sum.

    key_bits: length of the key that all clients share.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    encrypt: "all", "output" (the last layer), "outermost:N" (the N layers nearest the output), or names of parameters.
    weights_by: who multiplies an update by its weight: the server, on ciphertexts, or the client, before it encrypts.
    """
    return Paillier(key_bits, bits, range, encrypt, weights_by)


def central_dp(
    *, clip: Positive, noise_multiplier: Rate = 1.0, delta: Small | None = None, noise: Source = "os"
) -> Mechanism:
    """The server, which is trusted, limits what one client can change and adds noise: who took part stays hidden.

    clip: S, the longest change of a client (Euclidean norm over all parts together); a longer one is shortened to it.
    noise_multiplier: z: the noise on the sum has standard deviation z S; 0 = none, and no privacy.
    delta: at which epsilon is stated; left out = K^-1.1 for K clients.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    return CentralDP(clip, noise_multiplier, delta, noise)


def local_dp(
    *,
    epsilon: Positive,
    delta: Small = 1e-5,
    clip: Positive,
    kind: Literal["gaussian", "laplace"] = "gaussian",
    noise: Source = "os",
) -> Mechanism:
    """Every client adds noise to what it sends: nobody has to be trusted, and much accuracy is paid for it.

    epsilon: of the whole run, for a client that takes part in every round.
    delta: of the whole run; Laplace's noise has none.
    clip: S, the longest change that a client sends (Euclidean norm; Laplace: sum of sizes) over all parts together.
    kind: the noise: Gaussian, or Laplace.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    return LocalDP(epsilon, delta, clip, kind, noise)


def nbafl(
    *,
    epsilon: Positive,
    delta: Small = 0.01,
    clip: Positive,
    sensitivity: Literal["paper", "worst_case"] = "paper",
    noise: Source = "os",
) -> Mechanism:
    """Noise on each client's model and on the mean, by the paper's formulas; the honest epsilon stands beside the paper's.

    epsilon: the paper's, of the whole run.
    delta: the paper's, of the whole run.
    clip: C, the largest norm of a client's model (its parameters, not their change).
    sensitivity: 2 C / n_min as in the paper, or 2 C, which SGD does not undercut.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    return NbAFL(epsilon, delta, clip, sensitivity, noise)


MECHANISMS: Mapping[str, Callable[..., Mechanism]] = {
    "secagg": secagg,
    "paillier": paillier,
    "central_dp": central_dp,
    "local_dp": local_dp,
    "nbafl": nbafl,
}

LATER = (
    "threshold_paillier",
    "bfv",
    "ckks",
    "dp_ftrl",
    "dp_sgd",
    "distributed_dp",
    "additive_noise",
    "rotation",
    "anonymise",
)
"""Mechanisms that are planned and not in this version: refused as such."""

ORDER = ("nbafl", "local_dp", "central_dp", "paillier", "secagg")
"""The sound order: clip and noise before masks or encryption (P16)."""

FOR_ALL_ROUNDS = ("nbafl", "local_dp")
"""Mechanisms whose noise of every round is made for the number of rounds: their epsilon is the whole run's."""


class Learns(NamedTuple):
    """Who learns what of a client under a mechanism, beside what everybody is told: the models."""

    server: str
    clients: str  # other clients, each for itself
    colluding: str  # some of them together, or with the server


LEARNS: Mapping[str, Learns] = {
    "secagg": Learns(
        "the sum of a round's updates and that of their rows, and who stayed to its end; no client's own update",
        "the models, and who else takes part",
        "the server with clients learns the sum of the others' updates; single ones only with a share of the clients of "
        "2 threshold - 1 or more (a third by default)",
    ),
    "paillier": Learns(
        "the sum of a round's updates, which one client opens for it, and how many rows each client has where these are its weight; "
        "what `encrypt` leaves out, client by client",
        "the one that opens learns the sum; all hold the key, and could read an update that they got hold of",
        "the server with any one client reads every update: this is for parties that do not collude",
    ),
    "central_dp": Learns(
        "every update in the clear, and who sent it: the server has to be trusted",
        "whether a client takes part at all, no better than epsilon and delta allow",
        "clients together learn no more than one of them; with the server, every update",
    ),
    "local_dp": Learns(
        "each update with its client's noise: of what a client holds no more than epsilon and delta allow",
        "the models, made of updates with noise: no more than the server",
        "the server with all other clients learns no more than the server",
    ),
    "nbafl": Learns(
        "each model with its client's noise: of a single row what the honest epsilon allows, which is far above the paper's",
        "the mean with the noise of all: of a single row what the epsilon of broadcasts allows",
        "clients together take their own noise off the mean; with the server, no more than the server",
    ),
}
"""Mechanism -> who learns what."""
