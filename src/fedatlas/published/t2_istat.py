"""T2: the statistical offices' aggregation strategies on HAR (X2, T2, rows 1-10)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedatlas.published.gates import (
    Gate,
    GateVerdict,
    Part,
    PartRuns,
    Runs,
    Target,
    apart_at_most,
    at_least,
    at_round,
    gate_in_seeds,
    gate_of_means,
    listed,
)

FOUR = ("fedavg", "hwfedavg", "nwfedavg", "fedyogi")
UNTUNED = ("fedadagrad", "fedadam")
SIZES = {"full": 0, "1600": 1600}
SLIDES = ("random", "majority", "pick_two")
NOTES = (
    "Local training is not given in the paper. X2 proposes Adam 1e-3, one epoch, batches of 32, tuned once.",
    "Tuned once: with one to ten epochs of Adam, FedAvg on full data (seed 1) stands at F1 0.52 to 0.75 after round 2.",
    "The cheapest of a dozen settings that reaches 0.9 there is used for all: SGD 0.02, momentum 0.9, 20 epochs (0.93).",
    "Server optimisers have their untuned defaults. Rows are those of T2.",
)
THREE, FOUR_DIGITS = "{:.3f}".format, "{:.4f}".format


def istat_strategies(quick: bool = False, shorter: int | None = None) -> Target:
    """FedAvg, HWFedAvg, NWFedAvg, FedYogi and two more on HAR: 8 clients, majority even, macro-F1 after each round."""
    rounds, many, seeds, few = (6, (1, 2), (1, 2), (1,)) if quick else (15, range(1, 11), range(1, 6), range(1, 4))

    def part(name: str, about: str, partition: str, limit: int, seeds: Sequence[int]) -> Part:
        return Part(f"{name}-{about}", tables(name, partition, shorter or rounds, limit), tuple(seeds))

    parts = [
        part(name, size, "majority_even", limit, many if limit else seeds)
        for size, limit in SIZES.items()
        for name in FOUR
    ]
    parts += [part(name, "full", "majority_even", 0, seeds) for name in UNTUNED]
    parts += [part(name, split, split, 0, few) for split in SLIDES for name in ("fedavg", "hwfedavg")]
    source = "Santos, Templeton, Chemli, Cerasti, Pugliese, Bruno, De Cubellis, Jug, IFC - Bank of Italy workshop 2023, and its slides (S0)"
    title = "Aggregation strategies on HAR: weights by homogeneity"
    return Target("istat-strategies", title, source, tuple(parts), gates(), NOTES)


def tables(algorithm: str, partition: str, rounds: int, limit: int) -> dict[str, Any]:
    """Return the configuration of one curve: 75 percent of all 10,299 records train, as in the paper."""
    return {
        "rounds": rounds,
        "data": {"name": "har", "split": "pooled", "limit": limit},
        "partition": {"name": partition, "clients": 8},
        "model": {"name": "har4"},
        "algorithm": {"name": algorithm},
        "local": {"epochs": 20, "batch_size": 32, "optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
        "checkpoint": {"every": 10},
    }


def f1(number: int) -> Callable[[PartRuns, int], float]:
    """Return the figure of the central model's macro-F1 after a round."""
    return at_round(number, "macro_f1")


def over_rounds(runs: PartRuns, seed: int) -> float:
    """Return the mean macro-F1 over rounds 1 .. R."""
    return statistics.fmean(x for x in runs.curve(seed, "macro_f1")[1:] if x is not None)


def names(size: str, algorithms: Sequence[str] = FOUR) -> tuple[str, ...]:
    """Return the parts of these algorithms."""
    return tuple(f"{name}-{size}" for name in algorithms)


def mean_spread(runs: Runs, size: str, number: int) -> float:
    """Return the largest minus the smallest F1 of the four after a round, averaged over the seeds."""
    figure, each = f1(number), [runs[name] for name in names(size)]
    values = [[figure(one, seed) for one in each] for seed in each[0].rows]
    return statistics.fmean(max(one) - min(one) for one in values)


def gap(runs: Runs, size: str, a: str, b: str) -> float:
    """Return the mean absolute F1 difference of two strategies over rounds and seeds."""
    one, two = runs[f"{a}-{size}"], runs[f"{b}-{size}"]
    curves = [(one.curve(seed, "macro_f1")[1:], two.curve(seed, "macro_f1")[1:]) for seed in one.rows]
    pairs = [pair for both in curves for pair in zip(*both, strict=True)]
    return statistics.fmean(abs(x - y) for x, y in pairs if x is not None and y is not None)


def with_means(
    shown: Sequence[str], size: str, figure: Callable[[PartRuns, int], float]
) -> Callable[[Runs, float, int], str]:
    """Return the words of an order gate: the share of seeds in which it holds, and mean figures."""

    def text(runs: Runs, share: float, seeds: int) -> str:
        means = listed(shown, [runs[name].mean(figure) for name in names(size, shown)], THREE)
        return f"holds in {share:.0%} of {seeds} seeds; means {means}"

    return text


