"""The ``[partition]`` table, what feature skew does to rows, the figures of a partition."""

import math

import numpy as np
import pytest
import torch

from fedatlas import registry
from fedatlas.data.dataset import Dataset, Partition, Split
from fedatlas.data.partition import PARTITIONS, apply_feature_skew, describe, make_partition
from fedatlas.data.partition.figures import gini
from fedatlas.errors import ConfigError, DataError
from fedatlas.rng import torch_stream

NAMES = ("sitting & standing", "<walking>", "lying")
SMALL = Partition((np.array([0, 1, 2]), np.array([3])), left_out=1)
SMALL_LABELS = np.array([0, 0, 1, 2, 2])


def rows(n=60, *, shape=(4,), classes=3, owners=False, task="classes"):
    x = torch.zeros(n, *shape, dtype=torch.int64 if task == "tokens" else torch.float32)
    y = {
        "classes": torch.arange(n) % classes,
        "numbers": torch.rand(n, generator=torch_stream(1, "init")),
        "tokens": x,
    }[task]
    train = Split(x, y, torch.arange(n) % 5 if owners else None)
    return Dataset(
        "small", {"train": train, "test": Split(x[:1], y[:1])}, task,
        class_names=tuple("abc"[:classes]),
        client_names=tuple("vwxyz") if owners else (),
    )  # fmt: skip


# --- make_partition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in PARTITIONS if n not in ("dirichlet_class", "quantity_skew")])
def test_each_name_builds_with_its_defaults(name):
    part = make_partition(name, {}, rows(owners=True), 4, 1)
    assert len(part.clients) == 4
    assert part.info["name"] == name


def test_natural_names_its_clients():
    part = make_partition("natural", {}, rows(owners=True), 0, 1)
    assert part.info["names"] == list("vwxyz")
    assert np.array_equal(part.clients[1], np.arange(1, 60, 5))


def test_alpha_of_the_table_reaches_the_builder():
    part = make_partition("dirichlet", {"alpha": math.inf}, rows(), 4, 1)
    assert np.array_equal(part.clients[0], PARTITIONS["iid"](np.arange(60) % 3, 4, 1).clients[0])
    assert make_partition("dirichlet", {"alpha": 1}, rows(), 4, 1).sizes == [15] * 4  # TOML writes 1 for 1.0


