"""Scaling, categories and holes: equal to what pooling the rows would give, without pooling them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.data.config import DataConfig
from fedatlas.data.dataset import Column, Dataset, Partition, Split
from fedatlas.data.holes import drop_holes
from fedatlas.data.preprocess import ColumnRule, Preprocess, preprocess
from fedatlas.data.sources import load_dataset
from fedatlas.errors import ConfigError, DataError
from fedatlas.wire import codec

NAN = float("nan")
SCHEMA = (Column("age"), Column("colour", ("blue", "green", "red")), Column("income"))
CLIENTS = Partition((np.array([0, 2]), np.array([1, 3, 4])), left_out=1)


def table(**changes) -> Dataset:
    """Six training rows (row 5 is nobody's) and two test rows: age, colour, income."""
    x = torch.tensor([[20.0, 0, 1], [40, 2, 3], [30, 0, 5], [50, 2, 7], [60, 0, 9], [99, 0, 11]])
    test = torch.tensor([[40.0, 1, 5], [10, 2, 5]])
    return Dataset(
        "toy",
        {"train": Split(x, torch.tensor([0, 1, 0, 1, 0, 1])), "test": Split(test, torch.tensor([0, 1]))},
        "classes",
        ("no", "yes"),
        schema=SCHEMA,
        **changes,
    )


def both(x, y, test_x, test_y) -> dict[str, Split]:
    return {"train": Split(x, y), "test": Split(test_x, test_y)}


def numbers(x, y=None, clients=None, **changes) -> tuple[Dataset, Partition]:
    x = torch.as_tensor(x, dtype=torch.float32)
    y = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    task = "numbers" if y.is_floating_point() else "classes"
    schema = tuple(Column(f"c{j}") for j in range(x.shape[1]))
    names = () if task == "numbers" else ("a", "b")
    dataset = Dataset("toy", both(x, y, x[:2].clone(), y[:2].clone()), task, names, schema=schema, **changes)
    return dataset, Partition(tuple(clients or (np.arange(len(x)),)))


def test_a_table_by_hand():
    dataset, done = preprocess(table(), CLIENTS)
    # Rows 0 to 4 are held. age: mean 40, squares 400+0+100+100+400 = 1000, sd sqrt(200). income: mean 5, sd sqrt(8).
    # "green" is nobody's: no column, and the test row that has it is 0 in both.
    assert dataset.columns == ("age", "colour=blue", "colour=red", "income")
    age, income = (torch.tensor([-20.0, 0, -10, 10, 20, 59]) / 200**0.5, torch.tensor([-4.0, -2, 0, 2, 4, 6]) / 8**0.5)
    torch.testing.assert_close(dataset.train.x[:, 0], age)
    torch.testing.assert_close(dataset.train.x[:, 3], income)
    assert dataset.train.x[:, 1:3].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [1, 0]]
    assert dataset.test.x[:, 1:3].tolist() == [[0, 0], [0, 1]]
    assert (done.scale, dataset.schema) == ("federated", ())


def test_the_exchange_is_counted_by_hand():
    _, done = preprocess(table(), CLIENTS)
    # Up: client 0 names "blue", client 1 "blue" and "red"; each sends n and two sums for two columns.
    # Down: both names to both clients, then mean and deviation of two columns to both.
    two = torch.zeros(2, dtype=torch.float64)
    named = [{"1": ["blue"]}, {"1": ["blue", "red"]}]
    sums = [{"n": n, "total": two, "squares": two} for n in (2, 3)]
    assert done.bytes_up == sum(len(codec.encode(message)) for message in (*named, *sums))
    assert done.bytes_down == 2 * len(codec.encode(named[1])) + 2 * len(codec.encode({"mean": two, "sd": two}))


def test_the_exchange_of_medians_is_counted_by_hand():
    """Beside categories and sums: a number of holes a column, and 32 times two counts for two thresholds a column."""
    _, plain = preprocess(table(), CLIENTS)
    _, done = preprocess(table(), CLIENTS, missing="median")
    holes = [{"n": n, "missing": torch.zeros(3, dtype=torch.int64)} for n in (2, 3)]
    count, threshold = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32)
    up = sum(len(codec.encode(message)) for message in holes) + 32 * 2 * len(codec.encode({"at_most": count}))
    assert done.bytes_up - plain.bytes_up == up
    assert done.bytes_down - plain.bytes_down == 32 * 2 * len(codec.encode({"threshold": threshold}))


