"""Whether runs that an older package began, or ended, are taken up by this one as if nothing had changed.

A script, no module of pytest's. With the older package it makes folders of runs stopped half-way by ``kill -9`` and of finished ones; with
another package it resumes, reports and predicts from copies of them, and compares with the runs that nobody stopped.

    python tests/support/old_folders.py --make DIR --source ../before/src    # once, at the commit before a change
    python tests/support/old_folders.py --check DIR                          # as often as you like; exit code 1 where anything differs
    python tests/support/old_folders.py --check DIR --only rows deployed     # some kinds of them

Compared are all values of all files, and predictions: with what the older package made of the same folders, with what `run_files.IGNORED`
names aside; and with the run that nobody stopped, with `run_files.RESUMED` aside, too. Without ``--source`` the
package is the one that PYTHONPATH finds, else the installed one. Only its public names and its command line are used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

import old_deployed
from run_files import RESUMED, CommandError, Values, call, command, differences, environment, folder_values
from same_configurations import write_table
from same_whole import NOISE, ONE_ROW, PARTIES, STUDY, write_parties

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch

Table = dict[str, Any]
INPUTS, WHOLE, HALF = "inputs", "whole", "half"
STUDIED = (
    "table.sqlite: ",
    "runs.csv: ",
    "analysis.json: ",
)  # of a study; the folder of a run that was killed may stay
PATIENCE = 120.0
UNREAD = ("checkpoint", "lock", "report.html")

ROWS: Table = {
    "rounds": 8,
    "data": {"name": "file", "path": "table.csv", "label": "y", "missing": "median", "drop": ["site", "amount"]},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5},
    "model": {"hidden": [16]},
    "cohort": {"fraction": 0.6},
    "local": {"batch_size": 8, "epochs": 3},
    "engine": {"workers": 1},
}
WITHOUT_HOLES: Table = {"data": {**ROWS["data"], "missing": "drop", "scale": "none"}}
MASKED: Table = {**WITHOUT_HOLES, "privacy": [{"name": "secagg"}], "cohort": {"fraction": 1.0}}
CLIPPED: Table = MASKED | {
    "data": {"name": "digits", "limit": 300, "scale": "none"},
    "privacy": [NOISE],
    "algorithm": {"name": "fedavg", "weights": "uniform"},
}
TREES: Table = {"parties": PARTIES, "algorithm": {"name": "secureboost", "trees": 6, "bins": 12, "depth": 3}}
NEW_ROWS = "table.csv"
NEW_PICTURES = "pictures.npz"
NEW_COLUMNS = {"bank": "bank.csv", "shop": "shop.csv"}


class Kind(NamedTuple):
    """A run, what it is stopped after, and what it predicts."""

    tables: Table
    rows: Any  # that the finished run predicts
    stop: tuple[str, int] = ("metrics.jsonl", 4)  # (file, lines in it)
    parts: Sequence[str] = ("",)  # folders in it with a model and a page of their own
    baselines: bool = False


KINDS: Mapping[str, Kind] = {
    "rows": Kind(ROWS | {"algorithm": {"name": "scaffold"}}, NEW_ROWS, baselines=True),
    "rows_personal": Kind(ROWS | {"algorithm": {"name": "ditto"}, "evaluation": {"clients": 0.2}}, NEW_ROWS),
    "rows_secagg": Kind(ROWS | MASKED, NEW_ROWS),
    "rows_central_dp": Kind(ROWS | CLIPPED, NEW_PICTURES),
    "columns": Kind(TREES, NEW_COLUMNS, baselines=True),
    "columns_paillier": Kind(TREES | {"privacy": [{"name": "paillier"}]}, NEW_COLUMNS),
    "seeds": Kind(ROWS | {"seeds": [1, 2, 3]}, NEW_ROWS, ("seed-2/metrics.jsonl", 3), ("seed-1", "seed-2", "seed-3")),
    "seeds_attacked": Kind(
        ONE_ROW | {"rounds": 4, "seeds": [1, 2]}, NEW_PICTURES, ("seed-2/metrics.jsonl", 2), ("seed-1", "seed-2")
    ),
}


def stopped(words: Sequence[str | Path], where: Path, source: Path | None, ready: Callable[[], bool]) -> bool:
    """Begins ``fedatlas WORDS`` and kills it, and what it started, once ``ready``; False where it ended before."""
    process = subprocess.Popen(
        command(*words), cwd=where, env=environment(source), start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + PATIENCE
    while not ready() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.004)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


def has_lines(path: Path, number: int) -> bool:
    """Whether a file is there and has so many lines."""
    return path.exists() and path.read_bytes().count(b"\n") >= number


def predicted(run: Path, kind: Kind) -> Values:
    """The predictions of each of a run's models, as text."""
    from fedatlas import predict

    holes = {} if kind.rows == NEW_COLUMNS else {"holes": "empty"}
    return {f"predictions {part}": predict(run / part, kind.rows, **holes).to_csv(index=False) for part in kind.parts}


