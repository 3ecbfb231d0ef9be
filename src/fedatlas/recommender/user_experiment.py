"""A recommendation for the user's own experiment: its rows are examined, its model is timed, the baseline is trained.

Each choice becomes the user's experiment with the algorithm and protection of the choice and the local work of the study, because
these were measured. Data, partition and model stay the user's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedatlas.config import ExperimentConfig, parse
from fedatlas.config.parties import VERTICAL
from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.recommender.answer import answer_for, features_asked, forecast_at
from fedatlas.recommender.answer_files import Say, epsilon_for, obtained, write_experiment
from fedatlas.recommender.epsilon import stated_at
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.runs.baselines import baseline_config
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.runs.preview import dry_run
from fedatlas.setup.assembly import share_out
from fedatlas.setup.refusals import checked
from fedatlas.study.heterogeneity import heterogeneity
from fedatlas.study.levels import overridden
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row, toml_of
from fedatlas.wording import count

DROPPED = ("algorithm", "privacy", "compression", "seeds", "local")  # of the user's file: the choice sets them


class UserExperiment(NamedTuple):
    """The user's experiment, and what is known about it."""

    basis: Basis
    base: Plain  # without the keys that choices set
    asked: Requirements  # with nodes, rows, classes, h and the baseline's accuracy
    at: Floats  # the features of its federation

    def local(self, choice: str) -> Plain:
        """Return the local work of the study under a choice, in the nearest setting."""
        found: Plain = copy.deepcopy(self.basis.configurations[self.near(choice), choice]["local"])
        return found

    def near(self, choice: str) -> int:
        """Return the nearest setting in which a choice was run."""
        return self.basis.near(self.basis.fitted.nearest(self.at), choice)

    def values(self, choice: str, rounds: int, rates: Row | None = None) -> Plain:
        """Return the experiment under a choice, with the rates that did best in the nearest setting unless others are given."""
        picked = self.basis.picked[self.near(choice), choice] if rates is None else rates
        sets = [self.basis.sets[choice], dict(picked), {"rounds": rounds}]
        return overridden({**self.base, "local": self.local(choice)}, sets)


def predicted(
    basis: Basis, asked: Requirements, path: Path, out: Path, say: Say
) -> tuple[UserExperiment, Plain, dict[str, str]]:
    """Return (the experiment, the answer, choice -> why it cannot run there); train the baseline in ``out``."""
    with read_once():
        user = read_experiment(basis, asked, path)
        computed, barred = costs(user, say)
        user = user._replace(asked=with_baseline(user, out, say))
    return user, answer_for(user.basis.fitted, user.asked, computed=computed, barred=barred), barred


def completed(user: UserExperiment, answer: Plain, out: Path, rates: Mapping[str, Row]) -> Plain:
    """Return the answer with its experiment files, and results obtained so far; ``rates``: those picked on the user's own rows."""
    for i, entry in enumerate(answer["top"]):
        values = user.values(entry["choice"], entry["rounds"], rates.get(entry["choice"]))
        head = f"{entry['choice']} for {entry['rounds']} rounds, recommended by the study {user.basis.name}."
        write_experiment(out, i, entry, stated_at(values, user.asked.delta), head)
    local = user.local(user.basis.fitted.choices[0])
    passes = f"{count(local['epochs'], 'epoch')}, batches of {local['batch_size']}"
    answer["notes"].append(f"Local work is the study's: {passes}; your file's [local] is not used.")
    if not user.basis.fitted.new_data and answer["quality"] == "prior":
        answer["notes"].append(
            "The study includes this data set: intervals come from its left-out federations, not from new data."
        )
    if user.asked.centralised is not None:
        answer["setting"]["centralised"] = user.asked.centralised
    answer["track_record"]["obtained"] = obtained(user.basis)
    return answer


