"""Parties that hold columns as scikit-learn estimators: the rounds of a run, on rows that are matched already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedatlas import machine
from fedatlas.algorithm import State
from fedatlas.api import Experiment
from fedatlas.course.columns_end import named as gain_by_column
from fedatlas.data.party_tables import PartyFile, PartyTable, TrainedTable, as_trained, party_of
from fedatlas.errors import ConfigError, DataError, unknown_name
from fedatlas.estimators.parameters import free, named, seed_of
from fedatlas.estimators.parties import Parties
from fedatlas.federation.client_states import PartyState
from fedatlas.prediction.parties import outputs_of
from fedatlas.privacy.mechanism import on_rows
from fedatlas.runs.columns_baselines import drive, trained
from fedatlas.setup.consortium import columns_of, consortium_of
from fedatlas.setup.refusals import checked
from fedatlas.vertical import SCHEMES
from fedatlas.vertical.align import placed
from fedatlas.vertical.ids import seed_key
from fedatlas.vertical.judging import probabilities
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import Floats, tensor
from fedatlas.vertical.scheme import How

ID, LABEL = "id", "y"


class PartyPart(NamedTuple):
    """A party's part of a trained model, and how its table was read."""

    table: TrainedTable
    exported: Mapping[str, Any]  # as `Scheme.export`


class TrainedTogether(NamedTuple):
    """A trained model: every party's part of it."""

    name: str  # of the scheme
    how: How
    active: int
    parts: tuple[PartyPart, ...]
    importance: Mapping[str, Mapping[str, float]]  # party -> column -> gain

    def outputs(self, rows: Parties) -> Floats:
        """Return (n,) outputs, as `Scheme.outputs`. DataError for a party or a column that is lacking."""
        names, states, parties = tuple(one.table.name for one in self.parts), PartyState(), []
        scheme = SCHEMES[self.name]
        for k, (table, exported) in enumerate(self.parts):
            if table.name not in rows.names:
                raise DataError(f"party '{table.name}' is lacking: the model was trained with {', '.join(names)}.")
            found = as_trained(rows[table.name], table)
            parties.append(columns_of(k, found, self.active, names, 0))
            loaded = scheme.load(parties[-1], exported)
            states.after.put(k, {**loaded, "align": {"order": tensor(np.arange(len(rows)))}})
        return outputs_of(parties, states, scheme, self.how)[0]


class ColumnsEstimator(BaseEstimator):  # type: ignore[misc]
    """Facts about every estimator on columns."""

    run_: TrainedTogether

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.two_d_array = False
        tags.non_deterministic = False
        return tags

    @property
    def n_features_in_(self) -> int:
        """Number of columns of all parties in training, text columns counted once."""
        return sum(len(one.table.schema) for one in self.run_.parts)


