"""``fedatlas predict``: a run's model on new rows, with the preprocessing it was trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.preprocess import Preprocess
from fedatlas.errors import DataError
from fedatlas.experiment.api import load
from fedatlas.metrics.quality import predictions

if TYPE_CHECKING:
    import pandas

PIECE = 2000  # rows a forward pass


def predict_file(run: Path, file: Path) -> pandas.DataFrame:
    """Predictions for the rows of a file: the class and the probability of each, or the number in the target's unit."""
    loaded = load(run)
    done = Preprocess.from_json(json.loads((run / "preprocess.json").read_text(encoding="utf-8")))
    x = read_rows(file, done)
    with torch.inference_mode():
        outputs = torch.cat([loaded.model(x[at : at + PIECE]) for at in range(0, max(len(x), 1), PIECE)])
    return as_table(outputs, done)


def read_rows(file: Path, done: Preprocess) -> Tensor:
    """The rows as the model reads them."""
    if not file.exists():
        raise DataError(f"there is no file '{file}'.")
    try:
        return _rows(file, done)
    except (ValueError, OSError) as error:  # pandas' EmptyDataError and ParserError are ValueErrors
        raise DataError(f"'{file}' cannot be read: {error}.") from error


def _rows(file: Path, done: Preprocess) -> Tensor:
    import pandas

    if file.name.endswith(".npz"):
        arrays = np.load(file, allow_pickle=False)
        if "x" not in arrays:
            raise DataError(f"'{file}' has no array 'x'; it holds {', '.join(arrays.files)}.")
        return done.apply(arrays["x"])
    if file.name.endswith((".csv", ".csv.gz")):
        return done.apply(pandas.read_csv(file))
    if file.name.endswith(".parquet"):
        return done.apply(pandas.read_parquet(file))
    raise DataError(f"'{file}': rows to predict are a .csv, .csv.gz, .parquet or .npz file.")


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
