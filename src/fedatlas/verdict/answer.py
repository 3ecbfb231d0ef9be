"""The answer of a run, and of several seeds, as one record: should we federate, with which scheme, for whom, how sure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.quality import Floats
from fedatlas.verdict.evidence import (
    SEEDS,
    Difference,
    Evidence,
    drawn_figures,
    enough,
    mean_gap,
    of_draws,
    of_seeds,
    shares_of_mean,
)
from fedatlas.verdict.price import Price, RunEffort, mean_price
from fedatlas.verdict.price import of_plain as price_of_plain
from fedatlas.verdict.rule import Ends, PartyVerdict, Verdict, bonferroni, ends, fate, federate, possible

Judge = Literal["", "server", "nodes", "holder"]  # holder: the party with the label, where parties hold columns
OwnFrom = Literal["", "data.test", "evaluation.clients"]


class Asked(NamedTuple):
    """The question, in the words of the person who asks."""

    scheme: str  # the algorithm's name, as a sentence has it
    figure: str  # key of the figure that decides
    words: str  # its name in words
    lower_is_better: bool = False
    margin: float = 0.0  # a difference up to this does not count; in the figure's unit
    party: str = "client"  # the word for a party
    cost: float | None = None  # bytes sent in all; None if they would tell who took part
    rows: str = "test row"  # what the models are judged on, in the singular
    trivial: str = ""  # the reference: "always answering 'no'"
    hold: str = ""  # the key that judges each party on its own rows; "" without one
    own_from: OwnFrom = ""  # what makes a share of a party's rows its test rows; "" if they are given
    judge: Judge = ""  # who judged a deployed run, in which nobody trains alone

    @property
    def better(self) -> float:
        """1 if a higher figure is better, else -1."""
        return -1.0 if self.lower_is_better else 1.0


class PartyEvidence(NamedTuple):
    """A party, and its models' results on the test rows that it is judged on."""

    client: int
    name: str
    judged: Evidence
    own: bool  # whether the rows are its own; common rows leave it unnamed
    alone_always: str | None = None
    train_rows: int | None = None
    divided: int | None = None  # its rows of which a share becomes test rows: of `data.test` or `evaluation.clients`


class Answer(NamedTuple):
    """An answer. Figures are means over the parties, weighted by test rows; of several seeds, means over these."""

    asked: Asked
    verdict: Verdict
    seeds: Sequence[int]
    judged_on: Sequence[str]  # fingerprint of the test rows, by seed
    test_rows: int  # of a seed
    train_rows: int
    own_rows: bool  # whether parties are judged on their own rows
    together: float | None
    alone: float | None
    trivial: float | None
    gain: Ends | None  # over training alone
    over_trivial: Ends | None
    parties: Sequence[PartyVerdict]  # those that can be named
    left_out: int = 0  # parties whose rows leave the figure undefined
    mean_rows: int | None = None  # test rows of the parties in the means, of a seed
    pooled: float | None = None  # the figure of a model of all rows in one place
    alone_over_trivial: Ends | None = None
    pooled_over_trivial: Ends | None = None
    compared: bool = True  # whether there is a baseline ``alone`` to compare with
    swing: float | None = None  # how far the figure swings over the last rounds, if that matters
    swing_of: str = ""  # that figure's name
    cures: Sequence[str] = ()  # remedies
    bare_seeds: int = 0  # further seeds, left out because nobody trained alone in them
    price: Price | None = None  # of protection, if it was measured
    unlike: Sequence[str] = ()  # names of the figures, if seeds are judged by different ones
    interval: Sequence[float] | None = None  # low and high of `together` on these test rows, of a deployed run

    def plain(self) -> dict[str, Any]:
        """Return the answer as plain values for JSON; `of_plain` reads them back."""
        return {
            **self._asdict(),
            "asked": self.asked._asdict(),
            "parties": [{**p._asdict(), "gain": _plain(p.gain)} for p in self.parties],
            "cures": list(self.cures),
            "unlike": list(self.unlike),
            **{key: _plain(getattr(self, key)) for key in DIFFERENCES},
            "price": None if self.price is None else self.price.plain(),
        }


DIFFERENCES = ("gain", "over_trivial", "alone_over_trivial", "pooled_over_trivial")


def of_plain(found: Mapping[str, Any]) -> Answer:
    """Return the answer that `Answer.plain` wrote."""
    known = {key: found[key] for key in Answer._fields if key in found}
    parties = [PartyVerdict(**{**one, "gain": _ends(one["gain"])}) for one in found["parties"]]
    read = {
        **{key: _ends(found.get(key)) for key in DIFFERENCES},
        "parties": parties,
        "cures": tuple(known.get("cures", ())),
        "unlike": tuple(known.get("unlike", ())),
        "price": price_of_plain(known.get("price")),
    }
    return Answer(**{**known, **read, "asked": Asked(**found["asked"])})


