"""The host of a run, for both links. It drives rounds to their ends and keeps what a simulation sees of the work."""

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
from fedatlas.privacy.ask_protocol import ATTEMPTS, RoundClosed, SessionFailed

Rounds = RoundGenerator | Callable[[], RoundGenerator]


class View:
    """The work of every client in a round, which only a simulation sees. It is recorded; no algorithm reads it."""

    def __init__(self) -> None:
        self.work: dict[int, Work] = {}  # by client: all its work
        self.failed: dict[int, str] = {}  # why the change of a client is zero, which noise covers
        self.examples = 0  # that went through local steps
        self.passes = 0.0  # forward passes of one example, a backward one counted as two (C13)
        self.passes_of: dict[str, float] = {}  # the same by architecture; "" if all clients share one
        self._last: dict[int, str] = {}  # the task of a client's last steps

    def add(self, request: Request, work: Work, bench: Bench) -> None:
        """Record one more piece of work."""
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
    """The server half of a run with its view of the parties, which are in this process (`InProcess`) or behind streams (`deployment`)."""

    server: ServerHalf
    states: PartyState
    executor: Executor | None = None  # trains the clients of this process
    judge: Any = None  # an evaluator, if parties judge
    given_up = ""  # why the last driven round changes nothing
    resumes = "; 'fedatlas run --resume {}' goes on from there"  # how a run can continue after a party left

    def __init__(self) -> None:
        self.view = View()

    def drive(self, generator: Rounds, start: RoundStart, *, commit: bool = True) -> State | None:
        """Run one round to its end, and commit it unless the caller will. Return None if the round was closed without a change.

        ``generator`` is the round's generator or a function that makes it. A masked session that failed before any share was given
        restarts the round.
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
        """The cost of the round so far."""
        return self.server.cost

    def attempt_of(self, number: int) -> int:  # noqa: ARG002
        """Return the attempt that was under way in a round when this process began."""
        return 0

    def opened(self, server: State, number: int) -> State:  # noqa: ARG002
        """Return the server's state after a round as its parties know it, with a model opened that the server keeps closed."""
        return server

    def record(self) -> dict[str, Any]:
        """Return the extra contents of a checkpoint, besides the states."""
        return {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continue from the extra contents of a checkpoint."""

    def landed(self, number: int) -> None:
        """Note that a round's row, files and manifest are on the disk."""

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """Return the facts that a party knows before its work."""
        raise NotImplementedError

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """Return a client's state, made at its first use."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what is held."""


def joined(first: Work, then: Work, alike: bool) -> Work:
    """Join two pieces of a client's work. The loss is the mean over both if the task is the same, else that of the later piece."""
    if not (first.steps and then.steps):
        return then if then.steps else first
    examples = first.examples + then.examples
    loss = (first.loss * first.examples + then.loss * then.examples) / examples if alike else then.loss
    return Work(then.n_k, first.steps + then.steps, examples, first.lr_sum + then.lr_sum, loss)
