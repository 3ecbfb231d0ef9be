"""Original formats, written small by these tests, read by the real parsers, kept and read again as prepared files."""

from __future__ import annotations

import gzip
import lzma
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays

from fedatlas.data import handwriting, har, images
from fedatlas.data.catalogue import TABLES
from fedatlas.data.formats import decode_pixels, encode_pixels, member, parse_cifar, parse_example, parse_idx, read_leaf
from fedatlas.data.loaded import LoadRequest
from fedatlas.data.store import Store, read_npz
from fedatlas.data.tables import load_table, parse_original, prepare_table
from fedatlas.errors import DataError
from originals import database, example, idx, leaf, tarred, zipped

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4"])
def test_idx_holds_shape_type_and_big_endian_values(dtype):
    a = RNG.integers(0, 100, (3, 4, 5)).astype(dtype)
    b = parse_idx(idx(a))
    assert b.dtype == a.dtype
    assert (b == a).all()


@pytest.mark.parametrize("raw", [b"", b"\1\0\x08\1", idx(np.zeros(9, "u1"))[:-1], idx(np.zeros(9, "u1")) + b"x"])
def test_idx_refuses_other_files_and_cut_ones(raw):
    with pytest.raises(DataError, match=r"idx file|cut short"):
        parse_idx(raw, "some.idx")


@given(arrays(np.uint8, (2, 3, 32, 32)))
def test_coded_pixels_come_back(x):
    assert (decode_pixels(encode_pixels(x)) == x).all()


def test_coded_pixels_are_differences_as_the_readme_gives_them():
    x = np.zeros((1, 3, 32, 32), np.uint8)
    x[0, :, 0, :2] = [[12, 13], [10, 12], [9, 12]]  # red, green, blue
    d = encode_pixels(x)
    # Green: 10, then 12 - 10 = 2. Red - green: 2, then 1 - 2 = -1 = 255. Blue - green: -1 = 255, then 0 + 1 = 1.
    assert d[0, :, 0, :2].tolist() == [[2, 255], [10, 2], [255, 1]]


