"""Attack by defence, cell by cell: the figure under each rule and each mechanism, or the reason why they cannot be combined.

Digits, FedAvg and FedSeq (superclients of two). Poisoning by a fifth of twenty clients or of ten superclients, and
attacks on views: inverted gradients of clients with one row each, labels and properties of unlike clients, a property of rounds, and
membership of clients with few rows. Each is run
against every rule and every mechanism. No cell is empty: it holds a figure with its 95% interval, or the sentence of
the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedatlas.aggregation import RULES as EVERY_RULE
from fedatlas.aggregation.before_rule import PRE
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.poisoning import POISONING
from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.progress import Progress
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.files import write_json
from fedatlas.leakage import ensure_attack
from fedatlas.metrics.intervals import proportion
from fedatlas.privacy.mechanisms import made
from fedatlas.published.gates import Part, Target
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked
from fedatlas.study.plain import Plain, Row

NAME = "attack-matrix"
ROUNDS, QUICK = 40, 12
CLIENTS = 20
LEAST: Mapping[str, Row] = {
    "fedavg": {"name": "fedavg", "weights": "uniform"},
    "fedseq": {"name": "fedseq", "phi": "random", "group_size": 2, "rule": {"weights": "uniform"}},
}
BY_ROWS: Mapping[str, Row] = {
    "fedavg": {"name": "fedavg"},
    "fedseq": {"name": "fedseq", "phi": "random", "group_size": 2},
}
"""The same with weights by rows, for clients that claim more of them."""
RULES = tuple(name for name in EVERY_RULE if name != "mean")
NEEDS: Mapping[str, Row] = {"fltrust": {"public": {"from": "test", "per_class": 10}}}
"""Further tables that a rule needs."""
BEFORE: Mapping[str, Row] = {f"{pre}_median": {"name": "median", "pre": pre} for pre in PRE}
"""Mixings before a rule, each before the same one: the median, which also stands alone and needs few enough buckets."""
MECHANISMS: Mapping[str, Row] = {
    "local_dp": {"name": "local_dp", "epsilon": 100.0, "clip": 1.0, "noise": "seed"},
    "central_dp": {"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.3, "noise": "seed"},
    "secagg": {"name": "secagg"},
}
POISSON = ("central_dp",)
"""Mechanisms with a sound account only where chance decides for each client whether it takes part."""
POISONS: Mapping[str, Row] = {  # the attack is `name`, or the key itself
    "nobody": {},
    "label_flip": {"share": 0.2, "pairs": [[3, 5], [0, 8]]},
    "sign_flip": {"share": 0.2, "c": 10.0},
    "gaussian": {"share": 0.2, "sigma": 10.0},
    "model_replacement": {"pairs": [[5, 3]]},
    "backdoor": {"share": 0.2},
    "backdoor_replacing": {"name": "backdoor", "replace": True},
    "false_claims": {"share": 0.2, "c": 10.0, "pairs": [[5, 3]]},
    "alie": {"share": 0.2},
    "alie_optimal": {"name": "alie", "share": 0.2, "z": "optimal"},
    "alie_optimal_all": {"name": "alie", "share": 0.2, "z": "optimal", "knows": "all"},
    "inner_product": {"share": 0.2, "epsilon": 10.0},
    "inner_product_optimal": {"name": "inner_product", "share": 0.2, "epsilon": "optimal"},
    "inner_product_optimal_all": {"name": "inner_product", "share": 0.2, "epsilon": "optimal", "knows": "all"},
    "mimic": {"share": 0.2},
    "min_max": {"share": 0.2},
    "min_max_all": {"name": "min_max", "share": 0.2, "knows": "all"},
    "property_head": {"share": 0.2, "classes": [3]},
}
ONCE = ("model_replacement", "backdoor_replacing")
"""Carried out in the last round, by the smallest share with at least one attacker."""
WHAT = {
    "label_flip": "accuracy on attacked classes",
    "model_replacement": "attack success",
    "backdoor": "attack success",
    "backdoor_replacing": "attack success",
    "false_claims": "attack success",
}
SEEING = {"own": "", "coalition": " (sees its coalition)", "all": " (omniscient)"}
ONE_ROW: Row = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 16},
    "partition": {"name": "iid", "clients": 16},
    "model": {"name": "lenet_sigmoid"},
    "local": {"steps": 1, "lr": 0.1},
}
"""Clients with one row each that take one step, so what they send is a gradient."""
TWO_ROWS: Row = {**ONE_ROW, "data": {"name": "digits", "limit": 32}, "local": {"epochs": 1, "batch_size": 1, "lr": 0.1}}
"""Clients with two rows each that take a step on either, so what they send is the change of a whole epoch."""
FEW_ROWS: Row = {
    "rounds": 30,
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "iid", "clients": 10},
    "model": {"name": "mlp", "hidden": [128]},
    "local": {"epochs": 5, "lr": 0.02, "batch_size": 10},
    "evaluation": {"clients": 0.5, "every": 30},
    "attack": [{"name": "membership"}],
}
"""Clients that pass often over few rows, and hold out as many: a model that could memorise rows."""
UNLIKE: Row = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "dirichlet", "clients": 16, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"steps": 1, "batch_size": 0, "lr": 0.1},
}
"""Clients with unlike classes that take one step on all their rows."""
RICH: Row = {
    **UNLIKE,
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 30, "alpha": 3.0},
    "evaluation": {"clients": 0.5},
    "attack": [{"name": "property"}],
}
"""The same, with rows held out for the attacker."""
TURNS: Row = {
    **RICH,
    "rounds": 40,
    "partition": {"name": "dirichlet", "clients": 16, "alpha": 1.0},
    "cohort": {"fraction": 0.75},
    "evaluation": {"clients": 0.5, "every": 40},
    "attack": [{"name": "property", "role": "outsider", "classes": [3]}],
}
"""Clients that take turns, so that some rounds have more of a class than others."""
TAUGHT: Row = {
    **TURNS,
    "attack": [
        {"name": "property", "role": "client:0", "classes": [3]},
        {"name": "property_head", "clients": [0], "classes": [3]},
    ],
}
"""The same, with a client that trains the shared features to tell that class from others."""

CHAINED: Row = {
    **ONE_ROW,
    "rounds": 6,
    "data": {"name": "digits", "limit": 100},
    "partition": {"name": "iid", "clients": 100},
    "cohort": {"fraction": 1.0},
}
"""Enough clients with one row each that a single target can be compared with others, and rounds in which each hands its model on."""
MANY_ROWS: Row = {**FEW_ROWS, "partition": {"name": "iid", "clients": 6}, "data": {"name": "digits"}}
"""Clients whose own rows suffice for a game of membership, and whose chains suffice for a secret sum."""
SUCCESSOR = "successor:0"

FEW_CLASSES: Row = {
    "rounds": 6,
    "data": {"name": "digits"},
    "partition": {"name": "shards", "clients": 10},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 2, "batch_size": 16, "lr": 0.05},
}
"""Clients that hold two or three of the ten classes."""
DRAWING: Row = {"target": "absent", "steps": 100, "selections": 3, "generators": 3, "pictures": 200}
"""A small GAN attack."""
LURED: Row = {
    **FEW_CLASSES,
    "rounds": 3,
    "model": {"name": "mlp", "hidden": [32], "loss": {"name": "cross_entropy", "fake": True}},
    "attack": [{"name": "gan_active", "clients": [0], "target": 0, "steps": 20}],
}
"""The same with a client that trains on what it draws, as class fake, over few rounds. With each seed it lacks class 0."""


class ViewCells(NamedTuple):
    """The cells of an attack on a view."""

    keys: Row  # of the attack
    tables: Row  # of the experiment whose view it is
    figure: str
    shape: str = ".3f"  # of a figure in text
    unit: str = ""
    observer: str = ""  # role of the observer; "": the server, or an outsider where the server is trusted
    settled: bool = False  # whether the constants of pictures are set without rows
    name: str = ""  # of the attack, if the cells have another


PSNR = partial(ViewCells, figure="PSNR above the placebo's", shape=".1f", unit=" dB", settled=True)
HANDED = partial(PSNR, tables=CHAINED, observer=SUCCESSOR)
VIEWS: Mapping[str, ViewCells] = {
    "inverting_gradients": PSNR({"iterations": 300, "targets": 16}, ONE_ROW),
    "inverting_gradients_epoch": PSNR({"iterations": 300, "restarts": 4}, TWO_ROWS, name="inverting_gradients"),
    "dlg": PSNR({"iterations": 100, "restarts": 2, "targets": 16}, ONE_ROW),
    "idlg": PSNR({"iterations": 100, "restarts": 2, "targets": 16}, ONE_ROW),
    "membership": ViewCells({}, FEW_ROWS, "AUC above the placebo's", observer="outsider"),
    "label_inference": ViewCells({}, UNLIKE, "share of rows counted rightly above the placebo's", settled=True),
    "property": ViewCells({}, RICH, "AUC above the placebo's", settled=True),
    "property_of_rounds": ViewCells(
        {}, TURNS, "AUC above the placebo's", observer="outsider", settled=True, name="property"
    ),
    "property_active": ViewCells(
        {}, TAUGHT, "AUC above the placebo's", observer="client:0", settled=True, name="property"
    ),
    "inverting_gradients_handed_on": HANDED({"iterations": 300}, name="inverting_gradients"),
    "inverting_gradients_received_before": HANDED({"iterations": 300, "start": "last"}, name="inverting_gradients"),
    "membership_handed_on": ViewCells({}, MANY_ROWS, "AUC above the placebo's", observer=SUCCESSOR, name="membership"),
    "gan": PSNR(DRAWING, tables=FEW_CLASSES, observer="client:0"),
    "gan_active": PSNR(
        {**DRAWING, "mode": "hitaj", "target": 0, "steps": 20, "selections": 0},
        tables=LURED,
        observer="client:0",
        name="gan",
    ),
}
"""Those of a successor in a chain: with the true start, and with the model that it received before."""

NOTES = (
    "Digits, 20 clients alike, a fifth of them hostile; of FedSeq's ten superclients of two, whole ones.",
    "Against none: the weighted mean, and no mechanism.",
    "A cell holds a figure with its 95% interval over test rows (of several seeds the mean, and the span), or the refusal's sentence.",
    "Under label_flip the figure is the accuracy on attacked classes; under model_replacement and false_claims the share of attacked rows",
    "that changed, and under backdoor the share of rows of other classes that the patch turns into the target.",
    "Attackers see only their own changes, or those of their coalition, or, if omniscient, those of all honest clients.",
    "After nnm, bucketing and arc the rule is the median.",
    "Optimal: their factor is searched against the rule in every round.",
    "Under inverting_gradients_epoch clients take two steps, each on one row; under the other inversions one step on one row.",
    "Of inverting_gradients, dlg and idlg it is by how many dB the pictures are better than the placebo's, of membership by how much the",
    "AUC is, as of property, of gan by how many dB pictures of a class that client 0 lacks are nearer to rows of it than the placebo's",
    "(under gan_active it also trains on them as class fake, over 3 rounds),",
    "and of label_inference by how much the share of rows is whose label is counted rightly,",
    "with whose view is attacked: the server's, or an outsider's where the server is trusted, and of membership always.",
    "A successor has the model that client 0 handed on in a chain, and the one that client 0 began with (handed_on), or the one that it",
    "received itself before (received_before). Its membership is that of client 0's rows.",
    "property_of_rounds tells from an outsider's view which of 40 rounds were rich in a class, and property_active from that of a client",
    "that also trains the shared features to tell the class (property_head).",
    "Noise is drawn from the seed, so that the matrix can be repeated.",
)


TO_ONE: Row = {
    "kind": "pictures",
    "rules": [],
    "scale": "none",
    "missing": "error",
    "input_scale": [1 / 16],
    "input_shift": [0.0],
    "shape": [1, 8, 8],
    "task": "classes",
    "class_names": [str(digit) for digit in range(10)],
    "depth": 8,
}
"""Digits scaled to 0 to 1 by constants, without use of rows."""


class MatrixCell(NamedTuple):
    """One cell: an experiment, and the figure taken from it."""

    algorithm: str
    attack: str
    defence: str
    tables: Row
    role: str = ""  # the role whose view is attacked; "" for attacks by clients

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.algorithm}-{self.attack}-{self.defence}"


class CellResult(NamedTuple):
    """The result of a cell with one seed: a figure with its interval, or a sentence; ``run``: the part of the run kept in the record."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    run: Row | None = None


