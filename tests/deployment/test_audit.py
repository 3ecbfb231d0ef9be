"""A node's audit log: what stands in it before an answer leaves, what it says for people, and what of it cannot be altered unseen."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agreements import Agreements, write_rows
from fedatlas.cli import main
from fedatlas.deployment import audit
from fedatlas.deployment.audit import FIRST, HEAD, LOG, Audit, left_text, table, verified
from fedatlas.deployment.trainer import Trainer
from fedatlas.errors import DataError
from fedatlas.files import disk_error
from fedatlas.wire.messages import FactsQuestion, TaskRequest, written
from nodes_in_process import run_here


def a_log(folder: Path) -> Path:
    """A log of five lines."""
    log = Audit(folder)
    log.note("agreement", run="r", what="fedavg", cohort=("a", "b", "c"), digest="0" * 32)
    log.note("request", sync=False, run="r", what="facts")
    log.note("answer", run="r", what="facts", left="facts")
    log.note(
        "answer", run="r", what="train", place=(1, 0, 0), left="updates", protected="masked", rows=40, cohort=("a", "b")
    )
    log.note("refusal", run="r", what="ask", why="no \x1b[2Jround")
    return folder / LOG


# ---------------------------------------------------------------------- the chain


def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    a_log(tmp_path)
    Audit(tmp_path).note("answer", run="r", what="train", left="updates", protected="alone")
    found = verified(tmp_path)
    assert (found.problem, found.torn, len(found.lines)) == ("", 0, 6)
    assert [line.said["number"] for line in found.lines] == [1, 2, 3, 4, 5, 6]
    assert verified(tmp_path, found.lines[2].digest).problem == ""
    assert verified(tmp_path, FIRST).problem == ""


def replaced(number: int, change: Callable[[str], str]) -> Callable[[list[str]], list[str]]:
    return lambda lines: [change(line) if k == number else line for k, line in enumerate(lines)]


ALTERED: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "another number of rows": (
        replaced(3, lambda line: line.replace('"rows": 40', '"rows": 41')),
        "line 5 does not follow",
    ),
    "no JSON any more": (replaced(1, lambda line: line[:-2]), "line 3 does not follow"),
    "one removed": (lambda lines: [*lines[:2], *lines[3:]], "line 3 does not follow"),
    "the first removed": (lambda lines: lines[1:], "line 1 does not follow"),
    "one added": (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 does not follow"),
    "two exchanged": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2 does not follow"),
    "the last altered": (
        replaced(4, lambda line: line.replace("ask", "kiss")),
        "line 5 is not the one that was written",
    ),
    "the end cut off": (lambda lines: lines[:3], "ends after 3 lines, but had 5: its end was cut off"),
    "all removed": (lambda lines: [], "ends after 0 lines, but had 5: its end was cut off"),
}


@pytest.mark.parametrize("how", ALTERED)
def test_what_is_altered_is_found_and_named(tmp_path: Path, how: str) -> None:
    path, (change, said) = a_log(tmp_path), ALTERED[how]
    lines = change(path.read_text().splitlines())
    path.write_text("".join(f"{line}\n" for line in lines))
    assert said in verified(tmp_path).problem


@pytest.mark.parametrize(
    "forged",
    [{}, {"kind": 5}, {"kind": "answer", "place": 3}, {"kind": "answer", "rows": "x"}, {"kind": "answer", "cohort": 1}],
)
def test_a_line_of_another_form_is_none(tmp_path: Path, forged: dict[str, Any]) -> None:
    """Behind the last line, with the right digest of the one before it: it is counted, and shown nowhere."""
    path = a_log(tmp_path)
    before = verified(tmp_path)
    with path.open("a") as file:
        file.write(json.dumps({"number": 6, "at": "2026", **forged, "before": before.head}) + "\n")
    found = verified(tmp_path)
    assert (found.torn, len(found.lines)) == (1, 5)
    assert table(found.lines) == table(before.lines)
    assert left_text(found.lines) == left_text(before.lines)


def test_whoever_writes_both_files_anew_is_found_by_a_digest_that_was_noted(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    noted = verified(tmp_path).head
    path.unlink()
    (tmp_path / HEAD).unlink()
    Audit(tmp_path).note("answer", run="r", what="facts", left="facts")
    assert verified(tmp_path).problem == ""  # by itself it looks whole
    assert "the digest that was noted is of none of its lines" in verified(tmp_path, noted).problem


def test_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    """A process that died while it wrote: its answer never left."""
    path = a_log(tmp_path)
    with path.open("a") as file:
        file.write('{"number": 6, "at": "2026')
    log = Audit(tmp_path)
    log.note("answer", run="r", what="train")
    found = verified(tmp_path)
    assert (found.problem, found.torn, len(found.lines)) == ("", 1, 6)
    assert found.lines[-1].said["number"] == 6


def test_without_a_head_the_end_cannot_be_told(tmp_path: Path) -> None:
    a_log(tmp_path)
    (tmp_path / HEAD).write_text("")
    assert "whether the end was cut off cannot be told" in verified(tmp_path).problem
    with pytest.raises(DataError, match="name the bundle of a node that has run"):
        verified(tmp_path / "nowhere")


# ---------------------------------------------------------------------- a node


@pytest.fixture
def made(tmp_path: Path) -> Agreements:
    return Agreements(tmp_path)


def nodes(made: Agreements, folder: Path) -> dict[str, Trainer]:
    return {name: made.trainer(name, write_rows(folder / f"{name}.csv", seed=k)) for k, name in enumerate(made.names)}


def test_it_says_what_left_a_site(made: Agreements, tmp_path: Path) -> None:
    """Of a masked run in which nodes judge: facts and sums in the clear, updates and figures inside sums."""
    data = {"name": "file", "label": "y", "test": 0.2}
    run = run_here(made, nodes(made, tmp_path), made.signed("r", made.config(privacy=[{"name": "secagg"}], data=data)))
    assert run.state.status == "finished", run.state.why
    found = verified(made.paths["north"])
    assert (found.problem, found.torn) == ("", 0)
    kinds = [line.said["kind"] for line in found.lines]
    assert kinds.count("agreement") == 1
    assert kinds.count("request") == kinds.count("answer") > 20
    work = [line.said for line in found.lines if line.said.get("left") == "updates"]
    assert [line["place"][0] for line in work] == [1, 2, 3]
    assert all(line["protected"] == "masked" and {*line["cohort"]} == {*made.names} for line in work)
    assert {line["rows"] for line in work} == {32}
    said = audit.left_text(found.lines)
    assert said.startswith("What left this site so far, in 1 run: facts of its rows")
    assert "sums over its rows before round 1 (which the server saw alone)" in said
    assert "updates (only inside sums of several nodes) 3 times" in said
    assert "figures of judging (only inside sums of several nodes) 4 times" in said
    assert said.endswith("no noise was used, so differential privacy promises nothing.")


def test_in_the_clear_is_called_so(made: Agreements, tmp_path: Path) -> None:
    trainers = nodes(made, tmp_path)
    run = run_here(made, trainers, made.signed("r"), test=write_rows(tmp_path / "test.csv"))
    assert run.state.status == "finished", run.state.why
    assert "updates (which the server saw alone) 3 times" in audit.left_text(verified(made.paths["north"]).lines)


def test_an_answer_stands_there_before_it_leaves(made: Agreements, tmp_path: Path, monkeypatch: Any) -> None:
    """And nothing leaves where it cannot be written, but a refusal."""
    node = made.trainer("north", write_rows(tmp_path / "north.csv"))
    asked = written(FactsQuestion("r", made.signed("r")))
    answers = node.serve(asked)
    assert next(answers).kind == "facts"
    assert verified(made.paths["north"]).lines[-1].said["left"] == "facts"
    monkeypatch.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    (said,) = node.serve(asked)
    assert said.kind == "refused"
    assert "could not be written" in said.head["why"]


def test_facts_are_counted_once(made: Agreements, tmp_path: Path) -> None:
    """A server that asks three times gets the same thrice; other facts, of another policy, are told once more."""
    node = made.trainer("north", write_rows(tmp_path / "north.csv"))
    asked = written(FactsQuestion("r", made.signed("r")))

    def told() -> str:
        assert [said.kind for _ in range(3) for said in node.serve(asked)] == ["facts"] * 3
        return audit.left_text(verified(made.paths["north"]).lines)

    assert "numbers of rows) 1 time." in told()
    (made.paths["north"] / "policy.toml").write_text('names = ["yes"]\n')
    assert "numbers of rows) 2 times." in told()


def test_a_refusal_stands_there_with_its_reason(made: Agreements, tmp_path: Path) -> None:
    node = made.trainer("north", write_rows(tmp_path / "north.csv"))
    (said,) = node.serve(written(FactsQuestion("s", made.signed("r"))))
    last = verified(made.paths["north"]).lines[-1].said
    assert (last["kind"], last["why"]) == ("refusal", said.head["why"])
    (said,) = node.serve(written(TaskRequest("r", (1, 0, 0), "0" * 32, "0" * 32, (), b"")))
    assert said.kind == "unknown"
    assert verified(made.paths["north"]).lines[-1].said["place"] == [1, 0, 0]


# ---------------------------------------------------------------------- the command


def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """(exit, standard output, standard error) of `fedatlas deploy audit`."""
    monkeypatch.setattr(sys, "argv", ["fedatlas", "deploy", "audit", *arguments])
    monkeypatch.setattr("signal.signal", lambda *given: None)
    with pytest.raises(SystemExit) as end:
        main()
    said = capfd.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_the_command_shows_verifies_and_says_it(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    path = a_log(tmp_path)
    code, out, err = command(monkeypatch, capfd, str(tmp_path))
    assert (code, err) == (0, "")
    assert "train  round 1  updates  masked  40 rows  with a, b" in out
    assert "\x1b" not in out
    assert "no ?[2Jround" in out
    assert "What left this site so far, in 1 run: facts" in out
    head = verified(tmp_path).head
    assert head in out
    code, out, _ = command(monkeypatch, capfd, str(tmp_path), "--json", "--known", head)
    found = json.loads(out)
    assert (code, found["problem"], found["head"], len(found["lines"])) == (0, "", head, 5)
    path.write_text(path.read_text().replace('"rows": 40', '"rows": 41'))
    code, _, err = command(monkeypatch, capfd, str(tmp_path))
    assert code == 1
    assert "the audit log was altered or damaged: line 5 does not follow" in err
    code, _, err = command(monkeypatch, capfd, str(tmp_path / "no"))
    assert (code, "name the bundle of a node" in err) == (2, True)


@pytest.mark.parametrize("kind", ["sums", "updates"])
def test_what_left_only_on_a_second_ask_is_counted(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full when the line was due; the answer was kept, and leaves when the same is asked again."""
    made, usual, full = Agreements(tmp_path), Audit.note, [True]
    files = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}

    def note(log: Audit, line: str, **said: Any) -> None:
        if full[0] and line == "answer" and said.get("left") == kind and log.folder == made.paths["north"]:
            full[0] = False
            raise disk_error(log.path, OSError(errno.ENOSPC, "No space left on device"))
        usual(log, line, **said)

    class Again(Trainer):
        def serve(self, message: Any) -> Any:
            before = full[0]
            said = list(super().serve(message))
            return super().serve(message) if before and not full[0] else said

    monkeypatch.setattr(Audit, "note", note)
    trainers = {name: made.trainer(name, files[name]) for name in made.names}
    trainers["north"] = Again(made.node("north"), files["north"])
    run = run_here(made, trainers, made.signed("r", made.config(rounds=1)), test=files["south"])
    assert run.state.status == "finished", run.state.why
    north, south = (verified(made.paths[name]) for name in ("north", "south"))
    assert not north.problem
    assert left_text(north.lines) == left_text(south.lines)
    assert any(line.said.get("again") and line.said.get("left") == kind for line in north.lines)


def test_an_update_is_said_to_be_of_the_rows_of_its_steps(tmp_path: Path) -> None:
    made = Agreements(tmp_path)
    files = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}
    trainers = {name: made.trainer(name, files[name]) for name in made.names}
    config = made.config(rounds=1, local={"batch_size": 5, "steps": 2})
    run_here(made, trainers, made.signed("r", config), test=files["south"])
    lines = [line.said for line in verified(made.paths["north"]).lines]
    assert [line["rows"] for line in lines if line.get("left") == "updates"] == [10]