def test_cifar_records_hold_labels_then_three_planes():
    record = bytes([3, 7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes(range(256)) * 4
    labels, x = parse_cifar(record * 2, 2)
    assert labels.tolist() == [[3, 7], [3, 7]]
    assert x.shape == (2, 3, 32, 32)
    assert set(x[0, 0].ravel()) == {1}
    assert set(x[0, 1].ravel()) == {2}
    assert x[0, 2, 1, :3].tolist() == [32, 33, 34]  # row 1 of the blue plane begins at byte 32
    with pytest.raises(DataError, match="not a whole number of 3074-byte records"):
        parse_cifar(record[:-1], 2)


def test_a_member_is_found_in_a_tar_and_in_a_zip_within_a_zip(tmp_path):
    inner = zipped({"UCI HAR Dataset/train/X_train.txt": b"1 2", "other/X_train.txt.bak": b"no"})
    files = {
        "a.zip": zipped({"readme": b"", "inner.zip": inner}),
        "b.tar.gz": tarred({"d/x.bin": b"tar"}, "w:gz"),
        "c.csv": b"plain",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert member(tmp_path / "a.zip", "train/X_train.txt") == b"1 2"
    assert member(tmp_path / "b.tar.gz", "x.bin") == b"tar"
    assert member(tmp_path / "c.csv", "c.csv") == b"plain"
    with pytest.raises(DataError, match=r"no file 'y.bin'"):
        member(tmp_path / "b.tar.gz", "y.bin")


def test_a_tensorflow_example_is_read_with_negative_and_long_values():
    raw = example(label=[5], score=[-3, 300], pixels=[0.5, -1.0], tokens=[b"how to", b""])
    values = parse_example(raw)
    assert values["label"].tolist() == [5]
    assert values["score"].tolist() == [-3, 300]
    assert values["pixels"].tolist() == [0.5, -1.0]
    assert values["tokens"] == [b"how to", b""]


def test_mnist_from_idx_files_with_qmnist_writers(place):
    store, home, lay = place
    x, y = RNG.integers(0, 256, (6, 28, 28)).astype("u1"), RNG.integers(0, 10, 6).astype("u1")
    labels = np.zeros((9, 8), "i4")  # QMNIST's test labels go on behind MNIST's
    labels[:6, 0], labels[:6, 2] = y, [5, 5, 2100, 5, 7, 7]
    contents = dict.fromkeys(images.IDX_NAMES[::2], gzip.compress(idx(x))) | dict.fromkeys(
        images.IDX_NAMES[1::2], gzip.compress(idx(y))
    )
    contents |= {f"qmnist-{side}-labels-idx2-int.gz": gzip.compress(idx(labels)) for side in ("train", "test")}
    images.prepare_mnist(lay(contents), home)
    loaded = images.load_mnist(LoadRequest(store, 1))
    assert (loaded.train.x[:, 0].numpy() == x).all()
    assert loaded.train.y.tolist() == y.tolist()
    assert [loaded.client_names[i] for i in loaded.train.client] == [f"writer {w}" for w in (5, 5, 2100, 5, 7, 7)]
    assert read_npz(home / "mnist.npz", ["writer_train"])["writer_train"].dtype == np.int16


def test_mnist_refuses_writers_that_do_not_match_row_by_row(place):
    _, home, lay = place
    x, y = np.zeros((2, 28, 28), "u1"), np.array([1, 2], "u1")
    contents = dict.fromkeys(images.IDX_NAMES[::2], idx(x)) | dict.fromkeys(images.IDX_NAMES[1::2], idx(y))
    contents |= {f"qmnist-{side}-labels-idx2-int.gz": idx(np.zeros((2, 8), "i4")) for side in ("train", "test")}
    with pytest.raises(DataError, match="do not match"):
        images.prepare_mnist(lay(contents), home)


def test_fashion_mnist_from_idx_files(place):
    store, home, lay = place
    x, y = RNG.integers(0, 256, (4, 28, 28)).astype("u1"), np.array([9, 0, 1, 9], "u1")
    contents = dict.fromkeys(images.IDX_NAMES[::2], gzip.compress(idx(x))) | dict.fromkeys(
        images.IDX_NAMES[1::2], gzip.compress(idx(y))
    )
    images.prepare_fashion(lay(contents), home)
    loaded = images.load_fashion_mnist(LoadRequest(store, 1))
    assert [loaded.class_names[c] for c in loaded.test.y] == ["ankle boot", "T-shirt/top", "trouser", "ankle boot"]


def test_cifar_from_its_binary_archives(place):
    store, home, lay = place
    x = RNG.integers(0, 256, (2, 3072)).astype("u1")
    batches = {
        f"cifar-10-batches-bin/{n}.bin": bytes([4]) + x[0].tobytes() for n in [f"data_batch_{k}" for k in range(1, 6)]
    }
    batches["cifar-10-batches-bin/test_batch.bin"] = bytes([9]) + x[1].tobytes()
    sides = {
        f"cifar-100-binary/{side}.bin": bytes([2, 5 + i]) + x[i].tobytes() for i, side in enumerate(("train", "test"))
    }
    originals = lay(
        {"cifar-10-binary.tar.gz": tarred(batches, "w:gz"), "cifar-100-binary.tar.gz": tarred(sides, "w:gz")}
    )
    images.prepare_cifar10(originals, home)
    images.prepare_cifar100(originals, home)
    ten, fine, coarse = (
        load(LoadRequest(store, 1))
        for load in (images.load_cifar10, images.load_cifar100, partial(images.load_cifar100, labels="coarse"))
    )
    assert ten.train.x.shape == (5, 3, 32, 32)
    assert (ten.train.x[4].numpy().ravel() == x[0]).all()
    assert (ten.test.x[0].numpy().ravel() == x[1]).all()
    assert (ten.train.y[0], ten.test.y[0], ten.facts["rows_from_a_jpeg_copy"]) == (4, 9, 0)
    assert (fine.train.y[0], fine.test.y[0], coarse.train.y[0]) == (5, 6, 2)
    assert "subset" not in fine.facts


def test_emnist_is_turned_upright_and_letters_count_from_zero(place):
    store, home, lay = place
    upright = np.zeros((1, 28, 28), "u1")
    upright[0, 4:24, 14] = 255  # a digit 1: one column, twenty rows
    stored = upright.transpose(0, 2, 1)
    files = {}
    for side in ("train", "test"):
        files[f"gzip/emnist-letters-{side}-images-idx3-ubyte.gz"] = gzip.compress(idx(np.ascontiguousarray(stored)))
        files[f"gzip/emnist-letters-{side}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.array([12], "u1")))
    handwriting.prepare_emnist(lay({"emnist-gzip.zip": zipped(files)}), home, "letters")
    loaded = handwriting.load_emnist(LoadRequest(store, 1), form="letters")
    rows, columns = loaded.train.x[0, 0].nonzero(as_tuple=True)
    assert (len(set(rows.tolist())), len(set(columns.tolist()))) == (20, 1)
    assert loaded.class_names[loaded.train.y[0]] == "l"  # label 12 of 1..26


def test_the_order_of_emnist_classes():
    assert len(handwriting.BY_CLASS) == 62
    assert len(handwriting.MERGED) == 47
    assert [handwriting.BY_CLASS[i] for i in (0, 10, 36)] == ["0", "A", "a"]


def test_femnist_from_leafs_json(tmp_path):
    white = [1.0] * 784
    ink = white.copy()
    ink[28 * 3 + 5] = 0.2  # row 3, column 5
    leaf(tmp_path / "train", {"f0000_14": ([ink, white], [0, 61]), "f0001_41": ([white], [10])})
    leaf(tmp_path / "test", {"f0001_41": ([ink], [36])})
    loaded = handwriting.load_femnist(LoadRequest(Store((tmp_path / "none",)), 1), path=str(tmp_path))
    assert loaded.train.x[0, 0, 3, 5] == 51  # 0.2 * 255
    assert loaded.train.x[1].min() == 255
    assert loaded.train.y.tolist() == [0, 61, 10]
    assert [loaded.class_names[c] for c in (0, 61, 10, 36)] == ["0", "z", "A", "a"]
    assert [loaded.client_names[i] for i in loaded.train.client] == ["f0000_14", "f0000_14", "f0001_41"]
    with pytest.raises(DataError, match=r"holds no \.json file"):
        list(read_leaf(tmp_path))


def test_femnist_from_the_tensorflow_federated_file(place, tmp_path):
    store, home, lay = place
    pixels = [1.0] * 784
    pixels[28] = 0.0
    rows = [
        (f"all_{side}", who, example(label=[c], pixels=pixels))
        for side in ("train", "test")
        for who, c in (("w2", 3), ("w1", 40))
    ]
    raw = database(tmp_path / "e.sqlite", [*rows, ("digits_only_train", "w1", b"not read")])
    handwriting.prepare_femnist(lay({"emnist_all.sqlite.lzma": lzma.compress(raw, lzma.FORMAT_ALONE)}), home)
    loaded = handwriting.load_femnist(LoadRequest(store, 1))
    assert loaded.train.x.shape == (2, 1, 28, 28)
    assert loaded.train.x[0, 0, 1, 0] == 0
    assert loaded.train.y.tolist() == [40, 3]
    assert [loaded.client_names[i] for i in loaded.train.client] == ["w1", "w2"]
    assert not (home / "originals" / "emnist_all.sqlite").exists()


def test_har_from_ucis_zip_within_a_zip(place):
    store, home, lay = place
    base = "UCI HAR Dataset/"
    files = {
        base + "features.txt": b"1 tBodyAcc-mean()-X\n2 tBodyAcc-mean()-Y\n",
        base + "activity_labels.txt": b"1 WALKING\n2 LAYING\n",
    }
    for side, subject in (("train", b"1\n30\n"), ("test", b"2\n2\n")):
        files[f"{base}{side}/X_{side}.txt"] = b"  2.8858451e-001 -2.0294171e-002\n -1.0000000e+000  5.0000000e-001\n"
        files[f"{base}{side}/y_{side}.txt"] = b"2\n1\n"
        files[f"{base}{side}/subject_{side}.txt"] = subject
    outer = zipped({"UCI HAR Dataset.zip": zipped(files), "UCI HAR Dataset.names": b""})
    har.prepare_har(lay({har.REMOTES[0].file: outer}), home)
    loaded = har.load_har(LoadRequest(store, 1))
    assert torch.equal(loaded.train.x, torch.tensor([[0.28858451, -0.020294171], [-1.0, 0.5]]))
    assert loaded.train.y.tolist() == [1, 0]
    assert (loaded.class_names, loaded.columns) == (("walking", "laying"), ("tBodyAcc-mean()-X", "tBodyAcc-mean()-Y"))
    assert [loaded.client_names[i] for i in loaded.train.client] == ["person 1", "person 30"]
    assert len(har.load_har(LoadRequest(store, 1), split="pooled").train.y) == 4


ORIGINALS = {
    "adult": {
        "adult.data": b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, ?, White, Male, 2174, 0, 40, Cuba, <=50K\n\n",
        "adult.test": b"|1x3 Cross validator\n25, Private, 2, 11th, 7, Never-married, X, Own-child, Black, Male, 0, 0, 40, Cuba, >50K.\n",
    },
    "bank_marketing_full": {"bank-full.csv": b'"age";"job";"y"\n58;"management";"no"\n44;"blue-collar";"yes"\n'},
    "breast_cancer_original": {
        "breast-cancer-wisconsin.data": b"1000025,5,1,1,1,2,1,3,1,1,2\n1002945,5,4,4,5,7,?,3,2,1,4\n"
    },
    "german_credit": {
        "german.data": b"A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1 \n"
    },
    "auto_mpg": {
        "auto-mpg.data": b'18.0   8   307.0      ?      3504.      12.0   70  1\t"chevrolet chevelle malibu"\n'
    },
    "yacht_hydrodynamics": {
        "yacht_hydrodynamics.data": b"-2.3 0.568 4.78 3.99 3.17 0.125 0.11 \n-2.3 0.568 4.78 3.99 3.17 0.150 0.27\n \n"
    },
    "wine_quality": {
        f"winequality-{colour}.csv": b'"fixed acidity";"a";"b";"c";"d";"e";"f";"g";"h";"i";"j";"quality"\n7.4;1;2;3;4;5;6;7;8;9;10;5\n'
        for colour in ("red", "white")
    },
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_tables_from_the_layout_of_their_source(place, name):
    _, home, lay = place
    spec = next(spec for spec in TABLES if spec.name == name)
    archive = zipped({"nested.zip": zipped(ORIGINALS[name])})
    prepare_table(spec, lay({spec.original.remote.file: archive}), home)
    lines = [gzip.decompress((home / file).read_bytes()).decode().splitlines() for file in spec.files]
    first = {
        "adult": "39,State-gov,77516,Bachelors,13,Never-married,Adm-clerical,?,White,Male,2174,0,40,Cuba,<=50K",
        "bank_marketing_full": "58,management,no",
        "breast_cancer_original": "5,1,1,1,2,1,3,1,1,2",
        "german_credit": "A11,6,A34,A43,1169,A65,A75,4,A93,A101,4,A121,67,A143,A152,2,A173,1,A192,A201,1",
        "auto_mpg": "8,307.0,,3504.,12.0,70,1,18.0",
        "yacht_hydrodynamics": "-2.3,0.568,4.78,3.99,3.17,0.125,0.11",
        "wine_quality": "7.4,1,2,3,4,5,6,7,8,9,10,5,red",
    }
    assert lines[0][1] == first[name]
    if name == "adult":
        assert lines[1][1].endswith(",>50K")
    if name == "breast_cancer_original":
        assert lines[0][2] == "5,4,4,5,7,,3,2,1,4"
    if name == "wine_quality":
        assert lines[0][2].endswith(",white")


def test_prepared_headers_equal_those_of_the_real_files(shared_data):
    """What a download would write has the columns of the prepared files at hand."""
    for spec in TABLES:
        original = spec.original
        if original is None or not original.names:
            continue
        with gzip.open(shared_data(spec.files[0]), "rt") as file:
            there = file.readline().strip().split(",")
        width = len(original.names)
        head = ",".join("h" * width) + "\n" if original.header else ""
        columns, _ = parse_original(original, head + ",".join("1" * width) + "\n", 0)
        assert columns == there, spec.name


def test_scikit_learns_copies_equal_the_prepared_files(shared_data, tmp_path):
    for spec in TABLES:
        if not spec.bundled:
            continue
        here = load_table(spec, LoadRequest(Store((shared_data(spec.files[0]).parent.parent,)), 1))
        there = load_table(spec, LoadRequest(Store((tmp_path,)), 1))
        assert there.schema == here.schema, spec.name
        assert torch.equal(there.train.x, here.train.x), spec.name
        assert torch.equal(there.train.y, here.train.y), spec.name
