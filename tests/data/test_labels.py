"""Labels: whatever is cited has its line in docs/labels.md, pages link there, and no file is named that is not in the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fedatlas.published.results import linked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "labels.md"
LABEL = re.compile(r"(?<![\w.\"'])[BCDGHLMPSTVX]\d{1,2}a?\b(?!\.\d)")
FOLDERS = ("src", "tests", "benchmarks", "docs")


def texts() -> dict[Path, str]:
    """Every text of the repository that people read: code, pages, records of results."""
    listed = (
        [p for folder in FOLDERS for p in (ROOT / folder).rglob("*")]
        + list(ROOT.glob("*.md"))
        + list(ROOT.glob("*.toml"))
    )
    kinds = {".py", ".md", ".toml", ".txt", ".json", ".css", ".html", ".js", ".h"}
    found = [p for p in listed if p.suffix in kinds and p.is_file() and "site" not in p.parts]
    return {path: path.read_text(encoding="utf-8") for path in found}


def explained() -> list[str]:
    return re.findall(r'<a id="([a-z]\d{1,2}a?)"></a>', PAGE.read_text(encoding="utf-8"))


def test_each_label_that_is_cited_has_its_line() -> None:
    known, cited = set(explained()), set[str]()
    assert len(known) == len(explained()) > 100
    for path, text in texts().items():
        if path.suffix in {".py", ".md"} and path.name not in {
            "svg.py",
            "test_labels.py",
        }:  # a path begins with M0 there
            cited |= set(LABEL.findall(text.replace("L2 norm", "")))
    assert len(cited) > 80
    assert sorted(label for label in cited if label.lower() not in known) == []


def test_each_line_says_what_its_label_is() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if "<a id" in line:
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            assert len(cells) > 1
            assert all(cells), line


def test_pages_link_to_the_labels_that_they_cite() -> None:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path == PAGE:
            continue
        text = re.sub(
            r"```.*?```|`[^`\n]*`|^#[^\n]*$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        beside = "labels.md" if path.parent == ROOT / "docs" else "../labels.md"
        links = re.findall(r"\[([A-Z]\d{1,2}a?)\]\(([^)]*)\)", text)
        assert {(label, f"{beside}#{label.lower()}") for label, _ in links} == set(links), path.name
        bare = LABEL.findall(re.sub(r"!?\[[^\]]*\]\([^)]*\)", "", text))
        assert bare == [], path.name


def test_no_file_is_named_that_is_not_in_the_repository() -> None:
    """Names in capitals are those of papers beside the repository; all others are found by the end of their path."""
    there = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not there:
        pytest.skip("this is no checkout")
    ends = {"/".join(Path(name).parts[i:]) for name in there for i in range(len(Path(name).parts))}
    wrong = []
    for path, text in texts().items():
        for name in re.findall(r"(?<![\w/.{}-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b", text):
            capital = Path(name).stem.isupper() and name.endswith(".md")
            ours = name.split("/")[0] in {"docs", "src", "tests", "benchmarks"} or (
                name.count("/") and path.suffix == ".md"
            )
            if (
                name not in ends
                and (capital or ours)
                and not any(example in name for example in ("leash", "bounded", "NAME"))
            ):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert sorted(set(wrong)) == []


def test_links_leave_code_and_links_alone() -> None:
    assert linked("T9 (T8a), `T9` and [T9](x)") == "[T9](labels.md#t9) ([T8a](labels.md#t8a)), `T9` and [T9](x)"
