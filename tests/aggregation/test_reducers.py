"""How updates become one value: whole numbers, counters, reducers of one's own; and CONTRIBUTING.md's examples as a newcomer runs them."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from fedatlas import Experiment, plugins, resume, run
from fedatlas.aggregation.reducers import Closing, Reduced, Reducer, each, mean, total
from fedatlas.algorithm import Algorithm, Ask, Round, RoundGenerator, State, Task
from fedatlas.cli import app
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Observer, Request
from fedatlas.registry import PLUGINS
from fedatlas.rounds import messages, returned, updated
from fedatlas.transforms import TRANSFORMS
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import federation, play

BIG = 2**53 + 1  # the first whole number that float64 cannot tell from its neighbour


def reduced(reducer: Reducer, *updates: Mapping[str, Any], p: float = 1.0) -> Any:
    """What becomes of the updates of clients 0, 1 ..."""
    so_far: Any = None
    for k, update in enumerate(updates):
        so_far = reducer.add(so_far, reducer.lift(k, update, p))
    return reducer.close(so_far, Closing(tuple(range(len(updates))), lambda part: 1.0, None))


def test_whole_numbers_are_summed_exactly() -> None:
    """As tensors, whatever their width, and as plain numbers; beside floats, in trees and out of them."""
    update = {
        "counts": torch.tensor([BIG, 3]),
        "tree": Tree(bits=torch.tensor([200], dtype=torch.uint8)),
        "n": BIG,
        "x": 0.5,
    }
    found = reduced(total(), update, update, {**update, "counts": torch.tensor([-1, 0])}).value
    assert found["counts"].tolist() == [2 * BIG - 1, 6]
    assert found["tree"]["bits"].tolist() == [600]
    assert found["counts"].dtype == found["tree"]["bits"].dtype == torch.int64
    assert (found["n"], found["x"]) == (3 * BIG, 1.5)
    assert isinstance(found["n"], int)


@pytest.mark.parametrize("reducer", [total(), each()])
def test_a_reduced_value_has_memory_of_its_own(reducer: Reducer) -> None:
    """What a worker wrote is written over by the next: nothing may look at it afterwards."""
    counts, floats = torch.tensor([1, 2]), torch.tensor([1.0, 2.0])
    lists = {"list": [counts]} if reducer.single else {}
    found = reduced(reducer, {"counts": counts, "floats": floats, **lists})
    counts.fill_(9)
    floats.fill_(9)
    seen = found.each[0] if reducer.single else found.value
    assert seen["counts"].tolist() == [1, 2]
    assert seen["floats"].tolist() == [1.0, 2.0]
    assert not reducer.single or seen["list"][0].tolist() == [1, 2]


@pytest.mark.parametrize("reducer", [mean(), total()])
def test_of_the_counters_of_batch_norm_the_largest_is_taken(reducer: Reducer) -> None:
    """In a mean and in a sum; the statistics beside them are added up."""
    seen = [torch.tensor(7), torch.tensor(9), torch.tensor(4)]
    updates = [{"buffers": Tree({"seen": n, "mean": torch.ones(2)})} for n in seen]
    found = reduced(reducer, *updates, p=0.5).value["buffers"]
    assert int(found["seen"]) == 9
    assert found["mean"].tolist() == ([1.5, 1.5] if reducer.name == "mean" else [3.0, 3.0])


def test_whole_numbers_have_no_mean() -> None:
    """Their largest was taken without a word."""
    with pytest.raises(ProtocolError, match="whole numbers, which have no mean: request them with reduce='sum'"):
        reduced(mean(), {"counts": torch.tensor([1, 2])}, p=0.5)


def largest() -> Reducer:
    """Of each weight the largest."""

    def close(held: list[Tree] | None, closing: Closing) -> Reduced:
        if held is None:
            return Reduced()
        return Reduced({"model": Tree({name: torch.stack([m[name] for m in held]).amax(0) for name in held[0]})})

    def lift(client: int, update: Mapping[str, Any], coefficient: Any) -> list[Tree]:
        return [Tree({name: x.clone() for name, x in update["model"].items()})]

    return Reducer("largest", lift, lambda held, one: (held or []) + one, close)


def by_largest(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    replies = yield Ask(round.cohort, "train", messages(algorithm, server, round.cohort), largest())
    return updated(algorithm, server, replies, returned(round, replies))


def test_a_reducer_that_says_nothing_may_look_at_single_updates() -> None:
    """What it does with them nobody can tell: the task has to declare what it shows."""
    assert largest().single
    with pytest.raises(
        ProtocolError, match="by reduce='largest', which looks at single clients, but the task declares"
    ):
        play(federation(Algorithm("upmost", rounds=by_largest)), [(0, 1, 2)])


def test_a_reducer_that_an_ask_brings_sees_what_was_opened() -> None:
    """It needs no name in a table; under a transform it is handed each update as the server has opened it."""
    made = Algorithm("upmost", tasks={"train": Task(shows=("model",))}, rounds=by_largest)
    fed = federation(made)
    squeezed = fed._replace(bench=fed.bench._replace(transform=TRANSFORMS["topk"](share=0.1)))
    opened: dict[int, Tree] = {}

    class Models(Observer):
        def opened(self, request: Request, update: Mapping[str, Any]) -> None:
            opened[request.client] = update["model"].map(torch.clone)

    plain, full = play(fed, [(0, 1, 2)])
    host = squeezed.host()
    host.server.observers = (Models(),)
    server, host = play(squeezed, [(0, 1, 2)], host=host)
    assert host.cost.bytes_up < 0.8 * full.cost.bytes_up  # it was sealed
    for name, x in server["model"].items():
        assert torch.equal(x, torch.stack([opened[k][name] for k in (0, 1, 2)]).amax(0))
    assert not torch.equal(server["model"].flatten(), plain["model"].flatten())


# ------------------------------------------------------------------------------------------------ as a newcomer would


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Python of CONTRIBUTING.md's section, run in a folder of its own; plug-ins are forgotten afterwards."""
    for kind in PLUGINS:
        monkeypatch.setitem(PLUGINS, kind, {})
    monkeypatch.setattr(plugins, "LOADED", {})
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    section = text.split("## Adding a question, a reducer, an observer")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