def _plain(found: Ends | None) -> dict[str, float] | None:
    return None if found is None else found._asdict()


def _ends(found: Mapping[str, float] | None) -> Ends | None:
    return None if found is None else Ends(**found)


class Compared(NamedTuple):
    """A comparison of the models together with others, on the rows of every party that counts."""

    each: Sequence[Difference | None]
    mean: Difference | None
    known: Sequence[bool]  # parties whose difference is defined


def answer(
    asked: Asked,
    parties: Sequence[PartyEvidence],
    seed: int,
    judged_on: str,
    train_rows: int,
    draws: int | None = None,
    efforts: tuple[RunEffort, RunEffort] | None = None,
) -> Answer:
    """Return the answer of one run from the rows of its parties.

    If parties have their own test rows, those without are not counted, and each of the others is named. ``draws``: of
    test rows; None: the usual number. ``efforts``: of the run without protection and of this one, if the evidence holds
    both.
    """
    own = any(p.own for p in parties)
    counted = counting(parties)
    figures = _figures(asked, counted, own, seed, draws)
    return of_figures(asked, parties, figures, seed, judged_on, train_rows, efforts)


def counting(parties: Sequence[PartyEvidence]) -> list[PartyEvidence]:
    """Return the parties that count: those with their own test rows, if any party has such; else all."""
    own = any(p.own for p in parties)
    return [p for p in parties if p.judged.rows and (p.own or not own)]


def of_figures(
    asked: Asked,
    parties: Sequence[PartyEvidence],
    figures: Sequence[Mapping[str, Floats]],
    seed: int,
    judged_on: str,
    train_rows: int,
    efforts: tuple[RunEffort, RunEffort] | None = None,
) -> Answer:
    """Return the answer of one run as `answer` does. ``figures``: of each party that counts, model -> (1 + draws,)."""
    own, counted = any(p.own for p in parties), counting(parties)
    judged = [p.judged for p in counted]
    gained = _compared(asked, judged, figures, "alone", own)
    beyond = _compared(asked, judged, figures, "trivial", own)
    others = {
        name: _compared(asked, judged, figures, "trivial", own, name)
        for name in ("alone", "pooled")
        if any(name in j.models for j in judged)
    }
    there = next(
        (c.known for c in (gained, beyond) if c is not None), [bool(np.isfinite(f["together"][0])) for f in figures]
    )
    rows = sum(j.rows for j in judged) if own else max((j.rows for j in judged), default=0)
    sure = _enough([j for j, one in zip(judged, there, strict=True) if one], own)
    named = _parties(asked, counted, gained, figures) if own else []
    bare = _compared(asked, judged, figures, "unprotected", own) if efforts else None
    without, lost = _mean(judged, figures, there, "unprotected"), _turned(_sure(bare, sure))
    left = [_without_rows(p) for p in parties if p not in counted] if own else []
    in_means = [j.rows for j, one in zip(judged, there, strict=True) if one]
    return decided(
        Answer(
            asked,
            "not compared",
            [seed],
            [judged_on],
            rows,
            train_rows,
            own,
            together=_mean(judged, figures, there, "together"),
            alone=_mean(judged, figures, there, "alone"),
            trivial=_mean(judged, figures, there, "trivial"),
            gain=_sure(gained, sure),
            over_trivial=_sure(beyond, sure),
            parties=sorted([*named, *left], key=lambda p: p.client),
            left_out=sum(not one for one in there),
            mean_rows=sum(in_means) if own else max(in_means, default=0),
            pooled=_mean(judged, figures, there, "pooled"),
            alone_over_trivial=_sure(others.get("alone"), sure),
            pooled_over_trivial=_sure(others.get("pooled"), sure),
            compared=gained is not None,
            price=None if bare is None or efforts is None else Price(without, lost, *efforts),
        )
    )


def _turned(found: Ends | None) -> Ends | None:
    """Return how much better the other model is."""
    return None if found is None else Ends(-found.value, -found.high, -found.low, found.error)


def _sure(found: Compared | None, sure: bool) -> Ends | None:
    return ends(found.mean) if found and sure else None


def _without_rows(p: PartyEvidence) -> PartyVerdict:
    always = p.alone_always
    return PartyVerdict(
        p.client, p.name, 0, "too few to say", alone_always=always, train_rows=p.train_rows, divided=p.divided
    )


