"""Whole sessions of secure aggregation for tests: every message crosses as the codec's bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedatlas.privacy.secagg import client, keys, messages, server
from fedatlas.privacy.secagg.head import Head
from fedatlas.privacy.secagg.keys import KEY, Party
from fedatlas.wire import codec

RUN = ("federation", "run-1", 3, 0, 0)
PHASES = ("keys", "shares", "masked", "agree", "unmask")
HEAD = Head(
    (bytes(KEY),), (None,), {"": ("told", (1.0,))}, 0.1, mean=False
)  # all are told the same, and weigh the same


@cache
def parties(cohort: tuple[int, ...]) -> dict[int, Party]:
    """One party for each client, with the list of all identities."""
    made = {who: keys.identity() for who in cohort}
    public = {who: public for who, (_, public) in made.items()}
    return {who: Party(who, "federation", private, public) for who, (private, _) in made.items()}


def crossed(value: Any) -> Any:
    return codec.decode(codec.encode(value))


def drawn(seed: int, m: int, d: int, ring: int = 32) -> dict[int, dict[str, Any]]:
    """m clients (ids with gaps), each with a row of d words over the whole ring."""
    rng = np.random.default_rng(seed)
    kind = messages.UNSIGNED[ring]
    return {3 * k + 1: {"x": rng.integers(0, 2**ring, d, kind, endpoint=False)} for k in range(m)}


def plain(words: dict[int, dict[str, Any]], who: list[int], name: str = "x") -> Any:
    return np.sum([words[k][name] for k in who], axis=0, dtype=words[who[0]][name].dtype)


class Seen(NamedTuple):
    """What came of a session: sums, survivors as ids, refusals by phase, everything that crossed, sessions and records at the end."""

    sums: dict[str, Any]
    survivors: list[int]
    refused: dict[str, dict[int, str]]
    down: dict[str, dict[int, Any]]
    up: dict[str, dict[int, Any]]
    sessions: dict[int, Any]
    records: dict[int, Any]


def hold(
    words: Mapping[int, Mapping[str, Any]],
    leave: Mapping[str, Collection[int]] = {},
    *,
    meddle: Callable[[str, int, Any], Any] = lambda phase, who, reply: reply,
    told: Callable[[str, int, Any], Any] = lambda phase, who, message: message,
    threshold: float = 2 / 3,
    place: tuple[Any, ...] = RUN,
    records: Mapping[int, Any] = {},
    source: Callable[[int], bytes] = os.urandom,
    head: Head = HEAD,
    neighbours: int | None = None,
    seed: str = "ab" * 32,
) -> Seen:
    """A session of the clients of ``words``, each with its parts. ``leave[phase]`` go away before their reply to it arrives;
    ``meddle`` alters what a client sends, ``told`` what it is told."""
    cohort, records = tuple(sorted(words)), dict(records)
    party = parties(cohort)
    where = keys.place_of(*place, cohort, threshold, neighbours, seed)
    gone: set[int] = set()
    sessions: dict[int, Any] = {}
    down, up = ({phase: dict[int, Any]() for phase in PHASES} for _ in "du")
    refused = {}

    def work(phase: str, who: int, message: Any) -> Any:
        if phase == "keys":
            reply, sessions[who] = client.advertise(message, party[who], threshold, source, neighbours=neighbours)
        elif phase == "shares":
            reply, sessions[who] = client.share(message, sessions[who], party[who], source)
        elif phase == "masked":
            reply, sessions[who] = client.mask(words[who], client.receive(message, sessions[who]))
        elif phase == "agree":
            reply, sessions[who] = client.agree(message, sessions[who], party[who])
        else:
            reply, sessions[who], records[who] = client.unmask(message, sessions[who], party[who], records.get(who, {}))
        return reply

    def ask(phase: str, messages_: Mapping[int, Any]) -> list[tuple[int, Any]]:
        gone.update(leave.get(phase, ()))
        for who, message in messages_.items():
            if who not in gone:
                down[phase][who] = crossed(told(phase, who, message))
                up[phase][who] = crossed(meddle(phase, who, work(phase, who, down[phase][who])))
        return list(up[phase].items())

    replies = ask("keys", dict.fromkeys(cohort, messages.told(where)))
    each, transcript, refused["keys"] = server.keys_heard(where, replies, party[cohort[0]].public)
    replies = ask("shares", each)
    each, transcript, refused["shares"] = server.shares_heard(transcript, replies)
    each, transcript = server.headed(each, transcript, head)
    replies = ask("masked", each)
    heard = server.MaskedSum(transcript)
    for who, reply in replies:
        heard.add(who, reply)
    (message, transcript, _), refused["masked"] = heard.close(), heard.refused
    survivors = [cohort[v] for v in transcript.survivors]
    replies = ask("agree", dict.fromkeys(survivors, message))
    each, refused["agree"] = server.agreed(transcript, replies, party[cohort[0]].public)
    sums, refused["unmask"] = server.opened(transcript, ask("unmask", each))
    return Seen(sums, survivors, refused, down, up, sessions, records)
