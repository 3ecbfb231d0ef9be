"""Writes docs/conformance.md from the tests: which algorithm passed which law, its oracle, and the faults that are found.

``python tests/support/conformance_page.py`` runs test_conformance, test_oracles and test_mutations (minutes). With names of
algorithms it runs only theirs, and leaves the other rows as they stand. Nothing is written if a test fails.
tests/algorithms/test_conformance_page.py holds the page to the registry.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedatlas.published.results import linked

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"
FILES = ("test_conformance.py", "test_oracles.py", "test_mutations.py")  # of tests/algorithms
HEAD = """\
# Conformance

Every algorithm is tested in three ways: by laws that all of them obey, against a second implementation, and by faults
made on purpose. `conformance_page.py` in `tests` writes this page from the tests that ran; it is not edited by hand.

The laws hold under partial participation, with unequal clients and ragged batches. If the mathematics of an algorithm
excludes a law, its record gives the reason.
"""
ORACLES = """\
## Oracles

An oracle is a second implementation in `tests/support/oracles`, written from the paper's pseudo-code. It imports nothing of
fedatlas. Both run in float64 on a small non-convex problem: 20 rounds with three of five unequal clients each, ragged
batches, weight decay. Some cases set other numbers (`rounds`, and `m` clients).

The difference is the largest of any number of the global model, the server's state or a client's state after the last
round.
"""
FAULTS = """\
## Faults that are found

Each fault is made on purpose in `tests/support/mutations`. Each named check finds it, and passes for the correct algorithm.
"""


class Page(NamedTuple):
    """What the page says, row by row."""

    laws: dict[str, str]  # law -> what it says
    cells: dict[str, dict[str, str]]  # algorithm -> law -> passed | excluded
    oracles: dict[str, tuple[str, str]]  # algorithm -> parameters it was run with, largest difference
    faults: dict[tuple[str, str], str]  # algorithm, fault -> checks that find it
    excluded: dict[tuple[str, str], str]  # algorithm, law -> reason


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def written(page: Page) -> str:
    """The page as Markdown."""
    laws = [[law, linked(says)] for law, says in page.laws.items()]
    cells = [[name, *(row[law] for law in page.laws)] for name, row in sorted(page.cells.items())]
    reasons = [f"- {name}, {law}: {why}" for (name, law), why in sorted(page.excluded.items())]
    return "\n".join(
        [
            HEAD,
            "## Laws\n",
            table(["law", "statement"], laws),
            "## Algorithms\n",
            table(["algorithm", *page.laws], cells),
            "### Exclusions\n",
            "\n".join(reasons) + "\n" if reasons else "None.\n",
            ORACLES,
            table(["algorithm", "run with", "difference"], [[n, *row] for n, row in sorted(page.oracles.items())]),
            FAULTS,
            table(["algorithm", "fault", "found by"], [[*key, by] for key, by in sorted(page.faults.items())]),
        ]
    )


def read(text: str) -> Page:
    """The inverse of `written`."""
    tables: list[list[list[str]]] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        row = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if row[0] in {"law", "algorithm"}:
            tables.append([])
        tables[-1].append(row)
    laws, cells, oracles, faults = ([t[0], *t[2:]] for t in tables)
    reasons = re.findall(r"^- (\w+), (\w+): (.*)$", text, re.MULTILINE)
    return Page(
        {row[0]: re.sub(r"\[(\w+)\]\(labels[^)]*\)", r"\1", row[1]) for row in laws[1:]},
        {row[0]: dict(zip(cells[0][1:], row[1:], strict=True)) for row in cells[1:]},
        {row[0]: (row[1], row[2]) for row in oracles[1:]},
        {(row[0], row[1]): row[2] for row in faults[1:]},
        {(name, law): why for name, law, why in reasons},
    )


class Watcher:
    """A pytest plug-in that keeps what each parametrised test was given and how it ended."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.items: dict[str, tuple[str, dict[str, Any]]] = {}
        self.ended: dict[str, pytest.TestReport] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        kept = []
        for item in items:
            given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
            about = given["mutation"].algorithm if "mutation" in given else given.get("name")
            if about is not None and (not self.names or about in self.names):
                self.items[item.nodeid] = (item.originalname, given)
                kept.append(item)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.ended[report.nodeid] = report

    def found(self, test: str, more: bool = True) -> list[tuple[dict[str, Any], pytest.TestReport]]:
        """(parameters, report) of every run of a test whose name is this one, or, with ``more``, begins with it."""
        return [
            (given, self.ended[node])
            for node, (name, given) in self.items.items()
            if name == test or (more and name.startswith(f"{test}_"))
        ]


def laws_and_what_they_say() -> dict[str, str]:
    import test_conformance

    tests = {name: f for name, f in vars(test_conformance).items() if name.startswith("test_")}
    said = {}
    for law in test_conformance.LAWS:
        of_law = [f for name, f in tests.items() if name == f"test_{law}" or name.startswith(f"test_{law}_")]
        said[law] = (inspect.getdoc(of_law[0]) or "").split("\n")[0]
    return said


def case_text(case: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in case.items()) or "defaults"


def gathered(watcher: Watcher) -> Page:
    """What the tests that ran say."""
    from fedatlas.algorithms import ALGORITHMS

    laws = laws_and_what_they_say()
    names = watcher.names or set(ALGORITHMS)
    cells: dict[str, dict[str, str]] = {name: {} for name in names}
    for law in laws:
        for given, report in watcher.found(f"test_{law}"):
            cells[given["name"]][law] = "excluded" if report.skipped else "passed"
    runs: dict[str, list[tuple[str, float]]] = {}
    for given, report in watcher.found("test_agrees_with_its_oracle", more=False):
        difference = dict(report.user_properties)["difference"]
        runs.setdefault(given["name"], []).append((case_text(given["case"]), difference))
    oracles = {n: ("; ".join(c for c, _ in row), f"{max(d for _, d in row):.0e}") for n, row in runs.items()}
    faults: dict[tuple[str, str], list[str]] = {}
    for given, _ in watcher.found("test_the_fault_is_found"):
        m = given["mutation"]
        faults.setdefault((m.algorithm, m.fault), []).append(given["check"].__name__.replace("_", " "))
    excluded = {(n, law): why for n in names for law, why in ALGORITHMS[n]().card.excluded_laws.items()}
    return Page(laws, cells, oracles, {key: "; ".join(by) for key, by in faults.items()}, excluded)


def main(names: set[str]) -> int:
    watcher = Watcher(names)
    code = pytest.main(
        ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *(str(HERE.parent / "algorithms" / f) for f in FILES)],
        [watcher],
    )
    if code:
        sys.stderr.write("conformance: a test failed, the page is left as it is\n")
        return int(code)
    page = gathered(watcher)
    if names:
        before = read(PAGE.read_text(encoding="utf-8"))
        page = Page(
            page.laws,
            {**before.cells, **page.cells},
            {**before.oracles, **page.oracles},
            {**{key: by for key, by in before.faults.items() if key[0] not in names}, **page.faults},
            {**{key: why for key, why in before.excluded.items() if key[0] not in names}, **page.excluded},
        )
    PAGE.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main(set(sys.argv[1:])))