@pytest.mark.parametrize(
    ("name", "params", "clients", "sentence"),
    [
        ("dirichlett", {}, 4, r"unknown partition 'dirichlett': did you mean 'dirichlet'\?"),
        ("dirichlet", {"alhpa": 1.0}, 4, r"unknown key 'partition\.alhpa': did you mean 'partition\.alpha'\?"),
        ("dirichlet", {"alpha": "much"}, 4, r"partition\.alpha = 'much': expected a number"),
        ("shards", {"shards": 1.5}, 4, r"partition\.shards = 1\.5: expected a whole number"),
        ("quantity_skew", {"law": "zipf"}, 4, r"partition\.law = 'zipf': expected 'dirichlet' or 'lognormal'"),
        ("feature_skew", {"rotate": 90}, 4, r"partition\.rotate = 90: expected a list"),
        ("natural", {}, 4, r"partition 'natural' needs rows with an owner"),
        ("iid", {}, 0, r"clients = 0: a partition needs at least one client"),
        ("iid", {}, 61, r"client 60 would be empty: 61 clients share 60 rows"),
        ("shards", {"shards": 0}, 4, r"shards = 0: every client needs at least one shard"),
        ("shards", {"shards": 20}, 4, r"4 clients with 20 shards each need as many rows, but there are 60"),
        ("feature_skew", {"rotate": [0, 90]}, 4, r"partition\.rotate turns pictures, but the rows of 'small' are not"),
        ("feature_skew", {"rotate": [400.0]}, 4, r"rotate = 400: it must lie between -360 and 360"),
        ("feature_skew", {"noise": -1.0}, 4, r"noise = -1: it must lie between 0 and"),
    ],
)
def test_wrong_input_is_one_sentence(name, params, clients, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        make_partition(name, params, rows(), clients, 1)
    assert "\n" not in str(caught.value)


def test_token_targets_have_no_class_per_row():
    assert make_partition("random", {}, rows(shape=(7,), task="tokens"), 3, 1).sizes == [20] * 3
    with pytest.raises(ConfigError, match="the targets are sequences"):
        make_partition("dirichlet", {}, rows(shape=(7,), task="tokens"), 3, 1)
    with pytest.raises(ConfigError, match="these data are token ids"):
        make_partition("feature_skew", {}, rows(shape=(7,), task="tokens"), 3, 1)


def test_min_size_is_kept_or_refused():
    with pytest.raises(ConfigError, match=r"client 0 would hold 15 rows, fewer than the 16 asked for"):
        make_partition("iid", {}, rows(), 4, 1, min_size=16)
    for seed in range(10):  # redrawn partitions use it in their redraws
        assert min(make_partition("dirichlet_class", {}, rows(600), 4, seed, min_size=40).sizes) >= 40
        assert min(make_partition("quantity_skew", {}, rows(600), 4, seed, min_size=40).sizes) >= 40


def test_only_the_fedseq_variant_may_leave_a_client_empty():
    data = rows(60)
    part = make_partition("dirichlet_fedseq", {"alpha": 0.1}, data, 30, 1)
    assert min(part.sizes) == 0
    assert sum(part.sizes) == 60
    with pytest.raises(ConfigError, match="would be empty"):
        make_partition("dirichlet_fedseq", {"alpha": 0.1}, data, 30, 1, min_size=2)


def test_a_plugin_that_returns_no_partition_is_refused(monkeypatch):
    monkeypatch.setitem(registry.PLUGINS["partitions"], "halves", lambda labels, clients, seed: [np.arange(3)])
    with pytest.raises(ConfigError, match=r"'halves': its builder returned list, not a fedatlas\.Partition"):
        make_partition("halves", {}, rows(60), 1, 1)


def test_a_plugin_that_deals_a_row_twice_is_refused(monkeypatch):
    def greedy(labels, clients, seed, *, rows: int = 3):
        return Partition(tuple(np.arange(rows) for _ in range(clients)))

    monkeypatch.setitem(registry.PLUGINS["partitions"], "greedy", greedy)
    assert make_partition("greedy", {"rows": 60}, rows(60), 1, 1).sizes == [60]
    with pytest.raises(DataError, match="partition 'greedy' gives row 0 to two clients"):
        make_partition("greedy", {}, rows(60), 2, 1)
    with pytest.raises(DataError, match=r"gives 3 of 60 rows to clients .* left_out=57\) would say so"):
        make_partition("greedy", {}, rows(60), 1, 1)
    with pytest.raises(DataError, match="gives row 60, but there are 60"):
        make_partition("greedy", {"rows": 61}, rows(60), 1, 1)


# --- feature skew ----------------------------------------------------------------------------------------------------


def test_feature_skew_is_iid_with_a_spec_per_client():
    part = make_partition("feature_skew", {"rotate": [0, 90], "noise": 0.3}, rows(shape=(1, 2, 2)), 4, 1)
    assert np.array_equal(part.clients[0], PARTITIONS["iid"](np.arange(60) % 3, 4, 1).clients[0])
    assert [spec["rotate"] for spec in part.feature_skew] == [0, 90, 0, 90]
    assert [spec["noise"] for spec in part.feature_skew] == pytest.approx([0, 0.1, 0.2, 0.3])


def test_quarter_turns_are_exact_and_anticlockwise():
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    turned = apply_feature_skew(x, {"rotate": 90.0, "noise": 0.0}, torch_stream(1, "partition"))
    assert turned.tolist() == [[[[2.0, 4.0], [1.0, 3.0]]]]
    assert torch.equal(apply_feature_skew(x, {"rotate": -270.0}, torch_stream(1, "partition")), turned)
    assert torch.equal(apply_feature_skew(x, {"rotate": 360.0}, torch_stream(1, "partition")), x)


@pytest.mark.parametrize("size", [(9, 9), (9, 21)])
def test_any_angle_agrees_with_the_exact_turn(size):
    # A bright pixel two to the right of the centre: after a quarter turn anticlockwise it is two above the centre.
    height, width = size
    x = torch.zeros(1, 1, height, width)
    x[0, 0, height // 2, width // 2 + 2] = 1.0
    turned = apply_feature_skew(x, {"rotate": 89.999}, torch_stream(1, "partition"))[0, 0]
    assert divmod(int(turned.argmax()), width) == (height // 2 - 2, width // 2)
    assert turned.max() > 0.99
    even = apply_feature_skew(torch.full_like(x, 0.7), {"rotate": 33.0}, torch_stream(1, "partition"))
    assert even == pytest.approx(torch.full_like(x, 0.7), abs=1e-6)  # the border is continued, no dark corners


def test_noise_has_its_spread_and_its_own_stream():
    x = torch.zeros(200, 50)
    noisy = apply_feature_skew(x, {"rotate": 0.0, "noise": 0.5}, torch_stream(1, "partition", 3))
    assert float(noisy.std()) == pytest.approx(0.5, abs=0.02)  # sd of the estimate 0.5 / sqrt(2 * 10,000) = 0.0035
    assert torch.equal(noisy, apply_feature_skew(x, {"noise": 0.5}, torch_stream(1, "partition", 3)))
    assert not x.any()


def test_what_cannot_be_turned_is_refused():
    with pytest.raises(DataError, match="rotate images only"):
        apply_feature_skew(torch.zeros(3, 4), {"rotate": 90.0}, torch_stream(1, "partition"))
    with pytest.raises(DataError, match="floating-point inputs"):
        apply_feature_skew(torch.zeros(3, 4, dtype=torch.uint8), {"noise": 1.0}, torch_stream(1, "partition"))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_figures_worked_by_hand():
    # Overall (2, 1, 2) / 5. Client 0: (2/3, 1/3, 0), TV = (.27 + .13 + .4) / 2 = 0.4; client 1: (0, 0, 1), 0.6.
    # Gini of (3, 1): sum |n_i - n_j| = 4 over 2 * 2 * 4 = 16.
    facts = describe(SMALL, SMALL_LABELS, 3)
    assert facts["histogram"] == [[2, 1, 0], [0, 0, 1]]
    assert facts["tv"] == pytest.approx([0.4, 0.6])
    assert facts["tv_mean"] == pytest.approx(0.5)
    assert facts["gini"] == pytest.approx(0.25)
    assert facts["majority"] == pytest.approx([2 / 3, 1.0])
    assert (facts["clients"], facts["sizes"], facts["left_out"]) == (2, [3, 1], 1)


def test_figures_of_numbers_and_of_empty_clients():
    facts = describe(SMALL, np.array([1.0, 2.0, 6.0, 5.0, 0.0]), 0)
    assert facts["target_mean"] == [3.0, 5.0]
    assert facts["target_sd"] == pytest.approx([math.sqrt(14 / 3), 0.0])
    facts = describe(Partition((np.arange(5), np.array([], dtype=np.int64))), SMALL_LABELS, 3)
    assert facts["tv"] == [0.0, None]
    assert facts["tv_mean"] == 0.0
    assert facts["majority"] == [0.4, None]


def test_gini_ends():
    assert gini(np.array([5, 5, 5])) == 0
    assert gini(np.array([0] * 99 + [1])) == pytest.approx(0.99)  # (K - 1) / K
