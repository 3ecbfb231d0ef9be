"""Whole runs under ``[[privacy]]``: what a resume finds, what the ledger never forgets, and where no secret may be found."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment, secret
from fedatlas.api import resume, run
from fedatlas.engine.pool import can_fork
from fedatlas.errors import PrivacyError
from fedatlas.federation import secrets
from fedatlas.federation.secrets import JOURNAL, LEDGER, OPENED
from fedatlas.federation.server import Guard, ServerHalf
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.mechanisms import MECHANISMS, paillier, threshold_paillier
from fedatlas.privacy.paillier import cryptosystem
from fedatlas.privacy.secagg import client, keys
from fedatlas.privacy.sharing import additive
from fedatlas.setup import mechanism_choice
from test_accountant import direct_epsilon

TABLES: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 5},
    "model": {"hidden": [8]},
    "local": {"lr": 0.05},
    "engine": {"name": "loop"},
    "evaluation": {"every": 4},
}
CENTRAL = {"name": "central_dp", "clip": 0.5, "noise_multiplier": 1.5, "delta": 1e-3}
POISSON = {"sampling": "poisson", "fraction": 0.5}
UNIFORM = {"name": "fedavg", "weights": "uniform"}
MASKED = tuple({"name": name} for name in ("secagg", "paillier", "threshold_paillier", "bfv", "two_server"))
SEEDED = {"clip": 0.5, "noise_multiplier": 0.3, "noise": "seed"}
DISTRIBUTED = {"name": "distributed_dp", **SEEDED}
STOPPED = {
    **{one["name"]: (one,) for one in MASKED},
    "distributed_dp": (DISTRIBUTED,),
    "central_dp, secagg": ({"name": "central_dp", **SEEDED}, *MASKED[:1]),
}


@pytest.fixture
def toy_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paillier's keys of 256 bits in whole runs."""
    for build in (paillier, threshold_paillier):
        short = functools.wraps(build)(lambda build=build, **keys: build(**{**keys, "key_bits": 256}))
        monkeypatch.setitem(MECHANISMS, build.__name__, short)
    monkeypatch.setattr(mechanism_choice, "Protection", lambda *given: Protection(*given, testing=True))


def experiment(*privacy: dict[str, Any], **tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, "privacy": list(privacy), **tables})


def rows(path: Path) -> list[dict[str, Any]]:
    """What must not depend on interruptions, nor on keys."""
    skip = {"seconds", "seconds_by_phase", "peak_memory_bytes"}
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: x for key, x in row.items() if key not in skip} for row in found]


# ---------------------------------------------------------------------- resume


class Killed(BaseException):
    """Takes the place of a kill where nothing has to be flushed."""


def stop_at(monkeypatch: pytest.MonkeyPatch, round: int) -> Callable[[], None]:
    """The run dies when a sum of this round is about to be used: opened, in the journal, in no checkpoint."""
    guarded = ServerHalf._guarded

    def deadly(self: ServerHalf, ask: Any) -> Any:
        found = guarded(self, ask)
        if self.now.start.round == round and found.value is not None:
            raise Killed
        return found

    monkeypatch.setattr(ServerHalf, "_guarded", deadly)
    return lambda: monkeypatch.setattr(ServerHalf, "_guarded", guarded)


OFTEN = ("secagg", "distributed_dp")
"""Of these, the quick ones with a checkpoint after every round: one with a ledger, and one without."""


