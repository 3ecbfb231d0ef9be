"""Partitioners that ignore classes: IID, random, natural owners, quantity skew, feature skew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedatlas.apportion import proportional
from fedatlas.data.dataset import Partition
from fedatlas.data.partition.common import (
    Ints,
    check_clients,
    check_keys,
    check_range,
    class_pools,
    classes_of,
    finish,
    redraw,
)
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream


def iid(labels: np.ndarray, clients: int, seed: int, *, stratified: bool = False) -> Partition:
    """Every client holds a random sample of the rows; sizes differ by at most one.

    stratified: whether rows are dealt class by class, so that a class's counts differ by at most one as well.

    Source: D1 (McMahan et al. 2017, MNIST as 100 x 600; stratified: S3's EMNIST and Shakespeare).
    """
    check_clients(clients, len(labels))
    rng = numpy_stream(seed, "partition")
    if stratified:
        dealt = np.concatenate(class_pools(classes_of(labels), rng))
        return finish([dealt[k::clients] for k in range(clients)], len(labels))
    return finish(np.array_split(rng.permutation(len(labels)), clients), len(labels))


def random(labels: np.ndarray, clients: int, seed: int, *, multinomial: bool = False) -> Partition:
    """Every row goes to a random client.

    multinomial: whether each row chooses its client by itself, so that sizes vary by chance (mean n/K rows); otherwise sizes
        differ by one row at most, as in iid.

    Source: D2 (S0, "allocation of samples across clients is randomized").
    """
    if not multinomial:
        return iid(labels, clients, seed)
    check_clients(clients, len(labels))
    owner = numpy_stream(seed, "partition").integers(clients, size=len(labels))
    return finish([np.flatnonzero(owner == k) for k in range(clients)], len(labels))


def natural(
    owners: np.ndarray,
    clients: int,
    seed: int,
    *,
    choose: Literal["sample", "first"] = "sample",
    min_rows: int = 1,
    cap: int = 0,
) -> Partition:
    """One client per natural owner of the rows: a person, a writer, a role, a school.

    owners: int64 (n,), the owner of each row. clients: how many owners take part; 0 = all of them.
    What is not kept is counted in ``left_out``; ``info["owners"]`` holds the owner of each client.

    choose: which owners take part where not all do: a seeded sample, or the first by id; clients follow ascending ids.
    min_rows: rows an owner must have to take part.
    cap: rows kept of each owner, a seeded sample; 0 = all.

    Source: D11 (FEMNIST by writer, Shakespeare by role: Caldas et al. 2018, LEAF).
    """
    check_range("min_rows", min_rows, 0, len(owners))
    check_keys(cap=cap)
    ids, counts = np.unique(owners, return_counts=True)
    able = ids[counts >= min_rows]
    if clients < 0 or clients > len(able) or not len(able):
        raise ConfigError(
            f"clients = {clients}, but the data have {len(able)} owners with at least {min_rows} rows "
            "(clients = 0 takes all of them)."
        )
    rng = numpy_stream(seed, "partition")
    if clients and choose == "sample":
        able = rng.permutation(able)
    chosen = np.sort(able[: clients or len(able)])
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], chosen, side="left")
    ends = np.searchsorted(owners[order], chosen, side="right")
    rows = [order[a:b] for a, b in zip(starts, ends, strict=True)]
    if cap:
        rows = [rng.permutation(r)[:cap] for r in rows]
    return finish(rows, len(owners), info={"owners": [int(i) for i in chosen]})


def quantity_skew(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    law: Literal["dirichlet", "lognormal"] = "dirichlet",
    beta: float = 0.5,
    sigma: float = 0.5,
    min_rows: int = 10,
) -> Partition:
    """Clients of very different sizes, each a random sample of the rows.

    Sizes are proportional to a draw of Dir_K(beta), or of lognormal(0, sigma).

    law: what the sizes are drawn from.
    beta: above 0; with law "dirichlet": concentration of the sizes: small = very unequal, large = alike.
    sigma: 0 to 10; with law "lognormal": standard deviation of the logarithm of the sizes; 0 = equal sizes.
    min_rows: rows of the smallest client at least; sizes are redrawn until it has them.

    Source: D12 (Li et al. 2022, NIID-Bench; Acar et al. 2021, FedDyn).
    """
    check_clients(clients, len(labels))
    check_keys(beta=beta, sigma=sigma)
    rng = numpy_stream(seed, "partition")

    def draw() -> Ints:
        share = rng.dirichlet(np.full(clients, beta)) if law == "dirichlet" else rng.lognormal(0.0, sigma, clients)
        return proportional(share, len(labels))

    sizes = redraw(draw, lambda sizes: sizes, min_rows)
    return finish(np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1]), len(labels))


def feature_skew(
    labels: np.ndarray, clients: int, seed: int, *, rotate: Sequence[float] = (), noise: float = 0.1
) -> Partition:
    """An IID partition whose clients see the inputs differently: turned images, noisier measurements.

    The rows themselves are changed by `apply_feature_skew`, from ``Partition.feature_skew``.

    rotate: degrees anticlockwise, -360 to 360; client k takes entry k mod len, so that there are len groups; pictures only.
    noise: 0 or more; standard deviation of Gaussian noise at the last client, in units of the model input; it rises in equal
        steps from none at the first client.

    Source: D12 (rotation: Sattler et al. 2021, CFL; noise: Li et al. 2022, NIID-Bench).
    """
    check_keys(noise=noise, rotate=rotate)
    even = iid(labels, clients, seed)
    steps = np.linspace(0.0, noise, clients) if clients > 1 else np.array([noise])
    angles = [float(rotate[k % len(rotate)]) if rotate else 0.0 for k in range(clients)]
    skew = tuple({"rotate": a, "noise": float(s)} for a, s in zip(angles, steps, strict=True))
    return even._replace(feature_skew=skew)
