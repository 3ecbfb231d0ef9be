"""Figures of an attack beside its placebo, by whoever has the truth: leak = figure - placebo, paired over targets or rows.

Inversion: target i's figure is PSNR(r_i, x_i); its placebo the mean over other pictures of i's label of PSNR(r_i, x_j), which is what a
reconstruction of the label alone would get. Membership: the placebo tells non-members from non-members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.leakage.network import Known
from fedatlas.metrics.intervals import Interval, bootstrap, differences, of_means
from fedatlas.metrics.quality import Floats, over
from fedatlas.metrics.resampling import pairs_won
from fedatlas.rng import numpy_stream
from fedatlas.setup.assembly import Setup
from fedatlas.setup.candidates import candidates_of

OTHERS = 100  # pictures of the label that a placebo is a mean over
EXACT = 1e-10  # a mean squared error from which on pictures are the same: 100 dB
SPLITS = 10  # of the non-members in two, whose mean is the placebo: a single one is mostly chance
RESOLVED = 10_000  # non-members below which a true positive rate at 0.1% false ones is not resolved
Answer = Mapping[str, np.ndarray]


def figure(value: Interval, placebo: float | None) -> dict[str, Any]:
    """``value low high placebo`` of the record."""
    return {"value": value.estimate, "low": value.low, "high": value.high, "placebo": placebo}


def pixels(x: Tensor, facts: Known) -> Tensor:
    """Rows as the network reads them -> pixels of 0 to 1."""
    low, high = facts.box()
    return (x.float() - low) / (high - low)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """10 log10(1 / MSE) of pixels of 0 to 1, in dB, over all axes but the first."""
    return -10 * torch.log10(squared_error(a, b))


def squared_error(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error over all axes but the first, 1e-10 at least."""
    return ((a.double().clamp(0, 1) - b.double()) ** 2).flatten(1).mean(1).clamp_min(EXACT)


