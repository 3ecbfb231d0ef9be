"""TensorBoard: a folder of events; those of several seeds are in one common folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.tracking.tracker import Beginning, Ended, Tracker

FOLDER = "tensorboard"


class TensorboardRun:
    """A run's folder of events."""

    def __init__(self, writer: Any, id: str) -> None:
        self.writer, self.id = writer, id

    def parameters(self, values: Mapping[str, str]) -> None:
        rows = "".join(f"| {key} | {value} |\n" for key, value in values.items())
        self.writer.add_text("parameters", f"| key | value |\n|---|---|\n{rows}", 0)

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def artefact(self, file: Path) -> None:
        """Show a record as text. A page is skipped, as TensorBoard cannot show it."""
        if file.suffix == ".json":
            text = "".join(f"    {line}\n" for line in file.read_text(encoding="utf-8").splitlines())
            self.writer.add_text(file.stem, text, 0)
            self.writer.flush()

    def end(self, how: Ended) -> None:  # noqa: ARG002  # events know no end
        self.writer.close()


def begin(asked: Beginning) -> TensorboardRun:
    """Open a folder for events. The reader hides an earlier process's events of rounds that are sent again."""
    from torch.utils.tensorboard import SummaryWriter

    if asked.before:
        folder = Path(asked.before)
    elif asked.parent:
        folder = Path(asked.parent) / asked.path.name
    else:
        folder = unused(Path(asked.how.to) / asked.name) if asked.how.to else asked.path / FOLDER
    purge = asked.told + 1 if asked.before else None
    return TensorboardRun(SummaryWriter(str(folder), purge_step=purge), str(folder.absolute()))


def unused(folder: Path) -> Path:
    """Return the folder, with a number if the name is taken: two runs in one folder would be one curve."""
    found, number = folder, 2
    while found.exists():
        found, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return found


TENSORBOARD = Tracker("tensorboard", begin)
