"""pip can resolve what a user is told to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from test_architecture import PROJECT, ROOT

WITHOUT_PINS = {"hub"}  # docs/install.md says so


@pytest.mark.slow  # asks a package registry
@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"].keys() - WITHOUT_PINS))
def test_an_extra_resolves_with_the_pins(extra: str):
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_extras_that_do_not_are_named():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for extra in PROJECT["optional-dependencies"].keys() - {"test", "docs"}:
        assert f"| `{extra}` |" in page
    for extra in WITHOUT_PINS:
        assert f"`{extra}` needs older" in page
