"""Steps in C: the kernels against torch, whole steps against the oracle, and what they fall back to."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import federation as small
from fedatlas import Experiment, run
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine import compiler
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.native import KERNELS
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.engine.program import derive
from fedatlas.errors import ConfigError, DivergedError
from steps import (
    DIRECTIONS,
    OPTIMIZERS,
    Smooth,
    batches_of,
    furthest,
    inputs_of,
    made,
    noise,
    oracle,
    parts,
    spec_of,
    stepped,
)
from test_plans import kinds

pytestmark = pytest.mark.skipif(compiler.find_compiler() is None, reason="no C compiler was found")


class Deep(nn.Module):
    """Two hidden layers whose widths leave a rest behind every tile."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(37, 23), nn.ReLU(), nn.Linear(23, 11), nn.Sigmoid(), nn.Linear(11, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return y


# ---------------------------------------------------------------------- kernels

PROBE = """
void dots(long I, long J, long K, real *out, const real *A, const real *B, const real *Z, double beta, double alpha) {
  product_dots(I, J, K, out, J, 1, A, K, B, K, Z, 0, 1, beta, alpha);
}
void outer(long I, long J, long K, real *out, const real *A, const real *B, const real *Z, double own, double other,
           double alpha) {
  product_outer(I, J, K, out, J, A, 1, I, B, J, Z, J, own, other, alpha);
}
"""


@functools.cache
def probe(real: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(compiler.library(f"#define REAL {real}\n{KERNELS}\n{PROBE}")))


def places(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors]


@pytest.mark.parametrize(("real", "dtype"), [("float", torch.float32), ("double", torch.float64)])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 13), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.sampled_from([0.0, 1.0, 0.7]))
def test_products(real: str, dtype: torch.dtype, rows: int, columns: int, inner: int, added: bool, own: float) -> None:
    """Both forms of a product, of any size: the rests behind the tiles, what is added, what is kept."""
    stream = torch.Generator().manual_seed(rows * 1000 + columns * 50 + inner)
    a, b, start = (
        torch.randn(shape, generator=stream, dtype=dtype)
        for shape in ((rows, inner), (columns, inner), (rows, columns))
    )
    bias, whole = torch.randn(columns, generator=stream, dtype=dtype), torch.randn(rows, columns, dtype=dtype)
    numbers = [ctypes.c_double(x) for x in (own, 0.3, -1.5)]
    out = torch.full_like(start, torch.nan)
    probe(real).dots(rows, columns, inner, *places(out, a, b, bias if added else None), numbers[1], numbers[2])
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if real == "float" else {"rtol": 1e-13, "atol": 1e-12}
    assert torch.allclose(out, (0.3 * bias if added else 0) - 1.5 * a @ b.T, **tolerance)
    out = start.clone() if own else torch.full_like(start, torch.nan)
    left, right = a.T.contiguous(), b.T.contiguous()
    probe(real).outer(rows, columns, inner, *places(out, left, right, whole if added else None), *numbers)
    assert torch.allclose(out, own * start + (0.3 * whole if added else 0) - 1.5 * a @ b.T, **tolerance)


# ---------------------------------------------------------------------- whole steps


@pytest.mark.parametrize("module", [Smooth, Deep])
@pytest.mark.parametrize(
    ("direction", "optimizer", "clip"),
    [
        *((direction, "sgd", 0.0) for direction in DIRECTIONS),
        ("feddyn", "momentum", 0.5),
        ("scaffold", "nesterov", 0.0),
    ],
)
def test_steps(direction: str, optimizer: str, clip: float, module: type[nn.Module]) -> None:
    """Steps over ragged batches equal the oracle's, for two values of everything that is told to a client."""
    net = made(module)
    spec = spec_of(net, direction=DIRECTIONS[direction], optimizer=OPTIMIZERS[optimizer], clip=clip)
    batches = batches_of((net.a if module is Smooth else net.net[0]).weight.shape[1:], [7, 2, 7])
    params, buffers = parts(net)
    programs = {len(b.x): derive(spec, b, inputs_of(params, 0), native=True) for b in batches}
    assert all("native" in program.note and program.emitted.code for program in programs.values())
    for k in (0, 1):
        begin, inputs = params + noise(params, 50 + k), inputs_of(params, k)
        expected, _, expected_losses = oracle(spec, begin, buffers, inputs, batches)
        got, _, losses = stepped(programs, begin, buffers, inputs, batches)
        assert furthest(got, expected) < 1e-12
        assert losses == pytest.approx(expected_losses, rel=1e-12)


