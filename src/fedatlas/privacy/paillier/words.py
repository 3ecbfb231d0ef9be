"""Sentences on short exponents, where they are chosen: before a run and in its report."""

from typing import Annotated

from pydantic import Field

Exponent = Annotated[int, Field(ge=512, le=1024)]
"""Bits of a short exponent: at least twice the bits of security of the longest key."""

SHORT = (
    "Short exponents: privacy rests on one more assumption, that powers with short random exponents cannot be told from powers with full "
    "ones. Without short_exponent it rests on Paillier's assumption only."
)
SHORT_NOTICE = (
    "'{name}': short_exponent rests on one more assumption than Paillier's own; without it encryption takes longer."
)
