"""Ids of several columns: how they are normalised, joined and refused, and that parties declare them alike."""

from __future__ import annotations

import itertools

import pytest

from fedatlas.config import parse
from fedatlas.data.party_ids import RULES, id_plan, soundex, without_accents
from fedatlas.data.party_tables import PartyFile, TrainedTable, new_rows, read_party
from fedatlas.errors import ConfigError, DataError


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_sound_codes_are_those_of_the_national_archives():
    codes = {
        "Washington": "W252",
        "Lee": "L000",
        "Gutierrez": "G362",
        "Pfister": "P236",
        "Jackson": "J250",
        "Tymczak": "T522",
        "VanDeusen": "V532",
        "Ashcraft": "A261",
        "Robert": "R163",
        "Rupert": "R163",
        "Rubin": "R150",
        "O'Brien": "O165",
        "M\u00fcller": "M460",
        "Honeyman": "H555",
        "Schmidt": "S530",
        "Schmitt": "S530",
    }
    assert {name: soundex(name) for name in codes} == codes
    assert soundex("1980") == soundex("") == soundex("\u0418\u0432\u0430\u043d") == ""


def test_accents_are_taken_off_letters_however_they_are_written():
    assert without_accents("Jos\u00e9") == without_accents("Jose\u0301") == "Jose"
    assert without_accents("S\u00f8ren Stra\u00dfe \u0141\u00f3d\u017a") == "Soren Strasse Lodz"
    assert RULES["digits"]("12-34 \u0665") == "1234", "only 0 to 9"


def test_values_of_several_columns_are_joined_without_ambiguity(tmp_path):
    texts = ("a", "b", "ab", "a,1", "1", "1\x1f1,1", "b\x1f1", "11")
    lines = [f'"{a}";"{b}";1' for a, b in itertools.product(texts, repeat=2)]
    path = written(tmp_path / "p.csv", "x;y;z", *lines)
    found = read_party(PartyFile("p", path, ["x", "y"], separator=";"))
    assert len({*found.ids}) == len(texts) ** 2
    assert found.names == ("z",), "columns of the id are no inputs"


def test_a_single_column_stays_as_it_is_in_the_file(tmp_path):
    path = written(tmp_path / "p.csv", "x,z", "007,1", "A b,2")
    assert read_party(PartyFile("p", path, "x")).ids == read_party(PartyFile("p", path, ["x"])).ids == ("007", "A b")


def test_rules_apply_in_order_to_their_columns_and_a_value_without_anything_left_is_missing(tmp_path):
    path = written(tmp_path / "p.csv", "name,born,z", "M\u00dcLLER,1980-01-02,1", "?,1981-01-02,2", "Lee,unknown,3")
    plan = {"name": ("lower", "strip accents"), "born": ("digits",)}
    found = read_party(PartyFile("p", path, [["name", "born"], [{"sound": "name"}, "born"]], normalise=plan))
    assert found.ids[0] == "muller19800102\x1f6,8"
    assert found.later == (("M46019800102\x1f4,8", "", ""),)
    assert found.ids[1:] == ("?19810102\x1f1,8", "")
    assert found.without_id == 1
    assert dict(found.shown)["name"] == ("M\u00dcLLER", "?", "Lee"), "predictions stand beside the file's text"


def test_two_rows_of_one_exact_id_are_refused_with_their_lines(tmp_path):
    path = written(tmp_path / "p.csv", "name,born,z", "Lee,1,1", "Ray,1,2", "LEE,1,3", "Lee,2,4")
    assert read_party(PartyFile("p", path, ["name", "born"])).ids[3].startswith("Lee2")
    with pytest.raises(DataError, match="occurs twice in 'born', in lines 2 and 3, and 1 more"):
        read_party(PartyFile("p", path, "born"))
    said = r"results from two ids in 'name' \+ 'born', which the normalisation makes one, in lines 2 and 4: keep one"
    with pytest.raises(DataError, match=said) as error:
        read_party(PartyFile("p", path, ["name", "born"], normalise=("lower",)))
    assert "Lee" not in str(error.value), "a message holds no id"


def test_keys_of_a_linkage_may_occur_twice(tmp_path):
    path = written(tmp_path / "p.csv", "name,born,z", "Lee,1,1", "Lee,1,2")
    found = read_party(PartyFile("p", path, [["name", "born"]]))
    assert found.linked
    assert found.ids == ("Lee1\x1f3,1",) * 2


