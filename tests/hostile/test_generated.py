"""A search beyond the table: every field of every message to a node, changed; what comes out is nothing, or what an honest server gets.

The conversation of a server and a node is recorded, message by message. Each message is then changed and handed to the node as it was
before it, in a fork of this process and with its folder put back afterwards. A changed message is refused, or answered with the bytes that
the honest one was answered with, or the change is one that no party could see (`UNSEEN`), and the answer is protected as the honest one is.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import random
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agreements import Agreements, write_rows
from fedatlas.deployment.terms import RowsSetup, SumTerms, decoded
from fedatlas.errors import FedatlasError
from fedatlas.federation.link import Request
from fedatlas.privacy.mechanisms import every
from fedatlas.wire import codec
from fedatlas.wire.agreement import digest_of
from fedatlas.wire.frames import RawMessage
from mutations_of import Changeable, Mutant, mutants, pairs
from nodes_in_process import run_here

SECAGG = {"privacy": [{"name": "secagg"}]}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": SECAGG,
    "counts": {"algorithm": {"name": "hwfedavg"}},
    "stateful": {"algorithm": {"name": "scaffold"}},
    "noised": {
        "algorithm": {"weights": "uniform"},
        "data": {"name": "file", "label": "y", "scale": "none"},
        "privacy": [{"name": "distributed_dp", "clip": 0.5}],
    },
    "changed rows": {
        "privacy": [{"name": "additive_noise", "bounds": [-3, 3]}],
    },
    "anonymised": {"privacy": [{"name": "anonymise", "quasi": ["a"], "k": 2}]},
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
BODIES = {"learn": SumTerms, "begin": RowsSetup, "ask": Request}
ERROR = re.compile(r"^(?:fedatlas: )?(\w+(?:Error|Exception|Warning): .*)", re.MULTILINE)
SLACK = 1 << 22  # bytes: the text of an error, and the sources that it quotes
ASKS = 100  # more than a round of these runs has
TOGETHER = 12  # changed messages of one process


class Asked(NamedTuple):
    """A message to the node, what it answered, and the bytes of memory that the answer took."""

    message: RawMessage
    answers: tuple[RawMessage, ...]
    grown: int


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
    silent: bool  # an update without any part
    protected: bool  # sealed as the honest answer is
    luck: str  # an error that no reader of fields made
    grown: int  # bytes of memory


def serve(trainer: Any, message: RawMessage) -> tuple[RawMessage, ...]:
    """The answers, without the digest of what they answer and the seconds that they took."""
    return tuple(
        RawMessage({key: x for key, x in one.head.items() if key != "digest"}, timeless(one))
        for one in trainer.serve(message)
    )


def timeless(answer: RawMessage) -> bytes:
    if answer.kind != "reply":
        return bytes(answer.body)
    return bytes(codec.encode({**codec.decode(bytearray(answer.body)), "seconds": 0.0, "sealing": 0.0}))


def known(asked: Asked, message: RawMessage) -> Any:
    """What a node reads of a message and could compare with what it knows: without `UNSEEN`, and with every default in its place.

    Of an unseen part the names of its entries stay. None for a message that cannot be read.
    """
    kind = asked.message.kind
    try:
        body = (
            plain_of(decoded(BODIES[kind], message.body)) if kind in BODIES else codec.decode(bytearray(message.body))
        )
    except (FedatlasError, TypeError, ValueError):
        return None
    unseen, own = UNSEEN.get(kind, ()), entries_of(asked.message)
    said = {
        name: sorted(own & {*x} if name == "message" else x) if name in unseen and isinstance(x, dict) else x
        for name, x in (body.items() if isinstance(body, dict) else ())
        if name not in unseen or isinstance(x, dict)
    }
    head = {name: x for name, x in message.head.items() if name not in {"verdicts", "digest"}}
    if kind == "ask" and said.get("number") == place_of(head) in range(ASKS):  # how many asks others had before it
        head, said = {**head, "place": head["place"][:2]}, {**said, "number": None}
    fits = "digest" not in asked.message.head or message.head.get("digest") == digest_of(message.body)
    return bytes(codec.encode({"head": head, "fits": fits, "body": said if isinstance(body, dict) else body}))


def entries_of(message: RawMessage) -> set[str]:
    """The entries of an ask's own message: an algorithm reads no others, so what stands beside them changes nothing."""
    return {*decoded(Request, message.body).message} if message.kind == "ask" else set()