def attack_matrix(quick: bool = False, shorter: int | None = None) -> Target:
    """Attack by rule and attack by mechanism, for FedAvg and FedSeq on digits."""
    seeds = (1,) if quick else (1, 2, 3)
    parts = tuple(Part(one.name, one.tables, seeds, one) for one in cells(shorter or (QUICK if quick else ROUNDS)))
    return Target(NAME, "Attacks and defences", "this software; no published figures", parts, (), NOTES)


def cells(rounds: int) -> list[MatrixCell]:
    """Return all cells, in the order of the page."""
    defences: dict[str, Plain] = {"none": {"aggregation": {"name": "mean"}}}
    defences |= {name: {"aggregation": {"name": name}, **NEEDS.get(name, {})} for name in RULES}
    defences |= {name: {"aggregation": dict(table)} for name, table in BEFORE.items()}
    defences |= {name: {"privacy": [table]} for name, table in MECHANISMS.items()}
    out = []
    for algorithm in LEAST:
        for attack in POISONS:
            out += [poisoned(algorithm, attack, name, rounds, tables) for name, tables in defences.items()]
        for attack in VIEWS:
            out += [observed(algorithm, attack, name, tables) for name, tables in defences.items()]
    return out


def poisoned(algorithm: str, attack: str, defence: str, rounds: int, defending: Row) -> MatrixCell:
    """Return a cell with hostile clients."""
    table: Plain = {"name": attack, **POISONS[attack]}
    least = BY_ROWS if attack == "false_claims" else LEAST
    seq = algorithm == "fedseq"
    if seq:
        table["unit"] = "superclient"
    if attack in ONCE:
        table |= {"share": 0.1 if seq else 1 / CLIENTS, "rounds": [rounds, rounds]}
    tables = {
        "rounds": rounds,
        "data": {"name": "digits"},
        "partition": {"name": "iid", "clients": CLIENTS},
        "algorithm": dict(least[algorithm]),
        "local": {"epochs": 2, "batch_size": 16, "lr": 0.02},
        "evaluation": {"every": rounds},
        **({} if attack == "nobody" else {"attack": [table]}),
        **defending,
    }
    return MatrixCell(algorithm, attack, defence, tables)


