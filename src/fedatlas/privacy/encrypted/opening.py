"""Ways to open a sum of ciphertexts: one client, in turn, opens the sum that the server formed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import Ask, Question, State, Update
from fedatlas.errors import ProtocolError
from fedatlas.privacy.encrypted.cryptosystem import Layout, Numbers, Opening, Sum, chosen
from fedatlas.privacy.numbers import REALS
from fedatlas.privacy.secagg import once

Summed = Callable[[Any, list[Any], list[int], int], Mapping[str, Any]]
"""(public, the clients' ciphertexts, their weights, processes) -> the weighted sum as messages hold it."""

Opens = Callable[[Any, Any, Layout, int, int], Numbers]
"""(session, a sum, its layout, numbers, sum of its weights) -> the sums of codes. ProtocolError for what is no such sum."""


def in_turn(what: str, summed: Summed, public: Any, total: Sum, workers: int) -> Opening:
    """Form the sums and ask one client to open them. A client that does not answer is skipped."""
    clients, place, sums = total.clients, total.place, {}
    for name, one in total.groups.items():
        weights = [one.weights[k] for k in one.batches]
        batch = summed(public, [*one.batches.values()], weights, workers)
        sums[name] = {"batch": batch, "layout": one.layout, "count": one.length, "weight": sum(weights)}
    message = {"run": place.run, "round": place.round, "ask": total.ask.what, "sums": sums}
    first = (place.round + place.number) % len(clients)
    for k in (*clients[first:], *clients[:first]):
        heard = yield Ask((k,), what, {k: message}, "each")
        if k in heard.each:
            opened: Mapping[str, Any] | None = heard.each[k].get("opened")
            return opened
    return None


def opens(opened: Opens, layout: Callable[[bool, int], Layout], most: int | None = None) -> Question:
    """Return the question of `in_turn`: open the sum of an ask, once. Its answer holds the sums of codes by group.

    layout: `Cryptosystem.layout`, which no other layout is taken for.
    most: sums that a party opens in total, if its key does not stand more.
    """

    def answer(model: Any, data: Any, message: Any, state: State, session: Any) -> tuple[Update, State, Any]:
        try:
            record = once.noted(session["record"], message["run"], message["round"], message["ask"])
            if most is not None and (many := sum(map(len, record.values()))) > most:
                raise ProtocolError(
                    f"opening {many} sums under a key made for {most} would endanger it: begin a new run."
                )
            out = {}
            for group, asked in message["sums"].items():
                if not chosen(layout, group.startswith(REALS), asked["layout"]):
                    raise ProtocolError(
                        "a request to open a sum names a layout that this key has not: nothing was opened."
                    )
                found = opened(session, asked["batch"], asked["layout"], asked["count"], asked["weight"])
                out[group] = torch.from_numpy(np.ascontiguousarray(found))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"a request to open a sum is broken ({type(error).__name__}): nothing was opened."
            ) from None
        return {"opened": out}, state, {**session, "record": record}

    return Question(answer, data="none", shows=("opened",))
