"""The process of a node that trains: `PartyHalf` behind a pipe, with its own rows, its own folder and its own policy.

    python -m fedatlas.deployment.trainer BUNDLE DATA

It answers what its speaker hands it, one message after another (`wire.messages.TO_NODE`), and ends with it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fedatlas import machine
from fedatlas.config import ExperimentConfig, parse
from fedatlas.data.batches import examples_of
from fedatlas.deployment import node_setup
from fedatlas.deployment.model_delivery import store_delivery
from fedatlas.deployment.node_columns import NodeColumnsRun, facts_of, own_table
from fedatlas.deployment.node_judging import JUDGE, judges, with_judging
from fedatlas.deployment.node_keys import NodeKeys
from fedatlas.deployment.node_rows import NodeRows, coded, read_rows
from fedatlas.deployment.node_state import NodeState, StoredReply, same_rows
from fedatlas.deployment.terms import ColumnsTerms, RowsTerms, Sums, SumTerms, decoded, encoded, terms_of
from fedatlas.engine.executors import make_executor
from fedatlas.engine.fast import Worth
from fedatlas.errors import DataError, DivergedError, FedatlasError, ProtocolError, first_line
from fedatlas.federation.link import Request
from fedatlas.federation.party import PartyHalf
from fedatlas.files import write_bytes
from fedatlas.privacy.mechanism import Protection
from fedatlas.record.fingerprint import fingerprint, of_splits
from fedatlas.setup.assembly import Setup
from fedatlas.setup.columns_method import of_columns
from fedatlas.setup.refusals import checked
from fedatlas.wire import codec, frames
from fedatlas.wire.bundle import POLICY, Bundle
from fedatlas.wire.fields import plain
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.messages import (
    TO_NODE,
    FactsQuestion,
    FinishedModel,
    ModelStored,
    NodeFacts,
    RoundLanded,
    RoundVerdicts,
    RunStart,
    RunStarted,
    RunUnknown,
    SumAnswer,
    SumQuestion,
    TaskReply,
    TaskRequest,
    TrainerReady,
    Verdicts,
    read,
    refusal,
    written,
)
from fedatlas.wire.policy import Asked, Policy

RUN = "run.bin"
LABEL_COUNTS = {"counts", JUDGE}
"""Tasks whose answers say how many rows of each class a node holds."""


class Dropped(ProtocolError):
    """A round of several questions cannot go on here: its keys, which are only in memory, are gone."""


class NodeRowsRun:
    """One run at this node."""

    def __init__(self, bundle: Bundle, terms: RowsTerms, held: NodeRows) -> None:
        whole = checked(parse(terms.config))
        self.config = whole.config
        self.number = terms.number
        splits = coded(held, terms.about)
        self.terms = terms._replace(rows=same_rows(terms.rows, fingerprint(of_splits(splits))))
        learn = node_setup.replayed(terms.totals)
        self.setup: Setup = node_setup.node_setup(whole, terms.about, splits, self.number, len(terms.names), learn)
        if terms.judging:
            self.setup = with_judging(self.setup, judges(self.setup))
        folder = bundle.path / "state" / terms.run
        self.state = NodeState(folder, self.number)
        self.private = self.setup.bench.protection is not None
        keys = NodeKeys.of(bundle, terms, self.setup.bench.protection, folder)
        sizes = {self.number: len(splits["train"].y)}
        worth = Worth(frozenset(terms.worth), terms.most)
        executor = make_executor(terms.plan, self.setup.bench, sizes.values(), worth)
        self.half = PartyHalf(self.setup.bench, executor, self.state.party, sizes, self.config.seed, keys)

    def asked(self, request: Request, cohort: int) -> Asked:
        """A request as the policy sees it."""
        local, n = self.config.local, self.half.sizes[self.number]
        budget = request.budget or self.setup.bench.local.budget
        epochs = examples_of(budget, n, local.batch_size, self.setup.bench.network.least) / max(n, 1) if n else 0.0
        return Asked(
            self.terms.operator,
            self.setup.algorithm.name,
            epochs,
            self.config.rounds,
            cohort_of(request, cohort, self.setup.bench.protection),
            self.private,
            request.what in LABEL_COUNTS,
        )

    def add_own_part(self, folder: Path) -> None:
        """Nothing is added to what the server sends."""


def cohort_of(request: Request, cohort: int, protection: Protection | None = None) -> int:
    """The number of nodes in an ask; under masks those that the node signs for, or whose sum it helps to open."""
    protocol = None if protection is None else protection.protocol
    signed = protocol.cohort(request.what, request.message) if protocol is not None and protocol.cohort else None
    return cohort if signed is None else signed


class Trainer:
    """A node's training process: it answers one message after another."""

    def __init__(self, bundle: Bundle, data: Path) -> None:
        self.bundle, self.data = bundle, data
        self.run: NodeRowsRun | NodeColumnsRun | None = None  # one run at a time
        self.kept: tuple[str, Any] = "", None  # the rows, or the table, that were read last
        self.answers: dict[type, Callable[[Any], Any]] = {
            FactsQuestion: self._facts,
            SumQuestion: self._sums,
            RunStart: self._start,
            TaskRequest: self._task,
            RoundVerdicts: self._commit,
            FinishedModel: self._finish,
        }

    def ready(self) -> TrainerReady:
        """The first message: the last round of each run that landed here."""
        states = (self.bundle.path / "state").glob("*/state.bin")
        return TrainerReady({path.parent.name: codec.decode(path.read_bytes())["round"] for path in sorted(states)})

    def serve(self, message: RawMessage) -> Iterator[RawMessage]:
        """Yield the answer to a message, if it has one. A refusal says why."""
        try:
            asked = read(message, TO_NODE)
            if (answer := self.answers[type(asked)](asked)) is not None:
                yield written(answer)
        except Exception as error:  # noqa: BLE001  # whatever a message leads to is told to its sender
            why = str(error) if isinstance(error, FedatlasError) else f"{type(error).__name__}: {first_line(error)}"
            yield written(refusal(message, why, dropped=isinstance(error, Dropped)))

    def policy(self) -> Policy:
        """Read the policy as the file is now."""
        return Policy.read(self.bundle.path / POLICY)

    def held(self, config: ExperimentConfig) -> Any:
        """The rows of this node, or its table where parties hold columns; read once."""
        key = str([config.data, config.seed, config.parties])
        if self.kept[0] != key:
            name = self.bundle.name
            self.kept = key, own_table(config, name, self.data) if of_columns(config) else read_rows(self.data, config)
        return self.kept[1]

    def _path(self, run: str) -> Path:
        return self.bundle.path / "state" / run / RUN

    def _stored(self, run: str) -> RowsTerms | ColumnsTerms | None:
        path = self._path(run)
        if not path.exists():
            return None
        kept = codec.decode(path.read_bytes())
        kept.pop("least", None)  # of a run that an earlier version began
        return terms_of(kept, str(path))

    def _open(self, terms: Any) -> NodeRowsRun | NodeColumnsRun:
        made = NodeColumnsRun if isinstance(terms, ColumnsTerms) else NodeRowsRun
        self.run = made(self.bundle, terms, self.held(parse(terms.config)))
        return self.run

    def running(self, run: str) -> NodeRowsRun | NodeColumnsRun | None:
        """Return a run that this node was told of, from its disk where this process is new; else None."""
        if self.run is None or self.run.terms.run != run:
            terms = self._stored(run)
            return None if terms is None else self._open(terms)
        return self.run

    def _checked(self, asked: FactsQuestion | SumQuestion) -> Any:
        """The rows of this node for a question before round 1, where the policy lets it pass."""
        config = parse(asked.config)
        epochs, masked = float(config.local.epochs or 0), bool(config.privacy)
        name, rounds = config.algorithm.name, config.rounds
        self.policy().check(Asked(asked.operator, name, epochs, rounds, len(asked.names), masked))
        return self.held(config)

    def _facts(self, asked: FactsQuestion) -> NodeFacts:
        held = self._checked(asked)
        return NodeFacts(asked.run, plain(held.facts if isinstance(held, NodeRows) else facts_of(held)))

    def _sums(self, asked: SumQuestion) -> SumAnswer:
        terms = decoded(SumTerms, asked.body)
        train = coded(self._checked(asked), terms.about)["train"]
        answer = node_setup.answered(asked.question, terms.message, train)
        return SumAnswer(asked.run, asked.index, encoded(Sums(answer)))

    def _start(self, asked: RunStart) -> RunStarted:
        known, terms = self._stored(asked.run), decoded(terms_of, asked.body)
        if terms.run != asked.run:
            raise ProtocolError("it is told of another run than its message names.")
        if known is None and terms.stateful and terms.landed >= 0:
            raise DataError(
                f"its state of this run is gone (it has landed up to round {terms.landed}): put its folder 'state' back, "
                "or begin a new run."
            )
        running = self._open(terms if known is None else terms._replace(rows=known.rows))
        if known is None:
            write_bytes(self._path(asked.run), encoded(running.terms))
        return RunStarted(asked.run)

    def _task(self, asked: TaskRequest) -> TaskReply | RunUnknown:
        if (running := self.running(asked.run)) is None:
            return RunUnknown(asked.run, asked.place)
        self._land(running, asked.verdicts)
        kept = running.state.known(asked.place, asked.digest) or self._done(running, asked)
        return TaskReply(asked.run, asked.place, asked.digest, running.state.round, kept.work, kept.body)

    def _done(self, running: NodeRowsRun | NodeColumnsRun, asked: TaskRequest) -> StoredReply:
        if digest_of(asked.body) != asked.digest:
            raise ProtocolError("its digest is not that of its message.")
        request = decoded(Request, asked.body)
        if (request.run, request.client, request.ask[1:]) != (asked.run, running.number, asked.place):
            raise ProtocolError("it is asked as another party, or of another run.")
        self.policy().check(running.asked(request, asked.cohort))
        if running.private and running.state.broken == asked.place[:2]:
            raise Dropped("ended in the middle of the round, and its keys of this round with it")
        (answer,) = running.half.answer([request])
        if answer.lost:
            raise DivergedError("training produced NaN or infinity; nothing was sent.")
        work = (*answer.work[:4], None if running.private else answer.work.loss)
        return running.state.keep(asked.place, asked.digest, work, codec.encode(answer.reply.plain()))

    def _land(self, running: NodeRowsRun | NodeColumnsRun, verdicts: Verdicts) -> None:
        for number, counted in sorted(verdicts):
            if number > running.state.round:  # a verdict that comes again ends nothing
                running.state.commit(number, counted)
                running.half.sessions.clear()

    def _commit(self, asked: RoundVerdicts) -> RoundLanded | None:
        if (running := self.running(asked.run)) is None:
            return None
        self._land(running, asked.verdicts)
        return RoundLanded(asked.run, running.state.round)

    def _finish(self, asked: FinishedModel) -> ModelStored:
        where = store_delivery(self.bundle.path, asked)
        if (running := self.running(asked.run)) is not None:
            running.add_own_part(where)
        return ModelStored(asked.run, str(where))


def digest_of(body: bytes | bytearray | memoryview) -> str:
    """The digest of a request's bytes."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


@machine.one_thread_an_operator()
def main() -> None:
    """Answer messages until the pipe is closed."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to standard error, not between messages
    torch.set_num_threads(1)
    try:
        trainer = Trainer(Bundle.open(Path(sys.argv[1]), "node"), Path(sys.argv[2]))
        trainer.policy()
    except FedatlasError as error:
        sys.stderr.write(f"fedatlas: {error}\n")
        raise SystemExit(2) from None
    frames.write(outgoing, written(trainer.ready()))
    while (message := frames.read(incoming)) is not None:
        for said in trainer.serve(message):
            frames.write(outgoing, said)


if __name__ == "__main__":
    main()
