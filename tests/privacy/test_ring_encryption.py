"""BFV and CKKS: residues, exact sums, parameters for 128 bits of security, and the noise of opened sums."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedatlas.errors import ConfigError, PrivacyError, ProtocolError
from fedatlas.privacy.bfv import holder as bfv_holder
from fedatlas.privacy.bfv.parameters import ERROR, RINGS, parameters
from fedatlas.privacy.ckks import filling
from fedatlas.privacy.ckks import holder as ckks_holder
from fedatlas.privacy.ckks.parameters import DEGREE, LARGEST_ERROR, PRIMES, SCALE, SLOTS, Parameters
from fedatlas.privacy.ckks.parameters import parameters as ckks_parameters
from fedatlas.privacy.encrypted import residues, words

seal = pytest.importorskip("seal")
tenseal = pytest.importorskip("tenseal")

LIMIT = {4096: 109, 8192: 218}
"""Bits of all primes at 128 bits of security with ternary secrets: HomomorphicEncryption.org's standard of 2018, table 1."""
BITS = {27: 134217689, 36: 68719403009, 44: 17592186028033, 60: 1152921504606683137}  # numbers of so many bits


def small_key(primes: tuple[int, ...]) -> residues.ServerKey:
    return residues.ServerKey("key", 8, primes)


# ---------------------------------------------------------------------- residues