@pytest.mark.parametrize(
    ("privacy", "every"),
    [
        pytest.param(
            privacy, every, marks=() if every == 3 or name in OFTEN else pytest.mark.slow, id=f"{name}-{every}"
        )
        for name, privacy in STOPPED.items()
        for every in (1, 3)
    ],
)
def test_a_killed_run_ends_as_one_never_stopped(
    monkeypatch: pytest.MonkeyPatch, toy_keys: None, tmp_path: Path, privacy: tuple[dict[str, Any], ...], every: int
) -> None:
    """Other keys, the same rows and model; sums since the last checkpoint are read from the journal, however many they are."""
    dropout = 0.0 if privacy[0]["name"] == "threshold_paillier" else 0.2
    what = experiment(
        *privacy, algorithm={"name": "scaffold"}, checkpoint={"every": every}, failures={"dropout": dropout}, rounds=5
    )
    whole = run(what, out=tmp_path / "whole", baselines=False).path
    heal = stop_at(monkeypatch, 3)
    with pytest.raises(Killed):
        run(what, out=tmp_path / "killed", baselines=False)
    heal()
    opened = (tmp_path / "killed" / OPENED).read_bytes()
    done = resume(tmp_path / "killed", baselines=False)
    assert [r["accuracy"] for r in rows(done.path)] == [r["accuracy"] for r in rows(whole)]
    assert [r["clients"] for r in rows(done.path)] == [r["clients"] for r in rows(whole)]
    assert (done.path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    after = [json.loads(line) for line in (done.path / OPENED).read_text().splitlines()]
    assert (done.path / OPENED).read_bytes().startswith(opened)
    assert len({json.dumps(line) for line in after}) == len(after)  # no party opened a sum twice
    if (done.path / LEDGER).exists():  # a sum read from the journal is no further release
        assert [event.round for event in ledger.read(done.path / LEDGER).events] == [1, 2, 3, 4, 5]
    kept = sorted(int(file.name.split("-")[1]) for file in (done.path / JOURNAL).iterdir())
    assert kept == ([5] if every == 1 else [4, 5])  # of rounds that a kept checkpoint would repeat


# ---------------------------------------------------------------------- the ledger


def released(path: Path) -> int:
    """Noised sums that were used, as a witness beside the run has them."""
    return len(path.read_text().splitlines()) if path.exists() else 0


Moment = tuple[
    int, bool
]  # the n-th flush of a file from the ledger's first on; whether the process dies before it, or right behind


def life(path: Path, witness: Path, what: Experiment, moment: Moment) -> None:
    """Runs until the moment, and dies by kill -9. What noised sums were used until then stands beside it."""
    flush, guarded, calls = os.fsync, ServerHalf._guarded, 0

    def flushed(handle: int) -> None:
        nonlocal calls
        calls += (path / LEDGER).exists()
        if moment == (calls, True):
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)
        if moment == (calls, False):
            os.kill(os.getpid(), signal.SIGKILL)

    def witnessed(self: ServerHalf, ask: Any) -> Any:
        found = guarded(self, ask)
        with witness.open("a") as file:  # a process that is killed loses nothing that it wrote
            file.write(f"{self.now.start.round}\n")
        return found

    os.fsync, ServerHalf._guarded = flushed, witnessed
    if (path / "config.toml").exists():
        resume(path, baselines=False)
    else:
        run(what, out=path, baselines=False)


def forked(work: Callable[[], None]) -> bool:
    """Whether a child that does ``work`` was killed; it may not fail."""
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(Exception):
            work()
            code = 0
        os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def never_forgets(folder: Path, what: Experiment, moment: Moment) -> int:
    """A run that is killed and resumed reports what was released in both lives, or more; returns how much the first released."""
    path, witness = folder / "run", folder / "witness"
    folder.mkdir()
    assert forked(lambda: life(path, witness, what, moment))
    first = released(witness)
    assert len(ledger.read(path / LEDGER).events) >= first
    assert not forked(lambda: life(path, witness, what, (0, False)))
    events = ledger.read(path / LEDGER).events
    assert len(events) >= released(witness) >= what.config.rounds
    told = json.loads((path / "summary.json").read_text())["privacy"]
    assert told["releases"] == len(events)
    assert told["epsilon"] >= accountant.spent(events[: released(witness)], events[0].delta).epsilon
    return first


needs_fork = pytest.mark.skipif(not can_fork(), reason="this system has no fork, which kills a part of a test")


# Flushes of a run of two rounds: 1, 2 the ledger, 3 the row, 4, 5 the checkpoint, 6 the ledger, 7 the row, ..., 12 the summary.
@needs_fork
@pytest.mark.parametrize("moment", [(1, True), (3, True), (6, False)])
def test_a_killed_run_never_reports_less_than_was_released(tmp_path: Path, moment: Moment) -> None:
    """Killed before the first line of the ledger is flushed, after its release was used, behind the second."""
    what = experiment(CENTRAL, cohort=POISSON, algorithm=UNIFORM, rounds=2, evaluation={"every": 2})
    assert never_forgets(tmp_path / "one", what, moment) == {1: 0, 3: 1, 6: 1}[moment[0]]


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("name", ["central_dp", "local_dp"])
def test_a_run_killed_at_twenty_moments_never_reports_less(tmp_path: Path, name: str) -> None:
    """Before and behind each flush from the first round on, up to the summary."""
    privacy, tables = {
        "central_dp": (CENTRAL, {"cohort": POISSON}),
        "local_dp": ({"name": "local_dp", "epsilon": 50.0, "clip": 0.5}, {}),
    }[name]
    what = experiment(privacy, algorithm=UNIFORM, rounds=2, evaluation={"every": 2}, **tables)
    moments = [(flush, before) for flush in range(1, 13) for before in (True, False)][:22]
    seen = [never_forgets(tmp_path / str(i), what, moment) for i, moment in enumerate(moments)]
    assert len(seen) > 20
    assert {0, 1, 2} == {*seen}


