"""Read a finished run and use its model on new rows. The run's folder suffices; training data are not needed."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.algorithm import Algorithm, Facts, Message, State
from fedatlas.config import ExperimentConfig
from fedatlas.course.client_models import files_of, models_of, used_by
from fedatlas.data.cells import OPTION, read_as
from fedatlas.data.files import read_inputs
from fedatlas.data.pictures import pictures_in
from fedatlas.data.preprocess import Preprocess
from fedatlas.data.table_file import read_table
from fedatlas.engine.job import Built
from fedatlas.engine.model import Network
from fedatlas.errors import CheckpointError, ConfigError, DataError, unknown_name
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.sealing import MEMORY
from fedatlas.metrics.quality import predictions
from fedatlas.model import Model
from fedatlas.models import Loss, flops, make_loss, make_model
from fedatlas.models.config import names
from fedatlas.prediction.new_rows import as_clients
from fedatlas.record.checkpoint import Checkpoints, RunState
from fedatlas.record.initial_files import own_module
from fedatlas.record.run_folder import SUMMARY, RunFolder, file_of
from fedatlas.setup.networks import DTYPES
from fedatlas.setup.resolution import make_algorithm, with_batch_norm
from fedatlas.setup.torch_model import Networks, TorchModel, dtype_of
from fedatlas.tree import Tree

if TYPE_CHECKING:
    import pandas

Holes = Literal["error", "empty"]


class FinishedRun(NamedTuple):
    """A finished run that was read from its folder."""

    path: Path
    config: ExperimentConfig
    common: Model | None  # that of all clients; None if each has its own, or one of its architecture
    rows: pandas.DataFrame  # of metrics.jsonl
    summary: Mapping[str, Any]
    preprocess: Preprocess
    module: nn.Module | None = None  # the run's custom network

    def __repr__(self) -> str:
        return f"<FinishedRun {self.path}: {self.config.algorithm.name}, {len(self.rows)} rows>"

    def predict(
        self,
        rows: str | Path | pandas.DataFrame | Mapping[str, Sequence[Any]] | np.ndarray | Tensor,
        *,
        client: int | None = None,
        model: str = "",
        holes: Holes = "error",
        keep: Sequence[str] = (),
    ) -> pandas.DataFrame:
        """Return the class of each row and the probability of each class, or the number in the target's unit.

        ``rows``: a file (.csv[.gz], .tsv, .parquet, .npz with x, a folder of pictures), a table, or an array in stored
        form. For pictures the first column names the file. The model is the one that ``client`` would use, or ``model``
        by name, else the one that all share. With ``client``, rows are prepared as that client's
        (``data.scale = "client"``).
        ``holes``: rows with an infinite or missing number raise DataError, or get "empty" predictions and a UserWarning
        that counts them. ``keep``: columns of the rows' table, such as a key, to put before the predictions.
        """
        with read_as(self.preprocess.reading):
            return self._predict(rows, client, model, holes, keep)

    def _predict(
        self, rows: Any, client: int | None, model: str, holes: Holes, keep: Sequence[str]
    ) -> pandas.DataFrame:
        table_ = rows
        if keep and isinstance(rows, str | Path) and not (Path(rows).is_dir() or Path(rows).suffix == ".npz"):
            with read_as(self.preprocess.reading._replace(na=(), dates=())):  # as they stand in the file
                table_ = read_table(rows, OPTION)
        kept = columns_of(table_, keep)
        used = self.of_client(client) if client is not None else self.named(model)
        if client is None and not model and self.personal:
            warnings.warn(
                f"The clients of '{self.path}' use personal models or those of their group ({self.config.algorithm.name}), but these "
                "predictions are by the common one. --client K, in Python client=K, uses the model of client K.",
                stacklevel=3,
            )
        empty = holes == "empty"
        done = self.preprocess if client is None else self.preprocess.of_client(client)
        if isinstance(rows, str | Path):
            x = read_rows(Path(rows), done, empty)
        else:
            x = done.apply(rows, keep_holes=empty)
        lost = without_numbers(x, holes)
        table = as_table(used.predict(x), self.preprocess)
        if bool(lost.any()):
            table.loc[lost.numpy()] = None
        if isinstance(rows, str | Path) and Path(rows).is_dir():
            table.insert(0, "file", [str(file.relative_to(rows)) for file in pictures_in(Path(rows))])
        for place, (name, values) in enumerate(kept.items()):
            table.insert(place, name, values, allow_duplicates=True)
        return table

    def of_files(self, *, decimal: str = "", separator: str = "", encoding: str = "", sheet: str = "") -> FinishedRun:
        """Return the run as it reads files that are written so; "" as in training, or found by looking."""
        given = {"decimal": decimal, "separator": separator, "encoding": encoding, "sheet": sheet}
        wanted: dict[str, Any] = {key: value for key, value in given.items() if value}
        reading = self.preprocess.reading._replace(**wanted)
        return self._replace(preprocess=replace(self.preprocess, reading=reading))

    @property
    def personal(self) -> bool:
        """Whether clients use personal models or those of their cluster; figures are then means without an interval."""
        return "interval" not in self.summary["final"]

    def named(self, model: str = "") -> Model:
        """Return one of the run's models: by default the one of all clients. ConfigError if it does not exist."""
        if not model:
            if self.common is None:
                raise ConfigError(f"'{self.path}' has no model of all clients (model.safetensors): {self.choices()}.")
            return self.common
        file = self.path / file_of("model", model)
        if not file.exists():
            raise ConfigError(f"'{self.path}' has no model '{model}': {self.choices()}.")
        return self.saved(file, model if self.config.models else "")

    def saved(self, file: Path, architecture: str = "") -> Model:
        """Return the model of a file; ConfigError if it is not the one that the run ended with.

        This is checked by its SHA-256; in older runs, against the checkpoint.
        """
        state, here = load_file(file)
        hashes, what = self.summary.get("sha256"), f"{SUMMARY} has the SHA-256 of"
        if hashes is None or hashes.get(file.name, here) == here:
            model = self.filled(self.untrained(architecture), state, str(file))
            if hashes is not None or self.is_own(file, state):
                return model
            what = "its checkpoint holds"
        raise ConfigError(
            f"'{file}' is not the model that this run ended with ({what} another): put the original back; "
            f"'fedatlas run --resume {self.path}' rebuilds it from the checkpoint."
        )

    def is_own(self, file: Path, state: Mapping[str, Tensor]) -> bool:
        """Return whether a model is that of the last round's checkpoint; True, with a UserWarning, if there is none."""
        kept: Mapping[str, Tensor] | None = None
        with contextlib.suppress(CheckpointError, ConfigError), self.restored() as (run, _):
            if run.round == self.summary["rounds"]:
                algorithm, networks = self.algorithm(), self.networks(*self.architectures())
                files = files_of(models_of(algorithm, run.server, networks), bool(self.config.models))
                kept = files[file.name].save() if file.name in files else None
        if kept is None:
            warnings.warn(
                f"Cannot check whether '{file}' is the model that this run ended with: {SUMMARY} has no SHA-256 of it, and there is "
                "no checkpoint of the last round.",
                stacklevel=4,
            )
            return True
        return kept.keys() == state.keys() and all(torch.equal(kept[name], x) for name, x in state.items())

    def filled(self, untrained: Model, state: Mapping[str, Tensor], where: str) -> Model:
        """Return the model with a trained state; ConfigError if the state belongs to another network."""
        wanted = untrained.save()
        odd = [name for name in wanted if name in state and state[name].shape != wanted[name].shape]
        with contextlib.suppress(ConfigError, KeyError, RuntimeError, ValueError):
            model = untrained.load(state)
            if not odd or self.serves(model):
                return model
        strange = [*sorted(wanted.keys() ^ state.keys()), *odd, *wanted][0]
        advice = (
            "put the run's own model back" if self.module is None else "pass the network that the run had as module"
        )
        raise ConfigError(
            f"'{where}' holds the weights of a network other than this run's (see '{strange}'): {advice}."
        )

    def serves(self, model: Model) -> bool:
        """Return whether a model's outputs for the run's rows have the right width."""
        return model.predict(self.sample()).shape[-1] == self.loss.width() - self.loss.spare

    def client_model(self, client: int) -> nn.Module:
        """Return the network that a client would use, rebuilt from the last checkpoint: its own if it has one."""
        return network_in(self.of_client(client))

    def of_client(self, client: int) -> Model:
        """Return the model that a client would use, ready to predict. ConfigError for a client that does not exist."""
        if not 0 <= client < self.summary["clients"]:
            raise ConfigError(f"client {client}: the run has the clients 0 to {self.summary['clients'] - 1}.")
        architecture, algorithm = self.architecture(client), self.algorithm()
        networks = self.networks(*self.architectures())
        K, classes = int(self.summary["clients"]), len(self.preprocess.class_names)
        with self.restored() as (run, states):

            def state_of(message: Message) -> State:
                kept = {name: x for name, x in (states.get(client) or {}).items() if name != MEMORY}
                if kept or algorithm.client_init is None:
                    return kept
                first = Tree(message["model"]) if "model" in message else networks.built[architecture].params
                return algorithm.client_init(first, Facts(0.0, 0.0, K, classes, float(run.round), 0.0))

            found = used_by(client, algorithm, run.server, state_of, networks, architecture)
        return self.filled(self.untrained(architecture), found.save(), str(self.path / "checkpoint"))

    @contextlib.contextmanager
    def restored(self) -> Iterator[tuple[RunState, PartyState]]:
        """Yield the server's and the parties' states of the last checkpoint; CheckpointError if there is none."""
        states = PartyState()
        try:
            yield Checkpoints(self.path / "checkpoint", self.config.hash()).load(states).run, states
        finally:
            states.close()

    def algorithm(self) -> Algorithm:
        """Return the run's algorithm."""
        return with_batch_norm(make_algorithm(self.config), self.config.model.bn, bool(self.config.models))

    def architectures(self) -> Sequence[str]:
        """Return the names of the architectures; "" if all clients have the same."""
        return names(self.config.models) or ("",)

    def architecture(self, client: int) -> str:
        """Return the name of a client's architecture; "" if all have the same."""
        if not self.config.models:
            return ""
        record = RunFolder(self.path).read_json("partition.json", "models")
        return str(record["models"][str(client)])

    @property
    def loss(self) -> Loss:
        """The run's loss, which determines how many outputs a network has per row."""
        return make_loss(self.config.model.loss, self.preprocess.task, len(self.preprocess.class_names))

    def sample(self, kind: torch.dtype | None = None) -> Tensor:
        """Return two rows of zeros in the shape that the network reads, with numbers of this ``kind``."""
        tokens = self.preprocess.kind == "tokens"
        kind = torch.int64 if tokens else kind or DTYPES[self.config.engine.precision]
        return torch.zeros((2, *self.preprocess.shape), dtype=kind)

    def networks(self, *architectures: str) -> Networks:
        """Return the factory that makes models of tensors, for these architectures of the run."""
        config, done, loss, built = self.config, self.preprocess, self.loss, {}
        own = dict(zip(names(config.models), config.models, strict=True))
        shape, dtype, tokens = done.shape, DTYPES[config.engine.precision], done.kind == "tokens"
        for name in architectures:
            model = own[name].under(config.model) if name else config.model
            wanted = model.model_copy(update={"init": ""}) if self.module is None else self.module
            module = make_model(wanted, shape, loss.width(), config.seed, dtype, tokens=tokens)
            built[name] = Built.of(Network(module, loss.mean), flops=flops(module, self.sample(dtype_of(module))))
        return Networks(built, loss)

    def untrained(self, architecture: str = "") -> Model:
        """Return the run's model before training."""
        return self.networks(architecture).initial()[architecture]

    @property
    def model(self) -> nn.Module | None:
        """The trained network of all clients; None if each has its own, or one of its architecture."""
        return None if self.common is None else network_in(self.common)

    def choices(self) -> str:
        """Return advice that lists the models and clients that can be named."""
        stems = [path.stem.removeprefix("model-") for path in sorted(self.path.glob("model-*.safetensors"))]
        named = f"one of its models ({', '.join(stems)}), or " if stems else ""
        return f"name {named}a client (0 to {self.summary['clients'] - 1})"


