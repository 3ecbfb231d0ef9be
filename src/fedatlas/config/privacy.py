"""``[[privacy]]`` of an experiment file as typed values: one table per mechanism."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.privacy.mechanisms import for_all_rounds
from fedatlas.registry import Component


class PrivacyConfig(Component):
    """One of ``[[privacy]]``: a mechanism by name, with the keyword arguments of its builder."""


def bound_to_rounds(tables: Sequence[PrivacyConfig]) -> str:
    """Return the mechanism whose noise is made for the number of rounds, which then affects every round; "" for none."""
    return for_all_rounds(one.name for one in tables)
