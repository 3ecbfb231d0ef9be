"""Property inference (A6, passive): is a client rich in rows of some classes? It only observes.

The server trains, from the model that it sent, on its auxiliary rows with and without the property, as a client would. A random forest
learns to tell these updates apart, and judges each client's update of the first round. An update is pooled first: of each weight the
mean of what leads to an output, and each bias.

Auxiliary rows are those that clients held out. The truth is known to the holder of the data only. The placebo is that of the
membership game: clients without the property against others without it, whose AUC is 0.5 with the spread of chance.

role: the role whose view is attacked: "server".

Source: Melis, Song, De Cristofaro, Shmatikov, S&P 2019. Here one round is used, and the property is a share of classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.forest import told_apart
from fedatlas.attacks.inversion import NEEDS_CLASSES, loss_of
from fedatlas.attacks.membership import AUXILIARY, scored
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.shadow_models import Training, trained
from fedatlas.attacks.view_attack import Arrays, Files, Knowledge, Score, Truth, ViewAttack
from fedatlas.errors import ConfigError, DataError
from fedatlas.metrics.quality import Floats
from fedatlas.registry import Rate, Whole
from fedatlas.rng import derive, numpy_stream, torch_stream
from fedatlas.tree import Tree, stack

NAME = "property"
NO_ROWS = f"attack '{NAME}' needs rows that clients held out, as auxiliary rows: set clients = 0.5 under [evaluation]."
UNDRAWN = (
    f'auxiliary rows are drawn when the attack is declared; add [[attack]] with name = "{NAME}" and, under [evaluation], clients = 0.5 '
    "to the experiment and run again."
)


def property_inference(
    *, role: str = "server", classes: tuple[int, ...] = (0,), share: Rate | None = None, shadows: Whole = 100
) -> ViewAttack:
    """Property inference (Melis et al. 2019): is a client rich in rows of some classes? Judged by its first update.

    A random forest learns from simulated updates with and without the property. Needs evaluation.clients above 0: the held-out rows are
    the attacker's. A6.

    classes: the classes of the property, by number.
    share: a client has the property if more than this share of its rows is of these classes; default: an even share.
    shadows: simulated updates of each kind.
    """
    if not classes or len(set(classes)) < len(classes) or min(classes) < 0:
        raise ConfigError(f"attack '{NAME}': classes = {list(classes)}: name each class once, by number, as in [3].")
    declares = Declaration(
        who="insider: the server, which sees each update",
        how="passive: it follows the protocol and computes afterwards",
        when="training: the first round",
        where="the updates of single clients",
        why="property: whether a client's rows are rich in some classes",
        knowledge="the network, the local training, how many rows each client trains on; auxiliary rows that clients held out",
        budget=f"{2 * shadows} simulated updates",
    )
    return ViewAttack(
        NAME,
        "property",
        ViewRole.parse(role, "attack.role"),
        {"classes": list(classes), "share": share, "shadows": shadows},
        declares,
        answer=lambda known: _answer(known, classes, share, shadows),
        score=lambda truth, answer: _score(truth, answer, classes, share),
        figures={"auc": "AUC"},
        leak="auc",
        pictures=lambda arrays: [],
        thing="client",
        roles=("server",),
        rounds=(0, 1),
        refuses=_unsuited,
        files=(AUXILIARY,),
        draws=lambda truth: _files(truth, classes, share),
        undrawn=UNDRAWN,
        tells=lambda truth: {"sizes": [n for n in truth.sizes.values() if n]},
        single=True,
    )


def _unsuited(config: Any) -> str:
    if loss_of(config) not in ("auto", "cross_entropy"):
        return f"attack '{NAME}' {NEEDS_CLASSES}"
    return "" if config.evaluation.clients else NO_ROWS


def holders(truth: Truth, clients: list[int], classes: tuple[int, ...], share: float | None) -> np.ndarray:
    """Return (clients,) bool: whether each has the property. DataError if all have it, or none."""
    if wrong := [c for c in classes if c >= truth.classes]:
        raise ConfigError(f"attack '{NAME}': classes: there is no class {wrong[0]}; they are 0 to {truth.classes - 1}.")
    bound = bound_of(classes, share, truth.classes)
    held = np.array([np.isin(truth.rows(k).y.numpy(), classes).mean() > bound for k in clients])
    if held.all() or not held.any():
        who = "every client" if held.all() else "no client"
        raise DataError(
            f"attack '{NAME}': {who} has a share above {bound:.3g} of classes {list(classes)}; set another share."
        )
    return held


def bound_of(classes: tuple[int, ...], share: float | None, many: int) -> float:
    """Return the share of rows above which a client has the property."""
    return len(classes) / many if share is None else share


def _files(truth: Truth, classes: tuple[int, ...], share: float | None) -> Files:
    """Return the auxiliary rows. ConfigError if they lack a kind."""
    holders(truth, [k for k, n in truth.sizes.items() if n], classes, share)
    kept = [truth.kept(k) for k in sorted(truth.kept_sizes) if truth.kept_sizes[k]]
    x, y = (torch.cat([getattr(rows, part) for rows in kept]).numpy() for part in ("x", "y"))
    if len(set(np.isin(y, classes))) < 2:
        raise ConfigError(f"attack '{NAME}': the held-out rows have to be of classes {list(classes)} and of others.")
    return {AUXILIARY: {"x": x, "y": y}}


# ---------------------------------------------------------------------- in the attacker's process


def _answer(known: Knowledge, classes: tuple[int, ...], share: float | None, shadows: int) -> Arrays:
    """Return client (T,) and score (T,): the higher, the more likely it has the property."""
    seen, network, own = known.gradients(0), known.network(known.seed), known.arrays(AUXILIARY)
    network.load_state_dict({**network.state_dict(), **seen.params, **seen.buffers})
    stream, rng = numpy_stream(known.seed, "attack", NAME), torch_stream(known.seed, "attack", NAME)
    has, simulated = np.arange(2 * shadows) % 2 == 1, []
    for one in has:
        n = int(stream.choice(known.told["sizes"]))
        rows = drawn_rows(own["y"], n, classes, bound_of(classes, share, known.classes), bool(one), stream)
        used, how = local_training(known.config.local, n)
        x, y = (torch.from_numpy(own[part][rows[:used]]) for part in ("x", "y"))
        simulated.append(change(network, trained(network, x, y, how, rng), known.config.local))
    features = pooled(stack(simulated)), pooled(seen.gradients)
    return {"client": np.array(seen.clients), "score": judged(*features, has, known.seed)}


def judged(simulated: Floats, updates: Floats, has: np.ndarray, seed: int) -> Floats:
    """Return (T,): the probability that each of ``updates`` (T, d) has the property, learnt from ``simulated`` (n, d), ``has`` (n,)."""
    return told_apart(simulated, has, updates, derive(seed, "attack", "forest") % 2**32)


def drawn_rows(
    y: np.ndarray, n: int, classes: tuple[int, ...], bound: float, has: bool, stream: np.random.Generator
) -> np.ndarray:
    """Return places of ``n`` rows, shuffled: any number with the property, or without; class weights are random in both parts."""
    most = min(math.floor(bound * n + 1e-9), n - 1)  # of these classes in rows without the property
    inside = int(stream.integers(most + 1, n + 1) if has else stream.integers(0, most + 1))
    weights, ours = stream.exponential(size=int(y.max()) + 1)[y], np.isin(y, classes)
    parts = []
    for many, these in ((inside, ours), (n - inside, ~ours)):
        p = np.where(these, weights, 0.0)
        parts.append(stream.choice(len(y), size=many, p=p / p.sum()))
    return stream.permutation(np.concatenate(parts))


def local_training(local: Any, n: int) -> tuple[int, Training]:
    """Return how many of a client's ``n`` rows its steps use, and its training on them."""
    batch = min(local.batch_size or n, n)
    used = n if local.steps is None else min(n, local.steps * batch)
    passes = local.epochs if local.steps is None else max(1, round(local.steps * batch / used))
    adam = local.optimizer == "adam"
    return used, Training(local.lr, batch, passes, local.momentum, local.weight_decay, adam)


def change(before: nn.Module, after: nn.Module, local: Any) -> Tree:
    """Return an update as a view shows it: (w - w') / lr without the weight decay."""
    end: Mapping[str, Tensor] = dict(after.named_parameters())
    return Tree(
        {name: ((w - end[name]) / local.lr - local.weight_decay * w).detach() for name, w in before.named_parameters()}
    )


def pooled(updates: Tree) -> Floats:
    """Return (T, d) float64: each bias, and of each weight the mean of what leads to an output."""
    parts = [x.flatten(2).mean(2) if x.dim() > 2 else x for _, x in sorted(updates.items())]
    return torch.cat(parts, 1).double().numpy()


# ---------------------------------------------------------------------- scored by a holder of the data


def _score(truth: Truth, answer: Arrays, classes: tuple[int, ...], share: float | None) -> Score:
    clients = [int(k) for k in answer["client"]]
    held = holders(truth, clients, classes, share)
    found = scored(held, answer["score"].astype(np.float64), truth.seed)
    arrays = {"client": answer["client"], **found.arrays}
    return Score({"auc": found.metrics["auc"]}, {"auc": found.leaks["auc"]}, len(clients), arrays)
