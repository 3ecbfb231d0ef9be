"""The mathematics of differential privacy: noise, clipping, and what central DP, local DP and NbAFL release."""

from __future__ import annotations

import hashlib
import logging
import math
import multiprocessing
import os
import sys
import traceback
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy import accountant, clipping, ledger, mechanisms
from fedatlas.privacy.central_dp.clipped_sum import coefficient
from fedatlas.privacy.gaussian import multiplier_of
from fedatlas.privacy.local_dp import mechanism as local_dp
from fedatlas.privacy.mechanism import Noise, Protection
from fedatlas.privacy.mechanisms import central_dp
from fedatlas.privacy.nbafl import formulas as nbafl
from fedatlas.privacy.nbafl.mechanism import NbAFL
from fedatlas.privacy.noise import gaussian, laplace, noised, words
from fedatlas.privacy.protocol import Doing
from fedatlas.privacy.sampling import secret_cohort
from fedatlas.transforms.clip import clip as clip_by_part
from fedatlas.tree import Tree

pytestmark = pytest.mark.timing

OS = Noise()
SEED = Noise("seed", 7)
LEAST = 1e-7  # a test of secret noise fails by chance less often than once in ten million runs


def update(*values, dtype=torch.float32):
    """An update of two parts, as SCAFFOLD's, one of them nested."""
    half = len(values) // 2
    a, b = torch.tensor(values[:half], dtype=dtype), torch.tensor(values[half:], dtype=dtype)
    return {"model": Tree(w=a), "more": {"control": Tree(w=b[:1], v=b[1:].reshape(1, -1))}}


def flat(x):
    return clipping.vector(x)


# Noise


@pytest.mark.parametrize("noise", [OS, SEED])
@pytest.mark.parametrize(
    ("draw", "law"),
    [(gaussian, stats.norm(scale=0.3)), (laplace, stats.laplace(scale=0.3))],
    ids=["gaussian", "laplace"],
)
def test_noise_has_its_law_into_the_tails(noise, draw, law):
    n = 600_001  # odd, and more than one piece
    x = draw(n, 0.3, noise, "law").numpy()
    assert x.shape == (n,)
    assert stats.kstest(x, law.cdf).pvalue > LEAST
    assert abs(x.mean()) < 6 * law.std() / math.sqrt(n)
    fourth = law.stats(moments="k") + 3
    assert abs(x.var() / law.var() - 1) < 6 * math.sqrt((fourth - 1) / n)
    far = law.isf(5e-5)  # 60 values are expected on both sides
    assert stats.poisson(n * 1e-4).cdf((abs(x) > far).sum()) == pytest.approx(0.5, abs=0.5 - LEAST)
    assert abs((x > 0).mean() - 0.5) < 3 / math.sqrt(n)


