"""T10: NbAFL's losses by epsilon, with the paper's account and the one that holds (P2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from fedatlas.published.gates import Gate, Part, Runs, Target, at_round, gate_in_seeds, gate_of_means, listed, reported

EPSILONS = (50, 60, 100)
ROUNDS, DELTA, CLIP = 25, 0.01, 10.0
NOTES = (
    "50 clients, IID, all take part; MLP 784-256-10, 25 rounds of five epochs, FedProx with mu 0.01, rate 0.01, batches of 32.",
    f"delta = {DELTA}, one exposed upload. The clip is fixed at {CLIP:g}, about the norm of the trained model: the median of the norms,",
    "which the paper takes, needs them without noise. Noise is drawn from the seed, so that the runs can be repeated.",
    "Four accounts at the same delta: the paper's; its noise by the exact formula; with all uploads, not one; and with 2 C as the bound",
    "of what one record moves, since training is no average over records.",
)
PARTS = tuple(f"epsilon-{epsilon}" for epsilon in EPSILONS)


def nbafl_losses(quick: bool = False, shorter: int | None = None) -> Target:
    """NbAFL on MNIST with epsilon 50, 60 and 100: a smaller epsilon, a larger loss; both accounts."""
    rounds, seeds, limit = shorter or ROUNDS, (1,) if quick else (1, 2, 3), 10_000 if quick else 0
    parts = [Part("no-noise", tables(rounds, limit), seeds)]
    parts += [Part(name, tables(rounds, limit, e), seeds) for name, e in zip(PARTS, EPSILONS, strict=True)]
    return Target(
        "nbafl",
        "NbAFL: loss by epsilon, and two accounts",
        "Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor, IEEE TIFS 15, 2020, as the CSI5340 slides show it (S2)",
        tuple(parts),
        gates(),
        NOTES,
        keeps=("round", "accuracy", "loss"),
        of_summary=lambda summary: summary.get("privacy", {}).get("accounts", {}),
    )


def tables(rounds: int, limit: int, epsilon: float | None = None) -> dict[str, Any]:
    """Return the configuration of one run."""
    noise = {"name": "nbafl", "epsilon": float(epsilon or 1), "delta": DELTA, "clip": CLIP, "noise": "seed"}
    return {
        "rounds": rounds,
        "data": {"name": "mnist", "limit": limit},
        "partition": {"name": "iid", "clients": 50},
        "cohort": {"fraction": 1.0},
        "model": {"name": "mlp", "hidden": [256]},
        "algorithm": {"name": "fedprox", "mu": 0.01},
        "local": {"epochs": 5, "batch_size": 32, "lr": 0.01},
        **({"privacy": [noise]} if epsilon else {}),
    }


def accounts(runs: Runs, found: Sequence[float]) -> str:
    """Return the words for the accounts: the paper's, then with fewer and fewer of its assumptions."""
    each = []
    for part, honest in zip(PARTS, found, strict=True):
        nominal, exposed, uploads = (runs[part].mean(at_round(-1, key)) for key in ("nominal", "exposed", "uploads"))
        each.append(
            f"{nominal:.0f} stated: {exposed:,.0f} exact, {uploads:,.0f} for all uploads, {honest:,.0f} without averaging"
        )
    return "; ".join(each)


def gates() -> tuple[Gate, ...]:
    """Return the order of losses, and the accounts."""
    loss = at_round(-1, "loss")

    def ordered(runs: Runs, seed: int) -> bool:
        found = [loss(runs[part], seed) for part in PARTS]
        return all(a > b for a, b in itertools.pairwise(found))

    def said(runs: Runs, share: float, seeds: int) -> str:
        names = ("no noise", *(f"epsilon {e}" for e in EPSILONS))
        means = [runs[part].mean(loss) if part in runs else float("nan") for part in ("no-noise", *PARTS)]
        return f"in {share:.0%} of {seeds} seeds; mean losses {listed(names, means, '{:.4f}'.format)}"

    return (
        gate_in_seeds(
            "loss",
            "a smaller epsilon, a larger loss",
            "order of the final test losses in 80% of seeds",
            ("no-noise", *PARTS),
            ordered,
            said,
        ),
        gate_of_means(
            "accounts",
            "epsilon 50, 60, 100 at delta 0.01",
            "reported: epsilon that holds for the run",
            PARTS,
            at_round(-1, "honest"),
            reported,
            accounts,
        ),
    )
