"""A run at the server, from the nodes' facts to the model at home. It may be taken up again wherever it was stopped.

runs/RUN/job.json      who submitted what, for which nodes, how it stands
runs/RUN/learnt.bin    what the nodes said before round 1: it is not asked twice
runs/RUN/events.jsonl  what the operator sees, line by line
runs/RUN/run/          a simulated run's directory, and beside it `answers.jsonl`, who answered when
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fedatlas import machine
from fedatlas.config import parse
from fedatlas.course.columns import Growing
from fedatlas.course.course import Course
from fedatlas.course.progress import Run
from fedatlas.course.rounds import Parties, Simulation
from fedatlas.data.dataset import Split
from fedatlas.deployment import node_setup
from fedatlas.deployment.columns_host import columns_host, known
from fedatlas.deployment.model_delivery import home_of
from fedatlas.deployment.node_judging import with_judging
from fedatlas.deployment.node_keys import identities_of
from fedatlas.deployment.node_rows import agreed, coded, read_rows
from fedatlas.deployment.nodes import Nodes
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.streams_host import Begin, Patience, Streams, rows_host
from fedatlas.engine.executors import Plan
from fedatlas.engine.fast import worth_of
from fedatlas.errors import ConfigError, FedatlasError, TransportError
from fedatlas.federation.secrets import append
from fedatlas.files import write_bytes, write_json
from fedatlas.privacy.mechanisms import SecAgg
from fedatlas.record.fields import RoundRow
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.ensure import start_of
from fedatlas.runs.finish import More, finish
from fedatlas.runs.loop import run_course
from fedatlas.setup.assembly import Setup
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium
from fedatlas.wire import codec
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import Message

JOB, LEARNT, EVENTS, RUN = "job.json", "learnt.bin", "events.jsonl", "run"
ANSWER = 120.0  # seconds that a question before round 1 waits, beside what [round] says


class Stopped(FedatlasError):
    """An operator stopped the run."""


class NodeRefused(FedatlasError):
    """A node takes no part."""


class Job:
    """A run as it was submitted, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))

    @classmethod
    def create(cls, folder: Path, about: Mapping[str, Any]) -> Job:
        """A new one."""
        folder.mkdir(parents=True)
        write_json(folder / JOB, {**about, "status": "queued", "why": ""})
        return cls(folder)

    @property
    def name(self) -> str:
        """Of the run."""
        return self.folder.name

    def stands(self, status: str, why: str = "") -> None:
        """How it stands now: queued, running, finished, diverged, failed, stopped."""
        self.about |= {"status": status, "why": why}
        write_json(self.folder / JOB, self.about)
        self.event({"kind": "status", "status": status, "why": why})

    def event(self, value: Mapping[str, Any]) -> None:
        """One more line for whoever watches."""
        append(self.folder / EVENTS, json.dumps({"time": time.time(), **value}))

    @property
    def stopping(self) -> bool:
        """Whether an operator wants it to end."""
        return (self.folder / "stop").exists()


class Told:
    """`runs.loop.Progress`: what happens becomes events."""

    def __init__(self, job: Job, streams: Streams) -> None:
        self.job, self.streams = job, streams

    def timed(self, number: int) -> dict[str, float]:
        """The seconds that each node's replies took in a round."""
        return {name: round(seconds, 3) for name, seconds in self.streams.seconds.pop(number, {}).items()}

    def started(self, course: Course) -> None:
        """Round 0, or where it goes on."""
        self.job.event({"kind": "started", "rounds": course.config.rounds, "from": course.number})

    def said(self, notice: str) -> None:
        """A notice."""
        self.job.event({"kind": "said", "text": notice})

    def row(self, row: RoundRow) -> None:
        """A round has landed."""
        self.job.event({"kind": "row", "row": row, "nodes": self.timed(row["round"])})
        if self.job.stopping:
            raise Stopped(f"it was stopped after round {row['round']}.")

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """The end."""

    def beside(self, name: str) -> AbstractContextManager[Told]:  # noqa: ARG002
        """No baselines are run."""
        return nullcontext(self)


class Serving:
    """What a run needs of the server's program."""

    def __init__(self, bundle: Bundle, nodes: Nodes, test: Path | None) -> None:
        self.bundle, self.nodes, self.test = bundle, nodes, test


