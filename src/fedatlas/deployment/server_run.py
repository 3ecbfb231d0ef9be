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
from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.columns import Growing, all_trees
from fedatlas.course.progress import Row
from fedatlas.data.dataset import Split
from fedatlas.deployment import node_setup
from fedatlas.deployment.columns_host import columns_host, consortium_of
from fedatlas.deployment.model_delivery import delivery_of
from fedatlas.deployment.node_judging import with_judging
from fedatlas.deployment.node_keys import identities_of
from fedatlas.deployment.node_rows import agreed, coded, read_rows
from fedatlas.deployment.nodes import Nodes
from fedatlas.deployment.nodes_link import LossRules, NodesLink, StartMessage
from fedatlas.deployment.refusals import refuse, refuse_columns
from fedatlas.deployment.streams_host import rows_host
from fedatlas.engine.executors import Plan
from fedatlas.engine.fast import worth_of
from fedatlas.errors import ConfigError, FedatlasError, TransportError
from fedatlas.federation.secrets import append
from fedatlas.files import write_bytes, write_json
from fedatlas.privacy.mechanisms import SecAgg
from fedatlas.record.run_folder import RunFolder, Start
from fedatlas.reporting import write_report
from fedatlas.runs.loop import Parties, run_rounds
from fedatlas.setup.assembly import Setup
from fedatlas.setup.columns_method import method_of
from fedatlas.setup.resolution import resolve
from fedatlas.wire import codec
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import Message

JOB, LEARNT, EVENTS, RUN = "job.json", "learnt.bin", "events.jsonl", "run"
ANSWER = 120.0  # seconds that a question before round 1 waits, beside what [round] says


class Stopped(FedatlasError):
    """An operator stopped the run."""


class NodeRefused(FedatlasError):
    """A node takes no part."""


