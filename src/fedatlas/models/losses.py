"""Losses by name (L1 to L9), each computed from the model's raw outputs (logits, scores or numbers).

The formulas branch only on shapes and types, never on values, so that they can be traced. The allowed label values
are checked once, before training (`Loss.check`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.errors import ConfigError, DataError, unknown_name
from fedatlas.registry import ConfigTable

TaskKind = Literal["classes", "numbers", "tokens"]
Form = Literal["crammer_singer", "ova"]
Each = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> a loss for each row

_TINY = 1e-12  # C15


class LossConfig(ConfigTable):
    """``model.loss`` as a table: ``{name = "multiclass_hinge", form = "ova"}`` sums a binary hinge over classes (L8).

    Without ``form`` the multiclass hinge is Crammer and Singer's. ``fake``: the network has one output more than classes, for pictures
    that an attacker draws (A2); no row has this class, and predictions are among the others.
    """

    name: str = "auto"
    form: Form | None = None
    fake: bool | None = None


@dataclass(frozen=True)
class Loss:
    """A loss for each row, and its mean; `make_loss` binds it to a task, a number of classes and the ignored label.

    ``outputs`` are (n, classes) for a multiclass loss, (n, 1) or (n,) raw scores for a binary one, (n,) or (n, k) for
    numbers, and (n, length, classes) for tokens; ``targets`` are (n,), (n, length) or, for L7 and L9, probability
    vectors of the outputs' shape.
    """

    name: str
    rows: Each
    tasks: tuple[TaskKind, ...]
    fused: Each | None = None  # the unweighted mean in one call, if torch has one
    binary: bool = False
    lowest: float = -math.inf  # numbers must lie above it
    labels: tuple[tuple[int, ...], ...] = ()  # sets of labels a binary loss reads
    soft: bool = False  # targets may be probability vectors
    task: TaskKind = "classes"
    classes: int = 0
    ignore: int = -100  # token label that is not counted
    spare: int = 0  # outputs after those of the classes, which are never predicted

    def width(self) -> int:
        """Return the number of outputs the model needs: one for numbers and for a binary loss, else one per class and spare one."""
        return 1 if self.binary or self.task == "numbers" else self.classes + self.spare

    def predicting(self, outputs: Tensor) -> Tensor:
        """Return the outputs that predictions are made of: all but the spare ones."""
        return outputs[..., : self.classes] if self.spare else outputs

    def counted(self, targets: Tensor) -> Tensor:
        """Return (n, length) bool: the token labels that count."""
        return targets != self.ignore

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return a loss for each row (n,), or for each token (n, length), 0 for ignored labels."""
        if self.task != "tokens":
            return self.rows(outputs, targets)
        counted = self.counted(targets)
        losses = self.rows(outputs.flatten(0, 1), torch.where(counted, targets, 0).flatten())
        return losses.view_as(targets) * counted

    def mean(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return sum_i w_i l_i / sum_i w_i over rows, or over counted tokens; ``weights`` (n,), default 1.

        0 if every weight is 0 or no token counts.
        """
        if self.task == "tokens":
            share = self.counted(targets).to(outputs.dtype)
            share = share if weights is None else share * weights.unsqueeze(1)
        elif weights is None:
            return self.rows(outputs, targets).mean() if self.fused is None else self.fused(outputs, targets)
        else:
            share = weights
        return (self.elements(outputs, targets) * share).sum() / share.sum().clamp_min(_TINY)

    @property
    def bounded(self) -> bool:
        """Return whether numbers must lie above `lowest`, labels and predictions alike, both in the target's unit."""
        return not math.isinf(self.lowest)

    @property
    def domain(self) -> str:
        """Suffix for a message about a loss that is not a number: the predictions for which it is undefined."""
        return f" ('{self.name}' is undefined for predictions of {self.lowest:g} or less)" if self.bounded else ""

    def check(self, targets: Tensor, what: str = "label") -> None:
        """Raise DataError if labels lie outside the loss's domain. Called once, outside the hot path."""
        if self.task == "numbers":
            _check_numbers(self, what, targets)
        elif self.binary:
            found = set(torch.unique(targets).tolist())
            if not any(found <= set(labels) for labels in self.labels):
                allowed = " or ".join(f"{low} and {high}" for low, high in self.labels)
                odd = sorted(found)[:4]
                raise DataError(f"loss '{self.name}' needs the labels {allowed}, but these data hold {odd}.")
        elif targets.is_floating_point():
            _check_probabilities(self, targets)
        else:
            _check_classes(self, targets)


def _check_numbers(loss: Loss, what: str, values: Tensor) -> None:
    bad = ~(torch.isfinite(values) & (values > loss.lowest))
    if bool(bad.any()):
        need = "finite numbers" if not loss.bounded else f"numbers above {loss.lowest:g}"
        where = tuple(bad.nonzero()[0].tolist())
        raise DataError(f"loss '{loss.name}' needs {need}; the {what} of row {where[0]} is {float(values[where])}.")


def _check_probabilities(loss: Loss, targets: Tensor) -> None:
    if not loss.soft or targets.dim() != 2 or targets.shape[1] != loss.classes:
        raise DataError(
            f"loss '{loss.name}' needs class numbers{f' or (n, {loss.classes}) probabilities' if loss.soft else ''}; "
            f"these labels are {str(targets.dtype).removeprefix('torch.')} of shape {tuple(targets.shape)}."
        )
    bad = ~((targets >= 0).all(1) & ((targets.double().sum(1) - 1).abs() <= 1e-4))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"loss '{loss.name}': the label of row {row} is not a probability vector (0 or more, sum 1).")


