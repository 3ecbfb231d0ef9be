"""Stack Overflow, next word: 20,000 question titles by tag, or sentences by user (TensorFlow Federated's set).

Both become 20 tokens and a target, as in TensorFlow Federated: pad 0, 10,000 words by rank, oov, bos, eos (10,004).
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedatlas.data.dataset import SIDES, Split
from fedatlas.data.download import Originals, Remote, obtain
from fedatlas.data.formats import member, parse_example
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.store import provenance, read_tsv, unpack_file, write_atomically, write_tsv
from fedatlas.errors import ConfigError, DataError
from fedatlas.registry import Whole

WORDS, LENGTH, END, IGNORE = 10_000, 20, -1, -100
PAD, OOV, BOS, EOS = 0, WORDS + 1, WORDS + 2, WORDS + 3
TAGS = (
    "wordpress", "oracle", "svn", "apache", "excel", "matlab", "visual-studio", "cocoa", "osx", "bash",
    "spring", "hibernate", "scala", "sharepoint", "ajax", "qt", "drupal", "linq", "haskell", "magento",
)  # fmt: skip

HEADER = ("label", "tag", "title")
TITLE_FILES = ("stackoverflow_titles_20k.tsv.xz",)
_XU = "https://raw.githubusercontent.com/jacoxu/StackOverflow/master/rawText/"
TITLE_REMOTES = (
    Remote(_XU + "title_StackOverflow.txt", "title_StackOverflow.txt"),
    Remote(_XU + "label_StackOverflow.txt", "label_StackOverflow.txt"),
)
USER_FILES = ("stackoverflow.sqlite", "stackoverflow.word_count")
_TFF = "https://storage.googleapis.com/tff-datasets-public/"
USER_REMOTES = (
    Remote(_TFF + "stackoverflow.sqlite.lzma", "stackoverflow.sqlite.lzma"),
    Remote(
        _TFF + "stackoverflow.word_count.tar.bz2",
        "stackoverflow.word_count.tar.bz2",
        "sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
        "tensorflow_federated.simulation.datasets.stackoverflow",
    ),
)

Form = Literal["titles", "users"]
Target = Literal["per_step", "last_step"]


def load_stackoverflow(
    request: LoadRequest,
    *,
    form: Form = "titles",
    target: Target = "per_step",
    users: Whole = 400,
    per_user: Whole = 1000,
) -> Loaded:
    """Sentences of up to 20 words: question titles by tag, or sentences by user.

    The rows returned here still hold word numbers, -1 after the end: `finish_stackoverflow` turns them into tokens.

    form: 20,000 question titles, client = tag, words from the training rows; or sentences of questions, client = user, words from
        TensorFlow Federated's counts.
    target: the prediction: at every step the next token (pad ignored), or only the last word of a sentence from those before
        it, padded on the left so that the last of the 20 steps is always real.
    users: with form "users": number of training users drawn.
    per_user: with form "users": maximum sentences per user, in the training rows and again in the test rows.
    """
    return load_titles(request) if form == "titles" else load_users(request, users, per_user)


def load_titles(request: LoadRequest) -> Loaded:
    """Load 20,000 titles with one of 20 tags (Xu et al. 2015). Unlike TensorFlow Federated's set, it has no users and no bodies."""
    found = obtain(request.store, "stackoverflow", TITLE_FILES, TITLE_REMOTES, prepare_titles)
    rows = read_tsv(found.paths[0], HEADER)
    tag = torch.tensor([int(label) - 1 for label, _, _ in rows])
    sentences = [tokenise(title) for _, _, title in rows]
    words = sorted({word for sentence in sentences for word in sentence})
    number = {word: i for i, word in enumerate(words)}
    x = _table([[number[word] for word in sentence] for sentence in sentences])
    facts = {"files": provenance(found), "text": "question titles by tag, not the TensorFlow Federated set by user"}
    # The tag replaces the target until the vocabulary is known, so that the test split is stratified by tag.
    return Loaded(Split(x, tag, tag), None, "classes", tuple(words), client_names=TAGS, facts=facts)


def load_users(request: LoadRequest, users: int, per_user: int) -> Loaded:
    """Load question sentences of ``users`` drawn training users, at most ``per_user`` each; test: their later sentences.

    TensorFlow Federated's split by date: training before 2018, test after. Vocabulary: the published word counts.
    """
    found = obtain(request.store, "stackoverflow", USER_FILES, USER_REMOTES, prepare_users)
    counts = found.paths[1].read_text(encoding="utf-8").split("\n")
    words = [line.split()[0] for line in counts[:WORDS] if line.strip()]
    number = {word: i for i, word in enumerate(words)}
    link = sqlite3.connect(found.paths[0])
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = 'train' ORDER BY client_id"
    ids = [client for (client,) in link.execute(query)]
    if users > len(ids):
        raise ConfigError(f"data.users = {users}: the database has {len(ids)} training users.")
    chosen = request.chosen(ids, users, "users")
    parts = [_sentences(link, chosen, side, per_user, number) for side in SIDES]
    link.close()
    facts = {
        "files": provenance(found._replace(paths=found.paths[1:])),
        "text": "question sentences by user",
        "users": users,
    }
    return Loaded(parts[0], parts[1], "classes", tuple(words), client_names=tuple(chosen), facts=facts)


