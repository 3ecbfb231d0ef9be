"""The answer of each setting of a study: which choice to take, and whether to federate with it. See `fedatlas.verdict`.

The unit is the seed: differences are within seeds, pairs of choices by Holm's rule in each setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas.algorithms.titles import title_of
from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.metric import METRICS
from fedatlas.metrics.quality import Floats
from fedatlas.study.judged import EVERYBODY, KINDS
from fedatlas.study.measurements import Measurements, Setting, value_of
from fedatlas.study.plain import Row, RunRow
from fedatlas.verdict.answer import Answer, Asked, PartyEvidence, decided, of_figures, over
from fedatlas.verdict.evidence import ROWS, SEEDS, Evidence, mean_gap
from fedatlas.verdict.schemes import SchemeCost, SchemeRanking, SeedDraws, SeedFigure, chosen, rank
from fedatlas.wording import NAMES

HOLD = "evaluation.clients = 0.2"
USUAL = "accuracy"


class KeptFigures(NamedTuple):
    """How a run was judged, as far as the table keeps it."""

    judged_on: str  # fingerprint of the test rows; "" where it is not kept
    own: bool
    train_rows: int
    test_rows: int  # 0 where it is not kept
    parties: Mapping[int, PartyEvidence]
    figures: Mapping[int, Mapping[str, Floats]]  # client -> kind -> (1 + draws,)

    @property
    def drawn(self) -> bool:
        """Whether the table keeps the figure in draws of the test rows, and not on all of them only."""
        return all(len(one["together"]) > 1 for one in self.figures.values())

    @property
    def mean(self) -> SeedDraws:
        """The mean over the parties that have the figure, by test rows, in each draw."""
        known = [k for k in self.parties if math.isfinite(self.figures[k]["together"][0])]
        rows = [self.parties[k].judged.rows for k in known]
        return SeedDraws(mean_gap([self.figures[k]["together"] for k in known], rows), sum(rows))


class SettingAnswer(NamedTuple):
    """The answer of one setting."""

    setting: Setting
    figure: str
    ranking: SchemeRanking
    costs: Mapping[str, SchemeCost]
    take: str  # the choice to take
    answer: Answer | None  # of that choice; None where no run finished
    rows_known: bool  # whether the table keeps how many test rows there were

    @property
    def words(self) -> str:
        """The name of the figure that decides."""
        return METRICS[self.figure].words if self.figure in METRICS else NAMES[self.figure]

    @property
    def first(self) -> list[str]:
        """The best choice, and those that cannot be told apart from it."""
        best = self.ranking.order[:1]
        return [*best, *(self.ranking.unclear(best[0]) if best else ())]


def answers(study: Measurements) -> list[SettingAnswer]:
    """Return the answer of each setting, in their order."""
    return [of_setting(study, name) for name in study.setting_names()]


def of_setting(study: Measurements, name: Setting) -> SettingAnswer:
    """Return the answer of a setting. Choices with another's quality by construction (masks) are left out beside it."""
    cells = [run for run in study.cells() if study.setting_of(run) == name and run["status"] == "done"]
    names = {study.choice_of(run) for run in cells}
    kept = [run for run in cells if study.twins.get(study.choice_of(run)) not in names]
    beside = {"alone": study.alone, "pooled": study.pooled()}
    both = {
        kind: [run for run in each if study.setting_of(run) == name and run["status"] == "done"]
        for kind, each in beside.items()
    }
    figure = figure_of([*kept, *both["alone"], *both["pooled"]])
    if not figure:  # all runs by what every table has, so that no figure is of other rows than the next
        figure = USUAL
        kept = [_bare(run) for run in kept]
        both = {kind: [_bare(run) for run in each] for kind, each in both.items()}
    runs: dict[str, dict[int, KeptFigures]] = {}
    for run in kept:
        if (found := judged_of(run, figure)) is not None:
            runs.setdefault(study.choice_of(run), {})[int(run["seed"])] = found
    others = {
        kind: {int(run["seed"]): found for run in each if (found := judged_of(run, figure)) is not None}
        for kind, each in both.items()
    }
    lower = figure in METRICS and METRICS[figure].lower_is_better
    ranking = rank(
        {choice: {seed: _figure(one, seed) for seed, one in found.items()} for choice, found in runs.items()},
        lower_is_better=lower,
        drawn=_drawn([one for found in runs.values() for one in found.values()]),
    )
    costs = {choice: cost_of(study, [r for r in kept if study.choice_of(r) == choice]) for choice in runs}
    take = chosen(ranking, costs)
    told = _answer(asked_of(kept, take, figure, costs[take]), runs[take], others) if take else None
    known = all(one.test_rows and one.judged_on for each in runs.values() for one in each.values())
    return SettingAnswer(name, figure, ranking, costs, take, told, known)


def figure_of(runs: Sequence[RunRow]) -> str:
    """Return the figure that decides (``evaluation.metric``); "" where the table does not keep the same one for every run."""
    kept = {str(run.get("judged", {}).get("metric", {}).get("name", "")) for run in runs}
    return kept.pop() if len(kept) == 1 else ""


def _bare(run: RunRow) -> RunRow:
    return {key: x for key, x in run.items() if key != "judged"}