class Models(Observer):
    """The models of the last round, as the server has opened them."""

    def __init__(self) -> None:
        self.asked_for: list[tuple[int, str, str]] = []
        self.models: dict[int, Tree] = {}

    def asked(self, request: Request) -> None:
        self.asked_for.append((request.client, request.what, request.reduce))

    def opened(self, request: Request, update: Mapping[str, Any]) -> None:
        if request.what == "train":
            self.models[request.client] = Tree(update["model"]).map(torch.clone)


def test_a_plugin_brings_a_question_and_a_reducer_that_its_algorithm_names(examples: list[str]) -> None:
    """The coordinate-wise median, through the command line; the model is numpy's median of what the clients sent."""
    Path("robust.py").write_text(examples[0])
    chosen = ["algorithm.name=robust", "rounds=2", "partition={name='iid', clients=4}", "engine.plan=program"]
    said = CliRunner().invoke(
        app, ["run", "--plugin", "robust.py", "--out", "run", "--no-baselines", "--quiet", *chosen]
    )
    assert said.exit_code == 0, said.output
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["accuracy"] > rows[0]["accuracy"]
    assert 0 < rows[1]["figures"]["right"] < rows[2]["figures"]["right"] <= 1
    said = CliRunner().invoke(app, ["list", "reducers"])
    assert "The coordinate-wise median of the models" in " ".join(said.output.split())

    chosen += ["model.norm=batch", "local.lr=0.01"]  # the statistics of batch norm are reduced, too
    said = CliRunner().invoke(
        app, ["run", "--plugin", "robust.py", "--out", "norm", "--no-baselines", "--quiet", *chosen]
    )
    assert said.exit_code == 0, said.output
    state = load_file("norm/model.safetensors")
    assert all(x.abs().sum() > 0 for name, x in state.items() if name.endswith(("running_mean", "batches_tracked")))

    seen = Models()
    tables = {
        "algorithm": {"name": "robust"},
        "partition": {"name": "iid", "clients": 4},
        "engine": {"plan": "program"},
    }
    done = run(Experiment.of(rounds=2, **tables), out="watched", baselines=False, observers=[seen])
    model = load_file(done.path / "model.safetensors")
    assert all(torch.equal(x, load_file("run/model.safetensors")[name]) for name, x in model.items())
    assert seen.asked_for[:8] == [*[(k, "look", "sum") for k in range(4)], *[(k, "train", "median") for k in range(4)]]
    for name, x in model.items():
        middle = np.median([seen.models[k][name].numpy() for k in range(4)], axis=0)
        assert np.allclose(x.numpy(), middle, rtol=0, atol=1e-7)


