"""The report in a browser: what is drawn equals the run's files in ink, and keys, pointer and links work."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedatlas.wording import number
from reports import CURVES, KINDS, Page, rows, summary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab


@pytest.fixture
def tab(browser: Browser) -> Any:
    """A new tab; at its end it must have asked nothing of a network and reported no error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert said == []
    assert all(re.match(r"(file|data|blob):", url) for url in asked), asked
    assert sum(url.startswith("file:") for url in asked) == len({url for url in asked if url.startswith("file:")})


@pytest.mark.parametrize("kind", KINDS)
def test_it_opens_offline_and_fits_a_phone(tab: Tab, reports: dict[str, Path], kind: str) -> None:
    tab.context.set_offline(True)
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.goto(reports[kind].as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
    for choice in ("bytes", "seconds", "round"):
        tab.check(f"input[value={choice}]")
        assert tab.evaluate("document.documentElement.scrollWidth") == 360
        assert tab.locator(f"[data-option={choice}] svg").first.is_visible()
    drawn = tab.locator("svg:visible")
    assert drawn.count() >= 5
    # 12 units of a drawing are its text: on a phone they are not much smaller than that in pixels.
    scales = tab.evaluate(
        "[...document.querySelectorAll('svg')].filter((s) => s.checkVisibility()).map((s) => s.getScreenCTM().a)"
    )
    assert min(scales) > 0.85


def ticks(picture: Locator, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and places of an axis, read from the drawing."""
    found = picture.locator(f"g.tick.{axis}").evaluate_all(
        "(gs) => gs.map((g) => [g.dataset.value, g.getAttribute('transform')])"
    )
    places = [[float(v) for v in re.findall(r"-?[\d.]+", turn)] for _, turn in found]
    return np.array([float(v) for v, _ in found]), np.array([p[0 if axis == "x" else 1] for p in places])


def inverted(picture: Locator, axis: str, places: np.ndarray) -> tuple[np.ndarray, float]:
    """The values at places on paper, by the axis' own ticks; and how much value a hundredth of a unit is."""
    values, at_ = ticks(picture, axis)
    slope = (values[-1] - values[0]) / (at_[-1] - at_[0])
    assert values[0] + (at_ - at_[0]) * slope == pytest.approx(values, abs=abs(slope) * 0.02)  # the axis is straight
    return values[0] + (places - at_[0]) * slope, abs(slope) * 0.02


def marks(picture: Locator, style: int) -> np.ndarray:
    """(n, 2): where the marks of a series are."""
    found = picture.locator(f"path.mark.s{style}[data-tip]").evaluate_all(
        "(ms) => ms.map((m) => m.getAttribute('transform'))"
    )
    return np.array([[float(v) for v in re.findall(r"-?[\d.]+", turn)[:2]] for turn in found])


@pytest.mark.parametrize("kind", ["classes", "numbers", "half"])
def test_drawn_points_are_the_rows(tab: Tab, runs: dict[str, Path], reports: dict[str, Path], kind: str) -> None:
    tab.goto(reports[kind].as_uri())
    known = rows(runs[kind])
    sums = {
        "round": [r["round"] for r in known],
        "bytes": list(itertools.accumulate(r["bytes_up"] + r["bytes_down"] + r["bytes_peer"] for r in known)),
        "seconds": list(itertools.accumulate(r["seconds"] for r in known)),
    }
    for axis, key in itertools.product(sums, CURVES["numbers" if kind == "numbers" else "classes"]):
        tab.check(f"input[value={axis}]")
        picture = tab.locator(f"#{key}-by-{axis} svg")
        assert picture.is_visible()
        evaluated = [i for i, r in enumerate(known) if r[key] is not None]
        points = marks(picture, 0)
        x, dx = inverted(picture, "x", points[:, 0])
        y, dy = inverted(picture, "y", points[:, 1])
        assert x == pytest.approx([sums[axis][i] for i in evaluated], abs=dx)
        assert y == pytest.approx([known[i][key] for i in evaluated], abs=dy)
        line = picture.locator("path.line.s0").get_attribute("d")
        assert np.array(re.findall(r"-?[\d.]+", line or ""), float).reshape(-1, 2) == pytest.approx(points, abs=0.011)


def test_drawn_gains_and_their_intervals_are_the_summary(
    tab: Tab, runs: dict[str, Path], reports: dict[str, Path]
) -> None:
    for kind in ("classes", "numbers"):
        tab.goto(reports[kind].as_uri())
        for picture in tab.locator("#run-gain svg").all():
            for style, part in ((1, "local_only"), (0, "federated"), (2, "centralised")):
                known = [row[part] for row in summary(runs[kind])["gain"]["clients"]]
                y, dy = inverted(picture, "y", marks(picture, style)[:, 1])
                assert y == pytest.approx([k["value"] for k in known], abs=dy)
                whiskers = picture.locator(f"path.whisker.s{style}").evaluate_all(
                    "(ws) => ws.map((w) => w.getAttribute('d'))"
                )
                ends = np.array([re.findall(r"-?[\d.]+", d)[1:] for d in whiskers], float)
                for column, end in enumerate(("low", "high")):
                    assert inverted(picture, "y", ends[:, column])[0] == pytest.approx([k[end] for k in known], abs=dy)


def test_drawn_bars_and_cells_are_the_rows(tab: Tab, runs: dict[str, Path], reports: dict[str, Path]) -> None:
    tab.goto(reports["half"].as_uri())
    picture, known = tab.locator("#run-bytes svg"), rows(runs["half"])[1:]
    for style, key in ((0, "bytes_up"), (1, "bytes_down")):
        boxes = picture.locator(f"rect.bar.s{style}[data-tip]").evaluate_all(
            "(bs) => bs.map((b) => [+b.getAttribute('y'), +b.getAttribute('height')])"
        )
        high, dy = inverted(picture, "y", np.array([y for y, _ in boxes]))
        low, _ = inverted(picture, "y", np.array([y + h for y, h in boxes]))
        assert high - low == pytest.approx([row[key] for row in known], abs=2 * dy)
    counts = np.array(summary(runs["half"])["partition_facts"]["histogram"], float)
    cells = tab.locator("#run-classes svg:visible rect.cell").evaluate_all(
        "(cs) => cs.map((c) => [+c.getAttribute('x'), +c.getAttribute('y'), +c.getAttribute('fill-opacity')])"
    )
    shades = np.array([c[2] for c in sorted(cells, key=lambda c: (c[0], c[1]))]).reshape(counts.shape)
    share = counts / counts.sum(axis=1, keepdims=True)
    assert shades == pytest.approx(np.where(counts > 0, np.maximum(share, 0.03), 0), abs=0.006)


def test_links_give_the_files_they_name(tab: Tab, reports: dict[str, Path], tmp_path: Path) -> None:
    tab.goto(reports["two_class"].as_uri())
    page = Page(reports["two_class"])
    for name in (
        "run-gain.svg",
        "run-gain-table.csv",
        "accuracy-by-round.csv",
        "run-reliability.svg",
        "experiment.toml",
    ):
        link = tab.locator(f'a[download="{name}"]')
        link.focus()
        with tab.expect_download() as started:
            tab.keyboard.press("Enter")
        assert started.value.suggested_filename == name
        started.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().decode() == page.file(name)
    pictures = [given_["href"] for given_, _ in page.of("a") if str(given_.get("download")).endswith(".svg")]
    shown = tab.evaluate(
        """(links) => Promise.all(links.map((link) => new Promise((done) => {
            const image = new Image();
            image.onload = () => done(image.naturalWidth);
            image.onerror = () => done(0);
            image.src = link;
        })))""",
        pictures,
    )
    assert len(shown) > 15
    assert set(shown) == {340, 760}


def test_the_keyboard_reaches_everything_in_order(tab: Tab, reports: dict[str, Path]) -> None:
    tab.goto(reports["classes"].as_uri())
    # A group of radio buttons is one stop, its chosen one.
    tab.evaluate(
        """() => {
            window.told = (e) => [e.tagName, e.className, e.getAttribute('download'), e.getAttribute('aria-label')].join('|')
        }"""
    )
    expected = tab.evaluate(
        """[...document.querySelectorAll('a[href], button, input:checked, summary, [tabindex="0"]')]
            .filter((e) => e.checkVisibility()).map(told)"""
    )
    reached = []
    for _ in expected:
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("told(document.activeElement)"))
    assert reached == expected
    assert reached[0].startswith("A|skip")
    assert sum(".csv|" in stop for stop in reached) > 10


def test_arrow_keys_read_a_picture_and_choose_an_axis(
    tab: Tab, runs: dict[str, Path], reports: dict[str, Path]
) -> None:
    tab.goto(reports["classes"].as_uri())
    tab.locator("#accuracy-by-round .drawn").focus()
    heard = []
    for _ in range(4):
        tab.keyboard.press("ArrowRight")
        heard.append(tab.locator("#tip").inner_text())
    for row, text in zip(rows(runs["classes"]), heard, strict=True):
        assert text.startswith(f"round {row['round']}, accuracy {number(row['accuracy'])}")
    tab.keyboard.press("Escape")
    assert not tab.locator("#tip").is_visible()
    tab.locator("input[value=round]").focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("[data-option=bytes]").is_visible()
    assert not tab.locator("[data-option=round]").is_visible()


def test_the_pointer_reads_a_cell_and_the_configuration_is_copied(
    tab: Tab, runs: dict[str, Path], reports: dict[str, Path]
) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.goto(reports["classes"].as_uri())
    cell = tab.locator("#run-confusion rect.cell").first
    cell.hover()
    n = summary(runs["classes"])["final"]["confusion"][0][0]
    assert tab.locator("#tip").inner_text().startswith(f"true 0, predicted 0: {n:.0f} row")
    tab.locator("[data-copies=run-config]").click()
    assert tab.evaluate("navigator.clipboard.readText()") == (runs["classes"] / "config.toml").read_text()
    assert tab.locator("[data-copies=run-config]").inner_text() == "Copied"


def test_folded_runs_open_for_their_links_and_for_paper(tab: Tab, reports: dict[str, Path]) -> None:
    tab.goto(reports["several"].as_uri())
    assert not tab.locator("#run3-cost-section").is_visible()
    tab.evaluate("location.hash = 'run3-cost-section'")
    tab.wait_for_function("document.getElementById('run3').open")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details:not([open])").count() == 0
