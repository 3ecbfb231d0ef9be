"""Whether results are what they were, to the bit: every algorithm, the default experiment, HAR and CIFAR-10, before and after a change.

A script, no module of pytest's. Bits depend on the machine, on torch and on its processor's instructions, so nothing that is recorded
belongs into the repository: record at the commit before a change, on the machine that compares, then compare as often as you like.

    python tests/support/same_results.py --source ../before/src --record /tmp/before.json  # the package of another checkout
    python tests/support/same_results.py --compare /tmp/before.json --part digits          # exit code 1 where anything differs
    python tests/support/same_results.py --compare /tmp/before.json --ignore fedprox_adaptive:bytes_up

``--part digits`` takes the bundled digits and less than a minute of one core; ``har`` and ``cifar`` need data under FEDATLAS_DATA.
``--only`` takes names of configurations, which a call without ``--record`` and ``--compare`` prints. ``--ignore NAME`` passes over a
configuration, ``--ignore NAME:FIELD`` over a field of its rows.

``whole`` compares whole folders (same_whole.py): each value of each file, with what `run_files.IGNORED` names aside, which is what
differs between two recordings of the same package: ``--compare FIRST --other SECOND --part whole --bare`` shows it all.

Of the other parts are compared: the rows of metrics.jsonl without seconds and memory, the bytes of every model, of partition.json and of
preprocess.json, and what summary.json says of the outcome. Without ``--source`` the package is the one that PYTHONPATH finds, else the
installed one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import run_files
import same_whole
from run_files import shown
from same_configurations import Table, cifar, digits, har, network, write_table
from same_whole import Whole

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch

CLOCK = ("seconds", "seconds_by_phase", "peak_memory_bytes")  # of a row: what a clock or the machine decides
OUTCOME = ("final", "best", "mean_last", "per_client", "test", "figures", "groups", "clusters", "algorithm_facts")
MOST = 12  # lines that are shown of a configuration that differs
PARTS = ("digits", "har", "cifar", "whole")


def configurations(part: str) -> dict[str, Table | Whole]:
    """name -> what is run, of one part or of all."""
    made: Mapping[str, Callable[[], Mapping[str, Table | Whole]]] = {
        "digits": digits,
        "har": har,
        "cifar": cifar,
        "whole": same_whole.configurations,
    }
    return {name: one for each in (PARTS if part == "all" else (part,)) for name, one in made[each]().items()}


def found_of(given: Table | Whole) -> Table:
    """What came of a configuration: an outcome, or all values of a run that is compared whole."""
    if not isinstance(given, Whole):
        return outcome(given)
    try:
        return {"values": same_whole.outcome(given)}
    except Exception as error:  # noqa: BLE001  # a fault in one is its outcome, and the others are looked at
        return {"values": {"error": f"{type(error).__name__}: {error}"}}


def error_of(found: Table) -> str:
    """The sentence that a configuration ended with; "" where it came to its end."""
    return str(found.get("values", found.get("summary", {})).get("error", ""))


def outcome(tables: Table) -> Table:
    """What a run of these tables came to: rows, SHA-256 of its models' bytes and of its summary's outcome."""
    from fedatlas import Experiment, FedatlasError, run

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_table(Path("table.csv"))
        own = network() if tables.get("own_network") else None
        tables = {key: value for key, value in tables.items() if key != "own_network"}
        try:
            path = run(Experiment.of(own, **tables), out=Path(folder) / "run", baselines=False).path
        except FedatlasError as error:
            return {"metrics": "", "rows": {}, "files": {}, "summary": {"error": str(error)}}
        rows: Table = {}
        for file in sorted(path.rglob("metrics.jsonl")):
            for number, line in enumerate(file.read_text().splitlines()):
                row = {key: value for key, value in json.loads(line).items() if key not in CLOCK}
                rows[f"{file.relative_to(path).as_posix()} {number}"] = row
        kept = [*path.rglob("*.safetensors"), *path.rglob("partition.json"), *path.rglob("preprocess.json")]
        files = {file.relative_to(path).as_posix(): content_digest(file) for file in sorted(kept)}
        said = json.loads((path / "summary.json").read_text())
    summary = {key: digest(said[key]) for key in OUTCOME if key in said}
    return {"metrics": digest(rows), "rows": rows, "files": files, "summary": summary}


def content_digest(file: Path) -> str:
    """SHA-256 of a file; of preprocess.json without the rules of reading, which older runs do not name."""
    content = file.read_bytes()
    if file.name == "preprocess.json":
        values = {key: value for key, value in json.loads(content).items() if key != "reading"}
        content = (json.dumps(values, indent=1) + "\n").encode()
    return hashlib.sha256(content).hexdigest()


def digest(value: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def machine() -> Table:
    """What bits depend on beside the code."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def differences(before: Table, after: Table, passed_over: set[str]) -> list[str]:
    """What differs between two outcomes, one line each, the first row alone in full."""
    lines = []
    a, b = before["rows"], after["rows"]
    if a.keys() != b.keys():
        lines.append(f"rows: {len(a)} before, {len(b)} after")
    for number in (key for key in a if key in b):
        fields = [
            f for f in {**a[number], **b[number]} if f not in passed_over and a[number].get(f) != b[number].get(f)
        ]
        if fields:
            lines += [
                f"{number}, {f}: {shown(a[number].get(f))} before, {shown(b[number].get(f))} after" for f in fields
            ]
            break
    for kind in ("files", "summary"):
        every = {**before[kind], **after[kind]}
        lines += [f"{kind}: {name}" for name in every if before[kind].get(name) != after[kind].get(name)]
    return lines


