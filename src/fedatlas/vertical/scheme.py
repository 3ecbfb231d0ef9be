"""A scheme: how parties that hold different columns of the same rows, or rows of the same columns, train a model.

One record of pure functions serves a run, its baselines, its preview, prediction, deployment and the catalogue.
Alignment (`align`), the split of the rows (`split`) and judging (`judging`) are the same for all schemes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedatlas.algorithm import Question, RoundGenerator, State
from fedatlas.vertical import align, judging, owners, split
from fedatlas.vertical.letters import Due, Letter
from fedatlas.vertical.parties import Columns, Floats, Whole

How = Any
"""The settings of a scheme, as its `Scheme.build` returns them."""


class LearnsRow(NamedTuple):
    """Facts that the parties learn of each other in one step of a scheme: a row of the report's table."""

    step: str
    passive: str  # a party without the label
    active: str  # the party with it
    coordinator: str


WHO: Mapping[str, str] = {
    "passive": "a party without the label",
    "active": "the party with the label",
    "coordinator": "the coordinator",
}
"""The roles of a scheme on columns."""


class Words(NamedTuple):
    """Texts about a scheme, in lists, the dry run and the report."""

    round: str  # product of one round; the plural adds an s
    model: str  # product of all rounds, in summary.json
    keeps: str  # what a party keeps, after "A party keeps"
    leaves: str  # what leaves the parties
    clear: str  # unprotected messages and what they show: after "This run was in the clear:"
    learns: Callable[
        [How, bool], Sequence[LearnsRow]
    ]  # settings, and whether labels are hidden -> who learns what, after alignment and split
    gain: str  # what `Scheme.brought` counts: "How much ...", without a full stop
    hidden: str = ""  # the sentence of a run that hides the labels
    caution: str = ""  # a further caution to the reader of that table
    cases: Mapping[str, How] = {}  # name -> settings under which parties learn other things than under the others
    phases: Mapping[str, str] = {}  # question -> its action, where its name does not tell it
    who: Mapping[str, str] = WHO  # each role in that table, and its words there
    several: str = ""  # product of one round with a label of three or more classes; "": the same

    def product(self, classes: int) -> str:
        """Return the product of one round for a label of so many classes (0: a number)."""
        return self.several or self.round if classes > 2 else self.round


class Trial(NamedTuple):
    """The training by which the cost of a round is estimated."""

    rows: tuple[int, ...] = (20_000,)  # of one round each; the cost of two is the straight line through both
    number: int = 1  # of the first round that asks something of all parties; above the run's rounds: none does
    turns: int = 1  # rounds that are tried from there, of which the mean is taken; 0: as many as there are parties


class KnownRows(NamedTuple):
    """The rows of a simulation with their labels, to measure what others are told of them."""

    common: int  # rows that all parties have
    train: Whole  # places of the training rows
    y: Floats  # (training rows,) class numbers, or numbers
    task: str  # "classes" or "numbers"
    seed: int


class LabelAttack(NamedTuple):
    """Guesses at labels by a curious party without them, from its letters; measured in simulations, where labels are known."""

    cases: Callable[[How], Mapping[str, How]]  # the settings to compare, by name; this run's are the first
    measure: Callable[[How, int, Sequence[Letter], KnownRows], Mapping[str, float]]  # party, its letters -> AUC by rule
    rounds: int  # that are trained at most
    rules: Mapping[str, str]  # name -> how it ranks rows
    told: str = "the rows of nodes that it is told"  # its source, in the report
    title: str = "What the rows at nodes tell of labels"


def in_the_clear(how: How) -> str:
    """Return why real parties may not run a scheme that reveals labels."""
    return "its messages reveal the labels, which is allowed only in a simulation"


def at_most_two(how: How, task: str, classes: int) -> str:
    """Return why a scheme of two classes or a number cannot learn a label, or ""."""
    return (
        ""
        if task == "numbers" or classes <= 2
        else f"it learns two classes or a number, and the label has {classes} classes"
    )


