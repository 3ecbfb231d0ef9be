"""Sources of pictures: the bundled digits, MNIST and Fashion-MNIST (idx files), CIFAR-10 and -100 (binary files)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from fedatlas.data.dataset import SIDES, Names, Split, split_of
from fedatlas.data.download import Originals, Remote, obtain
from fedatlas.data.formats import (
    decode_pixels,
    encode_pixels,
    member,
    parse_cifar,
    read_idx,
)
from fedatlas.data.loaded import Loaded, LoadRequest, divided
from fedatlas.data.store import Arrays, provenance, read_prepared, write_npz
from fedatlas.errors import DataError

DIGITS = tuple(string.digits)
FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle caterpillar cattle
    chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house
    kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
    otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew
    skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm""".split()
)
CIFAR100_COARSE = (
    "aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables", "household electrical devices",
    "household furniture", "insects", "large carnivores", "large man-made outdoor things", "large natural outdoor scenes",
    "large omnivores and herbivores", "medium-sized mammals", "non-insect invertebrates", "people", "reptiles",
    "small mammals", "trees", "vehicles 1", "vehicles 2",
)  # fmt: skip

# M7: (p / 255 - mean) / sd for CIFAR; MNIST and its variants use only p / 255.
CIFAR_MEAN, CIFAR_SD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR_SCALE = tuple(1 / (255 * sd) for sd in CIFAR_SD)
CIFAR_SHIFT = tuple(-mean / sd for mean, sd in zip(CIFAR_MEAN, CIFAR_SD, strict=True))

USUAL = ("x_train", "y_train", "x_test", "y_test")
IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx_remotes(base: str, sums: Sequence[str], cited: str) -> tuple[Remote, ...]:
    return tuple(Remote(base + name, name, f"md5:{md5}", cited) for name, md5 in zip(IDX_NAMES, sums, strict=True))


_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
MNIST_REMOTES = (
    *_idx_remotes(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",  # the mirror that PyTorch keeps of yann.lecun.com/exdb/mnist
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "torchvision.datasets.MNIST",
    ),
    Remote(_QMNIST + "qmnist-train-labels-idx2-int.gz", "qmnist-train-labels-idx2-int.gz"),
    Remote(_QMNIST + "qmnist-test-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz"),
)
FASHION_REMOTES = _idx_remotes(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "README of zalandoresearch/fashion-mnist",
)
CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_REMOTES, CIFAR100_REMOTES = (
    (Remote(CIFAR_PAGE + file, file, f"md5:{md5}", CIFAR_PAGE + "cifar.html"),)
    for file, md5 in (
        ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    )
)
MNIST_FILES = ("mnist.npz",)
FASHION_FILES = ("fashion_mnist.npz",)
CIFAR10_FILES = (*(f"cifar10_batch_{k}.npz" for k in range(1, 6)), "cifar10_test.npz")
CIFAR100_FILES = ("cifar100.npz",)
CIFAR100_SUBSET = ("cifar100_20k_4k.npz",)


def pictures(x: np.ndarray, y: np.ndarray, client: np.ndarray | None = None) -> Split:
    """Return uint8 grey (n, h, w) or colour (n, 3, h, w) pixels and integer labels as rows."""
    return split_of(x[:, None] if x.ndim == 3 else x, y, client)


Owned = tuple[Sequence[np.ndarray | None], Names]


def owners(ids: Sequence[np.ndarray], word: str) -> tuple[list[np.ndarray], Names]:
    """Return codes 0, 1, ... for the owner ids of several parts, and the owners' names."""
    values, codes = np.unique(np.concatenate(ids), return_inverse=True)
    cuts = np.cumsum([len(part) for part in ids])[:-1]
    return list(np.split(codes, cuts)), tuple(f"{word} {value}" if word else str(value) for value in values)


def load_digits(request: LoadRequest) -> Loaded:
    """The 1,797 digits of 8x8 pixels bundled with scikit-learn, values 0 to 16."""
    rows = digit_rows()
    return Loaded(pictures(rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]), None, "classes", DIGITS)


