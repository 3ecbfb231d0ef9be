"""A folder of pictures, one subfolder per class."""

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
TWICE = 257  # factor from 8 bits to 16: 255 -> 65535


class PictureForm(NamedTuple):
    """Form in which all pictures of a set are kept: colour or grey, grey with 8 or 16 bits."""

    colour: bool
    depth: int = 8

    @property
    def largest(self) -> int:
        """The value of white."""
        return int(2**self.depth - 1)


def load_pictures(folder: Path, size: int) -> Loaded:
    """Load ``folder/class/*.png`` (or ``folder/train/class/...`` and ``folder/test/class/...``), resized to size x size.

    Colour if any picture has colours, else grey; uint8, divided by 255 for the model. Grey with any picture of 16 bits:
    float32, divided by 65535.
    """
    sides = (folder / "train").is_dir() and (folder / "test").is_dir()
    roots = [folder / side for side in SIDES] if sides else [folder]
    classes = sorted(p.name for p in roots[0].iterdir() if is_class(p))
    if len(classes) < 2:
        raise DataError(
            f"'{roots[0]}' must hold one folder of pictures per class, at least two; it has {len(classes)}."
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
    """Return whether a path is the folder of a class; hidden ones, such as .git, are not."""
    return path.is_dir() and not path.name.startswith(".")


def _listed(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Return (picture, class number), class by class."""
    return [
        (p, c)
        for c, name in enumerate(classes)
        for p in sorted((root / name).glob("*"))
        if p.suffix.lower() in PICTURE_SUFFIXES
    ]


def _check_test(test: Path, train: Path, classes: Sequence[str], listed: Sequence[Any]) -> None:
    """Raise DataError for test pictures of an unknown class, and for a test folder without pictures."""
    strange = sorted({p.name for p in test.iterdir() if is_class(p)} - set(classes))
    if strange:
        raise DataError(
            f"'{test / strange[0]}' is not a class of '{train}' ({', '.join(classes)}), so no model can learn it: "
            "rename the folder or remove it."
        )
    if not listed:
        raise DataError(f"'{test}' holds no pictures ({', '.join(PICTURE_SUFFIXES)}): remove the folder or add some.")


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of a folder and its subfolders in the order in which they are read: by path."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES)


def form_of(paths: Sequence[Path]) -> PictureForm:
    """Return the form that fits all pictures; colours have 8 bits."""
    modes = set()
    for path in paths:
        with _open(path) as picture:
            modes.add(picture.mode)
    colour = not modes <= set(GREY)
    return PictureForm(colour, 16 if modes & set(SIXTEEN) and not colour else 8)


def read_picture(path: Path, size: int, form: PictureForm) -> np.ndarray:
    """Read a picture as uint8 (channels, size, size); with 16 bits as float32 (1, size, size), 0 to 65535."""
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
    """Reduce a grey picture of 16 bits to its upper 8, and return others unchanged; DataError for 32 bits, whose range is unknown.

    Pillow's own conversion clips at 255, which would turn an X-ray white.
    """
    if picture.mode in ("I", "F"):
        raise DataError(f"the picture {what} holds 32-bit numbers, whose range is unknown: save it with 8 or 16 bits.")
    if picture.mode not in SIXTEEN:
        return picture
    return _pillow().fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError('pictures need Pillow: pip install "fedatlas[images]"') from error
    return Image


def _open(path: Path) -> Any:
    try:
        return _pillow().open(path)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read as a picture.") from error
