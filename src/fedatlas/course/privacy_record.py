"""Records of a run under ``[[privacy]]``: clients that leave, fields that rows must not show, and the privacy spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedatlas.algorithm import Task, Update
from fedatlas.config import ExperimentConfig
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.ask_protocol import CHAIN
from fedatlas.privacy.mechanism import OWN_FIGURES, Mechanism, Protection, entered, number, on_rows
from fedatlas.privacy.protocol import Doing
from fedatlas.record.run_folder import RunFolder
from fedatlas.rng import numpy_stream
from fedatlas.rounds import messages
from fedatlas.setup.assembly import Setup, first_server
from fedatlas.setup.cohort import Drawn
from fedatlas.setup.consortium import Consortium
from fedatlas.tree import Tree
from fedatlas.wire import codec

OWN_VIEW = "own-view.jsonl"
SILENT = "no client stayed to its end"


def leaving(how: Protection, drawn: Drawn, seed: int) -> dict[int, str]:
    """Map the clients of a round that ``[failures]`` drops to the phase of the secure sum in which they leave."""
    if how.protocol is None or drawn.round.units:  # a chain skips them before it ends
        return {}
    gone, phases = [k for k in drawn.selected if k not in drawn.round.cohort], how.protocol.leaves
    return {k: phases[int(numpy_stream(seed, "leaving", drawn.round.number, k).integers(len(phases)))] for k in gone}


def parted(how: Protection, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a row into its public part and the fields that only a simulation may know, which are marked as such."""
    keys = [key for key in row if any(key in one.hides for one in how.mechanisms)]
    own = {"simulation_only": True, "round": row["round"], **{key: row[key] for key in keys}}
    return {**row, **dict.fromkeys(keys)}, own


def given_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the rounds whose sum was never opened, and give the reason for the last one."""
    why = [row["given_up"] for row in rows if row.get("given_up")]
    return {"rounds": len(why), "of": max(len(rows) - 1, 0), "why": why[-1] if why else None}


def summary(setup: Setup, folder: RunFolder) -> dict[str, Any]:
    """Return the summary's ``privacy``: the parameters of each mechanism, what each role learns, and the privacy spent.

    The privacy spent is computed from the ledger's counted releases.
    """
    how, changing = setup.bench.protection, on_rows(setup.checked.mechanisms)
    every = (*changing, *(how.mechanisms if how is not None else ()))
    works = [(one, one.work().row_figures) for one in changing]
    figures = {one.name: of(setup.held.pairs.get(one.name, ())) for one, of in works if of is not None}
    rounds, accounts = of_rounds(how, setup, folder) if how is not None else {}, of_rows(changing, folder)
    beside = {"beside": [*accounts]} if accounts and "epsilon" in rounds else {}
    return {**of_changed(every, figures, accounts), **rounds, **beside}


def of_changed(
    mechanisms: Sequence[Mechanism], figures: Mapping[str, Mapping[str, Any]], accounts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the part of the summary's ``privacy`` about mechanisms and changed rows: by mechanism, its figures and its account."""
    found: dict[str, Any] = {
        "mechanisms": [plain(one) for one in mechanisms],
        "learns": {one.name: one.learns._asdict() for one in mechanisms},
    }
    if any(one.keys.get("noise") == "seed" for one in on_rows(mechanisms)):
        found["noise"] = "seed"
    found |= {name: dict(one) for name, one in figures.items()}
    for name, account in accounts.items():
        found[name] = {**found.get(name, {}), **account}
        found |= {key: x for key, x in account.items() if key != "covers"}  # that of the rounds replaces it
    return found


def of_labels(held: Consortium, folder: RunFolder) -> dict[str, Any]:
    """Return ``privacy`` of a run over columns whose labels have noise; {} without noise."""
    changing = on_rows(held.checked.mechanisms)
    if not changing:
        return {}
    return {"privacy": of_changed(changing, held.label_figures, of_rows(changing, folder))}


