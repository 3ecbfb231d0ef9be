"""A federation of parties that hold columns. Its party half answers questions and trains nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Algorithm, Question, State, Task, Work
from fedatlas.engine.job import Bench, Job, LocalOptions, Result
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.party import Answer, PartyHalf
from fedatlas.federation.signed_letters import SignedLetters
from fedatlas.vertical.parties import Columns


def answer(bench: Bench, job: Job) -> Result:
    """Answer a question about columns."""
    started = time.perf_counter()
    question, data = bench.algorithm.tasks[job.what], bench.rows(job.client)
    assert isinstance(question, Question)
    reply, state, session = question.answer(None, data, job.message, job.state, job.session)  # type: ignore[arg-type]
    work = Work(int(job.facts.n_k), 0, 0, 0.0, math.nan)
    return Result(job.client, reply, state, work, seconds=time.perf_counter() - started, session=session)


class ColumnExecutor:
    """Answer one party after another in this process."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.run_job: Callable[[Bench, Job], Result] = answer

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield results in the order of the jobs."""
        for job in jobs:
            yield answer(self.bench, job)

    def close(self) -> None:
        """Do nothing; there is nothing to release."""


class Memory:
    """Keys that parties keep in memory from one round to the next and never write. Another process starts without them."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def session(self, client: int) -> Any:
        """Return the session with which a party's questions of a round begin."""
        return {"run": self.kept[client]} if client in self.kept else None

    def keep(self, client: int, session: Any) -> None:
        """Keep the part of a session that lasts beyond its round."""
        if isinstance(session, Mapping) and "run" in session:
            self.kept[client] = session["run"]


def nothing_kept(model: Any, facts: Any) -> State:
    """Return a party's state before the first question."""
    return {}


def bench_of(name: str, questions: Mapping[str, Task | Question], held: Mapping[int, Columns]) -> Bench:
    """Build the bench with which the party half of these parties answers these questions."""
    algorithm = Algorithm(name, tasks=questions, client_init=nothing_kept)
    return Bench(algorithm, {}, lambda k: held[k], LocalOptions(), 0)  # type: ignore[arg-type]


def sizes_of(parties: Sequence[Columns]) -> dict[int, int]:
    """Return party -> its number of rows."""
    return {each.party: len(each.x) for each in parties}


class LettersHalf(PartyHalf):
    """The half of one party. Between real parties it opens the letters in requests and signs the letters in replies."""

    letters: SignedLetters | None = None

    def opened(self, request: Request) -> Request:
        """Return a request with its letters in the form that questions take. ProtocolError for a letter that fails its checks."""
        return request if self.letters is None else self.letters.opened(request)

    def answer(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests like `PartyHalf.answer`, with letters opened and signed."""
        for request, answer in zip(requests, super().answer([*map(self.opened, requests)]), strict=True):
            if self.letters is not None:
                update = self.letters.sealed(request, answer.reply.update)
                answer = answer._replace(reply=answer.reply._replace(update=update))
            yield answer


def party_half(
    name: str,
    questions: Mapping[str, Task | Question],
    own: Columns,
    state: PartyState,
    letters: SignedLetters | None = None,
) -> LettersHalf:
    """Build the half of a single party for a separate process. It has no access to another party's columns."""
    bench = bench_of(name, questions, {own.party: own})
    half = LettersHalf(bench, ColumnExecutor(bench), state, {own.party: len(own.x)}, own.seed, Memory())
    half.letters = letters
    return half


def columns_federation(
    parties: Sequence[Columns],
    questions: Mapping[str, Task | Question],
    states: PartyState | None = None,
    *,
    name: str = "columns",
    run: str = "",
    observers: Iterable[Observer] = (),
) -> InProcess:
    """Build a federation of all these parties in this process, linked by a function call."""
    bench = bench_of(name, questions, {each.party: each for each in parties})
    given = (bench, ColumnExecutor(bench), states or PartyState(), sizes_of(parties), parties[0].seed)
    return InProcess(*given, run=run, observers=observers, secrets=Memory(), compares=False)
