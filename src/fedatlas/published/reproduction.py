"""Run the missing parts of a target, judge its gates, and write the outcome down."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from fedatlas import machine
from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.progress import Progress, Silent
from fedatlas.errors import ConfigError, DivergedError, unknown_name
from fedatlas.files import write_json, write_text
from fedatlas.published.attack_matrix import NAME as MATRIX
from fedatlas.published.attack_matrix import as_gate, attack_matrix, of_cell
from fedatlas.published.drawing import draw, plain, points
from fedatlas.published.gates import Gate, GateVerdict, Part, PartRuns, Runs, Target
from fedatlas.published.results import page, read_records, results_page, show
from fedatlas.published.t1_blog import blog
from fedatlas.published.t2_drift import drift_recovery
from fedatlas.published.t2_istat import istat_strategies
from fedatlas.published.t3_encryption import istat_encryption
from fedatlas.published.t4_fedseq_shakespeare import fedseq_shakespeare
from fedatlas.published.t5_fedseq_grouping import fedseq_grouping
from fedatlas.published.t6_gan import NAME as GAN
from fedatlas.published.t6_gan import gan_attack
from fedatlas.published.t7_label_flipping import NAME as LABEL_FLIPPING
from fedatlas.published.t7_label_flipping import label_flipping
from fedatlas.published.t8a_ablations import FACTORS, ablation
from fedatlas.published.t9_fedseq_cifar10 import fedseq_cifar10
from fedatlas.published.t10_federated_forest import federated_forest_domains
from fedatlas.published.t10_nbafl import nbafl_losses
from fedatlas.published.t10_pysyft import pysyft_times
from fedatlas.published.t10_ridge import private_ridge_costs
from fedatlas.published.t10_secureboost import secureboost_credit
from fedatlas.published.t11_fedprox_synthetic import fedprox_synthetic
from fedatlas.published.tolpegin_label_flipping import NAME as TOLPEGIN
from fedatlas.published.tolpegin_label_flipping import tolpegin
from fedatlas.record.run_folder import CONFIG, RunFolder
from fedatlas.runs.ensure import ensure, finished
from fedatlas.setup.refusals import checked
from fedatlas.setup.resolution import resolve
from fedatlas.study.plain import Plain, Row

EXPERIMENTS: Mapping[str, Callable[[bool, int | None], Target]] = {
    "blog": blog,
    "istat-strategies": istat_strategies,
    "istat-encryption": istat_encryption,
    "drift": drift_recovery,
    "fedseq-cifar10": fedseq_cifar10,
    "fedseq-shakespeare": fedseq_shakespeare,
    "fedseq-grouping": fedseq_grouping,
    "fedprox-synthetic": fedprox_synthetic,
    "nbafl": nbafl_losses,
    "pysyft": pysyft_times,
    "secureboost": secureboost_credit,
    "federated-forest": federated_forest_domains,
    "private-ridge": private_ridge_costs,
    **{f"ablation-{factor}": ablation(factor) for factor in FACTORS},
    GAN: gan_attack,
    LABEL_FLIPPING: label_flipping,
    TOLPEGIN: tolpegin,
    MATRIX: attack_matrix,
}
Watch = Callable[[str], AbstractContextManager[Progress]]
"""The name of a run -> a context that gives its progress while it runs."""
Record = Plain

MEASURED = "measured.json"
KEPT = ("round", "accuracy", "macro_f1", "loss", "train_loss", "per_class_f1", "weights")
DRAWN = ("round", "accuracy", "loss")  # for a target with curves


def unwatched(name: str) -> AbstractContextManager[Progress]:
    """Return a context without display."""
    return nullcontext(Silent())


def reproduce(
    name: str,
    *,
    quick: bool = False,
    rounds: int | None = None,
    only: Sequence[str] | None = None,
    out: Path,
    publish: Path | None = None,
    device: str = "auto",
    watch: Watch = unwatched,
) -> bool:
    """Run the missing parts of a published experiment; return True if no gate that could be judged failed.

    Every part and seed has its own run folder in ``out``; finished runs there are kept, and interrupted ones are
    continued. The outcome is written to ``out/NAME.json`` and, as text, ``out/NAME.md``. With ``publish`` it is also written to
    ``publish/results/NAME.json``, and ``publish/results.md`` is rebuilt from all records there. Runs of the same configuration in that
    record count as finished, so that a long target can be run in pieces, on several machines.

    ``quick`` and ``rounds`` make a smaller target, labelled as such, with a separate record, which passes no gate. ``device`` is
    that of runs that begin now: one that began on another device stays there, and counts if it is finished. ``watch`` gets each
    run by its name.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    smaller = "-".join(filter(None, ("quick" if quick else "", f"{rounds}-rounds" if rounds else "")))
    target = EXPERIMENTS[name](quick, rounds)._replace(smaller=smaller)
    known = [part.name for part in target.parts]
    for wanted in only or ():
        if wanted not in known:
            raise unknown_name("part", wanted, known)
    console, base = Console(stderr=True, highlight=False, markup=False), out / target.label
    asked = [part for part in target.parts if not only or part.name in only]
    record: Record = {}
    earlier = publish and publish / "results" / f"{target.label}.json"
    if device == "cuda" and any(part.cell or part.measure for part in asked):
        raise ConfigError(f"'{name}' runs on the processor; leave the device out.")
    records = (
        matrix(target, asked, base, console, watch)
        if name == MATRIX
        else judged(target, asked, base, earlier, console, watch, device)
    )
    for record in records:
        write_outcome(record, target.label, out, publish)  # hours of work: saved after each run
    show(record)
    return not any(gate["passed"] is False for gate in record["gates"])


