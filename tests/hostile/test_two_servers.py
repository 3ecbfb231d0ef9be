"""Clients that give two servers no share, and a server that asks for one in another's name: each ends without the sender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import ProtocolError
from fedatlas.privacy.mechanisms import two_server
from fedatlas.privacy.two_server.shared_sum import QUESTIONS, SECOND, SHARE, first_session
from federation import federation, gap, play, states
from protected import ALL, protected

pytestmark = pytest.mark.timing


def halves(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Any]:
    return lambda update: {**update, SHARE: {group: change(x) for group, x in update[SHARE].items()}}


WRONG: dict[str, Callable[[Any], Any]] = {
    "cut short": halves(lambda x: x[:-1]),
    "of another ring": halves(lambda x: x.int() if x.dtype == torch.int64 else x.long()),
    "numbers that are not whole": halves(lambda x: x.double() * float("nan")),
    "no share": lambda update: {name: x for name, x in update.items() if name != SHARE},
    "no words": lambda update: {**update, SHARE: 7},
    "another group": lambda update: {**update, SHARE: {**update[SHARE], "more": torch.zeros(3, dtype=torch.int64)}},
}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("what", ["train", SECOND])
def test_a_share_that_is_none_leaves_its_client_out(what: str, how: str) -> None:
    """To either server; the mean is that of the others, and the client's state goes back."""
    fed, host = protected("scaffold", two_server())
    host.alter = lambda r, update: WRONG[how](update) if (r.what, r.client) == (what, 2) else update
    server, _ = play(fed, [ALL], host=host)
    plain, _ = play(federation(ALGORITHMS["scaffold"]()), [(0, 1, 3, 4)])
    assert gap(server["model"], plain["model"]) < 1e-4
    assert host.server.counted == {0, 1, 3, 4}
    assert "2" not in states(host)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"round": 7}, "a share of another run or round is asked for in round 1"),
        ({"run": "other"}, "a share of another run or round"),
        ({"ask": "score"}, "for what is not protected by it"),
    ],
)
def test_a_share_is_given_for_the_ask_that_it_is_of(change: dict[str, Any], said: str) -> None:
    fed, host = protected("fedavg", two_server())
    host.tell = lambda r: r._replace(message={**r.message, **change}) if (r.what, r.client) == (SECOND, 0) else r
    host.refusals = []
    play(fed, [ALL], host=host)
    [(request, error)] = host.refusals
    assert (request.client, request.what) == (0, SECOND)
    assert said in str(error)
    assert host.server.counted == {1, 2, 3, 4}


def test_a_share_is_not_given_before_the_work() -> None:
    """Nor a second time in the same round."""
    message = {"run": "run", "round": 1, "ask": "train"}
    with pytest.raises(ProtocolError, match="client 3 has no share of 'train' to give"):
        QUESTIONS[SECOND].answer(None, None, message, {}, first_session(3, {}))
    kept = {"round": 1, "ask": "train", "words": {}}
    _, _, after = QUESTIONS[SECOND].answer(None, None, message, {}, {**first_session(3, {}), "second": kept})
    with pytest.raises(ProtocolError, match="has no share"):
        QUESTIONS[SECOND].answer(None, None, message, {}, after)
