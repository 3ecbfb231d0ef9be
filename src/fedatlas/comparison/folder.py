"""The folder of a comparison or of a tuning: it goes on with what it began with, and with nothing else."""

from __future__ import annotations

from pathlib import Path

from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder


def refuse_other(out: Path, record: str, key: str, what: str) -> None:
    """Raise ConfigError if a folder holds anything but the ``what`` ("comparison") whose file ``record`` has this key."""
    if out.is_file():
        raise ConfigError(f"--out {out} is a file; name a folder.")
    if (out / record).exists():
        if RunFolder(out).read_json(record, "key")["key"] != key:
            raise ConfigError(f"'{out}' holds another {what}: name another folder with --out, or remove it.")
    elif out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"'{out}' is not empty and holds no {what}: name another folder with --out.")
