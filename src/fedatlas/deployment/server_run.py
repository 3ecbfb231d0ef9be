"""A run at the server, from the nodes' facts to the delivered model. It can be resumed at any point.

runs/RUN/job.json      the signed agreement, and the run's status
runs/RUN/learnt.bin    the nodes' answers before round 1, which are asked for only once
runs/RUN/events.jsonl  the operator's events, one per line
runs/RUN/run/          a run's directory as of a simulation, with `answers.jsonl`, the times of all replies
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas import machine
from fedatlas.config import parse
from fedatlas.config.experiment import RoundConfig
from fedatlas.course.columns import Growing
from fedatlas.course.course import Course
from fedatlas.course.progress import Run
from fedatlas.course.rounds import Parties, Simulation
from fedatlas.data.cells import read_as
from fedatlas.data.dataset import Split
from fedatlas.deployment import node_setup
from fedatlas.deployment.columns_host import columns_host, counted
from fedatlas.deployment.model_delivery import delivery_of
from fedatlas.deployment.node_columns import ColumnsFacts
from fedatlas.deployment.node_judging import BY_SUMS, ODD, judges, with_judging
from fedatlas.deployment.node_keys import federation_of, identities_of
from fedatlas.deployment.node_rows import RowsFacts, agreed, coded, read_rows, two_rows, without_holes
from fedatlas.deployment.node_setup import LearntSum
from fedatlas.deployment.nodes import AnswerRecord, Nodes
from fedatlas.deployment.nodes_link import NodesLink, StartMessage
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.reply_form import unlike
from fedatlas.deployment.streams_host import rows_host
from fedatlas.deployment.terms import RowsSetup, Sums, SumTerms, carried, decoded, encoded
from fedatlas.engine.executors import make_executor
from fedatlas.engine.fast import worth_of
from fedatlas.errors import ConfigError, DiskError, FedatlasError, ProtocolError, TransportError, first_line
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.secrets import LEDGER, append
from fedatlas.files import lacks_room, write_bytes, write_json
from fedatlas.models.initial import given
from fedatlas.privacy import ledger
from fedatlas.record.fields import RoundRow
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.ensure import start_of
from fedatlas.runs.finish import More, finish
from fedatlas.runs.loop import run_course
from fedatlas.setup.assembly import Setup
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium
from fedatlas.setup.privacy_refusals import fewest_of
from fedatlas.summaries import Message, Summary
from fedatlas.wire import codec
from fedatlas.wire.agreement import Agreement, run_digest, standing
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.fields import plain, record
from fedatlas.wire.frames import Body
from fedatlas.wire.messages import (
    FactsQuestion,
    ModelStored,
    NodeFacts,
    NoticeEvent,
    Open,
    RoundEvent,
    RunEvent,
    RunStart,
    RunStarted,
    Signed,
    StartEvent,
    StatusEvent,
    SumAnswer,
    SumQuestion,
    sayable,
    written,
)

JOB, LEARNT, EVENT_LINES, RUN = "job.json", "learnt.bin", "events.jsonl", "run"
INITIAL = "initial.safetensors"
WIDEST, MOST_ROWS = 1 << 26, 100_000_000  # numbers in one row; rows of a node, as the server numbers each
ANSWER = 120.0  # least seconds that a question before round 1 waits


class Stopped(FedatlasError):
    """An operator stopped the run."""


class NodeRefused(FedatlasError):
    """A node refuses to take part."""


class SubmissionState(NamedTuple):
    """A run as submitted, and its status; in its ``job.json``."""

    agreement: Signed
    submitted: float  # seconds since 1970
    status: str  # queued, running, finished, diverged, failed, stopped
    why: str
    round: Open | None = None  # the table [round], which is not part of the configuration


class SubmittedRun:
    """A submitted run in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        kept = json.loads((folder / JOB).read_text(encoding="utf-8"))
        if "agreement" not in kept:
            raise ConfigError(
                f"run '{self.name}' is of an earlier version, without a signed agreement: submit it again."
            )
        self.state: SubmissionState = record(SubmissionState, kept, JOB)
        self.agreement: Agreement = record(Agreement, json.loads(self.state.agreement.text), JOB)

    @classmethod
    def create(cls, folder: Path, state: SubmissionState, initial: bytes = b"") -> SubmittedRun:
        """Create a submitted run. ``initial``: the file of its initial model, if any."""
        folder.mkdir(parents=True)
        try:
            if initial:
                write_bytes(folder / INITIAL, initial)
            write_json(folder / JOB, plain(state))
        except DiskError:
            shutil.rmtree(folder)  # so that it can be submitted again
            raise
        return cls(folder)

    def initial(self) -> bytes:
        """Return the file of its initial model; b"" without one."""
        path = self.folder / INITIAL
        return path.read_bytes() if path.exists() else b""

    def stands(self, status: str, why: str = "") -> None:
        """Write down the run's status."""
        why = sayable(why)
        self.state = self.state._replace(status=status, why=why)
        write_json(self.folder / JOB, plain(self.state))
        self.event(StatusEvent(status, why))

    def event(self, value: RunEvent) -> None:
        """Add an event for the watchers. Its number is the number of its line."""
        append(self.folder / EVENT_LINES, json.dumps(written(value._replace(time=time.time())).head))

    def check(self, where: str = "") -> None:
        """Raise Stopped if an operator has asked the run to end."""
        if (self.folder / "stop").exists():
            raise Stopped(f"it was stopped{where}.")


