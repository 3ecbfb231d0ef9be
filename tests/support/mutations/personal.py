"""Faults of clustered and personalised methods: the wrong model picked, forgotten, pulled away, or given away."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from fedatlas.algorithm import Algorithm, Data, Facts, Message, Network, State, Task, Update, Work, start_from_model
from fedatlas.algorithms import ALGORITHMS
from fedatlas.tree import Tree
from mutations import Build, Mutation, oracle
from test_personal import batch_norm_stays

# The package names the builders as their files are called.
batch_norm, fesem, ifca = (import_module(f"fedatlas.algorithms.{name}") for name in ("batch_norm", "fesem", "ifca"))
BEST = ifca.best_fit
SPLITS: dict[str, Any] = {"eps1": 9.0, "eps2": 0.0, "after_round": 0, "problem": {"m": 5}}


def personal_task(**changed: Any) -> Build:
    """Ditto with fields of its task ``personal`` replaced."""

    def build(**parameters: Any) -> Algorithm:
        made = ALGORITHMS["ditto"](**parameters)
        return made._replace(tasks={**made.tasks, "personal": made.tasks["personal"]._replace(**changed)})

    return build


def pushed_away(**parameters: Any) -> Algorithm:
    right = ALGORITHMS["ditto"](**parameters).tasks["personal"].direction
    assert right is not None

    def direction(g: Tree, v: Tree, message: Message, client: State, facts: Facts) -> Tree:
        return g - (right(g, v, message, client, facts) - g)

    return personal_task(direction=direction)(**parameters)


def worst_fit(model: Network, data: Data, message: Message, client: State) -> Any:
    losses = [
        BEST(model, data, {**message, "models": {"0": own}}, client)["loss"] for own in message["models"].values()
    ]
    cluster = max(range(len(losses)), key=losses.__getitem__)
    return {"cluster": cluster, "loss": losses[cluster]}


def picks_the_worst(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ifca, "best_fit", worst_fit)


def centres_of_one_tensor(patch: pytest.MonkeyPatch) -> None:
    right = fesem.squared_distances
    one = lambda trees: [Tree({"head.bias": tree["head.bias"]}) for tree in trees]  # noqa: E731
    patch.setattr(fesem, "squared_distances", lambda a, b: right(one(a), one(b)))


def statistics_are_shared(patch: pytest.MonkeyPatch) -> None:
    """What the client keeps has its scale and shift, not its running statistics."""
    right = batch_norm.kept

    def kept(task: Task) -> Task:
        made = right(task)

        def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
            return made.finish(params, work, message, client, facts._replace(buffers={}))

        return made._replace(finish=finish)

    patch.setattr(batch_norm, "kept", kept)


MUTATIONS = [
    Mutation(
        "cfl",
        "test and means without weights, as the authors' code has them",
        lambda **keys: ALGORITHMS["cfl"](**{**keys, "weights": "uniform"}),
        (oracle("cfl", **SPLITS),),
    ),
    Mutation(
        "fesem",
        "distances over one tensor",
        ALGORITHMS["fesem"],
        (oracle("fesem", clusters=4, problem={"m": 2, "lr": 0.5}),),
        centres_of_one_tensor,
    ),
    Mutation("ifca", "the model that fits worst is picked", ALGORITHMS["ifca"], (oracle("ifca"),), picks_the_worst),
    Mutation("ditto", "own models pushed away from the global one", pushed_away, (oracle("ditto", lam=2.0),)),
    Mutation("ditto", "own models are reset every round", personal_task(start=start_from_model), (oracle("ditto"),)),
    Mutation("fedbn", "running statistics are shared", ALGORITHMS["fedbn"], (batch_norm_stays,), statistics_are_shared),
]