@machine.one_thread_an_operator()
def run_job(job: Job, serving: Serving) -> None:
    """Runs it to its end; how it ended stands in its folder."""
    job.stands("running")
    try:
        _run(job, serving)
    except Stopped as error:
        job.stands("stopped", str(error))
    except FedatlasError as error:
        diverged = (job.folder / RUN / "summary.json").exists()
        job.stands("diverged" if diverged else "failed", str(error))
    else:
        job.stands("finished")


def _run(job: Job, serving: Serving) -> None:
    names: tuple[str, ...] = tuple(job.about["nodes"])
    patience = Patience(**job.about.get("round", {}))
    serving.nodes.stop = lambda: _stop(job)
    whole, path = deployable(parse(job.about["config"]), names), job.folder / RUN
    if whole.columns:  # all of them take part in every round
        patience = patience._replace(minimum=len(names), on_loss="wait")
    elif any(isinstance(one, SecAgg) for one in whole.mechanisms):
        patience = patience._replace(minimum=max(patience.minimum, 3))
        identities_of(serving.bundle.members(), names)
    learnt = Learnt(job, serving, whole, names, patience)
    federation, begin = learnt.consortium() if whole.columns else learnt.setup()
    start = start_of(path)
    resume = start == "resume"
    folder = RunFolder.open(path) if resume else RunFolder.create(path, whole.config, again=start == "again")
    streams = Streams(job.name, names, serving.nodes, patience, folder.path, begin, job.event)
    if not resume:  # who was set up before says so, or says that it knows nothing
        learnt.begin_all(streams)
    course: Course
    if isinstance(federation, Setup):
        host = rows_host(federation, streams, learnt.guard(federation), learnt.judging)
        course = Simulation(federation, folder, resume=resume, parties=Parties(learnt.plan, host))
    else:
        course = Growing(federation, folder, resume=resume, host=columns_host(federation, streams))
    told = Told(job, streams)
    finish(Run(path, run_course(course, told)), whole, More(), told)
    bring_home(job, serving, names, path, patience, columns=whole.columns)


def _stop(job: Job) -> None:
    if job.stopping:
        raise Stopped("it was stopped.")