class Scheme(NamedTuple):
    """The functions of a scheme. ``how``: its settings; ``server``: the coordinator's state; ``state``: a party's."""

    name: str
    words: Words
    build: Callable[..., How]  # from the keys of ``[algorithm]``
    rounds: str  # the key of ``[algorithm]`` with the number of rounds; "": they are `fixed`
    questions: Callable[[How], Mapping[str, Question]]
    begin: Callable[[How, State], RoundGenerator]  # after alignment and split
    step: Callable[[How, State, int], RoundGenerator]  # one round
    end: Callable[[How, State], RoundGenerator]  # computes facts about the finished model
    outputs: Callable[
        [State], Floats
    ]  # (N,) of the active party: log-odds of class 1, or numbers in the label's unit; (N, C): log-probabilities
    brought: Callable[
        [State], Mapping[str, Sequence[float]]
    ]  # server, at the end -> party -> gain of each of its columns
    own: Callable[[Columns, State], Sequence[float]]  # the same of one party, from its own state
    export: Callable[
        [Columns, State], Mapping[str, Any]
    ]  # "table": a party's part; "model": that of all, from the active party, elsewhere None; "own": its private results
    load: Callable[[Columns, Mapping[str, Any]], State]  # from "table" and "model" as exported, to predict
    predict: Callable[[How, State], RoundGenerator]  # afterwards the active party's state has outputs
    keys: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # keys that "table" and "model" must have
    reads: Callable[[Mapping[str, Any]], frozenset[str] | None] = lambda table: (
        None
    )  # "table" as exported -> the names of the columns that it uses to predict; None: all
    counts: Callable[[State], Mapping[str, Any]] = lambda server: {}  # server -> ``figures`` of a row
    facts: Callable[[State], Mapping[str, Any]] = lambda server: {}  # server -> entries of summary.json (`RunSummary`)
    said: Callable[[How, int], str] = lambda how, classes: str(
        how
    )  # the settings in a line, for a label of so many classes
    tasks: tuple[str, ...] = ("classes", "numbers")  # kinds of label that it learns; others are refused before round 0
    unfit: Callable[[How, str, int], str] = at_most_two  # why the settings do not fit a label's task and classes, or ""
    weighted: bool = True  # whether it takes row weights; else a table with them is refused before round 0
    mechanisms: Mapping[str, tuple[str, ...]] = {}  # of ``[[privacy]]`` -> the keys that apply here
    under: Callable[[How, Any], How] = lambda how, mechanism: how  # the settings under a mechanism
    clear: Callable[[How], How] = lambda how: how  # the settings without a mechanism
    protected: Callable[[How], bool] = lambda how: False  # whether messages hide the labels
    refusal: Callable[[How], str] = in_the_clear  # why real parties may not run this; "" if they may
    labels_known: bool = (
        False  # whether labels count as known to all parties: the policy of each real one must name the scheme
    )
    warnings: Callable[[How], Sequence[str]] = lambda how: ()  # sentences about the settings, said before a run
    several_labels: bool = False  # whether parties may have labels of rows that not all have; such a table may be dealt
    attack: LabelAttack | None = None
    trial: Callable[[How], Trial] = lambda how: Trial()
    layout: Literal["columns", "rows"] = "columns"  # "rows": each party holds rows of the same columns, with its label
    roles: tuple[str, ...] = ()  # parties without data, after the owners of rows
    fixed: int = 0  # rounds of every run, where no key says how many (``rounds`` is "")
    found: Callable[[owners.Side, How], Mapping[str, Any]] = (
        lambda side, how: {}
    )  # rows, simulated: all parties at the end -> the summary's entry of the scheme
    rehearsed: Callable[[How, owners.Side], Mapping[str, Any]] = (
        lambda how, side: {}
    )  # rows: parties with split rows -> what a dry run says of cost and precision
    due: Callable[[str, int], Due] = lambda part, number: {}  # questions to real parties: "begin", "step" number, "end"


def questions(scheme: Scheme, how: How) -> dict[str, Question]:
    """Return every question that a party of a run can be asked."""
    if scheme.layout == "rows":
        return {**owners.questions(scheme.outputs), **scheme.questions(how)}
    return {**align.QUESTIONS, **split.QUESTIONS, **scheme.questions(how), **judging.question(scheme.outputs)}


class Rows(NamedTuple):
    """The matching and splitting of an experiment's rows."""

    matching: align.Align
    parties: int
    test: float  # shares of the common rows
    held: float


def due(scheme: Scheme, rows: Rows, number: int, rounds: int) -> Due:
    """Return what a party may be asked in round ``number`` of ``rounds``, by the experiment.

    Letters decide which of these are asked, and in which order. A run may end before its last round. The questions of
    its end then come in the next round.
    """
    found: dict[str, Any] = dict(judging.due("held" if rows.held else "test", last=number > 1))
    if not number:
        for asked in (align.due(rows.matching, rows.parties), split.due(rows.test, rows.held), scheme.due("begin", 0)):
            found |= asked
    if 1 <= number <= rounds:
        found |= scheme.due("step", number)
    if 1 < number <= rounds + 1:
        found |= scheme.due("end", number)
    return found
