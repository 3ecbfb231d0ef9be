"""What a run under ``[[privacy]]`` does beside its rounds: who leaves, what rows must not say, what the run released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedatlas.algorithm import Task, Update
from fedatlas.config import ExperimentConfig
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import accountant, ledger, noised_sum
from fedatlas.privacy.ask_protocol import CHAIN
from fedatlas.privacy.mechanisms import LEARNS, Mechanism, NbAFL, SecAgg
from fedatlas.privacy.nbafl import formulas as nbafl
from fedatlas.privacy.protection import Protection
from fedatlas.privacy.secagg.keys import threshold_of, tolerated
from fedatlas.privacy.secagg.secure_sum import PHASES
from fedatlas.record.run_folder import RunFolder
from fedatlas.rng import numpy_stream
from fedatlas.rounds import messages
from fedatlas.setup.assembly import Setup, first_server
from fedatlas.setup.cohort import Drawn
from fedatlas.tree import Tree
from fedatlas.wire import codec

OWN_VIEW = "own-view.jsonl"
WHO_CAME = ("clients", "selected", "bytes_up", "bytes_down", "bytes_peer", "bytes_privacy", "flops")
HIDDEN: Mapping[str, tuple[str, ...]] = {
    "secagg": ("weights", "steps"),
    "paillier": ("steps",),
    "local_dp": ("train_loss", "steps"),
    "nbafl": ("train_loss", "steps"),
    "central_dp": ("train_loss", "weights", "steps", *WHO_CAME),
}
"""Mechanism -> fields of a row that nobody in a federation would know under it, or that would tell what it hides: null in rows."""
SILENT = "nobody stayed to its end"


def leaving(drawn: Drawn, seed: int) -> dict[int, str]:
    """Clients of a round that ``[failures]`` drops, and the phase of a secure sum in which they leave."""
    gone = [k for k in drawn.selected if k not in drawn.round.cohort]
    if drawn.round.units:  # a chain passes over them before it ends
        return {}
    return {k: PHASES[int(numpy_stream(seed, "leaving", drawn.round.number, k).integers(len(PHASES)))] for k in gone}


def parted(how: Protection, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the row without what must stay secret, what a simulation alone may know of it, marked as such)."""
    keys = [key for key in row if any(key in HIDDEN[one.name] for one in how.mechanisms)]
    own = {"simulation_only": True, "round": row["round"], **{key: row[key] for key in keys}}
    return {**row, **dict.fromkeys(keys)}, own


def given_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rounds whose sum was never opened, and why the last of them was not."""
    why = [row["given_up"] for row in rows if row.get("given_up")]
    return {"rounds": len(why), "of": max(len(rows) - 1, 0), "why": why[-1] if why else None}


def summary(how: Protection, setup: Setup, folder: RunFolder) -> dict[str, Any]:
    """The summary's ``privacy``: per mechanism its parameters and who learns what, and what the whole run released, by the ledger."""
    rows, names = folder.rows(), [one.name for one in how.mechanisms]
    found: dict[str, Any] = {
        "mechanisms": [plain(one) for one in how.mechanisms],
        "learns": {name: LEARNS[name]._asdict() for name in names},
    }
    if (mask := how.of(SecAgg)) is not None:
        found["withstood"] = withstood(rows, mask.threshold)
    if how.masks:
        found["given_up"] = given_up(rows)
    if how.secret_cohort:
        found["expected"] = expected(how, setup, len(rows) - 1)
    if not how.noises:
        return found
    events, torn = ledger.read(folder.path / LEDGER)
    counted = ledger.counted(events)
    delta = how.delta()
    spent = accountant.spent(counted, delta) if counted else None
    if how.of(NbAFL) is not None:
        found["accounts"] = accounts(how, rows, setup.sizes, counted)
    return {
        **found,
        "noise": how.noise.source,
        "unit": counted[0].unit if counted else None,
        "delta": delta,
        "epsilon": number(spent.epsilon) if spent else 0.0,
        "how": spent.how if spent else "nothing was released",
        "upper_bound": bool(spent and spent.upper_bound),
        "releases": len(counted),
        "torn": torn,
        "curve": [[at, number(epsilon)] for at, epsilon in accountant.curve(counted, delta)] if counted else [],
    }