def inverted(
    setup: Setup, facts: Known, answer: Answer, asked: list[int]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(metrics and leaks, arrays for the report) of an inversion. ``asked``: the targets where one mean stands for all of them."""
    clients = [int(k) for k in answer["client"]] if answer["client"][0] >= 0 else asked
    rows = [setup.bench.rows(k) for k in clients]
    truth, label = pixels(torch.cat([one.x[:1] for one in rows]), facts), torch.cat([one.y[:1] for one in rows])
    found = torch.from_numpy(answer["x"])
    found = found if len(found) == len(clients) else found.expand(len(clients), *found.shape[1:])
    said = (
        torch.from_numpy(answer["label"]).expand(len(clients))
        if len(answer["label"]) == 1
        else torch.from_numpy(answer["label"])
    )
    own, error = psnr(found, truth), squared_error(found, truth)
    placebo = torch.stack([_placebo(found[i], i, clients, label[i], setup, facts) for i in range(len(clients))])
    weight, seed = np.ones(len(clients)), setup.seed
    scores = np.stack([own.numpy(), error.numpy(), (said == label).double().numpy()])
    means = of_means(scores, weight, seed, "attack")
    low, high = differences(scores[:1], placebo.numpy()[None], weight, seed, "attack")
    metrics = {
        "psnr": figure(means[0], float(placebo.mean())),
        "mse": figure(means[1], None),
        "label": figure(means[2], None),
        "above_20_dB": figure(Interval(float((own > 20).double().mean()), None, None, 0.95), None),
    }
    leaks = {"psnr": {"value": float((own - placebo).mean()), "low": float(low[0]), "high": float(high[0])}}
    arrays = {"client": np.array(clients), "label": label.numpy(), "said": said.numpy(), "psnr": own.numpy()}
    arrays |= {"placebo": placebo.numpy(), "found": found.numpy(), "original": truth.numpy()}
    return {"metrics": metrics, "leaks": leaks, "targets": len(clients)}, arrays


def _placebo(found: Tensor, i: int, clients: list[int], label: Tensor, setup: Setup, facts: Known) -> Tensor:
    """The mean PSNR of a reconstruction against other pictures of its target's label: of other clients, else of the test set."""
    others: list[Tensor] = []
    order = numpy_stream(setup.seed, "attack", "placebo", clients[i]).permutation(len(setup.sizes))
    for k in map(int, order):
        if k != clients[i] and setup.sizes[k]:
            rows = setup.bench.rows(k)
            others += rows.x[rows.y == label]
        if len(others) >= OTHERS:
            break
    if not others:
        test = setup.dataset.splits["test"]
        others = [*setup.dataset.inputs(test.x[test.y == label], torch.float32)[:OTHERS]]
    if not others:
        return torch.tensor(float("nan"), dtype=torch.float64)
    these = pixels(torch.stack(others[:OTHERS]), facts)
    return psnr(found.expand_as(these), these).mean()


def told_apart(setup: Setup, answer: Answer) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(metrics and leaks, the ROC for the report) of the membership game."""
    member, score = candidates_of(setup).member, answer["score"].astype(np.float64)
    played = [_players(member, setup.seed, split) for split in range(SPLITS)]
    guess = score >= np.median(score)  # half are members, as the attacker knows

    def figures(drawn: Floats) -> dict[str, Floats]:
        real = _auc(score, member, ~member, drawn)
        null = np.mean([_auc(score, one, ~member & ~one, drawn) for one in played], axis=0)
        inside, outside = _rate(guess, member, drawn), _rate(guess, ~member, drawn)
        one = {"auc": real, "placebo": null, "leak": real - null}
        return {**one, "accuracy": (inside + 1 - outside) / 2, "advantage": inside - outside}

    found = bootstrap(figures, len(member), setup.seed, "attack")
    leak = found["leak"]
    metrics = {
        "auc": figure(found["auc"], found["placebo"].estimate),
        "accuracy": figure(found["accuracy"], 0.5),
        "advantage": figure(found["advantage"], 0.0),
        "tpr_at_fpr_0.001": figure(_low_rate(score, member), 0.001),
    }
    leaks = {"auc": {"value": leak.estimate, "low": leak.low, "high": leak.high}}
    return {"metrics": metrics, "leaks": leaks, "targets": len(member)}, {"score": score, "member": member}


def _players(member: np.ndarray, seed: int, split: int) -> np.ndarray:
    """Half of the non-members, which play members in the placebo."""
    others = numpy_stream(seed, "attack", "placebo", split).permutation(np.flatnonzero(~member))
    out = np.zeros(len(member), bool)
    out[others[: len(others) // 2]] = True
    return out


def _auc(score: np.ndarray, positive: np.ndarray, negative: np.ndarray, drawn: Floats) -> Floats:
    """How often a positive row scores above a negative one, ties by half, by how often each row was drawn."""
    order = np.argsort(score, kind="stable")
    up, down = order[positive[order]], order[negative[order]]
    lower, upper = (np.searchsorted(score[down], score[up], side=side) for side in ("left", "right"))
    won = np.array([pairs_won(one[up], one[down], lower, upper) for one in drawn])
    return over(won, drawn[:, up].sum(1) * drawn[:, down].sum(1))


def _rate(guess: np.ndarray, group: np.ndarray, drawn: Floats) -> Floats:
    return over((drawn * (guess & group)).sum(1), (drawn * group).sum(1))


def _low_rate(score: np.ndarray, member: np.ndarray) -> Interval:
    """The share of members found where one non-member in a thousand is accused; None where that is not resolved."""
    outside = np.sort(score[~member])
    if len(outside) < RESOLVED:
        return Interval(None, None, None, 0.95)
    bound = outside[-max(1, int(len(outside) / 1000))]
    return Interval(float((score[member] > bound).mean()), None, None, 0.95)
