"""Distributed noise (P16) among parties that break its rules: who does not clip, and a server that hides how few take part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.distributed_dp import noisy_sum
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import distributed_dp
from fedatlas.privacy.secagg.secure_sum import UNMASK
from federation import Federation, play, same
from protected import ALL, Host, protected

pytestmark = pytest.mark.timing

CLIP = 0.25


def made(**keys: Any) -> Mechanism:
    return distributed_dp(**{"clip": CLIP, "noise_multiplier": 0.5, "noise": "seed", **keys})


def played(how: Mechanism) -> tuple[Federation, Host]:
    return protected(ALGORITHMS["fedavg"](weights="uniform"), how)


def test_a_client_that_neither_clips_nor_fits_spoils_the_sum_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The words of the others are what they were: their noise and masks do not depend on it."""

    def outcome(words: dict[int, Any]) -> Any:
        fed, host = played(made())

        def lie(request: Any, update: Any) -> Any:
            if "masked" in update and request.client == 3:
                huge = {name: x + (2**31 - 5) for name, x in update["masked"].items()}
                return {**update, "masked": huge} if words else update
            return update

        host.alter = lie
        server, _ = play(fed, [ALL, ALL], host=host)
        assert not host.given_up
        return server

    assert not same(outcome({}), outcome({3: 1}))


def test_clients_refuse_a_cohort_in_which_more_may_collude_than_noise_is_for() -> None:
    """A server that asks four where eleven would bear three colluding clients gets nothing from them."""
    fed, host = played(made(colluding=3))
    host.refusals = []
    begun = fed.begin(host)
    server, _ = play(fed, [(0, 1, 2, 3)], server=begun, host=host)
    assert same(server, begun)
    assert "of 4 clients asked, of whom 3 have to stay, 1 may collude, and not 3" in host.given_up
    assert not host.requests  # an honest server does not even ask


def test_a_client_computes_its_share_from_the_session_that_it_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hides the check, or that says in its word that a hundred take part, gets refusals."""
    fed, host = played(made(colluding=2))
    monkeypatch.setattr(noisy_sum, "check_fits", lambda how, asked: None)
    host.refusals = []
    begun = fed.begin(host)
    server, _ = play(fed, [(0, 1, 2, 3)], server=begun, host=host)
    assert same(server, begun)
    refused = {request.client: str(error) for request, error in host.refusals if request.what == "train"}
    assert refused.keys() == {0, 1, 2, 3}
    assert all("takes no part: of 4 clients asked" in why for why in refused.values())
    assert not host.asked(UNMASK)


def test_a_word_with_more_clients_than_the_cohort_is_refused() -> None:
    fed, host = played(made())
    host.refusals = []

    def lie(request: Any) -> Any:
        return request if request.word is None else request._replace(word={**request.word, "clients": 90})

    host.tell = lie
    begun = fed.begin(host)
    server, _ = play(fed, [ALL], server=begun, host=host)
    assert same(server, begun)
    assert all(isinstance(error, ProtocolError) for _, error in host.refusals)
    assert {request.what for request, _ in host.refusals} == {"train"}


def test_answers_that_are_no_change_of_a_model_are_never_sealed() -> None:
    """Such as a node's judgement: it would leave without noise."""
    with pytest.raises(PrivacyError, match="would leave without noise"):
        noisy_sum.clipped({"hits": torch.ones(3, dtype=torch.float64)}, CLIP)
