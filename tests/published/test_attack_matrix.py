"""The matrix of attacks and defences: no cell is empty, refusals are results, and what is done is not done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configured import share_out
from fedatlas.aggregation import RULES as EVERY_RULE
from fedatlas.attacks import ATTACKS
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.metrics.intervals import proportion
from fedatlas.published import reproduction
from fedatlas.published.attack_matrix import (
    BEFORE,
    FEW_ROWS,
    MECHANISMS,
    POISONS,
    RULES,
    VIEWS,
    CellResult,
    ViewCells,
    as_gate,
    cells,
    knowing,
    struck,
    text_of,
)
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked

CHOSEN = (
    "fedavg-label_flip-central_dp",
    "fedavg-sign_flip-median",
    "fedavg-label_flip-none",
    "fedseq-gaussian-local_dp",
    "fedavg-inverting_gradients-none",
    "fedseq-dlg-central_dp",
    "fedavg-membership-krum",
    "fedavg-gan_active-none",
    "fedseq-gan_active-none",
)


def test_every_pair_has_its_cell_and_what_is_refused_is_refused_for_its_mechanism() -> None:
    """Rules stand everywhere; of FedSeq noise and the class fake are refused, weights by rows under noise, single updates under a sum."""
    every = {cell.name: cell for cell in cells(12)}
    assert len(every) == 2 * (len(POISONS) + len(VIEWS)) * (1 + len(RULES) + len(BEFORE) + len(MECHANISMS))
    attacks = {POISONS.get(name, {}).get("name", name) for name in POISONS}
    attacks |= {how.name or name for name, how in VIEWS.items()}
    attacks |= {table["name"] for how in VIEWS.values() for table in how.tables.get("attack", ())}
    assert attacks == {"nobody", *ATTACKS}
    assert {*RULES, "mean"} == {*EVERY_RULE}
    assert {table["pre"] for table in BEFORE.values()} == {"nnm", "bucketing", "arc"}
    refused = set()
    for cell in every.values():
        if cell.attack != "nobody" and cell.defence in RULES[1:]:
            continue  # as with the first rule
        try:
            share_out(parse({**cell.tables, "seed": 1}), 1)
        except ConfigError as error:
            claims = (cell.attack,) if cell.algorithm == "fedavg" else ()
            refused.add((cell.algorithm, cell.defence, str(error)[:11], *claims))
    no_fake = ("none", RULES[0], *BEFORE, *MECHANISMS)
    assert refused == {
        *(("fedseq", defence, "model.loss.") for defence in no_fake),
        *(("fedseq", noise, "[[privacy]]") for noise in ("local_dp", "central_dp")),
        *(("fedavg", noise, "[[privacy]]", "false_claims") for noise in ("local_dp", "central_dp")),
        ("fedseq", "secagg", "attack 'pro"),
        ("fedavg", "secagg", "attack 'pro", "property"),
    }


@pytest.mark.slow
def test_cells_hold_figures_with_intervals_or_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduction.reproduce("attack-matrix", quick=True, rounds=2, only=CHOSEN, out=tmp_path)
    shown = capsys.readouterr().out
    assert "attack-matrix" not in shown.splitlines()[0]
    (found,) = tmp_path.glob("attack-matrix-quick-2-rounds.json")
    said = {gate["name"]: gate["obtained"] for gate in json.loads(found.read_text())["gates"]}
    assert len(said) == len(CHOSEN)
    assert "%" in said["fedavg: sign_flip against median"]
    assert "[" in said["fedavg: label_flip against none"]
    assert said["fedseq: gaussian against local_dp"].startswith("[[privacy]] 'local_dp': not with 'fedseq'")
    assert "dB [" in said["fedavg: inverting_gradients against none"]
    assert said["fedseq: dlg against central_dp"].startswith("[[privacy]] 'central_dp': not with 'fedseq'")
    assert said["fedavg: membership against krum"].endswith("(outsider)")
    assert said["fedavg: gan_active against none"].startswith("+")
    assert said["fedavg: gan_active against none"].endswith("] (client:0)")
    assert said["fedseq: gan_active against none"].startswith("model.loss.fake: not with 'fedseq'")
    page = (tmp_path / "attack-matrix-quick-2-rounds.md").read_text()
    assert all(text.split(" [")[0] in page for text in said.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_active_gan_draws_a_class_that_its_client_lacks_with_every_seed(seed: int) -> None:
    """The attacker and its scorer seek the same class, as in the row of the passive form, and train as long."""
    (cell,) = (one for one in cells(12) if one.name == "fedavg-gan_active-none")
    (attacker,), keys = cell.tables["attack"], VIEWS["gan_active"].keys
    setup = set_up(checked(parse({**cell.tables, "seed": seed})))
    assert attacker["target"] == min(set(range(10)) - set(setup.rows(0).y.tolist())) == keys["target"]
    assert attacker["steps"] == keys["steps"]
    assert (cell.role, keys["mode"], keys["selections"]) == ("client:0", "hitaj", 0)


def test_omniscient_attackers_are_labelled_so() -> None:
    every = {cell.name: cell for cell in cells(12)}
    assert knowing(every["fedavg-sign_flip-none"]) == knowing(every["fedavg-nobody-none"]) == ""
    assert knowing(every["fedavg-alie_optimal-krum"]) == " (sees its coalition)"
    gate = as_gate(every["fedavg-mimic-krum"], [CellResult("1.0%", 0.01)])
    assert gate["name"] == "fedavg: mimic (omniscient) against krum"


def test_what_a_cell_counts() -> None:
    """Of a confusion matrix: right rows of swapped classes, wrong ones that were wanted, and a backdoor's success in rows."""
    confusion = [[8, 2, 0], [1, 7, 2], [0, 0, 10]]
    assert struck(confusion, {"pairs": [[0, 1]], "kind": "swap"}) == (15, 20)
    assert struck(confusion, {"pairs": [[1, 2]], "kind": "flip"}) == (2, 10)
    assert struck(confusion, {"target": "0", "attack_success": 0.35}) == (7, 20)


def test_an_attack_on_a_view_that_is_added_has_its_own_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VIEWS, "frequent_class", ViewCells({}, FEW_ROWS, "hits above the placebo's", ".2f", " hits"))
    cell = next(one for one in cells(12) if one.name == "fedavg-frequent_class-central_dp")
    text = text_of(cell, 0.5, 0.25, 0.75, sign="+")
    assert text == "+0.50 hits [+0.25, +0.75] (outsider)"
    assert as_gate(cell, [CellResult(text, 0.5)])["published"] == "hits above the placebo's"


def test_the_interval_of_a_share() -> None:
    """Wilson's interval of 8 of 10 is 0.49 to 0.94; of none of 10 it ends above 0."""
    assert proportion(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    low, high = proportion(0, 10)
    assert low == 0
    assert 0.2 < high < 0.3
