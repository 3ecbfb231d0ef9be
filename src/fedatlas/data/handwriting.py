"""Handwritten digits and letters: EMNIST (transposed idx files) and FEMNIST, the same pictures by writer."""

from __future__ import annotations

import gzip
import sqlite3
import string
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedatlas.data.dataset import SIDES, Names
from fedatlas.data.download import Originals, Remote, obtain
from fedatlas.data.formats import member, parse_example, parse_idx, read_leaf
from fedatlas.data.images import DIGITS, USUAL, grey, owners
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.store import Arrays, provenance, read_prepared, unpack_file, write_npz

BY_CLASS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # EMNIST's and LEAF's order
MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # 15 small letters merged with their capitals
Form = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
EMNIST_NAMES: dict[Form, Names] = {
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


def load_emnist(request: LoadRequest, *, form: Form = "byclass") -> Loaded:
    """EMNIST (Cohen et al. 2017), turned upright, in one of its six forms; it has no writer ids (femnist has).

    form: 62 classes ("byclass"), 47 with 15 small letters merged with capitals ("bymerge"; "balanced": as many rows of each), 26
        ("letters") or the 10 digits ("digits", "mnist").
    """
    prepare = partial(prepare_emnist, form=form)
    found = obtain(request.store, "emnist", emnist_files(form), EMNIST_REMOTES, prepare)
    return grey(read_prepared(found.paths[0], USUAL), EMNIST_NAMES[form], provenance(found)).with_facts(form=form)


def emnist_files(form: str) -> Names:
    """Return the prepared file of one of EMNIST's six forms."""
    return (f"emnist_{form}.npz",)


def prepare_emnist(originals: Originals, home: Path, form: str) -> None:
    """Prepare NIST's archive of idx files.

    Its pictures are stored by columns and are transposed; its letters count from 1.
    """
    archive = originals[EMNIST_REMOTES[0].file]
    arrays: Arrays = {}
    for side in SIDES:
        names = (f"emnist-{form}-{side}-{what}.gz" for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        x, y = (parse_idx(gzip.decompress(member(archive, name)), name) for name in names)
        arrays |= {
            f"x_{side}": np.ascontiguousarray(x.transpose(0, 2, 1)),
            f"y_{side}": y - 1 if form == "letters" else y,
        }
    write_npz(home / emnist_files(form)[0], **arrays)


def load_femnist(request: LoadRequest, *, path: str = "") -> Loaded:
    """Handwriting by writer: LEAF's files, or TensorFlow Federated's copy of them.

    62 classes; background is 255 (white), as in both copies; natural client = writer.

    path: folder with LEAF's train and test JSON; "" = femnist/ of the data folder if present, else TensorFlow Federated's.
    """
    if leaf := request.leaf("femnist", path):
        a, files = {name: x for side in SIDES for name, x in _leaf_pictures(leaf / side, side).items()}, []
    else:
        found = obtain(request.store, "femnist", FEMNIST_FILES, FEMNIST_REMOTES, prepare_femnist)
        a = read_prepared(found.paths[0], (*USUAL, "writer_train", "writer_test"))
        files = provenance(found)
    return grey(a, BY_CLASS, files, owners([a["writer_train"], a["writer_test"]], ""))


def _leaf_pictures(folder: Path, side: str) -> Arrays:
    """Return pixels (n, 28, 28), labels and writers of LEAF's FEMNIST, whose pixels are 784 floats from 0 to 1."""
    users = list(read_leaf(folder))
    return {
        f"x_{side}": np.concatenate([_pixels(user.x).reshape(-1, 28, 28) for user in users]),
        f"y_{side}": np.concatenate([user.y for user in users]).astype(np.uint8),
        f"writer_{side}": np.repeat([u.name for u in users], [len(u.y) for u in users]),
    }


def _pixels(x: Any) -> np.ndarray:
    """Return grey values from 0 to 1 as bytes."""
    return np.asarray(np.rint(np.asarray(x, np.float32) * 255), np.uint8)


def prepare_femnist(originals: Originals, home: Path) -> None:
    """Prepare TensorFlow Federated's SQLite file of ``tf.train.Example`` rows, each 28x28 float ``pixels`` and an int64 ``label``."""
    database = home / "originals" / "emnist_all.sqlite"
    unpack_file(originals[FEMNIST_REMOTES[0].file], database)
    arrays: Arrays = {}
    for side in SIDES:
        x, y, writer = [], [], []
        with sqlite3.connect(database) as link:
            query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid"
            for client, raw in link.execute(query, (f"all_{side}",)):
                row = parse_example(raw)
                x.append(_pixels(row["pixels"]).reshape(28, 28))
                y.append(int(row["label"][0]))
                writer.append(client)
        link.close()
        arrays |= {f"x_{side}": np.stack(x), f"y_{side}": np.array(y, np.uint8), f"writer_{side}": np.array(writer)}
    database.unlink()
    write_npz(home / FEMNIST_FILES[0], **arrays)
