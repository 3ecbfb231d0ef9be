"""The rule on federations whose truth is known: without a difference it hardly ever says yes, and a planted loss is named.

A federation has five parties of 12 to 400 test rows, of which 11% are of class 1, and one party that holds class 0 alone. The
score of a row is what both models see of it, and what each sees for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, multinomial

from fedatlas.metrics import intervals
from fedatlas.metrics.metric import METRICS, Said
from fedatlas.metrics.quality import Floats
from fedatlas.metrics.resampling import Weighted, of_two_classes
from fedatlas.verdict.answer import Answer, Asked, PartyEvidence, answer, over
from fedatlas.verdict.evidence import RARITY, Difference, Evidence, Shares, of_draws, of_seeds

FEDERATIONS = 200


def most(federations: int) -> int:
    """5% and its noise: a correct rule breaks this once in 1,000 tests."""
    return int(binom.ppf(0.999, federations, 0.05))


MOST = most(FEDERATIONS)
SIZES = (12, 60, 90, 200, 400)
LONELY = 1  # the party that holds class 0 alone
RARE, SIGNAL = 0.11, 1.5
TRAIN = 4 * sum(SIZES)  # training rows, where a seed draws a fifth of all rows for its test
DRAWS, FEW = 120, 25  # of test rows, for one run, and for one of several seeds
ACCURACY, AUC = Asked("FedAvg", "accuracy", "accuracy"), Asked("FedAvg", "auc", "AUC")


class Rows(NamedTuple):
    """Test rows of a party: labels, and the scores that each model gives them."""

    y: NDArray[np.bool_]
    together: Floats
    alone: Floats


def hits(y: NDArray[np.bool_], score: Floats) -> NDArray[np.bool_]:
    return (score > SIGNAL) == y


def accuracy_of(right: NDArray[np.bool_]) -> Weighted:
    return lambda drawn: {"accuracy": drawn @ right / drawn.sum(1)}


def auc_of(y: NDArray[np.bool_], score: Floats) -> Weighted:
    """As `resampling.of_two_classes` for scores without ties, all draws at once."""
    positive, negative = np.flatnonzero(y), np.flatnonzero(~y)
    above = (score[positive, None] > score[None, negative]).astype(float)

    def figures(drawn: Floats) -> dict[str, Floats]:
        more, less = drawn[:, positive], drawn[:, negative]
        pairs, won = more.sum(1) * less.sum(1), ((more @ above) * less).sum(1)
        return {"auc": np.divide(won, pairs, out=np.full(len(drawn), np.nan), where=pairs > 0)}

    return figures


@pytest.fixture(autouse=True)
def shared_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """All federations meet the same draws of as many rows: what is tested is what comes out over federations."""
    made: dict[tuple[int, int], list[Floats]] = {}

    def drawings(rows: int, seed: int, *key: object, draws: int) -> list[Floats]:
        if (rows, draws) not in made:
            made[rows, draws] = list(intervals.drawings(rows, 0, draws=draws))
        return made[rows, draws]

    monkeypatch.setattr("fedatlas.verdict.evidence.drawings", drawings)


def party(k: int, rows: Rows, asked: Asked) -> PartyEvidence:
    models = {"together": rows.together, "alone": rows.alone}
    if asked.figure == "accuracy":
        right = {name: hits(rows.y, score) for name, score in models.items()}
        judged = Evidence(len(rows.y), {name: accuracy_of(one) for name, one in right.items()}, None, right)
    else:
        rarer = int(min(rows.y.sum(), (~rows.y).sum()))
        judged = Evidence(len(rows.y), {name: auc_of(rows.y, one) for name, one in models.items()}, rarer)
    return PartyEvidence(k, f"office {k}", judged, True)


def federation(rng: np.random.Generator, worse: Callable[[int], float] = lambda k: 0.0) -> list[Rows]:
    """``worse``: noise that the model together has beyond the one alone at a party; below 0, the other way round."""
    out = []
    for k, n in enumerate(SIZES):
        y = (rng.random(n) < RARE) & (k != LONELY)
        seen = SIGNAL * 2 * y + rng.normal(size=n)
        noise = max(worse(k), 0.0), max(-worse(k), 0.0)
        together, alone = (seen + rng.normal(size=n) * (0.7 + more) for more in noise)
        out.append(Rows(y, together, alone))
    return out


def answered(rows: Sequence[Rows], asked: Asked, seed: int, judged_on: str = "the rows", draws: int = DRAWS) -> Answer:
    return answer(asked, [party(k, one, asked) for k, one in enumerate(rows)], seed, judged_on, TRAIN, draws)


def yes(found: Counter[str]) -> int:
    return found["yes"] + found["yes, but"]


def test_the_fast_auc_of_this_file_is_that_of_the_package():
    rng = np.random.default_rng(0)
    y, score = rng.random(50) < 0.3, rng.normal(size=50)
    drawn = rng.integers(0, 4, (7, 50)).astype(float)
    assert auc_of(y, score)(drawn)["auc"] == pytest.approx(of_two_classes(score, score, y)(drawn)["auc"], abs=1e-12)


@pytest.mark.parametrize("asked", [ACCURACY, AUC], ids=["accuracy", "auc"])
def test_of_one_run_without_a_difference_at_most_one_in_twenty_says_yes(asked: Asked):
    rng = np.random.default_rng(1)
    found = [answered(federation(rng), asked, i) for i in range(FEDERATIONS)]
    verdicts = Counter(one.verdict for one in found)
    assert yes(verdicts) <= MOST, verdicts
    assert verdicts["no"] <= MOST
    wrong = sum(any(p.fate in {"gains", "loses"} for p in one.parties) for one in found)
    assert wrong <= MOST, "Bonferroni: a party is named wrongly in at most 5% of federations"
    fates = {p.client: p.fate for p in found[0].parties}
    assert fates[0] == "too few to say"
    assert (fates[LONELY] == "too few to say") == (asked is AUC)


def pool(rng: np.random.Generator) -> list[Rows]:
    """All rows of a federation, five times its test rows."""
    made = [federation(rng) for _ in range(5)]
    return [Rows(*(np.concatenate(parts) for parts in zip(*each, strict=True))) for each in zip(*made, strict=True)]


def of_seed(rng: np.random.Generator, rows: Sequence[Rows], drawn: bool) -> list[Rows]:
    """What a seed sees: a fifth of the rows of each party, drawn or the first ones, and the noise of its training."""
    out = []
    for one in rows:
        n = len(one.y)
        at = rng.permutation(n)[: n // 5] if drawn else np.arange(n // 5)
        shaken = (score[at] + rng.normal(size=len(at)) * 0.3 for score in (one.together, one.alone))
        out.append(Rows(one.y[at], *shaken))
    return out


def over_seeds(asked: Asked, drawn: bool, many: int = 4, federations: int = FEDERATIONS) -> tuple[Counter[str], int]:
    """The verdicts of all federations over seeds, and how many name a party that gains or loses."""
    rng, verdicts, wrong = np.random.default_rng(2), Counter[str](), 0
    for _ in range(federations):
        rows = pool(rng)
        each = [of_seed(rng, rows, drawn) for _ in range(many)]
        judged = [f"rows {s}" if drawn else "the rows" for s in range(many)]
        seeds = [answered(one, asked, s, judged[s], FEW) for s, one in enumerate(each)]
        found = over(seeds, None, same_parties=True)
        verdicts[found.verdict] += 1
        wrong += any(p.fate in {"gains", "loses"} for p in found.parties)
    return verdicts, wrong


@pytest.mark.parametrize("asked", [ACCURACY, AUC], ids=["accuracy", "auc"])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "common"])
def test_over_seeds_without_a_difference_at_most_one_in_twenty_says_yes(asked: Asked, drawn: bool):
    """Both models keep a difference on each row from seed to seed, so that seeds of the same rows repeat the same error."""
    verdicts, wrong = over_seeds(asked, drawn)
    assert yes(verdicts) + verdicts["no"] <= MOST, verdicts
    assert wrong <= MOST


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "common"])
def test_seeds_taken_for_new_test_rows_say_yes_too_often(drawn: bool, monkeypatch: pytest.MonkeyPatch):
    """So the test above can fail: without its corrections, the interval over seeds is too short."""
    monkeypatch.setattr("fedatlas.verdict.answer.of_seeds", lambda values, *_: of_seeds(values))
    verdicts, _ = over_seeds(ACCURACY, drawn, many=12, federations=100)
    assert yes(verdicts) + verdicts["no"] > most(100)


def said(rows: Rows, score: Floats, name: str, rng: np.random.Generator) -> Said:
    """What a model says of a party's rows: their classes, or numbers with a tail to the right."""
    weight = np.ones(len(rows.y))
    if "numbers" in METRICS[name].tasks:
        true = np.exp((rows.together + rows.alone) / 2)
        guess = true + score * (0.2 + rng.random(len(score)))
        return Said((guess - true) ** 2, weight, true, guess)
    true, guess = rows.y.astype(int), (score > SIGNAL).astype(int)
    return Said((guess == true).astype(float), weight, true, guess, 2 * (score - SIGNAL))


