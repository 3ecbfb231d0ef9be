"""Attacks on what a role has seen: what each wants, from which view, with which knowledge (A5, A8, A10). They observe and change nothing.

role: whose view is attacked: "server", "client:3" or "outsider".
targets: how many of those whose updates were seen, in the order in which they came; 0 = all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.roles import Role

Whole = Annotated[int, Field(ge=1)]
Many = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Kind = Literal["inversion", "membership"]


class Inference(NamedTuple):
    """An attack on a view. ``keys`` are those of its table, checked."""

    name: str
    kind: Kind
    role: Role
    declares: Declaration
    keys: Mapping[str, int | float | str]


def _inversion(knowledge: str, budget: str) -> Declaration:
    return Declaration(
        who="insider: the server, which sees each update; a client or an outsider sees the mean of a round only",
        how="passive: it follows the protocol and computes afterwards",
        when="training: the first round",
        where="the updates, as the gradients that they are",
        why="samples and labels: the row that a client trained on",
        knowledge=knowledge,
        budget=budget,
    )


def inverting_gradients(
    *,
    role: str = "server",
    targets: Many = 64,
    iterations: Whole = 2400,
    restarts: Whole = 1,
    tv: Weight = 1e-4,
    lr: Rate = 0.1,
    labels: Literal["inferred", "known"] = "inferred",
) -> Inference:
    """Inverting gradients (Geiping et al. 2020): the picture whose gradient points as the observed one does.

    min_x 1 - cos(gradient(x), g) + tv TV(x), by Adam on the signs of its slope, all targets in one stack. A10.

    iterations: steps of Adam; the rate falls to a tenth after 3, 5 and 7 eighths of them.
    restarts: random beginnings of each target, of which the one of least cost counts.
    tv: weight of the total variation, which prefers smooth pictures.
    lr: rate of Adam in pixels, where 1 is from black to white.
    labels: whether labels are read off the gradient of the last bias (A7), or told to the attacker.
    """
    keys = {"targets": targets, "iterations": iterations, "restarts": restarts, "tv": tv, "lr": lr, "labels": labels}
    known = "the network, the local learning rate, one step on one row, the range of a pixel"
    told = f"{known}, the label" if labels == "known" else known
    spent = f"{iterations} steps on each of {restarts} beginnings a target"
    return Inference("inverting_gradients", "inversion", Role.parse(role, "attack.role"), _inversion(told, spent), keys)


def dlg(*, role: str = "server", targets: Many = 64, iterations: Whole = 300, restarts: Whole = 4) -> Inference:
    """Deep leakage from gradients (Zhu et al. 2019): picture and label whose gradient equals the observed one.

    min_{x, y} |gradient(x, softmax(y)) - g|^2, by L-BFGS from N(0, 1), all targets in one stack. Needs a network with smooth
    activations (lenet_sigmoid). A8.

    iterations: steps of L-BFGS.
    restarts: random beginnings of each target, of which the one of least cost counts.
    """
    keys = {"targets": targets, "iterations": iterations, "restarts": restarts}
    known = "the network, the local learning rate, one step on one row; not the label"
    spent = f"{iterations} steps on each of {restarts} beginnings a target"
    return Inference("dlg", "inversion", Role.parse(role, "attack.role"), _inversion(known, spent), keys)


def membership(
    *, role: str = "outsider", method: Literal["loss", "shadow"] = "loss", shadows: Whole = 4, epochs: Whole = 30
) -> Inference:
    """Membership inference: was this row trained on? Judged on rows that clients trained on and rows that they held out.

    By the loss of a row (Yeom et al. 2018), or by a logistic classifier of confidences and label that learnt on shadow models
    (Shokri et al. 2017). Needs evaluation.clients above 0: the rows held out are the non-members. A5.

    method: by the loss of the row under the model, or by shadow models.
    shadows: models of the attacker's own, each trained on half of its auxiliary rows.
    epochs: passes that a shadow model is trained for.
    """
    keys = {"method": method, "shadows": shadows, "epochs": epochs}
    spent = "one pass of the model a row" if method == "loss" else f"{shadows} models trained for {epochs} passes"
    more = "; auxiliary rows of the clients that no candidate is among" if method == "shadow" else ""
    declares = Declaration(
        who="outsider who is given the model, or an insider: a client or the server",
        how="passive: it asks the model",
        when="inference: after the last round that the role saw",
        where="the global model",
        why="membership: whether a row was trained on",
        knowledge=f"the candidates, of which half are members; the network and the local training{more}",
        budget=spent,
    )
    return Inference("membership", "membership", Role.parse(role, "attack.role"), declares, keys)


INFERENCE: Mapping[str, Callable[..., Inference]] = {
    "inverting_gradients": inverting_gradients,
    "dlg": dlg,
    "membership": membership,
}
"""Attacks on views by name."""
