"""Attacks that turn the gradients of a view into rows (A8, A9, A10). They only observe.

Target i scores PSNR(r_i, x_i). Its placebo is the mean over other pictures of its label of PSNR(r_i, x_j): the score of a
reconstruction that knows only the label.

A client with several rows is one target. Its reconstructions are matched to its rows by the assignment with the largest sum of PSNR, and
their mean is its score. Its placebo is the mean over sets of other pictures with the same labels, matched in the same way.

role: the role whose view is attacked: "server", "client:3", "successor:3" or "outsider".
targets: number of observed updates to attack, in order of arrival; 0 = all.
start: for role = "successor:3", the model that client 3 is taken to have begun with: "true" (default; the client before it colludes), or
    "last", the one that the successor received before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.gradient_matching import Problem, Reconstruction, deep_leakage, inferred_labels, unfolded
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
from fedatlas.registry import Count, Whole
from fedatlas.rng import numpy_stream, torch_stream
from fedatlas.tree import Tree

Search = Callable[[Knowledge, Problem, Tree, Tensor, torch.Generator], Reconstruction]
"""(knowledge, problem, gradients of some targets, their labels, random stream) -> the reconstruction."""

HELD = 1 << 28  # bytes of gradients in one stack
OTHERS = 100  # pictures of a label in a placebo
SETS = 20  # sets of pictures averaged in the placebo of several rows
ROUNDS = {"outsider": (0, 1), "successor": (0, 0)}  # of the view; a client hands its model on in some rounds only
EXACT = 1e-10  # mean squared error below which pictures count as equal: 100 dB
PICTURES = 16  # targets shown in the report
BASIC = "the network, the local learning rate, one step on one row"
NEEDS_CLASSES = "takes labels as probabilities of classes, which requires model.loss = 'cross_entropy'."
SEARCH = """    iterations: steps of L-BFGS.
    restarts: random starts for each target; the one of least cost counts."""
FIGURES = {
    "psnr": "PSNR in dB",
    "mse": "mean squared error of a pixel",
    "label": "share of labels found",
    "above_20_dB": "share of targets above 20 dB",
}


def _of_one_row(name: str, text: str, labelled: bool) -> Callable[..., ViewAttack]:
    """Return the builder of an attack that seeks the row of a client's one step on one row. ``text``: its first lines of help.

    ``labelled``: the label is read off the last bias first; otherwise it is sought with the row.
    """

    def build(
        *,
        role: str = "server",
        targets: Count = 64,
        iterations: Whole = 300,
        restarts: Whole = 4,
        start: Start | None = None,
    ) -> ViewAttack:
        def search(known: Knowledge, problem: Problem, g: Tree, labels: Tensor, rng: torch.Generator) -> Reconstruction:
            told = labels if labelled else None
            return deep_leakage(problem, g, known.classes, rng, iterations=iterations, restarts=restarts, labels=told)

        whose = ViewRole.parse(role, "attack.role")
        keys = {"targets": targets, "iterations": iterations, "restarts": restarts, **start_of(name, whose, start)}
        return inversion(
            name,
            whose,
            keys,
            f"{BASIC}; not the label",
            answer=lambda known: _answer(known, name, keys, search),
            refuses=lambda config: _unsuited(name, config, whose) or nothing_before(name, config, keys),
            refuses_run=lambda config, rows: _refusal(name, config, rows),
        )

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"{text}\n\n{SEARCH}"
    return build


dlg = _of_one_row(
    "dlg",
    """Deep leakage from gradients (Zhu et al. 2019): find the picture and label whose gradient equals the observed one.

    min_{x, y} |gradient(x, softmax(y)) - g|^2, by L-BFGS from N(0, 1), all targets in one stack. Needs a network with smooth
    activations (lenet_sigmoid). A8.""",
    labelled=False,
)
idlg = _of_one_row(
    "idlg",
    """Improved deep leakage (Zhao et al. 2020): `dlg` with the label read off the gradient of the last bias first.

    min_x |gradient(x, y) - g|^2, by L-BFGS from N(0, 1), all targets in one stack, with y the one class whose bias has a negative
    gradient. Needs a network with smooth activations (lenet_sigmoid). A9.""",
    labelled=True,
)


def inversion(name: str, role: ViewRole, keys: dict[str, Any], knowledge: str, **functions: Any) -> ViewAttack:
    """Return the record of an attack that finds rows; ``functions``: `ViewAttack`'s ``answer``, ``refuses``, ``refuses_run``, ``tells``."""
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
        role,
        keys,
        declared(declares, keys),
        score=lambda truth, answer: _score(truth, answer, role, keys["targets"]),
        figures=FIGURES,
        leak="psnr",
        pictures=_pictures,
        roles=("server", "client", "successor", "outsider"),
        rounds=ROUNDS.get(role.kind, (0, 2)),
        beside=colluder(role, keys),
        **functions,
    )


