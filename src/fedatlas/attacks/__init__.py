"""Attacks by name: on what a federation learns (`POISONING`), and on what a role has seen (`VIEW_ATTACKS`).

`fedatlas list attacks` prints `ATTACKS`.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.attacks.inversion import dlg, inverting_gradients
from fedatlas.attacks.membership import membership
from fedatlas.attacks.poisoning import POISONING
from fedatlas.attacks.view_attack import ViewAttack

VIEW_ATTACKS: dict[str, Callable[..., ViewAttack]] = {
    "inverting_gradients": inverting_gradients,
    "dlg": dlg,
    "membership": membership,
}

ATTACKS: Mapping[str, Callable[..., Any]] = ChainMap(VIEW_ATTACKS, POISONING)  # iterates over the last map first

LATER = ("backdoor", "false_claims", "alie", "inner_product", "gan", "property", "label_inference", "idlg")
"""Attacks that are planned and not in this version: refused as such."""
