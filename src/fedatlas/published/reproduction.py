"""Runs the parts of a study that are not there yet, judges its gates, and writes the outcome down."""

from __future__ import annotations

import datetime
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedatlas import machine
from fedatlas.config import parse
from fedatlas.course.progress import Progress, Silent
from fedatlas.errors import DivergedError, unknown_name
from fedatlas.files import write_json, write_text
from fedatlas.published.attack_matrix import NAME as MATRIX
from fedatlas.published.attack_matrix import attack_matrix, run_matrix
from fedatlas.published.drawing import draw, plain
from fedatlas.published.gates import Gate, Outcome, Outcomes, Part, Study, Verdict
from fedatlas.published.t1_blog import blog
from fedatlas.published.t2_istat import istat_strategies
from fedatlas.published.t4_fedseq_shakespeare import fedseq_shakespeare
from fedatlas.published.t5_fedseq_grouping import fedseq_grouping
from fedatlas.published.t8a_ablations import FACTORS, ablation
from fedatlas.published.t9_fedseq_cifar10 import fedseq_cifar10
from fedatlas.published.t11_fedprox_synthetic import fedprox_synthetic
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.ensure import ensure, finished
from fedatlas.setup.refusals import checked
from fedatlas.wording import count

EXPERIMENTS: Mapping[str, Callable[[bool, int | None], Study]] = {
    "blog": blog,
    "istat-strategies": istat_strategies,
    "fedseq-cifar10": fedseq_cifar10,
    "fedseq-shakespeare": fedseq_shakespeare,
    "fedseq-grouping": fedseq_grouping,
    "fedprox-synthetic": fedprox_synthetic,
    **{f"ablation-{factor}": ablation(factor) for factor in FACTORS},
    MATRIX: attack_matrix,
}
Watch = Callable[[str], AbstractContextManager[Progress]]
"""The name of a run -> who is told how far it is, for as long as it lasts."""

KEPT = ("round", "accuracy", "macro_f1", "loss", "train_loss", "per_class_f1", "weights")
DRAWN = ("round", "accuracy", "loss")  # of a study with curves


def unwatched(name: str) -> AbstractContextManager[Progress]:
    """Tells nobody."""
    return nullcontext(Silent())


def reproduce(
    name: str,
    *,
    quick: bool = False,
    rounds: int | None = None,
    only: Sequence[str] | None = None,
    out: Path,
    publish: Path | None = None,
    watch: Watch = unwatched,
) -> bool:
    """Runs what is missing of a published experiment; True if no gate that could be judged failed.

    Every part and seed has its own run folder in ``out``; what is finished there is not run again, what was
    stopped is continued. The outcome goes to ``out/NAME.json`` and, for people, ``out/NAME.md``; with ``publish`` also to
    ``publish/results/NAME.json``, and ``publish/results.md`` is made anew from all records there. What that record already holds of
    the same configuration counts as finished, so that a long study can be run in pieces, on several machines.

    ``quick`` and ``rounds`` make a smaller study, labelled so, with a record of its own, which passes no gate. ``watch`` is shown
    each run by its name.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    study = EXPERIMENTS[name](quick, rounds)
    smaller = "-".join(filter(None, ("quick" if quick else "", f"{rounds}-rounds" if rounds else "")))
    known = {part.name: part for part in study.parts}
    for wanted in only or ():
        if wanted not in known:
            raise unknown_name("part", wanted, known)
    console = Console(stderr=True, highlight=False)
    label = "-".join(filter(None, (study.record or name, smaller)))
    base = out / label
    if name == MATRIX:
        made = run_matrix(study, rounds, base, smaller, only, console, watch)
        record = {**about(study, smaller), **made}
        write_outcome(record, label, out, publish)
        show(record)
        return True
    published = published_runs(study, None if publish is None else publish / "results" / f"{label}.json")
    asked = [(part, seed) for part in study.parts if not only or part.name in only for seed in part.seeds]
    for place, (part, seed) in enumerate(asked, start=1):
        if (part.name, seed) not in published:
            called = f"{part.name}, seed {seed} (run {place} of {len(asked)})"
            try:
                run_part(part, seed, base, called, console, watch)
            except DivergedError as error:  # a finding, which keeps no other part from being run
                console.print(f"{called}: {error}", soft_wrap=True)
            # hours of work: kept as they come
            write_outcome(collect(study, base, smaller, published), label, out, publish)
    record = collect(study, base, smaller, published)
    write_outcome(record, label, out, publish)
    show(record)
    return not any(gate["passed"] is False for gate in record["gates"])


def write_outcome(record: Mapping[str, Any], label: str, out: Path, publish: Path | None) -> None:
    """The record and its page, and all records' page where they are published."""
    write_record(out, label, record)
    write_text(out / f"{label}.md", page(record))
    if publish is not None:
        write_record(publish / "results", label, record)
        write_text(publish / "results.md", results_page(read_records(publish / "results")))


