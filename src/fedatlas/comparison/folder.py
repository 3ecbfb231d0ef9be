"""The folder of a comparison or of a tuning. It continues what it began with, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder
from fedatlas.wording import listed


def refuse_smaller(out: Path, record: str, schemes: Mapping[str, str], seeds: Sequence[int]) -> None:
    """Raise ConfigError if a folder holds anything but a comparison to which these schemes and seeds may only add.

    ``schemes``: label -> key. A comparison is never replaced by a smaller one.
    """
    refuse_strange(out, record, "comparison")
    if not (out / record).exists():
        return
    there: Mapping[str, Any] = RunFolder(out).read_json(record, "schemes", "seeds")
    known = {one["label"]: one.get("key") for one in there["schemes"]}
    if any(schemes.get(label, key) != key for label, key in known.items()) or not known.keys() & schemes.keys():
        raise ConfigError(f"'{out}' holds another comparison: name another folder with --out, or remove it.")
    lost = [label for label in known if label not in schemes]
    lost += [f"seed {seed}" for seed in there["seeds"] if seed not in seeds]
    if lost:
        raise ConfigError(
            f"'{out}' holds a larger comparison, with {listed(lost)}: ask for these too, or name another folder with --out."
        )


def refuse_strange(out: Path, record: str, what: str) -> None:
    """Raise ConfigError if ``out`` is a file, or a folder that is not empty and has no file ``record``."""
    if out.is_file():
        raise ConfigError(f"--out {out} is a file; name a folder.")
    if not (out / record).exists() and out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"'{out}' is not empty and holds no {what}: name another folder with --out.")


def refuse_other(out: Path, record: str, key: str, what: str) -> None:
    """Raise ConfigError if a folder holds anything but the ``what`` ("comparison") whose file ``record`` has this key."""
    refuse_strange(out, record, what)
    if (out / record).exists() and RunFolder(out).read_json(record, "key")["key"] != key:
        raise ConfigError(f"'{out}' holds another {what}: name another folder with --out, or remove it.")
