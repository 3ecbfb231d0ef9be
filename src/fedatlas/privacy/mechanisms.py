"""The builders of the mechanisms of ``[[privacy]]``, by name. `fedatlas list privacy` prints this table.

=================== ============================================================ =======================================
secagg              secure aggregation: the server learns only the sum           P14, Bonawitz et al. 2017
paillier            encryption: clients hold the key, one of them opens the sum  P10, P11
threshold_paillier  encryption under a key of which every client has a share     P17, Damgard and Jurik 2001
bfv                 encryption of whole numbers in rings: a shared key, exact    P12, Fan and Vercauteren 2012
ckks                encryption of real numbers in rings: a shared key            P12, Cheon et al. 2017
two_server          two servers that do not collude hold a share each            P15, Mohassel and Zhang 2017
central_dp          a trusted server clips and adds noise                        P3, McMahan et al. 2018
dp_ftrl             a trusted server adds noise to running sums, by a tree       B16, Kairouz et al. 2021
local_dp            every client adds noise to what it sends                     P4
nbafl               noise at the clients and at the server, as the paper has it  P2, Wei et al. 2020
distributed_dp      noise shared among the clients, under secagg's masks         P16, Agarwal et al. 2021
dp_sgd              noise in every local step, which hides single records        Abadi et al. 2016
rotation            rows rotated by a secret of all clients                      P6, Chen and Liu 2008
additive_noise      noise in the numbers of training rows                        P5, Agrawal and Srikant 2000
randomised_response random classes in training rows                              P4, Warner 1965
anonymise           rows that look alike: k-anonymity, l-diversity, t-closeness  P7, P8, P9
=================== ============================================================ =======================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from fedatlas.privacy.additive_noise.mechanism import additive_noise
from fedatlas.privacy.anonymise.mechanism import anonymise
from fedatlas.privacy.bfv.mechanism import bfv
from fedatlas.privacy.central_dp.mechanism import central_dp
from fedatlas.privacy.ckks.mechanism import ckks
from fedatlas.privacy.distributed_dp.mechanism import distributed_dp
from fedatlas.privacy.dp_ftrl.mechanism import dp_ftrl
from fedatlas.privacy.dp_sgd.mechanism import dp_sgd
from fedatlas.privacy.local_dp.mechanism import local_dp
from fedatlas.privacy.mechanism import Mechanism, on_rows, on_updates
from fedatlas.privacy.nbafl.mechanism import nbafl
from fedatlas.privacy.paillier.mechanism import paillier
from fedatlas.privacy.randomised_response.mechanism import randomised_response
from fedatlas.privacy.rotation.mechanism import rotation
from fedatlas.privacy.secagg.mechanism import secagg
from fedatlas.privacy.threshold_paillier.mechanism import threshold_paillier
from fedatlas.privacy.two_server.mechanism import two_server
from fedatlas.registry import keywords

MECHANISMS: Mapping[str, Callable[..., Mechanism]] = {
    "secagg": secagg,
    "paillier": paillier,
    "two_server": two_server,
    "threshold_paillier": threshold_paillier,
    "bfv": bfv,
    "ckks": ckks,
    "central_dp": central_dp,
    "dp_ftrl": dp_ftrl,
    "local_dp": local_dp,
    "nbafl": nbafl,
    "distributed_dp": distributed_dp,
    "dp_sgd": dp_sgd,
    "rotation": rotation,
    "additive_noise": additive_noise,
    "randomised_response": randomised_response,
    "anonymise": anonymise,
}

MASKS = "secagg"  # hides single updates and changes a result only by rounding


def made(name: str, keys: Mapping[str, Any] | None = None) -> Mechanism:
    """Return the mechanism of a table. A required key that is missing counts as 1, for callers that do not depend on keys."""
    needed = {key: 1.0 for key, p in keywords(MECHANISMS[name]).items() if p.default is p.empty}
    return MECHANISMS[name](**{**needed, **(keys or {})})


def of_table(table: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism of a table of plain values."""
    return made(table["name"], {key: value for key, value in table.items() if key != "name"})


def beside(mechanisms: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    """Return mechanisms in the order in which they are applied, the two of rounds as they work beside each other."""
    used = tuple(sorted(mechanisms, key=lambda one: one.place))
    rounds = on_updates(used)
    if len(rounds) != 2 or rounds[1].name not in rounds[0].under:
        return used
    return *on_rows(used), rounds[0].under[rounds[1].name](*rounds), rounds[1]


def of_tables(tables: Iterable[Mapping[str, Any]]) -> tuple[Mechanism, ...]:
    """Return the mechanisms of some tables as they work beside each other."""
    return beside(map(of_table, tables))


def server_sees(mechanisms: Iterable[Mechanism]) -> Literal["models", "sums", "noisy_sums"]:
    """Return what the server sees of single clients under these mechanisms; "models" also under noise, if it reads single updates."""
    used = tuple(mechanisms)
    if not any(one.sums_only == "wholly" for one in used):
        return "models"
    noised = any(one.noise is not None and one.trust != "server" for one in used)  # before the server sees the sum
    return "noisy_sums" if noised else "sums"


def for_all_rounds(names: Iterable[str]) -> str:
    """Return the first named mechanism with noise calibrated to the number of rounds, which then cannot change; "" if there is none."""
    known = every()
    noises = {name: known[name].noise for name in names if name in known}
    return next((name for name, noise in noises.items() if noise is not None and noise.for_all_rounds), "")


def for_columns() -> dict[str, Mechanism]:
    """Return the mechanisms that protect messages between parties that hold columns."""
    return {name: one for name, one in every().items() if one.limits.columns}


def for_labels() -> dict[str, Mechanism]:
    """Return the mechanisms that change the label of parties that hold columns, under every scheme."""
    return {name: one for name, one in every().items() if one.limits.labels}


def every() -> dict[str, Mechanism]:
    """Return all mechanisms by name, for callers that do not depend on keys."""
    return {name: made(name) for name in MECHANISMS}
