"""A resolved and checked experiment: the value from which both halves of a run are built."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from fedatlas.aggregation.rules import Rule
from fedatlas.algorithm import Algorithm, Transform
from fedatlas.attacks.malicious import Poisoning
from fedatlas.config import ExperimentConfig
from fedatlas.config.parties import dealt
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.vertical.scheme import Scheme

FOR_ROWS = (
    "this experiment's parties hold columns: use it with 'fedatlas run', 'align', 'compare' or 'study'; 'tune', 'partition' and "
    "plug-ins are for clients that hold rows."
)


class Checked(NamedTuple):
    """An experiment that can run, as far as its text tells. No data have been read."""

    config: ExperimentConfig  # every key written out, as config.toml records it
    algorithm: Algorithm
    notices: tuple[str, ...] = ()
    transform: Transform | None = None
    mechanisms: tuple[Mechanism, ...] = ()  # of ``[[privacy]]``, in the order in which they are applied
    poisonings: tuple[Poisoning, ...] = ()  # of ``[[attack]]``
    rule: Rule | None = None  # of ``[aggregation]``
    module: nn.Module | None = None  # the user's network in place of ``[model]``
    scheme: Scheme | None = None  # the method for parties that hold columns
    how: Any = None  # the scheme's settings

    @property
    def columns(self) -> bool:
        """Whether parties hold columns of the same rows, not rows of the same columns."""
        return self.scheme is not None

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names in order; () if only the data tell how many there are."""
        if self.config.parties:
            return tuple(one.name for one in self.config.parties)
        if self.scheme is None or self.scheme.layout == "rows":
            return tuple(str(k) for k in range(self.config.partition.clients))
        how = dealt(self.config.partition.parameters())
        return tuple(how.columns) or tuple(f"party-{k}" for k in range(how.parties))

    @property
    def enters(self) -> bool:
        """Whether its mechanisms write a ledger."""
        return any(one.noise is not None or one.entered is not None for one in self.mechanisms)

    @property
    def blind(self) -> bool:
        """Whether the server has no rows to judge by, as it does not know how the clients' were changed."""
        return any(one.blind for one in self.mechanisms)

    def with_seed(self, seed: int) -> Checked:
        """Return the same experiment with one seed; the checks do not depend on the seed."""
        return self._replace(config=self.config.model_copy(update={"seed": seed, "seeds": None}))

    def of_columns(self) -> Scheme:
        """Return the scheme; ConfigError if clients hold rows."""
        if self.scheme is None:
            raise ConfigError("there is nothing to align: add [[parties]], or [partition] name = 'vertical'.")
        return self.scheme

    def of_matched(self) -> Scheme:
        """Return the scheme; ConfigError if the parties' rows are not matched."""
        found = self.of_columns()
        if found.layout == "rows":
            raise ConfigError(
                f"there is nothing to align: the owners of '{found.name}' hold different rows of the same columns."
            )
        return found

    def of_rows(self) -> Checked:
        """Return the experiment itself; ConfigError if parties hold columns."""
        if self.columns:
            raise ConfigError(FOR_ROWS)
        return self
