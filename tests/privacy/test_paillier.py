"""Paillier: section 15's vectors, the laws of the ciphertexts, sums of packed values against whole-number arithmetic, and bad input."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import sys
from collections import Counter
from functools import cache
from itertools import count, product
from typing import Any

import gmpy2
import numpy as np
import phe
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.apportion import proportional
from fedatlas.errors import ConfigError, FedatlasError, PrivacyError, ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import encryption, fixed, primes
from fedatlas.privacy.paillier.cryptosystem import Batch, Holder, PrivateKey
from fedatlas.privacy.paillier.spread import spread
from fedatlas.wire import codec

pytestmark = pytest.mark.timing

TOY = PrivateKey(5, 7)


@cache
def keys(number: int = 0) -> Holder:
    """Test keys of 256 bits; another number is another key."""
    return paillier.holder(paillier.generate(256, testing=True))


def values(batch: Batch) -> list[int]:
    return [int.from_bytes(row.numpy().tobytes(), "big") for row in batch.ciphertexts]


def batch_of(public: paillier.PublicKey, numbers: list[int]) -> Batch:
    rows = [list(c.to_bytes(public.width, "big")) for c in numbers]
    return Batch(public.name, torch.tensor(rows, dtype=torch.uint8))


def sealed(codes: Any, form: paillier.Layout, **how: Any) -> Batch:
    k = keys()
    return paillier.encrypt(k.public, paillier.pack(form, np.asarray(codes)), keys=k, **how)


# Vectors


def test_toy_vector():
    k, public = paillier.holder(TOY), TOY.public
    a, b = paillier.encrypt(public, [10], r=[4]), paillier.encrypt(public, [7], r=[2])
    assert (values(a), values(b)) == ([1024], [753])
    both, thrice = paillier.add(public, a, b), paillier.times(public, a, 3)
    assert (values(both), values(thrice)) == ([547], [1149])
    assert (paillier.decrypt(k, both), paillier.decrypt(k, thrice)) == ([17], [30])


def test_packing_vector():
    # f = f_w = 24, max 4, K = 8: P10's codes reach 2^(f + 1 + log2 4) itself.
    plain, weighted = (paillier.slot_bits(1 << 27, total) for total in (8, 1 << 24))
    assert (plain, weighted) == (31, 52)
    assert (2046 // plain, 2046 // weighted) == (66, 39)


@pytest.mark.parametrize(("bits", "total", "slots"), [(24, 1 << 24, 42), (16, 1 << 16, 63), (16, 8, 107), (24, 8, 75)])
def test_values_a_ciphertext_at_2048_bits(bits, total, slots):
    assert paillier.layout(2048, bits, total).slots == slots


# Keys


def test_a_key_is_two_safe_primes_of_half_its_length():
    key = paillier.generate(2048)
    assert key.public.bits == 2048
    assert key.public.width == 512
    for p in (key.p, key.q):
        assert p >> 1022 == 0b11  # so that n has exactly 2,048 bits
        assert gmpy2.is_prime(p)
        assert gmpy2.is_prime(p // 2)
    k, m = paillier.holder(key), [0, key.public.n - 1, secrets.randbelow(key.public.n)]
    bare = paillier.holder(key, combs=False)
    assert paillier.decrypt(bare, paillier.encrypt(key.public, m, keys=bare)) == m
    assert paillier.decrypt(k, paillier.encrypt(key.public, m, keys=k)) == m
    assert paillier.decrypt(k, paillier.encrypt(key.public, m[:1])) == m[:1]


def test_the_sieve_strikes_out_what_a_small_prime_divides_and_nothing_else():
    small, start = primes._odd_primes(1 << 8), gmpy2.mpz(secrets.randbits(100) | 1)
    assert small.tolist() == [p for p in range(3, 256) if gmpy2.is_prime(p)]
    left = [int(x) for x in primes.survivors(start, small)]
    wanted = [
        int(start) + 2 * i
        for i in range(3000)
        if all((int(start) + 2 * i) % r and (2 * (int(start) + 2 * i) + 1) % r for r in small.tolist())
    ]
    assert left[: len(wanted)] == wanted
    assert left[len(wanted)] >= start + 6000
    assert left[-1] < start + 2 * primes.WINDOW


@pytest.mark.parametrize(("key_bits", "testing"), [(1024, False), (256, False), (2047, False), (64, True), (250, True)])
def test_lengths_that_do_not_protect_are_refused(key_bits, testing):
    with pytest.raises(PrivacyError, match="choose 2048 or 3072"):
        paillier.generate(key_bits, testing=testing)


def test_keys_travel_in_plain_form():
    key = paillier.generate(128, testing=True)
    sent = codec.decode(codec.encode({"public": key.public.plain(), "private": key.plain()}))
    assert paillier.public_key(sent["public"], testing=True) == key.public
    assert paillier.private_key(sent["private"], testing=True) == key
    with pytest.raises(PrivacyError, match="128 bits: choose"):
        paillier.public_key(sent["public"])
    with pytest.raises(FedatlasError):
        codec.encode({"key": key})  # never by mistake
    with pytest.raises(TypeError):
        json.dumps(key)


def test_nothing_prints_a_secret():
    k = keys()
    key = PrivateKey(int(k.sides[0].p), int(k.sides[1].p))
    text = f"{key} {key!r} {[key]} {k} {k!r} {k.sides} {k.sides[0]!r} {paillier.PublicKey(key.public.n)}"
    assert key.public.name in text
    for secret in (key.p, key.q):
        assert str(secret) not in text
        assert f"{secret:x}" not in text.lower()


# Encryption


def test_combs_give_exactly_the_law_of_the_textbook():
    # p = 7, q = 11: every pair of exponents once gives every (1 + m n) r^n once, r over the units modulo 77.
    key, n = PrivateKey(7, 11), 77
    k = paillier.holder(key)
    pairs = list(product(range(6), range(10)))
    for side, order in zip(k.sides, (6, 10), strict=True):
        p = int(side.p)
        found = Counter(int(x % side.square) for x in encryption.powers(side, range(order), [0] * order))
        assert found == Counter(pow(r, n, p * p) for r in range(1, p * p) if r % p and r < p)
    for m in (0, 1, 40, 76):
        draws = [iter([s for s, _ in pairs] + [t for _, t in pairs])]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encryption, "BLOCK", len(pairs))
            patch.setattr(secrets, "randbelow", lambda _, draws=draws: next(draws[0]))
            made = values(paillier.encrypt(key.public, [m] * len(pairs), keys=k))
        units = [r for r in range(n) if math.gcd(r, n) == 1]
        assert Counter(made) == Counter((1 + m * n) * pow(r, n, n * n) % (n * n) for r in units)


@pytest.mark.parametrize("held", [True, False])
def test_equal_plaintexts_have_ciphertexts_that_look_random(held):
    k, rows = keys(), 400
    batch = paillier.encrypt(k.public, [5] * rows, keys=k if held else None)
    assert len(set(values(batch))) == rows
    # The lower half of each ciphertext: every bit is one half of the times, within five standard deviations.
    ones = np.unpackbits(batch.ciphertexts[:, 32:].numpy(), axis=1).sum(axis=0)
    assert np.abs(ones - rows / 2).max() < 5 * math.sqrt(rows) / 2


def test_processes_draw_apart_and_keep_the_order():
    k, m = keys(), list(range(40))
    batch = paillier.encrypt(k.public, [7] * 40, keys=k, workers=3)
    assert len(set(values(batch))) == 40
    assert paillier.decrypt(k, paillier.encrypt(k.public, m, keys=k, workers=3), workers=2) == m
    twice = paillier.add(k.public, batch, batch, workers=2)
    assert torch.equal(twice.ciphertexts, paillier.times(k.public, batch, 2).ciphertexts)


def test_every_draw_asks_the_operating_system(monkeypatch):
    asked, given_out, k = [], count(1), keys()
    monkeypatch.setattr(secrets, "randbelow", lambda n: (asked.append(n), next(given_out) % n)[1])
    paillier.encrypt(k.public, [1, 2, 3], keys=k)
    assert sorted(asked) == sorted(3 * [int(side.p) - 1 for side in k.sides])
    asked.clear()
    paillier.encrypt(k.public, [1, 2, 3])
    assert asked == 3 * [k.public.n]


def test_python_paillier_and_ours_read_each_other():
    k = keys()
    theirs = phe.PaillierPublicKey(k.public.n)
    secret = phe.PaillierPrivateKey(theirs, int(k.sides[0].p), int(k.sides[1].p))
    m = [0, 1, 12345, k.public.n - 9]
    for held in (k, None):
        ours = paillier.encrypt(k.public, m, keys=held)
        assert [secret.raw_decrypt(c) for c in values(ours)] == m
        summed = paillier.weighted_sum(k.public, [ours, ours], [3, 4])
        assert [secret.raw_decrypt(c) for c in values(summed)] == [7 * x % k.public.n for x in m]
    made = batch_of(k.public, [theirs.raw_encrypt(x) for x in m])
    assert paillier.decrypt(k, paillier.received(k.public, made.plain(), 4)) == m
    # A sum of one of theirs and one of ours.
    mixed = paillier.decrypt(k, paillier.add(k.public, made, paillier.encrypt(k.public, m, keys=k)))
    assert mixed == [2 * x % k.public.n for x in m]


# Sums

SIGNED = st.integers(-(1 << 40), 1 << 40)


@given(st.lists(st.tuples(SIGNED, st.integers(-70_000, 70_000)), min_size=1, max_size=10))
def test_weighted_sums_are_homomorphic(terms):
    k = keys()
    n = k.public.n
    batches = [paillier.encrypt(k.public, [a % n, -a % n], keys=k) for a, _ in terms]
    opened = paillier.decrypt(k, paillier.weighted_sum(k.public, batches, [w for _, w in terms]))
    total = sum(a * w for a, w in terms)
    assert opened == [total % n, -total % n]


def test_add_subtract_times():
    k = keys()
    a, b = (paillier.encrypt(k.public, m, keys=k) for m in ([10, 20], [1, 5]))
    assert paillier.decrypt(k, paillier.add(k.public, a, b)) == [11, 25]
    assert paillier.decrypt(k, paillier.subtract(k.public, a, b)) == [9, 15]
    assert paillier.decrypt(k, paillier.times(k.public, a, 7)) == [70, 140]
    assert paillier.decrypt(k, paillier.times(k.public, a, 0)) == [0, 0]


def test_histograms_of_a_tree():
    # What SecureBoost+ needs: gradient (shifted), curvature and count in one plaintext, bins, parent - child, sums gathered.
    k, stream = keys(), np.random.default_rng(0)
    n, widths, offset = 60, [12, 18, 20], 1 << 11  # count, curvature, gradient
    g, h = stream.integers(-offset, offset, n), stream.integers(0, 1 << 11, n)
    rows = [paillier.join((1, int(y), int(x) + offset), widths) for x, y in zip(g, h, strict=True)]
    batch = paillier.encrypt(k.public, rows, keys=k)
    bins, left = stream.integers(0, 5, n), stream.random(n) < 0.4
    parent = paillier.subsets(k.public, batch, [np.flatnonzero(bins == b).tolist() for b in range(6)], workers=2)
    child = paillier.subsets(k.public, batch, [np.flatnonzero((bins == b) & left).tolist() for b in range(6)])
    sibling = paillier.subtract(k.public, parent, child)
    packed = paillier.gather(k.public, sibling, sum(widths), 5)
    assert len(packed) == 2
    slots = [paillier.separate(m, [50] * 5) for m in paillier.decrypt(k, packed)]
    for b, number in enumerate([*slots[0], slots[1][0]]):
        c, curve, shifted = paillier.separate(number, widths)
        here = (bins == b) & ~left
        assert (c, curve, shifted - c * offset) == (here.sum(), h[here].sum(), g[here].sum())
    assert slots[1][1:] == [0] * 4
    with pytest.raises(PrivacyError, match="gather fewer"):
        paillier.gather(k.public, sibling, 50, 6)


# Values


@pytest.mark.parametrize("clients", [2, 3, 8, 50])
@pytest.mark.parametrize("weighing", ["server", "client"])
def test_sums_are_exact_at_the_ends_of_the_range(clients, weighing):
    """Neighbouring slots at both ends and at random: the opened sum equals that of whole numbers, code by code."""
    stream, top = np.random.default_rng(clients), 1 << 19
    weights = proportional(stream.random(clients), 1 << 20) if weighing == "server" else np.ones(clients, dtype=int)
    form = paillier.layout(256, 20, int(weights.sum()))
    ends = np.tile([-top, top - 1, top - 1, -top, -top, -1, 0], (clients, 1))
    codes = np.hstack([ends, stream.integers(-top, top, (clients, 30))])
    batches = [sealed(row, form) for row in codes]
    total = paillier.weighted_sum(keys().public, batches, weights.tolist())
    assert len(total) == form.plaintexts(37)
    opened = paillier.unpack(form, paillier.decrypt(keys(), total), 37)
    assert np.array_equal(opened, weights @ codes)


@given(st.integers(2, 8), st.sampled_from([8, 16, 24]), st.sampled_from([0.5, 16.0, 12.0]), st.integers(0, 2**32))
def test_weighted_means_stay_within_the_bound(clients, bits, reach, seed):
    """P11: step / 2 + K max|x| / 2^f_w, with step = 2 range / 2^bits (the first term with weights that need no rounding)."""
    stream, k = np.random.default_rng(seed), keys()
    x = torch.from_numpy(stream.uniform(-reach, reach, (clients, 11))).float() * 0.99
    share = stream.random(clients) + 0.01
    share /= share.sum()
    weights = proportional(share, 1 << bits)
    form = paillier.layout(256, bits, 1 << bits)
    codes = [paillier.quantise(row, bits=bits, range=reach, owner="client 1", part="w") for row in x]
    total = paillier.weighted_sum(k.public, [sealed(row, form) for row in codes], weights.tolist())
    sums = paillier.unpack(form, paillier.decrypt(k, total), 11)
    mean = paillier.dequantise(sums, bits=bits, range=reach, total=1 << bits)
    half, most = reach / 2**bits, float(x.abs().max())
    exact = x.double().numpy()
    assert np.abs(mean - share @ exact).max() <= half + clients * most / 2**bits + 1e-12
    assert np.abs(mean - weights @ exact / 2**bits).max() <= half + 1e-12


def test_a_sum_of_fewer_summands():
    form = paillier.layout(256, 16, 100)
    batches, codes = zip(*((sealed(c, form), c) for c in ([5, -7], [-32768, 32767])), strict=True)
    total = paillier.weighted_sum(keys().public, batches, [30, 40])
    opened = paillier.unpack(form, paillier.decrypt(keys(), total), 2, weight=70)
    assert opened.tolist() == [30 * a + 40 * b for a, b in zip(*codes, strict=True)]


@given(st.floats(1e-3, 1e30), st.booleans(), st.sampled_from([8, 16, 24, 29]))
def test_the_range_that_would_do_does(value, negative, bits):
    value = -value if negative else value

    def quantise(reach: float) -> Any:
        return paillier.quantise(
            torch.tensor([0.0, value], dtype=torch.float64), bits=bits, range=reach, owner="client 3", part="l1.weight"
        )

    try:
        assert abs(quantise(16.0)[1] * fixed.step_of(bits, 16.0) - value) <= fixed.step_of(bits, 16.0) / 2
    except PrivacyError as error:
        said = str(error)
        assert abs(value) > 16 * (1 - 2.0**-bits)
        assert said.startswith("'l1.weight' of client 3 holds a value outside [-16, 16): range = ")
        would = float(re.search(r"range = (\S+) would do", said)[1])
        assert quantise(would)[1]
        assert would <= 4 * abs(value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(PrivacyError, match="'b' of client 2 holds something that is no finite number"):
        paillier.quantise(torch.tensor([1.0, bad]), bits=24, range=16.0, owner="client 2", part="b")


def test_layouts_that_cannot_hold_a_sum_are_refused():
    with pytest.raises(PrivacyError, match="need 64 bits each, and at most 62 fit: lower bits"):
        paillier.layout(2048, 32, 1 << 32)
    with pytest.raises(PrivacyError, match="outside of the 16 bits"):
        paillier.pack(paillier.layout(256, 16, 8), np.array([0, 1 << 15]))
    with pytest.raises(PrivacyError, match="does not fit into its 3 bits"):
        paillier.join([8], [3])


# What others send


def hostile() -> list[tuple[str, Any, str]]:
    """(what, a message, what is said of it)."""
    k, other = keys(), keys(1)
    n, p = k.public.n, int(k.sides[0].p)
    good = paillier.encrypt(k.public, [1, 2, 3], keys=k)
    rows, fine = good.plain()["ciphertexts"], values(good)
    return [
        ("zero", batch_of(k.public, [*fine[:2], 0]).plain(), "ciphertext 3 of 3 is not between 0 and"),
        ("n^2", batch_of(k.public, [n * n, *fine[1:]]).plain(), "ciphertext 1 of 3 is not between 0 and"),
        ("a factor", batch_of(k.public, [fine[0], 5 * p, fine[2]]).plain(), "shares a factor with n"),
        ("n itself", batch_of(k.public, [fine[0], n, fine[2]]).plain(), "shares a factor with n"),
        ("another key", paillier.encrypt(other.public, [1, 2, 3], keys=other).plain(), "arrived where key"),
        ("cut short", {"key": good.key, "ciphertexts": rows[:2]}, "2 ciphertexts arrived where 3 were due"),
        ("too many", {"key": good.key, "ciphertexts": rows.repeat(2, 1)}, "6 ciphertexts arrived where 3"),
        ("narrow", {"key": good.key, "ciphertexts": rows[:, 1:]}, "63 bytes arrived where this key's have 64"),
        ("floats", {"key": good.key, "ciphertexts": rows.float()}, "no batch of ciphertexts"),
        ("flat", {"key": good.key, "ciphertexts": rows.reshape(-1)}, "no batch of ciphertexts"),
        ("no key", {"ciphertexts": rows}, "no batch of ciphertexts"),
        ("no dict", [1, 2], "no batch of ciphertexts"),
    ]


@pytest.mark.parametrize("case", range(12))
def test_hostile_batches_are_refused_in_a_sentence(case):
    _, message, said = hostile()[case]
    with pytest.raises(ProtocolError, match=re.escape(said)) as error:
        paillier.received(keys().public, message, 3)
    assert "\n" not in str(error.value)


def test_a_good_batch_passes_and_travels():
    k = keys()
    batch = paillier.encrypt(k.public, [1, 2, 3], keys=k)
    again = paillier.received(k.public, codec.decode(codec.encode(batch.plain())), 3)
    assert paillier.decrypt(k, again) == [1, 2, 3]
    empty = paillier.encrypt(k.public, [], keys=k)
    assert len(paillier.received(k.public, empty.plain(), 0)) == 0
    assert paillier.decrypt(k, empty) == []


def test_hostile_sums_are_refused():
    k, form = keys(), paillier.layout(256, 16, 8)
    with pytest.raises(ProtocolError, match="shares a factor with n"):
        paillier.decrypt(k, batch_of(k.public, [int(k.sides[0].p)]))
    with pytest.raises(ProtocolError, match="arrived where key"):
        paillier.decrypt(k, paillier.encrypt(keys(1).public, [1], keys=keys(1)))
    with pytest.raises(ProtocolError, match="cannot be added up"):
        paillier.add(k.public, *(paillier.encrypt(k.public, m, keys=k) for m in ([1], [1, 2])))
    with pytest.raises(ProtocolError, match="more than its slots can"):
        paillier.unpack(form, [1 << 2 * form.slot], 2)
    with pytest.raises(ProtocolError, match="larger than its summands can be"):
        paillier.unpack(form, [(1 << form.slot) - 1], 2)
    with pytest.raises(ProtocolError, match="2 sums were opened where 1 were due"):
        paillier.unpack(form, [1, 1], 2)
    with pytest.raises(ProtocolError, match="more than its fields can"):
        paillier.separate(1 << 9, [4, 5])


def test_bad_keys_and_plaintexts_are_refused():
    k, prime = keys(), int(gmpy2.next_prime(1 << 127))
    public = k.public
    with pytest.raises(ProtocolError, match="not two safe primes"):
        paillier.private_key(PrivateKey(int(k.sides[0].p), prime).plain(), testing=True)
    with pytest.raises(ProtocolError, match="not two safe primes"):
        paillier.private_key(PrivateKey(int(k.sides[0].p), int(k.sides[0].p)).plain(), testing=True)
    with pytest.raises(ProtocolError, match="no product of two odd primes"):
        paillier.public_key(paillier.PublicKey(public.n - 1).plain(), testing=True)
    for plain in ({}, None, {"n": [1]}, {"n": torch.zeros(3)}):
        with pytest.raises(ProtocolError, match="without a whole 'n'"):
            paillier.public_key(plain)
    for m in (-1, public.n):
        with pytest.raises(PrivacyError, match="not between 0 and n"):
            paillier.encrypt(public, [m])
    with pytest.raises(PrivacyError, match="use one pair"):
        paillier.encrypt(keys(1).public, [1], keys=k)
    with pytest.raises(PrivacyError, match="2 weights for 1 batches"):
        paillier.weighted_sum(public, [paillier.encrypt(public, [1])], [1, 2])


def test_without_gmpy2_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    with pytest.raises(ConfigError, match=re.escape('pip install "fedatlas[he]"')):
        paillier.generate(2048)


# Processes


def test_errors_of_a_process_arrive():
    def work(first: int, end: int) -> bytes:
        if first:
            raise ProtocolError("a ciphertext is broken.")
        return b"0" * (end - first)

    with pytest.raises(ProtocolError, match="a ciphertext is broken"):
        spread(work, 32, 2)
    assert spread(work, 32, 1) == b"0" * 32

    def dies(first: int, end: int) -> bytes:
        if first:
            os._exit(1)
        return b""

    with pytest.raises(ProtocolError, match="ended early"):
        spread(dies, 32, 2)
