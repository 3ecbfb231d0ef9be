"""Which algorithm goes with which mechanism, cell by cell, as stated here by hand; records, refusals and docs/privacy.md agree."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

import privacy_page
from fedatlas import Algorithm, Task, catalogue, config
from fedatlas.algorithm import (
    Ask,
    Local,
    Patience,
    Question,
    Round,
    RoundGenerator,
    Sealing,
    Solver,
    State,
    Update,
    take_mean,
)
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.fedprox import fedprox
from fedatlas.algorithms.fedseq import fedseq
from fedatlas.algorithms.moon import moon
from fedatlas.algorithms.scaffold import scaffold
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import MECHANISMS, every, made
from fedatlas.setup.mechanism_choice import goes_with
from fedatlas.setup.refusals import check
from fedatlas.setup.resolution import resolve
from fedatlas.weighting import uniform

LEAST = {
    "secagg": "privacy.secagg={}",
    "paillier": "privacy.paillier={}",
    "two_server": "privacy.two_server={}",
    "threshold_paillier": "privacy.threshold_paillier={}",
    "bfv": "privacy.bfv={}",
    "ckks": "privacy.ckks={}",
    "central_dp": "privacy.central_dp.clip=1.0",
    "dp_ftrl": "privacy.dp_ftrl={}",
    "local_dp": "privacy.local_dp={epsilon=8.0, clip=1.0}",
    "nbafl": "privacy.nbafl={epsilon=50.0, clip=1.0}",
    "distributed_dp": "privacy.distributed_dp.clip=1.0",
    "rotation": "privacy.rotation.bounds=[0, 1]",
    "additive_noise": "privacy.additive_noise.bounds=[0, 1]",
    "dp_sgd": "privacy.dp_sgd.clip=1.0",
    "anonymise": "privacy.anonymise.quasi=['age']",
    "randomised_response": "privacy.randomised_response={epsilon=1.0, classes=['a', 'b']}",
}
HIDING = tuple(name for name, one in every().items() if one.sums_only and one.noise is None)
"""Show the server sums only."""
BY_ROWS = ("fedsgd", "fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox", "moon", "ditto")
"""Weigh by rows unless told otherwise, and are sound with uniform weights."""
SUMS = {*BY_ROWS, "feddyn", "scaffold", "fednova", "hwfedavg", "nwfedavg", "fedbn", "fedmd"}
"""Those whose server takes means or sums."""

LOOKS = "its server looks at each client's model"
WEIGHS = "weights that follow the data have no fixed sensitivity"
CHAIN = "a chain's clients see models without noise"
NO_SUM = "no server forms a sum"
WHOLE = "NbAFL noises whole models, of which the server takes the mean and nothing else"
NEVER = {
    "gossip": NO_SUM,
    "push_sum": NO_SUM,
    "centralised": "its clients send their rows, not updates",
    "local_only": "nothing leaves a client",
}
NOT_MASKED = {
    **NEVER,
    **dict.fromkeys(("fedseq_inter", "cfl", "fesem", "ifca", "feddf", "fedma"), LOOKS),
    "fedseq": "its grouping shows the server a model of each client",
}
NOT_NOISED = {
    **NEVER,
    **dict.fromkeys(("cfl", "fesem", "ifca", "feddf", "fedma"), LOOKS),
    **dict.fromkeys((*BY_ROWS, "hwfedavg", "nwfedavg"), WEIGHS),
    "fedseq": CHAIN,
    "fedseq_inter": CHAIN,
    "feddyn": "its server step depends on the number of clients that returned",
    "fednova": "its clients' divisors, which count their steps, are not part of the model and would leave without noise",
    "fedmd": "its clients' answers ('score') are no change of a model, which alone is clipped and noised",
    "fedbn": "its clients' batch-norm layers leave without noise",
}
NOT_BY_ROW = {
    **NEVER,
    **dict.fromkeys(("cfl", "fesem", "ifca", "feddf", "fedma"), LOOKS),
    "fedseq": CHAIN,
    "fedseq_inter": CHAIN,
    "hwfedavg": "its clients' answers ('counts') follow their rows without noise",
    "nwfedavg": "its clients' answers ('counts') follow their rows without noise",
    "fedmd": "its clients' answers ('score') follow their rows without noise",
    "fedbn": "its clients' batch-norm layers leave without noise",
}
NOT_NBAFL = {**{name: WHOLE for name in ALGORITHMS if name not in {"fedavg", "fedsgd", "fedprox"}}, **NEVER}
REFUSED: Mapping[str, Mapping[str, str]] = {
    "secagg": NOT_MASKED,
    "paillier": NOT_MASKED,
    "two_server": NOT_MASKED,
    "threshold_paillier": NOT_MASKED,
    "bfv": NOT_MASKED,
    "ckks": NOT_MASKED,
    "central_dp": NOT_NOISED,
    "dp_ftrl": NOT_NOISED,
    "local_dp": NOT_NOISED,
    "nbafl": NOT_NBAFL,
    "distributed_dp": NOT_NOISED,
    "dp_sgd": NOT_BY_ROW,
    "rotation": dict.fromkeys(
        ("fedmd", "feddf", "fedseq", "fedseq_inter"), "the server does not know the rotation of its public rows"
    ),
    "randomised_response": {},  # a round is as without it
    "additive_noise": {},
    "anonymise": {},
}
"""mechanism -> algorithm with its defaults -> why not."""
NOISED = ("central_dp", "dp_ftrl", "local_dp", "distributed_dp")
HELPS = {
    **{(name, mechanism): {"weights": "uniform"} for name in BY_ROWS for mechanism in NOISED},
    **{("fedseq", mechanism): {"phi": "random"} for mechanism in HIDING},
    **{(name, "rotation"): {"phi": "random"} for name in ("fedseq", "fedseq_inter")},
}
"""Of what is refused with its defaults: parameters that help."""
CELLS = [(name, mechanism) for name in ALGORITHMS for mechanism in MECHANISMS]


def reason(mechanism: str, algorithm: Algorithm) -> str:
    return made(mechanism).limits.why_not(algorithm)


def checked(name: str, mechanism: str, *more: str) -> None:
    """Everything that is refused before data are read."""
    judged = ["evaluation.on=validation"] if made(mechanism).blind else []  # the server has no rows to judge by
    resolved = resolve(config.read(None, [f"algorithm.name={name}", LEAST[mechanism], *judged, *more]))
    check(resolved)


def refusal(name: str, mechanism: str, *more: str) -> str:
    with pytest.raises(ConfigError) as error:
        checked(name, mechanism, *more)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("name", "mechanism"), CELLS)
def test_a_cell(name: str, mechanism: str) -> None:
    """It resolves without a word, or is refused with its reason; where parameters help the sentence names them, and they do."""
    if (why := REFUSED[mechanism].get(name)) is None:
        checked(name, mechanism)
        return
    said = refusal(name, mechanism)
    assert said.startswith(f"[[privacy]] '{mechanism}': not with '{name}': {why}; ")
    changed = HELPS.get((name, mechanism))
    if changed is None:
        assert "use another algorithm" in said
        return
    assert said.endswith(" and ".join(f'write algorithm.{key} = "{value}".' for key, value in changed.items()))
    checked(name, mechanism, *(f"algorithm.{key}={value}" for key, value in changed.items()))


def test_the_sixteen_and_the_last_hop() -> None:
    for mechanism in HIDING:
        fine = goes_with(made(mechanism))
        assert fine == {name: 'phi = "random"' if name == "fedseq" else "" for name in fine}
        assert fine.keys() == SUMS | {"fedseq"}
        assert len(SUMS) == 16
    assert {*goes_with(made("nbafl"))} == {"fedavg", "fedsgd", "fedprox"}
    for mechanism in NOISED:
        assert {*goes_with(made(mechanism))} == {*BY_ROWS, "scaffold"}
    assert {*goes_with(made("dp_sgd"))} == {*BY_ROWS, "scaffold", "feddyn", "fednova"}


@pytest.mark.parametrize("mechanism", NOISED)
def test_what_parameters_make_unsound(mechanism: str) -> None:
    reads = "it reads its clients' losses and examples without noise"
    assert reason(mechanism, fedprox(adaptive=True, weights="uniform")) == reads
    assert reads in refusal("fedprox", mechanism, "algorithm.adaptive=true")
    assert reason("nbafl", fedprox(adaptive=True)) == WHOLE
    assert reason(mechanism, scaffold(weights="samples")) == WEIGHS
    assert 'write algorithm.weights = "uniform"' in refusal("scaffold", mechanism, "algorithm.weights=samples")
    assert reason(mechanism, fedseq(phi="random", rule={"name": "fedavg", "weights": "uniform"})) == CHAIN
    assert reason("secagg", fedprox(adaptive=True)) == ""
    assert reason("nbafl", moon(mu=0.0)) == ""  # which is FedAvg


@pytest.mark.parametrize("mechanism", NOISED)
@pytest.mark.parametrize("name", ["hwfedavg", "nwfedavg"])
@pytest.mark.parametrize("given", ["score=gini", "size_scaling=false", "inverse=literal"])
def test_scores_follow_the_data_however_they_are_made(name: str, given: str, mechanism: str) -> None:
    if name == "hwfedavg" and given.startswith("inverse"):
        given = "exclude_above=0.9"
    assert WEIGHS in refusal(name, mechanism, f"algorithm.{given}")


# ---------------------------------------------------------------------- records that are not ours


def each(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    yield Ask(round.cohort, "train", {}, "each")
    return server


def answer(model: Any, data: Any, message: Any, state: Any, session: Any) -> tuple[Update, State, Any]:
    return {}, state, session


def by_age(round: Round) -> Mapping[int, float]:
    return {k: round.facts[k]["age"] for k in round.cohort}


def in_parts(round: Round) -> Mapping[str, Mapping[int, float]]:
    return {"model": uniform(round), "c": {k: round.sizes[k] / round.n for k in round.cohort}}


SHOWS, ASKS = {"train": Task(shows=("model",))}, {"train": Task(), "loss": Question(answer, shows=("loss",))}
RECORDS = {
    "plain": (Algorithm(weigh=uniform), "", ""),
    "robust": (Algorithm(weigh=uniform, rounds=each, tasks=SHOWS), LOOKS, LOOKS),
    "asks": (Algorithm(weigh=uniform, tasks=ASKS), "", "('loss') are no change"),
    "odd": (Algorithm(weigh=by_age), "", WEIGHS),
    "parts": (Algorithm(weigh=in_parts), "", WEIGHS),
    "early": (Algorithm(weigh=uniform, prepare=each), "", "its set-up before round 1"),
    "said": (Algorithm(weigh=uniform, refuses={"masks": "it sorts", "dp": "it counts"}), "it sorts", "it counts"),
    "ring": (Algorithm(weigh=uniform, serverless=True), NO_SUM, NO_SUM),
}


@pytest.mark.parametrize(("record", "masks", "noise"), RECORDS.values(), ids=list(RECORDS))
def test_a_plug_ins_record_is_read_alike(record: Algorithm, masks: str, noise: str) -> None:
    for mechanisms, expected in ((HIDING, masks), (NOISED, noise)):
        for mechanism in mechanisms:
            found = reason(mechanism, record)
            assert (expected in found) if expected else not found, mechanism


def kept(params: Any, work: Any, message: Any, client: State, facts: Any) -> tuple[Update, State]:
    return {}, {"own": params}


ASIDE = "its clients look at their rows outside the noisy steps as well"
STOPS, BALANCED = Local(patience=Patience(3)), Local(balanced=True)
INSIDE = {
    "plain": (Algorithm(), ""),
    "public": (Algorithm(tasks={"train": Task(), "words": Question(answer, data="none")}), ""),
    "asks": (Algorithm(tasks=ASKS), "its clients' answers ('loss') follow their rows without noise"),
    "looks": (Algorithm(tasks={"train": Task(survey=lambda model, data, message, state: {})}), ASIDE),
    "stops": (Algorithm(tasks={"train": Task(options=STOPS)}), "its clients' rows decide when they stop"),
    "balances": (Algorithm(tasks={"train": Task(options=BALANCED)}), "which rows its clients train on follows"),
    "few": (
        Algorithm(tasks={"train": Task(options=Local(solver=Solver(pass_steps=3)))}),
        "not drawn from their rows as",
    ),
    "sums": (Algorithm(tasks={"train": Task(sums=("losses",))}), "it reads its clients' losses without noise"),
    "silent": (
        Algorithm(tasks={"own": Task(finish=kept, sealing=Sealing(silent=True)), "train": Task()}),
        "what its clients keep between rounds is trained without noise, and sent later",
    ),
    "early": (Algorithm(prepare=each), "its set-up before round 1"),
}


@pytest.mark.parametrize(("record", "expected"), INSIDE.values(), ids=list(INSIDE))
def test_noise_inside_steps_covers_what_is_sent_or_the_record_is_refused(record: Algorithm, expected: str) -> None:
    found = reason("dp_sgd", record)
    assert (expected in found) if expected else not found
    assert reason("dp_sgd", fedprox(adaptive=True)) == "it reads its clients' losses and examples without noise"
    for one in (scaffold(option="I"), scaffold(variant="fedseq_code")):
        assert reason("dp_sgd", one) == ASIDE


def test_nbafl_takes_a_mean_of_whole_models_from_any_record() -> None:
    def moved(server: State, mean: Update, round: Round) -> State:
        return take_mean(server, mean, round)

    assert reason("nbafl", Algorithm("plain")) == ""
    for changed in (
        {"server_update": moved},
        {"client_init": lambda params, facts: {}},
        {"rounds": each},
        {"tasks": {"train": Task(settle=lambda seen, work, message, client, facts: client)}},
        {"tasks": {"train": Task(), "more": Task()}},
    ):
        assert reason("nbafl", Algorithm("other")._replace(**changed)) == WHOLE


# ---------------------------------------------------------------------- what people read


def test_the_page_says_what_the_records_say() -> None:
    text = privacy_page.PAGE.read_text(encoding="utf-8")
    assert privacy_page.written(text) == text, "run: python tests/support/privacy_page.py"


def test_the_pages_table_is_the_one_above() -> None:
    """Read back from the page: independent of how it is made."""
    lines = privacy_page.section(privacy_page.PAGE.read_text(encoding="utf-8"), privacy_page.GOES).splitlines()
    head, *_ = lines
    columns = [names.replace("`", "").split(", ") for names in head.strip("| ").split(" | ")[1:]]
    assert sorted(name for names in columns for name in names) == sorted(MECHANISMS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    reasons = dict(line.split(". ", maxsplit=1) for line in lines if line[:1].isdigit())
    assert [row[0].strip("`") for row in rows] == list(ALGORITHMS)
    for name, *cells in rows:
        for mechanism, cell in [(m, cell) for names, cell in zip(columns, cells, strict=True) for m in names]:
            key = name.strip("`"), mechanism
            why = REFUSED[mechanism].get(key[0])
            if why is None:
                assert cell == "yes", key
            elif key in HELPS:
                assert cell == "with `" + ", ".join(f'{k} = "{v}"' for k, v in HELPS[key].items()) + "`"
            else:
                assert reasons[cell.removeprefix("no (").removesuffix(")")] == why, key


@cache
def listed() -> dict[str, dict[str, Any]]:
    """Mechanism -> its row of `fedatlas list privacy`, which `show` prints."""
    return {row["name"]: row for row in catalogue.rows("privacy")}


def test_show_knows_the_mechanisms() -> None:
    assert [*listed()] == list(MECHANISMS)
    assert catalogue.entry("secagg") == {"kind": "privacy", **listed()["secagg"]}


@pytest.mark.parametrize("name", MECHANISMS)
def test_show_tells_who_learns_what(name: str) -> None:
    shown = listed()[name]
    assert (shown["server_learns"], shown["clients_learn"], shown["colluding_learn"]) == every()[name].learns
    assert shown["parameters"].keys() == shown["accepts"].keys()
    assert set(shown["goes_with"].replace(",", "").split()) >= {"fedavg", "fedprox"}
    assert f"| `{name}` | {every()[name].learns.server} |" in privacy_page.PAGE.read_text(encoding="utf-8")
