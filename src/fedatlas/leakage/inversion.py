"""From a view of the first round to the gradients that it shows, and from these to pictures (A8, A10).

A server sees each update: ``(w - w_k) / lr`` is the gradient of the one row of client k. Of a masked update it has words of a ring, read
as if they were no mask. A client or an outsider sees two global models, whose difference is the mean of all gradients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.attacks.gradient_matching import Found, Problem, deep_leakage, inferred_labels, invert, unfolded
from fedatlas.attacks.inference import Inference
from fedatlas.errors import ConfigError
from fedatlas.federation.sealing import unseal
from fedatlas.leakage.knowledge import LABELS
from fedatlas.leakage.network import Known, known
from fedatlas.privacy.protection import opened
from fedatlas.record.observed import Frame, View
from fedatlas.rng import torch_stream
from fedatlas.setup.resolution import make_algorithm
from fedatlas.setup.transform import make_transform
from fedatlas.tree import Tree, stack

ROUND = 1  # whose gradients are those of the initial model
HELD = 1 << 28  # bytes of gradients of one stack


class Seen(NamedTuple):
    """The gradients of a view."""

    clients: tuple[int, ...]  # whose each is; of a mean one entry, -1
    gradients: Tree  # (T, ...)
    params: Tree
    buffers: Tree


def answer(folder: Path, attack: Inference, seed: int) -> dict[str, np.ndarray]:
    """client (T,), x (T, *shape) in pixels of 0 to 1, label (T,), cost (T,): the best of each target's restarts."""
    facts = known(folder)
    low, high = facts.box()
    seen = gradients(View(folder, attack.role), facts, int(attack.keys["targets"]))
    torch.set_num_threads(1)
    network = unfolded(facts.network(seed))
    names = [name for name, x in network.named_parameters() if x.requires_grad]
    params = Tree({name: seen.params[name] for name in names})
    problem = Problem(network, facts.loss.mean, params, seen.buffers, low, high)
    g = Tree({name: seen.gradients[name] for name in names})
    many, restarts = len(seen.clients), int(attack.keys["restarts"])
    size = max(1, HELD // (32 * params.size() * restarts))
    rng = torch_stream(seed, "attack", attack.name)
    labels = _labels(folder, attack, seen, facts)
    found = []
    for first in range(0, many, size):
        part = slice(first, first + size)
        one = Tree({name: x[part] for name, x in g.items()})
        found.append(_run(attack, problem, one, labels[part], facts, rng))
    return {
        "client": np.array(seen.clients),
        "x": torch.cat([each.x for each in found]).numpy(),
        "label": torch.cat([each.labels for each in found]).numpy(),
        "cost": torch.cat([each.cost for each in found]).numpy(),
    }


def _run(attack: Inference, problem: Problem, g: Tree, labels: Tensor, facts: Known, rng: torch.Generator) -> Found:
    keys: Any = attack.keys
    if attack.name == "dlg":
        if facts.loss.name != "cross_entropy":
            raise ConfigError(
                "attack 'dlg' seeks the label as probabilities, which needs model.loss = 'cross_entropy'."
            )
        how = {key: keys[key] for key in ("iterations", "restarts")}
        return deep_leakage(problem, g, facts.classes, rng, **how)
    how = {key: keys[key] for key in ("iterations", "restarts", "tv", "lr")}
    return invert(problem, g, labels, rng, **how)


def _labels(folder: Path, attack: Inference, seen: Seen, facts: Known) -> Tensor:
    """(T,) as told, else read off the gradient of the last bias. ConfigError where there is no such bias."""
    if attack.keys.get("labels") == "known":
        told = json.loads((folder / LABELS).read_text(encoding="utf-8"))
        return torch.tensor([told[str(k)] for k in seen.clients])
    last = [x for x in seen.gradients.values() if x.dim() == 2 and x.shape[1] == facts.classes]
    if not last:
        raise ConfigError(
            f"attack '{attack.name}': the network has no bias by which a label shows; declare labels = \"known\"."
        )
    return inferred_labels(last[-1])


def gradients(view: View, facts: Known, targets: int) -> Seen:
    """What the view shows of the first round's gradients. ConfigError where it shows none."""
    if view.role.kind == "server":
        return _of_updates(list(view.frames(ROUND)), facts, targets)
    if view.role.kind == "successor":
        raise ConfigError("gradients are inverted from the view of the server, a client or an outsider.")
    before, after = _told(view, ROUND), _told(view, ROUND + 1)
    if view.role.kind == "outsider":
        before, after = _told(view, ROUND - 1), _told(view, ROUND)
    change = _gradient(before, after, facts.config.local.lr, facts)
    return Seen((-1,), stack([change]), before, Tree())


def _told(view: View, number: int) -> Tree:
    """The global model that a client was told, or an outsider was given."""
    for frame in view.frames(number):
        body = frame.body.get("message", frame.body)
        if frame.direction in {"down", "published"} and isinstance(body, Mapping) and "model" in body:
            return Tree(body["model"])
    raise ConfigError(
        f"the view of '{view.role}' holds no model of round {number}: a client has to be asked in rounds {ROUND} and {ROUND + 1}; "
        "write fraction = 1.0 under [cohort] and rounds = 2."
    )


def _of_updates(frames: Iterable[Frame], facts: Known, targets: int) -> Seen:
    """The gradient behind each update that was sent up."""
    told: dict[int, Frame] = {}
    first: Mapping[str, Any] = {}
    found: list[tuple[int, Tree]] = []
    algorithm = make_algorithm(facts.config)
    transform = make_transform(facts.config, algorithm)
    for frame in frames:
        if frame.direction == "down" and "message" in frame.body and "model" in frame.body["message"]:
            told[frame.client] = frame
            first = first or frame.body["message"]
        if frame.direction != "up" or frame.what != "train" or (targets and len(found) == targets):
            continue
        base = told[frame.client].body["message"] if frame.client in told else first
        lr = told[frame.client].lr if frame.client in told else facts.config.local.lr
        start = Tree(base["model"])
        if "masked" in frame.body:
            found.append((frame.client, read_masked(frame.body, start)))
            continue
        changes = any(one.name != "nbafl" for one in facts.config.privacy)  # what protects an update makes it a change
        if changes:
            update = opened(transform, dict(frame.body))
        else:
            update = unseal(transform, algorithm.training("train"), base, dict(frame.body))
        if not isinstance(update.get("model"), Tree):
            raise ConfigError("the view holds updates that are ciphertexts: only masked and plain ones are attacked.")
        after = update["model"] + start if changes else update["model"]
        found.append((frame.client, _gradient(start, after, lr or facts.config.local.lr, facts)))
    if not found:
        raise ConfigError(
            f"the view of 'server' holds no update of round {ROUND}: write rounds = [1, 1] under [observe]."
        )
    clients, each = zip(*found, strict=True)
    return Seen(clients, stack(each), Tree(first["model"]), Tree(first.get("buffers") or {}))


def _gradient(before: Tree, after: Mapping[str, Tensor], lr: float, facts: Known) -> Tree:
    """(w - w') / lr without the weight decay: the gradient of one step."""
    decay = facts.config.local.weight_decay
    return before.map(lambda w, v: ((w.double() - v.double()) / lr - decay * w.double()).float(), after)


def read_masked(update: Mapping[str, Any], like: Tree) -> Tree:
    """The words of one masked update as numbers, in the places that its form gives them: what the masks leave to be read."""
    places = dict.fromkeys(update["masked"], 0)
    out = Tree()
    for name, one in update["form"]["model"]["of"].items():
        group, size = one["group"], math.prod(one["shape"])
        words = update["masked"][group][places[group] : places[group] + size]
        places[group] += size
        largest = float(torch.iinfo(words.dtype).max)
        out[name] = (words.double() / largest).reshape(one["shape"]).float()
    return Tree({name: out[name] for name in like})
