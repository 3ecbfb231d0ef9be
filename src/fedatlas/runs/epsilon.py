"""``fedatlas epsilon RUN...``: an account that spans runs on the same rows.

Whoever sees several runs sees what their epsilons add up to. The ledgers of runs on the same rows that protect the same unit, with the
same neighbours, are priced together; the others stand side by side. Rows are the same if two runs read a common file, by its SHA-256, or
drew from one named source (`record.fingerprint.sources`). The seeds of one experiment are on the same rows. The account knows of no runs
that it is not given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.mechanism import number
from fedatlas.privacy.mechanisms import of_tables
from fedatlas.privacy.terms import CHOSEN, about, trust_model
from fedatlas.record.initial_files import ROWS
from fedatlas.record.run_folder import CONFIG, SUMMARY, RunFolder, won_a_tuning
from fedatlas.wording import LITTLE, capital, count, odds_text

SEEDS = "the seeds of an experiment are runs on the same rows, so their ledgers are added up."
MOVED = "in these runs clients did not hold the same rows: the sum holds for a client whose rows stay its own, whichever number it has."
BARE = "'{}' also holds models that were trained on these rows without noise: pass none of them on, or nothing is promised."
NOTHING = "released nothing with its noise so far: its account is 0 until it goes on"
WITHOUT = "had no noise: if its model is passed on, nothing is promised about these rows"


class Released(NamedTuple):
    """The releases of one run that protect the same unit, with the same neighbours."""

    path: Path
    events: tuple[ledger.Event, ...]  # empty: nothing was released with noise
    torn: int
    rows: frozenset[str]
    held: Any  # who held which rows
    trust: str
    noisy: bool  # whether it has noise that is counted, also before it releases anything
    bare: bool  # whether its folder holds models that were trained without protection
    covers: str = ""  # what the mechanisms behind the events protect of the unit; "": all of it

    @property
    def delta(self) -> float:
        """The delta at which the run states its epsilon."""
        return max((event.delta for event in self.events), default=0.0)

    @property
    def kind(self) -> tuple[str, str, str]:
        """The unit and the neighbours that it protects, and what of the unit; of a run without noise nothing."""
        return (self.events[0].unit, self.events[0].neighbours, self.covers) if self.events else ("", "", "")


def account(paths: Iterable[Path], delta: float | None = None) -> dict[str, Any]:
    """Return the account of runs, of several seeds, or of folders of runs. ``delta``: of each sum; None: the largest that a run states.

    ConfigError for a folder without a run, for one that does not say on which rows it ran, and for a delta outside (0, 1).
    """
    if delta is not None and not 0 < delta < 1:
        raise ConfigError(f"--delta {delta:g}: expected a number between 0 and 1.")
    found = dict.fromkeys(one for path in paths for one in runs_in(path))
    groups = together([one for path in found for one in released(path)])
    return {"accounts": [priced(group, delta) for group in groups], "sums": len(groups), "runs": len(found)}


def of_seeds(path: Path) -> list[Mapping[str, Any]]:
    """Return what the seeds in a folder cost together, by what they protect; empty if none of them had noise."""
    kept = ("covers", "unit", "neighbours", "epsilon", "delta", "how", "upper_bound")
    found = [one for one in account([path])["accounts"] if one["unit"] is not None]
    return [{"seeds": len(one["runs"]), **{key: one[key] for key in kept}} for one in found]


def runs_in(path: Path) -> list[Path]:
    """Return the folders of runs at or below a path, without baselines, which belong to their run."""
    if not path.is_dir():
        raise ConfigError(f"'{path}' is not a folder of a run.")
    folders = sorted({file.parent.resolve() for file in path.rglob(CONFIG)})
    runs = [one for one in folders if not of_a_run(one, path.resolve())]
    single = [one for one in runs if RunFolder(one).config().seeds is None]
    if not single:
        raise ConfigError(
            f"'{path}' holds no run: name the folder of one, or of several; a study keeps folders with execute.keep = 'folder'."
        )
    return single


def of_a_run(folder: Path, top: Path) -> bool:
    """Return whether a folder at or below ``top`` is one of a run's baselines, not just in a folder that somebody named so."""
    above = [one for one in folder.parents if one.is_relative_to(top)]
    return any(one.name == "baselines" and (one.parent / CONFIG).exists() for one in above if one != top)


def released(path: Path) -> list[Released]:
    """Return the releases of one run, finished or not, by what they protect; one entry without events if it had no noise."""
    folder = RunFolder(path)
    config = folder.config()
    events, torn = ledger.read(path / LEDGER)
    made = of_tables({"name": table.name, **table.parameters()} for table in config.privacy)
    noisy = any(one.noise is not None or one.entered is not None for one in made)
    if noisy and not events and any(row["round"] and not row.get("given_up") for row in folder.rows()):
        raise ConfigError(f"'{path}' has lost its releases, which '{LEDGER}' lists: put the file back as it was.")
    rows = rows_of(folder)
    held = folder.read_json("partition.json").get("clients") if (path / "partition.json").exists() else None
    bare = any((path / "baselines").rglob("*.safetensors")) if (path / "baselines").exists() else False
    covers = {one.name: one.words.covers for one in made}

    def kind(event: ledger.Event) -> tuple[str, str, str]:
        return event.unit, event.neighbours, covers.get(event.mechanism, "")

    found = []
    for of in dict.fromkeys(map(kind, events)) or [("", "", "")]:
        some = ledger.counted([event for event in events if kind(event) == of])
        trust = trust_model(made, {event.mechanism for event in some})
        found.append(Released(path, some, torn, rows, held, trust, noisy, bare, of[2]))
    return found


