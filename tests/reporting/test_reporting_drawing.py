"""Numbers as the report words them, the scales of its pictures, and colours that every eye tells apart."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedatlas.reporting.client_rows import drawn_clients
from fedatlas.reporting.drawing.scales import linear, nice_step
from fedatlas.reporting.page import read
from fedatlas.wording import bytes_text, csv_text, number, seconds_text, signed


def test_numbers_as_people_read_them() -> None:
    assert [number(v) for v in (0.81111, 59317.9, 123.456, 0.000123, 0.0, -0.25, None)] == [
        "0.811", "59,318", "123.5", "0.00012", "0.000", "−0.250", "–",
    ]  # fmt: skip
    assert [signed(v) for v in (0.5, -0.5, 0.0)] == ["+0.500", "−0.500", "0.000"]
    assert [bytes_text(n) for n in (0, 999, 1000, 1234567, 5.2e10)] == [
        "0\xa0B",
        "999\xa0B",
        "1.00\xa0kB",
        "1.23\xa0MB",
        "52.0\xa0GB",
    ]
    assert [seconds_text(s) for s in (0.0123, 9.5, 75, 7260)] == ["12.3\xa0ms", "9.50\xa0s", "1 min 15 s", "2 h 1 min"]
    assert csv_text(("a", "b"), [("x, y", None), (0.1, 'say "it"')]) == 'a,b\r\n"x, y",\r\n0.1,"say ""it"""\r\n'


def test_ticks_by_hand() -> None:
    # 0.0556 to 0.8111 spans 0.7555; a fifth of it is 0.1511, so 0.2 is the smallest nice step: 0, 0.2 ... 1 enclose it.
    scale = linear([0.0556, 0.8111], 100.0, 0.0)
    assert scale.ticks == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert scale(0.5) == pytest.approx(50.0)
    assert linear([0, 7], 0, 70, tight=True, whole=True).ticks == (0.0, 2.0, 4.0, 6.0)
    assert [nice_step(1.0, 4), nice_step(7.0, 5, whole=True), nice_step(0.3, 3, whole=True)] == [0.25, 2.0, 1.0]


@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=20), st.booleans(), st.booleans())
@example([1.1754943508222875e-38], False, False)
def test_a_scale_holds_its_values_between_its_ends(values: list[float], zero: bool, tight: bool) -> None:
    scale = linear(values, 0.0, 300.0, zero=zero, tight=tight)
    assert all(-1e-3 <= scale(v) <= 300 + 1e-3 for v in values)
    assert len(scale.ticks) <= 8
    assert all(a < b for a, b in itertools.pairwise(scale.ticks))
    assert all(-1e-3 <= scale(t) <= 300 + 1e-3 for t in scale.ticks)


@given(st.integers(1, 100_000))
def test_few_enough_clients_are_drawn_and_the_first_is_among_them(clients: int) -> None:
    assert drawn_clients(clients)[0] == 0
    assert min(clients, 120) <= len(drawn_clients(clients)) <= 240


# Colour-blind eyes simulated: Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
EYES = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear_rgb(colour: str) -> np.ndarray:
    c = colour.lstrip("#")
    c = "".join(2 * x for x in c) if len(c) == 3 else c
    part = np.array([int(c[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    ratio = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1)
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_told_apart_by_every_eye(scheme: int) -> None:
    block = re.findall(r":root \{([^}]*)\}", read("page.css"))[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", block))
    light = {name: float(XYZ[1] @ linear_rgb(c)) for name, c in colours.items()}

    def contrast(a: str, b: str = "paper") -> float:
        high, low = sorted((light[a], light[b]), reverse=True)
        return (high + 0.05) / (low + 0.05)

    series = [f"s{i}" for i in range(6)]
    assert all(contrast(name) >= 4.5 for name in ("ink", "soft", "accent"))  # WCAG 2: text
    assert contrast("warn", "warn-wash") >= 4.5
    assert all(contrast(name) >= 3.0 for name in (*series, "heat", "faint"))  # WCAG 2: what a picture is made of
    for eye in EYES.values():
        seen = [cielab(np.array(eye) @ linear_rgb(colours[name])) for name in series]
        # A difference of 2.3 is just noticeable; 15 is told apart in a small mark.
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= 15