class OfClasses(ClassifierMixin):  # type: ignore[misc]
    """Learning and predicting classes."""

    def fit(self, parties: Parties, y: Any) -> Self:
        """Train. ConfigError and DataError as in a run, and for ``y`` of another length; ValueError for fewer than two classes."""
        rows, y = given(self, parties, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has only one class: there is nothing to learn.")
        train(self, rows, codes, "classes")
        return self

    def predict_proba(self, parties: Parties) -> np.ndarray:
        """Return the probability of each class, (n, classes)."""
        p = probabilities(outputs(self, parties))
        return p if p.ndim == 2 else np.stack([1 - p, p], axis=1)

    def predict(self, parties: Parties) -> np.ndarray:
        """Return the most probable class of each row, (n,)."""
        check_is_fitted(self, "run_")
        return np.asarray(self.classes_[self.predict_proba(parties).argmax(axis=1)])


class OfNumbers(RegressorMixin):  # type: ignore[misc]
    """Learning and predicting numbers."""

    def fit(self, parties: Parties, y: Any) -> Self:
        """Train. ConfigError and DataError as in a run, and for ``y`` of another length."""
        rows, y = given(self, parties, y)
        train(self, rows, np.asarray(y, np.float64), "numbers")
        return self

    def predict(self, parties: Parties) -> np.ndarray:
        """Return the number predicted for each row, (n,)."""
        return outputs(self, parties)


class _SecureBoost:
    """The parameters of both estimators."""

    scheme = "secureboost"

    def __init__(
        self,
        *,
        trees: int = 30,
        depth: int = 3,
        bins: int = 32,
        precision: int = 24,
        learning_rate: float = 0.3,
        l1: float = 0.0,
        l2: float = 1.0,
        min_gain: float = 0.0,
        min_leaf: int = 1,
        subsample: float = 1.0,
        columns: float = 1.0,
        complete_secure: int = 0,
        settings: Mapping[str, Any] | None = None,
        privacy: str | Mapping[str, Any] | None = None,
        label_party: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.trees = trees
        self.depth = depth
        self.bins = bins
        self.precision = precision
        self.learning_rate = learning_rate
        self.l1 = l1
        self.l2 = l2
        self.min_gain = min_gain
        self.min_leaf = min_leaf
        self.subsample = subsample
        self.columns = columns
        self.complete_secure = complete_secure
        self.settings = settings
        self.privacy = privacy
        self.label_party = label_party
        self.random_state = random_state


class SecureBoostClassifier(OfClasses, _SecureBoost, ColumnsEstimator):
    """Gradient-boosted trees that parties with different columns grow together; simulated here, as `Parties` holds all tables.

    ``fit(parties, y)`` grows the trees of ``fedatlas run``: the same rows, seed and keys give the same bits. Text columns are one 0/1
    column per category, at their owner; missing values need no care.

    trees ... complete_secure: the keys of ``[algorithm] name = "secureboost"``. settings: further keys of it. privacy: None, in the
    clear, or "paillier", or a mapping with the name and its keys; it changes no tree. label_party: the party that holds y; None: the
    first. random_state: of every draw.

    Fitted: ``classes_``, ``n_features_in_``, ``importance_`` (party -> column -> gain), and ``run_``, the trained model.
    """


class SecureBoostRegressor(OfNumbers, _SecureBoost, ColumnsEstimator):
    """A regressor of the same kind. The parameters are those of `SecureBoostClassifier`."""


def train(estimator: Any, parties: Parties, y: np.ndarray, task: str) -> None:
    """Train an estimator: its ``scheme`` by name, whose keys of ``[algorithm]`` are among its parameters."""
    names = parties.names
    holder = names[0] if estimator.label_party is None else estimator.label_party
    if holder not in names:
        raise unknown_name("party", str(holder), names)
    own = estimator.get_params(deep=False)
    given = {key: own[key] for key in signature(SCHEMES[estimator.scheme].build).parameters if key in own}
    privacy, more = own.get("privacy"), own.get("settings")
    if not isinstance(more or {}, Mapping):
        raise ConfigError(f'settings takes keys of [algorithm], such as {{"pack": False}}, not {more!r}.')
    experiment = Experiment.of(
        parties=[{"name": n, "path": "", "id": ID, **({"label": LABEL} if n == holder else {})} for n in names],
        algorithm={"name": estimator.scheme, **given, **(more or {})},
        privacy=[] if privacy is None else [named(privacy)],
        seed=seed_of(estimator.random_state),
    )
    tables = [table_of_party(name, parties, y if name == holder else None, task) for name in names]
    estimator.run_ = trained_on(checked(experiment.config), tables)
    estimator.importance_ = estimator.run_.importance


def rows_of(estimator: Any, parties: Any) -> Parties:
    """Return parties as they are given. ConfigError for anything else."""
    if not isinstance(parties, Parties):
        raise ConfigError(
            f'{type(estimator).__name__} takes Parties({{"bank": table, "shop": table}}), not {type(parties).__name__}.'
        )
    return parties


def given(estimator: Any, parties: Any, y: Any) -> tuple[Parties, np.ndarray]:
    """Return rows and their target. ConfigError for rows of another form, DataError for a target that does not fit them."""
    rows = rows_of(estimator, parties)
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    found = column_or_1d(y, warn=True)
    if len(found) != len(rows):
        raise DataError(
            f"y has {len(found):,} values, but all parties have {len(rows):,} rows: give y for the ids in parties.ids."
        )
    if lost := int(pd.isna(found).sum()):
        raise DataError(f"y has no value in {lost:,} of {len(found):,} rows: leave these rows out.")
    return rows, found


def outputs(estimator: Any, parties: Any) -> Floats:
    """Return the outputs of a trained estimator, as `Scheme.outputs`."""
    check_is_fitted(estimator, "run_")
    found: Floats = estimator.run_.outputs(rows_of(estimator, parties))
    return found


def table_of_party(name: str, parties: Parties, y: np.ndarray | None, task: Any) -> PartyTable:
    """Return a party's rows as its file would be read. ``y``: the target, if it holds it."""
    table = parties[name]
    own, label = free(table.columns, ID), "" if y is None else free(table.columns, LABEL)
    times = (
        parties.index.to_series().groupby(level=0).cumcount().to_numpy()
    )  # rows drawn more than once need ids of their own
    ids = [f"{one} ({k} drawn before)" if k else one for one, k in zip(parties.ids, times, strict=True)]
    table = table.assign(**{own: ids, **({} if y is None else {label: y})}).reset_index(drop=True)
    return party_of(table, PartyFile(name, "", own, label, task=task), f"party '{name}'", "", drop_unlabelled=False)


@machine.one_thread_an_operator()
def trained_on(whole: Any, tables: Sequence[PartyTable]) -> TrainedTogether:
    """Run every round of an experiment on tables whose rows are matched, all of them to train on."""
    if changing := on_rows(whole.mechanisms):
        raise ConfigError(
            f"privacy = '{changing[0].name}': an estimator keeps no ledger of what the noise of labels costs: run an experiment file."
        )
    held, scheme, key = consortium_of(whole, tables), whole.of_columns(), seed_key(whole.config.seed)
    everything, nothing = np.arange(len(tables[0].ids)), np.array([], np.int64)
    split = {"train": tensor(everything), "held": tensor(nothing), "test": tensor(nothing)}
    states: list[State] = [{**placed(one, {}, key, everything), "split": split} for one in held.parties]
    how, rounds = whole.how, whole.config.rounds
    done = trained(Side(held.parties, tuple(states)), scheme, how, rounds, "estimator")
    gains = scheme.brought(drive(done.federation, lambda: scheme.end(how, done.server), rounds + 1))
    parts = []
    for data, table in zip(held.parties, tables, strict=True):
        exported = scheme.export(data, done.state(data.party))
        reads = scheme.reads(exported["table"])
        parts.append(PartyPart(TrainedTable(table.name, ID, table.schema, reads, table.reading, table.bits), exported))
    importance = {one.name: gain_by_column(one, gains[one.name]) for one in tables}
    return TrainedTogether(scheme.name, how, held.active, tuple(parts), importance)