def rows_of(folder: RunFolder) -> frozenset[str]:
    """Return what identifies a run's rows. ConfigError if its folder does not tell."""
    if (folder.path / ROWS).exists():
        return frozenset(map(str, folder.read_json(ROWS, "rows")["rows"]))
    if not (folder.path / SUMMARY).exists():
        raise ConfigError(f"'{folder.path}' does not say on which rows it ran: continue it to its end.")
    summary = folder.read_json(SUMMARY)
    facts = summary.get("data_facts", {})
    files = [f"sha256:{one['sha256']}" for one in facts.get("files") or ()]
    return frozenset(files or [f"source:{facts.get('hub') or facts.get('called') or summary.get('data')}"])


def together(runs: Sequence[Released]) -> list[list[Released]]:
    """Return the runs in groups on the same rows, of one unit and one neighbourhood. A run without noise is a group by itself.

    Releases that protect only a part of their unit are not added up with those that protect all of it: for the whole unit the sum
    would be wrong.
    """
    groups: list[tuple[set[str], list[Released]]] = []
    for one in runs:
        rows, members = set(one.rows), [one]
        for other in [group for group in groups if group[1][0].kind == one.kind and one.events and group[0] & one.rows]:
            groups.remove(other)
            rows, members = rows | other[0], other[1] + members
        groups.append((rows, members))
    return [members for _, members in groups]


def priced(group: Sequence[Released], delta: float | None) -> dict[str, Any]:
    """Return the account of one group."""
    first = group[0]
    told = {"rows": sorted(set().union(*(one.rows for one in group))), "runs": [_one(one, delta) for one in group]}
    if not first.events:
        epsilon, how = (0.0, f"It {NOTHING}.") if first.noisy else ("infinite", f"It {WITHOUT}.")
        return {**told, "unit": None, "neighbours": None, "epsilon": epsilon, "delta": 0.0, "how": how}
    stated = max(one.delta for one in group) if delta is None else delta
    spent = accountant.spent_together([one.events for one in group], stated)
    unit, neighbours, covers = first.kind
    return {
        **told,
        "covers": covers,
        "unit": unit,
        "neighbours": neighbours,
        "epsilon": number(spent.epsilon),
        "delta": spent.delta,
        "how": spent.how,
        "upper_bound": spent.upper_bound,
        "notes": notes(group),
    }


def notes(group: Sequence[Released]) -> list[str]:
    """Return sentences on what was added up and what is not in it."""
    said = []
    seeds = [one.path.parent for one in group if one.path.name.startswith("seed-")]
    if len({*seeds}) < len(seeds):
        said.append(capital(SEEDS))
    held = [one.held for one in group]
    if group[0].kind[0] == "client" and any(one != held[0] for one in held):
        said.append(capital(MOVED))
    if any(event.source == "seed" for one in group for event in one.events):
        said.append('Noise that follows from the seed (noise = "seed") protects nobody.')
    said += [f"{one.path}: {CHOSEN}" for one in group if won_a_tuning(one.path)]
    return said + [BARE.format(one.path) for one in group if one.bare]


def _one(run: Released, delta: float | None) -> dict[str, Any]:
    """Return the account of one run by itself."""
    if not run.events:
        epsilon = 0.0 if run.noisy else "infinite"
        return {"run": str(run.path), "epsilon": epsilon, "delta": 0.0, "releases": 0, "trust": None}
    spent = accountant.spent(run.events, run.delta if delta is None else delta)
    releases = sum(event.times for event in run.events)
    own = {"epsilon": number(spent.epsilon), "delta": spent.delta, "releases": releases}
    return {"run": str(run.path), **own, "torn": run.torn, "trust": run.trust}


def _text(epsilon: float | str) -> str:
    return epsilon if isinstance(epsilon, str) else f"{epsilon:.4g}"


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the account as lines for people."""
    out: list[str] = []
    for one in found["accounts"]:
        out += _lines(one)
    if found["sums"] > 1:
        out.append(
            f"{capital(count(found['sums'], 'account'))} side by side: what is on other rows, or protects another unit, is not added up. "
            "Rows count as the same if a file is the same to the byte, or the source has the same name."
        )
    return [*out, "The account knows of no runs that it was not given."]


def _lines(one: Mapping[str, Any]) -> list[str]:
    runs = one["runs"]
    if one["unit"] is None:
        return [f"{runs[0]['run']} {one['how'].removeprefix('It ')}", ""]
    bound = "at most " if one["upper_bound"] else ""
    whole = f"epsilon = {bound}{_text(one['epsilon'])} at delta = {one['delta']:.3g}"
    out = [f"{capital(count(len(runs), 'run'))} on the same rows: {whole}" if len(runs) > 1 else capital(whole)]
    out += [
        f"  {each['run']}: {_text(each['epsilon'])} at {each['delta']:.3g}, {count(each['releases'], 'release')}"
        for each in runs
    ]
    out += [f"  {capital(name)}: {text}." for name, text in about(one["unit"], one["neighbours"], one["covers"])]
    out += [f"  Trust model: {trust}." for trust in dict.fromkeys(each["trust"] for each in runs)]
    out.append(f"  {one['how']}")
    if not isinstance(one["epsilon"], str):
        little = " That promises next to nothing." if odds_text(one["epsilon"]) == odds_text(2 * LITTLE) else ""
        out.append(f"  It lets the odds about the unit shift by {odds_text(one['epsilon'])}.{little}")
    return [*out, *(f"  {note}" for note in one["notes"]), ""]
