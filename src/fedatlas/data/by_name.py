"""Data sets by name: content, licence and loader of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedatlas import registry
from fedatlas.data import handwriting, har, images, shakespeare, stackoverflow
from fedatlas.data.catalogue import TABLES, TableSpec
from fedatlas.data.dataset import Names
from fedatlas.data.files import load_file
from fedatlas.data.hub import load_hub
from fedatlas.data.loaded import Loaded
from fedatlas.data.store import Store
from fedatlas.data.synthetic import load_synthetic
from fedatlas.data.tables import load_table
from fedatlas.spelling import unknown_source

Loader = Callable[..., Loaded]


@dataclass(frozen=True)
class Source:
    """One data set that ``[data] name`` can mean. The keyword arguments of its loader are its further keys."""

    name: str
    summary: str
    load: Loader
    licence: str
    citation: str
    rows: str  # training + test, or all if there is no separate test set
    shape: str  # of a row
    units: str
    clients: str  # natural owners, "" = none
    scaling: str  # effect of data.scale = "auto"
    own_test: bool = True
    files: tuple[Names, ...] = ()  # prepared files: alternative sets, in order; () = needs none
    test_files: bool = False  # data.test may name a file
    drawn: bool = False  # its rows follow from the seed
    finish: Callable[[Loaded, Mapping[str, Any]], Loaded] | None = None  # step that needs to know the training rows

    @property
    def builder(self) -> Loader:
        """Return the function whose signature is the schema of the source's keys."""
        return self.load.func if isinstance(self.load, partial) else self.load

    @property
    def parameters(self) -> registry.PlainValues:
        """Return the source's own keys with their defaults (None = required)."""
        return registry.defaults(self.builder)


_MNIST = "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition, Proc. IEEE 1998"
_CIFAR = "A. Krizhevsky, Learning multiple layers of features from tiny images, 2009"
_LEAF = "S. Caldas et al., LEAF: a benchmark for federated settings, 2018"
_EMNIST = "G. Cohen, S. Afshar, J. Tapson and A. van Schaik, EMNIST: extending MNIST to handwritten letters, IJCNN 2017"
_GREY = "divided by 255"
_COLOUR = "(p / 255 - mean) / sd per channel, mean .4914 .4822 .4465, sd .2023 .1994 .2010"
_TABLE = "numbers standardised over all clients from sums (federated), categories one-hot"
OWNED = "the user's own"

