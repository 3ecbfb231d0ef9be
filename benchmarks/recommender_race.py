"""One federation of each data set raced by `fedatlas recommend`, against one tuned FedYogi and one tuned FedAvg: part of `recommender.py`.

Fixed before any data set of `UNOPENED` is read: the federations, the priors, the work, the seeds, the rates and the gate. The prior of a
federation is the shipped study without its data set and relatives, fitted again. The best choice there is picked on half of the seeds
`TRUTH` and scored on the other half, so that no choice is scored by the seeds that chose it.

The size is that of what a core does in about an hour: 50 rounds, as in the study, and four seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from recommender_numbers import relatives, without
from table import interval, number, over_data, table

from fedatlas.errors import ConfigError
from fedatlas.files import write_json
from fedatlas.race.course import AskedRun
from fedatlas.race.runs import ArmFile, RaceRuns
from fedatlas.race.work import FIRST, TUNED_ON
from fedatlas.recommender.command import recommend
from fedatlas.recommender.shipped import Basis, load_study, write
from fedatlas.study.study import Study
from fedatlas.study.table import Table

SEED = 901  # of the race; those of the study are 1 to 3
TRUTH = (911, 912, 913, 914)  # the first half picks what is best, the second half scores
WORK = (
    1500  # rounds of runs: all choices of the study with three rates for 20 rounds, and five of them to the end at 50
)
GATE = 0.5  # points: the upper bound of the mean regret
FEWEST = 2000  # test rows; data sets with fewer are listed apart
FOUND = "found.json"

RACE, FEDYOGI, FEDAVG_5, PRIOR = "the race", "tuned fedyogi", "tuned fedavg, 5 epochs", "the prior, not raced"
ADVICE = (RACE, FEDYOGI, FEDAVG_5, PRIOR)
FIVE_EPOCHS = {"algorithm": {"name": "fedavg"}, "local": {"epochs": 5, "batch_size": 32}}
DEALT = {"name": "dirichlet", "clients": 10, "alpha": 1.0, "min_size": 20}
MLP = {"name": "mlp", "hidden": [64]}
LIMIT = 3000  # training rows of a large data set
Federation = dict[str, Any]


def named(name: str, **more: Any) -> Federation:
    """The federation of a registered data set, dealt as `DEALT` says."""
    return {"data": {"name": name, **more}}


FEDERATIONS: dict[str, Federation] = {
    "digits": named("digits"),
    "mnist": named("mnist", limit=LIMIT),
    "har": named("har", limit=LIMIT),
    "cifar100": named("cifar100", limit=LIMIT, labels="coarse"),
    "adult": named("adult", limit=LIMIT),
    "bank_marketing_full": named("bank_marketing_full", limit=LIMIT),
    "credit_default_taiwan": named("credit_default_taiwan", limit=LIMIT),
    "wine_quality": named("wine_quality", limit=LIMIT, test=0.4),
    "german_credit": named("german_credit"),
    "diabetes_pima": named("diabetes_pima"),
    "breast_cancer_wdbc": named("breast_cancer_wdbc"),
    "breast_cancer_original": named("breast_cancer_original", missing="drop"),
    "wine_cultivars": {**named("wine_cultivars"), "partition": {**DEALT, "clients": 4}},
    "student_portuguese": named("student_portuguese"),
}
"""At hand; each with `DEALT` and `MLP` where it says nothing else."""
UNOPENED: dict[str, Federation] = {
    "give_me_some_credit": named("give_me_some_credit", missing="median", limit=LIMIT),
    "cifar10": named("cifar10", limit=LIMIT),
    "california_housing": {
        **named("california_housing", missing="median", limit=LIMIT), "partition": {"name": "natural", "min_size": 1},
    },
    "power_plant": {**named("power_plant", limit=LIMIT), "partition": {"name": "iid", "clients": 3}},
    "california_places": named("file", label="ocean_proximity", missing="median", limit=LIMIT, test=0.2),
    "power_plant_thirds": named("file", label="third", limit=LIMIT, test=0.25),
    "shakespeare": {
        **named("shakespeare", roles=10, per_role=16, test_per_role=100),
        "partition": {"name": "natural"},
        "model": {"name": "shakespeare_lstm", "hidden": 32},
    },
}  # fmt: skip
"""Reported without a gate. `california_housing` by place and `power_plant` predict a number, which the race refuses; so they are also
asked with classes: the place, and the third of the output."""
WORK_OF = {"shakespeare": 900}  # 20 rounds: a round of the LSTM takes as long as twenty of the others


def experiment_of(name: str, folder: Path) -> Federation:
    """The experiment of a federation; a table made from a registered one is written into ``folder``."""
    found = {"seed": SEED, "partition": DEALT, "model": MLP, **(FEDERATIONS | UNOPENED)[name]}
    if name in TABLES:
        found["data"] = {**found["data"], "path": str(TABLES[name](folder))}
    return found


def places(folder: Path) -> Path:
    """The table of California's block groups, whose place is to be named."""
    return shared_table("california_housing")