def _sentences(
    link: sqlite3.Connection, users: Sequence[str], side: str, most: int, number: Mapping[str, int]
) -> Split:
    rows, owner = [], []
    query = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid"
    for k, user in enumerate(users):
        mine = 0
        for (raw,) in link.execute(query, (side, user)):
            example = parse_example(raw)
            if mine < most and example["type"][0] == b"question":
                tokens = bytes(example["tokens"][0]).decode().split()
                rows.append([number.get(word, len(number)) for word in tokens])
                owner.append(k)
                mine += 1
    who = torch.tensor(owner, dtype=torch.int64)
    return Split(_table(rows), torch.zeros(len(rows), dtype=torch.int64), who)


def tokenise(title: str) -> list[str]:
    """Split a title into tokens: lower case, ASCII, punctuation as separate tokens except ' and - (TensorFlow Federated's rule)."""
    text = title.lower().encode("ascii", "ignore").decode()
    return re.findall(r"[a-z0-9'-]+|[^\sa-z0-9'-]", text)


def _table(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Turn ragged word numbers into (n, 20), cut at 20 words, -1 after the end."""
    table = np.full((len(rows), LENGTH), END, np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row[:LENGTH])] = row[:LENGTH]
    return torch.from_numpy(table)


def finish_stackoverflow(loaded: Loaded, options: Mapping[str, Any]) -> Loaded:
    """Turn word numbers into tokens, once the training rows are known.

    Titles: the 10,000 words that occur most often in the training rows (ties in alphabetical order). Clients could
    count them as a sum; here the count is taken as given, like a published vocabulary.
    """
    train, test, words = loaded.train, loaded.test, loaded.class_names
    assert test is not None
    ranked = list(range(len(words)))
    if options["form"] == "titles":
        seen = Counter(train.x[train.x != END].tolist())
        ranked = sorted(seen, key=lambda w: (-seen[w], words[w]))[:WORDS]
    token = torch.full(
        (len(words) + 1,), OOV, dtype=torch.int64
    )  # the last entry is for words outside the published list
    token[torch.tensor(ranked, dtype=torch.int64)] = torch.arange(1, len(ranked) + 1)
    build = per_step if options["target"] == "per_step" else last_step
    parts = [build(part._replace(x=torch.where(part.x == END, END, token[part.x]))) for part in (train, test)]
    unused = (f"<unused {i}>" for i in range(len(ranked) + 1, WORDS + 1))
    names = ("<pad>", *(words[w] for w in ranked), *unused, "<oov>", "<bos>", "<eos>")
    task: Literal["tokens", "classes"] = "tokens" if options["target"] == "per_step" else "classes"
    special = {"pad": PAD, "oov": OOV, "bos": BOS, "eos": EOS}
    out = replace(loaded, train=parts[0], test=parts[1], task=task, class_names=names)
    return out.with_facts(target=options["target"], vocabulary=len(ranked), special=special)


def per_step(part: Split) -> Split:
    """Return tokens bos w1 ... wm eos (eos if m < 20), padded to 21: x its first 20, y its last 20 with pad ignored."""
    n, words = len(part.x), part.x
    length = (words != END).sum(1)
    sequence = torch.full((n, LENGTH + 1), PAD, dtype=torch.int64)
    sequence[:, 0] = BOS
    sequence[:, 1:] = torch.where(words == END, PAD, words)
    short = (length < LENGTH).nonzero()[:, 0]
    sequence[short, length[short] + 1] = EOS
    y = sequence[:, 1:].clone()
    y[y == PAD] = IGNORE
    return part._replace(x=sequence[:, :LENGTH].contiguous(), y=y)


def last_step(part: Split) -> Split:
    """Return tokens bos w1 ... w(m-1), padded on the left to 20, and the target wm; rows without a word are left out."""
    keep = (part.x != END).any(1).nonzero()[:, 0].numpy()
    part = part.take(keep)
    length = (part.x != END).sum(1)
    before = torch.cat((torch.full((len(part.x), 1), BOS), part.x[:, :-1]), 1)  # the token before each word
    place = torch.arange(LENGTH)[None] - (LENGTH - length)[:, None]  # shifts a row right until its last word is last
    x = torch.where(place >= 0, before.gather(1, place.clamp_min(0)), PAD)
    return part._replace(x=x, y=part.x.gather(1, (length - 1)[:, None])[:, 0])


def prepare_titles(originals: Originals, home: Path) -> None:
    """Prepare a file of one title per line, and another with a label, 1 to 20, at the end of each line."""
    titles, labels = (originals[remote.file].read_text(encoding="utf-8").splitlines() for remote in TITLE_REMOTES)
    if len(titles) != len(labels):
        raise DataError(
            f"there are {len(titles)} titles but {len(labels)} labels: the files at the source were changed."
        )
    found = [(line.split()[-1], " ".join(title.split())) for title, line in zip(titles, labels, strict=True)]
    write_tsv(home / TITLE_FILES[0], HEADER, ((label, TAGS[int(label) - 1], title) for label, title in found))


def prepare_users(originals: Originals, home: Path) -> None:
    """Unpack TensorFlow Federated's SQLite file, and its list of words with the number of users of each."""
    counts = member(originals[USER_REMOTES[1].file], USER_FILES[1])
    write_atomically(home / USER_FILES[1], counts)
    partial = home / f"{USER_FILES[0]}.partial"
    unpack_file(originals[USER_REMOTES[0].file], partial)
    partial.replace(home / USER_FILES[0])