def test_draws_parts_and_neighbours_are_independent():
    n = 200_000
    like = {"a": Tree(w=torch.zeros(n)), "b": Tree(w=torch.zeros(n))}
    first, second = (noised(like, 1.0, OS, "same", "key") for _ in range(2))
    rows = torch.stack([first["a"]["w"], first["b"]["w"], second["a"]["w"], second["b"]["w"]]).numpy()
    for table in (rows, rows**2):  # neither signs nor sizes go together
        assert abs(np.corrcoef(table) - np.eye(4)).max() < 6 / math.sqrt(n)
    for lag in (1, 2, 1 << 10):
        assert abs(np.corrcoef(rows[0, :-lag], rows[0, lag:])[0, 1]) < 6 / math.sqrt(n)
    whole = rows[0][: n // 2 * 2].reshape(2, -1)  # the two values of each of Box and Muller's pairs
    assert abs(np.corrcoef(abs(whole))[0, 1]) < 6 / math.sqrt(n // 2)


def test_every_draw_takes_a_fresh_key_of_256_bits(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or bytes([len(asked)] * n))
    first, second = gaussian(10, 1.0, OS, "k"), gaussian(10, 1.0, OS, "k")
    assert asked == [32, 32]
    assert not torch.equal(first, second)
    asked.clear()
    assert torch.equal(first, gaussian(10, 1.0, OS, "another key: without meaning here"))


def test_words_are_the_aes_stream_of_the_key(monkeypatch):
    """NIST SP 800-38A, F.5.5: AES-256 in counter mode; our counter starts at 0, so the first block is AES of zeros."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    monkeypatch.setattr(os, "urandom", lambda n: key)
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(15) + b"\0" + bytes(15) + b"\1")  # noqa: S305
    assert words(OS, 4).tobytes() == block
    assert len(words(OS, 0)) == 0


def test_seeded_noise_is_a_function_of_seed_and_key():
    once = gaussian(9, 1.0, SEED, "round", 3)
    assert torch.equal(once, gaussian(9, 1.0, SEED, "round", 3))
    for other in (gaussian(9, 1.0, SEED, "round", 4), gaussian(9, 1.0, Noise("seed", 8), "round", 3)):
        assert not torch.isclose(once, other).any()


def drawn_in_a_worker(args):
    noise, key = args
    return os.getpid(), gaussian(1000, 1.0, noise, *key).tolist()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("noise", [OS, SEED], ids=["os", "seed"])
def test_two_forked_workers_never_share_a_stream(noise):
    before = gaussian(1000, 1.0, noise, "job", 0).tolist()  # whatever a draw may leave behind is there at the fork
    with multiprocessing.get_context("fork").Pool(2) as pool:
        jobs = [(noise, ("job", 0 if noise == OS else k)) for k in range(1, 9)]
        found = pool.map(drawn_in_a_worker, jobs, chunksize=1)
    values = [x for _, draw in found for x in draw] + before
    assert len(set(values)) == len(values)


def test_a_release_lies_on_a_grid_that_hides_the_last_bits():
    x = torch.rand(1000, dtype=torch.float64)
    sigma = 0.37
    released = noised({"x": Tree(w=x)}, sigma, OS)["x"]["w"]
    steps = released / 2.0 ** (math.floor(math.log2(sigma)) - 20)
    assert torch.equal(steps, steps.round())
    assert len(set((steps.long() % 64).tolist())) == 64  # no finer than it says, and no coarser
    assert abs(float((released - x).std()) / sigma - 1) < 0.2


def test_no_noise_changes_nothing_and_noise_without_a_size_is_refused():
    given_update = update(1.0, 2.0, 3.0, 4.0)
    assert torch.equal(flat(noised(given_update, 0.0, OS)), flat(given_update))
    for odd in (math.nan, math.inf, -1.0):
        with pytest.raises(PrivacyError, match="noise of scale"):
            noised(given_update, odd, OS)


def test_no_key_is_told(monkeypatch, caplog, tmp_path):
    key = bytes(range(65, 97))
    monkeypatch.setattr(os, "urandom", lambda n: key)
    caplog.set_level(logging.DEBUG)
    told = [repr(OS), repr(noised), repr(noised(update(1.0, 2.0, 3.0, 4.0), 1.0, OS))]
    for wrong in (lambda: gaussian(10, "much", OS), lambda: noised(update(math.nan, 2.0, 3.0, 4.0), 1.0, OS)):
        try:
            wrong()
        except (TypeError, PrivacyError) as error:
            told.append("".join(traceback.format_exception(error)))
    assert len(told) == 5
    ledger.append(tmp_path / "l", Protection((central_dp(clip=1.0, delta=1e-5),), 2, 1, 0.5, 0).released(1, ()))
    everything = "\n".join([*told, caplog.text, (tmp_path / "l").read_text()])
    for form in (key.decode(), key.hex(), str(list(key)), str(int.from_bytes(key, "little")), repr(key)):
        assert form not in everything


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[dp\]"'):
        gaussian(3, 1.0, OS)
    gaussian(3, 1.0, SEED, "needs nothing")
    gaussian(3, 1.0, Noise(secret=bytes(32)), "nor does this")


def test_repeated_words_are_those_of_a_published_function():
    """SHAKE-256 of the secret and the draw's name: a run of an older version draws the same again."""
    drawn = words(Noise(secret=bytes(range(32))), 2, "column", "age")
    assert drawn.tobytes() == hashlib.shake_256(bytes(range(32)) + b"('column', 'age')").digest(16)


# Clipping

NUMBERS = st.floats(-1e6, 1e6, width=32)
UPDATES = st.lists(st.lists(NUMBERS, min_size=6, max_size=6), min_size=1, max_size=6)


@given(values=st.lists(NUMBERS, min_size=6, max_size=6), bound=st.floats(1e-3, 1e3))
def test_a_clipped_update_is_within_the_bound_as_one_vector(values, bound):
    x = update(*values)
    for order in (1, 2):
        short = flat(clipping.clipped(x, bound, order))
        exact = math.fsum(abs(v) for v in short.tolist()) if order == 1 else math.hypot(*short.tolist())
        assert exact <= bound * (1 + 1e-15)
        if float(flat(x).norm(order)) <= bound:
            assert torch.equal(short, flat(x))


def test_one_clip_over_all_parts_and_not_one_a_part():
    x = update(3.0, 0.0, 4.0, 0.0, dtype=torch.float64)
    assert float(flat(clipping.clipped(x, 1.0)).norm()) == pytest.approx(1.0, rel=1e-11)
    by_part = clip_by_part(norm=1.0).encode(x, {}, torch.Generator())[0]
    assert float(flat(by_part).norm()) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("order", [1, 2])
def test_a_change_whose_length_overflows_is_clipped_all_the_same(order):
    long = {"model": Tree(w=torch.tensor([1.5e308, -1.5e308, 0.0], dtype=torch.float64))}
    x = flat(clipping.clipped(long, 0.5, order))
    assert x.tolist() == pytest.approx([0.5 / 2 ** (1 / order), -0.5 / 2 ** (1 / order), 0.0])
    assert float(x.norm(order)) <= 0.5


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"model": Tree(w=torch.tensor([1.0, math.nan]))}, "not finite"),
        ({"model": Tree(w=torch.tensor([1.0, -math.inf]))}, "not finite"),
        ({"model": Tree(w=torch.ones(2)), "n": 3}, "'n' of an update"),
        ({"model": Tree(w=torch.ones(2)), "scores": torch.ones(2)}, "'scores' of an update"),
        ({"model": Tree(count=torch.ones(2, dtype=torch.int64))}, "other than floats"),
    ],
)
def test_what_cannot_be_clipped_is_refused(content, why):
    with pytest.raises(PrivacyError, match=why):
        clipping.clipped(content, 1.0)


