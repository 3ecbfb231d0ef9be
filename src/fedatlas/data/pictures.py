"""A folder of pictures, one subfolder per class.

A picture is turned by its EXIF orientation, and a transparent one gets a background. Subfolders of any depth count.
Files and folders whose name begins with a dot do not, in training and in `predict`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.data.cells import now
from fedatlas.data.dataset import SIDES, Split
from fedatlas.data.loaded import Loaded, divided
from fedatlas.errors import DataError, as_utf8

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
OTHERS = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".jfif", ".svg", ".psd", ".dcm")
"""Suffixes of pictures that are not read."""
SIXTEEN = ("I;16", "I;16L", "I;16B", "I;16N")  # Pillow's modes for grey of 16 bits
GREY = ("1", "L", "LA", "I", "F", *SIXTEEN)
TURNED = 274  # EXIF's tag of the orientation; 1 = as stored
TWICE = 257  # factor from 8 bits to 16: 255 -> 65535


class PictureForm(NamedTuple):
    """The common form of all pictures of a set: colour or grey, grey with 8 or 16 bits."""

    colour: bool
    depth: int = 8

    @property
    def largest(self) -> int:
        """The value of white."""
        return int(2**self.depth - 1)


def load_pictures(folder: Path, size: int) -> Loaded:
    """Load ``folder/class/*.png`` (or ``folder/train/class/...`` and ``folder/test/class/...``), resized to size x size.

    Colour if any picture has colours, else grey; uint8, divided by 255 for the model. If all are grey and any has 16
    bits, all are float32, divided by 65535.
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
    every = [path for side in listed for path, _ in side]
    form = form_of(every)
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
            **told_of(every, roots),
        },
    )


def told_of(paths: Sequence[Path], roots: Sequence[Path]) -> dict[str, Any]:
    """Return facts about turned, transparent and skipped pictures; {} if there are none."""
    read = now()
    if read.rules < 2:
        return {}
    looks = [_look(path) for path in paths]
    turned, transparent = sum(one.turned for one in looks), sum(one.transparent for one in looks)
    beside = sum(len(_visible(root, root.glob("*"))) for root in roots)
    said = []
    if turned:
        said.append(f"{turned} of {len(paths)} pictures were turned as their EXIF orientation says.")
    if transparent:
        said.append(
            f"{transparent} of {len(paths)} pictures are transparent and were laid on {read.background} (data.background)."
        )
    if beside:
        said.append(f"{beside} pictures lie beside the folders of the classes, not in one of them, and were left out.")
    others = [p for root in roots for p in root.rglob("*") if p.suffix.lower() in OTHERS] if read.rules > 2 else []
    if others:
        kinds = ", ".join(sorted({p.suffix.lower() for p in others}))
        said.append(
            f"{len(others)} pictures ({kinds}) are of a kind that is not read, and were left out: save them as .png or .jpg."
        )
    counts = {"turned": turned, "transparent": transparent}
    background = {"reading": read.to_json()} if transparent or read.background != "white" else {}
    return {**{name: n for name, n in counts.items() if n}, **background, **({"doubts": said} if said else {})}


def is_class(path: Path) -> bool:
    """Return whether a path is the folder of a class. Hidden folders, such as .git, are not."""
    return path.is_dir() and not path.name.startswith(".")


def _listed(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Return (picture, class number), class by class."""
    old = now().rules < 2  # only those directly in the class's folder
    found = [sorted((root / name).glob("*")) if old else pictures_in(root / name) for name in classes]
    return [(p, c) for c, paths in enumerate(found) for p in paths if p.suffix.lower() in PICTURE_SUFFIXES]


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
    """Return the pictures of a folder and its subfolders, ordered by path, which is the order of reading."""
    return sorted(_visible(folder, folder.rglob("*")))


def _visible(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Return the pictures that are not hidden, nor in a hidden folder such as .ipynb_checkpoints."""
    old = now().rules < 2
    return [
        p
        for p in paths
        if p.suffix.lower() in PICTURE_SUFFIXES
        and (old or (not any(part.startswith(".") for part in p.relative_to(folder).parts) and p.is_file()))
    ]


def form_of(paths: Sequence[Path]) -> PictureForm:
    """Return the form that fits all pictures. Colours have 8 bits."""
    modes = {_look(path).mode for path in paths}
    colour = not modes <= set(GREY)
    return PictureForm(colour, 16 if modes & set(SIXTEEN) and not colour else 8)


class _Look(NamedTuple):
    """Facts from a picture's header."""

    mode: str
    turned: bool
    transparent: bool


def _look(path: Path) -> _Look:
    with _opened(path) as picture:
        turned = picture.getexif().get(TURNED, 1) in range(2, 9)
        return _Look(picture.mode, turned, _transparent(picture) and (now().rules < 3 or _seen_through(picture)))


def _transparent(picture: Any) -> bool:
    return picture.mode[-1:] in {"A", "a"} or "transparency" in picture.info


def _seen_through(picture: Any) -> bool:
    """Return whether some pixel is not opaque."""
    return picture.mode in SIXTEEN or bool(picture.convert("RGBA").getchannel("A").getextrema()[0] < 255)


def read_picture(path: Path, size: int, form: PictureForm) -> np.ndarray:
    """Read a picture as uint8 (channels, size, size); with 16 bits as float32 (1, size, size), 0 to 65535."""
    with _opened(path) as opened:
        picture = upright(opened)
        if form.depth > 8:
            return _deep(picture, path, size)
        narrow = eight_bits(picture, f"'{path}'").convert("RGB" if form.colour else "L")
        small = np.asarray(narrow.resize((size, size), _pillow().Resampling.BILINEAR), np.uint8)
    return np.ascontiguousarray(small.transpose(2, 0, 1) if form.colour else small[None])


def upright(picture: Any) -> Any:
    """Return a picture turned by its EXIF orientation, on the background if it is transparent."""
    from PIL import ImageOps

    if now().rules < 2:
        return picture
    picture = ImageOps.exif_transpose(picture)
    if not _transparent(picture) or picture.mode in SIXTEEN:
        return picture
    grey = picture.mode in GREY
    layer = picture.convert("RGBA")
    whole = _pillow().new("RGBA", layer.size, now().background)
    whole.alpha_composite(layer)
    return whole.convert("L" if grey else "RGB")


def _deep(picture: Any, path: Path, size: int) -> np.ndarray:
    if picture.mode in SIXTEEN:
        pixels = np.asarray(picture).astype(np.float32)
    else:
        pixels = np.asarray(eight_bits(picture, f"'{path}'").convert("L"), np.float32) * TWICE
    return np.array(_pillow().fromarray(pixels).resize((size, size), _pillow().Resampling.BILINEAR), np.float32)[None]


def eight_bits(picture: Any, what: str) -> Any:
    """Reduce a grey picture of 16 bits to its upper 8 bits, and return others unchanged. DataError for 32 bits.

    The range of 32-bit pictures is unknown. Pillow's conversion clips at 255, which would turn an X-ray white.
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


def _content(path: Path) -> Any:
    """Return the input for Pillow.

    For a TIFF these are its bytes, because Pillow turns memory-mapped pictures wrongly.
    """
    mapped = path.suffix.lower() in {".tif", ".tiff"} and now().rules > 2
    return io.BytesIO(path.read_bytes()) if mapped else path


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a picture. DataError with its path if it cannot be read to its end, or has too many pixels."""
    image = _pillow()
    try:
        with image.open(_content(path)) as picture:
            yield picture
    except image.DecompressionBombError as error:
        raise DataError(f"'{path}' has more pixels than any picture should: make it smaller, or remove it.") from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise DataError(f"'{path}' cannot be read as a picture: replace it or remove it.") from error
