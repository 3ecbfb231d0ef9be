"""Split learning and hybrid federation as schemes."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.networks import hybrid_protocol
from fedatlas.vertical.networks.active import outputs
from fedatlas.vertical.networks.files import export, loaded, own
from fedatlas.vertical.networks.guesses import ATTACK
from fedatlas.vertical.networks.protocol import begin, brought, end, predict, questions, step
from fedatlas.vertical.networks.settings import CutNetworks, hybrid, split_learning
from fedatlas.vertical.networks.words import KNOWN, WORDS, WORDS_OF_HYBRID
from fedatlas.vertical.scheme import Scheme


def said(how: CutNetworks, classes: int) -> str:
    """Return a line with the number of passes and the networks."""
    layers = " and ".join("-".join(map(str, units)) for units in (how.shared, how.hidden) if units)
    rounds = f"{how.rounds} round{'s' if how.rounds != 1 else ''}"
    return (
        f"{rounds}, networks of {layers} units, embeddings and gradients as they are: a simulation that protects nobody"
    )


def unfit(how: CutNetworks, task: str, classes: int) -> str:
    """Return "": every label is learned."""
    return ""


def refusal(how: CutNetworks) -> str:
    """Return why real parties may not run this."""
    return (
        f"'{name_of(how)}' runs only in a simulation: {KNOWN} Use 'secureboost' with [[privacy]] between real parties."
    )


def warnings(how: CutNetworks) -> Sequence[str]:
    """Return what is said before a run."""
    return (f"{name_of(how)}: {KNOWN}",)


def name_of(how: CutNetworks) -> str:
    """Return the name of the scheme that has these settings."""
    return "hybrid" if how.shared else "split"


SPLIT = Scheme(
    name="split",
    words=WORDS,
    build=split_learning,
    rounds="rounds",
    said=said,
    unfit=unfit,
    refusal=refusal,
    warnings=warnings,
    attack=ATTACK,
    questions=questions,
    begin=begin,
    step=step,
    end=end,
    outputs=outputs,
    brought=brought,
    own=own,
    export=export,
    keys=(("columns", "mean", "sd", "network"), ("unit", "fusion", "embed")),
    load=loaded,
    predict=predict,
)

HYBRID = SPLIT._replace(
    name="hybrid",
    words=WORDS_OF_HYBRID,
    build=hybrid,
    questions=hybrid_protocol.questions,
    begin=hybrid_protocol.begin,
    step=hybrid_protocol.step,
    counts=hybrid_protocol.counts,
    facts=hybrid_protocol.facts,
    several_labels=True,
)
