"""The picture of a partition, as SVG and as text: what it says and draws."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from fedatlas.data.dataset import Partition
from fedatlas.data.partition import PARTITIONS
from fedatlas.reporting.drawing.partition import draw, draw_text

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("sitting & standing", "<walking>", "lying")
SMALL = Partition((np.array([0, 1, 2]), np.array([3])), left_out=1)
SMALL_LABELS = np.array([0, 0, 1, 2, 2])


def test_the_svg_says_and_draws_the_counts():
    picture = draw(SMALL, SMALL_LABELS, NAMES)
    root = ET.fromstring(picture)  # noqa: S314 - our own drawing
    labelled = root.attrib["aria-labelledby"].split()
    assert [root.find(f"{SVG}title").attrib["id"], root.find(f"{SVG}desc").attrib["id"]] == labelled
    assert root.find(f"{SVG}title").text == "Class distribution per client, 2 clients"
    assert "2 clients hold 4 rows, 1 to 3 each" in root.find(f"{SVG}desc").text
    notes = [note.text for note in root.iterfind(f"{SVG}g/{SVG}rect/{SVG}title")]
    assert notes == [
        "client 0, sitting & standing: 2 rows (67%)",
        "client 0, <walking>: 1 rows (33%)",
        "client 1, lying: 1 rows (100%)",
    ]
    heights = [float(bar.attrib["height"]) for bar in root.iterfind(f"{SVG}g/{SVG}rect")]
    assert heights == pytest.approx([200, 100, 100])  # 3 rows fill the plot of 300 units
    first, second = list(root.iterfind(f"{SVG}g/{SVG}rect"))[:2]
    assert float(second.attrib["y"]) + 100 == pytest.approx(float(first.attrib["y"]))  # stacked on the first
    assert len(set(re.findall(r'<g fill="(#\w+)"', picture))) == 3


def test_the_svg_is_self_contained_and_repeatable():
    picture = draw(SMALL, SMALL_LABELS, NAMES)
    assert picture == draw(SMALL, SMALL_LABELS, NAMES)
    assert set(re.findall(r"https?://[^\"\s]+", picture)) == {"http://www.w3.org/2000/svg"}
    assert "href" not in picture
    assert "<script" not in picture


def test_many_clients_and_classes_still_make_a_picture():
    labels = np.arange(3000) % 100
    part = PARTITIONS["dirichlet_fedseq"](labels, 450, 1, alpha=0.5)
    root = ET.fromstring(draw(part, labels, [f"class {c}" for c in range(100)]))  # noqa: S314
    assert root.find(f"{SVG}title").text == "Class distribution per client, 450 clients (150 drawn)"
    assert len(root.findall(f"{SVG}g")) == 100
    text = draw_text(part, labels, [f"class {c}" for c in range(100)]).splitlines()
    assert len(text) == 42
    assert text[40].startswith("... and 410 more clients with ")


def test_regression_shows_sizes():
    root = ET.fromstring(draw(SMALL, np.linspace(0, 1, 5), ()))  # noqa: S314
    assert [note.text for note in root.iterfind(f"{SVG}g/{SVG}rect/{SVG}title")] == [
        "client 0: 3 rows",
        "client 1: 1 rows",
    ]
    assert draw_text(SMALL, np.linspace(0, 1, 5), ()).splitlines()[1] == "client 1  1 rows  ██████████"


def test_the_terminal_shows_a_line_per_client():
    lines = draw_text(SMALL, SMALL_LABELS, NAMES).splitlines()
    assert lines[0] == "client 0  3 rows  █▄    67% sitting & standing  TV 0.40"
    assert lines[1] == "client 1  1 rows    █  100% lying  TV 0.60"
    assert lines[2].endswith("1 rows are left out.")
