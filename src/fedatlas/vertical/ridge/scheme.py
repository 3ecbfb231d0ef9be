"""Private ridge regression as a scheme: its texts, its part of a summary, and what a dry run says."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.algorithm import RoundGenerator, State
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import for_columns
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import Columns, Floats
from fedatlas.vertical.ridge import masking, numbers, protocol
from fedatlas.vertical.ridge.roles import ROLES, entries, outputs_of, own_rows, planned_of, targets
from fedatlas.vertical.ridge.settings import Ridge, private_ridge
from fedatlas.vertical.scheme import LearnsRow, Scheme, Words

SEALED = (
    "an owner's equations are the sums X'X and X'y over its rows, so they tell the mean and the spread of every column, and of few rows "
    "the rows themselves"
)
FRACTIONS = (
    "the coefficients as exact fractions, from which the sum of every column and of the label over the rows of all owners can be worked "
    "out, and perhaps more of their equations"
)
"""Facts for the one who takes the masks off: the equations are in small whole numbers, and lattice reduction finds their shortest row."""


def learns(how: Ridge, protected: bool) -> Sequence[LearnsRow]:
    """List who learns what: an owner, the engine, the crypto provider, the coordinator being none of them."""
    size = (
        "how many rows each owner trains on, and for each column and the label the power of two that no value exceeds"
    )
    first = LearnsRow("size of numbers", "the same of all owners together", size, "nothing")
    if not protected:
        return (
            first,
            LearnsRow("equations", "nothing", f"each owner's equations in the clear: {SEALED}", "nothing"),
            LearnsRow("coefficients", "the coefficients", "the coefficients", "nothing"),
        )
    told = how.reveal == "engine"
    return (
        first,
        LearnsRow("key", "the public key", "the public key", "the private key, which it makes"),
        LearnsRow(
            "equations", "nothing", "each owner's ciphertexts, which it cannot open", "nothing: it gets none of them"
        ),
        LearnsRow(
            "masked equations",
            "nothing",
            "nothing",
            "the number of columns and of targets, and whether the equations are singular; else numbers that are uniform whatever the "
            "rows are",
        ),
        LearnsRow(
            "coefficients",
            "the coefficients"
            if told
            else f"from the masked solution and the masks {FRACTIONS}; with two owners, of the other",
            FRACTIONS if told else "nothing",
            "nothing",
        ),
    )


WORDS = Words(
    who={"owner": "an owner", "engine": "the engine", "provider": "the crypto provider"},
    round="phase",
    model="linear model",
    keeps="its rows and labels; the crypto provider keeps the private key, and forgets it once the equations are solved",
    leaves="the number of rows, a power of two for each column, encrypted sums of products of columns; of test rows counts and sums",
    clear=f"the engine sees each owner's equations: {SEALED}.",
    learns=learns,
    gain="",
    hidden=(
        "The equations were encrypted. Neither the engine, which adds them up, nor the crypto provider, which has the key, can read those "
        "of an owner unless both join forces."
    ),
    caution=(
        "Engine and crypto provider must not be run by the same people, and neither by an owner: an owner that is also the provider could "
        "open every other owner's equations if the engine gave them to it. The engine, or with reveal = 'owners' each owner, sees "
        f"{FRACTIONS}. Two owners that see them each learn these sums of the other. The names of columns, categories and classes are "
        "known to all. Judging tells the coordinator how many test rows each owner has, and sums over them, which of one row are its "
        "label. The coefficients tell something of the rows, as every model does."
    ),
    phases={
        "split own rows": "drawing test rows",
        "extent": "finding the size of numbers",
        "plan": "choosing the fixed point",
        "keep plan": "comparing the fixed point",
        "make key": "making the key",
        "encrypt equations": "encrypting equations",
        "add up equations": "adding up equations",
        "tell equations": "computing equations",
        "solve equations": "solving equations",
        "mask equations": "masking equations",
        "solve": "solving masked equations",
        "keep solution": "keeping the masked solution",
        "wait for masks": "keeping the masked solution",
        "unmask": "taking masks off",
        "keep coefficients": "keeping coefficients",
    },
    cases={
        "engine": Ridge(1.0, None, "engine"),
        "owners": Ridge(1.0, None, "owners"),
    },
)


def under(how: Ridge, lock: Mechanism) -> Ridge:
    """Return the settings under Paillier."""
    return how._replace(encrypted=True, **{key: lock.keys[key] for key in lock.limits.columns})


def said(how: Ridge, classes: int) -> str:
    """Return a line with the penalty and the protection of the equations."""
    seen = (
        f"equations under Paillier, {how.key_bits} bits"
        if how.encrypted
        else "in the clear: a simulation that protects nobody"
    )
    learnt = (
        "coefficients for the owners only" if how.told == "owners" else "coefficients for the engine and the owners"
    )
    return f"ridge regression, l2 = {how.l2:g}, {seen}, {learnt}"


def refusal(how: Ridge) -> str:
    """Return why real parties may not run this."""
    return (
        "'private_ridge' runs only in a simulation in this version: it takes an engine and a crypto provider that do not join forces, and "
        "a deployment has nodes with rows and one server, so nobody else could be the provider."
    )


def ended(how: Ridge, server: State) -> RoundGenerator:
    """Return the coordinator's state: it learns nothing at the end."""
    yield from ()
    return server


