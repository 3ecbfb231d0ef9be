"""FedMA: Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020, Algorithm 1, with communication, on dense layers and
convolutions (a filter with its bias is the unit; behind the last of them a picture is flattened channel by channel).

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
    {"problem": {"deep": True, "rounds": 5}},
    {"gamma": 7.0, "retrain_lr": 0.5, "retrain_epochs": 3, "averaging": "map", "problem": {"deep": True, "rounds": 4}},
    {"last_epochs": 3, "last_weight_decay": 0.1, "problem": {"rounds": 6}},
    {"problem": {"convolved": True, "rounds": 5}},
    {"gamma": 7.0, "retrain_epochs": 1, "averaging": "map", "problem": {"convolved": True, "rounds": 4}},
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


def averaged(
    v: dict[int, np.ndarray], atom: dict[int, list[int]], mu0: np.ndarray, prior: float
) -> tuple[np.ndarray, list[int]]:
    """The atoms as means of their members, drawn to mu0 by ``prior`` further members; how many each has."""
    count = Counter(name for names in atom.values() for name in names)
    members = [count[i] for i in range(len(count))]
    theta = np.zeros((len(count), len(mu0)))
    for k, names in atom.items():
        for unit, name in enumerate(names):
            theta[name] += v[k][unit]
    for i, n in enumerate(members):
        theta[i] = (theta[i] + prior * mu0) / (n + prior)
    return theta, members


def layers_of(p: Named) -> list[str]:
    """The names of the layers, the last one's last."""
    return [name.removesuffix(".weight") for name in p if name.endswith(".weight")]


def convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, border: int) -> torch.Tensor:
    """Every place of a picture (n, in, h, w), with a border of zeros, under every filter (out, in, a, b)."""
    a, b = weight.shape[2:]
    x = torch.nn.functional.pad(x, (border,) * 4)
    patches = x.unfold(2, a, 1).unfold(3, b, 1)  # (n, in, h', w', a, b)
    return torch.einsum("nihwab,oiab->nohw", patches, weight) + bias[:, None, None]


def loss(p: Named, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    *hidden, last = layers_of(p)
    for at, layer in enumerate(hidden):
        weight, bias = p[f"{layer}.weight"], p[f"{layer}.bias"]
        if weight.dim() == 4:  # four numbers are a picture of 2 x 2; its border is the first layer's
            x = torch.tanh(convolved(x if at else x.reshape(-1, 1, 2, 2), weight, bias, 0 if at else 1))
        else:
            x = torch.tanh(x.flatten(1) @ weight.T + bias)
    logits = x.flatten(1) @ p[f"{last}.weight"].T + p[f"{last}.bias"]
    return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()


def sgd(problem: Problem, p: Named, free: list[str], batches: Any, lr: float, decay: float | None = None) -> Named:
    """Steps on the tensors of the layers ``free`` alone."""
    names = [f"{layer}.{kind}" for layer in free for kind in ("weight", "bias")]
    shapes = [p[name].shape for name in names]
    w, u = torch.cat([p[name].reshape(-1) for name in names]), 0.0

    def named(vector: torch.Tensor) -> Named:
        parts = vector.split([shape.numel() for shape in shapes])
        return {**p, **{name: x.reshape(shape) for name, x, shape in zip(names, parts, shapes, strict=True)}}

    for x, y in batches:
        g = (
            gradient_of(lambda vector, x=x, y=y: loss(named(vector), x, y), w)
            + (problem.weight_decay if decay is None else decay) * w
        )
        u = problem.momentum * u + g
        w = w - lr * u
    return named(w)


def columns(units: list[int], block: int) -> list[int]:
    """Where a layer reads these units of the one before: ``block`` places of a flattened picture each."""
    return [block * unit + place for unit in units for place in range(block)]


def part_of(W: Named, units: dict[str, list[int]]) -> Named:
    """The network of some units of each hidden layer."""
    own, before = {}, None
    for layer in layers_of(W):
        weight, bias = W[f"{layer}.weight"], W[f"{layer}.bias"]
        if before is not None:
            weight = weight[:, columns(units[before], weight.shape[1] // len(W[f"{before}.bias"]))]
        mine = units.get(layer, list(range(len(bias))))
        own |= {f"{layer}.weight": weight[mine], f"{layer}.bias": bias[mine]}
        before = layer
    return own


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
    retrain_lr: float = 1.0,
    last_lr: float = 0.1,
    last_epochs: int = 0,
    last_weight_decay: float | None = None,
) -> dict[str, Any]:
    W = dict(problem.start)
    *hidden, last = layers_of(W)
    size = {layer: len(W[f"{layer}.bias"]) for layer in hidden}
    members = {layer: [0] * size[layer] for layer in hidden}
    mine: dict[int, dict[str, list[int]]] = {}  # those of the last round
    passes = retrain_epochs or problem.epochs
    for number, cohort in problem.rounds():
        w: dict[int, Named] = {}
        for k in cohort:
            popular = {
                layer: sorted(sorted(range(len(n)), key=lambda i, n=n: -n[i])[: size[layer]])
                for layer, n in members.items()
            }
            w[k] = part_of(W, mine.get(k, popular))
            w[k] = sgd(problem, w[k], [*hidden, last], problem.batches(number, k), problem.lr)
        mine, W = {k: {} for k in cohort}, {}
        for at, layer in enumerate(hidden):
            v = {
                k: torch.cat([x[f"{layer}.weight"].flatten(1), x[f"{layer}.bias"][:, None]], 1).numpy()
                for k, x in w.items()
            }
            mu0 = np.append(np.zeros(v[cohort[0]].shape[1] - 1), mu0_bias)
            pi = match(v, sigma2, sigma0_2, mu0, gamma, sweeps, problem.stream("matching", number, at))
            theta, members[layer] = averaged(v, pi, mu0, sigma2 / sigma0_2 if averaging == "map" else 0.0)
            filters = torch.tensor(theta[:, :-1]).reshape(-1, *w[cohort[0]][f"{layer}.weight"].shape[1:])
            W |= {f"{layer}.weight": filters, f"{layer}.bias": torch.tensor(theta[:, -1])}
            later = [*hidden, last][at + 1 :]
            at_last = later == [last]
            rate, times = problem.lr * (last_lr if at_last else retrain_lr), (at_last and last_epochs) or passes
            for k in cohort:
                mine[k][layer] = pi[k]
                inputs = w[k][f"{later[0]}.weight"]
                block = inputs.shape[1] // len(pi[k])
                wide = torch.zeros(len(inputs), len(theta) * block, *inputs.shape[2:], dtype=torch.float64)
                wide[:, columns(pi[k], block)] = inputs
                after = {**w[k], **W, f"{later[0]}.weight": wide}
                rest = problem.batches(number, k, times, (at + 1) * max(problem.epochs, times))
                w[k] = sgd(problem, after, later, rest, rate, last_weight_decay if at_last else None)
        n_kc = {k: torch.bincount(problem.clients[k][1], minlength=3).double() for k in cohort}
        total = sum(n_kc.values())
        share = {k: torch.where(total > 0, n_kc[k] / total.clamp(min=1), 1 / len(cohort)) for k in cohort}
        W[f"{last}.weight"] = sum(share[k][:, None] * w[k][f"{last}.weight"] for k in cohort)
        W[f"{last}.bias"] = sum(share[k] * w[k][f"{last}.bias"] for k in cohort)
    return {"model": torch.cat([W[name].reshape(-1) for name in problem.start])}
