"""The keys of a masked sum, and the reading of what it opens to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedatlas.privacy.ask_protocol import Place
from fedatlas.privacy.secagg.hidden_weights import Rounding
from fedatlas.privacy.secagg.keys import Neighbours


class SecureSum(NamedTuple):
    """The keys of the table."""

    threshold: float
    bits: int
    range: float
    n_cap: int
    neighbours: Neighbours = None

    @property
    def steps(self) -> Rounding:
        """The keys that turn numbers into words."""
        return Rounding(self.bits, self.range, self.n_cap)


Reading = Callable[[SecureSum, Mapping[str, Any], Mapping[str, Any], Place, int], dict[str, Any]]
"""(.., form, opened words of each group, place, clients asked) -> the numbers of the form."""
