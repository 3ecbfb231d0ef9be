"""The price of protection: the same run once more without ``[[privacy]]``, beside it in its folder, like a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedatlas.attacks.poisoning import POISONING
from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.progress import Progress
from fedatlas.errors import ConfigError, DivergedError
from fedatlas.record.run_folder import JUDGED, RunFolder, baseline_path
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from fedatlas.verdict.price import RunEffort
from fedatlas.wording import total_of

UNPROTECTED = "unprotected"
SENT = ("bytes_up", "bytes_down", "bytes_peer")


def check_price(config: ExperimentConfig) -> None:
    """Raise ConfigError for an experiment without a price to measure."""
    if config.columns:
        raise ConfigError(
            "--price compares runs of parties that hold rows: leave it out for parties that hold columns."
        )
    if not config.privacy:
        raise ConfigError(
            "--price compares with the same run without [[privacy]], and this experiment has none: leave it out."
        )


def unprotected_config(config: ExperimentConfig, rounds: int) -> ExperimentConfig:
    """Return the experiment without protection, for as many rounds as were done; compression and all else stay."""
    plain = config.plain()
    if config.local.schedule.name == "cosine":  # the same rates, also where the run was stopped early
        plain["local"]["schedule"].setdefault("rounds", config.rounds)
    plain["rounds"] = rounds
    attacks = [one for one in plain.pop("attack", ()) if one["name"] in POISONING]  # the others look at recorded views
    for table in ("privacy", "stop", "observe", "tracking", "audit"):
        plain.pop(table, None)
    return parse({**plain, **({"attack": attacks} if attacks else {})})


def train_unprotected(
    path: Path, module: nn.Module | None, progress: Progress, run: Callable[[Checked, Path, Progress], object]
) -> None:
    """Make or continue the run without protection. ``run`` carries it out. One that diverges is left out with a notice."""
    folder = RunFolder.open(path)
    try:
        with progress.beside(UNPROTECTED) as line:
            config = unprotected_config(folder.config(), folder.rows()[-1]["round"])
            run(checked(config, module), baseline_path(path, UNPROTECTED), line)
    except DivergedError as error:
        progress.said(f"The price of protection is not told: without protection, {error}")


def unprotected(path: Path) -> RunFolder | None:
    """Return the finished run without protection beside a run; None if there is none."""
    folder = RunFolder(baseline_path(path, UNPROTECTED))
    return folder if folder.finished() and folder.arrays(JUDGED) else None


def effort_of(summary: Mapping[str, Any]) -> RunEffort:
    """Return what a run took."""
    return RunEffort(total_of(summary["cost"][key] for key in SENT), summary["cost"]["seconds"])
