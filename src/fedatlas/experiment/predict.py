"""A finished run, read back, and its model on new rows. Everything needed lies in the run's folder; the training data do not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.data.files import read_inputs
from fedatlas.data.preprocess import Preprocess
from fedatlas.errors import ConfigError, DataError
from fedatlas.experiment.config import ExperimentConfig
from fedatlas.experiment.networks import DTYPES
from fedatlas.experiment.record import RunFolder
from fedatlas.experiment.run import own_module
from fedatlas.metrics.quality import predictions
from fedatlas.models import make_loss, make_model
from fedatlas.models.chain import resized

if TYPE_CHECKING:
    import pandas

PIECE = 2000  # rows a forward pass


class Loaded(NamedTuple):
    """A finished run, read back."""

    path: Path
    config: ExperimentConfig
    model: nn.Module
    rows: pandas.DataFrame  # of metrics.jsonl
    summary: Mapping[str, Any]
    preprocess: Preprocess

    def predict(
        self, rows: str | Path | pandas.DataFrame | Mapping[str, Sequence[Any]] | np.ndarray | Tensor
    ) -> pandas.DataFrame:
        """The class of each row and the probability of each class, or the number in the target's unit.

        ``rows``: a file (.csv[.gz], .tsv, .parquet, .npz with x, a folder of pictures), a table, or an array in stored form.
        """
        x = read_rows(Path(rows), self.preprocess) if isinstance(rows, str | Path) else self.preprocess.apply(rows)
        parameter = next(self.model.parameters(), None)
        if x.is_floating_point() and parameter is not None:
            x = x.to(parameter.dtype)
        with torch.inference_mode():
            outputs = torch.cat([self.model(x[at : at + PIECE]) for at in range(0, max(len(x), 1), PIECE)])
        return as_table(outputs, self.preprocess)


def load(path: str | Path, module: nn.Module | None = None) -> Loaded:
    """Model, configuration and rows of a run. ``module`` where the run had a network of one's own."""
    import pandas
    from safetensors.torch import load_file

    folder = RunFolder.open(Path(path))
    config = folder.config()
    if config.seeds is not None:
        raise ConfigError(
            f"'{path}' holds several seeds: name one of them, such as {Path(path) / f'seed-{config.seeds[0]}'}."
        )
    summary = folder.summary()
    own_module(folder.path, module, resume=True)
    done = Preprocess.from_json(json.loads((folder.path / "preprocess.json").read_text(encoding="utf-8")))
    outputs = make_loss(config.model.loss, done.task, len(done.class_names)).width()
    wanted = config.model.model_copy(update={"init": ""}) if module is None else module
    dtype = DTYPES[config.engine.precision]
    model = make_model(wanted, done.shape, outputs, config.seed, dtype, tokens=done.kind == "tokens")
    state = load_file(folder.path / "model.safetensors")
    if any(state[name].shape != x.shape for name, x in model.state_dict().items() if name in state):
        model = resized(model, state)  # an algorithm that adds units made it
    model.load_state_dict(state)
    model.eval()
    return Loaded(folder.path, config, model, pandas.DataFrame(folder.rows()), summary, done)


def read_rows(file: Path, done: Preprocess) -> Tensor:
    """The rows of a file as the model reads them."""
    if not file.exists():
        raise DataError(f"there is no file '{file}'.")
    return read_inputs(file, done)


def as_table(outputs: Tensor, done: Preprocess) -> pandas.DataFrame:
    """Outputs -> a table with ``prediction`` and, for classes, a column ``p_NAME`` each."""
    import pandas

    if done.task == "numbers":
        return pandas.DataFrame(
            {"prediction": (outputs.reshape(-1).double() * done.target_sd + done.target_mean).numpy()}
        )
    if outputs.dim() > 2:  # tokens: what comes after the last step
        outputs = outputs[:, -1]
    found = predictions(outputs).tolist()
    p = torch.softmax(outputs.double(), -1)
    if outputs.shape[-1] == 1:
        one = torch.sigmoid(outputs.double().reshape(-1))
        p = torch.stack([1 - one, one], 1)
    table = pandas.DataFrame({"prediction": [done.class_names[i] for i in found]})
    probabilities = pandas.DataFrame(p.numpy(), columns=[f"p_{name}" for name in done.class_names])
    return pandas.concat([table, probabilities], axis=1)
