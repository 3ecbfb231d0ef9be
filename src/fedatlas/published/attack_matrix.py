"""Attack by defence, cell by cell: what a figure is under each rule and each mechanism, or why the two do not go together.

Digits, FedAvg and FedSeq (superclients of two). Poisoning by a fifth of twenty clients or of ten superclients, and attacks on views:
inverted gradients of clients with one row each, and membership of clients with few rows. Each stands against every rule and every
mechanism. No cell is empty: it holds a figure with its 95% interval, or the sentence of the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.progress import Progress
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.files import write_json
from fedatlas.leakage import ensure_attack
from fedatlas.metrics.intervals import proportion
from fedatlas.published.gates import Part, Study
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked

NAME = "attack-matrix"
ROUNDS, QUICK = 40, 12
CLIENTS = 20
LEAST: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"name": "fedavg", "weights": "uniform"},
    "fedseq": {"name": "fedseq", "phi": "random", "group_size": 2, "rule": {"weights": "uniform"}},
}
RULES = ("krum", "multi_krum", "trimmed_mean", "median", "norm_clip")
MECHANISMS: Mapping[str, Mapping[str, Any]] = {
    "local_dp": {"name": "local_dp", "epsilon": 100.0, "clip": 1.0, "noise": "seed"},
    "central_dp": {"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.3, "noise": "seed"},
    "secagg": {"name": "secagg"},
}
POISONS: Mapping[str, Mapping[str, Any]] = {
    "nobody": {},
    "label_flip": {"share": 0.2, "pairs": [[3, 5], [0, 8]]},
    "sign_flip": {"share": 0.2, "c": 10.0},
    "gaussian": {"share": 0.2, "sigma": 10.0},
    "model_replacement": {"pairs": [[5, 3]]},  # of the smallest share that is somebody, in the last round
}
WHAT = {
    "label_flip": "accuracy on attacked classes",
    "model_replacement": "attack success",
    "inverting_gradients": "PSNR above the placebo's",
    "dlg": "PSNR above the placebo's",
    "membership": "AUC above the placebo's",
}
VIEWS: Mapping[str, Mapping[str, Any]] = {
    "inverting_gradients": {"iterations": 300, "targets": 16},
    "dlg": {"iterations": 100, "restarts": 2, "targets": 16},
    "membership": {},
}
"""Attacks on views, and their keys."""
ONE_ROW: Mapping[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 16},
    "partition": {"name": "iid", "clients": 16},
    "model": {"name": "lenet_sigmoid"},
    "local": {"steps": 1, "lr": 0.1},
}
"""Clients with one row each, who take one step: what they send is a gradient."""
FEW_ROWS: Mapping[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "iid", "clients": 10},
    "model": {"name": "mlp", "hidden": [128]},
    "local": {"epochs": 5, "lr": 0.02, "batch_size": 10},
    "evaluation": {"clients": 0.5, "every": 30},
    "attack": [{"name": "membership"}],
}
"""Clients that pass often over few rows, and hold as many out: a model that could know rows by heart."""


NOTES = (
    "Digits, 20 clients alike, a fifth of them hostile; of FedSeq's ten superclients of two, whole ones.",
    "Against none: the weighted mean, and no mechanism.",
    "A cell holds a figure with its 95% interval over test rows (of several seeds the mean, and the span), or the refusal's sentence.",
    "Under label_flip the figure is the accuracy on attacked classes; under model_replacement the share of attacked rows that changed.",
    "Of inverting_gradients and dlg it is by how many dB the pictures are better than the placebo's, of membership by how much the AUC is,",
    "with whose view is attacked: the server's, or an outsider's where the server is trusted, and of membership always.",
    "Noise is drawn from the seed, so that the matrix can be repeated.",
)


TO_ONE: Mapping[str, Any] = {
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
"""Digits from 0 to 1, settled without rows."""


class Cell(NamedTuple):
    """One cell: an experiment, and what of it is looked at."""

    algorithm: str
    attack: str
    defence: str
    tables: Mapping[str, Any]
    role: str = ""  # whose view is inverted; "" of attacks by clients

    @property
    def name(self) -> str:
        """What its folder is called."""
        return f"{self.algorithm}-{self.attack}-{self.defence}"


class Found(NamedTuple):
    """What came of a cell with one seed: a figure with its interval, or a sentence."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    run: Mapping[str, Any] = {}


