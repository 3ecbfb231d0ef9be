"""SecureBoost as a scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.algorithm import State
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import for_columns
from fedatlas.privacy.paillier.keys import LENGTHS
from fedatlas.vertical.boosting.gains import outputs
from fedatlas.vertical.boosting.guesses import ATTACK
from fedatlas.vertical.boosting.protocol import begin, due, grow, infer, questions
from fedatlas.vertical.boosting.settings import SecureBoost, secureboost
from fedatlas.vertical.boosting.words import WORDS
from fedatlas.vertical.scheme import Scheme, Trial
from fedatlas.vertical.trees.files import export, loaded, reads
from fedatlas.vertical.trees.importance import brought, importance, own

FEW = 200  # rows of a trial on ciphertexts


def under(how: SecureBoost, lock: Mechanism) -> SecureBoost:
    """Return the settings under Paillier, with which gradients leave the active party encrypted. ConfigError for too long a key."""
    keys = {key: lock.keys[key] for key in lock.limits.columns}
    if keys["key_bits"] not in LENGTHS:
        raise ConfigError(
            f"privacy.{lock.name}.key_bits = {keys['key_bits']}: trees take {' or '.join(map(str, LENGTHS))}; longer keys are for "
            "'private_ridge'."
        )
    return how._replace(**keys)


def clear(how: SecureBoost) -> SecureBoost:
    """Return the settings of the same trees without encryption."""
    return how._replace(key_bits=0)


def said(how: SecureBoost, classes: int) -> str:
    """Return a line with the number of trees, their depth and the protection of gradients."""
    seen = (
        f"g and h under Paillier, {how.key_bits} bits"
        if how.encrypted
        else "in the clear: a simulation that protects nobody"
    )
    kind = {"mix": "mixed ", "layered": "layered "}.get(how.mode, "")
    each = f" of {f'one {kind}tree' if how.multi_output else f'{classes} {kind}trees'}" if classes > 2 else ""
    grown = f"{how.trees} {'' if each else kind}{WORDS.product(classes)}{'s' if how.trees != 1 else ''}{each}"
    return f"{grown} of depth {how.depth}, {seen}"


def unfit(how: SecureBoost, task: str, classes: int) -> str:
    """Return which key does not fit a label, or ""."""
    several = task == "classes" and classes > 2
    if (how.multi_output or how.softmax_hess) and not several:
        key = "multi_output" if how.multi_output else "softmax_hess"
        return f"{key} is for a label of three or more classes"
    return "square_scale is for a label that is a number" if how.square_scale and task == "classes" else ""


def refusal(how: SecureBoost) -> str:
    """Return why real parties may not run these settings: gradients in the clear reveal the labels; "" if encrypted."""
    locks = " or ".join(f"'{name}'" for name in for_columns())
    return (
        ""
        if how.encrypted
        else f"gradients in the clear reveal every label, which is allowed only in a simulation: add [[privacy]] with name = {locks}."
    )


def warnings(how: SecureBoost) -> Sequence[str]:
    """Return what is said before a run: with GOSS the rows of a tree tell labels."""
    if how.goss is None:
        return ()
    said = (
        "algorithm.goss: parties without the label are told which rows a tree is grown on, and these tell them labels; in trials they "
        "ranked the rows by their label with an AUC of 0.95 to 0.97 after ten trees. A simulation measures this in its report."
    )
    return (said,)


def counts(server: State) -> Mapping[str, Any]:
    """Return counts of the work with ciphertexts for the last tree."""
    return dict(server.get("boost", {}).get("counts", {}))


def facts(server: State) -> Mapping[str, Any]:
    """Return the nodes of each tree by owner, and counts of the work with ciphertexts for all trees."""
    total = server["boost"].get("total", {})
    named = {name: total.get(name, 0) for name in ("ciphertexts", "exponentiations")}
    return {"trees": server["boost"]["nodes"], **named, "counts": total}


def trial(how: SecureBoost) -> Trial:
    """Return the trial: the first tree with all parties, or one of each party if trees are mixed.

    The cost of ciphertexts is a straight line in the rows.
    """
    found = Trial(number=how.complete_secure + 1, turns=0 if how.mode == "mix" else 1)
    return found._replace(rows=(FEW, 2 * FEW)) if how.encrypted else found


SECUREBOOST = Scheme(
    name="secureboost",
    words=WORDS,
    build=secureboost,
    rounds="trees",
    mechanisms={name: one.limits.columns for name, one in for_columns().items()},
    under=under,
    clear=clear,
    protected=lambda how: bool(how.encrypted),
    said=said,
    unfit=unfit,
    refusal=refusal,
    warnings=warnings,
    attack=ATTACK,
    questions=questions,
    due=due,
    begin=begin,
    step=grow,
    end=importance,
    outputs=outputs,
    counts=counts,
    facts=facts,
    brought=brought,
    own=own,
    export=export,
    keys=(("records",), ("trees",)),
    reads=reads,
    load=loaded,
    predict=infer,
    trial=trial,
)