@pytest.mark.parametrize("name", ["balanced_accuracy", "macro_f1", "pr_auc", "log_loss", "rmse", "mae", "r2"])
def test_by_the_other_figures_too_at_most_one_in_twenty_says_yes(name: str):
    rng, metric, verdicts = np.random.default_rng(6), METRICS[name], Counter[str]()
    for seed in range(FEDERATIONS):
        parties = []
        for k, rows in enumerate(federation(rng)):
            each = {"together": said(rows, rows.together, name, rng), "alone": said(rows, rows.alone, name, rng)}
            rarer = int(min(rows.y.sum(), (~rows.y).sum())) if name in RARITY else None
            judged = Evidence(len(rows.y), {model: metric.weighted(one) for model, one in each.items()}, rarer)
            parties.append(PartyEvidence(k, f"office {k}", judged, True))
        asked = Asked("FedAvg", name, name, metric.lower_is_better)
        verdicts[answer(asked, parties, seed, "the rows", TRAIN, 60).verdict] += 1
    assert yes(verdicts) <= MOST, verdicts


@pytest.mark.parametrize("asked", [ACCURACY, AUC], ids=["accuracy", "auc"])
def test_a_planted_loss_of_one_party_is_named(asked: Asked):
    """The largest party loses, the others gain much: the mean gains, and the loser is named."""
    rng = np.random.default_rng(3)
    lost = 3
    found = [answered(federation(rng, lambda k: 3.0 if k == lost else -6.0), asked, i) for i in range(20)]
    named = [[p.client for p in one.parties if p.fate == "loses"] for one in found]
    assert named.count([lost]) >= 18
    assert all(names in ([lost], []) for names in named)
    assert sum(one.verdict == "yes, but" for one in found) >= 18


