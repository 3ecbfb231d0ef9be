"""Short runs under attack, and what they leave: their model, rows, summary, and what clients sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas import Experiment
from fedatlas.api import run
from fedatlas.federation.link import Observer, Request
from fedatlas.tree import Tree

TABLES: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 6},
    "model": {"hidden": [8]},
    "local": {"lr": 0.1},
    "engine": {"name": "loop"},
    "evaluation": {"every": 4},
}
FAST = {"name": "fast", "plan": "program", "workers": 1}
SEQ = {"name": "fedseq", "phi": "random", "group_size": 2}
FLIP = {"name": "label_flip", "share": 0.5, "pairs": [[3, 5], [0, 8]]}
SIGN = {"name": "sign_flip", "share": 0.34, "c": 3.0}
ALIE = {"name": "alie", "share": 0.34, "z": 2.0, "knows": "all"}
DOOR = {"name": "backdoor", "share": 0.34}


def experiment(*attacks: Mapping[str, Any], **tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, **({"attack": list(attacks)} if attacks else {}), **tables})


def done(out: Path, *attacks: Mapping[str, Any], observers: Any = (), **tables: Any) -> Path:
    return run(experiment(*attacks, **tables), out=out, baselines=False, observers=observers).path


def model(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


class Sent(Observer):
    """What clients sent in each round's training, as the server opened it."""

    def __init__(self) -> None:
        self.models: dict[tuple[int, int], Tree] = {}
        self.told: dict[tuple[int, int], Tree] = {}

    def opened(self, request: Request, update: Mapping[str, Any]) -> None:
        if request.what == "train" and "model" in update:
            self.models[request.round, request.client] = Tree(update["model"]).clone()
            self.told[request.round, request.client] = Tree(request.message["model"]).clone()