def test_new_rows_get_their_ids_as_in_training(tmp_path):
    path = written(tmp_path / "p.csv", "name,born,z", "LEE,1,1", "Ray,2,2")
    file = PartyFile("p", path, [["name", "born"], [{"sound": "name"}, "born"]], normalise=("lower",))
    table = read_party(file)
    again = new_rows(path, TrainedTable("p", file.id, table.schema, None, table.reading, 64, file.normalise))
    assert (again.ids, again.later, again.linked, again.shown) == (table.ids, table.later, True, table.shown)
    with pytest.raises(DataError, match="lacks its id column 'born'"):
        new_rows(
            written(tmp_path / "q.csv", "name,z", "a,1"),
            TrainedTable("p", file.id, table.schema, None, table.reading),
        )


def two(bank, shop, **tables):
    parties = [{"name": "bank", "path": "a", "label": "y", **bank}, {"name": "shop", "path": "b", **shop}]
    return parse({"parties": parties, "algorithm": {"name": "secureboost"}, **tables})


LINKED = [["name", "born"], [{"sound": "name"}, "born"]]


def test_parties_that_declare_the_same_may_name_columns_as_they_like():
    config = two(
        {"id": LINKED, "normalise": ["lower"]}, {"id": [["n", "b"], [{"sound": "n"}, "b"]], "normalise": ["lower"]}
    )
    assert config.parties[0].ids.rules == config.parties[1].ids.rules
    assert parse(config.plain()) == config
    assert "normalise" not in two({"id": "x"}, {"id": "y"}).plain()["parties"][0]
    own = two({"id": ["x", "y"], "normalise": {"x": ["lower"]}}, {"id": ["u", "v"], "normalise": {"u": ["lower"]}})
    assert own.parties[1].ids.rules == ((("lower",), ()),)


@pytest.mark.parametrize(
    ("bank", "shop", "said"),
    [
        (
            {"id": "x", "normalise": ["lower"]},
            {"id": "x"},
            r"'bank' has x \(lower\), and 'shop' has x: declare the same",
        ),
        ({"id": ["x", "y"]}, {"id": "x"}, "'bank' has 2 columns and 'shop' 1"),
        ({"id": LINKED}, {"id": [["n", "b"]]}, "'bank' has 2 keys in turn and 'shop' 1 keys in turn"),
        ({"id": [["n"]]}, {"id": ["n"]}, "'bank' has 1 keys in turn and 'shop' one exact id"),
        ({"id": LINKED}, {"id": LINKED[::-1]}, r"'bank' has name in key 1, and 'shop' has name \(sound\)"),
        ({"id": LINKED}, {"id": [*LINKED[:1], ["name"]]}, "'bank' has 2 columns in key 2 and 'shop' 1"),
        ({"id": []}, {"id": "x"}, "party 'bank': id: name at least one column"),
        ({"id": [[]]}, {"id": "x"}, "party 'bank': id: name at least one column"),
        ({"id": ["x", ["y"]]}, {"id": "x"}, "give columns, or a list of columns for each key, not both"),
        ({"id": ["x", "x"]}, {"id": "x"}, "'x' occurs twice in one key"),
        ({"id": [["x"], ["x"]]}, {"id": "x"}, "two keys are the same"),
        ({"id": [["x", {}]]}, {"id": "x"}, "write a rule and its column"),
        ({"id": [[f"c{i}"] for i in range(9)]}, {"id": "x"}, "at most 8 keys"),
        ({"id": "x", "normalise": {"z": ["lower"]}}, {"id": "x"}, "normalise: 'z' is not a column of the id"),
        ({"id": "x", "normalise": ["lowr"]}, {"id": "x"}, "lowr"),
    ],
)
def test_declarations_without_meaning_are_refused(bank, shop, said):
    with pytest.raises(ConfigError, match=said):
        two(bank, shop)


def test_rules_are_refused_by_name_in_python_too():
    with pytest.raises(ConfigError, match="unknown normalisation of ids 'lowr': did you mean 'lower'"):
        id_plan("x", ["lowr"])


def test_several_keys_need_private_matching():
    with pytest.raises(ConfigError, match=r"align\.name = 'none' compares one id in each row"):
        two({"id": LINKED}, {"id": LINKED}, align={"name": "none"})
