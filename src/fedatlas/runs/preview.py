"""Previews of a run: ``--dry-run`` and ``fedatlas partition``. No training result is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from fedatlas.algorithm import Groups, Round
from fedatlas.course.plan import resolve_plan
from fedatlas.course.rounds import STAYS
from fedatlas.course.timing import Judging, trial, trial_of_evaluation, trial_of_setup
from fedatlas.engine.executors import Plan
from fedatlas.errors import ConfigError
from fedatlas.federation.cost import Cost
from fedatlas.files import write_text
from fedatlas.machine import one_thread_an_operator
from fedatlas.record.summary import partition_facts
from fedatlas.reporting.drawing.partition import draw, draw_text
from fedatlas.runs import columns_preview
from fedatlas.runs.alignment_text import expectations
from fedatlas.runs.baselines import examples_alone, wants_baselines
from fedatlas.runs.privacy_preview import of_rows, sentences, spent_protected
from fedatlas.setup.assembly import Setup, judged_rows, set_up, share_out
from fedatlas.setup.checked import Checked
from fedatlas.setup.cohort import Drawn, draw_round
from fedatlas.wire import codec
from fedatlas.wording import bytes_text, count, facts_text, held_text, seconds_text

SHOWN = 40  # largest number of clients whose holdings fit on a screen
DRAWN = 20  # rounds that are drawn to estimate how many clients return


class Shown(NamedTuple):
    """A partition in figures and as text."""

    facts: dict[str, Any]
    text: str
    clients: tuple[np.ndarray, ...]  # training rows of each client


def partition_of(whole: Checked, out: Path | None = None) -> Shown:
    """Return who would hold which rows; ``out``: also draw it as SVG. ConfigError if ``out`` is not an .svg file."""
    if out is not None and out.suffix != ".svg":
        raise ConfigError(f"--out {out}: the picture is an SVG; give a file name that ends with .svg.")
    held = share_out(of_seeds(whole)[0])
    labels, names = held.dataset.train.y.numpy(), held.dataset.class_names
    if out is not None:
        write_text(out, draw(held.partition, labels, names))
    return Shown(partition_facts(held), draw_text(held.partition, labels, names), held.partition.clients)


@one_thread_an_operator()
def dry_run(whole: Checked, baselines: bool | None = None) -> dict[str, Any]:
    """Return who holds what, the bytes of a run and about how long it takes.

    The work of one party of each kind is timed, and its model discarded.

    All seeds are set up, to find refusals; the first represents the others.
    """
    if whole.columns:
        return columns_preview.rehearsed(whole)
    setup, seeds = first_setup(whole), len(of_seeds(whole))
    plan, rounds, algorithm = resolve_plan(setup), setup.config.rounds, setup.algorithm
    before, server = trial_of_setup(setup, plan) if algorithm.prepare is not None else (Cost(), {})
    groups = algorithm.groups(server) if algorithm.groups is not None else None
    drawn = first_rounds(setup, groups)
    returning = sum(d.round.m for d in drawn) / len(drawn)
    parties = [party for d in drawn for party in parties_of(d.round)]
    spent, own, private = looked_at(setup, plan, drawn, parties)
    private |= of_rows(setup.checked.mechanisms)
    share = 1 / len(drawn) if parties else 0.0
    known = returning / len(setup.sizes)  # share of them that also took part in the previous round
    sent = {key: share * sent_by(spent, known, key) for key in ("bytes_up", "bytes_down", "bytes_peer", "messages")}
    sent |= private.get("expected", {})  # of a secret cohort, independent of the cohorts drawn here
    messages = algorithm.card.sends == "messages"
    up, down = (round(sent[key]) if messages else 0 for key in ("bytes_up", "bytes_down"))
    workers, judging = max(plan.workers, 1), trial_of_evaluation(setup, plan)
    judged = judging.rounds + (judging.one * len(setup.sizes) if setup.personal else judging.ends)
    seconds = spent[0][1] if algorithm.card.sends == "rows" else share * sum(one * n for _, one, n in spent) / workers
    peer = between_clients(setup, round(returning)) + round(sent["bytes_peer"])
    begun = sum(cost.bytes_up + cost.bytes_down + cost.bytes_peer for cost in (setup.before, before))
    alone = beside(setup, baselines, drawn[0].round.examples, seconds * own, workers, judging)
    keys = private.get("seconds_keys", 0.0)
    return {
        "seeds": seeds,
        "rounds": rounds,
        "partition": partition_facts(setup),
        "held": draw_text(setup.partition, setup.dataset.train.y.numpy(), setup.dataset.class_names),
        "cohort": private.get("cohort", len(drawn[0].selected)),
        "returning": private.get("returning", returning),
        "sends": algorithm.card.sends,
        "examples_per_round": drawn[0].round.examples,
        "flops_per_round": 3 * setup.first.flops * drawn[0].round.examples,
        "bytes_setup": begun,
        "bytes_up_per_round": up,
        "bytes_down_per_round": down,
        "bytes_peer_per_round": peer,
        "messages_setup": before.messages,
        "messages_per_round": sent["messages"],
        "bytes_total": seeds * (begun + (up + down + peer) * rounds + (setup.bench.raw_bytes if rounds else 0)),
        "seconds_setup": sum(before.seconds.values()) / workers,
        "seconds_evaluation": judged,
        "seconds_baselines": alone,
        "seconds_about": seeds * (sum(before.seconds.values()) / workers + seconds * rounds + judged + alone + keys),
        "plan": plan.plain(),
        "algorithm_facts": dict(setup.held.algorithm_facts),
        **({"privacy": private} if private else {}),
        **on_cluster(setup, plan, seconds, returning, sent["bytes_up"]),
        "models": setup.owned(),
        "read": setup.dataset.facts.get("read", ""),
        "notices": notices_of(setup, returning),
    }


def notices_of(setup: Setup, returning: float) -> list[str]:
    """Return the notices of a run; ``returning``: clients in a round."""
    if returning or setup.config.failures.dropout >= 1:  # a dropout of 1 has its own notice
        return list(setup.notices)
    nobody = "No client returns in the first rounds: the model would not change (failures.dropout, cohort)."
    return [*setup.notices, nobody]


def on_cluster(setup: Setup, plan: Plan, seconds: float, clients: float, up: float) -> dict[str, Any]:
    """Return {"cluster": what the experiment's would bring}; {} if it names none.

    ``seconds``, ``clients``, ``up``: of a round on this machine, with the bytes that its clients send.
    """
    address = setup.config.engine.cluster
    if address is None:
        return {}
    from fedatlas.cluster.estimate import brought  # Ray is imported for no other run
    from fedatlas.cluster.nodes import listed_nodes

    if plan.step == "stacked":
        return {"cluster": {"said": STAYS}}
    keeps = any(task.stateful for task in setup.algorithm.tasks.values())
    carried = up * (3 if keeps else 1)  # what a client keeps is about as large, and travels both ways
    work = seconds * max(plan.workers, 1)
    return {"cluster": brought(listed_nodes(address), setup.config.rounds, work, seconds, clients, carried, plan.chunk)}


def of_seeds(whole: Checked) -> list[Checked]:
    """Return the experiment once for each of its seeds."""
    return [whole.with_seed(seed) for seed in whole.config.seeds or (whole.config.seed,)]


def first_setup(whole: Checked) -> Setup:
    """Set up all seeds, to find refusals, and return the first."""
    first, *others = of_seeds(whole)
    for one in others:
        set_up(one)
    return set_up(first)


def first_rounds(setup: Setup, groups: Groups | None) -> list[Drawn]:
    """Return the first rounds as they would be drawn."""
    count = min(max(setup.config.rounds, 1), DRAWN)
    return [draw_round(setup.config, setup.sizes, setup.seed, t, groups) for t in range(1, count + 1)]


def looked_at(
    setup: Setup, plan: Plan, drawn: Sequence[Drawn], parties: list[tuple[int, ...]]
) -> tuple[list[tuple[list[Cost], float, int]], float, dict[str, Any]]:
    """Return the costs as in `spent_by`, the share of seconds spent on the work itself, and facts about protection."""
    if setup.bench.protection is None:
        somebody = [tuple(k for k, n in setup.sizes.items() if n)[:1]]
        return spent_by(setup, plan, parties or somebody), 1.0, {}
    costs, seconds, work, private = spent_protected(setup, plan, drawn)
    return [(costs, seconds, len(parties))], work / seconds, private


def sent_by(spent: Sequence[tuple[Sequence[Cost], float, int]], known: float, key: str) -> float:
    """Return the bytes of all parties if a share ``known`` of them also took part in the previous round."""
    return sum(float((1 - known) * getattr(a, key) + known * getattr(b, key)) * n for (a, b), _, n in spent)


def beside(setup: Setup, asked: bool | None, examples: int, seconds: float, workers: int, judging: Judging) -> float:
    """Estimate the seconds that the run's baselines take, at the pace of its rounds; 0 if none are trained."""
    config, rows = setup.config, list(setup.sizes.values())
    common = judged_rows(setup).n
    tested = [len(setup.held_out.get(k, ())) or common for k in setup.sizes]
    if not examples or not wants_baselines(config, rows, sum(tested), setup.first.flops, asked):
        return 0.0
    trained = config.rounds * seconds * (workers + examples_alone(config, rows) / examples)
    each = judging.one / max(common, 1)  # per row; every client's model is judged twice, in its row and at the end
    return trained + 2 * sum(tested) * each + 3 * judging.one + 3 * judging.ends


def spent_by(setup: Setup, plan: Plan, parties: list[tuple[int, ...]]) -> list[tuple[list[Cost], float, int]]:
    """Time one party of each architecture by itself.

    Returns, for each, the costs of a first and a second round, the seconds, and how many parties are like it.
    """
    alike: dict[str, list[tuple[int, ...]]] = {}
    for party in parties:
        alike.setdefault(setup.bench.architecture(party[0]), []).append(party)
    return [(*trial(setup, plan._replace(workers=1), some[0]), len(some)) for some in alike.values()]


def parties_of(round: Round) -> list[tuple[int, ...]]:
    """Return the units that work independently in a round: its clients, or its groups if groups are drawn."""
    if round.units:
        return [unit.members for unit in round.units if unit.members]
    return [(k,) for k in round.cohort]


def between_clients(setup: Setup, m: int) -> int:
    """Estimate the bytes that m clients send each other in a round: a model for each message between two of them."""
    K = len(setup.sizes)
    share = m * (m - 1) / max(K * (K - 1), 1)
    first = setup.first
    parts = {"model": first.params, **({"buffers": first.buffers} if first.buffers else {})}
    messages = float(setup.held.algorithm_facts.get("messages", 0))
    return round(messages * share * codec.size(parts))


def show(found: dict[str, Any]) -> None:
    """Print the result of `dry_run`."""
    console = Console(highlight=False, soft_wrap=True)
    if "parties" in found or "owners" in found:
        console.print("\n".join(expectations(found)), markup=False)
        return
    sizes = found["partition"]["sizes"]
    if len(sizes) <= SHOWN:
        console.print(found["held"], markup=False)
    else:
        console.print(f"{count(len(sizes), 'client')} hold {held_text(sizes)}.")
    console.print(
        f"{count(found['cohort'], 'client')} per round."
        if isinstance(found["cohort"], int)
        else f"{found['cohort']:.3g} clients per round are expected."
    )
    if found["read"]:
        console.print(f"Read: {found['read']}.", markup=False)
    for name, clients in found["models"].items():
        console.print(f"Model {name}: clients {', '.join(map(str, clients))}.", markup=False)
    up, down, total = (bytes_text(found[k]) for k in ("bytes_up_per_round", "bytes_down_per_round", "bytes_total"))
    if found["returning"] < found["cohort"]:
        console.print(f"Of these, {found['returning']:.3g} return on average.")
    between = found["bytes_peer_per_round"]
    peer = f", about {bytes_text(between)} between clients" if between else ""
    of_seeds = f" of {found['seeds']} seeds" if found["seeds"] > 1 else ""
    said = {
        "messages": f"A round sends {up} up and {down} down{peer}, all rounds{of_seeds} {total}.",
        "rows": f"All rows are sent to the server once: {total}.",
        "nothing": "Nothing is sent.",
    }
    if found["bytes_setup"] or found["seconds_setup"]:
        spent = f" and takes about {seconds_text(found['seconds_setup'])}" if found["seconds_setup"] else ""
        console.print(f"The set-up before round 1 sends {bytes_text(found['bytes_setup'])}{spent}.")
    console.print(said[found["sends"]])
    for sentence in sentences(found["privacy"], found["rounds"]) if "privacy" in found else ():
        console.print(sentence, markup=False)
    if found["algorithm_facts"]:
        console.print(f"About the algorithm: {facts_text(found['algorithm_facts'])}.")
    about, judging = (seconds_text(found[k]) for k in ("seconds_about", "seconds_evaluation"))
    alone = f" and {seconds_text(found['seconds_baselines'])} for the baselines" if found["seconds_baselines"] else ""
    seeds = found["seeds"]
    each = f"for all {seeds} seeds; of each seed's time" if seeds > 1 else "in all, of which"
    console.print(f"About {about} {each} {judging} go to evaluation{alone} ({found['plan']['reason']}).")
    if elsewhere := found.get("cluster"):
        console.print(elsewhere["said"], markup=False)
    for notice in found["notices"]:
        console.print(f"Notice: {notice}", markup=False)
    console.print("Nothing was trained.")
