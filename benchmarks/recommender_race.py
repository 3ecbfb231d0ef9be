"""The race of `fedatlas recommend` on one federation of each data set at hand, against one tuned FedYogi and one tuned FedAvg.

    python benchmarks/recommender_race.py run NAME [NAME ...] --out DIR    # one data set or several; resumable
    python benchmarks/recommender_race.py report --out DIR                 # what is finished so far, against the gates

What is fixed before any data set of `UNOPENED` is read: the federations, the priors, the work, the rates, the gates. For each data set
the prior is the shipped study without that data set and its relatives, and the race has seeds that the study has not. What is best
there is picked on half of `TRUTH` and scored on the other half, so that no choice is scored by the seeds that chose it.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedatlas.race.course import AskedRun
from fedatlas.race.runs import ArmFile, RaceRuns
from fedatlas.race.work import FIRST, TUNED_ON
from fedatlas.recommender import command
from fedatlas.recommender.shipped import Basis, load_study
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats
from fedatlas.study.study import Study
from fedatlas.study.table import Table

SEED = 901  # of the race; those of the study are 1 to 3
TRUTH = (911, 912, 913, 914)  # the first half picks what is best, the second half scores
WORK = 12_000  # rounds of runs
RATES = (0.02, 0.1, 0.5)
GATE = 0.5  # points: the upper bound of the race's mean regret
FEWEST = 2_000  # test rows; data sets with fewer are listed apart
DRAWS = 10_000
HERE = Path(__file__).parent

DEALT = {"name": "dirichlet", "clients": 10, "alpha": 1.0, "min_size": 20}
MLP = {"name": "mlp", "hidden": [64]}
FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"data": {"name": "digits"}},
    "mnist": {"data": {"name": "mnist", "limit": 6000}},
    "har": {"data": {"name": "har"}},
    "adult": {"data": {"name": "adult", "limit": 6000}},
    "bank_marketing_full": {"data": {"name": "bank_marketing_full", "limit": 6000}},
    "credit_default_taiwan": {"data": {"name": "credit_default_taiwan", "limit": 6000}},
    "wine_quality": {"data": {"name": "wine_quality"}},
    "german_credit": {"data": {"name": "german_credit"}},
    "diabetes_pima": {"data": {"name": "diabetes_pima"}},
    "breast_cancer_wdbc": {"data": {"name": "breast_cancer_wdbc"}},
    "breast_cancer_original": {"data": {"name": "breast_cancer_original", "missing": "drop"}},
    "wine_cultivars": {"data": {"name": "wine_cultivars"}, "partition": {**DEALT, "clients": 4}},
}
"""At hand; each with `DEALT` and `MLP` where it says nothing else."""
UNOPENED: dict[str, dict[str, Any]] = {
    "give_me_some_credit": {"data": {"name": "give_me_some_credit", "missing": "median", "limit": 20_000}},
    "cifar10": {"data": {"name": "cifar10", "limit": 6000}},
}
"""Reported without a gate. California by place, power_plant in thirds and Shakespeare by role need a file each."""
RELATIVES = {
    "breast_cancer_wdbc": {"breast_cancer_original"},
    "breast_cancer_original": {"breast_cancer_wdbc"},
    "digits": {"mnist"},
    "mnist": {"digits"},
}


def experiment_of(name: str) -> dict[str, Any]:
    """Return the experiment of a federation."""
    return {"seed": SEED, "partition": DEALT, "model": MLP, **(FEDERATIONS | UNOPENED)[name]}


def without(basis: Basis, names: set[str]) -> Basis:
    """Return a study without some data sets. The lengths of its kernels stay those of the whole study."""
    fitted = basis.fitted
    kept = [i for i, data in enumerate(fitted.data) if data not in names]
    place = {i: k for k, i in enumerate(kept)}

    def rows(values: dict[str, Floats]) -> dict[str, Floats]:
        return {key: x[kept] for key, x in values.items()}

    smaller = fitted._replace(
        settings=[fitted.settings[i] for i in kept],
        data=[fitted.data[i] for i in kept],
        x=fitted.x[kept],
        finishes=fitted.finishes[kept],
        **{key: rows(getattr(fitted, key)) for key in ("gaps", "levels", "costs", "by_setting", "by_data")},
    )
    return basis._replace(
        fitted=smaller,
        picked={(place[i], c): x for (i, c), x in basis.picked.items() if i in place},
        configurations={(place[i], c): x for (i, c), x in basis.configurations.items() if i in place},
        apart=basis.apart[kept],
        masked=None if basis.masked is None else basis.masked[kept],
    )


def run(name: str, out: Path) -> None:
    """Race one federation, and measure what was to be found there; what is there is not run again."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    base = experiment_of(name)
    (folder / "mine.toml").write_text(tomli_w.dumps(base))
    prior = without(load_study("small"), {name, *RELATIVES.get(name, ())})
    command.load_study = lambda *_: prior
    tables = {"work": WORK, "federation": {"experiment": str(folder / "mine.toml")}}
    answer = command.recommend(tables, out=folder / "answer", say=print)
    entries = {entry["choice"]: entry for entry in answer.get("entries", ())}
    if not entries:
        print(f"{name}: no end statement: {answer['answer']}")
        return
    rounds = max(answer["race"]["rounds"].values())
    with_rates = {
        choice: {**prior.sets[choice], **answer["race"]["rates"][choice]} for choice in answer["race"]["started"]
    }
    with_rates["fedavg_5_epochs"] = {
        "algorithm.name": "fedavg", "local.epochs": 5, "local.lr": tuned(base, prior, folder),
    }  # fmt: skip
    levels = [{"name": choice, "set": dict(sets)} for choice, sets in with_rates.items()]
    local = {"epochs": 1, "batch_size": 32}
    study = Study.of(
        "truth",
        base={**{k: x for k, x in base.items() if k != "seed"}, "local": local, "rounds": rounds},
        seeds=list(TRUTH),
        factor=[{"name": "choice", "role": "choice", "level": levels}],
    )
    study.run(folder / "truth", say=print)
    with closing(Table.open(study.table(folder / "truth"))) as kept:
        rows = [row for row in kept.members("truth") if row["kind"] == "cell"]
    reached = {choice: [figure(rows, choice, seed) for seed in TRUTH] for choice in with_rates}
    tests = answer["race"]["final"]["test_rows"] if answer["race"]["final"] else None
    found = {"answer": answer["top"][0]["choice"], "rounds": rounds, "test_rows": tests, "reached": reached}
    (folder / "found.json").write_text(json.dumps(found, indent=1))


