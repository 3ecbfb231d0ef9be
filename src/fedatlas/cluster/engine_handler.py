"""The jobs of one run on a node: its bench, rebuilt there, and the executors of one machine with this node's cores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedatlas.cluster.bench import rebuilt
from fedatlas.cluster.parcels import BENCH, DATA, DONE, ERROR, NEED, TELL, packed, unpacked
from fedatlas.engine.executors import make_executor
from fedatlas.engine.job import Executor, Job
from fedatlas.engine.pool import Failure, PoolExecutor, can_fork, failure_of, plain_of
from fedatlas.errors import FedatlasError
from fedatlas.runs.carried_data import here
from fedatlas.runs.carried_data import unpacked as unpacked_files
from fedatlas.runs.surroundings import take_over

KEPT = ("state", "memory", "session")
"""Parts of a result that the client keeps, as a value of its own: it outlives the update."""
TOGETHER = 1 << 16  # jobs of one chunk of the node's pool: as many as a unit has


class EngineHandler:
    """Does jobs, one unit after another (`worker.Handler`)."""

    pause = None  # seconds until the next `look`: every call is answered where it comes

    def __init__(self, hello: bytes, folder: Path) -> None:
        take_over(json.loads(hello), folder)
        self.folder, self.told = folder, dict[int, Any]()
        self.serial: Executor | None = None
        self.pool: PoolExecutor | None = None

    def answer(self, number: int, message: bytes) -> Any:
        """Return the answer to a parcel: results, or an error with the client in whose work it was met."""
        (what, *rest), values = unpacked(message)
        if what == TELL:
            number, live = rest
            self.told = {n: value for n, value in self.told.items() if n in live} | {number: values[0]}
            return packed((DONE,))
        if what in (BENCH, DATA):
            return self.prepared(what, *rest)
        (pairs, cores), given = rest, iter(values)
        jobs = [
            job._replace(message=next(given) if told is None else self.told[told], **next(given)) for job, told in pairs
        ]
        done = results(self.executor(cores), jobs)
        return packed((ERROR, *done)) if isinstance(done, tuple) else packed((DONE,), done)

    def prepared(self, what: str, *given: Any) -> Any:
        """Make the bench, or take the data for it; an error is answered in words where it is another bench than the driver's."""
        try:
            if what == DATA:
                wanted, names, data = given
                unpacked_files(data, names, wanted, self.folder / "data")
            else:
                order, wanted = given
                if not here((whole := order.checked()).config, wanted):
                    return packed((NEED,))
                setup = rebuilt(order, whole)
                self.bench = setup.bench
                self.serial = make_executor(order.plan._replace(workers=1), setup.bench, setup.sizes.values())
        except FedatlasError as error:
            return packed((ERROR, str(error)))
        return packed((DONE,))

    def executor(self, cores: int) -> Executor:
        """Return the executor for so many cores. A pool shares the programs that were derived in this process."""
        assert self.serial is not None
        if cores == 1 or not can_fork():
            return self.serial
        if self.pool is None:
            self.pool = PoolExecutor(self.bench, self.serial.run_job, cores, TOGETHER)
        return self.pool

    def look(self) -> Iterable[tuple[int, bytes]]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """End the pool's workers."""
        if self.pool is not None:
            self.pool.close()


def results(executor: Executor, jobs: list[Job]) -> list[dict[str, Any]] | tuple[int, Failure]:
    """Return two values per result, what is sent and what is kept, or the first error with the client in whose work it was met."""
    out, done = list[dict[str, Any]](), executor.run(jobs)
    for job in jobs:
        try:
            plain = plain_of(next(done))
            kept = {name: plain.pop(name) for name in KEPT}
            out += [plain, kept]
        except Exception as error:  # noqa: BLE001  (the driver raises it; a pool's own names the client)
            return job.client, failure_of(error)
    return out