def load(path: str | Path, module: nn.Module | None = None) -> FinishedRun:
    """Read a finished run: its model, configuration and rows. ``module``: the network of a run with a custom one.

    ConfigError for a folder of several seeds, a run of parties that hold columns, and a run that is not finished.
    """
    import pandas

    folder = RunFolder.open(Path(path))
    config = folder.config()
    if config.seeds is not None:
        one = Path(path) / f"seed-{config.seeds[0]}"
        raise ConfigError(
            f"'{path}' holds several seeds: name one of them, such as {one}, in Python load('{one}'); resume('{path}') opens all of "
            "them when they are finished, with their answer."
        )
    if folder.of_columns:
        raise ConfigError(
            f"the model of '{path}' is held by several parties: predict with 'fedatlas predict {path} NAME=FILE ...'."
        )
    summary = folder.summary()
    own_module(folder.path, module)
    done = Preprocess.from_json(folder.read_json("preprocess.json", *Preprocess.KEYS))
    done = as_clients(done, folder.path, config)
    found = FinishedRun(folder.path, config, None, pandas.DataFrame(folder.rows()), summary, done, module)
    file = folder.path / file_of("model")
    return found._replace(common=found.saved(file)) if file.exists() else found


def network_in(model: Model) -> nn.Module:
    """Return the network of a model."""
    assert isinstance(model, TorchModel)
    return model.module


