"""T8a: the thesis' ablations of FedAvg on CIFAR-10 over K, C, E and alpha (X4 to X7, T8a)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scipy.stats import spearmanr

from fedatlas.published.fedseq import cifar_tables
from fedatlas.published.gates import (
    CurvePicture,
    Figure,
    Gate,
    GateVerdict,
    Part,
    PartRuns,
    Runs,
    Target,
    apart_at_most,
    gate_of_means,
    last,
    listed,
    percent,
)
from fedatlas.study.plain import Plain, Row

ROUNDS, QUICK = 10_000, 100
SPREAD = 0.02  # C changes the final accuracy by at most this


class Ablation(NamedTuple):
    """One ablation: the keys it sets, its levels, the thesis' statements as gates."""

    title: str
    levels: Sequence[float]
    keys: Callable[[float], Mapping[str, Row]]
    gates: Callable[[Sequence[str]], tuple[Gate, ...]]


def ablation(factor: str) -> Callable[[bool, int | None], Target]:
    """Return the target of one factor: 'K', 'C', 'E' or 'alpha'."""
    title, levels, keys, gates = FACTORS[factor]
    names = [f"{factor}-{level:g}" for level in levels]  # 'K-100', 'alpha-0.2'

    def target(quick: bool = False, shorter: int | None = None) -> Target:
        rounds = shorter or (QUICK if quick else ROUNDS)
        each = [tables(keys(level), rounds, quick) for level in levels]
        parts = tuple(Part(name, one) for name, one in zip(names, each, strict=True))
        notes = (
            "FedAvg on CIFAR-10, LeNet-5; K = 100, C = 0.2, E = 1, alpha = 100 but for the factor varied; one seed.",
            f"The thesis ran {ROUNDS:,} rounds and shows curves only.",
        )
        source = "Rizzardi's thesis, section 5.3, table 5.5 (seed S3)"
        labels = {name: f"{factor} = {level:g}" for name, level in zip(names, levels, strict=True)}
        curves = (CurvePicture("", title, labels),)
        return Target(f"ablation-{factor}", title, source, parts, gates(names), notes, curves=curves)

    target.__doc__ = f"FedAvg on CIFAR-10 over {factor}: {', '.join(f'{level:g}' for level in levels)}."
    return target


def tables(changed: Mapping[str, Row], rounds: int, quick: bool) -> Plain:
    """Return the standard configuration with some keys changed; a quick run has batches of an eighth, so as many steps."""
    out = cifar_tables(rounds, quick, 100, 100.0, {"name": "fedavg"})
    if quick:
        out["local"]["batch_size"] = 8
    return {name: {**keys, **changed.get(name, {})} if isinstance(keys, dict) else keys for name, keys in out.items()}


def evaluated(runs: PartRuns) -> list[float]:
    """Return the accuracies of the single seed, at the evaluated rounds."""
    (seed,) = runs.rows
    return [x for _, x in runs.known(seed)]


def noise(runs: PartRuns, seed: int) -> float:
    """Return the standard deviation of the differences between successive evaluated rounds, over the second half."""
    curve = [x for _, x in runs.known(seed)]
    steps = [b - a for a, b in itertools.pairwise(curve[len(curve) // 2 :])]
    return statistics.stdev(steps) if len(steps) > 1 else math.nan


def hundredths(value: float) -> str:
    """Return points with two decimals: 0.0123 -> '1.23'."""
    return f"{100 * value:.2f}"


def rank_gate(name: str, said: str, names: Sequence[str], figure: Figure, sign: int) -> Gate:
    """Return the gate that the figure rises (sign 1) or falls (-1) with the level: Spearman's correlation of at least 0.9."""

    def rho(values: Sequence[float]) -> float:
        return float(spearmanr(range(len(values)), values).statistic)

    def text(runs: Runs, values: Sequence[float]) -> str:
        if any(map(math.isnan, values)):
            return "too few rounds to tell"
        return f"Spearman {rho(values):.2f}: {listed(names, values, hundredths if figure is noise else percent)}"

    def holds(values: Sequence[float]) -> bool | None:
        return None if any(map(math.isnan, values)) else sign * rho(values) >= 0.9

    rule = f"Spearman {'>=' if sign > 0 else '<='} {0.9 * sign:.1f}"
    return gate_of_means(name, said, rule, names, figure, holds, text)


def of_clients(names: Sequence[str]) -> tuple[Gate, ...]:
    """Return the gates that fewer clients learn better, and more clients more steadily."""
    return (
        rank_gate("K, accuracy", "smaller K, higher accuracy", names, last(), -1),
        rank_gate("K, steadiness", "larger K, steadier", names, noise, -1),
    )


def of_fraction(names: Sequence[str]) -> tuple[Gate, ...]:
    """Return the gates that C affects mainly the noise."""
    said, rule = "no large difference in accuracy", f"final spread at most {100 * SPREAD:.0f} points"
    return (
        gate_of_means("C, accuracy", said, rule, names, last(), apart_at_most(SPREAD)),
        rank_gate("C, steadiness", "smaller C, noisier", names, noise, -1),
    )


def of_epochs(names: Sequence[str]) -> tuple[Gate, ...]:
    """Return the gates that E = 5 leads E = 1 by up to ten points early on, and E = 20 ends worst."""

    def early(runs: Runs) -> GateVerdict:
        one, five, twenty = (evaluated(runs[name]) for name in names)
        first = max(2, len(one) // 10)
        lead, further = (
            max(b - a for a, b in zip(x[:first], y[:first], strict=True)) for x, y in ((one, five), (five, twenty))
        )
        leads = f"E = 5 leads E = 1 by up to {hundredths(lead)}, E = 20 leads E = 5 by up to {hundredths(further)}"
        return GateVerdict(f"{leads} points", abs(lead - 0.10) <= 0.04 and further < lead)

    said = "E = 5 up to 10 points above E = 1, then far less"
    rule = "largest lead in the first tenth of the rounds within 4 of 10 points; the next one smaller"
    final = gate_of_means("E, final", "E = 20 ends worst", "order", names, last(), lambda found: found[2] == min(found))
    return Gate("E, early", said, rule, tuple(names), early), final


def of_alpha(names: Sequence[str]) -> tuple[Gate, ...]:
    """Return the gates that the more alike the clients are, the better, faster and steadier the training is."""

    def settled(runs: Runs) -> GateVerdict:
        curve = evaluated(runs[names[-1]])
        share = curve[len(curve) // 5] / curve[-1]
        return GateVerdict(f"{share:.3f} of the final accuracy after a fifth of the rounds", share >= 0.95)

    said, rule = "almost converged at round 2,000", "at least 0.95 of the end"
    return (
        rank_gate("alpha, accuracy", "higher alpha, better", names, last(), 1),
        rank_gate("alpha, steadiness", "higher alpha, steadier", names, noise, -1),
        Gate("alpha = 100, settled", said, rule, (names[-1],), settled),
    )


FACTORS: Mapping[str, Ablation] = {
    "K": Ablation(
        "Number of clients K", (1, 10, 50, 100, 250, 500), lambda x: {"partition": {"clients": int(x)}}, of_clients
    ),
    "C": Ablation(
        "Share of clients a round C", (0.05, 0.1, 0.2, 0.5, 0.7, 1), lambda x: {"cohort": {"fraction": x}}, of_fraction
    ),
    "E": Ablation("Local epochs E", (1, 5, 20), lambda x: {"local": {"epochs": int(x)}}, of_epochs),
    "alpha": Ablation("Dirichlet alpha", (0, 0.2, 0.5, 100), lambda x: {"partition": {"alpha": x}}, of_alpha),
}