def made(name: str, kind: Kind, folder: Path, source: Path | None) -> None:
    """A finished run, one of the same stopped half-way, and what both come to when this package takes them up."""
    from fedatlas import Experiment, run

    inputs, home = folder / INPUTS, folder / name
    home.mkdir()
    file = inputs / f"{name}.toml"
    file.write_text(tomli_w.dumps(kind.tables))
    run(Experiment.read(file), out=home / WHOLE, baselines=kind.baselines)
    keep(home, "undisturbed", folder_values(home / WHOLE, UNREAD) | predicted(home / WHOLE, kind))
    begin = ["run", file.name, "--quiet", "--baselines" if kind.baselines else "--no-baselines", "--out"]
    half, (path, number) = home / HALF, kind.stop
    for _ in range(10):
        if stopped([*begin, half], inputs, source, lambda: has_lines(half / path, number)):
            break
        shutil.rmtree(half)
    if (half / "summary.json").exists() or not has_lines(half / path, number):
        raise CommandError(f"{name} could not be stopped half-way")
    for which in (WHOLE, HALF):
        keep(home, which, taken_up(home, which, kind))
        shutil.rmtree(home / again(which))


def again(which: str) -> str:
    """The copy of a folder that is taken up."""
    return f"{which}-again"


def keep(home: Path, name: str, found: Values) -> None:
    """Beside the folders."""
    (home / f"{name}.values.json").write_text(json.dumps(found, indent=1))


def kept(home: Path, name: str) -> Values:
    """What `keep` wrote."""
    return dict(json.loads((home / f"{name}.values.json").read_text()))


def taken_up(home: Path, which: str, kind: Kind) -> Values:
    """A copy resumed, with its page written, and what its models predict."""
    from fedatlas import report, resume

    run = home / again(which)
    shutil.copytree(home / which, run)
    resume(run)
    page = report(run)
    return folder_values(run, UNREAD) | {"page": page.stat().st_size > 0} | predicted(run, kind)


def checked(name: str, kind: Kind, folder: Path) -> dict[str, list[str]]:
    """What differs of both from what the older package made of them, and from the run that nobody stopped."""
    home, out = folder / name, {}
    undisturbed = kept(home, "undisturbed") | {"page": True}
    for which in (WHOLE, HALF):
        try:
            found = taken_up(home, which, kind)
        except Exception as error:  # noqa: BLE001  # as in `check`
            out[which] = [f"{type(error).__name__}: {error}"]
            continue
        lines = differences(kept(home, which), found, f"{name}-{which}")
        out[which] = lines + differences(undisturbed, found, f"{name}-{which}", RESUMED)
    return out


# ------------------------------------------------------------------------------------------------------------- a study


def runs_done(table: Path) -> int:
    """Of a study's table that is being written."""
    try:
        with sqlite3.connect(f"{table.resolve().as_uri()}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM runs WHERE status NOT IN ('planned', 'running')").fetchone()[0])
    except sqlite3.Error:
        return 0


def study_made(folder: Path, source: Path | None) -> None:
    """A finished study, and one stopped with half of its runs done."""
    inputs, home = folder / INPUTS, folder / "study"
    home.mkdir()
    (inputs / "study.toml").write_text(tomli_w.dumps(STUDY))
    begin = ["study", "study.toml", "--quiet", "--out"]
    call([*begin, home / WHOLE], inputs, source)
    half = home / HALF
    for _ in range(10):
        if stopped([*begin, half], inputs, source, lambda: runs_done(half / "table.sqlite") >= 4):
            return
        shutil.rmtree(half)
    raise CommandError("the study could not be stopped half-way")