@pytest.mark.parametrize("asked", [ACCURACY, AUC], ids=["accuracy", "auc"])
def test_a_planted_gain_is_found(asked: Asked):
    rng = np.random.default_rng(4)
    verdicts = Counter(answered(federation(rng, lambda k: -4.0), asked, i).verdict for i in range(20))
    assert verdicts["yes"] >= 18


def paired(won: int, lost: int, rows: int) -> Difference:
    """The difference of two accuracies, with the standard error that a bootstrap of very many draws gives."""
    found = of_draws(np.array([(won - lost) / rows]), won + lost, Shares(rows, won, lost))
    assert found is not None
    if not won + lost:
        return found
    n = max(won + lost, 2)
    error = np.sqrt(won + lost - (won - lost) ** 2 / rows) / rows
    return found._replace(error=float(error * np.sqrt(n / (n - 1))))


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_the_interval_of_two_accuracies_holds_the_truth_as_often_as_it_says(level: float):
    """Exactly, over all outcomes of 45 rows, whether the models disagree on many or on hardly any."""
    rows, bare = 45, 0.0
    outcomes = [(won, lost) for won in range(rows + 1) for lost in range(rows + 1 - won)]
    ends = np.array([paired(*one, rows).ends(level) for one in outcomes])
    naive = np.array([paired(*one, rows)._replace(freedom=np.inf, shares=None).ends(level) for one in outcomes])
    counts = np.array([(won, lost, rows - won - lost) for won, lost in outcomes])
    for won, lost in [(0.01, 0.01), (0.0, 0.02), (0.05, 0.05), (0.02, 0.1), (0.05, 0.15), (0.3, 0.3), (0.1, 0.3)]:
        chances = multinomial.pmf(counts, rows, [won, lost, 1 - won - lost])
        missed, missed_bare = (
            chances[(found[:, 0] > won - lost) | (found[:, 1] < won - lost)].sum() for found in (ends, naive)
        )
        assert missed <= 1 - level, (won, lost)
        bare = max(bare, missed_bare)
    assert bare > 1 - level, "so it can fail: a normal interval holds the truth too seldom"


