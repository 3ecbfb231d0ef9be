"""The files that a run writes before round 1, and those of them that a resumed run restores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from fedatlas import plugins
from fedatlas.data.store import sha256
from fedatlas.errors import ConfigError
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import ledger
from fedatlas.privacy.mechanism import Mechanism, entered
from fedatlas.record import row_secret
from fedatlas.record.fingerprint import label_sources, sources
from fedatlas.record.run_folder import ATTACKED, RunFolder, file_of
from fedatlas.setup.assembly import Setup
from fedatlas.setup.consortium import Consortium
from fedatlas.setup.truth import truth_of
from fedatlas.setup.views import view_attacks_of

MODULE = "module.json"  # written for runs with a custom network
ROWS = "row_sources.json"  # written for runs with noise: identifies their rows for an account over several runs
CONSTANTS = "constants.json"  # written for runs with data.constants: names the file


def write_beginning(setup: Setup, folder: RunFolder) -> None:
    """Write the files that are known before round 1: derived files, draws of attacks, and records of outside code and files."""
    row_secret.write(setup, folder)
    enter_rows(setup.checked.mechanisms, folder)
    write_derived(setup, folder)
    for name, attack in view_attacks_of(setup.config).items():
        for drawn, arrays in attack.draws(truth_of(setup)).items():
            folder.save_arrays(f"{ATTACKED}/{name}/{drawn}", arrays)
    if setup.bench.protection is not None and setup.bench.protection.noising is not None:
        folder.write_json(ROWS, {"rows": sources(setup)})
    if setup.own_module:
        folder.write_json(MODULE, {"class": setup.own_module})
    if isinstance(file := setup.config.data.constants, str):
        folder.write_json(CONSTANTS, {"file": file, "sha256": sha256(Path(file))})
    if plugins.LOADED:
        folder.write_json(plugins.RECORD, plugins.LOADED)


def write_labels(held: Consortium, folder: RunFolder) -> None:
    """Write what belongs to labels with noise, before anything is computed from them: their secret, the ledger, and whose rows they are."""
    if not held.root:
        return
    row_secret.keep(held.root, folder.path)
    enter_rows(held.checked.mechanisms, folder)
    folder.write_json(ROWS, {"rows": label_sources(held.config)})


def enter_rows(mechanisms: Sequence[Mechanism], folder: RunFolder) -> None:
    """Enter changed rows in the ledger, once: a run that begins again changes them by the same secret."""
    path, due = folder.path / LEDGER, entered(mechanisms)
    there = ledger.read(path).events
    if lines := [event for event in due if event not in there]:
        ledger.append(path, lines)


def write_derived(setup: Setup, folder: RunFolder) -> None:
    """Write what follows from configuration and data: the initial model, who holds what, how inputs were prepared."""
    for name, model in setup.models().initial().items():
        folder.save_model(file_of("initial", name), model.save())
    folder.write_json("partition.json", setup.partition_record())
    folder.write_json("preprocess.json", setup.held.preprocess.to_json())


def restore_derived(setup: Setup, folder: RunFolder) -> list[str]:
    """Rewrite the files of `write_derived` if any is lost or altered, and return the names of those that were."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = RunFolder(Path(scratch))
        write_derived(setup, fresh)
        odd = [file.name for file in sorted(fresh.path.iterdir()) if not folder.holds(file.name, file.read_bytes())]
    if odd:
        write_derived(setup, folder)
    return odd


def same_beginning(path: Path, module: nn.Module | None) -> None:
    """Raise ConfigError if a run is continued without the network, the plug-ins or the constants it began with."""
    own_module(path, module)
    same_plugins(path)
    same_constants(path)


def own_module(path: Path, module: nn.Module | None) -> None:
    """Raise ConfigError if a run with a custom network is continued or read without one, or the other way round."""
    recorded = path / MODULE
    if recorded.exists() and module is None:
        name = RunFolder(path).read_json(MODULE, "class")["class"]
        raise ConfigError(f"'{path}' was run with a custom network ({name}): pass it again as module=... in Python.")
    if module is not None and not recorded.exists():
        raise ConfigError(f"'{path}' was run with the model of its configuration: remove the argument module.")


def same_plugins(folder: Path) -> None:
    """Raise ConfigError if a run began with a plug-in that is not given now, or whose text has changed."""
    begun = RunFolder(folder).read_json(plugins.RECORD) if (folder / plugins.RECORD).exists() else {}
    changed = [name for name, digest in begun.items() if digest not in plugins.LOADED.values()]
    if changed:
        raise ConfigError(
            f"'{folder}' began with the plug-in '{changed[0]}', and no file with its text (SHA-256 in {plugins.RECORD}) is given now: "
            "pass the original with --plugin, or begin a new run."
        )


def same_constants(folder: Path) -> None:
    """Raise ConfigError if a run's file of constants is missing or has changed since the run began."""
    if not (folder / CONSTANTS).exists():
        return
    begun = RunFolder(folder).read_json(CONSTANTS, "file", "sha256")
    if not Path(begun["file"]).exists() or sha256(Path(begun["file"])) != begun["sha256"]:
        raise ConfigError(
            f"'{folder}' began with data.constants = '{begun['file']}', and this file is missing or has changed (SHA-256 in "
            f"{CONSTANTS}): put the original back, or begin a new run."
        )
