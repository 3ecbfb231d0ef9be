"""Secure aggregation in seconds: ``python benchmarks/privacy.py secagg [--clients 100] [--values 1000000] [--dropped 10]``.

Whole sessions in rings of 2^32 and 2^64: every key, share and mask is real, every surviving client masks, one after another, and the opened
sum is compared with the plain one. Medians over clients, one thread; on the clock, and of the processor alone, which other programs on
the machine do not lengthen. Beside them the naive forms, sampled in the same run: masks as whole arrays from a generator of NumPy's (which
is none for cryptography), added in int64 with a remainder; Lagrange's coefficients anew for each secret.

Above 100 clients the graph of masks is sparse: ``secagg --clients 1000 --values 100000 --dropped 50 --threshold 0.9``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedatlas import secret
from fedatlas.privacy.secagg import client, fixed, keys, messages, server
from fedatlas.privacy.secagg.head import Head, digest_of, head_of, told_to
from fedatlas.privacy.sharing import shamir
from fedatlas.wire import codec

SAMPLED = 3  # pairs whose masks the naive form makes
Seconds = dict[str, list[tuple[float, float]]]

LIMIT = 0.1  # seconds of a client's masking in the ring of 2^32, by 100 clients and 1,000,000 values


def timed(seconds: Seconds, name: str, work: Callable[[], Any]) -> Any:
    """What ``work`` returns; its seconds are noted under ``name``: on the clock, of the processor."""
    begun = time.perf_counter(), time.thread_time()
    found = work()
    seconds.setdefault(name, []).append((time.perf_counter() - begun[0], time.thread_time() - begun[1]))
    return found


def afresh(work: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    """A client's work in a process of its own, which has checked no signature yet."""

    def once() -> Any:
        keys.signed_by.cache_clear()
        return work(*given)

    return once


def session(clients: int, length: int, dropped: int, ring: int, threshold: float = 2 / 3) -> tuple[Seconds, int]:
    """(Seconds, bytes that a client sends) of one whole session; the last ``dropped`` clients leave before their masked input."""
    seconds: Seconds = {}
    sparse: Any = "auto" if clients > keys.MOST else None
    cohort = tuple(range(clients))
    made = {k: keys.identity() for k in cohort}
    public = {k: public for k, (_, public) in made.items()}
    party = {k: keys.Party(k, "bench", private, public) for k, (private, _) in made.items()}
    place = keys.place_of("bench", "run", 1, 0, 0, cohort, threshold, sparse, secret.random_bytes(32).hex())
    form = fixed.fixed(clients)._replace(ring=ring)
    values = torch.randn(length, generator=torch.Generator().manual_seed(1)) / 10
    words = timed(seconds, "client: quantise", lambda: fixed.values(values, form, 0, "model", 1 / clients))

    first = {
        k: timed(
            seconds,
            "client: keys",
            lambda k=k: client.advertise(messages.told(place), party[k], threshold, neighbours=sparse),
        )
        for k in cohort
    }
    replies = [(k, reply) for k, (reply, _) in first.items()]
    told, transcript, _ = timed(seconds, "server: keys", lambda: server.keys_heard(place, replies, public))
    second = {k: timed(seconds, "client: shares", afresh(client.share, told[k], first[k][1], party[k])) for k in cohort}
    replies = [(k, reply) for k, (reply, _) in second.items()]
    each, transcript, _ = timed(seconds, "server: shares", lambda: server.shares_heard(transcript, replies))
    model = {"model": values}
    head = timed(seconds, "server: the head", lambda: heading(model, clients))
    each, transcript = server.headed(each, transcript, head)
    timed(
        seconds,
        "client: compare with the head",
        lambda: (digest_of(told_to(model, None, 0, "", clients, 1)), head_of(head.plain(), clients)),
    )
    there = cohort[: clients - dropped]
    got = {k: timed(seconds, "client: open shares", lambda k=k: client.receive(each[k], second[k][1])) for k in there}
    third: dict[int, Any] = {}
    masks: dict[int, int] = {}  # bytes

    def masked() -> Any:
        """One after another, as a server that adds them up as they come sees them."""
        for k in there:
            reply, third[k] = timed(seconds, "client: mask", lambda k=k: client.mask({"x": words}, got[k]))
            masks.update({k: codec.size(reply)})
            yield k, reply

    def combined() -> Any:
        heard = server.MaskedSum(transcript)
        for k, reply in masked():
            heard.add(k, reply)
        return heard.close()

    message, transcript, _ = timed(seconds, "server: combine", combined)
    masking = np.sum(seconds["client: mask"], axis=0)
    seconds["server: combine"] = [tuple(np.array(seconds["server: combine"][0]) - masking)]
    sums, last = unmasked(seconds, message, transcript, third, party, public)
    if not np.array_equal(sums["x"], words * words.dtype.type(len(there))):
        raise SystemExit("the opened sum is not the plain sum.")
    return seconds, masks[0] + sum(map(codec.size, (first[0][0], second[0][0], *last)))


