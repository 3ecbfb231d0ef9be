"""The letters of SecureBoost and their forms, and the forms of answers to the coordinator.

Sizes that receivers know: ``parties``, ``places`` (rows in common), ``rows`` (those that the tree is grown on),
``trees``, ``announced`` (candidates of a party), ``open`` (nodes), ``lines`` (of the receiver's table), ``first`` and
``beyond`` (numbers of a party's new records). Nodes of the current level are from ``lowest`` to below ``highest``, and
their children below ``deepest``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedatlas.algorithm import State
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.forms import Exactly, Form, ListOf, Numbers, ShortText, SomeOf, WholeNumber
from fedatlas.vertical.letters import LetterKind
from fedatlas.vertical.parties import order

MOST = 1 << 31  # candidates of a party
GRADIENTS, SUMS = "gradients", "sums"  # topics whose form depends on the settings

BYTES = Numbers(torch.uint8, (None,))
BATCH: Form = {"key": ShortText(16), "ciphertexts": Numbers(torch.uint8, (None, None))}
TOLD: Form = {"nodes": ListOf(WholeNumber("lowest", "highest"), "told", once=True), "left": ListOf(BYTES, "told")}
RECORDS = ListOf(WholeNumber("first", "beyond"), "told", once=True)

BINS = LetterKind("bins", {"candidates": WholeNumber(0, MOST)})
LEVEL = LetterKind(
    "level",
    {
        "told": TOLD,
        "open": ListOf(WholeNumber("highest", "deepest"), once=True),
        "owners": ListOf(WholeNumber(0, "parties"), once=True),
    },
)
WANTED = LetterKind(
    "wanted",
    {
        "nodes": ListOf(WholeNumber("lowest", "highest"), "wanted", once=True),
        "ties": ListOf(Numbers(torch.int64, (None,), 0), "wanted"),
        "passed": ListOf(WholeNumber("lowest", "highest"), once=True),
    },
)
SPLIT = LetterKind("split", {"told": TOLD})
RECORDED = LetterKind("split", {"told": TOLD, "records": RECORDS})  # to the party with the label
GAINS = LetterKind(
    "gains", {"records": Numbers(torch.int64, ("mine",), 0, "lines"), "gains": Numbers(torch.float64, ("mine",))}
)
ASKED = LetterKind(
    "rows at nodes",
    {
        "records": Numbers(torch.int64, ("asked",), 0),
        "rows": ListOf(Numbers(torch.int32, (None,), 0, "places"), "asked"),
    },
)
ANSWERED = LetterKind("ways", {"left": ListOf(BYTES, "asked")})


def gradients_letter(how: SecureBoost) -> LetterKind:
    """Return the letter with each row's gradients: encrypted, or in the clear. Its ``rows`` are named if they are drawn."""
    drawn = Numbers(torch.int64, ("rows",), 0, "places") if how.drawn else Exactly(None)
    about: dict[str, Form] = {"tree": WholeNumber(1, "trees"), "rows": drawn}
    if how.encrypted:
        batches = ListOf(BATCH, 1 if how.pack else 2)
        return LetterKind(GRADIENTS, {**about, "public": {"n": BYTES}, "ciphertexts": batches})
    top = 1 << how.precision
    g, h = Numbers(torch.int64, ("rows",), -top, top + 1), Numbers(torch.int64, ("rows",), 0, top + 1)
    return LetterKind(GRADIENTS, {**about, "g": g, "h": h})


def sums_letter(how: SecureBoost) -> LetterKind:
    """Return the letter with the left sums of each open node, of all candidates: encrypted, or in the clear."""
    one: Form = ListOf(BATCH, 1 if how.pack else 2)
    if not how.encrypted:
        one = Numbers(torch.int64, ("candidates", 3), "least", "above")
    return LetterKind(SUMS, {"candidates": WholeNumber(0, MOST, "candidates"), "left": ListOf(one, "open")})


OWNERS: Mapping[str, Form] = {"owners": ListOf(WholeNumber(0, "parties"), once=True)}
WORKED = ("ciphertexts", "exponentiations", "encryptions", "decryptions")


def counts(how: SecureBoost) -> Mapping[str, Form]:
    """Return the form of the counts of work with ciphertexts. It is empty in the clear."""
    return {"counts": SomeOf(dict.fromkeys(WORKED, WholeNumber()) if how.encrypted else {})}


def opened(how: SecureBoost, level: int) -> Form:
    """Return the form of the answer after the sums of a level are opened. The deepest level opens no nodes."""
    sizes = of_level(how, level)
    return {**OWNERS, **counts(how), "open": WholeNumber(0, sizes["deepest"] - sizes["highest"] + 1)}


def grown(how: SecureBoost, names: Sequence[str]) -> Form:
    """Return the form of the answer about a tree: the number of nodes of each party, and of leaves."""
    return {"nodes": dict.fromkeys((*names, "leaves"), WholeNumber(0, (1 << how.depth) + 1))}


def of_level(how: SecureBoost, level: int) -> dict[str, int]:
    """Return the sizes that name the nodes of a level, from 1, and their children; the deepest level has no children."""
    return {"lowest": 1 << (level - 1), "highest": 1 << level, "deepest": min(1 << (level + 1), 1 << how.depth)}


def common(state: State) -> int:
    """Return how many rows all parties have."""
    return len(order(state))
