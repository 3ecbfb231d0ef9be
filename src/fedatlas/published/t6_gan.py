"""T6: the thesis' GAN attack on FedAvg and FedSeq, by the distance of its pictures at equal accuracy of the model (A2, A3)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.attacks.roles import ViewRole
from fedatlas.config import ExperimentConfig, parse
from fedatlas.leakage import ensure_attack
from fedatlas.leakage.knowledge import models_told
from fedatlas.published.gates import Gate, GateVerdict, Part, PartRuns, Runs, Target, listed, percent
from fedatlas.record.observed import RoleView
from fedatlas.record.run_folder import ATTACKED, FOUND, RunFolder
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from fedatlas.study.plain import Plain

NAME = "gan-attack"
ATTACKER = "client:0"
ROUNDS, QUICK = 80, 8
ALGORITHMS: dict[str, Plain] = {"fedavg": {"name": "fedavg"}, "fedseq": {"name": "fedseq", "group_size": 2}}
MODES = ("thesis", "head_only")
LEVELS = 5  # of accuracy, and rounds, at which the distances are compared
SLACK = 0.05  # of the distance, at the same round
NOTES = (
    "Smaller than the thesis: MNIST in place of CIFAR-10, 10 selections of the attacker of 300 steps each, and 2,000 pictures in place of",
    "300 passes over its rows in every selection and 5,000 pictures; so the orders are those of this setting.",
    "100 clients with 600 rows each, Dirichlet with alpha = 100, a fifth of them per round, one local pass; FedSeq in chains of two.",
    "The attacker is client 0, sampled like any other, without a target; of the rounds in which it was sent a model ten, spread evenly.",
    "Distances are FID-proxy, by a network trained on the training rows, whose SHA-256 each run's record holds. They do not compare with",
    "published FIDs. The placebo's discriminator begins from a network that nobody trained in place of the federation's model.",
)
FOUR = "{:.4g}".format


def gan_attack(quick: bool = False, shorter: int | None = None) -> Target:
    """FedAvg against FedSeq: how near the pictures of a GAN attack come, on MNIST."""
    rounds = shorter or (QUICK if quick else ROUNDS)
    keys: Plain = {"generators": 1, "steps": 300, "selections": 10, "pictures": 2000}
    if quick:
        keys |= {"steps": 5, "selections": 3, "pictures": 100}
    parts = []
    for algorithm, table in ALGORITHMS.items():
        for mode in MODES:
            how = {**keys, "head_only": mode == "head_only"}
            tables = {**experiment(rounds, quick, table), "attack": how}
            parts.append(Part(f"{algorithm}-{mode}", tables, (1,) if quick else (1, 2, 3), None, drawn(tables)))
    return Target(
        NAME, "GAN attack on FedAvg and FedSeq", "the thesis' section 5.6.1 (S3)", tuple(parts), gates(), NOTES
    )


def experiment(rounds: int, quick: bool, algorithm: Plain) -> Plain:
    """Return the run that is attacked; a quick one has a tenth of the rows and of the clients."""
    return {
        "rounds": rounds,
        "data": {"name": "mnist", "limit": 6000 if quick else 0},
        "partition": {"name": "dirichlet", "clients": 10 if quick else 100, "alpha": 100.0},
        "cohort": {"fraction": 1.0 if quick else 0.2},
        "model": {"name": "mlp1"},
        "algorithm": dict(algorithm),
        "local": {"epochs": 1, "batch_size": 64, "lr": 0.01},
        "evaluation": {"every": 1},
    }


def drawn(tables: Plain) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of a part: one row for each round in which the attacker trained its generators."""

    def measure(seed: int) -> list[dict[str, Any]]:
        tried = {key: value for key, value in tables.items() if key != "attack"}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "run"
            found = ensure_attack(
                parse({**tried, "seed": seed}), folder, "gan", {"role": ATTACKER, **tables["attack"]}, seen
            )
            return rows_of(RunFolder.open(folder), found["notes"])

    return measure


def seen(config: ExperimentConfig, folder: Path) -> None:
    """Run the experiment whose view is attacked."""
    ensure(checked(config), folder, More(report=False))


