"""Paillier's key in shares (P17) and short exponents (P10): section 15's vector, laws of shares and powers, and what does not open."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fedatlas.errors import FedatlasError, PrivacyError, ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import encryption, knowledge, threshold
from fedatlas.privacy.paillier.cryptosystem import Batch, PrivateKey
from fedatlas.privacy.paillier.threshold import KeyShare
from fedatlas.wire import codec

TOY = PrivateKey(5, 7)


@cache
def key() -> PrivateKey:
    return paillier.generate(256, testing=True)


@cache
def shares(parties: int) -> tuple[KeyShare, ...]:
    return threshold.dealt(key(), parties)


def values(batch: Batch) -> list[int]:
    return [int.from_bytes(row.numpy().tobytes(), "big") for row in batch.ciphertexts]


def opened(batch: Batch, held: tuple[KeyShare, ...]) -> list[int]:
    return threshold.combined(batch_key(), [threshold.partial_decryption(one, batch) for one in held])


def batch_key() -> paillier.PublicKey:
    return key().public


# ---------------------------------------------------------------------- shares


def test_toy_vector() -> None:
    public = TOY.public
    c = paillier.add(public, paillier.encrypt(public, [10], r=[4]), paillier.encrypt(public, [7], r=[2]))
    assert values(c) == [547]
    assert sum(one.d for one in threshold.dealt(TOY, 4)) == 36
    given = [threshold.partial_decryption(KeyShare(public, d), c) for d in (100, -250, 186)]
    assert [values(one)[0] for one in given] == [701, 799, 29]
    assert 701 * 799 * 29 % 35**2 == 596
    assert threshold.combined(public, given) == [17]


@pytest.mark.parametrize("parties", [2, 3, 8])
def test_all_open_signed_sums_and_packed_values_and_fewer_do_not(parties: int) -> None:
    public, stream, held = batch_key(), np.random.default_rng(parties), shares(parties)
    form, weights = paillier.layout(256, 20, 1 << 20), [1 << 19, 1 << 18, 1 << 18]
    codes = stream.integers(-(1 << 19), 1 << 19, (3, 30))
    codes[:, :4] = [-(1 << 19), (1 << 19) - 1, -(1 << 19), 0]
    batches = [paillier.encrypt(public, paillier.pack(form, row)) for row in codes]
    total = paillier.weighted_sum(public, batches, weights)
    assert np.array_equal(paillier.unpack(form, opened(total, held), 30), np.array(weights) @ codes)
    signed = paillier.encrypt(public, [7, public.n - 9])
    both = paillier.weighted_sum(public, [signed, signed], [3, -4])
    assert opened(both, held) == [public.n - 7, 9]
    for missing in range(parties):
        for batch in (total, both):
            with pytest.raises(ProtocolError, match="which one cannot be told"):
                opened(batch, held[:missing] + held[missing + 1 :])


def test_shares_of_other_ciphertexts_open_nothing() -> None:
    public, held = batch_key(), shares(3)
    a, b = paillier.encrypt(public, [5, 6]), paillier.encrypt(public, [5, 6])
    given = [threshold.partial_decryption(one, a) for one in held[:2]]
    assert threshold.combined(public, [*given, threshold.partial_decryption(held[2], a)]) == [5, 6]
    for last in (b, paillier.add(public, a, b), a.at([1, 0])):
        with pytest.raises(ProtocolError, match="one is missing or false"):
            threshold.combined(public, [*given, threshold.partial_decryption(held[2], last)])
    with pytest.raises(ProtocolError, match="different numbers of ciphertexts"):
        threshold.combined(public, [*given, threshold.partial_decryption(held[2], a.at(slice(1)))])
    foreign = threshold.partial_decryption(threshold.dealt(PrivateKey(key().q, key().p), 3)[0], a)
    with pytest.raises(ProtocolError):
        threshold.combined(public, [*given, foreign])


def test_a_share_is_longer_than_what_it_hides() -> None:
    """All but the last are uniform over [-B, B), B of 128 bits more than n lambda; d is 0 modulo lambda and 1 modulo n."""
    p, q = key().p, key().q
    order = (p - 1) * (q - 1) // 2
    held = shares(8)
    d = sum(one.d for one in held)
    assert (d % order, d % (p * q)) == (0, 1)
    bound = 1 << ((p * q * order).bit_length() + 128)
    assert all(-bound <= one.d < bound for one in held[:-1])
    assert max(one.d.bit_length() for one in held) >= bound.bit_length() - 12  # not below it by chance: 2^-77
    with pytest.raises(PrivacyError, match="two parties or more"):
        threshold.dealt(key(), 1)


EDGES = np.linspace(-1.0, 1.0, 9)


def joint(d: int, chosen: tuple[int, int], bound: int, draws: int) -> np.ndarray:
    """Counts of two of three shares of d on a grid."""
    rows = np.array([threshold.split(d, 3, bound) for _ in range(draws)], dtype=np.float64)[:, list(chosen)]
    return np.histogram2d(*(np.clip(rows / bound, -1, 1 - 1e-12)).T, bins=[EDGES, EDGES])[0].ravel()


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The p-value of one law behind both counts (chi-square, both samples of one size)."""
    there = one + other > 0
    statistic = float(((one - other)[there] ** 2 / (one + other)[there]).sum())
    return float(chi2.sf(statistic, there.sum() - 1))


