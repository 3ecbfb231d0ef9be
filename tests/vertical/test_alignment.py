"""Private set intersection: who learns which rows, in which order, and that nothing that crosses holds an id."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from column_parties import ColumnParties, all_questions
from fedatlas.algorithm import Algorithm
from fedatlas.course.matching import MatchingProgress
from fedatlas.errors import DataError
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.link import Observer
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.vertical import align, psi, split
from fedatlas.vertical.ids import Look, difference, look_of, ordered, seed_key
from fedatlas.vertical.parties import Columns, PartyLeft, order, places
from fedatlas.wire import codec

pytestmark = pytest.mark.timing

LETTERS = "abcdefgh"


def held(ids, party, names, *, labelled=0):
    n = len(ids)
    y = np.arange(n) % 2.0 if party == labelled else None
    x = np.arange(n, dtype=float)[:, None]
    task = "classes" if party == labelled else ""
    return Columns(party, names[party], labelled, names, tuple(ids), x, ("c",), y, task=task, seed=3)


def federation(*tables, observers=()):
    names = tuple(LETTERS[k] for k in range(len(tables)))
    parties = [held(ids, k, names) for k, ids in enumerate(tables)]
    fed = columns_federation(parties, {**align.QUESTIONS, **split.QUESTIONS}, observers=observers)
    return fed, parties, {"names": list(names), "active": 0}


PSI = align.Align()


def aligned(*tables, how=PSI, observers=()):
    fed, parties, server = federation(*tables, observers=observers)
    state = fed.drive(lambda: align.align(how, server), RoundStart(0, 1.0))
    return state["align"], [[p.ids[i] for i in order(fed.states.get(p.party))] for p in parties], fed


@pytest.mark.parametrize("group", ["ristretto255", "x25519"])
def test_two_parties_find_their_common_rows_in_one_order(group):
    found, ids, _ = aligned(["c", "", "a", "b", "007"], ["x", "7", "b", "c"], how=align.Align("psi", group))
    assert found["rows"] == 2
    assert found["ids"] == {"a": 4, "b": 4}
    assert ids[0] == ids[1]
    assert set(ids[0]) == {"b", "c"}


@pytest.mark.parametrize("parties", [3, 5, 8])
def test_several_parties_learn_what_all_have(parties):
    everybody = [f"all-{i}" for i in range(6)]
    tables = [[*everybody, *(f"{k}-{i}" for i in range(k)), "0 and 1" if k < 2 else ""] for k in range(parties)]
    tables = [list(np.random.default_rng(k).permutation(table)) for k, table in enumerate(tables)]
    found, ids, _ = aligned(*tables)
    assert found["rows"] == 6
    assert all(set(one) == set(everybody) and one == ids[0] for one in ids)
    assert found["common"]["a + b"] == 7
    assert found["common"]["a + c"] == 6
    assert len(found["common"]) == parties * (parties - 1) // 2


def test_the_order_is_that_of_the_seed_whatever_the_files_order():
    ids = [str(i) for i in range(50)]
    one, other = aligned(ids, ids[::-1])[1], aligned(ids[10:] + ids[:10], ids)[1]
    assert one == other
    assert [ids[i] for i in ordered(ids, seed_key(3))] == one[0]
    assert [ids[i] for i in ordered(ids, seed_key(4))] != one[0]


def test_without_matching_the_ids_must_be_the_same_in_the_same_order():
    how = align.Align("none")
    found, ids, _ = aligned(["p", "q"], ["p", "q"], how=how)
    assert found["rows"] == 2
    assert ids[0] == ids[1]
    with pytest.raises(DataError, match="same ids in the same order"):
        aligned(["p", "q"], ["q", "p"], how=how)
    with pytest.raises(DataError, match="1 rows without an id"):
        aligned(["p", ""], ["p", ""], how=how)


def test_ids_that_differ_in_type_are_found_and_said():
    with pytest.raises(DataError, match="100% of the ids of 'a' have leading zeros, of those of 'b' none"):
        aligned(["007", "008"], ["7", "8"])
    with pytest.raises(DataError, match="have letters"):
        aligned(["c7", "c8"], ["7", "8"])
    found, _, _ = aligned(["07", "08", "9"], ["7", "8", "9"])
    assert found["rows"] == 1
    assert found["notices"][0].startswith("Only 1 of 3 ids of the smallest table")
    assert difference({"a": look_of(["12"]), "b": look_of(["345"])}).startswith("their ids have these numbers of")
    assert look_of([]) == Look(0, 0, 0, 0, 0, 0)


def test_ids_that_differ_by_case_or_were_rounded_by_a_spreadsheet_are_said_to():
    with pytest.raises(DataError, match=r"they differ by upper and lower case .*'a' 100%, 'b' 0%"):
        aligned(["ab1", "cd2"], ["AB1", "CD2"])
    with pytest.raises(
        DataError, match=r"100% of the ids of 'b' look like 9.0E\+15, as spreadsheets round long numbers"
    ):
        aligned(["9000000000000001", "9000000000000002"], ["9.0E+15", "9E+15"])
    with pytest.raises(DataError, match="have letters"):
        aligned(["c7", "c8"], ["7", "8"])


class Crossed(Observer):
    def __init__(self):
        self.bytes = b""

    def asked(self, request):
        self.bytes += bytes(codec.encode(dict(request.message)))

    def replied(self, request, update):  # noqa: ARG002
        self.bytes += bytes(codec.encode(dict(update)))


def test_no_id_crosses_and_two_runs_cross_different_bytes():
    ids = [f"customer {i}" for i in range(5)]
    one, other = Crossed(), Crossed()
    aligned(ids, ids, observers=[one])
    aligned(ids, ids, observers=[other])
    assert b"customer" not in one.bytes
    assert one.bytes != other.bytes
    points = psi.points_of(psi.hashed(ids, "ristretto255")).tolist()
    assert not any(point in one.bytes for point in points), "a bare hash could be guessed from a list of names"


def test_a_set_comes_back_in_another_order_than_that_of_the_file():
    """Else the other party would learn where in the file the common rows stand."""
    fed, _, _ = federation([str(i) for i in range(40)], ["1"])
    asked = align.align(PSI, {"names": ["a", "b"], "active": 0})
    masked = fed.server.answer(asked.send(fed.server.answer(next(asked))))
    rows = fed.party.sessions[0]["psi"]["rows"]
    assert len(masked.each[0]["letters"][0]["content"]["points"]) == 40
    assert sorted(rows) == list(range(40))
    assert list(rows) != list(range(40))


def test_a_party_that_leaves_ends_the_matching_with_its_name():
    fed, _, server = federation(["1", "2"], ["1", "2"])
    with pytest.raises(PartyLeft, match="party 'b' left when it was asked for 'mask again'"):
        fed.drive(lambda: align.align(PSI, server), RoundStart(0, 1.0, leaving={1: align.REMASK}))


def test_a_set_with_a_point_twice_is_lost_in_the_name_of_its_sender():
    """A party sends each id once; a point twice is forged, or two rows of one id."""
    _, _, server = federation(["1", "2"], ["1", "2"])
    names, tables = ("a", "b"), (["1", "2"], ["1", "1"])
    parties = [held(ids, k, names) for k, ids in enumerate(tables)]
    fed = columns_federation(parties, align.QUESTIONS)
    with pytest.raises(PartyLeft, match=r"party 'b' is lost: .* a masked id occurs twice"):
        fed.drive(lambda: align.align(PSI, server), RoundStart(0, 1.0))


def altered(what, change):
    """A matching whose coordinator, or the party that wrote them, changes the points that come with a question."""

    def generator(server):
        inner = align.align(PSI, server)
        ask = next(inner)
        while True:
            if ask.what == what:
                for message in ask.messages.values():
                    for one in message["letters"]:
                        if one["topic"] == "ids":
                            one["content"] = {"points": change(one["content"]["points"])}
            try:
                ask = inner.send((yield ask))
            except StopIteration as end:
                return end.value

    return generator


def with_first(row):
    def change(points):
        points = points.clone()
        points[0] = torch.tensor(row, dtype=torch.uint8)
        return points

    return change


@pytest.mark.parametrize(
    ("what", "change", "said"),
    [
        (align.REMASK, with_first([0] * 32), "not a point of the group"),
        (align.REMASK, with_first([255] * 32), "not a point of the group"),
        (align.REMASK, with_first([1, *[0] * 31]), "not a point of the group"),
        (align.REMASK, lambda points: points[:, :31], "'points' has 31 entries where 32 are due"),
        (align.REMASK, lambda points: points.float(), "no tensor of the type and the axes"),
        (align.REMASK, lambda points: torch.cat([points, points]), "occurs twice"),
        (align.MATCH, lambda points: points[1:], "'points' has 1 entries where 2 are due"),
        (align.MATCH, lambda points: torch.cat([points, points]), "'points' has 4 entries where 2 are due"),
    ],
)
def test_what_is_no_set_of_masked_ids_is_refused_in_the_name_of_its_sender(what, change, said):
    fed, _, server = federation(["1", "2"], ["2", "3"])
    with pytest.raises(PartyLeft, match=f"is lost: its letter 'ids' cannot be used: .*{said}"):
        fed.drive(lambda: altered(what, change)(server), RoundStart(0, 1.0))


def test_a_matching_through_that_coordinator_without_a_change_ends_as_usual():
    fed, _, server = federation(["1", "2"], ["2", "3"])
    state = fed.drive(lambda: altered(align.REMASK, lambda points: points)(server), RoundStart(0, 1.0))
    assert state["align"]["rows"] == 1


def test_a_long_matching_tells_how_far_it_is_at_most_every_two_seconds():
    heard, seconds = [], iter([0.0, 1.5, 2.5, 3.5, 4.5])
    progress = MatchingProgress(4000, heard.append, lambda: next(seconds))
    for _ in range(4):
        progress.tick(1000)
    assert heard == [
        "Matching: 2,000 of 4,000 masked ids, 50%.",
        "Matching: 4,000 of 4,000 masked ids, 100%.",
    ]


def test_every_point_of_a_matching_is_counted():
    made = []
    names, tables = ("a", "b", "c"), (["1", "2"], ["1", "3", "4"], ["1"])
    parties = [held(ids, k, names)._replace(tick=made.append) for k, ids in enumerate(tables)]
    fed = columns_federation(parties, align.QUESTIONS)
    fed.drive(lambda: align.align(PSI, {"names": list(names), "active": 0}), RoundStart(0, 1.0))
    assert sum(made) == 3 * 6


def test_places_are_drawn_by_the_active_party_and_told_to_all():
    ids = [str(i) for i in range(100)]
    fed, parties, server = federation(ids, ids[::-1], ids)

    def both():
        server_ = yield from align.align(PSI, server)
        return (yield from split.split(server_, 0.25, 0.2))

    state = fed.drive(both, RoundStart(0, 1.0))
    assert state["rows"] == {"train": 56, "held": 20, "test": 24}
    for part in split.PARTS:
        known = [places(fed.states.get(k), part) for k in range(3)]
        assert all(np.array_equal(known[0], one) for one in known)
    parts = [places(fed.states.get(0), part) for part in split.PARTS]
    assert sorted(np.concatenate(parts)) == list(range(100))
    assert not any(set(a) & set(b) for a, b in itertools.combinations(parts, 2))
    y = parties[0].y[order(fed.states.get(0))]
    assert y[parts[0]].mean() == y[parts[2]].mean() == 0.5


def test_too_few_common_rows_are_refused():
    fed, _, server = federation(["1", "2"], ["1", "2"])

    def both():
        server_ = yield from align.align(PSI, server)
        return (yield from split.split(server_, 0.25))

    with pytest.raises(DataError, match="2 common rows are too few"):
        fed.drive(both, RoundStart(0, 1.0))


def csv(path: Path, header: str, rows) -> dict:
    path.write_text("\n".join([header, *rows]) + "\n")
    return {"name": path.stem, "path": str(path), "id": "id"}


@pytest.mark.slow  # quick: test_vertical_run.py's parties in processes align, too, before they grow the same trees
def test_parties_in_processes_that_can_open_only_their_own_file_align_as_in_one(tmp_path):
    n = 30
    files = [
        csv(tmp_path / "bank.csv", "id,age,default", [f"{i},{20 + i},{i % 2}" for i in range(n)])
        | {"label": "default"},
        csv(tmp_path / "shop.csv", "id,spent", [f"{i},{i / 3}" for i in range(n + 5, 4, -1)]),
    ]
    ids = [str(i) for i in range(n)], [str(i) for i in range(n + 5, 4, -1)]
    _, expected, _ = aligned(*ids)
    with ColumnParties(files, 0, seed=3) as link:
        server = ServerHalf(Algorithm("align", tasks=all_questions({})), link, {0: n, 1: n + 1}, 3)
        state = server.drive(align.align(PSI, {"names": ["bank", "shop"], "active": 0}), RoundStart(0, 1.0))
        server.commit(0)
        assert state["align"]["rows"] == 25
        found = [[ids[k][i] for i in link.state(k)["align"]["order"]] for k in range(2)]
        assert found == expected
        for k in range(2):
            with pytest.raises(DataError, match="another party's file"):
                link.attempt(k, Path(files[1 - k]["path"]))
