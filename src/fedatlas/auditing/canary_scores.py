"""The canaries of a run, scored by who has its final model: the higher a score, the more likely the canary was in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from fedatlas.errors import DataError
from fedatlas.record import row_secret
from fedatlas.record.run_folder import RunFolder, file_of
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.canaries import Canaries, direction
from fedatlas.setup.checked import Checked
from fedatlas.tree import Tree

INITIAL = "initial.safetensors"


def scored(run: RunFolder, whole: Checked) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each canary, (m,), and whether it was in, (m,).

    client: the final model's distance from the initial one along the canary's direction. record: by how much the loss of
    the row under its wrong label fell. DataError if the models of the run are not there.
    """
    setup = set_up(whole, root=row_secret.read(run.path))
    canaries = setup.held.canaries
    first, last = _models(run.path, setup)
    scores = _along(canaries, first, last) if canaries.unit == "client" else _fall(canaries, setup, first, last)
    return scores, canaries.inside


def _models(path: Path, setup: Setup) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    files = (path / INITIAL, path / file_of("model"))
    if missing := [one.name for one in files if not one.exists()]:
        raise DataError(f"'{path}' lacks {missing[0]}, by which canaries are looked for: run the experiment again.")
    names = set(setup.first.params)
    first, last = ({name: x for name, x in load_file(one).items() if name in names} for one in files)
    return first, last


def _along(canaries: Canaries, first: dict[str, torch.Tensor], last: dict[str, torch.Tensor]) -> np.ndarray:
    moved = Tree({name: last[name].double() - first[name].double() for name in first})
    like = Tree(first)

    def one(client: int) -> float:
        step = direction(canaries.seed, client, like)
        return sum(float((moved[name] * step[name].double()).sum()) for name in moved)

    return np.array([one(int(k)) for k in canaries.clients])


def _fall(
    canaries: Canaries, setup: Setup, first: dict[str, torch.Tensor], last: dict[str, torch.Tensor]
) -> np.ndarray:
    loss = [_losses(canaries, setup, one) for one in (first, last)]
    fall: np.ndarray = loss[0] - loss[1]
    return fall


def _losses(canaries: Canaries, setup: Setup, params: dict[str, torch.Tensor]) -> np.ndarray:
    module = setup.first.network.module
    module.load_state_dict({**module.state_dict(), **params})
    module.eval()
    own = np.arange(len(canaries.inside))
    x, y = canaries.row(own, setup.dataset.shape, setup.dataset.classes)
    with torch.inference_mode():
        found = torch.nn.functional.cross_entropy(module(x.to(next(module.parameters()).dtype)), y, reduction="none")
    out: np.ndarray = found.double().numpy()
    return out