@pytest.mark.parametrize(
    ("rate", "multiplier", "rounds"), [(0.5, 1.5, 4), (0.2, 1.0, 3), (0.9, 2.0, 2), (1.0, 3.0, 5), (0.3, 0.8, 1)]
)
def test_the_summarys_epsilon_is_an_independent_accounts(
    tmp_path: Path, rate: float, multiplier: float, rounds: int
) -> None:
    """Privacy losses summed on a grid from the definition alone: within 0.1 %."""
    cohort = {"sampling": "poisson", "fraction": rate} if rate < 1 else {"fraction": 1.0}
    privacy = {**CENTRAL, "noise_multiplier": multiplier}
    what = experiment(privacy, cohort=cohort, algorithm=UNIFORM, rounds=rounds, evaluation={"every": rounds})
    found = run(what, out=tmp_path / "run", baselines=False).summary["privacy"]
    expected = direct_epsilon(multiplier, rate, rounds, CENTRAL["delta"])
    assert found["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert found["releases"] == rounds
    assert found["delta"] == CENTRAL["delta"]


# ---------------------------------------------------------------------- secrets


LONGEST = 1024  # bytes of a draw that are searched for: of a whole share its beginning tells as much


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that comes from the operating system's generator through `fedatlas.secret`, and the primes made of it."""
    found: list[bytes] = []
    real, below, generate = secret.random_bytes, secret.integer_below, cryptosystem.generate

    def random_bytes(count: int) -> bytes:
        out = real(count)
        found.append(out[:LONGEST])
        return out

    def integer_below(bound: int) -> int:
        number = below(bound)
        found.append(number.to_bytes(-(-bound.bit_length() // 8), "big"))
        return number

    def generated(*given: Any, **named: Any) -> cryptosystem.PrivateKey:
        made = generate(*given, **named)
        found.extend(x.to_bytes(-(-int(x).bit_length() // 8), "big") for x in (int(made.p), int(made.q)))
        return made

    monkeypatch.setattr(secret, "random_bytes", random_bytes)
    monkeypatch.setattr(secret, "integer_below", integer_below)
    monkeypatch.setattr(cryptosystem, "generate", generated)
    for function in (
        client.advertise,
        client.share,
        keys.drawn,
        keys.identity,
        additive.split,
    ):  # took it when they were defined
        defaults = tuple(random_bytes if one is real else one for one in function.__defaults__ or ())
        monkeypatch.setattr(function, "__defaults__", defaults)
    return found


def forms(raw: bytes) -> Iterator[bytes]:
    """As they may be written: raw, the other way round, hexadecimal, decimal."""
    for each in (raw, raw[::-1]):
        yield each
        yield each.hex().encode()
        yield str(int.from_bytes(each, "big")).encode()


def leaks(drawn: list[bytes], texts: list[bytes]) -> list[bytes]:
    """Secrets of 12 bytes or more that stand anywhere in these texts."""
    return [raw for raw in {*drawn} if len(raw) >= 12 and any(form in text for form in forms(raw) for text in texts)]


def left(path: Path) -> list[bytes]:
    """All that a run leaves, with the names of its files."""
    files = [file for file in path.rglob("*") if file.is_file()]
    assert not [file.name for file in files if "key" in file.name or "secret" in file.name]
    return [*(file.read_bytes() for file in files), *(file.name.encode() for file in files)]


HIDING: list[tuple[Any, dict[str, Any]]] = [
    (({"name": "secagg"},), {"algorithm": {"name": "scaffold"}, "failures": {"dropout": 0.2}}),
    (({"name": "paillier"},), {"algorithm": {"name": "hwfedavg"}}),
    (({"name": "two_server"},), {"algorithm": {"name": "hwfedavg"}, "failures": {"dropout": 0.2}}),
    (({"name": "threshold_paillier", "short_exponent": 512},), {}),
    (({"name": "ckks", "encrypt": "output"},), {"algorithm": UNIFORM}),
    ((CENTRAL,), {"algorithm": UNIFORM, "cohort": POISSON}),
    (({"name": "local_dp", "epsilon": 50.0, "clip": 0.5}, {"name": "secagg"}), {"algorithm": UNIFORM}),
    (({"name": "nbafl", "epsilon": 50.0, "clip": 10.0},), {"algorithm": UNIFORM}),
    (({"name": "distributed_dp", "clip": 0.5},), {"algorithm": UNIFORM, "failures": {"dropout": 0.2}}),
    ((CENTRAL, {"name": "secagg"}), {"algorithm": UNIFORM}),
]


@pytest.mark.timing
@pytest.mark.parametrize(
    ("privacy", "tables"), HIDING, ids=lambda x: "+".join(p["name"] for p in x) if isinstance(x, tuple) else ""
)
def test_no_secret_is_found_in_what_a_run_leaves(
    toy_keys: None,
    drawn: list[bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    privacy: Any,
    tables: dict[str, Any],
) -> None:
    """Files of the run, its report, logs, what it prints; and the search finds what is there."""
    caplog.set_level(logging.DEBUG)
    path = run(experiment(*privacy, **{"rounds": 2, **tables}), out=tmp_path / "run", baselines=False).path
    assert sum(len(raw) >= 12 for raw in drawn) > 1
    said = capfd.readouterr()
    texts = [*left(path), caplog.text.encode(), said.out.encode(), said.err.encode()]
    assert leaks(drawn, texts) == []
    longest = max(drawn, key=len)
    for form in forms(longest):
        assert leaks(drawn, [b"before" + form + b"behind"]) == [longest]


@pytest.mark.timing
@pytest.mark.parametrize("privacy", MASKED[:4], ids=lambda one: one["name"] if isinstance(one, dict) else None)
def test_no_secret_stands_in_an_exception(
    toy_keys: None, drawn: list[bytes], tmp_path: Path, privacy: dict[str, Any]
) -> None:
    """A value out of range ends the run in the middle of a session: the sentence, its causes and the folder tell nothing."""
    with pytest.raises(PrivacyError, match="range = ") as caught:
        run(experiment({**privacy, "range": 1e-6}), out=tmp_path / "run", baselines=False)
    error: BaseException | None = caught.value
    texts = left(tmp_path / "run")
    while error is not None:
        texts += [repr(error).encode(), str(error).encode(), repr(error.args).encode()]
        error = error.__cause__ or error.__context__
    assert drawn
    assert leaks(drawn, texts) == []


def test_what_the_server_holds_shows_no_secret(drawn: list[bytes], tmp_path: Path) -> None:
    """Neither printed nor in its fields: public keys, the journal and the ledger alone."""
    made: list[Guard] = []
    original = secrets.Keyring.guard

    def kept(self: Any, *given: Any) -> Guard:
        made.append(original(self, *given))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets.Keyring, "guard", kept)
        run(experiment({"name": "secagg"}, rounds=1), out=tmp_path / "run", baselines=False)
    fields = {name: x for name, x in made[0]._asdict().items() if name not in {"journal", "note"}}
    assert leaks(drawn, [repr(fields).encode(), *made[0].public.values()]) == []


# ---------------------------------------------------------------------- accuracy


def scores(path: Path) -> list[float]:
    return [row["macro_f1"] for row in rows(path)]


@pytest.mark.parametrize(
    "name", ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hwfedavg", "nwfedavg"))]
)
def test_fine_steps_change_no_score(tmp_path: Path, name: str) -> None:
    """T3's setting, small: bits = 29 across [-16, 16) is P11's f = 24. The default of 24 bits (f = 19) stays within 0.005."""
    tables = {
        "partition": {"name": "majority_even", "clients": 10},
        "algorithm": {"name": name},
        "evaluation": {"every": 1},
        "local": {"lr": 0.02, "batch_size": 8, "epochs": 2},
        "model": {"hidden": [64]},
        "rounds": 4,
    }
    plain = scores(run(experiment(**tables), out=tmp_path / "plain", baselines=False).path)
    fine = scores(
        run(experiment({"name": "secagg", "bits": 29}, **tables), out=tmp_path / "fine", baselines=False).path
    )
    usual = scores(run(experiment({"name": "secagg"}, **tables), out=tmp_path / "usual", baselines=False).path)
    assert fine == plain
    assert max(abs(a - b) for a, b in zip(usual, plain, strict=True)) <= 0.005
    assert plain[-1] > 0.8
    assert all(math.isfinite(x) for x in usual)


def test_the_same_with_ciphertexts(toy_keys: None, tmp_path: Path) -> None:
    tables = {"algorithm": {"name": "hwfedavg"}, "evaluation": {"every": 1}, "model": {"hidden": []}}
    plain = scores(run(experiment(**tables), out=tmp_path / "plain", baselines=False).path)
    fine = experiment({"name": "paillier", "bits": 29}, **tables)
    assert scores(run(fine, out=tmp_path / "fine", baselines=False).path) == plain
