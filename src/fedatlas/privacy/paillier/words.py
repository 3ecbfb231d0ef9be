"""Sentences on Paillier's keys: short exponents where they are chosen, before a run and in its report; the time of a key."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

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
