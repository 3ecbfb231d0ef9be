"""The keys of Federated Forest."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedatlas.registry import Rate, Whole

Depth = Annotated[int, Field(ge=1, le=20)]
Least = Annotated[int, Field(ge=2)]
Share = Annotated[float, Field(gt=0, le=1)]
Task = Literal["classes", "numbers"]


class FederatedForest(NamedTuple):
    """Settings by which the parties grow a forest."""

    trees: int
    depth: int
    features: Literal["sqrt"] | float
    min_samples: int
    ccp_alpha: float
    task: Task | None


def federated_forest(
    *,
    trees: Whole = 100,
    depth: Depth = 10,
    features: Literal["sqrt"] | Share = "sqrt",
    min_samples: Least = 2,
    ccp_alpha: Rate = 0.0,
    task: Task | None = None,
) -> FederatedForest:
    """A random forest over columns of several parties, one of which has the label (Federated Forest).

    trees: number of trees, one per row of metrics.jsonl.
    depth: largest number of splits on a path.
    features: columns of all parties that a tree is grown on, drawn for each tree: "sqrt", the square root of their number, or
        a share of them.
    min_samples: least number of training rows of a node that is split, a row counted as often as it was drawn.
    ccp_alpha: least fall of impurity per leaf that a branch must bring, or it is pruned; 0: nothing is pruned.
    task: "classes" or "numbers" refuses a label of the other kind; None: the label's kind.
    """
    return FederatedForest(trees, depth, features, min_samples, ccp_alpha, task)
