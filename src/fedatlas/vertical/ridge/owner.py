"""An owner of rows: it says how many rows it has and how large they are, encrypts its normal equations, and gets the coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import State
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.align import Answered
from fedatlas.vertical.letters import LETTERS, blamed, letter, taken, unusable
from fedatlas.vertical.parties import Columns, tensor
from fedatlas.vertical.ridge import masking, numbers
from fedatlas.vertical.ridge.roles import (
    COEFFICIENTS,
    EQUATIONS,
    EXTENT,
    MASKS,
    PLAIN,
    PLAN,
    SOLUTION,
    engine,
    in_letter,
    key_kept,
    key_told,
    outputs_of,
    own_rows,
    planned_of,
    provider,
    sealer,
    targets,
)
from fedatlas.vertical.ridge.settings import Ridge


def extent(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Tell the engine the number of rows, and for each column and the label the power of two that no value exceeds."""
    return {LETTERS: [letter(data, [engine(data)], EXTENT.topic, _extent(data, state), secret=True)]}, state, session


def _extent(data: Columns, state: State) -> dict[str, Any]:
    x, y = own_rows(data, state)
    label = np.zeros(1, np.int64) if data.classes else numbers.exponents(y)
    return {"rows": len(x), "largest": tensor(np.concatenate([numbers.exponents(x), label]))}


def keep_plan(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the plan, if the party's numbers and the solution fit into it."""
    own = _extent(data, state)
    told = taken(data, message, engine(data), PLAN, columns=len(own["largest"]))
    plan = planned_of(told)
    name = data.parties[engine(data)]
    if plan.rows < own["rows"] or bool((told["largest"] < own["largest"]).any()):
        raise unusable(name, PLAN.topic, f"it has no room for the numbers of '{data.name}'")
    with blamed(data, engine(data), PLAN):
        plan = numbers.planned(plan.rows, plan.largest, how.l2, plan.precision, how.key_bits)
    return {}, {**state, "ridge": {"plan": in_letter(plan)}}, session


def equations(data: Columns, state: State, modulus: int) -> list[int]:
    """Return X'X and X'y of the party's training rows as whole numbers below a modulus (`masking.flat`)."""
    plan = planned_of(state["ridge"]["plan"])
    x, y = own_rows(data, state)
    ones = np.full((len(x), 1), 1 << plan.precision)
    left = np.concatenate([numbers.whole(x, plan.largest[:-1], plan.precision), ones], axis=1)
    right = numbers.whole(y, [plan.largest[-1]] * y.shape[1], plan.precision)
    return [m % modulus for m in masking.flat(numbers.products(left, left), numbers.products(left, right))]


def encrypt(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the engine the encrypted X'X and X'y of the party's rows."""
    told, public = key_told(how, data, message)
    keys = sealer(public, paillier.base_of(told))
    sent = paillier.encrypt(public, equations(data, state, public.n), keys=keys, workers=data.workers)
    return (
        {LETTERS: [letter(data, [engine(data)], EQUATIONS.topic, sent.plain(), secret=True)]},
        {**state, "ridge": {**state["ridge"], "n": told["n"]}},
        session,
    )


def tell(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the engine X'X and X'y in the clear."""
    sent = masking.as_bytes([equations(data, state, masking.CLEAR)], masking.CLEAR)
    return {LETTERS: [letter(data, [engine(data)], PLAIN.topic, {"numbers": sent}, secret=True)]}, state, session


def hold(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the masked solution, to which the masks come in the next phase."""
    width, count = planned_of(state["ridge"]["plan"]).width, -(-how.key_bits // 8)
    told = taken(data, message, provider(data), SOLUTION, entries=width * targets(data), bytes=count)
    return {}, {**state, "ridge": {**state["ridge"], "solution": told["solution"]}}, session


def finish(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the coefficients: the engine's, or the party's own from the masked solution and the masks."""
    held = state["ridge"]
    plan, c = planned_of(held["plan"]), targets(data)
    if how.told == "engine":
        told = taken(data, message, engine(data), COEFFICIENTS, columns=plan.width, targets=c)
        found: torch.Tensor = told["coefficients"]
    else:
        sizes = {"square": plan.width**2, "entries": plan.width * c, "bytes": -(-how.key_bits // 8)}
        told = taken(data, message, engine(data), MASKS, **sizes)
        matrix, shift = masking.from_bytes(told["matrix"], plan.width), masking.from_bytes(told["shift"], c)
        with blamed(data, engine(data), MASKS):
            solution = masking.unmasked(masking.from_bytes(held["solution"], c), matrix, shift, key_kept(held).n)
        found = tensor(plan.unscaled(solution))
    error = numbers.error(plan, how.l2, *own_rows(data, state), found.numpy())
    kept = {
        "plan": held["plan"],
        "coefficients": found,
        "error": error,
        "outputs": tensor(outputs_of(data, found.numpy())),
    }
    return {}, {**state, "ridge": kept}, session