def write_record(folder: Path, label: str, record: Mapping[str, Any]) -> None:
    """The record, and its pictures as far as there is something to draw."""
    write_json(folder / f"{label}.json", record)
    for picture in record["curves"]:
        write_text(folder / picture["file"], draw(picture, record["runs"]))


def folder_of(part: Part, seed: int, base: Path) -> Path:
    """Where one seed of a part is kept."""
    return base / part.name / f"seed-{seed}"


def run_part(part: Part, seed: int, base: Path, called: str, console: Console, watch: Watch) -> None:
    """Runs, or continues, one seed of a part; ConfigError where its folder holds a run of another configuration."""
    whole, folder = checked(parse({**part.tables, "seed": seed})), folder_of(part, seed, base)
    if finished(whole, folder) is not None:
        return
    with watch(called) as progress:
        done = ensure(whole, folder, progress=progress)
    final, seconds = done.summary["final"], done.summary["cost"]["seconds"]
    found = f"accuracy {final['accuracy']:.4f}, macro F1 {final['macro_f1']:.4f}, {seconds:.0f} s"
    console.print(f"{called}: {found}", soft_wrap=True)


def published_runs(study: Study, record: Path | None) -> dict[tuple[str, int], Mapping[str, Any]]:
    """(part, seed) -> what an earlier record holds of it, for parts whose configuration is still the same."""
    if record is None or not record.exists():
        return {}
    earlier = json.loads(record.read_text(encoding="utf-8"))
    then = {part["name"]: part["config"] for part in earlier["parts"]}
    now = {part.name: json.loads(json.dumps(part.tables)) for part in study.parts}
    same = {name for name, config in now.items() if then.get(name) == config}
    return {(run["part"], run["seed"]): run for run in earlier["runs"] if run["part"] in same}


def finished_run(part: Part, seed: int, base: Path) -> dict[str, Any] | None:
    """What a record keeps of a run; None if it is not finished."""
    folder = folder_of(part, seed, base)
    if not RunFolder(folder).finished():
        return None
    opened = RunFolder.open(folder)
    summary = opened.summary()
    done: Sequence[Mapping[str, Any]] = opened.rows()
    rows = [{key: shorter(row[key]) for key in KEPT if key in row} for row in done]
    facts = {"seconds": summary["cost"]["seconds"], "plan": summary["plan"], "commit": summary["commit"]}
    return {"part": part.name, "seed": seed, **facts, "cpu": summary["cpu"], "rows": rows}


