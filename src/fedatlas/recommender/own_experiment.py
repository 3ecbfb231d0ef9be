"""A recommendation for the user's own experiment: his rows are looked at, his model is timed, the baseline is trained.

Each choice becomes his experiment with the algorithm and protection of the choice and the local work of the study, because that is what
was measured; data, partition and model stay his.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.config import ExperimentConfig, parse
from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.recommender.answer import distances, foresee, place_of
from fedatlas.recommender.answer import recommend as answer_to
from fedatlas.recommender.answer_files import Say, file_of, obtained, price
from fedatlas.recommender.contest import QUALITIES
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.runs.baselines import baseline_config
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.runs.preview import dry_run
from fedatlas.setup.assembly import share_out
from fedatlas.setup.refusals import checked
from fedatlas.study.design import toml_of
from fedatlas.study.heterogeneity import heterogeneity
from fedatlas.study.levels import overridden
from fedatlas.study.measurements import Floats
from fedatlas.wording import count

DROPPED = ("algorithm", "privacy", "compression", "seeds", "local")  # of the user's file: the choice says them


class Own(NamedTuple):
    """The user's experiment, and what is known of it."""

    basis: Basis
    base: dict[str, Any]  # without what the choices say
    asked: Requirements  # with nodes, rows, classes, h and the baseline's accuracy
    order: np.ndarray  # the study's settings, the nearest first
    new_data: bool

    def values(self, choice: str, rounds: int, rates: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The experiment under a choice, with the rates that did best in the nearest setting unless others are given."""
        near = self.basis.near(self.order, choice)
        base = {**copy.deepcopy(self.base), "local": copy.deepcopy(self.basis.configurations[near, choice]["local"])}
        picked = self.basis.picked[near, choice] if rates is None else rates
        return overridden(base, [self.basis.sets[choice], dict(picked), {"rounds": rounds}])


def foreseen(
    basis: Basis, asked: Requirements, path: Path, out: Path, say: Say
) -> tuple[Own, dict[str, Any], dict[str, str]]:
    """(the experiment, the answer, choice -> why it cannot run there); the baseline is trained in ``out``."""
    with read_once():
        own = looked_at(basis, asked, path)
        computed, barred = costs(own, say)
        own = own._replace(asked=with_baseline(own, out, say))
    answer = answer_to(
        basis.fitted,
        own.asked,
        references=basis.references,
        computed=computed,
        new_data=own.new_data,
        barred=barred,
    )
    return own, answer, barred


def finished(own: Own, answer: dict[str, Any], out: Path, rates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The answer with its experiment files, and what was obtained so far; ``rates``: those picked on the user's own rows."""
    for i, entry in enumerate(answer["top"]):
        values = own.values(entry["choice"], entry["rounds"], rates.get(entry["choice"]))
        head = [f"{entry['choice']} for {entry['rounds']} rounds, recommended by the study {own.basis.name}."]
        entry["experiment"] = str(file_of(out, i, entry, values, head))
    usual = own.basis.fitted.choices[0]
    local = own.basis.configurations[own.basis.near(own.order, usual), usual]["local"]
    passes = count(local["epochs"], "epoch")
    answer["notes"].append(
        f"Local work is the study's: {passes}, batches of {local['batch_size']}; your file's [local] is not used."
    )
    if not own.new_data:
        answer["notes"].append(
            "The study holds this data set: intervals are those of its left-out federations, not of new data."
        )
    if own.asked.centralised is not None:
        answer["setting"]["centralised"] = own.asked.centralised
    answer["track_record"]["obtained"] = obtained(own.basis)
    return answer


def looked_at(basis: Basis, asked: Requirements, path: Path) -> Own:
    """Reads the experiment and its rows; ConfigError for rows without classes."""
    _, values = toml_of(path, "experiment")
    seeds = values.pop("seeds", None)
    base = {key: value for key, value in values.items() if key not in DROPPED}
    base.setdefault("seed", (seeds or [1])[0])
    if "client_accuracy_p10" in (*asked.at_least, *asked.at_most, *asked.weights):
        base.setdefault("evaluation", {}).setdefault("clients", 0.2)
    config = parse(base)
    held = share_out(checked(config))
    classes = held.dataset.classes
    if not classes or held.dataset.train.y.ndim != 1:
        raise ConfigError("this experiment has no classes to predict: a study of classes cannot answer for it.")
    labels = held.dataset.train.y.numpy()
    counts = np.array([np.bincount(labels[rows], minlength=classes) for rows in held.partition.clients])
    sizes = counts.sum(axis=1)
    known = asked._replace(
        nodes=float((sizes > 0).sum()),
        rows=float(sizes.sum()),
        classes=float(classes),
        heterogeneity=heterogeneity(counts),
    )
    order = np.argsort(distances(basis.fitted, place_of(basis.fitted, known)), kind="stable")
    return Own(basis, base, known, order, held.dataset.name not in basis.fitted.data)


def costs(own: Own, say: Say) -> tuple[dict[str, Floats], dict[str, str]]:
    """(response -> (J, R) of the user's own model and machine, choice -> why it cannot run there)."""
    fitted, rounds = own.basis.fitted, np.array(own.basis.fitted.rounds, dtype=float)
    shape = len(fitted.choices), len(rounds)
    plain = foresee(fitted, place_of(fitted, own.asked), own.asked.centralised, new_data=own.new_data).values
    found = {key: np.full(shape, np.nan) for key in ("bytes", "flops", "seconds", "cpu_seconds")}
    barred: dict[str, str] = {}
    for j, choice in enumerate(fitted.choices):
        say(f"Looking at {choice} on your model.")
        try:
            one = dry_run(checked(parse(own.values(choice, int(rounds[-1])))), baselines=False)
        except FedatlasError as error:
            barred[choice] = str(error)
            continue
        for key, values in spent(one, rounds).items():
            found[key][j] = values
    return {**found, "epsilon": price(own.basis, own.asked, place_of(fitted, own.asked), plain["epsilon"])}, barred


def spent(one: Mapping[str, Any], rounds: Floats) -> dict[str, Floats]:
    """What a dry run of ``rounds[-1]`` rounds says of each number of rounds."""
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


def with_baseline(own: Own, out: Path, say: Say) -> Requirements:
    """The requirements with the accuracy of training on all rows together, trained here where it is not told."""
    if own.asked.centralised is not None:
        return own.asked
    say("Training on all rows together, the baseline that every prediction starts from.")
    reached = ensure(checked(baseline(own)), out / "baseline", More(report=False)).summary["final"]["accuracy"]
    return own.asked._replace(centralised=float(np.clip(reached or 0.0, 1e-3, 1 - 1e-3)))


def baseline(own: Own) -> ExperimentConfig:
    """All rows together, with the study's local work and as many rounds as its longest runs."""
    first = own.basis.references[0] if own.basis.references else own.basis.fitted.choices[0]
    measured = np.isfinite(own.basis.fitted.gaps[QUALITIES[0]]).any(axis=(0, 1))
    rounds = own.basis.fitted.rounds[int(np.flatnonzero(measured)[-1])]
    near = own.basis.near(own.order, first)
    values = {
        **copy.deepcopy(own.base),
        "local": copy.deepcopy(own.basis.configurations[near, first]["local"]),
        "rounds": rounds,
    }
    return baseline_config(parse(values), "centralised", rounds)
