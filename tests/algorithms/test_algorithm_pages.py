"""Every algorithm has a page in docs/algorithms, and what the pages state in figures is what is counted.

``python tests/algorithms/test_algorithm_pages.py`` writes the table of docs/algorithms/index.md anew from the records.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from configured import set_up
from fedatlas import catalogue, config
from fedatlas.algorithm import SERVER
from fedatlas.algorithms import ALGORITHMS
from fedatlas.wire import codec
from federation import brief, federation, play

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
HEADINGS = ("Symbols", "Update rules", "Objective", "Deviations", "Cost", "Expected curve", "Command")
NAMES = sorted(ALGORITHMS)
LINKS = {"gossip": 4, "push_sum": 2}  # models sent among nodes 1, 2, 3 of a ring of five, in both directions and in one


@cache
def pages() -> dict[str, str]:
    """Page -> text, the index left out."""
    return {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.stem != "index"}


def section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


@cache
def costs() -> dict[str, tuple[str, dict[str, str]]]:
    """algorithm -> (page, what its cost table says: column -> cell)."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for page, text in pages().items():
        head: list[str] = []
        for line in section(text, "Cost").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            head = cells if cells[0] == "algorithm" else head
            if cells[0] in ALGORITHMS and head:
                assert cells[0] not in found, f"{cells[0]} has two pages"
                found[cells[0]] = page, dict(zip(head, cells, strict=True))
    return found


def model_sizes(cell: str, slots: int, nodes: int = 0, newcomers: float = 0.0) -> float:
    """A cell of a cost table: its first number counts, "+ slots" adds one model a slot, "+ nodes" one a node, "+ newcomers" one for
    each client that was not there in the round before; what is small beside a model is prose.
    """
    number = re.match(r"[\d.]+", cell)
    assert number, f"'{cell}' does not begin with a number of model sizes"
    more = {"+ slots": slots, "+ nodes": nodes, "+ newcomers": newcomers}
    return float(number.group()) + sum(count for words, count in more.items() if words in cell)


def index_row(name: str) -> str:
    made = ALGORITHMS[name]()
    page = costs()[name][0]
    cells = (
        f"`{name}`",
        f"[{page}]({page}.md)",
        made.card.family,
        made.card.communication,
        made.card.keeps,
        made.card.leaves,
    )
    return "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("page", sorted(pages()))
def test_a_page_has_all_its_sections(page: str) -> None:
    found = re.findall(r"^## (.*)$", pages()[page], re.MULTILINE)
    assert tuple(found) == HEADINGS
    assert all(len(section(pages()[page], heading).strip()) > 40 for heading in HEADINGS)


def test_every_algorithm_has_one_page() -> None:
    assert sorted(costs()) == NAMES


class Wide(nn.Module):
    """Large enough that the heads of messages do not show."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8000)
        self.head = nn.Linear(8000, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.hidden(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


class Deep(nn.Module):
    """Most weights between two hidden layers, beside which the numbers of the units' names do not show."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_of_its_page_is_counted(name: str) -> None:
    """Bytes down and up per client (or superclient) and round, and of the states, in multiples of the model's."""
    made = brief(name)
    fed = federation(made, make=Deep if made.demands.layered else Wide, dtype=torch.float32)
    model = sum(x.numel() * x.element_size() for x in fed.params.values())
    server, host = play(fed, [(0, 1, 3), (1, 2, 3)])
    units = fed.round(2, (1, 2, 3), server=server).units
    asked = len(units) or len(host.view.work.keys() - {SERVER})
    state = max((codec.size(dict(host.states.get(k) or {})) for k in host.states.after.clients()), default=0)
    counted = {
        "down": host.cost.bytes_down / asked,
        "up": host.cost.bytes_up / asked,
        "client state": state,
        "server state": codec.size(dict(server)),
    }
    stated = {column: model_sizes(costs()[name][1][column], len(units), len(fed.held), 1 / 3) for column in counted}
    assert {column: size / model for column, size in counted.items()} == pytest.approx(stated, abs=0.02)
    hops = sum(len(unit.members) - 1 for unit in units) + LINKS.get(name, 0)
    assert host.cost.bytes_peer / model == pytest.approx(hops, abs=0.02 * max(hops, 1))


def commands(page: str) -> list[str]:
    return [line for line in pages()[page].splitlines() if line.startswith("fedatlas run ")]


@pytest.mark.parametrize("name", NAMES)
def test_its_command_is_on_its_page(name: str) -> None:
    assert f"fedatlas run algorithm.name={name}" in commands(costs()[name][0])


@pytest.mark.parametrize("line", dict.fromkeys(line for page in sorted(pages()) for line in commands(page)))
def test_every_command_is_one_that_runs(line: str, shared_data: Callable[[str], Path]) -> None:
    """Up to training: whatever is refused in an experiment is refused before it."""
    experiment = config.read(None, shlex.split(line)[2:])
    if experiment.data.name != "digits":  # the others are not part of a package
        shared_data(f"{experiment.data.name}.npz")
    setup = set_up(experiment, experiment.seed)
    assert setup.bench.algorithm.name == experiment.algorithm.name
    assert len(setup.first.params) > 0


@cache
def shown() -> dict[str, dict[str, Any]]:
    """Algorithm -> its row of `fedatlas list algorithms`, which `show` prints."""
    return {row["name"]: row for row in catalogue.algorithms()}


@pytest.mark.parametrize("name", NAMES)
def test_it_declares_its_place(name: str) -> None:
    """The taxonomy: family, communication, what stays and what leaves; `show` prints it."""
    made = ALGORITHMS[name]()
    assert made.card.family
    assert (made.card.keeps == "nothing") == (made.client_init is None and not made.serverless)
    assert made.card.leaves
    row = shown()[name]
    assert (row["family"], row["client_keeps"], row["partitioning"]) == (
        made.card.family,
        made.card.keeps,
        "horizontal",
    )
    assert index_row(name) in (FOLDER / "index.md").read_text(encoding="utf-8"), (
        "run: python tests/algorithms/test_algorithm_pages.py"
    )


def test_the_index_lists_no_other() -> None:
    listed = re.findall(r"^\| `(\w+)`", (FOLDER / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == NAMES


def test_every_page_is_in_the_menu() -> None:
    menu = (FOLDER.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"algorithms/{page}.md" in menu for page in [*pages(), "index"])


if __name__ == "__main__":
    path = FOLDER / "index.md"
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("| `")]
    path.write_text("\n".join([*head, *(index_row(name) for name in NAMES)]) + "\n", encoding="utf-8")