# Central DP


def summed(updates, clip, factor=1.0):
    clipped = [flat(clipping.clipped(each, clip)) for each in updates]
    return factor * sum(clipped, torch.zeros(6, dtype=torch.float64))


@given(values=UPDATES, clip=st.floats(1e-3, 1e3), rate=st.floats(0.01, 1.0), gone=st.integers(0, 5))
def test_removing_a_client_moves_the_mean_by_its_sensitivity(values, clip, rate, gone):
    K = 10  # a public number, which does not follow who came
    updates = [update(*each) for each in values]
    rest = [each for i, each in enumerate(updates) if i != gone % len(updates)]
    factor = coefficient(rate, K)
    moved = summed(updates, clip, factor) - summed(rest, clip, factor)
    assert float(moved.norm()) <= clip / (rate * K) * (1 + 1e-9)


def test_the_cohort_is_drawn_client_by_client(monkeypatch):
    clients = range(100, 140)
    sizes = [len(secret_cohort(clients, 0.1, SEED, t)) for t in range(2000)]
    expected = stats.binom(40, 0.1)
    assert np.mean(sizes) == pytest.approx(4.0, abs=6 * expected.std() / math.sqrt(2000))
    assert np.var(sizes) == pytest.approx(expected.var(), rel=0.25)
    assert sizes.count(0) == pytest.approx(2000 * expected.pmf(0), abs=6 * math.sqrt(2000 * expected.pmf(0)))
    assert set(secret_cohort(clients, 0.5, OS, 1)) <= set(clients)
    assert secret_cohort(clients, 0.5, SEED, 3) == secret_cohort(clients, 0.5, SEED, 3)
    assert len({secret_cohort(clients, 0.5, OS, 3) for _ in range(8)}) == 8  # no function of the round
    monkeypatch.setattr(os, "urandom", None)
    assert secret_cohort(clients, 1.0, OS, 1) == tuple(clients)  # nothing is drawn
    for odd in (0.0, 1.5, math.nan):
        with pytest.raises(PrivacyError, match="probability"):
            secret_cohort(clients, odd, OS, 1)


