"""``[guard]``: rows of the server's own decide whether the model of a round is committed.

A model is rejected if its score is more than ``tol`` below the best of the last ten committed versions, or if the round left a
number in the server's state that is not finite. It is compared
with the best of several, not with the last, so that losses below ``tol`` do not add up from round to round. A version has
the number of its round. The score of a rejected model counts nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.aggregation.changes import finite, leaves
from fedatlas.algorithm import State
from fedatlas.course.metric_rows import said_of
from fedatlas.errors import ConfigError
from fedatlas.metrics.metric import fitting
from fedatlas.model import Model
from fedatlas.record.checkpoint import rollbacks_of
from fedatlas.setup.assembly import Setup
from fedatlas.setup.guard import METRIC, guards

BEST_OF = 10  # committed versions


class GuardState(NamedTuple):
    """The state of a guard between two rounds, as a checkpoint holds it."""

    version: int  # the round whose model is the model
    scores: tuple[float, ...]  # of the last committed versions, oldest first
    rollbacks: tuple[tuple[int, int], ...] = ()  # oldest first: the round number that it took, and its version

    def plain(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        last = {"rollback": self.rollbacks[-1] if self.rollbacks else None}
        every = {"rollbacks": self.rollbacks} if self.rollbacks else {}
        return {"version": self.version, "scores": self.scores, **last, **every}


class CommitGuard:
    """Judges the model of each round, and knows which version is the model."""

    def __init__(self, setup: Setup) -> None:
        how = setup.config.guard
        assert how is not None
        self.setup, self.tol, self.rows = setup, how.tol, setup.rows.common("guard")
        self.drifted = how.drifted
        d = setup.dataset
        self.metric = fitting(how.metric or METRIC[d.task], d.task, d.name, "guard.metric")
        self.sign = -1.0 if self.metric.lower_is_better else 1.0
        self.standing = self.began = GuardState(0, ())  # began: as at the start of the round
        self.record: dict[str, Any] | None = None  # of the round's version, until it is saved

    def score(self, model: Model) -> float | None:
        """Return the metric of a model on the guard's rows; None if the model is not finite, or the metric undefined."""
        if not model.finite():
            return None
        scores = model.scores(self.rows.x, self.rows.y)
        return self.metric.value(said_of(self.setup, self.metric, scores, self.rows, model))

    def decide(self, number: int, model: Model, *, ruined: bool = False) -> dict[str, Any]:
        """Judge the model of a round. Return its row's fields; ``committed`` is False if the model is rejected.

        ``ruined``: whether the round put NaN or infinity into the rest of the server's state.
        """
        drift, self.began = self.setup.config.drift, self.standing
        version, scores, _ = self.began
        if self.drifted and drift is not None and number >= drift.at:
            self.rows = self.setup.rows.in_round(number).common("guard")
            scores = scores if version >= drift.at else ()  # those were on other rows
        score = None if ruined else self.score(model)
        if score is None and not self.began.scores:
            raise ConfigError(
                f"guard.metric = '{self.metric.name}' is undefined on the guard's rows: take more, or another."
            )
        best = max((self.sign * x for x in scores), default=None)
        kept = score is not None and (best is None or self.sign * score >= best - self.tol)
        committed = self.tol == float("inf") or kept
        if committed:
            held = scores if score is None else (*scores, score)
            self.standing = self.began._replace(version=number, scores=held[-BEST_OF:])
        about = {"version": number, "from": version, "score": score, "committed": committed, "time": time.time()}
        self.record = {**about, "scores": list(self.standing.scores)}
        return {"committed": committed, "version": self.standing.version, "score": score}

    def rejection(self, number: int) -> str:
        """Return the notice of a rejected round."""
        version, scores, _ = self.standing
        score = None if self.record is None else self.record["score"]
        found = "numbers that are not finite" if score is None else f"{self.metric.words} {score:.4f}"
        best = self.sign * max(self.sign * x for x in scores)
        return (
            f"Round {number} is rejected: {found} on the guard's rows, best of the last {BEST_OF} versions {best:.4f}. "
            f"Version {version} stays."
        )

    def passed_over(self) -> dict[str, Any]:
        """Return the fields of a row whose round made no model."""
        return {"committed": None, "version": self.standing.version, "score": None}

    def undo(self) -> None:
        """Take back the decision of a round that diverged, if there was one."""
        if self.record is not None:
            self.standing, self.record = self.began, None

    def taken(self) -> dict[str, Any] | None:
        """Return the record of the version that is to be saved, once."""
        record, self.record = self.record, None
        return record

    def plain(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self.standing.plain()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from the state in a checkpoint."""
        self.standing = GuardState(kept["version"], tuple(kept["scores"]), rollbacks_of(kept))

    def since_rollback(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the rows by which a run may end early: all; after a rollback, the version's and those after it.

        The version's row counts as that of the round number that the rollback took.
        """
        if not self.standing.rollbacks:
            return rows
        at, version = self.standing.rollbacks[-1]
        first = [{**row, "round": at} for row in rows if row["round"] == version]
        return [*first, *(row for row in rows if row["round"] > at)]

    def summary(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return ``guard`` of the summary."""
        how = self.setup.config.guard
        assert how is not None
        return {
            "rows": self.rows.n,
            "from": how.source,
            "metric": self.metric.name,
            "tol": None if self.tol == float("inf") else self.tol,
            **({} if self.setup.config.drift is None else {"drifted": bool(how.drifted)}),
            "version": self.standing.version,
            "committed": sum(row["committed"] is True for row in rows),
            "rejected_rounds": [row["round"] for row in rows if row["committed"] is False],
            **({"rollbacks": [list(one) for one in self.standing.rollbacks]} if self.standing.rollbacks else {}),
        }


def ruined(before: State, after: State) -> bool:
    """Return whether a server's state has a NaN or an infinity that it did not have before the round."""
    return _finite(before) and not _finite(after)


def _finite(state: State) -> bool:
    floats = (x for _, x in leaves(state) if isinstance(x, Tensor) and x.is_floating_point())
    return all(map(finite, floats))


def guard_of(setup: Setup) -> CommitGuard | None:
    """Return the guard of a run; None without one."""
    return CommitGuard(setup) if guards(setup.config, setup.algorithm) else None
