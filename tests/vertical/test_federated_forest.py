"""Federated Forest between parties: the forest on the joined table bit for bit, codes, ties, pruning, one-round prediction, lies (V1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boosting_federation import Table, Trained, trained
from fedatlas.algorithm import Question
from fedatlas.errors import ProtocolError
from fedatlas.federation.client_states import PartyState
from fedatlas.prediction.parties import outputs_of
from fedatlas.rng import numpy_stream
from fedatlas.runs.columns_labels import LettersHeard
from fedatlas.vertical.forest import FEDERATED_FOREST, FederatedForest, coding, federated_forest, splits
from fedatlas.vertical.forest.pruning import pruned
from fedatlas.vertical.letters import LETTERS
from fedatlas.vertical.parties import PartyLeft, tensor
from oracles.federated_forest import Forest, Settings
from test_secureboost import made
from test_softmax import made as made_classes

TABLES = {
    "two classes": made(n=90),
    "three classes": made_classes(90),
    "a number": made(n=90, task="numbers"),
    "without missing values": made(n=90, holes=0.0),
}
OWNERS = {2: [[0, 2, 4], [1, 3, 5]], 3: [[1], [], [0, 2, 3, 4, 5]], 8: [[0], [1], [2], [3], [4], [5], [], []]}
TRAIN = np.setdiff1d(np.arange(90), np.arange(3, 90, 5))
HOW = federated_forest(trees=3, depth=4, features=0.7)


def grown(table: Table, owners: Sequence[Sequence[int]], how: FederatedForest = HOW, **more: Any) -> Trained:
    return trained(table, owners, how, **{"scheme": FEDERATED_FOREST, "train": TRAIN, **more})


def joined(table: Table, owners: Sequence[Sequence[int]], how: FederatedForest = HOW, train: Any = TRAIN) -> Forest:
    """The slow forest, with draws that are written down here once more."""
    every = [c for own in owners for c in own]
    some = max(1, int(len(every) ** 0.5) if how.features == "sqrt" else round(how.features * len(every)))
    bags, columns = [], []
    for tree in range(1, how.trees + 1):
        drawn = numpy_stream(0, "forest", "rows", tree).integers(0, len(train), len(train))
        bags.append([int((drawn == i).sum()) for i in range(len(train))])
        places = numpy_stream(0, "forest", "columns", tree).choice(len(every), some, replace=False)
        columns.append([every[i] for i in sorted(places)])
    keys = Settings(how.depth, how.min_samples, how.ccp_alpha)
    return Forest(table.x, table.y, table.task, keys, bags=bags, columns=columns, train=train)


def nested(nodes: Any, i: int = 0) -> Any:
    """A tree of ours as the slow forest writes it."""
    node = nodes[i]
    if "leaf" in node:
        return {"rows": node["rows"], "leaf": node["leaf"]}
    cut = np.inf if node["threshold"] is None else node["threshold"]
    split = {"column": int(node["column"][1:]), "cut": cut, "missing": node["missing"], "gain": node["gain"]}
    return {**split, "children": [nested(nodes, node["left"]), nested(nodes, node["right"])]}


def bare(tree: Any) -> Any:
    """A tree of the slow forest without what ours does not keep."""
    if "children" not in tree:
        return {name: tree[name] for name in ("rows", "leaf")}
    split = {name: tree[name] for name in ("column", "cut", "missing", "gain")}
    return {**split, "children": [bare(child) for child in tree["children"]]}


def predicted(found: Trained, how: FederatedForest = HOW) -> np.ndarray:
    """Of all rows, by the model as it is written and read."""
    states, active = PartyState(), found.parties[0].active
    model = FEDERATED_FOREST.export(found.parties[active], found.state(active))["model"]
    for one in found.parties:
        exported = FEDERATED_FOREST.export(one, found.state(one.party))
        loaded = FEDERATED_FOREST.load(one, {**exported, "model": model if one.party == active else None})
        states.after.put(one.party, {**loaded, "align": {"order": tensor(np.arange(len(one.x)))}})
    return outputs_of(found.parties, states, FEDERATED_FOREST, how)[0]


# ------------------------------------------------------------------------------------------------ the joined table


@pytest.mark.parametrize("parties", OWNERS)
@pytest.mark.parametrize("kind", TABLES)
def test_parties_grow_and_ask_the_forest_of_the_joined_table(kind: str, parties: int) -> None:
    table, owners = TABLES[kind], OWNERS[parties]
    found, expected = grown(table, owners, active=parties - 1), joined(table, owners)
    assert [nested(tree) for tree in found.trees] == [bare(tree) for tree in expected.trees]
    outside = np.setdiff1d(np.arange(len(table.y)), TRAIN)
    assert found.outputs[outside].tolist() == [expected.outputs[i] for i in outside]
    assert predicted(found).tolist() == expected.outputs


@pytest.mark.parametrize("kind", ["three classes", "a number"])
def test_one_party_grows_the_same_forest(kind: str) -> None:
    table = TABLES[kind]
    alone = grown(table, [list(range(table.x.shape[1]))])
    assert [nested(tree) for tree in alone.trees] == [bare(t) for t in joined(table, [range(table.x.shape[1])]).trees]
    assert predicted(alone).tolist() == joined(table, [range(table.x.shape[1])]).outputs


@pytest.mark.parametrize(("kind", "alphas"), [("two classes", (0.0, 0.01, 0.03, 9.0)), ("a number", (0.0, 1.0, 9.0))])
def test_pruned_trees_are_those_of_the_pruned_forest(kind: str, alphas: Sequence[float]) -> None:
    """Its leaves get fewer; the owners keep no threshold of a branch that was cut."""
    leaves = []
    for alpha in alphas:
        how = HOW._replace(ccp_alpha=alpha)
        found = grown(TABLES[kind], OWNERS[2], how)
        assert [nested(one) for one in found.trees] == [bare(t) for t in joined(TABLES[kind], OWNERS[2], how).trees]
        assert predicted(found, how).tolist() == joined(TABLES[kind], OWNERS[2], how).outputs
        nodes = [node for tree in found.trees for node in tree]
        leaves.append(sum("leaf" in node for node in nodes))
        kept = sum(len(found.state(k)["boost"]["table"]["tree"]) for k in (0, 1))
        assert kept == len(nodes) - leaves[-1]
    assert leaves == sorted(leaves, reverse=True)
    assert leaves[0] > leaves[1] > leaves[-1]


@pytest.mark.parametrize("keys", [{"min_samples": 25}, {"min_samples": 10_000}, {"features": "sqrt"}, {"depth": 1}])
def test_limits_hold_as_in_one_table(keys: Mapping[str, Any]) -> None:
    how = HOW._replace(**keys)
    found, expected = grown(TABLES["two classes"], OWNERS[3], how), joined(TABLES["two classes"], OWNERS[3], how)
    assert [nested(tree) for tree in found.trees] == [bare(tree) for tree in expected.trees]
    assert predicted(found, how).tolist() == expected.outputs


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("three classes", [[0, 1, 2], [2, 0, 1], [1, 0, 2]]),
        ("a number", [[1, 0], [3, 1 << 39], [coding.FACTOR - 1, -coding.SHIFT]]),
    ],
)
def test_no_code_changes_a_tree(kind: str, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, sent = [], []
    for key in keys:
        monkeypatch.setattr(coding, "mask", lambda _, key=key: np.array(key, np.int64))
        heard = LettersHeard()
        seen.append(grown(TABLES[kind], OWNERS[2], observers=[heard]).trees)
        (labels,) = [one for one in heard.letters[1] if one["topic"] == "labels"]
        sent.append(labels["content"]["labels"].tolist())
    assert seen[0] == seen[1] == seen[2]
    assert sent[0] != sent[1] != sent[2]


def test_a_drawn_code_is_a_permutation_or_a_line_that_rises() -> None:
    assert all(sorted(coding.mask(5).tolist()) == [0, 1, 2, 3, 4] for _ in range(20))
    for _ in range(20):
        a, b = coding.mask(0).tolist()
        assert 0 < a < coding.FACTOR
        assert -coding.SHIFT <= b < coding.SHIFT


def odd_table(kind: str) -> Table:
    """A table on which a forest has little to learn, or to judge."""
    table = made_classes(90) if "class" in kind else made(n=90, task="numbers")
    x, y = table.x.copy(), table.y.copy()
    if kind == "constant columns":
        x[:, [0, 1, 5]] = 7.0
    if kind == "a column without values":
        x[:, [1, 4]] = np.nan
    if kind == "a constant number":
        y[:] = 2.5
    if kind == "one class in training":
        y[TRAIN] = 1
    if kind == "a class in test rows only":
        y[TRAIN] = np.minimum(y[TRAIN], 1)
        y[3] = 2
    if kind == "a class of one row":
        y[:] = np.minimum(y, 1)
        y[TRAIN[4]] = 2
    return Table(x, y, table.task)


@pytest.mark.parametrize(
    "kind",
    [
        "constant columns",
        "a column without values",
        "a constant number",
        "one class in training",
        "a class in test rows only",
        "a class of one row",
    ],
)
def test_tables_that_teach_little_are_grown_as_in_one_table(kind: str) -> None:
    table = odd_table(kind)
    found, expected = grown(table, OWNERS[3], active=2), joined(table, OWNERS[3])
    assert [nested(tree) for tree in found.trees] == [bare(tree) for tree in expected.trees]
    assert predicted(found).tolist() == expected.outputs
    assert np.isfinite(expected.outputs).all()
    split = [node for tree in found.trees for node in tree if "leaf" not in node]
    assert bool(split) == (kind not in ("a constant number", "one class in training"))


# ------------------------------------------------------------------------------------------------ splits


def test_the_first_of_exactly_equal_splits_is_taken() -> None:
    """Labels 0 1 1 0: cutting off either end gains the same; a second column with the same values comes too late."""
    x = np.array([[1.0, 1], [2, 2], [3, 3], [4, 4]])
    sums = splits.row_sums(np.array([0, 1, 1, 0]), 2, np.ones(4, np.int64))
    found = splits.best(x, [0, 1], sums)
    assert found is not None
    assert found[:3] == (0, 1.5, False)
    assert splits.gain(found.sums.tolist(), sums.sum(axis=0).tolist()) == Fraction(2, 3)


def test_gains_that_floats_cannot_tell_apart_are_compared_exactly() -> None:
    """Twice 2^55 and 2^55 + 1 are the same as float64 once multiplied by the rows: the larger one wins, wherever it stands."""
    total = np.array([4, 0])
    left = np.array([[2, 1 << 55], [2, (1 << 55) + 1]])
    exact = [splits.gain(one.tolist(), total.tolist()) for one in left]
    assert exact[1] > exact[0]
    assert float(exact[1]) == float(exact[0])
    assert splits.first_best(left, total) == 1
    assert splits.first_best(left[::-1], total) == 0


def test_no_split_of_equal_labels_gains_anything() -> None:
    sums = splits.row_sums(np.array([7, 7, 7]), 0, np.ones(3, np.int64))
    assert splits.best(np.array([[1.0], [2], [np.nan]]), [0], sums) is None


def test_pruning_by_hand() -> None:
    """A root of cost 1 whose left child costs 1/2 and has two pure leaves, the right child is pure: rises 1/2 (below) and 1/2 (root)."""
    cost = {1: Fraction(1), 2: Fraction(1, 2), 3: Fraction(0), 4: Fraction(0), 5: Fraction(0)}
    assert pruned([1, 2], cost, Fraction(0)) == [1, 2]
    assert pruned([1, 2], cost, Fraction(49, 100)) == [1, 2]
    assert pruned([1, 2], cost, Fraction(1, 2)) == []
    assert pruned([1, 2], {**cost, 2: Fraction(1, 4)}, Fraction(1, 4)) == [1]


# ------------------------------------------------------------------------------------------------ letters


def recorded(kind: str, how: FederatedForest = HOW, active: int = 1) -> tuple[Trained, Mapping[int, Any]]:
    """A training by three parties, and the letters that each saw."""
    heard = LettersHeard()
    found = grown(TABLES[kind], [[0, 4], [1, 5], [2, 3]], how, active=active, observers=[heard])
    return found, heard.letters


@pytest.mark.parametrize("kind", TABLES)
def test_nothing_else_reaches_a_party_without_the_label(kind: str) -> None:
    """By topic what a passive party is sent: coded labels once, its own columns, shapes, and rows of nodes that can be split."""
    _, letters = recorded(kind)
    for party in (0, 2):
        came = [one for one in letters[party] if one["from"] != party]
        assert {one["topic"] for one in came} == {"labels", "tree", "level", "wanted", "split", "shape"}
        (labels,) = [one["content"] for one in came if one["topic"] == "labels"]
        y = TABLES[kind].y[TRAIN]
        if labels["classes"]:
            pairs = {*zip(y.tolist(), labels["labels"].tolist(), strict=True)}
            assert len(pairs) == labels["classes"], "a code of each class"
        else:
            assert np.corrcoef(y, labels["labels"].numpy())[0, 1] > 0.999999
        for one in (one for one in came if one["topic"] == "tree"):
            assert {*one["content"]} == {"tree", "columns"}
            assert all(c < 2 for c in one["content"]["columns"])
        assert all({*one["content"]} == {"inner"} for one in came if one["topic"] == "shape")


def test_the_page_says_what_the_table_of_the_report_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vertical.md").read_text()
    for row in FEDERATED_FOREST.words.learns(HOW, False):
        assert f"| {' | '.join(row)} |" in page


def test_a_party_is_told_of_no_rows_but_those_of_nodes_that_can_be_split() -> None:
    """Each division that it hears of leads to a node that the same level's letter calls open."""
    _, letters = recorded("two classes")
    for party in (0, 2):
        tree, open_ = 0, dict[tuple[int, int], set[int]]()
        for one in letters[party]:
            tree = one["content"]["tree"] if one["topic"] == "tree" else tree
            if one["topic"] == "level":
                open_[tree, one["step"]] = {*one["content"]["open"]}
        tree, heard = 0, 0
        for one in letters[party]:
            tree = one["content"]["tree"] if one["topic"] == "tree" else tree
            if one["topic"] in ("level", "split") and one["from"] != party:
                for v in one["content"]["told"]["nodes"]:
                    heard += 1
                    assert {2 * v, 2 * v + 1} & open_[tree, one["step"]]
        assert heard