def observed(algorithm: str, attack: str, defence: str, defending: Row) -> MatrixCell:
    """Return a cell of a view. A trusted server sees everything, so in that case the observer is an outsider."""
    how = VIEWS[attack]
    tables = {**how.tables, "algorithm": dict(LEAST[algorithm]), **defending}
    if defence in POISSON and "fraction" in tables.get("cohort", {}):
        tables["cohort"] = {**tables["cohort"], "sampling": "poisson"}
    if how.observer:
        return MatrixCell(algorithm, attack, defence, tables, how.observer)
    if "epsilon" in MECHANISMS.get(defence, {}):
        tables |= {"rounds": 1, "privacy": [{**MECHANISMS[defence], "epsilon": 8.0}]}
    trusted = defence in MECHANISMS and made(defence).trust == "server"
    return MatrixCell(algorithm, attack, defence, tables, "outsider" if trusted else "server")


# ---------------------------------------------------------------------- results


def of_cell(cell: MatrixCell, seed: int, folder: Path, progress: Progress) -> CellResult:
    """Return the result of one cell; a refusal is a result."""
    try:
        if cell.role:
            return of_view(cell, seed, folder)
        whole = checked(parse({**cell.tables, "seed": seed}))
        done = ensure(whole, folder, More(options={"baselines": False}), progress)
    except (ConfigError, PrivacyError) as error:
        return CellResult(str(error))
    return of_run(cell, done.summary)