def _unsuited(name: str, config: Any, role: ViewRole) -> str:
    """Return why the file already shows that the attack cannot be carried out; "" if it does not."""
    if loss_of(config) not in ("auto", "cross_entropy"):
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


def no_gradient(name: str, config: Any, scale_free: bool = False) -> str:
    """Return why updates of a run are no gradients; "" if they are. ``scale_free``: a gradient that was shortened will do."""
    if config.local.optimizer != "sgd":
        return f"attack '{name}' reads updates as gradients: set optimizer = \"sgd\" under [local]."
    if config.local.clip and not scale_free:
        return f"attack '{name}' reads updates as gradients, which clip shortens: set clip = 0 under [local]."
    return ""


def _refusal(name: str, config: Any, rows: Sequence[int]) -> str:
    if why := no_gradient(name, config):
        return why
    if is_gradient(config.local, rows):
        return ""
    return (
        f"attack '{name}' inverts the gradient of one step on one row per client: set steps = 1 under [local], and as many clients as "
        "rows (data.limit)."
    )


def is_gradient(local: Any, rows: Sequence[int]) -> bool:
    """Return whether clients with ``rows`` rows each take one step on one row, so that an update is the gradient of that row."""
    steps = local.steps if local.steps is not None else local.epochs
    return max(rows, default=1) == 1 and steps == 1


# ---------------------------------------------------------------------- in the attacker's process


def _answer(known: Knowledge, name: str, keys: dict[str, Any], search: Search) -> Arrays:
    """Return client (T,), x (T, *shape) in pixels from 0 to 1, label (T,), cost (T,): the best of each target's restarts."""
    if known.loss.name != "cross_entropy":
        raise ConfigError(f"attack '{name}' {NEEDS_CLASSES}")
    seen, problem, g = posed(known, keys["targets"])
    rng = torch_stream(known.seed, "attack", name)
    labels = last_bias_labels(known, name, seen)
    found = [
        search(known, problem, taken(g, part), labels[part], rng)
        for part in stacks(len(labels), problem.params.size() * keys["restarts"])
    ]
    return answered(seen.clients, found)


def posed(known: Knowledge, targets: int) -> tuple[ViewGradients, Problem, Tree]:
    """Return the gradients in the view, the problem that they pose, and those of its trained parameters, (T, ...) each."""
    low, high = known.box()
    seen = known.gradients(targets)
    torch.set_num_threads(1)
    network = unfolded(known.network(known.seed))
    names = [name for name, x in network.named_parameters() if x.requires_grad]
    params, g = (Tree({name: tree[name] for name in names}) for tree in (seen.params, seen.gradients))
    return seen, Problem(network, known.loss.mean, params, seen.buffers, low, high), g