def study_checked(folder: Path, source: Path | None) -> dict[str, list[str]]:
    """What differs of the tables of both, and of what they are exported and analysed to."""
    inputs, home = folder / INPUTS, folder / "study"
    out, found = {}, {}
    before = {key: value for key, value in folder_values(home / WHOLE).items() if key.startswith("table.sqlite: ")}
    for which in (WHOLE, HALF):
        run = home / again(which)
        shutil.copytree(home / which, run)
        words = ["study", "study.toml", "--out", run]
        call([*words, "--quiet"], inputs, source)
        call([*words, "--export", run / "runs.csv"], inputs, source)
        call([*words, "--analyse"], inputs, source)
        every = folder_values(run)
        found[which] = {key: value for key, value in every.items() if key.startswith(STUDIED)}
        table = {key: value for key, value in every.items() if key.startswith("table.sqlite: ")}
        out[which] = differences(before, table, f"study-{which}", RESUMED)
    out[HALF] += differences(found[WHOLE], found[HALF], "study", RESUMED)
    return out


# ------------------------------------------------------------------------------------------------------------- all


def make(folder: Path, source: Path | None, only: Sequence[str]) -> int:
    """All kinds, or some."""
    inputs = folder / INPUTS
    inputs.mkdir(parents=True, exist_ok=True)
    write_table(inputs / "table.csv")
    write_parties(inputs)
    np.savez(inputs / NEW_PICTURES, x=(np.arange(20 * 64) * 7 % 17).reshape(20, 1, 8, 8).astype(np.float32))
    makers: dict[str, Callable[[], None]] = {
        name: lambda name=name, kind=kind: made(name, kind, folder, source) for name, kind in KINDS.items()
    }
    makers["study"] = lambda: study_made(folder, source)
    makers |= {
        name: lambda name=name: old_deployed.made(name, folder / name, source) for name in old_deployed.FEDERATIONS
    }
    for name, maker in makers.items():
        if only and name not in only:
            continue
        shutil.rmtree(folder / name, ignore_errors=True)
        started = time.perf_counter()
        with contextlib.chdir(inputs):
            maker()
        print(f"{name}: made  {time.perf_counter() - started:.1f} s", flush=True)
    return 0


def check(folder: Path, source: Path | None, only: Sequence[str]) -> int:
    """All that was made, or some, in a copy; 1 where anything differs."""
    checks: dict[str, Callable[[Path], dict[str, list[str]]]] = {
        name: lambda at, name=name, kind=kind: checked(name, kind, at) for name, kind in KINDS.items()
    }
    checks["study"] = lambda at: study_checked(at, source)
    checks |= {
        name: lambda at, name=name: old_deployed.checked(name, at / name, source) for name in old_deployed.FEDERATIONS
    }
    wrong = count = 0
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch) / "copied"
        for name, one in checks.items():
            if (only and name not in only) or not (folder / name).is_dir():
                continue
            shutil.copytree(folder / INPUTS, at / INPUTS, dirs_exist_ok=True)
            shutil.copytree(folder / name, at / name)
            started = time.perf_counter()
            try:
                with contextlib.chdir(at / INPUTS):
                    found = one(at)
            except Exception as error:  # noqa: BLE001  # a fault in one kind is its outcome, and the others are looked at
                found = {"all": [f"{type(error).__name__}: {error}"]}
            for which, lines in found.items():
                count, wrong = count + 1, wrong + bool(lines)
                verdict = "equal" if not lines else "\n    ".join(["DIFFERS", *lines[:12], *["..."][: len(lines) > 12]])
                print(f"{name} {which}: {verdict}", flush=True)
            print(f"    {time.perf_counter() - started:.1f} s", flush=True)
    print(f"{count} folders, {wrong} differ.")
    return min(wrong, 1)


def main() -> int:
    """Makes or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--make", type=Path, metavar="DIR", help="make the folders")
    asked.add_argument("--check", type=Path, metavar="DIR", help="take copies of them up, and compare")
    parser.add_argument("--source", type=Path, metavar="SRC", help="the folder that holds the package")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND")
    given = parser.parse_args()
    if given.source:
        sys.path.insert(0, str(given.source.resolve()))
        os.environ["PYTHONPATH"] = str(given.source.resolve())  # of the processes that runs start
    import fedatlas

    print(f"fedatlas of {Path(fedatlas.__file__).parent}")
    warnings.simplefilter("ignore")
    if given.make:
        return make(given.make.resolve(), given.source, given.only)
    return check(given.check.resolve(), given.source, given.only)


if __name__ == "__main__":
    sys.exit(main())
