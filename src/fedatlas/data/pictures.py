"""A folder of pictures, one folder a class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.data.dataset import SIDES, Split
from fedatlas.data.loaded import Loaded, divided
from fedatlas.errors import DataError, as_utf8

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SIXTEEN = ("I;16", "I;16L", "I;16B", "I;16N")  # Pillow's modes for grey of 16 bits
GREY = ("1", "L", "LA", "I", "F", *SIXTEEN)
TWICE = 257  # 8 bits as 16: 255 -> 65535


class PictureForm(NamedTuple):
    """How all pictures of a set are kept: colour or grey, grey with 8 or 16 bits."""

    colour: bool
    depth: int = 8

    @property
    def largest(self) -> int:
        """The value of white."""
        return int(2**self.depth - 1)


def load_pictures(folder: Path, size: int) -> Loaded:
    """``folder/class/*.png`` (or ``folder/train/class/...`` and ``folder/test/class/...``), resized to size x size.

    Colour where any picture has colours, else grey; uint8, divided by 255 for the model. Grey with a picture of 16 bits:
    float32, divided by 65535.
    """
    sides = (folder / "train").is_dir() and (folder / "test").is_dir()
    roots = [folder / side for side in SIDES] if sides else [folder]
    classes = sorted(p.name for p in roots[0].iterdir() if is_class(p))
    if len(classes) < 2:
        raise DataError(
            f"'{roots[0]}' must hold a folder of pictures for each class, at least two; it has {len(classes)}."
        )
    for name in classes:
        as_utf8(name, f"'{roots[0]}': the class ")
    listed = [_listed(root, classes) for root in roots]
    if sides:
        _check_test(roots[1], roots[0], classes, listed[1])
    empty = next((name for c, name in enumerate(classes) if not any(c == label for _, label in listed[0])), None)
    if empty is not None:
        raise DataError(f"'{roots[0] / empty}' holds no pictures ({', '.join(PICTURE_SUFFIXES)}).")
    form = form_of([path for side in listed for path, _ in side])
    parts = [
        Split(
            torch.from_numpy(np.stack([read_picture(path, size, form) for path, _ in side])),
            torch.tensor([c for _, c in side]),
        )
        for side in listed
    ]
    return Loaded(
        parts[0],
        parts[1] if sides else None,
        "classes",
        tuple(classes),
        **divided(parts[0].x.shape[1], form.largest),
        facts={
            "files": [],
            "folder": folder.name,
            "pictures": sum(map(len, listed)),
            "size": size,
            **({"depth": form.depth} if form.depth > 8 else {}),
        },
    )


def is_class(path: Path) -> bool:
    """Whether it is a folder of a class: hidden ones, such as .git, are none."""
    return path.is_dir() and not path.name.startswith(".")


def _listed(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """(picture, class number), class by class."""
    return [
        (p, c)
        for c, name in enumerate(classes)
        for p in sorted((root / name).glob("*"))
        if p.suffix.lower() in PICTURE_SUFFIXES
    ]


def _check_test(test: Path, train: Path, classes: Sequence[str], listed: Sequence[Any]) -> None:
    """DataError for test pictures that no model can learn, and for a test folder without any."""
    strange = sorted({p.name for p in test.iterdir() if is_class(p)} - set(classes))
    if strange:
        raise DataError(
            f"'{test / strange[0]}' is no class of '{train}' ({', '.join(classes)}): no model can learn it; "
            "rename the folder or leave it out."
        )
    if not listed:
        raise DataError(f"'{test}' holds no pictures ({', '.join(PICTURE_SUFFIXES)}): leave the folder out or fill it.")


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder and of those in it, in the order in which they are read: by path."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES)


def form_of(paths: Sequence[Path]) -> PictureForm:
    """The form that fits all pictures; colours have 8 bits."""
    modes = set()
    for path in paths:
        with _open(path) as picture:
            modes.add(picture.mode)
    colour = not modes <= set(GREY)
    return PictureForm(colour, 16 if modes & set(SIXTEEN) and not colour else 8)


def read_picture(path: Path, size: int, form: PictureForm) -> np.ndarray:
    """uint8 (channels, size, size); of 16 bits float32 (1, size, size), 0 to 65535."""
    with _open(path) as picture:
        if form.depth > 8:
            return _deep(picture, path, size)
        narrow = eight_bits(picture, f"'{path}'").convert("RGB" if form.colour else "L")
        small = np.asarray(narrow.resize((size, size), _pillow().Resampling.BILINEAR), np.uint8)
    return np.ascontiguousarray(small.transpose(2, 0, 1) if form.colour else small[None])


def _deep(picture: Any, path: Path, size: int) -> np.ndarray:
    if picture.mode in SIXTEEN:
        pixels = np.asarray(picture).astype(np.float32)
    else:
        pixels = np.asarray(eight_bits(picture, f"'{path}'").convert("L"), np.float32) * TWICE
    return np.array(_pillow().fromarray(pixels).resize((size, size), _pillow().Resampling.BILINEAR), np.float32)[None]


def eight_bits(picture: Any, what: str) -> Any:
    """A grey picture of 16 bits with the upper 8 of them, any other as it is; DataError for one of 32 bits, whose range nobody knows.

    Pillow's own conversion cuts off at 255, so that an X-ray would be white.
    """
    if picture.mode in ("I", "F"):
        raise DataError(f"the picture {what} holds numbers of 32 bits, whose range is not known: save it with 8 or 16.")
    if picture.mode not in SIXTEEN:
        return picture
    return _pillow().fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError('pictures need pillow: pip install "fedatlas[images]"') from error
    return Image


def _open(path: Path) -> Any:
    try:
        return _pillow().open(path)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read as a picture.") from error
