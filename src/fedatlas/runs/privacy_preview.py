"""The dry run under ``[[privacy]]``: bytes with the protocols' messages, seconds for keys, epsilon of all rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedatlas.course.privacy_record import coming, expected, priced, rows_priced
from fedatlas.course.protocol_trial import Rehearsed, rehearse
from fedatlas.engine.executors import Plan
from fedatlas.federation.cost import KEYS, Cost
from fedatlas.privacy.mechanism import PHASES, Mechanism, Protection, Trial, entered, on_rows
from fedatlas.privacy.mechanisms import made
from fedatlas.setup.assembly import Setup
from fedatlas.setup.cohort import Drawn
from fedatlas.setup.privacy_refusals import fewest_of
from fedatlas.wording import bytes_text, capital, count, seconds_text, worthless

NOTICED = 0.005  # share of the bytes that protection may add without being mentioned


class PartyCost(NamedTuple):
    """A party's cost in a first and a second round, the seconds of the second, and facts about protection."""

    costs: list[Cost]
    seconds: float
    work: float  # of these seconds, those without protection
    said: dict[str, Any]


def spent_protected(setup: Setup, plan: Plan, drawn: Sequence[Drawn]) -> PartyCost:
    """Rehearse two rounds of one cohort, and divide their costs evenly among its parties.

    It is the cohort among those drawn whose size is nearest to their mean.
    """
    how = setup.bench.protection
    assert how is not None
    mean = sum(len(d.selected) for d in drawn) / len(drawn)
    usual = min(drawn, key=lambda d: abs(len(d.selected) - mean))
    everybody = tuple(k for k, n in setup.sizes.items() if n)
    fewest = max(
        (fewest_of(one) for one in setup.checked.mechanisms), default=1
    )  # a smaller cohort is given up, and costs nothing
    cohort = usual.selected if len(usual.selected) >= fewest else everybody[:fewest]
    asked = usual.round if usual.round.units else usual.round._replace(cohort=cohort)
    asked = asked._replace(sizes={k: setup.sizes[k] for k in everybody})
    found = rehearse(setup, plan, asked)
    parties = len([unit for unit in asked.units if unit.members]) or len(asked.cohort)
    costs = [shared(cost, parties) for cost in found.costs]
    seconds = costs[1].seconds
    work = sum(s for phase, s in seconds.items() if phase not in PHASES)
    return PartyCost(costs, sum(seconds.values()), work, said(setup, how, found, parties))


def shared(cost: Cost, parties: int) -> Cost:
    """Return one party's share of a round's cost, in whole bytes."""
    keys = ("bytes_up", "bytes_down", "bytes_peer", "bytes_privacy")
    seconds = {phase: s / parties for phase, s in cost.seconds.items()}
    whole = {key: round(getattr(cost, key) / parties) for key in keys}
    return cost._replace(**whole, messages=cost.messages / parties, seconds=seconds)


def said(setup: Setup, how: Protection, found: Rehearsed, parties: int) -> dict[str, Any]:
    """Return the entry ``privacy`` of the dry run."""
    second = found.costs[1]
    out: dict[str, Any] = {
        "mechanisms": [one.name for one in how.mechanisms],
        "parties": parties,
        "bytes_more_per_round": second.bytes_privacy,
        "bytes_per_round": second.bytes_up + second.bytes_down + second.bytes_peer,
        "seconds_by_phase": dict(second.seconds),
        "seconds_keys": found.seconds_keys,
        "secret_cohort": how.secret_cohort,
    }
    if how.fraction < 1 and setup.algorithm.groups is None:  # a few draws say little of their mean
        out |= {"cohort": how.fraction * how.K, "returning": coming(how, setup.config)}
    if how.secret_cohort:  # the cohorts of these rounds are as secret as those of the run
        out["expected"] = {
            **expected(how, setup, 1),
            "messages": out.get("cohort", parties) + out.get("returning", parties),
        }
    if found.refused:
        out["refused"] = found.refused
    trial = Trial(parties, max(setup.sizes.values()), found.counted)
    for one in how.mechanisms:
        out |= {} if one.preview is None else one.preview(trial)
    return (
        out
        if how.noising is None
        else {**out, **planned(how.during(setup.algorithm.training(), {}), setup.config.rounds)}
    )


