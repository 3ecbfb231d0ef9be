"""A federation in folders and agreements on runs in it, signed as an operator would, for tests without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.config import parse
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.trainer import Trainer
from fedatlas.files import OWN_FILES
from fedatlas.wire.agreement import agreement_of, sign
from fedatlas.wire.bundle import Bundle, init
from fedatlas.wire.messages import Signed
from fedatlas.wire.policy import Policy

TABLE: Mapping[str, Any] = {
    "rounds": 3,
    "data": {"name": "file", "label": "y"},
    "model": {"hidden": [4]},
    "local": {"batch_size": 8},
}


def write_rows(path: Path, rows: int = 40, seed: int = 0) -> Path:
    """A table of two columns of numbers and a label of two classes."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 2)).round(3)
    lines = [f"{a},{b},{'yes' if a + b > 0 else 'no'}" for a, b in x]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


class Agreements:
    """Bundles of a federation's parties."""

    def __init__(self, folder: Path, names: Sequence[str] = ("north", "south", "west")) -> None:
        self.folder, self.names = folder, tuple(names)
        self.paths = init(folder / "federation", list(names), "localhost")
        for name in names:
            Policy.write_for_trial(self.paths[name] / "policy.toml")

    def node(self, name: str) -> Bundle:
        return Bundle.open(self.paths[name], "node")

    @property
    def operator(self) -> Bundle:
        return Bundle.open(self.paths["operator"], "operator")

    def config(self, **tables: Any) -> dict[str, Any]:
        """An experiment of all nodes, written out."""
        given = {**TABLE, "partition": {"name": "iid", "clients": len(self.names)}, **tables}
        given["data"] = {**given["data"], "path": OWN_FILES} if given["data"]["name"] == "file" else given["data"]
        return deployable(parse(given), self.names).config.plain()

    def signed(self, run: str, config: Mapping[str, Any] | None = None, **fields: Any) -> Signed:
        """The operator's signature under an agreement, or under one with other ``fields``."""
        made = agreement_of(self.operator, run, self.config() if config is None else config, self.names)
        return sign(self.operator, made._replace(**fields))

    def trainer(self, name: str, data: Path) -> Trainer:
        return Trainer(self.node(name), data)
