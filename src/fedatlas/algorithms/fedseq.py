"""FedSeq and FedSeqInter: the model travels along chains of dissimilar clients (superclients), then these are averaged.

=====  ==========================================  =======  ======================================================
w_t    server's model                              N_S      superclients, fixed after the set-up
D_S    examples of superclient S                   E_S      passes over a superclient's clients, ``passes``
psi    a client as a vector: ``conf``, ``clf``     E_0      epochs of the set-up's training, ``pretrain_epochs``
tau    how well vectors complement: ``metric``     phi      how groups form: ``greedy``, ``kmeans``, ``random``
Theta  FedSeqInter's bank of models, one a slot    omega    examples that each slot has seen since the last average
=====  ==========================================  =======  ======================================================

    once:  every client trains w_0 for E_0 epochs; psi of its model; groups by phi and tau
    round: theta <- w_t; for each client k of S in turn: theta <- LocalTrain(theta, D_k);  w <- sum over S of D_S / sum(D_S) theta_S
    Inter: the i-th superclient drawn trains Theta_i and hands it back, omega_i += D_S; every ``period`` rounds, before
           training, all slots <- sum of omega_i / sum(omega) Theta_i and omega <- 0

Source: Zaccone, Rizzardi, Caldarola, Ciccone, Caputo, ICPR 2022, and Rizzardi's thesis; G1 to G9. What goes on inside a
chain is a separate rule: local training of FedAvg, FedProx, FedDyn, MOON or a plug-in (its anchor is the model received from
the predecessor; with ``anchor = "server"`` it is w_t, and FedDyn is refused because its duals do not add up then). N_S takes K's place in
every formula of the rule's server. Confidences are divided by their sum, not sent through a second softmax, and the client that
complements a group best is the one with the largest tau (errata of the thesis). A client sees its predecessor's model: sums cannot be
masked inside a chain.

passes: E_S, passes per round of the model through all clients of a superclient.
anchor: the model that the rule's penalty pulls to: the predecessor's, or the server's w_t.
psi: a client as a vector: the confidence of its pre-trained model in each class of public rows, or that model's linear weights.
phi: how superclients form: by the best complement of a group, by one client of each k-means cluster in turn, or at random.
metric: tau, how well two vectors complement each other; auto = KL for psi "conf", cosine for "clf", Euclidean for k-means.
group_size: number of clients of average size that fill a superclient if min_examples is 0.
min_examples: D_min, rows that fill a superclient; 0 = those of group_size average clients.
max_clients: K_max, the most clients of a superclient, which is then full with any number of rows.
pretrain_epochs: E_0, epochs in which each client trains the initial model before round 1; the result becomes its vector.
layers: with psi "clf": the linear layers whose weights are used: all, the last, or the last two.
normalise: with psi "conf": normalisation of confidences to sum 1: division by their sum, or the thesis' second softmax.
first: with phi "greedy": the client that opens a group: the best one, or one drawn at random.
start: with psi "clf" and first "best": the best client by largest norm, or by largest tau to an even vector (the authors').
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch

from fedatlas.aggregation import reducers
from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Ask,
    Card,
    Facts,
    Finished,
    Message,
    Models,
    Question,
    Replies,
    Round,
    RoundGenerator,
    ServerFacts,
    State,
    Task,
    Update,
    Work,
    by_samples,
    plain_loss,
    take_mean,
)
from fedatlas.algorithms.superclients import CONFIDENCE, Grouping, groups, metric_of, notices, pretrain, set_up
from fedatlas.algorithms.whole_models import model_part
from fedatlas.errors import ConfigError
from fedatlas.grammar import Asks, Form
from fedatlas.registry import OURS, Count, Whole, arguments, find
from fedatlas.rounds import cast_like, chained, handed, relay
from fedatlas.tree import Tree

Psi = Literal["conf", "clf"]
Phi = Literal["greedy", "kmeans", "random"]
Metric = Literal["auto", "gini", "kl", "cosine", "euclidean", "wasserstein_values", "wasserstein_support"]
Anchor = Literal["predecessor", "server"]


def fedseq(
    *,
    rule: Mapping[str, Any] | None = None,
    passes: Whole = 1,
    anchor: Anchor = "predecessor",
    psi: Psi = "conf",
    phi: Phi = "greedy",
    metric: Metric = "auto",
    group_size: Whole = 2,
    min_examples: Count = 0,
    max_clients: Whole = 11,
    pretrain_epochs: Whole = 10,
    layers: Literal["all", "last", "last2"] = "all",
    normalise: Literal["sum", "softmax"] = "sum",
    first: Literal["best", "random"] = "best",
    start: Literal["norm", "code"] = "norm",
) -> Algorithm:
    """Hands the model along chains of unlike clients, then averages the chains: for clients with few classes.

    theta travels along each superclient; w <- mean of the superclients' models by examples.

    rule: the algorithm inside the chains and at the server, a table: name (default fedavg) and its keys; any algorithm whose clients
        are asked once a round, to train, and send their model.
    """
    how = Grouping(
        psi, phi, metric, group_size, min_examples, max_clients, pretrain_epochs, layers, normalise, first, start
    )
    local = in_chains(rule, how, anchor)
    return local._replace(
        name="fedseq", rounds=chained(passes, anchored=anchor == "server"), asks=of_chains(how, passes, "mean")
    )


def fedseq_inter(
    *,
    rule: Mapping[str, Any] | None = None,
    period: Literal["num_superclients", "fraction", "never"] | Whole = "num_superclients",
    passes: Whole = 1,
    anchor: Anchor = "predecessor",
    psi: Psi = "conf",
    phi: Phi = "greedy",
    metric: Metric = "auto",
    group_size: Whole = 2,
    min_examples: Count = 0,
    max_clients: Whole = 11,
    pretrain_epochs: Whole = 10,
    layers: Literal["all", "last", "last2"] = "all",
    normalise: Literal["sum", "softmax"] = "sum",
    first: Literal["best", "random"] = "best",
    start: Literal["norm", "code"] = "norm",
) -> Algorithm:
    """FedSeq whose models move between chains and are averaged only every few rounds.

    Models travel from superclient to superclient. The model evaluated is the average that would be formed now.

    rule: the algorithm inside the chains, a table: as for fedseq, but its server only averages, by samples.
    period: rounds from one average to the next: N_S, until N_S superclients were drawn ("fraction"), a number, or never.
    """
    how = Grouping(
        psi, phi, metric, group_size, min_examples, max_clients, pretrain_epochs, layers, normalise, first, start
    )
    check_by_examples(rule)
    local = in_chains(rule, how, anchor, banked=True)._replace(asks=of_chains(how, passes, "each"))
    begin, train = local.server_init, local.training()._replace(shows=("model",))
    waiting = {"drawn": 0} if period == "fraction" else {}  # superclients since the last average

    def server_init(models: Models, facts: ServerFacts) -> State:
        return rebased(begin(models, facts)) | waiting

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        every = int({"num_superclients": round.groups, "fraction": 0, "never": 0}.get(str(period), period))
        due = every > 0 and round.number % every == 0
        if waiting:  # with cohorts of one size: every ceil(N_S / M) rounds
            server = {**server, "drawn": server["drawn"] + len(round.units)}
            due = server["drawn"] >= round.groups
        if (due and round.cohort) or not server["bank"]:  # at first, this brings in the buffers
            server = rebased(server) | (waiting if due and round.cohort else {})
        bank, omega, held = (dict(server[name]) for name in ("bank", "omega", "held"))
        slots = {unit.number: str(i) for i, unit in enumerate(round.units)}
        known = {**server, **server["base"]}  # w_t is the last broadcast; server["model"] only serves evaluation
        starts: dict[int, Update] = {number: bank.get(slot) or server["base"] for number, slot in slots.items()}
        chains, last = yield from relay(algorithm, known, round, starts, passes, anchored=anchor == "server")
        replies = yield Ask(tuple(chain.order[-1] for chain in chains), "train", reduce="each", **last)
        for chain in (one for one in chains if one.order[-1] in replies.each):
            slot = slots[chain.unit]
            bank[slot], held[slot] = kept(algorithm, replies.each[chain.order[-1]]), chain.unit
            omega[slot] = omega.get(slot, 0) + chain.examples
        drawn = {slots[chain.unit]: chain.order[-1] for chain in chains}
        return averaged({**server, "bank": bank, "omega": omega, "held": held}, replies, drawn) if bank else server

    return local._replace(
        name="fedseq_inter", server_init=server_init, rounds=rounds, tasks={**local.tasks, "train": train}, ruled=True
    )


def of_chains(how: Grouping, passes: int, reduce: str) -> Asks:
    """Return what a round along chains asks, and its set-up. The model visits each client ``passes`` times."""
    along = Form("train", "each", most=passes, via="peer", handed="client")
    set_up = (Form("pretrain", "each"), Form("confidence", "each", most="clients", to="server"))
    return Asks((along, Form("train", reduce, handed="client")), () if how.phi == "random" else set_up)


def check_by_examples(rule: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for a rule that sets its own weights."""
    if (rule or {}).get("weights", "samples") != "samples":
        raise ConfigError(
            "algorithm.rule.weights: slots are averaged by the examples that they have seen; remove the key."
        )


