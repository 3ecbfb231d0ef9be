"""Pictures as cameras and users leave them: turned, transparent, cut, far too large, nested, hidden."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedatlas
from fedatlas import Experiment, run
from fedatlas.data.cells import Reading, read_as
from fedatlas.data.config import DataConfig
from fedatlas.data.dataset import Dataset
from fedatlas.data.pictures import PictureForm, pictures_in, read_picture
from fedatlas.data.sources import load_dataset
from fedatlas.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")
ARROW = np.add.outer(np.arange(8) * 16, np.arange(8) * 4).astype(np.uint8)  # no turn looks like another


def save(path: Path, pixels: np.ndarray, orientation: int = 1, **keys: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(pixels).save(path, exif=exif, **keys)
    return path


def load(path: Path, **keys: Any) -> Dataset:
    return load_dataset(DataConfig(name="file", path=str(path), size=8, test=0.5, **keys), 1)


def two(path: Path) -> Path:
    """A folder of two classes."""
    for name in ("a", "b"):
        for i in range(2):
            save(path / name / f"{i}.png", ARROW + i)
    return path


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What a camera stores, with this orientation, of pixels that shall be seen."""
    back = {
        1: lambda x: x,
        2: np.fliplr,
        3: lambda x: np.rot90(x, 2),
        4: np.flipud,
        5: np.transpose,
        6: np.rot90,
        7: lambda x: np.rot90(x, 2).T,
        8: lambda x: np.rot90(x, 3),
    }
    return np.ascontiguousarray(back[orientation](pixels))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("deep", [False, True], ids=["8 bits", "16 bits"])
def test_every_orientation_is_turned_upright(orientation: int, deep: bool, tmp_path: Path) -> None:
    pixels = ARROW.astype(np.uint16) * 257 if deep else ARROW
    path = save(tmp_path / "p.png", turned(pixels, orientation), orientation)
    assert np.array_equal(read_picture(path, 8, PictureForm(False, 16 if deep else 8))[0], pixels)
    with read_as(Reading(1)):
        assert np.array_equal(
            read_picture(path, 8, PictureForm(False, 16 if deep else 8))[0], turned(pixels, orientation)
        )


def transparent(mode: str) -> Any:
    """A picture whose left half is opaque 100 and whose right half nobody sees (it is stored as 0)."""
    grey = Image.fromarray(np.full((8, 8), 100, np.uint8))
    alpha = Image.fromarray(np.repeat([[255] * 4 + [0] * 4], 8, 0).astype(np.uint8))
    black = Image.composite(grey, Image.new("L", (8, 8), 0), alpha)
    if mode == "P":
        made = black.convert("P")
        made.info["transparency"] = made.getpixel((7, 0))
        return made
    bands = [black] * (1 if mode == "LA" else 3)
    return Image.merge(mode, [*bands, alpha])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize(("background", "shade"), [(None, 255), ("white", 255), ("black", 0)])
def test_what_is_transparent_lies_on_the_background(
    mode: str, background: str | None, shade: int, tmp_path: Path
) -> None:
    two(tmp_path)
    transparent(mode).save(tmp_path / "a" / "0.png")
    dataset = load(tmp_path, **({"background": background} if background else {}))
    rows = np.concatenate([dataset.train.x.numpy(), dataset.test.x.numpy()])
    seen = [row for row in rows if row[0, 0, 0] == 100 and row[0, 7, 0] == 100]
    assert len(seen) == 1
    assert {*seen[0][:, :, 4:].flatten().tolist()} == {shade}
    assert {*seen[0][:, :, :4].flatten().tolist()} == {100}
    said = f"1 of 4 pictures are transparent and were laid on {background or 'white'} (data.background)."
    assert said in dataset.facts["doubts"]
    assert dataset.facts["transparent"] == 1


def test_what_is_done_is_recorded_and_done_again_by_predict(tmp_path: Path) -> None:
    """One rule for training and for predict: the same rows, in nested folders, without what is hidden."""
    two(tmp_path / "set")
    save(tmp_path / "set" / "a" / "more" / "deep" / "n.png", turned(ARROW, 6), 6)
    transparent("RGBA").save(tmp_path / "set" / "b" / "glass.png")
    for hidden in (".ipynb_checkpoints/0.png", "._0.png", "more/.thumbs/1.png"):
        save(tmp_path / "set" / "a" / hidden, ARROW)
    save(tmp_path / "set" / "beside.png", ARROW)
    experiment = Experiment.of(
        rounds=1,
        data={"name": "file", "path": str(tmp_path / "set"), "size": 8, "test": 0.5, "background": "black"},
        partition={"name": "iid", "clients": 2},
        model={"name": "logistic"},
    )
    done = run(experiment, out=tmp_path / "run", baselines=False)
    assert done.summary["data_facts"] | {"pictures": 6, "turned": 1, "transparent": 1} == done.summary["data_facts"]
    assert {
        "1 of 6 pictures were turned as their EXIF orientation says.",
        "1 pictures lie beside the folders of the classes, not in one of them, and were left out.",
    } < {*done.summary["notices"]}
    loaded = fedatlas.load(done.path)
    assert loaded.preprocess.reading == Reading(background="black")
    files = loaded.predict(tmp_path / "set" / "a")["file"].tolist()
    assert files == ["0.png", "1.png", "more/deep/n.png"]
    upright = loaded.predict(save(tmp_path / "new" / "u.png", ARROW).parent)
    assert loaded.predict(tmp_path / "set" / "a" / "more").iloc[:, 1:].equals(upright.iloc[:, 1:])
    assert len(pictures_in(tmp_path / "set")) == 7


def test_only_pictures_have_a_background(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n")
    with pytest.raises(ConfigError, match=r"data.background is for a folder of pictures"):
        load_dataset(DataConfig(name="file", path=str(tmp_path / "t.csv"), label="y", background="black"), 1)


def bomb() -> bytes:
    """A PNG of a few bytes that says that it is 60,000 pixels wide and high."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def encoded(form: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64), np.uint8)).save(out, form)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("cut.png", encoded("PNG")[:900], "cannot be read as a picture: replace it or remove it"),
        ("cut.jpg", encoded("JPEG")[:900], "cannot be read as a picture: replace it or remove it"),
        ("cut.tif", encoded("TIFF")[:900], "cannot be read as a picture: replace it or remove it"),
        ("no.gif", b"GIF89a", "cannot be read as a picture: replace it or remove it"),
        ("empty.bmp", b"", "cannot be read as a picture: replace it or remove it"),
        ("bomb.png", bomb(), "has more pixels than any picture should: make it smaller, or remove it"),
    ],
    ids=lambda x: x if isinstance(x, str) and "." in x else "",
)
def test_a_picture_that_cannot_be_read_is_one_sentence_with_its_path(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (two(tmp_path) / "a" / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        load(tmp_path)
    assert str(refused.value) == f"'{tmp_path / 'a' / name}' {said}."
