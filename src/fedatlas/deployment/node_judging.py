"""Judging at the nodes, if the server has no test rows: each node judges the model and returns sums.

The total of the sums equals judging the pooled rows.

If the server sees only sums, either all nodes with test rows judge a model, or none. The totals by class and of the
target are the same for every model. So if one node were missing from the second of two sums, their difference would be
its answer. For this reason a node's answers are opened only in sums of the same nodes (`node_rows.digest_of`). They
also count every row alike: if weights differed between nodes, each node's rows per class could be read from the digits
of the sums.

The sums are those that figures are made of (`metrics.quality`). For classes they are the weight of the rows that are
truly c, predicted c and both, and the loss. For numbers they are the errors and the moments of the target, standardised
as the model learns it. Under secure aggregation they are masked like everything else. AUC needs ranks and intervals
need single rows, so sums cannot give them and they are left out, except intervals of accuracy (`judged_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.algorithm import Message, Question, State, Update
from fedatlas.course.evaluation import ClientModel, Evaluator, NotJudged
from fedatlas.data.batches import Rows
from fedatlas.deployment.judged_sums import sure_of
from fedatlas.errors import ConfigError, first_line
from fedatlas.grammar import Form
from fedatlas.metrics import quality
from fedatlas.model import Model
from fedatlas.setup.assembly import Setup, first_server
from fedatlas.tree import Tree

JUDGE = "judge"
ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)
"""Errors raised by a reply of the right form whose values cannot be used in a computation."""
ROUNDING = 1e-12  # share of a sum of squares that rounding can explain
ALIKE = (
    "The nodes judge under masks, which counts every test row alike: data.weight weighs rows in training only. For weighted figures "
    "start the server with --test FILE."
)
ONE = (
    "The nodes judge under masks, which open one sum of judgements a round: only the first of the algorithm's models is judged. For the "
    "others start the server with --test FILE."
)
UNNOISED = "under '{}' nodes do not judge, since figures of their rows would leave without noise: start the server with --test FILE."
Ask = Callable[[Mapping[str, Any], Sequence[int], Callable[[Update], dict[str, Any]]], dict[str, Any]]
"""(message, nodes, reader) -> the reader's result on the sum of their answers; NotJudged is passed on."""


def with_judging(setup: Setup, answer: Callable[..., Any] | None = None) -> Setup:
    """Return the set-up of parties that can be asked to judge. ``answer``: the function by which a node judges.

    ConfigError under noise, which does not cover figures.
    """
    if (how := setup.bench.protection) is not None and how.noising is not None:
        raise ConfigError(UNNOISED.format(how.mechanisms[-1].name))
    question = Question(answer or _nobody, data="none", tells_labels=True)
    algorithm, config = setup.bench.algorithm, setup.config
    judged = lambda number: number in (0, config.rounds) or config.evaluation.judges(number)  # noqa: E731
    models = len(algorithm.models(first_server(setup)))
    form = Form(JUDGE, "sum", most=1 if masked(setup) else models, when=judged, whole=True)
    asks = algorithm.grammar and algorithm.grammar.also(form)
    algorithm = algorithm._replace(tasks={**algorithm.tasks, JUDGE: question}, asks=asks)
    alike = (ALIKE,) if masked(setup) and setup.dataset.train.weight is not None else ()
    one = (ONE,) if masked(setup) and models > 1 else ()
    return setup._replace(bench=setup.bench._replace(algorithm=algorithm), notices=(*setup.notices, *alike, *one))


def _nobody(*args: Any) -> Any:
    raise NotImplementedError("the server holds no rows to judge by.")


def judges(setup: Setup) -> Callable[..., Any]:
    """Make the function by which a node judges."""
    rows = setup.rows.common("test")
    if masked(setup):
        rows = rows._replace(weight=None)

    def answer(network: Any, data: Any, message: Message, state: State, session: Any) -> tuple[Update, State, Any]:
        model = setup.models().initial()[""].load(message["judged"])
        return sums_of(setup, model, rows), state, session

    return answer


def masked(setup: Setup) -> bool:
    """Return whether the server sees judgements only in sums.

    Then all rows count alike, even if training weighs them.
    """
    return setup.bench.protection is not None


def sums_of(setup: Setup, model: Model, rows: Rows) -> Update:
    """Return the sums of a model on rows, float64."""
    d, found = setup.dataset, model.scores(rows.x, rows.y)
    if d.task != "numbers":
        skip = d.ignore if d.task == "tokens" else None
        sums = quality.class_sums(found.predicted, rows.y, found.losses, d.classes, rows.weight, skip)
        arrays = {"true": sums.true, "predicted": sums.predicted, "hits": sums.hits, "loss": [sums.loss]}
        return {name: torch.as_tensor(x, dtype=torch.float64) for name, x in arrays.items()}
    y = rows.y.double().reshape(-1)
    w = torch.ones_like(y) if rows.weight is None else rows.weight.double()
    error = y - found.predicted.double().reshape(-1)
    parts = (torch.ones_like(y), y, y**2, error**2, error.abs(), found.losses.double().reshape(-1))
    return {"sums": torch.stack([(w * x).sum() for x in parts])}


def impossible(update: Mapping[str, Any]) -> bool:
    """Return whether an answer cannot be the sums of a judgement.

    Sums of classes are never below 0. Of numbers, the weight and the sums of squares and losses are not.
    """
    given = [x[[0, 2, 3, 4]] if name == "sums" else x for name, x in update.items() if isinstance(x, torch.Tensor)]
    return any(bool((x < 0).any()) for x in given)