def _figures(
    asked: Asked, parties: Sequence[PartyEvidence], own: bool, seed: int, draws: int | None
) -> list[dict[str, Floats]]:
    """Return each party's figures by model, (1 + draws,): on its own rows, or in the same draws of the common rows."""
    if not own:
        tables = drawn_figures([p.judged for p in parties], asked.figure, seed, draws=draws) if parties else {}
        return [{name: table[:, i] for name, table in tables.items()} for i in range(len(parties))]
    each = (drawn_figures([p.judged], asked.figure, seed, p.client, draws=draws) for p in parties)
    return [{name: table[:, 0] for name, table in tables.items()} for tables in each]


def _compared(
    asked: Asked,
    judged: Sequence[Evidence],
    figures: Sequence[Mapping[str, Floats]],
    other: str,
    own: bool,
    one: str = "together",
) -> Compared | None:
    """Compare a model with another; None if no party has such models."""
    if not any(one in j.models and other in j.models for j in judged):
        return None
    nothing = np.full(1, np.nan)
    gaps = [asked.better * (f[one] - f[other]) if one in f and other in f else nothing for f in figures]
    many = [j.informative(one, other) if one in j.models and other in j.models else 0 for j in judged]
    shares = [j.shares(one, other) for j in judged]
    each = [of_draws(gap, n, share) for gap, n, share in zip(gaps, many, shares, strict=True)]
    known = [found is not None for found in each]
    if not any(known):
        return Compared(each, None, known)
    there = [gap for gap, there in zip(gaps, known, strict=True) if there]
    mean = mean_gap(there, [j.rows for j, there in zip(judged, known, strict=True) if there])
    whole = shares_of_mean([s for s, there in zip(shares, known, strict=True) if there], own)
    return Compared(each, of_draws(mean, sum(many) if own else max(many), whole), known)


def _enough(judged: Sequence[Evidence], own: bool) -> bool:
    """Return whether all rows together carry an interval."""
    rows = judged if own else judged[:1]
    rarer = [j.rarer for j in rows if j.rarer is not None]
    return enough(sum(j.rows for j in rows), sum(rarer) if rarer else None)


def _parties(
    asked: Asked, parties: Sequence[PartyEvidence], gained: Compared | None, figures: Sequence[Mapping[str, Floats]]
) -> list[PartyVerdict]:
    """Return the fate of each party; the intervals of all that have enough rows hold together (Bonferroni)."""
    each = [None] * len(parties) if gained is None else gained.each
    able = [d if p.judged.enough() else None for p, d in zip(parties, each, strict=True)]
    level = bonferroni(sum(d is not None for d in able))
    found = [ends(d, level) for d in able]
    return [
        PartyVerdict(
            p.client,
            p.name,
            p.judged.rows,
            fate(gain, asked.margin),
            gain,
            together=_value(f, "together"),
            alone=_value(f, "alone"),
            alone_always=p.alone_always,
            train_rows=p.train_rows,
            rarer=p.judged.rarer,
            divided=p.divided,
        )
        for p, gain, f in zip(parties, found, figures, strict=True)
    ]


def _value(figures: Mapping[str, Floats], model: str) -> float | None:
    """Return a model's figure on all rows; None if it is undefined."""
    return float(figures[model][0]) if model in figures and math.isfinite(figures[model][0]) else None


def _mean(
    judged: Sequence[Evidence], figures: Sequence[Mapping[str, Floats]], known: Sequence[bool], model: str
) -> float | None:
    """Return a model's figure: the mean over the parties that have it, weighted by their test rows."""
    values = [(j.rows, _value(f, model)) for j, f, one in zip(judged, figures, known, strict=True) if one]
    there = [(n, v) for n, v in values if v is not None]
    total = math.fsum(n for n, _ in there)
    return math.fsum(n * v for n, v in there) / total if total else None


def decided(found: Answer) -> Answer:
    """Return the answer with its verdict, by the rule. Intervals are cut to the figure's possible range."""
    figure = found.asked.figure
    parties = [p._replace(gain=possible(p.gain, figure)) for p in found.parties]
    within: dict[str, Any] = {key: possible(getattr(found, key), figure) for key in DIFFERENCES}
    found = found._replace(parties=parties, **within)
    if not found.compared:
        return found._replace(verdict="not compared")
    fates = [p.fate for p in found.parties]
    reference = found.trivial is not None
    return found._replace(
        verdict=federate(found.gain, fates, found.over_trivial, found.asked.margin, reference=reference)
    )


