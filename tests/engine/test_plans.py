"""Which step every model takes under every algorithm: the committed table, held to what is really derived.

It is the step of task "train"; tasks whose tensors change their shape are named behind it. "refused": not for this model.

A model that falls back to the tuned step although the table says ``program`` fails here. After a deliberate change:
``python tests/engine/test_plans.py`` writes the table anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedatlas.algorithm import Algorithm, Budget, Facts, Task
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.batches import Rows
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench, Built, Job, LocalOptions
from fedatlas.engine.model import Network
from fedatlas.engine.program import StepProgram
from fedatlas.errors import ConfigError
from fedatlas.layers import Layer
from fedatlas.models import MODELS, adopt_dropout, draw_masks, dropout_shapes, init_model, make_loss
from fedatlas.models.chain import elastic, find_chain
from fedatlas.tree import Tree

TABLE = Path(__file__).parents[1] / "support" / "plans.json"
SHAPES = {"shakespeare_lstm": (12,), "stackoverflow_lstm": (6,), "lenet5": (3, 32, 32), "har3": (561,), "har4": (561,)}
OUTPUTS = {"shakespeare_lstm": 80, "stackoverflow_lstm": 50}
ROWS = 2


def kinds() -> dict[str, list[str]]:
    """Algorithms by the step they take: those without objective and direction of their own share one."""
    found: dict[str, list[str]] = {}
    for name in sorted(ALGORITHMS):
        task = ALGORITHMS[name]().tasks["train"]
        own = (
            task.direction is not None or task.objective.__name__ != "plain_loss" or ALGORITHMS[name]().demands.layered
        )
        found.setdefault(name if own else "plain", []).append(name)
    return found


def job(algorithm: Algorithm, chain: tuple[Layer, ...], params: Tree, buffers: Tree) -> Job:
    models = {"global": params, **{str(i): params for i in range(1, algorithm.demands.inits)}}
    server = algorithm.server_init(models, {"K": 2.0, "n": 4.0, "classes": 10.0, "chain": chain})
    facts = Facts(2.0, 4.0, 2, 10, 1.0, 0.1)
    message = {**algorithm.broadcast(server, 0), **({"buffers": buffers} if buffers else {})}
    state = algorithm.client_init(params, facts) if algorithm.client_init else {}
    return Job(0, "train", message, state, facts, Budget(steps=1), 1)


def step_of(model: str, algorithm: Algorithm) -> str:
    """ "program" or "tuned": what the fast engine really takes, or "refused"."""
    shape, outputs = SHAPES.get(model, (1, 28, 28)), OUTPUTS.get(model, 10)
    module = init_model(MODELS[model], shape, outputs, 1)
    tokens = model.endswith("lstm")
    x = torch.zeros((ROWS, *shape), dtype=torch.int64) if tokens else torch.rand((ROWS, *shape))
    chain: tuple[Layer, ...] = ()
    if algorithm.demands.layered:
        try:
            chain = find_chain(elastic(adopt_dropout(module)), x)
        except ConfigError:
            return "refused"
    per_step = model == "stackoverflow_lstm"
    y = torch.ones((ROWS, shape[0]) if per_step else (ROWS,), dtype=torch.int64)
    loss = make_loss("auto", "tokens" if per_step else "classes", outputs)
    shapes = dropout_shapes(module, x)

    def masks(rows: int, stream: torch.Generator) -> dict[str, torch.Tensor]:
        return draw_masks(module, shapes, rows, stream)

    network = Network(module, loss.mean)
    options = LocalOptions(batch_size=ROWS)
    built = Built.of(network, masks if shapes else None)
    bench = Bench(algorithm, {"": built}, lambda party: Rows(x, y), options, outputs)
    runner = FastRunner(bench, [ROWS], "program", "float32")
    runner.warm(bench, job(algorithm, chain, *network.initial()))
    step = "program" if isinstance(runner.steps["train", ROWS], StepProgram) else "tuned"
    reshaping = [what for what, task in algorithm.tasks.items() if isinstance(task, Task) and task.reshapes]
    return f"{step}; tuned: {', '.join(reshaping)}" if reshaping else step


def table() -> dict[str, dict[str, str]]:
    """model -> algorithm -> step."""
    found: dict[str, dict[str, str]] = {}
    for model in MODELS:
        found[model] = {}
        for names in kinds().values():
            step = step_of(model, ALGORITHMS[names[0]]())
            found[model] |= dict.fromkeys(names, step)
    return {model: dict(sorted(row.items())) for model, row in found.items()}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_table_of_plans_holds(model: str) -> None:
    committed = json.loads(TABLE.read_text())[model]
    assert sorted(committed) == sorted(ALGORITHMS)
    for names in kinds().values():
        step = step_of(model, ALGORITHMS[names[0]]())
        assert {name: committed[name] for name in names} == dict.fromkeys(names, step)


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
