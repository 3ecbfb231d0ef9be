"""What is evaluated, saved and predicts need not be a torch network; a network is one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from configured import set_up
from fedatlas import config
from fedatlas.course.evaluation import Evaluator
from fedatlas.errors import ConfigError
from fedatlas.model import Model, Scores
from fedatlas.models import parameter_count
from fedatlas.prediction.finished_run import as_table
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.assembly import Setup
from fedatlas.setup.torch_model import TorchModel

SMALL = ("partition={name='iid', clients=3}", "data.limit=200", "evaluation.clients=0.2")


@dataclass(frozen=True, eq=False)
class Nearest:
    """The class whose mean row is nearest: in closed form, without a network."""

    means: Tensor  # (classes, numbers of a row)

    @property
    def size(self) -> int:
        return self.means.numel()

    @property
    def flops(self) -> int:
        return 3 * self.means.numel()

    def predict(self, x: Tensor) -> Tensor:
        return -(x.flatten(1)[:, None] - self.means).square().sum(-1)

    def scores(self, x: Tensor, y: Tensor) -> Scores:
        outputs = self.predict(x)
        return Scores(outputs.argmax(-1), torch.nn.functional.cross_entropy(outputs, y, reduction="none"), None)

    def finite(self) -> bool:
        return bool(torch.isfinite(self.means).all())

    def save(self) -> Mapping[str, Tensor]:
        return {"means": self.means}

    def load(self, state: Mapping[str, Tensor]) -> Nearest:
        return Nearest(state["means"])


def fitted(setup: Setup) -> Nearest:
    x, y = setup.dataset.inputs(setup.dataset.train.x).flatten(1), setup.dataset.train.y
    return Nearest(torch.stack([x[y == c].mean(0) for c in range(setup.dataset.classes)]))


def test_a_model_that_is_no_network_is_evaluated_saved_and_predicts(tmp_path: Path):
    setup = set_up(config.read(None, SMALL), 1)
    model: Model = fitted(setup)
    evaluator, x = Evaluator(setup), setup.dataset.inputs(setup.dataset.test.x)
    row = evaluator.row(model)
    right = (model.predict(x).argmax(-1) == setup.dataset.test.y).float().mean().item()
    assert row["accuracy"] == pytest.approx(right)
    assert right > 0.7
    assert row["client_accuracy"]["min"] <= row["client_accuracy"]["mean"]
    low, high = evaluator.detail(model)["interval"]["accuracy"]
    assert low < right < high
    assert [client["client"] for client in evaluator.per_client(lambda k: model)] == [0, 1, 2]
    RunFolder(tmp_path).save_model("model.safetensors", model.save())
    again = model.load(load_file(tmp_path / "model.safetensors"))
    table = as_table(again.predict(x), setup.held.preprocess)
    assert (table["prediction"] == [setup.dataset.class_names[c] for c in model.predict(x).argmax(-1)]).all()


def test_a_network_is_saved_and_had_again():
    """Loaded, it is another module with the same tensors: same size, same answers, and training one leaves the other alone."""
    setup = set_up(config.read(None, SMALL), 1)
    model: TorchModel = setup.models().initial()[""]
    again = model.load({name: 2 * x for name, x in model.save().items()}).load(model.save())
    x, y = setup.dataset.inputs(setup.dataset.test.x), setup.dataset.test.y
    assert again.module is not model.module
    assert torch.equal(again.predict(x), model.predict(x))
    assert torch.equal(again.scores(x, y).losses, model.scores(x, y).losses)
    assert (again.size, again.flops) == (model.size, model.flops) == (parameter_count(model.module), setup.first.flops)
    assert again != model  # equal tensors, but others
    assert model == setup.models().initial()[""]
    with pytest.raises(ConfigError, match=r"do not belong to HeadedModel; names that differ: body\.1\.bias"):
        model.load({name: x for name, x in model.save().items() if name != "body.1.bias"})


def test_finite_means_what_was_learnt():
    setup = set_up(config.read(None, SMALL), 1)
    models, first = setup.models(), setup.first
    assert models(first.params, {"mask": torch.tensor([-torch.inf])}).finite()
    broken = first.params.map(lambda x: torch.full_like(x, torch.nan))
    assert not models(broken, {}).finite()
