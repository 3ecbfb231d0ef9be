"""The engine: it adds up encrypted normal equations, masks them, and takes the masks off the solution. It never has the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import State
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.align import Answered
from fedatlas.vertical.letters import LETTERS, blamed, letter, taken
from fedatlas.vertical.parties import Columns, tensor
from fedatlas.vertical.ridge import masking, numbers
from fedatlas.vertical.ridge.roles import (
    COEFFICIENTS,
    EQUATIONS,
    EXTENT,
    MASKED,
    MASKS,
    PLAIN,
    PLAN,
    SOLUTION,
    entries,
    in_letter,
    key_kept,
    key_told,
    owners,
    planned_of,
    provider,
    sealer,
    targets,
)
from fedatlas.vertical.ridge.settings import Ridge


def plan(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Choose the fixed point for all rows, and tell the owners. PrivacyError if the key has no room for it."""
    told = [taken(data, message, k, EXTENT, columns=len(data.names) + 1) for k in owners(len(data.parties))]
    largest = torch.stack([one["largest"] for one in told]).max(dim=0).values.tolist()
    found = numbers.planned(sum(one["rows"] for one in told), largest, how.l2, how.precision, how.key_bits)
    to = owners(len(data.parties))
    sent = letter(data, to, PLAN.topic, in_letter(found), secret=True)
    return {LETTERS: [sent]}, {**state, "ridge": {"plan": in_letter(found)}}, session


def add_up(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the sum of all owners' encrypted equations and of the penalty."""
    told, public = key_told(how, data, message)
    held = state["ridge"]
    width, c = planned_of(held["plan"]).width, targets(data)
    count, parts = entries(width, c), []
    for k in owners(len(data.parties)):
        one = taken(data, message, k, EQUATIONS, count=count, width=public.width)
        with blamed(data, k, EQUATIONS):
            parts.append(paillier.received(public, one, count))
    diagonal = np.diag(np.array(planned_of(held["plan"]).penalties(how.l2), object)).tolist()
    penalty = masking.flat(diagonal, [[0] * c for _ in range(width)])
    parts.append(paillier.encrypt(public, penalty, keys=sealer(public, paillier.base_of(told)), workers=data.workers))
    sums = paillier.weighted_sum(public, parts, [1] * len(parts), workers=data.workers)
    return {}, {**state, "ridge": {**held, **told, "equations": sums.plain()}}, session


def add_up_plain(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the solution of equations that crossed in the clear. DataError if they are singular."""
    plan_, c = planned_of(state["ridge"]["plan"]), targets(data)
    sizes = {"count": entries(plan_.width, c), "width": -(-masking.CLEAR.bit_length() // 8)}
    parts = [taken(data, message, k, PLAIN, **sizes)["numbers"] for k in owners(len(data.parties))]
    values = [sum(one) for one in zip(*(masking.from_bytes(part, sizes["count"])[0] for part in parts), strict=True)]
    a, b = masking.of_flat(values, plan_.width)
    for j, penalty in enumerate(plan_.penalties(how.l2)):
        a[j][j] += penalty
    solution = [[masking.fraction(x, masking.CLEAR) for x in row] for row in masking.solved(a, b, masking.CLEAR)]
    return {}, {**state, "ridge": {"plan": in_letter(plan_), "coefficients": tensor(plan_.unscaled(solution))}}, session


def mask(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the provider the equations under masks, which the engine keeps."""
    held = state["ridge"]
    public, width = key_kept(held), planned_of(held["plan"]).width
    matrix, shift = masking.drawn(width, width, public.n), masking.drawn(width, targets(data), public.n)
    equations = paillier.Batch(held["equations"]["key"], held["equations"]["ciphertexts"])
    keys = sealer(public, paillier.base_of(held))
    sent = {"columns": width, **masking.masked(keys, equations, matrix, shift, data.workers).plain()}
    masks = {"matrix": masking.as_bytes(matrix, public.n), "shift": masking.as_bytes(shift, public.n)}
    kept = {"plan": held["plan"], "n": held["n"], **masks}
    told = letter(data, [provider(data)], MASKED.topic, sent, secret=True)
    return {LETTERS: [told]}, {**state, "ridge": kept}, session


def hold(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the masked solution."""
    held = state["ridge"]
    entries, width = held["shift"].shape
    told = taken(data, message, provider(data), SOLUTION, entries=entries, bytes=width)
    return {}, {**state, "ridge": {**held, "solution": told["solution"]}}, session


def unmask(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the owners the coefficients, or, where the engine is not to learn them, the masks; and forget the masks."""
    held, c, to = state["ridge"], targets(data), owners(len(data.parties))
    if not how.encrypted:
        told = letter(data, to, COEFFICIENTS.topic, {"coefficients": held["coefficients"]}, secret=True)
        return {LETTERS: [told]}, state, session
    if how.reveal == "owners":
        masks = {"matrix": held["matrix"], "shift": held["shift"]}
        told = letter(data, to, MASKS.topic, masks, secret=True)
        return {LETTERS: [told]}, {**state, "ridge": {"plan": held["plan"]}}, session
    found = planned_of(held["plan"])
    matrix, shift = masking.from_bytes(held["matrix"], found.width), masking.from_bytes(held["shift"], c)
    with blamed(data, provider(data), SOLUTION):
        solution = masking.unmasked(masking.from_bytes(held["solution"], c), matrix, shift, key_kept(held).n)
    coefficients = tensor(found.unscaled(solution))
    told = letter(data, to, COEFFICIENTS.topic, {"coefficients": coefficients}, secret=True)
    return {LETTERS: [told]}, {**state, "ridge": {"plan": held["plan"], "coefficients": coefficients}}, session
