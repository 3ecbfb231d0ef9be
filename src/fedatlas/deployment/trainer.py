"""The process of a node that trains: `PartyHalf` behind a pipe, with its own rows, its own folder and its own policy.

    python -m fedatlas.deployment.trainer BUNDLE DATA

It answers the messages of its speaker one after another (`wire.messages.TO_NODE`), and ends when the speaker ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedatlas import machine
from fedatlas.config import ExperimentConfig
from fedatlas.data.cells import read_as
from fedatlas.data.dataset import Split
from fedatlas.deployment import node_own_rows, node_setup
from fedatlas.deployment.kept_run import KeptRun, kept_run
from fedatlas.deployment.model_delivery import store_delivery
from fedatlas.deployment.node_agreement import AgreedRun, NodeAgreements, check_facts, check_setup
from fedatlas.deployment.node_answers import FirstAnswer, FirstAnswers
from fedatlas.deployment.node_columns import NodeColumnsRun, facts_of, own_table
from fedatlas.deployment.node_log import NodeLog, left_of
from fedatlas.deployment.node_rows import (
    NodeRows,
    check_texts,
    coded,
    read_rows,
    rows_that_count,
    with_empty_columns,
    with_names,
    without_holes,
)
from fedatlas.deployment.node_rows_run import NodeRowsRun
from fedatlas.deployment.node_state import StoredReply
from fedatlas.deployment.opened_answers import OPENING, OpenedAnswers
from fedatlas.deployment.refusals import check_initial
from fedatlas.deployment.terms import RowsSetup, Sums, SumTerms, decoded, encoded
from fedatlas.deployment.told_readings import check_reading
from fedatlas.deployment.told_sums import ToldSums
from fedatlas.errors import DivergedError, FedatlasError, PrivacyError, ProtocolError, first_line
from fedatlas.federation.link import Request
from fedatlas.federation.party import Answer
from fedatlas.files import write_bytes
from fedatlas.models.initial import given
from fedatlas.privacy.mechanism import on_rows
from fedatlas.setup.checked import Checked
from fedatlas.setup.columns_method import of_columns
from fedatlas.wire import codec, frames
from fedatlas.wire.agreement import digest_of, run_digest, valid_nodes
from fedatlas.wire.bundle import POLICY, Bundle
from fedatlas.wire.fields import plain
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.message_refusals import refusal
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
    written,
)
from fedatlas.wire.policy import Asked, Policy

RUN = "run.bin"
OTHER_NAMES = (
    "its policy.toml tells other names of classes and categories than when the run began, by which its rows are coded: submit the "
    "experiment again."
)


class Dropped(ProtocolError):
    """A round of several questions cannot continue here: its keys were only in memory, and are gone."""


@contextlib.contextmanager
def untold(words: str) -> Iterator[None]:
    """Replace any error inside by these words, which tell nothing of the rows. The node's log has the reason."""
    try:
        yield
    except (Untold, ProtocolError):  # a protocol's sentences hold words of the experiment and of requests only
        raise
    except Exception as error:
        why = str(error) if isinstance(error, FedatlasError) else f"{type(error).__name__}: {first_line(error)}"
        sys.stderr.write(f"fedatlas: {why}\n")
        raise Untold(f"{words} (the node's own log says why)") from error


class Untold(FedatlasError):
    """A failure at this node whose reason is not sent."""


