"""The report: every figure on the page is one of the run's files, in numbers and in ink, and the page needs nothing but itself."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes
from typer.testing import CliRunner

from fedatlas.cli import app
from fedatlas.errors import ConfigError
from fedatlas.experiment.api import Experiment, run
from fedatlas.experiment.report import write_report
from fedatlas.experiment.report.held import chosen
from fedatlas.experiment.report.page import read
from fedatlas.experiment.report.scales import linear, nice_step
from fedatlas.experiment.report.words import bytes_text, csv_text, number, seconds_text, signed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

ALONE = ["What came out", "What does each party gain?", "How learning went", "Who held what", "What it cost", "Where the model errs",
         "What left the clients", "Repeat this run"]  # fmt: skip
CURVES = {"classes": ("accuracy", "macro_f1", "weighted_f1", "loss"), "numbers": ("rmse", "mae", "r2", "loss")}


class Page(HTMLParser):
    """What a test asks of a page: its elements with their attributes, and the text under each."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in {"meta", "link", "input", "wbr", "path", "rect"}:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.elements[self.open[-1]][0] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for i in self.open:
            self.elements[i][2].append(data)

    def of(self, *tags: str) -> list[tuple[dict[str, Any], str]]:
        """(attributes, text) of the elements of a kind, in their order."""
        return [(given, "".join(text)) for tag, given, text in self.elements if tag in tags]

    def text(self) -> str:
        return re.sub(r"\s+", " ", self.of("body")[0][1])

    def file(self, name: str) -> str:
        """The content of the link that saves ``name``."""
        found = [given["href"] for given, _ in self.of("a") if given.get("download") == name]
        assert len(found) == 1, name
        return content(found[0])

    def table(self, name: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.file(f"{name}.csv"))))


def content(link: str) -> str:
    kind, _, data = link.partition(",")
    assert re.fullmatch(r"data:(text/csv|text/plain|image/svg\+xml);charset=utf-8", kind)
    return unquote(data)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def summary(path: Path) -> dict[str, Any]:
    return json.loads((path / "summary.json").read_text())


def at(value: Any, place: str) -> Any:
    for key in place.split("."):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def npz(path: Path, x: np.ndarray, y: np.ndarray) -> str:
    """A data file of one's own; every fourth row is for testing."""
    test = np.arange(len(y)) % 4 == 0
    np.savez(path, x_train=x[~test], y_train=y[~test], x_test=x[test], y_test=y[test])
    return str(path)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real runs, each a second or less: kind -> folder. The folder of `classes` has a name that HTML must not read."""
    root = tmp_path_factory.mktemp("runs")
    cancer, diabetes = load_breast_cancer(), load_diabetes()
    standard = (cancer.data - cancer.data.mean(0)) / cancer.data.std(0)
    two = {"name": "file", "path": npz(root / "cancer.npz", standard.astype(np.float32), cancer.target)}
    numbers = {
        "name": "file",
        "path": npz(root / "diabetes.npz", diabetes.data.astype(np.float32), diabetes.target.astype(np.float32)),
    }
    half = {
        "algorithm": {"name": "hwfedavg"},
        "cohort": {"fraction": 0.5},
        "partition": {"name": "dirichlet", "clients": 8},
    }
    quantity = {"partition": {"name": "quantity_skew", "clients": 5}}
    wanted: dict[str, tuple[dict[str, Any], bool]] = {
        "classes": ({"rounds": 3, "evaluation": {"clients": 0.2}}, True),
        "two_class": ({"rounds": 3, "data": two, "partition": {"name": "iid", "clients": 4}}, True),
        "numbers": ({"rounds": 3, "data": numbers, **quantity}, True),
        "seeds": ({"rounds": 2, "seeds": [1, 2]}, True),
        "half": ({"rounds": 4, "evaluation": {"every": 2}, **half}, False),
        "personal": ({"rounds": 2, "algorithm": {"name": "local_only"}}, False),
        "nothing": ({"rounds": 0}, False),
    }
    out = {}
    for kind, (tables, baselines) in wanted.items():
        out[kind] = root / ("<b>classes & more" if kind == "classes" else kind)
        run(Experiment.of(**tables), out=out[kind], baselines=baselines)
    return out


@pytest.fixture(scope="session")
def reports(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page for each run, and one of three runs side by side."""
    root = tmp_path_factory.mktemp("reports")
    pages = {kind: write_report([path], root / f"{kind}.html") for kind, path in runs.items()}
    pages["several"] = write_report([runs["classes"], runs["seeds"], runs["half"]], root / "several.html")
    return pages


KINDS = ("classes", "two_class", "numbers", "seeds", "half", "personal", "nothing", "several")