def planned(how: Protection, rounds: int) -> dict[str, Any]:
    """Return epsilon of all rounds; of local noise, for a client that takes part in each of them.

    Of noise inside local steps it is the largest of all clients, since their rows differ.
    """
    found = priced(how.planned(rounds), how.delta(), "No round, no release.")
    bound = how.noising is not None and how.noising.planned is not None
    return {**found, "upper_bound": found["upper_bound"] or bound}


def of_rows(mechanisms: Sequence[Mechanism], seeds: int = 1) -> dict[str, Any]:
    """Return ``rows``: the account of each mechanism that changes rows before round 1, by name; {} if none states an epsilon.

    ``seeds``: runs on the same rows, each of which changes them again; the account is that of all.
    """
    changing = on_rows(mechanisms)
    accounts = rows_priced(changing, entered(changing) * seeds)
    return {"rows": accounts} if accounts else {}


def sentences(found: Mapping[str, Any], rounds: int) -> list[str]:
    """Return these facts as sentences."""
    out = of_traffic(found) if "mechanisms" in found else []
    out += of_changed(found)
    if "epsilon" in found:
        out.append(f"{count(rounds, 'round')} will cost {epsilon_text(found)}. {found['how']}")
        out += [capital(warned)] if (warned := worthless(found)) else []
    return out


def of_changed(found: Mapping[str, Any]) -> list[str]:
    """Return sentences on the accounts of changed rows."""
    out = []
    for name, account in found.get("rows", {}).items():
        seeds = account["releases"]
        often = "once" if seeds == 1 else f"once in each of {seeds} seeds, together"
        out.append(
            f"Under {name} the changed rows will cost {epsilon_text(account)}, {often}, for {account['covers'] or 'one row'}. "
            f"{account['how']}"
        )
    return out


def epsilon_text(account: Mapping[str, Any]) -> str:
    """Return the epsilon and the delta of an account."""
    epsilon = account["epsilon"] if isinstance(account["epsilon"], str) else f"{account['epsilon']:.4g}"
    bound = "at most " if account["upper_bound"] else ""
    return f"{bound}epsilon = {epsilon} at delta = {account['delta']:.3g}"


def of_traffic(found: Mapping[str, Any]) -> list[str]:
    """Return sentences on the bytes and keys of mechanisms that act in rounds."""
    out = [f"The run would end in its first rounds: {found['refused']}"] if found.get("refused") else []
    names, more, whole = " and ".join(found["mechanisms"]), found["bytes_more_per_round"], found["bytes_per_round"]
    if more > NOTICED * whole:
        exchanged = found["seconds_by_phase"].get(KEYS, 0.0)
        each = f" and {seconds_text(exchanged)} in each" if exchanged else ""
        made_in = found["seconds_keys"]
        keys = f"; keys take about {seconds_text(made_in)} before round 1{each}" if made_in else ""
        rest = f"{whole / (whole - more):.3g} times the bytes without it" if whole > more else "all that is sent"
        said_of = f"with {count(found['parties'], 'client')} per round, {bytes_text(more)} of them for protection"
        out.append(f"Under {names} this is {rest} ({said_of}){keys}.")
    else:
        out.append(f"Under {names} this is as many bytes as without it, to within {NOTICED:.1%}.")
    if found["secret_cohort"]:
        out.append(
            "How many clients take part stays secret: bytes are expected values, and the run does not record its own."
        )
    return out + [line for name in found["mechanisms"] for line in made(name).words.preview(found)]
