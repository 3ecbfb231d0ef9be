"""Faults of distillation: the wrong teacher, the wrong distance, the wrong model kept."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from torch import Tensor

from fedatlas.algorithm import by_samples
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.distillation import Distance, divergence
from fedatlas.engine.patience import Watch
from mutations import Mutation, oracle, with_fields
from test_mixed import distillation_never_harms

feddf = import_module("fedatlas.algorithms.feddf")  # the package names the builder as its file is called
TWO: dict[str, Any] = {"problem": {"several": True}}


def the_other_way_round(patch: pytest.MonkeyPatch) -> None:
    """KL(student || teacher)."""

    def distance(name: str, temperature: float) -> Distance:
        def reversed_(student: Tensor, teacher: Tensor) -> Tensor:
            return divergence(teacher, student, temperature)

        return reversed_

    patch.setattr(feddf, "distance", distance)


def the_last_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watch, "kept", lambda self, params, buffers: (params, buffers))


MUTATIONS = [
    Mutation(
        "fedmd",
        "consensus weighted by examples",
        with_fields(ALGORITHMS["fedmd"], weigh=by_samples),
        (oracle("fedmd", **TWO),),
    ),
    Mutation(
        "fedmd",
        "squared differences in place of absolute ones",
        lambda **keys: ALGORITHMS["fedmd"](**{**keys, "digest": "l2"}),
        (oracle("fedmd"),),
    ),
    Mutation(
        "feddf",
        "divergence of the teacher from the student",
        ALGORITHMS["feddf"],
        (oracle("feddf", **TWO),),
        the_other_way_round,
    ),
    Mutation(
        "feddf",
        "the last model is kept, not the best",
        ALGORITHMS["feddf"],
        (oracle("feddf", **TWO), distillation_never_harms),
        the_last_is_kept,
    ),
]
