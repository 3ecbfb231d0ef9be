"""A user's own data: arrays in a .npz, a table, or a folder of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.cells import OPTION, Background, Dates, Decimal, Reading, Thousands, missing, now, read_as, with_keys
from fedatlas.data.dataset import SIDES, Names, Split, TaskKind
from fedatlas.data.frame import Roles, TaskChoice, absent, class_codes, is_quantity, joined_owners, lacking
from fedatlas.data.images import owners
from fedatlas.data.kept import CALLED, TABLE, is_kept, located
from fedatlas.data.loaded import Loaded, LoadRequest, divided
from fedatlas.data.pictures import PictureForm, load_pictures, pictures_in, read_picture
from fedatlas.data.preprocess import Preprocess
from fedatlas.data.problems import Problems
from fedatlas.data.reading import same_owners
from fedatlas.data.store import Arrays, members_of, read_npz, sha256
from fedatlas.data.table_file import read_table
from fedatlas.data.tables import from_frames
from fedatlas.data.workbook import SUFFIXES
from fedatlas.errors import ConfigError, DataError
from fedatlas.files import OF_THE_FILE
from fedatlas.registry import PlainValues, Whole

TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", *SUFFIXES)


def load_file(
    request: LoadRequest,
    *,
    path: str,
    label: str = "",
    client: str = "",
    weight: str = "",
    task: TaskChoice = "auto",
    drop: Names = (),
    categories: Names = (),
    size: Whole = 64,
    same_owner: bool | None = None,
    thousands: Thousands | None = None,
    units: Names | None = None,
    background: Background | None = None,
    na: Names | None = None,
    dates: Dates | None = None,
    decimal: Decimal | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Loaded:
    """A .npz, a table or a folder of pictures.

    Arrays of a .npz: x_train and y_train and, if you have them, x_test, y_test, client_train, client_test, weight_train,
    weight_test, class_names. Columns of a table that label, client, weight and drop do not name are inputs.

    path: a .npz, a .csv[.gz], .tsv[.gz], .xlsx or .parquet table, or a folder of pictures, relative to the working directory.
    label: column of the target; required for a table.
    client: column with the owner of each row; "" = none.
    weight: column of survey weights, 0 or more; "" = all rows count equally.
    task: kind of target. auto: texts are classes; numbers are a quantity if one has a fractional part or if they have more than
        20 values, else classes. Whole numbers of a .npz are always classes.
    drop: columns of a table that are not inputs.
    categories: columns of a table whose numbers are codes, not quantities.
    size: height and width in pixels to which the pictures of a folder are resized.
    same_owner: whether owners that differ only by case, the form of Unicode or a final .0 are one.
    thousands: mark between groups of three digits, left out of numbers.
    units: signs before or behind a number, such as $ or %, left out of it.
    background: colour behind transparent pictures; omitted = white.
    na: further texts of a missing cell, such as -9 or unknown.
    dates: column -> form of its dates, such as %d.%m.%Y; they become days since 1970-01-01.
    decimal: decimal mark of this file; omitted = found by looking.
    separator: character between columns of this file; omitted = found by looking.
    encoding: encoding of this file's text, such as cp1252; omitted = found by looking.
    sheet: sheet of this workbook; omitted = the only one with cells.
    """
    form = {"decimal": decimal, "separator": separator, "encoding": encoding, "sheet": sheet}
    roles = Roles(label, client, weight, task, drop, categories, same_owner=bool(same_owner))
    keys = with_keys(thousands, units, na=na, dates=dates, **form)
    return _loaded(path, request, roles, keys, PictureKeys(size, background))


class PictureKeys(NamedTuple):
    """Keys for a folder of pictures."""

    size: int
    background: Background | None


def _loaded(path: str, request: LoadRequest, roles: Roles, keys: Reading, pictures: PictureKeys) -> Loaded:
    """Load the file or folder at the path. ConfigError for a key that does not apply to it."""
    if not path:
        raise ConfigError('data.path = "": name a .npz, a table or a folder of pictures.')
    where = located(path)
    given = {key: getattr(roles, key) for key in ("label", "client", "weight", "drop", "categories")}
    given |= {key: getattr(keys, key) for key in ("thousands", "units", "na", "dates", *OF_THE_FILE)}
    if where.is_dir():
        _only({**given, "same_owner": roles.same_owner}, "a folder of pictures")
        with read_as(with_keys(background=pictures.background)):
            return _folder(where, pictures.size, request)
    if pictures.background is not None:
        raise ConfigError("data.background is for a folder of pictures: remove the key.")
    if not where.exists():
        raise DataError(f"data.path: {lacking(path)}")
    facts = _files(where, request.test_file, CALLED[where.suffix] if is_kept(path) else where.name)
    if where.suffix == ".npz":
        _only(given, "a .npz")
        return load_arrays(where, roles.task, request, roles.same_owner).with_facts(**facts)
    if not where.name.endswith(TABLE_SUFFIXES) and not is_kept(path):
        raise DataError(f"data.path: '{path}' is not a .npz, {', '.join(TABLE_SUFFIXES)} nor a folder of pictures.")
    _applies(where, {key: given[key] for key in OF_THE_FILE})
    with read_as(keys), _after_roles(where, roles, f"'{facts['called']}'"):
        frames = [read_table(where), *([read_table(request.test_file)] if request.test_file else [])]
        how = request.drop_unusable, 1 if request.few_classes else 2, request.bits
        return from_frames(frames, roles, f"'{facts['called']}'", *how).with_facts(**facts)


@contextmanager
def _after_roles(where: Path, roles: Roles, source: str) -> Iterator[None]:
    """Report missing columns before wrong cells of others, in one message."""
    try:
        yield
    except DataError as error:
        problems = Problems(source)
        with suppress(DataError), read_as(now()._replace(na=(), dates=())):
            problems.add(absent(read_table(where).columns, roles._asdict(), "data.", source))
        if problems.found and str(problems.found[0]) not in str(error) and "has no such column" not in str(error):
            problems.add([error])
            problems.refuse()
        raise


def _folder(where: Path, size: int, request: LoadRequest) -> Loaded:
    if request.test_file:
        raise ConfigError(
            "data.test: a folder of pictures is tested on its 'test' folder or on a fraction of it, not on a file."
        )
    return load_pictures(where, size).with_facts(called=where.name)


def _files(where: Path, test_file: str, called: str) -> PlainValues:
    """Return the files as facts; ConfigError if the test file holds the training rows."""
    facts: PlainValues = {"called": called, "files": [{"file": where.name, "sha256": sha256(where)}]}
    if test_file and Path(test_file).is_file():
        facts["files"].append({"file": Path(test_file).name, "sha256": sha256(Path(test_file))})
    if len({each["sha256"] for each in facts["files"]}) < len(facts["files"]):
        raise ConfigError(
            f"data.test = '{test_file}' holds the training rows: name a file with rows that no client trains on."
        )
    return facts


def _only(given: PlainValues, what: str) -> None:
    """Raise ConfigError for a key that names a column, since only tables have columns."""
    for key, value in given.items():
        if value:
            raise ConfigError(f"data.{key} names a column of a table, but {what} has no columns: remove the key.")


def _applies(where: Path, given: PlainValues) -> None:
    """Raise ConfigError for a key about the format of another kind of file."""
    kinds = {".parquet": (), TABLE: (), **dict.fromkeys(SUFFIXES, ("decimal", "sheet"))}
    known = kinds.get(where.suffix, ("decimal", "separator", "encoding"))
    if odd := [key for key, value in given.items() if value and key not in known]:
        raise ConfigError(f"data.{odd[0]} says nothing about '{where.name}', a file of another kind: remove the key.")


def load_arrays(path: Path, task: TaskChoice, request: LoadRequest, same_owner: bool = False) -> Loaded:
    """Load ``x_train y_train`` and, if present, ``x_test y_test client_train client_test weight_train weight_test class_names``.

    Floats are used unchanged, (n, columns) or (n, channels, height, width). uint8 arrays of three or four dimensions
    are pictures, (n, h, w) or (n, channels, h, w), divided by 255. Other integers of two dimensions are token ids if
    they are int64, else numbers. A target of whole numbers is one class per row (`task` overrides this), or with (n, length) one per step.
    """
    names, test_file, few_classes = members_of(path), request.test_file, request.few_classes
    has_test = {"x_test", "y_test"} <= names
    optional = {"client_train", "client_test", "weight_train", "weight_test", "class_names"} & names
    a = read_npz(path, {"x_train", "y_train", *(("x_test", "y_test") if has_test else ()), *optional})
    if test_file:
        more = {"client_test", "weight_test"} & members_of(Path(test_file))
        a = {name: x for name, x in a.items() if not name.endswith("_test")}
        a |= read_npz(Path(test_file), {"x_test", "y_test", *more})
        has_test = True
    a = {key: _as_texts(x, f"'{path.name}': {key}") for key, x in a.items()}
    sides = SIDES if has_test else SIDES[:1]
    for side in sides:
        x, y = a[f"x_{side}"], a[f"y_{side}"]
        if len(x) != len(y):
            raise DataError(f"'{path.name}': x_{side} has {len(x)} rows but y_{side} has {len(y)}.")
        if y.ndim == 2 and y.shape[1] == 1 and x.dtype.kind == "f" and now().rules > 2:
            raise DataError(f"'{path.name}': y_{side} has the shape {y.shape}: give it one dimension, as y[:, 0].")
    n, before = len(a["x_train"]), sum(len(a[f"y_{side}"]) for side in sides)
    a, there = _usable(a, sides, path.name, request.drop_unusable)
    targets, kind, class_names = _targets([a[f"y_{side}"] for side in sides], task, path.name, 1 if few_classes else 2)
    if "class_names" in a and kind == "classes":
        class_names = _given_names(a, class_names, path.name)
    xs = [_inputs(a[f"x_{side}"], f"'{path.name}': x_{side}") for side in sides]
    owned = _owners(a, sides, path.name, request.drop_unusable, same_owner)
    parts = [
        Split(x, y, owned.codes[i], _weights(a.get(f"weight_{side}"), len(y), path.name), there.get(side))
        for i, (side, x, y) in enumerate(zip(sides, xs, targets, strict=True))
    ]
    parts = [
        split if kept is None else split.numbered().take(kept) for split, kept in zip(parts, owned.kept, strict=True)
    ]
    if has_test and parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        raise DataError(
            f"'{path.name}': rows are {tuple(xs[0].shape[1:])} in x_train but {tuple(xs[1].shape[1:])} in x_test."
        )
    if has_test and xs[0].dtype != xs[1].dtype:
        kinds = [str(x.dtype).removeprefix("torch.") for x in xs]
        raise DataError(
            f"'{path.name}': x_train is {kinds[0]} but x_test {kinds[1]}; store both in the same type (uint8 pictures are scaled by 1/255)."
        )
    lost = (owned.facts or {}).get("rows_unusable", 0) + before - sum(len(a[f"y_{side}"]) for side in sides)
    constants = divided(xs[0].shape[1]) if xs[0].dtype == torch.uint8 else {}
    test = parts[1] if has_test else None
    return Loaded(
        parts[0],
        test,
        kind,
        class_names,
        client_names=owned.names,
        facts={**(owned.facts or {}), **({"rows_unusable": lost} if lost else {})},
        train_rows=n,
        **constants,
    )


def _usable(a: Arrays, sides: Names, name: str, drop: bool) -> tuple[Arrays, dict[str, Tensor]]:
    """Return the arrays without rows that lack a target or a weight if ``drop``, and the indices of the rows left per side.

    DataError for a missing target, unless ``drop``.
    """
    out, there = dict(a), dict[str, Tensor]()
    for side in sides if now().rules > 2 else ():
        y, weight = a[f"y_{side}"], a.get(f"weight_{side}")
        texts = y.ndim == 1 and y.dtype.kind == "U"
        gone = missing(y) if texts else np.isnan(y) if y.ndim == 1 and y.dtype.kind == "f" else np.zeros(len(y), bool)
        if gone.any() and not drop:
            advice = "data.missing = 'drop' or 'median' leaves out such rows"
            raise DataError(
                f"'{name}': the target is missing (empty or NaN) in {int(gone.sum())} rows of y_{side}: {advice}."
            )
        if weight is not None and weight.dtype.kind == "f" and weight.shape == gone.shape:
            gone = gone | np.isnan(weight)
        if drop and gone.any():
            there[side] = torch.from_numpy(np.flatnonzero(~gone))
            mine = {key: x for key, x in a.items() if key.endswith(f"_{side}") and len(x) == len(gone)}
            out |= {key: x[~gone] for key, x in mine.items()}
    return out, there


def _as_texts(x: np.ndarray, what: str) -> np.ndarray:
    """Return an array of bytes as texts in UTF-8, and texts without blanks at their ends. DataError for other bytes."""
    if now().rules < 3 or x.dtype.kind not in "SU":
        return x
    try:
        return np.char.strip(np.char.decode(x, "utf-8") if x.dtype.kind == "S" else x)
    except UnicodeDecodeError:
        raise DataError(f"{what} holds bytes that are no UTF-8 text: store texts.") from None


def _inputs(x: np.ndarray, what: str) -> Tensor:
    if x.dtype == np.uint8 and x.ndim in {3, 4}:
        return torch.from_numpy(np.ascontiguousarray(x[:, None] if x.ndim == 3 else x))
    if x.dtype == np.int64 and x.ndim == 2:
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype.kind in "fiub" and x.ndim >= 2:
        return torch.from_numpy(np.ascontiguousarray(x, np.float32))
    raise DataError(f"{what} must hold rows of numbers, at least two dimensions; it is {x.dtype} of shape {x.shape}.")


def _targets(
    ys: list[np.ndarray], choice: TaskChoice, name: str, least: int = 2
) -> tuple[list[Tensor], TaskKind, Names]:
    joined = np.concatenate([y.reshape(-1) for y in ys])
    if ys[0].ndim == 2:
        if joined.dtype.kind not in "iu" or joined.min() < -100:
            raise DataError(
                f"'{name}': a target of two dimensions needs one token id per step (-100 = none); it is {joined.dtype}."
            )
        names = tuple(str(i) for i in range(int(joined.max()) + 1))
        return [torch.from_numpy(y.astype(np.int64)) for y in ys], "tokens", names
    if any(y.ndim != 1 for y in ys):
        raise DataError(f"'{name}': y_train must have one dimension; its shape is {ys[0].shape}.")
    if not len(ys[0]):
        raise DataError(f"'{name}' has no training rows.")
    if choice == "numbers" or (choice == "auto" and joined.dtype.kind == "f" and is_quantity(joined)):
        if joined.dtype.kind not in "fiub":
            raise DataError(f"'{name}': y_train holds texts, so it cannot be a number.")
        return [torch.from_numpy(y.astype(np.float32)) for y in ys], "numbers", ()
    if joined.dtype.kind == "f" and not np.isfinite(joined).all():
        raise DataError(f"'{name}': {int((~np.isfinite(joined)).sum())} targets are NaN or infinite.")
    codes, names = class_codes(joined, f"'{name}': y_train", least)
    return list(torch.split(codes, [len(y) for y in ys])), "classes", names


def _given_names(a: Arrays, found: Names, name: str) -> Names:
    given = tuple(str(c) for c in a["class_names"])
    if now().rules > 2 and a["y_train"].dtype.kind == "U":  # the targets name their classes themselves
        if {*given} != {*found}:
            odd = min({*given} ^ {*found})
            raise DataError(f"'{name}': the targets are texts, and '{odd}' is only in one of y_train and class_names.")
        return found
    if len(given) != len(found):
        raise DataError(f"'{name}': class_names has {len(given)} names but the targets have {len(found)} classes.")
    return given


class _Owned(NamedTuple):
    """Owners of the rows of each side, the rows that have one (None: all), and facts about them."""

    codes: list[Tensor | None]
    kept: list[np.ndarray | None]
    names: Names = ()
    facts: PlainValues | None = None


def _owners(a: Arrays, sides: Names, name: str, drop: bool, same: bool) -> _Owned:
    none: list[Any] = [None] * len(sides)
    if "client_train" not in a:
        return _Owned(none, none)
    have = [a[f"client_{side}"] for side in sides if f"client_{side}" in a]
    for side, named in zip(sides, have, strict=False):
        if len(named) != len(a[f"y_{side}"]):
            raise DataError(f"'{name}': client_{side} has {len(named)} entries for {len(a[f'y_{side}'])} rows.")
    parts, names = owners(have, "")
    if now().rules < 2:
        return _Owned([torch.from_numpy(parts[i]) if i < len(parts) else None for i in range(len(sides))], none, names)
    gone = missing(np.char.strip(np.array(names, str)))
    lost = sum(int(gone[part].sum()) for part in parts)
    if gone.all() or (lost and not drop):
        side = next(side for side, part in zip(sides, parts, strict=False) if gone[part].any())
        advice = "" if gone.all() else ": data.missing = 'drop' or 'median' leaves out such rows"
        raise DataError(f"'{name}': the owner is missing in {lost} rows, first in client_{side}{advice}.")
    there = np.flatnonzero(~gone)
    joined, places = joined_owners(np.array(names, str)[there], np.cumsum(~gone) - 1, same)
    codes: list[Tensor | None] = [torch.from_numpy(places[part].astype(np.int64)) for part in parts]
    kept: list[np.ndarray | None] = [np.flatnonzero(~gone[part]) if lost else None for part in parts]
    said = "" if same else same_owners(f"'{name}'", joined.tolist())
    facts = {**({"doubts": [said]} if said else {}), **({"rows_unusable": lost} if lost else {})}
    more = none[len(parts) :]
    return _Owned([*codes, *more], [*kept, *more], tuple(joined.tolist()), facts)


def _weights(values: np.ndarray | None, n: int, name: str) -> Tensor | None:
    if values is None:
        return None
    if len(values) != n or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise DataError(f"'{name}': a weight array must hold {n} numbers from 0 up, not all zero.")
    return torch.from_numpy(values.astype(np.float32))


def read_inputs(path: str | Path, preprocess: Preprocess, *, keep_holes: bool = False) -> Tensor:
    """Read new rows from a file as model inputs: a table by column names, ``x`` or ``x_test`` of a .npz, or pictures of a folder.

    ``keep_holes``: see `Preprocess.apply`.
    """
    where = Path(path).expanduser()
    with read_as(preprocess.reading):
        return _read_inputs(where, preprocess, keep_holes)


def _read_inputs(where: Path, preprocess: Preprocess, keep_holes: bool) -> Tensor:
    if where.is_dir():
        channels, size = preprocess.shape[0], preprocess.shape[-1]
        listed = pictures_in(where)
        if preprocess.kind != "pictures" or not listed:
            raise DataError(
                f"'{where}': the model reads {preprocess.kind}, but the folder holds {len(listed)} pictures."
            )
        form = PictureForm(channels == 3, preprocess.depth)
        return preprocess.apply(np.stack([read_picture(p, size, form) for p in listed]))
    if where.suffix != ".npz":
        return preprocess.apply(read_table(where, OPTION), keep_holes=keep_holes)
    name = next((name for name in ("x", "x_test") if name in members_of(where)), "x")
    x = read_npz(where, (name,))[name]
    x = x[:, None] if x.ndim == 3 and len(preprocess.shape) == 3 else x
    return preprocess.apply(x, keep_holes=keep_holes)
