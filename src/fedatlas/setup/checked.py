"""An experiment whose text has been resolved and checked: the one value from which both halves of a run are built."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from fedatlas.aggregation.rules import Rule
from fedatlas.algorithm import Algorithm, Transform
from fedatlas.attacks.poisoning import Poisoning
from fedatlas.config import ExperimentConfig
from fedatlas.config.parties import dealt
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.vertical.scheme import Scheme

FOR_ROWS = (
    "parties hold columns here: 'fedatlas run' and 'fedatlas align' take this experiment; studies, baselines and plug-ins of "
    "clients that hold rows do not."
)


class Checked(NamedTuple):
    """An experiment that can be run, as far as its text tells; no data have been read."""

    config: ExperimentConfig  # every key written out, as config.toml records it
    algorithm: Algorithm
    notices: tuple[str, ...] = ()
    transform: Transform | None = None
    mechanisms: tuple[Mechanism, ...] = ()  # of ``[[privacy]]``, in the sound order
    poisonings: tuple[Poisoning, ...] = ()  # of ``[[attack]]``
    rule: Rule | None = None  # of ``[aggregation]``
    module: nn.Module | None = None  # the user's own network in place of ``[model]``
    scheme: Scheme | None = None  # what parties that hold columns train
    how: Any = None  # the scheme's settings

    @property
    def columns(self) -> bool:
        """Whether parties hold columns of the same rows, not rows of the same columns."""
        return self.scheme is not None

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names in order; () where only the data tell how many there are."""
        if self.config.parties:
            return tuple(one.name for one in self.config.parties)
        if not self.columns:
            return tuple(str(k) for k in range(self.config.partition.clients))
        how = dealt(self.config.partition.parameters())
        return tuple(how.columns) or tuple(f"party-{k}" for k in range(how.parties))

    def with_seed(self, seed: int) -> Checked:
        """The same experiment with one seed; no seed decides what is refused."""
        return self._replace(config=self.config.model_copy(update={"seed": seed, "seeds": None}))

    def of_columns(self) -> Scheme:
        """The scheme; ConfigError where clients hold rows."""
        if self.scheme is None:
            raise ConfigError("there is nothing to align: add [[parties]], or [partition] name = 'vertical'.")
        return self.scheme

    def of_rows(self) -> Checked:
        """Itself; ConfigError where parties hold columns."""
        if self.columns:
            raise ConfigError(FOR_ROWS)
        return self
