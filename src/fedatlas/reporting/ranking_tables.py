"""The tables of a comparison: its schemes from best to worst, and each pair of them."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.metrics.intervals import over_seeds
from fedatlas.reporting.blocks import Cells, TableBlock, TableCell, optional
from fedatlas.reporting.ranking import Ranked
from fedatlas.wording import DASH, bytes_text, count, csv_text, interval_text, number, seconds_text, signed

OPEN = 12  # most rows without a fold


def ranking_tables(found: Ranked) -> list[TableBlock]:
    """Return both tables; none for a single scheme."""
    return [_schemes(found), _pairs(found)] if found.ranking.pairs else []


def _schemes(found: Ranked) -> TableBlock:
    rows, lines = list[Cells](), list[Sequence[object]]()
    for place, name in enumerate(found.ranking.order, 1):
        cost, values = found.costs[name], found.values[name]
        mean, sd = found.ranking.means[name], over_seeds([one.value for one in values.values()]).sd
        spread = f"sd {number(sd)}" if sd is not None else ""
        note = "the one to take" if name == found.chosen else ""
        sent, time = bytes_text(cost.bytes), seconds_text(cost.seconds)
        figure = TableCell(number(mean), spread)
        rows.append([TableCell(name, note), str(place), figure, count(len(values)), sent, optional(time)])
        lines.append((name, place, mean, sd, len(values), cost.bytes, cost.seconds))
    figure = TableCell(found.words, "lower is better" if found.lower_is_better else "")
    head: Cells = ["scheme", "place", figure, "seeds", "sent a seed", optional("time")]
    caption = "Schemes from best to worst: means over the seeds that all have, below them the standard deviation (sd)"
    text = csv_text(("scheme", "place", found.figure, "sd", "seeds", "bytes", "seconds"), lines)
    return TableBlock("ranking", caption, head, rows, text)


def _pairs(found: Ranked) -> TableBlock:
    rows, lines = list[Cells](), list[Sequence[object]]()
    for pair in found.ranking.pairs:
        gap, told = pair.difference, "told apart" if pair.apart else "not told apart"
        interval = ("", "") if gap is None else (signed(gap.value), interval_text(gap.low, gap.high, signed))
        verdict = TableCell(
            told if gap else "too few seeds", f"about {pair.needed} seeds may tell" if pair.may_tell else ""
        )
        ahead, p = f"{pair.ahead} of {count(pair.seeds, 'seed')}", DASH if pair.p is None else number(pair.p)
        rows.append([f"{pair.one}, {pair.other}", TableCell(interval[0] or DASH, interval[1]), p, ahead, verdict])
        ends = (None, None, None) if gap is None else gap[:3]
        lines.append((pair.one, pair.other, *ends, pair.p, pair.ahead, pair.seeds, pair.apart))
    less = TableCell("difference", "above 0: less error" if found.lower_is_better else "")
    head: Cells = ["pair", less, "p", "first is better in", "verdict"]
    caption = (
        f"Each pair of schemes, the better mean first: the mean difference of {found.words} within seeds, below it the 95% "
        "interval of this pair alone, and p after Holm's rule over all pairs; below 0.05 the two are told apart"
    )
    columns = ("one", "other", "difference", "low", "high", "p_holm", "ahead", "seeds", "told_apart")
    folded = f"The table of {count(len(rows), 'pair')}" if len(rows) > OPEN else ""
    return TableBlock("pairs", caption, head, rows, csv_text(columns, lines), (), folded)
