"""Early stopping of local work (`Patience`), the same for every engine: judged after each pass over the rows."""

from __future__ import annotations

import math

import torch

from fedatlas.algorithm import Batch, Patience
from fedatlas.data.batches import examples_of_pass
from fedatlas.engine.client_data import ClientData
from fedatlas.engine.device import placing
from fedatlas.engine.job import Bench, Job, Prepared, training_of
from fedatlas.models.dropout import evaluating
from fedatlas.tree import Tree

ROUNDING = (
    8  # units in the last place of 1: a smaller gain does not count, so that work without a gradient stays where it is
)


class Watch:
    """Progress of one job's work.

    It is made before the first step. With held-out rows, the starting model is judged as well.
    """

    def __init__(self, patience: Patience, bench: Bench, job: Job, ready: Prepared) -> None:
        self.patience, self.bench, self.job, self.ready = patience, bench, job, ready
        self.steps = self.without = self.idle = 0  # all steps; steps and passes without a gain
        self.examples = examples_of_pass(ready.rows.n, ready.draw)
        self.judged, self.loss_sum = 0, 0.0  # steps, and sum of the training losses, at the last judgement
        self.best, self.held = math.inf, (ready.params, ready.buffers)
        if ready.held is not None:
            self.best = self.loss(ready.params, ready.buffers)
            self.held = copies(ready.params, ready.buffers)

    def over(self, params: Tree, buffers: Tree, examples: int, loss_sum: float) -> bool:
        """Return whether the step just done was the last. Call it after every step."""
        self.steps += 1
        if examples % self.examples:
            return False
        self.judge(params, buffers, (loss_sum - self.loss_sum) / self.examples)
        self.loss_sum = loss_sum
        passes, steps = self.patience.passes, self.patience.steps
        return bool((passes and self.idle >= passes) or (steps and self.without >= steps))

    def judge(self, params: Tree, buffers: Tree, trained: float) -> None:
        """Judge the model after a pass with mean training loss ``trained``."""
        taken, self.judged = self.steps - self.judged, self.steps
        loss = trained if self.ready.held is None else self.loss(params, buffers)
        eps = torch.finfo(next(iter(params.values())).dtype).eps
        if loss < self.best - ROUNDING * eps:
            self.best, self.without, self.idle = loss, 0, 0
            if self.ready.held is not None:
                self.held = copies(params, buffers)
        else:
            self.without, self.idle = self.without + taken, self.idle + 1

    def kept(self, params: Tree, buffers: Tree) -> tuple[Tree, Tree]:
        """Return the model after the last step: the best one if rows were held out, else the last. A partial pass is judged too."""
        if self.ready.held is None:
            return params, buffers
        if self.steps > self.judged:
            self.judge(params, buffers, math.nan)
        return self.held

    def loss(self, params: Tree, buffers: Tree) -> float:
        """Return the task's objective on the held-out rows, in evaluation mode."""
        objective, ready = training_of(self.bench, self.job).objective, self.ready
        assert ready.held is not None
        data = ClientData(ready.held, self.bench.classes, buffers, list, self.bench.network.ordered)
        pieces: list[Batch] = list(data.pieces())
        with evaluating(self.bench.network.module), torch.no_grad(), placing(self.bench.device):
            losses = [
                float(objective(self.bench.network, params, piece, ready.message, ready.state, ready.facts))
                for piece in pieces
            ]
        return sum(loss * len(piece.x) for loss, piece in zip(losses, pieces, strict=True)) / ready.held.n


def watching(bench: Bench, job: Job, ready: Prepared) -> Watch | None:
    """Return the watch that stops a job early, or None."""
    patience = training_of(bench, job).options.patience
    return None if patience is None or not ready.rows.n or not ready.params else Watch(patience, bench, job, ready)


@torch.inference_mode(mode=False)
def copies(params: Tree, buffers: Tree) -> tuple[Tree, Tree]:
    """Return a copy of a model, without inference tensors, so that any step can take it."""
    return params.map(lambda x: x.detach().clone()), buffers.clone()
