"""SecureBoost: where missing values go that training did not have, and what a returned sum must not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from boosting_federation import Table, trained
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical.boosting import bins, gains, sealed
from fedatlas.vertical.boosting.settings import secureboost
from test_secureboost import HALVES, made


def rows_below(tree: Any, i: int) -> int:
    """The training rows of a node."""
    node = tree[i]
    return node["rows"] if "leaf" in node else rows_below(tree, node["left"]) + rows_below(tree, node["right"])


def test_a_column_without_holes_sends_missing_values_with_most_rows() -> None:
    """Left if both children have as many training rows; all splits of a table without holes, whoever made them."""
    found = trained(made(holes=0.0), HALVES, secureboost(trees=2))
    seen = set()
    for tree in found.trees:
        for node in (one for one in tree if "leaf" not in one):
            left, right = (rows_below(tree, node[side]) for side in ("left", "right"))
            assert node["missing"] == ("left" if left >= right else "right")
            seen.add((node["party"], node["missing"]))
    assert seen == {(name, way) for name in ("p0", "p1") for way in ("left", "right")}
    even = trained(Table(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]), "classes"), [[0]], secureboost(trees=1))
    assert even.trees[0][0]["missing"] == "left"


def test_two_nodes_with_the_same_split_send_missing_values_by_their_own_rows() -> None:
    """x1 divides both children of x0 at the same cut, four to one on one side and one to four on the other."""
    x = np.array([[0, 0]] * 4 + [[0, 1]] + [[1, 0]] + [[1, 1]] * 4, np.float64)
    y = np.array([0, 0, 0, 0, 3, 10, 13, 13, 13, 13], np.float64)
    root, *rest = trained(Table(x, y, "numbers"), [[0, 1]], secureboost(trees=1, depth=2, min_leaf=1, l2=0.0)).trees[0]
    assert (root["column"], [one["missing"] for one in rest if "leaf" not in one]) == ("x0", ["left", "right"])


def sums_of_bins(keys: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The key holder, a passive party's sums of two bins with one row each, and the rows' ciphertexts."""
    how = secureboost(**keys)._replace(key_bits=256)
    holder = paillier.holder(paillier.generate(256, testing=True))
    form = sealed.fields(4, how)
    rows = sealed.sealed([gains.Fixed(np.array([3, -5]), np.array([1, 2]), 0, 0)], form, holder, 1)
    cipher = sealed.Cipher(holder.public, rows, form)
    grid = bins.grid([0], [np.array([0.5])], np.array([False]))
    held = cipher.histogram(np.arange(2), np.array([[0], [1]]), grid.width)
    return (
        cipher,
        (held, grid, np.arange(1)),
        {bytes(c.tolist()) for batch in rows for c in batch.plain()["ciphertexts"]},
    )


def blinded(keys: dict[str, Any]) -> None:
    """What a passive party returns of a bin with one row is not that row's ciphertext, nor twice the same."""
    cipher, asked, rows = sums_of_bins(keys)
    first, second = (
        {bytes(c.tolist()) for one in cipher.returned(*asked) for c in one["ciphertexts"]} for _ in range(2)
    )
    assert first.isdisjoint(rows)
    assert first.isdisjoint(second)


@pytest.mark.parametrize("keys", [{}, {"compress": False}, {"pack": False, "compress": False}], ids=str)
def test_sums_are_blinded_before_they_are_returned(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The active party encrypted the rows: unblinded it would see which row stands alone in a bin. The fault is found."""
    blinded(keys)
    monkeypatch.setattr(sealed.paillier, "add", lambda public, sums, zeros, workers=1: sums)
    with pytest.raises(AssertionError):
        blinded(keys)
