"""A search beyond the table: every field of every message to a node, changed; what comes out is nothing, or what an honest server gets.

The conversation of a server and a node is recorded, message by message. Each message is then changed and handed to the node as it was
before it, in a fork of this process and with its folder put back afterwards. A changed message is refused, or answered with the bytes that
the honest one was answered with, or the change is one that no party could see (`UNSEEN`), and the answer is protected as the honest one is.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agreements import Agreements, write_rows
from fedatlas.deployment.terms import decoded
from fedatlas.errors import FedatlasError
from fedatlas.federation.link import Request
from fedatlas.wire import codec
from fedatlas.wire.frames import RawMessage
from mutations_of import Mutant, mutants, pairs
from mutations_of import Path as Field
from nodes_in_process import run_here

SECAGG = {"privacy": [{"name": "secagg"}]}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": SECAGG,
    "counts": {"algorithm": {"name": "hwfedavg"}},
    "stateful": {"algorithm": {"name": "scaffold"}},
}
POLICIES = {
    "trial": "",
    "strict": 'secure_aggregation = true\nmin_cohort = 3\nlabel_counts = "no"\n',
}
UNSEEN = {
    "learn": ("about", "totals"),  # what other nodes hold
    "begin": ("about", "totals", "worth", "most", "examples", "holders", "judging"),
    "ask": ("message",),  # what only the server knows, in the form that it has to have
}
"""Parts of a message's body of which a node knows no more than their form and what it was told before. Which rounds have landed, in
every head, is another.
"""
SLACK = 1 << 20  # bytes


class Asked(NamedTuple):
    """A message to the node, and what it answered."""

    message: RawMessage
    answers: tuple[RawMessage, ...]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put_back(folder: Path, kept: dict[Path, bytes]) -> None:
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()
    for path, data in kept.items():
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


class Outcome(NamedTuple):
    """What came of a changed message."""

    kinds: tuple[str, ...]
    same: bool  # the honest bytes
    protected: bool  # sealed as the honest answer is
    grown: int  # bytes of memory


def serve(trainer: Any, message: RawMessage) -> tuple[RawMessage, ...]:
    """The answers, without the digest of what they answer."""
    return tuple(
        RawMessage({key: x for key, x in one.head.items() if key != "digest"}, bytes(one.body))
        for one in trainer.serve(message)
    )


def alike(asked: Asked, mutant: Mutant) -> bool:
    """Whether a node reads the same request in both: a default may be left out."""
    if asked.message.kind != "ask" or any(path[0] == "head" for path, _ in mutant.what):
        return False
    try:
        read = [codec.encode(decoded(Request, one.body).plain()) for one in (asked.message, mutant.message)]
    except FedatlasError:
        return False
    return bool(read[0] == read[1])


def outcome(trainer: Any, asked: Asked, mutant: Mutant) -> Outcome:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = serve(trainer, mutant.message)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return Outcome(
        tuple(one.kind for one in found),
        found == asked.answers,
        all(form(one) in ([], form(honest)) for one, honest in zip(found, asked.answers, strict=False)),
        grown,
    )


def form(answer: RawMessage) -> Any:
    """The parts of an answer by name, as far as they say how it is protected."""
    return sorted(codec.decode(bytearray(answer.body))["update"]) if answer.kind == "reply" else answer.kind


def forked(work: Any) -> Any:
    """What a function returns in a child; the child's memory is forgotten. None where it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            data = pickle.dumps(work())
        except BaseException as error:  # noqa: BLE001
            data = pickle.dumps(f"{type(error).__name__}: {error}")
        os.write(writing, data)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None  # noqa: S301  # our own child's


def seen(asked: Asked, what: tuple[tuple[Field, str], ...]) -> bool:
    """Whether a node could see one of these changes."""
    unseen = UNSEEN.get(asked.message.kind, ())
    return any(
        (path[0] == "head" and path[1] != "verdicts") or path[1] not in {*unseen, "verdicts"} for path, _ in what
    )


def faults(trainer: Any, folder: Path, asked: Asked, changed: Iterator[Mutant]) -> Iterator[str]:
    kept = files(folder)
    usual = forked(
        lambda: outcome(trainer, asked, Mutant(asked.message, ()))
    ).grown  # of what an honest message loads and makes
    put_back(folder, kept)
    for mutant in changed:
        found = forked(lambda mutant=mutant: outcome(trainer, asked, mutant))
        put_back(folder, kept)
        said = f"{asked.message.kind} {mutant.what}: {found}"
        if not isinstance(found, Outcome):
            yield f"died: {said}"
        elif set(found.kinds) <= {"refused", "unknown"}:
            limit = 4 * len(mutant.message.body) + 4 * len(str(mutant.message.head)) + SLACK
            if found.grown > usual + limit:
                yield f"took memory: {said}"
        elif not found.same and not alike(asked, mutant) and (seen(asked, mutant.what) or not found.protected):
            yield f"answered: {said}"


def conversation(folder: Path, run: str, policy: str, each: Any) -> None:
    """Run an experiment of three nodes; ``each`` gets every message to one of them before it is answered."""
    made = Agreements(folder)
    trainers = {
        name: made.trainer(name, write_rows(folder / f"{name}.csv", 40, i)) for i, name in enumerate(made.names)
    }
    path = made.paths["north"] / "policy.toml"
    path.write_text(POLICIES[policy] or path.read_text())

    def tap(name: str, message: RawMessage) -> RawMessage:
        if name == "north":
            kept = files(made.paths[name])
            answers = forked(lambda: serve(trainers[name], message))
            put_back(made.paths[name], kept)
            each(trainers[name], made.paths[name], Asked(RawMessage(dict(message.head), bytes(message.body)), answers))
        return message

    config = made.config(rounds=2, **RUNS[run])
    ended = run_here(made, trainers, made.signed("r", config), tap, write_rows(folder / "test.csv", 60, 9))
    assert ended.state.status == "finished" or policy == "strict", ended.state.why


def search(run: str, policy: str, most: int, draw: random.Random, *, twice: bool = False) -> tuple[int, list[str]]:
    """(how many changed messages were tried, what was wrong)."""
    tried, wrong = 0, list[str]()

    def each(trainer: Any, folder: Path, asked: Asked) -> None:
        nonlocal tried
        every = list(mutants(asked.message))
        chosen = draw.sample(every, min(most, len(every)))
        left = most - len(chosen) if twice else 0
        more = itertools.islice(pairs(asked.message, draw), left)
        tried += len(chosen) + left
        wrong.extend(faults(trainer, folder, asked, itertools.chain(chosen, more)))

    with tempfile.TemporaryDirectory() as folder:
        conversation(Path(folder), run, policy, each)
    return tried, wrong


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("run", RUNS)
def test_a_changed_message_yields_nothing(run: str, policy: str) -> None:
    tried, wrong = search(run, policy, 24, random.Random(f"{run} {policy}"))  # noqa: S311  # chooses what is tried
    assert tried > 20
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_no_changed_message_yields_anything(run: str) -> None:
    """All changes of one field, then of two: 2,200 of each message, and 100,000 in all."""
    tried, wrong = search(run, "trial", 2200, random.Random(run), twice=True)  # noqa: S311
    assert tried > 10_000
    assert not wrong, "\n".join(wrong[:20])