def test_an_empty_cohort_gets_its_noise():
    nothing = {"model": Tree(w=torch.zeros(100_000))}
    sigma = 1.2 * 0.5 * coefficient(0.1, 50)
    assert sigma == pytest.approx(1.2 * 0.5 / 5)
    assert float(noised(nothing, sigma, OS, "central_dp", 1)["model"]["w"].std()) == pytest.approx(sigma, rel=0.02)


def test_without_noise_bound_or_sampling_it_is_the_uniform_mean():
    updates = [update(*torch.randn(6).tolist()) for _ in range(4)]
    mean = summed(updates, math.inf, coefficient(1.0, 4))
    assert torch.allclose(mean, torch.stack([flat(each) for each in updates]).mean(0), rtol=1e-12)


# Local DP


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_local_releases_have_the_noise_they_state_and_cost_epsilon(kind):
    scale = local_dp.scale(kind, epsilon=3.0, delta=1e-5, clip=0.5, releases=10)
    one = multiplier_of(3.0, 1e-5)
    assert scale == pytest.approx(2 * 0.5 * (math.sqrt(10) * one if kind == "gaussian" else 10 / 3))
    how = Protection((local_dp.local_dp(epsilon=3.0, delta=1e-5, clip=0.5, kind=kind),), 6, 10, 1.0, 0)
    events = [event for t in range(10) for event in how.released(t, (4, 5))]
    assert all(event.multiplier * event.sensitivity == pytest.approx(scale) for event in events)
    found = accountant.spent(events, 1e-5)
    assert found.epsilon == pytest.approx(3.0, rel=1e-9)
    assert found.delta == (1e-5 if kind == "gaussian" else 0.0)
    x = {"model": Tree(w=torch.full((200_000,), 3.0))}
    sent = local_dp.release(x, kind, clip=0.5, scale=scale, noise=OS, key=(1, 4))["model"]["w"]
    assert sent.dtype == torch.float32
    rest = sent - float(flat(clipping.clipped(x, 0.5, 2 if kind == "gaussian" else 1))[0])
    assert float(rest.std()) == pytest.approx(scale * (1 if kind == "gaussian" else math.sqrt(2)), rel=0.02)


@given(a=st.lists(NUMBERS, min_size=6, max_size=6), b=st.lists(NUMBERS, min_size=6, max_size=6))
def test_replacing_a_client_moves_its_release_by_twice_the_bound(a, b):
    for order in (1, 2):
        moved = flat(clipping.clipped(update(*a), 0.7, order)) - flat(clipping.clipped(update(*b), 0.7, order))
        assert float(moved.norm(order)) <= 2 * 0.7 * (1 + 1e-12)


# NbAFL

PAPER = nbafl.Setting(epsilon=1.0, delta=0.01, clip=1.0, rows=1200, clients=50, rounds=25)


def test_nbafl_has_the_papers_noise():
    assert nbafl.classic_factor(0.01) == pytest.approx(3.1075114601, abs=5e-11)
    assert nbafl.sigma_up(PAPER) == pytest.approx(0.0051791858, abs=5e-11)
    assert equal_down(PAPER) == pytest.approx(0.0024838502, abs=5e-11)
    sixty = PAPER._replace(epsilon=60.0)
    assert nbafl.sigma_up(sixty) == pytest.approx(8.631976e-5, abs=5e-12)
    assert equal_down(sixty) == pytest.approx(4.139750e-5, abs=5e-12)


def test_nbafl_with_random_scheduling():
    assert nbafl.factor_drawn(PAPER, 20) == pytest.approx(2.57925074975, abs=5e-12)
    assert PAPER.epsilon / nbafl.threshold(PAPER, 20) == pytest.approx(0.0835427138, abs=5e-11)
    assert nbafl.threshold(PAPER, 20) == pytest.approx(11.96992478, abs=5e-9)
    assert nbafl.sigma_down_drawn(PAPER, 20) == pytest.approx(0.0022268866, abs=5e-11)
    assert nbafl.sigma_down_drawn(PAPER._replace(rounds=11), 20) == 0
    for epsilon in (50.0, 60.0, 100.0, 1e4):  # where b has no value
        assert nbafl.sigma_down_drawn(PAPER._replace(epsilon=epsilon), 20) == 0
    assert nbafl.threshold(PAPER, 50) == pytest.approx(math.sqrt(50))  # all drawn: the formulas are the simpler ones
    assert nbafl.factor_drawn(PAPER, 50) == pytest.approx(1.0)


