"""Synthetic(alpha, beta) of the FedProx paper (Li et al. 2020): alpha = how models differ, beta = how inputs differ."""

from __future__ import annotations

import numpy as np

from fedatlas.data.dataset import split_of
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.registry import Rate, Whole
from fedatlas.rng import numpy_stream

COLUMNS, CLASSES = 60, 10
TEST_SHARE = 0.1  # of each user's rows, as in the reference code


def load_synthetic(
    request: LoadRequest, *, alpha: Rate = 1.0, beta: Rate = 1.0, users: Whole = 30, iid: bool = False
) -> Loaded:
    """User k: u_k ~ N(0, alpha), W_k ~ N(u_k, 1), b_k ~ N(u_k, 1); B_k ~ N(0, beta), v_k ~ N(B_k, 1).

    x ~ N(v_k, diag(j^-1.2)), j = 1..60; y = argmax(W_k x + b_k), 10 classes; n_k = floor(lognormal(4, 2)) + 50. The second
    argument of N is the standard deviation, as in the reference code; diag() holds variances. A user's last tenth of rows is
    test (rounded down); natural client = user.

    alpha: standard deviation of u_k, around which a user's model is drawn: how much users' models differ.
    beta: standard deviation of B_k, around which a user's inputs lie: how much users' inputs differ.
    users: number of users.
    iid: whether all users have one model and inputs around 0 (one W and b, v = 0), for any alpha and beta.
    """
    sizes = numpy_stream(request.seed, "split", "synthetic", "sizes").lognormal(4, 2, users).astype(np.int64) + 50
    shared = numpy_stream(request.seed, "split", "synthetic", "shared")
    common = (shared.normal(0, 1, (CLASSES, COLUMNS)), shared.normal(0, 1, CLASSES))
    sd = np.arange(1, COLUMNS + 1) ** -0.6  # the square root of the variances j^-1.2
    sides: tuple[list[tuple[np.ndarray, ...]], ...] = ([], [])
    for k, n in enumerate(sizes):
        stream = numpy_stream(request.seed, "split", "synthetic", k)
        u, b_mean = stream.normal(0, alpha), stream.normal(0, beta)
        w, b = common if iid else (stream.normal(u, 1, (CLASSES, COLUMNS)), stream.normal(u, 1, CLASSES))
        v = np.zeros(COLUMNS) if iid else stream.normal(b_mean, 1, COLUMNS)
        x = v + sd * stream.normal(0, 1, (n, COLUMNS))
        y, cut = (x @ w.T + b).argmax(1), n - int(TEST_SHARE * n)
        for side, at in zip(sides, (slice(cut), slice(cut, n)), strict=True):
            side.append((x[at].astype(np.float32), y[at], np.full(len(y[at]), k)))
    names = tuple(f"user {k}" for k in range(users))
    classes = tuple(str(c) for c in range(CLASSES))
    columns = tuple(f"x{j}" for j in range(1, COLUMNS + 1))
    train, test = (split_of(*map(np.concatenate, zip(*side, strict=True))) for side in sides)
    return Loaded(
        train,
        test,
        "classes",
        classes,
        columns,
        client_names=names,
        facts={"alpha": alpha, "beta": beta, "users": users, "iid": iid},
    )
