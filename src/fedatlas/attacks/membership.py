"""The membership game (A5): tell rows that clients trained on from rows that they held out.

Members and non-members are equal in number for each client and class. Half of the held-out rows are the attacker's auxiliary rows,
only for shadow models; the other half are the non-members. Online, LiRA and RMIA train shadow models on random halves of the candidates
instead, which they have without the truth: the one exception. Membership follows from data, partition and seed, so only a holder of
the data can score. The placebo tells non-members from other non-members: random halves of them, each with its complement, so that
its mean is 0.5 and its spread says what chance does. A leak is claimed only beyond that spread; where none is seen, the smallest AUC
is told that so many rows would have shown with 80% power (normal approximation, deviation by Hanley & McNeil 1982). A game that a
classifier wins without the model is unfair and has no figure.

role: the role whose view is attacked: "server", "client:3" or "outsider"; of "successor:3" the model that client 3 handed on, and only
    rows of client 3 are in the game.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.forest import played_blind, sorted_probabilities, told_apart
from fedatlas.attacks.likelihood import confidence, halves, lira, rmia
from fedatlas.attacks.low_rate import RATE, LowRate, low_rate
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.shadow_models import (
    Training,
    by_gradient,
    by_loss,
    by_shadows,
    federated,
    outputs_of,
    trained,
)
from fedatlas.attacks.view_attack import SHADOWS, Arrays, Files, Knowledge, Picture, Score, Truth, ViewAttack, measured
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError, DataError
from fedatlas.metrics.intervals import bootstrap
from fedatlas.metrics.quality import Floats, over
from fedatlas.metrics.resampling import pairs_won
from fedatlas.registry import Whole
from fedatlas.rng import derive, numpy_stream, torch_stream

Labelled = tuple[Tensor, Tensor]
"""Rows with their classes."""
CANDIDATES, AUXILIARY = "candidates.npz", "auxiliary.npz"
SPLITS = 200  # splits of the non-members in two, each taken both ways: their spread is the placebo
LIKELIHOOD, FEWEST = ("lira", "rmia"), 4  # methods by likelihood ratios, and their fewest shadow models
CHANCE, CENTRAL = 0.5, 0.95  # AUC of guessing; share of the placebo's splits that its spread holds
BOTH, POWER = 1.959964, 0.841621  # quantiles of the normal distribution: two-sided 95%, one-sided 80%
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
    *,
    role: str = "outsider",
    method: Literal["loss", "gradnorm", "shadow", "lira", "rmia", "worst_case"] = "loss",
    online: bool = False,
    shadows: Whole | None = None,
    epochs: Whole | None = None,
) -> ViewAttack:
    """Membership inference: was this row trained on? Judged on rows that clients trained on and rows that they held out.

    By the loss of a row (Yeom et al. 2018), by the norm of its gradient (Nasr et al. 2019), by a logistic classifier on confidences
    and label, trained on shadow models (Shokri et al. 2017), by likelihood ratios to shadow models (LiRA, Carlini et al. 2022; RMIA,
    Zarifzadeh et al. 2024), or by a random forest that knows the truth of half of the rows. Needs evaluation.clients above 0: the
    held-out rows are the non-members. A5.

    method: by the loss, by the norm of the gradient, by shadow models, by likelihood ratios to shadow models (lira, rmia), or knowing half
        of the truth.
    online: shadow models of lira and rmia are trained on random halves of the candidates, not of the auxiliary rows.
    shadows: the attacker's own models, each trained on half of its rows; 16 for lira and rmia, 4 for shadow.
    epochs: training epochs of a shadow model; 30 for shadow, for lira and rmia as many as the federation's.
    """
    keys = _keys(method, online, shadows, epochs)
    worst, likelihood = method == "worst_case", method in LIKELIHOOD
    whose = ViewRole.parse(role, "attack.role")
    return ViewAttack(
        "membership",
        "membership",
        whose,
        keys,
        _declaration(keys, whose),
        answer=lambda known: _answer(known, keys),
        score=lambda truth, answer: _score(truth, answer, whose, known_half(truth) if worst else None),
        figures=FIGURES,
        leak="auc",
        pictures=_pictures,
        thing="candidate",
        rounds=None if whose.kind == "outsider" else (0, 0),
        refuses=lambda config: "" if config.evaluation.clients else NO_ROWS,
        files=(CANDIDATES, AUXILIARY),
        draws=lambda truth: _files(truth, keys),
        undrawn=UNDRAWN,
        tells=_half_of_the_truth if worst else None,
        shadows=likelihood,
    )


def _keys(method: str, online: bool, shadows: int | None, epochs: int | None) -> dict[str, Any]:
    """Return the keys that a method uses, with their defaults. ConfigError for numbers of shadow models that do not suit it."""
    if method in LIKELIHOOD:
        many = 16 if shadows is None else shadows
        if many < FEWEST or many % 2:
            raise ConfigError(
                f"attack 'membership': shadows = {many}: '{method}' needs an even number of at least {FEWEST} shadow models, since each "
                "row is in half of them."
            )
        return {"method": method, "online": online, "shadows": many, "epochs": epochs}
    if method in {"gradnorm", "worst_case"}:
        return {"method": method}
    return {"method": method, "shadows": shadows or 4, "epochs": epochs or 30}


def _declaration(keys: dict[str, Any], role: ViewRole) -> Declaration:
    """Return the threat model of a method."""
    method, models = keys["method"], f"{keys.get('shadows')} models trained "
    passes = "as often as the federation's" if keys.get("epochs") is None else f"for {keys['epochs']} passes"
    own = "; auxiliary rows of the clients, none of them a candidate"
    more, spent = {
        "loss": ("", "one pass of the model per row"),
        "gradnorm": ("", "one gradient of the model per row"),
        "shadow": (own, models + passes),
        "worst_case": (
            "; of half of the candidates whether they are members",
            "a random forest on the model's probabilities",
        ),
    }.get(method, (own + "; how many rows each client trains on", models + passes))
    if keys.get("online"):
        spent += " on random halves of the candidates"
    return Declaration(
        who="outsider who receives the model, or an insider: a client, the next client of a chain, or the server",
        how="passive: it queries the model",
        when="inference: after the last round that the role saw",
        where="the model that the client before handed on" if role.kind == "successor" else "the global model",
        why="membership: whether a row was trained on",
        knowledge=f"the candidates, half of them members; the network and the local training{more}",
        budget=spent,
    )


# ---------------------------------------------------------------------- before round 1


class Candidates(NamedTuple):
    """The rows of the game as a model reads them, shuffled, with the truth."""

    x: Tensor
    y: Tensor
    member: np.ndarray  # bool
    client: np.ndarray  # whose row it is
    auxiliary_x: Tensor
    auxiliary_y: Tensor


def candidates_of(truth: Truth) -> Candidates:
    """Return the game of a run. ConfigError if no class of any client has a row on both sides."""
    members, others, spare, whose = list[Rows](), list[Rows](), list[Rows](), list[int]()
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
            whose += [k] * n
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
    return Candidates(x[shuffled], y[shuffled], order < many, np.array(whose * 2)[order], *auxiliary)


def _files(truth: Truth, keys: dict[str, Any]) -> Files:
    """Return the candidates without the truth, and the auxiliary rows. ConfigError if they are too few for the method."""
    game = candidates_of(truth)
    _enough(keys, truth.classes, len(game.y), len(game.auxiliary_y))
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
    x, y = (torch.from_numpy(known.arrays(CANDIDATES)[part]) for part in ("x", "y"))
    own = tuple(torch.from_numpy(known.arrays(AUXILIARY)[part]) for part in ("x", "y"))
    _enough(keys, known.classes, len(y), len(own[1]))
    if keys["method"] == "loss":
        return {"score": by_loss(lambda rows: outputs_of(model, rows), x, y).numpy()}
    if keys["method"] == "gradnorm":
        return {"score": by_gradient(model, x, y).numpy()}
    if keys["method"] == "worst_case":
        p = sorted_probabilities(torch.softmax(outputs_of(model, x).double(), 1).numpy())
        half, member = (np.array(known.told[part]) for part in ("known", "member"))
        return {"score": told_apart(p[half], member, p, derive(known.seed, "attack", "forest") % 2**32)}
    if keys["method"] == "shadow":
        rng = torch_stream(known.seed, "attack", "shadows")
        local = known.config.local
        training = Training(local.lr, local.batch_size, keys["epochs"])
        predict = lambda rows: outputs_of(model, rows)  # noqa: E731
        fresh = lambda number: known.network(derive(known.seed, "attack", "shadow", number))  # noqa: E731
        return {"score": by_shadows(predict, x, y, (own[0], own[1]), fresh, training, keys["shadows"], rng).numpy()}
    return {"score": _by_likelihood(known, keys, model, (x, y), (own[0], own[1]))}


def _by_likelihood(
    known: Knowledge, keys: dict[str, Any], model: nn.Module, candidates: Labelled, auxiliary: Labelled
) -> Floats:
    """Return (n,): LiRA's or RMIA's score. RMIA's population are the rows that the shadow models are trained on."""
    rows = candidates if keys["online"] else auxiliary
    inside = halves(keys["shadows"], len(rows[1]), numpy_stream(known.seed, "attack", "halves"))
    training = federated(known.config, known.told["sizes"], len(rows[1]) // 2, keys["epochs"])
    seen = list(_shadow_confidences(known, rows, inside, training, candidates))
    (target, shadow), population = (
        (confidence(outputs_of(model, x), y), np.stack([each[part] for each in seen]))
        for part, (x, y) in {"candidates": candidates, "rows": rows}.items()
    )
    among = inside if keys["online"] else np.zeros_like(shadow, bool)
    return lira(target, shadow, among) if keys["method"] == "lira" else rmia(target, shadow, among, *population, inside)


def _shadow_confidences(
    known: Knowledge, rows: Labelled, inside: np.ndarray, training: Training, candidates: Labelled
) -> Iterator[Arrays]:
    """Yield each shadow model's phi of the ``candidates`` and of its ``rows``. A model that is finished is not trained again."""
    key = blake2b(b"".join([rows[0].numpy().tobytes(), inside.tobytes(), repr(training).encode()]), digest_size=8)
    for number, half in enumerate(torch.from_numpy(inside)):
        name = f"{SHADOWS}/{key.hexdigest()}-{number:03d}.npz"
        if not known.arrays(name):
            stream = torch_stream(known.seed, "attack", "shadows", number)
            fresh = known.network(derive(known.seed, "attack", "shadow", number))
            shadow = trained(fresh, rows[0][half], rows[1][half], training, stream)
            parts = {"candidates": candidates, "rows": rows}
            known.keep(name, {part: confidence(outputs_of(shadow, x), y) for part, (x, y) in parts.items()})
        yield known.arrays(name)


def _enough(keys: dict[str, Any], classes: int, candidates: int, auxiliary: int) -> None:
    """Raise ConfigError if rows are too few to train shadow models on."""
    if keys["method"] in {"loss", "gradnorm", "worst_case"}:
        return
    if keys.get("online") and candidates < 2 * classes:
        raise ConfigError(
            f"attack 'membership': halves of {candidates} candidates are too few to train shadow models on; raise "
            'evaluation.clients, or set method = "loss".'
        )
    if not keys.get("online") and auxiliary < 2 * classes:
        raise ConfigError(
            f"attack 'membership': {auxiliary} auxiliary rows are too few to train shadow models on; raise "
            'evaluation.clients, or set method = "loss".'
        )


# ---------------------------------------------------------------------- scored by a holder of the data


def known_half(truth: Truth) -> np.ndarray:
    """Return the candidates whose truth the worst-case attacker knows: a random half, in order."""
    many = len(candidates_of(truth).member)
    return np.sort(numpy_stream(truth.seed, "attack", "known").permutation(many)[: many // 2])


def _half_of_the_truth(truth: Truth) -> dict[str, Any]:
    half = known_half(truth)
    return {"known": half.tolist(), "member": candidates_of(truth).member[half].tolist()}


def _score(truth: Truth, answer: Arrays, role: ViewRole, known: np.ndarray | None = None) -> Score:
    """Return the figures of a fair game, over the candidates that are not ``known``; a successor's are those of its predecessor.

    DataError if the game is unfair, or has none of these.
    """
    game = candidates_of(truth)
    if (blind := played_blind(game.x.numpy(), game.member, truth.seed)).unfair:
        raise DataError(
            f"unfair game: a classifier that sees rows but no model tells members from non-members with an AUC of {blind.auc:.3f} "
            f"(chance: up to {blind.chance:.3f}), so no figure is given."
        )
    keep = game.client == role.client if role.kind == "successor" else np.ones(len(game.member), bool)
    keep[[] if known is None else known] = False
    if len(set(game.member[keep])) < 2:
        raise DataError(f"client {role.client} has no candidates on both sides: raise evaluation.clients.")
    return scored(game.member[keep], answer["score"][keep].astype(np.float64), truth.seed)


def scored(member: np.ndarray, score: Floats, seed: int, spread: float | None = None) -> Score:
    """Return the figures of scores (n,) whose truth is ``member`` (n,). ``spread`` of the placebo; None: by `placebo_spread`."""
    guess = score >= np.median(score)  # half are members, as the attacker knows

    def figures(drawn: Floats) -> dict[str, Floats]:
        inside, outside = _rate(guess, member, drawn), _rate(guess, ~member, drawn)
        real = _auc(score, member, ~member, drawn)
        return {"auc": real, "accuracy": (inside + 1 - outside) / 2, "advantage": inside - outside}

    found = bootstrap(figures, len(member), seed, "attack")
    auc, spread = found["auc"], placebo_spread(score, member, seed) if spread is None else spread
    low = low_rate(score, member, seed)
    metrics = {
        "auc": measured(auc, CHANCE) | {"placebo_low": CHANCE - spread, "placebo_high": CHANCE + spread},
        "accuracy": measured(found["accuracy"], 0.5),
        "advantage": measured(found["advantage"], 0.0),
        "tpr_at_fpr_0.001": _with_placebo(low),
    }
    above = {key: None if x is None else x - CHANCE for key, x in zip(("value", "low", "high"), auc, strict=False)}
    seen = smallest_shown(int(member.sum()), int((~member).sum()), spread)
    leaks: dict[str, dict[str, float | None]] = {"auc": {**above, "beyond": spread, "smallest": seen}}
    if low.leak.estimate is not None:
        leaks["tpr_at_fpr_0.001"] = {"value": low.leak.estimate, "low": low.leak.low, "high": low.leak.high}
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


def shuffled_spread(score: np.ndarray, games: Iterable[np.ndarray]) -> float:
    """Return how far from 0.5 the AUC of ``score`` (n,) lies in at most 5% of games, each a random truth (n,); 0.5 without any."""
    once = np.ones((1, len(score)))
    far = [abs(float(_auc(score, one, ~one, once)[0]) - CHANCE) for one in games]
    return float(np.quantile(far, CENTRAL)) if far else CHANCE


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


def _with_placebo(low: LowRate) -> dict[str, float | None]:
    if low.found.estimate is None:
        return measured(low.found, 1 / RATE)
    return measured(low.found, low.placebo.estimate) | {
        "placebo_low": low.placebo.low,
        "placebo_high": low.placebo.high,
    }


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
