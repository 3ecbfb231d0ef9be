"""The bench of a run on a node: rebuilt from the run's plain configuration, and compared with the one where the run began."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedatlas import plugins
from fedatlas.config import parse
from fedatlas.data.cells import Reading, now, read_as
from fedatlas.data.store import ENVIRONMENT, sha256
from fedatlas.engine.executors import Plan
from fedatlas.errors import ConfigError
from fedatlas.record.fingerprint import fingerprint, of_rows
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.refusals import checked


class BenchOrder(NamedTuple):
    """A run as its nodes are told of it."""

    config: Mapping[str, Any]  # as plain values
    plan: Plan
    marks: Mapping[str, str]  # `marks` where the run began
    reading: Reading  # rules by which its files are read
    directory: str  # where relative paths start
    store: str  # folder of prepared data; "" for the usual one
    plugins: Mapping[str, str]  # path where the run began -> source

    @classmethod
    def of(cls, setup: Setup, plan: Plan) -> BenchOrder:
        """Return the order of a run. ConfigError for a plug-in that was altered since it was loaded."""
        config = setup.config.plain()
        config["engine"].pop("cluster", None)
        loaded = {}
        for path, digest in plugins.LOADED.items():
            if sha256(Path(path)) != digest:
                raise ConfigError(f"--plugin {path}: the file was changed since this program read it; begin again.")
            loaded[path] = Path(path).read_text(encoding="utf-8")
        return cls(config, plan, marks(setup, plan), now(), str(Path.cwd()), os.environ.get(ENVIRONMENT, ""), loaded)


def marks(setup: Setup, plan: Plan) -> dict[str, str]:
    """Return fingerprints of all that decides the bits of a client's work; each key names its part for a sentence."""
    return {
        "processor's instructions": torch.backends.cpu.get_cpu_capability(),
        "rows": fingerprint(of_rows(setup)),
        "initial model": fingerprint(parameters(setup)),
        "plan": f"{plan.engine} {plan.step} {plan.precision}",
    }


def parameters(setup: Setup) -> Iterator[Any]:
    """Yield the names and values of every network's parameters and buffers."""
    for name, one in setup.networks.items():
        for tree in (one.params, one.buffers):
            for key, x in tree.items():
                yield from (f"{name} {key}", x)


def rebuilt(order: BenchOrder, folder: Path) -> Setup:
    """Return the federation of a run from its configuration and this machine's data. ``folder``: for files that travelled.

    ConfigError if it is another one than where the run began.
    """
    if order.plugins:
        names = [folder / Path(path).name for path in order.plugins]
        for name, text in zip(names, order.plugins.values(), strict=True):
            name.write_text(text, encoding="utf-8")
        plugins.load_plugins(names)
    if Path(order.directory).is_dir():
        os.chdir(order.directory)
    if order.store and ENVIRONMENT not in os.environ:
        os.environ[ENVIRONMENT] = order.store
    with read_as(order.reading):
        setup = set_up(checked(parse(order.config)))
    found = marks(setup, order.plan)
    for part, mark in order.marks.items():
        if found[part] != mark:
            shown = f" ({found[part]}, not {mark})" if part in ("processor's instructions", "plan") else ""
            raise ConfigError(f"its {part} {'differ' if part.endswith('s') else 'differs'}{shown}")
    return setup
