"""A misspelt key or name of an experiment file is found from a shipped list, before torch is imported, in the full check's words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.known_names import known_names

from fedatlas import catalogue, spelling
from fedatlas.commands import spelled_several
from fedatlas.config import parse, read
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.setup.refusals import checked

NEEDED: dict[str, dict[str, Any]] = {
    "parties": {"name": "a", "path": "x", "id": "i"},
    "observe": {"roles": ["server"]},
    "tracking": {"name": "mlflow"},
    "aggregation": {"name": "median"},
    "drift": {"kind": "concept", "at": 1},
}
"""Keys without which a table is refused first."""
KNOWN = json.loads(spelling.LIST.read_text(encoding="utf-8"))


def test_the_shipped_list_is_that_of_the_registries() -> None:
    assert json.loads(json.dumps(known_names())) == KNOWN, "run tests/support/known_names.py"


def quick(values: dict[str, Any], tmp_path: Path) -> str:
    import tomli_w

    (tmp_path / "e.toml").write_text(tomli_w.dumps(values))
    try:
        spelling.check(tmp_path / "e.toml", [])
    except ConfigError as error:
        return str(error)
    return ""


def full(values: dict[str, Any]) -> str:
    try:
        checked(parse(values))
    except FedatlasError as error:
        return str(error)
    return ""


def wrong(text: str) -> list[str]:
    """A misspelt form, one that is near nothing."""
    return [text[:-1] + "q" if len(text) > 3 else f"{text}q", "zzzzzzzzzzzz"]


def keys() -> Iterator[dict[str, Any]]:
    """One wrong key of each table."""
    for table, known in KNOWN["tables"].items():
        for key in wrong(known[0]):
            values: dict[str, Any] = {**NEEDED.get(table, {}), key: 1}
            for part in reversed(table.split(".") if table else ()):
                values = {part: [values] if part in spelling.LISTS else values}
            yield values


def names() -> Iterator[dict[str, Any]]:
    """One wrong name of each kind of component, and wrong keys of components."""
    for table, known in KNOWN["kinds"].items():
        for name in wrong(next(iter(known))):
            one = {"name": name}
            yield {table: [one] if table in spelling.SEVERAL else one}
        for name, taken in known.items():
            if name == "hub":
                continue
            for key in [*wrong(taken[0] if taken else "rate"), "namee", "learning_rate"]:
                one = {"name": name, key: 1}
                yield {table: [one] if table in spelling.SEVERAL else one}


def test_wrong_keys_of_tables_have_the_sentence_of_the_full_check(tmp_path: Path) -> None:
    every = [*keys()]
    assert len(every) > 20
    for values in every:
        assert quick(values, tmp_path)
        assert quick(values, tmp_path) == full(values), values


def test_wrong_choices_have_the_sentence_of_the_full_check(tmp_path: Path) -> None:
    assert {"evaluation.metric", "tracking.name", "local.optimizer"} <= KNOWN["values"].keys()
    for where, known in KNOWN["values"].items():
        for value in wrong(known[0]):
            table, _, key = where.rpartition(".")
            values: dict[str, Any] = {**NEEDED.get(table, {}), key: value}
            for part in reversed(table.split(".") if table else ()):
                values = {part: values}
            assert quick(values, tmp_path) == full(values) != "", where


def test_a_file_that_is_not_there_has_the_sentence_of_the_full_check(tmp_path: Path) -> None:
    for overrides in ([], ["=x"]):
        said = []
        for check in (spelling.check, read):
            with pytest.raises(ConfigError) as error:
                check(tmp_path / "none.toml", overrides)
            said.append(str(error.value))
        assert said[0] == said[1]


def test_wrong_names_and_keys_of_components_have_the_sentence_of_the_full_check(tmp_path: Path) -> None:
    """Where the full check comes to it: some components ask for a key, or for another table, before they look at the rest."""
    every, same = [*names()], 0
    for values in every:
        said = quick(values, tmp_path)
        assert said, values
        found = full(values)
        assert found
        if "unknown" in found or "has no such key" in found or "applies only" in found:
            assert said == found, values
            same += 1
    assert same > 0.9 * len(every), (same, len(every))


@pytest.mark.parametrize(
    "values",
    [
        {"data": {"name": "digits", "label": "y"}},
        {"data": {"name": "t.csv"}},
        {"algorithm": {"name": "fedavg", "mu": 1}},
        {"local": {"schedule": {"gama": 1}}},
        {"parties": [{"name": "a", "path": "x", "id": "i", "lable": "y"}]},
        {"model": {"name": "mlp", "hiden": [3]}},
    ],
)
def test_special_sentences_are_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    assert quick(values, tmp_path) == full(values) != ""


def test_what_is_right_or_cannot_be_judged_passes(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    files = [*(root / "examples").rglob("*.toml"), *(root / "tests" / "record").rglob("config.toml")]
    assert files
    for file in files:
        spelling.check(file, [])
    for values in (
        {"partition": {"name": "flwr:IidPartitioner", "num_partitions": 3}},
        {"partition": {"name": "vertical", "overlap": 0.5}, "algorithm": {"name": "secureboost", "depth": 2}},
        {"public": {"from": "test", "rows": 3}},
        {"algorithm": {"name": "fedavg", "weights": "equal"}},
        {"models": [{"name": "mlp", "share": 0.5}]},
    ):
        assert quick(values, tmp_path) == "", values
    spelling.check(None, ["algorithm.name=fedprox", "algorithm.mu=0.1"])
    (tmp_path / "e.toml").write_text("[algorithm]\nname = 'fedprox'\nmu = 0.1\n")
    spelling.check(tmp_path / "e.toml", ["algorithm.name=fedavg"])
    read(tmp_path / "e.toml", ["algorithm.name=fedavg"])


def test_names_are_all_that_the_program_can_show() -> None:
    assert {*spelling.names()} == {row["name"] for kind in catalogue.KINDS for row in catalogue.rows(kind)}


@pytest.mark.parametrize("command", ["run", "partition", "compare", "tune", "deploy run", "deploy trial"])
def test_a_typing_error_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    """Counted in modules, not in seconds: what takes the seconds is torch."""
    (tmp_path / "e.toml").write_text("[local]\nepoch = 3\n")
    code = (
        "import sys\nfrom fedatlas import cli\n"
        f"sys.argv = ['fedatlas', *{command.split()!r}, {str(tmp_path / 'e.toml')!r}]\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n"
        "    print(end.code, [m for m in ('torch', 'numpy', 'pandas', 'scipy', 'fedatlas.config') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "2 []"
    assert done.stderr == "fedatlas: unknown key 'local.epoch': did you mean 'local.epochs'?\n"


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.name=fedavg,fedprox", "algorithm.mu=0.1"],  # the full check says which of them has no such key
        ["local.lr=0.1,0.2", "local.schedule.gamma=0.5"],
        ["algorithm.name=fedprox", "algorithm.mu=0.01,0.1"],
        ["local.lr=0.01..0.3"],
        ["algorithm.name=secureboost,split"],
        ["model.name=cnn1,mlp", "data.name=digits,mnist"],
        ['algorithm={name="fedavg"},{name="fedporx"}'],  # left to the full check, as a table is
    ],
)
def test_keys_with_several_values_pass(words: list[str]) -> None:
    assert spelled_several(words, None) == (None, words)


def test_wrong_names_among_several_are_all_named() -> None:
    with pytest.raises(ConfigError) as found:
        spelled_several(["algorithm.name=fedavg,fedaavg,fedporx", "local.lr=0.1"], None)
    said = "unknown algorithm 'fedaavg': did you mean 'fedavg'? unknown algorithm 'fedporx': did you mean 'fedprox'?"
    assert str(found.value) == said
    spelled_several(["algorithm.name=fedavg,mine"], [Path("own.py")])  # a plug-in may know the name


def test_a_plug_in_may_know_the_name(tmp_path: Path) -> None:
    plugin = tmp_path / "own.py"
    plugin.write_text("raise RuntimeError('it was loaded')\n")
    asked = [sys.executable, "-m", "fedatlas", "run", "algorithm.name=mine", "--plugin", str(plugin)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "it was loaded" in done.stderr
    assert "unknown" not in done.stderr
