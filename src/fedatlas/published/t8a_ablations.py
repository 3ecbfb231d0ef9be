"""T8a: the thesis' ablations of FedAvg on CIFAR-10 over K, C, E and alpha (X4 to X7, T8a)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from fedatlas.published.gates import Gate, Outcome, Outcomes, Part, Picture, Study, Verdict, listed, percent

ROUNDS, QUICK = 10_000, 100
SPREAD = 0.02  # C changes the final accuracy by no more


class Factor(NamedTuple):
    """What is varied: the keys it sets, its levels, the thesis' statements as gates."""

    title: str
    levels: Sequence[float]
    keys: Callable[[float], Mapping[str, Mapping[str, Any]]]
    gates: Callable[[Sequence[str]], tuple[Gate, ...]]


def ablation(factor: str) -> Callable[[bool, int | None], Study]:
    """The study of one factor: 'K', 'C', 'E' or 'alpha'."""

    def study(quick: bool = False, shorter: int | None = None) -> Study:
        chosen = FACTORS[factor]
        rounds = shorter or (QUICK if quick else ROUNDS)
        names = [part_name(factor, level) for level in chosen.levels]
        parts = tuple(
            Part(name, tables(chosen.keys(level), rounds, quick), (1,))
            for name, level in zip(names, chosen.levels, strict=True)
        )
        notes = (
            "FedAvg on CIFAR-10, LeNet-5; K = 100, C = 0.2, E = 1, alpha = 100 but for the factor varied; one seed.",
            f"The thesis ran {ROUNDS:,} rounds and shows curves only.",
        )
        gates = chosen.gates(names)
        source = "Rizzardi's thesis, section 5.3, table 5.5 (seed S3)"
        labels = {name: f"{factor} = {level:g}" for name, level in zip(names, chosen.levels, strict=True)}
        curves = (Picture("", chosen.title, labels),)
        return Study(f"ablation-{factor}", chosen.title, source, parts, gates, notes, curves=curves)

    study.__doc__ = f"FedAvg on CIFAR-10 over {factor}: {', '.join(f'{level:g}' for level in FACTORS[factor].levels)}."
    return study


def part_name(factor: str, level: float) -> str:
    """'K-100', 'alpha-0.2'."""
    return f"{factor}-{level:g}"


def tables(changed: Mapping[str, Mapping[str, Any]], rounds: int, quick: bool) -> dict[str, Any]:
    """Table 5.5's standard configuration with some keys changed; a tenth of the rows in batches of an eighth: as many steps."""
    base: dict[str, dict[str, Any]] = {
        "data": {"name": "cifar10", "augment": "crop_flip", "limit": 5000 if quick else 0},
        "partition": {"name": "dirichlet_fedseq", "clients": 100, "alpha": 100.0},
        "cohort": {"fraction": 0.2},
        "model": {"name": "lenet5"},
        "algorithm": {"name": "fedavg"},
        "local": {"epochs": 1, "batch_size": 8 if quick else 64, "lr": 0.01, "weight_decay": 4e-4},
        "evaluation": {"every": 10},
        "checkpoint": {"every": 10},
    }
    return {"rounds": rounds, **{name: {**keys, **changed.get(name, {})} for name, keys in base.items()}}


def evaluated(outcome: Outcome) -> list[float]:
    """The accuracies of the one seed, at the rounds that were evaluated."""
    (seed,) = outcome.rows
    return [x for x in outcome.curve(seed, "accuracy") if x is not None]


