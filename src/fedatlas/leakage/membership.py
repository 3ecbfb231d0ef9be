"""The membership game as the attacker plays it: a score of each candidate under the model that its role knows (A5)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedatlas.attacks.inference import Inference
from fedatlas.attacks.membership import Training, by_loss, by_shadows
from fedatlas.errors import ConfigError
from fedatlas.leakage.network import Known, known
from fedatlas.record.observed import View
from fedatlas.record.run_folder import AUXILIARY, CANDIDATES, RunFolder, file_of
from fedatlas.rng import derive, torch_stream


def answer(folder: Path, attack: Inference, seed: int) -> dict[str, np.ndarray]:
    """score (n,): the higher, the more likely a member."""
    facts, home = known(folder), RunFolder(folder)
    model = facts.network(seed)
    model.load_state_dict(_newest(folder, attack, model.state_dict()))
    model.eval()

    def predict(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([model(piece) for piece in torch.split(x, 1024)])

    game = {name: torch.from_numpy(x) for name, x in home.arrays(CANDIDATES).items()}
    if attack.keys["method"] == "loss":
        return {"score": by_loss(predict, game["x"], game["y"]).numpy()}
    own = {name: torch.from_numpy(x) for name, x in home.arrays(AUXILIARY).items()}
    if len(own["y"]) < 2 * facts.classes:
        raise ConfigError(
            f"attack 'membership': {len(own['y'])} auxiliary rows are too few to train shadow models on; raise "
            'evaluation.clients, or take method = "loss".'
        )
    rng = torch_stream(seed, "attack", "shadows")
    fresh = lambda number: facts.network(derive(seed, "attack", "shadow", number))  # noqa: E731
    how, shadows = _training(facts, int(attack.keys["epochs"])), int(attack.keys["shadows"])
    return {"score": by_shadows(predict, game["x"], game["y"], (own["x"], own["y"]), fresh, how, shadows, rng).numpy()}


def _training(facts: Known, epochs: int) -> Training:
    local = facts.config.local
    return Training(local.lr, local.batch_size, epochs)


def _newest(folder: Path, attack: Inference, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The newest global model that the role knows; what no message holds, such as counters, stays as in ``like``."""
    if attack.role.kind == "outsider":
        from safetensors.torch import load_file

        return dict(load_file(folder / file_of("model")))
    view = View(folder, attack.role)
    for number in reversed(view.rounds):
        for frame in view.frames(number):
            message = frame.body.get("message", {})
            if frame.direction in {"down", "peer"} and "model" in message:
                return {**like, **message["model"], **(message.get("buffers") or {})}
    raise ConfigError(f"the view of '{attack.role}' holds no model: write rounds = [1, 0] under [observe].")
