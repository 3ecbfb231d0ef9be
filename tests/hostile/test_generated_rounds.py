"""A search over every mechanism of rounds: each field of what a client sends and is told, changed in every way, one at a time.

Whatever a client sends, the round goes on with the others, or with a value in the form that is due, or changes nothing; the next round
has everybody. Whatever the server tells, those who cannot read it refuse in one sentence. The model stays one of numbers.
Mechanisms that change rows before round 1 are in `test_generated_rows`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from fedatlas.privacy.mechanism import on_updates
from fedatlas.privacy.mechanisms import beside, every, made
from lies_in_rounds import LIAR, Lie, Mechanisms, Outcome, Played, apart, whole
from protected import ALL, toy_paillier, toy_threshold

NOISE = {"clip": 0.5, "noise_multiplier": 0.1, "noise": "seed"}
ROUNDS: Mapping[str, Mechanisms] = {
    "secagg": lambda: [made("secagg")],
    "secagg, sparse": lambda: [made("secagg", {"neighbours": 4})],
    "paillier": lambda: [toy_paillier()],
    "paillier, weights by the client": lambda: [toy_paillier(weights_by="client")],
    "threshold_paillier": lambda: [toy_threshold()],
    "bfv": lambda: [made("bfv")],
    "ckks": lambda: [made("ckks", {"range": 16.0})],
    "two_server": lambda: [made("two_server")],
    "central_dp": lambda: [made("central_dp", NOISE)],
    "central_dp, adaptive": lambda: [made("central_dp", {**NOISE, "clip": "adaptive"})],
    "dp_ftrl": lambda: [made("dp_ftrl", {**NOISE, "restart": 3})],
    "central_dp, over secagg": lambda: beside([made("central_dp", NOISE), made("secagg")]),
    "distributed_dp": lambda: [made("distributed_dp", NOISE)],
    "local_dp": lambda: [made("local_dp", {"clip": 0.5, "epsilon": 50.0, "noise": "seed"})],
    "nbafl": lambda: [made("nbafl", {"noise": "seed"})],
    "dp_sgd": lambda: [made("dp_sgd", {"clip": 0.3, "noise": "seed"})],
}
IN_FORM = {"other values", "next"}  # a client may send other numbers than its own: nobody can see that
CLOSE = 1e-4  # what masks and codes round


def test_no_mechanism_of_rounds_is_forgotten() -> None:
    assert {name.split(",")[0] for name in ROUNDS} == {one.name for one in on_updates([*every().values()])}


def wrong(lie: Lie, found: Outcome, played: Played) -> str:
    """What is wrong with the outcome of a lie; "" if nothing."""
    said = [*found.refusals, *([found.ended] if found.ended else [])]
    if found.error:
        return f"fell over: {found.error}"
    if found.ended:
        return f"ended the run: {found.ended}"
    if not whole(found.model, played.honest) or not whole(found.later, played.honest):
        return "spoilt the model"
    if any("\n" in one or len(one) > 400 for one in said):
        return f"said no sentence: {max(said, key=len)[:400]}"
    if lie.side != "sent":
        return ""
    if found.again != {*ALL}:
        return f"left {sorted({*ALL} - found.again)} out of the next round"
    expected = [played.honest] if LIAR in found.counted else [played.begun, played.without]
    moved = min(apart(found.model, one) for one in expected)
    return f"moved the model by {moved:.2g}" if moved > CLOSE and lie.name not in IN_FORM else ""


def search(name: str, most: int) -> tuple[int, list[str]]:
    """(how many lies were told, what was wrong)."""
    played = Played(ROUNDS[name])
    every_lie = list(played.lies())
    chosen = random.Random(name).sample(every_lie, min(most, len(every_lie)))  # noqa: S311  # chooses what is tried
    found = [(lie, wrong(lie, played.outcome(lie), played)) for lie in chosen]
    return len(chosen), [f"{lie}: {what}" for lie, what in found if what]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_lie_in_a_round_spoils_nothing(name: str) -> None:
    tried, faults = search(name, 4)
    assert tried == 4
    assert not faults, "\n".join(faults[:10])


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_no_lie_in_a_round_spoils_anything(name: str) -> None:
    tried, faults = search(name, 600)
    assert tried > 150
    assert not faults, "\n".join(faults[:20])


@pytest.mark.parametrize("name", ROUNDS)
def test_an_honest_round_counts_everybody(name: str) -> None:
    """The search begins at rounds in which nobody is refused, and sees every question of the protocol, both ways."""
    played = Played(ROUNDS[name])
    assert apart(played.honest, played.begun) > CLOSE
    protocol = played.mechanisms()[-1].work().protocol
    asks = {"train", *(protocol.questions if protocol is not None else ())}
    assert set(played.messages) == {(side, what) for side in ("sent", "told") for what in asks}
