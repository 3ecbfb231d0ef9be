"""The folder given to an attacker: the view of its role, its knowledge, and nothing else of the run.

    order.json           name, role, keys of the attack, seed
    config.toml          the experiment: declared knowledge (network, local work, mechanisms, their keys)
    preprocess.json      the form of rows
    observed/            the view of this role only, and of one that colludes with it
    model.safetensors    the final model, for an attack that needs no view
    told.json            further knowledge named in the declaration, such as labels
    shadows/             what an earlier attack of the same name made of its shadow models
    ...                  files drawn by the attack before round 1, such as candidates without the truth

The attack runs in a separate process with an empty data folder. It writes ``answer.npz`` into this folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.attacks.view_attack import SHADOWS, ViewAttack
from fedatlas.errors import ConfigError
from fedatlas.files import write_json
from fedatlas.leakage.knowledge import TOLD
from fedatlas.record import observed
from fedatlas.record.run_folder import ATTACKED, CONFIG, RunFolder, file_of

ORDER, ANSWER, REFUSED = "order.json", "answer.npz", "refused.txt"


def run_attacker(
    run: Path, attack: ViewAttack, seed: int, told: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Return the attacker's answer. ConfigError for a view that cannot be used."""
    with attacker_folder(run, attack, seed, told) as folder:
        work_apart(folder)
        if (folder / REFUSED).exists():
            raise ConfigError((folder / REFUSED).read_text(encoding="utf-8"))
        return RunFolder(folder).arrays(ANSWER)


def work_apart(folder: Path) -> None:
    """Run the attacker in a process without data; its output is shown if it fails."""
    words = [sys.executable, "-m", "fedatlas.leakage.attacker_process", str(folder)]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "FEDATLAS_DATA": empty}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"the attack ended without an answer:\n{done.stderr[-2000:]}")


@contextlib.contextmanager
def attacker_folder(run: Path, attack: ViewAttack, seed: int, told: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Yield a temporary folder for an attacker. ConfigError for a file that the attack needs and the run lacks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        order = {"name": attack.name, "role": str(attack.role), "keys": dict(attack.keys), "seed": seed}
        write_json(folder / ORDER, order)
        if told:
            write_json(folder / TOLD, told)
        files = [run / CONFIG, run / "preprocess.json"]
        files += [run / file_of("model")] if attack.rounds is None else []
        for file in [*files, *drawn_files(run, attack)]:
            _link(file, folder / file.name)
        if attack.shadows:
            (kept := run / ATTACKED / attack.name / SHADOWS).mkdir(parents=True, exist_ok=True)
            _link(kept, folder / SHADOWS)
        if attack.rounds is not None:
            _link_view(run, attack, folder)
        yield folder


def drawn_files(run: Path, attack: ViewAttack) -> list[Path]:
    """Return the files that the attack drew before round 1; ConfigError if one is missing."""
    found = [run / ATTACKED / attack.name / name for name in attack.files]
    for path in found:
        if not path.exists():
            raise ConfigError(f"'{path}' is missing: {attack.undrawn}")
    return found


def _link_view(run: Path, attack: ViewAttack, folder: Path) -> None:
    """Link the files of the attack's roles, and write their part of the index."""
    views = [observed.RoleView(run, role) for role in attack.views]
    files = {str(view.role): dict(view.files) for view in views}
    here = folder / observed.FOLDER
    for view in views:
        (here / view.role.folder).mkdir(parents=True)
        for name in view.files:
            view.read(name)  # complete, or refused by name
            _link(run / observed.FOLDER / view.role.folder / name, here / view.role.folder / name)
    write_json(here / observed.INDEX, {"format": observed.FORMAT, "roles": files, "stopped": None})


def _link(there: Path, here: Path) -> None:
    """Create a link if the system supports it, else a copy. A missing file stays missing: its reader refuses it."""
    try:
        here.symlink_to(there.resolve(), target_is_directory=there.is_dir())
    except OSError:
        if there.is_dir():
            shutil.copytree(there, here)
        elif there.exists():
            shutil.copyfile(there, here)
