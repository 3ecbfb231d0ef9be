"""DP-SGD against odd rows and a server that breaks the rules: what a client's rows are must not show, and no step goes without noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedatlas.data.batches import Rows
from fedatlas.engine import private_steps
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanisms import dp_sgd
from fedatlas.tree import Tree
from federation import play, rows
from protected import DRAWN, protected

WHO = 1


def told(held: dict[int, Rows]) -> tuple[list[Any], list[Event], Any]:
    """What all others are told: what clients sent, the ledger's lines, and the model after three rounds."""
    fed, host = protected("fedavg", dp_sgd(clip=0.3, noise_multiplier=0.5, noise="seed"), held=held)
    sent, lines = [], []
    host.alter = lambda request, update: (sent.append((request.client, request.round, update)), update)[1]
    assert host.server.guard is not None
    host.server.guard = host.server.guard._replace(note=lines.extend)
    model = play(fed, DRAWN, host=host)[0]["model"]
    return sent, lines, model


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_no_numbers_show_as_rows_that_add_nothing(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client all of whose gradients are not finite sends, to the bit, what it would send if none of its rows counted."""
    held = rows()
    odd = told({**held, WHO: held[WHO]._replace(x=torch.full_like(held[WHO].x, number))})
    plain, mine = private_steps.clipped_sum, {tuple(x.tolist()) for x in held[WHO].x}

    def nothing(layers: Any, objective: Any, params: Tree, batch: Any, clip: float) -> Any:
        counts = torch.tensor([tuple(x.tolist()) not in mine for x in batch.x], dtype=batch.weight.dtype)
        return plain(layers, objective, params, batch._replace(weight=batch.weight * counts), clip)

    monkeypatch.setattr(private_steps, "clipped_sum", nothing)
    silent = told(held)
    assert odd[1] == silent[1]
    assert len(odd[1]) == sum(map(len, DRAWN))
    for (k, t, a), (other, number_of, b) in zip(odd[0], silent[0], strict=True):
        assert (k, t) == (other, number_of)
        assert all(torch.equal(a["model"][name], b["model"][name]) for name in b["model"])
    assert all(x.isfinite().all() for x in odd[2].values())


def test_one_enormous_row_does_not_drown_the_others() -> None:
    """Its gradient is as long as any other may be."""
    held = rows()
    x = held[WHO].x.clone()
    x[0] = 1e150
    plain, odd = told(held), told({**held, WHO: held[WHO]._replace(x=x)})
    assert all(x.isfinite().all() for x in odd[2].values())
    apart = sum(float((odd[2][name] - plain[2][name]).square().sum()) for name in odd[2]) ** 0.5
    assert apart < 1.0
    assert odd[1] == plain[1]


def test_a_server_that_leaves_the_protection_out_gets_no_update() -> None:
    """Without the word that stands for the experiment's protection a party does not train at all."""
    fed, host = protected("fedavg", dp_sgd(clip=0.3, noise="seed"))
    host.refusals, host.tell = [], lambda r: r._replace(word=None) if r.client == WHO else r
    sent: list[int] = []
    host.alter = lambda request, update: (sent.append(request.client), update)[1]
    play(fed, DRAWN, host=host)
    assert WHO not in sent
    assert {request.client for request, _ in host.refusals} == {WHO}
    assert all(isinstance(error, ProtocolError) and "\n" not in str(error) for _, error in host.refusals)