def kept(study: Study, run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as the record keeps it: where curves are drawn, their points."""
    if not study.curves:
        return dict(run)
    rows = [row for row in run["rows"] if row["accuracy"] is not None]
    return {**run, "rows": [{key: row[key] for key in DRAWN} for row in rows]}


def shorter(value: Any) -> Any:
    """Six digits behind the point are enough for a record."""
    if isinstance(value, list):
        return [shorter(x) for x in value]
    return round(value, 6) if isinstance(value, float) else value


def collect(
    study: Study, base: Path, smaller: str, published: Mapping[tuple[str, int], Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that is finished, with the verdict on every gate that it allows."""
    outcomes, runs = {}, []
    for part in study.parts:
        found = [finished_run(part, seed, base) or published.get((part.name, seed)) for seed in part.seeds]
        there = [kept(study, one) for one in found if one is not None]
        runs += there
        if there:
            outcomes[part.name] = Outcome({one["seed"]: one["rows"] for one in there})
    gates, seeds_of = [], {part.name: part.seeds for part in study.parts}
    for gate in study.gates:
        alike = of_common_seeds(outcomes, gate.parts)
        ready = bool(alike)
        verdict = verdict_on(gate, alike, smaller) if ready else Verdict("not run", None)
        done = [len(outcomes[name].rows) for name in gate.parts] if ready else []
        whole = ready and done == [len(seeds_of[name]) for name in gate.parts]
        if smaller or not whole:
            verdict = verdict._replace(passed=None)
        gates.append(
            {
                "name": gate.name,
                "published": gate.published,
                "rule": gate.rule,
                "seeds": min(done, default=0),
                "whole": whole,
                **verdict._asdict(),
            }
        )
    label = "-".join(filter(None, (study.record or study.name, smaller)))
    curves = [plain(picture, label) for picture in study.curves if picture.lines.keys() & outcomes.keys()]
    parts = [{"name": part.name, "config": dict(part.tables), "seeds": list(part.seeds)} for part in study.parts]
    return {
        **about(study, smaller),
        "gates": gates,
        "curves": curves,
        "parts": parts,
        "runs": runs,
    }


def about(study: Study, smaller: str) -> dict[str, Any]:
    """What a record says of itself."""
    return {
        "study": study.name,
        "title": study.title,
        "source": study.source,
        "smaller": smaller,
        "notes": list(study.notes),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        **machine.describe(),
    }


def of_common_seeds(outcomes: Outcomes, names: Sequence[str]) -> dict[str, Outcome]:
    """These parts with the seeds that all of them were run with; {} where there is none: a study is judged as it goes on."""
    seeds = set.intersection(*(set(outcomes[name].rows) if name in outcomes else set() for name in names))
    return (
        {name: Outcome({k: rows for k, rows in outcomes[name].rows.items() if k in seeds}) for name in names}
        if seeds
        else {}
    )


def verdict_on(gate: Gate, outcomes: Outcomes, smaller: str) -> Verdict:
    """The verdict; of a smaller study, which may not reach the rounds that a gate asks about, that it does not."""
    try:
        return gate.judged(outcomes)
    except (IndexError, statistics.StatisticsError):
        if not smaller:
            raise
        return Verdict("the rounds of this smaller version do not reach it", None)


def word(gate: Mapping[str, Any]) -> str:
    """pass, FAIL, reported, or open while a seed is missing."""
    if gate["passed"] is None:
        return "reported" if gate.get("whole", gate["obtained"] != "not run") else "open"
    return "pass" if gate["passed"] else "FAIL"


def show(record: Mapping[str, Any]) -> None:
    """Published against obtained, on standard output."""
    console = Console(highlight=False)
    smaller = record["smaller"]
    label = f" ({smaller}: a smaller version, which passes no gate of the published one)" if smaller else ""
    table = Table(title=f"{record['title']}{label}", title_justify="left")
    for heading in ("gate", "published", "obtained", "seeds", "outcome"):
        table.add_column(heading, overflow="fold")
    for gate in record["gates"]:
        outcome = word(gate)
        colour = {"pass": "green", "FAIL": "red"}.get(outcome, "yellow")
        said = (escape(gate[key]) for key in ("name", "published", "obtained"))
        table.add_row(*said, str(gate["seeds"]), f"[{colour}]{outcome}[/]")
    console.print(table)


def page(record: Mapping[str, Any], folder: str = "") -> str:
    """The outcome as Markdown; its pictures lie in ``folder``."""
    lines = [f"## {record['title']}", "", f"Source: {record['source']}.", ""]
    if record["smaller"]:
        lines += [f"**{record['smaller']}: smaller than the published experiment; it passes no gate.**", ""]
    lines += [*record["notes"], ""]
    lines += ["| gate | published | rule | obtained | seeds | outcome |", "|---|---|---|---|---|---|"]
    for gate in record["gates"]:
        cells = (
            gate["name"],
            gate["published"],
            gate["rule"],
            gate["obtained"],
            str(gate["seeds"]),
            word(gate),
        )
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    if record.get("findings"):
        lines += ["", "**What was found.** " + record["findings"].strip()]
    for picture in record.get("curves", ()):
        lines += ["", f"![{picture['title']}]({folder}{picture['file']})"]
    seconds = sum(one["seconds"] for one in record["runs"])
    commits = sorted({short(one["commit"]) for one in record["runs"] if one["commit"]})
    cpus = sorted({one["cpu"]["model"] for one in record["runs"]})
    spent = f"{seconds:.0f} s of simulation in all (by the clock, other work on the machine included)"
    facts = f"{count(len(record['runs']), 'run')}, {spent}, on {', '.join(cpus)}; commits {', '.join(commits)}."
    command = f"fedatlas reproduce {record['study']}{flags(record['smaller'])}"
    return "\n".join([*lines, "", facts, f"Command: `{command}`.", ""])


def short(commit: str) -> str:
    """Ten digits of a commit, and whether the code had been changed since."""
    digits, _, dirty = commit.partition("-")
    return digits[:10] + ("-dirty" if dirty else "")


def flags(smaller: str) -> str:
    """'quick-60-rounds' as one asks for it."""
    quick, rounds = "quick" in smaller, "".join(c for c in smaller if c.isdigit())
    return " --quick" * quick + (f" --rounds {rounds}" if rounds else "")


def linked(text: str) -> str:
    """Markdown whose labels, such as T9, are links to their line in docs/labels.md, beside which the page lies; code is left as it is."""
    parts = re.split(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\))", text)
    label = re.compile(r"\b[BCDGHLMPSTVX]\d{1,2}a?\b")
    return "".join(
        part if i % 2 else label.sub(lambda m: f"[{m[0]}](labels.md#{m[0].lower()})", part)
        for i, part in enumerate(parts)
    )


