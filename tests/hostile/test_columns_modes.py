"""Modes of SecureBoost+: a party refuses what its mode excludes, and deployed runs grow the trees of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boosting_federation import federation_of, parties_of
from fedatlas.config import parse
from fedatlas.errors import ProtocolError
from fedatlas.federation.start import RoundStart
from fedatlas.setup.refusals import checked
from fedatlas.vertical import boosting
from fedatlas.vertical.boosting import modes, passive
from fedatlas.vertical.boosting.settings import secureboost
from fedatlas.vertical.letters import LETTERS
from fedatlas.vertical.parties import PartyLeft
from lying_relay import Lie, experiment
from test_columns_relay import Ended, asking
from test_secureboost import HALVES, made
from test_vertical_run import growing_in, grown

LIES = {
    "layered": {
        "sums below its layers": Lie("shop", "split", asking("histogram"), "is not grown on the columns of 'shop'")
    },
    "mix": {},
    "goss": {},
}
KEYS: dict[str, dict[str, Any]] = {
    "layered": {"mode": "layered", "passive_depth": 1},
    "mix": {"mode": "mix"},
    "goss": {"goss": [0.3, 0.3]},
}


def keys(name: str) -> dict[str, Any]:
    return {"name": "secureboost", "trees": 2, "bins": 4, "depth": 2, **KEYS[name]}


@pytest.mark.timing
@pytest.mark.parametrize("name", KEYS)
def test_a_deployed_run_of_each_mode_grows_the_trees_of_the_simulation(name: str, tmp_path: Path) -> None:
    ended = Ended(tmp_path, ["bank", "shop"], LIES[name], order="seed")
    state = ended.run(algorithm=keys(name)).state
    assert (state.status, state.why) == ("finished", "")
    for title, lie in LIES[name].items():
        assert lie.said in ended.relay.heard[title].why
    if name == "mix":
        of_shop = {request.what for request in ended.relay.requests if request.round == 1 and request.client == 1}
        assert of_shop == set(), "the first tree is the bank's"
    run: Any = ended.trainers["bank"].run
    plain = experiment(ended.made.names, algorithm=keys(name))
    plain["parties"] = [{**one, "path": str(ended.paths[one["name"]])} for one in plain["parties"]]
    growing = growing_in(tmp_path / "here", checked(parse({**plain, "privacy": []})))
    grown(growing, 2)
    assert (
        boosting.outputs(run.state.party.get(0)).tolist() == boosting.outputs(growing.federation.states.get(0)).tolist()
    )


@pytest.mark.timing
def test_under_a_secret_order_draws_are_secret_too(tmp_path: Path) -> None:
    """Who knows the seed of the draws and the drawn rows could work out which of these have large gradients."""
    ended = Ended(tmp_path, ["bank", "shop"], {})
    assert ended.run(algorithm=keys("goss")).state.status == "finished"
    run: Any = ended.trainers["bank"].run
    assert run.state.party.get(0)["boost"]["draws"] != run.data.seed
    assert "draws" not in ended.trainers["shop"].run.state.party.get(1)["boost"]  # type: ignore[union-attr]


def begun(**given: Any) -> tuple[Any, Any, Any]:
    """A federation after its first question, the server's state, and the settings."""
    how = secureboost(trees=4, bins=4, **given)
    held, server = federation_of(parties_of(made(n=60), HALVES), how, np.arange(60))
    return held, held.drive(boosting.begin(how, server), RoundStart(1, 0.0)), how


def test_gradients_of_a_tree_of_others_lose_their_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """The party with the label and the coordinator both grow mixed trees on all columns: the other one uses no gradient."""
    held, server, how = begun(mode="mix")
    honest = modes.summing
    everybody = lambda how, crew, number, level: crew.passive  # noqa: E731
    monkeypatch.setattr(modes, "summing", everybody)
    asked = passive._begun

    def honestly(*args: Any) -> Any:
        monkeypatch.setattr(modes, "summing", honest)
        return asked(*args)

    monkeypatch.setattr(passive, "_begun", honestly)
    with pytest.raises(
        PartyLeft,
        match="'p0' is lost: its letter 'gradients' cannot be used: tree 1 is not grown on the columns of 'p1'",
    ):
        held.drive(boosting.grow(how, server, 1), RoundStart(2, 0.0))


def test_a_level_below_the_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held, server, how = begun(mode="layered", passive_depth=1)
    honest, party = modes.summing, passive.histogram
    state: dict[str, Any] = {"level": 0}

    def lying(how: Any, crew: Any, number: int, level: int) -> tuple[int, ...]:
        return honest(how, crew, number, level) if state.get("honest") else crew.passive

    def honestly(*args: Any) -> Any:
        state["honest"] = True
        try:
            return party(*args)
        finally:
            state["honest"] = False

    monkeypatch.setattr(modes, "summing", lying)
    tasks = held.bench.algorithm.tasks
    tasks["histogram"] = tasks["histogram"]._replace(answer=lambda *args: honestly(how, *args))
    with pytest.raises(ProtocolError, match="level 2 of tree 1 is not grown on the columns of 'p1'"):
        held.drive(boosting.grow(how, server, 1), RoundStart(2, 0.0))


def test_a_node_is_passed_on_only_if_it_is_divided() -> None:
    held, server, how = begun()
    tasks = held.bench.algorithm.tasks
    honest = tasks["open"]

    def every_tree() -> Any:
        state = server
        for number in range(1, 5):
            state = yield from boosting.grow(how, state, number)
        return state

    def emptied(one: Any) -> Any:
        nodes = one["content"].get("nodes", [])
        return {**one, "content": {"nodes": [], "ties": [], "passed": nodes}} if one["topic"] == "wanted" else one

    def lying(*given: Any) -> Any:
        reply, state, session = honest.answer(*given)
        return {**reply, LETTERS: [emptied(one) for one in reply[LETTERS]]}, state, session

    tasks["open"] = honest._replace(answer=lying)
    with pytest.raises(PartyLeft, match="'p0' is lost: its letter 'wanted' cannot be used: nodes are to be passed on"):
        held.drive(every_tree, RoundStart(2, 0.0))
