"""Property inference (A6, passive): is a client, or a round's mean, rich in rows with a property? It only observes.

For each round the attacker trains, from the model that was sent, on its auxiliary rows with and without the property, as a client
would. A random forest learns to tell these updates of all rounds apart, and judges those that it sees. An update is pooled first: of
each weight the mean of what leads to an output, and each bias; for a column also the weights that lead from its input.

A server judges clients: a client's score is its mean over the rounds in which it worked. A client or an outsider sees the step between
two models, the mean of a round, of which a client takes its own part away: it judges rounds. A mean is simulated by one training on as
many rows as its clients have, each step with the rows of a step of all of them.

Auxiliary rows are those that clients held out. The truth is known to the holder of the data only. The placebo is the same game with
the rows shuffled among the clients, whose AUC is 0.5 with the spread of chance.

role: the role whose view is attacked: "server", "client:3" or "outsider".

Source: Melis, Song, De Cristofaro, Shmatikov, S&P 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.forest import told_apart
from fedatlas.attacks.inversion import NEEDS_CLASSES, loss_of
from fedatlas.attacks.local_steps import parts_in
from fedatlas.attacks.membership import AUXILIARY, CENTRAL, CHANCE, SPLITS, scored, shuffled_spread, smallest_shown
from fedatlas.attacks.properties import Property
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.shadow_models import Training, trained
from fedatlas.attacks.view_attack import Arrays, Files, Knowledge, Picture, Score, Truth, ViewAttack
from fedatlas.errors import ConfigError, DataError
from fedatlas.metrics.quality import Floats
from fedatlas.registry import Count, Rate, Whole
from fedatlas.rng import derive, numpy_stream, torch_stream
from fedatlas.tree import Tree, stack

NAME = "property"
ENDS = ("value", "low", "high", "placebo_low", "placebo_high")  # of an AUC
NO_ROWS = f"attack '{NAME}' needs rows that clients held out, as auxiliary rows: set clients = 0.5 under [evaluation]."
UNDRAWN = (
    f'auxiliary rows are drawn when the attack is declared; add [[attack]] with name = "{NAME}" and, under [evaluation], clients = 0.5 '
    "to the experiment and run again."
)
ALIKE = (
    f"attack '{NAME}' by {{}} tells rounds apart, but here every round has the same clients: set fraction = 0.5 under [cohort] and "
    "rounds = 40."
)
POWERLESS = (
    "The rows of {clients} clients can be shuffled in too few ways: {alike:.0%} of the placebo's games have the real truth or its "
    "opposite, so not even a perfect attack would be told from chance. Use more clients."
)
Marked = Mapping[int, tuple[int, int]]
"""Client -> how many of its rows are those of the property, and how many it has."""


class Sought(NamedTuple):
    """The property of a client's or a round's rows: more than ``share`` of them have the property of single rows ``what``."""

    what: Property
    share: float | None
    server: bool  # it judges clients

    def bound(self, classes: int, marks: np.ndarray) -> float:
        """Return the share of rows above which a target has the property; ``marks``: those of the auxiliary rows.

        Without a ``share`` it is an even share of classes for clients, and for rounds and columns the share among the auxiliary rows.
        """
        if self.share is not None:
            return self.share
        return len(self.what.classes) / classes if self.server and self.what.classes else float(marks.mean())


def property_inference(
    *,
    role: str = "server",
    classes: tuple[Count, ...] | None = None,
    column: str = "",
    value: str = "",
    share: Rate | None = None,
    rounds: Count | None = None,
    shadows: Whole = 100,
) -> ViewAttack:
    """Property inference (Melis et al. 2019): find clients or rounds rich in some classes, or a column's value.

    A random forest learns from simulated updates with and without the property. The server judges clients by their updates; a client
    or an outsider judges rounds by the mean of their updates. Needs evaluation.clients above 0: the held-out rows are the attacker's. A6.

    role: the role whose view is attacked: "server", "client:3" or "outsider".
    classes: the classes of the property, by number; default: [0].
    column: a table's column, in place of classes.
    value: the category of that column.
    share: the share of rows above which a target has it; default: of clients an even share of classes, else that of the held-out rows.
    rounds: the last round whose updates are used; 0 = the end; default: 1 for the server, 0 for others.
    shadows: simulated updates of each kind, over all rounds.
    """
    whose = ViewRole.parse(role, "attack.role")
    server = whose.kind == "server"
    sought = Sought(Property.of(NAME, classes, column, value), share, server)
    last = (1 if server else 0) if rounds is None else rounds
    return ViewAttack(
        NAME,
        "property",
        whose,
        {**sought.what.keys, "share": share, "rounds": rounds, "shadows": shadows},
        _declaration(sought, last, shadows),
        answer=lambda known: _answer(known, sought, last, shadows),
        score=lambda truth, answer: _score(truth, answer, sought, whose),
        figures={"auc": "AUC"},
        leak="auc",
        pictures=_pictures,
        thing="client" if server else "round",
        roles=("server", "client", "outsider"),
        rounds=(0, last),
        refuses=lambda config: _unsuited(config, whose),
        refuses_run=lambda config, rows: _unsuited(config, whose),
        files=(AUXILIARY,),
        draws=lambda truth: _files(truth, sought),
        undrawn=UNDRAWN,
        tells=lambda truth: _told(truth, whose),
        single=server,
    )


def _declaration(sought: Sought, last: int, shadows: int) -> Declaration:
    server = sought.server
    more = "" if server else "; how many clients and rows each round had"
    return Declaration(
        who="insider: the server, which sees each update; a client or an outsider sees only the mean of a round",
        how="passive: it follows the protocol and computes afterwards",
        when="training: the first round" if last == 1 else f"training: {f'{last} rounds' if last else 'every round'}",
        where="the updates of single clients" if server else "the step from one model to the next",
        why=f"property: whether a {'client' if server else 'round'} is rich in rows {sought.what}",
        knowledge=f"the network, the local training, how many rows each client trains on{more}; auxiliary rows that clients held out",
        budget=f"{2 * shadows} simulated updates",
    )


def _unsuited(config: Any, role: ViewRole) -> str:
    if loss_of(config) not in ("auto", "cross_entropy"):
        return f"attack '{NAME}' {NEEDS_CLASSES}"
    if not config.evaluation.clients:
        return NO_ROWS
    cohort, lost = config.cohort, config.failures.dropout or config.failures.stragglers
    alike = config.rounds < 2 or (cohort.fraction == 1 and cohort.size is None and not lost)
    return ALIKE.format(role) if role.kind != "server" and alike else ""


def auxiliary(truth: Truth) -> tuple[Tensor, Tensor]:
    """Return (x, y) of all rows that clients held out."""
    kept = [truth.kept(k) for k in sorted(truth.kept_sizes) if truth.kept_sizes[k]]
    return torch.cat([rows.x for rows in kept]), torch.cat([rows.y for rows in kept])


def holders(truth: Truth, groups: Sequence[Sequence[int]], sought: Sought, thing: str = "client") -> np.ndarray:
    """Return (groups,) bool: whether the rows of each group of clients have the property. DataError if all have it, or none."""
    sought.what.check(truth.classes, truth.inputs)
    bound = sought.bound(truth.classes, sought.what.marks(*auxiliary(truth), truth.inputs).numpy())
    held = above(bound, groups, marked(truth, groups, sought))
    if held.all() or not held.any():
        who = f"every {thing}" if held.all() else f"no {thing}"
        raise DataError(
            f"attack '{NAME}': {who} has a share above {bound:.3g} of rows {sought.what}; set another share."
        )
    return held


def marked(truth: Truth, groups: Sequence[Sequence[int]], sought: Sought) -> Marked:
    """Return of each client in the groups how many of its rows are those of the property, and how many it has."""
    rows = {k: truth.rows(k) for k in sorted({k for group in groups for k in group})}
    return {k: (int(sought.what.marks(one.x, one.y, truth.inputs).sum()), one.n) for k, one in rows.items()}


def shares(groups: Sequence[Sequence[int]], rows: Marked) -> Floats:
    """Return (groups,): the share of a group's rows that are those of the property."""
    sums = np.array([np.sum([rows[k] for k in group], axis=0) for group in groups])
    return np.asarray(sums[:, 0] / sums[:, 1])