def digit_rows() -> np.ndarray:
    """Return uint8 (1797, 65): 64 pixels and the label. Avoids importing scikit-learn, which takes longer than a short run."""
    package = find_spec("sklearn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if path and path.exists():
        return np.loadtxt(path, np.uint8, delimiter=",")
    from sklearn.datasets import load_digits as bundled  # a release that keeps it elsewhere

    return np.column_stack(bundled(return_X_y=True)).astype(np.uint8)


Side = Annotated[
    int | None,
    Field(ge=4, le=28, description="pixels per side, each the mean of the original pixels it covers; omitted = 28"),
]


def averaged(pixels: np.ndarray, side: int | None) -> np.ndarray:
    """Return uint8 (n, h, w) as (n, side, side), each pixel the rounded mean of those it covers, partly or wholly."""
    if side is None or pixels.shape[1:] == (side, side):
        return pixels
    x = torch.from_numpy(np.ascontiguousarray(pixels))
    pieces = [F.adaptive_avg_pool2d(piece.float(), side).round().to(torch.uint8) for piece in torch.split(x, 10_000)]
    return torch.cat(pieces).numpy()


def load_mnist(request: LoadRequest, *, side: Side = None) -> Loaded:
    """MNIST with the NIST writer of every digit (from QMNIST's labels)."""
    found = obtain(request.store, "mnist", MNIST_FILES, MNIST_REMOTES, prepare_mnist)
    a = read_prepared(found.paths[0], (*USUAL, "writer_train", "writer_test"))
    a |= {name: averaged(a[name], side) for name in USUAL[::2]}
    return grey(a, DIGITS, provenance(found), owners([a["writer_train"], a["writer_test"]], "writer"))


def prepare_mnist(originals: Originals, home: Path) -> None:
    """Prepare four idx files and QMNIST's extended labels (class, series, writer, ...; MNIST's test is its first 10,000 rows)."""
    a = idx_arrays(originals)
    for side in SIDES:
        y = a[f"y_{side}"]
        labels = read_idx(originals[f"qmnist-{side}-labels-idx2-int.gz"])[: len(y)]
        if not np.array_equal(labels[:, 0], y):
            raise DataError(
                f"the QMNIST {side} labels do not match MNIST's row by row, so the writer ids are unreliable."
            )
        a[f"writer_{side}"] = labels[:, 2].astype(np.int16)
    write_npz(home / MNIST_FILES[0], **a)


def idx_arrays(originals: Originals) -> Arrays:
    """Return the `USUAL` arrays of four idx files."""
    return {name: read_idx(originals[file]) for name, file in zip(USUAL, IDX_NAMES, strict=True)}


def load_fashion_mnist(request: LoadRequest) -> Loaded:
    """Fashion-MNIST: ten kinds of clothing, in MNIST's form."""
    found = obtain(request.store, "fashion_mnist", FASHION_FILES, FASHION_REMOTES, prepare_fashion)
    return grey(read_prepared(found.paths[0], USUAL), FASHION, provenance(found))


def prepare_fashion(originals: Originals, home: Path) -> None:
    """Prepare four idx files."""
    write_npz(home / FASHION_FILES[0], **idx_arrays(originals))


def grey(
    a: Arrays,
    class_names: Names,
    files: list[dict[str, Any]],
    owned: Owned = ((None, None), ()),
) -> Loaded:
    """Return grey pictures of the `USUAL` arrays; ``owned``: owners in both splits, and their names."""
    codes, names = owned
    train, test = (pictures(a[f"x_{side}"], a[f"y_{side}"], code) for side, code in zip(SIDES, codes, strict=True))
    return Loaded(train, test, "classes", class_names, client_names=names, facts={"files": files}, **divided(1))


def load_cifar10(request: LoadRequest) -> Loaded:
    """CIFAR-10, uint8 RGB planes, original split and order; pixels that are not ``exact`` are counted in the record."""
    found = obtain(request.store, "cifar10", CIFAR10_FILES, CIFAR10_REMOTES, prepare_cifar10)
    parts = [read_prepared(path, ("d", "y", "exact")) for path in found.paths]
    x = [decode_pixels(part["d"]) for part in parts]
    y = [part["y"] for part in parts]
    inexact = sum(int((~part["exact"]).sum()) for part in parts)
    facts = {"files": provenance(found), "rows_from_a_jpeg_copy": inexact}
    train = pictures(np.concatenate(x[:5]), np.concatenate(y[:5]))
    return Loaded(train, pictures(x[5], y[5]), "classes", CIFAR10, scale=CIFAR_SCALE, shift=CIFAR_SHIFT, facts=facts)


def prepare_cifar10(originals: Originals, home: Path) -> None:
    """Prepare the binary archive: five training batches and a test batch, one label byte per record."""
    archive = originals[CIFAR10_REMOTES[0].file]
    for k, file in enumerate(CIFAR10_FILES, start=1):
        name = f"data_batch_{k}.bin" if k < 6 else "test_batch.bin"
        labels, x = parse_cifar(member(archive, name), 1, name)
        write_npz(home / file, d=encode_pixels(x), y=labels[:, 0], exact=np.ones(len(x), bool))


def load_cifar100(request: LoadRequest, *, labels: Literal["fine", "coarse"] = "fine") -> Loaded:
    """CIFAR-100. If only the prepared subset of 20,000 + 4,000 is present, that is loaded and noted in the record.

    labels: classes: the 100 kinds, or their 20 groups.
    """
    subset = request.store.find(CIFAR100_SUBSET) if request.store.find(CIFAR100_FILES) is None else None
    found = subset or obtain(request.store, "cifar100", CIFAR100_FILES, CIFAR100_REMOTES, prepare_cifar100)
    a = read_prepared(found.paths[0], ("d_train", "d_test", f"{labels}_train", f"{labels}_test"))
    facts: dict[str, object] = {"files": provenance(found), "labels": labels}
    if subset is not None:
        facts["subset"] = (
            "20,000 + 4,000 rows drawn from all 60,000: the test rows are not the original test set, "
            "so accuracies are not comparable with published ones to the decimal"
        )
    return Loaded(
        pictures(decode_pixels(a["d_train"]), a[f"{labels}_train"]),
        pictures(decode_pixels(a["d_test"]), a[f"{labels}_test"]),
        "classes",
        CIFAR100 if labels == "fine" else CIFAR100_COARSE,
        scale=CIFAR_SCALE,
        shift=CIFAR_SHIFT,
        facts=facts,
    )


def prepare_cifar100(originals: Originals, home: Path) -> None:
    """Prepare the binary archive: a coarse and a fine label byte per record."""
    arrays: Arrays = {}
    for side in SIDES:
        labels, x = parse_cifar(member(originals[CIFAR100_REMOTES[0].file], f"{side}.bin"), 2, f"{side}.bin")
        arrays |= {f"d_{side}": encode_pixels(x), f"coarse_{side}": labels[:, 0], f"fine_{side}": labels[:, 1]}
    write_npz(home / CIFAR100_FILES[0], **arrays)
