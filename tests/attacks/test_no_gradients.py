"""Inversions of updates that are no gradients would find nothing and say "no leak": they are refused before the run (A8 to A10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment, run
from fedatlas.errors import ConfigError
from fedatlas.setup.refusals import checked

ONE_ROW: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 16},
    "partition": {"name": "iid", "clients": 16},
    "model": {"name": "lenet_sigmoid"},
}
ADAM, CLIP = {"optimizer": "adam"}, {"clip": 0.5}


@pytest.mark.parametrize(
    ("name", "local", "words"),
    [
        ("idlg", ADAM, 'set optimizer = "sgd" under'),
        ("dlg", ADAM, 'set optimizer = "sgd" under'),
        ("inverting_gradients", ADAM, 'set optimizer = "sgd" under'),
        ("idlg", CLIP, "which clip shortens: set clip = 0 under"),
        ("dlg", CLIP, "which clip shortens: set clip = 0 under"),
    ],
)
def test_an_update_that_is_no_gradient_is_not_inverted(
    tmp_path: Path, name: str, local: dict[str, Any], words: str
) -> None:
    given = {**ONE_ROW, "local": {"steps": 1, "lr": 0.1, **local}, "attack": [{"name": name}]}
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**given), out=tmp_path / "run", baselines=False)


def test_the_direction_of_a_clipped_gradient_is_inverted() -> None:
    local = {"steps": 1, "lr": 0.1, **CLIP}
    checked(Experiment.of(**ONE_ROW, local=local, attack=[{"name": "inverting_gradients"}]).config)
