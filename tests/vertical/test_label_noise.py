"""Labels with noise where parties hold columns: only test figures depend on the labels as they are, and each costs epsilon once."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import beta

from fedatlas import secret
from fedatlas.algorithm import Update
from fedatlas.config import parse
from fedatlas.course.columns import Growing
from fedatlas.data.party_tables import PartyTable
from fedatlas.federation.link import Observer, Request
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import made
from fedatlas.record.fingerprint import label_sources
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.setup.label_noise import with_noised_labels
from fedatlas.setup.refusals import checked
from fedatlas.vertical import SCHEMES
from fedatlas.vertical.parties import Columns, labels, places
from fedatlas.wire import codec
from test_vertical_run import experiment, plain_rows, tables

ROOT = bytes(range(32))
NAME = "randomised_response"
YES = {"name": NAME, "epsilon": 1.0, "classes": ["no", "yes"]}
MANY = 40_000
KEYS = {"federated_forest": {"features": 1.0}, "secureboost": {"goss": [0.5, 0.2]}}
"""Keys of a scheme that let more depend on labels."""


def table(y: np.ndarray, classes: tuple[str, ...] = ()) -> PartyTable:
    ids = tuple(map(str, range(len(y))))
    return PartyTable(
        "bank", ids, (), np.zeros((len(y), 0)), (), y, task="classes" if classes else "numbers", class_names=classes
    )


def drawn(mechanism: Mechanism, y: Sequence[float], classes: tuple[str, ...] = (), root: bytes = ROOT) -> np.ndarray:
    """The labels with the noise of a fixed secret, so that a test depends on no chance."""
    found = with_noised_labels([mechanism], [table(np.asarray(y, np.float64), classes)], root, 0, 0).labels[0]
    assert found is not None
    return found


def lower_bound(event: np.ndarray, other: np.ndarray) -> float:
    """A lower bound of epsilon from an event's frequency under two neighbours: 99.99% Clopper and Pearson at both ends."""
    a, n, b, m = int(event.sum()), len(event), int(other.sum()), len(other)
    low, high = beta.ppf(5e-5, a, n - a + 1), beta.ppf(1 - 5e-5, b + 1, m - b)
    return float(np.log(low / high))


# ------------------------------------------------------------------------------------------------ the noise


@pytest.mark.parametrize(("epsilon", "k"), [(0.5, 2), (2.0, 2), (1.0, 4)])
def test_a_class_stays_as_often_as_stated_and_costs_no_more_than_epsilon(epsilon: float, k: int) -> None:
    names = tuple("abcd"[:k])
    mechanism = made(NAME, {"epsilon": epsilon, "classes": names})
    each = [drawn(mechanism, [value] * MANY, names, bytes([value] * 32)) for value in range(k)]
    p = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    for value, found in enumerate(each):
        assert (found == value).mean() == pytest.approx(p, abs=4.5 * math.sqrt(p * (1 - p) / MANY))
    bounds = [lower_bound(a == seen, b == seen) for seen in range(k) for a in each for b in each if a is not b]
    assert 0.8 * epsilon < max(bounds) <= epsilon, "tight enough to notice half the noise, and never above"


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_a_number_costs_no_more_than_epsilon(epsilon: float) -> None:
    """The worst event of Laplace noise: above the range, for labels at its two ends."""
    mechanism = made(NAME, {"epsilon": epsilon, "range": (-3.0, 5.0)})
    low, high = (drawn(mechanism, [value] * MANY, (), bytes([k] * 32)) for k, value in enumerate((-3.0, 5.0)))
    found = lower_bound(high > 5.0, low > 5.0)
    assert 0.8 * epsilon < found <= epsilon
    assert high.mean() == pytest.approx(5.0, abs=4.5 * math.sqrt(2 / MANY) * 8 / epsilon), "it is not clipped again"
    assert high.std() == pytest.approx(math.sqrt(2) * 8 / epsilon, rel=0.05)


def test_a_number_outside_the_range_is_taken_for_its_end() -> None:
    """Else its distance to another label, and so its epsilon, would have no bound."""
    mechanism = made(NAME, {"epsilon": 1.0, "range": (0.0, 1.0)})
    assert (drawn(mechanism, [1e12, -1e12, 0.5]) == drawn(mechanism, [1.0, 0.0, 0.5])).all()


