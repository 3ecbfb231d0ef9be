"""The schemes of a comparison: one experiment per combination of values. If one is refused, all are."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedatlas import plugins
from fedatlas.comparison.draws import is_range
from fedatlas.comparison.values import GivenKey, given_keys, label_of, stopped
from fedatlas.config import ExperimentConfig, read
from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.machine import one_thread_an_operator
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from fedatlas.setup.resolution import apply_fixes
from fedatlas.setup.with_data import task_with_data
from fedatlas.wording import count

MOST = 64  # schemes of one comparison
Made = TypeVar("Made")


class ComparedScheme(NamedTuple):
    """One combination of values."""

    label: str  # also the name of its folder
    given: tuple[str, ...]  # the overrides in which it differs from the others
    config: ExperimentConfig  # as written, with all seeds
    checked: Checked
    task: str  # "classes" or "numbers"

    @property
    def key(self) -> str:
        """Digest of everything that its runs compute, for any seeds.

        Equal digests mean that runs need not be repeated.
        """
        config = self.checked.with_seed(0).config
        parts = [config.hash(), str(config.rounds), *sorted(plugins.LOADED.values())]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Comparison(NamedTuple):
    """Schemes that are run with the same seeds."""

    name: str  # of its default folder
    key: str  # of its schemes and seeds
    keys: tuple[str, ...]  # with several values
    seeds: tuple[int, ...]
    schemes: tuple[ComparedScheme, ...]
    file: str = "FILE.toml"  # the experiment, as commands name it


def comparison_of(path: Path | None, words: Sequence[str], seeds: str | None = None) -> Comparison:
    """Return the comparison of an experiment file under ``key=a,b`` words. ``seeds``: "5" (1 to 5) or "1,4,9".

    ConfigError for any error, with all bad values in one sentence. The data are read for this check.
    """
    given = given_keys(words)
    several = [one for one in given if len(one.values) > 1]
    if ranges := [one.text(i) for one in given for i, text in enumerate(one.values) if is_range(text)]:
        raise ConfigError(
            f"'{ranges[0]}': a comparison runs the values that are listed, local.lr=0.01,0.1; 'fedatlas tune' searches a range."
        )
    if not several:
        raise ConfigError("nothing to compare: give a key several values, such as algorithm.name=fedavg,fedprox.")
    if any(one.key in ("seed", "seeds") for one in (given if seeds else several)):
        raise ConfigError("the seeds of a comparison are given once, by --seeds 5 or --seeds 1,4,9.")
    asked = [f"seeds={list(seeds_of(seeds))}"] if seeds else []
    total = 1
    for one in several:
        total *= len(one.values)
    if total > MOST:
        raise ConfigError(f"these are {total} schemes, and a comparison has at most {MOST}: use 'fedatlas study'.")
    chosen = list(itertools.product(*(range(len(one.values)) for one in given)))
    labels = [labelled(given, at) for at in chosen]
    with read_once(), one_thread_an_operator():
        made = made_of_all(labels, [partial(_scheme, path, given, at, asked) for at in chosen])
    refuse_alike(made)
    numbers = made[0].config.seeds or ()
    whole = [*sorted(f"{one.label} {one.key}" for one in made), *map(str, sorted(numbers))]
    key = hashlib.sha256("\0".join(whole).encode()).hexdigest()
    name = f"{path.stem if path else 'default'}-{key[:8]}"
    found = Comparison(name, key, tuple(one.key for one in several), numbers, tuple(made))
    return found if path is None else found._replace(file=str(path))


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds of ``--seeds``: 1 to N, or the listed ones."""
    words = [word.strip() for word in text.split(",")]
    if twice := next((word for word in words if word and words.count(word) > 1), ""):
        raise ConfigError(f"--seeds {text} names {twice} twice: write each seed once, or how many, --seeds 5.")
    if not all(word.isdecimal() for word in words) or words == ["0"]:
        raise ConfigError(f"--seeds {text}: write how many, --seeds 5, or which, --seeds 1,4,9.")
    return tuple(range(1, int(words[0]) + 1)) if len(words) == 1 else tuple(map(int, words))


def labelled(given: Sequence[GivenKey], at: Sequence[int]) -> str:
    """Return the name of a combination, from the keys that have several values."""
    return label_of([one.text(i) for one, i in zip(given, at, strict=True) if len(one.values) > 1])


def made_of_all(labels: Sequence[str], makers: Sequence[Callable[[], Made]]) -> list[Made]:
    """Return the results of all makers. ConfigError, after the last one, that names those that refused, and why."""
    made: list[Made] = []
    wrong: dict[str, list[str]] = {}
    for label, make in zip(labels, makers, strict=True):
        try:
            made.append(make())
        except FedatlasError as error:
            wrong.setdefault(str(error).rstrip("."), []).append(label)
    if len(wrong) == 1 and not made:  # the same for all: the file is at fault
        raise ConfigError(stopped(next(iter(wrong))))
    if wrong:
        refused = sum(map(len, wrong.values()))
        said = "; ".join(f"{', '.join(names)}: {why}" for why, names in wrong.items())
        raise ConfigError(stopped(f"{refused} of {count(len(labels), 'scheme')} cannot be run, so none was: {said}"))
    return made


def _scheme(path: Path | None, given: Sequence[GivenKey], at: Sequence[int], asked: Sequence[str]) -> ComparedScheme:
    texts = [one.text(i) for one, i in zip(given, at, strict=True)]
    own = tuple(text for text, one in zip(texts, given, strict=True) if len(one.values) > 1)
    config = read(path, [*texts, *asked])
    if config.seeds is None:
        values = config.plain()
        config = read(path, [*texts, f"seeds=[{values['seed']}]"])
    whole = checked(config)
    first = whole.with_seed((config.seeds or (1,))[0])
    fixed, _ = apply_fixes(config, whole.algorithm)
    return ComparedScheme(labelled(given, at), own, fixed, whole, task_with_data(first))


def refuse_alike(schemes: Sequence[ComparedScheme]) -> None:
    """Raise ConfigError if two schemes are one experiment, have one name, or predict different things."""
    seen: dict[str, str] = {}
    for one in schemes:
        key = f"{one.checked.config.hash()} {one.checked.config.rounds}"
        if key in seen:
            raise ConfigError(f"'{seen[key]}' and '{one.label}' are the same experiment: remove one of them.")
        seen[key] = one.label
    if len({one.task for one in schemes}) > 1:
        raise ConfigError("some schemes predict classes and others numbers: compare those that predict the same.")
    if len({one.checked.columns for one in schemes}) > 1:
        raise ConfigError(
            "some schemes are of parties that hold columns and others of clients that hold rows: compare one kind."
        )
    labels = [one.label.lower() for one in schemes]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise ConfigError(f"two schemes would have the folder '{twice}': give values that differ in their letters.")
