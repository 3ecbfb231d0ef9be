"""The fields of a row of ``metrics.jsonl`` and of ``summary.json``, with their meanings and units.

Runs write and return `RoundRow` and `RunSummary`, ``--json`` prints them and reports read them; the tables of
docs/experiment.md are made from them (tests/record/test_fields.py). Parts whose keys are chosen by a component are
`Open`: the facts and figures of an algorithm, the counts of a scheme. A field is annotated with its unit, if it has one,
and with its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypedDict


class Unit(NamedTuple):
    """The unit of a number."""

    name: str


Open = Mapping[str, Any]
"""Mapping whose keys are chosen by a component."""

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
    """Figures of a model; None if it was not judged, or if a figure is not defined."""

    accuracy: Annotated[Share, "rows predicted rightly"]
    macro_f1: Annotated[Share, "mean of the classes' F1"]
    weighted_f1: Annotated[Share, "mean of the classes' F1, weighted by their rows"]
    per_class_f1: Annotated[Shares, "F1 of each class"]
    auc: Annotated[
        Share, "area under the ROC curve, if parties hold columns or it is the run's metric; of more classes a mean"
    ]
    balanced_accuracy: Annotated[Share, "mean of the classes' accuracies, if it is the run's metric"]
    pr_auc: Annotated[Share, "average precision, if it is the run's metric"]
    log_loss: Annotated[float | None, "mean of -log of the true class's probability, if it is the run's metric"]
    rmse: Annotated[Target, "root of the mean squared error"]
    mae: Annotated[Target, "mean absolute error"]
    r2: Annotated[Share, "1 - squared errors / spread of the target"]
    loss: Annotated[float | None, "mean loss of the rows judged"]
    client_accuracy: Annotated[Spread, "over the clients' own rows or models: mean, and p10 and min, the worst values"]
    client_rmse: Annotated[Mapping[str, float | None] | None, "the same for errors, whose worst values are the largest"]
    drift_correlation: Annotated[
        float | None, "rank correlation of the distances of models and of labels, over pairs of clients"
    ]


class Effort(TypedDict, total=False):
    """The cost of a round, or of all rounds; None if a row must not tell."""

    bytes_up: Annotated[Bytes, "from clients to server"]
    bytes_down: Annotated[Bytes, "from server to clients"]
    bytes_peer: Annotated[Bytes, "between clients"]
    bytes_privacy: Annotated[Bytes, "of these, those that would not be sent without protection"]
    flops: Annotated[Operations, "of the clients' passes, a backward one counted as two"]
    seconds: Annotated[Seconds, "of rounds, evaluation included"]
    seconds_by_phase: Annotated[Phases, "by task, and by phase of a protocol"]
    peak_memory_bytes: Annotated[Bytes, "of the main process, so far"]


class RoundRow(Quality, Effort, total=False):
    """A round. Round 0 is the initial model, or the alignment if parties hold columns."""

    round: Annotated[int, "its number"]
    models: Annotated[Mapping[str, Quality], "quality of each further model, by name"]
    swapped_accuracy: Annotated[Share, "flipped labels: accuracy on the test rows of attacked classes"]
    rest_accuracy: Annotated[Share, "flipped labels: accuracy on the other test rows"]
    source_recall: Annotated[
        Share, "labels flipped one way: accuracy on the test rows of the classes turned into others"
    ]
    attack_success: Annotated[Share, "flipped labels, backdoor: share of rows predicted as the attackers wanted"]
    train_loss: Annotated[float | None, "mean loss of local steps; of the last kind of work if there are several"]
    clients: Annotated[Clients, "clients that returned; for chains a list of lists"]
    selected: Annotated[Clients, "clients that were drawn"]
    weights: Annotated[list[float] | None, "coefficients of `clients` in the mean; 0 for those left out"]
    steps: Annotated[list[int] | None, "local steps of `clients`"]
    lr: Annotated[float | None, "local learning rate"]
    attackers: Annotated[Clients, "clients that attacked"]
    left_out: Annotated[Clients, "clients whose updates did not count"]
    hostile: Annotated[Clients, "those of them whose update was unusable: not finite, or of another shape"]
    unchanged: Annotated[str, "why the rule changed nothing"]
    committed: Annotated[bool | None, "`[guard]`: whether the round's model became the model; null if it made none"]
    version: Annotated[int, "`[guard]`: the version that is the model after the round, by the round that made it"]
    score: Annotated[float | None, "`[guard]`: the metric of the round's model on the guard's rows"]
    given_up: Annotated[str | None, "why the sum was never opened; the round then changed nothing"]
    simulation_only: Annotated[list[str], "figures of a model that no real server could open: the simulation's own"]
    figures: Annotated[Open, "figures of the algorithm, or the scheme, about its state"]


class Final(Quality, total=False):
    """The last round that was judged; means for several seeds."""

    round: Annotated[int, "its number"]
    interval: Annotated[
        Facts, "figure -> [low, high], 95% bootstrap over the rows judged; absent for clients' own models"
    ]
    per_class_accuracy: Annotated[Shares, "accuracy of each class"]
    confusion: Annotated[list[list[float]], "true class -> predicted class -> rows"]
    two_class: Annotated[Facts, "of two classes: AUC, log-loss, calibration"]
    word_accuracy: Annotated[Spread, "of texts: with and without sentence ends and unknown words"]
    by_target: Annotated[list[Facts], "predictions by the size of the target"]
    metric: Annotated[Facts, "of `test`: the run's metric on these rows"]
    judged_on: Annotated[str, "of `test`: fingerprint of these rows"]


class RunSummary(TypedDict, total=False):
    """A finished run, or several seeds of one."""

    algorithm: Annotated[str, "its name"]
    data: Annotated[str, "the data set's name"]
    data_facts: Annotated[Open, "facts of the source about its rows"]
    model: Annotated[str, "the network's name, or all names"]
    partition: Annotated[str, "the partition's name"]
    clients: Annotated[int, "how many there are"]
    rounds: Annotated[int, "how many were done"]
    seed: Annotated[int, "of every draw"]
    seeds: Annotated[list[int], "the seeds, if there are several"]
    task: Annotated[str, "classes, numbers or tokens"]
    class_names: Annotated[list[str], "in the order of all lists by class"]
    parameters: Annotated[int, "numbers that a model holds"]
    forward_flops: Annotated[int, Unit("operations"), "of one row's forward pass"]
    models: Annotated[Facts, "architecture -> its clients and its size"]
    final: Annotated[Final, "the last model"]
    best: Annotated[Facts, "figure -> its best value and the round"]
    mean_last: Annotated[Mapping[str, float | None], "figure -> mean over the last hundredth of the rounds"]
    cost: Annotated[Effort, "of all rounds"]
    test: Annotated[Final, '`evaluation.on = "validation"`: the last model on the test rows']
    per_client: Annotated[list[Facts], "rows of each client, and the headline figure of its model with its interval"]
    metric: Annotated[Facts, "the figure by which models are compared, its interval, and that of own test rows"]
    trivial: Annotated[Facts, "the constant model: its answer, its figure, and by how much the run's is better"]
    answer: Annotated[Facts, "should we federate: `text`, `verdict`, figures, and the fate of each party"]
    gain: Annotated[Facts | None, "what each party gains over training alone, and the baselines"]
    partition_facts: Annotated[Facts, "sizes, class counts, distance to the pooled data"]
    judged_on: Annotated[str, "fingerprint of the test rows: equal for runs that can be compared"]
    weighted: Annotated[bool, "whether the rows judged have weights"]
    leaves: Annotated[str, "what a client sends"]
    algorithm_facts: Annotated[Open, "facts about the algorithm with these clients"]
    figures: Annotated[Open, "those of the last row"]
    groups: Annotated[list[list[int]], "the superclients that were formed"]
    clusters: Annotated[Facts, "client -> cluster, their number, agreement with planted groups"]
    canaries: Annotated[Facts, "of `[audit]`: their unit, how many were drawn, and the first canary client"]
    privacy: Annotated[Facts, "mechanisms, what each role learns, epsilon"]
    epsilon_together: Annotated[
        list[Facts], "of several seeds that add noise: what they cost together, by what they protect"
    ]
    attacks: Annotated[list[Facts], "attacks by clients: who, how often, and the result"]
    failed_attacks: Annotated[Mapping[str, str], "declared attacks on views that could not be carried out, and why"]
    aggregation: Annotated[Facts, "the rule, and how often it left out attackers and honest clients"]
    guard: Annotated[Facts, "rows, metric and tolerance of the guard, the current version, rounds that were rejected"]
    drift: Annotated[
        Facts, "of the clients' rows: its round, how the model recovered, the rounds in which the server could see it"
    ]
    notices: Annotated[list[str], "the notices before round 1"]
    diverged: Annotated[str, "why the run diverged"]
    stopped: Annotated[str, "when and why `[stop]` ended it"]
    plan: Annotated[Facts, "how clients trained, and the kind of each step"]
    sha256: Annotated[Mapping[str, str], "of each model file; `predict` checks it"]
    plugins: Annotated[list[str], "the plug-in files"]
    module: Annotated[str, "class of a network given in Python"]
    config_hash: Annotated[str, "SHA-256 of the settings that decide the result"]
    over_seeds: Annotated[Facts, "mean, sd and n of each figure and cost"]
    versions: Annotated[Mapping[str, str], "of Python and packages"]
    cpu: Annotated[Facts, "the processor"]
    system: Annotated[str, "the operating system"]
    commit: Annotated[str | None, "of the working tree"]
    protected: Annotated[bool, "columns: whether messages hid the labels"]
    rows: Annotated[Mapping[str, int], "columns: common rows for training, validation and test"]
    align: Annotated[Facts, "columns: how rows were matched, ids of each party, common rows"]
    parties: Annotated[list[Facts], "columns: each party's columns and rows"]
    importance: Annotated[Facts, "columns: party -> column -> gain"]
    trees: Annotated[list[Facts], "columns: nodes of each tree, or round of trees, by owner"]
    ciphertexts: Annotated[int, "columns: how many were sent"]
    exponentiations: Annotated[int, "columns: modular powers that were computed"]
    counts: Annotated[Open, "columns: what the scheme counts"]
    solved: Annotated[Facts, "owners of rows, simulated: coefficients, precision, the bound of its error, ciphertexts"]
    labels_told: Annotated[Facts, "columns, simulated: what parties without the label make of its rows, by settings"]
    data_sha256: Annotated[str, "columns: of the tables' names"]
