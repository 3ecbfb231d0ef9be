"""NbAFL, noising before aggregation: clients clip and noise their models, and the server adds noise if the mean has too little.

===  ============================================  ======  ===============================================
C    bound of a client's whole model               T       rounds
N    clients                                       K_s     clients per round, if fewer than N are drawn
n_k  rows of a client, n_min the fewest            L       uploads of one client that are exposed, L <= T
p_k  a client's share in the mean                  c       sqrt(2 ln(1.25 / delta))
===  ============================================  ======  ===============================================

    client   w_k <- w_k / max(1, ||w_k|| / C),  send w_k + N(0, sigma_U^2 I),    sigma_U = c L (2 C / n_min) / epsilon
    server   w = sum p_k w~_k,  broadcast w + N(0, sigma_D^2 I),                 sigma_D: `sigma_down`, `sigma_down_drawn`

Parameters, not changes, are clipped and noised once after the last local step. Unit: a record, by replacing it.

The paper's epsilon rests on three assumptions, so `accounts` states what holds without them. (i) c / epsilon is proven only for
epsilon < 1; at delta = 0.01 it falls short from about epsilon = 7 on. (ii) 2 C / n_min treats the trained model as a mean over
records, which SGD does not ensure: a record may move a clipped model by 2 C. (iii) L uploads are exposed, but a server sees all.

Source: Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor 2020, IEEE TIFS 15. P2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedatlas.errors import PrivacyError
from fedatlas.privacy.gaussian import classic_factor, epsilon_of


class Setting(NamedTuple):
    """The quantities of the paper's formulas."""

    epsilon: float
    delta: float
    clip: float  # C
    rows: int  # n_min
    clients: int  # N
    rounds: int  # T
    exposed: int = 1  # L


class Accounts(NamedTuple):
    """epsilon of one record at delta, under fewer and fewer assumptions; infinity if nothing is guaranteed."""

    nominal: float  # as the paper states it
    exposed: float  # the same assumptions, the exact account in place of c / epsilon
    uploads: float  # if all uploads of a client are seen, as its server sees them
    honest: float  # and a record may move the whole clipped model
    broadcasts: float  # the same for another client, which sees every broadcast and knows its own noise


def sigma_up(s: Setting) -> float:
    """Return sigma_U = c L (2 C / n_min) / epsilon: the standard deviation of the noise on each parameter of an upload."""
    _check(s)
    return classic_factor(s.delta) * s.exposed * 2 * s.clip / s.rows / s.epsilon


def sigma_down(s: Setting, shares: Mapping[int, float], sizes: Mapping[int, int]) -> float:
    """Return the noise that the mean still needs for T broadcasts, beyond the noise of the uploads.

    sigma_D^2 = max(0, (c T max_k(2 C p_k / n_k) / epsilon)^2 - sigma_U^2 sum p_k^2); shares p_k and sizes n_k by client. With
    p_k = 1/N and n_k = n_min sigma_D = 2 c C sqrt(T^2 - L^2 N) / (n_min N epsilon), 0 up to T = L sqrt(N).
    """
    up = sigma_up(s)
    moved = max(2 * s.clip * p / sizes[k] for k, p in shares.items() if p)
    needed = classic_factor(s.delta) * s.rounds * moved / s.epsilon
    return math.sqrt(max(0.0, needed**2 - up**2 * math.fsum(p * p for p in shares.values())))


def sigma_down_drawn(s: Setting, drawn: int) -> float:
    """Return the same if K_s = ``drawn`` of N clients are drawn at random in a round; 0 unless T > epsilon / gamma.

    gamma = -ln(1 - q + q e^(-epsilon / (L sqrt(K_s)))), b = -(T / epsilon) ln(1 - 1/q + e^(-epsilon / T) / q), q = K_s / N:
    sigma_D = 2 c C sqrt(T^2 / b^2 - L^2 K_s) / (n_min K_s epsilon). Below the threshold b's logarithm may have no value.
    """
    _check(s)
    if not 1 <= drawn < s.clients:
        raise PrivacyError(f"NbAFL cannot draw {drawn} of {s.clients} clients.")
    if s.rounds <= threshold(s, drawn):
        return 0.0
    b = factor_drawn(s, drawn)
    inside = (s.rounds / b) ** 2 - s.exposed**2 * drawn
    return classic_factor(s.delta) * 2 * s.clip * math.sqrt(max(0.0, inside)) / (s.rows * drawn * s.epsilon)


def threshold(s: Setting, drawn: int) -> float:
    """Return epsilon / gamma: up to this number of rounds the noise of the uploads is enough."""
    gamma = -math.log1p(drawn / s.clients * math.expm1(-s.epsilon / (s.exposed * math.sqrt(drawn))))
    return s.epsilon / gamma


def factor_drawn(s: Setting, drawn: int) -> float:
    """Return b, defined for T > epsilon / gamma."""
    return -s.rounds / s.epsilon * math.log1p(s.clients / drawn * math.expm1(-s.epsilon / s.rounds))


def accounts(s: Setting, *, up: float, down: float, uploads: int, shares: Sequence[float]) -> Accounts:
    """Return the paper's epsilon and the honest ones.

    up, down: the noise that was used; uploads: the most that a client sent; shares: p_k of a round's clients.
    A client that hears w~ knows its own noise, so the largest share's noise is subtracted.
    """
    moved = 2 * s.clip
    rest = math.sqrt(down**2 + up**2 * max(0.0, math.fsum(p * p for p in shares) - max(shares) ** 2))

    def cost(times: int, move: float, sigma: float) -> float:
        return epsilon_of(math.sqrt(times) * move / sigma, s.delta) if sigma else math.inf

    return Accounts(
        nominal=s.epsilon,
        exposed=cost(s.exposed, moved / s.rows, up),
        uploads=cost(uploads, moved / s.rows, up),
        honest=cost(uploads, moved, up),
        broadcasts=cost(s.rounds, moved * max(shares), rest),
    )


def _check(s: Setting) -> None:
    """Raise PrivacyError if the formulas have no meaning."""
    if not (s.epsilon > 0 and s.clip > 0 and s.rows >= 1 and s.clients >= 1 and 1 <= s.exposed <= s.rounds):
        raise PrivacyError(
            "NbAFL needs epsilon and clip above 0, a row at every client, and between 1 and as many exposed uploads as rounds."
        )
