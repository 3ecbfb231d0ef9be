"""Split learning as a scheme."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.vertical.networks.active import outputs
from fedatlas.vertical.networks.files import export, loaded, own
from fedatlas.vertical.networks.guesses import ATTACK
from fedatlas.vertical.networks.protocol import begin, brought, end, predict, questions, step
from fedatlas.vertical.networks.settings import SplitLearning, split_learning
from fedatlas.vertical.networks.words import KNOWN, WORDS
from fedatlas.vertical.scheme import Scheme


def said(how: SplitLearning, classes: int) -> str:
    """Return a line with the number of passes and the networks."""
    layers = "-".join(map(str, how.hidden))
    epochs = f"{how.rounds} epoch{'s' if how.rounds != 1 else ''}"
    return (
        f"{epochs}, networks of {layers} units, embeddings and gradients as they are: a simulation that protects nobody"
    )


def unfit(how: SplitLearning, task: str, classes: int) -> str:
    """Return "": every label is learned."""
    return ""


def refusal(how: SplitLearning) -> str:
    """Return why real parties may not run this."""
    return f"'split' runs only in a simulation: {KNOWN} Use 'secureboost' with [[privacy]] between real parties."


def warnings(how: SplitLearning) -> Sequence[str]:
    """Return what is said before a run."""
    return (f"split: {KNOWN}",)


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
    keys=(("columns", "mean", "sd", "network"), ("unit", "fusion")),
    load=loaded,
    predict=predict,
)
