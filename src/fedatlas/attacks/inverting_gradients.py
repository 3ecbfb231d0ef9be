"""Inverting gradients (A10), and its multi-step form: all rows of a client from the update of several local steps.

    min_X  1 - <D(X), d> / (|D(X)| |d|) + lambda TV(X)

======  ================================================  ======  ============================================
X       the rows that the steps take, sought together     d       mean gradient of the client's steps (`local_steps`)
D(X)    the mean of the same steps on X, unrolled       n, T    rows of a client, targets (clients)
======  ================================================  ======  ============================================

With one step on one row D is the gradient. Otherwise the attacker unrolls the local training of the experiment file. Which row
stands in which batch is unknown: it takes the rows in turn, in the same order in every pass (the original's form). With
``batches = "known"`` it draws the order from the experiment's seed, as the client does. Labels are counted from the last bias (A7) or
given. Unless batches are known, too, each restart draws which label stands where.

role: the role whose view is attacked: "server", "client:3", "successor:3" or "outsider"; of several steps or rows only the server's.
targets: number of observed clients to attack, in order of arrival; 0 = all.
start: for role = "successor:3", the model that client 3 is taken to have begun with: "true" (default; the client before it colludes), or
    "last", the one that the successor received before.

Source: Geiping, Bauermeister, Droege, Moeller, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.algorithm import Budget
from fedatlas.attacks.gradient_matching import LocalSteps, invert
from fedatlas.attacks.inversion import (
    BASIC,
    answered,
    inversion,
    is_gradient,
    last_bias_labels,
    no_gradient,
    posed,
    stacks,
    taken,
    too_short,
)
from fedatlas.attacks.label_inference import NOISE, last_gradients, whole_counts
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.successor import Start, nothing_before, start_of
from fedatlas.attacks.view_attack import Arrays, Knowledge, Truth, ViewAttack, ViewGradients
from fedatlas.data.batches import Draw, Rows, batches
from fedatlas.errors import ConfigError
from fedatlas.registry import Count, Positive, Rate, Whole
from fedatlas.rng import torch_stream

NAME = "inverting_gradients"
MOST = 16  # local steps that are unrolled, and rows of a client
PLAIN = ("fedsgd", "fedavg", "fedavgm", "hwfedavg", "nwfedavg", "fedadagrad", "fedadam", "fedyogi")
"""Algorithms whose clients send what plain local steps from the server's model make of it."""


def inverting_gradients(
    *,
    role: str = "server",
    targets: Count = 64,
    iterations: Whole = 2400,
    restarts: Whole = 1,
    tv: Rate = 1e-4,
    lr: Positive = 0.1,
    labels: Literal["inferred", "known"] = "inferred",
    batches: Literal["unknown", "known"] = "unknown",
    start: Start | None = None,
) -> ViewAttack:
    """Inverting gradients (Geiping et al. 2020): find the rows whose update has the direction of the observed one.

    min_x 1 - cos(update(x), g) + tv TV(x), by Adam on the signs of its slope, all targets in one stack. Several local steps, and
    steps on several rows, are unrolled. A10.

    iterations: steps of Adam; the rate falls to a tenth after 3, 5 and 7 eighths of them.
    restarts: random starts for each target; the one of least cost counts.
    tv: weight of the total variation, which favours smooth pictures.
    lr: rate of Adam in pixels, where 1 is the range from black to white.
    labels: whether labels are inferred from the gradient of the last bias (A7), or given to the attacker.
    batches: whether the attacker takes rows in turn, in the same order in every pass, or draws their order from the experiment's seed.
    """
    how = {"iterations": iterations, "restarts": restarts, "tv": tv, "lr": lr}
    whose = ViewRole.parse(role, "attack.role")
    keys = {"targets": targets, **how, "labels": labels, "batches": batches, **start_of(NAME, whose, start)}
    told = f"{BASIC}; of several steps or rows the local training and how many rows a client has; the range of a pixel"
    told += (", the labels" if labels == "known" else "") + (", which rows a step takes" if batches == "known" else "")
    return inversion(
        NAME,
        whose,
        keys,
        told,
        answer=lambda known: _answer(known, keys, how),
        refuses=lambda config: (
            too_short(NAME, config, whose) or _refusal(config, (), whose) or nothing_before(NAME, config, keys)
        ),
        refuses_run=lambda config, rows: _refusal(config, rows, whose),
        tells=_labels_held if labels == "known" else None,
        sized=True,
    )


def _labels_held(truth: Truth) -> dict[str, Any]:
    return {"labels": {str(k): truth.rows(k).y.tolist() for k, n in truth.sizes.items() if n}}


def _refusal(config: Any, rows: Sequence[int], role: ViewRole) -> str:
    """Return why updates of clients with so many rows each cannot be unrolled; "" if they can, or are gradients of one row."""
    local, name = config.local, config.algorithm.name
    if is_gradient(local, rows):
        return no_gradient(NAME, config, scale_free=True)
    begin = f"attack '{NAME}' on several local steps or rows"
    if role.kind != "server":
        return f'{begin} needs what single clients send to the server: set role = "server", or one step on one row per client.'
    if name not in PLAIN:
        return f"{begin} unrolls plain local steps, and '{name}' trains in another way: use one of {', '.join(PLAIN)}."
    if local.optimizer != "sgd" or local.nesterov or local.clip or config.data.augment != "none":
        return f"{begin} unrolls SGD on unchanged rows: remove optimizer, nesterov and clip under [local], augment under [data]."
    steps = max((len(places_of(local, n, None)) for n in {*rows}), default=local.steps or local.epochs)
    if steps > MOST:
        return f"{begin} unrolls at most {MOST} steps, and a client here takes {steps}: lower epochs or steps under [local]."
    if max(rows, default=0) > MOST:
        return f"{begin} seeks at most {MOST} rows of a client, and one here has {max(rows)}: use more clients, or set data.limit."
    return ""