class EventProgress:
    """`runs.loop.Progress` that turns progress into events."""

    def __init__(self, job: SubmittedRun, link: NodesLink) -> None:
        self.job, self.link = job, link

    def timed(self, number: int) -> dict[str, float]:
        """Return the seconds that each node's replies took in a round."""
        return {name: round(seconds, 3) for name, seconds in self.link.seconds.pop(number, {}).items()}

    def started(self, course: Course) -> None:
        """Report the start: round 0, or the round where the run resumes."""
        self.job.event(StartEvent(course.config.rounds, course.number))

    def said(self, notice: str) -> None:
        """Report a notice."""
        self.job.event(NoticeEvent(sayable(notice)))

    def row(self, row: RoundRow) -> None:
        """Report a landed round."""
        figures = row.get("accuracy"), row.get("rmse"), row.get("loss")
        self.job.event(RoundEvent(row["round"], row["seconds"], self.timed(row["round"]), *figures))
        self.job.check(f" after round {row['round']}")

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Report nothing: the run's status tells the end."""

    def beside(self, name: str) -> AbstractContextManager[EventProgress]:  # noqa: ARG002
        """Return this progress. No baselines are run."""
        return nullcontext(self)


class ServerContext(NamedTuple):
    """The parts of the server's program that a run needs."""

    bundle: Bundle
    nodes: Nodes
    test: Path | None  # rows to judge by


@machine.one_thread_an_operator()
def run_submitted(job: SubmittedRun, context: ServerContext) -> None:
    """Run a submission to its end. Its folder records the outcome."""
    job.stands("running")
    try:
        folder = RunFolder(job.folder / RUN)
        with read_as(folder.reading()), given(job.initial()), folder.claimed():
            _run(job, context)
    except Stopped as error:
        job.stands("stopped", str(error))
    except FedatlasError as error:
        if lacks_room(error):  # the run waits for room, and goes on as after a restart
            raise
        diverged = (job.folder / RUN / "summary.json").exists()
        job.stands("diverged" if diverged else "failed", str(error))
    else:
        job.stands("finished")


def _run(job: SubmittedRun, context: ServerContext) -> None:
    names, rules = job.agreement.names, RoundConfig(**job.state.round or {})
    context.nodes.stop = partial(check_standing, job, context.bundle)
    check_standing(job, context.bundle)
    whole, path = deployable(parse(job.agreement.config), names), job.folder / RUN
    if whole.columns:  # all of them take part in every round
        rules = rules.model_copy(update={"minimum": len(names), "on_loss": "wait"})
    elif (fewest := max(map(fewest_of, whole.mechanisms), default=1)) > 1:
        rules = rules.model_copy(update={"minimum": max(rules.minimum, fewest)})
        identities_of(context.bundle.members(), names)
    answers = InitialAnswers(job, context, whole, names, rules)
    federation, begin = answers.consortium() if whole.columns else answers.setup()
    start = start_of(path)
    resume = start == "resume"
    folder = RunFolder.open(path) if resume else RunFolder.create(path, whole.config, again=start == "again")
    link = NodesLink(job.name, names, context.nodes, rules, folder.path, begin, job.event)
    link.agreed = answers.digest
    if not resume:  # nodes that were set up before confirm it, or report that they do not know the run
        answers.begin_all(link)
    course: Course
    if isinstance(federation, Setup):
        host = rows_host(federation, link, answers.guard(federation, folder.path), answers.judging, answers.example)
        course = Simulation(federation, folder, resume=resume, parties=Parties(node_setup.plan_of(whole), host))
    else:
        course = Growing(federation, folder, resume=resume, host=columns_host(federation, link))
    progress = EventProgress(job, link)
    finish(Run(path, run_course(course, progress)), whole, More(deployed=True), progress)
    deliver_model(job, context, names, path, rules, columns=whole.columns)