def test_rows_have_noise_of_their_own_and_another_secret_draws_other_noise() -> None:
    mechanism = made(NAME, {"epsilon": 1.0, "range": (0.0, 1.0)})
    found = drawn(mechanism, [0.5] * 1000)
    assert len(np.unique(found)) > 990
    assert (found == drawn(mechanism, [0.5] * 1000)).all()
    assert (found != drawn(mechanism, [0.5] * 1000, root=bytes(32))).any()
    fresh = [with_noised_labels([mechanism], [table(np.full(50, 0.5))], b"", 0, 0) for _ in range(2)]
    assert len({one.root for one in fresh}) == 2, "without a secret it comes from the operating system"


# ------------------------------------------------------------------------------------------------ what depends on labels


class EverythingSent(Observer):
    """All that crosses between the parties and the coordinator, as bytes of the codec."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def asked(self, request: Request) -> None:
        self.sent.append(bytes(codec.encode(dict(request.message))))

    def replied(self, request: Request, update: Update) -> None:  # noqa: ARG002
        self.sent.append(bytes(codec.encode(dict(update))))


def dealt(scheme: str, task: str, partition: str = "vertical") -> Checked:
    """Columns of one table dealt to three parties, and with "hybrid" rows that only one of them has, with its own labels."""
    data = {"classes": "breast_cancer_wdbc", "numbers": "auto_mpg"}[task]
    how = {"classes": ["B", "M"]} if task == "classes" else {"range": [5.0, 50.0]}
    return checked(
        parse(
            {
                "data": {"name": data, "limit": 200},
                "partition": {"name": partition, "parties": 3},
                "algorithm": {"name": scheme, SCHEMES[scheme].rounds: 2, **KEYS.get(scheme, {})},
                "evaluation": {"on": "validation", "validation": 0.2},
                "privacy": [{"name": NAME, "epsilon": 1.0, **how}],
            }
        )
    )


class Told(NamedTuple):
    """All that a run sends and writes, but for times, and the state of each party."""

    sent: list[bytes]
    rows: list[dict[str, Any]]
    summary: str
    states: list[Any]


def told(held: Consortium, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """A run whose secret draws, keys of the matching and orders of candidates among them, are those of every other run here."""
    heard, number = EverythingSent(), count()

    def same_bytes(many: int) -> bytes:
        return hashlib.shake_256(str(next(number)).encode()).digest(many)

    monkeypatch.setattr(secret, "random_bytes", same_bytes)
    monkeypatch.setattr(secret, "integer_below", lambda bound: int.from_bytes(same_bytes(16)) % bound)
    run = Growing(held, RunFolder.create(folder, held.config), observers=[heard])
    run.land(run.begin())
    for _ in range(held.config.rounds):
        run.land(run.step())
    found = {**run.figures(RunFolder(folder).rows(), ""), "models": run.models()}
    known = {key: one for key, one in found.items() if key != "cost"}
    with np.printoptions(threshold=sys.maxsize):
        states = [run.federation.states.get(k) for k in range(len(held.parties))]
        return Told(heard.sent, plain_rows(folder), repr(known), states)


MATCHED = [
    (name, task, partition)
    for name, one in SCHEMES.items()
    if one.layout == "columns"
    for task in one.tasks
    for partition in ("vertical", *(["hybrid"] if one.several_labels else []))
]


def judged_rows(own: Columns, state: Any) -> np.ndarray:
    """A party's own test rows: common ones where its labels count, and those that only it has."""
    common = state["align"]["order"].numpy()[places(state, "test")] if own.party == own.active else np.arange(0)
    alone = state["nets"]["test"].numpy() if "test" in state.get("nets", {}) else np.arange(0)
    return np.concatenate([common, alone])


