"""Parties' tables: what is read of them, how one table is dealt, and what an experiment may not say where parties hold columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedatlas.config import parse
from fedatlas.data.cells import Reading, read_as
from fedatlas.data.dataset import Column
from fedatlas.data.party_ids import id_texts
from fedatlas.data.party_tables import Deal, PartyFile, TrainedTable, deal, new_rows, read_party, shares
from fedatlas.errors import ConfigError, DataError
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked

BOOST = {"name": "secureboost"}


def bank(path, text="id,age,city,default\n007,30,Rome,no\n7 ,40,,yes\n8,,Oslo,no\n"):
    path.write_text(text)
    return PartyFile("bank", str(path), "id", label="default")


def test_a_table_is_read_as_its_texts_say(tmp_path):
    found = read_party(bank(tmp_path / "bank.csv"))
    assert found.ids == ("007", "7", "8"), "blanks at the ends are cut, and nothing else"
    assert found.names == ("age", "city=Oslo", "city=Rome")
    expected = [[30, 0, 1], [40, np.nan, np.nan], [np.nan, 1, 0]]
    assert np.array_equal(found.x, expected, equal_nan=True)
    assert found.y.tolist() == [0, 1, 0]
    assert found.class_names == ("no", "yes")
    assert found.task == "classes"


def test_days_that_a_table_stores_as_points_in_time_are_days():
    """As of a workbook: a date of birth is the same id in Parquet and in CSV. A column with a time of day keeps it."""
    days = pd.Series(pd.to_datetime(["1980-01-02", None, "1999-12-31"]), name="born")
    assert id_texts(days, "t") == ("1980-01-02", "", "1999-12-31")
    assert id_texts(days.dt.tz_localize("Europe/Oslo"), "t") == ("1980-01-02", "", "1999-12-31")
    assert id_texts(days + pd.Timedelta(hours=1), "t")[0] == "1980-01-02 01:00:00"


def test_ids_of_parquet_are_integers_in_decimal(tmp_path):
    import pandas as pd

    pd.DataFrame({"id": [7, 8, 9], "x": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"id": [7.0, np.nan, 9.0], "x": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "b.parquet")
    pd.DataFrame({"id": [7.5, 8.0, 9.0], "x": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "c.parquet")
    assert read_party(PartyFile("a", str(tmp_path / "a.parquet"), "id")).ids == ("7", "8", "9")
    assert read_party(PartyFile("b", str(tmp_path / "b.parquet"), "id")).ids == ("7", "", "9")
    with pytest.raises(DataError, match="fractional part"):
        read_party(PartyFile("c", str(tmp_path / "c.parquet"), "id"))


@pytest.mark.parametrize(
    ("text", "keys", "said"),
    [
        (
            "id,x,y\n1,2,0\n2,3,1\n1,4,0\n",
            {},
            "the same id occurs twice in 'id', in lines 2 and 4: keep one row per id",
        ),
        ("id,y\n1,0\n2,1\n", {}, "no column is left as an input"),
        (
            "id,x,y\n1,2,0\n2,3,\n3,1,1\n",
            {},
            "the label 'y' is missing in line 3: data.missing = 'drop' leaves out such rows",
        ),
        ("id,x,y\n1,2,0\n2,3,1\n", {"id": "key"}, "id = 'key': 'p.csv' has no such column; its columns are id, x, y"),
        ("id,x,y\n1,2,0\n", {"label": "id"}, "'id' is named for two roles"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence_with_the_partys_name(tmp_path, text, keys, said):
    (tmp_path / "p.csv").write_text(text)
    file = PartyFile(**{"name": "shop", "path": str(tmp_path / "p.csv"), "id": "id", "label": "y", **keys})
    with pytest.raises((ConfigError, DataError)) as raised:
        read_party(file)
    assert str(raised.value).startswith("party 'shop'")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"party 'shop': there is no file 'nowhere\.csv'"):
        read_party(PartyFile("shop", "nowhere.csv", "id"))


def test_rows_without_a_label_are_left_out_where_that_is_asked(tmp_path):
    (tmp_path / "p.csv").write_text("id,x,y\n1,2,0\n2,3,\n3,1,1\n")
    found = read_party(PartyFile("p", str(tmp_path / "p.csv"), "id", label="y"), drop_unlabelled=True)
    assert found.ids == ("1", "3")
    assert found.left_out == 1


def test_new_rows_are_read_by_the_columns_of_training(tmp_path):
    trained = TrainedTable("bank", "id", read_party(bank(tmp_path / "bank.csv")).schema)
    (tmp_path / "new.csv").write_text("id,city,age,more\n9,Paris,20,1\n10,Rome,,2\n")
    found = new_rows(str(tmp_path / "new.csv"), trained)
    assert found.names == ("age", "city=Oslo", "city=Rome")
    assert np.array_equal(found.x, [[20, 0, 0], [np.nan, 0, 1]], equal_nan=True)
    (tmp_path / "less.csv").write_text("id,city\n9,Paris\n")
    with pytest.raises(DataError, match="party 'bank': the rows lack column 'age'"):
        new_rows(str(tmp_path / "less.csv"), trained)
    used = trained._replace(reads=frozenset(["city=Oslo"]))
    assert np.isnan(new_rows(str(tmp_path / "less.csv"), used).x[:, 0]).all()
    assert new_rows(str(tmp_path / "new.csv"), used).doubts == (
        "1 row of 'bank' holds a category of column 'city' that no training row had; the model treats them as having no category.",
    )


SCHEMA = tuple(Column(name) for name in "abcde")
RAW = np.arange(50, dtype=np.float32).reshape(10, 5)
Y = np.arange(10) % 2


def dealt(**keys):
    how = Deal(**{"parties": 2, "columns": {}, "label_party": 0, "overlap": 1.0, **keys})
    return deal(SCHEMA, RAW, Y, None, ("classes", ("0", "1")), how, 1)


def test_one_table_is_dealt_by_stretches_of_columns():
    tables = dealt()
    assert [one.names for one in tables] == [("a", "b"), ("c", "d", "e")]
    for one, at in zip(tables, ([0, 1], [2, 3, 4]), strict=True):
        rows = [int(i) for i in one.ids]
        assert sorted(rows) == list(range(10))
        assert np.array_equal(one.x, RAW[rows][:, at])
    assert tables[0].ids != tables[1].ids, "rows are matched by their ids, not by their places"
    assert np.array_equal(tables[0].y, Y[[int(i) for i in tables[0].ids]])
    assert tables[1].y is None


def test_columns_may_be_named_and_the_rest_stays_out():
    tables = dealt(columns={"bank": ["d"], "shop": ["a", "b"]}, label_party="shop")
    assert [(one.name, one.names, one.y is None) for one in tables] == [
        ("bank", ("d",), True),
        ("shop", ("a", "b"), False),
    ]
    with pytest.raises(ConfigError, match="'a' is named twice"):
        dealt(columns={"bank": ["a"], "shop": ["a"]})
    with pytest.raises(ConfigError, match="unknown column 'z'"):
        dealt(columns={"bank": ["z"], "shop": ["a"]})
    with pytest.raises(ConfigError, match="unknown party 'bnk': did you mean 'bank'"):
        dealt(columns={"bank": ["d"], "shop": ["a"]}, label_party="bnk")
    with pytest.raises(ConfigError, match="gets no column"):
        dealt(parties=6)


def test_a_share_of_the_rows_is_common_and_each_other_at_one_party():
    rows = shares(100, 3, 0.4, 1)
    common = set(rows[0]) & set(rows[1]) & set(rows[2])
    assert len(common) == 40
    assert sum(map(len, rows)) == 3 * 40 + 60
    assert set().union(*map(set, rows)) == set(range(100))


def two(tmp_path, **changed):
    (tmp_path / "bank.csv").write_text("id,age,default\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(20)))
    (tmp_path / "shop.csv").write_text("key,spent\n" + "".join(f"{i},{i % 5}\n" for i in range(20)))
    parties = [
        {"name": "bank", "path": str(tmp_path / "bank.csv"), "id": "id", "label": "default"},
        {"name": "shop", "path": str(tmp_path / "shop.csv"), "id": "key"},
    ]
    return {"parties": parties, "algorithm": dict(BOOST), **changed}


def test_a_configuration_reads_back_as_it_was_written(tmp_path):
    config = parse(two(tmp_path, align={"group": "x25519"}, data={"test": 0.5}, evaluation={"on": "validation"}))
    again = parse(config.plain())
    assert again.plain() == config.plain()
    assert again.hash() == config.hash()
    assert not {"model", "local", "cohort", "partition"} & config.plain().keys()
    assert parse(two(tmp_path, data={"test": 0.4})).hash() != config.hash()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"algorithm": {"name": "fedavg"}}, "algorithm.name = 'secureboost'"),
        ({"algorithm": {"name": "private_ridge"}}, "party 'bank': id is for rows that are matched"),
        ({"local": {"epochs": 2}}, "[local] is for clients that hold rows"),
        ({"compression": {"name": "float16"}}, "[compression] is for clients that hold rows"),
        ({"partition": {"name": "iid"}}, "partition.name = 'iid' deals rows"),
        ({"partition": {"name": "vertical", "parties": 2}}, "partition.parties deals the columns of one table"),
        ({"align": {"reveal": "active"}}, "align.reveal = 'active': every party learns"),
        ({"privacy": [{"name": "secagg"}]}, "[[privacy]] 'secagg' is for updates"),
        ({"privacy": [{"name": "paillier", "bits": 20}]}, "privacy.paillier.bits is for updates"),
        ({"data": {"name": "digits", "scale": "none"}}, "data.scale: parties hold columns"),
        ({"data": {"missing": "median"}}, "missing cells are accepted"),
        ({"engine": {"name": "loop"}}, "engine.name: parties hold columns"),
        ({"evaluation": {"drift": True}}, "evaluation.drift"),
        ({"partition": {"name": "hybrid"}}, "only algorithm 'hybrid' trains on"),
    ],
)
def test_what_means_nothing_there_or_is_not_there_yet_is_refused(tmp_path, changed, said):
    with pytest.raises(ConfigError) as raised:
        parse(two(tmp_path, **changed))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def label(tmp_path, *which):
    given = two(tmp_path)
    for k, one in enumerate(given["parties"]):
        one.pop("label", None)
        if k in which:
            one["label"] = "default" if k == 0 else "spent"
    return given


def test_exactly_one_party_holds_the_label(tmp_path):
    with pytest.raises(ConfigError, match="no party names its label"):
        parse(label(tmp_path))
    with pytest.raises(ConfigError, match="'bank' and 'shop' both name a label"):
        parse(label(tmp_path, 0, 1))
    given = two(tmp_path)
    given["parties"][1]["weight"] = "spent"
    with pytest.raises(ConfigError, match="weight belongs with the label, which 'bank' holds"):
        parse(given)
    with pytest.raises(ConfigError, match="two of \\[\\[parties\\]\\] are called 'bank'"):
        parse(two(tmp_path) | {"parties": [two(tmp_path)["parties"][0]] * 2})
    with pytest.raises(ConfigError, match="name two or more"):
        parse(two(tmp_path) | {"parties": two(tmp_path)["parties"][:1]})


def test_a_label_at_a_passive_party_is_found(tmp_path):
    given = two(tmp_path)
    (tmp_path / "shop.csv").write_text("key,default\n1,0\n2,1\n")
    with pytest.raises(DataError, match="party 'shop' has an input column 'default', which is the label of 'bank'"):
        consortium(checked(parse(given)))


def test_the_group_that_was_replaced_is_refused_with_its_successor(tmp_path):
    with pytest.raises(ConfigError, match="'ed25519': 'ristretto255' replaced it; write that, or leave the key out"):
        parse(two(tmp_path, align={"group": "ed25519"}))


def test_alignment_without_parties_is_refused():
    with pytest.raises(ConfigError, match="\\[align\\] matches rows"):
        parse({"align": {"name": "psi"}})
    with pytest.raises(ConfigError, match="works with parties that hold columns"):
        parse({"algorithm": dict(BOOST)})


LONG = [100000001 + i % 2 for i in range(20)]  # 32 bits make them one value
NEAR = [0.1 + 1e-9 * (i % 2) for i in range(20)]


def dealt_and_own(folder):
    """The columns of one table as two parties' tables: dealt from a file, and read from a file of each."""
    rows = [(i, LONG[i], NEAR[i], i % 8 / 4, 0.3 + i) for i in range(20)]
    columns = {"bank": (0, 1, 4), "shop": (0, 2, 3)}
    names = ["id", "long", "near", "exact", "amount"]
    for party, at in {**columns, "whole": (1, 2, 3, 4)}.items():
        lines = [",".join(names[j] for j in at), *(",".join(repr(row[j]) for j in at) for row in rows)]
        (folder / f"{party}.csv").write_text("\n".join(lines) + "\n")
    whole = {
        "data": {"name": "file", "path": str(folder / "whole.csv"), "label": "amount"},
        "partition": {"name": "vertical", "columns": {"bank": ["long"], "shop": ["near", "exact"]}},
        "algorithm": dict(BOOST),
    }
    parties = [{"name": name, "path": str(folder / f"{name}.csv"), "id": "id"} for name in columns]
    parties[0]["label"] = "amount"
    return [consortium(checked(parse(made))).tables for made in (whole, {"parties": parties, "algorithm": dict(BOOST)})]