def judged_of(run: RunRow, figure: str) -> KeptFigures | None:
    """Return how a run was judged; None without a value of the figure."""
    told = run.get("judged", {})
    kept, name = told.get("judged"), told.get("metric", {}).get("name")
    if kept and name == figure:
        rows = [one["rows"] for one in kept["parties"]]
        own, whole = bool(kept["own"]), sum(rows) if kept["own"] else max(rows)
        each = {one["client"]: _party(one, own) for one in kept["parties"]}
        drawn = {
            one["client"]: {kind: np.array(one[kind], dtype=np.float64) for kind in KINDS if kind in one}
            for one in kept["parties"]
        }
        if not any(math.isfinite(one["together"][0]) for one in drawn.values()):
            return None
        return KeptFigures(str(told.get("judged_on") or ""), own, int(kept["train_rows"]), whole, each, drawn)
    value, trivial = _values(run, told if name == figure else {}, figure)
    if value is None or not math.isfinite(value):
        return None
    figures = {"together": np.array([value])} | ({} if trivial is None else {"trivial": np.array([trivial])})
    many = int((told.get("metric", {}) if name == figure else {}).get("test_rows") or 0)
    party = _party({"client": EVERYBODY, "rows": many or ROWS}, False)
    train = int(run.get("rows") or 0)
    return KeptFigures(str(told.get("judged_on") or ""), False, train, many, {EVERYBODY: party}, {EVERYBODY: figures})


def _party(one: Row, own: bool) -> PartyEvidence:
    models: dict[str, Any] = dict.fromkeys(KINDS)  # told by their figures, which were drawn when the run ended
    judged = Evidence(int(one["rows"]), models, one.get("rarer"))
    return PartyEvidence(one["client"], one.get("name", ""), judged, own, None, one.get("train_rows"))


def _values(run: RunRow, told: Row, figure: str) -> tuple[float | None, float | None]:
    """Return a run's figure and that of the constant model, where the table keeps no draws."""
    if told:
        return told["metric"]["value"], told.get("trivial", {}).get("value")
    return value_of(run, figure), run.get("majority") if figure == USUAL else None


def _figure(one: KeptFigures, seed: int) -> SeedFigure:
    found = one.mean
    return SeedFigure(float(found.values[0]), one.judged_on or f"seed {seed}", found)


def _drawn(each: Sequence[KeptFigures]) -> float:
    """Return test rows per training row, for seeds that draw their test rows."""
    rows = over_seeds([one.test_rows / one.train_rows for one in each if one.train_rows]).mean
    return rows or 0.0


def cost_of(study: Measurements, runs: Sequence[RunRow]) -> SchemeCost:
    """Return a choice's cost in a setting, on average over its seeds."""
    sent, seconds = (over_seeds([_known(value_of(run, name)) for run in runs]).mean for name in ("bytes", "seconds"))
    return SchemeCost(sent, seconds or 0.0, study.choice_of(runs[0]) == study.reference())


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def asked_of(runs: Sequence[RunRow], choice: str, figure: str, cost: SchemeCost) -> Asked:
    """Return what is asked of a choice in a setting."""
    run = next((run for run in runs if "judged" in run), runs[0])
    config, told = run.get("configuration", {}), run.get("judged", {})
    metric = METRICS.get(figure)
    words = metric.words if metric else NAMES[figure]
    positive = told.get("metric", {}).get("positive")
    constant = told.get("trivial", {}).get("answer")
    trivial = "always answering the largest class" if constant is None else f"always answering '{constant}'"
    seeds = {str(one.get("judged", {}).get("trivial", {}).get("answer")) for one in runs}
    return Asked(
        title_of(choice),
        figure,
        words + (f" of '{positive}'" if positive is not None else ""),
        bool(metric and metric.lower_is_better),
        config.get("evaluation", {}).get("margin") or 0.0,
        config.get("words", {}).get("party") or "client",
        cost.bytes,
        "validation row" if config.get("evaluation", {}).get("on") == "validation" else "test row",
        trivial if len(seeds) == 1 else "always answering the commonest class",
        HOLD,
    )


def _answer(asked: Asked, runs: Mapping[int, KeptFigures], others: Mapping[str, Mapping[int, KeptFigures]]) -> Answer:
    """Return the answer of a choice over its seeds, or over those that have a model alone if any has; no verdict for few seeds."""
    both = [seed for seed in runs if seed in others["alone"] and _same(runs[seed], others["alone"][seed])]
    each = [
        _of_seed(asked, seed, runs[seed], {kind: found.get(seed) for kind, found in others.items()})
        for seed in sorted(both or runs)
    ]
    named = all(EVERYBODY not in runs[seed].parties for seed in both or runs)
    found = over(each, asked.cost, named)
    if len(each) < SEEDS:
        found = found._replace(gain=None, over_trivial=None, alone_over_trivial=None, pooled_over_trivial=None)
        found = decided(found._replace(parties=[]))
    rows = over_seeds([runs[seed].test_rows for seed in both or runs]).mean
    return found._replace(test_rows=round(rows or 0), mean_rows=round(rows or 0))


def _same(one: KeptFigures, other: KeptFigures) -> bool:
    return (one.judged_on, one.own, [*one.parties]) == (other.judged_on, other.own, [*other.parties])


def _of_seed(asked: Asked, seed: int, mine: KeptFigures, others: Mapping[str, KeptFigures | None]) -> Answer:
    there = {kind: one for kind, one in others.items() if one is not None and _same(mine, one)}
    parties, figures = list[PartyEvidence](), list[Mapping[str, Floats]]()
    for k, p in mine.parties.items():
        told = {**mine.figures[k], **{kind: one.figures[k]["together"] for kind, one in there.items()}}
        parties.append(p._replace(judged=p.judged._replace(models={**dict.fromkeys(told)})))  # type: ignore[dict-item]
        figures.append(told)
    return of_figures(asked, parties, figures, seed, mine.judged_on or f"seed {seed}", mine.train_rows)
