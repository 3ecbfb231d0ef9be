"""A mechanism is a record: a sixth one, made here, runs from the file to the report, and nothing outside its room names one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment, catalogue, config
from fedatlas.algorithms import ALGORITHMS
from fedatlas.api import dry_run, resume, run
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import (
    PHASES,
    WHO_CAME,
    Asked,
    Learns,
    Limits,
    Mechanism,
    Noising,
    Remembering,
    Trial,
    Words,
    Work,
)
from fedatlas.privacy.mechanisms import MECHANISMS, every, made
from fedatlas.privacy.protocol import Protocol
from fedatlas.privacy.secagg.mechanism import cap_sentences, smaller_words
from fedatlas.registry import Positive, keywords
from fedatlas.runs.privacy_preview import sentences
from fedatlas.setup.mechanism_choice import mechanisms_of
from fedatlas.setup.refusals import check
from fedatlas.setup.resolution import resolve
from reports import Page, rows, summary

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "fedatlas"
NAMES = tuple(MECHANISMS)
TABLES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [8]},
    "engine": {"name": "loop"},
}


# ---------------------------------------------------------------------- a sixth


def bounded(*, bound: Positive = 1.0) -> Mechanism:
    """No client moves the model further than a bound; nothing is noised.

    bound: the longest change of a client (Euclidean norm over all parts together).
    """

    def work() -> Work:
        from fedatlas.privacy.clipping import clipped, in_precision

        return Work(update=lambda changes, how, doing: in_precision(clipped(changes, bound), changes))

    def refuses(asked: Asked) -> str:
        return "[compression]: not under 'bounded'; remove the table." if asked.compression else ""

    def previewed(found: Mapping[str, Any]) -> list[str]:
        return [f"{found['bounded']['clients']} clients stay within {bound:g}."]

    def preview(trial: Trial) -> dict[str, Any]:
        return {"bounded": {"clients": trial.parties}}

    return Mechanism(
        name="bounded",
        keys={"bound": bound},
        place=1,
        trust="server",
        learns=Learns("every update within its bound", "the models", "no more than the server"),
        work=work,
        words=Words("<b>Bounded.</b> No change was longer than {bound:g}.", ("It is no noise.",), preview=previewed),
        phase="noise",
        hides=("steps",),
        figures=lambda how, rows, sizes, events: {"bounded_rounds": len(rows) - 1},
        preview=preview,
        limits=Limits(
            why_not=lambda algorithm: "no server forms a sum" if algorithm.serverless else "", refuses=refuses
        ),
    )


@pytest.fixture
def sixth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS, "bounded", bounded)


def experiment(**tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, "privacy": [{"name": "bounded", "bound": 0.01}], **tables})


def test_a_sixth_mechanism_runs_to_its_report(sixth: None, tmp_path: Path) -> None:
    """One record in the dict: the run is bounded, its rows hide, its summary, ledger and report say so, and it goes on."""
    done = run(experiment(), out=tmp_path / "run", baselines=False).path
    free = run(experiment(privacy=[]), out=tmp_path / "free", baselines=False).path
    assert rows(done)[-1]["accuracy"] != rows(free)[-1]["accuracy"]
    assert all(row["steps"] is None for row in rows(done)[1:])
    found = summary(done)["privacy"]
    assert found["mechanisms"] == [{"name": "bounded", "bound": 0.01}]
    assert found["learns"]["bounded"]["server"] == "every update within its bound"
    assert found["bounded_rounds"] == 2
    assert "epsilon" not in found
    assert not (done / "ledger.jsonl").exists()
    assert "noise" in summary(done)["cost"]["seconds_by_phase"]
    text = Page(done / "report.html").text()
    assert "No change was longer than 0.01." in text
    assert "It is no noise." in text
    assert "every update within its bound" in text
    resume(done, ["rounds=3"], baselines=False)
    assert summary(done)["privacy"]["bounded_rounds"] == 3


def test_a_sixth_mechanism_is_listed_and_previewed(sixth: None) -> None:
    assert "bounded" in [row["name"] for row in catalogue.rows("privacy")]
    shown = catalogue.entry("bounded")
    assert shown["parameters"] == {"bound": 1.0}
    assert "longest change" in shown["accepts"]["bound"]
    assert "gossip" not in shown["goes_with"]
    looked = dry_run(experiment(), baselines=False)["privacy"]
    assert looked["bounded"] == {"clients": 4}
    assert "4 clients stay within 1." in sentences(looked, 2)


def test_a_sixth_mechanism_refuses(sixth: None) -> None:
    def checked(*more: str) -> None:
        check(resolve(config.read(None, ["privacy.bounded.bound=0.5", *more])))

    def refused(*more: str) -> str:
        with pytest.raises(ConfigError) as error:
            checked(*more)
        return str(error.value)

    assert refused("compression.name=float16") == "[compression]: not under 'bounded'; remove the table."
    assert "[[privacy]] 'bounded': not with 'gossip': no server forms a sum" in refused("algorithm.name=gossip")
    assert "did you mean 'privacy.bounded.bound'?" in refused("privacy.bounded.bond=1")
    assert "'nbafl' cannot be combined" in refused("privacy.nbafl={epsilon=50.0, clip=1.0}")


def test_a_sixth_mechanism_stands_in_its_place(sixth: None) -> None:
    asked = config.read(None, ["privacy.secagg={}", "privacy.local_dp={epsilon=8.0, clip=1.0}", "privacy.bounded={}"])
    assert [one.name for one in mechanisms_of(asked)] == ["bounded", "local_dp", "secagg"]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONTRIBUTING.md, "Adding a mechanism": its file, executed as it stands there."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Adding a mechanism")[1]
    space: dict[str, Any] = {"__name__": "example"}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], space)  # noqa: S102  (our own page)
    monkeypatch.setitem(MECHANISMS, "bounded", space["bounded"])


def test_the_example_of_the_recipe_is_whole(recipe: None, tmp_path: Path) -> None:
    found = summary(run(experiment(rounds=1), out=tmp_path / "run", baselines=False).path)
    assert found["privacy"]["mechanisms"] == [{"name": "bounded", "bound": 0.01}]


def test_a_mechanism_without_noise_or_protocol_is_previewed_by_name(recipe: None) -> None:
    """The dry run names it, and tells of no keys. Its few bytes (a word to each client) count in a small model only."""
    looked = dry_run(experiment(model={"hidden": [64]}), baselines=False)["privacy"]
    assert sentences(looked, 2) == ["Under bounded this is as many bytes as without it, to within 0.5%."]
    small = dry_run(experiment(), baselines=False)["privacy"]
    (said,) = sentences(small, 2)
    assert said.startswith("Under bounded this is 1.01 times the bytes without it (with 4 clients per round, ")
    assert said.endswith(" of them for protection).")


PLAIN = (
    "bounded",
    *(name for name, one in every().items() if one.acts_on == "updates" and not (one.noise or one.sums_only)),
)
"""The recipe's example, and each mechanism that acts in rounds, adds no noise and has no protocol."""


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("algorithm", "keys"), [*((one, {}) for one in ALGORITHMS), ("fedprox", {"adaptive": True})])
def test_an_algorithm_trains_under_it_or_is_refused(
    name: str, algorithm: str, keys: dict[str, Any], recipe: None, tmp_path: Path
) -> None:
    """No algorithm that a mechanism is said to go with fails in round 1 on what its clients send."""
    one = made(name)
    table = {"name": name} | {key: x for key, x in one.keys.items() if x is not None}
    asked = experiment(rounds=1, algorithm={"name": algorithm, **keys}, privacy=[table])
    if why := one.limits.why_not(ALGORITHMS[algorithm](**keys)):
        with pytest.raises(ConfigError, match=re.escape(why)):
            dry_run(asked, baselines=False)
        return
    assert len(rows(run(asked, out=tmp_path / "run", baselines=False).path)) == 2