def export(data: Columns, state: State) -> Mapping[str, Any]:
    """Return an owner's files: the coefficients, (columns + 1) rows of one number a target, the intercept last."""
    found = {"coefficients": state["ridge"]["coefficients"].tolist()}
    return {"table": found, "model": found if data.party == data.active else None}


def load(data: Columns, exported: Mapping[str, Any]) -> State:
    """Return an owner's state, with what the model says of its rows."""
    coefficients = np.array(exported["table"]["coefficients"], np.float64)
    return {"ridge": {"outputs": torch_of(outputs_of(data, coefficients))}}


def torch_of(values: Floats) -> Any:
    """Return an array as a tensor."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


def outputs(state: State) -> Floats:
    """Return what the model says of an owner's rows."""
    found: Floats = state["ridge"]["outputs"].numpy()
    return found


def nothing(server: State) -> Mapping[str, Sequence[float]]:
    """Return no gain for each column of each owner."""
    return {server["names"][k]: [0.0] * server["columns"][k] for k in server["owners"]}


def found_by(side: Side, how: Ridge) -> Mapping[str, Any]:
    """Return the entry ``ridge`` of a simulation's summary, from the states of all parties.

    ``error``: the least of the owners' bounds, each of which holds; None if none is below the spread of the label.
    """
    held = side.states[side.parties[0].active]["ridge"]
    own = [state["ridge"]["error"] for one, state in zip(*side, strict=True) if one.y is not None]
    plan, least = planned_of(held["plan"]), min(own)
    first = side.parties[0]
    return {
        "columns": plan.width - 1,
        "precision": plan.precision,
        "measured": measured(side, how, held["coefficients"].numpy()),
        "error": useful(least, np.concatenate([one.y for one in side.parties if one.y is not None]), first.classes),
        "l2": how.l2,
        "names": [*first.names, "intercept"],
        "coefficients": held["coefficients"].tolist(),
        "ciphertexts": ciphertexts(len(own), plan.width, targets(first)) if how.encrypted else 0,
        "reveal": how.told,
    }


def useful(error: float, y: Floats, classes: int) -> float | None:
    """Return a bound, or None if it is not below the spread of the label, which is 1 for scores of classes."""
    return error if error < (1.0 if classes else float(y.std())) else None


def measured(side: Side, how: Ridge, coefficients: Floats) -> float | None:
    """Return by how much predictions for the training rows differ at most from those of the closed form; None if it is singular."""
    rows = [own_rows(one, state) for one, state in zip(*side, strict=True) if one.y is not None]
    x, y = (np.concatenate(part) for part in zip(*rows, strict=True))
    due = solved(x, y, how.l2)
    return None if due is None else float(np.abs(x @ (due - coefficients)[:-1] + (due - coefficients)[-1]).max())


def ciphertexts(owners: int, width: int, targets: int) -> int:
    """Return how many ciphertexts cross: each owner's equations once, and the masked equations."""
    return owners * entries(width, targets) + width * (width + targets)


# ------------------------------------------------------------------------------------------------ a dry run

TRIED = 4  # ciphertexts that a dry run times


