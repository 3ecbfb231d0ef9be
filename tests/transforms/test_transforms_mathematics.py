"""What each transform does to a vector, the bits it sends, and what a chain of several does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Round,
    RoundGenerator,
    State,
    Task,
    Transform,
    Update,
    by_samples,
)
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.job import Job, Result
from fedatlas.engine.loop import SerialExecutor, run_job
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.errors import TransportError
from fedatlas.federation.sealing import MEMORY
from fedatlas.rng import torch_stream
from fedatlas.rounds import messages
from fedatlas.transforms import chain
from fedatlas.transforms.parts import pack, unpack
from fedatlas.transforms.qsgd import BUCKET, bucket_norms
from fedatlas.transforms.topk import largest
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import cohorts, everyone, federation, gap, play, same, states
from sealing import compressed, made, using


def encoded(transform: Transform, x: Tree, memory: State | None = None, draw: int = 0) -> tuple[Any, State, Tree]:
    """(sealed, memory, decoded) of one part."""
    if memory is None:
        memory = transform.memory_init({"x": x}) if transform.memory_init else {}
    sealed, memory = transform.encode({"x": x}, memory, torch_stream(1, "compression", draw))
    decoded: Update = transform.decode(sealed) if transform.decode else sealed
    return sealed["x"], memory, decoded["x"]


def normal(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tree:
    """A tree of n numbers in two tensors."""
    values = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    cut = n // 3
    return Tree(a=values[:cut], b=values[cut:].reshape(1, -1))


def test_topk_of_everything_is_fedavg() -> None:
    """k = d: nothing stays behind (B14)."""
    plain, _ = play(federation(ALGORITHMS["fedavg"]()), 4)
    fed = using(ALGORITHMS["fedavg"](), made("topk", share=1.0))
    sent, host = play(fed, 4)
    assert gap(plain, sent) < 1e-15
    for k in host.states.after.clients():
        memory = (host.states.get(k) or {})[MEMORY]["train"]["model"]
        assert float(memory.abs().max()) == 0.0


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_topk_sends_everything_in_the_end(share: float) -> None:
    """Sum of what was sent + residual = sum of the changes: 1e-5 in float32, exactly where all are whole numbers (B14)."""
    topk = made("topk", share=share)
    for whole, tolerance in ((False, 1e-5), (True, 0.0)):
        memory: State | None = None
        changes = [normal(400, t) * 10 for t in range(30)]
        if whole:
            changes = [x.map(torch.round) for x in changes]
        sent = torch.zeros(400)
        for x in changes:
            _, memory, decoded = encoded(topk, x, memory)
            sent += decoded.flatten()
        assert memory is not None
        total = torch.stack([x.flatten() for x in changes]).sum(0)
        assert float((sent + memory["x"] - total).abs().max()) <= tolerance * float(total.abs().max())


@settings(max_examples=60)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_topk_is_a_contraction(values: list[float], share: float) -> None:
    """||x - C(x)||^2 <= (1 - k/d) ||x||^2, with exactly k coordinates, the largest (B14)."""
    x = Tree(a=torch.tensor(values, dtype=torch.float64))
    _, _, c = encoded(made("topk", share=share), x)
    d = len(values)
    k = math.ceil(share * d - 1e-9)
    left = (x - c).dot(x - c)
    assert left <= (1 - k / d) * x.dot(x) * (1 + 1e-12)
    kept = sorted(values, key=abs, reverse=True)[:k]
    assert c.norm() ** 2 == pytest.approx(sum(v * v for v in kept), rel=1e-12, abs=1e-300)


def test_among_equals_the_first_coordinates_go() -> None:
    e = torch.tensor([1.0, -2.0, 2.0, 0.0, -1.0, 1.0])
    assert largest(e, 4).tolist() == [0, 1, 2, 4]
    assert largest(torch.zeros(5), 2).tolist() == [0, 1]


def test_topk_residual_by_hand() -> None:
    # k = 1 of 3. Round 1: e = (3, -2, 1): 3 is sent, (0, -2, 1) stays. Round 2 adds (0, -1, 1): e = (0, -3, 2): -3 is sent.
    topk = made("topk", share=1 / 3)
    _, memory, first = encoded(topk, Tree(w=torch.tensor([3.0, -2.0, 1.0])))
    assert first["w"].tolist() == [3.0, 0.0, 0.0]
    assert memory["x"].tolist() == [0.0, -2.0, 1.0]
    _, memory, second = encoded(topk, Tree(w=torch.tensor([0.0, -1.0, 1.0])), memory)
    assert second["w"].tolist() == [0.0, -3.0, 0.0]
    assert memory["x"].tolist() == [0.0, 0.0, 2.0]


def test_a_memory_waits_for_its_client() -> None:
    """A client that stays away keeps its memory, and adds to it when it is back."""
    fed = compressed("fedavg", "topk")
    server, host = play(fed, [(0, 1)])
    before = host.states.get(0)
    server, _ = play(fed, [(1, 2)], server=server, host=host, first=2)
    assert host.states.get(0) is before
    play(fed, [(0, 2)], server=server, host=host, first=3)
    assert not same(host.states.get(0), before)


DRAWS = 1000


def test_qsgd_is_unbiased_and_its_variance_is_bounded() -> None:
    """E[Q(v)] = v; per bucket E||Q(v) - v||^2 <= min(b/s^2, sqrt(b)/s) ||v||^2 with b = 512 (B15)."""
    for levels in (1, 3, 15):
        qsgd = made("qsgd", levels=levels)
        v = normal(700, dtype=torch.float64)
        found = torch.stack([encoded(qsgd, v, draw=t)[2].flatten() for t in range(DRAWS)])
        flat = v.flatten()
        step = torch.cat([flat[:BUCKET].norm().expand(BUCKET), flat[BUCKET:].norm().expand(700 - BUCKET)]) / levels
        up = (flat.abs() / step) % 1  # chance of the upper level
        sigma = step * (up * (1 - up) / DRAWS).sqrt()
        assert bool(((found.mean(0) - flat).abs() <= 5 * sigma + 2 * step / DRAWS).all())
        for bucket in (slice(0, BUCKET), slice(BUCKET, None)):
            error = float(((found - flat)[:, bucket] ** 2).sum(1).mean())
            length = float((flat[bucket] ** 2).sum())
            assert error <= min(BUCKET / levels**2, math.sqrt(BUCKET) / levels) * length


@settings(max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30), st.integers(1, 20), st.integers(0, 9))
def test_qsgd_rounds_to_a_neighbouring_level(values: list[float], levels: int, draw: int) -> None:
    """Each coordinate goes to one of the two levels beside it, with its sign; zeros stay zeros."""
    v = Tree(a=torch.tensor(values, dtype=torch.float64))
    sealed, _, q = encoded(made("qsgd", levels=levels), v, draw=draw)
    step = float(sealed["qsgd"]["norms"][0]) / levels
    assert float((q["a"] - v["a"]).abs().max()) <= step * (1 + 1e-9)
    assert bool(((q["a"] == 0) | (q["a"].sign() == v["a"].sign())).all())


def test_qsgd_of_zero_is_zero() -> None:
    _, _, q = encoded(made("qsgd"), Tree(a=torch.zeros(600), b=torch.zeros(3, 2)))
    assert same(q, Tree(a=torch.zeros(600), b=torch.zeros(3, 2)))


def test_qsgd_draws_anew_for_every_client_and_round() -> None:
    fed = compressed("fedavg", "qsgd")
    results: dict[tuple[int, int], torch.Tensor] = {}

    class Spy(SerialExecutor):
        def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
            for result in super().run(jobs):
                results[len(results), result.client] = result.update["model"]["qsgd"]["codes"]
                yield result

    flat = fed._replace(held=dict.fromkeys(fed.held, fed.held[1]))
    flat = flat._replace(bench=flat.bench._replace(rows=lambda party: flat.held[1]))
    play(flat, [(0, 1), (0, 1)], make=Spy, lr=1e-12)
    codes = list(results.values())
    assert all(not torch.equal(a, b) for i, a in enumerate(codes) for b in codes[:i])


@pytest.mark.parametrize("d", [1, 2, 511, 512, 513, 5000])
def test_wire_sizes(d: int) -> None:
    """k (32 + ceil(log2 d)) bits for top-k, d (ceil(log2(s+1)) + 1) + 32 ceil(d/512) for QSGD, 16 d for float16, besides heads."""
    x = Tree(a=torch.randn(d, generator=torch.Generator().manual_seed(d)))
    for share in (0.01, 0.3, 1.0):
        k = math.ceil(share * d - 1e-9)
        sealed = encoded(made("topk", share=share), x)[0]
        bits = k * (32 + math.ceil(math.log2(d)))
        assert tensor_bytes(sealed) == math.ceil(bits / 8)
        assert codec.size(sealed) <= bits / 8 + 512
    for s in (1, 3, 15, 16):
        sealed = encoded(made("qsgd", levels=s), x)[0]
        bits = d * (math.ceil(math.log2(s + 1)) + 1) + 32 * math.ceil(d / 512)
        assert tensor_bytes(sealed) == math.ceil(bits / 8)
        assert codec.size(sealed) <= bits / 8 + 512
    assert tensor_bytes(encoded(made("float16"), x)[0]) == 2 * d


def tensor_bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item) for item in value.values())
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


@settings(max_examples=60)
@given(st.integers(0, 32), st.data())
def test_bits_and_back(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=50))
    packed = pack(torch.tensor(codes, dtype=torch.int64), bits)
    assert packed.numel() == math.ceil(len(codes) * bits / 8)
    assert unpack(packed, bits, len(codes)).tolist() == codes


def test_bits_by_hand() -> None:
    assert pack(torch.tensor([5, 2, 7]), 3).tolist() == [0b10101011, 0b10000000]


def test_many_codes_are_packed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randint(0, 32, (1000,), generator=torch.Generator().manual_seed(0))
    whole = pack(codes, 5)
    monkeypatch.setattr("fedatlas.transforms.parts.PIECE", 64)
    assert torch.equal(pack(codes, 5), whole)
    assert torch.equal(unpack(whole, 5, 1000), codes)


def test_a_damaged_update_is_refused() -> None:
    topk, qsgd, x = made("topk"), made("qsgd"), normal(100)
    sealed = encoded(qsgd, x)[0]["qsgd"]
    with pytest.raises(TransportError, match="bytes of codes"):
        qsgd.decode({"x": {"qsgd": {**sealed, "codes": sealed["codes"][1:]}}})  # type: ignore[misc]
    sealed = encoded(topk, x)[0]["topk"]
    with pytest.raises(TransportError, match="place 127, but has only 100 places"):
        topk.decode({"x": {"topk": {**sealed, "places": torch.full_like(sealed["places"], 255)}}})  # type: ignore[misc]


def test_float16_errs_by_half_a_last_place() -> None:
    x = normal(5000)
    _, _, half = encoded(made("float16"), x)
    error, size = (half - x).flatten().abs(), x.flatten().abs()
    assert bool((error <= torch.maximum(2.0**-11 * size, torch.tensor(2.0**-25))).all())
    _, _, held = encoded(made("float16"), Tree(a=torch.tensor([1e6, -1e6])))
    assert held["a"].tolist() == [65504.0, -65504.0]


def test_clip_leaves_short_vectors_and_shortens_long_ones() -> None:
    """x min(1, M/||x||): within M bit for bit, else of length M in the same direction (B7)."""
    x = normal(100, dtype=torch.float64)
    length = x.norm()
    assert encoded(made("clip", norm=length), x)[2] is x
    _, _, short = encoded(made("clip", norm=length / 4), x)
    assert short.norm() == pytest.approx(length / 4, rel=1e-14)
    assert gap(short * 4.0, x) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wide_clip_is_no_clip(dtype: torch.dtype) -> None:
    """M = infinity is FedAvg, bit for bit and byte for byte (B7)."""
    fed = federation(ALGORITHMS["fedavg"](), dtype=dtype)
    plain, host = play(fed)
    clipped, clipped_host = play(fed._replace(bench=fed.bench._replace(transform=made("clip", norm=1e300))))
    assert same(plain, clipped)
    assert host.cost.bytes_up == clipped_host.cost.bytes_up


def test_no_client_moves_the_model_further_than_the_norm() -> None:
    fed = using(ALGORITHMS["fedavg"](), made("clip", norm=0.02))
    server, _ = play(fed, everyone(fed, 1))
    assert (server["model"] - fed.params).norm() <= 0.02 * (1 + 1e-12)
    alone, _ = play(fed, [(3,)])
    assert (alone["model"] - fed.params).norm() == pytest.approx(0.02, rel=1e-12)


# ------------------------------------------------------------------------------------------------ chains


def marking(mark: str, log: list[str]) -> Transform:
    """Changes nothing and notes when it was called."""

    def noted(what: str, value: Any) -> Any:
        log.append(f"{what} {mark}")
        return value

    return Transform(
        mark,
        encode=lambda update, memory, rng: (noted("encode", update), memory),
        decode=lambda sealed: noted("decode", sealed),
        finalize=lambda mean, done, rng: noted(f"finalize {done.m}", mean),
    )


def test_a_chain_goes_there_and_back() -> None:
    """Client side first to last, server side last to first, the mean after all updates."""
    log: list[str] = []
    play(using(ALGORITHMS["fedavg"](), chain(marking("a", log), marking("b", log))), [(0, 3)])
    one = ["encode a", "encode b", "decode b", "decode a"]
    assert log == [*one, *one, "finalize 2 b", "finalize 2 a"]


def test_finalize_has_the_last_word_on_the_mean() -> None:
    def noise(mean: Update, round: Round, rng: torch.Generator) -> Update:
        return {**mean, "model": mean["model"].map(lambda x: x + torch.rand((), generator=rng, dtype=x.dtype))}

    fed = federation(ALGORITHMS["fedavg"]())
    plain, _ = play(fed, cohorts(1))
    noisy = using(ALGORITHMS["fedavg"](), Transform("noise", lambda u, m, r: (u, m), finalize=noise))
    moved, _ = play(noisy, cohorts(1))
    again, _ = play(noisy, cohorts(1))
    difference = (moved["model"] - plain["model"]).flatten()
    assert same(moved, again)
    assert float(difference.min()) >= 0
    assert float(difference.max()) > 0.1


def test_clip_topk_qsgd_as_one() -> None:
    """Each sees what the one before it left: k values of a clipped change, quantised; memories are kept through all."""
    transform = chain(made("clip", norm=1.0), made("topk", share=0.1), made("qsgd", levels=7))
    x = normal(2000)
    sealed, memory, decoded = encoded(transform, x)
    assert int((decoded.flatten() != 0).sum()) <= 200
    assert decoded.norm() < 1.5
    assert tensor_bytes(sealed) == 200 * 11 // 8 + 200 * 4 // 8 + 4  # places, levels with signs, one length
    clipped = x * (1.0 / x.norm())
    chosen = clipped.flatten()[largest(clipped.flatten(), 200)]
    assert float((memory["1"]["x"] ** 2).sum() + (chosen**2).sum()) == pytest.approx(1.0, rel=1e-5)
    fed = using(ALGORITHMS["scaffold"](), transform)
    plain, host = play(fed)
    pool = partial(PoolExecutor, run_job=run_job, workers=2, chunk=2)
    if can_fork():
        together, pool_host = play(fed, make=pool)
        pool_host.executor.close()
        assert same(plain, together)
        assert same(states(host), states(pool_host))


def test_an_algorithm_whose_server_sees_each_is_given_updates_back() -> None:
    """reduce="each": what is handed over is a model again, near the one that was trained."""

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        replies = yield Ask(round.cohort, "train", messages(algorithm, server, round.cohort), "each")
        share = by_samples(round)
        model = server["model"].zeros()
        for k, update in replies.each.items():
            model = model + share[k] * update["model"]
        return {**server, "model": model}

    seen = {"train": Task(shows=("model",))}
    fed = using(Algorithm("each", rounds=rounds, tasks=seen), made("qsgd", levels=65535))
    each, host = play(fed)
    mean, mean_host = play(using(ALGORITHMS["fedavg"](), made("qsgd", levels=65535)))
    assert gap(each["model"], mean["model"]) < 1e-14
    assert host.cost.bytes_up == mean_host.cost.bytes_up
    plain, _ = play(federation(ALGORITHMS["fedavg"]()))
    assert 0 < gap(each["model"], plain["model"]) < 1e-3


def test_qsgd_rounds_its_norms_up() -> None:
    """A norm below its bucket's would hold the largest coordinates at the top level, and the mean would be too small."""
    v = torch.randn(40 * BUCKET, dtype=torch.float64, generator=torch_stream(1, "norms"))
    exact = v.reshape(-1, BUCKET).norm(dim=1)
    found = bucket_norms(v).double()
    assert bool((found >= exact).all())
    assert bool((exact.float().double() < exact).any())  # rounded to the nearest, some would be below
    assert float((found / exact).max()) < 1 + 2e-7
