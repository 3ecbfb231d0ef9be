"""The run directory, as docs/experiment.md describes it. It is written while the run goes on."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import tomli_w
from safetensors.torch import save
from torch import Tensor

from fedatlas.config import ExperimentConfig, read
from fedatlas.data.cells import Reading, now
from fedatlas.data.kept import forget, keep
from fedatlas.errors import CheckpointError, ConfigError
from fedatlas.files import OWN_FILES, disk_error, write_bytes, write_json, write_text
from fedatlas.models.registry import OWN
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.setup.columns_method import of_columns

Start = Literal["new", "again", "resume"]
CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
JUDGED = "judged.npz"  # score and weight of each row that the final models are judged on
ATTACKED, ATTACK, FOUND = "attacks", "attack.json", "found.npz"  # of an attack on a view: its figures and findings
AUDIT, RELEASE = "audit.json", "release.html"  # of an audit: its record, and the page for those who sign
LOCK = "lock"  # exists while a process writes the run
TUNED, WON = "tune.json", "winner"  # of a tuning: its record, and the folder of its winner's run beside it
OPTIONS = "options.json"  # options of a run that are not in its configuration; absent if there are none
BASELINES = ("local_only", "centralised")  # algorithms that a run is compared with, each in a folder inside the run's


def file_of(what: str, name: str = "") -> str:
    """Return the file name of a model; ``name`` if there are several."""
    return f"{what}-{name}.safetensors" if name else f"{what}.safetensors"


def baseline_path(run: Path, name: str) -> Path:
    """Return the folder of one of a run's baselines."""
    return run / "baselines" / name


def won_a_tuning(run: Path) -> bool:
    """Return whether a tuning chose the values of this run."""
    whole = run.resolve()
    return whole.name == WON and (whole.parent / TUNED).exists()


def asked(baselines: bool | None, price: bool = False) -> dict[str, Any]:
    """Return the options of a run that are not in its configuration; {} if it has none."""
    return {**({} if baselines is None else {"baselines": baselines}), **({"price": True} if price else {})}