def thirds(folder: Path) -> Path:
    """The power plant's table, with the third of its output in place of the output."""
    found = pd.read_csv(shared_table("power_plant"))
    found["third"] = pd.qcut(found.pop("power_mw"), 3, labels=["low", "middle", "high"])
    found.to_csv(folder / "thirds.csv", index=False)
    return folder / "thirds.csv"


TABLES: dict[str, Callable[[Path], Path]] = {"california_places": places, "power_plant_thirds": thirds}


def shared_table(name: str) -> Path:
    """A table among the data at hand."""
    return Path(os.environ["FEDATLAS_DATA"]).resolve() / "tables" / f"{name}.csv.gz"


def race(name: str, out: Path) -> None:
    """Race one federation, and measure what was to be found there; what is there already is not run again."""
    folder = (out / name).resolve()
    if (folder / FOUND).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    base = experiment_of(name, folder)
    (folder / "mine.toml").write_text(tomli_w.dumps(base))
    if not (folder / "prior").exists():
        write(without(load_study("small"), relatives(name)), folder / "prior")
    prior = load_study(str(folder / "prior"))
    asked = {
        "study": str(folder / "prior"),
        "work": WORK_OF.get(name, WORK),
        "federation": {"experiment": str(folder / "mine.toml")},
    }
    try:
        answer = recommend(asked, out=folder / "answer", say=print)
    except ConfigError as error:
        write_json(folder / FOUND, {"refused": str(error)})
        return
    about = answer["race"]
    named = [answer["top"][0]["choice"]] if answer["top"] else about["left"]
    rounds = max(about["rounds"].values())
    choices = {choice: {**prior.sets[choice], **rates} for choice, rates in about["rates"].items()}
    five = {"algorithm.name": "fedavg", "local.epochs": 5, "local.lr": rate_of_five(base, prior, folder)}
    reached = truth(base, {**choices, FEDAVG_5: five}, rounds, folder / "truth")
    found = {
        "named": {RACE: named, FEDYOGI: ["fedyogi"], FEDAVG_5: [FEDAVG_5], PRIOR: prior_choice(answer, reached)},
        "answer": answer["answer"],
        "predicted_by": prior.fitted.way,
        "rounds": rounds,
        "test_rows": (about["final"] or {}).get("test_rows"),
        "rates": about["rates"],
        "reached": reached,
    }
    write_json(folder / FOUND, found)


def prior_choice(answer: dict[str, Any], reached: dict[str, Any]) -> list[str]:
    """The first choice of the prior, as far as it was run here."""
    return [one["choice"] for one in answer["prior"]["top"] if one["choice"] in reached][:1]