def results_page(records: Sequence[Mapping[str, Any]]) -> str:
    """docs/results.md from the records of all studies."""
    return linked(
        "# Results\n\nPublished and obtained figures, gate by gate, generated from `docs/results/*.json`.\n"
        "A gate that fails is a finding, not an error. The text below each table says what was found.\n\n"
        + overview(records)
        + "\n".join(page(record, "results/") for record in records)
    )


def overview(records: Sequence[Mapping[str, Any]]) -> str:
    """A line a record: how large it was run, and how its gates came out."""
    lines = ["| experiment | run | runs | pass | FAIL | open | reported |", "|---|---|---|---|---|---|---|"]
    for record in records:
        words = [word(gate) for gate in record["gates"]]
        counts = [str(words.count(outcome)) for outcome in ("pass", "FAIL", "open", "reported")]
        there, whole = len(record["runs"]), sum(len(part["seeds"]) for part in record["parts"])
        cells = [record["title"], record["smaller"] or "as published", f"{there} of {whole}", *counts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records in ``docs/results``, each with what people wrote beside it (NAME.txt) of why it came out so."""
    found = []
    for path in sorted(folder.glob("*.json")):
        written = path.with_suffix(".txt")
        said = {"findings": written.read_text(encoding="utf-8")} if written.exists() else {}
        found.append({**json.loads(path.read_text(encoding="utf-8")), **said})
    return found