def stacks(targets: int, numbers: int) -> list[slice]:
    """Return the parts in which targets are attacked together, so that a stack of gradients fits; ``numbers``: those of one target."""
    size = max(1, HELD // (32 * numbers))
    return [slice(first, first + size) for first in range(0, targets, size)]


def taken(tree: Tree, part: slice | list[int]) -> Tree:
    """Return the targets of a part."""
    return tree.map(lambda x: x[part])


def answered(clients: Sequence[int], found: Sequence[Reconstruction]) -> dict[str, np.ndarray]:
    """Return an answer: the parts' reconstructions in turn."""
    best = {"x": [each.x for each in found], "label": [each.labels for each in found], "cost": [f.cost for f in found]}
    return {"client": np.array(clients), **{key: torch.cat(each).numpy() for key, each in best.items()}}


def last_bias_labels(known: Knowledge, name: str, seen: ViewGradients) -> Tensor:
    """Return (T,) labels inferred from the gradient of the last bias. ConfigError if there is no such bias."""
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
    of_mean = seen[0] < 0
    clients = [k for k in truth.trained if k != role.client][: targets or None] if of_mean else [*dict.fromkeys(seen)]
    least = OTHERS if role.kind == "successor" else 1
    every = [_matched(truth, answer, k, slice(0, 1) if of_mean else answer["client"] == k, least) for k in clients]
    own, error, hit, placebo = (
        torch.stack([getattr(one, name).mean() for one in every]) for name in ("psnr", "error", "hit", "chance")
    )
    scores = np.stack([own.numpy(), error.numpy(), hit.numpy()])
    if role.kind == "successor":
        means = [Interval(float(x), None, None, 0.95) for (x,) in scores]
        leak = among(float(own[0]), every[0].chance.numpy())
    else:
        means = of_means(scores, np.ones(len(clients)), truth.seed, "attack")
        leak = leak_of(own.numpy(), placebo.numpy())
    many = [len(one.psnr) for one in every]
    arrays = {"client": np.repeat(clients, many), "placebo": np.repeat(placebo.numpy(), many)}
    for name in ("label", "said", "psnr", "found", "original"):
        arrays[name] = torch.cat([getattr(one, name) for one in every]).numpy()
    metrics = {
        "psnr": measured(means[0], float(placebo.mean())),
        "mse": measured(means[1], None),
        "label": measured(means[2], None),
        "above_20_dB": measured(Interval(float((arrays["psnr"] > 20).mean()), None, None, 0.95), None),
    }
    return Score(metrics, {"psnr": leak}, len(clients), arrays)


class Matched(NamedTuple):
    """The reconstructions of one client (r), each with the row that it is matched to."""

    psnr: Tensor
    error: Tensor  # mean squared error of a pixel
    hit: Tensor  # share of the labels that are said rightly, in any order; the same for all
    chance: Tensor  # (m,) mean PSNR against each set of other pictures with the same labels, matched in the same way
    label: Tensor
    said: Tensor
    found: Tensor  # (r, *shape)
    original: Tensor  # (r, *shape)


def _matched(truth: Truth, answer: Arrays, client: int, part: Any, least: int) -> Matched:
    """Match the reconstructions that the answer has at ``part`` with the rows of a client. ``least``: as in `_chance`."""
    rows = truth.rows(client)
    found, said = torch.from_numpy(answer["x"][part]), torch.from_numpy(answer["label"][part])
    original = _pixels(rows.x, truth)
    score, place = assigned(found, original)
    labels = rows.y[place]
    many = [torch.bincount(x, minlength=truth.classes) for x in (said, rows.y)]
    hit = torch.minimum(*many).sum().double() / len(said)
    chance = _chance(found, client, rows.y, truth, least)
    error = squared_error(found, original[place])
    return Matched(score, error, hit.expand(len(said)), chance, labels, said, found, original[place])


def assigned(found: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each of ``found`` (r, *shape) the PSNR (r,) and the place (r,) of its row of ``rows`` (n, *shape), n at least r.

    No row is taken twice, and the sum of PSNR is the largest.
    """
    from scipy.optimize import linear_sum_assignment

    pairs = psnr(found.repeat_interleave(len(rows), 0), rows.repeat(len(found), *(1 for _ in rows.shape[1:])))
    table = pairs.view(len(found), len(rows))
    place = torch.from_numpy(linear_sum_assignment(table.numpy(), maximize=True)[1])
    return table[torch.arange(len(found)), place], place


def _chance(found: Tensor, client: int, labels: Tensor, truth: Truth, least: int = 1) -> Tensor:
    """Return the mean PSNR (m,) of reconstructions (r, *shape) against m sets of other pictures with the labels (n,), by `assigned`.

    The pictures are of other clients, and of the test set if those have too few of a label: fewer than the client, or than ``least``.
    Each set takes others, as far as they go. NaN (1,) if nobody has pictures of a label.
    """
    kinds, place, count = torch.unique(labels, return_inverse=True, return_counts=True)
    pools = [_others(label, client, truth, max(int(n), least)) for label, n in zip(kinds, count, strict=True)]
    if not all(map(len, pools)):
        return torch.tensor([float("nan")], dtype=torch.float64)
    these = [_pixels(torch.stack(pool), truth) for pool in pools]
    if len(labels) == 1:
        return psnr(found.expand_as(these[0]), these[0])
    turn = torch.stack([(place[:i] == one).sum() for i, one in enumerate(place)])  # which of its label's rows a row is
    sets = [
        torch.stack([these[k][(number * count[k] + t) % len(these[k])] for k, t in zip(place, turn, strict=True)])
        for number in range(SETS)
    ]
    return torch.stack([assigned(found, one)[0].mean() for one in sets])


def _others(label: Tensor, client: int, truth: Truth, least: int) -> list[Tensor]:
    """Return up to `OTHERS` pictures of a label: of other clients, and of the test set if those are fewer than ``least``.

    No model of the run was trained on test rows, so they show exactly what knowing the label is worth. Pictures of other clients may be in
    the models that a view compares, which can only hide a leak. Test rows are drawn, since the first ones of a file may be unlike others.
    """
    others: list[Tensor] = []
    stream = numpy_stream(truth.seed, "attack", "placebo", client)
    for k in map(int, stream.permutation(len(truth.sizes))):
        if k != client and truth.sizes[k]:
            rows = truth.rows(k)
            others += rows.x[rows.y == label]
        if len(others) >= OTHERS:
            break
    if len(others) < least:
        test = truth.test(label)
        others += [*test[torch.from_numpy(stream.permutation(len(test))[:OTHERS])]]
    return others[:OTHERS]


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