def load_file(file: Path) -> tuple[dict[str, Tensor], str]:
    """Return the state dict of a .safetensors file, and the file's SHA-256. ConfigError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load as read

    content = file.read_bytes()  # not by its name, which need not be UTF-8
    try:
        found: dict[str, Tensor] = read(content)
    except SafetensorError as error:
        raise RunFolder(file.parent).damaged(file.name, str(error)) from None
    return found, hashlib.sha256(content).hexdigest()


def columns_of(rows: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of a table by name; ConfigError for one that it lacks, and for rows that are not a table."""
    if not names:
        return {}
    if not hasattr(rows, "keys"):
        raise ConfigError("only tables have columns to keep (--keep): these rows have none.")
    known = {str(name): name for name in rows.keys()}  # noqa: SIM118  # of a DataFrame or a mapping
    for name in names:
        if name not in known:
            raise unknown_name("column", name, known)
    return {name: list(rows[known[name]]) for name in names}


def read_rows(file: Path, done: Preprocess, keep_holes: bool = False) -> Tensor:
    """Return the rows of a file as the model reads them. DataError if there is no such file."""
    if not file.exists():
        raise DataError(f"there is no file '{file}'.")
    return read_inputs(file, done, keep_holes=keep_holes)


def without_numbers(x: Tensor, holes: Holes) -> Tensor:
    """Return bool (n,), true for rows with an infinite or missing number; DataError or a warning if there are any."""
    lost = ~torch.isfinite(x.flatten(1)).all(1)
    wrong = lost.nonzero().flatten().tolist()
    if wrong and holes == "error":
        more = f", and {len(wrong) - 1} more like it" if len(wrong) > 1 else ""
        raise DataError(
            f"row {wrong[0]} (from 0) holds an infinite or missing number{more}: correct such rows or leave them "
            "out (--holes empty)."
        )
    if wrong:
        warnings.warn(
            f"{len(wrong)} of {len(x)} rows hold an infinite or missing value: their predictions are empty.",
            stacklevel=3,
        )
    return lost


def as_table(outputs: Tensor, done: Preprocess) -> pandas.DataFrame:
    """Return outputs as a table with ``prediction`` and, for classes, a column ``p_NAME`` for each."""
    import pandas

    if done.task == "numbers":
        return pandas.DataFrame(
            {"prediction": (outputs.reshape(-1).double() * done.target_sd + done.target_mean).numpy()}
        )
    found = predictions(outputs).tolist()
    p = torch.softmax(outputs.double(), -1)
    if outputs.shape[-1] == 1:
        one = torch.sigmoid(outputs.double().reshape(-1))
        p = torch.stack([1 - one, one], 1)
    table = pandas.DataFrame({"prediction": [done.class_names[i] for i in found]})
    probabilities = pandas.DataFrame(p.numpy(), columns=[f"p_{name}" for name in done.class_names])
    return pandas.concat([table, probabilities], axis=1)
