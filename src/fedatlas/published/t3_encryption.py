"""T3: the statistical offices' encrypted aggregation on HAR: chosen layers against all, precision, and what a weight costs (X3, P11)."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedatlas.published.gates import (
    FigurePicture,
    Gate,
    GateVerdict,
    Part,
    PartRuns,
    Runs,
    Target,
    gate_of_means,
    listed,
    reported,
)
from fedatlas.published.t2_istat import tables as plain_tables

STRATEGIES = ("hwfedavg", "nwfedavg")
ROUNDS, QUICK = 10, 3
COSTED = 3  # rounds of a part that is only timed
RANGE_BITS = 3  # values lie in [-4, 4): one bit for the sign and two before the point
PRECISE = 24
SWEEP = (2, 4, 6, 8, 12, 16, PRECISE)  # bits after the point
COARSE = 6  # from here down the drop is expected
CLOSE = 0.01
COUNTS = {
    "deep-output": 1_878,
    "shallow-output": 2_598,
    "deep-two": 138_534,
    "shallow-all": 245_382,
    "deep-all": 384_128,
}
"""Part -> encrypted parameters."""
LAYERS = {"output": "output", "two": "outermost:2", "all": "all"}
MODELS = {"deep": "har4", "shallow": "har3"}
LENGTHS = (1024, 2048, 3072, 4096)
SAMPLE = 3_200  # values by key length
LINEAR = 0.98
NOTES = (
    "Eight clients, majority even, 7,724 records train, Paillier with 2,048 bits, full exponents, integer weights at the server.",
    f"Local training as in T2, which the paper does not give: {ROUNDS} rounds, SGD 0.02, momentum 0.9, 20 epochs. One seed.",
    "What is encrypted are changes in [-4, 4), with f bits after the point; weights have as many bits.",
    "The paper explains a lower F1 with two encrypted layers by noise of the multiplication. Paillier has none: what is lost is precision.",
    f"Key lengths: {SAMPLE:,} values of 24 bits from eight clients, one process; 1,024 bits protect nothing and are measured only here.",
)
FOUR = "{:.4f}".format


def istat_encryption(quick: bool = False, shorter: int | None = None) -> Target:
    """Encrypted layers, precision and key lengths on HAR: what encryption changes in F1, and what it costs."""
    rounds = shorter or (QUICK if quick else ROUNDS)
    parts = [Part(f"{name}-plain", tables(name, rounds)) for name in STRATEGIES]
    parts += [
        Part(f"{name}-{layers}", tables(name, rounds, encrypt=LAYERS[layers]))
        for name in STRATEGIES
        for layers in ("output", "two")
    ]
    parts += [Part(f"f-{f}", tables("hwfedavg", rounds, encrypt="outermost:2", f=f)) for f in SWEEP if f != PRECISE]
    for name in COUNTS:
        model, layers = name.split("-")
        shape = {"model": {"name": MODELS[model]}}
        parts.append(Part(name, {**tables("hwfedavg", min(rounds, COSTED), encrypt=LAYERS[layers]), **shape}))
    parts += [Part(f"key-{bits}", {"key_bits": bits, "values": SAMPLE}, (1,), None, timed(bits)) for bits in LENGTHS]
    return Target(
        "istat-encryption",
        "Encrypted aggregation on HAR: layers, precision, keys",
        "Santos, Templeton, Chemli, Cerasti, Pugliese, Bruno, De Cubellis, Jug, IFC - Bank of Italy workshop 2023, and its slides (S0)",
        tuple(parts),
        gates(),
        NOTES,
        pictures=(WEIGHTS, KEYS),
        keeps=("round", "accuracy", "macro_f1", "seconds_by_phase", "bytes_up", "bytes_privacy"),
    )


def tables(algorithm: str, rounds: int, encrypt: str = "", f: int = PRECISE) -> dict[str, Any]:
    """Return the configuration of one part; without ``encrypt`` nothing is encrypted."""
    plain = plain_tables(algorithm, "majority_even", rounds, 0)
    table = {"name": "paillier", "encrypt": encrypt, "bits": f + RANGE_BITS, "range": 4.0}
    return {**plain, "privacy": [table]} if encrypt else plain


def timed(bits: int) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of a key length: seconds of each phase."""

    def measure(seed: int) -> list[dict[str, Any]]:
        from fedatlas.published.key_lengths import seconds_by_phase

        return [{"seconds_by_phase": seconds_by_phase(bits, SAMPLE)}]

    return measure


# ---------------------------------------------------------------------- figures


def seconds(runs: PartRuns, seed: int) -> float:
    """Return the median seconds of a round for encrypting, adding and opening; the first round, which makes combs, is left out."""
    spent = [row["seconds_by_phase"] for row in runs.rows[seed] if "seconds_by_phase" in row]
    each = [sum(one.get(phase, 0.0) for phase in ("encrypt", "aggregate", "decrypt")) for one in spent]
    return float(statistics.median(each[2:] if len(each) > 2 else each[-1:]))


def megabytes(runs: PartRuns, seed: int) -> float:
    """Return the megabytes that one of the eight clients sends in a round."""
    return float(runs.rows[seed][-1]["bytes_up"]) / 8e6