def above(bound: float, groups: Sequence[Sequence[int]], rows: Marked) -> np.ndarray:
    """Return (groups,) bool: whether more than this share of a group's rows are those of the property."""
    return shares(groups, rows) > bound


def shuffled(bound: float, groups: Sequence[Sequence[int]], rows: Marked, seed: int) -> Iterator[np.ndarray]:
    """Yield the truth of 200 games in which every client has another's rows, those without both kinds of groups left out.

    Rounds of the same clients are alike in more than the property. Orders of rounds would take them for independent, and chance for
    smaller than it is.
    """
    for i in range(SPLITS):
        order = numpy_stream(seed, "attack", "shuffled", i).permutation(list(rows))
        held = above(bound, groups, dict(zip(rows, (rows[k] for k in order.tolist()), strict=True)))
        if held.any() and not held.all():
            yield held


def game(held: np.ndarray, share: Floats, score: Floats, games: Sequence[np.ndarray], seed: int, clients: int) -> Score:
    """Return the figures of scores (n,) whose truth is ``held`` (n,) against ``games``, truths (n,) with the rows shuffled among clients.

    In a game with the same truth, or the opposite one, a score lies as far from 0.5 as in the real one. Where more than 5% of games are
    such, no score can lie beyond 95% of them: chance then reaches 0.5, and a note says so. The ``smallest`` AUC is that beyond what
    chance does with the ``share`` (n,) of rows as the score, which a perfect attack would find.
    """
    alike = float(np.mean([(one == held).all() or (one != held).all() for one in games])) if games else 1.0
    powerless = alike > 1 - CENTRAL
    found = scored(held, score, seed, CHANCE if powerless else shuffled_spread(score, games))
    leak = found.leaks["auc"]
    widest = max(leak["beyond"] or 0.0, shuffled_spread(share, games))
    seen = smallest_shown(int(held.sum()), int((~held).sum()), widest)
    notes = [POWERLESS.format(clients=clients, alike=alike)] if powerless else []
    return found._replace(leaks={"auc": {**leak, "smallest": seen}}, notes=notes)


