"""Reasons why a mechanism cannot protect the rounds of an algorithm, read from the algorithm's record. `Limits.why_not` uses them.

Every plug-in's record holds what is asked here. Only facts known to mathematics are declared (`Algorithm.refuses`): under "masks" for
mechanisms that hide updates from the server, under "dp" for noise at client level. A mechanism names its reasons by `first`. Reasons
that a parameter of the algorithm could remove come last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Round, Task

Reason = Callable[["Algorithm"], str]
"""Why a mechanism cannot protect an algorithm; "" if this reason does not apply."""


def first(*reasons: Reason) -> Reason:
    """Combine reasons: return the first one that applies to an algorithm."""
    return lambda algorithm: next((why for reason in reasons if (why := reason(algorithm))), "")


def declared(key: str) -> Reason:
    """Return the reason that the algorithm's record declares under ``key``."""
    return lambda algorithm: algorithm.refuses.get(key, "")


def trainings(algorithm: Algorithm) -> list[Task]:
    """Return the tasks of an algorithm that train."""
    from fedatlas.algorithm import Task

    return [task for task in algorithm.tasks.values() if isinstance(task, Task)]


def no_sum(algorithm: Algorithm) -> str:
    """Object to an algorithm whose server receives no sum of the clients' updates."""
    if algorithm.serverless:
        return "no server forms a sum"
    return {"rows": "its clients send their rows, not updates", "nothing": "nothing leaves a client"}.get(
        algorithm.card.sends, ""
    )


def shows_models(algorithm: Algorithm) -> str:
    """Object to a server that looks at the model of one client's work. It may see numbers that a question declares."""
    looking = trainings(algorithm)
    seen = [what for what, task in algorithm.tasks.items() if "model" in task.shows or (task.shows and task in looking)]
    if seen and "train" not in seen and algorithm.groups is not None:
        return "its grouping shows the server a model of each client"
    return "its server looks at each client's model" if seen else ""


def hands_on(algorithm: Algorithm) -> str:
    """Object to models that go from client to client."""
    return "a chain's clients see models without noise" if algorithm.groups is not None else ""


def spares_tensors(algorithm: Algorithm) -> str:
    """Object to tensors of an update that no transform touches, since nothing clips or noises them."""
    from fedatlas.algorithm import nothing_beside

    spared = any(task.sealing.beside is not nothing_beside for task in trainings(algorithm))
    return "its clients' batch-norm layers leave without noise" if spared else ""


def adds_beside(algorithm: Algorithm) -> str:
    """Object to plain numbers that are summed as they are."""
    names = [name for task in trainings(algorithm) for name in task.sums]
    return f"it reads its clients' {' and '.join(names)} without noise" if names else ""


def weighs_by_data(algorithm: Algorithm) -> str:
    """Object to coefficients that differ between two cohorts of the same clients with other rows."""
    return "weights that follow the data have no fixed sensitivity" if follows_data(algorithm) else ""


def asks_questions(algorithm: Algorithm) -> str:
    """Object to answers that are not changes of a model and so have no length to be clipped to."""
    trained = trainings(algorithm)
    asked = [what for what, task in algorithm.tasks.items() if task not in trained]
    return (
        f"its clients' answers ('{asked[0]}') are no change of a model, which alone is clipped and noised"
        if asked
        else ""
    )


def begins_early(algorithm: Algorithm) -> str:
    """Object to a set-up with all clients."""
    return "its set-up before round 1 asks all clients without noise" if algorithm.prepare is not None else ""


def answers_from_rows(algorithm: Algorithm) -> str:
    """Object to answers to questions about rows, which have no noise."""
    trained = trainings(algorithm)
    asked = [what for what, task in algorithm.tasks.items() if task not in trained and task.data != "none"]  # type: ignore[union-attr]
    return f"its clients' answers ('{asked[0]}') follow their rows without noise" if asked else ""


def looks_beside_steps(algorithm: Algorithm) -> str:
    """Object to training that reads rows outside the gradients of its steps."""
    for task in trainings(algorithm):
        if task.survey is not None:
            return "its clients look at their rows outside the noisy steps as well"
        if task.options.patience is not None:
            return "its clients' rows decide when they stop, without noise"
        if task.options.balanced:
            return "which rows its clients train on follows their labels"
        if task.options.solver.pass_steps > 1 or task.options.public is not None:
            return "its clients' batches are not drawn from their rows as the account assumes"
    return ""


def keeps_unnoised(algorithm: Algorithm) -> str:
    """Object to training that sends nothing, and so has no noise, but changes a state that is later part of what is sent."""
    silent = [task for task in trainings(algorithm) if task.sealing.silent]
    later = [task for task in algorithm.tasks.values() if task.stateful and task not in silent]
    return "what its clients keep between rounds is trained without noise, and sent later" if silent and later else ""


