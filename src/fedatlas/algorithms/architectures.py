"""Federations whose clients' models differ in architecture: one server state per architecture, and each client's choice.

    server["states"]   architecture -> {"model", "buffers"}, in the order of ``[[models]]``
    server["owners"]   architecture of each client

If all clients have the same architecture, the server's own state is that of this architecture, which is called "global".
"""

from __future__ import annotations

from collections.abc import Mapping

from fedatlas.algorithm import Message, Models, ServerFacts, State
from fedatlas.algorithms.whole_models import model_part, whole_model


def begin(models: Models, facts: ServerFacts) -> State:
    """Return the server's state with the initial model of every architecture."""
    if "owners" not in facts:
        return {"model": models["global"]}
    states = {name: model_part({"model": w, "buffers": facts["buffers"][name]}) for name, w in models.items()}
    return {"states": states, "owners": list(facts["owners"])}


def states(server: State) -> Mapping[str, State]:
    """Map each architecture to its state."""
    found: Mapping[str, State] = server.get("states", {"global": server})
    return found


def renewed(server: State, after: Mapping[str, State]) -> State:
    """Return the server with the states of some architectures replaced."""
    if "states" not in server:
        return {**server, **after.get("global", {})}
    return {**server, "states": {**server["states"], **after}}


def owner(server: State, client: int) -> str:
    """Return a client's architecture."""
    return str(server["owners"][client]) if "owners" in server else "global"


def at(server: State, party: int, name: str) -> dict[int, str]:
    """Return the architecture under which a party without its own works."""
    return {party: name} if "owners" in server else {}


def told(server: State, client: int) -> Message:
    """Return the message for a client: the model of its architecture."""
    return model_part(states(server)[owner(server, client)])


def models(server: State) -> Models:
    """Return the models to evaluate and save: one per architecture, with its buffers."""
    if "states" not in server:
        return {"global": server["model"]}
    return {name: whole_model(state) for name, state in states(server).items()}
