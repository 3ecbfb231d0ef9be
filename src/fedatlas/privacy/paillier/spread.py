"""The work of a batch on several processes. Powers in Python hold the interpreter's lock, so threads would not help.

Processes are forked and inherit keys and tables, so nothing secret passes through a pipe unless it was asked for. No generator made
before the fork draws after it: every draw asks the operating system where it happens.
"""

from __future__ import annotations

import multiprocessing
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from fedatlas.errors import FedatlasError, ProtocolError

Work = Callable[[int, int], bytes]
"""``work(first, end)`` returns the bytes of these items, one after another."""

FEW = 8  # too few items to be worth a process


def spread(work: Work, count: int, workers: int = 1, sizes: Sequence[int] | None = None) -> bytes:
    """Return the bytes of items 0 to ``count``, in order, from this process and ``workers`` - 1 forked ones, one stretch each.

    ``sizes``: how much work each item is; None: all are alike. Stretches are about as much work. A process that is itself a daemon (a
    worker of a pool) cannot fork. It does all the work itself.
    """
    can = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
    parts = min(workers, count // FEW) if can else 1
    if parts <= 1:
        return work(0, count)
    done = [*accumulate([1] * count if sizes is None else sizes, initial=0)]
    ends = [bisect_left(done, done[-1] * i / parts) for i in range(parts)] + [count]
    helpers = [_fork(work, first, end) for first, end in pairwise(ends[1:])]
    try:
        return b"".join([work(0, ends[1]), *(_hear(pipe) for _, pipe in helpers)])
    finally:
        for process, pipe in helpers:
            pipe.close()
            process.kill()
            process.join()


def _fork(work: Work, first: int, end: int) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, first, end, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns about threads; the children use none of them
        process.start()
    theirs.close()
    return process, ours


def _child(work: Work, first: int, end: int, pipe: Connection) -> None:
    try:
        pipe.send((None, work(first, end)))
    except FedatlasError as error:
        pipe.send((error, b""))


def _hear(pipe: Connection) -> bytes:
    try:
        error, data = pipe.recv()
    except (EOFError, OSError):
        raise ProtocolError("a process that computed with ciphertexts ended early: is there enough memory?") from None
    if error is not None:
        raise error
    return bytes(data)
