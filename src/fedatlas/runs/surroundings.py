"""Where a process works besides its configuration: its folder, its prepared data and its plug-ins, for one on another machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas import plugins
from fedatlas.data.store import ENVIRONMENT, sha256
from fedatlas.errors import ConfigError


def surroundings() -> dict[str, Any]:
    """Return those of this process as plain values. ConfigError for a plug-in that was changed since it was loaded."""
    for name, digest in plugins.LOADED.items():
        if sha256(Path(name)) != digest:
            raise ConfigError(f"--plugin {name}: the file was changed since this program read it; begin again.")
    return {
        "directory": str(Path.cwd()),
        "store": str(Path(os.environ[ENVIRONMENT]).absolute()) if os.environ.get(ENVIRONMENT) else "",
        "plugins": [[name, Path(name).read_text(encoding="utf-8")] for name in plugins.LOADED],
    }


def take_over(told: Mapping[str, Any], folder: Path) -> None:
    """Work in the surroundings of another process as far as this machine has them; ``folder``: for copies of its plug-ins."""
    if Path(told["directory"]).is_dir():
        os.chdir(told["directory"])  # relative paths start where they do at the driver
    if told["store"] and ENVIRONMENT not in os.environ:
        os.environ[ENVIRONMENT] = told["store"]
    for number, (name, text) in enumerate(told["plugins"]):
        copy = folder / "plugins" / str(number) / Path(name).name
        copy.parent.mkdir(parents=True)
        copy.write_text(text, encoding="utf-8")
        plugins.load_plugins([copy])
        plugins.LOADED[name] = plugins.LOADED.pop(str(copy))
