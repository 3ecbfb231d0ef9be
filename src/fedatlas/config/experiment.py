"""The experiment file: TOML in, frozen typed values out. Parsed once, here; `docs/experiment.md` defines the format.

A component is a table with ``name`` and that builder's keyword arguments; the builder's typed signature is the schema, so a
third party's algorithm brings its own keys. Unknown keys are refused with the nearest valid name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedatlas.attacks.poisoning import POISONING
from fedatlas.config.attacks import AggregationConfig, AttackConfig
from fedatlas.config.audit import AuditConfig
from fedatlas.config.drift import DriftConfig
from fedatlas.config.engine import EngineConfig
from fedatlas.config.observe import ObserveConfig
from fedatlas.config.parties import DEALS, AlignConfig, PartyConfig, check_columns, of_rows, only_columns
from fedatlas.config.privacy import PrivacyConfig, bound_to_rounds
from fedatlas.config.tracking import TrackingConfig
from fedatlas.config.words import WordsConfig
from fedatlas.data.config import DataConfig, PublicConfig
from fedatlas.data.kept import look_in
from fedatlas.errors import as_utf8
from fedatlas.models import MixedConfig, ModelConfig
from fedatlas.overrides import OwnKeys, plain_values, without_replaced
from fedatlas.registry import (
    Component,
    ConfigTable,
    Count,
    Decay,
    Positive,
    Rate,
    Whole,
    config_error,
    refuse_flags,
)
from fedatlas.vertical import SCHEMES

Share = Annotated[float, Field(ge=0, le=1)]
FOLDS = 5  # parts of each client's rows, one of which `evaluation.fold` names


class PartitionConfig(Component):
    """``[partition]``: the assignment of data to clients."""

    name: str = "majority_even"
    clients: Count = 12  # 0 = as many as there are natural owners
    min_size: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _all_natural_owners(cls, values: Any) -> Any:
        natural = isinstance(values, dict) and str(values.get("name", "")).startswith(("natural", "flwr:Natural"))
        return {**values, "clients": 0} if natural and "clients" not in values else values


class CohortConfig(ConfigTable):
    """``[cohort]``: the clients that take part in a round."""

    fraction: Share = 1.0
    size: Whole | None = None
    sampling: Literal["uniform", "poisson", "passes"] = "uniform"

    @model_validator(mode="after")
    def _poisson_has_a_rate(self) -> CohortConfig:
        if self.sampling == "poisson" and self.size is not None:
            raise ValueError("poisson sampling needs a rate: give cohort.fraction, not cohort.size")
        if {"fraction", "size"} <= self.model_fields_set and self.size is not None:
            raise ValueError("give cohort.fraction or cohort.size, not both")
        return self


class FailuresConfig(ConfigTable):
    """``[failures]``: clients that do not return, or work less."""

    dropout: Share = 0.0
    stragglers: Share = 0.0
    straggler_policy: Literal["keep", "drop"] = "keep"


class AlgorithmConfig(Component):
    """``[algorithm]``: the algorithm and its parameters."""

    name: str = "fedavg"


class ScheduleConfig(ConfigTable):
    """``[local.schedule]``: the learning rate as a function of the global round."""

    name: Literal["constant", "exponential", "step", "cosine"] = "constant"
    gamma: Positive | None = None
    every: Whole | None = None
    rounds: Whole | None = None  # over which cosine falls to 0; by default the experiment's

    @model_validator(mode="after")
    def _has_its_keys(self) -> ScheduleConfig:
        if self.rounds is not None and self.name != "cosine":
            raise ValueError(f"the schedule '{self.name}' has no key 'rounds'")
        needs = {"exponential": {"gamma"}, "step": {"every", "gamma"}}.get(self.name, set())
        for key in ("gamma", "every"):
            given = getattr(self, key) is not None
            if given and key not in needs:
                raise ValueError(f"the schedule '{self.name}' has no key '{key}'")
            if not given and key in needs:
                raise ValueError(f"the schedule '{self.name}' needs the key '{key}'")
        return self


class LocalConfig(ConfigTable):
    """``[local]``: a client's work in a round."""

    epochs: Whole | None = 1
    steps: Whole | None = None
    batch_size: Count = 32
    last_batch: Literal["keep", "merge"] | None = None  # None: "keep", and hashes stay as they are
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: Decay = 0.0
    nesterov: bool = False
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    lr: Positive = 0.05
    weight_decay: Rate = 0.0
    clip: Rate = 0.0
    schedule: ScheduleConfig = ScheduleConfig()

    @model_validator(mode="before")
    @classmethod
    def _steps_instead_of_epochs(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("steps") is not None and "epochs" not in values:
            return {**values, "epochs": None}
        return values

    @field_validator("last_batch")
    @classmethod
    def _kept_as_left_out(cls, value: str | None) -> str | None:
        return None if value == "keep" else value

    @property
    def merges(self) -> bool:
        """Whether a short last batch joins the one before it."""
        return self.last_batch == "merge"

    @model_validator(mode="after")
    def _consistent(self) -> LocalConfig:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give local.epochs or local.steps, not both")
        if self.optimizer == "adam" and (self.momentum or self.nesterov):
            raise ValueError("adam has betas, not momentum or nesterov: remove them or set optimizer = 'sgd'")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class CompressionConfig(Component):
    """``[compression]``: compression of what a client sends."""


MetricName = Literal["accuracy", "balanced_accuracy", "macro_f1", "auc", "pr_auc", "log_loss", "rmse", "mae", "r2"]
"""Name of one of `metrics.metric.METRICS`."""


class EvaluationConfig(ConfigTable):
    """``[evaluation]``."""

    every: Whole = 1
    on: Literal["test", "validation"] = "test"
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    clients: Annotated[float, Field(ge=0, lt=1)] = 0.0
    drift: bool = False  # of models; [drift] is that of the clients' rows
    rounds: tuple[Whole, ...] | None = None  # replaces every; None keeps hashes unchanged
    metric: MetricName | None = None  # by which models are compared; None: the one that suits the data
    positive: str | None = None  # of two classes, the one that pr_auc is about; None: the rarer one
    margin: Rate | None = None  # a difference up to this does not count for the answer; None: 0
    fold: Annotated[int, Field(ge=1, le=FOLDS)] | None = None  # of each client's rows; None keeps hashes unchanged

    @model_validator(mode="after")
    def _fold_of_validation(self) -> EvaluationConfig:
        if self.fold is not None and self.on != "validation":
            raise ValueError("evaluation.fold names validation rows: set evaluation.on = 'validation', or remove fold")
        return self

    @model_validator(mode="after")
    def _one_of_both(self) -> EvaluationConfig:
        if self.rounds is not None and self.every != 1:
            raise ValueError("evaluation.rounds already names the rounds to evaluate; remove evaluation.every")
        return self

    def judges(self, number: int) -> bool:
        """Return whether a round is evaluated; row 0 and the last round always are."""
        return number % self.every == 0 if self.rounds is None else number in self.rounds


class GuardConfig(ConfigTable):
    """``[guard]``: rows of the server's own decide whether a round's model is committed."""

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True, allow_inf_nan=True
    )

    source: Literal["test", "train"] = Field(default="test", alias="from")
    rows: Whole = 500
    metric: MetricName | None = None  # None: macro_f1; for numbers r2, for texts accuracy
    tol: Annotated[float, Field(ge=0)] = 0.02  # inf: every model is committed
    drifted: bool | None = None  # whether the rows follow [drift]; None (or false, which is left out): they stay

    @field_validator("drifted")
    @classmethod
    def _staying_as_left_out(cls, value: bool | None) -> bool | None:
        return value or None