@given(st.data())
def test_federated_scaling_equals_pooled_standardisation(data):
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    stream = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = stream.normal(data.draw(st.floats(-1e3, 1e3)), data.draw(st.floats(1e-2, 1e3)), (sum(sizes) + 1, 3)).astype(
        np.float32
    )
    clients = np.split(stream.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    dataset, partition = numbers(x, clients=[np.sort(c) for c in clients])
    if sum(sizes) < 2:
        return
    out, _ = preprocess(dataset, partition, "federated")
    held = x[: sum(sizes)].astype(np.float64)
    want = (x - held.mean(0)) / held.std(0)
    # sum x^2 - (sum x)^2 / n loses as many digits as the mean is longer than the spread, twice
    lost = 16 * np.finfo(np.float64).eps * float(np.square(held.mean(0) / held.std(0)).max())
    np.testing.assert_allclose(out.train.x.numpy(), want, atol=1e-6 + lost, rtol=1e-6 + lost)


def test_client_scaling_uses_each_clients_own_constants_and_their_mean_for_the_test_rows():
    dataset, done = preprocess(table(), CLIENTS, "client")
    # Client 0: ages 20 and 30, mean 25, sd 5. Client 1: 40, 50, 60, mean 50, sd sqrt(200/3). Test: mean 37.5.
    sd = (200 / 3) ** 0.5
    torch.testing.assert_close(dataset.train.x[:5, 0], torch.tensor([-1, -10 / sd, 1, 0, 10 / sd]))
    torch.testing.assert_close(dataset.test.x[:, 0], (torch.tensor([40.0, 10]) - 37.5) / ((5 + sd) / 2))
    torch.testing.assert_close(dataset.train.x[5, 0], torch.tensor((99 - 37.5) / ((5 + sd) / 2)))
    assert done.client_constants[0][0] == (25.0, 5.0)
    held_out = CLIENTS._replace(kept={"held out": {0: np.array([5])}})  # by client 0: its constants
    kept, _ = preprocess(table(), held_out, "client")
    torch.testing.assert_close(kept.train.x[5, 0], torch.tensor((99 - 25.0) / 5))
    torch.testing.assert_close(kept.train.x[:5], dataset.train.x[:5])
    rows = {"age": [30], "colour": ["red"], "income": [1]}
    torch.testing.assert_close(done.of_client(0).apply(rows)[0, 0], torch.tensor(1.0))
    torch.testing.assert_close(done.apply(rows)[0, 0], torch.tensor(-7.5 / ((5 + sd) / 2)))


def test_a_constant_column_becomes_zero():
    dataset, partition = numbers([[0.1, 1.0]] * 3 + [[0.1, 2.0]])
    assert preprocess(dataset, partition)[0].train.x[:, 0].abs().max() < 1e-6


def test_holes_are_an_error_unless_something_is_said():
    dataset = table()
    dataset.train.x[[0, 3], 2] = NAN
    dataset.test.x[1, 2] = NAN
    with pytest.raises(
        DataError,
        match=r"column 'income' is missing in 2 training and 1 test rows: set data.missing = 'drop' or 'median'",
    ):
        preprocess(dataset, CLIENTS)


def test_every_column_with_holes_is_named_at_once():
    x = torch.zeros(4, 11)
    x[0] = NAN
    names = tuple("abcdefghijk")
    dataset = Dataset("toy", both(x, torch.arange(4) % 2, x[1:], torch.arange(3) % 2), "classes", ("0", "1"), names)
    with pytest.raises(
        DataError,
        match=r"'a' is missing in 1 .* \(missing cells also in 'b', 'c', .*'i' and 2 more\): set data.missing",
    ):
        preprocess(dataset, Partition((np.arange(4),)))


def test_drop_takes_the_rows_out_before_anybody_is_dealt_one():
    dataset = table(client_names=("x", "y"))
    owned = dataset.train._replace(client=torch.tensor([0, 1, 0, 1, 1, 0]), weight=torch.arange(6.0))
    dataset = dataset.with_splits(train=owned)
    dataset.train.x[2, 0] = NAN
    dataset.test.x[1, 1] = NAN
    out = drop_holes(dataset)
    assert out.train.x[:, 0].tolist() == [20, 40, 50, 60, 99]
    assert (out.train.client.tolist(), out.train.weight.tolist()) == ([0, 1, 1, 1, 0], [0, 1, 3, 4, 5])
    assert out.train.row.tolist() == [0, 1, 3, 4, 5]
    assert (len(out.test.y), out.facts["rows_dropped"]) == (1, {"train": 1, "test": 1})
    preprocess(out, Partition((np.arange(5),)))
    dataset.train.x[[0, 5], 2] = NAN
    with pytest.raises(DataError, match="leaves owner 'x' without training rows: all its 3"):
        drop_holes(dataset)


def test_median_fills_numbers_and_adds_indicators_where_a_training_row_has_a_hole():
    dataset = table()
    dataset.train.x[0, 0] = NAN  # of 40, 30, 50, 60: the median is 45
    dataset.train.x[1, 1] = NAN  # a colour: zeros and an indicator
    dataset.test.x[0, 2] = NAN  # income has no hole in training: filled with 5, no indicator
    out, done = preprocess(dataset, CLIENTS, "none", "median")
    assert out.columns == ("age", "age missing", "colour=blue", "colour=red", "colour missing", "income")
    assert out.train.x[0].tolist() == [45, 1, 1, 0, 0, 1]
    assert out.train.x[1].tolist() == [40, 0, 0, 0, 1, 3]
    assert out.test.x[0, 5] == 5
    assert [rule.median for rule in done.rules] == [45, None, 5]
    filled, _ = preprocess(dataset, CLIENTS, "federated", "median")
    ages = torch.tensor([45.0, 40, 30, 50, 60])  # the constants are those of the filled rows
    torch.testing.assert_close(filled.train.x[:5, 0], (ages - ages.mean()) / ages.std(correction=0))


def test_a_column_without_a_single_value_is_an_error():
    dataset, partition = numbers([[NAN, 1.0], [NAN, 2.0]])
    with pytest.raises(DataError, match="'c0' is missing in all training rows"):
        preprocess(dataset, partition, "federated", "median")


def test_a_target_that_is_a_number_keeps_its_unit_and_gains_constants():
    y = torch.tensor([100.0, 200, 300, 400])
    dataset, partition = numbers(np.arange(8.0).reshape(4, 2), y, [np.array([0, 1]), np.array([2])])
    out, done = preprocess(dataset, partition)
    assert torch.equal(out.train.y, y)
    # The held targets are 100, 200, 300: mean 200, sd sqrt(20000 / 3).
    assert (out.target_mean, done.target_mean) == (200, 200)
    assert out.target_sd == pytest.approx((20000 / 3) ** 0.5)
    torch.testing.assert_close(out.predictions(out.targets(y)), y)
    plain, _ = preprocess(dataset, partition, "none")
    assert (plain.target_mean, plain.target_sd) == (0, 1)
    assert torch.equal(plain.targets(y), y)


def test_classes_are_no_targets_to_scale():
    dataset, _ = preprocess(table(), CLIENTS)
    assert torch.equal(dataset.targets(dataset.train.y), dataset.train.y)
    assert (dataset.target_mean, dataset.target_sd) == (0, 1)


def test_new_rows_go_through_the_same_steps_after_a_round_trip_through_json():
    dataset = table()
    dataset.train.x[0, 0] = NAN
    out, done = preprocess(dataset, CLIENTS, "client", "median")
    again = Preprocess.from_json(json.loads(json.dumps(done.to_json())))
    assert again == done
    rows = {"income": ["5", "5"], "colour": ["green", " red "], "age": ["40", "10"], "extra": ["x", "y"]}
    with pytest.warns(UserWarning, match="'colour': 1 of 2 rows"):  # green is in the test rows only
        assert torch.equal(again.apply(rows), out.test.x)
    with pytest.warns(UserWarning, match="'colour': 1 of 2 rows hold a category that no training client had"):
        hole = again.apply({"age": ["", "NA"], "colour": ["mauve", ""], "income": [5, 7]})
    assert hole[:, list(done.columns).index("age missing")].tolist() == [1, 1]
    assert hole[:, [i for i, name in enumerate(done.columns) if name.startswith("colour=")]].sum() == 0
    with pytest.raises(DataError, match="lack column 'income'"):
        again.apply({"age": [1], "colour": ["red"]})
    with pytest.raises(DataError, match="'age' must hold numbers: found 'old' in row 1"):
        again.apply({"age": ["old"], "colour": ["red"], "income": [1]})
    assert torch.isinf(again.apply({"age": ["1e40"], "colour": ["red"], "income": [1]})[0, 0])


def test_new_rows_with_holes_are_refused_where_nothing_was_said():
    _, done = preprocess(table(), CLIENTS)
    with pytest.raises(DataError, match="'age' is missing in 1 rows"):
        done.apply({"age": [""], "colour": ["red"], "income": [1]})
    with pytest.raises(DataError, match="'colour' is missing in 1 rows"):
        done.apply({"age": [1], "colour": [""], "income": [1]})


def test_new_rows_of_any_dimension_are_scaled_as_the_training_rows_were():
    x = torch.randn(20, 3, 7)
    raw = Dataset("waves", both(x, torch.arange(20) % 2, x[:5], torch.arange(5) % 2), "classes", ("a", "b"))
    out, done = preprocess(raw, Partition((np.arange(20),)), "federated")
    torch.testing.assert_close(done.apply(x[:5].numpy()), out.inputs(out.test.x))


@pytest.mark.parametrize("scale", ["federated", "client", "none"])
def test_public_rows_are_prepared_as_test_rows_are(scale):
    """The same rows in both splits come out the same, and change nothing for the others."""
    for raw in (table(), pictures()):
        out, _ = preprocess(raw.with_splits(public=raw.test), CLIENTS, scale)
        alone, _ = preprocess(raw, CLIENTS, scale)
        assert torch.equal(out.inputs(out.splits["public"].x), out.inputs(out.test.x))
        assert torch.equal(out.test.x, alone.test.x)
        assert torch.equal(out.train.x, alone.train.x)


def pictures() -> Dataset:
    x = torch.randint(0, 256, (6, 3, 4, 4), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    return Dataset(
        "toy", both(x, y, x[:2].clone(), y[:2]), "classes", ("a", "b"), scale=(1 / 255,) * 3, shift=(0.0,) * 3
    )


def test_pictures_keep_their_constants_and_can_be_standardised_by_channel():
    dataset = pictures()
    same, done = preprocess(dataset, CLIENTS)
    assert (same.train.x.dtype, same.scale, done.scale) == (torch.uint8, dataset.scale, "constants")
    assert torch.equal(done.apply(dataset.test.x.numpy()), dataset.inputs(dataset.test.x))
    out, done = preprocess(dataset, CLIENTS, "federated")
    held = out.inputs(out.train.x[:5])
    torch.testing.assert_close(held.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(held.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    three = torch.zeros(3, dtype=torch.float64)
    first, second = ({"n": 16 * n, "total": three, "squares": three} for n in (2, 3))
    assert (out.train.x.dtype, done.bytes_up) == (torch.uint8, len(codec.encode(first)) + len(codec.encode(second)))
    bare, _ = preprocess(dataset, CLIENTS, "none")
    assert bare.inputs(bare.train.x).max() > 200


def test_pictures_by_clients_own_constants():
    dataset = pictures()
    out, done = preprocess(dataset, CLIENTS, "client")
    torch.testing.assert_close(out.train.x[[0, 2]].mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.train.x[[1, 3, 4]].std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(done.apply(dataset.test.x.numpy()), out.test.x)


def test_token_ids_are_not_scaled():
    x, y = torch.zeros(3, 5, dtype=torch.int64), torch.tensor([0, 1, 0])
    dataset = Dataset("toy", both(x, y, x, y), "classes", ("a", "b"))
    partition = Partition((np.arange(3),))
    assert preprocess(dataset, partition)[0] is dataset
    with pytest.raises(ConfigError, match="token ids"):
        preprocess(dataset, partition, "federated")


def test_float_rows_without_a_schema_are_left_as_they_are():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    dataset = Dataset(
        "toy", both(x, torch.arange(4) % 2, x, torch.arange(4) % 2), "classes", ("a", "b"), ("u", "v", "w")
    )
    out, done = preprocess(dataset, Partition((np.arange(4),)))
    assert torch.equal(out.train.x, x)
    assert (done.scale, done.bytes_up, out.columns) == ("none", 0, ("u", "v", "w"))
    x = dataset.with_splits(train=dataset.train._replace(x=x.clone()))
    x.train.x[0, 1] = NAN
    with pytest.raises(DataError, match="'v' is missing in 1 training"):
        preprocess(x, Partition((np.arange(4),)))


def test_a_rule_names_what_it_makes():
    assert ColumnRule("job", ("clerk", "nurse"), indicator=True).outputs == ("job=clerk", "job=nurse", "job missing")


def test_california_housing_with_its_207_holes(shared_data):
    shared_data("tables/california_housing.csv.gz")
    dataset = load_dataset(DataConfig(name="california_housing"), 1)
    holes = int(torch.isnan(dataset.train.x).sum() + torch.isnan(dataset.test.x).sum())
    assert holes == 207
    owners = dataset.train.client.numpy()
    partition = Partition(tuple(np.flatnonzero(owners == k) for k in range(5)))
    with pytest.raises(DataError, match="total_bedrooms"):
        preprocess(dataset, partition)
    out, done = preprocess(dataset, partition, missing="median")
    assert "total_bedrooms missing" in out.columns
    at = out.columns.index("median_income")
    torch.testing.assert_close(
        out.train.x[:, at].double().mean(), torch.tensor(0.0, dtype=torch.float64), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        out.train.x[:, at].double().std(correction=0), torch.tensor(1.0, dtype=torch.float64), atol=1e-6, rtol=0
    )
    assert 150_000 < done.target_mean < 250_000
    rules = {rule.name: rule for rule in done.rules}
    column = [c.name for c in dataset.schema].index("total_bedrooms")
    assert rules["total_bedrooms"].median == np.nanmedian(dataset.train.x[:, column].numpy())
    dropped = load_dataset(DataConfig(name="california_housing", missing="drop"), 1)
    assert len(dropped.train.y) + len(dropped.test.y) == 20_640 - 207
