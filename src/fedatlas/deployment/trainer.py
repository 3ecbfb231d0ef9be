"""The process of a node that trains: `PartyHalf` behind a pipe, with its own rows, its own folder and its own policy.

    python -m fedatlas.deployment.trainer BUNDLE DATA

It answers what its speaker hands it, one message after another, and ends with it. What it is asked:

    facts    run, config, who asks           what its rows are (`holding`), or why it takes no part
    learn    a question of round 0            its answer, to be added up
    begin    what all agreed on               it is set up
    ask      a request (`federation.link`)    its reply
    commit   a round landed                   it keeps its state
    home     the model                        it has a run folder to predict with
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedatlas import machine
from fedatlas.config import ExperimentConfig, parse
from fedatlas.data.batches import examples_of
from fedatlas.data.dataset import Split
from fedatlas.data.party_tables import PartyTable
from fedatlas.deployment import node_setup
from fedatlas.deployment.model_delivery import checked, store_delivery
from fedatlas.deployment.node_columns import NodeColumnsRun, facts_of, own_table
from fedatlas.deployment.node_judging import JUDGE, judges, with_judging
from fedatlas.deployment.node_keys import NodeKeys
from fedatlas.deployment.node_rows import NodeRows, coded, read_rows
from fedatlas.deployment.node_state import NodeState, verdicts_of
from fedatlas.engine.executors import Plan, make_executor
from fedatlas.engine.fast import Worth
from fedatlas.errors import DataError, DivergedError, FedatlasError, ProtocolError, first_line
from fedatlas.federation.link import Request
from fedatlas.federation.party import PartyHalf
from fedatlas.files import write_bytes
from fedatlas.privacy import secure_sum
from fedatlas.setup.assembly import Setup
from fedatlas.wire import codec
from fedatlas.wire.bundle import POLICY, Bundle
from fedatlas.wire.frames import Message, read, write
from fedatlas.wire.policy import Asked, Policy

RUN = "run.bin"
LABEL_COUNTS = {"counts", JUDGE}
"""Tasks whose answers say how many rows of each class a node holds."""


class Dropped(ProtocolError):
    """A round of several questions cannot be gone on with: what it keeps in memory alone is gone."""


class NodeRowsRun:
    """One run at this node."""

    def __init__(self, bundle: Bundle, told: Mapping[str, Any], held: NodeRows) -> None:
        self.told, self.name = told, told["run"]
        self.config: ExperimentConfig = parse(told["config"])
        self.number, self.K = told["number"], len(told["names"])
        splits = coded(held, told["about"])
        if (found := fingerprint(splits)) != told.get("rows", found):
            raise DataError("its rows are not those that the run began with: put the original file back.")
        self.rows = found
        learn = node_setup.replayed(told["totals"])
        self.setup: Setup = node_setup.node_setup(self.config, told["about"], splits, self.number, self.K, learn)
        if told["judging"]:
            self.setup = with_judging(self.setup, judges(self.setup))
        self.folder = bundle.path / "state" / self.name
        self.state = NodeState(self.folder, self.number)
        self.private = self.setup.bench.protection is not None
        keys = NodeKeys.of(bundle, told, self.setup.bench.protection, self.folder)
        plan = Plan(**told["plan"])
        n = len(splits["train"].y)
        worth = Worth(frozenset(told["worth"]), told["most"])
        executor = make_executor(plan, self.setup.bench, [n], worth)
        self.half = PartyHalf(self.setup.bench, executor, self.state.party, {self.number: n}, self.config.seed, keys)

    def asked(self, request: Request, head: Mapping[str, Any]) -> Asked:
        """What a request means to the policy."""
        local, n = self.config.local, self.half.sizes[self.number]
        budget = request.budget or self.setup.bench.local.budget
        epochs = examples_of(budget, n, local.batch_size, self.setup.bench.network.least) / max(n, 1) if n else 0.0
        return Asked(
            self.told["operator"],
            self.setup.algorithm.name,
            epochs,
            self.config.rounds,
            cohort_of(request, head),
            self.private,
            request.what in LABEL_COUNTS,
        )

    def add_own_part(self, folder: Path) -> None:
        """Nothing is added to what the server sends."""


def cohort_of(request: Request, head: Mapping[str, Any]) -> int:
    """How many nodes an ask is of: under masks those that the node signs for, or whose sum it helps to open, whatever the server says."""
    message = cast(Mapping[str, Tensor], request.message)
    if request.what == secure_sum.KEYS:
        return len(message["cohort"])
    if request.what == secure_sum.UNMASK:
        return int(message["survivors"].sum())
    return int(head.get("cohort", 0))


class Trainer:
    """What a node's training process does."""

    def __init__(self, bundle: Bundle, data: Path) -> None:
        self.bundle, self.data = bundle, data
        self.runs: dict[str, NodeRowsRun | NodeColumnsRun] = {}
        self._held: tuple[str, NodeRows] | None = None
        self._table: tuple[str, PartyTable] | None = None

    def ready(self) -> Message:
        """Its first word: which rounds of which runs have landed here."""
        runs = {}
        for folder in sorted((self.bundle.path / "state").glob("*/state.bin")):
            runs[folder.parent.name] = codec.decode(folder.read_bytes())["round"]
        return Message({"kind": "ready", "runs": runs})

    def policy(self) -> Policy:
        """As the file is now."""
        return Policy.read(self.bundle.path / POLICY)

    def held(self, config: ExperimentConfig) -> NodeRows:
        """The rows of this node, read once."""
        key = config.data.model_dump_json() + str(config.seed)
        if self._held is None or self._held[0] != key:
            self._held = key, read_rows(self.data, config)
        return self._held[1]

    def table(self, config: ExperimentConfig) -> PartyTable:
        """The table of this node, where parties hold columns, read once."""
        key = str([one.model_dump_json() for one in config.parties]) + str(config.data.missing)
        if self._table is None or self._table[0] != key:
            self._table = key, own_table(config, self.bundle.name, self.data)
        return self._table[1]

    def running(self, run: str) -> NodeRowsRun | NodeColumnsRun | None:
        """A run that this node was told of, from its disk where this process is new."""
        if run not in self.runs and (path := self.bundle.path / "state" / run / RUN).exists():
            self._open(codec.decode(path.read_bytes()))
        return self.runs.get(run)

    def _open(self, told: Mapping[str, Any]) -> NodeRowsRun | NodeColumnsRun:
        self.runs.clear()  # one at a time
        config = parse(told["config"])
        if config.columns:
            self.runs[told["run"]] = NodeColumnsRun(self.bundle, told, self.table(config))
        else:
            self.runs[told["run"]] = NodeRowsRun(self.bundle, told, self.held(config))
        return self.runs[told["run"]]

    def serve(self, message: Message) -> Iterator[Message]:
        """What is said to a message; a refusal says why."""
        head = message.head
        about = {key: head[key] for key in ("run", "place", "index") if key in head}
        if "run" in head:
            checked(str(head["run"]))
        handler = getattr(self, f"_{message.kind}", None) if message.kind in HANDLED else None
        if handler is None:
            return
        try:
            yield from handler(message)
        except FedatlasError as error:
            refused = {"kind": "refused", **about, "to": message.kind, "why": str(error)}
            yield Message({**refused, "dropped": True} if isinstance(error, Dropped) else refused)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            yield Message({"kind": "refused", **about, "to": message.kind, "why": why})

    def _checked(self, head: Mapping[str, Any]) -> ExperimentConfig:
        """The experiment of a question before round 1, where the policy lets it pass."""
        config = parse(head["config"])
        masked = bool(config.privacy)
        epochs = float(config.local.epochs or 0)
        asked = Asked(head["operator"], config.algorithm.name, epochs, config.rounds, len(head["names"]), masked)
        self.policy().check(asked)
        return config

    def _facts(self, message: Message) -> Iterator[Message]:
        head = message.head
        config = self._checked(head)
        facts = facts_of(self.table(config)) if config.columns else self.held(config).facts
        yield Message({"kind": "facts", "run": head["run"], "facts": facts})

    def _learn(self, message: Message) -> Iterator[Message]:
        head, told = message.head, codec.decode(bytes(message.body))
        train = coded(self.held(self._checked(head)), told["about"])["train"]
        answer = node_setup.answered(head["question"], told["message"], train)
        body = codec.encode({"answer": dict(answer)})
        yield Message({"kind": "learnt", "run": head["run"], "index": head["index"]}, body)

    def _begin(self, message: Message) -> Iterator[Message]:
        told = codec.decode(bytes(message.body))
        known = self.bundle.path / "state" / told["run"] / RUN
        if not known.exists() and told["stateful"] and told["landed"] >= 0:
            raise DataError(
                f"its state of this run is gone (it has landed up to round {told['landed']}): put its folder 'state' back, "
                "or begin a new run."
            )
        running = self._open({**told, "rows": codec.decode(known.read_bytes())["rows"]} if known.exists() else told)
        if not known.exists():
            running.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(known, codec.encode({**told, "rows": running.rows}))
        yield Message({"kind": "begun", "run": told["run"]})

    def _ask(self, message: Message) -> Iterator[Message]:
        head = message.head
        running = self.running(head["run"])
        if running is None:
            yield Message({"kind": "unknown", "run": head["run"], "place": head["place"]})
            return
        state = running.state
        for at, counted in verdicts_of(head):
            self._landed(running, at, counted)
        place = tuple(head["place"])
        if (kept := state.known(place, head["digest"])) is None:
            if digest_of(message.body) != head["digest"]:
                raise ProtocolError("its digest is not that of its message.")
            request = Request.of(codec.decode(bytearray(message.body), copy=False))
            if (request.run, request.client, list(request.ask[1:])) != (running.name, running.number, head["place"]):
                raise ProtocolError("it is asked as another party, or of another run.")
            self.policy().check(running.asked(request, head))
            if running.private and state.broken == place[:2]:
                raise Dropped("ended in the middle of the round, and its keys of this round with it")
            (answer,) = running.half.answer([request])
            if answer.lost:
                raise DivergedError("its training came to no numbers: there is nothing to send.")
            work = [*answer.work[:4], None if running.private else answer.work.loss]
            body = codec.encode(answer.reply.plain())
            state.keep(place, head["digest"], {"work": work}, body)
            said, out = {"work": work}, body
        else:
            said, out = dict(kept.head), bytearray(kept.body)
        about = {"run": head["run"], "place": head["place"], "digest": head["digest"], "landed": state.round}
        yield Message({"kind": "reply", **about, **said}, out)

    def _landed(self, running: NodeRowsRun | NodeColumnsRun, round: int, counted: bool) -> None:
        if round > running.state.round:  # a verdict that comes again ends nothing
            running.state.commit(round, counted)
            running.half.sessions.clear()

    def _commit(self, message: Message) -> Iterator[Message]:
        head = message.head
        if (running := self.running(head["run"])) is not None:
            for at, counted in verdicts_of(head):
                self._landed(running, at, counted)
            yield Message({"kind": "landed", "run": head["run"], "landed": running.state.round})

    def _home(self, message: Message) -> Iterator[Message]:
        where = store_delivery(self.bundle.path, message)
        if (running := self.running(str(message.head["run"]))) is not None:
            running.add_own_part(where)
        yield Message({"kind": "at home", "run": message.head["run"], "where": str(where)})


HANDLED = {"facts", "learn", "begin", "ask", "commit", "home"}


def digest_of(body: bytes | bytearray | memoryview) -> str:
    """What tells one request from another."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def fingerprint(splits: Mapping[str, Split]) -> str:
    """Of the rows of a node: BLAKE2b of their bytes."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(splits):
        for x in splits[name]:
            if x is not None:
                found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
                found.update(x.contiguous().numpy().data)
    return found.hexdigest()


@machine.one_thread_an_operator()
def main() -> None:
    """The process's life: until its pipe is closed."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is no message
    torch.set_num_threads(1)
    try:
        trainer = Trainer(Bundle.open(Path(sys.argv[1]), "node"), Path(sys.argv[2]))
        trainer.policy()
    except FedatlasError as error:
        sys.stderr.write(f"fedatlas: {error}\n")
        raise SystemExit(2) from None
    write(outgoing, trainer.ready())
    while (message := read(incoming)) is not None:
        for said in trainer.serve(message):
            write(outgoing, said)


if __name__ == "__main__":
    main()