def _check_classes(loss: Loss, targets: Tensor) -> None:
    bad = (targets < 0) | (targets >= loss.classes)
    if loss.task == "tokens":
        bad &= loss.counted(targets)
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise DataError(
            f"labels must be whole numbers from 0 to {loss.classes - 1}, the model's classes; "
            f"row {where[0]} has {int(targets[where])}."
        )


def _numbers(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets in the outputs' shape and type, so that (n,) against (n, 1) does not broadcast to (n, n)."""
    return targets.reshape(outputs.shape).to(outputs.dtype)


def _each(losses: Tensor) -> Tensor:
    """Return the mean over a row's outputs: (n, k) -> (n,)."""
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return _each((outputs - _numbers(targets, outputs)).square())


def _msle(outputs: Tensor, targets: Tensor) -> Tensor:
    return _each((torch.log1p(_numbers(targets, outputs)) - torch.log1p(outputs)).square())


def _mae(outputs: Tensor, targets: Tensor) -> Tensor:
    return _each((outputs - _numbers(targets, outputs)).abs())  # abs has derivative 0 at 0, as L3 requires


def _score(outputs: Tensor) -> Tensor:
    """Map (n, 1) or (n,) to (n,)."""
    return outputs.squeeze(1) if outputs.dim() > 1 else outputs


def _sign(targets: Tensor, like: Tensor) -> Tensor:
    """Map labels {0, 1} or {-1, +1} to -1 and +1."""
    return torch.where(targets > 0, 1.0, -1.0).to(like.dtype)


def _bce(outputs: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
    score = _score(outputs)
    return F.binary_cross_entropy_with_logits(score, targets.to(score.dtype), reduction=reduction)


def _hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    score = _score(outputs)
    return F.relu(1 - _sign(targets, score) * score)


def _squared_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return _hinge(outputs, targets).square()


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _crammer_singer(outputs: Tensor, targets: Tensor) -> Tensor:
    own = targets.unsqueeze(1)
    margins = 1 + outputs - outputs.gather(1, own)
    # The true class enters as 0, which is the 0 of max(0, ...).
    return margins.scatter(1, own, 0.0).amax(1)


def _one_against_all(outputs: Tensor, targets: Tensor) -> Tensor:
    # Not F.one_hot, which reads the values and cannot be traced.
    own = targets.unsqueeze(1) == torch.arange(outputs.shape[1], device=outputs.device)
    return F.relu(1 - torch.where(own, outputs, -outputs)).sum(1)


def _kl(outputs: Tensor, targets: Tensor) -> Tensor:
    if not targets.is_floating_point():
        return _cross_entropy(outputs, targets)  # a certain label has entropy 0
    return F.kl_div(F.log_softmax(outputs, 1), targets.to(outputs.dtype), reduction="none").sum(1)


LOSSES: dict[str, Loss] = {
    "mse": Loss(
        "mse", _mse, ("numbers",), fused=lambda outputs, y: F.mse_loss(outputs, _numbers(y, outputs)), task="numbers"
    ),
    "msle": Loss("msle", _msle, ("numbers",), lowest=-1.0, task="numbers"),
    "mae": Loss("mae", _mae, ("numbers",), task="numbers"),
    "bce": Loss(
        "bce", _bce, ("classes",), fused=partial(_bce, reduction="mean"), binary=True, labels=((0, 1),), classes=2
    ),
    **{
        name: Loss(name, rows, ("classes",), binary=True, labels=((0, 1), (-1, 1)), classes=2)
        for name, rows in (("hinge", _hinge), ("squared_hinge", _squared_hinge))
    },
    "cross_entropy": Loss("cross_entropy", _cross_entropy, ("classes", "tokens"), fused=F.cross_entropy, soft=True),
    "multiclass_hinge": Loss("multiclass_hinge", _crammer_singer, ("classes", "tokens")),
    "kl": Loss("kl", _kl, ("classes",), soft=True),
}


def check_form(loss: str | LossConfig) -> None:
    """Raise ConfigError if a loss is given a form of another loss."""
    if not isinstance(loss, str) and loss.form is not None and loss.name != "multiclass_hinge":
        raise ConfigError(f"loss '{loss.name}' has no form: form belongs to 'multiclass_hinge'.")


def make_loss(
    loss: str | LossConfig = "auto", task: TaskKind = "classes", classes: int = 0, ignore: int = -100
) -> Loss:
    """Return the loss for these data; ``auto`` is cross entropy for classes and tokens, mean squared error for numbers.

    ConfigError for an unknown name, or a loss that cannot use such a target.
    """
    name, form, fake = (loss, None, None) if isinstance(loss, str) else (loss.name, loss.form, loss.fake)
    if name == "auto":
        name = "mse" if task == "numbers" else "cross_entropy"
    if name not in LOSSES:
        raise unknown_name("loss", name, [*LOSSES, "auto"])
    found = LOSSES[name]
    check_form(loss)
    if task not in found.tasks:
        fitting = ", ".join(sorted(other.name for other in LOSSES.values() if task in other.tasks))
        raise ConfigError(f"loss '{name}' cannot train on {task}: use one of {fitting}.")
    if found.binary and classes != 2:
        raise ConfigError(f"loss '{name}' needs two classes, but these data have {classes}: use 'cross_entropy'.")
    if fake and (name != "cross_entropy" or task != "classes"):
        raise ConfigError(
            "model.loss.fake: one more class goes only with name = 'cross_entropy' and a target of classes."
        )
    rows, known = _one_against_all if form == "ova" else found.rows, 0 if task == "numbers" else classes
    return replace(found, rows=rows, task=task, classes=known, ignore=ignore, spare=int(bool(fake)))