def kept(algorithm: Algorithm, update: Update) -> dict[str, Any]:
    """Return the parts that a slot keeps: a model and its buffers; ProtocolError if a client sent more."""
    handed(algorithm, update)
    return model_part(update)


def rebased(server: State) -> dict[str, Any]:
    """Return FedSeqInter's server after a broadcast: all slots begin with its model and its batch-norm statistics."""
    return {**server, "base": model_part(server), "bank": {}, "omega": {}, "held": {}}


def averaged(server: State, replies: Replies, drawn: Mapping[str, int]) -> State:
    """Return FedSeqInter's server with the average of the slots formed now; with too few for the run's rule, as it was.

    Slots are summed in ascending order of the superclients that used them last. ``drawn``: slot -> its last client in this round;
    a slot that nobody used stands under a number below those of parties.
    """
    bank, omega, held = (server[name] for name in ("bank", "omega", "held"))
    order, seen = sorted(bank, key=held.__getitem__), sum(omega.values())
    client = {slot: drawn.get(slot, SERVER - 1 - int(slot)) for slot in order}
    parts = {client[slot]: bank[slot] for slot in order}
    share = {client[slot]: omega[slot] / seen for slot in order}
    found = reducers.averaged(replies, parts, share, server["base"], "slots")
    return server if found is None else {**server, **cast_like(found, server)}


