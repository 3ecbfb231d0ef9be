"""Attacks: on what a role has seen (`inference`), with the threat model of each (`declaration`)."""

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.attacks.inference import INFERENCE

ATTACKS: Mapping[str, Callable[..., Any]] = {**INFERENCE}
