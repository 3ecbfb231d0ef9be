"""From a view of the first round to the gradients that it reveals (A8, A10).

A server sees each update: ``(w - w_k) / lr`` is the gradient of the single row of client k. A masked update consists of ring elements,
which are read as if there were no mask. A client or an outsider sees two global models, whose difference gives the mean gradient. A
successor in a chain sees one client's model, and takes another for the one that it began with (`handed_models`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedatlas.attacks.view_attack import ViewGradients
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.leakage.handed_models import last_received, plain_model, truly_begun
from fedatlas.privacy.mechanisms import made
from fedatlas.record.observed import RoleView, ViewFrame
from fedatlas.setup.resolution import make_algorithm
from fedatlas.setup.transform import make_transform
from fedatlas.transforms.change import decoded, unseal
from fedatlas.tree import Tree, stack

HIDDEN = ("masked", "share")  # of an update whose words are under masks, or are one of two shares
ROUND = 1  # the round whose gradients are taken at the initial model


def read_gradients(
    view: RoleView, config: ExperimentConfig, targets: int, beside: RoleView | None = None
) -> ViewGradients:
    """Return the gradients of the first round in the view, of at most ``targets`` clients; 0 = all. ConfigError if it has none.

    Of a successor: the gradient behind the first model that its view can compare with an earlier one; ``beside``: its predecessor's view.
    """
    if view.role.kind == "successor":
        hop = last_received(view) if beside is None else truly_begun(view, beside)
        change = _gradient(hop.before, hop.after, hop.lr or config.local.lr, config)
        return ViewGradients((hop.client,), stack([change]), hop.before, hop.buffers)
    if view.role.kind == "server":
        return _of_updates(list(view.frames(ROUND)), config, targets)
    outside = view.role.kind == "outsider"  # it sees what a round made, a client what a round begins with
    first = ROUND - 1 if outside else ROUND
    before, after = _told(view, first), _told(view, first + 1)
    change = _gradient(before, after, config.local.lr, config)
    return ViewGradients((-1,), stack([change]), before, Tree())


def _told(view: RoleView, number: int) -> Tree:
    """Return the global model that a client or an outsider received."""
    for frame in view.frames(number):
        body = frame.body.get("message", frame.body)
        if frame.direction in {"down", "published"} and isinstance(body, Mapping) and "model" in body:
            return plain_model(view, body["model"])
    raise ConfigError(
        f"the view of '{view.role}' holds no model of round {number}: a client must be asked in rounds {ROUND} and {ROUND + 1}; "
        "set fraction = 1.0 under [cohort] and rounds = 2."
    )


def _of_updates(frames: Iterable[ViewFrame], config: ExperimentConfig, targets: int) -> ViewGradients:
    """Return the gradient behind each update that was sent up."""
    told: dict[int, ViewFrame] = {}
    first: Mapping[str, Any] = {}
    found: list[tuple[int, Tree]] = []
    algorithm = make_algorithm(config)
    transform = make_transform(config, algorithm)
    for frame in frames:
        if frame.direction == "down" and "message" in frame.body and "model" in frame.body["message"]:
            told[frame.client] = frame
            first = first or frame.body["message"]
        if frame.direction != "up" or frame.what != "train" or (targets and len(found) == targets):
            continue
        base = told[frame.client].body["message"] if frame.client in told else first
        lr = told[frame.client].lr if frame.client in told else config.local.lr
        start = Tree(base["model"])
        words = next((frame.body[name] for name in HIDDEN if name in frame.body), None)
        if words is not None:
            found.append((frame.client, read_masked(words, frame.body["form"], start)))
            continue
        changes = any(
            not made(one.name).whole for one in config.privacy
        )  # protection of an update turns it into a change
        if changes:
            update = decoded(transform, dict(frame.body))
        else:
            update = unseal(transform, algorithm.training("train"), base, dict(frame.body))
        if not isinstance(update.get("model"), Tree):
            raise ConfigError("the view holds encrypted updates: only masked and plain ones can be attacked.")
        after = update["model"] + start if changes else update["model"]
        found.append((frame.client, _gradient(start, after, lr or config.local.lr, config)))
    if not found:
        raise ConfigError(
            f"the view of 'server' holds no update of round {ROUND}: give rounds = [1, 1] under [observe]."
        )
    clients, each = zip(*found, strict=True)
    return ViewGradients(clients, stack(each), Tree(first["model"]), Tree(first.get("buffers") or {}))


def _gradient(before: Tree, after: Mapping[str, Tensor], lr: float, config: ExperimentConfig) -> Tree:
    """Return (w - w') / lr without the weight decay: the gradient of one step."""
    decay = config.local.weight_decay
    return before.map(lambda w, v: ((w.double() - v.double()) / lr - decay * w.double()).float(), after)


def read_masked(hidden: Mapping[str, Tensor], form: Mapping[str, Any], like: Tree) -> Tree:
    """Return the words of one hidden update as numbers, in the places given by its form: all that masks or shares leave readable."""
    places = dict.fromkeys(hidden, 0)
    out = Tree()
    for name, one in form["model"]["of"].items():
        group, size = one["group"], math.prod(one["shape"])
        words = hidden[group][places[group] : places[group] + size]
        places[group] += size
        largest = float(torch.iinfo(words.dtype).max)
        out[name] = (words.double() / largest).reshape(one["shape"]).float()
    return Tree({name: out[name] for name in like})