def test_an_observer_writes_what_crossed(examples: list[str]) -> None:
    """Every reply of every client, with bytes that add up to those of the record; it changes no result."""
    Path("watch.py").write_text(examples[1])
    runpy.run_path("watch.py")
    lines = [line.split() for line in Path("crossed.txt").read_text().splitlines()]
    rows = [json.loads(line) for line in Path("watched/metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        mine = [line for line in lines if int(line[0]) == row["round"]]
        assert [int(line[1]) for line in mine] == row["clients"]
        assert sum(int(line[3]) for line in mine) == row["bytes_up"]
    alone = run(Experiment.of(rounds=2), out="alone", baselines=False)
    assert (alone.path / "model.safetensors").read_bytes() == Path("watched/model.safetensors").read_bytes()


class Rounds(Observer):
    """The runs and rounds in which something was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def asked(self, request: Request) -> None:
        if (request.run, request.round) not in self.seen:
            self.seen.append((request.run, request.round))


TINY = {"partition": {"name": "iid", "clients": 3}, "data": {"name": "digits", "limit": 60}}


def test_observers_see_every_seed_and_what_is_resumed(tmp_path: Path) -> None:
    seen = Rounds()
    run(Experiment.of(rounds=1, seeds=[1, 2], **TINY), out=tmp_path / "run", baselines=False, observers=iter([seen]))
    assert seen.seen == [("seed-1", 1), ("seed-2", 1)]
    seen.seen.clear()
    resume(tmp_path / "run", ["rounds=2"], observers=iter([seen]))
    assert seen.seen == [("seed-1", 2), ("seed-2", 2)]


def test_observers_see_no_baseline(tmp_path: Path) -> None:
    seen = Rounds()
    done = run(Experiment.of(rounds=1, **TINY), out=tmp_path / "run", baselines=True, observers=[seen])
    assert (done.path / "baselines" / "local_only").is_dir()
    assert seen.seen == [("run", 1)]


def test_what_an_observer_is_shown_as_it_crosses_is_sealed() -> None:
    """Under topk a reply is a tenth of what the server opens."""

    class Sizes(Observer):
        def __init__(self) -> None:
            self.crossed, self.opened_as = 0, 0

        def replied(self, request: Request, update: Mapping[str, Any]) -> None:  # noqa: ARG002
            self.crossed += codec.size(update)

        def opened(self, request: Request, update: Mapping[str, Any]) -> None:  # noqa: ARG002
            self.opened_as += codec.size(update)

    fed = federation(Algorithm("plain"))
    host = fed._replace(bench=fed.bench._replace(transform=TRANSFORMS["topk"](share=0.1))).host()
    sizes = Sizes()
    host.server.observers = (sizes,)
    play(fed._replace(bench=host.bench), [(0, 1)], host=host)
    assert 0 < sizes.crossed == host.cost.bytes_up < sizes.opened_as
