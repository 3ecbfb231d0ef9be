"""The share of rows that must become test rows for parties to have enough for an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedatlas.verdict.answer import Answer
from fedatlas.verdict.evidence import RARE, ROWS, at_least
from fedatlas.verdict.rule import PartyVerdict

SHARES = [round(0.05 * k, 2) for k in range(1, 11)]  # with more than half, too few rows would be left to train on
ABOUT = 0.02  # rounding of the share in force
LIKELY = 0.9  # chance that a draw is large enough for all parties in all seeds


class HoldOut(NamedTuple):
    """A key with its share, and the parties for which it would suffice and would not."""

    setting: str  # "data.test = 0.45"
    able: Sequence[PartyVerdict]
    lacking: Sequence[PartyVerdict]
    likely: bool  # whether it suffices only with the chance `LIKELY`, since the rows are drawn


def hold_out(found: Answer, few: Sequence[PartyVerdict]) -> HoldOut | None:
    """Return the least share that suffices for those of ``few`` for whom half of their rows would.

    None without such a key.

    The key is ``data.test`` if it draws the test rows from all rows, and ``evaluation.clients`` if each party holds out
    a share of its own rows. If the share replaces given test rows, it must also suffice for the parties that have
    enough of these.
    """
    own_from, key = found.asked.own_from, found.asked.hold.partition(" = ")[0]
    drawn = own_from == "data.test"
    chance = 1 - (1 - LIKELY) / (max(len(found.parties), 1) * len(found.seeds))
    now = found.test_rows / max(found.test_rows + found.train_rows, 1) if drawn else 0.0
    shares = [share for share in SHARES if share > now + ABOUT]  # an unlucky draw would be unlucky again
    least = {p.client: _least(p, shares, drawn=drawn, chance=chance) for p in found.parties}
    others = [p for p in found.parties if p not in few and p.test_rows and not own_from]
    if not key or any(p.divided is None for p in few) or any(least[p.client] is None for p in others):
        return None
    able = [p for p in few if least[p.client] is not None]
    share = max((one for p in [*able, *others] if (one := least[p.client]) is not None), default=0.0)
    lacking = [p for p in few if p not in able]
    return HoldOut(
        f"{'data.test' if drawn else key} = {share:g}", able, lacking, drawn or any(p.rarer is not None for p in able)
    )


def _least(p: PartyVerdict, shares: Sequence[float], *, drawn: bool, chance: float) -> float | None:
    """Return the least share that suffices for a party.

    The rarer class is assumed to be as frequent in all of its rows.
    """
    if not p.divided or not p.test_rows or p.rarer == 0:
        return None
    rare = None if p.rarer is None else min(p.rarer / p.test_rows, 1.0)
    for share in shares:
        if drawn:
            rows = at_least(ROWS, p.divided, share)
            classes = 1.0 if rare is None else at_least(RARE, p.divided, share * rare)
        else:
            held = round(share * p.divided)  # rounded as in a run
            rows, classes = float(held >= ROWS), 1.0 if rare is None else at_least(RARE, held, rare)
        if min(rows, classes) >= chance:
            return share
    return None
