"""Sentences on Paillier's keys: short exponents, the time of a key, and a model that only clients open."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from fedatlas.privacy.mechanism import Learns
from fedatlas.wording import seconds_text

Exponent = Annotated[int, Field(ge=512, le=1024)]
"""Bits of a short exponent: at least twice the bits of security of the longest key."""

SHORT = (
    "Short exponents: privacy rests on one more assumption, that powers with short random exponents cannot be told from powers with full "
    "ones. Without short_exponent it rests on Paillier's assumption only."
)
SHORT_NOTICE = (
    "'{name}': short_exponent rests on one more assumption than Paillier's own; without it encryption takes longer."
)

CLOSED_DONE = (
    "<b>Encryption.</b> Every client encrypted {what} with a Paillier key of {key_bits} bits. The server added up what it "
    "could not read, round upon round, and sent the sum to the next clients as the model, which they opened. It saw neither a sum of "
    "updates nor a model."
)
CLOSED_LEARNS = Learns(
    "who takes part, and how many rows each client has where these are its weight; sums of columns, where such are needed before round 1; "
    "no update, no sum of updates and no model",
    "the models of the rounds that they take part in; all hold the key, and could read an update that they got hold of",
    "the server with any one client reads every update and every model: this is for parties that do not collude",
)
OWN_NOTICE = (
    "'paillier': the server never sees a model. The figures of each round are this simulation's own, which opens the model with the "
    "clients' key."
)
ALONE = (
    "with reveal = 'clients' the server holds a ciphertext in the model's place, and no other mechanism works on that"
)


def key_seconds_of(key_bits: int) -> dict[str, float]:
    """Return how long a key takes on this machine (`key_time`, which needs gmpy2)."""
    from fedatlas.privacy.paillier.key_time import key_seconds

    return key_seconds(key_bits)


def key_sentences(preview: Mapping[str, Any]) -> list[str]:
    """Return the dry run's sentence on it."""
    if "key" not in preview:
        return []
    found = preview["key"]
    return [
        (
            f"A key of {found['bits']} bits takes {seconds_text(found['seconds'])} on average on this machine, and one time in twenty "
            f"more than {seconds_text(found['seconds_late'])}."
        )
    ]