class StopConfig(ConfigTable):
    """``[stop]``: conditions to end before the last round."""

    accuracy: Share | None = None
    patience: Whole | None = None


class RoundConfig(ConfigTable):
    """``[round]``: handling of a deployed round in which a node is lost; a simulation loses none."""

    on_loss: Literal["continue", "wait"] = "continue"
    deadline: Positive = 600.0  # seconds
    minimum: Whole = 2


class CheckpointConfig(ConfigTable):
    """``[checkpoint]``: save every ``every`` rounds, and keep the last ``keep``."""

    every: Whole = 1
    keep: Whole = 2


COMPONENTS: Mapping[str, type[BaseModel]] = {
    "partition": PartitionConfig,
    "model": ModelConfig,
    "algorithm": AlgorithmConfig,
    "compression": CompressionConfig,
    "aggregation": AggregationConfig,
}
"""Tables whose further keys are those of the builder called ``name``."""
OWN_KEYS = {
    table: OwnKeys(kind.model_fields["name"].default, [*kind.model_fields]) for table, kind in COMPONENTS.items()
}
"""Table -> the component that it names by default, and the keys that do not depend on it."""


class ExperimentConfig(ConfigTable):
    """A whole experiment."""

    seed: Count = 1
    seeds: tuple[Count, ...] | None = None
    rounds: Count = 20
    profile: Literal["silo", "device"] = "silo"
    data: DataConfig = DataConfig()
    public: PublicConfig | None = None
    partition: PartitionConfig = PartitionConfig()
    cohort: CohortConfig = CohortConfig()
    failures: FailuresConfig = FailuresConfig()
    model: ModelConfig = ModelConfig()
    models: tuple[MixedConfig, ...] = ()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    local: LocalConfig = LocalConfig()
    compression: CompressionConfig | None = None
    privacy: tuple[PrivacyConfig, ...] = ()
    attack: tuple[AttackConfig, ...] = ()
    aggregation: AggregationConfig | None = None
    guard: GuardConfig | None = None
    drift: DriftConfig | None = None
    parties: tuple[PartyConfig, ...] = ()
    align: AlignConfig | None = None
    observe: ObserveConfig | None = None
    audit: AuditConfig | None = None
    tracking: TrackingConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    words: WordsConfig | None = None
    stop: StopConfig | None = None
    round: RoundConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = EngineConfig()

    @field_validator("privacy", "attack", mode="before")
    @classmethod
    def _a_table_each(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping):
            one = "mechanism" if info.field_name == "privacy" else "attack"
            raise ValueError(f"write [[{info.field_name}]], one table per {one}")  # noqa: TRY004  (what pydantic reads)
        return value

    @field_validator("seeds", mode="before")
    @classmethod
    def _several_seeds(cls, value: Any) -> Any:
        if isinstance(value, int):
            said = f"seeds = {value}: expected a list, such as seeds = [1, 2, 3]; one alone is seed = {value}"
            raise ValueError(said)  # noqa: TRY004  (what pydantic reads)
        return value

    @model_validator(mode="after")
    def _stragglers_run_fewer_epochs(self) -> ExperimentConfig:
        if self.failures.stragglers and self.local.steps is not None:
            raise ValueError(
                "stragglers run fewer epochs: give local.epochs, not local.steps, or failures.stragglers = 0"
            )
        return self

    @model_validator(mode="after")
    def _one_model_or_several(self) -> ExperimentConfig:
        if not self.models:
            return self
        own = sorted({*self.model.model_fields_set, *(self.model.model_extra or {})} - {"loss", "bn"})
        if any(key != "init" or self.model.init for key in own):
            raise ValueError(
                f"give [[models]] or model.{own[0]}, not both: with [[models]], [model] holds only loss and bn"
            )
        if len(self.models) == 1 or abs(sum(each.share for each in self.models) - 1) > 1e-6:
            shares = ", ".join(f"{each.share:g}" for each in self.models)
            raise ValueError(f"[[models]]: give two or more, with shares that add up to 1, not {shares}")
        return self

    @model_validator(mode="after")
    def _seeds(self) -> ExperimentConfig:
        if self.seeds is not None and (len(self.seeds) == 0 or len(set(self.seeds)) != len(self.seeds)):
            raise ValueError("seeds: give a list of different whole numbers")
        if self.seeds is not None and "seed" in self.model_fields_set:
            raise ValueError("give seed or seeds, not both")
        return self

    @model_validator(mode="after")
    def _parties_of_columns(self) -> ExperimentConfig:
        check_columns(self)
        return self

    @property
    def party(self) -> str:
        """The user's word for a party."""
        return (self.words and self.words.party) or "client"

    @property
    def columns(self) -> bool:
        """Return whether a scheme of `SCHEMES` trains, whose parties hold columns of the same rows (or rows, as its layout says)."""
        return bool(self.parties) or self.partition.name in DEALS or of_rows(self.algorithm.name)

    def plain(self) -> dict[str, Any]:
        """Return the whole configuration as plain values that TOML can hold and `parse` reads back; defaults included, None left out."""
        out = self._values()
        if "size" in out.get("cohort", {}):
            out["cohort"].pop("fraction", None)
        return out

    def _values(self) -> dict[str, Any]:
        out: dict[str, Any] = _drop_none(json.loads(self.model_dump_json()))
        if "seeds" in out:
            out.pop("seed", None)
        for several in ("privacy", "attack", "parties"):
            if not getattr(self, several):
                out.pop(several)
        if self.guard is not None:
            out["guard"]["tol"] = self.guard.tol  # JSON has no infinity
        if not self.models:
            out.pop("models")
        else:
            out["model"] = {key: out["model"][key] for key in ("loss", "bn")}
        return only_columns(out, self.parties) if self.columns else out

    def hash(self) -> str:
        """Return the SHA-256 of everything that affects the result, so without checkpoints and the number of rounds.

        The number of rounds counts if it determines the noise of every round (`bound_to_rounds`).
        """
        plain = self._values()
        if deciding := [table for table in plain.pop("attack", ()) if table["name"] in POISONING]:
            plain["attack"] = deciding
        audit = plain.pop("audit", {})
        if audit.get("canaries"):
            plain["audit"] = {key: audit[key] for key in ("canaries", "unit")}
        plain.pop("round", None)
        plain.pop("words", None)
        plain.get("engine", {}).pop("cluster", None)
        plain.get("evaluation", {}).pop("margin", None)  # it decides what the answer says, not what the run computes
        if self.columns:
            plain["algorithm"].pop(SCHEMES[self.algorithm.name].rounds, None)
        elif plain["local"]["schedule"]["name"] == "cosine":
            plain["local"]["schedule"].setdefault("rounds", self.rounds)
        for key in (
            "checkpoint",
            "observe",
            "tracking",
            *(() if bound_to_rounds(self.privacy) else ("rounds",)),
        ):
            plain.pop(key, None)
        text = json.dumps(plain, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _drop_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _drop_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_drop_none(v) for v in value]
    return value


def parse(values: Mapping[str, Any]) -> ExperimentConfig:
    """Return a checked configuration from plain nested values."""
    refuse_flags(values, ExperimentConfig)
    refuse_bytes(values)
    try:
        return ExperimentConfig.model_validate(dict(values))
    except ValidationError as error:
        raise config_error(error, model=ExperimentConfig) from None


def refuse_bytes(value: Any, where: str = "") -> None:
    """Raise ConfigError for a text that is not UTF-8, such as a file name in another encoding, which no record could hold."""
    if isinstance(value, Mapping | list | tuple):
        named = value.items() if isinstance(value, Mapping) else ((where, each) for each in value)
        for key, each in named:
            refuse_bytes(each, f"{where}.{key}" if where and isinstance(value, Mapping) else str(key))
    elif isinstance(value, str):
        as_utf8(value, f"{where}: ")


def read(path: Path | None, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read the experiment file with ``table.key=value`` overrides; None = the embedded default experiment."""
    if path is not None:
        look_in(path.parent)
    return parse(plain_values(path, overrides, OWN_KEYS))


def renamed(values: dict[str, Any], text: str) -> None:
    """Remove the file's keys of a component that ``table.name=other`` replaces."""
    without_replaced(values, text, OWN_KEYS)
