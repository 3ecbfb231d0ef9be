"""The models of a chain as the successor of a client sees them (G8): the one handed on, and one for what its predecessor began with.

(a) the true one: the client before colludes, or the predecessor is first in its chain, and the server's model is public;
(b) the model that the same successor last received before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.errors import ConfigError
from fedatlas.federation.closed_models import is_closed
from fedatlas.record.observed import RoleView, ViewFrame
from fedatlas.tree import Tree


class Hop(NamedTuple):
    """A client's model before and after its training, as its successor has them."""

    client: int
    before: Tree
    buffers: Tree
    after: Tree
    lr: float | None


def truly_begun(view: RoleView, begun: RoleView) -> Hop:
    """Return the first hop of the successor's ``view``, with the model that the client ``begun`` with. ConfigError without one."""
    for number in (one for one in view.rounds if one in begun.rounds):
        for frame in _handed(view, number):
            told = [one for one in begun.frames(number) if holds_model(one) and one.ask[3] < frame.ask[3]]
            if told:
                return _hop(view, told[-1], frame)
    raise _nothing_handed(view)


def last_received(view: RoleView) -> Hop:
    """Return the first hop for which the same successor had received a model before, and that model. ConfigError without one."""
    last: dict[int, ViewFrame] = {}
    for number in view.rounds:
        for frame in filter(holds_model, view.frames(number)):
            if frame.sender == view.role.client and frame.client in last:
                return _hop(view, last[frame.client], frame)
            last[frame.client] = frame
    raise ConfigError(
        f"no successor of client {view.role.client} had received a model before: record more rounds, or set start = 'true'."
    )


def newest_handed(view: RoleView) -> Mapping[str, Tensor]:
    """Return the newest model that the client handed on, with its buffers. ConfigError without one."""
    for number in reversed(view.rounds):
        for frame in _handed(view, number)[-1:]:
            return {**received(view, frame), **(frame.body["message"].get("buffers") or {})}
    raise _nothing_handed(view)


def holds_model(frame: ViewFrame) -> bool:
    """Return whether a frame tells a client a model to train."""
    return frame.what == "train" and "model" in frame.body.get("message", {})


def received(view: RoleView, frame: ViewFrame) -> Tree:
    """Return the model with which a client of a chain begins; next to the server's it is named ``start``."""
    message: Mapping[str, Any] = frame.body["message"]
    return plain_model(view, message.get("start", message["model"]))


def plain_model(view: RoleView, model: Mapping[str, Tensor]) -> Tree:
    """Return a model of a view; ConfigError for an encrypted one."""
    if is_closed(model):
        raise ConfigError(f"the view of '{view.role}' holds encrypted models: only plain ones can be attacked.")
    return Tree(model)


def _nothing_handed(view: RoleView) -> ConfigError:
    return ConfigError(
        f"client {view.role.client} handed no model on in the recorded rounds: record more of them, or name another client."
    )


def _handed(view: RoleView, number: int) -> list[ViewFrame]:
    return [frame for frame in view.frames(number) if holds_model(frame) and frame.sender == view.role.client]


def _hop(view: RoleView, before: ViewFrame, after: ViewFrame) -> Hop:
    assert view.role.client is not None
    buffers = Tree(before.body["message"].get("buffers") or {})
    return Hop(view.role.client, received(view, before), buffers, received(view, after), after.lr)