def _files(truth: Truth, sought: Sought) -> Files:
    """Return the auxiliary rows. ConfigError if they lack a kind."""
    sought.what.check(truth.classes, truth.inputs)
    if sought.server:  # who works in a round is not drawn yet
        holders(truth, [[k] for k, n in truth.sizes.items() if n], sought)
    x, y = auxiliary(truth)
    if len(set(sought.what.marks(x, y, truth.inputs).tolist())) < 2:
        raise ConfigError(f"attack '{NAME}': the held-out rows have to be {sought.what} and others.")
    return {AUXILIARY: {"x": x.numpy(), "y": y.numpy()}}


def _told(truth: Truth, role: ViewRole) -> dict[str, Any]:
    """Return the rows of each client, without its name; to a client or an outsider also clients and rows of each round."""
    told: dict[str, Any] = {"sizes": [n for n in truth.sizes.values() if n]}
    if role.kind == "server":
        return told
    rounds = {str(t): [len(ids), sum(truth.sizes[k] for k in ids)] for t, ids in truth.worked.items()}
    return {**told, "rounds": rounds, "own": 0 if role.client is None else truth.sizes[role.client]}


# ---------------------------------------------------------------------- in the attacker's process


class AttackedRound(NamedTuple):
    """A round as the attacker keeps it."""

    number: int
    clients: tuple[int, ...]
    state: Mapping[str, Tensor]  # the model that was sent
    features: Floats  # (T, d), pooled updates