def write_outcome(record: Record, label: str, out: Path, publish: Path | None) -> None:
    """Write the record with its pictures and its page, and if published, the page of all records."""
    for folder in (out, publish and publish / "results"):
        if folder is not None:
            write_json(folder / f"{label}.json", record)
            for picture in record["curves"]:
                write_text(folder / picture["file"], draw(picture, record["runs"]))
    write_text(out / f"{label}.md", page(record))
    if publish is not None:
        write_text(publish / "results.md", results_page(read_records(publish / "results")))


def numbered(parts: Sequence[Part]) -> Iterator[tuple[Part, int, str]]:
    """Yield each run of some parts, with its label."""
    runs = [(part, seed) for part in parts for seed in part.seeds]
    for place, (part, seed) in enumerate(runs, start=1):
        yield part, seed, f"{part.name}, seed {seed} (run {place} of {len(runs)})"


def folder_of(part: Part, seed: int, base: Path) -> Path:
    """Return the folder of one seed of a part."""
    return base / part.name / f"seed-{seed}"


def matrix(
    target: Target,
    parts: Sequence[Part],
    base: Path,
    console: Console,
    watch: Watch,
) -> Iterator[Record]:
    """Yield the record of a matrix once all of its cells are finished; each is a row of its page."""
    gates, runs, found = [], [], []
    for part, seed, called in numbered(parts):
        with watch(called) as progress:
            found.append(of_cell(part.cell, seed, folder_of(part, seed, base), progress))
        console.print(f"{part.name}, seed {seed}: {found[-1].text}", soft_wrap=True)
        runs += [{"part": part.name, "seed": seed, **found[-1].run}] if found[-1].run else []
        if len(found) == len(part.seeds):
            gates.append(as_gate(part.cell, found))
            found = []
    yield {**about(target), "gates": gates, "runs": runs, "curves": []}


def judged(
    target: Target,
    parts: Sequence[Part],
    base: Path,
    earlier: Path | None,
    console: Console,
    watch: Watch,
    device: str,
) -> Iterator[Record]:
    """Yield the record of a target after each run that was missing, and at the end."""
    published = published_runs(target, earlier)
    for part, seed, called in numbered(parts):
        if (part.name, seed) not in published:
            try:
                run_part(part, seed, base, called, console, watch, device)
            except DivergedError as error:  # a finding; the other parts still run
                console.print(f"{called}: {error}", soft_wrap=True)
            yield collect(target, base, published)
    yield collect(target, base, published)


def run_part(part: Part, seed: int, base: Path, called: str, console: Console, watch: Watch, device: str) -> None:
    """Run, or continue, one seed of a part; ConfigError if its folder holds a run of another configuration."""
    folder = folder_of(part, seed, base)
    if part.measure is not None:
        measured(part, seed, folder, called, console, watch)
        return
    config = placed(part, seed, folder, device)
    if finished(resolve(config), folder) is not None:  # whether or not this machine has its device
        return
    whole = checked(config)
    with watch(called) as progress:
        done = ensure(whole, folder, progress=progress)
    final, seconds = done.summary["final"], done.summary["cost"]["seconds"]
    found = f"accuracy {final['accuracy']:.4f}, macro F1 {final['macro_f1']:.4f}, {seconds:.0f} s"
    console.print(f"{called}: {found}", soft_wrap=True)


def placed(part: Part, seed: int, folder: Path, device: str) -> ExperimentConfig:
    """Return the configuration of a run on a device; a run that began keeps the device that it began on."""
    began = RunFolder.open(folder).config().engine.device if (folder / CONFIG).exists() else device
    tables = {**part.tables, "seed": seed}
    return parse(tables if began == "auto" else {**tables, "engine": {**tables.get("engine", {}), "device": began}})


def measured(part: Part, seed: int, folder: Path, called: str, console: Console, watch: Watch) -> None:
    """Measure a part once; what it found is kept in its folder, in the form of a run of the record."""
    if part.measure is None or (folder / MEASURED).exists():
        return
    began = time.monotonic()
    with watch(called):
        rows = part.measure(seed)
    spent, here = time.monotonic() - began, machine.describe()
    facts = {"seconds": spent, "plan": "", **{key: here[key] for key in ("commit", "cpu")}}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MEASURED, {"part": part.name, "seed": seed, **facts, "rows": rows})
    console.print(f"{called}: {spent:.0f} s", soft_wrap=True)