class SubmittedRun:
    """A run as it was submitted, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))

    @classmethod
    def create(cls, folder: Path, about: Mapping[str, Any]) -> SubmittedRun:
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


class EventProgress:
    """`runs.loop.Progress`: what happens becomes events."""

    def __init__(self, job: SubmittedRun, link: NodesLink) -> None:
        self.job, self.link = job, link

    def timed(self, number: int) -> dict[str, float]:
        """The seconds that each node's replies took in a round."""
        return {name: round(seconds, 3) for name, seconds in self.link.seconds.pop(number, {}).items()}

    def started(self, setup: Setup, folder: Path, plan: Plan, first_round: int) -> None:  # noqa: ARG002
        """Round 0, or where it goes on."""
        self.job.event({"kind": "started", "rounds": setup.config.rounds, "from": first_round})

    def growing(self, held: Any, how: Any, folder: Path, first_tree: int) -> None:  # noqa: ARG002
        """The same of trees."""
        self.job.event({"kind": "started", "rounds": held.config.rounds, "from": first_tree})

    def said(self, notice: str) -> None:
        """A notice."""
        self.job.event({"kind": "said", "text": notice})

    def row(self, row: Row) -> None:
        """A round has landed."""
        self.job.event({"kind": "row", "row": row, "nodes": self.timed(row["round"])})
        if self.job.stopping:
            raise Stopped(f"it was stopped after round {row['round']}.")

    def finished(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """The end."""

    def beside(self, name: str) -> AbstractContextManager[EventProgress]:  # noqa: ARG002
        """No baselines are run."""
        return nullcontext(self)


class ServerContext:
    """What a run needs of the server's program."""

    def __init__(self, bundle: Bundle, nodes: Nodes, test: Path | None) -> None:
        self.bundle, self.nodes, self.test = bundle, nodes, test


@machine.one_thread_an_operator()
def run_submitted(job: SubmittedRun, context: ServerContext) -> None:
    """Runs it to its end; how it ended stands in its folder."""
    job.stands("running")
    try:
        _run(job, context)
    except Stopped as error:
        job.stands("stopped", str(error))
    except FedatlasError as error:
        diverged = (job.folder / RUN / "summary.json").exists()
        job.stands("diverged" if diverged else "failed", str(error))
    else:
        job.stands("finished")


def _run(job: SubmittedRun, context: ServerContext) -> None:
    config = parse(job.about["config"])
    names: tuple[str, ...] = tuple(job.about["nodes"])
    rules = LossRules(**job.about.get("round", {}))
    context.nodes.stop = lambda: _stop(job)
    if config.columns:
        _run_columns(job, context, config, names, rules)
        return
    resolved = resolve(config)
    refuse(resolved.config, resolved.algorithm, resolved.mechanisms, len(names))
    if any(isinstance(one, SecAgg) for one in resolved.mechanisms):
        rules = rules._replace(minimum=max(rules.minimum, 3))
        identities_of(context.bundle.members(), names)
    answers = InitialAnswers(job, context, config, names, rules)
    setup, begin = answers.setup()
    path = job.folder / RUN
    start: Start = start_of(path)
    folder = RunFolder.open(path) if start == "resume" else RunFolder.create(path, setup.config, again=start == "again")
    link = NodesLink(job.name, names, context.nodes, rules, folder.path, begin, job.event)
    if start != "resume":  # who was set up before says so, or says that it knows nothing
        answers.begin_all(link)
    host = rows_host(setup, link, answers.guard(setup), answers.judging)
    run_rounds(setup, folder, EventProgress(job, link), start, parties=Parties(answers.plan, host))
    write_report([path])
    deliver_model(job, context, names, path, rules)


def _run_columns(
    job: SubmittedRun, context: ServerContext, config: ExperimentConfig, names: Sequence[str], rules: LossRules
) -> None:
    """The same of a run whose parties hold columns: all of them take part in every tree."""
    config, how = method_of(config)
    refuse_columns(config, how, names)
    rules = rules._replace(minimum=len(names), on_loss="wait")
    answers = InitialAnswers(job, context, config, names, rules)
    facts = [answers.facts()[name] for name in names]
    write_bytes(answers.path, codec.encode(answers.kept))
    held = consortium_of(config, facts)
    about = {"run": job.name, "config": config.plain(), "operator": job.about["operator"], "names": list(names)}

    def begin(k: int, landed: int) -> Message:
        told = {**about, "number": k, "active": held.active, "stateful": True, "landed": landed}
        return Message({"kind": "begin", "run": job.name}, codec.encode(told))

    path = job.folder / RUN
    start: Start = start_of(path)
    folder = RunFolder.open(path) if start == "resume" else RunFolder.create(path, config, again=start == "again")
    link = NodesLink(job.name, names, context.nodes, rules, folder.path, begin, job.event)
    if start != "resume":
        answers.begin_all(link)
    all_trees(Growing(held, how, folder, columns_host(held, how, link)), start, EventProgress(job, link))
    write_report([path])
    deliver_model(job, context, names, path, rules)


def _stop(job: SubmittedRun) -> None:
    if job.stopping:
        raise Stopped("it was stopped.")


def start_of(path: Path) -> Start:
    """How a run goes on."""
    if any((path / "checkpoint").glob("manifest-*.json")):
        return "resume"
    return "again" if (path / "config.toml").exists() else "new"


class InitialAnswers:
    """What the nodes said of their rows, asked once."""

    def __init__(
        self,
        job: SubmittedRun,
        context: ServerContext,
        config: ExperimentConfig,
        names: Sequence[str],
        rules: LossRules,
    ) -> None:
        self.job, self.context, self.config, self.names, self.rules = job, context, config, tuple(names), rules
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
        seconds = max(ANSWER, self.rules.deadline)
        return self.context.nodes.ask_all(messages, kind, seconds, _refused)

    def _who(self) -> dict[str, Any]:
        """What a node's policy looks at before round 1."""
        about = self.job.about
        return {"config": about["config"], "operator": about["operator"], "names": list(self.names)}

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Of each node."""
        if "facts" not in self.kept:
            self.context.nodes.wait_for(self.names, self.rules.deadline)
            head = {"kind": "facts", "run": self.job.name, **self._who()}
            said = self._ask(dict.fromkeys(self.names, Message(head)), "facts")
            self.kept["facts"] = {name: dict(said[name].head["facts"]) for name in self.names}
        found: Mapping[str, Mapping[str, Any]] = self.kept["facts"]
        return found

    def setup(self) -> tuple[Setup, StartMessage]:
        """The set-up of the run, and what makes the message that sets up a node."""
        facts = self.facts()
        about = agreed(facts)
        test, about = self._test(about)
        sizes = tuple(int(facts[name]["rows"]["train"]) for name in self.names)
        told = node_setup.FederationFacts(self.names, about, sizes, bool(facts[self.names[0]]["weighted"]))
        learn = node_setup.learning(lambda name, message: self._sums(name, message, about), self.kept["totals"])
        setup = node_setup.server_setup(self.config, told, learn, test)
        write_bytes(self.path, codec.encode(self.kept))
        if self.judging is not None:
            setup = with_judging(setup)
        return setup, lambda k, landed: self._begin(k, landed, setup, about)

    def _test(self, about: Mapping[str, Any]) -> tuple[Split | None, dict[str, Any]]:
        """The server's own test rows, coded as the nodes' are."""
        if self.context.test is None:
            facts = self.kept["facts"]
            self.judging = [k for k, name in enumerate(self.names) if facts[name]["rows"].get("test")]
            if not self.judging:
                raise ConfigError(
                    "nobody has test rows to judge by: start the server with --test FILE, or let nodes judge on a share of theirs "
                    "(data.test = 0.2)."
                )
            return None, dict(about)
        held = read_rows(self.context.test, self.config)
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

    def begin_all(self, link: NodesLink) -> None:
        """Every node is set up."""
        self._ask({name: link.begin(k, -1) for k, name in enumerate(self.names)}, "begun")

    def guard(self, setup: Setup) -> Any:
        """The server's part of secure aggregation; None without."""
        if setup.bench.protection is None:
            return None
        from fedatlas.federation.server import Guard

        return Guard(
            setup.bench.protection,
            self.context.bundle.federation,
            identities_of(self.context.bundle.members(), self.names),
        )


def deliver_model(
    job: SubmittedRun, context: ServerContext, names: Sequence[str], path: Path, rules: LossRules
) -> None:
    """Each node gets the model; one that is not there does not keep the run from having ended."""
    home = delivery_of(path, job.name, columns=parse(job.about["config"]).columns)
    try:
        context.nodes.ask_all(dict.fromkeys(names, home), "at home", min(rules.deadline, 30.0), _refused)
    except (TransportError, NodeRefused) as error:
        job.event({"kind": "said", "text": f"The model did not come home everywhere: {error}"})


def _refused(name: str, why: str) -> Exception:
    return NodeRefused(f"'{name}' takes no part: {why}")
