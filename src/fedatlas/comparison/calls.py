"""`compare` and `tune` in Python: the commands of these names, for a file or an `Experiment`, and their display in a notebook."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w

from fedatlas.api import Experiment
from fedatlas.comparison import compare as comparing
from fedatlas.comparison import tune as tuning
from fedatlas.comparison.answer import table_cells
from fedatlas.comparison.schemes import comparison_of
from fedatlas.course.progress import Progress
from fedatlas.errors import ConfigError
from fedatlas.notebook import RunResult, SvgPicture, block, curve, table, watched
from fedatlas.reporting import REPORT
from fedatlas.study.local_runs import PARALLEL
from fedatlas.wording import PARTS, number

if TYPE_CHECKING:
    import pandas

Keys = Mapping[str, Any] | Sequence[str]
"""``{"algorithm.name": ["fedavg", "fedprox"]}``, or words of the command line: ``["algorithm.name=fedavg,fedprox"]``."""
PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
ROWS = 5  # trials of a tuning that a notebook shows


class ComparedSchemes(NamedTuple):
    """A comparison: its folder (``path``), and the content of its ``comparison.json`` (``record``)."""

    path: Path
    record: Mapping[str, Any]

    def __repr__(self) -> str:
        answer = self.record["answer"]
        means = {one["scheme"]: f" {number(one['mean'])}" for one in answer["rows"]}
        found = ", ".join(f"{one['label']}{means.get(one['label'], '')}" for one in self.record["schemes"])
        take = f"; take {answer['take']}" if answer["take"] and len(means) > 1 else ""
        words = f"{answer['words']} " if means else ""
        return f"<Comparison {self.path}: {words}{found}{take}>"

    def _repr_html_(self) -> str:
        head, *rows = table_cells(self.record["answer"]) or [[]]
        said = "".join(f"<p>{escape(line)}</p>" for line in self.record["answer"]["sentences"])
        return block(said + (table(rows, head) if rows else ""), self.page)

    @property
    def answer(self) -> str:
        """The schemes that can be told apart, the one to take, and whether to federate with it."""
        return "\n".join(self.record["answer"]["sentences"])

    @property
    def page(self) -> Path | None:
        """The page of all schemes and seeds; None if no run came far enough."""
        return self.path / self.record["page"] if "page" in self.record else None

    def plot(self, figure: str = "", against: str = "round") -> SvgPicture:
        """Draw a figure of each round, lines of one colour per scheme, as `RunResult.plot`.

        ConfigError if no run came far enough.
        """
        paths = [self.path / row["scheme"] for row in self.record["answer"]["rows"]]
        if not paths:
            raise ConfigError("no run of this comparison came to its end, so there is nothing to draw.")
        return curve(paths, figure, against)

    def frame(self) -> pandas.DataFrame:
        """Return one row per scheme, from best to worst: mean, sd, seeds, ``alone``, ``pooled``, bytes and seconds."""
        import pandas

        return pandas.DataFrame(self.record["answer"]["rows"]).rename(columns=PARTS)


class TuningResult(NamedTuple):
    """A tuning: its folder (``path``), the content of its ``tune.json`` (``record``), and the winner's run."""

    path: Path
    record: Mapping[str, Any]
    winner: RunResult

    def __repr__(self) -> str:
        return f"<Tuning {self.path}: {tuning.values_text(self.picked)}>"

    def _repr_html_(self) -> str:
        shown = self.frame().head(ROWS).map(lambda x: number(x) if isinstance(x, float) else str(x))
        said = "".join(f"<p>{escape(line)}</p>" for line in self.answer.splitlines())
        return block(said + table(shown.to_numpy().tolist(), [*map(str, shown.columns)]), self.winner.path / REPORT)

    @property
    def picked(self) -> Mapping[str, Any]:
        """The winner's values by key."""
        return dict(self.record["winner"])

    @property
    def answer(self) -> str:
        """The winner's figure on test rows, cautions about the tuning, and the winner's answer."""
        told = tuning.winner_text(dict(self.record), self.winner)
        return "\n".join(filter(None, [told, *self.record["notices"], self.winner.answer]))

    def frame(self) -> pandas.DataFrame:
        """Return one row per trial, the best first: one column per key, ``figure``, ``validation``, ``rows``, ``status``.

        The keys of the trials' runs in the study's table are in ``record``.
        """
        import pandas

        tried = sorted(self.record["trials"], key=tuning.better, reverse=True)
        left = ("values", "run_key")
        return pandas.DataFrame([{**one["values"], **{k: x for k, x in one.items() if k not in left}} for one in tried])


