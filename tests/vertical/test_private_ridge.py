"""Private ridge regression, phase by phase: exact against fractions, its letters, its stops, and bad input."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.algorithm import State
from fedatlas.errors import DataError, PrivacyError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.link import Observer
from fedatlas.federation.start import RoundStart
from fedatlas.record.checkpoint import Checkpoints, RunState
from fedatlas.vertical.letters import LETTERS, LetterKind
from fedatlas.vertical.parties import Columns, PartyLeft, tensor
from fedatlas.vertical.ridge import numbers, owner, protocol
from fedatlas.vertical.ridge.roles import (
    COEFFICIENTS,
    EQUATIONS,
    EXTENT,
    KEY,
    MASKED,
    MASKS,
    PLAN,
    ROLES,
    SOLUTION,
    in_letter,
)
from fedatlas.vertical.ridge.scheme import WORDS
from fedatlas.vertical.ridge.settings import Ridge, private_ridge
from test_ridge_numbers import by_hand

BITS = 512


def settings(**keys: Any) -> Ridge:
    return private_ridge(**keys)._replace(key_bits=BITS, encrypted=True)


def table(rows: int = 30, columns: int = 3, classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(rows + columns + classes)
    x = draw.normal(size=(rows, columns)) * 10.0 ** np.arange(columns)
    y = x @ (1 / 10.0 ** np.arange(columns)) + draw.normal(size=rows) + 2
    return x, y if not classes else np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)).astype(float)


def parties(x: np.ndarray, y: np.ndarray, cuts: Sequence[int], classes: int = 0) -> list[Columns]:
    held = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
    names = (*(f"owner-{k}" for k in range(len(cuts) + 1)), *ROLES)
    columns = tuple(f"x{j}" for j in range(x.shape[1]))
    found = [Columns(k, names[k], 0, names, (), a, columns, b, classes=classes) for k, (a, b) in enumerate(held)]
    none = np.empty((0, x.shape[1]))
    return found + [
        Columns(len(found) + k, n, 0, names, (), none, columns, classes=classes) for k, n in enumerate(ROLES)
    ]


def lying(answer: Any, lie: tuple[str, str, Any], *given: Any) -> Any:
    """An answer whose letters on a topic have another value in one part; None: without it."""
    reply, state, session = answer(*given)
    topic, part, value = lie
    for one in reply.get(LETTERS, ()):
        if one["topic"] == topic:
            one["content"] = {**one["content"], part: value(one["content"][part])}
            if one["content"][part] is None:
                del one["content"][part]
    return reply, state, session


class Fit:
    """A fit that can stop between two phases."""

    def __init__(
        self,
        how: Ridge,
        held: Sequence[Columns],
        observers: Sequence[Observer] = (),
        lie: tuple[str, str, Any] | None = None,
    ) -> None:
        self.how, self.held, self.states, self.lie = how, held, PartyState(), lie
        for one in held:
            if one.y is not None:
                self.states.after.put(one.party, {"split": {"train": tensor(np.arange(len(one.y)))}})
        self.observers = observers
        self.open()

    def open(self) -> None:
        asked = protocol.questions(self.how)
        if self.lie:
            asked = {name: one._replace(answer=partial(lying, one.answer, self.lie)) for name, one in asked.items()}
        self.federation = columns_federation(self.held, asked, self.states, observers=self.observers)

    def phase(self, number: int) -> None:
        server: State = {"names": [one.name for one in self.held]}
        make = partial(protocol.step, self.how, server, number) if number else partial(protocol.begin, self.how, server)
        assert self.federation.drive(make, RoundStart(number, 1.0)) is not None

    def run(self, phases: range = range(protocol.PHASES + 1)) -> Fit:
        for number in phases:
            self.phase(number)
        return self

    def ridge(self, party: int) -> dict[str, Any]:
        found = self.states.get(party)
        assert found is not None
        return dict(found["ridge"])

    def coefficients(self, party: int = 0) -> np.ndarray:
        return self.ridge(party)["coefficients"].numpy()


def exact(x: np.ndarray, y: np.ndarray, l2: float, plan: numbers.FixedPoint, classes: int = 0) -> np.ndarray:
    """The closed form of the quantised data, in fractions, written without the code."""
    scale = [Fraction(2) ** (plan.precision - e) for e in plan.largest]
    rows = [
        [*(Fraction(round(Fraction(v) * s)) for v, s in zip(row, scale[:-1], strict=True)), Fraction(2**plan.precision)]
        for row in x.tolist()
    ]
    if classes:
        kinds = [1] if classes == 2 else list(range(classes))
        targets = [[Fraction((1 if v == kind else -1) * 2**plan.precision) for kind in kinds] for v in y.tolist()]
    else:
        targets = [[Fraction(round(Fraction(v) * scale[-1]))] for v in y.tolist()]
    p = len(rows[0])
    a = [[sum(row[i] * row[j] for row in rows) for j in range(p)] for i in range(p)]
    for j in range(p - 1):
        a[j][j] += round(Fraction(l2) * scale[j] ** 2)
    b = [
        [sum(row[i] * t[k] for row, t in zip(rows, targets, strict=True)) for k in range(len(targets[0]))]
        for i in range(p)
    ]
    found = by_hand(a, b)  # type: ignore[arg-type]
    back = [Fraction(2) ** (plan.largest[-1] - e) for e in (*plan.largest[:-1], 0)]
    return np.array([[float(v * s) for v in row] for row, s in zip(found, back, strict=True)])


def plan_of(fit: Fit) -> numbers.FixedPoint:
    held = fit.ridge(0)["plan"]
    return numbers.FixedPoint(held["rows"], held["precision"], tuple(held["largest"].tolist()))


@pytest.mark.parametrize("reveal", ["engine", "owners"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_it_is_the_closed_form_of_the_rounded_numbers_bit_for_bit_whoever_learns_it(reveal: str, classes: int) -> None:
    x, y = table(classes=classes)
    fit = Fit(settings(l2=0.7, reveal=reveal), parties(x, y, [7, 19], classes)).run()
    due = exact(x, y, 0.7, plan_of(fit), classes)
    assert due.shape == (4, 3 if classes == 3 else 1)
    for k in range(3):
        assert np.array_equal(fit.coefficients(k), due)


def test_rows_split_in_any_way_give_the_same_bits() -> None:
    x, y = table()
    found = [Fit(settings(precision=12), parties(x, y, cuts)).run().coefficients() for cuts in ([], [1], [5, 6, 20])]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_it_is_scikit_learns_ridge_within_the_bound_that_is_said() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = table(60)
    fit = Fit(settings(l2=2.0), parties(x, y, [20])).run()
    due = linear.Ridge(alpha=2.0, solver="cholesky").fit(x, y)
    said = x @ fit.coefficients()[:-1, 0] + fit.coefficients()[-1, 0]
    away = np.abs(said - due.predict(x)).max()
    assert away <= fit.ridge(0)["error"]
    assert away <= fit.ridge(1)["error"]
    assert away < 1e-4


def test_without_a_penalty_it_is_least_squares_and_columns_that_follow_from_others_are_refused() -> None:
    x, y = table()
    fit = Fit(settings(l2=0.0), parties(x, y, [9])).run()
    assert np.array_equal(fit.coefficients(), exact(x, y, 0.0, plan_of(fit)))
    x[:, 1] = 4.0
    with pytest.raises(DataError, match=r"a column is constant or follows from others: set algorithm\.l2 above 0"):
        Fit(settings(l2=0.0), parties(x, y, [9])).run()
    held = Fit(settings(l2=1.0), parties(x, y, [9])).run()
    assert held.coefficients()[1, 0] == 0.0


def test_a_key_without_room_is_refused_before_there_is_one() -> None:
    x, y = table(columns=12)
    with pytest.raises(
        PrivacyError, match=r"12 columns and 30 rows with 8 bits after the point needs a key of [\d,]+ bits"
    ):
        Fit(settings(), parties(x, y, [9])).phase(0)


class Letters(Observer):
    """Every letter of a run: (sender, receiver, topic, parts)."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str, str]] = set()
        self.contents: dict[str, Any] = {}

    def replied(self, request: Any, update: Any) -> None:  # noqa: ARG002
        names = ("owner-0", "owner-1", *ROLES)
        for one in update.get(LETTERS, ()):
            self.seen |= {(names[one["from"]].split("-")[0], names[k].split("-")[0], one["topic"]) for k in one["to"]}
            self.contents[one["topic"]] = one["content"]
        assert {*update} <= {LETTERS}