def over(answers: Sequence[Answer], cost: float | None, same_parties: bool) -> Answer:
    """Return the answer of several seeds. The unit is the seed, so fewer than three give no verdict.

    ``cost``: bytes of one seed, on average. ``same_parties``: whether a party's name means the same party in every
    seed; else no party is named.
    """
    first = answers[0]
    if len(answers) == 1:
        return first
    judged_on = [one for a in answers for one in a.judged_on]
    if len({a.asked.figure for a in answers}) > 1:
        return _unlike(answers, judged_on, first.asked._replace(cost=cost))
    drawn = first.test_rows / first.train_rows if len(set(judged_on)) > 1 and first.train_rows else 0.0
    asked = first.asked._replace(cost=cost)

    def gap(key: str) -> Ends | None:
        return ends(_over([getattr(a, key) for a in answers], drawn))

    parties = _parties_over(asked, answers, drawn) if same_parties and all(a.own_rows for a in answers) else []
    found = first._replace(
        asked=asked,
        seeds=[s for a in answers for s in a.seeds],
        judged_on=judged_on,
        together=over_seeds([a.together for a in answers]).mean,
        alone=over_seeds([a.alone for a in answers]).mean,
        trivial=over_seeds([a.trivial for a in answers]).mean,
        test_rows=_typical([a.test_rows for a in answers]),
        mean_rows=_typical([a.mean_rows for a in answers]),
        pooled=over_seeds([a.pooled for a in answers]).mean,
        gain=gap("gain"),
        over_trivial=gap("over_trivial"),
        alone_over_trivial=gap("alone_over_trivial"),
        pooled_over_trivial=gap("pooled_over_trivial"),
        parties=parties,
        left_out=max(a.left_out for a in answers),
        compared=all(a.compared for a in answers),
        swing=max((a.swing for a in answers if a.swing is not None), default=None),
        swing_of=next((a.swing_of for a in answers if a.swing is not None), ""),
        cures=tuple(dict.fromkeys(cure for a in answers for cure in a.cures)),
        price=_price_over([a.price for a in answers if a.price is not None], drawn),
    )
    return decided(found)


def _unlike(answers: Sequence[Answer], judged_on: Sequence[str], asked: Asked) -> Answer:
    """Return an answer without means, for seeds judged by different figures (AUC may suit only some of them)."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("together", "alone", "trivial", "pooled", "mean_rows", "swing", "price", *DIFFERENCES)
    )
    return answers[0]._replace(
        **nothing,
        asked=asked,
        verdict="cannot tell",
        seeds=[s for a in answers for s in a.seeds],
        judged_on=judged_on,
        parties=[],
        left_out=0,
        unlike=tuple(dict.fromkeys(a.asked.words for a in answers)),
    )


def _price_over(found: Sequence[Price], drawn: float) -> Price | None:
    return mean_price(found, ends(_over([one.lost for one in found], drawn))) if found else None


def _typical(rows: Sequence[int | None]) -> int:
    return round(over_seeds(rows).mean or 0)


def _over(found: Sequence[Ends | None], drawn: float) -> Difference | None:
    """Return a difference over the seeds that have it, including the error of test rows that all seeds share."""
    known = [one for one in found if one is not None]
    if len(known) < SEEDS:
        return None
    error = 0.0 if drawn else math.sqrt(math.fsum(one.error**2 for one in known) / len(known))
    return of_seeds([one.value for one in known], drawn, error)


def _parties_over(asked: Asked, answers: Sequence[Answer], drawn: float) -> list[PartyVerdict]:
    each = [
        {p.name: p for p in a.parties} for a in answers
    ]  # a seed without an owner's rows numbers the others differently
    often = Counter(name for one in each for name in one)
    found = {
        name: _over([one[name].gain for one in each if name in one], drawn)
        for name, seeds in often.items()
        if seeds >= min(SEEDS, len(each))
    }
    level = bonferroni(sum(d is not None for d in found.values()))
    out = []
    for k, d in found.items():
        gain = ends(d, level)
        always = {one[k].alone_always for one in each if k in one}
        same = always.pop() if len(always) == 1 else None
        there = [one[k] for one in each if k in one]
        rows, whole = [p.test_rows for p in there], {(p.train_rows or 0) + p.test_rows for p in there}
        train = whole.pop() - _typical(rows) if len(whole) == 1 else _typical([p.train_rows for p in there])
        means: dict[str, Any] = {
            key: over_seeds([getattr(p, key) for p in there]).mean for key in ("together", "alone")
        }
        means |= {key: _fewest([getattr(p, key) for p in there]) for key in ("rarer", "divided")}
        means |= {"test_rows": _typical(rows), "fewest": min(rows)}
        means["train_rows"] = None if there[0].train_rows is None else train
        out.append(there[0]._replace(fate=fate(gain, asked.margin), gain=gain, alone_always=same, **means))
    return out


def _fewest(rows: Sequence[int | None]) -> int | None:
    return min((n for n in rows if n is not None), default=None)
