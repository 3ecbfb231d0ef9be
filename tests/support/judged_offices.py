"""Offices whose models are right on a known share of test rows, and what is asked of them."""

from __future__ import annotations

import numpy as np

from fedatlas.metrics.resampling import of_mean
from fedatlas.verdict.answer import Asked, PartyEvidence
from fedatlas.verdict.evidence import Evidence

ASKED = Asked("FedAvg", "auc", "AUC", party="office", cost=28_800, trivial="always answering 'no'")
SHARES = ASKED._replace(figure="accuracy", words="accuracy")


def office_rows(k: int, n: int, together: float, alone: float, own: bool = True, seed: int = 0) -> PartyEvidence:
    rng = np.random.default_rng([seed, k])
    hits = {"together": rng.random(n) < together, "alone": rng.random(n) < alone, "trivial": rng.random(n) < 0.3}
    models = {name: of_mean("accuracy", x.astype(float), np.ones(n)) for name, x in hits.items()}
    return PartyEvidence(k, ("Wien", "Tirol", "Lienz")[k], Evidence(n, models, None, hits), own)