def kept(summary: Row) -> Plain:
    """Return the part of a run that the record keeps."""
    return {
        "seconds": summary["cost"]["seconds"],
        **{key: summary[key] for key in ("plan", "commit", "cpu")},
        "rows": [],
    }


def of_run(cell: MatrixCell, summary: Row) -> CellResult:
    """Return the figure of a run under an attack by clients, with an interval over the test rows."""
    final, value = summary["final"], summary["final"]["accuracy"]
    if "diverged" in summary:
        return CellResult(f"{100 * value:.1f}%: the model diverged", value, run=kept(summary))
    if cell.attack in WHAT:
        hit, of = struck(final["confusion"], summary["attacks"][0])
        value, (low, high) = hit / of, proportion(hit, of)
    else:
        low, high = final["interval"]["accuracy"]
    return CellResult(text_of(cell, value, low, high), value, low, high, kept(summary))


def struck(confusion: Sequence[Sequence[int]], attack: Row) -> tuple[int, int]:
    """Return (rows that count, of how many): right ones of exchanged classes, or those that became what attackers wanted."""
    if "target" in attack:
        of = sum(sum(row) for name, row in enumerate(confusion) if str(name) != attack["target"])
        return round(attack["attack_success"] * of), of
    places = attack["pairs"]
    if attack["kind"] == "swap":
        places = [(c, c) for c in sorted({c for pair in places for c in pair})]
    return sum(confusion[a][b] for a, b in places), sum(sum(confusion[a]) for a, _ in places)


