"""An anonymised table in sentences, for the terminal and the page."""

from __future__ import annotations

from fedatlas.anonymisation.anonymised import Anonymised, SensitiveFound
from fedatlas.privacy.anonymity.measures import Risk
from fedatlas.privacy.anonymity.rules import Conditions
from fedatlas.wording import count, listed

NOT_COVERED = (
    (
        "Other releases",
        (
            "If the same people are in another release, or in this table at another time, what the two have in common may single "
            "out a row, even if each of them keeps k."
        ),
    ),
    (
        "What somebody knows besides",
        (
            "A person who knows the value of somebody else in the class, or that a value is impossible for a person, has fewer "
            "values left to choose from."
        ),
    ),
    (
        "Skew and similarity",
        (
            "l counts values. If one of them is rare in the table but frequent in a class, or if all values of a class mean nearly "
            "the same, much is learnt about its people. t limits that; without it nothing does."
        ),
    ),
    (
        "The way the classes were made",
        (
            "The cuts follow a known rule. From a cut that was not made one can sometimes conclude that l or t forbade it, and from "
            "that something about the sensitive values."
        ),
    ),
    (
        "Columns that stay as they are",
        (
            "The guarantee is about the quasi-identifiers that were named. A column that stays, or a combination of such columns, "
            "can identify a person to those who know it. With several sensitive columns, each keeps l and t by itself; a "
            "person who knows one of the values may be able to tell the other."
        ),
    ),
    (
        "What is true of all",
        (
            "That a class, or the whole table, has a property is not hidden. Unlike differential privacy, anonymity of this kind "
            "does not limit what the release as a whole adds to what is known."
        ),
    ),
)
"""Limits of the guarantees: a name, and a sentence or two."""


def lines(found: Anonymised) -> list[str]:
    """Return the result in sentences."""
    before, after = found.risk
    rows = count(found.rows - found.left_out, "row")
    out = [
        f"{rows} in {count(len(found.after), 'class', 'classes')}; the smallest has {count(int(found.after.min()), 'row')}."
    ]
    if found.left_out:
        out.append(f"{count(found.left_out, 'row')} of {count(found.rows)} left out.")
    by_column = ", ".join(f"{name} {percent(loss)}" for name, loss in found.loss.items())
    out.append(f"Information loss: {percent(found.mean_loss)} ({by_column}).")
    out += [f"Re-identification risk before: {risk_text(before)}; after: {risk_text(after)}."]
    out += [sensitive_line(name, one, found.rules) for name, one in found.sensitive.items()]
    others = [name for name in found.table.columns if name not in (*found.roles.quasi, *found.roles.sensitive)]
    out += [f"Written as they are: {listed(others)}."] if others else []
    return [*out, *found.doubts]


def sensitive_line(name: str, found: SensitiveFound, rules: Conditions) -> str:
    """Return what holds for a sensitive column in every class."""
    return (
        f"'{name}': every class has at least {count(found.distinct, 'value')} (l = {rules.l:g}, {rules.diversity}; by entropy "
        f"{found.entropy:.2f}), and is at most {found.distance:.3f} from the table (t = {rules.t:g})."
    )


def risk_text(risk: Risk) -> str:
    """Return a risk as part of a sentence."""
    unique = f"{percent(risk.unique)} of rows are unique" if risk.unique else "no row is unique"
    return f"highest {percent(risk.highest)}, mean {percent(risk.mean)}, {unique}"


def percent(share: float) -> str:
    """Format a share: 0.0123 -> '1.2%'; '<0.1%' for a small one that is not 0."""
    return "<0.1%" if 0 < share < 0.0005 else f"{100 * share:.3g}%"
