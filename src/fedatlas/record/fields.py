"""The fields of a row of ``metrics.jsonl`` and of ``summary.json``: what each means, in which unit.

`RoundRow` and `RunSummary` are what runs write and return, what ``--json`` prints and reports read; the tables of docs/experiment.md are
made of them (tests/record/test_fields.py). Parts whose keys a component brings are `Open`: the facts and figures of an
algorithm, the counts of a scheme. A field is annotated with its unit, where it has one, and with what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypedDict


class Unit(NamedTuple):
    """What a number counts."""

    name: str


Open = Mapping[str, Any]
"""Keys that a component brings."""

Facts = Mapping[str, Any]
Clients = list[Any] | None
Share = Annotated[float | None, Unit("share")]
Shares = Annotated[list[float | None] | None, Unit("share")]
Spread = Annotated[Mapping[str, float | None] | None, Unit("share")]
Target = Annotated[float | None, Unit("the target's")]
Seconds = Annotated[float, Unit("s")]
Phases = Annotated[Mapping[str, float], Unit("s")]
Bytes = Annotated[float | None, Unit("bytes")]
Operations = Annotated[float | None, Unit("operations")]


class Quality(TypedDict, total=False):
    """Figures of a model; None where it was not judged, or where a figure is not defined."""

    accuracy: Annotated[Share, "rows predicted rightly"]
    macro_f1: Annotated[Share, "mean of the classes' F1"]
    weighted_f1: Annotated[Share, "mean of the classes' F1, by their rows"]
    per_class_f1: Annotated[Shares, "F1 of each class"]
    auc: Annotated[Share, "area under the curve, of two classes where parties hold columns"]
    rmse: Annotated[Target, "root of the mean squared error"]
    mae: Annotated[Target, "mean absolute error"]
    r2: Annotated[Share, "1 - squared errors / spread of the target"]
    loss: Annotated[float | None, "mean loss of the rows judged"]
    client_accuracy: Annotated[Spread, "over the clients' own rows or models: mean, p10 and min, the bad end"]
    client_rmse: Annotated[Mapping[str, float | None] | None, "the same of errors, whose bad end is the large one"]
    drift_correlation: Annotated[
        float | None, "rank correlation of models' and labels' distances over pairs of clients"
    ]


class Effort(TypedDict, total=False):
    """What a round cost, or all of them; None where a row must not tell."""

    bytes_up: Annotated[Bytes, "from clients to server"]
    bytes_down: Annotated[Bytes, "from server to clients"]
    bytes_peer: Annotated[Bytes, "between clients"]
    bytes_privacy: Annotated[Bytes, "of these, what would not be sent without protection"]
    flops: Annotated[Operations, "of the clients' passes, a backward one counted as two"]
    seconds: Annotated[Seconds, "of rounds, evaluation among them"]
    seconds_by_phase: Annotated[Phases, "by task, and by phase of a protocol"]
    peak_memory_bytes: Annotated[Bytes, "of the main process, so far"]


class RoundRow(Quality, Effort, total=False):
    """A round, from 0, the initial model, or the alignment where parties hold columns."""

    round: Annotated[int, "its number"]
    models: Annotated[Mapping[str, Quality], "quality of each further model, by name"]
    swapped_accuracy: Annotated[Share, "flipped labels: accuracy on the test rows of attacked classes"]
    rest_accuracy: Annotated[Share, "flipped labels: accuracy on the other test rows"]
    attack_success: Annotated[Share, "flipped labels: rows that became what the attackers wanted"]
    train_loss: Annotated[float | None, "mean loss of local steps, of the last kind of work where there are several"]
    clients: Annotated[Clients, "who returned; of chains a list of lists"]
    selected: Annotated[Clients, "who was drawn"]
    weights: Annotated[list[float] | None, "coefficients of `clients` in the mean, 0 for who was left out"]
    steps: Annotated[list[int] | None, "local steps of `clients`"]
    lr: Annotated[float | None, "local learning rate"]
    attackers: Annotated[Clients, "clients that attacked"]
    left_out: Annotated[Clients, "clients whose updates did not count"]
    hostile: Annotated[Clients, "those of them whose update was none"]
    unchanged: Annotated[str, "why the rule changed nothing"]
    given_up: Annotated[str | None, "why the sum was never opened, so that the round changed nothing"]
    figures: Annotated[Open, "what the algorithm, or the scheme, says of its state"]


class Final(Quality, total=False):
    """The last round that was judged; of several seeds means."""

    round: Annotated[int, "its number"]
    interval: Annotated[
        Facts, "figure -> [low, high], 95% bootstrap over the rows judged; absent for clients' own models"
    ]
    per_class_accuracy: Annotated[Shares, "accuracy of each class"]
    confusion: Annotated[list[list[float]], "true class -> predicted class -> rows"]
    two_class: Annotated[Facts, "of two classes: AUC, log-loss, calibration"]
    word_accuracy: Annotated[Spread, "of texts: with ends of sentences, without unknown words"]
    by_target: Annotated[list[Facts], "predictions by the size of the target"]


class RunSummary(TypedDict, total=False):
    """A finished run, or several seeds of one."""

    algorithm: Annotated[str, "its name"]
    data: Annotated[str, "the data set's name"]
    data_facts: Annotated[Open, "what the source says of its rows"]
    model: Annotated[str, "the network's name; several: all"]
    partition: Annotated[str, "the partition's name"]
    clients: Annotated[int, "how many there are"]
    rounds: Annotated[int, "how many were done"]
    seed: Annotated[int, "of every draw"]
    seeds: Annotated[list[int], "of several seeds"]
    task: Annotated[str, "classes, numbers or tokens"]
    class_names: Annotated[list[str], "in the order of every list by class"]
    parameters: Annotated[int, "numbers that a model holds"]
    forward_flops: Annotated[int, Unit("operations"), "of one row's forward pass"]
    models: Annotated[Facts, "architecture -> its clients and its size"]
    final: Annotated[Final, "the last model"]
    best: Annotated[Facts, "figure -> its best value and the round of it"]
    mean_last: Annotated[Mapping[str, float | None], "figure -> mean over the last hundredth of the rounds"]
    cost: Annotated[Effort, "of all rounds"]
    test: Annotated[Final, '`evaluation.on = "validation"`: the last model on the test rows']
    per_client: Annotated[list[Facts], "rows of each client, and the headline figure of its model with its interval"]
    gain: Annotated[Facts | None, "what each party has more than without the others, and the baselines"]
    partition_facts: Annotated[Facts, "sizes, class counts, distance to the whole"]
    judged_on: Annotated[str, "fingerprint of the test rows: equal for runs that can be compared"]
    weighted: Annotated[bool, "whether the rows judged have weights"]
    leaves: Annotated[str, "what leaves a client"]
    algorithm_facts: Annotated[Open, "what the algorithm says of itself among these clients"]
    figures: Annotated[Open, "those of the last row"]
    groups: Annotated[list[list[int]], "the superclients that were formed"]
    clusters: Annotated[Facts, "client -> cluster, their number, agreement with planted groups"]
    privacy: Annotated[Facts, "mechanisms, who learns what, epsilon"]
    attacks: Annotated[list[Facts], "by clients: who, how often, what came of it"]
    aggregation: Annotated[Facts, "the rule, and how often it left out attackers and honest clients"]
    notices: Annotated[list[str], "what was said before round 1"]
    diverged: Annotated[str, "why the run diverged"]
    stopped: Annotated[str, "when and why `[stop]` ended it"]
    plan: Annotated[Facts, "how clients trained, and what each step turned out to be"]
    sha256: Annotated[Mapping[str, str], "of each model file, by which `predict` knows the run's own"]
    plugins: Annotated[list[str], "the files that were plugged in"]
    module: Annotated[str, "class of a network given in Python"]
    config_hash: Annotated[str, "SHA-256 of what decides the result"]
    over_seeds: Annotated[Facts, "mean, sd and n of each figure and cost"]
    versions: Annotated[Mapping[str, str], "of Python and packages"]
    cpu: Annotated[Facts, "the processor"]
    system: Annotated[str, "the operating system"]
    commit: Annotated[str | None, "of the working tree"]
    protected: Annotated[bool, "columns: whether what crossed hid the labels"]
    rows: Annotated[Mapping[str, int], "columns: common rows that train, are held out, test"]
    align: Annotated[Facts, "columns: how rows were matched, ids of each party, common rows"]
    parties: Annotated[list[Facts], "columns: each party's columns and rows"]
    importance: Annotated[Facts, "columns: party -> column -> gain"]
    trees: Annotated[list[Facts], "columns: of each tree, nodes by owner"]
    ciphertexts: Annotated[int, "columns: how many were sent"]
    exponentiations: Annotated[int, "columns: powers that were raised"]
    counts: Annotated[Open, "columns: what the scheme counts"]
    data_sha256: Annotated[str, "columns: of the tables' names"]
