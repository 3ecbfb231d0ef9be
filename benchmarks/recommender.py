"""What the recommender promises, checked with runs and on left-out data sets.

    python benchmarks/recommender.py twins [--json FILE]             # choices under masks against the same without
    python benchmarks/recommender.py race NAME [NAME ...] --out DIR  # raced federations (`recommender_race.py`); resumable
    python benchmarks/recommender.py numbers [--json FILE]           # answers without a run (`recommender_numbers.py`)
    python benchmarks/recommender.py report --out DIR                # the races so far, against the gate

``twins``  five schemes in six federations of `small`, one of them with clients that leave, each plain and under masks with three
           seeds: the largest difference in accuracy between the two, beside the noise between seeds
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from recommender_numbers import counted, numbers, show
from recommender_race import race, report

from fedatlas.config import parse
from fedatlas.data.sources import read_once
from fedatlas.errors import FedatlasError
from fedatlas.files import write_json
from fedatlas.recommender.masks import under_masks
from fedatlas.recommender.shipped import Basis, load_study
from fedatlas.recommender.twins import STEADY
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked

SCHEMES = ("fedavg", "fedprox", "scaffold", "fedyogi", "hwfedavg")
SEEDS = (1, 2, 3)
ROUNDS = 20
DROPOUT = 0.2
QUICK = More(report=False, intervals=False, tested=False)


class Place(NamedTuple):
    """A federation of the study; the data sets are small, so that a run takes about a second."""

    setting: tuple[str, ...]  # clients, data, limit, skew
    dropout: float = 0.0


PLACES = (
    Place(("8", "digits", "1100", "alpha 3")),
    Place(("14", "mnist", "600", "alpha 3")),
    Place(("3", "wine_quality", "1100", "alpha 3")),
    Place(("5", "diabetes_pima", "0", "alpha 3")),
    Place(("8", "german_credit", "600", "alpha 3")),
    Place(("14", "breast_cancer_wdbc", "0", "alpha 3"), DROPOUT),
)


class Pair(NamedTuple):
    """A scheme in a federation, plain and under masks."""

    scheme: str
    data: str
    dropout: float
    rate: float
    plain: list[float]  # accuracy by seed
    masked: list[float]
    lost: list[int]  # rounds given up under masks, by seed

    @property
    def gap(self) -> float:
        """The largest difference between plain and masked at the same seed."""
        return float(np.abs(np.subtract(self.plain, self.masked)).max())

    @property
    def apart(self) -> float:
        """The largest difference between two seeds of the plain runs."""
        return max(self.plain) - min(self.plain)


def twins(basis: Basis) -> list[Pair]:
    """Make all runs. A scheme runs at the rate that was picked for it in that federation."""
    found = []
    for place, scheme in itertools.product(PLACES, SCHEMES):
        i = basis.fitted.settings.index(place.setting)
        values = basis.configuration(i, scheme)
        for key in ("checkpoint", "observe"):
            values.pop(key, None)
        values |= {"rounds": ROUNDS, "failures": {"dropout": place.dropout}}
        values["evaluation"]["rounds"] = [ROUNDS]
        runs = [(reached({**values, "seed": seed}), reached({**under_masks(values), "seed": seed})) for seed in SEEDS]
        plain, masked = ([one[0] for one in side] for side in zip(*runs, strict=True))
        lost = [pair[1][1] for pair in runs]
        found.append(Pair(scheme, place.setting[1], place.dropout, values["local"]["lr"], plain, masked, lost))
        print(shown(found[-1]), flush=True)
    return found


def reached(values: dict[str, Any]) -> tuple[float, int]:
    """Run an experiment; return its accuracy, nan if it failed, and the rounds that were given up."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            summary = ensure(checked(parse(values)), Path(folder) / "run", QUICK).summary
        except FedatlasError as error:
            print(f"  {values['algorithm']['name']} on {values['data']['name']}: {error}")
            return np.nan, 0
    return float(summary["final"]["accuracy"]), summary.get("privacy", {}).get("given_up", {}).get("rounds", 0)


def shown(one: Pair) -> str:
    """Return one line of the table."""
    steady = "" if one.apart <= STEADY else "  no twin: seeds differ by more"
    return (
        f"{one.data:20} {one.scheme:9} lr {one.rate:<5g} gap {100 * one.gap:6.2f}  seeds apart {100 * one.apart:6.2f}  "
        f"rounds lost {sum(one.lost)} of {ROUNDS * len(SEEDS)}{steady}"
    )


def summed(pairs: list[Pair]) -> dict[str, Any]:
    """Return the figures for docs/study.md; differences in accuracy, not in points."""
    ran = [one for one in pairs if np.isfinite(one.gap)]
    steady = [one for one in ran if one.apart <= STEADY]
    kept = [one for one in steady if not any(one.lost)]
    return {
        "pairs": len(pairs),
        "refused_or_diverged": len(pairs) - len(ran),
        "steady": len(steady),
        "largest_gap_steady": max(one.gap for one in kept),
        "pairs_apart_beyond_seeds": sum(one.gap > one.apart for one in kept),
        "runs_equal_steady": sum(a == b for one in kept for a, b in zip(one.plain, one.masked, strict=True)),
        "runs_steady": len(kept) * len(SEEDS),
        "median_seeds_apart_steady": float(np.median([one.apart for one in kept])),
        "largest_gap_unsteady": max((one.gap for one in ran if one.apart > STEADY), default=None),
        "rounds_lost": sum(sum(one.lost) for one in pairs),
    }


def plain_of(one: Pair) -> dict[str, Any]:
    """Return a pair as JSON holds it: a run that failed has no accuracy."""
    return one._asdict() | {
        side: [None if np.isnan(x) else x for x in getattr(one, side)] for side in ("plain", "masked")
    }


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["twins", "race", "numbers", "report"])
    parser.add_argument("names", nargs="*", help="federations to race")
    parser.add_argument("--out", type=Path, default=Path("recommender-races"), help="where the races are kept")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    for name in asked.names if asked.part == "race" else ():
        race(name, asked.out)
    if asked.part == "report":
        print(report(asked.out))
    found: dict[str, Any] = {}
    if asked.part == "numbers":
        basis = load_study("small")
        found = numbers(basis, counted(basis))
        print(show(found))
    if asked.part == "twins":
        with read_once():
            pairs = twins(load_study("small"))
        found = {"summary": summed(pairs), "pairs": [plain_of(one) for one in pairs]}
        print(found["summary"])
    if asked.json and found:
        write_json(asked.json, found)


if __name__ == "__main__":
    main()
