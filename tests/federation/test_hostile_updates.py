"""What is no update is left out and counted, wherever an attack or a rule is declared; else it ends the run, as ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedatlas.aggregation import RULES
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.attackers import Attacker, Order
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import DivergedError
from fedatlas.federation.defence import Defence
from fedatlas.transforms import TRANSFORMS
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import Federation, Normed, federation, gap, play, same
from test_attackers import Sent

# ---------------------------------------------------------------------- updates that are none


def hostile(
    fed: Federation, change: Callable[[dict[str, Any]], dict[str, Any]], *clients: int
) -> Callable[[Bench], Any]:
    """An executor whose clients ``clients`` send something else."""

    class Odd(SerialExecutor):
        def run(self, jobs: Any) -> Any:
            for result in super().run(jobs):
                odd = result.client in clients and result.work.steps
                yield result._replace(update=change(dict(result.update))) if odd else result

    return Odd


def without(update: dict[str, Any]) -> dict[str, Any]:
    return {"other": update["model"]}


def misshapen(update: dict[str, Any]) -> dict[str, Any]:
    return {**update, "model": Tree({name: torch.zeros(2, 2, 2) for name in update["model"]})}


def infinite(update: dict[str, Any]) -> dict[str, Any]:
    return {**update, "model": Tree(update["model"]).map(lambda x: x / 0)}


def odd_statistics(update: dict[str, Any]) -> dict[str, Any]:
    return {**update, "buffers": Tree(update["buffers"]).map(lambda x: x * math.nan if x.is_floating_point() else x)}


@pytest.mark.parametrize("rule", [None, "median", "krum"])
@pytest.mark.parametrize("change", [without, misshapen, infinite, odd_statistics])
def test_updates_that_are_none_are_left_out_as_if_their_clients_had_not_come(
    change: Callable[[dict[str, Any]], dict[str, Any]], rule: str | None
) -> None:
    fed = federation(ALGORITHMS["fedavg"](), make=Normed)
    defence = Defence(None if rule is None else RULES[rule](f=0))
    plain = fed.host()
    plain.server.defence = defence
    others, _ = play(fed, [(1, 2, 4), (1, 2, 4)], host=plain)
    host = fed.host(hostile(fed, change, 0))
    host.server.defence = defence
    server, host = play(fed, [(0, 1, 2, 4), (0, 1, 2, 4)], host=host)
    assert host.server.now.seen.hostile == {0}
    assert 0 not in host.server.counted
    assert gap(server["model"], others["model"]) < 1e-12
    assert gap(server["buffers"], others["buffers"]) < 1e-12


def test_most_clients_say_what_an_update_is() -> None:
    """Two hostile ones that agree, and come first, are still the fewer."""
    fed = federation(ALGORITHMS["fedavg"]())
    host = fed.host(hostile(fed, without, 0, 1))
    host.server.defence = Defence()
    _, host = play(fed, [(0, 1, 2, 3, 4)], host=host)
    assert host.server.now.seen.hostile == {0, 1}


def test_a_run_ends_where_fewer_than_half_are_finite() -> None:
    fed = federation(ALGORITHMS["fedavg"]())
    host = fed.host(hostile(fed, infinite, 0, 1, 2))
    host.server.defence = Defence()
    with pytest.raises(DivergedError, match="the updates of 3 of 5 clients are not finite"):
        play(fed, [(0, 1, 2, 3, 4)], host=host)


@pytest.mark.parametrize("make", ["topk", "qsgd"])
def test_a_compressed_update_that_cannot_be_opened_is_left_out(make: str) -> None:
    fed = federation(ALGORITHMS["fedavg"]())
    fed = fed._replace(bench=fed.bench._replace(transform=TRANSFORMS[make]()))
    host = fed.host(hostile(fed, lambda update: {"model": {"odd": torch.zeros(3)}}, 2))
    host.server.defence = Defence(RULES["median"]())
    _, host = play(fed, [(0, 1, 2, 3)], host=host)
    assert host.server.now.seen.hostile == {2}


def test_a_client_whose_training_diverges_is_left_out_only_where_something_is_declared() -> None:
    fed = federation(ALGORITHMS["fedavg"]())
    wild = {**fed.held, 1: fed.held[1]._replace(x=fed.held[1].x * math.inf)}
    fed = federation(ALGORITHMS["fedavg"](), held=wild)
    with pytest.raises(DivergedError, match="the training loss of client 1"):
        play(fed, [(0, 1, 2)])
    fed = fed._replace(bench=fed.bench._replace(spares=True))
    host = fed.host()
    host.server.defence = Defence()
    _, host = play(fed, [(0, 1, 2)], host=host)
    assert host.server.now.seen.hostile == {1}


def test_orders_reach_whatever_trains() -> None:
    """An order is a plain value, and its attack is looked up where the work is done."""
    fed = federation(ALGORITHMS["fedavg"]())
    away = Attacker(upload=lambda start, end, scale, stream: start + scale * (start - end))
    fed = fed._replace(bench=fed.bench._replace(attackers={"0": away}))
    host, honest = fed.host(), Sent()
    host.server.observers = (honest,)
    play(fed, [(0, 1)], host=host)
    host, seen = fed.host(), Sent()
    host.server.observers = (seen,)
    play(fed, [(0, 1)], host=host, orders={1: Order("0", 2.0)})
    assert same(honest.models[1, 0], seen.models[1, 0])
    w = fed.params
    assert gap(seen.models[1, 1] - w, -2.0 * (honest.models[1, 1] - w)) < 1e-12
    assert codec.size({"order": list(Order("0", 2.0))}) > 0