def test_dealt_columns_and_own_files_hold_the_same_numbers(tmp_path):
    for dealt_, own in zip(*dealt_and_own(tmp_path), strict=True):
        at = [int(one) for one in dealt_.ids]
        assert dealt_.names == own.names
        assert np.array_equal(dealt_.x, own.x[at])
        assert dealt_.bits == own.bits == 64
        if own.y is not None:
            assert np.array_equal(dealt_.y, own.y[at])
        assert all(len(np.unique(column)) > 1 for column in dealt_.x.T)


def test_dealt_columns_of_the_first_rules_keep_32_bits(tmp_path):
    with read_as(Reading(1)):
        (bank, shop), _ = dealt_and_own(tmp_path)
    (_, now), _ = dealt_and_own(tmp_path)
    assert (bank.bits, shop.bits) == (32, 32)
    assert len(np.unique(bank.x)) == 1
    assert np.array_equal(shop.x[:, 0], now.x[:, 0].astype(np.float32))
    assert np.array_equal(shop.x[:, 1], now.x[:, 1]), "32 bits hold this column exactly"


def test_one_tables_columns_are_dealt_from_the_file(tmp_path):
    made = {
        "data": {"name": "breast_cancer_wdbc", "limit": 100},
        "partition": {"name": "vertical", "parties": 3, "overlap": 0.5},
        "algorithm": dict(BOOST),
    }
    held = consortium(checked(parse(made)))
    assert [len(one.schema) for one in held.tables] == [10, 10, 10]
    assert held.active == 0
    assert [len(one.ids) for one in held.tables] == [67, 67, 66]
    with pytest.raises(ConfigError, match="is not a table"):
        consortium(checked(parse(made | {"data": {"name": "digits"}})))
