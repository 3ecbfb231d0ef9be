"""Federated Forest as a scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.algorithm import State
from fedatlas.vertical.forest.active import outputs
from fedatlas.vertical.forest.files import export, loaded
from fedatlas.vertical.forest.protocol import begin, due, grow, infer, questions
from fedatlas.vertical.forest.settings import FederatedForest, federated_forest
from fedatlas.vertical.forest.words import KNOWN, SETS, WORDS
from fedatlas.vertical.scheme import Scheme, Trial
from fedatlas.vertical.trees.files import reads
from fedatlas.vertical.trees.importance import brought, importance, own

DRAWS = 8  # trees that a dry run tries: what one sends depends on whose columns are drawn for it


def said(how: FederatedForest, classes: int) -> str:
    """Return a line with the number of trees and their depth."""
    return (
        f"{how.trees} tree{'s' if how.trees != 1 else ''} of depth {how.depth}, labels in a code that protects nobody"
    )


def unfit(how: FederatedForest, task: str, classes: int) -> str:
    """Return why the key ``task`` does not fit a label, or ""."""
    return "" if how.task in (None, task) else f"task = '{how.task}', and the label is of {task}"


def warnings(how: FederatedForest) -> Sequence[str]:
    """Return what is said before a run."""
    return (f"federated_forest: {KNOWN} {SETS}",)


def facts(server: State) -> Mapping[str, Any]:
    """Return the nodes of each tree by owner."""
    return {"trees": server["boost"]["nodes"]}


FEDERATED_FOREST = Scheme(
    name="federated_forest",
    words=WORDS,
    build=federated_forest,
    rounds="trees",
    said=said,
    unfit=unfit,
    refusal=lambda how: "",
    labels_known=True,
    warnings=warnings,
    weighted=False,
    questions=questions,
    due=due,
    trial=lambda how: Trial(turns=DRAWS),
    begin=begin,
    step=grow,
    end=importance,
    outputs=outputs,
    facts=facts,
    brought=brought,
    own=own,
    export=export,
    keys=(("records", "leaves"), ("trees", "least")),
    reads=reads,
    load=loaded,
    predict=infer,
)