def noise(outcome: Outcome) -> float:
    """Standard deviation of the differences from one evaluated round to the next, over the second half."""
    curve = evaluated(outcome)
    steps = [b - a for a, b in itertools.pairwise(curve[len(curve) // 2 :])]
    return statistics.stdev(steps) if len(steps) > 1 else math.nan


def points(value: float) -> str:
    """0.0123 -> '1.23'."""
    return f"{100 * value:.2f}"


def rank_gate(name: str, said: str, names: Sequence[str], figure: Callable[[Outcome], float], sign: int) -> Gate:
    """The figure rises (sign 1) or falls (-1) with the level: Spearman's correlation of at least 0.9."""

    def check(parts: Outcomes) -> Verdict:
        values = [figure(parts[part]) for part in names]
        if any(math.isnan(value) for value in values):
            return Verdict("too few rounds to tell", None)
        rho = float(spearmanr(range(len(values)), values).statistic)
        text = points if figure is noise else percent
        return Verdict(f"Spearman {rho:.2f}: {listed(names, values, text)}", sign * rho >= 0.9)

    rule = f"Spearman {'>=' if sign > 0 else '<='} {0.9 * sign:.1f}"
    return Gate(name, said, rule, tuple(names), check)


def last(outcome: Outcome) -> float:
    """The accuracy at the end."""
    return evaluated(outcome)[-1]


def of_clients(names: Sequence[str]) -> tuple[Gate, ...]:
    """Fewer clients learn better, more clients more steadily."""
    return (
        rank_gate("K, accuracy", "smaller K, higher accuracy", names, last, -1),
        rank_gate("K, steadiness", "larger K, steadier", names, noise, -1),
    )


def of_fraction(names: Sequence[str]) -> tuple[Gate, ...]:
    """C makes no large difference but to the noise."""

    def check(parts: Outcomes) -> Verdict:
        values = [last(parts[name]) for name in names]
        return Verdict(listed(names, values), max(values) - min(values) <= SPREAD)

    said = "no large difference in accuracy"
    spread = Gate("C, accuracy", said, f"final spread at most {100 * SPREAD:.0f} points", tuple(names), check)
    return spread, rank_gate("C, steadiness", "smaller C, noisier", names, noise, -1)


def of_epochs(names: Sequence[str]) -> tuple[Gate, ...]:
    """E = 5 leads E = 1 by up to ten points early on, E = 20 ends worst."""

    def early(parts: Outcomes) -> Verdict:
        one, five, twenty = (evaluated(parts[name]) for name in names)
        first = max(2, len(one) // 10)
        lead, further = (
            max(b - a for a, b in zip(x[:first], y[:first], strict=True)) for x, y in ((one, five), (five, twenty))
        )
        text = f"E = 5 leads E = 1 by up to {points(lead)}, E = 20 leads E = 5 by up to {points(further)} points"
        return Verdict(text, abs(lead - 0.10) <= 0.04 and further < lead)

    def final(parts: Outcomes) -> Verdict:
        values = [last(parts[name]) for name in names]
        return Verdict(listed(names, values), values[2] == min(values))

    rule = "largest lead in the first tenth of the rounds within 4 of 10 points; the next one smaller"
    return (
        Gate("E, early", "E = 5 up to 10 points above E = 1, then far less", rule, tuple(names), early),
        Gate("E, final", "E = 20 ends worst", "order", tuple(names), final),
    )


def of_alpha(names: Sequence[str]) -> tuple[Gate, ...]:
    """The more alike the clients, the better, the faster, the steadier."""

    def settled(parts: Outcomes) -> Verdict:
        curve = evaluated(parts[names[-1]])
        share = curve[len(curve) // 5] / curve[-1]
        return Verdict(f"{share:.3f} of the final accuracy after a fifth of the rounds", share >= 0.95)

    return (
        rank_gate("alpha, accuracy", "higher alpha, better", names, last, 1),
        rank_gate("alpha, steadiness", "higher alpha, steadier", names, noise, -1),
        Gate(
            "alpha = 100, settled", "almost converged at round 2,000", "at least 0.95 of the end", (names[-1],), settled
        ),
    )


FACTORS: Mapping[str, Factor] = {
    "K": Factor(
        "Number of clients K", (1, 10, 50, 100, 250, 500), lambda x: {"partition": {"clients": int(x)}}, of_clients
    ),
    "C": Factor(
        "Share of clients a round C", (0.05, 0.1, 0.2, 0.5, 0.7, 1), lambda x: {"cohort": {"fraction": x}}, of_fraction
    ),
    "E": Factor("Local epochs E", (1, 5, 20), lambda x: {"local": {"epochs": int(x)}}, of_epochs),
    "alpha": Factor("Dirichlet alpha", (0, 0.2, 0.5, 100), lambda x: {"partition": {"alpha": x}}, of_alpha),
}
