"""The versions of a run under ``[guard]``: their list, and the way back to one of them.

A rollback deletes nothing and takes back no release. It writes a manifest with the states of the version and a round
number that no round has had: the number of the round that may have begun after the last checkpoint is passed over, since
its draws, noise and masks may have been seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import CheckpointError, ConfigError
from fedatlas.record.checkpoint import GUARD, ROLLBACKS, VERDICTS, Checkpoints, rollbacks_of
from fedatlas.record.run_folder import RunFolder

NONE = "'{}' keeps no versions: a run with a [guard] table does."


class Version(NamedTuple):
    """A model that the guard judged. ``round``, its number, is that of the round that made it; 0 is the initial model."""

    version: int
    begun_from: int  # the version that the round began with
    score: float | None  # on the guard's rows; None if the model was not finite
    committed: bool
    time: float  # seconds since 1970
    current: bool  # whether it is the model now


def versions_of(path: Path) -> list[Version]:
    """Return the versions of a run, ascending. ConfigError if it keeps none."""
    folder, newest = _opened(path)
    current, last = newest["extra"][GUARD]["version"], newest["round"]
    return [
        Version(one["version"], one["from"], one["score"], one["committed"], one["time"], one["version"] == current)
        for one in folder.versions()
        if one["version"] <= last  # else its round has not landed
    ]


def roll_back(path: Path, number: int) -> Version:
    """Make a committed version the model of a run, from which ``run --resume`` goes on. Return the version.

    ConfigError if the version is unknown, rejected or the model already, or if a process runs the run.
    """
    run = RunFolder.open(path)
    with run.claimed():
        known = {one.version: one for one in versions_of(path)}
        if (wanted := known.get(number)) is None:
            raise ConfigError(f"'{path}' has no version {number}: 'fedatlas versions {path}' lists them.")
        if not wanted.committed:
            raise ConfigError(
                f"version {number} was rejected, and a rejected model is not kept: choose a committed one "
                f"('fedatlas versions {path}')."
            )
        if wanted.current:
            raise ConfigError(f"version {number} is the model of '{path}' already.")
        checkpoints, newest = _opened(path)
        held = next(one for one in checkpoints.versions() if one["version"] == number)
        checkpoints.check_files(held)
        landed, rounds = newest["round"], run.config().rounds
        if VERDICTS in newest["extra"] and (landed == rounds or run.ended()):
            raise ConfigError(
                f"'{path}' is a deployed run that is over, and nothing would go on from a version: submit a new run."
            )
        at = min(landed + 1, rounds)  # a run that is over has begun no further round
        every = [*rollbacks_of(newest["extra"][GUARD]), (at, number)]
        guard = {"version": number, "scores": held["scores"], "rollback": [at, number], "rollbacks": every}
        extra = {**newest["extra"], GUARD: guard, **_told(newest["extra"], at, number)}
        run.reopen()
        checkpoints.forget_versions(after=landed)
        checkpoints.replace(
            {**newest, "round": at, "server": held["server"], "clients": held["clients"], "extra": extra}
        )
        return wanted._replace(current=True)


def lines_of(versions: Sequence[Version]) -> list[str]:
    """Return the list as text, a line each."""
    out = ["version  from  score   when                 "]
    for one in versions:
        score = "-" if one.score is None else f"{one.score:.4f}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time))
        said = "current" if one.current else "committed" if one.committed else "rejected"
        out.append(f"{one.version:7d}  {one.begun_from:4d}  {score:>6}  {when}  {said}")
    return out


def _opened(path: Path) -> tuple[Checkpoints, dict[str, Any]]:
    """Return a run's checkpoints and their newest manifest. ConfigError if the run keeps no versions."""
    config = RunFolder.open(path).config()
    if config.guard is None:
        raise ConfigError(NONE.format(path))
    if config.seeds is not None:
        raise ConfigError(
            f"'{path}' holds several seeds: name the folder of one, such as '{path / f'seed-{config.seeds[0]}'}'."
        )
    checkpoints = Checkpoints(path / "checkpoint", config.hash(), config.checkpoint.keep)
    try:
        newest = checkpoints.newest()
    except CheckpointError as error:
        raise ConfigError(f"'{path}' has no versions to show: {error}") from None
    if GUARD not in newest["extra"]:
        raise ConfigError(NONE.format(path))
    return checkpoints, newest


def _told(extra: Mapping[str, Any], at: int, version: int) -> dict[str, Any]:
    """Return what a deployed run's server will tell its nodes of a rollback: nobody counted, and where they go back to."""
    if VERDICTS not in extra:
        return {}
    return {VERDICTS: [*extra[VERDICTS], [at, []]], ROLLBACKS: [*extra.get(ROLLBACKS, []), [at, version]]}
