"""The parts that complete every answer: epsilon for the user's nodes, runnable experiment files, the record of predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tomli_w

from fedatlas.files import write_text
from fedatlas.recommender.epsilon import epsilons
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.study.measurements import Floats
from fedatlas.study.plain import Plain, Row

Say = Callable[[str], None]


def epsilon_for(basis: Basis, asked: Requirements, at: Floats, plain: Floats) -> Floats:
    """Return (J, R) epsilon for the user's nodes and rounds; if only a run can tell it, that of the nearest setting, ``plain``."""
    found, order = plain.copy(), basis.fitted.nearest(at)
    for j, choice in enumerate(basis.fitted.choices):
        near = basis.configurations[basis.near(order, choice), choice]
        known = basis.epsilon.get(choice) if asked.delta is None else None
        known = known or epsilons(near, int(asked.nodes or 1), basis.fitted.rounds, asked.delta)
        if known is not None:
            found[j] = known
        elif asked.delta is not None:
            found[j] = np.nan  # the nearest setting's is at another delta
    return found


def configured(basis: Basis, near: int, entry: Row) -> Plain:
    """Return the experiment of a measured setting with the rounds of an answer, ready for a real run.

    It has secret noise, the default engine and checkpoints, and absolute paths of files that exist.
    """
    plain = basis.configuration(near, entry["choice"])
    plain["rounds"] = entry["rounds"]
    for key in ("engine", "checkpoint", "observe"):
        plain.pop(key, None)
    for table in plain.get("privacy") or ():
        if table.get("noise") == "seed":
            table["noise"] = "os"
    return plain


def write_experiment(out: Path, i: int, entry: Plain, plain: Row, *head: str) -> None:
    """Write the experiment file of an answer's choice, and its path into the answer; ``head``: its first lines."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in entry["choice"])
    path = out / f"{i + 1}-{name}.toml"
    write_text(path, "".join(f"# {line}\n" for line in head) + "\n" + tomli_w.dumps(plain))
    entry["experiment"] = str(path)
