"""Shakespeare by speaking role: given 80 characters, predict the next (LEAF, Caldas et al. 2018)."""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ET
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedatlas.data.dataset import SIDES, Names, split_of
from fedatlas.data.download import Originals, Remote, obtain
from fedatlas.data.formats import read_leaf
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.store import Arrays, provenance, read_tsv, write_tsv
from fedatlas.errors import ConfigError, DataError
from fedatlas.registry import Count, Whole

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80 symbols
LENGTH = 80
TRAIN_SHARE = 0.8  # of a role's text, from its beginning
FILES = ("shakespeare_roles.tsv.xz",)
HEADER = ("play", "act", "scene", "speech", "speaker", "line")
REMOTES = (
    Remote(
        "https://github.com/severdia/PlayShakespeare.com-XML/archive/2895409bb8d577e69a8019ef635176adc5a59f87.zip",
        "PlayShakespeare.com-XML.zip",
    ),
)
PLAYS = tuple(
    """alls_well_that_ends_well antony_cleopatra as_you_like_it comedy_of_errors coriolanus cymbeline hamlet henry_iv_pt1
    henry_iv_pt2 henry_v henry_vi_pt1 henry_vi_pt2 henry_vi_pt3 henry_viii julius_caesar king_john king_lear
    king_richard_ii loves_labours_lost macbeth measure_for_measure merchant_of_venice merry_wives_of_windsor
    midsummer_nights_dream much_ado_about_nothing othello pericles richard_iii romeo_and_juliet sir_thomas_more
    taming_of_the_shrew tempest timon_of_athens titus_andronicus troilus_and_cressida twelfth_night
    two_gentlemen_of_verona two_noble_kinsmen winters_tale""".split()
)
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "--", "…": "...", "\u2060": ""})

_CODES = np.full(256, ALPHABET.index(" "), np.int64)  # a character outside the alphabet reads as a space
_CODES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
_KNOWN = np.zeros(256, bool)
_KNOWN[np.frombuffer(ALPHABET.encode(), np.uint8)] = True


def load_shakespeare(
    request: LoadRequest,
    *,
    path: str = "",
    stride: Whole = LENGTH,
    roles: Count = 0,
    per_role: Count = 0,
    test_per_role: Count = 0,
) -> Loaded:
    """Sequences of 80 characters and the next one, by (play, speaker).

    A role's lines are joined by spaces. Its beginning trains and its end tests; no character is in both. Roles too short
    for this are left out. LEAF's stride is 1, which gives 80 times as many sequences. FedDyn uses stride 1, 100 roles, and 2,000 and
    400 sequences.

    path: folder with LEAF's own train and test JSON, used unchanged; "" = shakespeare/ of the data folder if present, else
        the plays.
    stride: characters from the start of one sequence to the start of the next.
    roles: number of speaking roles drawn; 0 = all that are long enough.
    per_role: training sequences of each role, from its beginning; 0 = those in the first 80% of its characters.
    test_per_role: test sequences of each role, from its end; 0 = those in the remaining characters.
    """
    if leaf := request.leaf("shakespeare", path):
        if stride != LENGTH or roles or per_role or test_per_role:
            raise ConfigError(
                "stride, roles, per_role and test_per_role apply to the plays, but LEAF's files are already cut: remove these keys."
            )
        return _load_leaf(leaf)
    found = obtain(request.store, "shakespeare", FILES, REMOTES, prepare_shakespeare)
    texts = role_texts(found.paths[0])
    cuts = {role: cut for role, text in texts.items() if (cut := _cut(len(text), stride, per_role, test_per_role))}
    if roles > len(cuts):
        raise ConfigError(
            f"data.roles = {roles}: only {len(cuts)} roles are long enough; ask for fewer roles, or fewer sequences of each."
        )
    kept = request.chosen(list(cuts), roles, "roles") if roles else list(cuts)
    sides, owner = [], []
    for side in (0, 1):
        pieces = [windows(texts[role][slice(*cuts[role][side])], stride) for role in kept]
        sides.append(np.concatenate(pieces))
        owner.append(np.repeat(np.arange(len(kept)), [len(piece) for piece in pieces]))
    return _sequences(sides, owner, kept).with_facts(
        files=provenance(found),
        stride=stride,
        roles=len(kept),
        roles_in_source=len(texts),
        text="modern-spelling edition, not LEAF's",
    )


def role_texts(path: Path) -> Arrays:
    """Return the text of each role ("play / speaker"), as character codes, from the prepared table of lines."""
    spoken = defaultdict(list)
    for play, _, _, _, speaker, line in read_tsv(path, HEADER):
        spoken[f"{play} / {speaker}"].append(line)
    return {role: encode(" ".join(lines)) for role, lines in spoken.items()}


def encode(text: str) -> np.ndarray:
    """Return the codes 0..79 of characters. Characters outside LEAF's alphabet become spaces (never index -1)."""
    codes: np.ndarray = _CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    return codes