@pytest.mark.parametrize("chosen", [*combinations(range(3), 2)])
def test_fewer_shares_have_the_same_law_for_every_d(chosen: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At toy size (n lambda = 420), mask of 20 bits: 20,000 draws do not tell 0 from the largest d; without a mask they do."""
    stream = random.Random(7)  # noqa: S311  (the test is to be the same every time)
    monkeypatch.setattr(secrets, "randbelow", stream.randrange)
    largest, bits = 419, (420).bit_length()
    masked = [joint(d, chosen, 1 << bits + 20, 20_000) for d in (0, largest)]
    assert apart(*masked) > 1e-3
    bare = [joint(d, chosen, 1 << bits, 20_000) for d in (0, largest)]
    assert (apart(*bare) < 1e-9) is (2 in chosen)  # shares other than the last are drawn without d


def test_nothing_prints_a_share() -> None:
    one = shares(3)[0]
    text = f"{one} {one!r} {[one]} {(one,)!s}"
    assert batch_key().name in text
    assert str(abs(one.d)) not in text
    assert f"{abs(one.d):x}" not in text
    with pytest.raises(FedatlasError):
        codec.encode({"key": one})  # never by mistake


def test_a_share_stays_in_its_partys_memory_in_plain_form() -> None:
    for one in (*shares(3), KeyShare(TOY.public, 0), KeyShare(TOY.public, -1)):
        assert threshold.key_share(codec.decode(codec.encode(one.plain()))) == one


# ---------------------------------------------------------------------- short exponents


@cache
def based() -> encryption.Base:
    return paillier.base(batch_key(), 512)


@cache
def whole() -> encryption.Base:
    return paillier.base(batch_key(), paillier.full(batch_key()))


def test_full_exponents_give_the_squares_of_the_textbooks_law() -> None:
    """p = 7, q = 11: h = y^(2 n) generates the squares of the r^n, and exponents over its order take each alike often."""
    public, square = PrivateKey(7, 11).public, 77**2
    units = [r for r in range(77) if r % 7 and r % 11]
    squares = Counter(pow(r, 2 * 77, square) for r in units)
    assert {*squares.values()} == {4}
    bases = [h for h in squares if len({pow(h, s, square) for s in range(15)}) == 15]
    assert len(bases) == 8  # of 15; of p and q of 1,024 bits all but one in 2^1000
    for h in bases:
        keys = paillier.sealer(public, encryption.Base(h, 8))
        made = paillier.encrypt(public, [0] * 15, keys=keys, r=range(15))
        assert {*values(made)} == {*squares}
    assert paillier.full(PrivateKey(5, 7).public) == 6 + 128


def test_everybody_and_key_holders_encrypt_by_short_exponents() -> None:
    public, m = batch_key(), [0, 1, 12345, batch_key().n - 9]
    by_all, by_holder = paillier.sealer(public, based()), paillier.holder(key(), base=based())
    full = paillier.holder(key())
    for keys in (by_all, by_holder, paillier.sealer(public, whole())):
        made = paillier.encrypt(public, m * 100, keys=keys)
        assert paillier.decrypt(full, made) == m * 100
        assert len(set(values(made))) == 400
    assert based().h < public.n**2
    assert by_all.comb.residues
    assert len(by_all.comb.residues) == len(by_holder.sides[0].residues) == 64  # bytes of an exponent


def test_both_take_the_same_power_of_h(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key holders work modulo p^2 and q^2, the others modulo n^2; for the same exponents ciphertexts are those of the formula."""
    public, m, exponents = batch_key(), [3, 0, 77], [5, (1 << 512) - 1, 1 << 500]
    wanted = [
        (1 + x * public.n) * pow(based().h, s, public.n**2) % public.n**2 for x, s in zip(m, exponents, strict=True)
    ]
    for keys in (paillier.sealer(public, based()), paillier.holder(key(), base=based())):
        asked, draws = [], iter(exponents)
        monkeypatch.setattr(secrets, "randbelow", lambda n, asked=asked, draws=draws: (asked.append(n), next(draws))[1])
        assert values(paillier.encrypt(public, m, keys=keys)) == wanted
        assert asked == [1 << 512] * 3  # one draw a ciphertext, from the operating system


def test_a_base_is_a_random_residue() -> None:
    public = batch_key()
    drawn = [paillier.base(public, 512).h for _ in range(20)]
    assert len({*drawn}) == 20
    order = (key().p - 1) * (key().q - 1) // 2
    assert all(pow(h, order, public.n**2) == 1 for h in drawn)
    for wrong in (0, public.n**2, key().p):
        with pytest.raises(ProtocolError, match="shares a factor with n"):
            paillier.sealer(public, encryption.Base(wrong, 512))


def test_nothing_prints_a_key_made_ready() -> None:
    ready = paillier.sealer(batch_key(), based())
    assert repr(ready) == f"Sealer of {batch_key()!r}"
    assert Counter(map(str, [ready, ready])) == {repr(ready): 2}
    assert isinstance(paillier.encrypt(batch_key(), [1], keys=ready).ciphertexts, torch.Tensor)


# ---------------------------------------------------------------------- proofs


def proved(count: int, base: encryption.Base) -> tuple[Batch, dict[str, torch.Tensor]]:
    public = batch_key()
    known = knowledge.witness([i * i for i in range(count)], base)
    batch = paillier.encrypt(public, known.messages, keys=paillier.sealer(public, base), r=known.exponents)
    assert opened(batch, shares(3)) == [*known.messages]
    return batch, knowledge.proof(public, known, b"here", base)


def changed(x: torch.Tensor, at: int) -> torch.Tensor:
    out = x.clone()
    out[at] = (int(out[at]) + 1) % 256
    return out


@pytest.mark.parametrize("count", [0, 1, 5, knowledge.FEW, 150])
@pytest.mark.parametrize("short", [False, True])
def test_a_proof_holds_for_its_ciphertexts_and_statement_only(count: int, short: bool) -> None:
    public, base = batch_key(), based() if short else whole()
    batch, proof = proved(count, base)
    knowledge.check(public, batch, proof, b"here", base)

    def refused(batch: Batch, proof: object, statement: bytes = b"here") -> None:
        with pytest.raises(ProtocolError, match="does not hold"):
            knowledge.check(public, batch, proof, statement, base)

    if count:
        refused(batch, proof, b"there")
        refused(paillier.times(public, batch, 2), proof)
    if count > 1:
        refused(batch.at([1, 0, *range(2, count)]), proof)
    for name in proof:
        refused(batch, {**proof, name: changed(proof[name], -1)})
        refused(batch, {**proof, name: proof[name][1:]})
        refused(batch, {other: x for other, x in proof.items() if other != name})
    refused(batch, {**proof, "a": torch.zeros_like(proof["a"])})
    refused(batch, None)
    refused(batch, {**proof, "z": torch.full_like(proof["z"], 255)})


def test_no_proof_is_made_of_ciphertexts_of_others() -> None:
    """Somebody who knows the plaintexts but not the randomness, or neither, finds no proof."""
    public = batch_key()
    batch = paillier.encrypt(public, [3, 4])
    for messages in ([3, 4], [0, 0]):
        made = knowledge.proof(public, knowledge.witness(messages, whole()), b"here", whole())
        with pytest.raises(ProtocolError, match="does not hold"):
            knowledge.check(public, batch, made, b"here", whole())


@pytest.mark.parametrize("count", [1, 7, knowledge.FEW, 100])
def test_buckets_give_the_product_of_powers(count: int) -> None:
    stream, modulus = np.random.default_rng(count), batch_key().n
    bases = [int.from_bytes(stream.bytes(40), "big") for _ in range(count)]
    exponents = stream.bytes(16 * count)
    wanted = 1
    for i, b in enumerate(bases):
        wanted = wanted * pow(b, int.from_bytes(exponents[16 * i : 16 * i + 16], "big"), modulus) % modulus
    assert knowledge.product_of_powers(bases, exponents, modulus) == wanted


def test_a_proof_hides_what_it_is_of() -> None:
    """Two proofs of the same have nothing in common, and z and S are those of random numbers: their bits are half ones."""
    public = batch_key()
    known = knowledge.witness([5] * 3, whole())
    made = [knowledge.proof(public, known, b"here", whole()) for _ in range(200)]
    for name, first in (
        ("a", 8),
        ("z", 40),
        ("s", 8),
    ):  # z is below n, of 32 of 64 bytes; the top bits follow n, or a sum
        bits = np.unpackbits(np.stack([one[name].numpy()[first:] for one in made]), axis=1)
        assert np.abs(bits.sum(axis=0).astype(int) - 100).max() < 6 * np.sqrt(200) / 2
    text = f"{known} {known!r}"
    assert all(str(s) not in text for s in known.exponents)