# ---------------------------------------------------------------------- the five


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_record_is_whole(name: str) -> None:
    one = every()[name]
    work = one.work()
    assert one.name == name
    assert one.keys.keys() == keywords(MECHANISMS[name]).keys()
    assert all(one.learns)
    assert one.words.done.format(**one.keys)
    assert {one.phase, ""} <= {*PHASES, ""}
    assert bool(one.sums_only) == (work.protocol is not None)
    assert (one.acts_on == "rows") == (work.rows is not None)
    assert {*one.hides} <= {"weights", "steps", "train_loss", *WHO_CAME}
    if work.protocol is not None:
        assert work.protocol.phases.keys() == work.protocol.questions.keys()
        assert {*work.protocol.phases.values()} <= PHASES.keys()
        assert one.limits.deployed == (work.protocol.node is not None)


def test_a_cap_is_advised_only_where_every_client_stays_within_it() -> None:
    def advice(parties: int, largest: int) -> tuple[dict[str, Any], str]:
        found = smaller_words(24, Trial(parties, largest, 1000))
        return found, cap_sentences({"n_cap": found})[0]

    fits, said_of = advice(4, 50)
    assert (fits["bits"], fits["n_cap"]) == (24, 64)  # 4 x 64 x 2^24 = 2^32
    assert said_of.startswith("privacy.secagg.n_cap = 64 would save")
    coarse, _ = advice(4, 1000)
    assert (coarse["bits"], coarse["n_cap"]) == (20, 1024)
    never, said_of = advice(100, 10**6)
    assert "bits" not in never
    assert "uniform" in said_of


