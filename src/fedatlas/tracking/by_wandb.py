"""Weights & Biases: a run of a project; several seeds are a group. It gets no facts about machine, code or console."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.errors import ConfigError
from fedatlas.tracking.tracker import Beginning, Ended, Tracker

CODES = {"finished": 0, "failed": 1, "stopped": 130}
INIT, FINISH = 20, 30  # seconds that a server may take


class WandbRun:
    """A run at Weights & Biases."""

    def __init__(self, run: Any) -> None:
        self.run, self.id = run, str(run.id)

    def parameters(self, values: Mapping[str, str]) -> None:
        self.run.config.update(dict(values), allow_val_change=True)

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step, commit=True)

    def artefact(self, file: Path) -> None:
        self.run.save(str(file), base_path=str(file.parent), policy="now")

    def end(self, how: Ended) -> None:
        self.run.finish(exit_code=CODES[how])


def begin(asked: Beginning) -> WandbRun:
    """Begin a run, or continue the one with that id.

    ConfigError without a key, for which the tool would wait at a prompt.
    """
    import wandb

    if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.api.api_key:
        raise ConfigError("there is no key: 'wandb login' stores one, WANDB_MODE=offline needs none")
    own = asked.before or uuid.uuid4().hex[:12]
    settings: dict[str, Any] = {"base_url": asked.how.to} if asked.how.to else {}
    run = wandb.init(
        project=asked.how.project,
        name=asked.name,
        id=own,
        resume="allow" if asked.before else None,
        group=asked.parent or (own if asked.several else None),
        dir=str(asked.path),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            init_timeout=INIT,
            finish_timeout=FINISH,
            **settings,
        ),
    )
    return WandbRun(run)


WANDB = Tracker("wandb", begin)
