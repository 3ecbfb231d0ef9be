"""What an attacker is given: a folder with the view of its role and what it knows, and nothing else of the run.

    order.json           name, role, keys of the attack, seed
    config.toml          the experiment: declared knowledge (network, local work, mechanisms, their keys)
    preprocess.json      what rows look like
    observed/            the view of the role, and of no other
    model.safetensors    the final model, for an outsider
    candidates.npz, auxiliary.npz    of the membership game, without their truth
    labels.json          of the targets, where they are declared known

The attack runs in a process of its own whose data folder is empty. It leaves ``answer.npz`` there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.attacks.inference import Inference
from fedatlas.errors import ConfigError
from fedatlas.files import write_json
from fedatlas.record import observed
from fedatlas.record.run_folder import ATTACKED, AUXILIARY, CANDIDATES, CONFIG, RunFolder, file_of

ORDER, ANSWER, LABELS, REFUSED = "order.json", "answer.npz", "labels.json", "refused.txt"
Arrays = Mapping[str, np.ndarray]


def attacked(run: Path, attack: Inference, seed: int, labels: Mapping[int, int] | None = None) -> dict[str, np.ndarray]:
    """The attacker's answer, from a child that finds nothing but what the attacker is given. ConfigError for a view that cannot be used."""
    with given(run, attack, seed, labels) as folder:
        apart(folder)
        if (folder / REFUSED).exists():
            raise ConfigError((folder / REFUSED).read_text(encoding="utf-8"))
        with np.load(folder / ANSWER, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def apart(folder: Path) -> None:
    """Attacks what lies in ``folder`` in a process that has no data; what it prints is shown where it fails."""
    words = [sys.executable, "-m", "fedatlas.leakage.attacker_process", str(folder)]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "FEDATLAS_DATA": empty}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"the attack ended without an answer:\n{done.stderr[-2000:]}")


@contextlib.contextmanager
def given(run: Path, attack: Inference, seed: int, labels: Mapping[int, int] | None) -> Iterator[Path]:
    """The attacker's folder, which goes again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        order = {"name": attack.name, "role": str(attack.role), "keys": dict(attack.keys), "seed": seed}
        write_json(folder / ORDER, order)
        for file in (CONFIG, "preprocess.json"):
            _link(run / file, folder / file)
        if labels is not None:
            write_json(folder / LABELS, {str(k): y for k, y in labels.items()})
        if attack.kind == "membership":
            _game(run / ATTACKED / attack.name, folder)
        if attack.kind == "membership" and attack.role.kind == "outsider":
            _link(run / file_of("model"), folder / file_of("model"))
        else:
            _view(run, attack, folder)
        yield folder


def _view(run: Path, attack: Inference, folder: Path) -> None:
    """The files of one role, and the part of the index that is about them."""
    view = observed.View(run, attack.role)
    index = {"format": observed.FORMAT, "roles": {str(attack.role): dict(view.files)}, "stopped": None}
    here = folder / observed.FOLDER
    (here / attack.role.folder).mkdir(parents=True)
    write_json(here / observed.INDEX, index)
    for name in view.files:
        view.read(name)  # whole, or refused by its own name
        _link(run / observed.FOLDER / attack.role.folder / name, here / attack.role.folder / name)


def _game(home: Path, folder: Path) -> None:
    for name in (CANDIDATES, AUXILIARY):
        if not (home / name).exists():
            raise ConfigError(
                f"'{home / name}' is not there: candidates are drawn when the attack is declared; add [[attack]] with "
                'name = "membership" and, under [evaluation], clients = 0.5 to the experiment and run it anew.'
            )
        _link(home / name, folder / name)


def _link(there: Path, here: Path) -> None:
    """A link where the system has them, else a copy. What is missing stays missing: who needs it says so."""
    try:
        here.symlink_to(there.resolve())
    except OSError:
        if there.exists():
            shutil.copyfile(there, here)


def read_order(folder: Path) -> dict[str, Any]:
    """What the child is to do."""
    found: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    return found


def write_answer(folder: Path, arrays: Arrays) -> None:
    """What the child found."""
    RunFolder(folder).save_arrays(ANSWER, arrays)
