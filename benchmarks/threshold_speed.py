"""What a sum under a key in shares costs: ``python benchmarks/privacy.py threshold [--short-exponent 512] [--json FILE]``.

All weights of the HAR network 561-437-312-6, eight clients, each of which weighs its own update. Every client encrypts and proves that it
knows what; one party does all of a party's work at the opening: checks the others' ciphertexts and proofs, multiplies, and gives its
share of every ciphertext. The others' shares, and the server's step, are of a sample of ciphertexts, from which the mean is checked.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import number, table

from fedatlas.models.registry import find_model
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import knowledge, threshold

RANGE, TARGET = 16.0, 40.0  # seconds a party
OPENING = ("check", "multiply", "share")
STATEMENT = b"benchmark"


def options(parser: argparse.ArgumentParser) -> None:
    """What may be chosen."""
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--weights", type=int, help="so many instead of the network's")
    parser.add_argument("--key-bits", type=int, default=2048)
    parser.add_argument("--short-exponent", type=int, help="bits; by default full exponents")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=4, help="ciphertexts that all parties open")
    parser.add_argument("--json", type=Path, help="where the figures go")


def measure(given: argparse.Namespace, clock: Any) -> dict[str, Any]:
    """One round; ``clock`` adds up seconds by phase."""
    stream, clients = np.random.default_rng(0), given.clients
    size = given.weights or sum(p.numel() for p in find_model("har4")((561,), 6).parameters())
    models = [torch.from_numpy(stream.normal(0, 0.05, size).astype(np.float32)) for _ in range(clients)]
    with clock.phase("keys"):
        shares = threshold.dealt(paillier.generate(given.key_bits), clients)
        public, short = shares[0].public, given.short_exponent
        base = paillier.base(public, short or paillier.full(public))
        keys = paillier.sealer(public, base)
    form, sent = paillier.layout(public.bits, given.bits, clients), []
    for k, model in enumerate(models):
        with clock.phase("encrypt"):
            weighed = model.double() / clients
            codes = paillier.quantise(weighed, bits=given.bits, range=RANGE, owner=f"client {k}", part="all")
            known = knowledge.witness(paillier.pack(form, codes), base)
            batch = paillier.encrypt(public, known.messages, keys=keys, r=known.exponents, workers=given.workers)
        with clock.phase("prove"):
            sent.append((batch, knowledge.proof(public, known, STATEMENT, base)))
    batches = [batch for batch, _ in sent]
    with clock.phase("check"):
        for batch, proof in sent[1:]:
            knowledge.check(public, paillier.received(public, batch.plain()), proof, STATEMENT, base)
    with clock.phase("multiply"):
        total = paillier.weighted_sum(public, batches, [1] * clients, workers=given.workers)
    with clock.phase("share"):
        first = threshold.partial_decryption(shares[0], total, workers=given.workers)
    some = slice(min(given.sample, len(total)))
    others = [threshold.partial_decryption(one, total.at(some), workers=given.workers) for one in shares[1:]]
    with clock.phase("open"):
        opened = threshold.combined(public, [first.at(some), *others])
    count = min(size, form.slots * len(opened))
    mean = paillier.dequantise(paillier.unpack(form, opened, count), bits=given.bits, range=RANGE)
    exact = sum(model.double().numpy() for model in models)[:count] / clients
    assert np.abs(mean - exact).max() <= clients * RANGE / (1 << given.bits), "the mean is further off than its bound"
    wall = {**clock.wall, "open": clock.wall["open"] * len(total) / len(opened)}
    found = {"wall": wall, "clients": clients, "weights": size, "bits": given.bits, "short": short}
    found |= {"ciphertexts": len(total), "values": form.slots, "bytes": total.ciphertexts.numel()}
    return found | {"key_bits": public.bits, "workers": given.workers}


def said(found: dict[str, Any]) -> str:
    """A table, and what was aimed at."""
    wall, clients = found["wall"], found["clients"]
    sealing = [wall[phase] / clients for phase in ("encrypt", "prove")]
    opening = [wall[phase] for phase in OPENING]
    party, exponents = sum(sealing) + sum(opening), f"{found['short'] or 'full'} exponents"
    rows = [[exponents, *map(number, [*sealing, *opening, party, wall["open"]])]]
    head = ["seconds of a party", "encrypt", "prove", *OPENING, "all", "the server: open"]
    megabytes = found["bytes"] / 1e6
    lines = [
        (
            f"{clients} clients, {found['weights']:,} weights of {found['bits']} bits, {found['key_bits']} bits, "
            f"{found['workers']} processes: {found['ciphertexts']:,} ciphertexts of {found['values']} values; keys {wall['keys']:.1f} s."
        ),
        f"A client sends {megabytes:.2f} MB of ciphertexts and as much of shares, and is sent {megabytes * clients:.1f} MB.",
        f"All {clients} parties one after the other: {clients * party:.0f} s.",
        (
            f"A party's share: {opening[-1]:.1f} s, all that a party does {party:.1f} s (target {TARGET:.0f}): "
            f"{'met' if party <= TARGET else 'MISSED'}."
        ),
    ]
    return "\n\n".join([table(head, rows), "\n".join(lines)])


def run(given: argparse.Namespace, clock: Any) -> None:
    """Measures and prints."""
    found = measure(given, clock)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(said(found))
