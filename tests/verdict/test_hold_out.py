"""The advice on test rows, followed: of federations of many sizes the rows are dealt as a run deals them, before and after."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from fedatlas.data.dataset import Partition, Split
from fedatlas.data.loaded import Loaded, split_test
from fedatlas.setup.party_rows import HELD_OUT, split_clients
from fedatlas.verdict.answer import Answer, Asked
from fedatlas.verdict.evidence import RARE, ROWS, enough
from fedatlas.verdict.hold_out import LIKELY, hold_out
from fedatlas.verdict.rule import PartyVerdict
from fedatlas.verdict.whom import few_text

Ints = NDArray[np.int64]
FEDERATIONS = 60
FAILING = int(binom.ppf(0.999, FEDERATIONS, 1 - LIKELY))  # a promise of 90% is broken oftener once in 1,000 tests
ASKED = Asked("FedAvg", "accuracy", "accuracy", hold="evaluation.clients = 0.2")


def drawn(owners: Ints, y: Ints, share: float, seed: int) -> list[Ints]:
    """Return the labels of each owner's test rows, as `data.test` draws them."""
    rows = Split(torch.from_numpy(owners)[:, None].float(), torch.from_numpy(y), client=torch.from_numpy(owners))
    test = split_test(Loaded(rows, None, "classes", ("no", "yes")), share, seed).test
    assert test is not None
    assert test.client is not None
    return [test.y[test.client == k].numpy() for k in range(owners.max() + 1)]


def held(owners: Ints, y: Ints, share: float, seed: int) -> list[Ints]:
    """Return the labels of the rows that each owner holds out, as `evaluation.clients` takes them."""
    parts = tuple(np.flatnonzero(owners == k) for k in range(owners.max() + 1))
    kept = split_clients(Partition(parts, {}), seed, 0.0, share).kept[HELD_OUT]
    return [y[kept[k]] for k in range(len(parts))]


def answer_of(each: Sequence[Sequence[Ints]], sizes: Ints, *, test: bool, rare: bool) -> Answer:
    """Return an answer over seeds, each with the labels of the test rows of every party."""
    parties = []
    for k, n in enumerate(sizes):
        labels = [one[k] for one in each]
        rows, ones = min(map(len, labels)), min(int(min((y == c).sum() for c in (0, 1))) for y in labels)
        rarer = ones if rare else None
        fate = "not told apart" if enough(rows, rarer) else "too few to say"
        mean = round(float(np.mean([*map(len, labels)])))
        parties.append(
            PartyVerdict(k, f"office {k}", mean, fate, train_rows=1, rarer=rarer, divided=int(n), fewest=rows)
        )
    rows = sum(map(len, each[0]))
    seeds, on = [*range(len(each))], [f"rows {s}" for s in range(len(each))]
    asked = ASKED._replace(own_from="data.test" if test else "evaluation.clients")
    return Answer(
        asked, "cannot tell", seeds, on, rows, int(sizes.sum()) - rows, True, 0.9, 0.8, 0.5, None, None, parties
    )


def federation(seed: int) -> tuple[Ints, Ints, Ints, list[int], float]:
    """Return sizes, owners, labels (0.3 of them 1), seeds and a share in force."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(40, 300, rng.integers(3, 9))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    y = (rng.random(len(owners)) < 0.3).astype(np.int64)
    return sizes, owners, y, [*range(1, rng.integers(2, 5))], float(rng.choice([0.1, 0.15, 0.25, 0.35]))


@pytest.mark.parametrize("test", [True, False], ids=["data.test", "evaluation.clients"])
@pytest.mark.parametrize("rare", [False, True])
def test_the_share_advised_does_for_those_named(test: bool, rare: bool):
    """Without the rarer class the rows held out are counted, so that no federation may fail."""
    deal, advised, failed = drawn if test else held, 0, 0
    for number in range(FEDERATIONS):
        sizes, owners, y, seeds, now = federation(number)
        found = answer_of([deal(owners, y, now, s) for s in seeds], sizes, test=test, rare=rare)
        few = [p for p in found.parties if p.fate == "too few to say"]
        cure = hold_out(found, few)
        assert cure is not None
        if not cure.able:
            continue
        advised += 1
        assert cure.setting in few_text(found)
        share = float(re.findall(r"= ([\d.]+)$", cure.setting)[0])
        assert now < share <= 0.5
        after = [deal(owners, y, share, s) for s in seeds]
        small = [p for p in cure.able for one in after if not _does(one[p.client], rare)]
        failed += bool(small)
        assert cure.likely or not small
    assert advised > FEDERATIONS / 2
    assert failed <= FAILING


def _does(labels: Ints, rare: bool) -> bool:
    return len(labels) >= ROWS and (not rare or min((labels == 0).sum(), (labels == 1).sum()) >= RARE)


def party(k: int, test: int, divided: int) -> PartyVerdict:
    fate = "too few to say" if test < ROWS else "not told apart"
    return PartyVerdict(k, f"office {k}", test, fate, train_rows=divided, divided=divided)  # type: ignore[arg-type]


def asked_of(*parties: PartyVerdict) -> Answer:
    return Answer(ASKED, "yes", [1], ["rows"], 100, 300, True, 0.9, 0.8, 0.5, None, None, parties)


def test_rows_held_out_take_the_place_of_those_in_force_so_that_nobody_may_be_left_with_less():
    """Office 1 has 40 test rows of a file; of its 50 training rows half are 25: the advice for office 0 would take its verdict."""
    small, large = party(0, 12, 100), party(1, 40, 50)
    assert "evaluation.clients = 0.3 would do for office 0." in few_text(asked_of(small, large._replace(divided=400)))
    assert "would do" not in few_text(asked_of(small, large))
    more = few_text(asked_of(small, large._replace(divided=70)))
    assert "evaluation.clients = 0.45 would do for office 0." in more, "31 of 70 rows keep office 1 judged"


def test_a_share_is_the_least_and_half_is_the_most():
    """30 of 67 rows are 0.448; of 61 0.492; of 59 half are 29.5, which a run rounds to 30 and of 58 to 29."""
    for rows, said in (
        (67, "= 0.45 would do"),
        (61, "= 0.5 would do"),
        (59, "= 0.5 would do"),
        (58, "needs more rows"),
    ):
        assert said in few_text(asked_of(party(0, 20, rows)))


def test_eight_parties_are_not_listed_thrice():
    parties = [party(k, 20 + k, 67) for k in range(8)]
    assert few_text(asked_of(*parties)) == (
        "An interval takes 30 test rows: all 8 clients have 20 to 27. evaluation.clients = 0.45 would do for all 8 clients."
    )


def test_a_party_short_in_one_seed_is_shown_with_the_rows_of_that_seed():
    found = asked_of(party(0, 20, 67)._replace(test_rows=33, fewest=28))._replace(seeds=[1, 2, 3])
    assert "An interval takes 30 test rows in each seed: office 0 has 28." in few_text(found)


def test_a_party_without_the_rarer_class_needs_rows_of_it():
    some = [party(0, 12, 24), party(1, 40, 400)._replace(fate="too few to say", rarer=0)]
    assert "office 0 needs more rows; office 1 needs more rows of the rarer class." in few_text(asked_of(*some))


def test_many_with_too_few_rows_are_named_once():
    parties = [*(party(k, 20 + k, 67) for k in range(7)), party(7, 40, 120)]
    assert few_text(asked_of(*parties)) == (
        "An interval takes 30 test rows: those 7 clients have 20 to 26. evaluation.clients = 0.45 would do for those 7 clients."
    )