def of_rows(changing: Sequence[Mechanism], folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the accounts of changed rows by mechanism, from the ledger's lines (`rows_priced`)."""
    due = entered(changing)
    return rows_priced(changing, ledger.read(folder.path / LEDGER).events if due else ())


def rows_priced(changing: Sequence[Mechanism], events: Sequence[ledger.Event]) -> dict[str, dict[str, Any]]:
    """Return the account of each mechanism whose changed rows are a release, from its lines among ``events``.

    ``covers``: what the epsilon is about, if not the whole unit.
    """
    found = {}
    for one in (one for one in changing if one.entered is not None):
        own = [event for event in events if event.mechanism == one.name]
        found[one.name] = {
            "noise": own[0].source if own else "os",
            **priced(own, 0.0, "nothing was released"),
            "releases": len(own),
            "torn": 0,
            "curve": [],
            "covers": one.words.covers,
        }
    return found


def of_rounds(how: Protection, setup: Setup, folder: RunFolder) -> dict[str, Any]:
    """Return the part of the summary's ``privacy`` that belongs to mechanisms that act in rounds."""
    rows = folder.rows()
    events, torn = ledger.read(folder.path / LEDGER) if how.noising is not None else ledger.Ledger((), 0)
    acting = {one.name for one in how.mechanisms}
    counted = ledger.counted([event for event in events if event.mechanism in acting])
    found: dict[str, Any] = {}
    for one in how.mechanisms:
        if one.figures is not None:
            found |= one.figures(how, rows, setup.sizes, counted)
    if how.masks:
        found["given_up"] = given_up(rows)
    if how.closed:
        found["simulation_only"] = OWN_FIGURES
    if how.secret_cohort:
        found["expected"] = expected(how, setup, len(rows) - 1)
    if how.noising is None:
        return found
    curve = accountant.curve(counted, how.delta()) if counted else ()
    return {
        **found,
        "noise": how.noise.source,
        **priced(counted, how.delta(), "nothing was released"),
        **too_large(setup, how, counted),
        "releases": sum(event.times for event in counted),
        "torn": torn,
        "curve": [[at, number(epsilon)] for at, epsilon in curve],
    }


def priced(events: Sequence[ledger.Event], delta: float, nothing: str) -> dict[str, Any]:
    """Return the joint privacy cost of several releases and how it was found. ``nothing`` is the text for an empty list."""
    spent = accountant.spent(events, delta) if events else accountant.Spent(0.0, delta, nothing)
    found = {"epsilon": number(spent.epsilon), "how": spent.how, "upper_bound": spent.upper_bound}
    kind = (
        {"unit": events[0].unit, "neighbours": events[0].neighbours} if events else {"unit": None, "neighbours": None}
    )
    return {**kind, "delta": delta, **found}


def too_large(setup: Setup, how: Protection, events: Sequence[ledger.Event]) -> dict[str, int]:
    """Return ``delta_too_large_for`` (the number protected) if the file's delta is 1 over that number or more; else {}."""
    written = any("delta" in table.parameters() for table in setup.config.privacy)
    n = how.K if events and events[0].unit == "client" else sum(setup.sizes.values())
    return {"delta_too_large_for": n} if written and events and n * how.delta() >= 1 else {}


def expected(how: Protection, setup: Setup, rounds: int) -> dict[str, float]:
    """Return the bytes that a reader of the experiment's file would expect from the whole run.

    This is a client's traffic per round, which is not secret, times the expected clients and the rounds.
    """
    return {key: size * coming(how, setup.config) * rounds for key, size in visit(how, setup).items()}


def coming(how: Protection, config: ExperimentConfig) -> float:
    """Return how many clients are expected to return in a round: q K minus those that fail or are dropped as late."""
    failures, epochs = config.failures, config.local.epochs or 0
    lost = failures.stragglers * (1 - 1 / epochs) if failures.straggler_policy == "drop" and epochs else 0.0
    return how.fraction * how.K * (1 - failures.dropout) * (1 - lost)


def visit(how: Protection, setup: Setup) -> dict[str, int]:
    """Return a client's traffic in bytes in a round with a secret cohort.

    It follows only from the shapes of the messages.
    """
    task, transform = setup.algorithm.training(), setup.bench.transform
    message = messages(setup.algorithm, first_server(setup), (0,))[0]
    model = Tree(setup.first.params).zeros()
    update: Update = dict.fromkeys(("model", *task.sealing.tracked), model)
    if transform is not None:
        kept = {part: x for part, x in update.items() if part not in task.sealing.tracked}
        memory = transform.memory_init(kept) if transform.memory_init is not None else {}
        update = transform.encode(update, memory, torch.Generator())[0]
    tasks = [task for task in setup.algorithm.tasks.values() if isinstance(task, Task)]
    silent = sum(one.sealing.silent for one in tasks)  # each is answered with an empty message
    word = how.told({})
    for work in how.works:
        own = {"model": model}, how, Doing(0, 1, "train", 0, 1, word=word)
        update = {**update, **({} if work.beside is None else work.beside(*own))}
    return {
        "bytes_up": codec.size(update) + silent * codec.size({}),
        "bytes_down": codec.size(dict(message)) + codec.size({**word, CHAIN: False}),
    }


def plain(one: Mechanism) -> dict[str, Any]:
    """Return a mechanism for the record."""
    return {"name": one.name, **{key: list(x) if isinstance(x, tuple) else x for key, x in one.keys.items()}}
