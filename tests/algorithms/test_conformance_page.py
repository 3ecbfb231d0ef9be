"""docs/conformance.md is generated; this holds its structure to the registry, so that it cannot go stale unseen."""

from __future__ import annotations

import pytest

from comparison import oracles
from conformance_page import PAGE, Page, case_text, laws_and_what_they_say, read, written
from fedatlas.algorithms import ALGORITHMS
from mutations import mutations

AGAIN = "run: python tests/support/conformance_page.py [NAME ...]"


@pytest.fixture(scope="module")
def page() -> Page:
    return read(PAGE.read_text(encoding="utf-8"))


def test_it_is_written_by_the_script(page: Page) -> None:
    assert written(page) == PAGE.read_text(encoding="utf-8"), AGAIN


def test_it_names_the_algorithms_and_the_laws(page: Page) -> None:
    assert page.laws == laws_and_what_they_say(), AGAIN
    assert sorted(page.cells) == sorted(ALGORITHMS), AGAIN
    for name, row in page.cells.items():
        left_out = ALGORITHMS[name]().card.excluded_laws
        assert row == {law: "excluded" if law in left_out else "passed" for law in page.laws}, f"{name}: {AGAIN}"


def test_it_gives_every_reason(page: Page) -> None:
    reasons = {(name, law): why for name in ALGORITHMS for law, why in ALGORITHMS[name]().card.excluded_laws.items()}
    assert page.excluded == reasons, AGAIN


def test_it_names_the_oracles_and_what_they_were_run_with(page: Page) -> None:
    stated = {name: "; ".join(case_text(case) for case in module.CASES) for name, module in oracles().items()}
    assert {name: cases for name, (cases, _) in page.oracles.items()} == stated, AGAIN


def test_it_names_the_faults_and_what_finds_them(page: Page) -> None:
    stated = {(m.algorithm, m.fault): "; ".join(c.__name__.replace("_", " ") for c in m.checks) for m in mutations()}
    assert page.faults == stated, AGAIN