def attack_matrix(quick: bool = False, shorter: int | None = None) -> Study:
    """Attack by rule and attack by mechanism, for FedAvg and FedSeq on digits."""
    seeds = (1,) if quick else (1, 2, 3)
    parts = tuple(Part(one.name, one.tables, seeds) for one in cells(shorter or (QUICK if quick else ROUNDS)))
    return Study(NAME, "Attacks and defences", "this software; no published figures", parts, (), NOTES)


def cells(rounds: int) -> list[Cell]:
    """All cells, in the order of the page."""
    defences: dict[str, dict[str, Any]] = {"none": {"aggregation": {"name": "mean"}}}
    defences |= {name: {"aggregation": {"name": name}} for name in RULES}
    defences |= {name: {"privacy": [table]} for name, table in MECHANISMS.items()}
    out = []
    for algorithm in LEAST:
        for attack in POISONS:
            out += [poisoned(algorithm, attack, name, rounds, tables) for name, tables in defences.items()]
        for attack in VIEWS:
            out += [observed(algorithm, attack, name, tables) for name, tables in defences.items()]
    return out


def poisoned(algorithm: str, attack: str, defence: str, rounds: int, defending: Mapping[str, Any]) -> Cell:
    """A cell of hostile clients."""
    table: dict[str, Any] = {"name": attack, **POISONS[attack]}
    seq = algorithm == "fedseq"
    if seq:
        table["unit"] = "superclient"
    if attack == "model_replacement":
        table |= {"share": 0.1 if seq else 1 / CLIENTS, "rounds": [rounds, rounds]}
    tables = {
        "rounds": rounds,
        "data": {"name": "digits"},
        "partition": {"name": "iid", "clients": CLIENTS},
        "algorithm": dict(LEAST[algorithm]),
        "local": {"epochs": 2, "batch_size": 16, "lr": 0.02},
        "evaluation": {"every": rounds},
        **({} if attack == "nobody" else {"attack": [table]}),
        **defending,
    }
    return Cell(algorithm, attack, defence, tables)


def observed(algorithm: str, attack: str, defence: str, defending: Mapping[str, Any]) -> Cell:
    """A cell of a view; a server that is trusted sees all, so that there an outsider looks."""
    tables = {**(FEW_ROWS if attack == "membership" else ONE_ROW), "algorithm": dict(LEAST[algorithm]), **defending}
    if attack == "membership":
        return Cell(algorithm, attack, defence, tables, "outsider")
    if defence == "local_dp":
        tables |= {"rounds": 1, "privacy": [{**MECHANISMS[defence], "epsilon": 8.0}]}
    return Cell(algorithm, attack, defence, tables, "outsider" if defence == "central_dp" else "server")


# ---------------------------------------------------------------------- what came of it


def run_matrix(
    study: Study,
    rounds: int | None,
    base: Path,
    smaller: str,
    only: Sequence[str] | None,
    console: Console,
    watch: Callable[[str], AbstractContextManager[Progress]],
) -> dict[str, Any]:
    """The entries ``gates`` (a cell each), ``parts`` and ``runs`` of a record; what is finished in ``base`` is not done again."""
    asked = cells(rounds or (QUICK if "quick" in smaller else ROUNDS))
    seeds = {part.name: part.seeds for part in study.parts}
    gates, runs = [], []
    for place, cell in enumerate(one for one in asked if not only or one.name in only):
        found = []
        for seed in seeds[cell.name]:
            with watch(f"{cell.name}, seed {seed} (cell {place + 1} of {len(only or asked)})") as progress:
                found.append(of_cell(cell, seed, base / cell.name / f"seed-{seed}", progress))
            console.print(f"{cell.name}, seed {seed}: {escape(found[-1].text)}", soft_wrap=True)
        runs += [
            {"part": cell.name, "seed": seed, **one.run}
            for seed, one in zip(seeds[cell.name], found, strict=True)
            if one.run
        ]
        gates.append(as_gate(cell, found))
    parts = [{"name": cell.name, "config": dict(cell.tables), "seeds": list(seeds[cell.name])} for cell in asked]
    return {"gates": gates, "parts": parts, "runs": runs, "curves": []}


