"""What a run under ``[[privacy]]`` does beside its rounds: who leaves, what rows must not say, what the run released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.mechanisms import Mechanism
from fedatlas.privacy.protection import Protection
from fedatlas.privacy.secure_sum import PHASES
from fedatlas.record.run_folder import RunFolder
from fedatlas.rng import numpy_stream
from fedatlas.setup.cohort import Drawn

OWN_VIEW = "own-view.jsonl"
HIDDEN = ("train_loss", "clients", "selected", "weights", "steps", "bytes_up", "bytes_down", "bytes_peer", "flops")
"""Fields of a row that tell who came, or how many, or what was not noised: null where the cohort is secret."""


def leaving(drawn: Drawn, seed: int) -> dict[int, str]:
    """Clients of a round that ``[failures]`` drops, and the phase of a secure sum in which they leave."""
    gone = [k for k in drawn.selected if k not in drawn.round.cohort]
    if drawn.round.units:  # a chain passes over them before it ends
        return {}
    return {k: PHASES[int(numpy_stream(seed, "leaving", drawn.round.number, k).integers(len(PHASES)))] for k in gone}


def parted(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the row without what must stay secret, what a simulation alone may know of it)."""
    own = {"round": row["round"], **{key: row[key] for key in HIDDEN}}
    return {**row, **dict.fromkeys(HIDDEN)}, own


def summary(how: Protection, folder: RunFolder) -> dict[str, Any]:
    """The summary's ``privacy``: per mechanism its parameters, and what the whole run released, by the ledger."""
    found: dict[str, Any] = {"mechanisms": [plain(one) for one in how.mechanisms]}
    if not how.noises:
        return found
    events, torn = ledger.read(folder.path / LEDGER)
    counted = ledger.counted(events)
    delta = how.delta()
    spent = accountant.spent(counted, delta) if counted else None
    return {
        **found,
        "noise": how.noise.source,
        "delta": delta,
        "epsilon": number(spent.epsilon) if spent else 0.0,
        "how": spent.how if spent else "nothing was released",
        "upper_bound": bool(spent and spent.upper_bound),
        "releases": len(counted),
        "torn": torn,
        "curve": [[at, number(epsilon)] for at, epsilon in accountant.curve(counted, delta)] if counted else [],
    }


def number(x: float) -> float | str:
    """As JSON holds it: infinity in a word."""
    return x if x < float("inf") else "infinite"


def plain(one: Mechanism) -> dict[str, Any]:
    """A mechanism for the record."""
    given = one._asdict()
    return {"name": given.pop("name"), **{key: list(x) if isinstance(x, tuple) else x for key, x in given.items()}}
