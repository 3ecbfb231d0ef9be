"""``--plugin my.py``: a user's own algorithms, models, partitioners, transforms or reducers, for this command only.

The file defines dicts ``ALGORITHMS``, ``MODELS``, ``PARTITIONS``, ``TRANSFORMS`` or ``REDUCERS`` of name -> builder. An
experiment file can then name them, and an algorithm's ask can name a reducer. Only the command line runs the file; an
experiment file never can.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from fedatlas.aggregation import REDUCERS
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.partition import PARTITIONS
from fedatlas.data.store import sha256
from fedatlas.errors import ConfigError, as_utf8, named, raised
from fedatlas.models.registry import MODELS
from fedatlas.registry import PLUGINS, Builder
from fedatlas.transforms import TRANSFORMS

OURS: Mapping[str, Mapping[str, Builder]] = {
    "algorithms": ALGORITHMS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "transforms": TRANSFORMS,
    "reducers": REDUCERS,
}

LOADED: dict[str, str] = {}
"""The plug-in files of this process, under their given names, and their SHA-256, for a run's record."""
RECORD = "plugins.json"


def load_plugins(paths: Iterable[Path]) -> None:
    """Run each file and register its builders. ConfigError if it cannot be run or defines none."""
    for path in paths:
        as_utf8(str(path), "--plugin ")  # the name goes into a run's record
        spec = importlib.util.spec_from_file_location(f"fedatlas_plugin_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"--plugin {path}: there is no such Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # a file that exits would end the run without a message
            raise ConfigError(f"--plugin {path} could not be run: {raised(error)}.") from error
        found = {kind: getattr(module, kind.upper(), {}) for kind in PLUGINS}
        if not any(found.values()):
            raise ConfigError(f"--plugin {path}: it defines none of {', '.join(kind.upper() for kind in PLUGINS)}.")
        for kind, builders in found.items():
            if not isinstance(builders, dict) or not all(callable(builder) for builder in builders.values()):
                raise ConfigError(f"--plugin {path}: {kind.upper()} must be a dict of name -> function.")
            if taken := sorted(builders.keys() & OURS[kind].keys()):
                raise ConfigError(
                    f"--plugin {path}: fedatlas already has '{taken[0]}' among its {kind}: choose another name."
                )
            PLUGINS[kind] |= builders
        LOADED[str(path)] = sha256(path)


def blamed(error: Exception) -> str:
    """Return one sentence about an error raised in a plug-in's code, with its line; "" for any other error."""
    modules = {getattr(builder, "__module__", "") for builders in PLUGINS.values() for builder in builders.values()}
    modules |= {point.module for kind in PLUGINS for point in entry_points(group=f"fedatlas.{kind}")}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    places = [place for place in traceback.extract_tb(error.__traceback__) if place.filename in files]
    if not places:
        return ""
    line = f"{places[-1].filename}, line {places[-1].lineno}: {places[-1].line}"
    return f"the plug-in '{Path(places[-1].filename).name}' failed with {named(error)} ({line})."
