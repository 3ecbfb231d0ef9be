"""Why a mechanism cannot protect the rounds of an algorithm, read from the algorithm's record: what `Limits.why_not` is made of.

Nothing is asked that a plug-in's record does not say as well. Only what the mathematics alone knows is declared (`Algorithm.refuses`, under
"masks" for what hides updates from the server, under "dp" for noise on the level of clients). A mechanism names its reasons by
`first`; what a parameter of the algorithm could change comes after what none can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Round, Task

Reason = Callable[["Algorithm"], str]
"""Why not, of an algorithm; "" where there is no such reason."""


def first(*reasons: Reason) -> Reason:
    """Return the first of some reasons that an algorithm gives."""
    return lambda algorithm: next((why for reason in reasons if (why := reason(algorithm))), "")


def declared(key: str) -> Reason:
    """Return what the algorithm's record itself declares under ``key``."""
    return lambda algorithm: algorithm.refuses.get(key, "")


def trainings(algorithm: Algorithm) -> list[Task]:
    """Return the tasks of an algorithm that are trainings."""
    from fedatlas.algorithm import Task

    return [task for task in algorithm.tasks.values() if isinstance(task, Task)]


def no_sum(algorithm: Algorithm) -> str:
    """An algorithm whose server is told no sum of what clients send."""
    if algorithm.serverless:
        return "no server forms a sum"
    return {"rows": "its clients send their rows, not updates", "nothing": "nothing leaves a client"}.get(
        algorithm.card.sends, ""
    )


def shows_models(algorithm: Algorithm) -> str:
    """A server that looks at what one client's work made of the model; numbers that a question declares it may see."""
    looking = trainings(algorithm)
    seen = [what for what, task in algorithm.tasks.items() if "model" in task.shows or (task.shows and task in looking)]
    if seen and "train" not in seen and algorithm.groups is not None:
        return "its grouping shows the server a model of each client"
    return "its server looks at each client's model" if seen else ""


def hands_on(algorithm: Algorithm) -> str:
    """Models that go from client to client."""
    return "a chain's clients see models without noise" if algorithm.groups is not None else ""


def spares_tensors(algorithm: Algorithm) -> str:
    """Tensors of an update that no transform touches, so that nothing clips or noises them."""
    from fedatlas.algorithm import nothing_beside

    spared = any(task.sealing.beside is not nothing_beside for task in trainings(algorithm))
    return "its clients' batch-norm layers leave without noise" if spared else ""


def adds_beside(algorithm: Algorithm) -> str:
    """Plain numbers that are added up as they are."""
    names = [name for task in trainings(algorithm) for name in task.sums]
    return f"it reads its clients' {' and '.join(names)} without noise" if names else ""


def weighs_by_data(algorithm: Algorithm) -> str:
    """Coefficients that differ between two cohorts of the same clients with other rows."""
    return "weights that follow the data have no fixed sensitivity" if follows_data(algorithm) else ""


def asks_questions(algorithm: Algorithm) -> str:
    """Answers of clients that are no change of a model, and so have no length to be clipped to."""
    trained = trainings(algorithm)
    asked = [what for what, task in algorithm.tasks.items() if task not in trained]
    return (
        f"its clients' answers ('{asked[0]}') are no change of a model, which alone is clipped and noised"
        if asked
        else ""
    )


def begins_early(algorithm: Algorithm) -> str:
    """A set-up with all clients."""
    return "its set-up before round 1 asks all clients without noise" if algorithm.prepare is not None else ""


HIDING = first(no_sum, shows_models, declared("masks"))
"""Why an algorithm has no sum that could be masked or encrypted."""

CHANGES = first(no_sum, declared("compression.clip"), adds_beside, asks_questions)
"""Why clients' updates are not all changes of a model, which a mechanism without noise could take as one vector (`privacy/clipping.py`)."""

CLIENT_LEVEL = first(
    no_sum,
    hands_on,
    shows_models,
    declared("dp"),
    spares_tensors,
    adds_beside,
    weighs_by_data,
    asks_questions,
    begins_early,
)
"""Why noise on the level of clients could not cover all that an algorithm's clients send."""


# ---------------------------------------------------------------------- weights


def follows_data(algorithm: Algorithm) -> bool:
    """Whether weights differ between two cohorts of the same clients with other rows: `weigh` is asked about both."""
    try:
        one, other = (algorithm.weigh(pretended(algorithm, sizes)) for sizes in ((10, 20, 30), (40, 25, 5)))
    except Exception:  # noqa: BLE001  (whatever a plug-in's rule asks a round for that a pretended one has not)
        return True
    return one != other


def by_rows(algorithm: Algorithm, part: str | None = None) -> bool:
    """Whether the weights of a part, or of any, are those of the clients' rows, among those who take part or among all."""
    drawn = pretended(algorithm, (10, 20, 30))
    try:
        found: Any = algorithm.weigh(drawn)
    except Exception:  # noqa: BLE001  (as above)
        return True
    parts = [x for name, x in found.items() if isinstance(x, Mapping) and part in {None, name}] or [found]
    return any(all(given.get(k) == n / whole for k, n in drawn.sizes.items()) for given in parts for whole in (60, 120))


def weighs(algorithm: Algorithm, part: str = "") -> Literal["rows", "equal", ""]:
    """Return how a part of every client's update is weighed: by its rows, equally, or "", as a client cannot work out itself.

    That is where weights follow from what clients showed, or from superclients.
    """
    from fedatlas.privacy.ask_protocol import way_of  # with torch, which the records are read without

    if algorithm.groups is not None:
        return ""
    try:
        drawn, other = (algorithm.weigh(pretended(algorithm, (10, 20, 30), power)) for power in (1, -3))
    except Exception:  # noqa: BLE001  (as above)
        return ""
    if drawn != other:
        return ""
    parts: Any = drawn if all(isinstance(one, Mapping) for one in drawn.values()) else {"": drawn}
    given, sizes = way_of(parts, part), pretended(algorithm, (10, 20, 30)).sizes
    if any(all(given[k] == n / whole for k, n in sizes.items()) for whole in (60, 120)):
        return "rows"
    return "equal" if len({*given.values()}) == 1 else ""


NEARLY = 0.9
"""The share of all rows from which on the mean by rows is nearly the update of the one party that holds them."""


def share_of(algorithm: Algorithm, rows: int, all_rows: int) -> float:
    """Return how much a party with so many of all rows weighs in a mean in which every party's update counts by its rows; else 0."""
    return rows / all_rows if all_rows and weighs(algorithm, "model") == "rows" else 0.0


def pretended(algorithm: Algorithm, sizes: tuple[int, ...], power: int = 1) -> Round:
    """Return a round of clients that hold so many rows, half of all, and showed numbers that follow them, by a ``power``."""
    from fedatlas.algorithm import Round

    held, shown = dict(enumerate(sizes)), [name for task in algorithm.tasks.values() for name in task.shows]
    facts = {k: {name: (n / 10) ** (power * (i + 1)) for i, name in enumerate(shown)} for k, n in held.items()}
    return Round(1, tuple(held), 5, 2 * sum(sizes), held, sum(sizes), facts=facts)
