"""Attacks by name: on the training of a federation (`POISONING`), and on a role's view (`VIEW_ATTACKS`).

`fedatlas list attacks` prints `ATTACKS`.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.attacks.gan import gan
from fedatlas.attacks.inversion import dlg, idlg
from fedatlas.attacks.inverting_gradients import inverting_gradients
from fedatlas.attacks.label_inference import label_inference
from fedatlas.attacks.membership import membership
from fedatlas.attacks.poisoning import POISONING
from fedatlas.attacks.property_inference import property_inference
from fedatlas.attacks.view_attack import ViewAttack

VIEW_ATTACKS: dict[str, Callable[..., ViewAttack]] = {
    "inverting_gradients": inverting_gradients,
    "dlg": dlg,
    "idlg": idlg,
    "membership": membership,
    "label_inference": label_inference,
    "property": property_inference,
    "gan": gan,
}

ATTACKS: Mapping[str, Callable[..., Any]] = ChainMap(VIEW_ATTACKS, POISONING)  # iterates over the last map first
