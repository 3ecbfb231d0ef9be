"""A user's own file: arrays, tables, pictures; what it becomes, and the one sentence where it cannot be used."""

from __future__ import annotations

import gzip
import importlib.util

import numpy as np
import pytest
import torch

from fedatlas.data.config import DataConfig
from fedatlas.data.dataset import Partition
from fedatlas.data.files import read_inputs
from fedatlas.data.partition import make_partition
from fedatlas.data.preprocess import preprocess
from fedatlas.data.sources import load_dataset
from fedatlas.errors import ConfigError, DataError

CSV = """age;job;site;w;income
30;nurse;north;1;10.5
40;clerk;south;2;20.5
50;nurse;south;1;30.5
60;;north;0.5;40.5
"""


def load(path, **keys):
    return load_dataset(DataConfig(name="file", path=str(path), **keys), 1)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    return path


def test_a_table_with_roles(csv):
    dataset = load(csv, label="income", client="site", weight="w", test=0.5)
    assert [c.name for c in dataset.schema] == ["age", "job"]
    assert dataset.schema[1].categories == ("clerk", "nurse")
    assert (dataset.task, len(dataset.train.y), len(dataset.test.y)) == ("numbers", 2, 2)
    everything = torch.cat((dataset.train.y, dataset.test.y)).sort().values
    assert everything.tolist() == [10.5, 20.5, 30.5, 40.5]
    assert set(dataset.client_names) <= {"north", "south"}
    assert torch.cat((dataset.train.weight, dataset.test.weight)).sum() == 4.5
    assert dataset.facts["files"][0]["file"] == "rows.csv"


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_the_same_table_in_other_forms(csv, tmp_path, suffix):
    other = tmp_path / f"rows{suffix}"
    if suffix == ".csv.gz":
        other.write_bytes(gzip.compress(CSV.encode("utf-8-sig")))
    else:
        import pandas as pd

        pd.read_csv(csv, sep=";").to_parquet(other)
    a, b = (load(path, label="income", test=0.5) for path in (csv, other))
    assert a.schema == b.schema
    assert torch.equal(a.train.x.nan_to_num(-7), b.train.x.nan_to_num(-7))


def test_a_test_file_shares_the_coding(csv, tmp_path):
    more = tmp_path / "test.csv"
    more.write_text("job;income;age;site;w\nwelder;1;20;north;1\nclerk;2;21;south;1\n")
    dataset = load(csv, label="income", test=str(more))
    assert (len(dataset.train.y), len(dataset.test.y)) == (4, 2)
    column = dataset.schema[1]
    assert [column.categories[int(code)] for code in dataset.test.x[:, 1]] == ["welder", "clerk"]
    out, done = preprocess(dataset, Partition((np.arange(4),)), missing="median")
    assert out.test.x[
        0, list(done.columns).index("job=clerk") : list(done.columns).index("job=nurse") + 1
    ].tolist() == [0, 0]
    more.write_text("job;income\nclerk;2\n")
    with pytest.raises(DataError, match="the test file has no column 'age'"):
        load(csv, label="income", test=str(more))
    more.write_text("job;income;age;site;w\nwelder;1;20;north;1\nclerk;;21;south;1\n")
    with pytest.raises(DataError, match="'income' is missing in line 3 of the test file"):
        load(csv, label="income", test=str(more))


def test_what_a_target_becomes(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "x,few,many,text,half\n" + "\n".join(f"{i},{i % 3 + 1},{i},{'ab'[i % 2]},{i % 2 / 2}" for i in range(24))
    )
    assert load(path, label="few").class_names == ("1", "2", "3")
    assert load(path, label="few", task="numbers").task == "numbers"
    assert load(path, label="many").task == "numbers"  # 24 different values, more than 20
    assert load(path, label="half").task == "numbers"  # a fractional part
    assert load(path, label="half", task="classes").class_names == ("0", "0.5")
    assert load(path, label="text").class_names == ("a", "b")
    assert load(path, label="text", categories=("few",)).schema[1].categories == ("1", "2", "3")


