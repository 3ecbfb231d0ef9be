"""Notes on epsilon for a reader who has to decide by it: whom it protects, at which delta, whom to trust, what picking rates costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedatlas.privacy.mechanisms import of_tables
from fedatlas.privacy.terms import protects
from fedatlas.recommender.epsilon import epsilons, only_the_run_tells, release_of
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.study.plain import Row
from fedatlas.wording import count, listed, odds_text


def run_tells(basis: Basis, choice: str) -> bool:
    """Return whether the epsilon of a choice is that of a measured run, as it follows from more than the experiment file."""
    plain = _configuration(basis, choice)
    noising = next((one.noise for one in of_tables(plain.get("privacy") or ()) if one.noise is not None), None)
    return noising is not None and only_the_run_tells(noising)


def _configuration(basis: Basis, choice: str) -> Mapping[str, Any]:
    return next((plain for (_, name), plain in basis.configurations.items() if name == choice), {})


def _whom(plain: Mapping[str, Any]) -> str:
    return protects(of_tables(plain.get("privacy") or ())).replace("one client", "one node")


def privacy_notes(basis: Basis, asked: Requirements, answer: Row, *, measure: bool) -> list[str]:
    """Return notes on the epsilon of the choices that an answer names; none if none of them adds noise.

    ``measure``: the choices were also run on the user's data.
    """
    nodes = round(answer["setting"]["nodes"])
    out, whom = list[str](), dict[str, str]()
    for entry in [*answer["top"], *filter(None, [answer["nearest_miss"]])]:
        plain = _configuration(basis, entry["choice"])
        out += _of_choice(plain, entry, nodes, asked.delta, 0 if measure else _tries(basis))
        whom.setdefault(_whom(plain), entry["choice"])
    if not out:
        return []
    if len(kinds := {one: name for one, name in whom.items() if one}) > 1:
        each = listed([f"{one} under {name}" for one, name in kinds.items()])
        out.append(f"Epsilon protects {each}: such figures do not compare, and a limit on epsilon means each of them.")
    if measure:
        out.append(
            "Measuring ran on your rows without secret noise, so the choice itself and its figures are not private."
        )
    elif asked.experiment is not None:
        out.append("Epsilon is that of the final run: your rows were read for this answer without noise.")
    return list(dict.fromkeys(out))


def _of_choice(plain: Mapping[str, Any], entry: Row, nodes: int, delta: float | None, tries: int) -> Iterator[str]:
    """Yield the notes on one candidate."""
    name, rounds = entry["choice"], entry["rounds"]
    used = of_tables(plain.get("privacy") or ())
    event = release_of(plain, nodes, rounds)
    if event is None and any(one.noise is not None for one in used):
        value = entry["predicted"]["epsilon"]["value"]
        known = "is not known" if value is None else f"{value:.3g} is that of the nearest measured run"
        yield (
            f"Epsilon of {name} protects {_whom(plain)}, and {known}: it follows from each node's own rows, and the run of the file "
            "states it."
        )
        yield from (f"Under {name} the server learns {one.learns.server}." for one in used)
    if event is None or event.multiplier == 0:
        return
    at = event.delta if delta is None else delta
    (once,) = epsilons(plain, nodes, [rounds], delta) or [math.nan]
    where = f"at delta = {at:g}" if at else "with no delta"
    yield (
        f"Epsilon {once:.3g} of {name} protects {_whom(plain)}, {where}: the models of the run shift the odds of any guess "
        f"about it by {odds_text(once)}."
    )
    if event.unit == "client" and at >= 1 / nodes:
        yield f"A delta of {at:g} is 1/{nodes:,} or more, which promises nothing to {nodes:,} nodes: set privacy.delta lower."
    yield from (f"Under {name} the server learns {one.learns.server}." for one in used)
    if tries > 1 and (again := epsilons(plain, nodes, [rounds], delta, runs=tries + 1)):
        yield (
            f"The rate in the file was picked in the study and costs no epsilon: trying the study's {count(tries, 'rate')} on your "
            f"rows under the same noise, and then running {name}, makes it {again[0]:.3g}."
        )


def _tries(basis: Basis) -> int:
    """Return how many combinations of rates the study tried in every cell."""
    return int(np.prod([len(values) for values in basis.rates.values()])) if basis.rates else 0
