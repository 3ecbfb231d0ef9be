"""A node's rows after the mechanisms that change rows (`setup.own_rows`): before it tells anything of them, and for every use."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.deployment.node_rows import NodeRows, dataset_of, facts_of
from fedatlas.deployment.node_setup import of_one
from fedatlas.errors import DataError
from fedatlas.files import write_secret
from fedatlas.privacy.mechanism import on_rows
from fedatlas.secret import KEY, key
from fedatlas.setup.own_rows import with_own_rows

ROOT = "rows.secret"


def changed(held: NodeRows, agreed: AgreedRun, folder: Path) -> NodeRows:
    """Return the rows that a node trains on in this run, and those that it judges by. ``folder``: of the run at this node."""
    whole, train = agreed.whole, held.splits["train"]
    if not on_rows(whole.mechanisms):
        return held
    partition = of_one(agreed.number, len(agreed.agreement.names), len(train.y))
    dataset = dataset_of(held.about, {"test": train.take(np.arange(0)), **held.splits})
    found = with_own_rows(whole.mechanisms, dataset, partition, root_of(folder), whole.config.seed, judge=agreed.number)
    kept = found.partition.clients[agreed.number]
    splits = {name: found.dataset.splits[name] for name in held.splits}
    if len(kept) < len(train.y):
        splits["train"] = splits["train"].take(kept)
    return held._replace(about=facts_of(found.dataset)._replace(empty=held.about.empty), splits=splits)


def root_of(folder: Path) -> bytes:
    """Return this node's secret of a run, made at its first use. DataError if it is damaged."""
    path = folder / ROOT
    if not path.exists():
        write_secret(path, key())
    root = path.read_bytes()
    if len(root) != KEY:
        raise DataError(f"'{ROOT}' of the run is damaged: submit the experiment again.")
    return root
