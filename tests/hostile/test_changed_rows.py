"""Rows that mechanisms change: what leaves is computed from changed rows, and a damaged or foreign secret ends in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agreements import Agreements, write_rows
from fedatlas import Experiment, load
from fedatlas.api import resume, run
from fedatlas.deployment.terms import Sums, decoded
from fedatlas.deployment.trainer import Trainer
from fedatlas.errors import CheckpointError, ConfigError, DataError
from fedatlas.wire import messages
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.messages import FactsQuestion, SumAnswer, written
from nodes_in_process import run_here
from tables import of_table, table

WIDE: dict[str, Any] = {"name": "additive_noise", "bounds": [-1000, 1000]}
"""Noise beside which the rows are nothing."""


@pytest.fixture
def made(tmp_path: Path) -> Agreements:
    return Agreements(tmp_path)


def nodes(made: Agreements, folder: Path) -> dict[str, Trainer]:
    return {name: made.trainer(name, write_rows(folder / f"{name}.csv", seed=k)) for k, name in enumerate(made.names)}


class Listening(Trainer):
    """A node whose answers before round 1 are noted."""

    sums: list[Mapping[str, Any]]

    def serve(self, message: RawMessage) -> Iterator[RawMessage]:
        for said in super().serve(message):
            answer = messages.read(said, messages.FROM_TRAINER)
            if isinstance(answer, SumAnswer):
                self.sums.append(decoded(Sums, answer.body).answer)
            yield said


def test_sums_before_round_1_are_those_of_changed_rows(made: Agreements, tmp_path: Path) -> None:
    """Squares of 40 numbers near 1 in a file, and of numbers near 1,000 in what leaves."""
    noted: list[Mapping[str, Any]] = []
    trainers: dict[str, Trainer] = {}
    for k, name in enumerate(made.names):
        trainers[name] = node = Listening(made.node(name), write_rows(tmp_path / f"{name}.csv", seed=k))
        node.sums = noted
    ran = run_here(made, trainers, made.signed("r", made.config(privacy=[WIDE])), test=tmp_path / "north.csv")
    assert ran.state.status == "finished", ran.state.why
    assert len(noted) == 3
    assert all(float(sums["squares"].min()) > 40 * 1e4 for sums in noted)


def test_a_damaged_secret_of_a_node_ends_in_a_sentence(made: Agreements, tmp_path: Path) -> None:
    """It says nothing of the rows, and nothing is trained on rows without noise."""
    trainers = nodes(made, tmp_path)
    state = made.paths["north"] / "state" / "r"
    state.mkdir(parents=True)
    (state / "rows.secret").write_bytes(b"short")
    ran = run_here(made, trainers, made.signed("r", made.config(privacy=[WIDE])), test=tmp_path / "south.csv")
    assert ran.state.status == "failed"
    assert "its rows cannot be used as the experiment says" in ran.state.why


def test_a_node_that_starts_again_has_the_same_rows(made: Agreements, tmp_path: Path) -> None:
    signed = made.signed("r", made.config(privacy=[WIDE]))
    file = write_rows(tmp_path / "north.csv")
    held = []
    for _ in range(2):
        node = made.trainer("north", file)
        assert next(node.serve(written(FactsQuestion("r", signed)))).kind == "facts"
        held.append(node.held(node.agreements.accept("r", signed)).splits["train"].x)
    assert held[0].abs().max() > 100
    assert held[0].equal(held[1])


# ---------------------------------------------------------------------- a run's folder


@pytest.fixture
def done(tmp_path: Path) -> Path:
    table(tmp_path / "rows.csv")
    noise = {"name": "additive_noise", "bounds": [-3, 3]}
    turned = {"name": "rotation", "bounds": [-3, 3]}
    asked: Experiment = of_table(
        tmp_path / "rows.csv", privacy=[noise, turned], evaluation={"on": "validation", "validation": 0.2}
    )
    return run(asked, out=tmp_path / "run", baselines=False).path


def test_a_run_does_not_go_on_with_other_rows(done: Path) -> None:
    root = (done / "rows.secret").read_bytes()
    (done / "rows.secret").write_bytes(bytes(32))
    with pytest.raises(CheckpointError, match="the data are not those"):
        resume(done, ["rounds=3"], baselines=False)
    (done / "rows.secret").unlink()
    with pytest.raises(ConfigError, match=r"has lost 'rows\.secret', by which its clients' rows were changed"):
        resume(done, ["rounds=3"], baselines=False)
    (done / "rows.secret").write_bytes(root)
    resume(done, ["rounds=3"], baselines=False)


def test_rows_that_nothing_random_changed_need_no_secret(tmp_path: Path) -> None:
    """Anonymised rows follow from the rows; noise of the seed follows from the file."""
    table(tmp_path / "rows.csv")
    for name, keys in [
        ("anonymise", {"quasi": ["a"], "k": 3}),
        ("additive_noise", {"bounds": [-3, 3], "noise": "seed"}),
    ]:
        asked = of_table(tmp_path / "rows.csv", privacy=[{"name": name, **keys}])
        path = run(asked, out=tmp_path / name, baselines=False).path
        before = (path / "preprocess.json").read_bytes()
        (path / "rows.secret").unlink()
        resume(path, ["rounds=3"], baselines=False)
        assert (path / "preprocess.json").read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", '{"columns": []}', "{"])
def test_a_damaged_reading_of_new_rows_ends_in_a_sentence(done: Path, text: str) -> None:
    (done / "rows.json").write_text(text)
    with pytest.raises(ConfigError, match=r"rows\.json' is damaged"):
        load(done)


def test_a_number_that_is_none_stays_one(tmp_path: Path) -> None:
    """Noise does not hide an infinite cell from those who would refuse it."""
    path = tmp_path / "rows.csv"
    table(path)
    lines = path.read_text().splitlines()
    lines[3] = "inf,0.5,yes"
    path.write_text("\n".join(lines) + "\n")

    def refused(*mechanisms: dict[str, Any]) -> str:
        with pytest.raises((DataError, ConfigError)) as error:
            run(of_table(path, privacy=[*mechanisms]), out=tmp_path / "run", baselines=False)
        return str(error.value)

    assert refused() == refused(WIDE)