def published_runs(target: Target, record: Path | None) -> dict[tuple[str, int], Row]:
    """Return (part, seed) -> run in an earlier record, for parts whose configuration is unchanged."""
    if record is None or not record.exists():
        return {}
    earlier = json.loads(record.read_text(encoding="utf-8"))
    then = {part["name"]: part["config"] for part in earlier["parts"]}
    now = {part.name: json.loads(json.dumps(part.tables)) for part in target.parts}
    same = {name for name, config in now.items() if then.get(name) == config}
    return {(run["part"], run["seed"]): run for run in earlier["runs"] if run["part"] in same}


def finished_run(part: Part, seed: int, base: Path, target: Target) -> Plain | None:
    """Return the part of a run that the record keeps; None if the run is not finished."""
    folder = folder_of(part, seed, base)
    if part.measure is not None:
        path = folder / MEASURED
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if not RunFolder(folder).finished():
        return None
    opened = RunFolder.open(folder)
    summary = opened.summary()
    done: Sequence[Row] = opened.rows()
    rows = [{key: shorter(row[key]) for key in target.keeps or KEPT if key in row} for row in done]
    rows[-1] |= {key: shorter(x) for key, x in target.of_summary(summary).items()}
    facts = {"seconds": summary["cost"]["seconds"], **{key: summary[key] for key in ("plan", "commit", "cpu")}}
    return {"part": part.name, "seed": seed, **facts, "rows": rows}


def shorter(value: Any) -> Any:
    """Return a value rounded to six decimal places, enough for a record."""
    if isinstance(value, dict):
        return {key: shorter(x) for key, x in value.items()}
    if isinstance(value, list):
        return [shorter(x) for x in value]
    return round(value, 6) if isinstance(value, float) else value


def collect(target: Target, base: Path, published: Mapping[tuple[str, int], Row]) -> Record:
    """Return the record of all finished runs, with a verdict on every gate possible; with curves, only their points are kept."""
    outcomes: dict[str, PartRuns] = {}
    runs: list[Plain] = []
    for part in target.parts:
        found = [finished_run(part, seed, base, target) or published.get((part.name, seed)) for seed in part.seeds]
        there = [dict(one) for one in found if one is not None]
        for one in there if target.curves else ():
            one["rows"] = [
                {key: row[key] for key in target.keeps or DRAWN if key in row}
                for row in one["rows"]
                if row["accuracy"] is not None
            ]
        runs += there
        if there:
            outcomes[part.name] = PartRuns({one["seed"]: one["rows"] for one in there})
    return {
        **about(target),
        "gates": [row_of(gate, outcomes, target) for gate in target.gates],
        "curves": [plain(picture, target.label) for picture in target.curves if picture.lines.keys() & outcomes.keys()]
        + [points(picture, target.label, outcomes) for picture in target.pictures],
        "runs": runs,
    }


def row_of(gate: Gate, outcomes: Runs, target: Target) -> Plain:
    """Return a gate in the form of the record: open while a seed of its parts is missing."""
    alike = of_common_seeds(outcomes, gate.parts)
    verdict = verdict_on(gate, alike, target.smaller) if alike else GateVerdict("not run", None)
    seeds = {part.name: len(part.seeds) for part in target.parts}
    done = {name: len(outcomes[name].rows) for name in gate.parts} if alike else {}
    whole = bool(alike) and all(done[name] == seeds[name] for name in gate.parts)
    if target.smaller or not whole:
        verdict = verdict._replace(passed=None)
    said = {"name": gate.name, "published": gate.published, "rule": gate.rule}
    return {**said, "seeds": min(done.values(), default=0), "whole": whole, **verdict._asdict()}


def about(target: Target) -> Record:
    """Return the record's description of the target and the machine."""
    return {
        "study": target.name,
        "title": target.title,
        "source": target.source,
        "smaller": target.smaller,
        "notes": list(target.notes),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        **machine.describe(),
        "parts": [{"name": part.name, "config": dict(part.tables), "seeds": list(part.seeds)} for part in target.parts],
    }


def of_common_seeds(outcomes: Runs, names: Sequence[str]) -> dict[str, PartRuns]:
    """Return these parts with the seeds common to all of them; {} if there are none: a target is judged while it runs."""
    seeds = set.intersection(*(set(outcomes[name].rows) if name in outcomes else set() for name in names))
    if not seeds:
        return {}
    return {name: PartRuns({k: rows for k, rows in outcomes[name].rows.items() if k in seeds}) for name in names}


def verdict_on(gate: Gate, runs: Runs, smaller: str) -> GateVerdict:
    """Return the verdict; a smaller target may not reach the rounds that a gate asks about."""
    try:
        return gate.judged(runs)
    except (IndexError, statistics.StatisticsError):
        if not smaller:
            raise
        return GateVerdict("the rounds of this smaller version do not reach it", None)
