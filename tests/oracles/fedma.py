"""FedMA: Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020, Algorithm 1, with communication, on one hidden layer.

Matching as in Yurochkin et al., ICML 2019 (PFNM): the gain of putting a neuron into an atom is twice the change of
log N(members | theta) N(theta | mu0, sigma0^2) maximised over theta, plus the beta-Bernoulli prior's log odds. It is computed here from
that, with the maximum over theta put in, not from the closed difference of squares; terms that are the same for all atoms cancel.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from oracles.problem import Named, Problem, gradient_of

CASES: list[dict[str, Any]] = [
    {},
    {"averaging": "map", "sigma2": 0.5, "sigma0_2": 2.0, "mu0_bias": 0.0, "problem": {"rounds": 8}},
    {"gamma": 7.0, "sweeps": 1, "retrain_epochs": 1, "last_lr": 0.5, "problem": {"rounds": 8}},
    {"sigma2": 0.05, "sigma0_2": 4.0, "problem": {"momentum": 0.9, "m": 5, "lr": 0.02, "rounds": 6}},
]


def fit(members: list[np.ndarray], s: float, s0: float, mu0: np.ndarray) -> float:
    """The largest value over theta of - sum |v - theta|^2 / s - |theta - mu0|^2 / s0."""
    held = np.stack(members)
    theta = (mu0 / s0 + held.sum(0) / s) / (1 / s0 + len(held) / s)
    return float(-((held - theta) ** 2).sum() / s - ((theta - mu0) ** 2).sum() / s0)


def rematch(
    k: int, v: dict[int, np.ndarray], atom: dict[int, list[int]], s: float, s0: float, mu0: np.ndarray, gamma: float
) -> list[int]:
    """The atoms of client k's neurons, given everybody else's."""
    J = len(v)
    held: dict[int, list[np.ndarray]] = {}
    for j, theirs in atom.items():
        for unit, name in enumerate(theirs):
            if j != k:
                held.setdefault(name, []).append(v[j][unit])
    names, L = sorted(held), len(v[k])
    before = [fit(held[name], s, s0, mu0) for name in names]
    gain = np.zeros((L, len(names) + L))
    for unit, x in enumerate(v[k]):
        alone = -(x**2).sum() / s  # what an atom's energy has of x whatever theta is
        for at, name in enumerate(names):
            n = len(held[name])
            better = fit([*held[name], x], s, s0, mu0) - before[at]
            gain[unit, at] = better - alone + 2 * np.log(n / (J - n))
        new = fit([x], s, s0, mu0) - alone
        for r in range(1, L + 1):
            gain[unit, len(names) + r - 1] = new - 2 * np.log(r) + 2 * np.log(gamma / J)
    chosen = linear_sum_assignment(-gain)[1]
    fresh = iter(range(max(names, default=-1) + 1, max(names, default=-1) + 1 + L))
    return [names[at] if at < len(names) else next(fresh) for at in chosen]


def first_seen(atom: dict[int, list[int]]) -> dict[int, list[int]]:
    number: dict[int, int] = {}
    for k in sorted(atom):
        for name in atom[k]:
            number.setdefault(name, len(number))
    return {k: [number[name] for name in names] for k, names in atom.items()}


def match(
    v: dict[int, np.ndarray], s: float, s0: float, mu0: np.ndarray, gamma: float, sweeps: int, rng: np.random.Generator
) -> dict[int, list[int]]:
    atom: dict[int, list[int]] = {}
    for k in sorted(v):
        atom[k] = rematch(k, v, atom, s, s0, mu0, gamma)
    for _ in range(sweeps):
        for place in rng.permutation(len(v)):
            k = sorted(v)[place]
            atom[k] = rematch(k, v, atom, s, s0, mu0, gamma)
        atom = first_seen(atom)
    return first_seen(atom)


def loss(p: Named, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = torch.tanh(x @ p["hidden.weight"].T + p["hidden.bias"]) @ p["head.weight"].T + p["head.bias"]
    return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()


def sgd(problem: Problem, p: Named, free: list[str], batches: Any, lr: float) -> Named:
    """Steps on the named tensors alone."""
    shapes = [p[name].shape for name in free]
    w, u = torch.cat([p[name].reshape(-1) for name in free]), 0.0

    def named(vector: torch.Tensor) -> Named:
        parts = vector.split([shape.numel() for shape in shapes])
        return {**p, **{name: x.reshape(shape) for name, x, shape in zip(free, parts, shapes, strict=True)}}

    for x, y in batches:
        g = gradient_of(lambda vector, x=x, y=y: loss(named(vector), x, y), w) + problem.weight_decay * w
        u = problem.momentum * u + g
        w = w - lr * u
    return named(w)


def run(
    problem: Problem,
    *,
    sigma2: float = 1.0,
    sigma0_2: float = 1.0,
    gamma: float = 1.0,
    mu0_bias: float = 0.1,
    sweeps: int = 5,
    averaging: str = "mean",
    retrain_epochs: int = 0,
    last_lr: float = 0.1,
) -> dict[str, Any]:
    W = problem.start
    L = len(W["hidden.bias"])
    mine: dict[int, list[int]] = {}  # those of the last round
    members = [0] * L
    mu0 = np.append(np.zeros(W["hidden.weight"].shape[1]), mu0_bias)
    for number, cohort in problem.rounds():
        local, v = {}, {}
        for k in cohort:
            popular = sorted(sorted(range(len(members)), key=lambda i: -members[i])[:L])
            units = mine.get(k, popular)
            own = {
                "hidden.weight": W["hidden.weight"][units],
                "hidden.bias": W["hidden.bias"][units],
                "head.weight": W["head.weight"][:, units],
                "head.bias": W["head.bias"],
            }
            local[k] = sgd(problem, own, list(own), problem.batches(number, k), problem.lr)
            v[k] = torch.cat([local[k]["hidden.weight"], local[k]["hidden.bias"][:, None]], 1).numpy()
        mine = match(v, sigma2, sigma0_2, mu0, gamma, sweeps, problem.stream("matching", number, 0))
        G = 1 + max(max(names) for names in mine.values())
        count = Counter(name for names in mine.values() for name in names)
        members = [count[i] for i in range(G)]
        theta = np.zeros((G, len(mu0)))
        for k, names in mine.items():
            for unit, name in enumerate(names):
                theta[name] += v[k][unit]
        for i in range(G):
            prior = sigma2 / sigma0_2 if averaging == "map" else 0.0
            theta[i] = (theta[i] + prior * mu0) / (members[i] + prior)
        W = {"hidden.weight": torch.tensor(theta[:, :-1]), "hidden.bias": torch.tensor(theta[:, -1])}
        n_kc = {k: torch.bincount(problem.clients[k][1], minlength=3).double() for k in cohort}
        total = sum(n_kc.values())
        head, bias = torch.zeros(3, G, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for k in cohort:
            wide = torch.zeros(3, G, dtype=torch.float64)
            wide[:, mine[k]] = local[k]["head.weight"]
            after = {**W, "head.weight": wide, "head.bias": local[k]["head.bias"]}
            passes = retrain_epochs or problem.epochs
            rest = problem.batches(number, k, passes, problem.epochs)
            done = sgd(problem, after, ["head.weight", "head.bias"], rest, last_lr * problem.lr)
            share = torch.where(total > 0, n_kc[k] / total.clamp(min=1), 1 / len(cohort))
            head, bias = head + share[:, None] * done["head.weight"], bias + share * done["head.bias"]
        W = {**W, "head.weight": head, "head.bias": bias}
    return {"model": torch.cat([W[name].reshape(-1) for name in problem.start])}
