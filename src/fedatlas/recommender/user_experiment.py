"""A recommendation for the user's own experiment: its rows are examined, its model is timed, the baseline is trained.

Each choice becomes the user's experiment with the algorithm and protection of the choice and the local work of the study, because
these were measured. Data, partition and model stay the user's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.config import ExperimentConfig, parse
from fedatlas.config.parties import DEALS
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.privacy.mechanisms import MASKS, of_table
from fedatlas.recommender.answer import features_asked, forecast_at, outside
from fedatlas.recommender.answer_files import Say, epsilon_for, write_experiment
from fedatlas.recommender.epsilon import stated_at
from fedatlas.recommender.exclusions import excluded
from fedatlas.recommender.masks import mask_table
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.recommender.twins import barred_twins, twin_notes
from fedatlas.runs.baselines import baseline_config
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.runs.preview import dry_run
from fedatlas.setup.assembly import share_out
from fedatlas.setup.cohort import draw_round
from fedatlas.setup.privacy_refusals import fewest_of
from fedatlas.setup.refusals import checked
from fedatlas.study.heterogeneity import heterogeneity
from fedatlas.study.levels import overridden
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row, toml_of
from fedatlas.wording import count

DROPPED = ("algorithm", "privacy", "compression", "seeds", "local")  # of the user's file: the choice sets them


DRY_RUN = ("bytes", "messages", "flops", "seconds", "cpu_seconds", "memory")
"""Costs of a user's experiment that are those of its dry runs; memory stays unknown, since a dry run does not hold all clients."""


class UserExperiment(NamedTuple):
    """The user's experiment, and what is known about it."""

    basis: Basis
    base: Plain  # without the keys that choices set
    asked: Requirements  # with nodes, rows, classes, h and the baseline's accuracy
    at: Floats  # the features of its federation
    sizes: Mapping[int, int]  # client -> its training rows
    data_set: str  # its name

    def local(self, choice: str) -> Plain:
        """Return the local work of the study under a choice, in the nearest setting."""
        found: Plain = copy.deepcopy(self.basis.configurations[self.near(choice), choice]["local"])
        return found

    def local_note(self) -> str:
        """Return the sentence on the local work of the study."""
        local = self.local(self.basis.fitted.choices[0])
        passes = f"{count(local['epochs'], 'epoch')}, batches of {local['batch_size']}"
        return f"Local work is the study's: {passes}; your file's [local] is not used."

    def baseline_local(self) -> Plain:
        """Return the local work of the study's baseline, whose rate is its own and not one picked for a choice."""
        choice = [*self.basis.fitted.references, *self.basis.fitted.choices][0]
        return copy.deepcopy(dict(self.basis.baseline)) or self.local(choice)

    def near(self, choice: str) -> int:
        """Return the nearest setting in which a choice was run."""
        return self.basis.near(self.basis.fitted.nearest(self.at), choice)

    def values(self, choice: str, rounds: int, rates: Row | None = None) -> Plain:
        """Return the experiment under a choice, with the rates that did best in the nearest setting unless others are given."""
        picked = self.basis.picked[self.near(choice), choice] if rates is None else rates
        sets = [self.basis.sets[choice], dict(picked), {"rounds": rounds}]
        return overridden({**self.base, "local": self.local(choice)}, sets)

    def with_masks(self, twin: str, **keys: Any) -> UserExperiment:
        """Return the experiment with other keys of a twin's masks."""
        others = [table for table in self.basis.sets[twin]["privacy"] if table["name"] != MASKS]
        sets = {**self.basis.sets[twin], "privacy": [*others, mask_table(**keys)]}
        return self._replace(basis=self.basis._replace(sets={**self.basis.sets, twin: sets}))


def completed(user: UserExperiment, answer: Plain, out: Path) -> Plain:
    """Return the answer with its experiment files."""
    for i, entry in enumerate(answer["top"]):
        values = user.values(entry["choice"], entry["rounds"])
        head = f"{entry['choice']} for {entry['rounds']} rounds, recommended by the study {user.basis.name}."
        write_experiment(out, i, entry, stated_at(values, user.asked.delta), head)
    answer["notes"] += [user.local_note(), *notes_on_twins(user, answer["top"])]
    if not user.basis.fitted.new_data and answer["quality"] == "prior":
        answer["notes"].append(
            "The study includes this data set: intervals come from its left-out federations, not from new data."
        )
    if user.asked.centralised is not None:
        answer["setting"]["centralised"] = user.asked.centralised
    return answer


def read_experiment(basis: Basis, asked: Requirements, path: Path) -> UserExperiment:
    """Return the experiment of a file and the facts of its rows; ConfigError for rows without classes."""
    _, values = toml_of(path, "experiment")
    given = parse(values)  # also the tables that choices replace, so that a mistake in them is told
    if given.parties or given.partition.name in DEALS:
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
    return UserExperiment(
        basis._replace(fitted=fitted), base, known, at, dict(enumerate(sizes.tolist())), held.dataset.name
    )


class Examined(NamedTuple):
    """The user's experiment under the choices that the requirements do not exclude, by its dry runs."""

    user: UserExperiment  # with the masks that fit it
    costs: dict[str, Floats]  # response -> (J, R) of the user's own model and machine
    barred: dict[str, str]  # choice -> why it cannot run there
    previews: dict[str, Row]  # choice -> its dry run


