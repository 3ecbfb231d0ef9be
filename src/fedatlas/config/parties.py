"""``[[parties]]``, ``[align]`` and further keys for parties that hold columns; keys without meaning there are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedatlas.data.cells import Dates, Decimal, Thousands
from fedatlas.data.party_ids import IdPlan, Rule, check_alike, id_plan
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import for_labels
from fedatlas.registry import ConfigTable, arguments
from fedatlas.vertical import SCHEMES

VERTICAL = "vertical"
HYBRID = "hybrid"
DEALS = (VERTICAL, HYBRID)
"""Values of ``partition.name`` by which parties hold columns of one table."""
ROWS_ONLY = (
    "attack",
    "aggregation",
    "cohort",
    "failures",
    "model",
    "models",
    "local",
    "compression",
    "public",
    "guard",
    "drift",
    "observe",
)
"""Tables of an experiment that apply only to clients that hold rows."""
KEPT: Mapping[str, tuple[str, ...]] = {
    "data": ("test", "missing"),
    "evaluation": ("every", "on", "validation", "metric"),
    "engine": ("workers",),
}
"""Keys of other tables that also apply here; for ``[data]``, if each party brings its file."""
IdPart = str | dict[Rule, str]
"""A column of an id, or {rule: column}."""
ABLE = ", ".join(f"'{name}'" for name, one in SCHEMES.items() if one.layout == "columns")


class PartyConfig(ConfigTable):
    """One of ``[[parties]]``: a file, the columns of its ids, and at one party the label."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
    path: str
    id: str | tuple[IdPart | tuple[IdPart, ...], ...] | None = None  # None: of parties that hold rows
    label: str | None = None
    weight: str | None = None
    task: Literal["auto", "classes", "numbers"] | None = None
    drop: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    thousands: Thousands | None = None
    units: tuple[str, ...] | None = None
    na: tuple[str, ...] | None = None
    dates: Dates | None = None
    decimal: Decimal | None = None
    separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    normalise: tuple[Rule, ...] | dict[str, tuple[Rule, ...]] | None = None

    @property
    def ids(self) -> IdPlan:
        """How the rows get their ids. ConfigError without a column for them."""
        if self.id is None:
            raise ConfigError('id is missing: name the column by which rows are matched, as in id = "COLUMN".')
        return id_plan(self.id, self.normalise or ())


class AlignConfig(ConfigTable):
    """``[align]``: how rows are matched."""

    name: Literal["psi", "none"] = "psi"
    group: Literal["ristretto255", "x25519"] = "ristretto255"
    reveal: str = "all"

    @field_validator("group", mode="before")
    @classmethod
    def _renamed(cls, value: Any) -> Any:
        if value == "ed25519":
            raise ValueError("group = 'ed25519': 'ristretto255' replaced it; write that, or leave the key out")
        return value


class Dealt(ConfigTable):
    """``[partition]``, "vertical" or "hybrid": how the columns of one table are dealt to parties."""

    parties: int
    columns: Mapping[str, tuple[str, ...]] = {}
    label_party: int | str
    overlap: float
    shared: float | None = None  # of the columns, those that all parties have; None: "vertical"


