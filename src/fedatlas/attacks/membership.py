"""The membership game (A5): tell rows that clients trained on from rows that they held out.

Members and non-members are equal in number for each client and class. Half of the held-out rows are the attacker's auxiliary rows,
only for shadow models; the other half are the non-members. Membership follows from data, partition and seed, so only a holder of
the data can score. The placebo tells non-members from other non-members: random halves of them, each with its complement, so that
its mean is 0.5 and its spread says what chance does. A leak is claimed only beyond that spread; where none is seen, the smallest AUC
is told that so many rows would have shown with 80% power (normal approximation, deviation by Hanley & McNeil 1982).

role: the role whose view is attacked: "server", "client:3" or "outsider".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.shadow_models import Training, by_loss, by_shadows
from fedatlas.attacks.view_attack import Arrays, Files, Knowledge, Picture, Score, Truth, ViewAttack, measured
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.metrics.intervals import Interval, bootstrap
from fedatlas.metrics.quality import Floats, over
from fedatlas.metrics.resampling import pairs_won
from fedatlas.registry import Whole
from fedatlas.rng import derive, numpy_stream, torch_stream

CANDIDATES, AUXILIARY = "candidates.npz", "auxiliary.npz"
SPLITS = 200  # splits of the non-members in two, each taken both ways: their spread is the placebo
CHANCE, CENTRAL = 0.5, 0.95  # AUC of guessing; share of the placebo's splits that its spread holds
BOTH, POWER = 1.959964, 0.841621  # quantiles of the normal distribution: two-sided 95%, one-sided 80%
RESOLVED = 10_000  # with fewer non-members, a true positive rate at 0.1% false positives is not resolved
SEVERAL = 20  # points of a curve per power of ten
NO_ROWS = (
    "attack 'membership' needs rows that clients held out, as non-members: set clients = 0.5 under [evaluation] (the test rows of a "
    "data set come from other people, which would not be a fair game)."
)
UNDRAWN = (
    'candidates are drawn when the attack is declared; add [[attack]] with name = "membership" and, under [evaluation], clients = 0.5 '
    "to the experiment and run again."
)
FIGURES = {
    "auc": "AUC",
    "accuracy": "balanced accuracy",
    "advantage": "advantage (true minus false positives)",
    "tpr_at_fpr_0.001": "true positives at 0.1% false positives",
}


def membership(
    *, role: str = "outsider", method: Literal["loss", "shadow"] = "loss", shadows: Whole = 4, epochs: Whole = 30
) -> ViewAttack:
    """Membership inference: was this row trained on? Judged on rows that clients trained on and rows that they held out.

    By the loss of a row (Yeom et al. 2018), or by a logistic classifier on confidences and label, trained on shadow models
    (Shokri et al. 2017). Needs evaluation.clients above 0: the held-out rows are the non-members. A5.

    method: by the loss of the row under the model, or by shadow models.
    shadows: the attacker's own models, each trained on half of its auxiliary rows.
    epochs: training epochs of a shadow model.
    """
    spent = "one pass of the model per row" if method == "loss" else f"{shadows} models trained for {epochs} passes"
    more = "; auxiliary rows of the clients, none of them a candidate" if method == "shadow" else ""
    declares = Declaration(
        who="outsider who receives the model, or an insider: a client or the server",
        how="passive: it queries the model",
        when="inference: after the last round that the role saw",
        where="the global model",
        why="membership: whether a row was trained on",
        knowledge=f"the candidates, half of them members; the network and the local training{more}",
        budget=spent,
    )
    whose = ViewRole.parse(role, "attack.role")
    keys: dict[str, Any] = {"method": method, "shadows": shadows, "epochs": epochs}
    return ViewAttack(
        "membership",
        "membership",
        whose,
        keys,
        declares,
        answer=lambda known: _answer(known, keys),
        score=_score,
        figures=FIGURES,
        leak="auc",
        pictures=_pictures,
        thing="candidate",
        rounds=None if whose.kind == "outsider" else (0, 0),
        refuses=lambda config: "" if config.evaluation.clients else NO_ROWS,
        files=(CANDIDATES, AUXILIARY),
        draws=_files,
        undrawn=UNDRAWN,
    )


# ---------------------------------------------------------------------- before round 1


class Candidates(NamedTuple):
    """The rows of the game as a model reads them, shuffled, with the truth."""

    x: Tensor
    y: Tensor
    member: np.ndarray  # bool
    auxiliary_x: Tensor
    auxiliary_y: Tensor


def candidates_of(truth: Truth) -> Candidates:
    """Return the game of a run. ConfigError if no class of any client has a row on both sides."""
    members, others, spare = list[Rows](), list[Rows](), list[Rows]()
    for k in sorted(truth.sizes):
        if not (truth.sizes[k] and truth.kept_sizes.get(k)):
            continue
        stream = numpy_stream(truth.seed, "attack", "candidates", k)
        trained, kept = truth.rows(k), truth.kept(k)
        for c in range(truth.classes):
            ours, theirs = (stream.permutation(np.flatnonzero(rows.y.numpy() == c)) for rows in (trained, kept))
            half = len(theirs) // 2
            n = min(len(ours), len(theirs) - half)
            chosen = (
                (kept, theirs[:half], spare),
                (trained, ours[:n], members),
                (kept, theirs[half : half + n], others),
            )
            for rows, index, into in chosen:
                into.append(rows.take(torch.from_numpy(np.sort(index))))
    many = sum(rows.n for rows in members)
    if not many:
        raise ConfigError(
            "attack 'membership': no class of any client has both a trained and a held-out row; raise "
            "evaluation.clients."
        )
    x, y = (torch.cat([getattr(rows, part) for rows in (*members, *others)]) for part in ("x", "y"))
    order = numpy_stream(truth.seed, "attack", "order").permutation(len(y))
    shuffled = torch.from_numpy(order)
    auxiliary = (torch.cat([getattr(rows, part) for rows in spare]) for part in ("x", "y"))
    return Candidates(x[shuffled], y[shuffled], order < many, *auxiliary)


def _files(truth: Truth) -> Files:
    """Return the candidates without the truth, and the auxiliary rows."""
    game = candidates_of(truth)
    return {
        CANDIDATES: {"x": game.x.numpy(), "y": game.y.numpy()},
        AUXILIARY: {"x": game.auxiliary_x.numpy(), "y": game.auxiliary_y.numpy()},
    }


# ---------------------------------------------------------------------- in the attacker's process


def _answer(known: Knowledge, keys: dict[str, Any]) -> Arrays:
    """Return score (n,): the higher, the more likely a member."""
    model = known.network(known.seed)
    model.load_state_dict({**model.state_dict(), **known.model()})
    model.eval()

    def predict(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([model(piece) for piece in torch.split(x, 1024)])

    x, y = (torch.from_numpy(known.arrays(CANDIDATES)[part]) for part in ("x", "y"))
    if keys["method"] == "loss":
        return {"score": by_loss(predict, x, y).numpy()}
    own = tuple(torch.from_numpy(known.arrays(AUXILIARY)[part]) for part in ("x", "y"))
    if len(own[1]) < 2 * known.classes:
        raise ConfigError(
            f"attack 'membership': {len(own[1])} auxiliary rows are too few to train shadow models on; raise "
            'evaluation.clients, or set method = "loss".'
        )
    rng, local = torch_stream(known.seed, "attack", "shadows"), known.config.local
    fresh = lambda number: known.network(derive(known.seed, "attack", "shadow", number))  # noqa: E731
    training = Training(local.lr, local.batch_size, keys["epochs"])
    return {"score": by_shadows(predict, x, y, (own[0], own[1]), fresh, training, keys["shadows"], rng).numpy()}


# ---------------------------------------------------------------------- scored by a holder of the data


def _score(truth: Truth, answer: Arrays) -> Score:
    member, score = candidates_of(truth).member, answer["score"].astype(np.float64)
    guess = score >= np.median(score)  # half are members, as the attacker knows

    def figures(drawn: Floats) -> dict[str, Floats]:
        inside, outside = _rate(guess, member, drawn), _rate(guess, ~member, drawn)
        real = _auc(score, member, ~member, drawn)
        return {"auc": real, "accuracy": (inside + 1 - outside) / 2, "advantage": inside - outside}

    found = bootstrap(figures, len(member), truth.seed, "attack")
    auc, spread = found["auc"], placebo_spread(score, member, truth.seed)
    metrics = {
        "auc": measured(auc, CHANCE) | {"placebo_low": CHANCE - spread, "placebo_high": CHANCE + spread},
        "accuracy": measured(found["accuracy"], 0.5),
        "advantage": measured(found["advantage"], 0.0),
        "tpr_at_fpr_0.001": measured(_low_rate(score, member), 0.001),
    }
    above = {key: None if x is None else x - CHANCE for key, x in zip(("value", "low", "high"), auc, strict=False)}
    seen = smallest_shown(int(member.sum()), int((~member).sum()), spread)
    leaks = {"auc": {**above, "beyond": spread, "smallest": seen}}
    return Score(metrics, leaks, len(member), {"score": score, "member": member})


def placebo_spread(score: np.ndarray, member: np.ndarray, seed: int) -> float:
    """Return how far from 0.5 the AUC of one half of the non-members against the other lies in at most 5% of random splits.

    A split taken the other way has the AUC 1 - a, so splits with their complements lie evenly around 0.5. A half has fewer rows than
    the game, and so a wider spread: it is brought to the game's numbers by the variance (m + n + 1) / (12 m n) of an AUC by chance.
    """
    members, others = int(member.sum()), int((~member).sum())
    half = others // 2
    if not (members and half):
        return CHANCE
    once = np.ones((1, len(member)))
    played = [_players(member, seed, split) for split in range(SPLITS)]
    found = np.array([_auc(score, one, ~member & ~one, once)[0] for one in played])
    far = np.abs(found[np.isfinite(found)] - CHANCE)
    size = math.sqrt(_variance(members, others) / _variance(half, others - half))
    return min(size * float(np.quantile(far, CENTRAL)), CHANCE) if len(far) else CHANCE


def _variance(m: int, n: int) -> float:
    """Return the variance of the AUC of m rows against n of the same kind, without ties (Mann & Whitney 1947)."""
    return (m + n + 1) / (12 * m * n)


def smallest_shown(members: int, others: int, spread: float) -> float | None:
    """Return the smallest AUC that would be claimed as a leak with 80% power, in steps of 0.001; None if not even 1 would."""
    for auc in np.arange(501, 1001) / 1000:
        one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
        pairs = auc * (1 - auc) + (members - 1) * (one - auc**2) + (others - 1) * (two - auc**2)
        deviation = math.sqrt(max(pairs, 0.0) / (members * others))
        if auc - POWER * deviation > CHANCE + max(spread, BOTH * deviation):
            return float(auc)
    return None


def _players(member: np.ndarray, seed: int, split: int) -> np.ndarray:
    """Return half of the non-members, which act as members in the placebo."""
    others = numpy_stream(seed, "attack", "placebo", split).permutation(np.flatnonzero(~member))
    out = np.zeros(len(member), bool)
    out[others[: len(others) // 2]] = True
    return out


def _auc(score: np.ndarray, positive: np.ndarray, negative: np.ndarray, drawn: Floats) -> Floats:
    """Return how often a positive row scores above a negative one, ties by half, weighted by how often each row was drawn."""
    order = np.argsort(score, kind="stable")
    up, down = order[positive[order]], order[negative[order]]
    lower, upper = (np.searchsorted(score[down], score[up], side=side) for side in ("left", "right"))
    won = np.array([pairs_won(one[up], one[down], lower, upper) for one in drawn])
    return over(won, drawn[:, up].sum(1) * drawn[:, down].sum(1))


def _rate(guess: np.ndarray, group: np.ndarray, drawn: Floats) -> Floats:
    return over((drawn * (guess & group)).sum(1), (drawn * group).sum(1))


def _low_rate(score: np.ndarray, member: np.ndarray) -> Interval:
    """Return the share of members found if at most one non-member in a thousand is misclassified; None if that is not resolved."""
    outside = np.sort(score[~member])
    if len(outside) < RESOLVED:
        return Interval(None, None, None, 0.95)
    bound = outside[-1 - len(outside) // 1000]  # one in a thousand lies above it
    return Interval(float((score[member] > bound).mean()), None, None, 0.95)


def _pictures(arrays: Arrays) -> list[Picture]:
    points = roc(arrays["score"], arrays["member"])
    how = (
        "For every threshold, the share of members found against the share of non-members wrongly reported as members, both on logarithmic "
        "axes. The left end matters most, with few false positives. The dashed line is guessing."
    )
    titles = ("share of non-members wrongly reported", "Share of members found")
    columns = ("false_positives", "true_positives")
    label = "Receiver operating characteristic"
    return [Picture("curve", "roc", "Members against non-members", label, how, columns, points, titles, points)]


def roc(score: np.ndarray, member: np.ndarray) -> Sequence[tuple[float, float]]:
    """Return (false positive rate, true positive rate) by falling threshold, from the first false positive; few per power of ten."""
    order = np.argsort(-score, kind="stable")
    ends = np.flatnonzero(np.diff(score[order], append=np.nan) != 0)  # ties are counted together
    true = np.cumsum(member[order])[ends] / max(int(member.sum()), 1)
    false = np.cumsum(~member[order])[ends] / max(int((~member).sum()), 1)
    out: list[tuple[float, float]] = []
    for x, y in zip(false.tolist(), true.tolist(), strict=True):
        if not x:
            continue
        near = out and np.log10(x / out[-1][0]) < 1 / SEVERAL and x < 1
        if not near:
            out.append((x, y))
    return out