def examined(user: UserExperiment, say: Say) -> Examined:
    """Return the costs of the choices on the user's own model and machine, and why some cannot run there.

    Choices that the requirements exclude anyway are not examined.
    """
    fitted, rounds = user.basis.fitted, np.array(user.basis.fitted.rounds, dtype=float)
    plain = forecast_at(fitted, user.at, user.asked.centralised).values["epsilon"]
    found = {key: np.full(plain.shape, np.nan) for key in DRY_RUN}
    barred, previews = barred_twins(user.basis, fitted.nearest(user.at)), {}
    out = excluded(fitted, user.asked)
    for j, choice in enumerate(fitted.choices):
        if choice in barred or choice in out:
            continue
        say(f"Examining {choice} with your model.")
        try:
            user, previews[choice] = previewed(user, choice, int(rounds[-1]))
        except FedatlasError as error:
            barred[choice] = str(error)
            continue
        for key, values in costs_after(previews[choice], rounds).items():
            found[key][j] = values
    found["epsilon"] = epsilon_for(user.basis, user.asked, user.at, plain)
    return Examined(user, found, barred, previews)


def previewed(user: UserExperiment, choice: str, rounds: int) -> tuple[UserExperiment, Row]:
    """Return the dry run of a choice, and the experiment with masks of a twin that fit its clients' rows.

    Their cap is at least the largest client's rows, and as small as halves the bytes where that is possible at the same bits.
    """

    def dry(one: UserExperiment) -> Row:
        return dry_run(checked(parse(one.values(choice, rounds))), baselines=False)

    if choice not in user.basis.without_runs:
        return user, dry(user)
    largest, usual = max(user.sizes.values()), mask_table()["n_cap"]
    user = user.with_masks(choice, n_cap=max(usual, 1 << (largest - 1).bit_length()))
    found = dry(user)
    fits = found["privacy"].get("n_cap", {})
    if "n_cap" not in fits or fits["bits"] != fits["now"]:
        return user, found
    user = user.with_masks(choice, n_cap=fits["n_cap"])
    return user, dry(user)


def notes_on_twins(user: UserExperiment, top: Sequence[Row]) -> list[str]:
    """Return what is to be known about the masked choices that an answer names."""
    masked = [entry for entry in top if entry["choice"] in user.basis.fitted.twins]
    lost = lost_rounds(user, masked[0]["choice"], max(entry["rounds"] for entry in masked)) if masked else []
    return [*lost, *twin_notes(user.basis, user.basis.fitted.nearest(user.at), [entry["choice"] for entry in top])]


def lost_rounds(user: UserExperiment, masked: str, rounds: int) -> list[str]:
    """Say how many rounds too few clients stay for a masked sum, so that they change nothing; [] if none does."""
    values = user.values(masked, rounds)
    config, fewest = parse(values), max(fewest_of(of_table(table)) for table in values["privacy"])
    drawn = [draw_round(config, user.sizes, config.seed, number).round for number in range(1, rounds + 1)]
    lost = sum(len(one.cohort) < fewest for one in drawn)
    why = f"fewer than {fewest} clients stay, and a sum of so few hides nothing; they change nothing"
    return [f"Under masks {lost} of {count(rounds, 'round')} are given up, in which {why}."] if lost else []


def costs_after(one: Row, rounds: Floats) -> dict[str, Floats]:
    """Return the costs for each number of rounds, from a dry run."""
    sent = sum(one[f"bytes_{way}_per_round"] for way in ("up", "down", "peer"))
    before = one["seconds_setup"] + one.get("privacy", {}).get("seconds_keys", 0.0)
    each = (one["seconds_about"] - before - one["seconds_evaluation"]) / one["rounds"]
    seconds = before + (each + one["seconds_evaluation"] / one["rounds"]) * rounds
    return {
        "bytes": one["bytes_setup"] + sent * rounds,
        "messages": one["messages_setup"] + one["messages_per_round"] * rounds,
        "flops": one["flops_per_round"] * rounds,
        "seconds": seconds,
        "cpu_seconds": seconds + each * rounds * (max(one["plan"]["workers"], 1) - 1),
    }


def with_baseline(user: UserExperiment, out: Path, say: Say) -> Requirements:
    """Return the requirements with the accuracy of pooled training, trained here if it is not given and the answer uses it."""
    if user.asked.centralised is not None or user.asked.only_computed or outside(user.basis.fitted, user.at):
        return user.asked
    say("Training on all rows together: the baseline that every prediction starts from.")
    reached = ensure(checked(baseline(user)), out / "baseline", More(report=False)).summary["final"]["accuracy"]
    return user.asked._replace(centralised=float(np.clip(reached or 0.0, 1e-3, 1 - 1e-3)))


def baseline(user: UserExperiment) -> ExperimentConfig:
    """Return pooled training, with the study's local work and as many rounds as its longest runs."""
    fitted = user.basis.fitted
    measured = np.isfinite(fitted.gaps["accuracy"]).any(axis=(0, 1))
    rounds = fitted.rounds[int(np.flatnonzero(measured)[-1])]
    values = {**copy.deepcopy(user.base), "local": user.baseline_local(), "rounds": rounds}
    return baseline_config(parse(values), "centralised", rounds)
