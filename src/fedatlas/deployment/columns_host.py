"""The server's view of parties that hold columns: counts, and a host that grows their trees over the nodes' streams.

A tree needs every party. If one is absent, the run waits for it up to the deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedatlas.algorithm import RoundGenerator
from fedatlas.data.dataset import Column
from fedatlas.data.party_tables import PartyTable
from fedatlas.deployment.node_columns import ColumnsFacts
from fedatlas.deployment.nodes_link import NodesLink
from fedatlas.deployment.streams_host import StreamsHost
from fedatlas.federation.columns_federation import bench_of
from fedatlas.privacy.ask_protocol import SessionFailed
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium, consortium_of
from fedatlas.vertical.parties import PartyLeft
from fedatlas.wire.frames import LIMIT


def counted(whole: Checked, facts: Sequence[ColumnsFacts]) -> Consortium:
    """Return the parties as the server knows them: their numbers of ids and columns, without names, and no rows."""
    return consortium_of(whole, [table_of_counts(name, one) for name, one in zip(whole.parties, facts, strict=True)])


def table_of_counts(name: str, facts: ColumnsFacts) -> PartyTable:
    """Return a table of which only counts are known."""
    ids, without, nothing = facts.rows.train, facts.without_id, np.zeros(0)
    return PartyTable(
        name,
        ("-",) * (ids - without) + ("",) * without,
        tuple(Column(f"column {j + 1}") for j in range(facts.columns)),
        np.zeros((0, facts.spread)),
        tuple(f"column {j + 1}" for j in range(facts.spread)),
        nothing if facts.label else None,
        nothing if facts.weighted else None,
        facts.task,
        facts.class_names,
        facts.left_out,
    )


def columns_host(held: Consortium, link: NodesLink) -> StreamsHost:
    """Return the host of a run whose nodes hold columns. If a party drops out, the round is restarted."""
    sizes = {k: len(one.ids) for k, one in enumerate(held.tables)}
    asked = held.checked.algorithm
    algorithm = bench_of(asked.name, asked.tasks, {}).algorithm
    host = StreamsHost(link, algorithm, sizes, held.config.seed, whole=_whole)
    link.most = LIMIT  # ciphertexts of all rows are longer than their request
    host.resumes = "; submit the experiment again to start over"
    return host


def _whole(inner: RoundGenerator) -> RoundGenerator:
    try:
        return (yield from inner)
    except PartyLeft as error:
        raise SessionFailed(str(error)) from None
