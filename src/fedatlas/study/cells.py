"""Which cells a study has: the allowed combinations of levels, those a design takes of them, settings that are held out.

Every draw goes by a hash of names, so that the order of factors, levels and seeds in the file changes nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, unknown_name
from fedatlas.study.design import DesignTable, StudyFile
from fedatlas.study.levels import Factor, level_name

MOST = 1_000_000  # combinations that are looked at

Levels = tuple[tuple[str, str], ...]
"""(factor, level), sorted by factor."""


class Cell(NamedTuple):
    """A combination of levels; a setting is the part that is given, and every choice in it shares its baseline."""

    levels: Levels
    setting: Levels
    holdout: bool


def cells_of(study: StudyFile, factors: Sequence[Factor]) -> list[Cell]:
    """The cells of a study, setting by setting in the order in which these were drawn; ConfigError where none is allowed."""
    many = math.prod(len(factor.levels) for factor in factors)
    if many > MOST:
        raise ConfigError(f"the factors have {many:,} combinations, more than {MOST:,}: take fewer levels.")
    excluded = [exclusion(table, factors) for table in study.table.exclude]
    given = frozenset(factor.name for factor in factors if factor.role == "setting")
    ordered = sorted(factors, key=lambda factor: factor.name)
    allowed = []
    for combination in itertools.product(*(sorted(level.name for level in factor.levels) for factor in ordered)):
        levels = tuple(zip((factor.name for factor in ordered), combination, strict=True))
        found = dict(levels)
        if not any(all(found[name] in names for name, names in one.items()) for one in excluded):
            allowed.append(Cell(levels, tuple(pair for pair in levels if pair[0] in given), holdout=False))
    if not allowed:
        raise ConfigError("nothing is allowed: [[exclude]] takes every cell away; remove one of its tables.")
    for name in study.table.design.evenly:
        if name not in given:
            raise unknown_name("factor with role setting in design.evenly", name, sorted(given))
    taken = drawn(allowed, study.table.design)
    out = held_out({cell.setting for cell in taken}, study.table.design)
    rank = {setting: place for place, setting in enumerate(dict.fromkeys(cell.setting for cell in taken))}
    return sorted(
        (cell._replace(holdout=cell.setting in out) for cell in taken), key=lambda c: (rank[c.setting], c.levels)
    )


def exclusion(table: Mapping[str, Any], factors: Sequence[Factor]) -> dict[str, set[str]]:
    """factor -> level names of one ``[[exclude]]``; ConfigError for an unknown factor or level."""
    known = {factor.name: factor for factor in factors}
    out = {}
    for name, value in table.items():
        if name not in known:
            raise unknown_name("factor in [[exclude]]", name, known)
        out[name] = {known[name].level(level_name(x)).name for x in (value if isinstance(value, list) else [value])}
    if not out:
        raise ConfigError("[[exclude]] is empty: name a factor and its levels, or remove it.")
    return out


def order(seed: int, what: str, levels: Levels) -> str:
    """A random rank of a combination: the SHA-256 of seed, purpose and names."""
    return hashlib.sha256(json.dumps([seed, what, levels]).encode()).hexdigest()


def drawn(allowed: Sequence[Cell], design: DesignTable) -> list[Cell]:
    """All cells of a grid; of `random` so many cells, or so many settings with every choice allowed in them."""
    if design.name == "grid":
        return list(allowed)
    if design.settings is not None:
        settings = sorted({cell.setting for cell in allowed}, key=lambda s: order(design.seed, "setting", s))
        kept = {setting: place for place, setting in enumerate(spread(settings, design))}
        wanted, there = design.settings, len(settings)
        found = sorted((cell for cell in allowed if cell.setting in kept), key=lambda cell: kept[cell.setting])
    else:
        wanted, there = design.cells or 0, len(allowed)
        found = sorted(allowed, key=lambda cell: order(design.seed, "cell", cell.levels))[:wanted]
    if wanted > there:
        what = "settings" if design.settings is not None else "cells"
        raise ConfigError(f"design.{what} = {wanted}: only {there} are allowed; ask for fewer, or add levels.")
    return found


def spread(settings: Sequence[Levels], design: DesignTable) -> list[Levels]:
    """The settings of a design from all, in an order in which the levels of ``design.evenly``, together and each, come equally often.

    The next one is always of a combination that is there least often, then of levels that are; among equals the earlier.
    """
    if not design.evenly:
        return list(settings[: design.settings])
    often: Counter[Levels] = Counter()
    left: list[Levels] = list(settings)
    out: list[Levels] = []

    def known(setting: Levels) -> tuple[int, int]:
        pairs = spread_over(setting)
        return often[pairs], sum(often[(pair,)] for pair in pairs)

    def spread_over(setting: Levels) -> Levels:
        return tuple(pair for pair in setting if pair[0] in design.evenly)

    while left and len(out) < (design.settings or 0):
        out.append(min(left, key=known))
        left.remove(out[-1])
        pairs = spread_over(out[-1])
        often.update({pairs, *((pair,) for pair in pairs)})
    return out


def held_out(settings: set[Levels], design: DesignTable) -> set[Levels]:
    """The settings kept from whoever recommends: a share of them, rounded, but never all."""
    many = min(round(design.holdout * len(settings)), len(settings) - 1)
    return set(sorted(settings, key=lambda s: order(design.seed, "holdout", s))[:many])
