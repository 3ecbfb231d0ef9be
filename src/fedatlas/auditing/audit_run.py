"""``fedatlas audit RUN``: tries, counts and accounts of a finished run, the verdict, ``audit.json`` and ``release.html``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.auditing.canary_scores import scored
from fedatlas.auditing.cells import MIN_CELL, cells, small
from fedatlas.auditing.lines_to_add import fitting, offered
from fedatlas.auditing.one_run import lower_bound
from fedatlas.auditing.release_page import render
from fedatlas.auditing.tries import try_all
from fedatlas.auditing.verdict import CONFIDENCE, VIOLATED, Account, Found, UntriedAttack, Verdict, judge
from fedatlas.data.cells import read_as
from fedatlas.errors import ConfigError
from fedatlas.federation.secrets import LEDGER
from fedatlas.files import write_text
from fedatlas.leakage.attack_run import rows_held
from fedatlas.privacy import accountant, ledger
from fedatlas.record.run_folder import AUDIT, RELEASE, RunFolder
from fedatlas.setup.canaries import check_canaries
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked

CANARIES = "canaries"
COLUMNS = "the parties of this run hold columns, which have no canaries in this version"
FINER = (
    3  # m times the delta of a comparison is this part of its error: at a smaller delta the stated epsilon is larger
)
NO_CANARIES = "no canaries were drawn before the run, so there is no lower bound on epsilon"
NO_EPSILON = "the run states no epsilon, such as where its noise is 0, so its canaries have nothing to contradict"
OTHER_UNIT = "the canaries of this run are of another unit than the epsilon per {}"
DECLARE = '[audit]\ncanaries = {many}\nunit = "{unit}"'
MANY = 1000


class Audited(NamedTuple):
    """An audit: its verdict, and everything that audit.json holds."""

    verdict: Verdict
    record: Mapping[str, Any]
    page: Path

    @property
    def violated(self) -> bool:
        """Whether the run breaks what it states, or its page would tell of too few rows."""
        return self.verdict.name == VIOLATED


def audit(path: str | Path, said: Callable[[str], None] = lambda text: None) -> Audited:
    """Audit a finished run: attack every recorded view, look for small counts, and write the page for those who sign.

    ConfigError for a folder without a finished run, and for a folder of several seeds, of which one has to be named.
    """
    run = RunFolder.open(Path(path))
    with read_as(run.reading()):
        whole = checked(run.config())
        if whole.config.seeds is not None:
            raise ConfigError(
                f"'{path}' holds several seeds: name one of them, such as {run.path / f'seed-{whole.config.seeds[0]}'}."
            )
        summary, asked = run.summary(), whole.config.audit
        tries = try_all(run, whole, said)
        spent = accounts(summary, run, whole)
        untried = fitting(offered([*tries.untried, *without_bound(spent, run, whole)], whole), whole)
    told = list(cells(summary))
    least = MIN_CELL if asked is None else asked.min_cell
    found = Found(tries.tried, untried, spent, small(told, least))
    verdict = judge(found)
    record = plain(found, verdict, least)
    run.write_json(AUDIT, record)
    page = run.path / RELEASE
    write_text(page, render(run, summary, found, verdict, told, least, whole))
    return Audited(verdict, record, page)


def accounts(summary: Mapping[str, Any], run: RunFolder, whole: Checked) -> list[Account]:
    """Return each epsilon that the run states, with the lower bound of its canaries if it has any."""
    told = summary.get("privacy") or {}
    out = []
    for one in (told, *(told[name] for name in told.get("beside", ()))):
        if isinstance(one.get("epsilon"), (int, float)):
            names = ", ".join(each["name"] for each in told.get("mechanisms", ()))
            unit, delta = one.get("unit") or "client", float(one["delta"])
            out.append(with_bound(Account(names, unit, float(one["epsilon"]), delta, None), run, whole))
    return out


def without_bound(spent: Sequence[Account], run: RunFolder, whole: Checked) -> list[UntriedAttack]:
    """Return what has no lower bound: each such account, or the canaries of a run that states no epsilon."""
    drawn = whole.config.audit is not None and whole.config.audit.canaries
    if drawn and not spent:
        return [UntriedAttack(CANARIES, NO_EPSILON)]
    unbound = [one for one in spent if one.empirical_epsilon is None]
    if drawn:
        return [UntriedAttack(CANARIES, OTHER_UNIT.format(one.unit)) for one in unbound]
    return [without_canaries(one, run, whole) for one in unbound]


def without_canaries(one: Account, run: RunFolder, whole: Checked) -> UntriedAttack:
    """Return why an account has no lower bound, and the lines with which it would, if its mechanism takes canaries."""
    if whole.columns:
        return UntriedAttack(CANARIES, COLUMNS)
    try:
        check_canaries(one.unit, whole.mechanisms)
    except ConfigError as error:
        return UntriedAttack(CANARIES, str(error))
    rows = rows_held(run).values()
    left = (
        sum(rows) if whole.config.evaluation.clients else sum(n // 2 for n in rows)
    )  # the lines for games hold half of them out
    many = min(MANY, left // 2) if one.unit == "record" else MANY
    return UntriedAttack(CANARIES, NO_CANARIES, DECLARE.format(unit=one.unit, many=many))


def with_bound(one: Account, run: RunFolder, whole: Checked) -> Account:
    """Return an account with the lower bound of the run's canaries, if they are of its unit."""
    asked = whole.config.audit
    if asked is None or not asked.canaries or asked.unit != one.unit:
        return one
    delta = min(one.delta, (1 - CONFIDENCE) / (FINER * asked.canaries))
    events = [event for event in ledger.read(run.path / LEDGER).events if event.unit == one.unit]
    stated = accountant.spent(ledger.counted(events), delta).epsilon
    score, inside = scored(run, whole)
    bound, most = (lower_bound(one, inside, delta, CONFIDENCE) for one in (score, inside.astype(float)))
    return one._replace(
        empirical_epsilon=bound.epsilon,
        canaries=bound.canaries,
        most=most.epsilon,
        compared_epsilon=stated,
        compared_delta=delta,
    )


def plain(found: Found, verdict: Verdict, least: int) -> dict[str, Any]:
    """Return the record of audit.json."""
    attacks = [
        {**one._asdict(), "p": verdict.p[place], "smallest": one.smallest(len(found.tried))}
        for place, one in enumerate(found.tried)
    ]
    return {
        "verdict": verdict.name,
        "reasons": list(verdict.reasons),
        "accounts": [one._asdict() for one in found.accounts],
        "confidence": CONFIDENCE,
        "attacks": attacks,
        "not_tried": [one._asdict() for one in found.untried],
        "min_cell": least,
        "small_cells": [one._asdict() for one in found.small],
    }