def of_cell(cell: Cell, seed: int, folder: Path, progress: Progress) -> Found:
    """What came of one cell; a refusal is a result."""
    try:
        if cell.role:
            return of_view(cell, seed, folder)
        whole = checked(parse({**cell.tables, "seed": seed}))
        done = ensure(whole, folder, More(options={"baselines": False}), progress)
    except (ConfigError, PrivacyError) as error:
        return Found(str(error))
    return of_run(cell.attack, done.summary)


def of_run(attack: str, summary: Mapping[str, Any]) -> Found:
    """The figure of a run under an attack by clients, with an interval over the test rows."""
    cost = {"seconds": summary["cost"]["seconds"], "plan": summary["plan"], "commit": summary["commit"]}
    run = {**cost, "cpu": summary["cpu"], "rows": []}
    final = summary["final"]
    if "diverged" in summary:
        return Found(f"{100 * final['accuracy']:.1f}%: the model diverged", final["accuracy"], run=run)
    if attack not in WHAT:
        low, high = final["interval"]["accuracy"]
        return shown(final["accuracy"], low, high, run)
    matrix, one = final["confusion"], summary["attacks"][0]
    if attack == "label_flip":
        classes = sorted({c for pair in one["pairs"] for c in pair})
        hit, of = sum(matrix[c][c] for c in classes), sum(sum(matrix[c]) for c in classes)
    else:
        hit, of = sum(matrix[a][b] for a, b in one["pairs"]), sum(sum(matrix[a]) for a, _ in one["pairs"])
    return shown(hit / of, *proportion(hit, of), run)


def shown(value: float, low: float, high: float, run: Mapping[str, Any]) -> Found:
    """A share with its interval."""
    return Found(f"{100 * value:.1f}% [{100 * low:.1f}, {100 * high:.1f}]", value, low, high, run)


def seen(config: ExperimentConfig, folder: Path) -> None:
    """The run whose view is attacked."""
    ensure(checked(config), folder, More(report=False))


def of_view(cell: Cell, seed: int, folder: Path) -> Found:
    """What a view betrays above the placebo: in dB, or of an AUC."""
    tables = dict(cell.tables)
    if cell.attack != "membership":
        constants = folder.parent / "constants.json"
        write_json(constants, TO_ONE)
        tables["data"] = {**tables["data"], "constants": str(constants)}
    keys = {"role": cell.role, **VIEWS[cell.attack]}
    made = ensure_attack(parse({**tables, "seed": seed}), folder, cell.attack, keys, seen)
    (leak,) = made["leaks"].values()
    value, low, high = (leak[key] for key in ("value", "low", "high"))
    summary = RunFolder.open(folder).summary()
    run = {
        "seconds": summary["cost"]["seconds"],
        "plan": summary["plan"],
        "commit": summary["commit"],
        "cpu": summary["cpu"],
    }
    shape, unit = ("+.3f", "") if cell.attack == "membership" else ("+.1f", " dB")
    text = f"{value:{shape}}{unit} [{low:{shape}}, {high:{shape}}] ({cell.role})"
    return Found(text, value, low, high, {**run, "rows": []})


def as_gate(cell: Cell, found: Sequence[Found]) -> dict[str, Any]:
    """A cell as a row of the page: reported, never gated."""
    values = [one.value for one in found if one.value is not None]
    text = found[0].text
    if len(found) > 1 and len(values) == len(found):
        lows, highs = ([getattr(one, end) for one in found if getattr(one, end) is not None] for end in ("low", "high"))
        mean, shape = math.fsum(values) / len(values), ".3f" if cell.attack == "membership" else ".1f"
        unit, by = ("%", 100) if not cell.role else ("" if cell.attack == "membership" else " dB", 1)
        span = f" [{by * min(lows):{shape}}, {by * max(highs):{shape}}]" if lows else ""
        text = f"{by * mean:{shape}}{unit}{span}" + (f" ({cell.role})" if cell.role else "")
    return {
        "name": f"{cell.algorithm}: {cell.attack} against {cell.defence}",
        "published": WHAT.get(cell.attack, "accuracy"),
        "rule": "reported",
        "obtained": text,
        "seeds": len(found),
        "whole": True,
        "passed": None,
        "values": values,
    }