def check_standing(job: SubmittedRun, bundle: Bundle) -> None:
    """Raise Stopped if an operator ended the run or is revoked, or if the agreement has expired."""
    job.check()
    if why := standing(bundle, job.state.agreement, job.agreement):
        raise Stopped(f"the agreement no longer holds: {why}.")


class InitialAnswers:
    """The nodes' answers about their rows, each asked once."""

    def __init__(
        self, job: SubmittedRun, context: ServerContext, whole: Checked, names: tuple[str, ...], rules: RoundConfig
    ) -> None:
        self.job, self.context, self.whole, self.names, self.rules = job, context, whole, names, rules
        self.path = job.folder / LEARNT
        self.kept = codec.decode(self.path.read_bytes(), own=True) if self.path.exists() else {"totals": []}
        self.totals: list[LearntSum] = [*record(tuple[LearntSum, ...], self.kept["totals"], LEARNT)]
        self.about: RowsFacts | None = None  # facts of the rows of all nodes, once they have answered
        self.judging: list[int] | None = None  # the nodes that judge, if the server does not
        self.body = b""  # the outcome of round 0, as sent to all nodes

    def keep(self) -> None:
        """Write them to disk."""
        facts = {name: plain(one) for name, one in self.facts.items()}
        write_bytes(self.path, codec.encode({"totals": [plain(one) for one in self.totals], "facts": facts}))

    def _ask(
        self, questions: Mapping[str, Any], kind: type[AnswerRecord], read: Callable[[AnswerRecord], Any]
    ) -> dict[str, Any]:
        """Return each node's answer, read. NodeRefused if a node refuses, or its answer cannot be read."""
        said = self.context.nodes.ask_all(questions, kind, max(ANSWER, self.rules.deadline), _refused)
        found = {}
        for name in questions:
            try:
                found[name] = read(said[name])
            except (ProtocolError, TransportError) as error:
                raise _refused(name, str(error)) from None
            except Exception as error:  # noqa: BLE001  # foreign bytes may lead to any error
                raise _refused(name, f"its answer cannot be read ({first_line(error)})") from None
        return found

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Facts of each node's rows, or of its table."""
        kind: Any = ColumnsFacts if self.whole.columns else RowsFacts
        if "facts" in self.kept:
            return {name: record(kind, one, LEARNT) for name, one in self.kept["facts"].items()}
        self.context.nodes.wait_for(self.names, self.rules.deadline)
        question = FactsQuestion(self.job.name, self.job.state.agreement)
        return self._ask(dict.fromkeys(self.names, question), NodeFacts, lambda said: read_facts(kind, said.facts))

    def setup(self) -> tuple[Setup, StartMessage]:
        """Return the set-up of the run, and the function that makes the message by which a node sets it up."""
        try:
            test, about = self._test(agreed(self.facts))
            sizes = {name: self.facts[name].rows.train for name in self.names}
            learn = node_setup.asking(partial(self._sums, about), self.totals)
            setup = node_setup.server_setup(self.whole, about, sizes, learn, test)
        except ODD as error:
            raise ProtocolError(
                f"what the nodes say of their rows does not go together: {first_line(error)}."
            ) from None
        self.about = about
        self.keep()
        if self.judging is not None:
            setup = with_judging(setup)
        self.body = bytes(encoded(self._settled(setup, about)))
        return setup, self._begin

    def consortium(self) -> tuple[Consortium, StartMessage]:
        """Return the same where parties hold columns."""
        held = counted(self.whole, [self.facts[name] for name in self.names])
        self.keep()
        return held, self._begin

    def _begin(self, k: int, landed: int) -> RunStart:  # noqa: ARG002  # all nodes are told the same
        return RunStart(self.job.name, self.job.state.agreement, landed, self.body)

    @property
    def digest(self) -> str:
        """Digest of the run: of its agreement and of the outcome of round 0."""
        return run_digest(self.job.state.agreement, self.body)

    def _test(self, about: RowsFacts) -> tuple[Split | None, RowsFacts]:
        """Return the server's test rows, coded like the nodes', and the facts of all rows with them."""
        if self.context.test is None:
            self.judging = [k for k, name in enumerate(self.names) if self.facts[name].rows.test]
            if not self.judging:
                raise ConfigError(
                    "no party has test rows to judge by: start the server with --test FILE, or let nodes judge on a share of theirs "
                    "(data.test = 0.2)."
                )
            if (asked := self.whole.config.evaluation.metric or BY_SUMS[0]) not in BY_SUMS:
                raise ConfigError(
                    f"evaluation.metric = '{asked}' is made of single rows, and nodes that judge tell only sums: start the server with "
                    "--test FILE, or choose another metric."
                )
            return None, about
        held = read_rows(self.context.test, self.whole.config)
        held = without_holes(held) if self.whole.config.data.missing == "drop" else held
        known = agreed({"the nodes": about._replace(weighted=False), "the server's test rows": held.about})
        if (strange := {*known.class_names} - {*about.class_names}) and about.task == "classes":
            raise ConfigError(f"the server's test rows have the class '{min(strange)}', which no node holds.")
        about = about._replace(schema=known.schema)
        splits = coded(held, about)
        return splits["test" if "test" in splits else "train"], about

    def example(self) -> PartyHalf:
        """Make a party that holds two rows of zeros, whose replies show the form of honest ones."""
        assert self.about is not None
        rows, clients = two_rows(self.about), len(self.names)
        splits, learn = {"train": rows, "test": rows}, node_setup.replayed(self.about, self.totals)
        setup = node_setup.node_setup(self.whole, self.about, splits, 0, clients, learn)
        if self.judging is not None:
            setup = with_judging(setup, judges(setup))
        executor = make_executor(
            node_setup.plan_of(self.whole)._replace(engine="loop", step="loop"), setup.bench, [len(rows.y)]
        )
        return PartyHalf(setup.bench, executor, PartyState(), {0: len(rows.y)}, setup.seed)

    def _sums(self, about: RowsFacts, summary: Summary, message: Message) -> list[Any]:
        """Return the nodes' answers to the question of round 0 that is due, which each node works out itself."""
        form = node_setup.answered(summary, message, two_rows(about))
        question = SumQuestion(
            self.job.name, self.job.state.agreement, len(self.totals), encoded(SumTerms(about, tuple(self.totals)))
        )
        holders = dict.fromkeys((name for name in self.names if self.facts[name].rows.train), question)
        read = lambda said: None if said.few else read_sums(said.body, form)  # noqa: E731
        answers = [one for one in self._ask(holders, SumAnswer, read).values() if one is not None]
        if not answers:
            raise ConfigError("every node has fewer rows than the min_rows of its policy: constants cannot be settled.")
        return answers

    def _settled(self, setup: Setup, about: RowsFacts) -> RowsSetup:
        """Return the outcome of round 0."""
        sizes = setup.sizes
        local = setup.bench.local
        worth = worth_of(local.batch_size, list(sizes.values()), local.merge)
        holders, judging = tuple(k for k, n in sizes.items() if n), tuple(self.judging or ())
        return RowsSetup(
            about,
            tuple(self.totals),
            tuple(sorted(worth.sizes)),
            worth.most,
            sum(sizes.values()),
            holders,
            judging,
            carried(self.job.initial()),
        )

    def begin_all(self, link: NodesLink) -> None:
        """Set up every node."""
        self._ask({name: link.begin(k, -1) for k, name in enumerate(self.names)}, RunStarted, lambda said: said)

    def guard(self, setup: Setup, path: Path) -> Any:
        """Return the server's part of secure aggregation; None without it. ``path``: of the run, for its ledger."""
        if setup.bench.protection is None:
            return None
        from fedatlas.federation.server import Guard

        return Guard(
            setup.bench.protection,
            federation_of(self.context.bundle.federation, self.digest),
            identities_of(self.context.bundle.members(), self.names),
            note=partial(ledger.append, path / LEDGER),
        )


