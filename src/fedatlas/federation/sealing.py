"""Which updates a transform seals after the client's work and opens before the server reduces them (`transforms.change`)."""

from __future__ import annotations

from fedatlas.algorithm import SERVER, Message, Question, Task, Transform
from fedatlas.federation.link import Request
from fedatlas.tree import Tree

MEMORY = "$memory"  # stored with the algorithm's own state of a client: task -> memory of the transform


def sealed(transform: Transform | None, task: Task | Question, request: Request) -> bool:
    """Whether the update is sealed. Updates of rounds that reach the server are; answers and sums such as class counts are not.

    A custom reducer receives each update opened.

    A set-up (round 0) is sent whole: a part left out of a model that is sent once would never arrive.
    """
    own = request.word is None and request.reduce not in {"sum", "neighbours"}  # a protected update takes another path
    to_server = not request.peer and (own or request.reduce in {"mean", "each"}) and request.client != SERVER
    return transform is not None and isinstance(task, Task) and request.round > 0 and to_server


def told(message: Message, anchor: Tree | None) -> Message:
    """Return the message of a client whose update will be sealed: its own, plus the model that the server knows (`Route.anchors`)."""
    return message if anchor is None else {**message, "anchor": anchor}
