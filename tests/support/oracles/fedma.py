"""FedMA: Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020, Algorithm 1, with communication, on dense layers,
convolutions (a filter with its bias is the unit; behind the last of them a picture is flattened channel by channel) and an LSTM.

Everywhere but in the problem itself a layer's tensors have its units first and its inputs second: an LSTM's weights are (units, inputs, 4
gates), its biases (units, 2 x 4 gates), and ``own`` (units, units, 4 gates) are the weights from hidden state to hidden state.

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
    {"averaging": "map", "sigma2": 0.07, "sigma0_2": 2.1, "problem": {"rounds": 8}},
    {"gamma": 7.0, "sweeps": 1, "retrain_epochs": 1, "last_lr": 0.5, "problem": {"rounds": 8}},
    {"sigma2": 0.05, "sigma0_2": 4.0, "problem": {"momentum": 0.9, "m": 5, "lr": 0.02, "rounds": 6}},
    {"problem": {"deep": True, "rounds": 5}},
    {"gamma": 7.0, "retrain_lr": 0.5, "retrain_epochs": 3, "averaging": "map", "problem": {"deep": True, "rounds": 4}},
    {"last_epochs": 3, "last_weight_decay": 0.1, "problem": {"rounds": 6, "decay": 0.9}},
    {"problem": {"epochs": 3, "stragglers": True, "rounds": 6}},
    {"retrain_epochs": 2, "problem": {"deep": True, "epochs": 3, "stragglers": True, "rounds": 4}},
    {"problem": {"convolved": True, "rounds": 5}},
    {"gamma": 7.0, "retrain_epochs": 1, "averaging": "map", "problem": {"convolved": True, "rounds": 4}},
    {"problem": {"recurrent": True, "rounds": 5}},
    {"gamma": 7.0, "sigma0_2": 4.0, "averaging": "map", "problem": {"recurrent": True, "rounds": 4, "m": 5}},
]
KINDS = ("weight", "bias", "own")


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


def units_first(start: Named) -> Named:
    """The problem's tensors with the units first; torch has an LSTM's gates one after another."""
    out: Named = {}
    for name, x in start.items():
        layer, _, kind = name.rpartition(".")
        if not kind.endswith("_l0"):
            out[name] = x
            continue
        gates = x.reshape(4, len(x) // 4, *x.shape[1:]).movedim(0, -1)
        if kind.startswith("weight"):
            out[f"{layer}.{'weight' if 'ih' in kind else 'own'}"] = gates
        else:
            both = [out[f"{layer}.bias"]] if f"{layer}.bias" in out else []
            out[f"{layer}.bias"] = torch.cat([*both, gates], 1)
    return out


def as_given(p: Named, start: Named) -> list[torch.Tensor]:
    """The inverse, in the order of the problem's tensors."""
    out = []
    for name in start:
        layer, _, kind = name.rpartition(".")
        if not kind.endswith("_l0"):
            out.append(p[name])
            continue
        found = p[f"{layer}.{'bias' if 'bias' in kind else 'weight' if 'ih' in kind else 'own'}"]
        if "bias" in kind:
            found = found[:, :4] if "ih" in kind else found[:, 4:]
        out.append(found.movedim(-1, 0).flatten(0, 1))
    return out


def layers_of(p: Named) -> list[str]:
    """The names of the layers, the last one's last."""
    return [name.removesuffix(".weight") for name in p if name.endswith(".weight")]


def convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, border: int) -> torch.Tensor:
    """Every place of a picture (n, in, h, w), with a border of zeros, under every filter (out, in, a, b)."""
    a, b = weight.shape[2:]
    x = torch.nn.functional.pad(x, (border,) * 4)
    patches = x.unfold(2, a, 1).unfold(3, b, 1)  # (n, in, h', w', a, b)
    return torch.einsum("nihwab,oiab->nohw", patches, weight) + bias[:, None, None]


def last_state(x: torch.Tensor, p: Named, layer: str) -> torch.Tensor:
    """An LSTM's hidden state behind the last of the steps x (n, steps, inputs)."""
    weight, own, bias = p[f"{layer}.weight"], p[f"{layer}.own"], p[f"{layer}.bias"]
    h = c = torch.zeros(len(x), len(weight), dtype=x.dtype)
    for step in x.unbind(1):
        gates = torch.einsum("ni,uig->nug", step, weight) + torch.einsum("nv,uvg->nug", h, own)
        i, f, g, o = (gates + bias[:, :4] + bias[:, 4:]).unbind(2)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h