COMMON = {
    ("owner", "engine", "extent"),
    ("engine", "owner", "plan"),
    ("provider", "owner", "key"),
    ("provider", "engine", "key"),
    ("owner", "engine", "equations"),
    ("engine", "provider", "masked equations"),
}
LEARNT = {
    "engine": COMMON | {("provider", "engine", "masked solution"), ("engine", "owner", "coefficients")},
    "owners": COMMON | {("provider", "owner", "masked solution"), ("engine", "owner", "masks")},
}


@pytest.mark.parametrize("reveal", ["engine", "owners"])
def test_only_the_letters_of_the_table_cross_and_each_role_gets_what_the_table_says(reveal: str) -> None:
    x, y = table()
    seen = Letters()
    fit = Fit(settings(reveal=reveal), parties(x, y, [9]), [seen]).run()
    assert seen.seen == LEARNT[reveal]
    assert {*seen.contents["extent"]} == {"rows", "largest"}
    assert {*seen.contents["key"]} == {"n", "h", "bits"}
    kept = {name: {*fit.ridge(k)} for k, name in enumerate(("owner", "owner", *ROLES))}
    assert kept["provider"] == set()
    assert kept["owner"] == {"plan", "coefficients", "error", "outputs"}
    assert kept["engine"] == ({"plan", "coefficients"} if reveal == "engine" else {"plan"})