class Learnt:
    """What the nodes said of their rows, asked once."""

    def __init__(self, job: Job, serving: Serving, whole: Checked, names: Sequence[str], patience: Patience) -> None:
        self.job, self.serving, self.whole, self.names, self.patience = job, serving, whole, tuple(names), patience
        config = self.config = whole.config
        self.path = job.folder / LEARNT
        self.judging: list[int] | None = None  # the nodes that judge, where the server does not
        self.kept: dict[str, Any] = codec.decode(self.path.read_bytes()) if self.path.exists() else {"totals": []}
        threads = machine.cores()
        why = "each node trains in a process of its own"
        self.plan = Plan("fast", "program", 1, 1, threads, config.engine.precision, "cpu", why)
        if config.engine.name == "loop":
            self.plan = self.plan._replace(engine="loop", step="loop")
        elif config.engine.plan in {"tuned", "native"}:
            self.plan = self.plan._replace(step=config.engine.plan)

    def _ask(self, messages: Mapping[str, Message], kind: str) -> dict[str, Message]:
        seconds = max(ANSWER, self.patience.deadline)
        return self.serving.nodes.ask_all(messages, kind, seconds, _refused)

    def _who(self) -> dict[str, Any]:
        """What a node's policy looks at before round 1."""
        about = self.job.about
        return {"config": about["config"], "operator": about["operator"], "names": list(self.names)}

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Of each node."""
        if "facts" not in self.kept:
            self.serving.nodes.wait_for(self.names, self.patience.deadline)
            head = {"kind": "facts", "run": self.job.name, **self._who()}
            said = self._ask(dict.fromkeys(self.names, Message(head)), "facts")
            self.kept["facts"] = {name: dict(said[name].head["facts"]) for name in self.names}
        found: Mapping[str, Mapping[str, Any]] = self.kept["facts"]
        return found

    def setup(self) -> tuple[Setup, Begin]:
        """The set-up of the run, and what makes the message that sets up a node."""
        facts = self.facts()
        about = agreed(facts)
        test, about = self._test(about)
        sizes = tuple(int(facts[name]["rows"]["train"]) for name in self.names)
        told = node_setup.Federation(self.names, about, sizes, bool(facts[self.names[0]]["weighted"]))
        learn = node_setup.learning(lambda name, message: self._sums(name, message, about), self.kept["totals"])
        setup = node_setup.server_setup(self.whole, told, learn, test)
        write_bytes(self.path, codec.encode(self.kept))
        if self.judging is not None:
            setup = with_judging(setup)
        return setup, lambda k, landed: self._begin(k, landed, setup, about)

    def consortium(self) -> tuple[Consortium, Begin]:
        """The same where parties hold columns."""
        facts = self.facts()
        held = known(self.whole, [facts[name] for name in self.names])
        write_bytes(self.path, codec.encode(self.kept))
        about = {"run": self.job.name, "config": self.config.plain(), "operator": self.job.about["operator"]}

        def begin(k: int, landed: int) -> Message:
            own = {"names": list(self.names), "number": k, "active": held.active, "stateful": True, "landed": landed}
            return Message({"kind": "begin", "run": self.job.name}, codec.encode({**about, **own}))

        return held, begin

    def _test(self, about: Mapping[str, Any]) -> tuple[Split | None, dict[str, Any]]:
        """The server's own test rows, coded as the nodes' are."""
        if self.serving.test is None:
            facts = self.kept["facts"]
            self.judging = [k for k, name in enumerate(self.names) if facts[name]["rows"].get("test")]
            if not self.judging:
                raise ConfigError(
                    "nobody has test rows to judge by: start the server with --test FILE, or let nodes judge on a share of theirs "
                    "(data.test = 0.2)."
                )
            return None, dict(about)
        held = read_rows(self.serving.test, self.config)
        known = agreed(
            {"the nodes": {**about, "weighted": False}, "the server's test rows": {**held.about, "weighted": False}}
        )
        if (strange := set(known["class_names"]) - set(about["class_names"])) and about["task"] == "classes":
            raise ConfigError(f"the server's test rows have the class '{min(strange)}', which no node holds.")
        splits = coded(held, {**about, "schema": known["schema"]})
        return splits["test" if "test" in splits else "train"], {**about, "schema": known["schema"]}

    def _sums(self, name: str, message: Mapping[str, Any], about: Mapping[str, Any]) -> list[Any]:
        index = len(self.kept["totals"])
        head = {"kind": "learn", "run": self.job.name, "question": name, "index": index, **self._who()}
        body = codec.encode({"about": dict(about), "message": dict(message)})
        said = self._ask(dict.fromkeys(self._holders(), Message(head, body)), "learnt")
        return [codec.decode(bytearray(said[name].body))["answer"] for name in self._holders()]

    def _holders(self) -> list[str]:
        return [name for name in self.names if self.kept["facts"][name]["rows"]["train"]]

    def _begin(self, k: int, landed: int, setup: Setup, about: Mapping[str, Any]) -> Message:
        sizes = list(setup.sizes.values())
        worth = worth_of(setup.config.local.batch_size, sizes)
        told = {
            "run": self.job.name,
            "config": self.job.about["config"],
            "operator": self.job.about["operator"],
            "names": list(self.names),
            "number": k,
            "about": dict(about),
            "totals": self.kept["totals"],
            "plan": self.plan.plain(),
            "worth": sorted(worth.sizes),
            "most": worth.most,
            "least": min((n for n in sizes if n), default=0),
            "stateful": setup.algorithm.client_init is not None or setup.bench.transform is not None,
            "landed": landed,
            "judging": self.judging is not None,
        }
        return Message({"kind": "begin", "run": self.job.name}, codec.encode(told))

    def begin_all(self, streams: Streams) -> None:
        """Every node is set up."""
        self._ask({name: streams.begin(k, -1) for k, name in enumerate(self.names)}, "begun")

    def guard(self, setup: Setup) -> Any:
        """The server's part of secure aggregation; None without."""
        if setup.bench.protection is None:
            return None
        from fedatlas.federation.server import Guard

        return Guard(
            setup.bench.protection,
            self.serving.bundle.federation,
            identities_of(self.serving.bundle.members(), self.names),
        )


def bring_home(
    job: Job, serving: Serving, names: Sequence[str], path: Path, patience: Patience, *, columns: bool
) -> None:
    """Each node gets the model; one that is not there does not keep the run from having ended."""
    home = home_of(path, job.name, columns=columns)
    try:
        serving.nodes.ask_all(dict.fromkeys(names, home), "at home", min(patience.deadline, 30.0), _refused)
    except (TransportError, NodeRefused) as error:
        job.event({"kind": "said", "text": f"The model did not come home everywhere: {error}"})


def _refused(name: str, why: str) -> Exception:
    return NodeRefused(f"'{name}' takes no part: {why}")