HIDING = first(no_sum, shows_models, declared("masks"))
"""Why an algorithm has no sum that could be masked or encrypted."""

ELSE = "with reveal = 'clients' the server holds a ciphertext"


def computes_at_server(algorithm: Algorithm) -> str:
    """Object to a server that computes with the mean or the model, which it cannot with a ciphertext."""
    from fedatlas.algorithm import global_model, take_mean
    from fedatlas.tree import Tree

    plain = algorithm.server_update is take_mean and algorithm.models is global_model and algorithm.card.figures is None
    try:
        state = algorithm.server_init({"global": Tree()}, {})
        plain = plain and algorithm.broadcast(state, 0)["model"] is state["model"]
    except Exception:  # noqa: BLE001  (a server that needs more than the model)
        plain = False
    return "" if plain else f"{ELSE}, and its server computes with the models"


def more_than_a_mean(algorithm: Algorithm) -> str:
    """Object to rounds that are more than one training for one mean of models, with weights that are known before it."""
    from fedatlas.algorithm import Sealing, Task

    own = (algorithm.rounds, algorithm.prepare, algorithm.groups, algorithm.clusters, algorithm.personal)
    task = algorithm.tasks.get("train") if len(algorithm.tasks) == 1 else None
    alone = isinstance(task, Task) and not (task.shows or task.sums or task.reshapes) and task.sealing == Sealing()
    if not alone or not weighs(algorithm) or any(one is not None for one in own):
        return f"{ELSE}, and its rounds need more than one plain mean of models"
    return ""


CLOSED_MODEL = first(HIDING, more_than_a_mean, computes_at_server)
"""Why an algorithm's server cannot do with a ciphertext in the model's place."""

CHANGES = first(no_sum, declared("compression.clip"), adds_beside, asks_questions)
"""Why not all updates are changes of a model, which a mechanism without noise could take as one vector (`privacy/clipping.py`)."""

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
"""Why noise at client level could not cover everything that an algorithm's clients send."""

RECORD_LEVEL = first(
    no_sum,
    hands_on,
    shows_models,
    spares_tensors,
    adds_beside,
    answers_from_rows,
    begins_early,
    looks_beside_steps,
    keeps_unnoised,
)
"""Why noise inside local steps could not cover all that an algorithm's clients send. Weights by rows are fine: row counts are public."""


# ---------------------------------------------------------------------- weights


def follows_data(algorithm: Algorithm) -> bool:
    """Whether weights differ between two cohorts of the same clients with other rows. `weigh` is called for both."""
    try:
        one, other = (algorithm.weigh(pretended(algorithm, sizes)) for sizes in ((10, 20, 30), (40, 25, 5)))
    except Exception:  # noqa: BLE001  (a plug-in's rule may ask a round for anything that a pretended one lacks)
        return True
    return one != other


def by_rows(algorithm: Algorithm, part: str | None = None) -> bool:
    """Whether the weights of a part, or of any, are the clients' shares of rows, among those who take part or among all."""
    drawn = pretended(algorithm, (10, 20, 30))
    try:
        found: Any = algorithm.weigh(drawn)
    except Exception:  # noqa: BLE001  (as above)
        return True
    parts = [x for name, x in found.items() if isinstance(x, Mapping) and part in {None, name}] or [found]
    return any(all(given.get(k) == n / whole for k, n in drawn.sizes.items()) for given in parts for whole in (60, 120))


def weighs(algorithm: Algorithm, part: str = "") -> Literal["rows", "equal", ""]:
    """Return how a part of every client's update is weighted: "rows", "equal", or "" if a client cannot work it out.

    It cannot if weights follow from what clients showed, or from superclients.
    """
    from fedatlas.privacy.ask_protocol import way_of  # needs torch; the records are read without it

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
"""The share of all rows from which the mean by rows is nearly the update of the party that holds them."""


def share_of(algorithm: Algorithm, rows: int, all_rows: int) -> float:
    """Return the weight of a party with ``rows`` of all rows in a mean by rows; 0 for any other mean."""
    return rows / all_rows if all_rows and weighs(algorithm, "model") == "rows" else 0.0


def pretended(algorithm: Algorithm, sizes: tuple[int, ...], power: int = 1) -> Round:
    """Return a round of clients with these rows, half of all rows, whose shown numbers follow the rows by a ``power``."""
    from fedatlas.algorithm import Round

    held, shown = dict(enumerate(sizes)), [name for task in algorithm.tasks.values() for name in task.shows]
    facts = {k: {name: (n / 10) ** (power * (i + 1)) for i, name in enumerate(shown)} for k, n in held.items()}
    return Round(1, tuple(held), 5, 2 * sum(sizes), held, sum(sizes), facts=facts)