@given(data=st.data(), primes=st.lists(st.sampled_from(sorted(BITS.values())), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_packed_residues_come_back(data: st.DataObject, primes: list[int]) -> None:
    key = small_key(tuple(primes))
    values = [[data.draw(st.integers(0, q - 1)) for _ in range(16)] for q in primes]
    given_ = np.array(values, dtype=np.uint64).reshape(len(primes), 2, 8)
    row = residues.packed(key, given_)
    assert len(row) == sum(key.lengths) == sum(8 * -(-q.bit_length() // 4) for q in primes)
    assert (residues.unpacked(key, row) == given_).all()


@given(data=st.data(), q=st.sampled_from(sorted(BITS.values())), clients=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_weighted_sums_are_those_of_whole_numbers(data: st.DataObject, q: int, clients: int) -> None:
    key, rng = small_key((q,)), np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    weights = [data.draw(st.sampled_from((0, 1, 2, 12345, (1 << 24) + 1, (1 << 29) + 7))) for _ in range(clients)]
    rows = [rng.integers(0, q, (1, 2, 8), dtype=np.uint64) for _ in range(clients)]
    rows[0][:] = q - 1
    batches = [torch.stack([residues.packed(key, row)]) for row in rows]
    total = residues.summed(key, batches, weights)
    assert total["of"] == clients
    found = residues.unpacked(key, total["ciphertexts"][0]).reshape(-1).tolist()
    expected = [sum(w * int(row.reshape(-1)[i]) for w, row in zip(weights, rows, strict=True)) % q for i in range(16)]
    assert found == expected


def test_a_residue_that_is_not_below_its_prime_is_refused() -> None:
    key = small_key((BITS[36],))
    whole = residues.packed(key, np.full((1, 2, 8), BITS[36], dtype=np.uint64))
    with pytest.raises(ProtocolError, match="not below its prime"):
        residues.unpacked(key, whole)


@given(bits=st.integers(1, 48), values=st.lists(st.integers(0, (1 << 48) - 1), min_size=1, max_size=6))
def test_words_in_pieces_come_back(bits: int, values: list[int]) -> None:
    some = np.array(values, dtype=np.int64)
    pieces = words.split(some, bits)
    assert (pieces >= 0).all()
    assert (pieces < 1 << bits).all()
    assert (words.joined(3 * pieces, bits) == 3 * some).all()


# ---------------------------------------------------------------------- BFV


def ready(bits: int, clients: int, unit: int) -> bfv_holder.Holder:
    form = parameters(bits, clients, unit)
    return bfv_holder.holder(form, *bfv_holder.generate(form))


@pytest.mark.parametrize(("bits", "unit", "degree"), [(24, 1, 4096), (16, 1 << 16, 4096), (24, 1 << 24, 8192)])
def test_sums_are_exact_at_the_largest_numbers(bits: int, unit: int, degree: int) -> None:
    """Eight clients at both ends of the range, with all the weight there is room for, decrypt to the sum of whole numbers."""
    keys = ready(bits, 8, unit)
    assert keys.form.degree == degree
    half, rng = 1 << bits - 1, np.random.default_rng(5)
    codes = rng.integers(-half, half, (8, 5000))
    codes[:, :3] = [-half, half - 1, 0]
    weights = [1] * 8 if unit == 1 else [unit // 4] * 8
    assert sum(weights) == keys.form.total
    batches = [torch.stack(bfv_holder.encrypt(keys, row)) for row in codes]
    total = residues.summed(keys.server, batches, weights)["ciphertexts"]
    found = bfv_holder.decrypt(keys, total)[:5000]
    assert (found == (codes * np.array(weights)[:, None]).sum(axis=0)).all()
    assert (bfv_holder.decrypt(keys, total)[5000:] == 0).all()


def test_sums_of_residues_are_seals_own() -> None:
    """The evaluator of SEAL, which the server does not need, adds the same ciphertexts to the same bytes."""
    keys = ready(24, 3, 1)
    made = [keys.encryptor.encrypt_symmetric(keys.encoder.encode(np.full(4096, k, dtype=np.int64))) for k in (5, -7)]
    rows = []
    for one in made:
        body = np.frombuffer(one.to_string(), "<u8", offset=len(keys.head)).reshape(2, 2, 4096)
        rows.append(torch.stack([residues.packed(keys.server, body.transpose(1, 0, 2))]))
    seal.Evaluator(keys.context).add_inplace(made[0], made[1])
    theirs = np.frombuffer(made[0].to_string(), "<u8", offset=len(keys.head)).reshape(2, 2, 4096)
    ours = residues.unpacked(keys.server, residues.summed(keys.server, rows, [1, 1])["ciphertexts"][0])
    assert (ours.transpose(1, 0, 2) == theirs).all()


@pytest.mark.parametrize(("bits", "clients", "unit"), [(24, 8, 1), (40, 100, 1), (16, 8, 1 << 16), (28, 8, 1 << 28)])
def test_parameters_reach_128_bits(bits: int, clients: int, unit: int) -> None:
    """By the published table and by the library's own check. The budget of the largest sum is above 0 by the bound on the noise."""
    form = parameters(bits, clients, unit)
    assert sum(form.primes) <= LIMIT[form.degree]
    assert bfv_holder.context(form).key_context_data().qualifiers().sec_level == seal.sec_level_type.tc128
    keys = bfv_holder.holder(form, *bfv_holder.generate(form))
    q = int(np.prod([int(p) for p in keys.server.primes], dtype=object))
    assert 2 * keys.plain * form.total * ERROR < q
    for row in bfv_holder.encrypt(keys, np.arange(3 * form.degree) - form.degree):
        words_of = np.ascontiguousarray(residues.unpacked(keys.server, row).transpose(1, 0, 2)).tobytes()
        one = seal.Ciphertext()
        one.load_bytes(keys.context, keys.head + words_of)
        assert keys.decryptor.invariant_noise_budget(one) >= (q // (2 * keys.plain * ERROR)).bit_length() - 1
    assert keys.plain > 2 * form.total * (1 << bits - 1)
    assert keys.plain > clients << form.piece


def test_smaller_rings_are_taken_where_they_suffice() -> None:
    assert parameters(24, 8, 1).primes == RINGS[0][1]
    assert sum(RINGS[0][1][:-1]) == 72
    assert parameters(24, 8, 1 << 24).degree == 8192


@pytest.mark.parametrize(("bits", "clients", "unit"), [(29, 8, 1 << 29), (40, 8, 1 << 40), (40, 1 << 21, 1)])
def test_codes_or_weights_that_are_too_long_are_refused(bits: int, clients: int, unit: int) -> None:
    with pytest.raises(PrivacyError, match="lower bits"):
        parameters(bits, clients, unit)


def test_a_sum_of_another_key_has_no_budget() -> None:
    mine, other = ready(24, 8, 1), ready(24, 8, 1)
    row = bfv_holder.encrypt(other, np.arange(10))
    with pytest.raises(ProtocolError, match="no noise budget left"):
        bfv_holder.decrypt(mine, torch.stack(row))


def test_a_ciphertext_is_not_repeated_in_a_forked_process() -> None:
    """Keys made before a fork: two processes encrypt the same numbers to different ciphertexts."""
    whole, real = ready(24, 8, 1), ckks_holder.holder(*ckks_holder.generate())
    for encrypt in (lambda: bfv_holder.encrypt(whole, np.zeros(4)), lambda: ckks_holder.encrypt(real, np.zeros(4))):
        first, second = in_two_processes(encrypt)
        assert (first != second).mean() > 0.9


def in_two_processes(encrypt: Callable[[], list[torch.Tensor]]) -> list[np.ndarray[Any, Any]]:
    """The first ciphertext that each of two forked processes makes."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    workers = [context.Process(target=lambda end=end: end.send(encrypt()[0].numpy())) for _, end in pipes]
    for worker in workers:
        worker.start()
    found = [ours.recv() for ours, _ in pipes]
    for worker in workers:
        worker.join()
    return found


# ---------------------------------------------------------------------- CKKS


@pytest.fixture(scope="module")
def real_key() -> ckks_holder.Holder:
    return ckks_holder.holder(*ckks_holder.generate())


@pytest.mark.parametrize("clients", [2, 8])
@pytest.mark.parametrize("span", [1.0, 16.0])
def test_the_error_of_a_decryption_is_below_its_bound(real_key: ckks_holder.Holder, clients: int, span: float) -> None:
    """Values at random and at both ends of the range; the bound is within a factor of 100, so it is about this error."""
    rng = np.random.default_rng(7)
    values = rng.uniform(-span, span, (clients, 2 * SLOTS)) / clients
    values[:, :SLOTS] = rng.choice([-span, span], SLOTS) / clients
    batches = [torch.stack(ckks_holder.encrypt(real_key, row)) for row in values]
    total = residues.summed(real_key.server, batches, [1] * clients)["ciphertexts"]
    error = np.abs(ckks_holder.decrypt(real_key, total) - values.astype(np.longdouble).sum(axis=0)).max()
    bound = Parameters(clients, span, 1).bound
    assert bound / 100 < error < bound


def test_the_noise_hides_the_errors_of_a_whole_model(real_key: ckks_holder.Holder) -> None:
    """The loss of all openings of a key, for 384,128 values at both ends of the range, whose errors are the largest."""
    values = np.random.default_rng(1).choice([-0.5, 0.5], (8, 2 * SLOTS))
    batches = [torch.stack(ckks_holder.encrypt(real_key, row)) for row in values]
    total = residues.summed(real_key.server, batches, [1] * 8)["ciphertexts"]
    error = ckks_holder.decrypt(real_key, total) - values.sum(axis=0)
    form = Parameters(8, 4.0, 100)
    nats = 384_128 * form.openings * float((error**2).mean()) / (2 * form.deviation**2)
    assert nats < 2.0**-33


def test_ckks_parameters_reach_128_bits() -> None:
    import tenseal.sealapi as api

    assert sum(PRIMES) <= LIMIT[DEGREE]
    assert sum(PRIMES) <= api.CoeffModulus.MaxBitCount(DEGREE, api.SEC_LEVEL_TYPE.TC128)
    assert 2.0 ** PRIMES[0] == SCALE


@pytest.mark.parametrize(("span", "most", "fits"), [(4.0, 400, 1.0), (16.0, 50, 8.0)])
def test_the_error_stays_below_the_limit_or_the_run_is_refused(span: float, most: int, fits: float) -> None:
    assert ckks_parameters(8, span, most).error < LARGEST_ERROR
    with pytest.raises(PrivacyError, match=f"range = {fits:g} would do, or use bfv, which is exact"):
        ckks_parameters(8, span, 3 * most)
    assert ckks_parameters(8, fits, 3 * most)
    with pytest.raises(PrivacyError, match="lower rounds, or use bfv"):
        ckks_parameters(8, span, 1 << 20)
    form = ckks_parameters(8, span, most)
    assert form.deviation >= np.sqrt(24 * most) * 2**20 * form.bound
    assert form.unit / 2 >= 8 * form.deviation  # words of reals come out exactly


def opened_sum(key: Any, form: Parameters, values: np.ndarray[Any, Any], real: bool = False) -> np.ndarray[Any, Any]:
    """The opened sum of two clients who encrypt halves of these values, or the same words."""
    session = {"key": key, "client": 0, "record": {}}
    parts = [values, values] if real else [values / 2, values / 2]
    keys = ckks_holder.holder(key["name"], filling.raw(key["secret"]))
    sent = [filling.encrypted(session, [real, 2], part) for part in parts]
    batches = [residues.received(keys.server, one, len(one["ciphertexts"])) for one in sent]
    total = residues.summed(keys.server, batches, [1, 1])
    return filling.opened(session, total, [real, 2], len(values), 2)


def shared(form: Parameters) -> dict[str, Any]:
    name, secret = ckks_holder.generate()
    return {"form": [*form], "name": name, "secret": filling.table([secret], len(secret))}


def test_opened_numbers_carry_the_noise_and_lie_on_the_grid() -> None:
    """Chi-square over 8,192 draws: four standard deviations of 2 n. A raw decryption lies on no such grid."""
    form = ckks_parameters(8, 4.0, 100)
    n = 2 * SLOTS
    values = np.random.default_rng(3).uniform(-4, 4, n)
    found = opened_sum(shared(form), form, values)
    error = found - values
    assert (found == np.rint(found / form.grid) * form.grid).all()
    variance = form.deviation**2 + form.grid**2 / 12
    assert abs((error**2).sum() / variance - n) < 4 * np.sqrt(2 * n)
    assert np.abs(error).max() < form.error < LARGEST_ERROR
    again = opened_sum(shared(form), form, values)
    assert (again != found).mean() > 0.5  # the noise is drawn, not derived


def test_words_of_reals_are_exact() -> None:
    form = ckks_parameters(8, 4.0, 100)
    some = np.random.default_rng(2).integers(0, 1 << 48, 3000)
    assert (opened_sum(shared(form), form, some, real=True) == 2 * some).all()


def test_a_sum_outside_of_its_range_is_not_opened() -> None:
    form = ckks_parameters(8, 4.0, 10)
    with pytest.raises(ProtocolError, match="outside of its range"):
        opened_sum(shared(form), form, np.full(5, 4.5))
    other = shared(form)
    mine = shared(form)
    sent = filling.encrypted({"key": other}, [False, 2], np.zeros(5))
    with pytest.raises(ProtocolError, match="arrived where key"):
        filling.opened({"key": mine}, {**sent, "of": 2}, [False, 2], 5, 2)
    with pytest.raises(ProtocolError, match="outside of its range"):  # a liar who knows the key's name
        filling.opened({"key": mine}, {**sent, "key": mine["name"], "of": 2}, [False, 2], 5, 2)


@pytest.mark.parametrize(
    ("module", "load", "said"),
    [("seal", bfv_holder.seal, "needs seal-python"), ("tenseal", ckks_holder.tenseal, "needs tenseal")],
)
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, module: str, load: Any, said: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'{said} \(Python 3.11 to 3.13\): pip install "fedatlas\[he\]"'):
        load()


def test_a_client_opens_no_more_sums_than_the_key_stands() -> None:
    system = filling.ckks(filling.Encryption(4.0, "all", 2))
    session = {"client": 0, "key": {}, "record": {"run": [[1, "train"]], "other": [[1, "train"]]}}
    message = {"run": "run", "round": 2, "ask": "train", "sums": {}}
    with pytest.raises(ProtocolError, match="opening 3 sums under a key made for 2 would endanger it"):
        system.questions[filling.OPEN].answer(None, None, message, {}, session)
