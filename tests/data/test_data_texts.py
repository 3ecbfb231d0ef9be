"""Texts in the formats in which their owners give them out: plays, LEAF, titles, posts."""

from __future__ import annotations

import lzma

import pytest

from fedatlas.data import shakespeare, stackoverflow
from fedatlas.data.loaded import LoadRequest
from fedatlas.data.store import Store
from fedatlas.errors import DataError
from originals import database, example, leaf, tarred, zipped

PLAY = """<?xml version="1.0" encoding="UTF-8" ?><play><title><main>A</main></title><castList><castItem><role>A</role></castItem></castList>
<act num="1"><prologue actnum="1" num="0"><sp><speaker long="Chorus">CHORUS.</speaker><l>Two households&#8212;both</l></sp></prologue>
<scene actnum="1" num="2"><stage><dir>Enter.</dir></stage><sp><speaker long="Ch&#233;rie">CH.</speaker>
<stage><dir>Aside</dir></stage><l>&#8217;Tis &#8220;so&#8288;&#8221;<stage><dir>Sighs.</dir></stage> <foreign>oui</foreign>, and</l>
<l>more.</l></sp></scene></act>
<epilogue><sp><speaker long="Chorus">CHORUS.</speaker><l>Exeunt</l></sp></epilogue></play>"""


def test_the_plays_xml_becomes_spoken_lines():
    assert list(shakespeare.spoken_lines(PLAY.encode())) == [
        ("1", "prologue", "1", "Chorus", "Two households--both"),
        ("1", "2", "2", "Cherie", '\'Tis "so" oui, and'),
        ("1", "2", "2", "Cherie", "more."),
        ("epilogue", "epilogue", "3", "Chorus", "Exeunt"),
    ]


def test_the_plays_archive_becomes_the_prepared_table_of_roles(place):
    _, home, lay = place
    files = {f"repo/playshakespeare_editions/ps_{play}.xml": PLAY.encode() for play in shakespeare.PLAYS}
    shakespeare.prepare_shakespeare(lay({shakespeare.REMOTES[0].file: zipped(files)}), home)
    texts = shakespeare.role_texts(home / shakespeare.FILES[0])
    assert len(texts) == 2 * 39
    assert "".join(shakespeare.ALPHABET[c] for c in texts["hamlet / Cherie"]) == '\'Tis "so" oui, and more.'


def test_leafs_shakespeare_is_taken_as_it_is_and_unknown_signs_are_counted(tmp_path):
    text = ("abc" * 27)[:80]
    leaf(tmp_path / "train", {"MACBETH_FIRST": ([text, "é" + text[1:]], ["z", "!"])})
    leaf(tmp_path / "test", {"MACBETH_FIRST": ([text], ["Q"])})
    loaded = shakespeare.load_shakespeare(LoadRequest(Store((tmp_path / "none",)), 1), path=str(tmp_path))
    assert "".join(loaded.class_names[c] for c in loaded.train.x[0]) == text
    assert [loaded.class_names[c] for c in loaded.train.y] == ["z", "!"]
    assert loaded.class_names[loaded.train.x[1, 0]] == " "
    assert loaded.facts["characters_outside_the_alphabet"] == 1
    leaf(tmp_path / "b" / "train", {"X": ([text[:79]], ["z"])})
    with pytest.raises(DataError, match=r"79 \+ 1 characters"):
        shakespeare.load_shakespeare(LoadRequest(Store((tmp_path / "none",)), 1), path=str(tmp_path / "b"))


def test_titles_from_their_two_files(place):
    store, home, lay = place
    titles = b"How do I page a collection with LINQ?\nDowncasting and Linq\n"
    stackoverflow.prepare_titles(lay({"title_StackOverflow.txt": titles, "label_StackOverflow.txt": b"18\n18\n"}), home)
    loaded = stackoverflow.load_stackoverflow(LoadRequest(store, 1))
    words = [loaded.class_names[w] for w in loaded.train.x[0] if w >= 0]
    assert words == ["how", "do", "i", "page", "a", "collection", "with", "linq", "?"]
    assert loaded.client_names[loaded.train.client[1]] == "linq"


def test_sentences_by_user_from_the_tensorflow_federated_files(place, tmp_path):
    store, home, lay = place

    def sentence(text: bytes, kind: bytes) -> bytes:
        return example(creation_date=[b"2010"], score=[80], tags=[b"css"], title=[b"t"], tokens=[text], type=[kind])

    rows = [
        ("train", "u1", sentence(b"edit : the spec", b"question")),
        ("train", "u1", sentence(b"thanks .", b"answer")),
    ]
    rows += [("train", "u2", sentence(b"the zebra", b"question"))] * 3 + [("test", "u1", sentence(b"the", b"question"))]
    counts = tarred({"stackoverflow.word_count": b"the 9\n: 5\nedit 4\nspec 2\n"}, "w:bz2")
    raw = lzma.compress(database(tmp_path / "s.sqlite", rows), lzma.FORMAT_ALONE)
    stackoverflow.prepare_users(
        lay({"stackoverflow.sqlite.lzma": raw, "stackoverflow.word_count.tar.bz2": counts}), home
    )
    options = {"form": "users", "target": "per_step", "users": 2, "per_user": 2}
    loaded = stackoverflow.finish_stackoverflow(
        stackoverflow.load_stackoverflow(LoadRequest(store, 1), **options), options
    )
    edit, colon, the, spec = 3, 2, 1, 4  # ranks of the published counts, from 1
    assert loaded.train.x[0, :6].tolist() == [stackoverflow.BOS, edit, colon, the, spec, stackoverflow.EOS]
    assert loaded.train.x[1, :4].tolist() == [stackoverflow.BOS, the, stackoverflow.OOV, stackoverflow.EOS]
    assert loaded.train.client.tolist() == [0, 1, 1]  # answers are left out, a user's sentences capped at two
    assert len(loaded.class_names) == 10_004
