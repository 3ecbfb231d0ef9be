"""What an audit did not try, for every algorithm: a reason each, and lines to add that the next run takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedatlas.algorithms import ALGORITHMS
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.auditing.lines_to_add import fitting, merged, misfit, of_game, of_view, offered, refusal
from fedatlas.auditing.lines_to_add import joined as as_text
from fedatlas.auditing.verdict import UntriedAttack
from fedatlas.config import parse
from fedatlas.files import OWN_FILES
from fedatlas.setup.assembly import share_out
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from same_configurations import of_algorithm

ROWS = [83] * 6
BASELINES = {"centralised", "local_only"}


def whole_of(**tables: Any) -> Checked:
    return checked(parse(tables))


def untried(whole: Checked) -> list[UntriedAttack]:
    """What `try_all` makes of a run without views and games."""
    made = [build() for build in VIEW_ATTACKS.values()]
    return [of_game(one, whole) if one.rounds is None else of_view(one, whole, ROWS) for one in made]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_lines_to_add_are_taken_all_together(name: str) -> None:
    whole = whole_of(**of_algorithm(name))
    told = offered(untried(whole), whole)
    assert [one.attack for one in told] == list(VIEW_ATTACKS)
    assert all(one.reason for one in told)
    lines = as_text(one.add for one in told)
    assert bool(lines) == (name not in BASELINES)
    assert refusal(lines, whole) == ""
    if name in {"fedavg", "gossip", "fedmd", "ifca"}:  # the rest of the refusals need the rows
        share_out(checked(parse(merged(whole.config.plain(), tomllib.loads(lines)))))
    if name == "gossip":
        assert '"client:0"' in lines, "no server takes part"
        assert '"server"' not in lines


def test_an_attack_that_a_view_would_not_help_says_why() -> None:
    """Six clients with 83 rows each: the gradient of one row is never sent."""
    told = {one.attack: one for one in untried(whole_of(**of_algorithm("fedavg")))}
    assert "inverts the gradient of one step on one row per client" in told["dlg"].reason
    assert not told["dlg"].add
    assert told["label_inference"].add == '[observe]\nroles = ["server", "outsider"]'


def test_lines_that_the_file_has_are_left_out() -> None:
    whole = whole_of(**of_algorithm("fedavg"), evaluation={"clients": 0.3})
    (one,) = (one for one in untried(whole) if one.attack == "membership")
    assert one.add == '[[attack]]\nname = "membership"'


def test_a_deployed_run_is_offered_no_lines() -> None:
    """Its nodes record no views, and nobody draws a game among their rows."""
    file = {"name": "file", "path": OWN_FILES, "label": "y", "test": "own"}
    whole = whole_of(**of_algorithm("fedavg", {"data": None}), data=file)
    assert not [one for one in offered(untried(whole), whole) if one.add or "between real parties" not in one.reason]


@pytest.mark.parametrize("name", ["secagg", "paillier"])
def test_games_that_a_mechanism_forbids_are_not_offered(name: str) -> None:
    """Only sums: no update of a single client can be judged."""
    whole = whole_of(**of_algorithm("fedavg", {"privacy": [{"name": name}]}))
    told = {one.attack: one for one in offered(untried(whole), whole)}
    assert not told["property"].add
    assert "would be refused" in told["property"].reason
    assert told["membership"].add


def test_lines_that_the_rows_do_not_suit_are_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers as targets have no classes to be a member by, to be the property, or to count; canaries need none."""
    file = {"name": "file", "path": "rows.csv", "label": "y"}
    rows = pd.DataFrame({"a": np.linspace(0, 1, 40), "y": np.linspace(0, 1, 40) ** 2})
    monkeypatch.chdir(tmp_path)
    rows.to_csv("rows.csv", index=False)
    whole = whole_of(data=file, partition={"name": "iid", "clients": 4}, model={"name": "mlp"})
    canaries = UntriedAttack("canaries", "none were drawn", "[evaluation]\nclients = 0.5")
    told = {one.attack: one for one in fitting(offered([*untried(whole), canaries], whole), whole)}
    assert [name for name, one in told.items() if one.add] == ["canaries"]
    for name in ("membership", "property", "label_inference"):
        assert not told[name].add
        assert "these rows do not suit it" in told[name].reason
    assert misfit(as_text(one.add for one in told.values()), whole) == ""
