"""Attacks that turn the gradients of a view into rows (A8, A9, A10). They only observe.

Target i scores PSNR(r_i, x_i). Its placebo is the mean over other pictures of its label of PSNR(r_i, x_j): the score of a
reconstruction that knows only the label.

role: the role whose view is attacked: "server", "client:3", "successor:3" or "outsider".
targets: number of observed updates to attack, in order of arrival; 0 = all.
start: for role = "successor:3", the model that client 3 is taken to have begun with: "true" (default; the client before it colludes), or
    "last", the one that the successor received before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.gradient_matching import Problem, Reconstruction, deep_leakage, inferred_labels, invert, unfolded
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.successor import WHO, Start, among, colluder, declared, nothing_before, start_of
from fedatlas.attacks.view_attack import (
    Arrays,
    Knowledge,
    Picture,
    Score,
    Truth,
    ViewAttack,
    ViewGradients,
    leak_of,
    measured,
)
from fedatlas.errors import ConfigError
from fedatlas.metrics.intervals import Interval, of_means
from fedatlas.registry import Count, Positive, Rate, Whole
from fedatlas.rng import numpy_stream, torch_stream
from fedatlas.tree import Tree

Search = Callable[[Knowledge, Problem, Tree, Tensor, torch.Generator], Reconstruction]
"""(knowledge, problem, gradients of some targets, their labels, random stream) -> the reconstruction."""

HELD = 1 << 28  # bytes of gradients in one stack
OTHERS = 100  # pictures of the label averaged in a placebo
ROUNDS = {"outsider": (0, 1), "successor": (0, 0)}  # of the view; a client hands its model on in some rounds only
EXACT = 1e-10  # mean squared error below which pictures count as equal: 100 dB
PICTURES = 16  # targets shown in the report
BASIC = "the network, the local learning rate, one step on one row"
OF_CLASSES = ("dlg", "idlg")
NEEDS_CLASSES = "takes labels as probabilities of classes, which requires model.loss = 'cross_entropy'."
FIGURES = {
    "psnr": "PSNR in dB",
    "mse": "mean squared error of a pixel",
    "label": "share of labels found",
    "above_20_dB": "share of targets above 20 dB",
}


def inverting_gradients(
    *,
    role: str = "server",
    targets: Count = 64,
    iterations: Whole = 2400,
    restarts: Whole = 1,
    tv: Rate = 1e-4,
    lr: Positive = 0.1,
    labels: Literal["inferred", "known"] = "inferred",
    start: Start | None = None,
) -> ViewAttack:
    """Inverting gradients (Geiping et al. 2020): find the picture whose gradient has the direction of the observed one.

    min_x 1 - cos(gradient(x), g) + tv TV(x), by Adam on the signs of its slope, all targets in one stack. A10.

    iterations: steps of Adam; the rate falls to a tenth after 3, 5 and 7 eighths of them.
    restarts: random starts for each target; the one of least cost counts.
    tv: weight of the total variation, which favours smooth pictures.
    lr: rate of Adam in pixels, where 1 is the range from black to white.
    labels: whether labels are inferred from the gradient of the last bias (A7), or given to the attacker.
    """
    how = {"iterations": iterations, "restarts": restarts, "tv": tv, "lr": lr}

    def search(known: Knowledge, problem: Problem, g: Tree, labels: Tensor, rng: torch.Generator) -> Reconstruction:
        return invert(problem, g, labels, rng, **how)  # type: ignore[arg-type]

    told = f"{BASIC}, the range of a pixel{', the label' if labels == 'known' else ''}"
    keys = {"targets": targets, **how, "labels": labels}
    made = _inversion("inverting_gradients", role, keys, told, search, start)
    return made._replace(tells=_labels_of) if labels == "known" else made


def dlg(
    *,
    role: str = "server",
    targets: Count = 64,
    iterations: Whole = 300,
    restarts: Whole = 4,
    start: Start | None = None,
) -> ViewAttack:
    """Deep leakage from gradients (Zhu et al. 2019): find the picture and label whose gradient equals the observed one.

    min_{x, y} |gradient(x, softmax(y)) - g|^2, by L-BFGS from N(0, 1), all targets in one stack. Needs a network with smooth
    activations (lenet_sigmoid). A8.

    iterations: steps of L-BFGS.
    restarts: random starts for each target; the one of least cost counts.
    """

    def search(known: Knowledge, problem: Problem, g: Tree, labels: Tensor, rng: torch.Generator) -> Reconstruction:
        return deep_leakage(problem, g, known.classes, rng, iterations=iterations, restarts=restarts)

    keys = {"targets": targets, "iterations": iterations, "restarts": restarts}
    return _inversion("dlg", role, keys, f"{BASIC}; not the label", search, start)


def idlg(
    *,
    role: str = "server",
    targets: Count = 64,
    iterations: Whole = 300,
    restarts: Whole = 4,
    start: Start | None = None,
) -> ViewAttack:
    """Improved deep leakage (Zhao et al. 2020): `dlg` with the label read off the gradient of the last bias first.

    min_x |gradient(x, y) - g|^2, by L-BFGS from N(0, 1), all targets in one stack, with y the one class whose bias has a negative
    gradient. Needs a network with smooth activations (lenet_sigmoid). A9.

    iterations: steps of L-BFGS.
    restarts: random starts for each target; the one of least cost counts.
    """

    def search(known: Knowledge, problem: Problem, g: Tree, labels: Tensor, rng: torch.Generator) -> Reconstruction:
        how = {"iterations": iterations, "restarts": restarts}
        return deep_leakage(problem, g, known.classes, rng, labels=labels, **how)

    keys = {"targets": targets, "iterations": iterations, "restarts": restarts}
    return _inversion("idlg", role, keys, f"{BASIC}; not the label", search, start)


def _inversion(
    name: str, role: str, keys: dict[str, Any], knowledge: str, search: Search, start: Start | None
) -> ViewAttack:
    whose = ViewRole.parse(role, "attack.role")
    keys = {**keys, **start_of(name, whose, start)}
    declares = Declaration(
        who=WHO,
        how="passive: it follows the protocol and computes afterwards",
        when="training: the first round",
        where="the updates, read as gradients",
        why="samples and labels: the row that a client trained on",
        knowledge=knowledge,
        budget=f"{keys['iterations']} steps from each of {keys['restarts']} starts per target",
    )
    return ViewAttack(
        name,
        "inversion",
        whose,
        keys,
        declared(declares, keys),
        answer=lambda known: _answer(known, name, keys, search),
        score=lambda truth, answer: _score(truth, answer, whose, keys["targets"]),
        figures=FIGURES,
        leak="psnr",
        pictures=_pictures,
        roles=("server", "client", "successor", "outsider"),
        rounds=ROUNDS.get(whose.kind, (0, 2)),
        beside=colluder(whose, keys),
        refuses=lambda config: _unsuited(name, config, whose) or nothing_before(name, config, keys),
        refuses_run=lambda config, rows: _refusal(name, config, rows),
    )


def _unsuited(name: str, config: Any, role: ViewRole) -> str:
    """Return why the file already shows that the attack cannot be carried out; "" if it does not."""
    if name in OF_CLASSES and loss_of(config) not in ("auto", "cross_entropy"):
        return f"attack '{name}' {NEEDS_CLASSES}"
    return too_short(name, config, role) or _refusal(name, config, ())


def loss_of(config: Any) -> str:
    """Return the name of the loss in the file, which may be "auto"."""
    return str(getattr(config.model.loss, "name", config.model.loss))


def too_short(name: str, config: Any, role: ViewRole) -> str:
    """Return why a run has too few rounds for gradients in a role's view; "" if it has enough."""
    if role.kind == "client" and config.rounds < 2:
        return f"attack '{name}' by a client compares the models of rounds 1 and 2: set rounds = 2."
    return ""


