"""The small federation of the tests under ``[[privacy]]``: mechanisms that are quick to play, and who leaves in which phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import FedatlasError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.secrets import Keyring
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.mechanism import Mechanism, Protection, PublicWork
from fedatlas.privacy.mechanisms import (
    bfv,
    central_dp,
    ckks,
    distributed_dp,
    dp_ftrl,
    made,
    paillier,
    secagg,
    threshold_paillier,
    two_server,
)
from fedatlas.privacy.protection import under
from federation import Federation, brief, federation, rows

ADMITTED = sorted(name for name in ALGORITHMS if not secagg().limits.why_not(brief(name)))
NINE = (5, 12, 9, 21, 7, 8, 6, 11, 10)  # rows of clients that make three chains
DRAWN = [(0, 1, 2), (1, 2, 3, 4), (0, 2, 4)]  # three rounds


def toy_paillier(**keys: Any) -> Mechanism:
    """Keys of 256 bits, which protect nobody."""
    return paillier(**{**keys, "key_bits": 256})


def toy_threshold(**keys: Any) -> Mechanism:
    """A key of 256 bits in shares, which protects nobody."""
    return threshold_paillier(**{**keys, "key_bits": 256})


def rekeyed(mechanism: Mechanism, **keys: Any) -> Mechanism:
    """The mechanism with other keys."""
    return made(mechanism.name, {**mechanism.keys, **keys})


def without_noise(**keys: Any) -> Mechanism:
    """Clips at a bound that nothing reaches and adds nothing."""
    return central_dp(**{"clip": 1e6, "noise_multiplier": 0.0, "noise": "seed", **keys})


ALL = tuple(range(5))
MASKS: Mapping[str, Callable[[], Mechanism]] = {
    "secagg": secagg,
    "paillier": toy_paillier,
    "threshold_paillier": toy_threshold,
    "bfv": bfv,
    "ckks": ckks,
    "two_server": two_server,
}

MECHANISMS: Mapping[str, Callable[[], Mechanism]] = {
    "secagg": secagg,
    "paillier": toy_paillier,
    "two_server": two_server,
    "threshold_paillier": toy_threshold,
    "bfv": bfv,
    "ckks": lambda: ckks(range=16.0),
    "central_dp": lambda: central_dp(clip=0.5, noise_multiplier=0.1, noise="seed"),
    "adaptive": lambda: central_dp(clip="adaptive", noise_multiplier=0.1, noise="seed"),
    "dp_ftrl": lambda: dp_ftrl(clip=0.5, noise_multiplier=0.1, restart=3, noise="seed"),
    "distributed_dp": lambda: distributed_dp(clip=0.5, noise_multiplier=0.1, noise="seed"),
}


class Host(InProcess):
    """A federation whose link may be told to lose replies, to alter them, and to note what parties refuse."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.leavers: Mapping[int, Mapping[int, str]] = {}  # round -> client -> the phase in which it leaves
        self.lose: Callable[[Request], bool] = lambda request: False
        self.alter: Callable[[Request, Any], Any] = lambda request, update: update
        self.tell: Callable[[Request], Request] = lambda request: request  # what a hostile server says in its place
        self.refusals: list[tuple[Request, FedatlasError]] | None = None  # None: what a party refuses ends the run
        self.requests: list[Request] = []

    def drive(self, generator: Any, start: RoundStart, *, commit: bool = True) -> Any:
        leaving = dict(self.leavers.get(start.round, {}))
        return super().drive(generator, start._replace(leaving=leaving), commit=commit)

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        self.requests += requests
        told = [self.tell(request) for request in requests if not self.lose(request)]
        if self.refusals is None:
            yield from (self._altered(told, reply) for reply in super().__call__(told, deadline))
            return
        for request in told:  # as a link does whose parties are elsewhere: who refuses does not answer
            try:
                replies = list(super().__call__([request], deadline))
            except FedatlasError as error:
                self.refusals.append((request, error))
                continue
            yield from (self._altered([request], reply) for reply in replies)

    def _altered(self, requests: Sequence[Request], reply: Reply) -> Reply:
        request = next(request for request in requests if request.client == reply.client)
        return reply._replace(update=self.alter(request, reply.update))

    def asked(self, what: str) -> list[tuple[int, int, int]]:
        """(round, attempt, client) of all requests for this."""
        return [(r.round, r.attempt, r.client) for r in self.requests if r.what == what]


def protected(
    algorithm: Algorithm | str,
    *mechanisms: Mechanism,
    folder: Path | None = None,
    executor: Callable[[Bench], Executor] = SerialExecutor,
    fraction: float = 1.0,
    seed: int = 1,
    **more: Any,
) -> tuple[Federation, Host]:
    """A federation under these mechanisms, and its host with secrets of its own; ``folder``: where its journal lies."""
    fed = federation(brief(algorithm) if isinstance(algorithm, str) else algorithm, **more)
    sizes = {k: r.n for k, r in fed.held.items()}
    training = PublicWork(sizes, fed.bench.local.batch_size, fed.bench.local.budget)
    how = Protection(
        tuple(mechanisms), len(sizes), 3, fraction, 5, min(sizes.values()), testing=True, training=training
    )
    fed = fed._replace(bench=fed.bench._replace(algorithm=under(fed.bench.algorithm, how), protection=how))
    ring = Keyring(how, len(sizes), "tests", folder)
    return fed, Host(fed.bench, executor(fed.bench), PartyState(), sizes, seed, run="run", keyring=ring)


def admitted(name: str, dtype: torch.dtype = torch.float64) -> tuple[Algorithm, dict[str, Any], list[tuple[int, ...]]]:
    """An algorithm that masks admit, the federation that it needs, and who takes part in three rounds; "chains": FedSeq by chance."""
    if name == "chains":
        made = ALGORITHMS["fedseq"](phi="random", pretrain_epochs=1)
        return made, {"held": rows(NINE, dtype)}, [tuple(range(9))] * 3
    return brief(name), {}, DRAWN


def silent(what: str, clients: Collection[int], rounds: Collection[int] = (1, 2, 3)) -> Callable[[Request], bool]:
    """Loses the replies of these clients to such asks."""
    return lambda request: request.what == what and request.client in clients and request.round in rounds


def length_of(tree: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all tensors together."""
    return math.sqrt(sum(float(x.double().square().sum()) for x in tree.values()))