def gates() -> tuple[Gate, ...]:
    """Return the gates of rows 1 to 10 of T2."""
    splits = ("fedavg-full", *(f"fedavg-{split}" for split in SLIDES))
    by_size = [gate for size in SIZES for gate in gates_of(size)]
    last = f1(-1)
    return (
        gate_of_means(
            "1",
            "full data: F1 very high within two rounds",
            "each mean F1 >= 0.90 after round 2",
            names("full"),
            f1(2),
            at_least(0.90),
            lambda runs, found: listed(FOUR, found, THREE),
        ),
        Gate(
            "2",
            "1,600 records: slower, differences more visible",
            "rounds 1-3: F1 lower, spread larger",
            names("full") + names("1600"),
            row2,
        ),
        *sorted(by_size, key=lambda gate: gate.name),
        gate_in_seeds(
            "7",
            "FedAvg, WFedAvg, FedYogi beat untuned FedAdagrad, FedAdam; FedYogi converges a bit later",
            "order of mean F1; FedYogi's first F1 >= 0.9 not before FedAvg's",
            names("full", (*FOUR, *UNTUNED)),
            row7,
            with_means(("fedavg", "hwfedavg", "fedyogi", *UNTUNED), "full", over_rounds),
        ),
        gate_of_means(
            "8",
            "random split: FedAvg and WFedAvg identical",
            "final F1 within 0.01",
            ("fedavg-random", "hwfedavg-random"),
            last,
            apart_at_most(0.01),
            lambda runs, found: " and ".join(map(FOUR_DIGITS, found)),
        ),
        Gate(
            "9",
            "two of six classes are learnt more slowly",
            "reported: F1 per class, rounds 1-3",
            ("fedavg-full",),
            row9,
        ),
        gate_of_means(
            "10",
            "heterogeneity hardly affects the end",
            "final F1 over the partitions within 0.03",
            splits,
            last,
            apart_at_most(0.03),
            lambda runs, found: listed(("majority_even", *SLIDES), found, FOUR_DIGITS),
        ),
    )


def gates_of(size: str) -> tuple[Gate, ...]:
    """Return the gates of rows 3 to 6, which are judged for each number of records."""
    parts = names(size)

    def extremes(runs: Runs, seed: int) -> bool:
        first = {name: f1(1)(runs[f"{name}-{size}"], seed) for name in FOUR}
        return max(first, key=first.__getitem__) == "hwfedavg" and min(first, key=first.__getitem__) == "nwfedavg"

    def converge(runs: Runs) -> GateVerdict:
        first, last = mean_spread(runs, size, 1), mean_spread(runs, size, -1)
        return GateVerdict(f"spread {first:.3f} -> {last:.3f}", last < first / 2)

    def above(runs: Runs, seed: int) -> bool:
        avg, hw, nw, yogi = (over_rounds(runs[name], seed) for name in parts)
        return min(avg, hw) > max(yogi, nw)

    def overlap(runs: Runs) -> GateVerdict:
        a, b = gap(runs, size, "hwfedavg", "fedavg"), gap(runs, size, "hwfedavg", "nwfedavg")
        c, d = gap(runs, size, "nwfedavg", "fedyogi"), gap(runs, size, "nwfedavg", "fedavg")
        return GateVerdict(f"HW-Avg {a:.3f} < HW-NW {b:.3f}; NW-Yogi {c:.3f} < NW-Avg {d:.3f}", a < b and c < d)

    best, order = "round 1: HWFedAvg best, NWFedAvg worst", "FedAvg, HWFedAvg above FedYogi, NWFedAvg"
    rule = "mean gaps: HW-Avg < HW-NW, NW-Yogi < NW-Avg"
    return (
        gate_in_seeds(f"3 {size}", best, "order in 80% of seeds", parts, extremes, with_means(FOUR, size, f1(1))),
        Gate(f"4 {size}", "the curves converge", "spread at the end < half of round 1", parts, converge),
        gate_in_seeds(f"5 {size}", order, "order of mean F1", parts, above, with_means(FOUR, size, over_rounds)),
        Gate(f"6 {size}", "HW overlaps FedAvg, NW overlaps FedYogi", rule, parts, overlap),
    )


def row2(runs: Runs) -> GateVerdict:
    """Return whether F1 is lower and the spread larger with 1,600 records."""
    rounds = (1, 2, 3)
    sizes = ("1600", "full")
    level = [statistics.fmean(runs[name].mean(f1(r)) for name in names(size) for r in rounds) for size in sizes]
    width = [statistics.fmean(mean_spread(runs, size, r) for r in rounds) for size in sizes]
    text = f"F1 {level[0]:.3f} against {level[1]:.3f}, spread {width[0]:.3f} against {width[1]:.3f}"
    return GateVerdict(text, level[0] < level[1] and width[0] > width[1])


def row7(runs: Runs, seed: int) -> bool:
    """Return whether the untuned adaptive methods trail, and FedYogi reaches 0.9 no sooner than FedAvg."""

    def late(name: str) -> int:
        curve = runs[f"{name}-full"].curve(seed, "macro_f1")
        return next((r for r, x in enumerate(curve) if x is not None and x >= 0.9), len(curve))

    avg, hw, _, yogi, *untuned = (over_rounds(runs[name], seed) for name in names("full", (*FOUR, *UNTUNED)))
    return min(avg, hw, yogi) > max(untuned) and late("fedyogi") >= late("fedavg")


def row9(runs: Runs) -> GateVerdict:
    """Report the classes that FedAvg learns more slowly."""
    rows = [row["per_class_f1"] for each in runs["fedavg-full"].rows.values() for row in each[1:4]]
    mean = [statistics.fmean(x or 0.0 for x in column) for column in zip(*rows, strict=True)]
    slow = sorted(range(len(mean)), key=mean.__getitem__)[:2]
    return GateVerdict(f"F1 per class {', '.join(map(THREE, mean))}; slowest: classes {slow[0]} and {slow[1]}", None)
