"""The successor in a chain (G8): a client that has the model its predecessor handed on, and takes another for what it began with.

(a) start = "true": the model that the predecessor began with. The client before it colludes, or it is first and the server's is public.
(b) start = "last": the model that the successor itself last received.

One client is one target, over which there is no interval. Its figure is compared with that of the same answer against others: without
a leak all of them come from one law. So the 95% interval of the leak reaches from the figure minus the 97.5% quantile of the others'
to the figure minus their 2.5% quantile, by ranks that hold for any law (conformal prediction, Vovk et al. 2005).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.roles import ViewRole
from fedatlas.errors import ConfigError
from fedatlas.metrics.quality import Floats

Start = Literal["true", "last"]
TAIL, POWER = 0.025, 0.841621  # each end of the interval; quantile of the normal distribution for a power of 80%
FEWEST = 39  # others, with which the largest is the interval's end
WHO = (
    "insider: the server, which sees each update; a client or an outsider sees only the mean of a round, a successor in a chain the model "
    "of the client before it"
)


def start_of(name: str, role: ViewRole, start: Start | None) -> dict[str, Any]:
    """Return the key ``start`` of an attack, which only a successor has. ConfigError for another role."""
    if role.kind != "successor":
        if start is not None:
            raise ConfigError(f"attack '{name}': start is for role = 'successor:3'; remove the key.")
        return {}
    return {"start": start or "true"}


def colluder(role: ViewRole, keys: dict[str, Any]) -> ViewRole | None:
    """Return the role whose view a successor needs besides its own: that of the client before its predecessor."""
    return ViewRole("predecessor", role.client) if keys.get("start") == "true" else None


def declared(declares: Declaration, keys: dict[str, Any]) -> Declaration:
    """Return the threat model of an attack, with that of a successor if its ``keys`` have a start."""
    if "start" not in keys:
        return declares
    begun = {
        "true": "the model that its predecessor began with, told by the client before that or public",
        "last": "the model that it received before",
    }[keys["start"]]
    return declares._replace(
        when="training: the first round in which it has both models",
        where="the model that its predecessor handed on, as a change of one before",
        knowledge=f"{declares.knowledge}; {begun}",
    )


def nothing_before(name: str, config: Any, keys: dict[str, Any]) -> str:
    """Return why no successor can have received a model before the one that it is handed; "" if it can."""
    several = config.rounds > 1 or config.algorithm.parameters().get("passes", 1) > 1
    if keys.get("start") != "last" or several:
        return ""
    return f"attack '{name}' with start = 'last' compares with a model received before: set rounds = 2."


def among(own: float, others: Floats) -> dict[str, float | None]:
    """Return the leak of one target: its figure minus the mean of the others' (m,), with its interval. Fewer than 39 have no interval.

    ``smallest``: the figure that would have been beyond the interval's end with 80% chance. ``others``: m.
    """
    m, mean = len(others), float(np.mean(others)) if len(others) else math.nan
    rank = math.floor(TAIL * (m + 1) + 1e-9)
    leak: dict[str, float | None] = {
        "value": own - mean,
        "low": None,
        "high": None,
        "smallest": None,
        "others": float(m),
    }
    if rank:
        order = np.sort(others)
        least, most = float(order[rank - 1]), float(order[-rank])
        leak |= {"low": own - most, "high": own - least, "smallest": most + POWER * float(np.std(others, ddof=1))}
    return leak
