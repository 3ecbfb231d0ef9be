"""Make the folders here: a run of each kind, by a package of the first reading rules (at the commit before they had a number).

    PYTHONPATH=BEFORE/src python tests/record/rules_1/make.py

Their data tell the rules apart: ``1_24`` is a number, 01 and 1 are one class, a value that training never lacked goes left,
pictures lie as they are stored, and those in nested folders do not count.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fedatlas
from fedatlas import Experiment, run

HERE = Path(__file__).parent
FEW: dict[str, Any] = {"rounds": 1, "engine": {"workers": 1}, "model": {"name": "logistic"}}
TABLE = FEW | {
    "data": {
        "name": "file",
        "path": "table.csv",
        "label": "y",
        "scale": "none",
        "categories": ["kind"],
        "task": "classes",
    },
    "partition": {"name": "iid", "clients": 2},
}
COLUMNS: dict[str, Any] = {
    "parties": [
        {"name": "bank", "path": "bank.csv", "id": "id", "label": "y"},
        {"name": "shop", "path": "shop.csv", "id": "id"},
    ],
    "algorithm": {"name": "secureboost", "trees": 1, "bins": 4, "depth": 2},
    "engine": {"workers": 1},
}
PICTURES = FEW | {"data": {"name": "file", "path": "photos", "size": 4}, "partition": {"name": "iid", "clients": 2}}


def write_data() -> None:
    """The tables, and the folder of pictures."""
    rows = [f"{i % 5}{'_2' if i % 10 == 0 else ''},{i % 3},{('01', '1', '2')[i % 3]}" for i in range(40)]
    Path("table.csv").write_text("\n".join(["a,kind,y", *rows]) + "\n")
    draw = np.random.default_rng(1)
    x = draw.normal(size=60)
    bank = [f"{i},{100000000 + i % 3},{int(v < -0.8)}" for i, v in enumerate(x)]
    Path("bank.csv").write_text("\n".join(["id,a,y", *bank]) + "\n")
    Path("shop.csv").write_text("\n".join(["id,x,unused", *(f"{i},{v:.4f},1" for i, v in enumerate(x))]) + "\n")
    Path("shop_new.csv").write_text(
        "\n".join(["id,x,unused", *(f"{i},{v:.4f},1" for i, v in enumerate(x[:30]))]) + "\n"
    )
    for name, shade in (("a", 40), ("b", 200)):
        (Path("photos") / name / "more").mkdir(parents=True, exist_ok=True)
        for i in range(6):
            pixels = np.full((4, 4), shade + i, np.uint8)
            pixels[0] = 0
            Image.fromarray(pixels).save(Path("photos") / name / f"{i}.png")
        Image.fromarray(pixels).save(Path("photos") / name / "more" / "nested.png")
        exif = Image.Exif()
        exif[274] = 3
        Image.fromarray(pixels).save(Path("photos") / name / "turned.png", exif=exif)


def predictions(kind: str) -> Any:
    """What a folder predicts, as plain values."""
    if kind == "columns":
        return fedatlas.predict(Path(kind), {"bank": "bank.csv", "shop": "shop_new.csv"}).to_dict("list")
    return fedatlas.predict(Path(kind), "table.csv" if kind == "table" else "photos").to_dict("list")


def main() -> None:
    """Make them, and what they predict."""
    os.chdir(HERE)
    write_data()
    found = {}
    for kind, tables in (("table", TABLE), ("columns", COLUMNS), ("pictures", PICTURES)):
        shutil.rmtree(kind, ignore_errors=True)
        path = run(Experiment.of(**tables), out=Path(kind), baselines=False).path
        for name in ("report.html", "report-shop.html"):
            (path / name).unlink(missing_ok=True)
        said = json.loads((path / "summary.json").read_text())
        kept = {key: value for key, value in said.items() if key not in {"cpu", "system", "versions", "commit"}}
        (path / "summary.json").write_text(json.dumps(kept, indent=1) + "\n")
        found[kind] = predictions(kind)
    Path("predictions.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
