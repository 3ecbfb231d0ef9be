"""The builders of the mechanisms of ``[[privacy]]``, by name. `fedatlas list privacy` prints this table.

================== ============================================================ ==================================================
secagg             secure aggregation: the server learns only the sum           P14, Bonawitz et al. 2017
paillier           encryption: clients hold the key, one of them opens the sum  P10, P11
central_dp         a trusted server clips and adds noise                        P3, McMahan et al. 2018
local_dp           every client adds noise to what it sends                     P4
nbafl              noise at the clients and at the server, as the paper has it  P2, Wei et al. 2020
rotation           rows rotated by a secret of all clients                      P6, Chen and Liu 2008
additive_noise     noise in the numbers of training rows                        P5, Agrawal and Srikant 2000
randomised_response random classes in training rows                      P4, Warner 1965
anonymise          rows that look alike: k-anonymity, l-diversity, t-closeness  P7, P8, P9
================== ============================================================ ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from fedatlas.privacy.additive_noise.mechanism import additive_noise
from fedatlas.privacy.anonymise.mechanism import anonymise
from fedatlas.privacy.central_dp.mechanism import central_dp
from fedatlas.privacy.local_dp.mechanism import local_dp
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.nbafl.mechanism import nbafl
from fedatlas.privacy.paillier.mechanism import paillier
from fedatlas.privacy.randomised_response.mechanism import randomised_response
from fedatlas.privacy.rotation.mechanism import rotation
from fedatlas.privacy.secagg.mechanism import secagg
from fedatlas.registry import keywords

MECHANISMS: Mapping[str, Callable[..., Mechanism]] = {
    "secagg": secagg,
    "paillier": paillier,
    "central_dp": central_dp,
    "local_dp": local_dp,
    "nbafl": nbafl,
    "rotation": rotation,
    "additive_noise": additive_noise,
    "randomised_response": randomised_response,
    "anonymise": anonymise,
}

MASKS = "secagg"  # hides single updates and changes a result only by rounding
LATER = (
    "threshold_paillier",
    "bfv",
    "ckks",
    "dp_ftrl",
    "dp_sgd",
    "distributed_dp",
)
"""Planned mechanisms that this version refuses as not yet available."""


def made(name: str, keys: Mapping[str, Any] | None = None) -> Mechanism:
    """Return the mechanism of a table. A required key that is missing counts as 1, for callers that do not depend on keys."""
    needed = {key: 1.0 for key, p in keywords(MECHANISMS[name]).items() if p.default is p.empty}
    return MECHANISMS[name](**{**needed, **(keys or {})})


def of_table(table: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism of a table of plain values."""
    return made(table["name"], {key: value for key, value in table.items() if key != "name"})


def server_sees(mechanisms: Iterable[Mechanism]) -> Literal["models", "sums", "noisy_sums"]:
    """Return what the server sees of single clients under these mechanisms; "models" also under noise, if it reads single updates."""
    used = tuple(mechanisms)
    if not any(one.sums_only == "wholly" for one in used):
        return "models"
    return "noisy_sums" if any(one.noise is not None for one in used) else "sums"


def for_all_rounds(names: Iterable[str]) -> str:
    """Return the first named mechanism with noise calibrated to the number of rounds, which then cannot change; "" if there is none."""
    known = every()
    noises = {name: known[name].noise for name in names if name in known}
    return next((name for name, noise in noises.items() if noise is not None and noise.for_all_rounds), "")


def for_columns() -> dict[str, Mechanism]:
    """Return the mechanisms that support parties that hold columns."""
    return {name: one for name, one in every().items() if one.limits.columns}


def every() -> dict[str, Mechanism]:
    """Return all mechanisms by name, for callers that do not depend on keys."""
    return {name: made(name) for name in MECHANISMS}
