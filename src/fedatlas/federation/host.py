"""One host of a run for both links: it drives rounds to their ends, and keeps what a simulation sees of the work beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.algorithm import Facts, Question, RoundGenerator, State, Work
from fedatlas.engine.job import Bench, Executor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import Cost
from fedatlas.federation.link import Request
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.ask_protocol import RoundClosed, SessionFailed

ATTEMPTS = 3  # at a round whose masked session fails before any share is given

Rounds = RoundGenerator | Callable[[], RoundGenerator]


class View:
    """What a simulation alone sees of a round: the work of every client. For the record; no algorithm reads it."""

    def __init__(self) -> None:
        self.work: dict[int, Work] = {}  # by client, all that it did
        self.failed: dict[int, str] = {}  # why the change of a client is zero, which noise covers
        self.examples = 0  # that went through local steps
        self.passes = 0.0  # forward passes of one example, a backward one counted as two (C13)
        self.passes_of: dict[str, float] = {}  # the same by architecture; "" where there is one for all
        self._last: dict[int, str] = {}  # the task of a client's last steps

    def add(self, request: Request, work: Work, bench: Bench) -> None:
        """One more piece of work."""
        k, task = request.client, bench.algorithm.tasks[request.what]
        alike = self._last.get(k) == request.what
        self.work[k] = joined(self.work[k], work, alike) if k in self.work else work
        self._last[k] = request.what if work.steps else self._last.get(k, "")
        if isinstance(task, Question):
            passes = task.passes * work.n_k
        else:
            passes = task.passes.step * work.examples + task.passes.survey * work.n_k
        name = request.architecture or bench.architecture(k)
        self.examples += work.examples
        self.passes += passes
        self.passes_of[name] = self.passes_of.get(name, 0.0) + passes


class Host:
    """The server half of a run, and what it may know of its parties: in this process (`InProcess`), or over streams (`deployment`)."""

    server: ServerHalf
    states: PartyState
    executor: Executor | None = None  # what trains the clients of this process
    judge: Any = None  # an evaluator, where parties judge
    given_up = ""  # why the last round that was driven changes nothing
    resumes = "; 'fedatlas run --resume {}' goes on from there"  # what a run that a party has left can still do

    def __init__(self) -> None:
        self.view = View()

    def drive(self, generator: Rounds, start: RoundStart, *, commit: bool = True) -> State | None:
        """Run one round to its end, and commit it unless the caller will. None: it was closed without a change.

        ``generator``: the round's, or what makes it: a masked session that failed before any share was given begins the round again.
        """
        make, self.given_up = generator if callable(generator) else lambda: generator, ""
        first = self.attempt_of(start.round)
        for attempt in range(first, max(first + 1, ATTEMPTS)):
            self.view = View()
            try:
                state = self.server.drive(
                    make(), start.again(attempt) if attempt > first else start._replace(attempt=attempt)
                )
            except SessionFailed as error:
                self.given_up = str(error)
                continue
            except RoundClosed as error:
                self.given_up = str(error)
                break
            self.given_up = ""
            if commit:
                self.server.commit(start.round)
            return state
        self.server.close(start.round)
        return None

    @property
    def cost(self) -> Cost:
        """The round's so far."""
        return self.server.cost

    def attempt_of(self, number: int) -> int:  # noqa: ARG002
        """Return the attempt at a round that was under way when this process began."""
        return 0

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the states."""
        return {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Go on from such a checkpoint."""

    def landed(self, number: int) -> None:
        """Note that a round's row, files and manifest are on the disk."""

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """Return what a party knows before its work."""
        raise NotImplementedError

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """Return a client's state, made at its first use."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what is held."""


def joined(first: Work, then: Work, alike: bool) -> Work:
    """Two pieces of a client's work as one; the loss is the mean of both where the task is the same, else the later one's."""
    if not (first.steps and then.steps):
        return then if then.steps else first
    examples = first.examples + then.examples
    loss = (first.loss * first.examples + then.loss * then.examples) / examples if alike else then.loss
    return Work(then.n_k, first.steps + then.steps, examples, first.lr_sum + then.lr_sum, loss)