def windows(text: np.ndarray, stride: int) -> np.ndarray:
    """Return all sequences of 81 characters that begin at 0, stride, 2 stride, ...; (m, 81), m = 0 if the text is too short."""
    if len(text) <= LENGTH:
        return np.empty((0, LENGTH + 1), text.dtype)
    return np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::stride]


class Cut(NamedTuple):
    """Start and end of a role's training and test characters."""

    train: tuple[int, int]
    test: tuple[int, int]


def _cut(n: int, stride: int, per_role: int, test_per_role: int) -> Cut | None:
    """Return the cut of a text of ``n`` characters; None if it is too short for a training sequence or for the given numbers."""
    train = (per_role - 1) * stride + LENGTH + 1 if per_role else int(TRAIN_SHARE * n)
    test = (test_per_role - 1) * stride + LENGTH + 1 if test_per_role else n - train
    if train <= LENGTH or test < 0 or train + test > n:
        return None
    return Cut((0, train), (n - test, n))


def _sequences(sides: list[np.ndarray], owner: list[np.ndarray], names: list[str]) -> Loaded:
    """Turn windows (m, 81) of train and test into rows."""
    parts = [split_of(x[:, :LENGTH], x[:, LENGTH], who) for x, who in zip(sides, owner, strict=True)]
    return Loaded(parts[0], parts[1], "classes", tuple(ALPHABET), client_names=tuple(names))


def _load_leaf(folder: Path) -> Loaded:
    """Load LEAF's own sequences: ``x`` holds strings of 80 characters, ``y`` the next one."""
    names: dict[str, int] = {}
    sides, owner, unknown = [], [], 0
    for side in SIDES:
        rows, who = [], []
        for user in read_leaf(folder / side):
            code = names.setdefault(user.name, len(names))
            for x, y in zip(user.x, user.y, strict=True):
                if len(x) != LENGTH or len(y) != 1:
                    raise DataError(
                        f"'{folder / side}': user '{user.name}' has a sequence of {len(x)} + {len(y)} characters, not 80 + 1."
                    )
                rows.append(x + y)
                who.append(code)
        text = "".join(rows)
        unknown += int((~_KNOWN[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]).sum())
        sides.append(encode(text).reshape(-1, LENGTH + 1))
        owner.append(np.array(who, np.int64))
    return _sequences(sides, owner, list(names)).with_facts(
        text="LEAF's own files", characters_outside_the_alphabet=unknown
    )


def prepare_shakespeare(originals: Originals, home: Path) -> None:
    """Turn PlayShakespeare.com's XML, one file per play, into one row per spoken line, plain ASCII."""
    rows: list[Names] = []
    with zipfile.ZipFile(originals[REMOTES[0].file]) as archive:
        entries = {Path(name).name: name for name in archive.namelist() if "/playshakespeare_editions/" in name}
        for play in PLAYS:
            if (file := entries.get(f"ps_{play}.xml")) is None:
                raise DataError(f"the archive of plays lacks ps_{play}.xml: it was changed at its source.")
            rows += [(play, *row) for row in spoken_lines(archive.read(file))]
    write_tsv(home / FILES[0], HEADER, rows)


def spoken_lines(xml: bytes) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (act, scene, speech, speaker, line) of a play, without stage directions; speeches are numbered from 1.

    In a prologue, chorus or induction the scene is "prologue"; in an epilogue act and scene are "epilogue".
    """
    play = ET.fromstring(xml)  # noqa: S314 - a file of a fixed commit, without entities
    for speech, (act, scene, element) in enumerate(_speeches(play, "", ""), start=1):
        speaker = element.find("speaker")
        name = speaker.get("long") or "".join(speaker.itertext()) if speaker is not None else ""
        for line in element.iter("l"):
            if text := plain(_text(line)):
                yield act, scene, str(speech), plain(name), text


def _speeches(node: ET.Element, act: str, scene: str) -> Iterator[tuple[str, str, ET.Element]]:
    for child in node:
        if child.tag == "sp":
            yield act, scene, child
        elif child.tag == "act":
            yield from _speeches(child, child.get("num", ""), "")
        elif child.tag == "scene":
            yield from _speeches(child, act, child.get("num", ""))
        elif child.tag in {"prologue", "chorus", "induction"}:
            yield from _speeches(child, act or "1", "prologue")
        elif child.tag == "epilogue":
            yield from _speeches(child, "epilogue", "epilogue")


def _text(node: ET.Element) -> str:
    """Return the text inside an element, without its stage directions."""
    parts = (("" if child.tag == "stage" else _text(child)) + (child.tail or "") for child in node)
    return (node.text or "") + "".join(parts)


def plain(text: str) -> str:
    """Return ASCII: typographic quotes and dashes replaced, accents and other signs dropped, spaces merged."""
    ascii_only = unicodedata.normalize("NFKD", text.translate(PLAIN)).encode("ascii", "ignore").decode()
    return " ".join(ascii_only.split())