def _answer(known: Knowledge, sought: Sought, last: int, shadows: int) -> Arrays:
    """Return client (T,), or round (T,), and score (T,): the higher, the more likely it has the property."""
    x, y = (torch.from_numpy(known.arrays(AUXILIARY)[part]) for part in ("x", "y"))
    marks = sought.what.marks(x, y, known.inputs).numpy()
    network, inputs = known.network(known.seed), len(known.inputs)
    place = sought.what.place(known.inputs) if sought.what.column else None
    bound, has = sought.bound(known.classes, marks), np.arange(2 * shadows) % 2 == 1
    seen = [
        AttackedRound(number, one.clients, {**one.params, **one.buffers}, pooled(one.gradients, place, inputs))
        for number, one in known.rounds(last)
    ]
    simulated = list(_simulated(known, network, seen, (x, y), marks, bound, has))
    score = judged(
        pooled(stack(simulated), place, inputs), np.concatenate([one.features for one in seen]), has, known.seed
    )
    if "rounds" in known.told:
        return {"round": np.array([one.number for one in seen]), "score": score}
    clients = np.concatenate([one.clients for one in seen])
    targets = list(dict.fromkeys(clients.tolist()))
    return {"client": np.array(targets), "score": np.array([score[clients == k].mean() for k in targets])}


