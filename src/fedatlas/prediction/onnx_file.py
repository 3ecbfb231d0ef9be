"""A finished run's model as one ONNX file: raw columns or pictures in, predictions out.

Scaling, holes and categories are steps of the graph, so who runs it needs neither fedatlas nor the run. The network is
what `torch.onnx.export` makes of it; the steps before and behind it are written here, as `Preprocess.apply` and
`as_table` do them.
"""

from __future__ import annotations

import itertools
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedatlas.data.cells import MISSING
from fedatlas.data.dataset import by_channel
from fedatlas.data.preprocess import ColumnRule, Preprocess
from fedatlas.errors import ConfigError, first_line
from fedatlas.files import write_bytes
from fedatlas.models.dropout import evaluating
from fedatlas.prediction.finished_run import FinishedRun, network_in
from fedatlas.setup.torch_model import dtype_of

ROWS = "rows"  # name of the first axis of all inputs and outputs
UNSEEN, GONE = -1, -2  # codes of a category that training lacked, and of a missing cell
INPUT, LOST, OUTPUTS = "fedatlas_x", "fedatlas_lost", "fedatlas_y"  # between the three parts
EVERY_CASE = ["".join(letters) for text in MISSING for letters in itertools.product(*((c, c.upper()) for c in text))]


def export_onnx(run: FinishedRun, file: str | Path, *, client: int | None = None, model: str = "") -> Path:
    """Write the model that `FinishedRun.predict` would use, with its preprocessing, and return the file.

    Inputs of a table: one for each raw column, (rows, 1): float32, NaN for a missing number; or string, "" for a missing
    category. Pictures: ``image``, float32 in stored form. Outputs: ``prediction`` (rows,), the class as text or the
    number in the target's unit, and for classes ``probabilities`` (rows, classes), float64. A row that `predict` would
    refuse has an empty prediction, or NaN. ``client``, ``model``: as in `predict`.

    ConfigError if the extra is not installed, for texts, and for a network that torch cannot export.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # what torch's exporter needs
        from onnx import compose
    except ImportError as error:
        raise ConfigError(f'--onnx needs {error.name}: pip install "fedatlas[onnx]".') from None
    if run.preprocess.kind == "tokens":
        raise ConfigError("--onnx: models of texts are not exported in this version; use fedatlas predict.")
    if run.preprocess.change is not None:
        raise ConfigError(
            "--onnx: new rows are changed before this model reads them, by shared cuts or the clients' secret, and "
            "the secret is in no exported file; use fedatlas predict."
        )
    if run.loss.spare:
        raise ConfigError("--onnx: a network with the class fake of model.loss is not exported; use fedatlas predict.")
    used = run.of_client(client) if client is not None else run.named(model)
    done = run.preprocess if client is None else run.preprocess.of_client(client)
    network = exported(network_in(used), run.sample(dtype_of(network_in(used))))
    before, behind = Steps(network), Steps(network)
    first = before.model(*(of_table(before, done) if done.kind == "table" else of_pictures(before, done)))
    last = behind.model(*predicted(behind, done, run.loss.width()))
    whole = compose.merge_models(first, network, [(INPUT, network.graph.input[0].name)], outputs=[LOST, OUTPUTS])
    whole = compose.merge_models(whole, last, [(LOST, f"{LOST}_in"), (OUTPUTS, f"{OUTPUTS}_in")])
    onnx.helper.set_model_props(whole, facts(run, done))
    onnx.checker.check_model(whole)
    write_bytes(Path(file), whole.SerializeToString())
    return Path(file)


def facts(run: FinishedRun, done: Preprocess) -> dict[str, str]:
    """Return what the file says about itself."""
    told = {"classes": json.dumps(done.class_names), "columns": json.dumps([rule.name for rule in done.rules])}
    return {**told, "task": done.task, "config_hash": run.config.hash(), "fedatlas": metadata.version("fedatlas")}


def exported(module: nn.Module, sample: torch.Tensor) -> Any:
    """Return a network as torch exports it, with any number of rows. ConfigError if it cannot be."""
    from onnx import compose

    rows = ({0: torch.export.Dim.DYNAMIC},)
    try:
        with evaluating(module), quiet():
            program = torch.onnx.export(
                module, (sample,), dynamo=True, dynamic_shapes=rows, verbose=False, output_names=[OUTPUTS]
            )
    except Exception as error:  # noqa: BLE001  # its kinds of errors change with each version
        raise ConfigError(f"--onnx: torch cannot export this network: {first_line(error).rstrip('.')}.") from None
    assert program is not None
    found = compose.add_prefix(program.model_proto, "network/", rename_outputs=False)
    if (axis := found.graph.input[0].type.tensor_type.shape.dim[0]).HasField("dim_value"):
        raise ConfigError(f"--onnx: torch exports this network only for {axis.dim_value} rows at a time.")
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what torch says of its own exporter."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


class Steps:
    """A graph that grows: each call adds a node and returns the name of its output."""

    def __init__(self, network: Any) -> None:
        from onnx import helper

        self.helper, self.network = helper, network
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        """Add a constant."""
        from onnx import numpy_helper

        name = f"constant_{id(self)}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def __call__(self, op: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node of this operator."""
        name = name or f"step_{id(self)}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(op, list(inputs), [name], domain=domain, **attributes))
        return name

    def cast(self, value: str, kind: Any) -> str:
        """Cast to a numpy type."""
        return self("Cast", value, to=self.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def value(self, name: str, kind: Any, *shape: int | str) -> Any:
        """Describe an input or an output; the type ``str`` is text."""
        number = self.helper.np_dtype_to_tensor_dtype(np.dtype(object if kind is str else kind))
        return self.helper.make_tensor_value_info(name, number, shape)

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return the graph as a model, of the same versions as the network."""
        graph = self.helper.make_graph(self.nodes, "fedatlas", inputs, outputs, self.constants)
        texts = self.helper.make_opsetid("ai.onnx.ml", 3)
        versions = [*(one for one in self.network.opset_import if one.domain != "ai.onnx.ml"), texts]
        return self.helper.make_model(graph, opset_imports=versions, ir_version=self.network.ir_version)


Ends = tuple[list[Any], list[Any]]
"""Inputs and outputs of a part of the graph."""


def of_table(add: Steps, done: Preprocess) -> Ends:
    """Add the steps of `data.preprocess.encode`: a raw column each -> the row that the network reads, and whether it is lost."""
    inputs, made, holes = [], list[str](), list[str]()
    for rule in done.rules:
        inputs.append(add.value(rule.name, str if rule.categories else np.float32, ROWS, 1))
        columns, gone = of_categories(add, rule) if rule.categories else of_numbers(add, rule)
        made.append(columns)
        if rule.categories and done.missing != "median":
            holes.append(gone)
        if rule.indicator:
            made.append(add.cast(gone, np.float32))
    rows = add("Concat", *made, axis=1) if len(made) > 1 else made[0]
    return inputs, into_network(add, rows, holes, done.shape)


def of_categories(add: Steps, rule: ColumnRule) -> tuple[str, str]:
    """Add a column of texts: a 0/1 column for each category, and whether the cell is missing."""
    known = {**dict.fromkeys(EVERY_CASE, GONE), **{name: code for code, name in enumerate(rule.categories)}}
    code = add(
        "LabelEncoder",
        rule.name,
        domain="ai.onnx.ml",
        keys_strings=[*known],
        values_int64s=[*known.values()],
        default_int64=UNSEEN,
    )
    places = add.constant([range(len(rule.categories))], np.int64)
    return add.cast(add("Equal", code, places), np.float32), add("Equal", code, add.constant(GONE, np.int64))


def of_numbers(add: Steps, rule: ColumnRule) -> tuple[str, str]:
    """Add a column of numbers, filled and scaled, and whether the cell is missing."""
    gone, filled = add("IsNaN", rule.name), rule.name
    if rule.median is not None:
        filled = add("Where", gone, add.constant(rule.median, np.float32), rule.name)
    centred = add("Sub", add.cast(filled, np.float64), add.constant(rule.mean))
    return add.cast(add("Div", centred, add.constant(rule.sd)), np.float32), gone


def of_pictures(add: Steps, done: Preprocess) -> Ends:
    """Add the scaling of pictures."""
    rows, sample = "image", torch.zeros((1, *done.shape))
    if done.input_scale:
        scale, shift = (by_channel(each, sample).numpy() for each in (done.input_scale, done.input_shift))
        rows = add("Add", add("Mul", rows, add.constant(scale, np.float32)), add.constant(shift, np.float32))
    return [add.value("image", np.float32, ROWS, *done.shape)], into_network(add, rows, [], done.shape)


def into_network(add: Steps, rows: str, holes: Sequence[str], shape: Sequence[int]) -> list[Any]:
    """Add the two values that go on: the rows in the network's precision, and which of them no prediction can be made for."""
    axes = add.constant(range(1, len(shape) + 1), np.int64)
    nothing = add("Mul", rows, add.constant(0.0, np.float32))  # NaN where a number is infinite or missing
    lost = add("IsNaN", add("ReduceSum", nothing, axes, keepdims=0))
    for hole in holes:
        lost = add("Or", lost, add("Squeeze", hole, add.constant([1], np.int64)))
    asked = add.network.graph.input[0].type.tensor_type.elem_type
    add("Cast", rows, to=asked, name=INPUT)
    add("Identity", lost, name=LOST)
    return [
        add.helper.make_tensor_value_info(INPUT, asked, (ROWS, *shape)),
        add.value(LOST, bool, ROWS),
    ]


def predicted(add: Steps, done: Preprocess, width: int) -> Ends:
    """Add the steps of `as_table`: outputs -> a prediction, and for classes their probabilities."""
    asked = add.network.graph.output[0].type.tensor_type
    given = [add.value(f"{LOST}_in", bool, ROWS)]
    given.append(add.helper.make_tensor_value_info(f"{OUTPUTS}_in", asked.elem_type, None))
    flat, column = add.constant([-1], np.int64), add.constant([-1, 1], np.int64)
    nan, outputs = add.constant(np.nan), add.cast(f"{OUTPUTS}_in", np.float64)
    if done.task == "numbers":
        scaled = add("Mul", add("Reshape", outputs, flat), add.constant(done.target_sd))
        told = add("Add", scaled, add.constant(done.target_mean))
        add("Where", f"{LOST}_in", nan, told, name="prediction")
        return given, [add.value("prediction", np.float64, ROWS)]
    if width == 1:
        score = add("Reshape", outputs, column)
        one = add("Sigmoid", score)
        shares = add("Concat", add("Sub", add.constant(1.0), one), one, axis=1)
        best = add.cast(add("Greater", add("Reshape", score, flat), add.constant(0.0)), np.int64)
    else:
        shares = add("Softmax", outputs, axis=-1)
        best = add("ArgMax", outputs, axis=-1, keepdims=0)
    add("Where", add("Reshape", f"{LOST}_in", column), nan, shares, name="probabilities")
    code = add("Where", f"{LOST}_in", add.constant(UNSEEN, np.int64), best)
    names = [*done.class_names]
    keys = {"keys_int64s": [*range(len(names))], "values_strings": names, "default_string": ""}
    add("LabelEncoder", code, domain="ai.onnx.ml", name="prediction", **keys)
    shape = (ROWS, len(names))
    return given, [add.value("prediction", str, ROWS), add.value("probabilities", np.float64, *shape)]
