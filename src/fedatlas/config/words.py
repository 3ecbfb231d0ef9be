"""``[words]``: the user's words for what pages, the terminal and the answer speak of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedatlas.registry import ConfigTable


class WordsConfig(ConfigTable):
    """``[words]``: the user's words for pages, the terminal and the answer; no result depends on them."""

    party: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[^\W\d_][\w -]*$")] | None = (
        None  # None: client
    )