# ---------------------------------------------------------------------- in the attacker's process


def _answer(known: Knowledge, keys: dict[str, Any], how: dict[str, Any]) -> Arrays:
    """Return client (R,), x (R, *shape) in pixels from 0 to 1, label (R,), cost (R,) of R rows: the best of each target's restarts."""
    seen, problem, g = posed(known, keys["targets"])
    sizes = {int(k): n for k, n in known.told["sizes"].items()} | {-1: 1}
    rng = torch_stream(known.seed, "attack", NAME)
    if is_gradient(known.config.local, [sizes[k] for k in seen.clients]):
        labels = _labels_of_one(known, seen)
        parts = stacks(len(labels), problem.params.size() * how["restarts"])
        return answered(seen.clients, [invert(problem, taken(g, part), labels[part], rng, **how) for part in parts])
    if any(isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d) for one in problem.module.modules()):
        raise ConfigError(
            f"attack '{NAME}' unrolls no batch norm, whose statistics change with each batch: choose another model.norm."
        )
    found: dict[int, dict[str, np.ndarray]] = {}
    for n in sorted({sizes[k] for k in seen.clients}):
        alike = [place for place, k in enumerate(seen.clients) if sizes[k] == n]
        steps = len(places_of(known.config.local, n, None))
        for part in stacks(len(alike), problem.params.size() * how["restarts"] * steps):
            these = alike[part]
            work, labels = _work(known, seen, these, n, keys)
            best = invert(problem, taken(g, these), labels, rng, work=work, **how)
            for i, place in enumerate(these):
                one = best._replace(x=best.x[i], labels=best.labels[i], cost=best.cost[i].expand(work.rows))
                found[place] = answered([seen.clients[place]] * work.rows, [one])
    return {key: np.concatenate([found[place][key] for place in sorted(found)]) for key in found[0]}


def places_of(local: Any, n: int, drawn: tuple[int, int] | None) -> list[Tensor]:
    """Return which of a client's ``n`` rows each step of round 1 takes.

    ``drawn``: (seed, client) by whose stream rows are shuffled; None: in turn, in the same order in every pass.
    """
    seed, client = drawn or (0, 0)
    draw = Draw(seed, 1, client, local.batch_size, merge=local.merges)
    index = torch.arange(n)
    steps = [batch.x for batch in batches(Rows(index, index), Budget(local.epochs, local.steps), draw)]
    sizes = [len(one) for one in steps]
    return steps if drawn else [*torch.split(torch.arange(sum(sizes)) % n, sizes)]


def _work(
    known: Knowledge, seen: ViewGradients, these: Sequence[int], n: int, keys: dict[str, Any]
) -> tuple[LocalSteps, Tensor]:
    """Return the local work of targets with ``n`` rows each, as the attacker assumes it, and their labels (T, at least its rows)."""
    local, drawn, clients = known.config.local, keys["batches"] == "known", [seen.clients[place] for place in these]
    every = [places_of(local, n, (known.seed, k) if drawn else None) for k in clients]
    used = [torch.unique(torch.cat(one)) for one in every]  # the rows that any step takes; only these are sought
    among = [[torch.searchsorted(rows, step) for step in one] for rows, one in zip(used, every, strict=True)]
    told = known.told.get("labels")
    work = LocalSteps(
        tuple(map(torch.stack, zip(*among, strict=True))),
        local.lr,
        local.momentum,
        local.weight_decay,
        ordered=drawn and told is not None,
    )
    if told is None:
        return work, _counted_labels(known, seen, these, n, work.rows)
    labels = torch.tensor([told[str(k)] for k in clients])
    return work, labels.gather(1, torch.stack(used)) if drawn else labels


def _labels_of_one(known: Knowledge, seen: ViewGradients) -> Tensor:
    """Return (T,) labels of clients with one row, told or inferred. A mean of several has no label, and 0 is taken."""
    told = known.told.get("labels")
    if told is None:
        return last_bias_labels(known, NAME, seen)
    return torch.tensor([told[str(k)][0] if k >= 0 else 0 for k in seen.clients])


def _counted_labels(known: Knowledge, seen: ViewGradients, these: Sequence[int], n: int, rows: int) -> Tensor:
    """Return (T, rows) labels counted from the gradients of the last bias, in ascending order. ConfigError if it does not show them."""
    if known.loss.name != "cross_entropy":
        raise ConfigError(
            f"attack '{NAME}' counts the labels of several rows under the cross entropy only: set labels = 'known'."
        )
    x = torch.randn((NOISE, *known.shape), generator=torch_stream(known.seed, "attack", "labels"))
    network, gradients = known.network(known.seed), taken(seen.gradients, [*these])
    g, p = last_gradients(network, seen.params, seen.buffers, gradients, known.classes, x)
    counts = [whole_counts(rows * (p - one).numpy(), one.numpy(), rows) for one in g]
    return torch.tensor(np.stack([np.repeat(np.arange(known.classes), many) for many in counts]))