def test_the_holder_of_the_label_hears_sums_of_best_splits_divisions_and_leaf_sets() -> None:
    _, letters = recorded("a number")
    came = [one for one in letters[1] if one["from"] != 1]
    assert {one["topic"] for one in came} == {"number of columns", "best", "split", "leaf sets"}
    assert all(one["content"]["left"].shape[1] == 2 for one in came if one["topic"] == "best"), "rows, and their sum"


def test_prediction_takes_one_letter_of_each_party_and_one_leaf_is_in_all_sets() -> None:
    found, _ = recorded("three classes")
    states, heard = PartyState(), LettersHeard()
    active = found.parties[0].active
    for one in found.parties:
        exported = FEDERATED_FOREST.export(one, found.state(one.party))
        order = np.arange(90) if one.party != 2 else np.where(np.arange(90) % 4, np.arange(90), -1)
        states.after.put(one.party, {**FEDERATED_FOREST.load(one, exported), "align": {"order": tensor(order)}})
    said = outputs_of(found.parties, states, FEDERATED_FOREST, HOW, [heard])[0]
    assert not any(one["from"] != k for k in (0, 2) for one in heard.letters.get(k, ())), "nobody else is told anything"
    letters = {(one["from"], one["topic"]) for one in heard.letters[active]}
    assert letters == {(0, "leaf sets"), (2, "leaf sets")}
    assert len(heard.letters[active]) == 2
    shown = TABLES["three classes"]
    x = shown.x.copy()
    x[::4, [2, 3]] = np.nan  # a row that a party lacks goes where its missing values go
    expected = joined(shown, [[0, 4], [1, 5], [2, 3]])
    assert said.tolist() == [expected.said(row) for row in x.tolist()]


