"""Looking before running: ``--dry-run`` and ``fedatlas partition``. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from fedatlas.data.partition import draw, draw_text
from fedatlas.deploy import codec
from fedatlas.experiment.cohort import draw_round
from fedatlas.experiment.config import ExperimentConfig
from fedatlas.experiment.files import write_text
from fedatlas.experiment.report.words import bytes_text, facts_text, seconds_text
from fedatlas.experiment.resolve import resolve_plan
from fedatlas.experiment.setup import Setup, set_up
from fedatlas.experiment.summary import partition_facts
from fedatlas.experiment.trial import trial

SHOWN = 40  # clients whose holdings fit on a screen


class Shown(NamedTuple):
    """A partition in figures and as text."""

    facts: dict[str, Any]
    text: str


def partition_of(config: ExperimentConfig, out: Path | None = None) -> Shown:
    """Who would hold what; ``out``: also draw it as SVG."""
    setup = set_up(config, (config.seeds or (config.seed,))[0])
    labels, names = setup.dataset.y_train.numpy(), setup.dataset.class_names
    if out is not None:
        write_text(out, draw(setup.partition, labels, names))
    return Shown(partition_facts(setup), draw_text(setup.partition, labels, names))


def dry_run(config: ExperimentConfig) -> dict[str, Any]:
    """Who holds what, how many bytes, about how long. One client's work is timed, from a model that is thrown away."""
    setup = set_up(config, (config.seeds or (config.seed,))[0])
    plan = resolve_plan(setup)
    drawn = draw_round(setup.config, setup.sizes, setup.seed, 1)
    cost, one = trial(setup, plan._replace(workers=1), drawn.round.cohort[:1])
    seconds = one * max(drawn.round.m, 1) / max(plan.workers, 1)
    m = max(drawn.round.m, 1)
    peer = between_clients(setup, m)
    return {
        "partition": partition_facts(setup),
        "held": draw_text(setup.partition, setup.dataset.y_train.numpy(), setup.dataset.class_names),
        "cohort": m,
        "examples_per_round": drawn.round.examples,
        "bytes_up_per_round": cost.bytes_up * m,
        "bytes_down_per_round": cost.bytes_down * m,
        "bytes_peer_per_round": peer,
        "bytes_total": ((cost.bytes_up + cost.bytes_down) * m + peer) * setup.config.rounds,
        "seconds_about": seconds * setup.config.rounds,
        "plan": plan.plain(),
        "algorithm_facts": dict(setup.algorithm_facts),
        "notices": list(setup.notices),
    }


def between_clients(setup: Setup, m: int) -> int:
    """About how many bytes m of the clients send each other in a round: the models of the messages whose ends both take part."""
    share = m / len(setup.sizes)
    parts = {"model": setup.params, **({"buffers": setup.buffers} if setup.buffers else {})}
    messages = float(setup.algorithm_facts.get("messages", 0))
    return round(messages * share**2 * codec.size(parts))


def show(found: dict[str, Any]) -> None:
    """`dry_run` for people."""
    console = Console(highlight=False, soft_wrap=True)
    sizes = found["partition"]["sizes"]
    if len(sizes) <= SHOWN:
        console.print(found["held"], markup=False)
    console.print(
        f"{len(sizes)} clients hold {min(sizes):,} to {max(sizes):,} rows; {found['cohort']} take part in a round."
    )
    up, down, total = (bytes_text(found[k]) for k in ("bytes_up_per_round", "bytes_down_per_round", "bytes_total"))
    peer = (
        f", about {bytes_text(found['bytes_peer_per_round'])} between clients" if found["bytes_peer_per_round"] else ""
    )
    console.print(f"A round sends {up} up and {down} down{peer}, all rounds {total}.")
    if found["algorithm_facts"]:
        console.print(f"The algorithm's own: {facts_text(found['algorithm_facts'])}.")
    console.print(f"About {seconds_text(found['seconds_about'])} of training ({found['plan']['reason']}).")
    for notice in found["notices"]:
        console.print(f"Notice: {notice}")
    console.print("Nothing was trained.")
