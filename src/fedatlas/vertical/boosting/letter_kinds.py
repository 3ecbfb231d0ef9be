"""The letters of SecureBoost and their forms, and the forms of answers to the coordinator.

Sizes that receivers know: ``parties``, ``places`` (rows in common), ``rows`` (those that the tree is grown on),
``trees``, ``announced`` (candidates of a party), ``open`` (nodes), ``lines`` (of the receiver's table), ``first`` and
``beyond`` (numbers of a party's new records). Nodes of the current level are from ``lowest`` to below ``highest``, and
their children from ``youngest`` to below ``deepest``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.forms import Exactly, Form, ListOf, Numbers, ShortText, SomeOf, WholeNumber
from fedatlas.vertical.letters import LetterKind
from fedatlas.vertical.trees.letter_parts import BYTES, MANY, OWNERS, SPLIT, TOLD, of_level

MOST = 1 << 31  # candidates of a party
GRADIENTS, BY_CLASS, SUMS = "gradients", "gradients by class", "sums"  # topics whose form depends on the settings

BATCH: Form = {"key": ShortText(16), "ciphertexts": Numbers(torch.uint8, (None, None))}
RECORDS = ListOf(WholeNumber("first", "beyond"), "told", once=True)

BINS = LetterKind("bins", {"candidates": WholeNumber(0, MOST)})
WANTED = LetterKind(
    "wanted",
    {
        "nodes": ListOf(WholeNumber("lowest", "highest"), "wanted", once=True),
        "ties": ListOf(Numbers(torch.int64, (None,), 0), "wanted"),
        "passed": ListOf(WholeNumber("lowest", "highest"), once=True),
    },
)
RECORDED = LetterKind(SPLIT.topic, {"told": TOLD, "records": RECORDS})  # to the party with the label
ASKED = LetterKind(
    "rows at nodes",
    {
        "records": Numbers(torch.int64, ("asked",), 0),
        "rows": ListOf(Numbers(torch.int32, (None,), 0, "places"), "asked"),
    },
)
ANSWERED = LetterKind("ways", {"left": ListOf(BYTES, "asked")})


def gradients_letter(how: SecureBoost, *, several: bool = False) -> LetterKind:
    """Return the letter with each row's gradients: encrypted, or in the clear. Its ``rows`` are named if they are drawn.

    ``several``: of three or more classes, whose number it says.
    """
    drawn = Numbers(torch.int64, ("rows",), 0, "places") if how.sampled else Exactly(None)
    about: dict[str, Form] = {"tree": WholeNumber(1, "trees"), "rows": drawn}
    about |= {"classes": WholeNumber(3, MANY, "classes")} if several else {}
    topic = BY_CLASS if several else GRADIENTS
    if how.encrypted:
        return LetterKind(topic, {**about, "public": {"n": BYTES}, "ciphertexts": batches(how, several=several)})
    top, shape = 1 << how.precision, ("rows", "classes") if several else ("rows",)
    g, h = Numbers(torch.int64, shape, -top, top + 1), Numbers(torch.int64, shape, 0, top + 1)
    return LetterKind(topic, {**about, "g": g, "h": h})


def batches(how: SecureBoost, *, several: bool) -> Form:
    """Return the form of ciphertexts: one batch if fields are packed, else two for each class."""
    return ListOf(BATCH, 1 if how.pack else None if several else 2)


def sums_letter(how: SecureBoost, classes: int) -> LetterKind:
    """Return the letter with the left sums of each open node, of all candidates: encrypted, or in the clear.

    ``classes``: that have sums in it.
    """
    one: Form = ListOf(BATCH, 1 if how.pack else 2 * classes)
    if not how.encrypted:
        one = Numbers(torch.int64, ("candidates", 2 * classes + 1), "least", "above")
    return LetterKind(SUMS, {"candidates": WholeNumber(0, MOST, "candidates"), "left": ListOf(one, "open")})


def classes_summed(how: SecureBoost, outputs: int) -> int:
    """Return of how many classes a sum is sent: a ciphertext holds all, and in the clear a tree needs its own."""
    return outputs if how.encrypted or how.forest(outputs) == 1 else 1


def nodes_summed(how: SecureBoost, level: int, asked: Sequence[int]) -> Sequence[int]:
    """Return the nodes whose sums are sent. All trees begin with the same rows, so the sums of one root serve them all."""
    return asked[:1] if how.encrypted and level == 1 else asked


WORKED = ("ciphertexts", "exponentiations", "encryptions", "decryptions")


def counts(how: SecureBoost) -> Mapping[str, Form]:
    """Return the form of the counts of work with ciphertexts. It is empty in the clear."""
    return {"counts": SomeOf(dict.fromkeys(WORKED, WholeNumber()) if how.encrypted else {})}


def opened(how: SecureBoost, level: int, trees: int = 1) -> Form:
    """Return the form of the answer after the sums of a level are opened. The deepest level opens no nodes."""
    sizes = of_level(how.depth, level, trees)
    return {**OWNERS, **counts(how), "open": WholeNumber(0, sizes["deepest"] - sizes["youngest"] + 1)}
