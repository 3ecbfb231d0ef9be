"""Pictures and curves of what leaked, as files that a browser reads."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

from fedatlas.attacks.membership import roc
from fedatlas.reporting.drawing.charts import power_curve
from fedatlas.reporting.drawing.pixels import pairs, png


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_read_back_pixel_by_pixel(channels: int):
    Image = pytest.importorskip("PIL.Image")
    x = np.arange(channels * 6).reshape(channels, 2, 3) / (channels * 6)
    read = np.asarray(Image.open(io.BytesIO(png(x))))
    want = np.round(x * 255).astype(np.uint8)
    assert (read == (want[0] if channels == 1 else np.moveaxis(want, 0, -1))).all()


def test_pairs_stand_one_above_the_other_as_many_as_fit():
    one = (np.zeros((1, 4, 4)), np.ones((1, 4, 4)), "client 0: 12.0 dB")
    narrow, wide = (pairs(width, ("original", "found"), [one] * 12, "label").count("<image") for width in (340, 760))
    assert narrow < wide == 24


def test_the_curve_by_hand():
    """Scores 4 to 1 of member, stranger, member, stranger: half found at the first false positive, all at the second."""
    assert roc(np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, False, True, False])) == [(0.5, 0.5), (1.0, 1.0)]
    assert roc(np.array([1.0, 1.0]), np.array([True, False])) == [(1.0, 1.0)]  # ties are passed at once


def test_axes_are_powers_of_ten():
    drawn = power_curve(400, ("x", "y"), [(0.001, 0.01), (0.1, 0.5), (1.0, 1.0)], "label")
    assert re.findall(r">(1|0\.1|0\.01|0\.001)<", drawn).count("0.001") == 2
    line = re.search(r'class="line s0[^>]*d="([^"]*)"', drawn)
    assert line
    places = [tuple(map(float, pair.split())) for pair in re.split("[ML]", line[1])[1:]]
    assert places[0][0] < places[1][0] < places[2][0]
    third = (places[2][0] - places[0][0]) / 3
    assert places[1][0] - places[0][0] == pytest.approx(2 * third, abs=0.05)
