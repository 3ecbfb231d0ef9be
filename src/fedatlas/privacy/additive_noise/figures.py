"""How private additive noise left the columns of a run: figures of a simulation, made of the rows with noise only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedatlas.privacy.additive_noise.reconstruction import Law, privacy_of, reconstruct
from fedatlas.privacy.column_bounds import Bounds, bounds_of, numeric

if TYPE_CHECKING:
    from fedatlas.privacy.own_rows import OwnRows

LISTED, ROWS = 12, 5000  # columns whose distribution is reconstructed; rows that it is made of


def figures_of(
    parties: Sequence[OwnRows], bounds: Bounds, kind: Law, scale: float, columns: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Return ``columns``: Pi(X), Pi(X|Z) and the loss of the first columns by name, and ``columns_in_all``."""
    if not parties:
        return {"columns": {}, "columns_in_all": 0}
    chosen = numeric("additive_noise", parties[0], columns)
    found: dict[str, Any] = {}
    for j in chosen[:LISTED] if scale else []:
        name = parties[0].columns[j][0]
        low, high = bounds_of("additive_noise", bounds, name)
        z = torch.cat([rows.x[:, j] for rows in parties]).double()
        z = z[torch.isfinite(z)]
        z = z[:: max(1, len(z) // ROWS)]
        s = scale * (high - low)
        found[name] = privacy_of(reconstruct(z.numpy(), low, high, kind, s), kind, s)._asdict()
    return {"columns": found, "columns_in_all": len(chosen)}
