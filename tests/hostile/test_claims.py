"""docs/security.md: every claim names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_claim_names_tests_that_are_there() -> None:
    """A row of a table of claims has a file, and where it names tests of it, these."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and ".py" in line]
    missing = []
    for row in rows:
        file = ""
        for name in re.findall(r"`([^`]+)`", row.split("|")[2]):
            file, _, test = (
                name.rpartition("::")
                if "::" in name
                else (file, "", name)
                if name.startswith("test_")
                else (name, "", "")
            )
            path = TESTS / file
            if not path.is_file() or (test and f"def {test}(" not in path.read_text(encoding="utf-8")):
                missing.append(name)
    assert len(rows) > 30
    assert not missing


def test_every_table_of_claims_is_held_row_by_row() -> None:
    held = False
    for line in PAGE.splitlines():
        held = line.startswith("| claim |") or (held and line.startswith("|"))
        assert not held or line.startswith(("| claim |", "|---")) or ".py" in line, line
