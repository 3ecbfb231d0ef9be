"""Label inference (A7): how many rows of each class a client trained on, from its first update. It only observes.

    g_c = (1 / B) (sum_b p_bc - n_c)        so        n_c = sum_b p_bc - B g_c

======  ==============================================  =====  ===============================================
n_c     rows of class c among the B that were used      p_bc   the model's probability of class c for row b
g       (classes,) gradient of the last bias            C, T   classes, targets
======  ==============================================  =====  ===============================================

The mean of p is estimated by passing noise through the model that the client was sent. A class with a negative
gradient is present in any case, so one row is always found. Of an update of several steps g is the mean of their gradients, each at
another model (`local_steps`), so counts are then only near. A batch smaller than the client's rows is taken for all of them.

A target scores the share of its rows whose label is counted rightly: the counts said and held, their smaller one summed over classes. Its
placebo is the same against other clients, so what all clients have in common is no leak. Few rows agree less with any guess than many,
so two clients are compared by as many rows of each: those of the smaller one.

Source: Wainakh et al., PoPETs 2022 (LLG).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.inversion import NEEDS_CLASSES, ROUNDS, loss_of, no_gradient, too_short
from fedatlas.attacks.local_steps import steps_of
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.successor import FEWEST, WHO, Start, among, colluder, declared, nothing_before, start_of
from fedatlas.attacks.view_attack import Arrays, Knowledge, Picture, Score, Truth, ViewAttack, leak_of, measured
from fedatlas.errors import ConfigError, DataError
from fedatlas.metrics.intervals import Interval, of_means
from fedatlas.metrics.quality import Floats
from fedatlas.registry import Count
from fedatlas.rng import numpy_stream, torch_stream
from fedatlas.tree import Tree

NAME = "label_inference"
PICTURED = 24  # clients shown in the report
NOISE = 1000  # rows of noise whose mean probabilities stand for those of the client's rows
SEVERAL = (
    "A client took up to {:,} local steps. Its update reveals the mean of their gradients, each at another model, so the counts are "
    "approximate: the smaller the local rate, the nearer."
)
FIGURES = {"overlap": "share of rows whose label is counted rightly", "error": "mean absolute error of a class's count"}


def label_inference(*, role: str = "server", targets: Count = 0, start: Start | None = None) -> ViewAttack:
    """Label inference: how many rows of each class did a client train on? Read from the gradient of the last bias.

    n_c = sum_b p_bc - B g_c, with p estimated on noise (Wainakh et al. 2022); exact for one row. Needs the cross entropy and SGD. A7.

    role: the role whose view is attacked: "server", "client:3", "successor:3" or "outsider"; a client and an outsider see only the mean
        of a round.
    targets: number of observed updates to attack, in order of arrival; 0 = all.
    start: for role = "successor:3", the model that client 3 is taken to have begun with: "true" (default; the client before it colludes),
        or "last", the one that the successor received before.
    """
    whose = ViewRole.parse(role, "attack.role")
    keys = {"targets": targets, **start_of(NAME, whose, start)}
    declares = Declaration(
        who=WHO,
        how="passive: it follows the protocol and computes afterwards",
        when="training: the first round",
        where="the updates, read as gradients of the last layer",
        why="labels: how many rows of each class a client trained on",
        knowledge="the network, the local training, how many rows each client trains on",
        budget=f"one pass of {NOISE} rows of noise",
    )
    return ViewAttack(
        NAME,
        "labels",
        whose,
        keys,
        declared(declares, keys),
        answer=lambda known: _answer(known, targets),
        score=lambda truth, answer: _score(truth, answer, whose, targets),
        figures=FIGURES,
        leak="overlap",
        pictures=_pictures,
        thing="client",
        roles=("server", "client", "successor", "outsider"),
        rounds=ROUNDS.get(whose.kind, (0, 2)),
        beside=colluder(whose, keys),
        refuses=lambda config: _unsuited(config, whose) or nothing_before(NAME, config, keys),
        refuses_run=lambda config, rows: _unsuited(config, whose),
        tells=lambda truth: {"sizes": {str(k): n for k, n in truth.sizes.items() if n}},
    )


def _unsuited(config: Any, role: ViewRole) -> str:
    if loss_of(config) not in ("auto", "cross_entropy"):
        return f"attack '{NAME}' {NEEDS_CLASSES}"
    return no_gradient(NAME, config) or too_short(NAME, config, role)


# ---------------------------------------------------------------------- in the attacker's process


def _answer(known: Knowledge, targets: int) -> Arrays:
    """Return client (T,), counts (T, C), which sum to the client's rows, and the most steps of a client (1,).

    ConfigError for a network that does not show labels.
    """
    if known.loss.name != "cross_entropy":
        raise ConfigError(f"attack '{NAME}' {NEEDS_CLASSES}")
    if not known.shape:
        raise ConfigError(f"attack '{NAME}' passes noise through the network, which this one, of words, cannot read.")
    seen = known.gradients(targets)
    sizes = {int(k): n for k, n in known.told["sizes"].items()} | {-1: sum(known.told["sizes"].values())}
    steps = max(steps_of(known.config.local, n) for k, n in sizes.items() if k >= 0)
    x = torch.randn((NOISE, *known.shape), generator=torch_stream(known.seed, "attack", NAME))
    g, p = last_gradients(known.network(known.seed), seen.params, seen.buffers, seen.gradients, known.classes, x)
    found = [
        whole_counts(sizes[k] * (p - one).numpy(), one.numpy(), sizes[k])
        for k, one in zip(seen.clients, g, strict=True)
    ]
    return {"client": np.array(seen.clients), "counts": np.stack(found), "steps": np.array([steps])}


def last_gradients(
    network: nn.Module, params: Tree, buffers: Tree, gradients: Mapping[str, Tensor], classes: int, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return float64 (T, C) gradients of the last bias, and (C,) mean probabilities of the rows ``x`` (n, *shape).

    Without a bias these are the row sums of the last weight's, over the mean sum of its inputs, as far as these are not negative.
    ConfigError for a network that does not end in a dense layer with one output a class.
    """
    dense = [(name, one) for name, one in network.named_modules() if isinstance(one, nn.Linear)]
    if not dense or dense[-1][1].out_features != classes:
        raise ConfigError(f"attack '{NAME}' needs a network that ends in a dense layer with one output per class.")
    (name, head), inputs = dense[-1], list[Tensor]()
    watch = head.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    with torch.inference_mode():
        p = torch.softmax(functional_call(network, {**params, **buffers}, (x,)).double(), 1).mean(0)
    watch.remove()
    at = f"{name}." if name else ""
    if f"{at}bias" in gradients:
        return gradients[f"{at}bias"].double(), p
    return gradients[f"{at}weight"].double().sum(2) / inputs[0].double().sum(1).mean().clamp_min(1e-12), p