def test_a_question_mark_is_a_hole_among_numbers_and_a_word_among_words(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("n,word,y\n1,?,0\n?,a,1\n3,b,0\nNA,a,1\n")
    dataset = load(path, label="y", test=0.5)
    assert dataset.schema[0].categories == ()
    assert dataset.schema[1].categories == ("?", "a", "b")
    x = torch.cat((dataset.train.x, dataset.test.x))
    assert torch.isnan(x).sum(0).tolist() == [2, 0]


def test_rows_without_a_target(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("n,y\n1,a\n2,\n3,b\n4,a\n5,b\n")
    with pytest.raises(DataError, match=r"the target 'y' is missing in line 3: data.missing = 'drop' or 'median'"):
        load(path, label="y")
    assert load(path, label="y", missing="median", test=0.5).facts["rows_unusable"] == 1
    dataset = load(path, label="y", missing="drop", test=0.5)
    assert len(dataset.train.y) + len(dataset.test.y) == 4
    assert dataset.facts["rows_unusable"] == 1


def test_owners_that_are_numbers_are_sorted_as_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("n,y,who\n" + "\n".join(f"{i},{i % 2},{(10, 9, 101)[i % 3]}" for i in range(12)))
    dataset = load(tmp_path / "t.csv", label="y", client="who", test=0.25)
    assert dataset.client_names == ("9", "10", "101")
    owner = {10: 1, 9: 0, 101: 2}
    assert all(
        owner[(10, 9, 101)[int(n) % 3]] == k for n, k in zip(dataset.train.x[:, 0], dataset.train.client, strict=True)
    )


def test_rows_without_an_owner_or_a_weight(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("n,y,who,w\n1,a,1,1\n2,b,,2\n3,b,2,\n4,a,2,4\n5,b,1,5\n6,b,2,6\n")
    keys = {"label": "y", "client": "who", "weight": "w", "test": 0.25}
    with pytest.raises(
        DataError, match=r"the client column 'who' is missing in line 3: data.missing = 'drop' or 'median'"
    ):
        load(path, **keys)
    dataset = load(path, missing="drop", **keys)
    assert dataset.facts["rows_unusable"] == 2
    assert dataset.client_names == ("1", "2")
    kept = torch.cat((dataset.train.x, dataset.test.x)).flatten()
    assert sorted(kept.tolist()) == [1, 4, 5, 6]
    assert torch.equal(torch.cat((dataset.train.weight, dataset.test.weight)), kept)
    path.write_text("n,y,who\n1,a,\n2,,x\n")
    with pytest.raises(DataError, match="no row has all of y, who"):
        load(path, label="y", client="who", missing="drop")


def test_a_column_finer_than_its_numbers_is_a_notice(tmp_path):
    """Around 1e12 numbers of 32 bits are 65,536 apart: of a standard deviation of 1 nothing is left."""
    rows = "".join(f"{1e12 + i % 7},{i % 2},{1e12 * (i % 5)},0.1\n" for i in range(60))
    (tmp_path / "t.csv").write_text(f"fine,y,coarse,same\n{rows}")
    (said,) = load(tmp_path / "t.csv", label="y").facts["doubts"]
    assert said.startswith("Column 'fine' varies by 1.99 around 1e+12, which is too fine for 32-bit numbers")


def test_a_path_that_is_not_there_or_not_known(tmp_path):
    with pytest.raises(ConfigError, match=r'data\.path = "": name a'):
        load("")
    np.savez(tmp_path / "empty.npz", x_train=np.zeros((0, 6)), y_train=np.zeros(0, int))
    with pytest.raises(DataError, match="has no training rows"):
        load(tmp_path / "empty.npz")
    with pytest.raises(DataError, match="there is no file or folder"):
        load(tmp_path / "no.csv", label="y")
    with pytest.raises(DataError, match=r"'no.csv' in '.+' \(relative paths start there\)"):
        load("no.csv", label="y")
    (tmp_path / "x.doc").touch()
    with pytest.raises(DataError, match=r"is not a .npz, .csv"):
        load(tmp_path / "x.doc")
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cannot be read as .npz"):
        load(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "whole.npz", x_train=np.arange(200.0).reshape(-1, 2), y_train=np.arange(100) % 2)
    whole = (tmp_path / "whole.npz").read_bytes()
    for damaged in (whole[:-100], whole[:100], whole[:80] + bytes(40) + whole[120:]):
        (tmp_path / "x.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot be read as .npz"):
            load(tmp_path / "x.npz")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n")[:-6])
    with pytest.raises(DataError, match="cannot be read as a table"):
        load(tmp_path / "x.csv.gz", label="b")


def test_arrays_are_taken_as_they_are(tmp_path):
    x = np.random.default_rng(1).normal(size=(6, 4))
    y = np.array([3, 7, 3, 7, 3, 7])
    path = tmp_path / "a.npz"
    np.savez(
        path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2], client_train=np.array(["b", "a", "b", "a", "b", "b"])
    )
    dataset = load(path)
    assert torch.equal(dataset.train.x, torch.from_numpy(x.astype(np.float32)))
    assert (dataset.class_names, dataset.train.y.tolist()) == (("3", "7"), [0, 1, 0, 1, 0, 1])
    assert (dataset.client_names, dataset.train.client.tolist()) == (("a", "b"), [1, 0, 1, 0, 1, 1])
    out, done = preprocess(dataset, Partition((np.arange(6),)))
    assert torch.equal(out.train.x, dataset.train.x)
    assert torch.equal(read_inputs(path, done), out.test.x)
    with pytest.raises(ConfigError, match=r"data.label names a column"):
        load(path, label="y")


def test_arrays_without_a_test_set_are_split(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((8, 2)), y_train=np.arange(8) / 3)
    dataset = load(tmp_path / "a.npz")
    assert (dataset.task, len(dataset.train.y), len(dataset.test.y)) == ("numbers", 6, 2)


def test_byte_pictures_and_token_ids_in_arrays(tmp_path):
    y = np.array([0, 1, 2, 0])
    np.savez(
        tmp_path / "p.npz",
        x_train=np.full((4, 5, 5), 255, np.uint8),
        y_train=y,
        x_test=np.zeros((1, 5, 5), np.uint8),
        y_test=y[:1],
    )
    dataset = load(tmp_path / "p.npz")
    assert (tuple(dataset.train.x.shape), dataset.inputs(dataset.train.x).max()) == ((4, 1, 5, 5), 1)
    np.savez(
        tmp_path / "t.npz",
        x_train=np.ones((4, 9), np.int64),
        y_train=np.full((4, 9), 2),
        x_test=np.ones((1, 9), np.int64),
        y_test=np.full((1, 9), -100),
    )
    dataset = load(tmp_path / "t.npz")
    assert (dataset.task, dataset.classes, dataset.train.x.dtype) == ("tokens", 3, torch.int64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": np.zeros((2, 2))}, "no array 'y_train'"),
        ({"x_train": np.zeros((2, 2)), "y_train": np.zeros(3)}, "x_train has 2 rows but y_train has 3"),
        ({"x_train": np.zeros((2, 2)), "y_train": np.zeros(2, int)}, "only one class"),
        ({"x_train": np.zeros((2, 2)), "y_train": np.array([0.5, np.nan])}, "1 targets|NaN"),
        ({"x_train": np.zeros(2), "y_train": np.arange(2)}, "at least two dimensions"),
        ({"x_train": np.full((4, 2), np.inf), "y_train": np.arange(4) % 2}, "is infinite in"),
        (
            {
                "x_train": np.zeros((2, 5, 5), np.uint8),
                "y_train": np.arange(2),
                "x_test": np.zeros((2, 1, 5, 5)),
                "y_test": np.arange(2),
            },
            "x_train is uint8 but x_test float32; store both in the same type",
        ),
        (
            {"x_train": np.zeros((2, 2)), "y_train": np.arange(2), "client_train": np.arange(3)},
            "client_train has 3 entries for 2 rows",
        ),
    ],
)
def test_arrays_that_cannot_be_used_say_why(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.npz", test=0.5)


def test_sides_that_are_put_together_must_have_the_same(tmp_path):
    n = np.arange(8)
    both = {"x_train": n[:, None] * 1.0, "y_train": n % 2, "x_test": n[:, None] * 1.0, "y_test": n % 2}
    np.savez(tmp_path / "w.npz", **both, weight_train=np.ones(8))
    with pytest.raises(DataError, match="only one of the two has weights"):
        load(tmp_path / "w.npz", test=0.25)
    assert load(tmp_path / "w.npz").train.weight is not None
    np.savez(tmp_path / "c.npz", **both, client_train=n % 4)
    pooled = load(tmp_path / "c.npz", test=0.25)
    with pytest.raises(ConfigError, match=r"the test rows name none.*keep data.test = 'own'"):
        make_partition("natural", {}, pooled, 0, 1)
    assert make_partition("natural", {}, load(tmp_path / "c.npz"), 0, 1).sizes == [2] * 4


def picture(path, colour, size=(10, 8)):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if len(colour) == 3 else "L", size, colour if len(colour) == 3 else colour[0]).save(path)


def test_a_folder_of_pictures(tmp_path):
    for i in range(4):
        picture(tmp_path / "cat" / f"{i}.png", (200,))
        picture(tmp_path / "dog" / f"{i}.jpg", (10,))
    dataset = load(tmp_path, size=16)
    assert (dataset.class_names, tuple(dataset.train.x.shape)) == (("cat", "dog"), (6, 1, 16, 16))
    cats = dataset.train.x[dataset.train.y == 0]
    assert set(cats.flatten().tolist()) == {200}
    _, done = preprocess(dataset, Partition((np.arange(6),)))
    assert read_inputs(tmp_path / "dog", done).shape == (4, 1, 16, 16)


def test_a_folder_of_pictures_with_colours_and_its_own_test(tmp_path):
    for side in ("train", "test"):
        picture(tmp_path / side / "red" / "a.png", (255, 0, 0))
        picture(tmp_path / side / "grey" / "b.png", (128,))
    dataset = load(tmp_path)
    assert (tuple(dataset.train.x.shape), len(dataset.test.y)) == ((2, 3, 64, 64), 2)
    red = dataset.train.x[dataset.train.y == dataset.class_names.index("red")][0]
    assert red[:, 0, 0].tolist() == [255, 0, 0]


def test_test_pictures_of_no_class_are_refused(tmp_path):
    for name in ("cat", "dog"):
        picture(tmp_path / "train" / name / "a.png", (9,))
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match=r"test' holds no pictures"):
        load(tmp_path)
    picture(tmp_path / "test" / "dog" / "a.png", (9,))
    picture(tmp_path / "test" / "cats" / "a.png", (9,))
    with pytest.raises(DataError, match=r"cats' is not a class of '.*train' \(cat, dog\)"):
        load(tmp_path)