class RunFolder:
    """One run's folder. Rows are appended; every other file is written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = hashlib.sha256()  # of the rows so far

    @classmethod
    def create(
        cls, path: Path, config: ExperimentConfig, options: Mapping[str, Any] | None = None, *, again: bool = False
    ) -> RunFolder:
        """Make a new folder with the resolved configuration; ConfigError if it already holds a run.

        ``again``: the run stopped before its first checkpoint; its row is removed and its configuration rewritten.
        """
        if (path / CONFIG).exists() and not again:
            raise ConfigError(
                f"'{path}' already holds a run: continue it with --resume {path}, in Python resume('{path}'), or choose another --out."
            )
        if path.exists() and not path.is_dir():
            raise ConfigError(f"--out {path} is a file; name a folder.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(path, error) from error
        folder = cls(path)
        if again:
            (path / METRICS).unlink(missing_ok=True)
        if options:
            folder.write_json(OPTIONS, options)
        try:
            keep(config.data.files(), path)
        except OSError as error:
            raise disk_error(path, error) from error
        folder.rewrite(config)
        return folder

    def reopen(self) -> None:
        """Remove summary and audit before the model changes, so that their old figures are not taken for the new ones."""
        for name in (SUMMARY, AUDIT, RELEASE):
            (self.path / name).unlink(missing_ok=True)

    def discard(self) -> None:
        """Undo `create`: remove its files, and the folder if it is then empty."""
        kept = self.config().data.files()
        for name in (OPTIONS, CONFIG):
            (self.path / name).unlink(missing_ok=True)
        forget(kept, self.path)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of an earlier run. ConfigError if the folder is not a run."""
        if not (path / CONFIG).exists():
            raise ConfigError(f"'{path}' is not a run: it has no {CONFIG}.")
        return cls(path)

    @contextlib.contextmanager
    def claimed(self, *, wait: bool = False) -> Iterator[None]:
        """Let only this process write the run. ConfigError if another one does, or ``wait`` until it ends.

        A lock ends with its process, and must not be taken twice. A folder made only for the lock is removed again if
        it stays empty.
        """
        there = self.path.exists()
        if sys.platform == "win32" or (there and not self.path.is_dir()):  # `create` refuses a file
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self._locked(wait)
        except OSError as error:
            raise disk_error(self.path, error) from error
        try:
            with file:
                try:
                    yield
                finally:
                    (self.path / LOCK).unlink(missing_ok=True)  # while it is still held
        finally:
            if not there:
                with contextlib.suppress(OSError):
                    self.path.rmdir()

    def _locked(self, wait: bool) -> IO[str]:
        """Return the lock's file, held; retry if another process removed it in between."""
        import fcntl

        while True:
            file = open(self.path / LOCK, "w")  # noqa: SIM115  (held open: a lock lasts as long as its file)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                file.close()
                raise ConfigError(
                    f"'{self.path}' is being run by another process: wait until it ends, or stop it."
                ) from None
            except OSError:  # a file system without locks
                return file
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(file.fileno()).st_ino == (self.path / LOCK).stat().st_ino:
                    return file
            file.close()

    def rewrite(self, config: ExperimentConfig) -> None:
        """Write the resolved configuration."""
        how = "'fedatlas run config.toml' repeats it"
        if config.model.name.startswith(OWN):
            how = "Experiment.read('config.toml', module=...) repeats it, with the network that it was given"
        if OWN_FILES in {config.data.options().get("path"), *(one.path for one in config.parties or ())}:
            how = "'fedatlas deploy run config.toml' repeats it"
        head = f"# The resolved configuration of this run; {how}.\n"
        write_text(self.path / CONFIG, f"{head}# hash = {config.hash()}\n\n" + tomli_w.dumps(config.plain()))

    def config(self) -> ExperimentConfig:
        """Return the run's configuration as recorded."""
        return read(self.path / CONFIG)

    @property
    def of_columns(self) -> bool:
        """Whether the parties of the run hold columns."""
        return of_columns(self.config())

    def reading(self) -> Reading:
        """Return how a run that has begun reads its data; for a new run, the reading of this context."""
        name = "partition.json" if (self.path / CONFIG).exists() and self.of_columns else "preprocess.json"
        kept = self.read_json(name) if (self.path / name).exists() else {}
        return now()._replace(rules=Reading.from_json(kept.get("reading")).rules) if kept else now()

    def append_line(self, name: str, value: Mapping[str, Any]) -> None:
        """Append a line of JSON to a file; resuming never cuts it back."""
        try:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")
        except OSError as error:
            raise disk_error(self.path / name, error) from error

    def append(self, row: Mapping[str, Any]) -> int:
        """Append a row to metrics.jsonl, flush it to the disk and return the file's length in bytes."""
        path, line = self.path / METRICS, (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            with open(path, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                length = file.tell()
        except OSError as error:
            raise disk_error(path, error) from error
        self._written.update(line)
        return length

    def rows_sha256(self) -> str:
        """Return the SHA-256 of the rows of metrics.jsonl so far."""
        return self._written.hexdigest()

    def truncate(self, length: int, expected: str | None = None) -> None:
        """Drop the rows after a checkpoint; CheckpointError if the SHA-256 of those before it is not ``expected``."""
        path = self.path / METRICS
        data = path.read_bytes() if path.exists() else b""
        self._written = hashlib.sha256(data[:length])
        if len(data) < length or (expected is not None and self.rows_sha256() != expected):
            raise CheckpointError(
                f"'{path}' was altered or cut short after the checkpoint: put the original back, or start a new run."
            )
        if len(data) > length:
            write_bytes(path, data[:length])

    def rows(self) -> list[RoundRow]:
        """Return the rows of metrics.jsonl; a last line cut short by a crash is left out."""
        path = self.path / METRICS
        out: list[RoundRow] = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict):
                break
            out.append(cast(RoundRow, row))
        return out

    def holds(self, name: str, content: bytes) -> bool:
        """Return whether a file of the run exists and has this content."""
        path = self.path / name
        return path.exists() and path.read_bytes() == content

    def read_json(self, name: str, *keys: str) -> dict[str, Any]:
        """Return a JSON file of the run; ConfigError if it is missing or damaged, or lacks one of these keys."""
        try:
            out = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise self.damaged(name, "it is missing") from None
        except ValueError as error:
            raise self.damaged(name, str(error)) from None
        lacking = [key for key in keys if not isinstance(out, dict) or key not in out]
        if lacking or not isinstance(out, dict):
            raise self.damaged(name, f"it lacks '{lacking[0]}'" if lacking else "it is not an object")
        return out

    def damaged(self, name: str, why: str) -> ConfigError:
        """Return the error for a file of the run that cannot be read."""
        return ConfigError(
            f"'{self.path / name}' is damaged ({why}): put the original back; 'fedatlas run --resume {self.path}' rebuilds files that "
            "follow from the configuration and the checkpoint."
        )

    def save_model(self, name: str, state: Mapping[str, Tensor]) -> str:
        """Write a state dict under torch's names and layout, and return the file's SHA-256."""
        return write_bytes(self.path / name, save(dict(state)))

    def save_models(self, files: Mapping[str, Any]) -> dict[str, str]:
        """Write the files of a run's models, each by its suffix, and return the SHA-256 of each state dict."""
        digests = {}
        for name, content in files.items():
            if name.endswith(".safetensors"):
                digests[name] = self.save_model(name, content)
            elif name.endswith(".npz"):
                self.save_arrays(name, content)
            else:
                self.write_json(name, content)
        return digests

    def save_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays as a compressed .npz."""
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **dict(arrays))
        write_bytes(self.path / name, content.getvalue())

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays that `save_arrays` wrote; {} if there is no file."""
        if not (self.path / name).exists():
            return {}
        with np.load(self.path / name, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        write_json(self.path / name, value)

    def ended(self) -> bool:
        """Return whether the run wrote its summary, which comes last."""
        return (self.path / SUMMARY).exists()

    def finished(self) -> bool:
        """Return whether the run is finished; one that diverged is not, unless attackers were declared."""
        if not self.ended():
            return False
        found = self.summary()
        return "diverged" not in found or bool(found.get("attacks"))

    def summary(self) -> RunSummary:
        """Return summary.json; ConfigError if it has not been written yet."""
        if not self.ended():
            raise ConfigError(
                f"'{self.path}' is not finished: continue it with 'fedatlas run --resume {self.path}', in Python resume('{self.path}')."
            )
        return cast(RunSummary, self.read_json(SUMMARY, "algorithm", "final", "cost"))
