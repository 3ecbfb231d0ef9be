"""The price of protection: a run compared with the same run without it, on the same test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedatlas.metrics.intervals import over_seeds
from fedatlas.verdict.rule import Ends
from fedatlas.wording import bytes_text, number, seconds_text, signed, total_of


class RunEffort(NamedTuple):
    """Bytes and seconds of a run; for several seeds, the mean of one seed."""

    sent: float | None  # bytes; None if they would tell who took part
    seconds: float


class Price(NamedTuple):
    """The cost of protection. Figures are those of `Answer`."""

    without: float | None  # the figure of the model without protection
    lost: Ends | None  # how much better that model is
    bare: RunEffort  # the run without protection
    protected: RunEffort

    def plain(self) -> dict[str, Any]:
        """Return the price as plain values for JSON; `of_plain` reads them back."""
        lost = None if self.lost is None else self.lost._asdict()
        return {**self._asdict(), "lost": lost, "bare": self.bare._asdict(), "protected": self.protected._asdict()}


def of_plain(found: Mapping[str, Any] | None) -> Price | None:
    """Return the price that `Price.plain` wrote."""
    if found is None:
        return None
    lost = None if found["lost"] is None else Ends(**found["lost"])
    return Price(found["without"], lost, RunEffort(**found["bare"]), RunEffort(**found["protected"]))


def mean_price(found: Sequence[Price], lost: Ends | None) -> Price:
    """Return the price over seeds, each measured within its seed. ``lost``: over the seeds."""
    return Price(
        over_seeds([one.without for one in found]).mean,
        lost,
        _mean([one.bare for one in found]),
        _mean([one.protected for one in found]),
    )


def _mean(found: Sequence[RunEffort]) -> RunEffort:
    sent = total_of(one.sent for one in found)
    return RunEffort(None if sent is None else sent / len(found), sum(one.seconds for one in found) / len(found))


def price_text(found: Price, words: str, *, lower_is_better: bool = False, several: bool = False) -> str:
    """Return the sentence.

    ``words``: the figure's name. ``several``: whether bytes and seconds are the mean of several seeds.
    """
    less = ", error avoided" if lower_is_better else ""
    if found.lost is None:
        gap = "no interval, since too few seeds or test rows"
    else:
        ends = f"{signed(found.lost.value)}{less}, {signed(found.lost.low)} to {signed(found.lost.high)}"
        apart = found.lost.low > 0 or found.lost.high < 0
        gap = ends if apart else f"{ends}, so not told apart"
    each = " a seed" if several else ""
    return (
        f"Without protection, the same run reaches {words} {number(found.without)} ({gap}), with {_effort(found.bare)}{each} instead of "
        f"{_effort(found.protected)}."
    )


def _effort(found: RunEffort) -> str:
    seconds = seconds_text(found.seconds)
    return seconds if found.sent is None else f"{bytes_text(found.sent)} and {seconds}"
