"""The fields of a row of ``metrics.jsonl`` and of ``summary.json``: what each means, in which unit.

`RoundRow` and `RunSummary` are what runs write and return, what ``--json`` prints and reports read; the tables of docs/experiment.md are
made of them (tests/test_fields.py). Parts whose keys a component brings are `Open`: the facts and figures of an algorithm, the counts of a
scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypedDict

Open = Mapping[str, Any]
"""Keys that a component brings."""


class Field(NamedTuple):
    """What a field says."""

    meaning: str
    unit: str = ""


Share = float | None
Spread = Mapping[str, float | None] | None


class Quality(TypedDict, total=False):
    """Figures of a model; None where it was not judged, or where a figure is not defined."""

    accuracy: Annotated[Share, Field("rows predicted rightly", "share")]
    macro_f1: Annotated[Share, Field("mean of the classes' F1", "share")]
    weighted_f1: Annotated[Share, Field("mean of the classes' F1, by their rows", "share")]
    per_class_f1: Annotated[list[float | None] | None, Field("F1 of each class", "share")]
    auc: Annotated[Share, Field("area under the curve, of two classes where parties hold columns", "share")]
    rmse: Annotated[float | None, Field("root of the mean squared error", "the target's")]
    mae: Annotated[float | None, Field("mean absolute error", "the target's")]
    r2: Annotated[float | None, Field("1 - squared errors / spread of the target", "share")]
    loss: Annotated[float | None, Field("mean loss of the rows judged")]
    client_accuracy: Annotated[
        Spread, Field("over the clients' own rows or models: mean, p10 and min, the bad end", "share")
    ]
    client_rmse: Annotated[Spread, Field("the same of errors, whose bad end is the large one", "the target's")]
    drift_correlation: Annotated[
        float | None,
        Field("`evaluation.drift`: rank correlation of models' and labels' distances over pairs of clients"),
    ]


class RoundRow(Quality, total=False):
    """A round, from 0, the initial model, or the alignment where parties hold columns."""

    round: Annotated[int, Field("its number")]
    models: Annotated[Mapping[str, Quality], Field("quality of each further model, by name")]
    swapped_accuracy: Annotated[Share, Field("flipped labels: accuracy on the test rows of attacked classes", "share")]
    rest_accuracy: Annotated[Share, Field("flipped labels: accuracy on the other test rows", "share")]
    attack_success: Annotated[Share, Field("flipped labels: rows that became what the attackers wanted", "share")]
    train_loss: Annotated[
        float | None, Field("mean loss of local steps, of the last kind of work where there are several")
    ]
    clients: Annotated[list[Any] | None, Field("who returned; of chains a list of lists")]
    selected: Annotated[list[int] | None, Field("who was drawn")]
    weights: Annotated[list[float] | None, Field("coefficients of `clients` in the mean, 0 for who was left out")]
    steps: Annotated[list[int] | None, Field("local steps of `clients`")]
    lr: Annotated[float | None, Field("local learning rate")]
    attackers: Annotated[list[int] | None, Field("clients that attacked")]
    left_out: Annotated[list[int] | None, Field("clients whose updates did not count")]
    hostile: Annotated[list[int] | None, Field("those of them whose update was none")]
    unchanged: Annotated[str, Field("why the rule changed nothing")]
    seconds: Annotated[float, Field("the whole round", "s")]
    seconds_by_phase: Annotated[Mapping[str, float], Field("by task, and by phase of a protocol", "s")]
    bytes_up: Annotated[int | None, Field("from clients to server", "bytes")]
    bytes_down: Annotated[int | None, Field("from server to clients", "bytes")]
    bytes_peer: Annotated[int | None, Field("between clients", "bytes")]
    bytes_privacy: Annotated[int | None, Field("of these, what the round without protection would not send", "bytes")]
    given_up: Annotated[str | None, Field("why the sum was never opened, so that the round changed nothing")]
    flops: Annotated[int | None, Field("of the clients' passes, a backward one counted as two", "operations")]
    peak_memory_bytes: Annotated[int, Field("of the main process, so far", "bytes")]
    figures: Annotated[Open, Field("what the algorithm, or the scheme, says of its state")]


class Cost(TypedDict, total=False):
    """Sums over the rounds; None where a row does not tell."""

    bytes_up: Annotated[float | None, Field("from clients to server", "bytes")]
    bytes_down: Annotated[float | None, Field("from server to clients", "bytes")]
    bytes_peer: Annotated[float | None, Field("between clients", "bytes")]
    bytes_privacy: Annotated[float | None, Field("of these, what the run without protection would not send", "bytes")]
    flops: Annotated[float | None, Field("of the clients' passes", "operations")]
    seconds: Annotated[float, Field("all rounds", "s")]
    seconds_by_phase: Annotated[Mapping[str, float], Field("by task, and by phase of a protocol", "s")]
    peak_memory_bytes: Annotated[int, Field("of the main process", "bytes")]


class Final(Quality, total=False):
    """The last round that was judged; of several seeds means."""

    round: Annotated[int, Field("its number")]
    interval: Annotated[
        Mapping[str, Any],
        Field("figure -> [low, high], 95% bootstrap over the rows judged; absent for clients' own models"),
    ]
    per_class_accuracy: Annotated[list[float | None], Field("accuracy of each class", "share")]
    confusion: Annotated[list[list[float]], Field("true class -> predicted class -> rows")]
    two_class: Annotated[Mapping[str, Any], Field("of two classes: AUC, log-loss, calibration")]
    word_accuracy: Annotated[
        Mapping[str, float | None], Field("of texts: with ends of sentences, without unknown words", "share")
    ]
    by_target: Annotated[list[Mapping[str, float]], Field("predictions by the size of the target")]


class RunSummary(TypedDict, total=False):
    """A finished run, or several seeds of one."""

    algorithm: Annotated[str, Field("its name")]
    data: Annotated[str, Field("the data set's name")]
    data_facts: Annotated[Open, Field("what the source says of its rows")]
    model: Annotated[str, Field("the network's name; several: all")]
    partition: Annotated[str, Field("the partition's name")]
    clients: Annotated[int, Field("how many there are")]
    rounds: Annotated[int, Field("how many were done")]
    seed: Annotated[int, Field("of every draw")]
    seeds: Annotated[list[int], Field("of several seeds")]
    task: Annotated[str, Field("classes, numbers or tokens")]
    class_names: Annotated[list[str], Field("in the order of every list by class")]
    parameters: Annotated[int, Field("numbers that a model holds")]
    forward_flops: Annotated[int, Field("of one row's forward pass", "operations")]
    models: Annotated[Mapping[str, Any], Field("architecture -> its clients and its size")]
    final: Annotated[Final, Field("the last model")]
    best: Annotated[Mapping[str, Any], Field("figure -> its best value and the round of it")]
    mean_last: Annotated[Mapping[str, float | None], Field("figure -> mean over the last rounds")]
    cost: Annotated[Cost, Field("of all rounds")]
    test: Annotated[Final, Field('`evaluation.on = "validation"`: the last model on the test rows')]
    per_client: Annotated[
        list[Mapping[str, Any]], Field("rows of each client, and the headline figure of its model with its interval")
    ]
    gain: Annotated[
        Mapping[str, Any] | None, Field("what each party has more than without the others, and the baselines")
    ]
    partition_facts: Annotated[Mapping[str, Any], Field("sizes, class counts, distance to the whole")]
    judged_on: Annotated[str, Field("fingerprint of the test rows: equal for runs that can be compared")]
    weighted: Annotated[bool, Field("whether the rows judged have weights")]
    leaves: Annotated[str, Field("what leaves a client")]
    algorithm_facts: Annotated[Open, Field("what the algorithm says of itself among these clients")]
    figures: Annotated[Open, Field("those of the last row")]
    groups: Annotated[list[list[int]], Field("the superclients that were formed")]
    clusters: Annotated[Mapping[str, Any], Field("client -> cluster, their number, agreement with planted groups")]
    privacy: Annotated[Mapping[str, Any], Field("`[[privacy]]`: mechanisms, who learns what, epsilon")]
    attacks: Annotated[list[Mapping[str, Any]], Field("`[[attack]]` by clients: who, how often, what came of it")]
    aggregation: Annotated[Mapping[str, Any], Field("the rule, and how often it left out attackers and honest clients")]
    notices: Annotated[list[str], Field("what was said before round 1")]
    diverged: Annotated[str, Field("why the run diverged")]
    stopped: Annotated[str, Field("when and why `[stop]` ended it")]
    plan: Annotated[Mapping[str, Any], Field("how clients trained, and what each step turned out to be")]
    sha256: Annotated[Mapping[str, str], Field("of each model file, by which `predict` knows the run's own")]
    plugins: Annotated[list[str], Field("the files that were plugged in")]
    module: Annotated[str, Field("class of a network given in Python")]
    config_hash: Annotated[str, Field("SHA-256 of what decides the result")]
    over_seeds: Annotated[Mapping[str, Any], Field("mean, sd and n of each figure and cost")]
    versions: Annotated[Mapping[str, str], Field("of Python and packages")]
    cpu: Annotated[Mapping[str, Any], Field("the processor")]
    system: Annotated[str, Field("the operating system")]
    commit: Annotated[str | None, Field("of the working tree")]
    protected: Annotated[bool, Field("columns: whether what crossed hid the labels")]
    rows: Annotated[Mapping[str, int], Field("columns: common rows that train, are held out, test")]
    align: Annotated[Mapping[str, Any], Field("columns: how rows were matched, ids of each party, common rows")]
    parties: Annotated[list[Mapping[str, Any]], Field("columns: each party's columns and rows")]
    importance: Annotated[Mapping[str, Mapping[str, float]], Field("columns: party -> column -> gain")]
    trees: Annotated[list[Mapping[str, int]], Field("columns: of each tree, nodes by owner")]
    ciphertexts: Annotated[int, Field("columns: how many were sent")]
    exponentiations: Annotated[int, Field("columns: powers that were raised")]
    counts: Annotated[Open, Field("columns: what the scheme counts")]
    data_sha256: Annotated[str, Field("columns: of the tables' names")]
