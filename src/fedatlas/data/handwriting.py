"""Handwritten digits and letters: EMNIST (transposed idx files) and FEMNIST, the same forms by writer."""

from __future__ import annotations

import gzip
import lzma
import shutil
import sqlite3
import string
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedatlas.data.download import Remote, obtain
from fedatlas.data.formats import member, parse_example, parse_idx, read_leaf
from fedatlas.data.images import DIGITS, GREY_SCALE, GREY_SHIFT, load_grey, owners, pictures
from fedatlas.data.loaded import Loaded, Request
from fedatlas.data.store import provenance, read_prepared, write_npz

BY_CLASS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # EMNIST's and LEAF's order
MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # 15 small letters joined with their capitals
Form = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
EMNIST_NAMES: dict[Form, tuple[str, ...]] = {
    "byclass": BY_CLASS,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": DIGITS,
    "mnist": DIGITS,
}

EMNIST_REMOTES = (
    Remote(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "emnist-gzip.zip",
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        "torchvision.datasets.EMNIST",
    ),
)
FEMNIST_REMOTES = (
    Remote("https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma", "emnist_all.sqlite.lzma"),
)

FEMNIST_FILES = ("femnist.npz",)
LEAF_FOLDERS = ("train", "test")


def load_emnist(request: Request, *, form: Form = "byclass") -> Loaded:
    """EMNIST (Cohen et al. 2017), turned upright, in one of its six forms; it has no writer ids (femnist has).

    form: 62 classes ("byclass"), 47 with 15 small letters joined to capitals ("bymerge"; "balanced": as many rows of each), 26
        ("letters") or the 10 digits ("digits", "mnist").
    """
    prepare = partial(prepare_emnist, form=form)
    found = obtain(request.store, "emnist", emnist_files(form), EMNIST_REMOTES, prepare)
    return load_grey(found, EMNIST_NAMES[form]).with_facts(form=form)


def emnist_files(form: str) -> tuple[str, ...]:
    """The prepared file of one of EMNIST's six forms."""
    return (f"emnist_{form}.npz",)


def prepare_emnist(originals: Mapping[str, Path], home: Path, form: str) -> None:
    """NIST's archive of idx files: pictures stored by columns, so that they are transposed here; letters count from 1."""
    archive = originals[EMNIST_REMOTES[0].file]
    arrays: dict[str, np.ndarray] = {}
    for side in ("train", "test"):
        x, y = (
            read_idx_member(archive, f"emnist-{form}-{side}-{what}.gz")
            for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        arrays |= {
            f"x_{side}": np.ascontiguousarray(x.transpose(0, 2, 1)),
            f"y_{side}": y - 1 if form == "letters" else y,
        }
    write_npz(home / emnist_files(form)[0], **arrays)


def read_idx_member(archive: Path, name: str) -> np.ndarray:
    """An idx file, gzipped, inside an archive."""
    return parse_idx(gzip.decompress(member(archive, name)), name)


def load_femnist(request: Request, *, path: str = "") -> Loaded:
    """Handwriting by writer: LEAF's files, or TensorFlow Federated's copy of them.

    62 classes; background is 255 (white), as in both copies; natural client = writer.

    path: folder with LEAF's train and test JSON; "" = femnist/ of the data folder if it has them, else TensorFlow Federated's.
    """
    leaf = Path(path) if path else None
    if leaf is None and (there := request.store.find([f"femnist/{side}" for side in LEAF_FOLDERS])):
        leaf = there.root / "femnist"
    if leaf is not None:
        sides, files = [_leaf_pictures(leaf / side) for side in LEAF_FOLDERS], []
    else:
        found = obtain(request.store, "femnist", FEMNIST_FILES, FEMNIST_REMOTES, prepare_femnist)
        a = read_prepared(found.paths[0], [f"{what}_{side}" for side in LEAF_FOLDERS for what in ("x", "y", "writer")])
        sides, files = (
            [(a[f"x_{side}"], a[f"y_{side}"], a[f"writer_{side}"]) for side in LEAF_FOLDERS],
            provenance(found),
        )
    codes, names = owners([writer for _, _, writer in sides], "")
    train, test = (pictures(x, y, code) for (x, y, _), code in zip(sides, codes, strict=True))
    return Loaded(
        train, test, "classes", BY_CLASS, client_names=names, scale=GREY_SCALE, shift=GREY_SHIFT, facts={"files": files}
    )


def _leaf_pictures(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels (n, 28, 28), labels and writers of LEAF's FEMNIST, whose pixels are 784 floats from 0 to 1."""
    users = list(read_leaf(folder))
    x = np.concatenate(
        [np.rint(np.asarray(user.x, np.float32) * 255).astype(np.uint8).reshape(-1, 28, 28) for user in users]
    )
    return (
        x,
        np.concatenate([user.y for user in users]).astype(np.uint8),
        np.repeat([u.name for u in users], [len(u.y) for u in users]),
    )


def prepare_femnist(originals: Mapping[str, Path], home: Path) -> None:
    """TensorFlow Federated's SQLite file of ``tf.train.Example`` rows: 28x28 float ``pixels`` and an int64 ``label`` a row."""
    database = home / "originals" / "emnist_all.sqlite"
    with lzma.open(originals[FEMNIST_REMOTES[0].file]) as packed, open(database, "wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    arrays: dict[str, np.ndarray] = {}
    for side in LEAF_FOLDERS:
        x, y, writer = [], [], []
        with sqlite3.connect(database) as link:
            query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid"
            for client, raw in link.execute(query, (f"all_{side}",)):
                row = parse_example(raw)
                x.append(np.rint(np.asarray(row["pixels"]) * 255).astype(np.uint8).reshape(28, 28))
                y.append(int(row["label"][0]))
                writer.append(client)
        link.close()
        arrays |= {f"x_{side}": np.stack(x), f"y_{side}": np.array(y, np.uint8), f"writer_{side}": np.array(writer)}
    database.unlink()
    write_npz(home / FEMNIST_FILES[0], **arrays)
