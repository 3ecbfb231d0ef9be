"""Human activity recognition with smartphones: 561 features of a window, six activities, 30 people (UCI, version 1.0)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedatlas.data.dataset import SIDES, split_of
from fedatlas.data.download import Originals, Remote, obtain
from fedatlas.data.formats import member
from fedatlas.data.images import owners
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.store import provenance, read_prepared, write_npz

FILES = ("har_smartphones_561.npz",)
REMOTES = (
    Remote(
        "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        "human+activity+recognition+using+smartphones.zip",
    ),
)


def load_har(request: LoadRequest, *, split: Literal["official", "pooled"] = "official") -> Loaded:
    """Rows of 561 features of a window of one person's movements; natural client = person.

    split: test rows: those of nine other people, or a quarter (data.test) of all 10,299 windows of all 30.
    """
    found = obtain(request.store, "har", FILES, REMOTES, prepare_har)
    names = [f"{what}_{side}" for side in SIDES for what in ("x", "y", "subject")]
    a = read_prepared(found.paths[0], [*names, "feature_names", "activity_names"])
    codes, people = owners([a[f"subject_{side}"] for side in SIDES], "person")
    train, test = (split_of(a[f"x_{side}"], a[f"y_{side}"], code) for side, code in zip(SIDES, codes, strict=True))
    columns = tuple(str(name) for name in a["feature_names"])
    activities = tuple(str(name).lower() for name in a["activity_names"])
    facts = {"files": provenance(found), "split": split}
    loaded = Loaded(train, test, "classes", activities, columns, client_names=people, facts=facts)
    return loaded if split == "official" else replace(loaded, train=train.join(test), test=None)


def prepare_har(originals: Originals, home: Path) -> None:
    """Prepare UCI's archive (a zip within a zip) of text files.

    Activities and people count from 1 there, activities from 0 here.
    """
    archive = originals[REMOTES[0].file]

    def table(name: str) -> list[list[str]]:
        return [line.split() for line in member(archive, name).decode().splitlines() if line.strip()]

    arrays = {
        "feature_names": np.array([row[1] for row in table("features.txt")]),
        "activity_names": np.array([row[1] for row in table("activity_labels.txt")]),
    }
    for side in SIDES:
        arrays[f"x_{side}"] = np.array(table(f"{side}/X_{side}.txt"), dtype=np.float64).astype(np.float32)
        arrays[f"y_{side}"] = np.array(table(f"{side}/y_{side}.txt"), dtype=np.uint8)[:, 0] - 1
        arrays[f"subject_{side}"] = np.array(table(f"{side}/subject_{side}.txt"), dtype=np.uint8)[:, 0]
    write_npz(home / FILES[0], **arrays)
