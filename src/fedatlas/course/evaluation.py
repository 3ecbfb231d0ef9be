"""The figures of a model per round, on the evaluation rows and on each client's rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.course.metric_figures import ByMetric
from fedatlas.course.metric_rows import KeptRows, Lines, kept, said_by_constant, said_of, scored
from fedatlas.data.batches import Rows
from fedatlas.errors import FedatlasError
from fedatlas.metrics import intervals, quality, resampling
from fedatlas.metrics.fairness import client_summary
from fedatlas.metrics.metric import Said
from fedatlas.metrics.resampling import Weighted
from fedatlas.model import Model, Scores
from fedatlas.record.fingerprint import judged_on
from fedatlas.record.judged_rows import TEST
from fedatlas.setup.assembly import Setup, judged_rows
from fedatlas.setup.party_rows import HELD_OUT
from fedatlas.setup.trivial import Trivial, metric_of, trivial_of

KEPT = 20_000_000  # largest number of row scores saved with a run
HELD = 8  # largest number of models whose figures are kept within a row
TOGETHER = 10_000_000  # largest number of client scores whose intervals are computed together
ENDS = ("value", "low", "high")
QUALITY = {
    "classes": ("accuracy", "macro_f1", "weighted_f1", "per_class_f1", "loss"),
    "numbers": ("rmse", "mae", "r2", "loss"),
}
ClientModel = Callable[[int], Model]


class NotJudged(FedatlasError):
    """The parties could not judge the model, so the round has no figures."""


class Evaluator:
    """The evaluation rows of a run, and the figures of models on them.

    Every figure depends only on the model and the rows. ``with_intervals``: whether to compute intervals;
    ``with_test``: whether a run that is judged on validation rows looks at its test rows at the end.
    """

    with_intervals = True
    with_test = True

    several = True  # whether all of an algorithm's models are judged, or only the first

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.rows, self.now = judged_rows(setup), setup.rows.in_round(0)
        self.metric = metric_of(setup)
        # From `per_client`: the arrays named by `record.judged_rows` for the rows of client K, without -K if shared by all.
        self.judged: dict[str, np.ndarray] = {}
        self._last: tuple[Model, Rows, Scores] | None = None
        self._ends: tuple[Model, Rows, dict[str, intervals.Interval]] | None = None
        self._seen: OrderedDict[Model, dict[str, Any]] = OrderedDict()
        self.numbers = setup.dataset.task == "numbers"
        self.keys: tuple[str, ...] = QUALITY["numbers" if self.numbers else "classes"]
        # the metric of the answer, if rows have no field for it otherwise: for [stop] and for the curve
        self.followed: tuple[str, ...] = tuple({self.metric.name} - {*self.keys})
        self.keys += self.followed
        self.headline = "rmse" if self.numbers else "accuracy"
        self._trivial: Trivial | None = None

    @property
    def trivial(self) -> Trivial:
        """The constant model."""
        if self._trivial is None:
            self._trivial = trivial_of(self.setup, self.rows, self.now)
        return self._trivial

    def scores(self, model: Model, rows: Rows) -> Scores:
        """Return predictions and losses (C10); the last result is cached."""
        if self._last is None or self._last[0] != model or self._last[1] is not rows:
            self._last = (model, rows, model.scores(rows.x, rows.y))
        return self._last[2]

    def at(self, number: int) -> None:
        """Judge on the rows as they are in a round from now on: ``[drift]`` changes test rows and clients' own."""
        before, self.now = self.now, self.setup.rows.in_round(number)
        if self.now is not before:
            self._trivial = None
        if self.now.dataset is not before.dataset:
            self.rows = self.now.common("test")

    def own(self, client: int) -> Rows:
        """Return the rows that a client holds out for its own figures."""
        return self.now.kept(client, HELD_OUT)

    def forget(self) -> None:
        """Forget the models seen so far, before a new row."""
        self._last = self._ends = None
        self._seen.clear()

    def figures(self, model: Model, rows: Rows | None = None) -> dict[str, Any]:
        """Return every quality field of a row of metrics.jsonl, plus per-class accuracy."""
        rows = self.rows if rows is None else rows
        found, d = self.scores(model, rows), self.setup.dataset
        if not self.numbers:
            own = {name: self.metric.value(self.said(model, rows)) for name in self.followed}
            return {**quality.class_figures(self._sums(found, rows), d.uncounted), **own}
        predicted, y = d.predictions(found.predicted), d.predictions(rows.y.double())  # errors in the target's unit
        return dict(quality.number_figures(quality.number_sums(predicted, y, found.losses, rows.weight)))

    def _sums(self, found: Scores, rows: Rows) -> quality.ClassSums:
        d = self.setup.dataset
        skip = d.ignore if d.task == "tokens" else None
        return quality.class_sums(found.predicted, rows.y, found.losses, d.classes, rows.weight, skip)

    def row(self, model: Model) -> dict[str, Any]:
        """Return the quality fields of a row for one global model."""
        self.forget()
        return {**self.plain_row(model), **self._of_clients(self._own_summary(lambda k: model))}

    def plain_row(self, model: Model) -> dict[str, Any]:
        """Return the quality fields of a model without those about clients."""
        found = self.shared(model)
        return {key: found[key] for key in self.keys}

    def shared(self, model: Model) -> dict[str, Any]:
        """Return the figures on the common rows. Within a row, a model shared by several clients is evaluated once."""
        if model not in self._seen:
            self._seen[model] = self.figures(model)
            while len(self._seen) > HELD:
                self._seen.popitem(last=False)
        return self._seen[model]

    def tested(self, model: Model | None, model_of: ClientModel, rows: Rows) -> dict[str, Any]:
        """Return the final model's figures on untouched test rows, with intervals.

        If ``model`` is None, plain means over clients with rows, without intervals.
        """
        trained = {k: model_of(k) for k, n in self.setup.sizes.items() if n} if model is None else {0: model}
        by = ByMetric(self.setup, self.metric, self.with_intervals, 0)
        said = {k: self.said(each, rows) for k, each in trained.items()}
        held = KeptRows(KEPT)
        for k, one in said.items():
            held.add({f"{TEST}{x}": y for x, y in kept(one, Lines("" if model is not None else f"-{k}", "")).items()})
        if self.judged:
            self.judged |= held.arrays
        found = {"metric": by.mean(said), "judged_on": judged_on(self.setup, "test")}
        if model is not None:
            return self.figures(model, rows) | self.detail(model, rows) | found
        return self._mean_figures([self.figures(each, rows) for each in trained.values()]) | found

    def _mean_figures(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {key: None if key == "per_class_f1" else _mean([f[key] for f in each]) for key in self.keys}

    def personal_row(self, model_of: ClientModel) -> dict[str, Any]:
        """Return the quality fields if each client uses its own model: plain means over clients with rows (C14)."""
        self.forget()
        trained = [k for k, n in self.setup.sizes.items() if n]  # a client without rows has learnt nothing
        each = [self.shared(model_of(k)) for k in trained]
        mean = self._mean_figures(each)
        own = self._own_summary(model_of)
        if own is None:
            own = self._spread([f[self.headline] for f in each], [1.0] * len(each))
        return {**mean, **self._of_clients(own)}

    def blank(self) -> dict[str, Any]:
        """Return the quality fields of a round that was not evaluated."""
        return {**dict.fromkeys(self.keys), **self._of_clients(None)}

    def per_client(self, model_of: ClientModel) -> list[dict[str, Any]]:
        """Return for each client the headline figure of the model it would use, with a bootstrap interval.

        The model is judged on the client's held-out rows if ``evaluation.clients`` keeps some, else on the common
        evaluation rows.
        """
        out: list[dict[str, Any]] = []
        self.judged.clear()
        self._by = by = ByMetric(self.setup, self.metric, self.with_intervals, KEPT)
        constant = self._constant(self.rows)
        many, sizes, personal = 0, self.setup.sizes, self.setup.personal
        names = self.setup.partition.info.get("names", ())
        found: dict[int, intervals.Interval] = {}
        alike: dict[int, np.ndarray] = {}  # scores of clients' own models on the common rows, not yet evaluated
        shared: Said | None = None
        common = None  # one model on the same rows gives the same figure for all clients
        for k in sorted(sizes):
            held = len(self.setup.held_out.get(k, ())) > 0
            rows = self.own(k) if held else self.rows
            if common is not None and not held:
                found[k] = common
            else:
                model, which = model_of(k), f"-{k}" if held or personal else ""
                score, own = self._scored(model, rows)
                many += len(score)
                if many <= KEPT:
                    self.judged[f"score{which}"] = score.astype(np.float32)
                    self.judged[f"weight{which if held else ''}"] = own.astype(np.float32)
                said = self.said(model, rows)
                if held:
                    found[k] = self.interval(model, rows, "client", k)
                    by.held(k, said, self._constant(rows))
                elif personal:
                    alike[k], weight = score, own
                    by.common(k, said, constant)
                    if len(alike) * rows.n > TOGETHER:
                        found |= self._of_common(alike, weight)
                        alike.clear()
                else:
                    found[k] = common = self.ends(model)[self.headline]
                    shared = said
            if shared is not None and not held:
                by.shared(k, shared)
            named = {"name": names[k]} if names else {}
            out.append({"client": k, **named, "train_rows": sizes[k], "test_rows": rows.n, "own_rows": held})
        if alike:
            found |= self._of_common(alike, weight)
        if many > KEPT:
            self.judged.clear()
        for entry in out:
            k = entry["client"]
            # a client without rows still has the initial model: its figure says nothing about the method
            entry |= dict.fromkeys(ENDS) if personal and not sizes[k] else dict(zip(ENDS, found[k][:3], strict=True))
        return out

    def by_metric(self, model: Model | None, clients: list[dict[str, Any]]) -> dict[str, Any]:
        """Return ``metric`` and ``trivial`` of the summary, and complete the kept rows and the result of `per_client`.

        ``model``: the one that all clients share; None if they use their own. Call it after `per_client`.
        """
        sizes, personal = self.setup.sizes, model is None
        said = None if model is None else self.said(model, self.rows)
        trained = [k for k in sorted(sizes) if sizes[k]]
        found = self._by.end(said, self._constant(self.rows), trained)
        for entry in clients:
            entry |= self._by.entry(entry["client"], entry, learnt=not personal or sizes[entry["client"]] > 0)
        if self.judged:  # else there were too many rows to keep
            self.judged = {**self._by.kept.arrays, **self.judged}
        found["trivial"] |= self._about_constant()
        return found

    def said(self, model: Model, rows: Rows) -> Said:
        """Return a model's predictions for rows, as far as the run's metric needs them."""
        return said_of(self.setup, self.metric, self.scores(model, rows), rows, model)

    def _constant(self, rows: Rows) -> Said:
        return said_by_constant(self.setup, self.metric, self.trivial.constant, rows)

    def _about_constant(self) -> dict[str, Any]:
        answer = self.trivial.constant.predicted
        named = answer if self.numbers else self.setup.dataset.class_names[int(answer)]
        return {"answer": named, "source": self.trivial.source}

    def _of_common(self, scores: Mapping[int, np.ndarray], weight: np.ndarray) -> dict[int, intervals.Interval]:
        """Map clients to the headline figure of their models with intervals.

        All models are evaluated on the same resampled rows.
        """
        table, draws = np.stack(list(scores.values())), self._draws(self.rows)
        made = intervals.of_means(table, weight, self.setup.seed, "clients", root=self.numbers, draws=draws)
        return dict(zip(scores, made, strict=True))

    def interval(self, model: Model, rows: Rows, *key: int | str) -> intervals.Interval:
        """Return the headline figure with its bootstrap interval over rows."""
        return self._bootstrap(self._headline(model, rows), rows, *key)[self.headline]

    def ends(self, model: Model, rows: Rows | None = None) -> dict[str, intervals.Interval]:
        """Return every figure with its interval, by default on the common rows; the last result is cached."""
        rows = self.rows if rows is None else rows
        if self._ends is None or self._ends[0] != model or self._ends[1] is not rows:
            self._ends = (model, rows, self._bootstrap(self.resampled(model, rows), rows, "test"))
        return self._ends[2]

    def _bootstrap(self, figures: Weighted, rows: Rows, *key: int | str) -> dict[str, intervals.Interval]:
        return intervals.bootstrap(figures, rows.n, self.setup.seed, *key, draws=self._draws(rows))

    def _draws(self, rows: Rows) -> int:
        """Return the number of bootstrap draws; 0 without intervals, or if fewer than two rows count."""
        counting = rows.n if rows.weight is None else int(rows.weight.count_nonzero())
        return intervals.usual_draws(rows.y.numel()) if counting > 1 and self.with_intervals else 0

    def _headline(self, model: Model, rows: Rows) -> Weighted:
        score, own = self._scored(model, rows)
        return resampling.of_mean(self.headline, score, own, root=self.numbers)

    def resampled(self, model: Model, rows: Rows) -> Weighted:
        """Return the function that computes a model's figures on bootstrap samples of the rows."""
        scores, d = self.scores(model, rows), self.setup.dataset
        loss = self._mean_loss(scores, rows)
        if self.numbers:
            predicted, y = d.predictions(scores.predicted), d.predictions(rows.y.double())
            return resampling.together(
                self._headline(model, rows), resampling.of_numbers(predicted, y, rows.weight), loss
            )
        skip = d.ignore if d.task == "tokens" else None
        f1 = resampling.of_classes(scores.predicted, rows.y, d.classes, rows.weight, skip)
        parts = [self._headline(model, rows), f1, loss]
        if scores.margin is not None:
            p = torch.sigmoid(scores.margin)
            parts.append(resampling.of_two_classes(scores.margin, p, rows.y, rows.weight))
        return resampling.together(*parts)

    def _mean_loss(self, scores: Scores, rows: Rows) -> Weighted:
        """Return the function that computes the mean loss; for texts, the mean over the labels that count."""
        d, losses = self.setup.dataset, scores.losses.double()
        own = torch.ones(rows.n, dtype=torch.float64) if rows.weight is None else rows.weight.double()
        if d.task == "tokens":
            counted = (rows.y != d.ignore).double()
            total = counted.sum(1)
            return resampling.of_mean(
                "loss", ((losses * counted).sum(1) / total.clamp(min=1)).numpy(), (own * total).numpy()
            )
        return resampling.of_mean("loss", losses.reshape(-1).numpy(), own.numpy())

    def _scored(self, model: Model, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return, per row, the score whose weighted mean gives the headline figure, and its weight."""
        return scored(self.setup, self.scores(model, rows).predicted, rows)

    def detail(self, model: Model, rows: Rows | None = None) -> dict[str, Any]:
        """Return the details of the final model that the report shows.

        These are intervals and, for classes, accuracy per class and the confusion matrix (up to 100 classes); for two
        classes also AUC, log-loss and calibration. For numbers, predictions by the size of the target.
        """
        rows = self.rows if rows is None else rows
        found = self.ends(model, rows)
        ends: dict[str, Any] = {name: [one.low, one.high] for name, one in found.items()}
        out: dict[str, Any] = {"interval": {**ends, "level": found[self.headline].level}}
        scores, d = self.scores(model, rows), self.setup.dataset
        if self.numbers:
            predicted, y = d.predictions(scores.predicted), d.predictions(rows.y.double())
            return {**out, "by_target": [dict(span._asdict()) for span in quality.by_target(predicted, y, rows.weight)]}
        out["per_class_accuracy"] = self.figures(model, rows)["per_class_accuracy"]
        if d.classes <= 100:
            matrix = quality.confusion_matrix(scores.predicted, rows.y, d.classes, rows.weight, d.ignore)
            out["confusion"] = matrix.tolist()
        if scores.margin is not None:
            out["two_class"] = two_class(scores.margin, rows)
        if d.uncounted:
            out["word_accuracy"] = word_accuracy(self._sums(scores, rows), d.facts["special"])
        return out

    def _own_summary(self, model_of: ClientModel) -> dict[str, float | None] | None:
        if not self.setup.held_out:
            return None
        held = {k: rows for k, rows in self.setup.held_out.items() if len(rows)}
        scores = [self.figures(model_of(k), self.own(k))[self.headline] for k in held]
        return self._spread(scores, [len(rows) for rows in held.values()])

    def _spread(self, values: Sequence[float | None], sizes: Sequence[float]) -> dict[str, float | None]:
        """Return the spread of the headline figure over clients (C14).

        Errors have the same keys, but their worst value is the largest.
        """
        sign = -1.0 if self.numbers else 1.0
        found = client_summary([None if v is None else sign * v for v in values], sizes)
        return {key: None if v is None else sign * v for key, v in found.items()}

    def _of_clients(self, found: dict[str, float | None] | None) -> dict[str, Any]:
        """Return the fields of a row for this spread; ``client_accuracy`` is always present."""
        return {"client_accuracy": None, f"client_{self.headline}": found}


def floats_in(value: Any) -> Iterator[float]:
    """Yield all floats of nested dicts and lists, as in JSON."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from floats_in(item)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return float(np.mean(known)) if known else None


def word_accuracy(sums: quality.ClassSums, special: Mapping[str, int]) -> dict[str, float | None]:
    """Return accuracy with and without sentence ends and out-of-vocabulary words (M10)."""
    never = special["pad"], special["bos"]
    return {
        "words": quality.accuracy(sums, (*never, special["eos"])),
        "words_and_ends": quality.accuracy(sums, never),
        "known_words": quality.accuracy(sums, (*never, special["eos"], special["oov"])),
        "known_words_and_ends": quality.accuracy(sums, (*never, special["oov"])),
    }


def two_class(margin: Tensor, rows: Rows) -> dict[str, Any]:
    """Return AUC, log-loss and calibration of a two-class model from its log-odds."""
    p = torch.sigmoid(margin)
    found = quality.calibration(p, rows.y, weights=rows.weight)
    return {
        "auc": quality.auc(margin, rows.y, rows.weight),
        "log_loss": quality.log_loss(p, rows.y, rows.weight),
        "calibration_error": found.error,
        "reliability": [dict(b._asdict()) for b in found.bins],
    }