def _refusal(name: str, config: Any, rows: Sequence[int]) -> str:
    local = config.local
    steps = local.steps if local.steps is not None else local.epochs
    if max(rows, default=1) == 1 and steps == 1:
        return ""
    return (
        f"attack '{name}' inverts the gradient of one step on one row per client: set steps = 1 under [local], and as many clients as "
        "rows (data.limit)."
    )


def _labels_of(truth: Truth) -> dict[str, int]:
    return {str(k): int(truth.rows(k).y[0]) for k, n in truth.sizes.items() if n} | {"-1": 0}


# ---------------------------------------------------------------------- in the attacker's process


def _answer(known: Knowledge, name: str, keys: dict[str, Any], search: Search) -> Arrays:
    """Return client (T,), x (T, *shape) in pixels from 0 to 1, label (T,), cost (T,): the best of each target's restarts."""
    low, high = known.box()
    if name in OF_CLASSES and known.loss.name != "cross_entropy":
        raise ConfigError(f"attack '{name}' {NEEDS_CLASSES}")
    seen = known.gradients(keys["targets"])
    torch.set_num_threads(1)
    network = unfolded(known.network(known.seed))
    names = [name for name, x in network.named_parameters() if x.requires_grad]
    params, g = (Tree({name: tree[name] for name in names}) for tree in (seen.params, seen.gradients))
    problem = Problem(network, known.loss.mean, params, seen.buffers, low, high)
    size = max(1, HELD // (32 * params.size() * keys["restarts"]))
    rng = torch_stream(known.seed, "attack", name)
    labels = _labels(known, name, seen)
    found = []
    for first in range(0, len(seen.clients), size):
        part = slice(first, first + size)
        found.append(search(known, problem, Tree({name: x[part] for name, x in g.items()}), labels[part], rng))
    best = {"x": [each.x for each in found], "label": [each.labels for each in found], "cost": [f.cost for f in found]}
    return {"client": np.array(seen.clients), **{key: torch.cat(each).numpy() for key, each in best.items()}}


def _labels(known: Knowledge, name: str, seen: ViewGradients) -> Tensor:
    """Return (T,) labels as given, or inferred from the gradient of the last bias. ConfigError if there is no such bias."""
    if known.told:
        return torch.tensor([known.told[str(k)] for k in seen.clients])
    last = [x for x in seen.gradients.values() if x.dim() == 2 and x.shape[1] == known.classes]
    if not last:
        raise ConfigError(
            f"attack '{name}': the network has no bias that reveals a label; try 'inverting_gradients', labels = 'known'."
        )
    return inferred_labels(last[-1])


# ---------------------------------------------------------------------- scored by a holder of the data


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Return 10 log10(1 / MSE) of pixels from 0 to 1, in dB, over all axes but the first."""
    return -10 * torch.log10(squared_error(a, b))


def squared_error(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared error over all axes but the first, at least 1e-10."""
    return ((a.double().clamp(0, 1) - b.double()) ** 2).flatten(1).mean(1).clamp_min(EXACT)


def _pixels(x: Tensor, truth: Truth) -> Tensor:
    """Convert rows as the network reads them to pixels from 0 to 1."""
    low, high = truth.box()
    return (x.float() - low) / (high - low)


def _score(truth: Truth, answer: Arrays, role: ViewRole, targets: int) -> Score:
    """Score the answer. The single mean seen by a client or outsider counts for all trained in round 1 but the attacker."""
    seen = [int(k) for k in answer["client"]]
    clients = seen if seen[0] >= 0 else [k for k in truth.trained if k != role.client][: targets or None]
    rows = [truth.rows(k) for k in clients]
    original, label = _pixels(torch.cat([one.x[:1] for one in rows]), truth), torch.cat([one.y[:1] for one in rows])
    found, said = torch.from_numpy(answer["x"]), torch.from_numpy(answer["label"])
    found = found if len(found) == len(clients) else found.expand(len(clients), *found.shape[1:])
    said = said.expand(len(clients)) if len(said) == 1 else said
    own, error = psnr(found, original), squared_error(found, original)
    scores = np.stack([own.numpy(), error.numpy(), (said == label).double().numpy()])
    if role.kind == "successor":
        chance = _others(found[0], clients[0], label[0], truth, test=True)
        placebo, leak = chance.mean()[None], among(float(own[0]), chance.numpy())
        means = [Interval(float(x), None, None, 0.95) for (x,) in scores]
    else:
        placebo = torch.stack([_others(found[i], k, label[i], truth).mean() for i, k in enumerate(clients)])
        means = of_means(scores, np.ones(len(clients)), truth.seed, "attack")
        leak = leak_of(own.numpy(), placebo.numpy())
    metrics = {
        "psnr": measured(means[0], float(placebo.mean())),
        "mse": measured(means[1], None),
        "label": measured(means[2], None),
        "above_20_dB": measured(Interval(float((own > 20).double().mean()), None, None, 0.95), None),
    }
    arrays = {"client": np.array(clients), "label": label.numpy(), "said": said.numpy(), "psnr": own.numpy()}
    arrays |= {"placebo": placebo.numpy(), "found": found.numpy(), "original": original.numpy()}
    return Score(metrics, {"psnr": leak}, len(clients), arrays)


def _others(found: Tensor, client: int, label: Tensor, truth: Truth, *, test: bool = False) -> Tensor:
    """Return the PSNR of a reconstruction against other pictures of its label: of other clients, else (or ``test``) of the test set."""
    others: list[Tensor] = []
    order = numpy_stream(truth.seed, "attack", "placebo", client).permutation(len(truth.sizes))
    for k in map(int, order):
        if k != client and truth.sizes[k]:
            rows = truth.rows(k)
            others += rows.x[rows.y == label]
        if len(others) >= OTHERS:
            break
    others = [*others, *truth.test(label)[:OTHERS]] if test or not others else others
    if not others:
        return torch.tensor([float("nan")], dtype=torch.float64)
    these = _pixels(torch.stack(others[:OTHERS]), truth)
    return psnr(found.expand_as(these), these)


def _pictures(arrays: Arrays) -> list[Picture]:
    """Return reconstructions below their originals, in the order of the clients."""
    shown = [
        (arrays["original"][i], arrays["found"][i], f"client {arrays['client'][i]}: {arrays['psnr'][i]:.1f} dB")
        for i in range(min(len(arrays["found"]), PICTURES))
    ]
    how = (
        "Above are the rows that clients trained on, below the attacker's reconstructions from its view. Noise, or the same blur for all, "
        "is what a placebo looks like; hover for the PSNR: at 20 dB or more the pictures look alike."
    )
    columns = ("client", "label", "label_found", "psnr", "placebo")
    rows = list(zip(*(arrays[key].tolist() for key in ("client", "label", "said", "psnr", "placebo")), strict=True))
    title, label = "Originals and reconstructions", "Originals above reconstructions"
    return [Picture("pairs", "pictures", title, label, how, columns, rows, ("original", "found"), shown)]