def test_sums_wait_for_the_product_that_follows() -> None:
    """SCAFFOLD's correction is added to a weight while it is at hand, not in a pass of its own."""
    net = made(Smooth)
    batch = batches_of((12,), [5])[0]
    inputs = inputs_of(parts(net)[0], 0, decay=False)
    products: list[list[str]] = []
    loops: list[int] = []
    for name in ("fedavg", "scaffold"):
        code = derive(spec_of(net, direction=DIRECTIONS[name]), batch, inputs, native=True).emitted.code
        step = code[code.index("double step(") :].splitlines()
        products.append([line for line in step if "product_outer" in line and "(real)1.0, " in line])
        loops.append(sum(line.strip().startswith("for (long i0") for line in step))
    plain, corrected = products
    assert len(plain) == len(corrected) == 2
    assert loops[1] - loops[0] == 2  # the corrections of the biases
    assert all(", 0, 0, (real)1.0, 0," in line for line in plain)
    assert not any(", 0, 0, (real)1.0" in line for line in corrected)


def mean_cross_entropy(outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    return nn.functional.cross_entropy(outputs, y)


def native(bench: Bench) -> SerialExecutor:
    return SerialExecutor(bench, FastRunner(bench, small.SIZES, "native", "float64"))


@pytest.mark.parametrize("name", [names[0] for names in kinds().values()])
def test_every_kind_of_step(name: str) -> None:
    """A federation under steps in C agrees with the oracle for every kind of step, whether or not it can be written so."""
    fed = small.federation(ALGORITHMS[name](), loss=mean_cross_entropy)
    expected, host = small.play(fed, lr=0.05)
    made_of = native(fed.bench)
    found, other = small.play(fed, make=lambda bench: made_of, lr=0.05)
    assert any(": native" in note for note in made_of.run_job.notes())
    assert small.gap(expected, found) < 1e-11
    for k, work in host.view.work.items():
        assert other.view.work[k].loss == pytest.approx(work.loss, abs=1e-11)


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
def test_workers_give_the_same_bits() -> None:
    """Any number of workers and any chunk size."""
    fed = small.federation(ALGORITHMS["scaffold"](), loss=mean_cross_entropy)
    alone, _ = small.play(fed, make=native)

    def pool(bench: Bench) -> PoolExecutor:
        return PoolExecutor(bench, FastRunner(bench, small.SIZES, "native", "float64"), 2, 3)

    together, host = small.play(fed, make=pool)
    host.executor.close()
    assert small.same(alone, together)


# ---------------------------------------------------------------------- what it falls back to


def test_convolutions_keep_the_calls_of_torch() -> None:
    """The note says why."""
    net = made(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)))
    program = derive(spec_of(net), batches_of((1, 4, 4), [5])[0], {"lr": 0.1}, native=True)
    assert not program.emitted.code
    assert "not native: aten.convolution.default has no C" in program.note


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is made of torch's calls, and the note says so."""
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken && exit 0\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    program = derive(spec_of(made(Smooth)), batches_of((12,), [5])[0], {"lr": 0.1}, native=True)
    assert not program.emitted.code
    assert "not native: Command" in program.note


@pytest.fixture
def tables() -> dict[str, Any]:
    return {"rounds": 2, "engine": {"plan": "native", "workers": 1}, "model": {"name": "mlp"}}


def test_a_run(tmp_path: Path, tables: dict[str, Any]) -> None:
    """The plan is recorded, and ends where the program's does."""
    found = run(Experiment.of(**tables), out=tmp_path / "native", baselines=False)
    other = run(
        Experiment.of(**{**tables, "engine": {"plan": "program", "workers": 1}}),
        out=tmp_path / "program",
        baselines=False,
    )
    assert found.summary["plan"]["step"] == "native"
    assert found.summary["final"]["loss"] == pytest.approx(other.summary["final"]["loss"], rel=1e-4)


def test_no_compiler_is_refused(tmp_path: Path, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything trains, with what to do."""
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C compiler was found; install gcc or clang, or use 'auto'"):
        run(Experiment.of(**tables), out=tmp_path / "run")


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, tables: dict[str, Any]) -> None:
    """ReLU and the maximum of a row let NaN through."""
    with pytest.raises(DivergedError, match="training loss of client"):
        run(Experiment.of(**{**tables, "local": {"lr": 1e30}}), out=tmp_path / "run")


def test_a_label_that_is_no_class_touches_no_memory() -> None:
    """The loss is no number, which ends a run; torch would raise an error."""
    net, batch = made(Smooth), batches_of((12,), [5])[0]
    params, buffers = parts(net)
    program = derive(spec_of(net), batch, {"lr": 0.1}, native=True)
    assert program.emitted.code
    strange = batch._replace(y=torch.tensor([0, 1, 4, 10**6, -1]))
    _, _, losses = stepped({5: program}, params, buffers, {"lr": 0.1}, [strange])
    assert losses[0] != losses[0]


def test_a_text_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time it is taken from the cache."""
    code = f"#define REAL float\n{KERNELS}\n{PROBE}"
    path = compiler.library(code)
    stamp = path.stat().st_mtime_ns

    def refuse(*args: Any, **keys: Any) -> None:
        raise AssertionError("compiled again")

    compiler.version(compiler.find_compiler() or "")
    monkeypatch.setattr(compiler.subprocess, "run", refuse)
    assert compiler.library(code) == path
    assert path.stat().st_mtime_ns == stamp
