"""A party is lost whose letters or answers are not of their form, whatever kind, field and lie: nothing of it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from agreements import Agreements
from fedatlas.algorithm import Question
from fedatlas.errors import FedatlasError, ProtocolError
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.signed_letters import SignedLetters
from fedatlas.federation.start import RoundStart
from fedatlas.runs.loop import run_one
from fedatlas.setup.refusals import checked
from fedatlas.vertical import align, boosting, judging, split
from fedatlas.vertical.boosting.letter_kinds import WORKED
from fedatlas.vertical.boosting.settings import secureboost
from fedatlas.vertical.forest import FEDERATED_FOREST, federated_forest
from fedatlas.vertical.letters import LETTERS, LetterKind
from fedatlas.vertical.parties import Columns, PartyLeft, of_classes
from fedatlas.vertical.scheme import Scheme, questions
from fedatlas.vertical.trees import importance, letter_parts
from lying_relay import experiment, write_tables
from nodes_in_process import run_here
from test_vertical_run import experiment as of_files
from test_vertical_run import growing_in, grown, models, plain_rows, tables

pytestmark = pytest.mark.timing

N, ABSENT = 32, object()
NAMES = ("bank", "shop", "phone")
HOW = secureboost(trees=1, bins=4, depth=2, min_leaf=1)
ANYTHING = {
    ("ids", "points", "wrong length"),  # a party may have more ids
    ("row order", "key", "huge"),  # any 32 bytes are a key
    ("level", "open.0", "absent"),  # fewer nodes may be open, and have been divided by fewer parties
    ("level", "owners.0", "absent"),
    ("level", "told.left.0", "huge"),  # all rows may go left
    ("split", "told.left.0", "huge"),
    ("ways", "left.0", "huge"),
    ("wanted", "ties.0", "wrong length"),  # a tie may be named twice
    ("wanted", "passed.0", "absent"),  # nobody else need sum up a child
    ("rows at nodes", "records", "huge"),  # refused, and said to be of another run's file
    ("rows at nodes", "rows.0", "wrong length"),  # a row may be asked about twice
    ("> walk", "owners.0", "absent"),  # nobody need be asked
    *((f"> {what}", f"counts.{name}", "absent") for what in ("gradients", "histogram", "open") for name in WORKED),
    ("tree", "columns.0", "absent"),  # fewer columns may be drawn
    ("wanted", "nodes.0", "absent"),  # fewer nodes may be won, or kept
    ("shape", "inner.0", "absent"),
    ("leaf sets", "sets.0", "huge"),  # all rows may go left
    ("> choose", "owners.0", "absent"),  # refused, but in the name of who then misses a letter
}  # a count that is absent is 0
"""(topic, field, lie) that an honest party could say, too."""


class Case(NamedTuple):
    """A run of parties in which one letter or one answer lies."""

    parties: int
    how: Any  # settings of the scheme
    topics: frozenset[str]  # of the letters that lie, and with a ">" in front of the questions whose answers do
    align: align.Align = align.Align()
    common: int = N  # rows that all parties have
    classes: int = 2  # of the label; 0: a number
    scheme: Scheme = boosting.SECUREBOOST


SEALED = HOW._replace(key_bits=256)
FIRST = {"row order", "ids", "told rows", "bins"}
TREE = {"gradients", "sums", "level", "wanted", "split", "gains", "rows at nodes", "ways"}
TOLD = {f"> {what}" for what in ("order rows", "mask ids", "match", "split rows", "start", "gradients", "histogram")}
TOLD |= {f"> {what}" for what in ("open", "leaves", "judge", "importance", "walk")}
SEVERAL = frozenset({"gradients by class", "sums", "> open"})
WORK = {"> keys", "> gradients", "> histogram", "> open"}
TOLD_FIRST = frozenset({"number of columns", "labels", "> code labels"})
FOREST = TOLD_FIRST | {"tree", "best", "level", "wanted", "split", "shape", "leaf sets", "gains"}
FOREST |= {f"> {what}" for what in ("plant", "choose", "ripen", "vote", "importance", "gather votes")}
FORESTS = {"how": federated_forest(trees=1, depth=3, features=1.0), "scheme": FEDERATED_FOREST}
CASES = {
    "two": Case(2, HOW, frozenset(FIRST | TREE | TOLD)),
    "three": Case(3, HOW, frozenset({"ids", "in all", "level", "split", "> compare sets"})),
    "layered": Case(
        3, HOW._replace(depth=3, mode="layered", passive_depth=2), frozenset({"level", "wanted", "split", "> open"})
    ),
    "large gradients": Case(2, HOW._replace(goss=(0.3, 0.3)), frozenset({"gradients"})),
    "drawn rows": Case(2, HOW._replace(subsample=0.8), frozenset({"gradients"})),
    "encrypted": Case(2, SEALED, frozenset({"gradients", "sums", *WORK})),
    "unpacked": Case(2, SEALED._replace(pack=False, subsample=0.8), frozenset({"gradients", "sums"})),
    "classes": Case(2, HOW, SEVERAL | {"level", "wanted", "split", "ways", "> leaves", "> judge"}, classes=3),
    "one tree": Case(2, HOW._replace(multi_output=True), SEVERAL, classes=3),
    "classes encrypted": Case(2, SEALED._replace(key_bits=512), SEVERAL, classes=3),
    "classes unpacked": Case(2, SEALED._replace(pack=False), SEVERAL - {"> open"}, classes=3),
    "unmatched": Case(2, HOW, frozenset({"digest of ids", "> compare ids"}), align.Align("none")),
    "few in common": Case(2, HOW, frozenset({"> look of ids"}), common=12),
    "forest": Case(2, topics=FOREST, classes=3, **FORESTS),
    "forest of three": Case(3, topics=frozenset({"level", "wanted", "split", "shape", "leaf sets"}), **FORESTS),
    "forest of numbers": Case(2, topics=TOLD_FIRST | {"best", "leaf sets"}, classes=0, **FORESTS),
}


class Lie(NamedTuple):
    """What is put in place of a field of a party's first letter on a topic, or of its first answer to a question."""

    topic: str
    sender: int
    field: tuple[Any, ...]
    value: Any


