"""The attacker: a process that is given a folder (`knowledge`) and leaves its answer there."""

from __future__ import annotations

import sys
from pathlib import Path

from fedatlas import machine
from fedatlas.attacks.inference import INFERENCE
from fedatlas.errors import FedatlasError
from fedatlas.leakage import inversion, membership
from fedatlas.leakage.knowledge import REFUSED, read_order, write_answer


def work(folder: Path) -> None:
    """Attacks what lies in ``folder``."""
    order = read_order(folder)
    attack = INFERENCE[order["name"]](role=order["role"], **order["keys"])
    answer = inversion.answer if attack.kind == "inversion" else membership.answer
    try:
        with machine.one_thread_an_operator():
            write_answer(folder, answer(folder, attack, order["seed"]))
    except FedatlasError as error:
        (folder / REFUSED).write_text(str(error), encoding="utf-8")


if __name__ == "__main__":
    work(Path(sys.argv[1]))
