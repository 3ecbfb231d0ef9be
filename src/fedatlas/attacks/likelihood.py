"""Membership scores from models that were trained with and without a row: LiRA and RMIA (A5).

Both compare the target's confidence in the label of a row with that of shadow models. Confidence is logit-scaled: phi = log(p / (1 - p)),
where p is the probability of the label. A higher score means that membership is more likely. A row that is in no shadow model gets the
offline form of the score.

Sources: Carlini, Chien, Nasr, Song, Terzis, Tramer, S&P 2022 (LiRA); Zarifzadeh, Liu, Shokri, ICML 2024 (RMIA).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedatlas.metrics.quality import Floats

OFFLINE = 0.3  # RMIA's a: how much lower the confidence in a row is that a model was not trained on
SMALLEST = 1e-12  # of deviations and probabilities in a denominator


def confidence(outputs: Tensor, y: Tensor) -> Floats:
    """Return (n,) phi of outputs (n, classes): the label's output minus log-sum-exp of the others."""
    z = outputs.double()
    own = z.gather(1, y[:, None])[:, 0]
    others = torch.logsumexp(z.scatter(1, y[:, None], -torch.inf), 1)
    return (own - others).numpy()


def halves(shadows: int, rows: int, stream: np.random.Generator) -> np.ndarray:
    """Return (shadows, rows) bool: the rows of each shadow model, a random half; each row is in exactly half of the models."""
    return stream.random((shadows, rows)).argsort(0) < shadows // 2


def lira(target: Floats, shadow: Floats, inside: np.ndarray) -> Floats:
    """Return (n,): log N(phi; mu_in, s_in) - log N(phi; mu_out, s_out); offline, (phi - mu_out) / s_out.

    ``target`` (n,), ``shadow`` (shadows, n): phi; ``inside`` (shadows, n): whether the model was trained on the row. Means belong to a
    row. Few models tell little about the deviation of a row, so one deviation is pooled over all rows. The offline score orders rows as
    the paper's probability does, without its rounding to 1.
    """
    outer, s_out = _normal(shadow, ~inside)
    if not inside.any():
        return (target - outer) / s_out
    inner, s_in = _normal(shadow, inside)
    apart, within = (target - outer) / s_out, (target - inner) / s_in
    return apart**2 / 2 - within**2 / 2 + math.log(s_out / s_in)


def _normal(phi: Floats, chosen: np.ndarray) -> tuple[Floats, float]:
    """Return the mean of the chosen models for each row (n,), and the deviation around it over all rows."""
    many = chosen.sum(0)
    mean = np.where(chosen, phi, 0.0).sum(0) / many
    squares = np.where(chosen, (phi - mean) ** 2, 0.0).sum()
    return mean, max(float(np.sqrt(squares / (many - 1).sum())), SMALLEST)


def rmia(
    target: Floats, shadow: Floats, inside: np.ndarray, population: Floats, shadow_population: Floats, among: np.ndarray
) -> Floats:
    """Return (n,): the share of population rows z with (p(x) / p_mean(x)) / (p(z) / p_mean(z)) of at least 1.

    ``target``, ``shadow``, ``inside`` as for `lira`; the last three are the same for the population. The mean is over models with and
    without the row. If no model has the candidates, it is ((1 + a) p_out + 1 - a) / 2 for candidates and population.
    """
    offline = not inside.any()
    ratio = _sigmoid(target) / _evidence(shadow, inside, offline)
    others = np.sort(_sigmoid(population) / _evidence(shadow_population, among, offline))
    below: Floats = np.searchsorted(others, ratio, side="right").astype(np.float64)
    return below / len(others)


def _evidence(phi: Floats, inside: np.ndarray, offline: bool) -> Floats:
    """Return (n,) the mean probability of the label over models trained with and without each row; offline, from those without."""
    p = _sigmoid(phi)
    outer = np.where(inside, 0.0, p).sum(0) / (~inside).sum(0)
    inner = OFFLINE * outer + 1 - OFFLINE if offline else np.where(inside, p, 0.0).sum(0) / inside.sum(0)
    mean: Floats = np.maximum((outer + inner) / 2, SMALLEST)
    return mean


def _sigmoid(x: Floats) -> Floats:
    out: Floats = np.exp(-np.logaddexp(0.0, -x))
    return out