def loss(p: Named, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    *hidden, last = layers_of(p)
    for at, layer in enumerate(hidden):
        weight, bias = p[f"{layer}.weight"], p[f"{layer}.bias"]
        if weight.dim() == 4:  # four numbers are a picture of 2 x 2; its border is the first layer's
            x = torch.tanh(convolved(x if at else x.reshape(-1, 1, 2, 2), weight, bias, 0 if at else 1))
        elif weight.dim() == 3:  # or two steps of two numbers
            x = last_state(x.reshape(-1, 2, 2), p, layer)
        else:
            x = torch.tanh(x.flatten(1) @ weight.T + bias)
    logits = x.flatten(1) @ p[f"{last}.weight"].T + p[f"{last}.bias"]
    return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()


def sgd(problem: Problem, p: Named, free: list[str], batches: Any, lr: float, decay: float | None = None) -> Named:
    """Steps on the tensors of the layers ``free`` alone."""
    names = [f"{layer}.{kind}" for layer in free for kind in KINDS if f"{layer}.{kind}" in p]
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
        if f"{layer}.own" in W:
            own[f"{layer}.own"] = W[f"{layer}.own"][mine][:, mine]
        before = layer
    return own


def vectors(p: Named, layer: str) -> np.ndarray:
    """What tells a layer's units apart: incoming weights, then biases."""
    return torch.cat(
        [p[f"{layer}.weight"].flatten(1), p[f"{layer}.bias"].reshape(len(p[f"{layer}.bias"]), -1)], 1
    ).numpy()


def matched_layer(
    w: dict[int, Named], layer: str, pi: dict[int, list[int]], theta: np.ndarray, members: list[int]
) -> Named:
    """The global layer from its units' vectors; weights from hidden to hidden are renamed on both sides and averaged over members."""
    one = next(iter(w.values()))
    weight, bias = one[f"{layer}.weight"], one[f"{layer}.bias"]
    at, G = weight[0].numel(), len(theta)
    found = torch.tensor(theta)
    out = {
        f"{layer}.weight": found[:, :at].reshape(G, *weight.shape[1:]),
        f"{layer}.bias": found[:, at:].reshape(G, *bias.shape[1:]),
    }
    if f"{layer}.own" in one:
        total = torch.zeros(G, G, 4, dtype=torch.float64)
        for k, names in pi.items():
            for u, unit in enumerate(names):
                for v, other in enumerate(names):
                    total[unit, other] += w[k][f"{layer}.own"][u, v]
        out[f"{layer}.own"] = total / torch.tensor(members)[:, None, None]
    return out


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
    W = units_first(problem.start)
    *hidden, last = layers_of(W)
    size = {layer: len(W[f"{layer}.bias"]) for layer in hidden}
    members = {layer: [0] * size[layer] for layer in hidden}
    mine: dict[int, dict[str, list[int]]] = {}  # those of the last round
    for number, cohort in problem.rounds():
        w: dict[int, Named] = {}
        for k in cohort:
            popular = {
                layer: sorted(sorted(range(len(n)), key=lambda i, n=n: -n[i])[: size[layer]])
                for layer, n in members.items()
            }
            w[k] = part_of(W, mine.get(k, popular))
            w[k] = sgd(problem, w[k], [*hidden, last], problem.batches(number, k), problem.rate(number))
        mine, W = {k: {} for k in cohort}, {}
        for at, layer in enumerate(hidden):
            v = {k: vectors(x, layer) for k, x in w.items()}
            mu0 = np.full(v[cohort[0]].shape[1], mu0_bias)
            mu0[: w[cohort[0]][f"{layer}.weight"][0].numel()] = 0.0
            pi = match(v, sigma2, sigma0_2, mu0, gamma, sweeps, problem.stream("matching", number, at))
            theta, members[layer] = averaged(v, pi, mu0, sigma2 / sigma0_2 if averaging == "map" else 0.0)
            W |= matched_layer(w, layer, pi, theta, members[layer])
            later = [*hidden, last][at + 1 :]
            at_last = later == [last]
            rate = problem.rate(number) * (last_lr if at_last else retrain_lr)
            for k in cohort:
                mine[k][layer] = pi[k]
                inputs = w[k][f"{later[0]}.weight"]
                block = inputs.shape[1] // len(pi[k])
                wide = torch.zeros(len(inputs), len(theta) * block, *inputs.shape[2:], dtype=torch.float64)
                wide[:, columns(pi[k], block)] = inputs
                after = {**w[k], **W, f"{later[0]}.weight": wide}
                own = problem.epochs_of(number, k)
                times = (at_last and last_epochs) or retrain_epochs or own
                rest = problem.batches(number, k, times, (at + 1) * max(own, times))
                w[k] = sgd(problem, after, later, rest, rate, last_weight_decay if at_last else None)
        n_kc = {k: torch.bincount(problem.clients[k][1], minlength=3).double() for k in cohort}
        total = sum(n_kc.values())
        share = {k: torch.where(total > 0, n_kc[k] / total.clamp(min=1), 1 / len(cohort)) for k in cohort}
        W[f"{last}.weight"] = sum(share[k][:, None] * w[k][f"{last}.weight"] for k in cohort)
        W[f"{last}.bias"] = sum(share[k] * w[k][f"{last}.bias"] for k in cohort)
    return {"model": torch.cat([x.reshape(-1) for x in as_given(W, problem.start)])}