def subjects(runs: dict[str, Path], kind: str) -> dict[str, Path]:
    """The prefix of ``data-key`` -> the folder whose summary it means."""
    if kind == "seeds":
        return {"run": runs["seeds"], **{f"run-seed{s}": runs["seeds"] / f"seed-{s}" for s in (1, 2)}}
    if kind == "several":
        seeds = {f"run2-seed{s}": runs["seeds"] / f"seed-{s}" for s in (1, 2)}
        return {"run1": runs["classes"], "run2": runs["seeds"], "run3": runs["half"], **seeds}
    return {"run": runs[kind]}


# -- the page as text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "two_class", "half", "personal", "nothing", "numbers"])
def test_every_section_stands_in_its_place(reports: dict[str, Path], kind: str) -> None:
    expected = [title for title in ALONE if kind != "numbers" or title != "Where the model errs"]
    assert [text for _, text in Page(reports[kind]).of("h2")] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_printed_figures_equal_the_summary(runs: dict[str, Path], reports: dict[str, Path], kind: str) -> None:
    found = Page(reports[kind]).of("data")
    assert len(found) >= (3 if kind == "nothing" else 8)
    for given_, text in found:
        subject, _, place = given_["data-key"].partition(":")
        value = at(summary(subjects(runs, kind)[subject]), place)
        assert float(given_["value"]) == value
        plain = re.fullmatch(r"−?[\d,]+(\.\d+)?", text)
        if plain:  # not '4.68 MB' or '1 min 15 s': those are tested by hand below
            digits = len(text.partition(".")[2])
            assert abs(float(text.replace(",", "").replace("−", "-")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "task"), [("classes", "classes"), ("two_class", "classes"), ("numbers", "numbers"), ("half", "classes")]
)
def test_the_numbers_of_a_curve_are_the_rows(
    runs: dict[str, Path], reports: dict[str, Path], kind: str, task: str
) -> None:
    page, known = Page(reports[kind]), rows(runs[kind])
    sent = list(itertools.accumulate(r["bytes_up"] + r["bytes_down"] + r["bytes_peer"] for r in known))
    spent = list(itertools.accumulate(r["seconds"] for r in known))
    for key, axis in itertools.product(CURVES[task], ("round", "bytes", "seconds")):
        table = [r for r in page.table(f"{key}-by-{axis}") if r["curve"] != "training rows of the clients"]
        evaluated = [i for i, r in enumerate(known) if r[key] is not None]
        assert [float(r[key]) for r in table] == [known[i][key] for i in evaluated]
        assert [int(r["round"]) for r in table] == [known[i]["round"] for i in evaluated]
        assert [float(r["bytes_so_far"]) for r in table] == [sent[i] for i in evaluated]
        assert [float(r["seconds_so_far"]) for r in table] == [spent[i] for i in evaluated]