def columns(case: Case) -> list[Columns]:
    stream, names = np.random.default_rng(1), NAMES[: case.parties]
    x = stream.normal(size=(N, case.parties))
    y = x.sum(axis=1) + x[:, 1]
    if case.classes:
        y = (y > 0).astype(float) + (x[:, 0] > 0.5) * (case.classes - 2)
    rows = [f"id-{i}" for i in range(N)]
    ids = [(*rows[: case.common], *(f"{name}-{one}" for one in rows[case.common :])) for name in names]
    label = {"y": y, "task": "classes" if case.classes else "numbers", "classes": case.classes}
    return [
        Columns(k, name, 0, names, ids[k], x[:, [k]], ("c",), **({} if k else label))  # type: ignore[arg-type]
        for k, name in enumerate(names)
    ]


def played(case: Case, lie: Lie | None = None) -> dict[tuple[str, int], Any]:
    """Run from the alignment to a prediction; return what each party's first letter on a topic, and first answer, says."""
    first: dict[tuple[str, int], Any] = {}

    def said(key: tuple[str, int], content: Any) -> Any:
        if key in first:
            return content
        first[key] = content
        lies = lie is not None and key == (lie.topic, lie.sender)
        return changed(content, lie.field, lie.value) if lie is not None and lies else content

    def telling(name: str, asked: Question) -> Question:
        def answer(model: Any, data: Columns, message: Any, state: Any, session: Any) -> Any:
            reply, state, session = asked.answer(model, data, message, state, session)
            beside = said((f"> {name}", data.party), {part: reply[part] for part in reply if part != LETTERS})
            told = [
                {**one, "content": said((one["topic"], one["from"]), one["content"])} for one in reply.get(LETTERS, ())
            ]
            return {**beside, **({LETTERS: told} if LETTERS in reply else {})}, state, session

        return asked._replace(answer=answer)

    scheme = case.scheme
    asked = {name: telling(name, one) for name, one in questions(scheme, case.how).items()}
    held = columns_federation(columns(case), asked)
    known = {
        "columns": [1] * case.parties,
        "task": "classes" if case.classes else "numbers",
        **of_classes(case.classes),
    }
    server: Any = {"names": list(NAMES[: case.parties]), "active": 0, **known}

    def begun() -> Any:
        found = yield from align.align(case.align, server)
        found = yield from split.split(found, 0.2)
        return (yield from scheme.begin(case.how, found))

    server = held.drive(begun, RoundStart(0, 1.0))
    server = held.drive(lambda: scheme.step(case.how, server, 1), RoundStart(1, 1.0))
    server = held.drive(lambda: judging.judged(server, intervals=case.parties == 2), RoundStart(1, 1.0))
    server = held.drive(lambda: scheme.end(case.how, server), RoundStart(2, 1.0))
    held.drive(lambda: scheme.predict(case.how, server), RoundStart(3, 1.0))
    return first