def figure(rows: list[dict[str, Any]], choice: str, seed: int) -> float:
    """Return the accuracy of a run; that of always naming one class where it has none."""
    (one,) = [row for row in rows if row["levels"]["choice"] == choice and row["seed"] == seed]
    told = one["responses"]
    return float(told.get("accuracy") if one["status"] == "done" else told.get("majority") or 0.0)


def tuned(base: dict[str, Any], prior: Basis, folder: Path) -> float:
    """Return the rate of FedAvg with five epochs, picked as the race picks: after 20 rounds on the first fold."""
    values = {**base, "local": {"epochs": 5, "batch_size": 32}, "algorithm": {"name": "fedavg"}}
    runs = RaceRuns(
        {"fedavg_5_epochs": ArmFile(values, values, [{"local.lr": lr} for lr in RATES])}, SEED, folder / "tuned", print
    )
    asked = [AskedRun("fedavg_5_epochs", i, TUNED_ON, FIRST) for i in range(len(RATES))]
    found = runs.measure(asked)
    scores = [-1.0 if found[one] is None else float(np.mean(found[one].score)) for one in asked]
    return RATES[int(np.argmax(scores))]


def regrets(found: dict[str, Any]) -> dict[str, float]:
    """Return advice -> what it lacks of the best, in points: the best by the first half of the seeds, all scored on the second."""
    half = len(TRUTH) // 2
    first, second = ({c: float(np.mean(x)) for c, x in part} for part in (
        [(c, x[:half]) for c, x in found["reached"].items()], [(c, x[half:]) for c, x in found["reached"].items()],
    ))  # fmt: skip
    best = second[max(first, key=lambda c: first[c])]
    advice = {"race": found["answer"], "tuned fedyogi": "fedyogi", "tuned fedavg, 5 epochs": "fedavg_5_epochs"}
    return {name: 100 * (best - second[c]) for name, c in advice.items() if c in second}


def report(out: Path) -> None:
    """Print mean regrets with their intervals over data sets, and whether the gate holds."""
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("*/found.json"))}
    groups = {
        f"at least {FEWEST} test rows": [
            n for n, x in found.items() if n in FEDERATIONS and (x["test_rows"] or 0) >= FEWEST
        ],
        "fewer": [n for n, x in found.items() if n in FEDERATIONS and (x["test_rows"] or 0) < FEWEST],
        "unopened": [n for n in found if n in UNOPENED],
    }
    for label, names in groups.items():
        for advice in ("race", "tuned fedyogi", "tuned fedavg, 5 epochs"):
            values = np.array([one[advice] for n in names if advice in (one := regrets(found[n]))])
            if len(values) < 2:
                print(f"{label}, {advice}: {values.tolist()}")
                continue
            drawn = values[numpy_stream(0, "bootstrap").integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
            low, high = np.quantile(drawn, [0.025, 0.975])
            gate = (
                f"; gate {GATE}: {'pass' if high <= GATE else 'fail'}"
                if advice == "race" and label != "unopened"
                else ""
            )
            print(f"{label} ({len(values)}), {advice}: {values.mean():.2f} ({low:.2f} to {high:.2f}) points{gate}")


def main() -> None:
    """Run, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for name in given.names if given.what == "run" else ():
        run(name, given.out)
    if given.what == "report":
        report(given.out)


if __name__ == "__main__":
    main()
