"""The configurations of a study, by what is written: levels, cells, baselines and rates often mean the same one."""

from __future__ import annotations

import json

from fedatlas.config import ExperimentConfig
from fedatlas.runs.run_key import Described, described, written
from fedatlas.study.plain import Row

DEFAULT = {"algorithm": ExperimentConfig().algorithm.model_dump()}
"""The placeholder in a configuration without ``[algorithm]``: that of a setting, before its baseline is named."""


class Configurations:
    """The resolved configurations of a study: each is resolved and checked when it is first asked for, and not again."""

    def __init__(self) -> None:
        self.found: dict[str, Described] = {}

    def described(self, values: Row, seed: int) -> Described:
        """Return what the values of an experiment mean, with the settings that all runs of a study share (`run_key.written`)."""
        whole = written(values, seed)
        text = json.dumps({**DEFAULT, **whole}, sort_keys=True, default=repr)
        if text not in self.found:
            self.found[text] = described(whole)
        return self.found[text]