def withstood(rows: Sequence[Mapping[str, Any]], threshold: float) -> dict[str, int] | None:
    """Of the round that asked the fewest clients: how many, how many had to stay, how many could have helped a dishonest server.

    None where nobody was asked.
    """
    chains = [[who for who in row["clients"] if isinstance(who, list)] for row in rows]
    asked = [len(units) or len(row["selected"]) for row, units in zip(rows, chains, strict=True)]
    fewest = min((m for m in asked if m), default=0)
    if not fewest:
        return None
    needed = threshold_of(fewest, threshold)
    return {"asked": fewest, "needed": needed, "colluding": tolerated(fewest, needed)}


def expected(how: Protection, setup: Setup, rounds: int) -> dict[str, float]:
    """Bytes of the run as whoever knows its file would expect them: what a client sends and is told, which is no secret, times q K."""
    return {key: size * coming(how, setup.config) * rounds for key, size in visit(setup).items()}


def coming(how: Protection, config: ExperimentConfig) -> float:
    """Clients that are to be expected back in a round."""
    failures, epochs = config.failures, config.local.epochs or 0
    lost = failures.stragglers * (1 - 1 / epochs) if failures.straggler_policy == "drop" and epochs else 0.0
    return how.fraction * how.K * (1 - failures.dropout) * (1 - lost)


def visit(setup: Setup) -> dict[str, int]:
    """Bytes that a client sends and is told in a round whose cohort is secret: they follow from the forms of both messages."""
    task, transform = setup.algorithm.training(), setup.bench.transform
    message = messages(setup.algorithm, first_server(setup), (0,))[0]
    model = Tree(setup.first.params).zeros()
    update: Update = dict.fromkeys(("model", *task.sealing.tracked), model)
    if transform is not None:
        kept = {part: x for part, x in update.items() if part not in task.sealing.tracked}
        memory = transform.memory_init(kept) if transform.memory_init is not None else {}
        update = transform.encode(update, memory, torch.Generator())[0]
    tasks = [task for task in setup.algorithm.tasks.values() if isinstance(task, Task)]
    silent = sum(one.sealing.silent for one in tasks)  # each of which is answered by an empty message
    return {
        "bytes_up": codec.size(update) + silent * codec.size({}),
        "bytes_down": codec.size(dict(message)) + codec.size({CHAIN: False}),
    }


def accounts(
    how: Protection, rows: Sequence[Mapping[str, Any]], sizes: Mapping[int, int], events: Sequence[ledger.Event]
) -> dict[str, Any]:
    """NbAFL's epsilon as the paper states it, and what holds with fewer of its assumptions; of its rounds the one that tells most."""
    setting = how.setting()
    uploads = Counter(k for event in events for k in event.clients)
    drawn = {tuple(zip(row["clients"], row["weights"], strict=True)) for row in rows if row["weights"]}
    each = []
    for shares in map(dict, drawn):
        noise = {"up": nbafl.sigma_up(setting), "down": noised_sum.sigma_down(how, shares, sizes)}
        each.append(
            nbafl.accounts(setting, **noise, uploads=max(uploads.values(), default=0), shares=[*shares.values()])
        )
    if not each:
        return {}
    worst = max(each, key=lambda found: found.broadcasts)
    return {name: number(epsilon) for name, epsilon in worst._asdict().items()}


def number(x: float) -> float | str:
    """As JSON holds it: infinity in a word."""
    return x if x < float("inf") else "infinite"


def plain(one: Mechanism) -> dict[str, Any]:
    """A mechanism for the record."""
    given = one._asdict()
    return {"name": given.pop("name"), **{key: list(x) if isinstance(x, tuple) else x for key, x in given.items()}}