def test_mechanisms_are_one_dict_and_no_plug_in_kind() -> None:
    assert tuple(MECHANISMS) == NAMES
    tree = ast.parse((SRC / "privacy" / "mechanisms.py").read_text(encoding="utf-8"))
    tables = [x for x in tree.body if isinstance(x, ast.AnnAssign) and ast.unparse(x.target) == "MECHANISMS"]
    assert [type(x.value) for x in tables] == [ast.Dict]
    from fedatlas.registry import PLUGINS

    assert "mechanisms" not in PLUGINS
    assert "privacy" not in PLUGINS


# What is an experiment names mechanisms as a user's file does; the cryptosystem serves columns, too. The first lists public names.
EXPERIMENTS = ("__init__.py", "config/template.py", "published/")


def test_no_file_outside_the_room_names_a_mechanism() -> None:
    named = []
    for path in sorted(SRC.rglob("*.py")):
        here = path.relative_to(SRC).as_posix()
        if here.startswith("privacy/") or here.startswith(EXPERIMENTS):
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if quoted and (node.value in NAMES or any(f"'{name}'" in node.value for name in NAMES)):
                named.append(f"{here}:{node.lineno}: {node.value[:60]}")
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if re.match(rf"fedatlas\.privacy\.({'|'.join(NAMES)})\b", module) and not here.startswith("vertical/"):
                named.append(f"{here}:{node.lineno}: {module}")
    assert not named, "\n".join(named)


def test_the_page_names_the_fields_of_the_records() -> None:
    page = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    for record in (Mechanism, Work, Remembering, Protocol, Noising, Limits, Words):
        section = page.split(f"\n`{record.__name__}`: ", maxsplit=1)[1].split("\n\n")[1]
        cells = [line.split("|")[1] for line in section.splitlines()[2:]]
        assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == list(record._fields), record


def test_the_records_are_read_without_torch() -> None:
    code = "import sys, fedatlas.privacy.mechanisms as m; m.every(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# ---------------------------------------------------------------------- found before round 1


@pytest.mark.parametrize("name", ["secagg", "two_server"])
def test_a_cap_of_rows_that_is_too_small_is_refused_with_one_that_would_do(name: str) -> None:
    tables = {**TABLES, "partition": {"name": "iid", "clients": 3}}
    with pytest.raises(
        ConfigError, match=rf"privacy\.{name}\.n_cap = 16: a client has \d+ training rows.*n_cap = 128 would do"
    ):
        dry_run(Experiment.of(**tables, privacy=[{"name": name, "n_cap": 16}]), baselines=False)
    dry_run(Experiment.of(**tables, privacy=[{"name": name, "n_cap": 128}]), baselines=False)
    equal = {"algorithm": {"weights": "uniform"}, "privacy": [{"name": name, "n_cap": 16}]}  # then no cap is needed
    dry_run(Experiment.of(**tables, **equal), baselines=False)


@pytest.mark.parametrize("name", ["secagg", "two_server"])
def test_a_range_that_an_update_exceeds_is_found_by_the_dry_run(name: str) -> None:
    """With the range that it names no word is left of it, and the run goes."""
    tables = {**TABLES, "local": {"lr": 1.0}}
    looked = dry_run(Experiment.of(**tables, privacy=[{"name": name, "range": 1e-3}]), baselines=False)["privacy"]
    first, *_ = sentences(looked, 2)
    assert first.startswith("The run would end in its first rounds: 'model.")
    wide = float(re.search(r"range = ([\d.]+) would do", first)[1])
    found = dry_run(Experiment.of(**tables, privacy=[{"name": name, "range": 8 * wide}]), baselines=False)["privacy"]
    assert "refused" not in found
    assert not any("would end" in said for said in sentences(found, 2))


def test_the_plan_tells_how_long_keys_take_where_there_are_keys() -> None:
    for name, there in (("secagg", True), ("two_server", False)):
        looked = dry_run(Experiment.of(**TABLES, privacy=[{"name": name}]), baselines=False)["privacy"]
        assert (looked["seconds_keys"] > 0) is there
        assert ("; keys take about " in sentences(looked, 2)[0]) is there
