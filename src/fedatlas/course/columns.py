"""A run of parties that hold columns: alignment and split in row 0, then a tree a round, a row and a checkpoint after each.

What the generator knows is the server's state of the checkpoint; labels, margins, bins and trees are the parties'. A party that leaves, or
that breaks the rules, ends the run after the last whole tree: what the tree had changed at any party goes back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas import machine
from fedatlas.algorithm import Question, RoundGenerator, State
from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.course.columns_end import partition_record, write_end
from fedatlas.course.progress import Progress, Row, Run, Silent, stopped
from fedatlas.data.party_tables import PartyTable
from fedatlas.errors import CheckpointError, FedatlasError, ProtocolError
from fedatlas.federation.client_states import ClientStates, PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.host import Host, Rounds
from fedatlas.federation.link import Observer
from fedatlas.federation.start import RoundStart
from fedatlas.record.checkpoint import Checkpoints, Restored, RunState
from fedatlas.record.run_folder import RunFolder, Start
from fedatlas.setup.columns_method import method_of
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.vertical import align, boosting, judging, split
from fedatlas.vertical.boosting import SecureBoost


def questions(how: SecureBoost) -> dict[str, Question]:
    """Everything that a party of a run can be asked."""
    return {**align.QUESTIONS, **split.QUESTIONS, **boosting.questions(how), **judging.question(boosting.outputs)}


class Growing:
    """The state of a run between trees, and what one tree does to it."""

    def __init__(self, held: Consortium, how: SecureBoost, folder: RunFolder, federation: Host) -> None:
        self.held, self.how, self.folder, self.config = held, how, folder, held.config
        self.checkpoints = Checkpoints(folder.path / "checkpoint", held.config.hash(), held.config.checkpoint.keep)
        self.federation = federation
        self.state = RunState(0, held.beginning, 0)
        self.saved = -1  # tree of the last checkpoint

    @property
    def number(self) -> int:
        """Trees that have been grown."""
        return self.state.round

    @property
    def server(self) -> State:
        """What is known left of the link."""
        return self.state.server

    @property
    def judged_on(self) -> str:
        """The rows that the curves are drawn on."""
        return "held" if self.config.evaluation.on == "validation" else "test"

    def begin(self) -> Row:
        """Row 0: alignment, split, bins; the model without a tree, judged."""

        def first() -> RoundGenerator:
            server = yield from align.align(self.held.align, self.server)
            server = yield from split.split(server, self.held.test, self.held.held)
            server = yield from boosting.begin(self.how, server)
            return (yield from judging.judged(server, self.judged_on))

        return self._round(0, first)

    def step(self) -> Row:
        """One tree."""
        number = self.number + 1
        evaluated = number == self.config.rounds or number % self.config.evaluation.every == 0

        def tree() -> RoundGenerator:
            server = yield from boosting.grow(self.how, self.server, number)
            return (yield from judging.judged(server, self.judged_on)) if evaluated else {**server, "quality": {}}

        return self._round(number, tree)

    def end(self) -> None:
        """What is said of the finished model: importance, and its figures with intervals."""

        def last() -> RoundGenerator:
            server = yield from boosting.importance(self.how, self.server)
            server = yield from judging.judged(server, self.judged_on, intervals=True)
            if self.judged_on == "held":
                tested = yield from judging.judged(server, "test", intervals=True)
                server = {**server, "tested": {k: tested[k] for k in ("quality", "intervals")}}
            return server

        server = self._driven(last, self.number + 1, commit=True)  # kept by the parties, and by no checkpoint
        self.state = self.state._replace(server=server)

    def resume(self, restored: Restored) -> None:
        """Continues from a checkpoint: rows after it are dropped and made again. CheckpointError for other tables."""
        if restored.extra.get("data") != fingerprint(self.held.tables):
            raise CheckpointError(
                f"the tables are not those that '{self.folder.path}' began with: put the originals back, or start a new run."
            )
        self.federation.restore(restored.extra)
        self.state, self.saved = restored.run, restored.run.round
        self.folder.truncate(restored.run.rows, restored.extra.get("rows_sha256"))

    def save(self) -> None:
        """A checkpoint of this tree, unless there is one."""
        if self.saved != self.number:
            extra = {"data": fingerprint(self.held.tables), "rows_sha256": self.folder.rows_sha256()}
            self.checkpoints.save(self.state, self.federation.states, {**extra, **self.federation.record()})
            self.federation.landed(self.number)
            self.saved = self.number

    def _driven(self, make: Rounds, number: int, *, commit: bool) -> State:
        """What comes of a round. ProtocolError where it was given up."""
        server = self.federation.drive(make, RoundStart(number, 1.0), commit=commit)
        if server is None:
            raise ProtocolError(self.federation.given_up)
        return server

    def _round(self, number: int, make: Any) -> Row:
        started = time.perf_counter()
        with self._whole(number):
            server = self._driven(make, number, commit=False)
        self.federation.server.commit(number)
        row = self._row(number, server, time.perf_counter() - started)
        self.state = RunState(number, server, self.folder.append(row))
        last = number == self.config.rounds
        if last or number % self.config.checkpoint.every == 0:
            self.save()
        return row

    @contextmanager
    def _whole(self, number: int) -> Iterator[None]:
        """A tree is grown whole or not at all: where it ends early, all parties are where they were before it."""
        try:
            yield
        except FedatlasError as error:
            self.federation.server.commit(number, ())
            if number == 0:
                raise
            self.save()
            done = f"{self.number} whole trees are kept" if self.number != 1 else "1 whole tree is kept"
            raise type(error)(
                f"{str(error).rstrip('.')}, in tree {number}: {done}{self.federation.resumes.format(self.folder.path)}."
            ) from None

    def _row(self, number: int, server: State, seconds: float) -> Row:
        cost, quality = self.federation.cost, dict(server.get("quality") or {})
        parties = list(range(len(self.held.names)))
        keys = quality or dict.fromkeys(LAST_KEYS[self.held.holder.task])
        return {
            "round": number,
            **keys,
            "train_loss": None,
            "clients": parties if number else [],
            "selected": parties if number else [],
            "weights": [],
            "steps": [],
            "lr": None,
            "seconds": seconds,
            "seconds_by_phase": dict(cost.seconds),
            "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down,
            "bytes_peer": 0,
            "flops": 0,
            "peak_memory_bytes": machine.peak_memory(),
            "figures": dict(server.get("boost", {}).get("counts", {})),
        }


LAST_KEYS: Mapping[str, tuple[str, ...]] = {
    "classes": ("accuracy", "macro_f1", "weighted_f1", "per_class_f1", "loss", "auc"),
    "numbers": ("rmse", "mae", "r2", "loss"),
}
"""Task -> the quality fields of a row; None where a tree was not judged."""


@machine.one_thread_an_operator()
def run_columns(
    config: ExperimentConfig,
    path: Path,
    *,
    start: Start = "new",
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
    observers: Iterable[Observer] = (),
) -> tuple[Run, Growing]:
    """A run, new or from its last checkpoint, and what it came out as; nothing is left of one that is refused before its first tree."""
    progress = progress or Silent()
    config, how = method_of(config)
    held = consortium(config)
    folder = (
        RunFolder.open(path) if start == "resume" else RunFolder.create(path, config, options, again=start == "again")
    )
    party = PartyState(ClientStates(bytes_of(config.engine.state_memory)))
    host = columns_federation(held.parties, questions(how), party, run=path.name, observers=observers)
    growing = Growing(held, how, folder, host)
    return Run(path, all_trees(growing, start, progress)), growing


def all_trees(growing: Growing, start: Start, progress: Progress) -> dict[str, Any]:
    """All trees that are left of a run, from row 0 where it is new, and its end; returns the summary."""
    held, folder, config = growing.held, growing.folder, growing.config
    restored = growing.checkpoints.load(growing.federation.states) if start == "resume" else None
    for notice in held.notices:
        progress.said(notice)
    progress.growing(held, growing.how, folder.path, restored.run.round if restored else 0)
    if restored:
        for refused in restored.refused:
            progress.said(f"{refused} The checkpoint of tree {restored.run.round} is used.")
        growing.resume(restored)
        if folder.config().algorithm != config.algorithm:
            folder.rewrite(config)
    else:
        try:
            first = growing.begin()
        except FedatlasError:
            folder.discard()
            raise
        for notice in growing.server["align"]["notices"]:
            progress.said(notice)
        folder.write_json("partition.json", partition_record(held, growing.server))
        progress.row(first)
    return grown(growing, folder, progress)


def grown(growing: Growing, folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """All trees that are left, and the run's end; its summary."""
    config, rows = growing.config, folder.rows()
    if growing.number < config.rounds and not stopped(config, rows):
        folder.reopen()
    while growing.number < config.rounds and not stopped(config, rows):
        rows.append(growing.step())
        progress.row(rows[-1])
    growing.save()
    early = ""
    if growing.number < config.rounds:
        early = f"after tree {growing.number} of {config.rounds}: {stopped(config, rows)} ([stop])."
        progress.said(f"Stopped {early}")
    growing.end()
    return write_end(growing.held, growing.how, growing.server, growing.federation.states, folder, rows, early)


def fingerprint(tables: Sequence[PartyTable]) -> str:
    """BLAKE2b over these parties' ids, columns, labels and weights: a run that is resumed must find the tables it began with."""
    found = hashlib.blake2b(digest_size=16)
    for one in tables:
        found.update(repr((one.name, one.names, len(one.ids))).encode() + "\x1f".join(one.ids).encode())
        for values in (one.x, one.y, one.weight):
            if values is not None:
                found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()
