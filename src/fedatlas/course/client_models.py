"""The model that each client would use, during a run and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedatlas.algorithm import Algorithm, Message, State
from fedatlas.engine.job import parted
from fedatlas.model import Model
from fedatlas.record.run_folder import file_of
from fedatlas.setup.torch_model import Networks
from fedatlas.tree import Tree


def models_of(algorithm: Algorithm, server: State, networks: Networks) -> dict[str, Model]:
    """Map each name to the model that is evaluated and saved.

    A model without buffers gets those of the server, or those of its architecture if there are several.
    """
    found = algorithm.models(server)
    if "" not in networks.built:  # each model has one architecture
        return {name: networks(*parted(tree, networks.built[name].buffers), name) for name, tree in found.items()}
    return {name: networks(*parted(tree, server.get("buffers", Tree()))) for name, tree in found.items()}


def files_of(models: Mapping[str, Model], mixed: bool) -> dict[str, Model]:
    """Map file names to the models that a run saves.

    The first model's file is plain ``model`` unless there are several architectures (``mixed``).
    """
    only = "" if mixed else next(iter(models), "")
    return {file_of("model", "" if name == only else name): model for name, model in models.items()}


def used_by(
    client: int,
    algorithm: Algorithm,
    server: State,
    state_of: Callable[[Message], State],
    networks: Networks,
    architecture: str,
) -> Model:
    """Return the client's personal model. Without personal models, the global one or that of its ``architecture``."""
    if algorithm.personal is None:
        return models_of(algorithm, server, networks)[architecture or "global"]
    shared = {"buffers": server["buffers"]} if server.get("buffers") else {}
    message = {**shared, **algorithm.broadcast(server, client)}
    state = state_of(message)
    kept = networks.built[architecture].buffers if architecture else Tree(state.get("buffers", {}))
    buffers: Tree = message.get("buffers", kept)
    return networks(*parted(algorithm.personal(message, state), buffers), architecture)
