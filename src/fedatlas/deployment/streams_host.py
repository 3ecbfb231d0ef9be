"""The server's host of a run whose parties are nodes. The verdicts of its rounds are in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Algorithm, Ask, Facts, Replies, RoundGenerator, State, Update, Work
from fedatlas.course.evaluation import NotJudged
from fedatlas.deployment.node_judging import JUDGE, ODD, NodeJudge
from fedatlas.deployment.nodes_link import NodesLink, TooFew, misshapen
from fedatlas.deployment.reply_form import ReplyForms, misjudged, not_finite, overworked, unlike, unlikely
from fedatlas.engine.job import Bench
from fedatlas.errors import ProtocolError, first_line
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.host import Host, Rounds
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.server import Guard, ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.ask_protocol import RoundClosed, SessionFailed
from fedatlas.record.checkpoint import ROLLBACKS, VERDICTS
from fedatlas.setup.assembly import Setup
from fedatlas.tree import Tree


class StreamsHost(Host):
    """A host whose parties are nodes.

    The verdicts of rounds are in the checkpoint, and are sent once it is on the disk.

    It is the link of its server half: it passes on the nodes' streams and records what the nodes report of their work.
    ``bench``: given if that work is training. ``forms``: the forms of its replies. ``whole``: wraps the generator of a
    round.
    """

    def __init__(
        self,
        link: NodesLink,
        algorithm: Algorithm,
        sizes: Mapping[int, int],
        seed: int,
        *,
        bench: Bench | None = None,
        forms: ReplyForms | None = None,
        guard: Guard | None = None,
        whole: Callable[[RoundGenerator], RoundGenerator] | None = None,
    ) -> None:
        super().__init__()
        self.link, self.bench, self.forms, self.whole = link, bench, forms, whole or closing
        self.rounds = 0  # of the run
        self.unjudged: int | None = None  # the round in which judging failed
        self.states = PartyState()  # empty: each client keeps its state
        transform = None if bench is None else bench.transform
        self.server = ServerHalf(algorithm, self, sizes, seed, run=link.run, transform=transform, guard=guard)
        self._half = None if bench is None else PartyHalf(bench, _NoExecutor(), self.states, sizes, seed)
        if bench is not None:
            link.check = self._check

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """Send requests and yield their replies, as a link does."""
        asked = {request.client: request for request in requests}
        for reply in self.link(requests, deadline):
            if self.bench is not None and asked[reply.client].what != JUDGE:
                self.view.add(asked[reply.client], self.link.work[reply.client], self.bench)
            yield reply

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:
        """Note a verdict, as a link does."""
        self.link.commit(run, round, counted)

    def drive(self, generator: Rounds, start: RoundStart, *, commit: bool = True) -> State | None:
        """Drive a round like `Host.drive`. ProtocolError for replies that no honest party sends."""
        make = generator if callable(generator) else lambda: generator
        try:
            return super().drive(lambda: self.whole(make()), start, commit=commit)
        except ODD as error:
            raise ProtocolError(f"a party's reply is not what it was asked for ({first_line(error)})") from None

    def attempt_of(self, number: int) -> int:
        """Return the attempt in the journal."""
        return self.link.closed.attempt(number)

    def record(self) -> dict[str, Any]:
        """Return the verdicts that are still to be sent."""
        due = {VERDICTS: [[at, list(who)] for at, who in sorted(self.link.verdicts.items())]}
        back = [[at, version] for at, version in self.link.rollbacks.items() if at in self.link.verdicts]
        return {**due, **({ROLLBACKS: back} if back else {})}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the verdicts after a restart."""
        self.link.verdicts = {at: tuple(who) for at, who in extra.get(VERDICTS, [])}
        self.link.rollbacks = dict(extra.get(ROLLBACKS, []))

    def landed(self, number: int) -> None:
        """Send the verdicts to the nodes."""
        self.link.landed(number)

    def judged(
        self, message: Mapping[str, Any], to: Sequence[int], read: Callable[[Update], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of ``read`` on the sum of the nodes' figures of a model.

        Who counts in the round does not depend on it.

        If the server sees only sums, all nodes must judge, or NotJudged is raised. The same holds if ``read`` raises
        it. Then no node is asked again in this round. A refusal before round 1 ends the run.
        """
        number, ask = self.server.now.start.round, Ask(tuple(to), JUDGE, dict.fromkeys(to, message), "sum")
        if number == self.unjudged:
            raise NotJudged(f"round {number}: the nodes were asked before.")
        replies = self.server.aside(ask) if self.server.guard is None else self._judged_by_all(ask, number)
        if replies.value is None:
            raise TooFew(f"round {number}: no node could judge the model.")
        try:
            return read(replies.value)
        except NotJudged:
            self.unjudged = number
            raise

    def _judged_by_all(self, ask: Ask, number: int) -> Replies:
        try:
            with self.link.together(patient=number in {0, self.rounds}):
                return self.server.aside(ask)
        except (SessionFailed, RoundClosed) as error:
            why = f"round {number}: {error}."
        except TooFew as error:
            if error.refused and not number:
                raise
            why = str(error)
        self.unjudged = number
        raise NotJudged(why)

    def _check(self, request: Request, reply: Reply, work: Work) -> str:
        """Return why a reply cannot be used, or "". Of a masked reply only the form can be checked."""
        assert self.bench is not None
        rows = self.server.sizes[request.client]
        if why := unlikely(reply, work) or overworked(request, work, rows, self.bench):
            return why
        if request.word is not None:
            return not_finite(reply.update, "its reply")
        opened = self.server.opened(request, reply.update)
        model = request.message.get("model")
        if why := misshapen(opened, model if isinstance(model, Tree) else None):
            return why
        form = None if self.forms is None else self.forms.of(request, self.server.opened)
        alike = not_finite(opened, "its reply") if form is None else unlike(form, opened, "its reply")
        return alike or misjudged(request, opened)

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """Return the facts of a party before its work."""
        assert self._half is not None
        return self._half.facts(client, number, lr, self.server.of.K, self.server.of.n)

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """Return a client's state, which the client itself keeps."""
        assert self._half is not None
        return self._half.state_of(client, message, facts)


def rows_host(
    setup: Setup,
    link: NodesLink,
    guard: Guard | None = None,
    judging: Sequence[int] | None = None,
    example: Callable[[], PartyHalf] | None = None,
) -> StreamsHost:
    """Return the host of a run whose nodes hold rows.

    ``judging``: the nodes that judge, if the server has no test rows. ``example``: makes a party on rows of zeros.
    """
    b, forms = setup.bench, None if example is None else ReplyForms(example)
    host = StreamsHost(link, b.algorithm, setup.sizes, setup.seed, bench=b, forms=forms, guard=guard)
    host.rounds = setup.config.rounds
    host.judge = None if judging is None else NodeJudge(setup, host.judged, judging)
    return host


def closing(inner: RoundGenerator) -> RoundGenerator:
    """Close a round without a change if an algorithm cannot compute with the nodes' values."""
    try:
        return (yield from inner)
    except ODD as error:
        raise RoundClosed(f"what the nodes say cannot be computed with ({first_line(error)})") from None


class _NoExecutor:
    """An executor that trains nothing."""

    run_job: Any = None

    def run(self, jobs: Any) -> Iterator[Any]:
        raise NotImplementedError("the server trains nothing.")

    def close(self) -> None: ...