def open_leaves(found: Trained, party: int, tree: int, x: np.ndarray) -> list[set[int]]:
    """By row the leaves, from left to right, that are left after a party's own splits; at those of others both branches are."""
    nodes, name = found.trees[tree], found.parties[party].name

    def below(i: int, row: np.ndarray) -> set[int]:
        node = nodes[i]
        if "leaf" in node:
            return {i}
        value = row[int(node["column"][1:])]
        cut = np.inf if node["threshold"] is None else node["threshold"]
        left = node["missing"] == "left" if np.isnan(value) else value <= cut
        sides = [node["left"] if left else node["right"]] if node["party"] == name else [node["left"], node["right"]]
        return set.union(*(below(side, row) for side in sides))

    return [below(0, row) for row in x]


def test_a_letter_says_as_much_as_the_sets_of_leaves() -> None:
    """Rows whose sets are the same have the same bits, and rows with the same bits the same sets; one leaf is in all sets."""
    found, letters = recorded("three classes")
    table = TABLES["three classes"]
    outside = np.setdiff1d(np.arange(len(table.y)), TRAIN)
    seen = 0
    for tree in range(HOW.trees):
        sets = [open_leaves(found, k, tree, table.x[outside]) for k in range(3)]
        assert all(len(set.intersection(*each)) == 1 for each in zip(*sets, strict=True))
        for k in (0, 2):
            (one,) = [
                each for each in letters[1] if (each["topic"], each["from"], each["step"]) == ("leaf sets", k, tree + 1)
            ]
            (told,) = one["content"]["sets"]
            bits = np.unpackbits(told.numpy(), axis=1, count=len(outside)).T.tolist()
            pairs = {(tuple(each), tuple(sorted(own))) for each, own in zip(bits, sets[k], strict=True)}
            assert len(pairs) == len({each for each, _ in pairs}) == len({own for _, own in pairs})
            seen += len(pairs)
    assert seen > 12


