"""What all tests share: one thread, fixed hypothesis examples, the real data and the browser where there are any."""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch, and for the processes that tests start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of these processes would compile our 700 modules again

import hypothesis
import numpy as np
import pytest
import torch

from fedatlas import machine
from fedatlas.data.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(1)

machine.commit = functools.cache(machine.commit)  # every run asks git three times

# The same examples on every machine; `pytest --hypothesis-profile explore` looks further.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("fixed")

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_finish() -> None:
    """Half a million objects of torch and pytest stay as they are: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """A test that draws from a global generator draws the same each time, whatever ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """``shared_data("mnist.npz")`` is that file under FEDATLAS_DATA; the test skips where it is absent."""

    def find(name: str) -> Path:
        folder = os.environ.get("FEDATLAS_DATA")
        if not folder:
            pytest.skip("FEDATLAS_DATA is not set")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"no {name} under FEDATLAS_DATA")
        return path

    return find


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium. The test skips without one, and fails where FEDATLAS_REQUIRE_BROWSER=1 (CI)."""
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        absent = pytest.fail if os.environ.get("FEDATLAS_REQUIRE_BROWSER") == "1" else pytest.skip
        absent(f"no Chromium: none of {', '.join(CHROMIUM)} is on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every kind that a report differs in: kind -> folder."""
    from reports import make_runs

    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def reports(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Their pages, and one of several runs side by side."""
    from reports import make_reports

    return make_reports(runs, tmp_path_factory.mktemp("reports"))


@pytest.fixture
def place(tmp_path: Path) -> tuple[Store, Path, Callable[[dict[str, bytes]], dict[str, Path]]]:
    """A store of one folder, and a function that lays originals beside it."""
    home = tmp_path / "data"
    home.mkdir()
    (home / "originals").mkdir()

    def lay(files: dict[str, bytes]) -> dict[str, Path]:
        for name, content in files.items():
            (home / "originals" / name).write_bytes(content)
        return {name: home / "originals" / name for name in files}

    return Store((home,)), home, lay