def test_several_seeds_have_a_curve_each_and_their_mean(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    table = Page(reports["seeds"]).table("accuracy-by-round")
    one, two = (rows(runs["seeds"] / f"seed-{s}") for s in (1, 2))
    mean = [float(r["accuracy"]) for r in table if "mean" in r["curve"]]
    assert mean == pytest.approx([(a["accuracy"] + b["accuracy"]) / 2 for a, b in zip(one, two, strict=True)])
    assert len(table) == 3 * len(one)


def test_the_table_of_gains_is_the_summary(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    for kind, sign in (("classes", 1), ("numbers", -1)):
        gain = summary(runs[kind])["gain"]
        table = Page(reports[kind]).table("run-gain-table")
        assert len(table) == len(gain["clients"])
        for row, known in zip(table, gain["clients"], strict=True):
            for part in ("local_only", "federated", "centralised"):
                assert [float(row[k]) for k in (part, f"{part}_low", f"{part}_high")] == [
                    known[part][k] for k in ("value", "low", "high")
                ]
            assert float(row["gain"]) == sign * (known["federated"]["value"] - known["local_only"]["value"])


def test_the_verdict_counts_who_gains(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    for kind, sign in (("classes", 1), ("numbers", -1), ("two_class", 1)):
        clients = summary(runs[kind])["gain"]["clients"]
        better = sum(sign * (c["federated"]["value"] - c["local_only"]["value"]) > 0 for c in clients)
        assert f"{better} of {len(clients)} clients do better together than alone" in Page(reports[kind]).text()


def test_without_baselines_it_says_how_to_get_them(reports: dict[str, Path]) -> None:
    assert "fedatlas run --baselines" in Page(reports["half"]).text()
    assert "itself a baseline" in Page(reports["personal"]).text()
    assert "no single confusion matrix" in Page(reports["personal"]).text()


def test_who_held_what_and_the_weights_are_the_run_s(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    page, facts = Page(reports["half"]), summary(runs["half"])["partition_facts"]
    names = summary(runs["half"])["class_names"]
    assert [[int(row[name]) for name in names] for row in page.table("run-classes")] == facts["histogram"]
    for name in ("run-weights", "run-weights-by-round"):
        found = [(int(r["round"]), int(r["client"]), float(r["weight"])) for r in page.table(name)]
        known = rows(runs["half"])
        assert found == [(r["round"], k, w) for r in known for k, w in zip(r["clients"], r["weights"], strict=True)]


def test_costs_confusion_and_calibration_are_the_summary(runs: dict[str, Path], reports: dict[str, Path]) -> None:
    page, known = Page(reports["two_class"]), summary(runs["two_class"])
    totals = {row["what"]: float(row["total"]) for row in page.table("run-costs")}
    assert totals["sent from clients to server"] == known["cost"]["bytes_up"]
    assert totals["of which training"] == known["cost"]["seconds_by_phase"]["train"]
    assert totals["floating-point operations"] == known["cost"]["flops"]
    names = known["class_names"]
    assert [[float(row[name]) for name in names] for row in page.table("run-confusion")] == known["final"]["confusion"]
    bins = [{k: float(v) for k, v in row.items()} for row in page.table("run-reliability")]
    assert bins == known["final"]["two_class"]["reliability"]
    per_round = [[int(row[k]) for k in ("bytes_up", "bytes_down", "bytes_peer")] for row in page.table("run-bytes")]
    assert per_round == [
        [row[k] for k in ("bytes_up", "bytes_down", "bytes_peer")] for row in rows(runs["two_class"])[1:]
    ]


def test_it_can_be_repeated_from_the_page_alone(
    runs: dict[str, Path], reports: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(Page(reports["half"]).file("experiment.toml"))
    again = run(Experiment.read(file), out=tmp_path / "again", baselines=False)
    assert (again.path / "model.safetensors").read_bytes() == (runs["half"] / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_sound_html_and_needs_nothing_else(reports: dict[str, Path], kind: str) -> None:
    page = Page(reports[kind])
    ids = [given_["id"] for _, given_, _ in page.elements if given_.get("id")]
    assert len(set(ids)) == len(ids)
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    for _, given_, _ in page.elements:
        assert all(name in ids for name in (given_.get("aria-labelledby") or "").split())
        for name in ("src", "href", "action", "data", "poster"):
            assert re.match(r"#|data:", given_.get(name) or "#"), given_
    assert not re.search(r"@import|url\(", page.of("style")[0][1])
    assert all(given_["aria-label"] for given_, _ in page.of("svg"))
    pictures = [given_["id"] for given_, _ in page.of("figure")]
    assert pictures
    for name in pictures:
        assert page.file(f"{name}.svg").startswith("<svg xmlns=")
        assert "var(--" not in page.file(f"{name}.svg")
        assert len(page.table(name)) >= 1


def test_names_are_text_never_markup(reports: dict[str, Path]) -> None:
    page = Page(reports["several"])
    assert "<b>classes & more" in page.text()
    assert "<b>classes" not in page.source


def test_runs_on_different_rows_are_not_compared_silently(
    runs: dict[str, Path], reports: dict[str, Path], tmp_path: Path
) -> None:
    warning = "judged on different rows"
    assert warning in Page(write_report([runs["classes"], runs["two_class"]], tmp_path / "apart.html")).text()
    assert warning not in Page(reports["several"]).text()


# -- what is refused ----------------------------------------------------------------------------------------------------------------


def test_wrong_input_is_one_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs["half"], unfinished)
    (unfinished / "summary.json").unlink()
    same = [runs["half"], runs["half"]]
    for folders, said in (
        ([unfinished], "not finished"),
        ([tmp_path / "nowhere"], "not a run"),
        ([runs["classes"], runs["numbers"]], "a report for each"),
        (same, "named twice"),
        ([], "at least one"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            write_report(folders, tmp_path / "out.html")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out.html").exists()


def test_the_command_writes_it_into_the_run(runs: dict[str, Path]) -> None:
    done = CliRunner().invoke(app, ["report", str(runs["nothing"])])
    assert done.exit_code == 0, done.output
    assert Path(done.output.strip()) == runs["nothing"] / "report.html"
    assert Page(runs["nothing"] / "report.html").of("h1")[0][1] == "fedavg on digits"


# -- numbers, scales, colours -------------------------------------------------------------------------------------------------------


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
    assert chosen(clients)[0] == 0
    assert min(clients, 120) <= len(chosen(clients)) <= 240


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


# -- the page in a browser ----------------------------------------------------------------------------------------------------------


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
    assert not tab.locator("#run3-cost").is_visible()
    tab.evaluate("location.hash = 'run3-cost'")
    tab.wait_for_function("document.getElementById('run3').open")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details:not([open])").count() == 0
