"""An update as whole words, and the opened sum of such words as a mean, without the weights that follow rows being told (P14's input).

Weights by rows stay hidden: a client gives (n q, n) and the server divides. Every other coefficient is told before the client seals,
and multiplied in before rounding. How words are hidden is the business of a protocol: under masks or in shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import Ask, Update
from fedatlas.privacy.ask_protocol import Place, mended, way_of, weights_of
from fedatlas.privacy.numbers import REALS, Leaf, coded, rebuilt
from fedatlas.privacy.secagg import fixed
from fedatlas.privacy.secagg.messages import Words
from fedatlas.privacy.secagg.word import ALL, ROWS, TOLD


class Rounding(NamedTuple):
    """The steps of values, and the cap of rows."""

    bits: int
    range: float
    n_cap: int

    def plain(self, clients: int) -> fixed.Fixed:
        """Return the encoding of values whose coefficients are told."""
        return fixed.fixed(clients, self.bits, self.range)

    def hidden(self, clients: int) -> fixed.Fixed:
        """Return the encoding of values whose weights are hidden rows."""
        return fixed.fixed(clients, self.bits, self.range, self.n_cap)


def words_of(
    steps: Rounding, update: Update, rows: int, word: Mapping[str, Any], me: int
) -> tuple[dict[str, Words], dict[str, Any], Update]:
    """Return an update's words by group, its form, and the update as decoded. ``word``: what the client is told of its weights."""
    m = word["clients"]
    plain, hidden = steps.plain(m), cache(lambda: steps.hidden(m))

    def code(leaf: Leaf) -> tuple[Any, Tensor]:
        if leaf.real:
            factor = float(rows) if leaf.group in {REALS + ROWS, REALS + ALL} else leaf.factor
            return fixed.reals(leaf.numbers * factor, me, leaf.name), leaf.numbers
        if leaf.group == TOLD:
            q = fixed.values(leaf.numbers, plain, me, leaf.name, leaf.factor)
            return q, fixed.total(q, plain) / leaf.factor if leaf.factor else leaf.numbers
        q = fixed.values(leaf.numbers, hidden(), me, leaf.name)
        return fixed.weighted(q, rows, hidden(), me), fixed.total(q, hidden())

    groups, form, decoded = coded(update, word, code)
    if REALS + ROWS in groups:
        groups[REALS + ROWS].insert(0, fixed.reals(torch.tensor([float(rows)], dtype=torch.float64), me, "rows"))
    if ROWS in groups:
        groups[ROWS].append(np.array([rows], groups[ROWS][0].dtype))
    return {group: np.concatenate(words) for group, words in groups.items()}, form, decoded


def weights(ask: Ask, place: Place, asked: tuple[int, ...]) -> dict[int, dict[str, list[Any]]]:
    """Return, by client and part, the weighting: by the client's rows, which stay hidden, or by a coefficient that it is told."""
    total, out = sum(place.sizes[k] for k in asked), {k: dict[str, list[Any]]() for k in asked}
    for part, given in weights_of(ask, place, asked).items():
        # Equal weights are not secret, even if equal row counts give the same weights.
        follow = ask.reduce == "mean" and place.by_rows(part)
        by_rows = follow and all(given[k] == place.sizes[k] / total for k in asked)
        by_all = follow and all(given[k] == place.sizes[k] / place.n for k in asked)
        for k in asked:
            group = ROWS if by_rows else ALL if by_all else TOLD
            out[k][part] = [group, given[k], given[k]] if group == TOLD else [group, 1.0, 1.0]
    return out


def decoded(
    steps: Rounding, form: Mapping[str, Any], sums: Mapping[str, Words], place: Place, asked: int
) -> dict[str, Any]:
    """Return the opened words of each group as the numbers of the form."""
    rows: dict[str, Tensor] = {}
    for group, words in sums.items():
        if group == REALS + ROWS:
            found = fixed.reals_total(words)
            rows[group] = found[1:] / found[0]
        elif group.startswith(REALS):
            found = fixed.reals_total(words)
            rows[group] = found / place.n if group == REALS + ALL else found
        elif group == TOLD:
            rows[group] = fixed.total(words, steps.plain(asked))
        else:
            hidden = steps.hidden(asked)
            rows[group] = fixed.mean(words, hidden)[0] if group == ROWS else fixed.total(words, hidden) / place.n
    return dict(rebuilt(form, rows))


def remended(
    value: Mapping[str, Any], ask: Ask, place: Place, ways: Mapping[str, Any], answered: tuple[int, ...]
) -> dict[str, Any]:
    """Return an opened mean, mended for clients asked that are not in the sum. A mean by hidden rows is over those in it already."""
    if ask.reduce != "mean":
        return dict(value)
    factor, hidden = place.mend(answered), {part: way_of(ways, part)[0] != TOLD for part in value}
    return mended(value, lambda part: 1.0 if part in place.sums or hidden[part] else factor(part))