STEPS = {
    "extent": "size of numbers",
    "plan": "size of numbers",
    "masked solution": "coefficients",
    "masks": "coefficients",
}
"""Letter -> the step of the report's table that tells of it; others have the step's name."""


class Received(Observer):
    """What each role is handed: role -> topics, from recorded requests."""

    def __init__(self) -> None:
        self.topics: dict[str, set[str]] = {"owner": set(), **{role: set() for role in ROLES}}

    def asked(self, request: Any) -> None:
        name = ("owner", "owner", *ROLES)[request.client]
        self.topics[name] |= {one["topic"] for one in request.message.get(LETTERS, ())}


@pytest.mark.parametrize("reveal", ["engine", "owners", "clear"])
def test_each_role_is_handed_the_letters_that_the_reports_table_tells_of_and_no_more(reveal: str) -> None:
    """A cell says "nothing" exactly where no letter of that step was handed to the role."""
    x, y = table()
    how = settings(reveal="engine" if reveal == "clear" else reveal)._replace(encrypted=reveal != "clear")
    seen = Received()
    Fit(how, parties(x, y, [9]), [seen]).run()
    rows = {row.step: row for row in WORDS.learns(how, how.encrypted)}
    for role, cell in zip(("owner", *ROLES), ("passive", "active", "coordinator"), strict=True):
        steps = {STEPS.get(topic, topic.replace("plain ", "")) for topic in seen.topics[role]}
        told = {step for step, row in rows.items() if not getattr(row, cell).startswith("nothing")}
        makes = {("provider", "key"), *([("engine", "coefficients")] if reveal == "clear" else [])}  # not by a letter
        assert told == steps | {step for who, step in makes if who == role and step in rows}


