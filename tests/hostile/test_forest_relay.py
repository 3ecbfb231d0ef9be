"""Federated Forest between nodes: a coordinator that lies, and policies that do not name the scheme."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedatlas.federation.link import Request
from fedatlas.wire.messages import Refusal
from lying_relay import Lie, Relay, with_letters
from test_columns_relay import (
    ALTERED,
    DUE,
    NONE,
    OTHER,
    WORDS,
    Ended,
    asking,
    flipped,
    in_anothers_name,
    in_words,
    labelled_anew,
    none,
    of_the_level_before,
    of_the_round_before,
)

NAMES = ["bank", "shop", "phone"]
KEYS = {"algorithm": {"name": "federated_forest", "trees": 2, "depth": 3, "features": 1.0}, "privacy": []}
ORDER, KNOWN = 'row_order = "seed"\n', 'known_labels = ["federated_forest"]\n'


def where(topic: str, lie: Any) -> Any:
    """Once there is a letter on a topic."""
    return lambda relay, request: (
        lie(relay, request) if any(one["topic"] == topic for one in request.message["letters"]) else None
    )


def begun_again(relay: Relay, request: Request) -> Request | None:
    """The tree once more, while it grows."""
    old = relay.letter("tree", round=request.round, client=request.client)
    return with_letters(request, [old]) if old else None


def a_second_code(relay: Relay, request: Request) -> Request:
    """The labels once more, with the letters that came with the question."""
    (old,) = [one for one in relay.requests if one.what == "code labels"]
    return request._replace(what="code labels", message=old.message)


LIES: Mapping[str, Lie] = {
    "labels of its own": Lie("shop", "learn labels", flipped("labels"), ALTERED),
    "no labels": Lie("shop", "learn labels", none, NONE),
    "labels under a second code": Lie("bank", "judge", a_second_code, "coded already"),
    "labels in a later round": Lie("bank", "plant", asking("code labels"), DUE),
    "a tree of a party without the label": Lie("shop", "best split", asking("plant", tree=1), DUE),
    "another tree": Lie("bank", "plant", in_words(tree=9), WORDS),
    "a tree on a tree": Lie("bank", "choose", asking("plant", tree=1), "under way already"),
    "other columns": Lie("shop", "best split", flipped("tree"), ALTERED),
    "columns of the tree before": Lie("shop", "best split", of_the_round_before("tree"), OTHER),
    "a tree begun again": Lie("shop", "best split", begun_again, "grown already, or under way"),
    "altered sums": Lie("bank", "choose", flipped("best"), ALTERED),
    "sums in another's name": Lie("bank", "choose", in_anothers_name("best", "phone"), ALTERED),
    "sums of the tree before": Lie("bank", "choose", of_the_round_before("best"), OTHER),
    "sums of the level before": Lie("bank", "choose", of_the_level_before("best", 2), NONE),
    "sums of the level before as of this one": Lie("bank", "choose", labelled_anew("best", 2), NONE),
    "altered nodes": Lie("shop", "divide", flipped("wanted"), ALTERED),
    "an altered division": Lie("phone", "best split", where("split", flipped("split")), ALTERED),
    "an altered level": Lie("phone", "best split", where("level", flipped("level")), ALTERED),
    "the end of half a tree": Lie("bank", "choose", asking("ripen"), "not grown to its end"),
    "votes of half a tree": Lie("bank", "choose", asking("vote"), "not settled"),
    "another shape": Lie("shop", "keep tree", flipped("shape"), ALTERED),
    "altered leaf sets": Lie("bank", "vote", flipped("leaf sets"), ALTERED),
    "leaf sets of the tree before": Lie("bank", "vote", of_the_round_before("leaf sets"), OTHER),
    "leaf sets of all rows": Lie("shop", "keep tree", asking("leaf sets"), DUE),
    "votes for all rows": Lie("bank", "vote", asking("gather votes"), DUE),
    "gains before the end": Lie("bank", "plant", asking("share gains"), DUE),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    made = Ended(tmp_path_factory.mktemp("forest"), NAMES, LIES)
    for name in NAMES:
        made.policy(name, ORDER + KNOWN)
    made.result = made.run(**KEYS)  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("title", LIES)
def test_a_lie_is_refused(ended: Ended, title: str) -> None:
    """The party says why it does not answer, and the run went on to its end."""
    answer = ended.relay.heard.get(title)
    assert isinstance(answer, Refusal), answer
    assert LIES[title].said in answer.why
    state = ended.result.state  # type: ignore[attr-defined]
    assert (state.status, state.why) == ("finished", "")


@pytest.mark.parametrize("without", NAMES[:2])
@pytest.mark.parametrize("line", ["", 'known_labels = ["another"]\n'])
def test_a_node_whose_policy_does_not_name_the_scheme_tells_and_hears_nothing(
    tmp_path: Path, without: str, line: str
) -> None:
    """The label's party or another: the sentence is the node's, and nobody is asked for anything."""
    made = Ended(tmp_path, NAMES[:2], {})
    for name in NAMES[:2]:
        made.policy(name, ORDER + (line if name == without else KNOWN))
    state = made.run(**KEYS).state
    assert state.status == "failed"
    said = "its policy.toml refuses 'federated_forest', by which labels count as known to all parties: known_labels does not name it"
    assert f"'{without}' takes no part: {said}" in state.why
    assert made.relay.requests == []


def test_a_policy_that_no_longer_names_it_ends_a_run_before_the_next_tree(tmp_path: Path) -> None:
    made = Ended(tmp_path, NAMES[:2], {})

    def at_the_second(relay: Relay, request: Request) -> None:
        if request.round == 2:
            made.policy("bank", ORDER)

    for name in NAMES[:2]:
        made.policy(name, ORDER + KNOWN)
    made.relay.lies = {"": Lie("shop", "keep tree", at_the_second, ""), "x": Lie("bank", "plant", at_the_second, "")}
    state = made.run(**KEYS).state
    assert state.status == "failed"
    assert "known_labels does not name it" in state.why
    assert max(request.round for request in made.relay.requests) == 2