def in_chains(rule: Mapping[str, Any] | None, how: Grouping, anchor: str, banked: bool = False) -> Algorithm:
    """Return the local rule as an algorithm whose clients are drawn in groups, with the set-up that forms them."""
    local, how = rule_of(rule or {}, banked), how._replace(metric=metric_of(how))
    confidences = how.phi != "random" and how.psi == "conf"
    train, begin = local.training(), local.server_init
    if anchor == "server" and train.settle is not None:
        raise ConfigError(
            f"algorithm.anchor = 'server': the duals of '{local.name}' need anchor = 'predecessor' inside a chain; remove the key."
        )
    if anchor == "server":
        train = from_handed(train)
    if local.hand_on is not None:
        train = carrying(train, local.hand_on)

    def server_init(models: Models, facts: ServerFacts) -> State:
        linear = [k for k, x in models["global"].items() if facts.get("roles", {}).get(k) == "linear" and x.dim() == 2]
        kept = {"all": linear, "last": linear[-1:], "last2": linear[-2:]}[how.layers]
        told = {"linear": Tree({name: torch.empty(0) for name in kept})} if how.psi == "clf" else {}
        return {**begin(models, facts), **told, "classes": int(facts.get("classes", 0)), "groups": []}

    demands = local.demands
    if confidences:
        demands = demands._replace(classes=True, public={"from": "test", "per_class": 10}, public_labels=True)
    looks: dict[str, Task | Question] = {"pretrain": pretrain(how), "confidence": CONFIDENCE}
    return local._replace(
        tasks={"train": train, **(looks if how.phi != "random" else {})},
        prepare=partial(set_up, how),
        groups=groups,
        server_init=server_init,
        demands=demands,
        card=card_of(how, anchor, local),
    )


def card_of(how: Grouping, anchor: str, rule: Algorithm) -> Card:
    """Return the rule's card as that of its chains."""
    alone = "a model trained alone" if how.psi == "conf" else "the weights of its linear layers"
    once = "nothing" if how.phi == "random" else alone
    return rule.card._replace(
        family="clustering: sequential",
        leaves="the model, handed on to the next client of the chain and at its end to the server; once at the start "
        f"{once}, to the server",
        unused=unused(how, anchor, rule),
        notices=partial(notices, how, rule.card),
    )