def read_facts(kind: Any, facts: Any) -> Any:
    """Return the facts of a node's rows or table. ProtocolError if they do not fit, or the rows exceed the memory."""
    found = record(kind, facts, "facts")
    wide = (math.prod(shape) for _, shape in (found.x, found.y)) if isinstance(found, RowsFacts) else [found.spread]
    if max(wide) > WIDEST:
        raise ProtocolError(f"its rows are wider than {WIDEST:,} numbers.")
    if isinstance(found, RowsFacts) and max(found.rows) > MOST_ROWS:
        raise ProtocolError(f"it says that it has more than {MOST_ROWS:,} rows.")
    return found


def read_sums(body: Body, form: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node's sums. ProtocolError if they do not have the form of honest ones."""
    answer: Mapping[str, Any] = decoded(Sums, body).answer
    if why := unlike(form, answer, "its answer"):
        raise ProtocolError(f"{why}.")
    return answer


def deliver_model(
    job: SubmittedRun, context: ServerContext, names: Sequence[str], path: Path, rules: RoundConfig, *, columns: bool
) -> None:
    """Send each node the model. An absent node does not keep the run from ending."""
    model = delivery_of(path, job.name, columns=columns)
    try:
        context.nodes.ask_all(dict.fromkeys(names, model), ModelStored, min(rules.deadline, 30.0), _refused)
    except (TransportError, NodeRefused) as error:
        job.event(NoticeEvent(sayable(f"The model did not reach every node: {error}")))


def _refused(name: str, why: str) -> Exception:
    return NodeRefused(f"'{name}' takes no part: {why}")