def whole_counts(estimate: Floats, gradient: Floats, rows: int) -> np.ndarray:
    """Return (C,) whole numbers that sum to ``rows``, as near to the estimates as can be; classes of negative gradient come first."""
    estimate = np.nan_to_num(estimate)
    order = np.argsort(gradient, kind="stable")[:rows]
    counts = np.zeros(len(estimate), dtype=np.int64)
    counts[order[gradient[order] < 0]] = 1
    for _ in range(rows - int(counts.sum())):
        counts[np.argmax(estimate - counts)] += 1
    return counts


# ---------------------------------------------------------------------- scored by a holder of the data


def _score(truth: Truth, answer: Arrays, role: ViewRole, targets: int) -> Score:
    """Score the answer. The mean seen by a client or outsider stands for each that trained in round 1 but the attacker."""
    seen = [int(k) for k in answer["client"]]
    clients = seen if seen[0] >= 0 else [k for k in truth.trained if k != role.client][: targets or None]
    if role.kind == "successor":
        clients += [k for k, n in sorted(truth.sizes.items()) if n and k not in seen]
    held = np.stack([np.bincount(truth.rows(k).y.numpy(), minlength=truth.classes) for k in clients])
    if role.kind == "successor":
        score = scored_alone(answer["counts"][0], held, clients[0], truth.seed)
    else:
        score = scored(np.broadcast_to(answer["counts"], held.shape), held, clients, truth.seed)
    steps = int(answer["steps"][0])
    return score._replace(notes=[SEVERAL.format(steps)] if steps > 1 else [])


def overlap(said: Floats, held: Floats) -> Floats:
    """Return the sum over classes (last axis) of the smaller of two shares."""
    return np.asarray(np.minimum(said, held).sum(-1))


def error(said: Floats, held: Floats) -> Floats:
    """Return the mean over classes (last axis) of the difference of two shares."""
    return np.asarray(np.abs(said - held).mean(-1))


