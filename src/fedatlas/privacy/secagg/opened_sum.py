"""The opened words of a masked sum, read as the numbers of its clients' form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.privacy.ask_protocol import Place
from fedatlas.privacy.numbers import REALS, rebuilt
from fedatlas.privacy.secagg import fixed
from fedatlas.privacy.secagg.word import ALL, ROWS, TOLD


class SecureSum(NamedTuple):
    """The keys of the table."""

    threshold: float
    bits: int
    range: float
    n_cap: int


Reading = Callable[[SecureSum, Mapping[str, Any], Mapping[str, Any], Place, int], dict[str, Any]]
"""(.., form, opened words of each group, place, clients asked) -> the numbers of the form."""


def decoded(
    how: SecureSum, form: Mapping[str, Any], sums: Mapping[str, Any], place: Place, asked: int
) -> dict[str, Any]:
    """Return the opened words of each group as the numbers of the form."""
    plain = fixed.fixed(asked, how.bits, how.range)
    rows: dict[str, Tensor] = {}
    for group, words in sums.items():
        if group == REALS + ROWS:
            found = fixed.reals_total(words)
            rows[group] = found[1:] / found[0]
        elif group.startswith(REALS):
            found = fixed.reals_total(words)
            rows[group] = found / place.n if group == REALS + ALL else found
        elif group == TOLD:
            rows[group] = fixed.total(words, plain)
        else:
            hidden = fixed.fixed(asked, how.bits, how.range, how.n_cap)
            rows[group] = fixed.mean(words, hidden)[0] if group == ROWS else fixed.total(words, hidden) / place.n
    return dict(rebuilt(form, rows))
