"""The membership game (A5): tell rows that clients trained on from rows that they held out.

Members and non-members are equal in number for each client and class. Half of the held-out rows are the attacker's auxiliary rows,
only for shadow models; the other half are the non-members. Membership follows from data, partition and seed, so only a holder of
the data can score. The placebo tells non-members from other non-members.

role: the role whose view is attacked: "server", "client:3" or "outsider".
"""

from __future__ import annotations

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
SPLITS = 10  # splits of the non-members in two, averaged for the placebo: a single split is mostly chance
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
    played = [_players(member, truth.seed, split) for split in range(SPLITS)]
    guess = score >= np.median(score)  # half are members, as the attacker knows

    def figures(drawn: Floats) -> dict[str, Floats]:
        real = _auc(score, member, ~member, drawn)
        null = np.mean([_auc(score, one, ~member & ~one, drawn) for one in played], axis=0)
        inside, outside = _rate(guess, member, drawn), _rate(guess, ~member, drawn)
        one = {"auc": real, "placebo": null, "leak": real - null}
        return {**one, "accuracy": (inside + 1 - outside) / 2, "advantage": inside - outside}

    found = bootstrap(figures, len(member), truth.seed, "attack")
    leak = found["leak"]
    metrics = {
        "auc": measured(found["auc"], found["placebo"].estimate),
        "accuracy": measured(found["accuracy"], 0.5),
        "advantage": measured(found["advantage"], 0.0),
        "tpr_at_fpr_0.001": measured(_low_rate(score, member), 0.001),
    }
    leaks = {"auc": {"value": leak.estimate, "low": leak.low, "high": leak.high}}
    return Score(metrics, leaks, len(member), {"score": score, "member": member})


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
    """Return the share of members found if one non-member in a thousand is misclassified; None if that is not resolved."""
    outside = np.sort(score[~member])
    if len(outside) < RESOLVED:
        return Interval(None, None, None, 0.95)
    bound = outside[-max(1, int(len(outside) / 1000))]
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
