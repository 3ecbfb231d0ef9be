"""The keys of the table, and which of them go together. Read without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedatlas.privacy.column_bounds import Range

if TYPE_CHECKING:
    from fedatlas.privacy.anonymity.rules import Conditions

NAME = "anonymise"
TARGET = "label"
"""The name by which ``sensitive`` means the target."""


class AnonymityKeys(NamedTuple):
    """The keys of the table."""

    quasi: tuple[str, ...]
    sensitive: tuple[str, ...]
    k: int
    l: float  # noqa: E741
    t: float
    diversity: Literal["distinct", "entropy"]
    boundaries: Literal["local", "counts"]
    bounds: Mapping[str, Range]
    bins: int

    def conditions(self) -> Conditions:
        """Return the conditions on a class."""
        from fedatlas.privacy.anonymity.rules import Conditions

        return Conditions(self.k, self.l, self.t, self.diversity)

    def wrong(self) -> str:
        """Return a sentence about keys that do not go together; "" if they do."""
        key = f"privacy.{NAME}"
        if not self.quasi:
            return (
                f"{key}.quasi names no column: name those by which somebody may know a person, such as quasi = ['age']."
            )
        if both := sorted({*self.quasi} & {*self.sensitive}):
            return f"{key}: column '{both[0]}' is in quasi and in sensitive; give it one role."
        if (self.l > 1 or self.t < 1) and not self.sensitive:
            return (
                f"{key}: l and t are about sensitive columns; name them, '{TARGET}' for the target, in {key}.sensitive."
            )
        if self.diversity == "distinct" and self.l != int(self.l):
            return f"{key}.l = {self.l:g}: a whole number, unless diversity = 'entropy'."
        if self.boundaries == "local" and self.bounds:
            return f"{key}.bounds has no effect with boundaries = 'local'; remove it, or write boundaries = 'counts'."
        if odd := sorted({*self.bounds} - {*self.quasi}):
            return f"{key}.bounds names '{odd[0]}', which is not in quasi; remove it there."
        return ""