@given(N=st.integers(1, 200), T=st.integers(1, 60), L=st.integers(1, 5))
def test_nbafl_general_noise_is_the_printed_one_for_equal_clients(N, T, L):
    """sigma_D = 2 c C sqrt(T^2 - L^2 N) / (n_min N epsilon), as the paper prints it for p_k = 1/N and n_k = n_min."""
    s = PAPER._replace(clients=N, rounds=max(T, L), exposed=L)
    inside = s.rounds**2 - L * L * N
    printed = nbafl.classic_factor(s.delta) * 2 * s.clip * math.sqrt(max(0, inside)) / (s.rows * N * s.epsilon)
    assert equal_down(s) == pytest.approx(printed, rel=1e-6, abs=1e-9)


def equal_down(s):
    """sigma_D of clients with equal shares and rows."""
    return nbafl.sigma_down(s, dict.fromkeys(range(s.clients), 1 / s.clients), dict.fromkeys(range(s.clients), s.rows))


def test_nbafl_states_the_honest_epsilon_beside_the_papers():
    s = PAPER._replace(epsilon=50.0)
    up, down = nbafl.sigma_up(s), equal_down(s)
    found = nbafl.accounts(s, up=up, down=down, uploads=25, shares=[1 / 50] * 50)
    assert up / (2 / 1200) == pytest.approx(0.062150, abs=5e-7)  # 0.124601 would be needed
    assert 50 == found.nominal < found.exposed < found.uploads < found.honest
    assert found.broadcasts < found.honest
    how = Protection((mechanisms.nbafl(epsilon=50.0, clip=1.0),), 50, 25, 1.0, 0, smallest=1200)
    events = [event for t in range(1, 26) for event in how.released(t, range(50))]
    assert accountant.spent(events, 0.01).epsilon == pytest.approx(found.honest, rel=1e-9)
    assert nbafl.accounts(s, up=0.0, down=0.0, uploads=25, shares=[1.0]).honest == math.inf


def test_nbafl_clips_models_and_noises_them_once():
    own = NbAFL(nbafl.classic_factor(0.01) * 2 / 0.2, 0.01, 1.0, "worst_case", "os")
    how = Protection((), 3, 20, 1.0, 7)
    zeros = {"model": Tree(w=torch.zeros(5000))}
    uploads = [own.update(zeros, how, Doing(k, 1, "train", 0, 1))["model"]["w"] for k in range(16)]
    assert float(torch.stack(uploads).std()) == pytest.approx(0.2, rel=0.03)
    assert float(torch.stack(uploads).mean(0).std()) == pytest.approx(0.2 / 4, rel=0.08)
    long = {"model": Tree(w=torch.full((100,), 3.0))}
    faint = own._replace(epsilon=1e12)
    assert float(flat(faint.update(long, how, Doing(0, 1, "train", 0, 1))).norm()) == pytest.approx(1.0, rel=1e-6)
    place = SimpleNamespace(coefficients=dict.fromkeys(range(3), 1 / 3), sizes=dict.fromkeys(range(3), 1), round=2)
    sent = own.release({"model": Tree(w=torch.ones(50_000))}, how, place, (0, 1, 2), None)["model"]["w"]
    down = own.down(how, place.coefficients, place.sizes)
    assert down > 0
    assert float(sent.std()) == pytest.approx(down, rel=0.03)
    assert sent.dtype == torch.float32


@pytest.mark.parametrize(
    "odd", [{"epsilon": 0.0}, {"clip": 0.0}, {"rows": 0}, {"exposed": 26}, {"exposed": 0}, {"delta": 0.0}]
)
def test_nbafl_refuses_what_its_formulas_do_not_mean(odd):
    with pytest.raises(PrivacyError):
        nbafl.sigma_up(PAPER._replace(**odd))