def passed_over_of(ignored: Iterable[str]) -> dict[str, set[str]]:
    """name -> the fields that --ignore passes over; "" the whole configuration."""
    fields: dict[str, set[str]] = {}
    for text in ignored:
        name, _, field = text.partition(":")
        fields.setdefault(name, set()).add(field)
    return fields


def compare(before: Table, found: Mapping[str, Table], ignored: Iterable[str], *, bare: bool = False) -> int:
    """Prints what differs; the number of configurations that do."""
    fields, wrong = passed_over_of(ignored), 0
    for name, after in found.items():
        passed_over = fields.get(name, set())
        if name not in before:
            wrong += 1
            print(f"{name}: not recorded before")
        elif "" not in passed_over and (lines := lines_of(name, before[name], after, passed_over, bare)):
            wrong += 1
            more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST and not bare else []
            print("\n    ".join([f"{name}: DIFFERS", *(lines if bare else lines[:MOST]), *more]))
    print(f"{len(found)} configurations, {wrong} differ.")
    return wrong


def lines_of(name: str, before: Table, after: Table, passed_over: set[str], bare: bool) -> list[str]:
    """What differs between two of the same configuration."""
    if "values" in before and error_of(after):
        return [error_of(after)]
    if "values" in before:
        return run_files.differences(before["values"], after["values"], name, bare=bare)
    return differences(before, after, passed_over)


def run_all(chosen: Mapping[str, Table | Whole]) -> dict[str, Table]:
    """Runs them, one after another, with a line each."""
    found = {}
    for name, given in chosen.items():
        started = time.perf_counter()
        found[name] = found_of(given)
        came = error_of(found[name]) or found[name].get("metrics", "")[:12] or f"{len(found[name]['values'])} values"
        print(f"{name}: {came}  {time.perf_counter() - started:.1f} s", flush=True)
    return found


def record(path: Path, found: Mapping[str, Table]) -> int:
    """Writes what came out beside what the file has already; the exit code."""
    if failed := [name for name, came in found.items() if error_of(came)]:
        print(f"Nothing is recorded, for there is nothing to compare with: {', '.join(failed)}.")
        return 1
    before = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    path.write_text(json.dumps({"machine": machine(), "runs": {**before["runs"], **found}}, indent=1) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write what came out; parts that FILE has already are replaced"
    )
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with what was recorded")
    parser.add_argument("--other", type=Path, metavar="FILE", help="compare what was recorded here, and run nothing")
    parser.add_argument("--bare", action="store_true", help="of folders compared whole, pass over nothing")
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--source", type=Path, metavar="SRC", help="the folder that holds the package")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME[:FIELD]")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    return parser.parse_args()


def main() -> int:
    """Records or compares."""
    asked = arguments()
    if asked.source:
        sys.path.insert(0, str(asked.source.resolve()))
        os.environ["PYTHONPATH"] = str(asked.source.resolve())  # of the processes that runs start
    import torch

    import fedatlas

    torch.set_num_threads(1)
    print(f"fedatlas of {Path(fedatlas.__file__).parent}")
    every = configurations(asked.part)
    chosen = {name: given for name, given in every.items() if not asked.only or name in asked.only}
    if not (asked.record or asked.compare):
        print("\n".join(chosen))
        return 0
    recorded = json.loads(asked.other.read_text())["runs"] if asked.other else None
    found = run_all(chosen) if recorded is None else {name: recorded[name] for name in chosen if name in recorded}
    if asked.record and (code := record(asked.record, found)):
        return code
    if not asked.compare:
        return 0
    before = json.loads(asked.compare.read_text())
    for key, value in before["machine"].items():
        if machine()[key] != value:
            print(f"{key}: {value} before, {machine()[key]} now; bits may differ for that alone.")
    return min(compare(before["runs"], found, asked.ignore, bare=asked.bare), 1)


if __name__ == "__main__":
    sys.exit(main())