def knowing(cell: MatrixCell) -> str:
    """Return whose changes the attackers of a cell see, in brackets; "" if only their own."""
    for table in cell.tables.get("attack", ()):
        if (builder := POISONING.get(table["name"])) is not None:
            return SEEING[builder(**{key: x for key, x in table.items() if key != "name"}).declares.knows]
    return ""


def seen(config: ExperimentConfig, folder: Path) -> None:
    """Run the experiment whose view is attacked."""
    ensure(checked(config), folder, More(report=False))


def of_view(cell: MatrixCell, seed: int, folder: Path) -> CellResult:
    """Return how much a view reveals beyond the placebo."""
    tables, how = dict(cell.tables), VIEWS[cell.attack]
    if how.settled:
        constants = folder.parent / "constants.json"
        write_json(constants, TO_ONE)
        tables["data"] = {**tables["data"], "constants": str(constants)}
    keys = {"role": cell.role, **how.keys}
    made = ensure_attack(parse({**tables, "seed": seed}), folder, how.name or cell.attack, keys, seen)
    if "unscored" in made:
        return CellResult(str(made["unscored"]))
    leak = made["leaks"][VIEW_ATTACKS[how.name or cell.attack]().leak]
    value, low, high = leak["value"], leak["low"], leak["high"]
    text = text_of(cell, value, low, high, sign="+")
    return CellResult(text, value, low, high, kept(RunFolder.open(folder).summary()))


def text_of(cell: MatrixCell, value: float, low: float | None, high: float | None, sign: str = "") -> str:
    """Return a figure with its interval, in the unit of its cell: that of an attack on a view, else percent of rows."""
    how = VIEWS.get(cell.attack)
    shape, unit, by = (".1f", "%", 100) if how is None else (how.shape, how.unit, 1)
    span = "" if low is None or high is None else f" [{by * low:{sign}{shape}}, {by * high:{sign}{shape}}]"
    return f"{by * value:{sign}{shape}}{unit}{span}" + (f" ({cell.role})" if cell.role else "")


def as_gate(cell: MatrixCell, found: Sequence[CellResult]) -> Plain:
    """Return a cell as a row of the page, over its seeds: reported, never gated."""
    values = [one.value for one in found if one.value is not None]
    text = found[0].text
    if len(found) > 1 and len(values) == len(found):
        lows, highs = ([x for x in ends if x is not None] for ends in zip(*(one[2:4] for one in found), strict=True))
        text = text_of(cell, math.fsum(values) / len(values), min(lows, default=None), max(highs, default=None))
    return {
        "name": f"{cell.algorithm}: {cell.attack}{knowing(cell)} against {cell.defence}",
        "published": VIEWS[cell.attack].figure if cell.role else WHAT.get(cell.attack, "accuracy"),
        "rule": "reported",
        "obtained": text,
        "seeds": len(found),
        "whole": True,
        "passed": None,
        "values": values,
    }