def unmasked(
    seconds: Seconds, message: Any, transcript: Any, kept: dict[int, Any], party: dict[int, Any], public: dict[int, Any]
) -> tuple[Any, list[Any]]:
    """Return the opened sum, and the first client's last two replies. ``kept``: the state of each client after masking."""
    signed = {k: timed(seconds, "client: agree", afresh(client.agree, message, kept[k], party[k])) for k in kept}
    replies = [(k, reply) for k, (reply, _) in signed.items()]
    told, _ = timed(seconds, "server: agree", afresh(server.agreed, transcript, replies, public))
    fourth = {
        k: timed(
            seconds, "client: check who agrees, give shares", afresh(client.unmask, told[k], signed[k][1], party[k], {})
        )[0]
        for k in told
    }
    sums, refused = timed(seconds, "server: unmask", lambda: server.opened(transcript, fourth.items()))
    if refused:
        raise SystemExit("the server refused a share.")
    return sums, [signed[0][0], fourth[0]]


def heading(told: Any, clients: int) -> Head:
    """What all are told: one model, a weight each."""
    weights = tuple((k + 1) / clients for k in range(clients))
    digest = digest_of(told_to(told, None, 0, "", clients, 1))
    return Head((digest,), (None,), {"": ("told", weights)}, 0.1, mean=True)


def naive_mask(clients: int, length: int) -> float:
    """Seconds of one client's masks in the naive form, from ``SAMPLED`` pairs."""
    values = np.ones(length, np.int64)
    begun = time.perf_counter()
    for _ in range(SAMPLED):
        draw = np.random.default_rng(int.from_bytes(secret.random_bytes(32), "little"))
        values = (values + draw.integers(0, 2**32, length)) % 2**32
    return (time.perf_counter() - begun) * clients / SAMPLED


def shamirs(clients: int) -> tuple[float, float]:
    """Seconds to rebuild every client's secret: (Lagrange once, Lagrange anew for each secret)."""
    threshold = keys.threshold_of(clients)
    xs = range(1, threshold + 1)
    polynomial = shamir.polynomial(int.from_bytes(secret.random_bytes(32), "little"), threshold, secret.random_bytes)
    shares = [shamir.share(polynomial, x) for x in xs]
    begun = time.perf_counter()
    coefficients = shamir.lagrange(xs)
    for _ in range(clients):
        shamir.rebuilt(shares, coefficients)
    fast = time.perf_counter() - begun
    begun = time.perf_counter()
    shamir.rebuilt(shares, shamir.lagrange(xs))
    return fast, (time.perf_counter() - begun) * clients


def options(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--dropped", type=int, default=10)
    parser.add_argument("--threshold", type=float, default=2 / 3)


def measure(given: argparse.Namespace) -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    found = {ring: session(given.clients, given.values, given.dropped, ring, given.threshold) for ring in (32, 64)}
    print(f"{given.clients} clients, {given.values:,} values, {given.dropped} dropped before their masked input")
    needed = keys.threshold_of(given.clients, given.threshold)
    each = keys.neighbours_of("auto", given.clients, needed) or given.clients - 1
    print(f"each shares masks with {each} others; {needed} have to stay\n")
    print("| milliseconds | ring 2^32 | processor alone | ring 2^64 | processor alone |")
    print("| --- | --- | --- | --- | --- |")
    for name in found[32][0]:
        middle = np.concatenate([np.median(found[ring][0][name], axis=0) for ring in (32, 64)]) * 1e3
        print(f"| {name} | " + " | ".join(f"{x:,.1f}" for x in middle) + " |")
    print(f"| bytes that a client sends | {found[32][1]:,} | | {found[64][1]:,} | |\n")
    mask = float(np.median(found[32][0]["client: mask"], axis=0)[0])
    slow = naive_mask(given.clients, given.values)
    print(f"masks in the naive form: {1e3 * slow:,.0f} ms a client, {slow / mask:.0f} times")
    if each < given.clients - 1:  # secrets have other holders each, and fewer
        return
    fast, slow = shamirs(given.clients)
    print(f"all secrets rebuilt: {1e3 * fast:.1f} ms; with Lagrange's coefficients anew for each: {1e3 * slow:,.0f} ms")
    if (given.clients, given.values) == (100, 1_000_000):
        print(f"masking in at most {1e3 * LIMIT:.0f} ms: {'met' if mask <= LIMIT else 'MISSED'} ({1e3 * mask:.0f} ms).")
