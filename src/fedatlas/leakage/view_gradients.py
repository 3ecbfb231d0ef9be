"""From a view of the first round to the gradients that it reveals (A8, A10).

A server sees each update: from ``(w - w_k) / lr`` follows the gradient of client k's step, or the mean of its steps' (`local_steps`).
A masked update consists of ring elements, which are read as if there were no mask. A client or an outsider sees two global models, whose
difference gives the mean gradient. A successor in a chain sees one client's model, and takes another for the one that it began with
(`handed_models`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.attacks.local_steps import parts_in
from fedatlas.attacks.view_attack import ViewGradients
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.leakage.handed_models import last_received, plain_model, truly_begun
from fedatlas.privacy.mechanisms import made
from fedatlas.record.observed import RoleView, ViewFrame
from fedatlas.setup.attackers import server_rate
from fedatlas.setup.resolution import make_algorithm
from fedatlas.setup.transform import make_transform
from fedatlas.transforms.change import decoded, unseal
from fedatlas.tree import Tree, stack

HIDDEN = ("masked", "share")  # of an update whose words are under masks, or are one of two shares
Rows = Mapping[int, int]
"""Client -> its rows."""
ROUND = 1  # the round whose gradients are taken at the initial model


def read_gradients(
    view: RoleView,
    config: ExperimentConfig,
    targets: int,
    beside: RoleView | None = None,
    number: int = ROUND,
    rows: Rows | None = None,
) -> ViewGradients:
    """Return the gradients of a round in the view, of at most ``targets`` clients; 0 = all. ConfigError if it has none.

    ``rows``: those of each client, from which its steps follow; an update of a client without them is read as that of one step.
    Of a successor: the gradient behind the first model that its view can compare with an earlier one; ``beside``: its predecessor's view.
    """
    if view.role.kind == "successor":
        hop = last_received(view) if beside is None else truly_begun(view, beside)
        change = _gradient(hop.before, hop.after, hop.lr or config.local.lr, config, rows_of(rows, hop.client))
        return ViewGradients((hop.client,), stack([change]), hop.before, hop.buffers)
    if view.role.kind == "server":
        return _of_updates(list(view.frames(number)), config, targets, number, rows)
    outside = view.role.kind == "outsider"  # it sees what a round made, a client what a round begins with
    first = number - 1 if outside else number
    before, after = _told(view, first), _told(view, first + 1)
    change = _gradient(before, after, config.local.lr, config, [*(rows or {}).values()], server_rate(config))
    return ViewGradients((-1,), stack([change]), before, Tree())


class Cohort(NamedTuple):
    """A round as it is told to who sees only its mean."""

    clients: int
    rows: int


def read_rounds(
    view: RoleView, config: ExperimentConfig, last: int, told: Mapping[int, Cohort], own: int = 0
) -> Iterator[tuple[int, ViewGradients]]:
    """Yield (round, its gradients) for each round up to ``last`` (0 = the end) whose gradients the view reveals, with the model then.

    A server sees each update, read as that of one step. A client or an outsider sees the mean of a round: the step between two models over
    the server's rate. A client takes its own part from it; ``own``: its rows. ``told``: the rounds that it is told about. ConfigError for
    a view of none.
    """
    within = [number for number in view.rounds if number >= ROUND and (not last or number <= last)]
    if view.role.kind == "server":
        for number in within:
            yield number, read_gradients(view, config, 0, number=number)
        return
    outside = view.role.kind == "outsider"
    held = {n for n in view.rounds if _model(view, n) is not None}
    usable = [n for n in within if {n - outside, n + 1 - outside} <= held]
    if not usable:
        raise ConfigError(
            f"the view of '{view.role}' holds no two models that follow each other: set rounds = [0, 0] under [observe], and for a client "
            "a larger fraction under [cohort]; then run again."
        )
    for number in usable:
        seen = read_gradients(view, config, 0, number=number)
        mean = seen.gradients
        if view.role.kind == "client" and number in told:
            mean = _without_own(view, config, mean, number, told[number], own)
        yield number, seen._replace(gradients=mean)


def _without_own(view: RoleView, config: ExperimentConfig, mean: Tree, number: int, cohort: Cohort, own: int) -> Tree:
    """Return the mean of a round's other clients; zeros if there are none."""
    frames = list(view.frames(number))
    if any(name in frame.body for frame in frames for name in HIDDEN):
        raise ConfigError(f"the view of '{view.role}' holds its own update under masks: attack that of 'outsider'.")
    if any(frame.direction == "peer" for frame in frames):
        raise ConfigError(
            f"the view of '{view.role}' is that of a chain, in which no client has a part of its own: attack that of 'outsider'."
        )
    mine = _of_updates(frames, config, 1, number).gradients
    share = 1 / cohort.clients if config.algorithm.parameters().get("weights") == "uniform" else own / cohort.rows
    return (1 / (1 - share)) * (mean - share * mine) if share < 1 else 0.0 * mean


def _told(view: RoleView, number: int) -> Tree:
    """Return the global model that a client or an outsider received in a round. ConfigError if it received none."""
    if (found := _model(view, number)) is not None:
        return found
    raise ConfigError(
        f"the view of '{view.role}' holds no model of round {number}: a client must be asked in rounds {ROUND} and {ROUND + 1}; "
        "set fraction = 1.0 under [cohort] and rounds = 2."
    )


def _model(view: RoleView, number: int) -> Tree | None:
    """Return the global model that a client or an outsider received in a round, or None. ConfigError if it is encrypted."""
    for frame in view.frames(number):
        body = frame.body.get("message", frame.body)
        if frame.direction in {"down", "published"} and isinstance(body, Mapping) and "model" in body:
            return plain_model(view, body["model"])
    return None


def _of_updates(
    frames: Iterable[ViewFrame],
    config: ExperimentConfig,
    targets: int,
    number: int = ROUND,
    rows: Rows | None = None,
) -> ViewGradients:
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
        gradient = _gradient(start, after, lr or config.local.lr, config, rows_of(rows, frame.client))
        found.append((frame.client, gradient))
    if not found:
        raise ConfigError(
            f"the view of 'server' holds no update of round {number}: give rounds = [{number}, {number}] under [observe]."
        )
    clients, each = zip(*found, strict=True)
    return ViewGradients(clients, stack(each), Tree(first["model"]), Tree(first.get("buffers") or {}))


def rows_of(rows: Rows | None, client: int) -> list[int]:
    """Return the rows of a client as a list, empty if they are not known."""
    return [rows[client]] if rows is not None and client in rows else []


def _gradient(
    before: Tree,
    after: Mapping[str, Tensor],
    lr: float,
    config: ExperimentConfig,
    rows: Sequence[int] = (),
    server_lr: float = 1.0,
) -> Tree:
    """Return the gradient of one step, or the mean over the steps of clients with so many ``rows`` each."""
    start = before.map(lambda w: w.double())
    change = start.map(lambda w, v: (w - v.double()) / (lr * server_lr), after)
    return parts_in(config.local, lr, rows).gradient(change, start).map(lambda g: g.float())


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
