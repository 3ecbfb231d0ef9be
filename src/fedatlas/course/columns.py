"""The course of a run whose parties hold columns: alignment and split in row 0, then one round of the scheme per row.

The checkpoint holds only the coordinator's knowledge, as the server's state; everything else belongs to the parties. If a
party leaves or breaks the protocol, the run ends after the last whole round, and all parties undo the changes of the
interrupted round.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from fedatlas import machine
from fedatlas.algorithm import RoundGenerator, State
from fedatlas.config import bytes_of
from fedatlas.course import columns_end, privacy_record
from fedatlas.course.keeper import Keeper
from fedatlas.course.matching import Say, followed
from fedatlas.errors import FedatlasError, ProtocolError
from fedatlas.federation.client_states import ClientStates, PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.host import Host, Rounds
from fedatlas.federation.link import Observer
from fedatlas.federation.secrets import LEDGER
from fedatlas.federation.start import RoundStart
from fedatlas.record.checkpoint import Restored, RunState
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.fingerprint import fingerprint, of_tables
from fedatlas.record.initial_files import write_labels
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.consortium import Consortium
from fedatlas.vertical import align, judging, split
from fedatlas.vertical.judging import Judged
from fedatlas.wording import count

LAST_KEYS: Mapping[str, tuple[str, ...]] = {
    "classes": ("accuracy", "macro_f1", "weighted_f1", "per_class_f1", "loss", "auc"),
    "numbers": ("rmse", "mae", "r2", "loss"),
}
"""Task -> the quality fields of a row, each None if the round was not judged."""


class Growing:
    """The course of a run whose parties hold columns.

    ``host`` speaks with remote parties. ``say`` is told how far a long matching of this process is.
    """

    guard = None

    def __init__(
        self,
        held: Consortium,
        folder: RunFolder,
        *,
        resume: bool = False,
        observers: Iterable[Observer] = (),
        host: Host | None = None,
        say: Say = lambda line: None,
    ) -> None:
        self.held, self.how, self.config = held, held.checked.how, held.config
        self.scheme = held.checked.of_columns()
        spent = folder.path / LEDGER if held.checked.enters else None
        self.keeper = Keeper(folder, self.config, fingerprint(of_tables(held.tables)), spent=spent)
        asked = held.checked.algorithm
        states = PartyState(ClientStates(bytes_of(self.config.engine.state_memory)))
        self.federation: Host = host or columns_federation(
            followed(held, say), asked.tasks, states, name=asked.name, run=folder.path.name, observers=observers
        )
        self.restored = self.keeper.checkpoints.load(self.federation.states) if resume else None
        self.state = RunState(0, held.beginning, 0)
        self.news: list[str] = []

    @property
    def word(self) -> str:
        """Word for the result of a round, such as "tree"."""
        return self.scheme.words.product(len(self.held.holder.class_names))

    @property
    def number(self) -> int:
        """Number of rounds that have landed."""
        return self.state.round

    @property
    def server(self) -> State:
        """The coordinator's state."""
        return self.state.server

    @property
    def judged_on(self) -> str:
        """Rows on which the model is judged in each round: "held" (for validation) or "test"."""
        return "held" if self.config.evaluation.on == "validation" else "test"

    @property
    def notices(self) -> Sequence[str]:
        """Notices about the tables."""
        return self.held.notices

    @property
    def lines(self) -> Sequence[str]:
        """One line with the parties, their columns and rows, and the training."""
        who = ", ".join(
            f"{one.name} ({len(one.schema)} columns, {len(one.ids):,} rows{', the label' if k == self.held.active else ''})"
            for k, one in enumerate(self.held.tables)
        )
        return [f"{who}; {self.scheme.said(self.how, len(self.held.holder.class_names))}, seed {self.config.seed}"]

    def noticed(self) -> list[str]:
        """Return the notices since the last call."""
        said, self.news = self.news, []
        return said

    def resume(self, restored: Restored) -> None:
        """Resume from a checkpoint."""
        folder = self.keeper.folder
        self.state = self.keeper.take_up(restored)
        self.federation.restore(restored.extra)
        if folder.config().algorithm != self.config.algorithm:
            folder.rewrite(self.config)

    def begin(self) -> RoundRow:
        """Run round 0 (alignment, split, start of the scheme) and judge the first model.

        The secret of noised labels and their line of the ledger are on the disk before it.
        """
        write_labels(self.held, self.keeper.folder)
        try:
            row = self._round(0, self.first)
        except FedatlasError:
            self.keeper.folder.discard()
            raise
        self.news += self.server.get("align", {}).get("notices", [])
        self.keeper.folder.write_json("partition.json", columns_end.partition_record(self.held, self.server))
        return row

    def first(self) -> RoundGenerator:
        """Return round 0."""
        server = yield from align.align(self.held.align, self.server)
        server = yield from split.split(server, self.held.test, self.held.held)
        server = yield from self.scheme.begin(self.how, server)
        return (yield from self.judged(server))

    def judged(self, server: State) -> RoundGenerator:
        """Add the figures of a round to the coordinator's state."""
        return judging.judged(server, self.judged_on)

    def judges(self, number: int) -> bool:
        """Return whether the model is judged after a round."""
        return number == self.config.rounds or number % self.config.evaluation.every == 0

    def step(self) -> RoundRow:
        """Run one round of the scheme, and judge the model if the round is due.

        An error raised in the round says how many rounds are kept; the state before the round is saved first.
        """
        number = self.number + 1

        def one() -> RoundGenerator:
            server = yield from self.scheme.step(self.how, self.server, number)
            return (yield from self.judged(server)) if self.judges(number) else {**server, "quality": {}}

        try:
            return self._round(number, one)
        except FedatlasError as error:
            self.save()
            done = f"{count(self.number, f'whole {self.word}')} {'is' if self.number == 1 else 'are'} kept"
            raise type(error)(
                f"{str(error).rstrip('.')}, in {self.word} {number}: {done}"
                f"{self.federation.resumes.format(self.keeper.folder.path)}."
            ) from None

    def land(self, row: RoundRow) -> None:
        """Make a round final."""
        self.federation.server.commit(row["round"])
        self.state = self.keeper.land(row, self.state)
        if self.keeper.due(self.number):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of this round, unless there is one."""
        if self.keeper.saved != self.number:
            self.keeper.save(self.state, self.federation.states, self.federation.record())
            self.federation.landed(self.number)

    def _round(self, number: int, make: Rounds) -> RoundRow:
        """Run a whole round and return its row; undo it if it fails."""
        started = time.perf_counter()
        try:
            server = self._driven(make, number, commit=False)
        except FedatlasError:
            self.federation.server.commit(number, ())
            raise
        self.state = self.state._replace(server=server)
        cost, quality = self.federation.cost, dict(server.get("quality") or {})
        parties = list(range(len(self.held.names))) if number else []
        row = {
            "round": number,
            **(quality or dict.fromkeys(LAST_KEYS[self.held.holder.task])),
            "train_loss": None,
            "clients": parties,
            "selected": parties,
            "weights": [],
            "steps": [],
            "lr": None,
            "seconds": time.perf_counter() - started,
            "seconds_by_phase": dict(cost.seconds),
            "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down,
            "bytes_peer": 0,
            "flops": 0,
            "peak_memory_bytes": machine.peak_memory(),
            "figures": dict(self.scheme.counts(server)),
        }
        return cast(RoundRow, row)

    def _driven(self, make: Rounds, number: int, *, commit: bool) -> State:
        """Drive a round and return the server's state after it. ProtocolError if it was given up."""
        server = self.federation.drive(make, RoundStart(number, 1.0), commit=commit)
        if server is None:
            raise ProtocolError(self.federation.given_up)
        return server

    def figures(self, rows: Sequence[RoundRow], diverged: str) -> RunSummary:  # noqa: ARG002
        """Ask the parties for the final figures and return the run's part of summary.json."""

        def last() -> RoundGenerator:
            server = yield from self.scheme.end(self.how, self.server)
            server = yield from judging.judged(server, self.judged_on, intervals=True)
            if self.judged_on == "held":
                tested = yield from judging.judged(server, "test", intervals=True)
                server = {**server, "tested": {k: tested[k] for k in ("quality", "intervals")}}
            return server

        server = self._driven(last, self.number + 1, commit=True)  # the parties keep it; checkpoints do not
        self.state = self.state._replace(server=server)
        active = self.held.parties[self.held.active]
        state = self.federation.states.get(active.party)  # None if the party is elsewhere
        if state is None:
            return columns_end.figures(self.held, server, rows, None)
        spent = privacy_record.of_labels(self.held, self.keeper.folder)
        judged = Judged(active, state, self.scheme.outputs(state), self.judged_on)
        on = {one: columns_end.judged_on(self.held, state, one) for one in ("test", self.judged_on)}
        return cast(RunSummary, {**columns_end.figures(self.held, server, rows, judged, on), **spent})

    def models(self) -> Mapping[str, Any]:
        """Return the files of each party whose state is held here; a remote party writes its own where it runs."""
        out: dict[str, Any] = {}
        brought = self.scheme.brought(self.server)
        for data, table in zip(
            self.held.parties, self.held.tables, strict=False
        ):  # roles without data come after the tables
            if (state := self.federation.states.get(data.party)) is not None:
                out |= columns_end.part(self.held.checked, data, table, state, brought[table.name])
        return out

    def close(self) -> None:
        """Release scratch files."""
        self.federation.close()
