"""What people see of a run under ``[[privacy]]``: its costs by phase, its rows and its report, the dry run, the section "Privacy"."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedatlas import load
from fedatlas.api import Experiment, dry_run, resume, run
from fedatlas.engine.loop import SerialExecutor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import parted
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.secrets import Keyring
from fedatlas.federation.start import RoundStart
from fedatlas.privacy import ledger, mechanisms
from fedatlas.privacy.mechanism import Mechanism, Protection
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.protection import under
from fedatlas.reporting import write_report
from fedatlas.rounds import federated
from fedatlas.runs import preview, privacy_preview
from fedatlas.terminal import columns, end_table
from fedatlas.wire import codec
from federation import Federation, brief, federation, play
from protected import toy_paillier, toy_threshold
from reports import Page, at, rows, summary

pytestmark = pytest.mark.timing

COHORTS = [(0, 1, 2), (1, 2, 3, 4)]


def protected(
    *given: Mechanism, name: str = "fedavg", observers: tuple[Observer, ...] = ()
) -> tuple[Federation, InProcess]:
    """The small federation of the tests under mechanisms, and what plays it."""
    fed = federation(brief(name))
    how = Protection(given, len(fed.held), len(COHORTS), 0.6, 1, 5, testing=True)
    bench = fed.bench._replace(algorithm=under(fed.bench.algorithm, how), protection=how)
    sizes = {k: rows.n for k, rows in fed.held.items()}
    keyring = Keyring(how, len(sizes), "fed")
    host = InProcess(
        bench, SerialExecutor(bench), PartyState(), sizes, 1, run="r", keyring=keyring, observers=observers
    )
    return fed._replace(bench=bench), host


LOCAL: dict[str, Any] = {"epsilon": 1e3, "clip": 1.0, "noise": "seed"}


@pytest.mark.parametrize(
    ("given", "phases"),
    [
        ((mechanisms.secagg(),), ["keys", "train", "mask", "aggregate", "agree", "unmask"]),
        ((toy_paillier(),), ["train", "encrypt", "aggregate", "decrypt"]),
        ((mechanisms.two_server(),), ["train", "share", "aggregate"]),
        ((toy_threshold(),), ["train", "encrypt", "aggregate", "decrypt"]),
        ((mechanisms.local_dp(**LOCAL),), ["train", "noise", "aggregate"]),
        (
            (mechanisms.local_dp(**LOCAL), mechanisms.secagg()),
            ["keys", "train", "mask", "aggregate", "agree", "unmask"],
        ),
    ],
    ids=["secagg", "paillier", "two_server", "threshold_paillier", "local_dp", "both"],
)
def test_the_seconds_of_a_protected_round_stand_under_their_phases(
    given: tuple[Mechanism, ...], phases: list[str]
) -> None:
    fed, host = protected(*given)
    play(fed, COHORTS, host=host)
    assert list(host.cost.seconds) == phases
    assert all(seconds > 0 for seconds in host.cost.seconds.values())


def test_a_round_without_protection_has_its_tasks_alone() -> None:
    _, host = play(federation(brief("fedavg")), COHORTS)
    assert list(host.cost.seconds) == ["train"]


def test_the_time_of_an_ask_is_parted_as_the_clients_seconds_are() -> None:
    assert parted("train", "mask", 10.0, 8.0, 2.0) == {"train": 7.5, "mask": 2.5}
    assert parted("train", "mask", 10.0, 0.0, 0.0) == {"train": 10.0, "mask": 0.0}


class Sent(Observer):
    """Counts what is sent to clients beside messages."""

    def __init__(self) -> None:
        self.words = self.messages = 0

    def asked(self, request: Request) -> None:
        self.messages += codec.size(dict(request.message))
        self.words += codec.size(dict(request.word)) if request.word else 0


def test_the_protocol_s_word_to_each_client_is_among_the_bytes_down() -> None:
    seen = Sent()
    fed, host = protected(mechanisms.secagg(), observers=(seen,))
    play(fed, COHORTS[:1], host=host)
    assert seen.words > 3 * 94 * 3  # three envelopes to each of three clients
    assert host.cost.bytes_down == seen.messages + seen.words


MASKED = [mechanisms.secagg(), toy_paillier(), mechanisms.two_server(), toy_threshold(), mechanisms.bfv()]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        pytest.param(one, name, marks=pytest.mark.slow if one is MASKED[3] and name != "fedavg" else ())
        for one in (*MASKED, mechanisms.local_dp(**LOCAL))  # dealing the key of MASKED[3] takes seconds
        for name in ("fedavg", "scaffold", "fedbn")
    ],
)
def test_what_protection_adds_to_the_bytes_is_what_a_run_without_it_lacks(given: Mechanism, name: str) -> None:
    fed, host = protected(given, name=name)
    play(fed, COHORTS, host=host)
    _, plain = play(federation(brief(name)), COHORTS)
    sent, without = (c.bytes_up + c.bytes_down + c.bytes_peer for c in (host.cost, plain.cost))
    assert sent - host.cost.bytes_privacy == without
    assert plain.cost.bytes_privacy == 0


def test_what_a_failed_attempt_cost_was_spent() -> None:
    costs = []
    for leaving in (
        {},
        {1: "secagg keys", 2: "secagg keys"},
    ):  # below the threshold: begun anew, and then nobody leaves
        fed, host = protected(mechanisms.secagg())
        server, drawn = fed.begin(host, 0.1), fed.round(1, COHORTS[1], {}, {})
        host.drive(partial(federated, fed.bench.algorithm, server, drawn), RoundStart(1, 0.1, leaving=leaving))
        costs.append((host.server.now.start.attempt, host.cost))
    (_, whole), (attempt, begun_anew) = costs
    assert attempt == 1
    assert begun_anew.bytes_up > whole.bytes_up
    assert begun_anew.weights == whole.weights


# -- whole runs -------------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"rounds": 3, "data": {"limit": 300}, "partition": {"name": "iid", "clients": 6}}
SMALL |= {"engine": {"name": "loop"}}
POISSON: dict[str, Any] = {"algorithm": {"weights": "uniform"}, "cohort": {"sampling": "poisson", "fraction": 0.5}}
RUNS: dict[str, dict[str, Any]] = {
    "central_dp": {**POISSON, "privacy": [{"name": "central_dp", "clip": 1.0}]},
    "secagg": {"privacy": [{"name": "secagg"}], "failures": {"dropout": 0.1}},
    "paillier": {"privacy": [{"name": "paillier"}]},
    "two_server": {"privacy": [{"name": "two_server"}], "failures": {"dropout": 0.1}},
    "bfv": {"privacy": [{"name": "bfv"}]},
    "ckks": {"privacy": [{"name": "ckks"}]},
    "nbafl": {"privacy": [{"name": "nbafl", "epsilon": 50, "clip": 20}]},
    "seeded": {
        "algorithm": {"weights": "uniform"},
        "privacy": [{"name": "local_dp", "epsilon": 5, "clip": 1.0, "noise": "seed"}, {"name": "secagg"}],
    },
}
PRIVATE = "What was protected, and from whom"


def asked(kind: str, **more: Any) -> Experiment:
    return Experiment.of(**{**SMALL, **RUNS[kind], **more})


@pytest.fixture(scope="module", autouse=True)
def one_key() -> Iterator[None]:
    """A key of 2048 bits, found once: the search takes a second or three."""
    found = paillier.generate(2048)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "generate", lambda key_bits, **_: found)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("private")
    return {kind: run(asked(kind), out=folder / kind, baselines=kind == "seeded").path for kind in RUNS}


@pytest.fixture(scope="module")
def pages(done: dict[str, Path]) -> dict[str, Page]:
    return {kind: Page(path / "report.html") for kind, path in done.items()}


def said(table: Any) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_figures_that_tell_who_came_are_not_told_in_the_terminal(done: dict[str, Path]) -> None:
    row, found = rows(done["central_dp"])[1], summary(done["central_dp"])
    assert dict(columns(row))["bytes"] == "not told"
    text = said(end_table(found))
    assert "not told; expected about" in text
    assert f"{found['privacy']['epsilon']:.4g}, and with a chance of up to" in text
    assert "None" not in text


NOBODY_S = {
    "secagg": {"weights", "steps"},
    "two_server": {"weights", "steps"},
    "paillier": {"steps"},
    "bfv": {"steps"},
    "ckks": {"steps"},
    "nbafl": {"train_loss", "steps", "flops"},
}
NOBODY_S["seeded"] = {"weights", "steps", "train_loss", "flops"}
NOBODY_S["central_dp"] = {*NOBODY_S["seeded"], "clients", "selected"}
NOBODY_S["central_dp"] |= {"bytes_up", "bytes_down", "bytes_peer", "bytes_privacy"}


@pytest.mark.parametrize("kind", RUNS)
def test_what_nobody_in_a_federation_would_know_stands_in_a_view_that_is_marked(
    done: dict[str, Path], kind: str
) -> None:
    own = [json.loads(line) for line in (done[kind] / "own-view.jsonl").read_text().splitlines()]
    assert [one.pop("round") for one in own] == [0, 1, 2, 3]
    assert all(one.pop("simulation_only") is True for one in own)
    for row, one in zip(rows(done[kind])[1:], own[1:], strict=True):
        assert one.keys() == NOBODY_S[kind]
        assert {key for key in row if row[key] is None and key in NOBODY_S["central_dp"]} == NOBODY_S[kind]
        assert one["steps"] is not None


def test_the_own_view_is_read_by_nothing(done: dict[str, Path], tmp_path: Path) -> None:
    """Without it, or with another, the same end comes of a run that is continued, and the same report."""
    shutil.copytree(done["central_dp"], tmp_path / "run")
    (tmp_path / "run" / "own-view.jsonl").write_text("no JSON\n")
    again = resume(tmp_path / "run", baselines=False)
    assert again.summary["privacy"] == summary(done["central_dp"])["privacy"]
    assert write_report([tmp_path / "run"]).exists()


ADMITTED = ("fedsgd", "fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox", "moon", "ditto", "scaffold")


@pytest.mark.parametrize(
    ("name", "codec_"), [*((name, None) for name in ADMITTED), ("fedavg", "topk"), ("scaffold", "qsgd")]
)
def test_what_is_expected_of_a_client_is_what_it_sends_and_is_told(
    tmp_path: Path, name: str, codec_: str | None
) -> None:
    more: dict[str, Any] = {"algorithm": {"name": name, "weights": "uniform"}, "rounds": 2}
    more |= {"compression": {"name": codec_}} if codec_ else {}
    done = run(asked("central_dp", **more, cohort={"fraction": 1.0}), out=tmp_path / "run", baselines=False)
    own = [json.loads(line) for line in (done.path / "own-view.jsonl").read_text().splitlines()]
    for key, size in done.summary["privacy"]["expected"].items():
        assert size == sum(one[key] for one in own), key


def test_what_is_expected_of_bytes_follows_from_the_file_and_the_size_of_a_message(done: dict[str, Path]) -> None:
    """3 of 6 clients a round, each told a model and sending one: whoever really came is not in it."""
    found = summary(done["central_dp"])
    model = {name: x.detach() for name, x in load(done["central_dp"]).model.named_parameters()}
    each = codec.size({"model": model})
    assert found["privacy"]["expected"]["bytes_up"] == 3 * 3 * each
    assert found["privacy"]["expected"]["bytes_down"] == pytest.approx(3 * 3 * each, rel=0.01)  # and a word
    assert all(found["cost"][key] is None for key in ("bytes_up", "bytes_down", "bytes_privacy", "flops"))


def test_the_report_tells_what_was_protected_and_not_who_came(done: dict[str, Path], pages: dict[str, Page]) -> None:
    page = pages["central_dp"]
    assert PRIVATE in [text for _, text in page.of("h2")]
    assert page.text().count("not told") >= 4
    assert "has to be trusted" in page.text()
    assert {given.get("value") for given, _ in page.of("input") if given.get("name") == "axis"} == {"round", "seconds"}
    found = [(int(row["round"]), float(row["epsilon"])) for row in page.table("run-epsilon")]
    assert found == [tuple(one) for one in summary(done["central_dp"])["privacy"]["curve"]]
    assert not [name for given, name in page.of("a") if given.get("download") == "run-bytes.csv"]


@pytest.mark.parametrize("kind", RUNS)
def test_every_figure_of_the_section_is_the_summary_s(done: dict[str, Path], pages: dict[str, Page], kind: str) -> None:
    page, found = pages[kind], summary(done[kind])
    for given, _ in page.of("data"):
        assert float(given["value"]) == at(found, given["data-key"].partition(":")[2])
    cost = found["cost"]
    drawn = {row["phase"]: float(row["seconds"]) for row in page.table("run-phases")}
    assert drawn == {phase: s for phase, s in cost["seconds_by_phase"].items() if phase != "evaluate"}
    price = {row["what"]: row for row in page.table("run-price")}
    sent = None if cost["bytes_up"] is None else cost["bytes_up"] + cost["bytes_down"] + cost["bytes_peer"]
    assert price["bytes"]["with"] == ("" if sent is None else str(sent))
    if sent is not None:
        assert int(price["bytes"]["without"]) == sent - cost["bytes_privacy"]
    for learnt in found["privacy"]["learns"].values():
        assert learnt["colluding"] in page.text()
    assert "were in the memory of one process" in page.text()


def test_noise_from_the_seed_is_said_to_protect_nobody(done: dict[str, Path], pages: dict[str, Page]) -> None:
    assert "This protects no one" in pages["seeded"].text()
    assert "would mean if the noise were secret" in pages["seeded"].text()
    assert "protects nobody" in said(end_table(summary(done["seeded"])))
    assert "protects nobody" not in pages["central_dp"].text()
    assert "were trained without protection" in pages["seeded"].text()  # the runs that it is compared with


def test_a_run_is_said_to_repeat_only_if_it_does(pages: dict[str, Page]) -> None:
    same, other = "give the same bits", "Noise comes from the operating system, so another run differs by it"
    for kind in ("paillier", "bfv", "seeded", "secagg"):
        assert same in pages[kind].text()
        assert other not in pages[kind].text()
    for kind in ("central_dp", "ckks"):
        assert other in pages[kind].text()
        assert same not in pages[kind].text()


def test_who_may_help_a_dishonest_server_is_said(done: dict[str, Path], pages: dict[str, Page]) -> None:
    asked_of = [len(row["selected"]) for row in rows(done["secagg"])[1:]]
    assert summary(done["secagg"])["privacy"]["withstood"] == {"asked": min(asked_of), "needed": 5, "colluding": 3}
    assert "with the help of up to 3 clients of them" in pages["secagg"].text()
    for kind in ("paillier", "bfv", "ckks"):
        assert "a client that helps the server" in pages[kind].text()


def test_the_paper_s_epsilon_stands_beside_the_honest_ones(done: dict[str, Path], pages: dict[str, Page]) -> None:
    found = summary(done["nbafl"])["privacy"]
    shown = {row["account"]: float(row["epsilon"]) for row in pages["nbafl"].table("run-accounts")}
    assert [*shown.values()] == [*found["accounts"].values()]
    assert shown["as the paper states it"] == 50
    assert found["accounts"]["honest"] == pytest.approx(found["epsilon"])
    assert found["accounts"]["honest"] > found["accounts"]["uploads"] > found["accounts"]["exposed"] > 50


def test_runs_beside_each_other_are_compared_key_by_key(done: dict[str, Path], tmp_path: Path) -> None:
    write_report([done["central_dp"], done["seeded"]], tmp_path / "both.html")
    page = Page(tmp_path / "both.html")
    keys = {row["key"] for row in page.table("differences")}
    assert {"privacy.central_dp.clip", "privacy.local_dp.noise"} <= keys
    assert "can learn up to the sum of their epsilons" in page.text()
    assert "not told" in page.text()


# -- the dry run ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("secagg", {"failures": {}}),
        ("secagg", {"failures": {}, "cohort": {"size": 4}, "algorithm": {"name": "scaffold"}}),
        ("secagg", {"failures": {}, "algorithm": {"name": "fedseq", "phi": "random"}, "partition": {"clients": 12}}),
        ("paillier", {}),
        ("bfv", {}),
        ("ckks", {}),
        ("seeded", {}),
        ("nbafl", {}),
    ],
    ids=["secagg", "scaffold", "fedseq", "paillier", "bfv", "ckks", "both", "nbafl"],
)
def test_the_dry_run_counts_the_bytes_of_the_protocol(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    looked = dry_run(asked(kind, **more), baselines=False)
    last = rows(run(asked(kind, **more), out=tmp_path / "run", baselines=False).path)[-1]
    for way in ("up", "down", "peer"):
        assert looked[f"bytes_{way}_per_round"] == pytest.approx(last[f"bytes_{way}"], rel=1e-3)
    assert looked["privacy"]["bytes_more_per_round"] == pytest.approx(last["bytes_privacy"], rel=2e-3)


def test_the_dry_run_says_what_the_run_will_spend_and_writes_no_ledger(
    done: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*given: Any) -> None:
        raise AssertionError("a trial has released nothing")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ledger, "append", append)
    looked = dry_run(asked("central_dp"), baselines=False)
    found = summary(done["central_dp"])["privacy"]
    assert looked["privacy"]["epsilon"] == pytest.approx(found["epsilon"], rel=1e-12)
    assert looked["privacy"]["delta"] == found["delta"]
    assert dry_run(asked("seeded"), baselines=False)["privacy"]["epsilon"] == pytest.approx(5, rel=1e-6)
    assert not list(tmp_path.iterdir())


def test_what_a_lower_cap_saves_is_what_it_saves(capsys: pytest.CaptureFixture[str]) -> None:
    plain: dict[str, Any] = {"failures": {}}
    looked = dry_run(asked("secagg", **plain), baselines=False)
    advised = looked["privacy"]["n_cap"]
    preview.show(looked)
    text = capsys.readouterr().out.replace("\n", " ")
    assert f"privacy.secagg.bits = {advised['bits']} with n_cap = {advised['n_cap']}" in text
    assert "keys take about" in text
    table = [{"name": "secagg", "bits": advised["bits"], "n_cap": advised["n_cap"]}]
    after = dry_run(asked("secagg", **plain, privacy=table), baselines=False)
    assert "n_cap" not in after["privacy"]
    saved = looked["bytes_up_per_round"] - after["bytes_up_per_round"]
    assert saved == pytest.approx(advised["saves_per_round"], rel=0.01)


GONE: dict[str, Any] = {"failures": {"dropout": 0.9}, "partition": {"name": "iid", "clients": 4}, "rounds": 2}


def test_rounds_that_were_given_up_are_said_to_have_been(done: dict[str, Path], tmp_path: Path) -> None:
    assert summary(done["secagg"])["privacy"]["given_up"] == {"rounds": 0, "of": 3, "why": None}
    path = run(asked("secagg", **GONE), out=tmp_path / "run", baselines=False).path
    lost = summary(path)["privacy"]["given_up"]
    assert (lost["rounds"], lost["of"]) == (2, 2)
    assert all(row["given_up"] and not row["clients"] for row in rows(path)[1:])
    assert "every round, so the model is the initial one: " + lost["why"] in " ".join(
        said(end_table(summary(path))).split()
    )
    assert (
        f"every round, so the model is the initial one. The last time: {lost['why']}."
        in Page(path / "report.html").text()
    )


def test_a_tiny_fraction_is_looked_at_as_the_smallest_cohort_that_is_no_failure() -> None:
    tiny = {"cohort": {"sampling": "poisson", "fraction": 0.01}}
    for kind in ("secagg", "paillier"):
        looked = dry_run(asked(kind, failures={}, **tiny), baselines=False)["privacy"]
        assert looked["parties"] == {"secagg": 3, "paillier": 2}[kind]
        assert looked["bytes_more_per_round"] > 0
    looked = dry_run(asked("central_dp", cohort={"sampling": "poisson", "fraction": 0.001}), baselines=False)
    assert looked["bytes_up_per_round"] == round(looked["privacy"]["expected"]["bytes_up"]) > 0


def test_no_sentence_tells_how_many_rows_a_client_has() -> None:
    sizes = {"name": "quantity_skew", "clients": 4}
    looked = dry_run(asked("secagg", failures={}, partition=sizes), baselines=False)
    assert "largest" not in looked["privacy"]["n_cap"]
    said_of = " ".join(privacy_preview.sentences(looked["privacy"], 3))
    assert not re.search(rf"\b{max(looked['partition']['sizes'])}\b", said_of)
    assert "which is too few here" in said_of


def test_keys_are_counted_in_the_round_that_they_were_made_for(done: dict[str, Path]) -> None:
    first, other = (rows(done[name])[0] for name in ("secagg", "central_dp"))
    assert 0 < first["seconds_by_phase"]["keys"] < first["seconds"]
    assert "keys" not in other["seconds_by_phase"]
    assert "noise" not in summary(done["central_dp"])["cost"]["seconds_by_phase"], "its server adds the noise"
    of_all = summary(done["secagg"])["cost"]["seconds_by_phase"]["keys"]
    assert math.isclose(of_all, sum(row["seconds_by_phase"]["keys"] for row in rows(done["secagg"])))
