"""Masks around a configuration: their table, and for how many nodes the configuration is admitted under them.

What is refused is asked of `fedatlas.setup`, never copied from it. That takes torch; so a shipped study keeps the answers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedatlas.errors import FedatlasError
from fedatlas.privacy.mechanisms import MASKS, made, of_table
from fedatlas.study.measurements import Ints
from fedatlas.study.plain import Plain, Row

WIDE = {
    "bits": 26,
    "range": 64.0,
}  # the steps of the defaults across four times their range: a value outside ends a run
FEWEST = 8  # nodes up to which the smallest federation is looked for
MOST = 1 << 14  # nodes up to which the largest one is looked for
NO_MATTER = ("seed", "rounds", "partition", "local")  # tables and keys that no refusal of masks depends on


def mask_table(**keys: Any) -> Plain:
    """Return the table of masks with all its keys written, so that an experiment file states its bits and caps."""
    written = {key: x for key, x in made(MASKS).keys.items() if x is not None}
    return {"name": MASKS, **written, **WIDE, **keys}


def under_masks(plain: Row, **keys: Any) -> Plain:
    """Return a configuration with masks beside its other mechanisms."""
    return {**copy.deepcopy(dict(plain)), "privacy": [*(plain.get("privacy") or ()), mask_table(**keys)]}


def hidden(plain: Row) -> bool:
    """Return whether a mechanism of a configuration already hides single updates."""
    return any(of_table(table).sums_only for table in plain.get("privacy") or ())


def by_server(plain: Row) -> bool:
    """Return whether the server adds noise to what it sees. Over masks it needs more of clients than was measured."""
    return any(one.noise is not None and one.trust == "server" for one in map(of_table, plain.get("privacy") or ()))


def refused(plain: Row, nodes: int) -> str:
    """Return why a configuration cannot run with so many nodes; "" if nothing but its data could refuse it."""
    from fedatlas.config import parse
    from fedatlas.setup.refusals import checked

    try:
        checked(parse({**plain, "partition": {**plain["partition"], "clients": nodes}}))
    except FedatlasError as error:
        return str(error)
    return ""


def admitted(masked: Row) -> tuple[int, int]:
    """Return the fewest and the most nodes with which a configuration may run; (0, 0) if it may with none."""
    low = next((nodes for nodes in range(1, FEWEST + 1) if not refused(masked, nodes)), 0)
    if not low or not refused(masked, MOST):
        return low, MOST if low else 0
    good, bad = low, MOST
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if refused(masked, middle) else (middle, bad)
    return low, good


def admitted_nodes(plains: Mapping[tuple[int, str], Row], settings: int, choices: Iterable[str]) -> Ints:
    """Return (n, J, 2) the fewest and most nodes of each (setting, choice) under masks, its own or those of `mask_table`; 0 for none."""
    places = {name: j for j, name in enumerate(choices)}
    found, known = np.zeros((settings, len(places), 2), np.intp), dict[str, tuple[int, int]]()
    for (i, choice), plain in plains.items():
        masked = plain if hidden(plain) else under_masks(plain)
        if masked is not plain and by_server(plain):
            continue
        if (key := _key(masked)) not in known:
            known[key] = admitted(masked)
        found[i, places[choice]] = known[key]
    return found


def _key(plain: Row) -> str:
    """Return what the refusals of a configuration under masks depend on, besides its nodes."""
    kept = {name: x for name, x in plain.items() if name not in NO_MATTER}
    return json.dumps({**kept, "data": {**kept["data"], "limit": None}}, sort_keys=True)