class Trainer:
    """A node's training process: it answers one message after another."""

    def __init__(self, bundle: Bundle, data: Path) -> None:
        self.bundle, self.data = bundle, data
        self.log = NodeLog(bundle.path)
        self.agreements = NodeAgreements(bundle, self.log.agreed)
        self.opened = OpenedAnswers(bundle.path)
        self.told = ToldSums(bundle.path)
        self.run: NodeRowsRun | NodeColumnsRun | None = None  # one run at a time
        self.read_by: tuple[Any, ...] = ()  # the policy's keys for reading rows, as that run has them
        self.kept: tuple[str, Any] = "", None  # the rows or the table last read
        self.answers: dict[type, Callable[[Any], Any]] = {
            FactsQuestion: self._facts,
            SumQuestion: self._sums,
            RunStart: self._start,
            TaskRequest: self._task,
            RoundVerdicts: self._commit,
            FinishedModel: self._finish,
        }

    def ready(self) -> TrainerReady:
        """Return the first message: the last landed round of each run at this node."""
        states = (self.bundle.path / "state").glob("*/state.bin")
        return TrainerReady(
            {path.parent.name: codec.decode(path.read_bytes(), own=True)["round"] for path in sorted(states)}
        )

    def serve(self, message: RawMessage) -> Iterator[RawMessage]:
        """Yield the answer to a message, if it has one.

        A refusal gives its reason in words of the agreement and the policy.
        """
        try:
            asked = read(message, TO_NODE)
            self.log.asked(message.kind, asked)
            if (answer := self.answers[type(asked)](asked)) is not None:
                self.log.answered(message.kind, asked)
                yield written(answer)
        except FedatlasError as error:
            yield self._refused(message, str(error), dropped=isinstance(error, Dropped))
        except Exception:  # noqa: BLE001  # no message may end the process
            sys.stderr.write(f"fedatlas: {traceback.format_exc()}")
            yield self._refused(message, "it failed (the node's own log says why)")

    def _refused(self, message: RawMessage, why: str, *, dropped: bool = False) -> RawMessage:
        said = refusal(message, why, dropped=dropped)
        self.log.refused(said)
        return written(said)

    def policy(self) -> Policy:
        """Read the policy from its current file."""
        with untold("its policy.toml cannot be read"):
            return Policy.read(self.bundle.path / POLICY)

    def held(self, agreed: AgreedRun) -> Any:
        """Return this node's rows for a run whose agreement is kept, or its table if parties hold columns.

        They are read once.
        """
        policy, config, reading = self.policy(), agreed.whole.config, self.agreements.reading(agreed)
        own = agreed.agreement.run if on_rows(agreed.whole.mechanisms) else ""
        key = str([own, config.data, config.seed, config.parties, policy.names, policy.min_rows, policy.form, reading])
        if self.kept[0] != key:
            with untold("its rows cannot be used as the experiment says"), read_as(reading):
                read = self._read(config, policy)
            if isinstance(read, NodeRows):
                check_texts(
                    read, held := with_empty_columns(read, policy.min_rows), config.data.missing, policy.min_rows
                )
                with untold("its rows cannot be used as the experiment says"):
                    read = without_holes(held) if config.data.missing == "drop" else held
                    read = node_own_rows.changed(read, agreed, self._folder(agreed.agreement.run))
            self.kept = key, read
        return self.kept[1]

    def _read(self, config: ExperimentConfig, policy: Policy) -> Any:
        if of_columns(config):
            return own_table(config, self.bundle.name, self.data, policy.form)
        held = read_rows(self.data, config, policy.form)
        return held if policy.names is None else with_names(held, policy.names)

    def _folder(self, run: str) -> Path:
        return self.bundle.path / "state" / run

    def _stored(self, run: str) -> KeptRun | None:
        path = self._folder(run) / RUN
        return kept_run(codec.decode(path.read_bytes(), own=True), str(path)) if path.exists() else None

    def _open(self, run: str, kept: KeptRun) -> NodeRowsRun | NodeColumnsRun:
        agreed = self.agreements.accept(run, kept.agreement)
        self._check(agreed, agreed.asked())
        self.agreements.pin(agreed)
        held, how = self.held(agreed), read_by(self.policy())
        if agreed.whole.columns:
            digest = run_digest(kept.agreement, kept.setup)
            self.run, self.read_by = NodeColumnsRun(self.bundle, agreed, digest, kept.rows, held), how
            return self.run
        setup = decoded(RowsSetup, kept.setup)
        check_setup(setup, agreed, held.facts)
        FirstAnswers(self._folder(run)).check(setup.about, setup.totals)
        check_initial(agreed.agreement.config, initial := setup.file())
        with untold("the run cannot be set up with its rows"), given(initial):
            self.run, self.read_by = NodeRowsRun(self.bundle, agreed, setup, kept, held), how
        return self.run

    def running(self, run: str) -> NodeRowsRun | NodeColumnsRun | None:
        """Return a run that this node knows, or None.

        It is read from disk if this process or the policy has changed.
        """
        same = self.run is not None and self.run.agreed.agreement.run == run
        if same and self.read_by == read_by(self.policy()):
            assert self.run is not None
            self.agreements.stands(self.run.agreed)
            return self.run
        if (kept := self._stored(run)) is None:
            return None
        try:
            return self._open(run, kept)
        except Untold as error:
            raise (PrivacyError(OTHER_NAMES) if same else error) from None

    def _check(self, agreed: AgreedRun, asks: Asked) -> Policy:
        """Return the policy if it allows an ask. PrivacyError if not. A revoked node does not count as a member."""
        policy, valid = self.policy(), valid_nodes(self.bundle, agreed.agreement)
        policy.check(asks._replace(members=tuple(name for name in asks.members or () if name in valid)))
        return policy

    def _agreed(self, asked: FactsQuestion | SumQuestion) -> AgreedRun:
        """Return the run of a question before round 1. PrivacyError if the policy does not allow it."""
        agreed = self.agreements.accept(asked.run, asked.agreement)
        self._check(agreed, agreed.asked())
        self.agreements.pin(agreed)
        return agreed

    def _facts(self, asked: FactsQuestion) -> NodeFacts:
        held = self.held(self._agreed(asked))
        facts = plain(held.facts if isinstance(held, NodeRows) else facts_of(held))
        self.log.leaves(left="facts", told=digest_of(codec.encode(facts)))
        return NodeFacts(asked.run, facts)

    def _sums(self, asked: SumQuestion) -> SumAnswer:
        agreed, terms, digest = self._agreed(asked), decoded(SumTerms, asked.body), digest_of(asked.body)
        kept = FirstAnswers(self._folder(asked.run))
        if (answer := kept.known(asked.index, digest)) is None:
            kept.check(terms.about, terms.totals)
            answer = kept.keep(asked.index, self._first(agreed, asked.index, terms, digest))
        else:
            self.log.leaves(again=True, **({} if answer.few else self._left_by_sums(agreed)))
        return SumAnswer(asked.run, asked.index, answer.few, answer.body)

    def _first(self, agreed: AgreedRun, index: int, terms: SumTerms, digest: str) -> FirstAnswer:
        """Return the answer to the question that is due, which the node works out itself."""
        held = self.held(agreed)
        check_facts(terms.about, held.facts)
        least = self.policy().min_rows
        own = held.splits["train"]
        few = rows_that_count(own.weight, len(own.y)) < least
        splits, clients = coded(held, terms.about), len(agreed.agreement.names)
        with untold("the question cannot be answered with its rows"):
            due = node_setup.question_due(agreed.whole, terms.about, splits, agreed.number, clients, terms.totals)
        if due is None or index != len(terms.totals):
            raise ProtocolError("no question of this number is due.")
        if few:
            return FirstAnswer(digest, True, b"")
        told = self._telling(agreed, held, splits["train"])
        with untold("the question cannot be answered with its rows"):
            body = encoded(Sums(node_setup.answered(*due, told)))
        self.log.leaves(what=due[0].name, **self._left_by_sums(agreed))
        return FirstAnswer(digest, False, body)

    def _telling(self, agreed: AgreedRun, held: NodeRows, train: Split) -> Split:
        """Return the training rows whose sums leave, and note them.

        Columns of few cells are emptied. PrivacyError if refused.
        """
        policy, columns = self.policy(), [name for name, _ in held.about.schema]
        if policy.min_rows > 1 and not policy.repeat:
            with read_as(self.agreements.reading(agreed)):
                read = partial(read_rows, self.data, form=policy.form)
                check_reading(self.told.folder / held.file, agreed.agreement.config["data"], read)
        numbered = train._replace(row=held.splits["train"].row)
        told = self.told.telling(held.file, numbered, columns, policy.min_rows, repeat=policy.repeat)
        return told._replace(row=None)

    def _left_by_sums(self, agreed: AgreedRun) -> dict[str, Any]:
        return {"left": "sums", "protected": "alone", "rows": self.held(agreed).facts.rows.train}

    def _start(self, asked: RunStart) -> RunStarted:
        known = self._stored(asked.run)
        kept = KeptRun(asked.agreement, bytes(asked.body), "", asked.landed)
        if known is not None and (known.agreement, known.setup) != (kept.agreement, kept.setup):
            raise ProtocolError("this node was told something else of this run before.")
        # The rounds that landed here are on this node's disk. For a run that it knows, it trusts no other source.
        running = self._open(asked.run, kept if known is None else known)
        if known is None and asked.landed >= 0 and keeps_state(running.agreed.whole):
            self.run = None
            raise ProtocolError(
                f"its state of this run is gone (it has landed up to round {asked.landed}): put its folder 'state' back, "
                "or begin a new run."
            )
        if known is None:
            write_bytes(self._folder(asked.run) / RUN, codec.encode(kept._replace(rows=running.rows).plain()))
        return RunStarted(asked.run)

    def _task(self, asked: TaskRequest) -> TaskReply | RunUnknown:
        if (running := self.running(asked.run)) is None:
            return RunUnknown(asked.run, asked.place)
        self._land(running, asked.verdicts)
        request = _request(running, asked)
        if asked.place[0] > running.state.round:  # else its state says why not
            running.half.compare(request)  # before a request of another round ends the one under way
        if (kept := running.state.known(asked.place, asked.digest)) is None:
            kept = self._done(running, asked, request)
        else:  # the first time, the disk may have been too full for the line
            self.log.leaves(again=True, **kept.left)
        return TaskReply(asked.run, asked.place, asked.digest, running.state.round, kept.work, kept.body)

    def _done(self, running: NodeRowsRun | NodeColumnsRun, asked: TaskRequest, request: Request) -> StoredReply:
        asks = self._check_policy(running, request)
        if running.private and running.state.broken == asked.place[:2]:
            raise Dropped("ended in the middle of the round, and its keys of this round with it")
        left = left_of(running, request, asks, counts=asks.counts_labels)
        self.log.leaves(**left)
        self._check_opening(running, request, asks)
        answer = self._answer(running, request)
        if answer.lost:
            raise DivergedError("training produced NaN or infinity; nothing was sent.")
        work = (*answer.work[:4], None if running.private else answer.work.loss)
        reply = StoredReply(asked.digest, work, codec.encode(answer.reply.plain()), left)
        return running.state.keep(asked.place, reply, request)

    def _check_policy(self, running: NodeRowsRun | NodeColumnsRun, request: Request) -> Asked:
        asks = running.asked(request)
        self._check(running.agreed, asks)
        return asks

    def _check_opening(self, running: NodeRowsRun | NodeColumnsRun, request: Request, asks: Asked) -> None:
        """Note in whose sum this node's answer is opened, before shares leave.

        PrivacyError if it was opened in another sum.
        """
        if isinstance(running, NodeColumnsRun):
            return
        how, who = running.setup.bench.protection, asks.members or ()
        if how is not None and how.phases.get(request.what) == OPENING:
            session, policy = running.half.sessions.get(running.number), self.policy()
            plain = running.labels if policy.label_counts == "plain" else ()
            self.opened.opening(session, who, repeat=policy.repeat, source=running.file, plain=plain)

    def _answer(self, running: NodeRowsRun | NodeColumnsRun, request: Request) -> Answer:
        """Return the party half's answer. An invalid request is reported; a fault with the rows is not."""
        with untold("training failed"):
            (answer,) = running.half.answer([request])
            return answer

    def _land(self, running: NodeRowsRun | NodeColumnsRun, verdicts: Verdicts) -> None:
        if any(number > running.agreed.whole.config.rounds for number, *_ in verdicts):
            raise ProtocolError("a round has landed that the experiment does not have.")
        for number, counted, back in sorted(verdicts):
            if number > running.state.round:  # a repeated verdict ends no session
                running.state.commit(number, counted, back)
                running.half.sessions.clear()

    def _commit(self, asked: RoundVerdicts) -> RoundLanded | None:
        if (running := self.running(asked.run)) is None:
            return None
        self._land(running, asked.verdicts)
        return RoundLanded(asked.run, running.state.round)

    def _finish(self, asked: FinishedModel) -> ModelStored:
        if self._stored(asked.run) is None:
            raise ProtocolError("this node took no part in that run.")
        where = store_delivery(self.bundle.path, asked)
        if (running := self.running(asked.run)) is not None:
            running.add_own_part(where)
        return ModelStored(asked.run, str(where))