def truth(base: Federation, choices: dict[str, dict[str, Any]], rounds: int, out: Path) -> dict[str, list[float]]:
    """Choice -> the accuracy on the test rows with each seed of `TRUTH`; that of always naming one class without a model."""
    study = Study.of(
        "truth",
        base={
            **{key: x for key, x in base.items() if key != "seed"},
            "local": {"epochs": 1, "batch_size": 32},
            "rounds": rounds,
            "evaluation": {"rounds": [rounds]},
        },
        seeds=list(TRUTH),
        factor=[{"name": "choice", "role": "choice", "level": [{"name": one, "set": x} for one, x in choices.items()]}],
    )
    study.run(out, say=print)
    with closing(Table.open(study.table(out))) as kept:
        rows = [row for row in kept.members("truth") if row["kind"] == "cell"]
    found: dict[str, list[float]] = {choice: [] for choice in choices}
    for row in sorted(rows, key=lambda row: row["seed"]):
        told = row["responses"] or {}
        value = told.get("accuracy") if row["status"] == "done" else told.get("majority")
        found[row["levels"]["choice"]].append(float(value or 0.0))
    return found


def rate_of_five(base: Federation, prior: Basis, out: Path) -> float:
    """The rate of FedAvg with five epochs, picked as the race picks: after 20 rounds on the first fold."""
    rates = prior.rates["local.lr"]
    values = {**base, **FIVE_EPOCHS}
    runs = RaceRuns({FEDAVG_5: ArmFile(values, values, [{"local.lr": lr} for lr in rates])}, SEED, out / "tuned", print)
    asked = [AskedRun(FEDAVG_5, i, TUNED_ON, FIRST) for i in range(len(rates))]
    found = runs.measure(asked)
    scores = [-1.0 if found[one] is None else float(np.mean(found[one].score)) for one in asked]
    return float(rates[int(np.argmax(scores))])


def regrets(found: dict[str, Any]) -> dict[str, float]:
    """Advice -> what it lacks of the best, in points; of an advice that leaves several choices open, their mean."""
    half = len(TRUTH) // 2
    first, second = (
        {choice: float(np.mean(x[part])) for choice, x in found["reached"].items()}
        for part in (slice(half), slice(half, None))
    )
    best = second[max(first, key=lambda choice: first[choice])]
    return {
        advice: 100 * (best - float(np.mean([second[choice] for choice in named])))
        for advice, named in found["named"].items()
        if named
    }


def kept(out: Path) -> dict[str, dict[str, Any]]:
    """Federation -> what was found there, as far as it is finished."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob(f"*/{FOUND}"))}


def groups(found: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """The federations that count together."""
    ran = [name for name, one in found.items() if "refused" not in one]
    large = {name for name in ran if (found[name]["test_rows"] or 0) >= FEWEST}
    return {
        f"at least {FEWEST:,} test rows": [name for name in ran if name in FEDERATIONS and name in large],
        "fewer test rows": [name for name in ran if name in FEDERATIONS and name not in large],
        "unopened": [name for name in ran if name in UNOPENED],
    }


def report(out: Path) -> str:
    """The regrets by federation, their means with intervals over data sets, and whether the gate holds."""
    found = kept(out)
    each = {name: regrets(one) for name, one in found.items() if "refused" not in one}
    lines = []
    for label, names in groups(found).items():
        rows = [[name, *(number(each[name].get(advice)) for advice in ADVICE)] for name in names]
        means = {advice: over_data([each[n][advice] for n in names if advice in each[n]]) for advice in ADVICE}
        rows.append(["mean", *(interval(means[advice]) for advice in ADVICE)])
        lines += [f"Regret in points, {label} ({len(names)} data sets):", "", table(["data set", *ADVICE], rows), ""]
        for other in (FEDYOGI, FEDAVG_5):
            less = over_data([each[n][RACE] - each[n][other] for n in names])
            lines.append(f"{RACE} less {other}: {interval(less)}.")
        if label.startswith("at least") and means[RACE].high is not None:
            lower = all(means[RACE].value < means[other].value for other in (FEDYOGI, FEDAVG_5))
            passed = lower and means[RACE].high <= GATE
            lines.append(f"Gate, below both and at most {GATE} with 95% confidence: {'kept' if passed else 'missed'}.")
        lines.append("")
    lines += [f"{name}: refused: {one['refused']}" for name, one in found.items() if "refused" in one]
    return "\n".join(lines)
