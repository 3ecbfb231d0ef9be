"""The knowledge of an attacker, read from its folder (`attacker_folder`): common knowledge, its role's view, further knowledge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from fedatlas.attacks.fake_class import unfit
from fedatlas.attacks.view_attack import Knowledge, ViewAttack, ViewGradients
from fedatlas.config import ExperimentConfig
from fedatlas.data.preprocess import Preprocess
from fedatlas.errors import ConfigError
from fedatlas.leakage.handed_models import newest_handed, plain_model
from fedatlas.leakage.view_gradients import Cohort, read_gradients, read_rounds
from fedatlas.models import Loss, make_loss, make_model
from fedatlas.models.registry import OWN
from fedatlas.record.observed import RoleView
from fedatlas.record.run_folder import RunFolder, file_of
from fedatlas.setup.pixels import pixel_range

TOLD = "told.json"  # further knowledge named in the declaration


class Common(NamedTuple):
    """Knowledge common to everyone in the federation."""

    config: ExperimentConfig
    done: Preprocess
    loss: Loss


def common_knowledge(folder: Path) -> Common:
    """Return the common knowledge; ConfigError if the network cannot be built from files, or does not predict classes."""
    home = RunFolder.open(folder)
    config = home.config()
    done = Preprocess.from_json(home.read_json("preprocess.json", *Preprocess.KEYS))
    if config.models or config.model.name.startswith(OWN):
        raise ConfigError(
            "attacks need a single network named in the file: [[models]] and a custom network are refused."
        )
    if why := no_classes(done.task):
        raise ConfigError(why)
    return Common(config, done, make_loss(config.model.loss, done.task, len(done.class_names)))


def no_classes(task: str) -> str:
    """Return why no attack on a view applies to a run that predicts something else than classes; "" if it predicts them."""
    return "" if task == "classes" else f"attacks support only classes, but this run predicts {task}."


def read_knowledge(folder: Path, attack: ViewAttack, seed: int) -> Knowledge:
    """Return all knowledge in the folder; a view is read only when an attack asks for it."""
    config, done, loss = common_knowledge(folder)
    if loss.spare and (why := unfit(attack.name)):
        raise ConfigError(why)
    told = json.loads((folder / TOLD).read_text(encoding="utf-8")) if (folder / TOLD).exists() else {}
    cohorts = {int(number): Cohort(*one) for number, one in told.get("rounds", {}).items()}

    def view() -> RoleView:
        return RoleView(folder, attack.role)

    def network(seed: int) -> nn.Module:
        model = config.model.model_copy(update={"init": ""})
        return make_model(model, done.shape, loss.width(), seed).eval()

    return Knowledge(
        seed=seed,
        config=config,
        loss=loss,
        classes=len(done.class_names),
        network=network,
        box=lambda: pixel_range(done, config.data.name),
        gradients=lambda targets: gradients_of(folder, attack, config, targets, told),
        model=lambda: newest_model(folder, attack),
        arrays=RunFolder(folder).arrays,
        told=told,
        shape=() if done.kind == "tokens" else tuple(done.shape),
        models=lambda most: models_told(RoleView(folder, attack.role), most),
        keep=RunFolder(folder).save_arrays,
        rounds=lambda last: read_rounds(view(), config, last, cohorts, told.get("own", 0)),
        inputs=done.columns,
    )


def gradients_of(
    folder: Path, attack: ViewAttack, config: ExperimentConfig, targets: int, told: Mapping[str, Any]
) -> ViewGradients:
    """Return the gradients in the views of the attack's roles; ``told``: further knowledge, which may be the rows of each client."""
    beside = None if attack.beside is None else RoleView(folder, attack.beside)
    sizes = told.get("sizes")
    rows = {int(k): n for k, n in sizes.items()} if isinstance(sizes, Mapping) else None
    return read_gradients(RoleView(folder, attack.role), config, targets, beside, rows=rows)


def models_told(view: RoleView, most: int) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
    """Yield (round, model) of the rounds in which a client was sent a model, the first of each; at most ``most``, spread evenly; 0 = all.

    The set-up, round 0, is none of them. ConfigError for a view without a plain model.
    """
    rounds = [number for number in view.rounds if number and _first_model(view, number) is not None]
    if not rounds:
        raise ConfigError(
            f"the view of '{view.role}' holds no model that it was sent: set rounds = [1, 0] under [observe], for an algorithm that "
            "sends models."
        )
    many = min(most or len(rounds), len(rounds))
    for place in range(1, many + 1):
        number = rounds[place * len(rounds) // many - 1]
        yield number, _first_model(view, number) or {}


def _first_model(view: RoleView, number: int) -> Mapping[str, Tensor] | None:
    """Return the first model of a round that came to the client, from the server or from a neighbour."""
    for frame in view.frames(number):
        message: Mapping[str, Any] = frame.body.get("message", frame.body)
        if frame.direction in {"down", "peer"} and frame.client == view.role.client and "model" in message:
            return {**plain_model(view, message["model"]), **(message.get("buffers") or {})}
    return None


def newest_model(folder: Path, attack: ViewAttack) -> Mapping[str, Tensor]:
    """Return the newest global model the role knows, as far as it was sent: counters are not. ConfigError for a view without one."""
    if attack.rounds is None:
        from safetensors.torch import load_file

        found: dict[str, Tensor] = load_file(folder / file_of("model"))
        return found
    view = RoleView(folder, attack.role)
    if view.role.kind == "successor":
        return newest_handed(view)
    for number in reversed(view.rounds):
        for frame in view.frames(number):
            message: Mapping[str, Any] = frame.body.get("message", {})
            if frame.direction in {"down", "peer"} and "model" in message:
                return {**message["model"], **(message.get("buffers") or {})}
    raise ConfigError(f"the view of '{attack.role}' holds no model: set rounds = [1, 0] under [observe].")
