"""The attacker: a process that receives a folder (`attacker_folder`) and leaves its answer there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedatlas import machine
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.errors import FedatlasError
from fedatlas.leakage.attacker_folder import ANSWER, ORDER, REFUSED
from fedatlas.leakage.knowledge import read_knowledge
from fedatlas.record.run_folder import RunFolder


def carry_out(folder: Path) -> None:
    """Run the attack ordered in the folder, on the folder's content."""
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    attack = VIEW_ATTACKS[order["name"]](role=order["role"], **order["keys"])
    try:
        with machine.one_thread_an_operator():
            answer = attack.answer(read_knowledge(folder, attack, order["seed"]))
            RunFolder(folder).save_arrays(ANSWER, answer)
    except FedatlasError as error:
        (folder / REFUSED).write_text(str(error), encoding="utf-8")


if __name__ == "__main__":
    carry_out(Path(sys.argv[1]))
