"""How far a matching is, told to people while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedatlas.setup.consortium import Consortium
from fedatlas.vertical.parties import Columns

EVERY = 2.0  # seconds between two lines of progress

Say = Callable[[str], None]


class MatchingProgress:
    """Tell, at most every two seconds, which share of all points is made."""

    def __init__(self, points: int, say: Say, clock: Callable[[], float] = time.perf_counter) -> None:
        self.points, self.say, self.clock = points, say, clock
        self.made, self.told = 0, clock()

    def tick(self, count: int) -> None:
        """Hear that so many more points were made."""
        self.made += count
        if (now := self.clock()) - self.told >= EVERY:
            self.told = now
            self.say(f"Matching: {self.made:,} of {self.points:,} masked ids, {self.made / self.points:.0%}.")


def followed(held: Consortium, say: Say) -> tuple[Columns, ...]:
    """Return the parties of this process; ``say`` is told how far their matching is.

    Each id is masked once by every party. Of several keys each counts as if no row were matched before it.
    """
    ids = sum(len(one.ids) - one.without_id for one in held.tables)
    progress = MatchingProgress(len(held.parties) * ids * len(held.align.keys), say)
    return tuple(one._replace(tick=progress.tick) for one in held.parties)
