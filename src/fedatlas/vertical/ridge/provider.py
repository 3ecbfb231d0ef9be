"""The crypto provider: it makes the key and solves masked equations. All that it decrypts is uniform, whatever the data are."""

from __future__ import annotations

from typing import Any

from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.align import Answered
from fedatlas.vertical.letters import LETTERS, blamed, letter, taken
from fedatlas.vertical.parties import Columns
from fedatlas.vertical.ridge import masking
from fedatlas.vertical.ridge.roles import KEY, MASKED, SOLUTION, engine, owners, targets
from fedatlas.vertical.ridge.settings import Ridge


def make_key(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Make a key and tell its public half to all. The private half is kept until the equations are solved."""
    made = paillier.generate_plain(how.key_bits, testing=how.testing)
    base = paillier.base(made.public, paillier.full(made.public))
    told = letter(data, [*owners(len(data.parties)), engine(data)], KEY.topic, {**made.public.plain(), **base.plain()})
    return {LETTERS: [told]}, {**state, "ridge": made.plain()}, session


def solve(how: Ridge, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Decrypt and solve the masked equations, send the solution, and forget the key. DataError if they are singular."""
    p, q = (int.from_bytes(state["ridge"][name].numpy().tobytes(), "big") for name in ("p", "q"))
    keys = paillier.holder(paillier.PrivateKey(p, q), combs=False)
    told = taken(data, message, engine(data), MASKED, width=keys.public.width)
    width, count = told["columns"], len(told["ciphertexts"])
    with blamed(data, engine(data), MASKED):
        if count != width * (width + targets(data)):
            raise ProtocolError(f"{count:,} ciphertexts are no equations of {width:,} columns")
        batch = paillier.received(keys.public, {name: told[name] for name in ("key", "ciphertexts")})
    left, right = masking.square(paillier.decrypt(keys, batch, workers=data.workers), width)
    solution = masking.as_bytes(masking.solved(left, right, keys.public.n), keys.public.n)
    to = [engine(data)] if how.reveal == "engine" else owners(len(data.parties))
    sent = letter(data, to, SOLUTION.topic, {"solution": solution}, secret=True)
    return {LETTERS: [sent]}, {**state, "ridge": {}}, session