def lied(kind: str, topic: str, change: Any, what: str) -> None:
    """A training in which party 1 changes its first letter on a topic."""
    table, owners = TABLES[kind], OWNERS[2]
    questions, done = FEDERATED_FOREST.questions, []

    def lying(how: Any) -> Any:
        asked = dict(questions(how))
        honest = asked[what]

        def answer(model: Any, data: Any, message: Any, state: Any, session: Any) -> Any:
            reply, *rest = honest.answer(model, data, message, state, session)
            letters = list(reply[LETTERS])
            for i, one in enumerate(letters):
                if one["topic"] == topic and data.party == 1 and not done:
                    letters[i] = {**one, "content": change(one["content"])}
                    done.append(topic)
            return {**reply, LETTERS: letters}, *rest

        return {**asked, what: honest._replace(answer=answer)}

    scheme = FEDERATED_FOREST._replace(questions=lying)
    with pytest.raises(PartyLeft, match="party 'p1' is lost"):
        trained(table, owners, HOW, scheme=scheme, train=TRAIN)
    assert done


REPEATED = {"number of columns", "learn labels", "leaf sets", "gather votes", "share gains", "importance"}
"""Questions whose second answer is the first one, and changes nothing."""


@pytest.mark.parametrize("kind", ["three classes", "a number"])
def test_no_question_is_answered_a_second_time_with_the_same_letters(kind: str) -> None:
    """The sentence is the party's own, and what it keeps stays as it was."""
    said: dict[str, str] = {}
    questions = FEDERATED_FOREST.questions

    def again(name: str, asked: Question) -> Question:
        def answer(model: Any, data: Any, message: Any, state: Any, session: Any) -> Any:
            first = asked.answer(model, data, message, state, session)
            if name not in REPEATED:
                with pytest.raises(ProtocolError) as raised:
                    asked.answer(model, data, message, first[1], first[2])
                said.setdefault(name, str(raised.value))
            return first

        return asked._replace(answer=answer)

    twice = {name: again(name, one) for name, one in questions(HOW).items()}
    found = grown(TABLES[kind], OWNERS[2], scheme=FEDERATED_FOREST._replace(questions=lambda _: twice))
    assert [nested(tree) for tree in found.trees] == [bare(tree) for tree in joined(TABLES[kind], OWNERS[2]).trees]
    assert {*said} == {*twice} - REPEATED
    assert all("\n" not in one for one in said.values())
    assert "coded already" in said["code labels"]
    assert "divided already" in said["divide"]
    assert "settled already" in said["ripen"]
    assert "grown already" in said["keep tree"] or "no tree is under way" in said["keep tree"]


def turned(told: Any) -> Any:
    """The same nodes with all their rows on the other side."""
    return {"told": {**told["told"], "left": [255 - one for one in told["told"]["left"]]}}


def raised(*by: int) -> Any:
    """Sums with something added."""
    return lambda told: {"left": told["left"] + tensor(np.array([by]))}


LIES = {
    "more rows than there are": ("two classes", "best", "best split", raised(1000, 1000, 0)),
    "counts that do not add up": ("two classes", "best", "best split", raised(0, 1, 0)),
    "sums of no labels": ("a number", "best", "best split", raised(0, 1)),
    "another division": ("two classes", "split", "divide", turned),
    "a set too few": ("two classes", "leaf sets", "keep tree", lambda _: {"sets": []}),
    "a node too few": ("two classes", "leaf sets", "keep tree", lambda c: {"sets": [one[1:] for one in c["sets"]]}),
}


@pytest.mark.parametrize("lie", LIES)
def test_sums_divisions_and_leaf_sets_that_cannot_be_lose_their_sender(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding, "mask", lambda n: np.arange(n) if n else np.array([7, 3], np.int64))
    kind, topic, what, change = LIES[lie]
    lied(kind, topic, change, what)