def place_of(head: Any) -> Any:
    """The number of an ask in its round, as a head says it."""
    place = head.get("place")
    return place[2] if isinstance(place, list | tuple) and len(place) == 3 else None


def plain_of(record: Any) -> Any:
    """A record of a body as the codec carries it, defaults included."""
    return record.plain() if isinstance(record, Request) else record._asdict()


def measured(trainer: Any, message: RawMessage) -> tuple[tuple[RawMessage, ...], int]:
    """The answers, and the bytes of memory that they took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = serve(trainer, message)
    return answers, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def outcome(trainer: Any, asked: Asked, mutant: Mutant) -> Outcome:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        found, grown = measured(trainer, mutant.message)
    return Outcome(
        tuple(one.kind for one in found),
        repr(found) == repr(asked.answers),  # a loss may be NaN
        [form(one) for one in found] == [[]],
        [form(one) for one in found] == [form(one) for one in asked.answers],
        " ".join(ERROR.findall(said.getvalue())),
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


def algorithms_own(asked: Asked, mutant: Mutant) -> bool:
    """Whether a change is in the message of a task, which its algorithm reads in code of its own."""
    task = asked.message.kind == "ask" and not decoded(Request, asked.message.body).what.startswith("secagg ")
    return task and any(path[:2] == ("body", "message") for path, _ in mutant.what)


def refused(found: Outcome) -> bool:
    return set(found.kinds) <= {"refused", "unknown"}


def outcomes(trainer: Any, folder: Path, asked: Asked, changed: Iterator[Mutant]) -> Iterator[tuple[Mutant, Any]]:
    """What came of each changed message. A process takes one after another as long as it refuses them.

    Where it would then refuse the honest message, too, they have left something behind: each gets a process of its own.
    """
    kept, honest, batch = files(folder), Mutant(asked.message, ()), list[Mutant]()
    answered = tuple(one.kind for one in asked.answers)
    most = TOGETHER if "refused" not in answered else 1

    def put_back_after(work: Any) -> Any:
        found = forked(work)
        put_back(folder, kept)
        return found

    def together(batch: list[Mutant]) -> list[Outcome]:
        found = list[Outcome]()
        for mutant in batch:
            found.append(outcome(trainer, asked, mutant))
            if not refused(found[-1]):
                return found
        return found if outcome(trainer, asked, honest).kinds == answered else []

    while batch := [*batch, *itertools.islice(changed, most - len(batch))]:
        found = put_back_after(lambda batch=batch: together(batch))
        if not found or isinstance(found, str):
            found = [put_back_after(lambda mutant=mutant: outcome(trainer, asked, mutant)) for mutant in batch]
        yield from zip(batch, found, strict=False)
        batch = batch[len(found) :]


def taken_again(trainer: Any, folder: Path, asked: Asked, mutant: Mutant) -> int:
    """The memory that a changed message takes in a process of its own: what the process takes by chance is not its doing."""
    ((_, found),) = outcomes(trainer, folder, asked, iter([mutant]))
    return found.grown if isinstance(found, Outcome) else 0


def faults(trainer: Any, folder: Path, asked: Asked, changed: Iterator[Mutant]) -> Iterator[str]:
    honest = known(asked, asked.message)
    for mutant, found in outcomes(trainer, folder, asked, changed):
        said = f"{asked.message.kind} {mutant.what}: {found}"
        if not isinstance(found, Outcome):
            yield f"died: {said}"
        elif refused(found):
            limit = 4 * len(mutant.message.body) + 4 * len(str(mutant.message.head)) + SLACK
            most = asked.grown + limit  # an honest message loads and makes things, too
            if found.grown > most and taken_again(trainer, folder, asked, mutant) > most:
                yield f"took memory: {said}"
            if found.luck and not algorithms_own(asked, mutant):
                yield f"refused by luck: {said}"
        elif not (found.same or found.silent or (found.protected and known(asked, mutant.message) == honest)):
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
            heard = forked(lambda: measured(trainers[name], message))
            put_back(made.paths[name], kept)
            copied = RawMessage(dict(message.head), bytes(message.body))
            each(trainers[name], made.paths[name], Asked(copied, *heard))
        return message

    config = made.config(rounds=2, **RUNS[run])
    ended = run_here(made, trainers, made.signed("r", config), tap, write_rows(folder / "test.csv", 60, 9))
    assert ended.state.status == "finished" or policy == "strict", ended.state.why


def search(run: str, policy: str, most: int, draw: random.Random, *, whole: bool = False) -> tuple[int, list[str]]:
    """(how many changed messages were tried, what was wrong). Round 2 asks what round 1 asks, and only a whole search changes both."""
    tried, wrong = 0, list[str]()

    def each(trainer: Any, folder: Path, asked: Asked) -> None:
        nonlocal tried
        if not whole and asked.message.head.get("place", (2,))[0] == 1:
            return
        every = list(mutants(asked.message))
        chosen = draw.sample(every, min(most, len(every)))
        left = most - len(chosen) if whole else 0
        more = itertools.islice(pairs(asked.message, draw), left)
        tried += len(chosen) + left
        wrong.extend(faults(trainer, folder, asked, itertools.chain(chosen, more)))

    with tempfile.TemporaryDirectory() as folder:
        conversation(Path(folder), run, policy, each)
    return tried, wrong


def test_no_mechanism_that_nodes_run_is_forgotten() -> None:
    tried = {table["name"] for run in RUNS.values() for table in run.get("privacy", ())}
    assert tried == {name for name, one in every().items() if one.limits.deployed}


def test_changes_that_no_node_sees_are_told_from_those_that_it_sees(tmp_path: Path) -> None:
    """Of two changes that undo each other, and of a default left out beside a change of what no node knows, nothing is seen."""
    asks = list[Asked]()
    conversation(tmp_path, "plain", "trial", lambda trainer, folder, asked: asks.append(asked))
    ask = next(one for one in asks if one.message.kind == "ask")
    of = Changeable.of(ask.message)
    place, word, visits = ("head", "place", 2), ("body", "word"), ("body", "visits")
    weight = next(path for path in of.fields() if path[:3] == ("body", "message", "model") and len(path) == 4)
    unseen = [
        ((place, "a round before"), (place, "negative")),
        ((place, "another round"), (("body", "number"), "another round")),
        ((("head", "verdicts"), "doubled"), (visits, "absent")),
        ((weight, "other values"), (visits, "absent")),
        ((("body", "message"), "more"), (visits, "absent")),
    ]
    seen = [
        ((place, "another round"),),
        ((place, "extreme"), (("body", "number"), "extreme")),
        ((place, "a round before"), (place, "a round before")),
        ((visits, "another round"),),
        ((word, "an empty table"), (visits, "absent")),
        ((("head", "digest"), "zeros"),),
        ((("body", "what"), "another's"), (("head", "verdicts"), "doubled")),
    ]
    for what, alike in [*((one, True) for one in unseen), *((one, False) for one in seen)]:
        changed = of.message(what)
        assert changed is not None, what
        assert (known(ask, changed) == known(ask, ask.message)) is alike, what


LONG = {("plain", "trial"), ("masked", "trial"), ("noised", "trial")}
"""Whose messages are among those of the other runs, or under the other policy."""


@pytest.mark.parametrize(
    ("run", "policy"),
    [
        pytest.param(run, policy, marks=pytest.mark.slow if (run, policy) in LONG else ())
        for run in RUNS
        for policy in POLICIES
    ],
)
def test_a_changed_message_yields_nothing(run: str, policy: str) -> None:
    few = 12 if policy == "strict" and run not in {"masked", "noised"} else 4  # of each of many messages
    tried, wrong = search(run, policy, few, random.Random(f"{run} {policy}"))  # noqa: S311  # chooses what is tried
    assert tried > 10
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_no_changed_message_yields_anything(run: str) -> None:
    """All changes of one field, then of two: 2,200 of each message, and 100,000 in all."""
    tried, wrong = search(run, "trial", 2200, random.Random(run), whole=True)  # noqa: S311
    assert tried > 10_000
    assert not wrong, "\n".join(wrong[:20])
