"""The property that property inference looks for (A6): rows of some classes, or rows of a table with a value in a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.errors import ConfigError, unknown_name


class Property(NamedTuple):
    """A property of single rows: their class is one of ``classes``, or ``column`` holds the category ``value``."""

    attack: str  # the attack that looks for it, for its errors
    classes: tuple[int, ...] = ()
    column: str = ""
    value: str = ""

    @classmethod
    def of(cls, attack: str, classes: tuple[int, ...] | None, column: str, value: str) -> Property:
        """Return the property of an attack's keys; default: class 0. ConfigError for keys that contradict each other."""
        if bool(column) != bool(value) or (column and classes):
            raise ConfigError(
                f"attack '{attack}': a property is given by classes, as in classes = [3], or by a column with one of its categories, "
                'as in column = "sex" and value = "female".'
            )
        chosen = () if column else (0,) if classes is None else tuple(classes)
        if not column and (not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0):
            raise ConfigError(
                f"attack '{attack}': classes = {list(chosen)}: name each class once, by number, as in [3]."
            )
        return cls(attack, chosen, column, value)

    @property
    def keys(self) -> dict[str, Any]:
        """The keys that give it."""
        return {"column": self.column, "value": self.value} if self.column else {"classes": list(self.classes)}

    def __str__(self) -> str:
        """Return it as what follows "rows": "of classes [3]"."""
        return f"with {self.column} = {self.value}" if self.column else f"of classes {list(self.classes)}"

    def check(self, classes: int, inputs: Sequence[str]) -> None:
        """Raise ConfigError if the data lack the class or the category. ``inputs``: names of a table's model inputs."""
        if wrong := [c for c in self.classes if c >= classes]:
            raise ConfigError(
                f"attack '{self.attack}': classes: there is no class {wrong[0]}; they are 0 to {classes - 1}."
            )
        if self.column:
            self.place(inputs)

    def place(self, inputs: Sequence[str]) -> int:
        """Return the number of the input that is 1 where the column holds the value. ConfigError if there is none."""
        if (name := f"{self.column}={self.value}") in inputs:
            return list(inputs).index(name)
        held = [one.removeprefix(f"{self.column}=") for one in inputs if one.startswith(f"{self.column}=")]
        if held:
            raise unknown_name(f"category of attack.{self.attack}.column '{self.column}'", self.value, held)
        if self.column in inputs:
            raise ConfigError(
                f"attack '{self.attack}': column '{self.column}' holds numbers; name one with categories, or list it in "
                "data.categories."
            )
        columns = list(dict.fromkeys(one.partition("=")[0] for one in inputs))
        if not columns:
            raise ConfigError(f"attack '{self.attack}': these rows have no columns; give the property by classes.")
        raise unknown_name(f"column of attack.{self.attack}", self.column, columns)

    def marks(self, x: Tensor, y: Tensor, inputs: Sequence[str]) -> Tensor:
        """Return (n,) bool: which of the rows ``x`` (n, ...) of classes ``y`` have it."""
        if self.column:
            return x[:, self.place(inputs)] > 0.5
        return (y[:, None] == y.new_tensor(self.classes)).any(1)