def rows_of(run: RunFolder, notes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the distances by round, each with the accuracy of the model that the attacker was sent."""
    found, accuracy = run.arrays(f"{ATTACKED}/gan/{FOUND}"), accuracies(run)
    names = [f"{kind}_{figure}" for kind in ("drawn", "placebo") for figure in ("fid", "kid", "psnr")]
    rows: list[dict[str, Any]] = [
        {
            "round": int(number),
            "accuracy": accuracy[int(number)],
            **{name: float(found[name][i].mean()) for name in names},
        }
        for i, number in enumerate(found["round"])
    ]
    rows[-1]["notes"] = list(notes)
    return rows


def accuracies(run: RunFolder) -> dict[int, float]:
    """Return round -> accuracy, on the test rows, of the model that the attacker was sent in it: in a chain often its predecessor's."""
    setup = set_up(checked(run.config()))
    test, first = setup.rows.common("test"), setup.models().initial()[""]
    told = models_told(RoleView(run.path, ViewRole.parse(ATTACKER, "attack.role")), 0)
    return {
        number: float((first.load(model).scores(test.x, test.y).predicted == test.y).double().mean())
        for number, model in told
    }


# ---------------------------------------------------------------------- gates


def compared(runs: Runs, parts: Sequence[str], by: str, figure: str = "drawn_fid") -> list[float] | None:
    """Return a figure of each part, its mean over seeds and over `LEVELS` common values of ``by``, between which it is interpolated.

    None if the parts of a seed have no values in common.
    """
    out = []
    for seed in runs[parts[0]].rows:
        curves = [np.array(sorted((row[by], row[figure]) for row in runs[part].rows[seed])) for part in parts]
        low, high = max(x[0, 0] for x in curves), min(x[-1, 0] for x in curves)
        if low > high:
            return None
        levels = np.linspace(low, high, LEVELS)
        out.append([float(np.interp(levels, x[:, 0], x[:, 1]).mean()) for x in curves])
    return [math.fsum(each) / len(out) for each in zip(*out, strict=True)]


def order(mode: str) -> Callable[[Runs], GateVerdict]:
    """Return the check that FedAvg's distance is smaller, at equal accuracy; of ``head_only`` only a report."""
    parts = [f"{algorithm}-{mode}" for algorithm in ALGORITHMS]

    def check(runs: Runs) -> GateVerdict:
        found = compared(runs, parts, "accuracy")
        if found is None:
            return GateVerdict("the models have no accuracy in common", None)
        said = listed(parts, found, FOUR)
        return GateVerdict(said, found[0] < found[1] if mode == "thesis" else None)

    return check


def same_round(runs: Runs) -> GateVerdict:
    """Return whether FedSeq's pictures are no nearer in the rounds in which both were drawn, and how good its models are there."""
    parts = [f"{algorithm}-thesis" for algorithm in ALGORITHMS]
    found, right = compared(runs, parts, "round"), compared(runs, parts, "round", "accuracy")
    if found is None or right is None:
        return GateVerdict("the attacker was sent models in no common rounds", None)
    holds = right[1] > right[0] and found[1] >= (1 - SLACK) * found[0]
    return GateVerdict(f"{listed(parts, found, FOUR)}; accuracy {listed(parts, right, percent)}", holds)


def placebos(runs: Runs) -> GateVerdict:
    """Return by how much the pictures of the last round are nearer than the placebo's, over all seeds."""
    names = [f"{algorithm}-{mode}" for algorithm in ALGORITHMS for mode in MODES]
    return GateVerdict(listed(names, [runs[name].mean(nearer) for name in names], "{:+.4g}".format), None)


def nearer(runs: PartRuns, seed: int) -> float:
    """Return how much smaller the distance is than the placebo's, after the last round."""
    return runs.at(seed, -1, "placebo_fid") - runs.at(seed, -1, "drawn_fid")


def gates() -> tuple[Gate, ...]:
    """Return the gates of T6."""
    of = {mode: tuple(f"{algorithm}-{mode}" for algorithm in ALGORITHMS) for mode in MODES}
    lower = "lower for FedAvg than for FedSeq"
    equal = f"mean over {LEVELS} levels of accuracy that both reach"
    return (
        Gate("FID at equal accuracy", lower, f"order of the {equal}", of["thesis"], order("thesis")),
        Gate(
            "FID at the same round",
            "FedSeq's model is better, its reconstructions are not",
            "accuracy higher, FID(FedSeq) >= 0.95 FID(FedAvg)",
            of["thesis"],
            same_round,
        ),
        Gate(
            "FID at equal accuracy, only the head trained", "not published", equal, of["head_only"], order("head_only")
        ),
        Gate(
            "FID of the placebo less the attack's",
            "not published",
            "reported",
            (*of["thesis"], *of["head_only"]),
            placebos,
        ),
    )
