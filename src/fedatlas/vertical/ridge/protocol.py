"""Private ridge regression as rounds. The coordinator carries letters and reads none; a round is a phase.

    begin      owners: extent -> engine: plan -> owners
    phase 1    provider: key -> owners: encrypted equations -> engine: their sum
    phase 2    engine: masked equations -> provider: masked solution -> engine, or owners
    phase 3    engine: coefficients, or masks -> owners

In the clear the owners' equations go to the engine as they are in phase 1, and nobody has a part in phase 2.

All that a phase leaves to the next one is in the parties' states, the provider's key and the engine's masks among it. So a run can stop
between two phases and go on. Key and masks are forgotten when they have served.

Source: Giacomelli, Jha, Joye, Page, Yoon, ACNS 2018 (V4).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fedatlas.algorithm import Question, RoundGenerator, State
from fedatlas.vertical.letters import LETTERS, Mail
from fedatlas.vertical.ridge import engine, owner, provider
from fedatlas.vertical.ridge.roles import (
    COEFFICIENTS,
    EQUATIONS,
    EXTENT,
    KEY,
    MASKED,
    MASKS,
    PLAIN,
    PLAN,
    SOLUTION,
    owners,
)
from fedatlas.vertical.ridge.settings import Ridge

PHASES = 3
SAY, CHOOSE, KEEP, MAKE, ENCRYPT, ADD = (
    "extent",
    "plan",
    "keep plan",
    "make key",
    "encrypt equations",
    "add up equations",
)
TELL, ADD_PLAIN = "tell equations", "solve equations"
MASK, SOLVE, HOLD, WAIT, UNMASK, FINISH = (
    "mask equations",
    "solve",
    "keep solution",
    "wait for masks",
    "unmask",
    "keep coefficients",
)


def questions(how: Ridge) -> Mapping[str, Question]:
    """Return the questions to the parties."""
    asked = {
        SAY: owner.extent,
        CHOOSE: engine.plan,
        KEEP: owner.keep_plan,
        MAKE: provider.make_key,
        ENCRYPT: owner.encrypt,
        ADD: engine.add_up,
        MASK: engine.mask,
        SOLVE: provider.solve,
        HOLD: engine.hold,
        WAIT: owner.hold,
        UNMASK: engine.unmask,
        FINISH: owner.finish,
        TELL: owner.tell,
        ADD_PLAIN: engine.add_up_plain,
    }
    return {name: Question(partial(answer, how), stateful=True, shows=(LETTERS,)) for name, answer in asked.items()}


def begin(how: Ridge, server: State) -> RoundGenerator:
    """Agree on the fixed point. PrivacyError, before anything is encrypted, if the key is too short for it."""
    mail, (own, middle, _) = Mail(server["names"]), _roles(server)
    yield from mail.ask(own, SAY)
    yield from mail.ask(middle, CHOOSE, EXTENT.topic)
    yield from mail.ask(own, KEEP, PLAN.topic)
    return server


def step(how: Ridge, server: State, number: int) -> RoundGenerator:
    """Run phase ``number``, 1 to 3. DataError in phase 2 if the columns do not determine the coefficients."""
    mail, (own, middle, key_holder) = Mail(server["names"]), _roles(server)
    if number == 1 and not how.encrypted:
        yield from mail.ask(own, TELL)
        yield from mail.ask(middle, ADD_PLAIN, PLAIN.topic)
    elif number == 1:
        yield from mail.ask(key_holder, MAKE)
        yield from mail.ask(own, ENCRYPT, KEY.topic)
        yield from mail.ask(middle, ADD, KEY.topic, EQUATIONS.topic)
    elif number == 2 and how.encrypted:
        yield from mail.ask(middle, MASK)
        yield from mail.ask(key_holder, SOLVE, MASKED.topic)
        to, what = (middle, HOLD) if how.reveal == "engine" else (own, WAIT)
        yield from mail.ask(to, what, SOLUTION.topic)
    elif number == 3:
        yield from mail.ask(middle, UNMASK)
        yield from mail.ask(own, FINISH, COEFFICIENTS.topic, MASKS.topic)
    return server


def _roles(server: State) -> tuple[tuple[int, ...], tuple[int], tuple[int]]:
    own = owners(len(server["names"]))
    return tuple(own), (len(own),), (len(own) + 1,)
