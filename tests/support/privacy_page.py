"""Writes the tables of docs/privacy.md that are made from the records: who learns what, and which algorithm goes with which mechanism.

``python tests/support/privacy_page.py``. tests/privacy/test_privacy_contract.py holds the page to the records.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedatlas.algorithms import ALGORITHMS
from fedatlas.privacy.mechanisms import MECHANISMS, every, made
from fedatlas.setup.mechanism_choice import goes_with

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
LEARNT, GOES = "Who learns what", "Which algorithm goes with which mechanism"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def learnt() -> str:
    """The section about who learns what."""
    rows = [[f"`{name}`", *one.learns] for name, one in every().items()]
    return table(["mechanism", "the server", "other clients", "colluding"], rows)


def going() -> str:
    """The section about algorithms: a cell each, and why not. Mechanisms with the same cells share a column."""
    fine = {name: goes_with(one) for name, one in every().items()}
    reasons: list[str] = []
    rows = []
    for name, build in ALGORITHMS.items():
        row = [f"`{name}`"]
        for mechanism in MECHANISMS:
            if name in fine[mechanism]:
                row.append(f"with `{how}`" if (how := fine[mechanism][name]) else "yes")
                continue
            why = made(mechanism).limits.why_not(build())
            if why not in reasons:
                reasons.append(why)
            row.append(f"no ({reasons.index(why) + 1})")
        rows.append(row)
    alike: dict[tuple[str, ...], list[str]] = {}
    for mechanism, cells in zip(MECHANISMS, list(zip(*rows, strict=True))[1:], strict=True):
        alike.setdefault(cells, []).append(f"`{mechanism}`")
    said = [f"{i}. {why}" for i, why in enumerate(reasons, 1)]
    lines = [list(line) for line in zip([row[0] for row in rows], *alike, strict=True)]
    whole = table(["algorithm", *(", ".join(names) for names in alike.values())], lines)
    return "\n".join([whole, "", "No, because:", "", *said])


def section(text: str, heading: str) -> str:
    """What stands behind a heading's first paragraph, up to the next heading."""
    return text.split(f"\n## {heading}\n\n")[1].split("\n## ", maxsplit=1)[0].split("\n\n", maxsplit=1)[1].strip()


def with_section(text: str, heading: str, body: str) -> str:
    """The page with another body below that heading's first paragraph."""
    before, after = re.split(rf"(?<=\n## {re.escape(heading)}\n\n)", text)
    said = after.split("\n\n", maxsplit=1)[0]
    _, found, rest = after.partition("\n## ")
    return f"{before}{said}\n\n{body}\n{found}{rest}"


def written(text: str) -> str:
    """The page, its tables made anew."""
    return with_section(with_section(text, LEARNT, learnt()), GOES, going())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
