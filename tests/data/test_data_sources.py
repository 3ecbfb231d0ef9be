"""The registry, the splits, and the facts of the real data where they are at hand."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedatlas.apportion import largest_remainder, proportional
from fedatlas.data import shakespeare, stackoverflow
from fedatlas.data.by_name import SOURCES, describe_sources, find_data, find_source
from fedatlas.data.config import DataConfig, PublicConfig
from fedatlas.data.images import digit_rows
from fedatlas.data.loaded import Loaded, LoadRequest, Split, limit_rows, split_test
from fedatlas.data.sources import load_dataset, read_once, take_public
from fedatlas.data.store import Store
from fedatlas.errors import ConfigError, DataError

NOWHERE = Store((Path("/nonexistent/fedatlas"),))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.data())
def test_shares_are_within_one_of_proportional(counts, data):
    counts = np.array(counts)
    total = data.draw(st.integers(0, int(counts.sum())))
    out = proportional(counts, total)
    assert out.sum() == total
    assert (out <= counts).all()
    assert (abs(out - counts * total / counts.sum()) < 1).all()


def test_the_shares_of_hars_classes():
    # HAR's halves (D3): the floors sum to 7,722, the two missing go to the largest fractional parts.
    counts = np.array([1722, 1544, 1406, 1777, 1906, 1944])
    assert largest_remainder(counts * 0.75, 7724).tolist() == [1292, 1158, 1054, 1333, 1429, 1458]


def loaded(n: int, task: str = "classes", test: bool = False) -> Loaded:
    y = torch.arange(n) % 4 if task == "classes" else torch.arange(n, dtype=torch.float32)
    part = Split(torch.arange(n, dtype=torch.float32)[:, None], y, torch.arange(n) % 3)
    return Loaded(
        part,
        part if test else None,
        task,
        ("a", "b", "c", "d") if task == "classes" else (),
        client_names=("x", "y", "z"),
    )


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_split_covers_every_row_once_and_depends_on_the_seed_alone(task):
    one, again, other = (split_test(loaded(50, task), "own", seed) for seed in (1, 1, 2))
    rows = torch.cat((one.train.x, one.test.x))[:, 0]
    assert sorted(rows.tolist()) == list(range(50))
    assert (len(one.train.y), len(one.test.y)) == (37, 13)  # floor(0.75 * 50)
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.train.client, one.train.x[:, 0].long() % 3)


def test_a_fraction_pools_the_sources_own_test_rows():
    assert len(split_test(loaded(10, test=True), 0.5, 1).test.y) == 10
    assert len(split_test(loaded(10, test=True), "own", 1).test.y) == 10


def test_a_file_is_read_once_for_all_seeds_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rows.csv").write_text("x,y\n" + "1,0\n2,1\n" * 40)
    tables = [DataConfig(name="file", path=str(tmp_path / "rows.csv"), label="y", limit=limit) for limit in (0, 20)]
    apart = [load_dataset(table, seed).train.x for table in tables for seed in (1, 2)]
    opened: list[str] = []
    source = find_source("file")
    counted = replace(source, load=lambda *given, **keys: opened.append("") or source.load(*given, **keys))
    counting = lambda name: counted if name == "file" else find_source(name)  # noqa: E731
    monkeypatch.setattr("fedatlas.data.sources.find_source", counting)
    with read_once():
        together = [load_dataset(table, seed).train.x for table in tables for seed in (1, 2)]
    assert len(opened) == 1
    assert all(torch.equal(one, other) for one, other in zip(apart, together, strict=True))


def test_a_limit_is_stratified_and_refused_above_the_rows():
    out = limit_rows(split_test(loaded(80), "own", 1), 12, 1)
    assert torch.bincount(out.train.y).tolist() == [3, 3, 3, 3]
    with pytest.raises(ConfigError, match="only 60 training rows"):
        limit_rows(split_test(loaded(80), "own", 1), 61, 1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "mnits"}, "did you mean 'mnist'"),
        ({"limt": 5}, "did you mean 'data.limit'"),
        ({"name": "har", "splt": "pooled"}, "did you mean 'data.split'"),
        ({"name": "har", "split": "random"}, "data.split = 'random': expected 'official' or 'pooled'"),
        ({"name": "file"}, "data.path: this key is required"),
        ({"name": "synthetic", "alpha": "much"}, "data.alpha"),
    ],
)
def test_wrong_keys_of_data_are_one_sentence(table, message):
    with pytest.raises(ConfigError, match=message) as error:
        DataConfig(**table)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "digits", "test": "more.npz"}, "takes 'own' or a fraction"),
        ({"name": "digits", "limit": 5000}, "only 1347 training rows"),
        ({"name": "synthetic", "augment": "crop_flip"}, "is for pictures"),
        ({"name": "synthetic", "users": 0}, "data.users = 0"),
        ({"name": "synthetic", "alpha": -1}, "data.alpha = -1"),
        ({"name": "shakespeare", "stride": 0}, "data.stride = 0"),
    ],
)
def test_impossible_values_are_one_sentence(table, message):
    with pytest.raises(ConfigError, match=message):
        load_dataset(DataConfig(**table), 1, NOWHERE)


@pytest.mark.parametrize("test", [0.0, 1.0, -0.5, ""])
def test_a_test_share_lies_between_0_and_1(test):
    with pytest.raises(ValueError, match="a share between 0 and 1"):
        DataConfig(test=test)


@pytest.mark.parametrize("name", ["credit_default_taiwan", "give_me_some_credit"])
def test_what_cannot_be_downloaded_says_how_to_get_it(name):
    with pytest.raises(
        DataError, match=r"is not on this machine: tables/.*\.csv\.gz is not in /nonexistent.*save"
    ) as error:
        load_dataset(DataConfig(name=name), 1, NOWHERE)
    assert "\n" not in str(error.value)


def test_every_source_says_licence_citation_rows_and_units():
    records = describe_sources()
    assert [r["name"] for r in records] == list(SOURCES)
    for record in records:
        for key in ("summary", "licence", "citation", "rows", "units", "scaling"):
            assert record[key], (record["name"], key)
    by_name = {r["name"]: r for r in records}
    assert by_name["har"]["parameters"] == {"split": "official"}
    assert by_name["california_housing"]["clients"] == "ocean_proximity"
    assert by_name["file"]["parameters"]["path"] is None


def test_every_loader_has_typed_keywords_with_a_docstring():
    for source in SOURCES.values():
        assert inspect.getdoc(source.builder), source.name
        for parameter in inspect.signature(source.builder).parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, (source.name, parameter.name)


def test_doctor_says_what_is_where(tmp_path):
    places = {r["name"]: r for r in find_data(Store((tmp_path,)))}
    assert (places["digits"]["found"], places["digits"]["place"]) == (True, "scikit-learn")
    assert (places["mnist"]["found"], places["mnist"]["files"]) == (False, ["mnist.npz"])
    (tmp_path / "mnist.npz").touch()
    assert {r["name"]: r for r in find_data(Store((tmp_path,)))}["mnist"]["place"] == str(tmp_path)


def test_the_default_store_looks_at_the_environment_first(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path))
    assert Store.default().roots[0] == tmp_path
    monkeypatch.delenv("FEDATLAS_DATA")
    assert len(Store.default().roots) == 1


def test_digits_are_small_grey_pictures():
    dataset = load_dataset(DataConfig(), 1, NOWHERE)
    assert dataset.train.x.shape == (1347, 1, 8, 8)
    assert len(dataset.test.y) == 450
    assert dataset.inputs(dataset.train.x).max() == 16  # grey values as scikit-learn ships them
    assert (digit_rows() == np.column_stack(load_digits(return_X_y=True))).all()


def test_synthetic_data_follow_their_recipe():
    one = load_dataset(DataConfig(name="synthetic", users=200, alpha=0, beta=0), 3, NOWHERE)
    assert one.shape == (60,)
    assert len(one.client_names) == 200
    counts = torch.bincount(one.train.client)
    assert counts.min() >= 45  # 50 or more rows, a tenth of them test
    # Within a user x_j has the variance j^-1.2: column 1 against column 60 is 60^1.2 = 136.
    k = int(counts.argmax())
    x = one.train.x[one.train.client == k].double()
    assert x[:, 0].var() == pytest.approx(1, rel=0.3)
    assert x[:, 59].var() == pytest.approx(60**-1.2, rel=0.3)
    # With beta = 0 the users' means are N(0, 1) about 0, with beta = 3 their own means spread by 3: variance 10.
    wide = load_dataset(DataConfig(name="synthetic", users=200, alpha=0, beta=3), 3, NOWHERE)
    spread = [
        torch.stack([d.train.x[d.train.client == k].mean() for k in range(200)]).var().item() for d in (one, wide)
    ]
    assert spread[0] == pytest.approx(1 / 60, rel=0.5)
    assert spread[1] == pytest.approx(9, rel=0.3)
    iid = load_dataset(DataConfig(name="synthetic", iid=True), 3, NOWHERE)
    assert abs(iid.train.x.mean().item()) < 0.02
    again = load_dataset(DataConfig(name="synthetic", iid=True), 3, NOWHERE)
    assert torch.equal(iid.train.x, again.train.x)


def test_public_rows_leave_the_test_set():
    dataset = load_dataset(DataConfig(), 1, NOWHERE)
    rest = take_public(dataset, PublicConfig(), 1)
    x, y = rest.splits["public"][:2]
    assert torch.bincount(y).tolist() == [10] * 10
    assert (len(rest.test.y), len(rest.train.y), x.shape[1:]) == (350, 1347, (1, 8, 8))
    joined = torch.cat((rest.test.x, x)).reshape(450, -1).sum(1).sort().values
    assert torch.equal(joined, dataset.test.x.reshape(450, -1).sum(1).sort().values)


def test_public_rows_leave_the_training_set_with_their_owners():
    dataset = load_dataset(DataConfig(name="synthetic"), 1, NOWHERE)
    rest = take_public(dataset, PublicConfig(source="train", rows=200), 1)
    assert len(rest.splits["public"].y) == 200
    assert rest.splits["public"].client is None
    assert len(rest.train.client) == len(rest.train.y) == len(dataset.train.y) - 200
    with pytest.raises(ConfigError, match="its rows have the shape"):
        take_public(dataset, PublicConfig(source="digits", rows=5), 1, NOWHERE)
    with pytest.raises(ConfigError, match=r"class '.' has"):
        take_public(dataset, PublicConfig(source="train", per_class=5000), 1)


def test_public_is_read_by_its_keys():
    assert PublicConfig.model_validate({"from": "train", "rows": 3}).source == "train"
    with pytest.raises(ValueError, match="per_class or rows, not both"):
        PublicConfig(per_class=1, rows=1)
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        PublicConfig(source="cifar-10")


def titles(*rows: list[int], words: int = 30) -> Loaded:
    x = stackoverflow._table(rows)
    part = Split(x, torch.zeros(len(rows), dtype=torch.int64), torch.zeros(len(rows), dtype=torch.int64))
    return Loaded(part, part, "classes", tuple(f"w{i:02d}" for i in range(words)))


def test_every_step_predicts_the_next_token():
    # w05 occurs twice, so it is token 1; of the words that occur once, w02 comes first by name: token 2, w09 is 3.
    out = stackoverflow.finish_stackoverflow(titles([5, 9, 5], [2]), {"form": "titles", "target": "per_step"})
    bos, eos, none = stackoverflow.BOS, stackoverflow.EOS, stackoverflow.IGNORE
    assert out.train.x[0].tolist() == [bos, 1, 3, 1, eos] + [0] * 15
    assert out.train.y[0].tolist() == [1, 3, 1, eos] + [none] * 16
    assert (out.task, len(out.class_names), out.class_names[:4]) == ("tokens", 10_004, ("<pad>", "w05", "w02", "w09"))
    assert out.class_names[10_001:] == ("<oov>", "<bos>", "<eos>")


def test_a_full_sentence_has_no_end_sign():
    row = list(range(25))  # cut at 20 words
    out = stackoverflow.finish_stackoverflow(titles(row), {"form": "titles", "target": "per_step"})
    assert stackoverflow.EOS not in out.train.x[0]
    assert out.train.y[0].tolist() == list(range(1, 21))


def test_the_last_step_predicts_the_last_word():
    options = {"form": "titles", "target": "last_step"}
    out = stackoverflow.finish_stackoverflow(titles([5, 9, 5], [], [2], list(range(20))), options)
    token = {name: i for i, name in enumerate(out.class_names)}
    assert (out.task, len(out.train.y)) == ("classes", 3)  # the empty title is left out
    assert out.train.x[0].tolist() == [0] * 17 + [stackoverflow.BOS, token["w05"], token["w09"]]
    assert out.train.y[0] == token["w05"]
    assert out.train.x[1].tolist() == [0] * 19 + [stackoverflow.BOS]
    assert out.train.x[2].tolist() == [stackoverflow.BOS] + [token[f"w{i:02d}"] for i in range(19)]
    assert out.train.y[2] == token["w19"]


def test_the_vocabulary_is_built_from_training_rows_alone():
    data = titles([1, 1, 2])
    data = Loaded(data.train, Split(stackoverflow._table([[7, 1]]), torch.zeros(1), None), "classes", data.class_names)
    out = stackoverflow.finish_stackoverflow(data, {"form": "titles", "target": "per_step"})
    assert "w07" not in out.class_names
    assert out.test.x[0, :3].tolist() == [stackoverflow.BOS, stackoverflow.OOV, 1]


def test_shakespeares_alphabet_and_windows():
    assert len(shakespeare.ALPHABET) == len(set(shakespeare.ALPHABET)) == 80
    text = shakespeare.encode("ab" * 100)
    assert shakespeare.windows(text, 1).shape == (120, 81)  # 200 - 80
    assert shakespeare.windows(text, 50)[:, 0].tolist() == text[[0, 50, 100]].tolist()
    assert shakespeare.windows(text[:80], 1).shape == (0, 81)
    assert shakespeare.encode("~é\n").tolist() == [1, 1, 0]  # a space, a space, the first symbol


def test_a_roles_text_is_cut_without_overlap():
    assert shakespeare._cut(1000, 1, 0, 0) == ((0, 800), (800, 1000))
    assert shakespeare._cut(100, 1, 0, 0) is None  # 80 characters train: no sequence of 80 and a next one
    assert shakespeare._cut(2560, 1, 2000, 400) == ((0, 2080), (2080, 2560))
    assert shakespeare._cut(2559, 1, 2000, 400) is None


# From here on: facts of the real data (shared data's README).


def test_mnist_facts(shared_data):
    shared_data("mnist.npz")
    dataset = load_dataset(DataConfig(name="mnist"), 1)
    assert (tuple(dataset.train.x.shape), tuple(dataset.test.x.shape)) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert torch.bincount(dataset.train.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    counts = torch.bincount(dataset.train.client)
    assert (len(counts), counts.min(), counts.max(), counts.median()) == (539, 19, 131, 116)
    assert dataset.inputs(dataset.train.x[:100]).max() == 1
    upright = dataset.train.x[dataset.train.y == 1][:500].float().mean(0)[0]  # a digit 1 is taller than wide
    assert (upright.sum(1) > 255).sum() > (upright.sum(0) > 255).sum()
    assert dataset.facts["files"][0]["listed"]
    pooled = load_dataset(DataConfig(name="mnist", test=0.25, limit=1000), 1)
    assert (len(pooled.train.y), len(pooled.test.y)) == (1000, 17_500)


def test_har_facts(shared_data):
    shared_data("har_smartphones_561.npz")
    official = load_dataset(DataConfig(name="har"), 1)
    assert torch.bincount(official.train.y).tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert torch.bincount(official.test.y).tolist() == [496, 471, 420, 491, 532, 537]
    assert (len(official.client_names), official.train.x.abs().max()) == (21, 1)
    torch.testing.assert_close(official.train.x[0, :3], torch.tensor([0.28858451, -0.02029417, -0.13290514]))
    pooled = load_dataset(DataConfig(name="har", split="pooled"), 1)
    assert torch.bincount(pooled.train.y).tolist() == [1292, 1158, 1054, 1333, 1429, 1458]
    assert (len(pooled.train.y), len(pooled.test.y), len(pooled.client_names)) == (7724, 2575, 30)
    few = load_dataset(DataConfig(name="har", split="pooled", limit=1600), 1)
    assert len(few.train.y) == 1600
    assert (torch.bincount(few.train.y) - torch.bincount(pooled.train.y) * 1600 / 7724).abs().max() < 1


def test_cifar10_facts(shared_data):
    shared_data("cifar10_test.npz")
    dataset = load_dataset(DataConfig(name="cifar10"), 1)
    assert torch.bincount(dataset.train.y).tolist() == [5000] * 10
    assert torch.bincount(dataset.test.y).tolist() == [1000] * 10
    assert torch.bincount(dataset.train.y[:10_000]).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    sample = dataset.train.x[::10].float() / 255
    torch.testing.assert_close(sample.mean((0, 2, 3)), torch.tensor([0.4914, 0.4822, 0.4465]), atol=5e-3, rtol=0)
    assert dataset.facts["rows_from_a_jpeg_copy"] == 111


def test_cifar100_says_that_it_is_a_subset(shared_data):
    shared_data("cifar100_20k_4k.npz")
    dataset = load_dataset(DataConfig(name="cifar100", labels="coarse"), 1)
    assert (len(dataset.train.y), len(dataset.test.y), dataset.classes) == (20_000, 4000, 20)
    assert torch.bincount(dataset.train.y).tolist() == [1000] * 20
    assert "not the original test set" in dataset.facts["subset"]


def test_shakespeare_facts(shared_data):
    shared_data("shakespeare_roles.tsv.xz")
    dataset = load_dataset(DataConfig(name="shakespeare", stride=1, roles=3, per_role=2000, test_per_role=400), 1)
    assert (tuple(dataset.train.x.shape), len(dataset.test.y), len(dataset.client_names)) == ((6000, 80), 1200, 3)
    assert torch.bincount(dataset.train.client).tolist() == [2000] * 3
    assert torch.equal(dataset.train.x[1, :-1], dataset.train.x[0, 1:])  # a stride of one
    assert dataset.train.y[0] == dataset.train.x[1, -1]  # the next character
    assert dataset.facts["roles_in_source"] == 1567
    with pytest.raises(ConfigError, match="only 425 roles are long enough"):
        load_dataset(DataConfig(name="shakespeare", stride=1, roles=1000, per_role=2000, test_per_role=400), 1)


def test_every_symbol_of_the_plays_is_in_leafs_alphabet(shared_data):
    texts = shakespeare.role_texts(shared_data("shakespeare_roles.tsv.xz"))
    hamlet = "".join(shakespeare.ALPHABET[c] for c in texts["hamlet / Hamlet"])
    assert "To be, or not to be, that is the question" in hamlet
    assert len(np.unique(np.concatenate(list(texts.values())))) == 69 + (0 if " " in hamlet else 1)


def test_stackoverflow_facts(shared_data):
    shared_data("stackoverflow_titles_20k.tsv.xz")
    dataset = load_dataset(DataConfig(name="stackoverflow"), 1)
    assert (tuple(dataset.train.x.shape), tuple(dataset.train.y.shape), dataset.classes) == (
        (15_000, 20),
        (15_000, 20),
        10_004,
    )
    assert torch.bincount(dataset.train.client).tolist() == [750] * 20
    last = load_dataset(DataConfig(name="stackoverflow", target="last_step"), 1)
    assert last.task == "classes"
    assert (last.train.x[:, -1] != stackoverflow.PAD).all()
    assert "not the TensorFlow Federated set" in dataset.facts["text"]


REGRESSION = {
    "california_housing", "boston_housing", "insurance_charges", "diabetes_lars", "auto_mpg", "concrete_strength", "energy_efficiency",
    "power_plant", "yacht_hydrodynamics", "forest_fires",
}  # fmt: skip


@pytest.mark.slow
def test_table_facts(shared_data):
    shared_data("tables/adult_train.csv.gz")
    rows, adult = {}, None
    for name, source in SOURCES.items():
        if source.shape != "table":
            continue
        dataset = load_dataset(DataConfig(name=name), 1)
        adult = dataset if name == "adult" else adult
        rows[name] = len(dataset.train.y) + len(dataset.test.y)
        assert (dataset.task == "numbers") == (name in REGRESSION), name
        assert dataset.schema, name
        assert not {column.name.lower() for column in dataset.schema} & {"id"}, name
        assert rows[name] == sum(int(part.replace(",", "")) for part in source.rows.split(" + ")), name
    assert len(rows) == 22
    assert (int((adult.train.y == 1).sum()), int((adult.test.y == 1).sum())) == (7841, 3846)
    assert adult.class_names == ("<=50K", ">50K")


def test_a_tables_columns_can_be_given_other_roles(shared_data):
    shared_data("tables/student_math.csv.gz")
    config = DataConfig(name="student_math", label="G1", client="sex", weight="age", drop=("G3", "G2"), task="numbers")
    dataset = load_dataset(config, 1)
    names = [column.name for column in dataset.schema]
    assert not {"G1", "G2", "G3", "sex", "age"} & set(names)
    assert dataset.client_names == ("F", "M")
    assert (dataset.task, dataset.train.weight.min()) == ("numbers", 15)
    with pytest.raises(ConfigError, match=r"data.client = 'sx'"):
        load_dataset(DataConfig(name="student_math", client="sx"), 1)


def test_loading_needs_the_files(tmp_path):
    with pytest.raises(DataError, match="'give_me_some_credit' is not on this machine"):
        SOURCES["give_me_some_credit"].load(LoadRequest(Store((tmp_path,)), 1))
