"""The Gaussian mechanism in closed form.

A release with sensitivity Delta and standard deviation sigma is characterised by mu = Delta / sigma. Its privacy curve is

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

and T of them, even if chosen adaptively, equal one release with mu = sqrt(sum of mu_t^2). Phi is the distribution function
of the standard normal law.
Source: Balle and Wang 2018; Dong, Roth and Su 2019 for the composition. P1.
"""

from __future__ import annotations

import math

from fedatlas.errors import PrivacyError


def check_delta(delta: float) -> None:
    """Raise PrivacyError unless 0 < delta < 1: Gaussian noise guarantees nothing at delta = 0."""
    if not 0 < delta < 1:
        raise PrivacyError(
            f"delta = {delta} is no probability between 0 and 1: give one well below 1 / (number of those protected)."
        )


def delta_of(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of the curve above. The second term has e^epsilon inside the normal density, so nothing overflows."""
    from scipy.special import erfcx, ndtr

    if mu == 0:
        return 0.0
    below, above = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    tail = math.exp(-below * below / 2) * float(erfcx(above / math.sqrt(2))) / 2
    return max(0.0, float(ndtr(below)) - tail)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with delta(epsilon) <= delta; infinity without noise (mu = infinity)."""
    from scipy.optimize import brentq
    from scipy.special import ndtri

    check_delta(delta)
    if mu > 1e100:  # so little noise that the numbers would overflow
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    above = mu * mu / 2 + mu * max(
        0.0, -float(ndtri(delta))
    )  # there the first term of delta(epsilon) equals delta by itself
    return float(brentq(lambda e: delta_of(mu, e) - delta, 0.0, above * (1 + 1e-9) + 1e-9, xtol=1e-13, rtol=1e-13))


def multiplier_of(epsilon: float, delta: float, releases: int = 1) -> float:
    """Return the smallest sigma / Delta at which ``releases`` releases together are (epsilon, delta)-differentially private."""
    from scipy.optimize import brentq

    check_delta(delta)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise PrivacyError(f"epsilon = {epsilon} cannot be kept by any noise: give a finite number above 0.")
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    low = high / 2
    while delta_of(low, epsilon) > delta:
        low /= 2
    mu = float(brentq(lambda m: delta_of(m, epsilon) - delta, low, high, xtol=1e-15, rtol=1e-14))
    return math.sqrt(releases) / mu


def classic_factor(delta: float) -> float:
    """Return c = sqrt(2 ln(1.25 / delta)): sigma = c Delta / epsilon, proven only for epsilon < 1 (Dwork and Roth 2014)."""
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta))
