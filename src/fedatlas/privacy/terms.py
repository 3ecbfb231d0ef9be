"""The three things that make an epsilon mean something, in the terms of NIST SP 800-226: unit of privacy, neighbours, trust model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fedatlas.privacy.ledger import Neighbours, Unit
from fedatlas.privacy.mechanism import Mechanism

UNITS: Mapping[Unit, str] = {"client": "one client with all its rows", "record": "one row"}
NEIGHBOURS: Mapping[Neighbours, str] = {
    "add or remove": "the unit is there, or it is not",
    "zero out": "the unit counts, or counts as zero; that it takes part is known",
    "replace": "the unit has these values, or any others",
}

CHOSEN = (
    "A tuning chose the values of this run: its trials trained on the same rows, and validation rows chose among them without noise. "
    "Epsilon is that of this run only; with the tuning there is none."
)
"""Sentence beside the epsilon of a tuning's winner."""

BEFORE_AND_AFTER = "These figures are computed from the training rows before and after: no epsilon covers them."
"""Sentence beside a simulation's figures of changed rows."""


def about(unit: Unit, neighbours: Neighbours, covers: str = "") -> list[tuple[str, str]]:
    """Return the unit and the neighbours of an epsilon in words. ``covers``: the only part of the unit that it is about; "": all of it."""
    whole = f"{covers}; nothing else of {UNITS[unit]} is covered" if covers else UNITS[unit]
    return [("unit of privacy", whole), ("neighbouring data sets", NEIGHBOURS[neighbours])]


def protects(mechanisms: Iterable[Mechanism]) -> str:
    """Return whom the epsilon of a run with these mechanisms is about, in words; "" if they state none.

    That of noise in rounds stands in a run's summary, and that of changed rows beside it (`course.privacy_record`).
    """
    used = tuple(mechanisms)
    noises = [one.noise for one in used if one.noise is not None]
    if noises:
        return UNITS["record" if any(noise.of_rows or noise.unit == "record" for noise in noises) else "client"]
    return next((one.words.covers or UNITS["record"] for one in used if one.entered is not None), "")


def trust_model(mechanisms: Iterable[Mechanism], accounted: Collection[str] = ()) -> str:
    """Return whom the noise of a run with these mechanisms asks to trust. ``accounted``: the names behind one account; (): all."""
    used = tuple(mechanisms)
    noisy = [one for one in used if one.noise is not None and (not accounted or one.name in accounted)]
    sums = any(one.sums_only for one in used)
    if any(one.trust == "server" for one in noisy):
        seen = "sums of updates" if sums else "every update"
        return f"central: the server sees {seen} without noise, and is trusted to add it"
    if any(one.sums_only for one in noisy):
        return "distributed: clients share the noise under masks; enough of them have to be honest"
    return "local: every client adds its own noise; nobody else has to be trusted"
