"""Adam's own pass over all parameters, behind a program's gradients and in the tuned step. Its formula is the oracle's."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.engine.tuned import TunedStep
from fedatlas.tree import Tree
from steps import OPTIMIZERS, batches_of, furthest, made, oracle, parts, spec_of, stepped
from test_program import NETWORKS, law


@pytest.mark.parametrize("network", ["pooled", "batch norm", "in place"])
def test_adam_is_one_pass_over_parameters_of_any_layout(network: str) -> None:
    """Also where a gradient does not lie in memory as its parameter does: here each is handed over in another order."""
    build, shape = NETWORKS[network]

    def turned(g: Tree, w: Tree, i: Any) -> Tree:
        return g.map(lambda x: x.flatten().sort().values.view(x.T.shape).T if x.dim() == 2 else 0.5 * x)

    for direction in (None, turned):
        spec = spec_of(made(build), direction=direction, optimizer=OPTIMIZERS["adam"])
        batches = batches_of(shape, [4] * 4)
        (params, buffers), inputs = parts(spec.module), {"lr": 0.01}
        expected = oracle(spec, params, buffers, inputs, batches)[0]
        tuned = stepped({4: TunedStep(spec, batches[0])}, params, buffers, inputs, batches)[0]
        assert furthest(tuned, expected) < 1e-8  # a bias before batch norm has a gradient of rounding alone
        program = law(spec, batches)
        assert program.note.endswith("Adam in one pass over all parameters")
    assert ".copy_(" in program.source.split("adam_pass")[0]
