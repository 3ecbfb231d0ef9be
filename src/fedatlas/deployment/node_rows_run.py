"""A run at a node that holds rows: its set-up, its state, and a request as its policy sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedatlas.algorithm import Question
from fedatlas.data.batches import examples_of
from fedatlas.deployment import node_setup
from fedatlas.deployment.kept_run import KeptRun
from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.deployment.node_judging import JUDGE, judges, with_judging
from fedatlas.deployment.node_keys import NodeKeys
from fedatlas.deployment.node_rows import NodeRows, coded, rows_that_count
from fedatlas.deployment.node_state import NodeState, same_rows
from fedatlas.deployment.terms import RowsSetup
from fedatlas.engine.executors import make_executor
from fedatlas.engine.fast import Worth
from fedatlas.errors import ProtocolError
from fedatlas.federation.expected import Expected
from fedatlas.federation.link import Request
from fedatlas.federation.party import PartyHalf
from fedatlas.privacy.ask_protocol import SESSION, WORK
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.reasons import share_of
from fedatlas.record.fingerprint import fingerprint, of_splits
from fedatlas.setup.assembly import Setup, rules_of
from fedatlas.setup.cohort import select
from fedatlas.wire.agreement import run_digest
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.policy import Asked


class NodeRowsRun:
    """One run at this node.

    ``digest``: of its agreement and the outcome of round 0. ``rows``: fingerprint of its rows.
    """

    def __init__(self, bundle: Bundle, agreed: AgreedRun, setup: RowsSetup, kept: KeptRun, held: NodeRows) -> None:
        digest = run_digest(kept.agreement, kept.setup)
        self.agreed, self.digest, self.number, self.config = agreed, digest, agreed.number, agreed.whole.config
        splits, names = coded(held, setup.about), agreed.agreement.names
        self.rows = same_rows(kept.rows, fingerprint(of_splits(splits)))
        self.holders, self.judging = setup.holders, setup.judging
        learn = node_setup.replayed(setup.about, setup.totals)
        self.setup: Setup = node_setup.node_setup(agreed.whole, setup.about, splits, self.number, len(names), learn)
        self.weights = {name: (len(split.y), split.weight) for name, split in splits.items()}
        self.file = held.file
        self.labels = tuple(filter(self.setup.algorithm.tells_labels, self.setup.algorithm.tasks))  # of training rows
        if self.number in setup.judging:
            self.setup = with_judging(self.setup, judges(self.setup))
        folder = bundle.path / "state" / agreed.agreement.run
        self.state = NodeState(folder, self.number, versions=self.config.guard is not None)
        how = self.setup.bench.protection
        self.private = how is not None
        rows, algorithm = len(splits["train"].y), self.setup.algorithm
        self.share = share_of(algorithm, rows, setup.examples) if self.private else 0.0  # share in a masked mean
        keys = NodeKeys.of(bundle, agreed, digest, how, folder)
        sizes = {self.number: len(splits["train"].y)}
        worth = Worth(frozenset(setup.worth), setup.most)
        executor = make_executor(node_setup.plan_of(agreed.whole), self.setup.bench, sizes.values(), worth)
        self.state.party.landed = max(self.state.round, kept.landed)
        known = (agreed.agreement.run, len(names), setup.examples, rules_of(self.setup))
        expected = Expected(self.setup.bench, *known)
        for request in self.state.asked:
            expected.counted(request, self.state.party)
        self.half = PartyHalf(self.setup.bench, executor, self.state.party, sizes, self.config.seed, keys, expected)

    def asked(self, request: Request) -> Asked:
        """Return a request as the policy sees it. ProtocolError if the experiment draws other nodes for this round."""
        local, n = self.setup.bench.local, self.half.sizes[self.number]
        least = self.setup.bench.network.least
        examples = examples_of(request.budget or local.budget, n, local.batch_size, least, local.merge) if n else 0
        cohort = self._cohort(request)
        names = tuple(self.agreed.agreement.names[k] for k in cohort)
        counts = self.setup.bench.algorithm.tells_labels(request.what)
        return self.agreed.asked(
            epochs=examples / max(n, 1),
            cohort=len(cohort),
            members=names,
            counts_labels=counts,
            alone=request.single,
            share=self.share,
            **self._rows(request.what, examples),
        )

    def _rows(self, what: str, examples: int) -> dict[str, int]:
        """Return the number of rows in an answer: at least those that count, and at most those that do not.

        Training uses the rows of its steps. Under masks an answer of few rows is hidden in a sum, unless weights make
        fewer than half of the node's rows count.
        """
        task = self.setup.bench.tasks(self.number).get(what)
        if isinstance(task, Question) and task.data != "own" and what != JUDGE:
            return {}
        held, weight = self.weights.get("test" if what == JUDGE else "train", (0, None))
        made = held if isinstance(task, Question) else min(examples, held)
        alike = self.private and (what == JUDGE or 2 * rows_that_count(weight, held) >= held)
        light = 0 if alike else made - rows_that_count(weight, made)
        return {"rows": max(made - light, 0), "light": light}

    def _cohort(self, request: Request) -> tuple[int, ...]:
        """Return the nodes of an ask: under masks those that this node signs for, else those that the experiment draws."""
        session = self.half.sessions.get(self.number)
        if (signed := cohort_of(request, self.setup.bench.protection, session)) is not None:
            return signed
        if request.what == JUDGE:
            return self.judging
        if request.round == 0:
            return self.holders
        drawn = tuple(sorted(select(self.config.cohort, [*self.holders], self.config.seed, request.round)))
        if self.number not in drawn:
            raise ProtocolError("the experiment draws other nodes for this round.")
        return drawn

    def summed(self, request: Request) -> tuple[str, ...]:
        """Return the nodes whose masks hide the answer to a masked ask.

        These are the nodes that shared keys, or the nodes of the ask if that is not known.
        """
        how, session = self.setup.bench.protection, self.half.sessions.get(self.number)
        told = (request.word or {}).get(SESSION)
        shared = cohort_of(request._replace(what=WORK, message=told or {}), how, session) if told and session else None
        return tuple(self.agreed.agreement.names[k] for k in (self._cohort(request) if shared is None else shared))

    def add_own_part(self, folder: Path) -> None:
        """Add nothing to the files of the server."""


def cohort_of(request: Request, protection: Protection | None, session: Any) -> tuple[int, ...] | None:
    """Return the nodes that this node signs for, or whose sum it helps to open. None if a request does not tell."""
    protocol = None if protection is None else protection.protocol
    if protocol is None or protocol.cohort is None:
        return None
    return protocol.cohort(request.what, request.message, session)