BY_SUMS = ("accuracy", "balanced_accuracy", "macro_f1", "rmse", "mae", "r2")
"""Metrics that can be made of sums."""


def by_sums(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures made of sums, the mean of the classes' accuracies among them."""
    known = [x for x in figures.get("per_class_accuracy") or () if x is not None]
    return {**figures, **({"balanced_accuracy": sum(known) / len(known)} if known else {})}


class BestConstant(NamedTuple):
    """The best constant model on the rows of some sums, and its figures."""

    answer: float
    figures: Mapping[str, Any]


def best_constant(sums: quality.ClassSums | quality.NumberSums) -> BestConstant:
    """Return the constant that is best on the rows of these sums: the largest class, or the mean.

    Sums do not tell the mean absolute error of the mean.
    """
    if isinstance(sums, quality.ClassSums):
        best = int(sums.true.argmax())
        said, hits = np.zeros_like(sums.true), np.zeros_like(sums.true)
        said[best], hits[best] = sums.weight, sums.true[best]
        return BestConstant(best, quality.class_figures(quality.ClassSums(sums.true, said, hits, 0.0)))
    alone = replace(sums, squared=sums.spread, absolute=math.nan)
    return BestConstant(sums.mean, {k: x for k, x in quality.number_figures(alone).items() if k in {"rmse", "r2"}})


def _alone(value: float | None) -> dict[str, float | None]:
    """Return a figure without an interval."""
    return {"value": value, "low": None, "high": None}


class NodeJudge(Evaluator):
    """An `Evaluator` whose figures are made of the nodes' sums. ``holders``: the nodes that have test rows."""

    def __init__(self, setup: Setup, ask: Ask, holders: Sequence[int]) -> None:
        super().__init__(setup)
        self.ask, self.holders, self.several = ask, tuple(holders), not masked(setup)
        self.last: quality.ClassSums | quality.NumberSums | None = None  # the last sums received

    def figures(self, model: Model, rows: Rows | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return every quality field of a row, and per-class accuracy.

        NotJudged for impossible sums, which masks hide in one node's answer.
        """
        return self.ask({"judged": Tree(model.save())}, self.holders, self._read)

    def _read(self, total: Update) -> dict[str, Any]:
        try:
            if impossible(total) or not all(bool(x.isfinite().all()) for x in total.values()):
                raise ValueError("they are below 0, or not finite")
            return self._figures(total)
        except ODD as error:
            raise NotJudged(f"the nodes' sums cannot be those of a judgement ({first_line(error)}).") from None

    def _figures(self, total: Update) -> dict[str, Any]:
        d = self.setup.dataset
        if not self.numbers:
            arrays = {name: total[name].numpy() for name in ("true", "predicted", "hits")}
            self.last = quality.ClassSums(**arrays, loss=float(total["loss"][0]))
            return quality.class_figures(self.last, d.uncounted)
        weight, first, second, squared, absolute, loss = total["sums"].tolist()
        mean, sd = first / weight, d.target_sd
        spread = second - first * mean
        if spread <= ROUNDING * second:  # equal targets: sums are exact only up to rounding
            spread = 0.0
        self.last = quality.NumberSums(
            weight, sd * mean + d.target_mean, sd**2 * spread, sd**2 * squared, sd * absolute, loss
        )
        return dict(quality.number_figures(self.last))

    def per_client(self, model_of: ClientModel) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return the row counts of each node, without a figure: that stays at the node."""
        sizes, names = self.setup.sizes, self.setup.partition.info.get("names", ())
        blank: dict[str, Any] = dict.fromkeys(("value", "low", "high"))
        return [
            {"client": k, "name": names[k], "train_rows": n, "test_rows": 0, "own_rows": False, **blank}
            for k, n in sizes.items()
        ]

    def by_metric(self, model: Model | None, clients: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ARG002
        """Return the metric of the shared model and of the best constant, as far as the nodes' sums tell them.

        No single row is known here. Only the accuracy of unweighted rows has an interval, because counts suffice for
        it.
        """
        name, asked = self.metric.name, self.setup.config.evaluation.metric is not None
        found = (
            by_sums(self._seen[model]) if model is not None and model in self._seen else {}
        )  # the nodes are not asked again
        said = {"metric": {"name": name, "asked": asked, **_alone(found.get(name)), "test_rows": None, "own": None}}
        if self.last is None:
            return said
        best, d = best_constant(self.last), self.setup.dataset
        answer = best.answer if self.numbers else d.class_names[int(best.answer)]
        reached, alike = by_sums(best.figures).get(name), d.train.weight is None and d.task != "tokens"
        sure = sure_of(self.last, best.answer, self.metric, found.get(name), reached, alike=alike)
        said["metric"] |= sure.own
        about = {"answer": answer, "source": "test rows", "better_by": {**_alone(None), **sure.better_by}}
        return {**said, "trivial": {**_alone(reached), **about}}

    def detail(self, model: Model, rows: Rows | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return per-class accuracy without intervals if this process has judged the model.

        The nodes are not asked again.
        """
        found: dict[str, Any] = {"interval": {}}
        if self.numbers or model not in self._seen:
            return found
        return {**found, "per_class_accuracy": self._seen[model]["per_class_accuracy"]}