def read_by(policy: Policy) -> tuple[Any, ...]:
    """Return the keys of a policy that decide how rows are read. If they change, a run is opened again."""
    return policy.names, policy.min_rows, policy.row_order


def keeps_state(whole: Checked) -> bool:
    """Return whether nodes keep a state between the rounds of an experiment."""
    return whole.columns or whole.algorithm.client_init is not None or whole.transform is not None


def _request(running: NodeRowsRun | NodeColumnsRun, asked: TaskRequest) -> Request:
    """Return the request in a message. ProtocolError if its head disagrees, or if it belongs to another run."""
    if digest_of(asked.body) != asked.digest:
        raise ProtocolError("its digest is not that of its message.")
    if asked.agreed != running.digest:
        raise ProtocolError("it is not of the run that this node agreed to.")
    request: Request = decoded(Request, asked.body)
    if (request.run, request.client, request.ask[1:]) != (asked.run, running.number, asked.place):
        raise ProtocolError("it is asked as another party, or of another run.")
    return request


@machine.one_thread_an_operator()
def main() -> None:
    """Answer messages until the pipe is closed."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to standard error, not between messages
    torch.set_num_threads(1)
    try:
        trainer = Trainer(Bundle.open(Path(sys.argv[1]), "node"), Path(sys.argv[2]))
        Policy.read(trainer.bundle.path / POLICY)
    except FedatlasError as error:
        sys.stderr.write(f"fedatlas: {error}\n")
        raise SystemExit(2) from None
    frames.write(outgoing, written(trainer.ready()))
    while (message := frames.read(incoming)) is not None:
        for said in trainer.serve(message):
            frames.write(outgoing, said)


if __name__ == "__main__":
    main()