@pytest.mark.parametrize(("scheme", "task", "partition"), MATCHED)
def test_nothing_depends_on_labels_without_noise_but_figures_of_test_rows(
    scheme: str, task: str, partition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every label outside of the test rows is replaced, its noisy one stays: not a bit that is sent or written changes."""
    held = consortium(dealt(scheme, task, partition), ROOT)
    first = told(held, tmp_path / "first", monkeypatch)
    changed, labelled = [], 0
    for own, state in zip(held.parties, first.states, strict=True):
        if own.y is None:
            changed.append(own)
            continue
        test = judged_rows(own, state)
        other = np.nanmax(own.y) + np.nanmin(own.y) - own.y
        other[test] = own.y[test]
        changed.append(own._replace(y=other))
        labelled += 1
    assert labelled == (3 if partition == "hybrid" else 1)
    again = told(held._replace(parties=tuple(changed)), tmp_path / "again", monkeypatch)
    assert again.sent == first.sent
    assert again.rows == first.rows
    assert again.summary == first.summary
    bare = [one._replace(noised=None) for one in changed]
    seen = told(held._replace(parties=tuple(bare)), tmp_path / "bare", monkeypatch)
    assert seen.sent != first.sent, "labels without noise would have been noticed"
    assert seen.summary != first.summary


def test_test_rows_are_judged_by_their_labels_and_all_others_have_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = consortium(dealt("secureboost", "numbers"), ROOT)
    state = told(held, tmp_path / "run", monkeypatch).states[held.active]
    own, at = held.parties[held.active], state["align"]["order"].numpy()
    assert own.y is not None
    found, test = labels(own, state), places(state, "test")
    assert found is not None
    assert (found[test] == own.y[at[test]]).all()
    rest = np.concatenate([places(state, "train"), places(state, "held")])
    assert (found[rest] != own.y[at[rest]]).all()
    assert (labels(own, {"align": state["align"]}) != own.y[at]).all(), "before the split nothing says which rows test"


def test_classes_are_those_that_are_listed(tmp_path: Path) -> None:
    """Whether a class occurs would tell something of the rows; so would the order in which names come."""
    tables(tmp_path)
    how = {**YES, "classes": ["yes", "maybe", "no"]}
    held = consortium(checked(experiment(tmp_path, privacy=[how]).config), ROOT)
    assert held.holder.class_names == ("yes", "maybe", "no")
    own = held.parties[held.active]
    assert own.classes == 3
    assert own.y is not None
    assert own.noised is not None
    assert set(own.y) == {0, 2}
    assert set(own.noised) == {0, 1, 2}


def test_figures_of_the_noise_are_of_the_labels_that_train(tmp_path: Path) -> None:
    """Those of another party on common rows have noise of their own: figures of them would tell of these labels twice."""
    n = 400
    for name, label in (("bank", "no"), ("shop", "yes")):
        lines = ["id,x,y", *(f"{i},{i % 7},{label}" for i in range(1, n)), f"{n},1,no"]
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, f"{n + 1},1,yes"]))
    parties = [{"name": n, "path": str(tmp_path / f"{n}.csv"), "id": "id", "label": "y"} for n in ("bank", "shop")]
    asked = {"parties": parties, "algorithm": {"name": "hybrid"}, "privacy": [{**YES, "epsilon": 8.0}]}
    held = consortium(checked(parse(asked)), ROOT)
    assert held.label_figures[NAME]["classes"]["values"]["no"]["share"] > 0.9
    assert len(label_sources(held.config)) == 2, "an account adds up runs on the labels of any of the files"
    assert not any("epsilons of these" in line for line in held.notices), "a row is common, or only one party has it"


@pytest.mark.parametrize("labelled", [1, 2, 3])
def test_a_row_that_some_parties_share_has_a_label_at_each(labelled: int, tmp_path: Path) -> None:
    """By definition: the parties with labels that can hold a row which is not common, each of which trains on its label."""
    parties = []
    for k in range(3):
        path = tmp_path / f"{k}.csv"
        path.write_text("id,x,y\n1,0,no\n2,1,yes\n")
        parties.append(
            {"name": f"p{k}", "path": str(path), "id": "id", **({"label": "y"} if k < labelled else {"drop": ["y"]})}
        )
    held = consortium(checked(parse({"parties": parties, "algorithm": {"name": "hybrid"}, "privacy": [YES]})), ROOT)
    said = [line for line in held.notices if "epsilons of these" in line]
    assert ["to 2 times" in line for line in said] == ([True] if labelled > 1 else [])