def scored_alone(said: np.ndarray, held: np.ndarray, client: int, seed: int) -> Score:
    """Return the figures of the counts said (C,) of one client, whose own counts are the first of ``held`` (K, C).

    All are compared by as many rows: the client's, or fewer, if fewer than `FEWEST` others have as many. Others with less are left out.
    """
    rows, a = held.sum(1), said / said.sum()
    most = np.sort(rows[1:])[::-1][:FEWEST]
    few = min(int(rows[0]), *map(int, most[-1:]))
    shares = thinned(held[rows >= few], few, seed) / few
    own = {"overlap": overlap(a, held[0] / rows[0]), "error": error(a, held[0] / rows[0]) * rows[0]}
    (agree, *chance), (wrong, *far) = overlap(a, shares), error(a, shares) * rows[0]
    above = {"overlap": (agree, chance), "error": (wrong, far)}
    metrics = {
        name: measured(
            Interval(float(own[name]), None, None, 0.95),
            float(own[name] - x + np.mean(others)) if others else None,
        )
        for name, (x, others) in above.items()
    }
    arrays = {"client": np.array([client]), "counts": said[None], "held": held[:1], "overlap": own["overlap"][None]}
    return Score(metrics, {"overlap": among(float(agree), np.array(chance))}, 1, arrays)


def scored(said: np.ndarray, held: np.ndarray, clients: list[int], seed: int) -> Score:
    """Return the figures of counts said and held (T, C). DataError for a single client, which has no others as its placebo."""
    many = len(clients)
    if many < 2:
        raise DataError("the placebo compares with other clients: at least two must have trained in round 1.")
    rows = held.sum(1)
    a, b = said / said.sum(1, keepdims=True), held / rows[:, None]
    own, wrong = overlap(a, b), error(a, b) * rows
    chance = own - gained(overlap, a, held, seed)
    far = wrong - gained(error, a, held, seed) * rows
    means = of_means(np.stack([own, wrong]), np.ones(many), seed, "attack")
    metrics = {"overlap": measured(means[0], float(chance.mean())), "error": measured(means[1], float(far.mean()))}
    arrays = {"client": np.array(clients), "counts": said, "held": held, "overlap": own, "placebo": chance}
    arrays["mean"] = np.array([*means[0][:3], chance.mean()])
    return Score(metrics, {"overlap": leak_of(own, chance)}, many, arrays)


def _pictures(arrays: Arrays) -> list[Picture]:
    """Return the share of rows counted rightly of all clients, with its interval, and of each, beside the placebo."""
    if "placebo" not in arrays:
        return []  # an answer without a score
    value, low, high, chance = arrays["mean"].tolist()
    each = list(zip(arrays["client"].tolist(), arrays["overlap"].tolist(), arrays["placebo"].tolist(), strict=True))
    shown = [("all", "attack", value, low, high), ("all", "placebo", chance, None, None)]
    for k, own, other in each[:PICTURED]:
        shown += [(f"{k}", "attack", own, None, None), (f"{k}", "placebo", other, None, None)]
    how = (
        "The share of a client's rows whose class the attacker counts rightly, and the placebo, the same guess held against other clients. "
        "The line is the interval over clients. Where the two lie together, the guess tells nothing of this client in particular."
    )
    title, axes = "Rows whose class is counted rightly", ("client", "Share of its rows")
    return [Picture("dots", "counted", title, title, how, ("client", "attack", "placebo"), each, axes, shown)]


def gained(figure: Callable[[Floats, Floats], Floats], said: Floats, held: np.ndarray, seed: int) -> Floats:
    """Return (T,) by how much the shares said (T, C) fit a client's rows better than those of another, as a mean over the others.

    ``held`` (T, C) are counts. Of each pair of clients as many rows count, those of the smaller, drawn once for both.
    """
    rows, total = held.sum(1), np.zeros(len(held))
    for few in np.unique(rows):
        these = np.flatnonzero(rows >= few)
        a, b, least = said[these], thinned(held[these], int(few), seed) / few, rows[these] == few
        own = figure(a, b)
        total[these] += (own[:, None] - figure(a[:, None], b[least])).sum(1)
        total[these[least]] += (own[least, None] - figure(a[least, None], b[~least])).sum(1)
    return total / (len(held) - 1)


def thinned(held: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """Return the counts (K, C) of so many rows of each client, drawn from those that it holds (K, C)."""
    stream = numpy_stream(seed, "attack", NAME, rows)
    return np.stack([stream.multivariate_hypergeometric(one, rows) if one.sum() > rows else one for one in held])