def test_grey_of_sixteen_bits_keeps_them(tmp_path):
    """Scans of 12 bits come in files of 16: by eight of them they would have 16 shades."""
    from PIL import Image

    levels = np.array([[0, 1, 255, 256], [4095, 32768, 65280, 65535]], np.uint16).repeat(32, 0).repeat(16, 1)
    for name in ("ill", "well"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(levels).save(tmp_path / "set" / name / f"{i}.png")
    picture(tmp_path / "set" / "well" / "z.png", (255,))  # 8 bits among them
    dataset = load(tmp_path / "set", size=64, test=0.5)
    whole = torch.cat([dataset.inputs(dataset.train.x), dataset.inputs(dataset.test.x)])[:, 0, ::32, ::16] * 65535
    deep = [row for row in whole.tolist() if row[0][0] == 0]
    assert len(deep) == 4
    for row in deep:
        assert np.array(row) == pytest.approx(levels[::32, ::16], abs=0.01)
    assert next(row for row in whole if row[0, 0] != 0) == pytest.approx(65535)
    _, done = preprocess(dataset, Partition((np.arange(len(dataset.train.y)),)))
    assert read_inputs(tmp_path / "set" / "ill", done)[0, 0, ::32, ::16] * 65535 == pytest.approx(levels[::32, ::16])
    Image.fromarray(levels.astype(np.int32)).save(tmp_path / "set" / "ill" / "wide.tif")
    with pytest.raises(DataError, match=r"wide.tif' holds 32-bit numbers"):
        load(tmp_path / "set")


def test_grey_of_sixteen_bits_among_colours_keeps_its_upper_eight(tmp_path):
    from PIL import Image

    picture(tmp_path / "red" / "a.png", (255, 0, 0))
    (tmp_path / "grey").mkdir()
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(tmp_path / "grey" / "b.png")
    dataset = load(tmp_path, size=8, test=0.5)
    whole = torch.cat([dataset.train.x, dataset.test.x])[:, :, 0, 0].tolist()
    assert sorted(whole) == [[156, 156, 156], [255, 0, 0]]


def test_a_folder_that_is_no_set_of_pictures(tmp_path):
    (tmp_path / "one").mkdir()
    with pytest.raises(DataError, match="one folder of pictures per class"):
        load(tmp_path)
    (tmp_path / "two").mkdir()
    with pytest.raises(DataError, match="holds no pictures"):
        load(tmp_path)
    (tmp_path / "one" / "x.png").write_bytes(b"not a picture")
    picture(tmp_path / "two" / "y.png", (1,))
    with pytest.raises(DataError, match="cannot be read as a picture"):
        load(tmp_path)


def test_predicting_from_a_table(csv, tmp_path):
    dataset = load(csv, label="income", drop=("site", "w"), test=0.5, missing="median")
    out, done = preprocess(dataset, Partition((np.arange(2),)), missing="median")
    new = tmp_path / "new.csv"
    new.write_text("job,age\nnurse,\npilot,44\n")
    with pytest.warns(UserWarning, match="'job': 1 of 2 rows"):
        x = read_inputs(new, done)
    assert x.shape == (2, len(out.columns))
    assert torch.isfinite(x).all()


def test_the_hub_needs_its_extra():
    if importlib.util.find_spec("flwr_datasets") is not None:
        pytest.skip("flwr-datasets is installed")
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[hub\]"'):
        load_dataset(DataConfig(name="hub", path="flwrlabs/femnist"), 1)


def test_the_hub_reads_pictures_and_numbers_through_flwr_datasets(tmp_path):
    pytest.importorskip("flwr_datasets")
    for side in ("train", "test"):
        for i in range(3):
            picture(tmp_path / "p" / side / "cat" / f"{i}.png", (9, 0, 200))
            picture(tmp_path / "p" / side / "dog" / f"{i}.png", (0, 0, 7))
    dataset = load_dataset(DataConfig(name="hub", path=str(tmp_path / "p")), 1)
    assert (tuple(dataset.train.x.shape), len(dataset.test.y), dataset.class_names) == (
        (6, 3, 8, 10),
        6,
        ("cat", "dog"),
    )
    assert dataset.train.x[dataset.train.y == 0][0, :, 0, 0].tolist() == [9, 0, 200]
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "train.csv").write_text("a,b,who,label\n1,2.5,x,0\n2,3.5,y,1\n3,4.5,x,0\n4,5.5,y,1\n")
    dataset = load_dataset(DataConfig(name="hub", path=str(tmp_path / "t"), client="who", test=0.5), 1)
    assert (dataset.columns, dataset.client_names, len(dataset.test.y)) == (("a", "b"), ("x", "y"), 2)
    assert torch.equal(dataset.train.x[:, 1] - dataset.train.x[:, 0], torch.tensor([1.5, 1.5]))
    with pytest.raises(ConfigError, match=r"data.client = 'whom'"):
        load_dataset(DataConfig(name="hub", path=str(tmp_path / "t"), client="whom"), 1)