def furthest(runs: Runs, one: str, other: str) -> float:
    """Return the largest distance of two macro-F1 curves over rounds and seeds."""
    a, b = runs[one], runs[other]
    pairs = [pair for seed in a.rows for pair in zip(*(x.curve(seed, "macro_f1") for x in (a, b)), strict=True)]
    return float(max(abs(x - y) for x, y in pairs if x is not None and y is not None))


def final(runs: PartRuns, seed: int) -> float:
    """Return the last macro-F1."""
    return runs.at(seed, -1, "macro_f1")


def r_squared(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the share of the variance that a straight line explains."""
    x, y = zip(*pairs, strict=True)
    return statistics.correlation(x, y) ** 2


# ---------------------------------------------------------------------- gates


def same(row: str, layers: str, published: str) -> Gate:
    """Return the gate that encryption of these layers leaves F1 as it is, in every round."""
    names = [(f"{name}-{layers}", f"{name}-plain") for name in STRATEGIES]

    def check(runs: Runs) -> GateVerdict:
        apart = [furthest(runs, *pair) for pair in names]
        return GateVerdict("largest distance " + listed(STRATEGIES, apart, FOUR), max(apart) <= CLOSE)

    parts = tuple(part for pair in names for part in pair)
    return Gate(row, published, f"F1 within {CLOSE} of the plain run in every round", parts, check)


def sweep(runs: Runs) -> GateVerdict:
    """Return whether F1 drops with few bits, and only with few bits."""
    plain = runs["hwfedavg-plain"].mean(final)
    found = {f: runs[part_of(f)].mean(final) for f in SWEEP}
    fine = all(abs(x - plain) <= CLOSE for f, x in found.items() if f >= 16)
    drop = min(x for f, x in found.items() if f <= COARSE) < plain - CLOSE
    text = f"plain {plain:.3f}; " + ", ".join(f"f = {f}: {x:.3f}" for f, x in found.items())
    return GateVerdict(text, fine and drop)


def part_of(f: int) -> str:
    """Return the part of a precision."""
    return "hwfedavg-two" if f == PRECISE else f"f-{f}"


def cheaper(runs: Runs) -> GateVerdict:
    """Return whether the shallow network costs less than the deep one, all layers encrypted."""
    found = {name: (runs[name].mean(seconds), runs[name].mean(megabytes)) for name in ("shallow-all", "deep-all")}
    text = ", ".join(f"{name} {s:.1f} s and {mb:.2f} MB a client and round" for name, (s, mb) in found.items())
    return GateVerdict(text, all(a < b for a, b in zip(*found.values(), strict=True)))


def linear(runs: Runs) -> GateVerdict:
    """Return whether seconds grow in proportion to the encrypted weights."""
    fit = r_squared([(count, runs[name].mean(seconds)) for name, count in COUNTS.items()])
    each = ", ".join(f"{count:,}: {runs[name].mean(seconds):.2f} s" for name, count in COUNTS.items())
    return GateVerdict(f"R^2 = {fit:.4f}; {each}", fit >= LINEAR)


def sizes(runs: Runs, found: Sequence[float]) -> str:
    """Return the words for the bytes of each part, beside one value a ciphertext."""
    ours = zip(COUNTS.items(), found, strict=True)
    return ", ".join(f"{name} {mb:.2f} MB (unpacked {count * 512 / 1e6:.2f})" for (name, count), mb in ours)


def gates() -> tuple[Gate, ...]:
    """Return the gates of T3."""
    keys = tuple(f"key-{bits}" for bits in LENGTHS)
    return (
        same("1", "output", "output layer encrypted: as the plain versions"),
        same("2", "two", "two outermost layers encrypted: F1 lower, approaching the plain curve (not expected here)"),
        Gate(
            "2, 3",
            "encryption lowers F1 and slows convergence",
            f"final F1 within {CLOSE} from 16 bits on, lower only with {COARSE} bits or fewer",
            ("hwfedavg-plain", *map(part_of, SWEEP)),
            sweep,
        ),
        Gate(
            "4",
            "a shallow model is far cheaper",
            "shallow < deep in time and bytes",
            ("shallow-all", "deep-all"),
            cheaper,
        ),
        Gate("5", "cost scales with the encrypted weights", f"R^2 >= {LINEAR}", tuple(COUNTS), linear),
        gate_of_means(
            "sizes", "unpacked ciphertexts", "reported: sent by a client a round", [*COUNTS], megabytes, reported, sizes
        ),
        gate_of_means(
            "key lengths",
            "time grows with the key length",
            "each longer key takes longer",
            keys,
            lambda runs, seed: sum(runs.rows[seed][-1]["seconds_by_phase"].values()),
            lambda found: all(a < b for a, b in itertools.pairwise(found)),
            lambda runs, found: listed([f"{bits:,} bits" for bits in LENGTHS], found, "{:.2f} s".format),
        ),
    )


WEIGHTS = FigurePicture(
    "weights",
    "Time of a round by encrypted weights",
    "encrypted weights",
    "seconds a round",
    {"2,048 bits": [*COUNTS.items()]},
    seconds,
)
KEYS = FigurePicture(
    "keys",
    f"Time of {SAMPLE:,} values of eight clients by key length",
    "key length (bits)",
    "seconds",
    {phase: [(f"key-{bits}", bits) for bits in LENGTHS] for phase in ("encrypt",)},
    lambda runs, seed: float(runs.rows[seed][-1]["seconds_by_phase"]["encrypt"]),
)