def rehearsed(how: Ridge, side: Side) -> Mapping[str, Any]:
    """Return what a run would send and take, and its precision with the bound of its error; PrivacyError for a key without room.

    The simulation reads all rows for it. Seconds are measured on a few ciphertexts under a key made for it.
    """
    held = [(one, *own_rows(one, state)) for one, state in zip(*side, strict=True) if one.y is not None]
    c, classes = targets(held[0][0]), held[0][0].classes
    sizes = np.array([numbers.exponents(x) for _, x, _ in held]).max(axis=0)
    label = 0 if classes else max(int(numbers.exponents(y)[0]) for _, _, y in held)
    rows = sum(len(x) for _, x, _ in held)
    plan = numbers.planned(rows, [*sizes, label], how.l2, how.precision, how.key_bits)
    coefficients = solved(np.concatenate([x for _, x, _ in held]), np.concatenate([y for _, _, y in held]), how.l2)
    error = math.inf
    if coefficients is not None:
        error = min(numbers.error(plan, how.l2, x, y, coefficients) for _, x, y in held)
    p, owners = plan.width, len(held)
    counted = ciphertexts(owners, p, c)
    width = -(-how.key_bits // 4)  # bytes of a ciphertext; of a masked number half
    masks = p * (p + c) * owners if how.reveal == "owners" else 0
    sent = 2 * ((counted + 2 * owners + 2) * width + (p * c + masks) * width // 2)  # the key as two ciphertexts
    plain = 2 * owners * entries(p, c) * -(-masking.CLEAR.bit_length() // 8)
    return {
        "columns": p - 1,
        "rows": rows,
        "precision": plan.precision,
        "error": useful(error, np.concatenate([y[:, 0] for _, _, y in held]), classes),
        "ciphertexts": counted if how.encrypted else 0,
        "bytes": sent if how.encrypted else plain,
        "seconds": seconds(how, owners, p, c) / held[0][0].workers if how.encrypted else 0.0,
    }


def solved(x: Floats, y: Floats, l2: float) -> Floats | None:
    """Return (columns + 1, targets) coefficients in the closed form, in doubles; None if the equations are singular."""
    middle, mean = x.mean(axis=0), y.mean(axis=0)
    a, b = x - middle, y - mean
    try:
        slopes = np.linalg.solve(a.T @ a + l2 * np.eye(a.shape[1]), a.T @ b)
    except np.linalg.LinAlgError:
        return None
    return np.concatenate([slopes, (mean - middle @ slopes)[None]])


def seconds(how: Ridge, owners: int, p: int, c: int) -> float:
    """Return about how many seconds of one core the ciphertexts of a run take, from the time for a few and for the key."""
    began = time.perf_counter()
    made = paillier.generate_plain(how.key_bits, testing=how.testing)
    keys = paillier.sealer(made.public, paillier.base(made.public, paillier.full(made.public)))
    key = time.perf_counter()
    batch = paillier.encrypt(made.public, [1] * TRIED, keys=keys)
    sealed = time.perf_counter()
    weights = [row[0] for row in masking.drawn(p, 1, made.public.n)]
    paillier.weighted_sum(made.public, [batch.at(slice(0, 1))] * p, weights)
    summed = time.perf_counter()
    paillier.decrypt(paillier.holder(made, combs=False), batch)
    opened = time.perf_counter()
    masked = p * (p + c)
    encrypted = (owners + 1) * entries(p, c) + masked
    each = ((sealed - key) / TRIED, summed - sealed, (opened - summed) / TRIED)
    return key - began + encrypted * each[0] + masked * (each[1] + each[2])


PRIVATE_RIDGE = Scheme(
    name="private_ridge",
    words=WORDS,
    build=private_ridge,
    rounds="",
    fixed=protocol.PHASES,
    layout="rows",
    roles=ROLES,
    weighted=False,
    unfit=lambda how, task, classes: "",
    mechanisms={name: one.limits.columns for name, one in for_columns().items()},
    under=under,
    clear=lambda how: how._replace(encrypted=False),
    protected=lambda how: bool(how.encrypted),
    said=said,
    refusal=refusal,
    questions=protocol.questions,
    begin=protocol.begin,
    step=protocol.step,
    end=ended,
    outputs=outputs,
    brought=nothing,
    own=lambda data, state: [0.0] * len(data.names),
    export=export,
    keys=(("coefficients",), ("coefficients",)),
    load=load,
    predict=ended,
    found=found_by,
    rehearsed=rehearsed,
)
