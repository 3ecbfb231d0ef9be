"""The gain of a run from a cluster: its round there beside a round here, from the measured costs of calls and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedatlas.cluster.nodes import Node
from fedatlas.wording import count, seconds_text

START = 10.0  # seconds until nodes have started, read the data and shown that they compute alike
CALL = 0.003  # processor seconds of a client's call, on its node
BYTE = 2e-9  # processor seconds per byte that a client sends or keeps, on its node
DRIVER_CALL, DRIVER_BYTE = 0.001, 0.7e-9  # the same at the driver, which does one after another
"""From `benchmarks/cluster.py` on one machine; a network adds its own time (docs/cluster.md)."""


LIMITS = {
    "nodes": "",
    "driver": " The driver, which adds up the updates, is the limit there: more nodes bring nothing.",
    "chunk": " Not all cores work: engine.chunk holds fewer clients at once than there are cores.",
}


def brought(
    nodes: Sequence[Node], rounds: int, work: float, here: float, clients: float, carried: float, held: int
) -> dict[str, Any]:
    """Return what the nodes would bring.

    ``work``: seconds of all clients of a round on one core; ``here``: seconds of a round on this machine; ``clients``: of a
    round; ``carried``: bytes of a round that clients send or keep; ``held``: clients in hand at once (`Plan.chunk`).
    """
    cores = sum(node.cores for node in nodes)
    shared = (work + CALL * clients + BYTE * carried) / max(min(cores, held), 1)
    there = max(shared, DRIVER_CALL * clients + DRIVER_BYTE * carried)
    found: dict[str, Any] = {
        "nodes": len(nodes),
        "cores": cores,
        "seconds_round_here": here,
        "seconds_round_there": there,
    }
    saved, limit = rounds * (here - there) - START, "driver" if there > shared else "chunk" if held < cores else "nodes"
    found |= {"seconds_start": START, "seconds_saved": saved, "limit": limit}
    return {**found, "said": sentence(found)}


def sentence(found: dict[str, Any]) -> str:
    """Return what `brought` found in words."""
    here, there = (seconds_text(found[f"seconds_round_{where}"]) for where in ("here", "there"))
    what = f"A round takes about {here} here and {there} on {count(found['nodes'], 'node')} with {count(found['cores'], 'core')}"
    if found["seconds_saved"] <= 0:
        return f"{what}; the start takes about {seconds_text(found['seconds_start'])}: the cluster brings nothing to this run."
    return f"{what}: the cluster saves about {seconds_text(found['seconds_saved'])} of the whole run.{LIMITS[found['limit']]}"
