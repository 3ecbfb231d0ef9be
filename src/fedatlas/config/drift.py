"""``[drift]`` of an experiment file: the clients' rows change from a round on.

Not to be confused with ``evaluation.drift``, which measures how far local models are apart.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedatlas.registry import ConfigTable, Whole


class DriftConfig(ConfigTable):
    """A change of the clients' training rows, and of the test rows, from round ``at`` on."""

    kind: Literal["prior", "feature", "concept"]
    at: Whole  # the first round with changed rows
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the clients, whose rows change
    ramp: Whole = 1  # rounds over which they change, one client after another
    keep: Annotated[float, Field(gt=0, lt=1)] | None = None  # prior: share of the rows of the rarer classes; None: 0.2
    classes: Annotated[tuple[int | str, ...], Field(min_length=1)] | None = None
    """Concept: the classes that change places; None: all. Prior: those that become rare; None: the first half."""