def vertical(
    *,
    parties: Annotated[int, Field(ge=1, le=8)] = 2,
    columns: Mapping[str, tuple[str, ...]] = {},
    label_party: int | str = 0,
    overlap: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> Dealt:
    """One table's columns dealt to parties, to try vertical federation; each row is matched by its number in the table.

    parties: number of parties; each gets a contiguous block of the columns, in the table's order.
    columns: party -> its columns, by name, instead of blocks; a column that is not listed is left out.
    label_party: the party that holds the label, by index or by name.
    overlap: share of the rows that all parties have; each other row is at only one of them.
    """
    return Dealt(parties=parties, columns=dict(columns), label_party=label_party, overlap=overlap)


def hybrid(
    *,
    parties: Annotated[int, Field(ge=2, le=8)] = 2,
    overlap_rows: Annotated[float, Field(gt=0, le=1)] = 0.3,
    overlap_cols: Annotated[float, Field(ge=0, le=1)] = 0.5,
    label_party: int | str = 0,
) -> Dealt:
    """One table's rows and columns dealt to parties that share some of both, for ``hybrid``; a row is matched by its number.

    parties: number of parties.
    overlap_rows: share of the rows that all parties have; each other row is at only one of them.
    overlap_cols: share of the columns that all parties have; each other column is at only one of them.
    label_party: the party with the labels of common rows, by index or by name; each party has those of its other rows.
    """
    return Dealt(parties=parties, label_party=label_party, overlap=overlap_rows, shared=overlap_cols)


def dealt(given: Mapping[str, Any], name: str = VERTICAL) -> Dealt:
    """Check the keys of ``[partition]``."""
    if name == HYBRID:
        return hybrid(**arguments("partition", hybrid, given))
    found = vertical(**arguments("partition", vertical, given))
    if found.columns and "parties" in given and len(found.columns) != found.parties:
        raise ConfigError(
            f"partition.parties = {found.parties}, but partition.columns names {len(found.columns)} parties: remove one of the keys."
        )
    return found.model_copy(update={"parties": len(found.columns)}) if found.columns else found


def of_rows(name: str) -> bool:
    """Return whether an algorithm is a scheme of parties that hold rows of the same columns."""
    return name in SCHEMES and SCHEMES[name].layout == "rows"


def check_columns(config: Any) -> None:
    """Raise ConfigError for keys that have no meaning where parties hold columns, or are not supported yet.

    ``config``: an `ExperimentConfig`.
    """
    given = config.model_fields_set
    if of_rows(config.algorithm.name):
        check_rows(config)
        return
    if not (config.parties or config.partition.name in DEALS):
        _only_of_columns(config)
        return
    _check_names(config)
    for table in ROWS_ONLY:
        if table in given and getattr(config, table):
            raise ConfigError(f"[{table}] is for clients that hold rows: leave it out if parties hold columns.")
    if config.profile != "silo":
        raise ConfigError(f"profile = '{config.profile}': parties that hold columns are silos: leave the key out.")
    if config.audit is not None and config.audit.canaries:
        raise ConfigError("audit.canaries are for clients that hold rows: leave the key out.")
    _check_keys(config)
    if config.partition.name not in DEALS and "partition" in given:
        raise ConfigError(f"partition.name = '{config.partition.name}' deals rows: with [[parties]], leave it out.")
    for key in ("clients", "min_size"):
        if key in config.partition.model_fields_set:
            raise ConfigError(f"partition.{key} is for clients that hold rows: leave it out.")
    if config.parties and config.partition.parameters():
        key = next(iter(config.partition.parameters()))
        raise ConfigError(f"partition.{key} deals the columns of one table: with [[parties]], leave it out.")
    if not config.parties:
        dealt(config.partition.parameters(), config.partition.name)
    if config.align is not None and config.align.reveal != "all":
        raise ConfigError(
            f"align.reveal = '{config.align.reveal}': every party learns which of its rows are common, because a tree tells it "
            "which rows are at a node: set 'all'."
        )
    _check_mechanisms(config)


def check_rows(config: Any) -> None:
    """Raise ConfigError for keys that have no meaning for a scheme whose parties hold rows of the same columns."""
    name, given = config.algorithm.name, config.model_fields_set
    for table in (*ROWS_ONLY, "align", "stop"):
        if table in given and getattr(config, table):
            raise ConfigError(
                f"[{table}] has no meaning for '{name}', which solves one system of equations: leave it out."
            )
    if config.profile != "silo":
        raise ConfigError(f"profile = '{config.profile}': the owners of '{name}' are silos: leave the key out.")
    if config.evaluation.on == "validation":
        raise ConfigError(f"evaluation.on = 'validation': '{name}' has nothing to stop by: leave the key out.")
    if config.parties and "partition" in given:
        raise ConfigError("[partition] deals the rows of one table: with [[parties]], leave it out.")
    if config.partition.name == VERTICAL:
        raise ConfigError(
            f"partition.name = '{VERTICAL}' deals columns, and the owners of '{name}' hold rows: use 'iid' or another."
        )
    _check_keys(config, "rows of the same columns")
    _check_owners(config.parties, (*SCHEMES[name].roles, "joined"))
    if not config.parties and config.partition.clients == 1:
        raise ConfigError("partition.clients = 1: one owner needs no protocol; deal the rows to two or more.")
    _check_mechanisms(config)


def _check_owners(parties: Sequence[PartyConfig], taken: Sequence[str]) -> None:
    """Raise ConfigError for ``[[parties]]`` that cannot be owners of rows. ``taken``: names that they may not have."""
    _check_named(parties)
    for one in parties:
        if one.name in taken:
            raise ConfigError(f"[[parties]]: '{one.name}' is the name of a role of this protocol: rename the party.")
        if not one.label:
            raise ConfigError(
                f"party '{one.name}' names no label: each owner of rows has its own; set label = \"COLUMN\"."
            )
        if one.weight is not None:
            raise ConfigError(f"party '{one.name}': weight: all rows count alike here: leave the key out.")
        for key in ("id", "normalise"):
            if getattr(one, key) is not None:
                raise ConfigError(
                    f"party '{one.name}': {key} is for rows that are matched, and owners of rows match none: leave it out, and name "
                    "a column of ids in drop."
                )


def _check_named(parties: Sequence[PartyConfig]) -> None:
    names = [one.name for one in parties]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ConfigError(f"two of [[parties]] are called '{twice[0]}': rename one.")
    if len(names) == 1:
        raise ConfigError("[[parties]]: name two or more; to train one party's table alone, use [data] name = 'file'.")


def _only_of_columns(config: Any) -> None:
    if config.align is not None:
        raise ConfigError("[align] matches rows of [[parties]], or of [partition] name = 'vertical': add one of them.")
    if (name := config.algorithm.name) in SCHEMES:
        raise ConfigError(
            f"algorithm '{name}' works with parties that hold columns: add [[parties]], or [partition] name = 'vertical'."
        )


def _check_names(config: Any) -> None:
    name = config.algorithm.name
    if name not in SCHEMES:
        asked = (
            f"algorithm '{name}' trains"
            if "algorithm" in config.model_fields_set
            else "no algorithm is given, and the default 'fedavg' works"
        )
        raise ConfigError(f"{asked} with clients that hold rows; for columns set algorithm.name = {ABLE}.")
    if len(config.parties) > 8:
        raise ConfigError(f"[[parties]]: there are {len(config.parties)}, but at most 8 can be matched.")
    _check_named(config.parties)
    holders = [one.name for one in config.parties if one.label]
    if config.parties and not holders:
        raise ConfigError(
            '[[parties]]: no party names its label; set label = "COLUMN" at the one that holds the target.'
        )
    several = SCHEMES[name].several_labels
    if config.partition.name == HYBRID and not several:
        raise ConfigError(
            f"partition.name = 'hybrid' deals rows that only algorithm 'hybrid' trains on; '{name}' takes 'vertical'."
        )
    if len(holders) > 1 and not several:
        raise ConfigError(
            f"[[parties]]: '{holders[0]}' and '{holders[1]}' both name a label; exactly one party may hold it."
        )
    _check_ids(config)
    for one in config.parties:
        for key in ("weight", "task"):
            if getattr(one, key) and not one.label:
                raise ConfigError(f"party '{one.name}': {key} belongs with the label, which '{holders[0]}' holds.")


def _check_ids(config: Any) -> None:
    plans: dict[str, IdPlan] = {}
    for one in config.parties:
        try:
            plans[one.name] = one.ids
        except ConfigError as error:
            raise ConfigError(f"party '{one.name}': {error}") from None
    if not plans:
        return
    check_alike(plans)
    if plans[config.parties[0].name].linked and config.align is not None and config.align.name == "none":
        raise ConfigError("align.name = 'none' compares one id in each row: with several keys in turn, use 'psi'.")


def _check_keys(config: Any, held: str = "columns") -> None:
    for table, keys in KEPT.items():
        own = getattr(config, table)
        if table == "data" and not config.parties:
            keys = (*keys, "name", "limit", *(own.model_extra or {}))
        for key in sorted({*own.model_fields_set, *(own.model_extra or {})} - {*keys}):
            if key not in type(own).model_fields or getattr(own, key) != type(own).model_fields[key].default:
                why = (
                    "each of [[parties]] names its own file"
                    if table == "data" and config.parties
                    else "it has no meaning here"
                )
                raise ConfigError(f"{table}.{key}: parties hold {held}, and {why}: leave it out.")
    if config.data.test_file:
        rows = "aligned rows" if held == "columns" else "rows of each party"
        raise ConfigError(f"data.test = '{config.data.test}': give a share of the {rows}, such as 0.25.")
    if config.data.missing == "median" and held != "columns":
        raise ConfigError(
            "data.missing = 'median': 'drop' leaves out rows with a missing cell; no median is agreed on here."
        )
    if config.data.missing == "median":
        raise ConfigError(
            "data.missing = 'median': missing cells are accepted; 'drop' leaves out rows without a label or weight."
        )


def _check_mechanisms(config: Any) -> None:
    scheme, names = SCHEMES[config.algorithm.name], [one.name for one in config.privacy]
    noises = for_labels() if scheme.layout == "columns" else {}
    keys = {**{name: one.limits.labels for name, one in noises.items()}, **scheme.mechanisms}
    for one in config.privacy:
        if one.name not in keys:
            able = ", ".join(f"'{name}'" for name in scheme.mechanisms)
            instead = f"is protected by {able}" if able else "runs only in the clear: remove the table"
            raise ConfigError(
                f"[[privacy]] '{one.name}' is for updates of clients that hold rows; '{scheme.name}' {instead}."
            )
        for key in one.parameters():
            if key not in keys[one.name]:
                raise ConfigError(f"privacy.{one.name}.{key} is for updates of clients that hold rows: leave it out.")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(f"[[privacy]]: '{twice}' is given twice; once is enough.")


def only_columns(values: dict[str, Any], parties: Sequence[PartyConfig]) -> dict[str, Any]:
    """Return the plain values of an experiment that have a meaning if parties hold columns."""
    out = {key: value for key, value in values.items() if key not in {*ROWS_ONLY, "profile"}}
    scheme = SCHEMES[out["algorithm"]["name"]]
    if scheme.fixed or scheme.rounds in out["algorithm"]:
        out.pop("rounds", None)
    if scheme.layout == "columns":
        out["partition"] = {k: v for k, v in out["partition"].items() if k not in {"clients", "min_size"}}
    if parties:
        out.pop("partition")
    for table, keys in KEPT.items():
        if table != "data" or parties:
            out[table] = {key: value for key, value in out[table].items() if key in keys}
    if not parties:
        out["data"] = {k: v for k, v in out["data"].items() if k not in {"scale", "augment", "constants"}}
    return out
