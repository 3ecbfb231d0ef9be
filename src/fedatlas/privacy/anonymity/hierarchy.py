"""Categories as leaves of a tree, such as occupations within sectors. Its groups are what a class's cells are written as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.errors import ConfigError

ANY = "*"
"""The root of every tree: the category of all values."""


class Hierarchy(NamedTuple):
    """A tree over values in depth-first order, so that each group is a range of codes.

    ``levels``: the group of each value at each depth, int64 (depth + 1, values): the root first, the values themselves last. A
    value that lies less deep than others is its own group from there on. ``labels``: the name of each group.
    """

    members: tuple[str, ...]
    levels: np.ndarray
    labels: tuple[str, ...]

    def smallest(self, low: int, high: int) -> int:
        """Return the depth of the smallest group that holds both codes."""
        return int(np.flatnonzero(self.levels[:, low] == self.levels[:, high])[-1])

    def label(self, low: int, high: int) -> str:
        """Return the name of the smallest group that holds both codes."""
        return self.labels[int(self.levels[self.smallest(low, high), low])]

    def leaves(self, low: int, high: int) -> int:
        """Return how many values the smallest group that holds both codes has."""
        level = self.levels[self.smallest(low, high)]
        return int((level == level[low]).sum())


def hierarchy(tree: Mapping[str, Any], column: str, extra: Sequence[str] = ()) -> Hierarchy:
    """Return the tree of ``{group: {group: [value, ...]}}``; ``extra`` values hang below the root.

    ConfigError for anything else, and for a value that occurs twice.
    """
    paths = [*_paths(tree, (ANY,), column), *((ANY, value) for value in extra)]
    values = tuple(path[-1] for path in paths)
    if twice := next((value for value in values if values.count(value) > 1), None):
        raise ConfigError(f"the hierarchy of '{column}' holds '{twice}' twice: a value belongs to one group.")
    depth = max(map(len, paths))
    groups = dict[tuple[str, ...], int]()
    ids = [[groups.setdefault(path[: level + 1], len(groups)) for path in paths] for level in range(depth)]
    return Hierarchy(values, np.array(ids, np.int64), tuple(path[-1] for path in groups))


def _paths(tree: Any, above: tuple[str, ...], column: str) -> list[tuple[str, ...]]:
    if isinstance(tree, Mapping) and tree:
        return [path for name, below in tree.items() for path in _paths(below, (*above, str(name)), column)]
    if isinstance(tree, list) and tree and all(isinstance(value, str | int | float) for value in tree):
        return [(*above, str(value)) for value in tree]
    raise ConfigError(
        f"the hierarchy of '{column}' is groups of groups that end in lists of values: '{above[-1]}' is neither."
    )