def compare(
    experiment: Experiment | str | Path | None,
    keys: Keys,
    *,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    baselines: bool | None = None,
    price: bool = False,
    parallel: int = PARALLEL,
    progress: Progress | bool | None = None,
) -> ComparedSchemes:
    """Run an experiment with every value of its keys and every seed, as ``fedatlas compare`` does.

    Finished runs are kept.

    ``experiment``: a file, an `Experiment`, or None for the embedded default. ``keys``: key -> its values, such as
    ``{"algorithm.name": ["fedavg", "fedprox"]}``; a single value is an override. ``seeds``: how many (5: from 1 to 5),
    or which. ``out``: by default a folder in ``runs/compare``. ``price``: also run each scheme without its
    ``[[privacy]]``. ``progress``: as in `run`. ConfigError for any error in these, before any run.
    """
    told = watched(progress)
    with _file(experiment) as path:
        given = comparison_of(path, words_of(keys), _seeds(seeds))
        if isinstance(experiment, Experiment):  # its file is gone when the answer is read
            given = given._replace(file="FILE.toml")
        place = Path(out) if out is not None else Path("runs") / "compare" / given.name
        record = comparing.compare(given, place, baselines=baselines, price=price, parallel=parallel, say=told.said)
    return ComparedSchemes(place, record)


def tune(
    experiment: Experiment | str | Path | None,
    keys: Keys,
    *,
    budget: int = 20,
    out: str | Path | None = None,
    parallel: int = PARALLEL,
    progress: Progress | bool | None = None,
) -> TuningResult:
    """Try values of keys on validation rows, then train the best and judge it once on test rows, as ``fedatlas tune`` does.

    ``keys``: key -> a range ``"0.01..0.3"``, drawn on a log scale, or a list of values. Other arguments as in
    `compare`.
    """
    told = watched(progress)
    with _file(experiment) as path:
        given = tuning.tuning_of(path, words_of(keys))
        place = Path(out) if out is not None else Path("runs") / "tune" / given.name
        done, record = tuning.tune(given, place, budget, told, parallel=parallel, say=told.said)
    return TuningResult(place, record, RunResult(*done))


def words_of(keys: Keys) -> list[str]:
    """Return keys with values as words of the command line."""
    if isinstance(keys, str):
        raise ConfigError(f"'{keys}': give a mapping of keys to values, or a list of words.")
    if not isinstance(keys, Mapping):
        return [*keys]
    return [f"{key}={_values_text(value)}" for key, value in keys.items()]


def _values_text(value: Any) -> str:
    """Return one value, or several separated by commas.

    A text is read as on the command line: a range, or one value.
    """
    if isinstance(value, str):
        return value
    return ",".join(map(_text, value)) if isinstance(value, list | tuple) else _text(value)


def _text(value: Any) -> str:
    """Return a value in a line of TOML."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value not in ("true", "false", "inf", "nan") else json.dumps(value)
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}={_text(x) if not isinstance(x, str) else json.dumps(x)}' for key, x in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(json.dumps(x) if isinstance(x, str) else _text(x) for x in value)}]"
    return json.dumps(value.item() if hasattr(value, "item") else value)


def _seeds(seeds: int | Sequence[int] | None) -> str | None:
    if seeds is None or isinstance(seeds, int):
        return None if seeds is None else str(seeds)
    return ",".join(map(str, seeds))


@contextlib.contextmanager
def _file(experiment: Experiment | str | Path | None) -> Iterator[Path | None]:
    """Yield an experiment as a file. ConfigError for one with a custom network, which a file cannot hold."""
    if not isinstance(experiment, Experiment):
        yield None if experiment is None else Path(experiment)
        return
    if experiment.module is not None:
        raise ConfigError(
            "compare and tune write each scheme's file, which cannot hold a network given as module=...: put it into a plug-in file."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{experiment.config.data.name}.toml"
        path.write_text(tomli_w.dumps(experiment.config.plain()), encoding="utf-8")
        yield path