def _simulated(
    known: Knowledge,
    network: nn.Module,
    seen: Sequence[AttackedRound],
    own: tuple[Tensor, Tensor],
    marks: np.ndarray,
    bound: float,
    has: np.ndarray,
) -> Iterator[Tree]:
    """Yield updates with (``has``) and without the property, as many of each kind from each round's model."""
    stream, rng = numpy_stream(known.seed, "attack", NAME), torch_stream(known.seed, "attack", NAME)
    (x, y), local, told = own, known.config.local, known.told
    for i, one in enumerate(has):
        now = seen[i // 2 % len(seen)]
        network.load_state_dict({**network.state_dict(), **now.state})
        if "rounds" not in told:
            many, n = 1, int(stream.choice(told["sizes"]))
        else:
            many, rows = told["rounds"].get(str(now.number), (1, told["sizes"][0]))
            n = max(1, round(rows / many))
        chosen = drawn_rows(y.numpy(), marks, many * n, bound, bool(one), stream, near=many > 1)
        used, how = local_training(local, n)
        chosen = chosen[: many * used]
        how = how._replace(batch_size=many * how.batch_size)
        yield change(network, trained(network, x[chosen], y[chosen], how, rng), local)


def judged(simulated: Floats, updates: Floats, has: np.ndarray, seed: int) -> Floats:
    """Return (T,): the probability that each of ``updates`` (T, d) has the property, learnt from ``simulated`` (n, d), ``has`` (n,)."""
    return told_apart(simulated, has, updates, derive(seed, "attack", "forest") % 2**32)


def drawn_rows(
    y: np.ndarray,
    marks: np.ndarray,
    n: int,
    bound: float,
    has: bool,
    stream: np.random.Generator,
    near: bool = False,
) -> np.ndarray:
    """Return places of ``n`` rows, shuffled: any number with ``marks`` above ``bound``, or below; class weights are random in both parts.

    ``near``: at most twice the bound, as in the rows of many clients together.
    """
    most = min(math.floor(bound * n + 1e-9), n - 1)  # rows with marks in rows without the property
    top = min(n, max(2 * most, most + 1)) if near else n
    inside = int(stream.integers(most + 1, top + 1) if has else stream.integers(0, most + 1))
    weights = stream.exponential(size=int(y.max()) + 1)[y]
    parts = []
    for many, these in ((inside, marks), (n - inside, ~marks)):
        p = np.where(these, weights, 0.0)
        parts.append(stream.choice(len(y), size=many, p=p / p.sum()))
    return stream.permutation(np.concatenate(parts))


def local_training(local: Any, n: int) -> tuple[int, Training]:
    """Return how many of a client's ``n`` rows its steps use, and its training on them."""
    batch = min(local.batch_size or n, n)
    used = n if local.steps is None else min(n, local.steps * batch)
    passes = local.epochs if local.steps is None else max(1, round(local.steps * batch / used))
    adam = local.optimizer == "adam"
    return used, Training(local.lr, batch, passes, local.momentum, local.weight_decay, adam, local.nesterov)


def change(before: nn.Module, after: nn.Module, local: Any) -> Tree:
    """Return an update as `Knowledge.rounds` yields it: read as that of one step."""
    start, end = (Tree({name: w.detach() for name, w in one.named_parameters()}) for one in (before, after))
    return parts_in(local, local.lr).gradient((1 / local.lr) * (start - end), start)


def pooled(updates: Tree, place: int | None = None, inputs: int = 0) -> Floats:
    """Return (T, d) float64: each bias, and of each weight the mean of what leads to an output.

    ``place``: an input of the ``inputs`` of a table, from which the weights of the first layer are added as they are.
    """
    parts = [x.flatten(2).mean(2) if x.dim() > 2 else x for _, x in sorted(updates.items())]
    first = next((x for x in updates.values() if x.dim() == 3 and x.shape[2] == inputs), None)
    if place is not None and first is not None:
        parts.append(first[:, :, place])
    return torch.cat(parts, 1).double().numpy()


# ---------------------------------------------------------------------- scored by a holder of the data


def _score(truth: Truth, answer: Arrays, sought: Sought, role: ViewRole) -> Score:
    thing = "client" if "client" in answer else "round"
    targets = answer[thing].tolist()
    if thing == "round" and (untold := [t for t in targets if t not in truth.worked]):
        raise DataError(f"the run does not tell who worked in round {untold[0]}, so its rounds cannot be scored.")
    groups = [[t] if thing == "client" else [k for k in truth.worked[t] if k != role.client] for t in targets]
    keep = np.array([bool(group) for group in groups])  # a client that was alone in a round has no others to judge
    groups = [group for group in groups if group]
    held = holders(truth, groups, sought, thing)
    bound = sought.bound(truth.classes, sought.what.marks(*auxiliary(truth), truth.inputs).numpy())
    score = answer["score"][keep].astype(np.float64)
    rows = marked(truth, groups, sought)
    games = [*shuffled(bound, groups, rows, truth.seed)]
    found = game(held, shares(groups, rows), score, games, truth.seed, len(rows))
    auc = found.metrics["auc"]
    ends = np.array([auc[key] for key in ENDS], np.float64)
    arrays = {thing: answer[thing][keep], **found.arrays, "auc": ends}
    return Score({"auc": auc}, found.leaks, len(held), arrays, found.notes)


def _pictures(arrays: Arrays) -> list[Picture]:
    """Return the targets by their score, with and without the property, and the AUC beside the placebo's span."""
    if "auc" not in arrays:
        return []  # an answer without a score
    thing = "client" if "client" in arrays else "round"
    order = np.argsort(-arrays["score"], kind="stable")
    columns = (arrays[key][order].tolist() for key in (thing, "score", "member"))
    each = list(zip(*columns, strict=True))
    kinds = ("without the property", "with the property")
    shown = [(str(one), kinds[int(has)], score, None, None) for one, score, has in each]
    how = (
        f"Each {thing} by how likely the attacker takes it to have the property, the likeliest first; the colour is the truth. "
        "The better the two colours lie apart, the more leaks."
    )
    title, axes = f"Who has the property: each {thing}", (thing, "Score")
    scores = Picture("dots", "scores", title, title, how, (thing, "score", "has"), each, axes, shown)
    value, low, high, least, most = arrays["auc"].tolist()
    how = "The AUC with its 95% interval, and the span that it reaches in 95% of 200 games with the rows shuffled among the clients."
    both = [("attack", "AUC", value, low, high), ("placebo", "AUC", CHANCE, least, most)]
    rows = [(name, *ends) for name, _, *ends in both]
    title, axes = "The attack and its placebo", ("", "AUC")
    return [scores, Picture("dots", "auc", title, title, how, ("game", "auc", "low", "high"), rows, axes, both)]