@pytest.mark.parametrize("reveal", ["engine", "owners"])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_run_that_stops_between_two_phases_goes_on_in_another_process(reveal: str, stop: int, tmp_path: Path) -> None:
    """Only what the states hold is left: they are written and read back as a checkpoint does."""
    x, y = table()
    held, how = parties(x, y, [9]), settings(reveal=reveal)
    first = Fit(how, held).run(range(stop + 1))
    Checkpoints(tmp_path, "hash").save(RunState(stop, {}, 0), first.states, {})
    second = Fit(how, held)
    second.states = PartyState()
    Checkpoints(tmp_path, "hash").load(second.states)
    second.open()
    second.run(range(stop + 1, protocol.PHASES + 1))
    assert np.array_equal(second.coefficients(), exact(x, y, 1.0, plan_of(second)))


def test_a_plan_without_room_for_an_owners_numbers_is_the_engines_fault() -> None:
    x, y = table()
    held = parties(x, y, [9])
    fit = Fit(settings(), held).run(range(1))
    good = plan_of(fit)
    small = good._replace(largest=(good.largest[0] - 1, *good.largest[1:]))
    for plan, why in [
        (small, "no room"),
        (good._replace(rows=1), "no room"),
        (good._replace(precision=52), "needs a key"),
    ]:
        told = [{"from": 2, "to": [0, 1], "topic": "plan", "step": 0, "content": in_letter(plan)}]
        with pytest.raises(PartyLeft, match=rf"'engine' is lost.*{why}"):
            owner.keep_plan(settings(), None, held[0], {LETTERS: told}, dict(fit.states.get(0) or {}), None)


KINDS = (EXTENT, PLAN, KEY, EQUATIONS, MASKED, SOLUTION, COEFFICIENTS, MASKS)
SENDERS = {
    "extent": "owner-0",
    "plan": "engine",
    "key": "provider",
    "equations": "owner-0",
    "masked equations": "engine",
}
SENDERS |= {"masked solution": "provider", "coefficients": "engine", "masks": "engine"}
LIES = {
    "lacking": lambda value: None,
    "text": lambda value: "x" * 20,
    "longer": lambda value: torch.cat([value, value]) if isinstance(value, torch.Tensor) else -1,
}
FREE = {("key", "h", "longer")}
"""Lies that have the form: a base may have any length, and is refused below."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.topic)
def test_a_letter_of_another_form_is_its_senders_fault(kind: LetterKind) -> None:
    x, y = table()
    reveal = "owners" if kind is MASKS else "engine"
    for part in kind.form:  # type: ignore[union-attr]
        for name, lie in LIES.items():
            if (kind.topic, part, name) in FREE:
                continue
            with pytest.raises(PartyLeft, match=f"party '{SENDERS[kind.topic]}' is lost: its letter '{kind.topic}'"):
                Fit(settings(reveal=reveal), parties(x, y, [9]), lie=(kind.topic, part, lie)).run()


def test_a_key_and_ciphertexts_that_cannot_be_used_are_their_senders_fault() -> None:
    x, y = table()
    held = parties(x, y, [9])
    none = torch.zeros_like
    for topic, part, lie, sender in [
        ("key", "h", lambda h: torch.cat([h, h]), "provider"),
        ("key", "bits", lambda bits: bits - 1, "provider"),
        ("key", "n", lambda n: n[1:], "provider"),
        ("equations", "ciphertexts", none, "owner-0"),
        ("masked equations", "ciphertexts", none, "engine"),
        ("masked equations", "columns", lambda columns: columns + 1, "engine"),
    ]:
        with pytest.raises(PartyLeft, match=f"party '{sender}' is lost: its letter '{topic}'"):
            Fit(settings(), held, lie=(topic, part, lie)).run()


def test_the_page_lists_the_letters_that_cross() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vertical.md").read_text()
    found = page.split("| letter | from | to | what it shows |")[1].split("\n\n")[0]
    listed = {(row.split("|")[1].strip(), row.split("|")[2].strip()) for row in found.splitlines()[2:]}
    assert listed == {(topic, sender) for sent in LEARNT.values() for sender, _, topic in sent}
