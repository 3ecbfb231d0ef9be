"""Linkage by several exact keys in turn: against an obvious second implementation, and against a known truth."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import fedatlas
from fedatlas import api
from fedatlas.config import parse
from fedatlas.data.party_ids import id_plan, soundex
from fedatlas.data.party_tables import PartyFile, read_party
from fedatlas.errors import ProtocolError
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.start import RoundStart
from fedatlas.prediction.parties import predict
from fedatlas.runs.alignment_text import sentences
from fedatlas.vertical import align
from fedatlas.vertical.parties import Columns, PartyLeft, order

pytestmark = pytest.mark.timing

NAMES = ("a", "b", "c", "d")


def holding(k, keys, count):
    """A party with these ids by each key, "" for none."""
    n = len(keys[0])
    y = np.arange(n) % 2.0 if k == 0 else None
    found = Columns(k, NAMES[k], 0, NAMES[:count], tuple(keys[0]), np.zeros((n, 1)), ("x",), y, seed=5)
    return found._replace(later=tuple(map(tuple, keys[1:])), linked=True)


def linked(*parties, group="x25519"):
    """Match parties, each given as its ids by each key; return the coordinator's state, and each party's rows in order."""
    held = [holding(k, keys, len(parties)) for k, keys in enumerate(parties)]
    fed = columns_federation(held, align.QUESTIONS)
    how = align.Align("psi", group, ((("lower",),),) * len(parties[0]), linked=True)
    server = {"names": list(NAMES[: len(parties)]), "active": 0}
    state = fed.drive(lambda: align.align(how, server), RoundStart(0, 1.0))
    return state["align"], [order(fed.states.get(k)).tolist() for k in range(len(parties))]


def by_hand(*parties):
    """The same by comparing texts: rows matched by each key, and rows left out at each party."""
    gone, matched, left = [set() for _ in parties], [], []
    for number in range(len(parties[0])):
        held, out = [], []
        for k, keys in enumerate(parties):
            texts = {i: one for i, one in enumerate(keys[number]) if one and i not in gone[k]}
            times = Counter(texts.values())
            held.append({one: i for i, one in texts.items() if times[one] == 1})
            out.append(sum(times[one] > 1 for one in texts.values()))
        common = set.intersection(*({*one} for one in held))
        rows = [tuple(one[text] for one in held) for text in common]
        for row in rows:
            for k, i in enumerate(row):
                gone[k].add(i)
        matched += rows
        left.append(out)
    return matched, left


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_linked_as_by_comparing_texts(count, seed):
    """Few values, so that keys repeat, are missing, and match where an earlier key did not."""
    numbers = np.random.default_rng(10 * count + seed)
    parties = [[[("", *"pqrstuvwxyz")[i] for i in numbers.integers(0, 12, 14)] for _ in range(3)] for _ in range(count)]
    for keys in parties:
        keys[0][0] = "common"
    found, rows = linked(*parties)
    expected, left = by_hand(*parties)
    assert sorted(zip(*rows, strict=True)) == sorted(expected)
    assert [one["ambiguous"] for one in found["passes"]] == [dict(zip(NAMES, each, strict=False)) for each in left]
    assert found["rows"] == len(expected) == sum(one["rows"] for one in found["passes"])
    again, others = linked(*parties)
    assert others == rows, "the order of the rows follows from the seed and the ids"
    assert again == found


def test_one_text_by_two_keys_is_not_one_row():
    """Each key has an order and an exponent of its own, and a letter of one key is no letter of another."""
    found, rows = linked([["p", "q"], ["", "p"]], [["p", "r"], ["", "p"]])
    assert found["rows"] == 2
    assert sorted(zip(*rows, strict=True)) == [(0, 0), (1, 1)]


def test_a_coordinator_cannot_repeat_or_skip_a_key():
    keys = [["p", "q"], ["s", "t"]]
    held = [holding(k, keys, 2) for k in range(2)]
    ask = align.QUESTIONS[align.MASK].answer
    with pytest.raises(ProtocolError, match="masked already"):
        ask(None, held[0], {"group": "x25519", "key": 1}, {}, None)
    _, _, session = ask(None, held[0], {"group": "x25519", "key": 0}, {}, None)
    with pytest.raises(ProtocolError, match="masked already"):
        ask(None, held[0], {"group": "x25519", "key": 0}, {}, session)
    done = {"matched": (np.array([0]), np.array([1]))}
    with pytest.raises(ProtocolError, match="there are 2 keys"):
        ask(None, held[0], {"group": "x25519", "key": 2}, {}, done)
    due = align.due(align.Align("psi", "x25519", ((("lower",),), ((),))), 2)
    assert due[align.MASK][1] == ({"group": "x25519", "key": 0}, {"group": "x25519", "key": 1})


def test_a_letter_of_an_earlier_key_is_not_taken_for_a_later_one():
    held = [holding(k, [["p", "q"], ["s", "t"]], 2) for k in range(2)]
    fed = columns_federation(held, align.QUESTIONS)
    how = align.Align("psi", "x25519", ((("lower",),),) * 2, linked=True)
    kept = []

    def replaying():
        inner = align.align(how, {"names": ["a", "b"], "active": 0})
        ask = next(inner)
        while True:
            if ask.what == align.REMASK:
                kept.append(ask.messages)
                ask = ask._replace(messages=kept[0])
            ask = inner.send((yield ask))

    with pytest.raises(PartyLeft, match="got no letter 'ids', number 4, from"):
        fed.drive(replaying, RoundStart(0, 1.0))
    assert len(kept) == 2


# ------------------------------------------------------------------------------------------------ a known truth

SURNAMES = (
    "Smith Jones Taylor Brown Williams Wilson Johnson Davies Robinson Wright Thompson Evans Walker White Roberts Green Hall "
    "Wood Jackson Clarke Patel Khan Lewis James Phillips Mason Mitchell Rose Davis Rodriguez Cooper Schmidt Fischer Weber "
    "Meyer Wagner Becker Hoffmann Martin Bernard Dubois Moreau Laurent Simon Michel Leroy Rossi Russo Ferrari Esposito"
).split()


def misspelt(name, numbers):
    """One slip behind the first letter: a letter doubled, left out, swapped with its neighbour, or another vowel."""
    i = int(numbers.integers(1, len(name) - 1))
    slip = int(numbers.integers(4))
    return (
        name[:i] + name[i] + name[i:],
        name[:i] + name[i + 1 :],
        name[:i] + name[i + 1] + name[i] + name[i + 2 :],
        "".join("o" if c == "a" else "a" if c == "e" else c for c in name),
    )[slip]


def people(seed, n=1500, errors=0.15):
    """Rows of two tables: (true person, surname, day of birth) each; some surnames of the second are misspelt."""
    numbers = np.random.default_rng(seed)
    who = [
        (
            str(numbers.choice(SURNAMES)),
            f"19{numbers.integers(40, 99)}-{numbers.integers(1, 13):02d}-{numbers.integers(1, 29):02d}",
        )
        for _ in range(n)
    ]
    first, second = numbers.permutation(n)[: int(0.8 * n)], numbers.permutation(n)[: int(0.8 * n)]
    a = [(int(i), *who[i]) for i in first]
    b = [(int(i), misspelt(who[i][0], numbers) if numbers.random() < errors else who[i][0], who[i][1]) for i in second]
    return a, b


@pytest.mark.parametrize("seed", range(3))
def test_a_second_key_finds_misspelt_names_and_its_false_pairs_are_few(seed):
    a, b = people(seed)
    tables = [
        [[f"{name.lower()} {born}" for _, name, born in rows], [f"{soundex(name)} {born}" for _, name, born in rows]]
        for rows in (a, b)
    ]
    true = {one[0] for one in a} & {one[0] for one in b}
    shares = []
    for keys in (1, 2):
        found, rows = linked(*(table[:keys] for table in tables))
        pairs = [(a[i][0], b[j][0]) for i, j in zip(*rows, strict=True)]
        right = sum(x == y for x, y in pairs)
        shares.append((right / len(true), (len(pairs) - right) / len(pairs)))
        assert found["rows"] == len(pairs)
    (exact, false_exact), (both, false_both) = shares
    assert exact < 0.9 < both - 0.01, shares
    assert max(false_exact, false_both) < 0.01, shares


def test_a_key_that_is_too_coarse_pairs_the_wrong_people():
    """What the page warns of, so that the figures above could have come out otherwise."""
    a, b = people(0)
    found, rows = linked(*([[f"{soundex(name)} {born[:4]}" for _, name, born in rows]] for rows in (a, b)))
    wrong = sum(a[i][0] != b[j][0] for i, j in zip(*rows, strict=True))
    assert wrong > 0.02 * found["rows"]
    assert min(found["passes"][0]["ambiguous"].values()) > 100


# ------------------------------------------------------------------------------------------------ from files to a prediction

SPEC = [["surname", "born"], [{"sound": "surname"}, "born"]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linked")
    a, b = people(7, n=260)
    numbers = np.random.default_rng(7)
    spent = {i: float(numbers.normal()) for i in range(260)}
    lines = [f"{name.upper()},{born},{numbers.normal():.4f},{int(spent[i] > 0)}" for i, name, born in a]
    (folder / "bank.csv").write_text("\n".join(["surname,born,age,default", *lines]) + "\n")
    lines = [f"{name},{born.replace('-', '')},{spent[i]:.4f}" for i, name, born in b]
    (folder / "shop.csv").write_text("\n".join(["family,day,spent", *lines]) + "\n")
    parties = [
        {
            "name": "bank",
            "path": str(folder / "bank.csv"),
            "id": SPEC,
            "label": "default",
            "normalise": {"surname": ["lower"], "born": ["digits"]},
        },
        {
            "name": "shop",
            "path": str(folder / "shop.csv"),
            "id": [["family", "day"], [{"sound": "family"}, "day"]],
            "normalise": {"family": ["lower"], "day": ["digits"]},
        },
    ]
    plain = {"parties": parties, "algorithm": {"name": "secureboost", "trees": 3}, "align": {"group": "x25519"}}
    return folder, plain


def test_the_dry_run_and_the_matching_say_how_ids_are_made_and_what_each_key_found(files):
    _, plain = files
    config = parse(plain)
    dry = "\n".join(sentences(api.align(config, dry_run=True)))
    assert "Ids of shop are made of family (lower) + day (digits), then family (lower, sound) + day (digits)." in dry
    assert "Rows of bank that share their id with another row, and would be left out: 0 by key 1, 0 by key 2." in dry
    assert "Matching would send at most " in dry
    found = api.align(config)
    said = "\n".join(sentences(found))
    first, second = found["passes"]
    assert first["rows"] > second["rows"] > 5
    assert f"Key 2: {second['rows']:,} rows matched; tried: {second['ids']['bank']:,} of bank" in said
    assert "A matched pair may still be two people." in said
    assert second["ids"]["bank"] == first["ids"]["bank"] - first["rows"]
    json.dumps(found)


def test_a_run_reports_each_key_and_predicts_as_it_was_trained(files, tmp_path):
    folder, plain = files
    done = fedatlas.run(fedatlas.Experiment(parse(plain)), out=tmp_path / "run", baselines=False)
    summary = done.summary
    passes = summary["align"]["passes"]
    assert summary["align"]["rows"] == sum(one["rows"] for one in passes)
    assert summary["align"]["keys"] == [[["lower"], ["digits"]], [["lower", "sound"], ["digits"]]]
    page = (done.path / "report.html").read_text(encoding="utf-8")
    for text in ("What each key matched", "keys in turn", "column 1 (lower, sound)", "may still be two people"):
        assert text in page
    saved = json.loads((done.path / "model-shop.json").read_text())
    assert saved["normalise"] == {"family": ["lower"], "day": ["digits"]}
    found = predict(done.path, {"bank": str(folder / "bank.csv"), "shop": str(folder / "shop.csv")})
    assert list(found.table.columns[:2]) == ["surname", "born"]
    rows = len(found.table)
    assert found.lacking["shop"] == rows - summary["align"]["rows"]
    assert any("rows cannot be linked to one row of 'shop'" in one for one in found.notices)
    assert found.table["surname"].str.isupper().all(), "ids stand as in the file"
    one_key = {"id": SPEC[:1], "normalise": plain["parties"][0]["normalise"]}
    first = read_party(PartyFile("bank", str(folder / "bank.csv"), label="default", **one_key))
    assert first.ids == read_party(PartyFile(**plain["parties"][0])).ids
    assert id_plan(SPEC).linked
