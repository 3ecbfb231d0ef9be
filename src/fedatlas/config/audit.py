"""``[audit]`` of an experiment file: what an audit of the run looks for, and games that have to be drawn before it."""

from __future__ import annotations

from typing import Literal

from fedatlas.registry import ConfigTable, Count, Whole


class AuditConfig(ConfigTable):
    """Terms of ``fedatlas audit`` for this run."""

    purpose: str = ""  # of the model, in a sentence, for those who sign
    canaries: Count = 0  # each in the run with chance 1/2; 0 = none
    unit: Literal["client", "record"] = "client"  # that of the noise
    min_cell: Whole = 10  # smallest count of rows that may be told
