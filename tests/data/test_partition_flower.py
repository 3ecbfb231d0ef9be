"""flwr-datasets here and ours there; skipped where the `hub` extra is not installed."""

import sys

import numpy as np
import pytest

from fedatlas.data.partition import split, to_flower
from fedatlas.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 10, 1500)
OWNERS = np.random.default_rng(1).integers(0, 7, 1500)


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[hub\]"'):
        split("flwr:IidPartitioner", {}, LABELS, None, 10, 1)


@pytest.fixture
def hub():
    return pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed (extra 'hub')")


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*NOT be used.*:UserWarning")
@pytest.mark.parametrize(
    ("name", "params", "clients"),
    [
        ("IidPartitioner", {}, 10),
        ("DirichletPartitioner", {"alpha": 0.5}, 10),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2}, 10),
        ("ShardPartitioner", {"num_shards_per_partition": 2, "shard_size": 70}, 10),
        ("LinearPartitioner", {}, 10),
        ("NaturalIdPartitioner", {}, 7),
        ("NaturalIdPartitioner", {}, 0),
    ],
)
@pytest.mark.usefixtures("hub")
def test_their_partitioners_deal_our_rows(name, params, clients):
    part = split(f"flwr:{name}", params, LABELS, OWNERS, clients, 1)
    dealt = np.concatenate(part.clients)
    assert len(part.clients) == (clients or 7)
    assert len(np.unique(dealt)) == len(dealt) == 1500 - part.left_out
    again = split(f"flwr:{name}", params, LABELS, OWNERS, clients, 1)
    assert all(np.array_equal(a, b) for a, b in zip(part.clients, again.clients, strict=True))
    if name == "NaturalIdPartitioner":
        assert all((OWNERS[rows] == k).all() for k, rows in enumerate(part.clients))
    if name == "PathologicalPartitioner":
        assert all(len(np.unique(LABELS[rows])) <= 2 for rows in part.clients)


@pytest.mark.parametrize(
    ("name", "params", "clients", "sentence"),
    [
        ("DirichletPartitoner", {"alpha": 0.5}, 10, "did you mean 'DirichletPartitioner'"),
        ("DirichletPartitioner", {"alfa": 0.5}, 10, "did you mean 'alpha'"),
        ("DirichletPartitioner", {}, 10, r"needs partition\.alpha"),
        ("DirichletPartitioner", {"alpha": -1.0}, 10, "refuses these settings: .*greater than zero"),
        ("NaturalIdPartitioner", {}, 12, "makes 7 clients, not 12: write clients = 7"),
        ("IidPartitioner", {"num_partitions": 5}, 10, "num_partitions = 5 but clients = 10"),
        ("VerticalEvenPartitioner", {}, 3, "deals out columns"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_their_refusals_become_one_sentence(name, params, clients, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        split(f"flwr:{name}", params, LABELS, OWNERS, clients, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("hub")
def test_owners_are_asked_for_where_there_are_none():
    with pytest.raises(ConfigError, match="splits by 'client', but these data have only: row, label"):
        split("flwr:NaturalIdPartitioner", {}, LABELS, None, 7, 1)


@pytest.mark.usefixtures("hub")
def test_ours_work_as_their_partitioners():
    from datasets import Dataset as Table

    names = np.array(list("abcdefghij"))
    table = Table.from_dict({"label": names[LABELS].tolist(), "row": np.arange(1500)})
    theirs = to_flower("majority_even", 12, 3, majority=0.6)
    theirs.dataset = table
    ours = split("majority_even", {"majority": 0.6}, LABELS, None, 12, 3)
    assert theirs.num_partitions == 12
    for k in range(12):
        assert np.array_equal(theirs.load_partition(k)["row"][:], ours.clients[k])
    with pytest.raises(ConfigError, match="its partitioners only choose rows"):
        to_flower("feature_skew", 3, 1)