_FIXED = (
    Source(
        "digits",
        "handwritten digits of 8x8 pixels, bundled with scikit-learn",
        images.load_digits,
        "CC BY 4.0 (UCI)",
        "E. Alpaydin and C. Kaynak, Optical recognition of handwritten digits, UCI 1998",
        "1,797",
        "1x8x8",
        "grey values 0 to 16",
        "",
        "none: grey values unchanged",
        own_test=False,
    ),
    Source(
        "mnist",
        "handwritten digits with their writers",
        images.load_mnist,
        "CC BY-SA 3.0 (as commonly stated); writer ids BSD (QMNIST)",
        _MNIST,
        "60,000 + 10,000",
        "1x28x28",
        "grey values 0 to 255, 0 = background",
        "writer (539 in training)",
        _GREY,
        files=(images.MNIST_FILES,),
    ),
    Source(
        "fashion_mnist",
        "ten kinds of clothing in MNIST's form",
        images.load_fashion_mnist,
        "MIT",
        "H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, 2017",
        "60,000 + 10,000",
        "1x28x28",
        "grey values 0 to 255, 0 = background",
        "",
        _GREY,
        files=(images.FASHION_FILES,),
    ),
    Source(
        "har",
        "six activities from a waist-worn phone",
        har.load_har,
        "CC BY 4.0 (UCI); its README asks for citation and forbids commercial use",
        "D. Anguita et al., A public domain dataset for human activity recognition using smartphones, ESANN 2013",
        "7,352 + 2,947 (official), 10,299 (pooled)",
        "561",
        "none: features scaled to [-1, 1] by the authors",
        "person (21 in official training, 30 pooled)",
        "none",
        files=(har.FILES,),
    ),
    Source(
        "cifar10",
        "ten kinds of objects in colour",
        images.load_cifar10,
        "none stated; research use with citation",
        _CIFAR,
        "50,000 + 10,000",
        "3x32x32",
        "RGB values 0 to 255",
        "",
        _COLOUR,
        files=(images.CIFAR10_FILES,),
    ),
    Source(
        "cifar100",
        "a hundred kinds of objects in colour, or their 20 groups (uses a prepared subset of 20,000 + 4,000 if only that is present)",
        images.load_cifar100,
        "none stated; research use with citation",
        _CIFAR,
        "50,000 + 10,000",
        "3x32x32",
        "RGB values 0 to 255",
        "",
        _COLOUR,
        files=(images.CIFAR100_FILES, images.CIFAR100_SUBSET),
    ),
    Source(
        "emnist",
        "handwritten digits and letters, without writers",
        handwriting.load_emnist,
        "US public domain (NIST SD19)",
        _EMNIST,
        "697,932 + 116,323 (byclass)",
        "1x28x28",
        "grey values 0 to 255, 0 = background",
        "",
        _GREY,
        files=tuple(handwriting.emnist_files(form) for form in handwriting.EMNIST_NAMES),
    ),
    Source(
        "femnist",
        "handwritten digits and letters by writer (LEAF)",
        handwriting.load_femnist,
        "US public domain (NIST SD19)",
        _LEAF,
        "671,585 + 77,483 (TensorFlow Federated's copy), 719,922 + 81,722 (LEAF)",
        "1x28x28",
        "grey values 0 to 255, 255 = background",
        "writer (3,400 or 3,500)",
        _GREY,
        files=(("femnist/train", "femnist/test"), handwriting.FEMNIST_FILES),
    ),
    Source(
        "shakespeare",
        "next character, by speaking role",
        shakespeare.load_shakespeare,
        "GNU FDL 1.3 (the edition); the plays are public domain",
        _LEAF,
        "by stride, roles and per_role",
        "80 characters",
        "codes of LEAF's 80 symbols",
        "(play, speaker): 1,567 roles, those with a whole sequence",
        "none",
        files=(("shakespeare/train", "shakespeare/test"), shakespeare.FILES),
    ),
    Source(
        "stackoverflow",
        "next word of 20,000 question titles by tag; form = 'users': sentences by user (TensorFlow Federated)",
        stackoverflow.load_stackoverflow,
        "CC BY-SA 3.0",
        "J. Xu et al., Short text clustering via convolutional neural networks, VSM-NLP 2015; users: TensorFlow Federated 2019",
        "20,000 (titles)",
        "20 tokens",
        "token ids: pad, 10,000 words, oov, bos, eos",
        "tag (20) or user",
        "none",
        own_test=False,
        files=(stackoverflow.TITLE_FILES, stackoverflow.USER_FILES),
        finish=stackoverflow.finish_stackoverflow,
    ),
    Source(
        "synthetic",
        "generated: alpha = how much models differ, beta = how much inputs differ",
        load_synthetic,
        "none needed",
        "T. Li et al., Federated optimization in heterogeneous networks, MLSys 2020",
        "by seed: 30 users, 51 rows or more each",
        "60",
        "none",
        "user (30)",
        "none",
        drawn=True,
    ),
    Source(
        "file",
        "your own .npz, .csv[.gz], .tsv, .parquet or folder of pictures",
        load_file,
        OWNED,
        OWNED,
        OWNED,
        "as in the file",
        OWNED,
        'client = "column", or client_train in a .npz',
        f"tables: {_TABLE}; pictures divided by 255; float arrays unchanged",
        own_test=False,
        test_files=True,
    ),
    Source(
        "hub",
        "any data set of the Hugging Face hub with pictures or numbers, through flwr-datasets",
        load_hub,
        "as stated on its page",
        "as stated on its page",
        "as on its page",
        "as on its page",
        "as on its page",
        'client = "column"',
        "pictures divided by 255; numbers unchanged",
    ),
)  # fmt: skip


def _table_source(spec: TableSpec) -> Source:
    return Source(
        spec.name,
        spec.summary,
        partial(load_table, spec),
        spec.licence,
        spec.citation,
        spec.rows,
        "table",
        spec.units,
        spec.client,
        _TABLE,
        own_test=spec.split,
        files=(spec.files,),
        test_files=True,
    )


SOURCES: dict[str, Source] = {source.name: source for source in (*_FIXED, *map(_table_source, TABLES))}


def find_source(name: str) -> Source:
    """Return the source called ``name``; ConfigError with the nearest valid name otherwise."""
    if name not in SOURCES:
        raise unknown_source(name, SOURCES)
    return SOURCES[name]


def describe_sources() -> list[registry.PlainValues]:
    """Return a plain record for each data set, for ``fedatlas list data`` and ``fedatlas show``."""
    keys = ("name", "summary", "licence", "citation", "rows", "shape", "units", "clients", "scaling", "own_test")
    return [
        {
            **{key: getattr(source, key) for key in keys},
            "parameters": source.parameters,
            "accepts": registry.accepts(source.builder),
            "source": registry.prose(source.builder),
        }
        for source in SOURCES.values()
    ]


def find_data(store: Store | None = None) -> list[registry.PlainValues]:
    """Return for each data set whether it is present, and its place or the files it needs, for ``fedatlas doctor``."""
    store = store or Store.default()
    return [_where(source, store) for source in SOURCES.values()]


def _where(source: Source, store: Store) -> registry.PlainValues:
    bundled = {spec.name for spec in TABLES if spec.bundled}
    for files in source.files:
        found = store.find(files)
        if found is not None:
            return {"name": source.name, "found": True, "place": str(found.root), "files": list(files)}
    if not source.files or source.name in bundled:
        places = {"synthetic": "generated", "file": "data.path", "hub": "the Hugging Face hub"}
        return {"name": source.name, "found": True, "place": places.get(source.name, "scikit-learn"), "files": []}
    return {"name": source.name, "found": False, "place": "", "files": list(source.files[0])}
