"""Runs of every kind with their pages, and a page as a test reads it."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes

from fedatlas.api import Experiment, run
from fedatlas.reporting import write_report

CURVES = {"classes": ("accuracy", "macro_f1", "weighted_f1", "loss"), "numbers": ("rmse", "mae", "r2", "loss")}
KINDS = ("classes", "two_class", "numbers", "seeds", "half", "personal", "nothing", "several")


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
    """A user's own data file; every fourth row is for testing."""
    test = np.arange(len(y)) % 4 == 0
    np.savez(path, x_train=x[~test], y_train=y[~test], x_test=x[test], y_test=y[test])
    return str(path)


def make_runs(root: Path) -> dict[str, Path]:
    """Real runs, each a second or less: kind -> folder. The folder of `classes` has a name that HTML must not read."""
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


def make_reports(runs: dict[str, Path], root: Path) -> dict[str, Path]:
    """A page for each run, and one of three runs side by side."""
    pages = {kind: write_report([path], root / f"{kind}.html") for kind, path in runs.items()}
    pages["several"] = write_report([runs["classes"], runs["seeds"], runs["half"]], root / "several.html")
    return pages


def subjects(runs: dict[str, Path], kind: str) -> dict[str, Path]:
    """The prefix of ``data-key`` -> the folder whose summary it means."""
    if kind == "seeds":
        return {"run": runs["seeds"], **{f"run-seed{s}": runs["seeds"] / f"seed-{s}" for s in (1, 2)}}
    if kind == "several":
        seeds = {f"run2-seed{s}": runs["seeds"] / f"seed-{s}" for s in (1, 2)}
        return {"run1": runs["classes"], "run2": runs["seeds"], "run3": runs["half"], **seeds}
    return {"run": runs[kind]}