def read_experiment(basis: Basis, asked: Requirements, path: Path) -> UserExperiment:
    """Return the experiment of a file and the facts of its rows; ConfigError for rows without classes."""
    _, values = toml_of(path, "experiment")
    given = parse(values)  # also the tables that choices replace, so that a mistake in them is told
    if given.parties or given.partition.name == VERTICAL:
        raise ConfigError(
            "parties of this experiment hold columns, and a study answers only for clients that hold rows: 'fedatlas compare' "
            "measures choices on its rows."
        )
    checked(given)
    seeds = values.pop("seeds", None)
    base = {key: value for key, value in values.items() if key not in DROPPED}
    base.setdefault("seed", (seeds or [1])[0])
    if "client_accuracy_p10" in (*asked.at_least, *asked.at_most, *asked.weights):
        base.setdefault("evaluation", {}).setdefault("clients", 0.2)
    config = parse(base)
    held = share_out(checked(config))
    classes = held.dataset.classes
    if not classes or held.dataset.train.y.ndim != 1:
        raise ConfigError(
            "this experiment predicts a number, and a study answers only for one class per row: 'fedatlas compare' "
            "measures choices on its rows."
        )
    labels = held.dataset.train.y.numpy()
    counts = np.array([np.bincount(labels[rows], minlength=classes) for rows in held.partition.clients])
    sizes = counts.sum(axis=1)
    known = asked._replace(
        nodes=float((sizes > 0).sum()),
        rows=float(sizes.sum()),
        classes=float(classes),
        heterogeneity=heterogeneity(counts),
    )
    at = features_asked(basis.fitted, known)
    fitted = basis.fitted._replace(new_data=held.dataset.name not in basis.fitted.data)
    return UserExperiment(basis._replace(fitted=fitted), base, known, at)


def costs(user: UserExperiment, say: Say) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return (response -> (J, R) of the user's own model and machine, choice -> why it cannot run there)."""
    fitted, rounds = user.basis.fitted, np.array(user.basis.fitted.rounds, dtype=float)
    plain = forecast_at(fitted, user.at, user.asked.centralised).values["epsilon"]
    found = {key: np.full(plain.shape, np.nan) for key in ("bytes", "flops", "seconds", "cpu_seconds")}
    barred: dict[str, str] = {}
    for j, choice in enumerate(fitted.choices):
        say(f"Examining {choice} with your model.")
        try:
            one = dry_run(checked(parse(user.values(choice, int(rounds[-1])))), baselines=False)
        except FedatlasError as error:
            barred[choice] = str(error)
            continue
        for key, values in costs_after(one, rounds).items():
            found[key][j] = values
    return {**found, "epsilon": epsilon_for(user.basis, user.asked, user.at, plain)}, barred


def costs_after(one: Row, rounds: Floats) -> dict[str, Floats]:
    """Return the costs for each number of rounds, from a dry run of ``rounds[-1]`` rounds."""
    sent = sum(one[f"bytes_{way}_per_round"] for way in ("up", "down", "peer"))
    before = one["seconds_setup"] + one.get("privacy", {}).get("seconds_keys", 0.0)
    each = (one["seconds_about"] - before - one["seconds_evaluation"]) / rounds[-1]
    seconds = before + (each + one["seconds_evaluation"] / rounds[-1]) * rounds
    return {
        "bytes": one["bytes_setup"] + sent * rounds,
        "flops": one["flops_per_round"] * rounds,
        "seconds": seconds,
        "cpu_seconds": seconds + each * rounds * (max(one["plan"]["workers"], 1) - 1),
    }


def with_baseline(user: UserExperiment, out: Path, say: Say) -> Requirements:
    """Return the requirements with the accuracy of pooled training, trained here if it is not given and a requirement needs it."""
    if user.asked.centralised is not None or user.asked.only_computed:
        return user.asked
    say("Training on all rows together: the baseline that every prediction starts from.")
    reached = ensure(checked(baseline(user)), out / "baseline", More(report=False)).summary["final"]["accuracy"]
    return user.asked._replace(centralised=float(np.clip(reached or 0.0, 1e-3, 1 - 1e-3)))


def baseline(user: UserExperiment) -> ExperimentConfig:
    """Return pooled training, with the study's local work and as many rounds as its longest runs."""
    fitted = user.basis.fitted
    measured = np.isfinite(fitted.gaps["accuracy"]).any(axis=(0, 1))
    rounds = fitted.rounds[int(np.flatnonzero(measured)[-1])]
    local = user.local([*fitted.references, *fitted.choices][0])
    return baseline_config(parse({**copy.deepcopy(user.base), "local": local, "rounds": rounds}), "centralised", rounds)