def changed(value: Any, field: tuple[Any, ...], lie: Any) -> Any:
    """A copy with something else in place of a field."""
    if not field:
        return lie
    out = list(value) if isinstance(value, list) else dict(value)
    if lie is ABSENT and len(field) == 1:
        del out[field[0]]
    else:
        out[field[0]] = changed(out[field[0]], field[1:], lie)
    return out


def fields(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every field of what a letter says, and of a list its first entry."""
    if at:
        yield at, value
    inside = value.items() if isinstance(value, Mapping) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, one in inside:
        yield from fields(one, (*at, name))


def lies(value: Any) -> Iterator[tuple[str, Any]]:
    """Other values for a field."""
    yield "absent", ABSENT
    yield "another type", 7 if isinstance(value, str) else "many"
    if not isinstance(value, torch.Tensor) or len(value):
        yield "NaN", torch.full_like(value.double(), torch.nan) if isinstance(value, torch.Tensor) else float("nan")
    if isinstance(value, list):
        yield "wrong length", [*value, *(value[:1] or [3])]
    if isinstance(value, str):
        yield "wrong length", value + "0"
    if isinstance(value, torch.Tensor):
        yield "wrong length", torch.cat([value, value[:1]]) if len(value) else torch.ones(1, dtype=value.dtype)
        if value.dtype != torch.bool and len(value):
            most = torch.finfo(value.dtype) if value.is_floating_point() else torch.iinfo(value.dtype)
            yield "huge", torch.full_like(value, torch.inf if value.is_floating_point() else most.max)
            if most.min < 0 and not value.is_floating_point():
                yield "negative", torch.full_like(value, most.min)
    if type(value) is int:
        yield from (("huge", 1 << 70), ("negative", -1))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some lies", "every lie"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_of_another_form_loses_its_sender(name: str, every: bool) -> None:
    """One lie a run: the sender is lost by name, and neither a party nor the coordinator uses or stumbles over what it said.

    Some lies: one on every other field of a topic, each time of the next kind.
    """
    case, tried, odd = CASES[name], 0, []
    turn = Counter[str]()
    said = {key: content for key, content in played(case).items() if key[0] in case.topics}
    assert {topic for topic, _ in said} == case.topics
    for (topic, sender), content in said.items():
        for field, value in fields(content):
            told = [*lies(value)]
            turn[topic] += 1
            for title, lie in told if every else [told[tried % len(told)]] if turn[topic] % 2 else []:
                tried += 1
                found = outcome(case, Lie(topic, sender, field, lie))
                free = (topic, ".".join(map(str, field)), title) in ANYTHING
                if found and (not free or found.startswith("stumbled")):
                    odd.append((topic, NAMES[sender], field, title, found))
    assert odd == [], "\n".join(map(repr, odd))
    assert tried >= (4 if every else 1) * len(case.topics)


def test_no_kind_of_letter_is_left_out() -> None:
    """Of the schemes above, and of what all schemes do before and after."""
    rooms = {case.scheme.step.__module__.rsplit(".", 1)[0] for case in CASES.values()}
    modules = [
        align,
        split,
        judging,
        letter_parts,
        importance,
        *(import_module(f"{room}.letter_kinds") for room in rooms),
    ]
    topics = {one.topic for module in modules for one in vars(module).values() if isinstance(one, LetterKind)}
    assert len(topics) > 15
    assert topics - {topic for case in CASES.values() for topic in case.topics} == set()


def outcome(case: Case, lie: Lie) -> str:
    """What comes of a lie: "" if its sender is lost by name."""
    try:
        played(case, lie)
    except PartyLeft as error:
        return "" if f"'{NAMES[lie.sender]}'" in str(error) else str(error)
    except FedatlasError as error:
        return repr(error)
    except Exception as error:  # noqa: BLE001  # what the test looks for
        return f"stumbled: {error!r}"
    return "taken"


def test_counts_of_common_rows_that_differ_are_told_by_party() -> None:
    """Who of them lies nobody can know."""
    with pytest.raises(ProtocolError, match=r"different numbers of common rows \('bank' 32, 'shop' 3\)"):
        played(CASES["two"], Lie("> match", 1, ("matched",), 3))


def test_a_party_that_is_left_out_says_so() -> None:
    """The coordinator is told that nobody divides nodes, and the party that owns some hears otherwise by letter."""
    assert outcome(CASES["two"], Lie("> open", 0, ("owners",), [])) == ""


GARBAGE = [
    ("candidates", "many", "'candidates' is no whole number"),
    pytest.param("left", ABSENT, "it has other parts than 'candidates', 'left'", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("field", "value", "said"), GARBAGE)
def test_after_garbage_the_run_goes_on_from_the_last_tree(field: str, value: Any, said: str, tmp_path: Path) -> None:
    tables(tmp_path)
    whole = checked(of_files(tmp_path).config)
    run_one(whole, tmp_path / "honest")
    growing = growing_in(tmp_path / "run", whole)
    grown(growing, 1)
    tasks: Any = growing.federation.bench.algorithm.tasks  # type: ignore[attr-defined]
    honest = tasks["histogram"]

    def lying(*given: Any) -> Any:
        reply, state, session = honest.answer(*given)
        (told,) = reply[LETTERS]
        return {**reply, LETTERS: [{**told, "content": changed(told["content"], (field,), value)}]}, state, session

    tasks["histogram"] = honest._replace(answer=lying)
    with pytest.raises(PartyLeft) as raised:
        growing.step()
    assert str(raised.value).startswith(f"party 'shop' is lost: its letter 'sums' cannot be used: {said}, in tree 2: ")
    assert "1 whole tree is kept; 'fedatlas run --resume" in str(raised.value)
    growing.federation.close()
    tasks["histogram"] = honest
    run_one(whole, tmp_path / "run", start="resume")
    assert models(tmp_path / "run") == models(tmp_path / "honest")
    assert plain_rows(tmp_path / "run") == plain_rows(tmp_path / "honest")


@pytest.mark.parametrize(
    ("letter", "said"),
    [
        pytest.param(True, "its letter 'sums' cannot be used: 'candidates' is no whole number", marks=pytest.mark.slow),
        (False, "its answer to 'histogram' cannot be used: 'ciphertexts' is no whole number"),
    ],
    ids=["letter", "answer"],
)
def test_a_node_that_lies_is_named(letter: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter is signed by the party that lies, and who gets it names it; an answer the server names. The tree before is kept."""
    honest = SignedLetters.sealed

    def lying(self: SignedLetters, request: Any, update: Any) -> Any:
        if (self.number, request.what, request.round) == (1, "histogram", 2):
            field = (LETTERS, 0, "content", "candidates") if letter else ("counts", "ciphertexts")
            update = changed(update, field, "many")
        return honest(self, request, update)

    monkeypatch.setattr(SignedLetters, "sealed", lying)
    names = ["bank", "shop"]
    made, paths = Agreements(tmp_path, names), write_tables(tmp_path, names)
    trainers = {name: made.trainer(name, paths[name]) for name in names}
    state = run_here(made, trainers, made.signed("r", experiment(names))).state
    assert state.status == "failed"
    assert f"party 'shop' is lost: {said}" in state.why
    assert "in tree 2: 1 whole tree is kept" in state.why


def test_a_letter_to_nobody_loses_its_sender() -> None:
    """The coordinator reads where a letter goes before it brings it."""
    for odd in ({"to": "all"}, {"to": [7]}, {"from": 0}, {"step": "1"}, {"topic": None}, {"to": [True]}):
        asked = questions(boosting.SECUREBOOST, HOW)
        honest = asked[align.MASK]

        def lying(model: Any, data: Columns, *given: Any, odd: Any = odd, honest: Question = honest) -> Any:
            reply, *after = honest.answer(model, data, *given)
            return ({**reply, LETTERS: [{**reply[LETTERS][0], **odd}]} if data.party else reply), *after

        asked[align.MASK] = honest._replace(answer=lying)
        held = columns_federation(columns(CASES["two"]), asked)
        with pytest.raises(PartyLeft, match="party 'shop' is lost: it answered 'mask ids' with letters to nobody"):
            held.drive(lambda: align.align(align.Align(), {"names": NAMES[:2], "active": 0}), RoundStart(0, 1.0))