def from_handed(train: Task) -> Task:
    """Return local training that starts at the model handed on instead of the message's model."""

    def start(message: Message, client: State, facts: Facts) -> Tree:
        return train.start({**message, "model": message["start"]}, client, facts)

    return train._replace(start=start)


def carrying(train: Task, hand_on: Callable[[Update, Update], Update]) -> Task:
    """Return local training whose further parts are joined with those handed on."""

    def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        update, state = train.finish(params, work, message, client, facts)
        if "handed" not in message:
            return update, state
        return {**hand_on(message["handed"], update), "model": update["model"]}, state

    return train._replace(finish=finish)


def unused(how: Grouping, anchor: str, rule: Algorithm) -> Mapping[str, str]:
    """Name the keys without effect next to the others."""
    out: dict[str, str] = {}
    if how.phi == "random":
        names = ("psi", "metric", "pretrain_epochs", "layers", "normalise", "first", "start")
        out |= dict.fromkeys(names, "phi = 'random' does not use models")
    elif how.psi == "conf":
        out |= dict.fromkeys(("layers", "start"), "psi = 'conf' uses confidences, not weights")
    else:
        out["normalise"] = "psi = 'clf' uses weights, not confidences"
    if how.phi == "greedy" and how.first == "random" and how.psi != "conf":
        out["start"] = "first = 'random' does not use it"
    if how.phi == "kmeans":
        out |= dict.fromkeys(("first", "start"), "k-means does not choose the client that opens a group")
    if how.min_examples:
        out["group_size"] = "min_examples decides when a group is full"
    if anchor == "server" and plain(rule.training()):
        out["anchor"] = f"'{rule.name}' has no anchor"
    return {f"algorithm.{name}": why for name, why in out.items()}


def plain(train: Task) -> bool:
    """Return whether local training adds nothing to the loss."""
    return train.direction is None and train.objective is plain_loss


def rule_of(table: Mapping[str, Any], banked: bool) -> Algorithm:
    """Return the algorithm named by ``algorithm.rule``; ConfigError, with the reason, if it cannot run inside a chain."""
    given, ours = dict(table), OURS["algorithms"]
    name = str(given.pop("name", "fedavg"))
    try:
        builder = find("algorithms", ours, name)
    except ConfigError as error:
        raise ConfigError(f"algorithm.rule.name: {error}") from None
    rule = builder(**arguments("algorithm.rule", builder, given))
    if why := no_rule(rule, banked):
        raise ConfigError(f"algorithm.rule: {why}; use one of {', '.join(map(repr, rules(banked)))}.")
    checked: Algorithm = rule
    return checked


def rules(banked: bool = False) -> list[str]:
    """List the built-in algorithms that can run inside a chain with their defaults."""
    return [name for name, build in OURS["algorithms"].items() if not no_rule(build(), banked)]


def no_rule(rule: Any, banked: bool) -> str:
    """Return why an algorithm cannot run inside a chain, or "" if it can. ``banked``: inside FedSeqInter's chain.

    A chain asks each client once per round, to train, and passes its model on: any algorithm with such rounds can be used.
    """
    if not isinstance(rule, Algorithm):
        return f"its builder returned {type(rule).__name__}, not an Algorithm"
    if why := rule.refuses.get("chain"):
        return f"not '{rule.name}': {why}"
    if rule.rounds is not None or rule.prepare is not None:
        return f"a chain asks each client once per round, to train, but '{rule.name}' has its own rounds or set-up"
    if rule.hand_on is not None and rule.training().settle is not None:
        return f"'{rule.name}' updates a client's state from its message, which in a chain includes other clients' work"
    if not banked:
        return ""
    if rule.server_update is not take_mean:
        return (
            f"'{rule.name}' needs a server step in every round, but FedSeqInter's server only averages, once per period"
        )
    if rule.hand_on is not None:
        return f"'{rule.name}' sends more than its model to the server, but FedSeqInter's server keeps only models"
    return "" if rule.weigh is by_samples else f"'{rule.name}' has its own weights, but slots are averaged by examples"