def test_the_more_alike_two_models_are_the_narrower_is_their_interval():
    """Where they disagree on one row of 45, 0.12 and more is excluded; of 1,000 rows without any, 0.004."""
    widths = [np.ptp(paired(k, k, 1000).ends()) for k in (0, 1, 3, 10, 30, 100)]
    assert widths == sorted(widths)
    low, high = paired(0, 1, 45).ends()
    assert -0.12 < low < -1 / 45
    assert 0 < high < 0.08
    assert paired(0, 0, 1000).ends() == pytest.approx((-0.0037, 0.0037), abs=1e-4)


PATIENTS, TESTED, SEEDS = 180, 45, 5


def learnt(rng: np.random.Generator, signal: float) -> list[Answer]:
    """Five seeds of 180 patients: each draws its 45 test rows and trains two classifiers, of as good columns, on the others.

    The constant is right in half of all cases, and so is a classifier without a signal.
    """
    y, out = rng.random(PATIENTS) < 0.5, []
    columns = rng.normal(size=(2, PATIENTS, 4)) + signal * y[None, :, None]
    for seed in range(SEEDS):
        order = rng.permutation(PATIENTS)
        test, train = order[:TESTED], order[TESTED:]
        right = {"trivial": y[test]}
        for name, x in zip(("together", "alone"), columns, strict=True):
            one, other = x[train][y[train]].mean(0), x[train][~y[train]].mean(0)
            right[name] = ((x[test] - (one + other) / 2) @ (one - other) > 0) == y[test]
        judged = Evidence(TESTED, {name: accuracy_of(each) for name, each in right.items()}, None, right)
        rows = PATIENTS - TESTED
        out.append(answer(ACCURACY, [PartyEvidence(0, "clinic", judged, True)], seed, f"rows {seed}", rows, FEW))
    return out


@pytest.mark.parametrize("signal", [0.0, 0.7], ids=["nothing to learn", "a signal"])
def test_seeds_that_draw_few_test_rows_of_the_same_people_keep_their_promise(signal: float, monkeypatch):
    """An almost constant difference over few seeds is not taken for a certain one."""
    rng = np.random.default_rng(5)
    each = [learnt(rng, signal) for _ in range(FEDERATIONS)]
    found = [over(one, None, same_parties=True) for one in each]
    assert sum(one.gain.low > 0 or one.gain.high < 0 for one in found if one.gain) <= MOST
    if not signal:
        assert sum(one.over_trivial.low > 0 or one.over_trivial.high < 0 for one in found if one.over_trivial) <= MOST
    monkeypatch.setattr("fedatlas.verdict.answer.of_seeds", lambda values, *_: of_seeds(values))
    short = [over(one, None, same_parties=True) for one in each]
    assert sum(one.gain.low > 0 or one.gain.high < 0 for one in short if one.gain) > MOST, "so it can fail"
