"""Attacks by name: what a hostile party does, or finds out. `fedatlas list attacks` prints `ATTACKS`."""

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.attacks.inference import INFERENCE
from fedatlas.attacks.poisoning import POISONING

ATTACKS: Mapping[str, Callable[..., Any]] = {**POISONING, **INFERENCE}

LATER = ("backdoor", "false_claims", "alie", "inner_product", "gan", "property", "label_inference", "idlg")
"""Attacks that are planned and not in this version: refused as such."""
