"""Sentences beside figures of training rows that no epsilon of the page covers."""

from __future__ import annotations

from fedatlas.privacy.mechanisms import of_tables
from fedatlas.reporting.entries import Subject

KEPT_OUT = (
    "These figures are of rows that clients keep out of training, with their true values and classes. They have no noise, and no epsilon "
    "of this page covers them: publish them only if these rows need no protection."
)
COUNTED = "Numbers of rows{} in this section are exact figures of the simulation's training rows: no epsilon of this page covers them."
RESPONSES = (
    "The mix of classes is that of the random responses, which the epsilon of randomised_response covers. Numbers of rows are exact: no "
    "epsilon covers them."
)
NAMED = "the names of the classes that occur in the rows: no noise covers them, and no epsilon counts them"


def states_epsilon(subject: Subject) -> bool:
    """Return whether a run states an epsilon."""
    return "epsilon" in (subject.summary.get("privacy") or {})


def of_kept_rows(subject: Subject) -> list[str]:
    """Return the sentence beside figures of rows that clients keep out of training; [] if these are of other rows."""
    asked = subject.config.evaluation
    own = asked.on == "validation" or bool(asked.clients)
    return [KEPT_OUT] if own and states_epsilon(subject) else []


def of_held_rows(subject: Subject) -> list[str]:
    """Return the sentence beside figures of who holds which rows."""
    if not states_epsilon(subject):
        return []
    if random_classes(subject):
        return [RESPONSES]
    facts = subject.summary["partition_facts"]
    more = (
        " and the mix of classes"
        if "histogram" in facts
        else " and means of the target"
        if "target_mean" in facts
        else ""
    )
    return [COUNTED.format(more)]


def of_class_names(subject: Subject) -> str:
    """Return what a table's rows told by the names of their classes; "" if these were known without the rows."""
    data, known = subject.config.data, bool(subject.config.data.constants) or random_classes(subject)
    named = data.name == "file" and bool(subject.summary.get("class_names"))
    return NAMED if named and not known and states_epsilon(subject) else ""


def random_classes(subject: Subject) -> bool:
    """Return whether training rows had random classes, from a list in the experiment file."""
    rows = [one for one in of_tables(subject.summary["privacy"]["mechanisms"]) if one.acts_on == "rows"]
    return any(one.entered is not None for one in rows)  # changed rows of which an epsilon is stated are random classes
