"""Anonymised training rows: k-anonymity, l-diversity and t-closeness in the columns that somebody may know (P7, P8, P9).

A client's rows are cut into classes by strict Mondrian (`privacy.anonymity.mondrian`), and the quasi-identifiers of each class become
one value: of a number the mean of the class, of a category the most frequent one, the first in the column's order of several. A set
of categories is not one number, which is what a model's input reads; its most frequent member is.

boundaries = "local": each client cuts its own rows. k, l and t hold in the rows of each client, so that k holds in the union, too.
New rows are read as they are: they belong to no client's classes.

boundaries = "counts": all clients share the cuts, which follow from sums of counts on a public grid (`agreed_cuts`). k, l and t hold in
the union of all rows, and not in the rows of a client. New rows are generalised by the same cuts, which are stored with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from fedatlas.privacy.anonymise.choice import NAME, AnonymityKeys
from fedatlas.privacy.column_bounds import Range, check_bounds
from fedatlas.privacy.mechanism import Asked, Learns, Limits, Mechanism, Words, Work
from fedatlas.privacy.terms import BEFORE_AND_AFTER
from fedatlas.registry import Whole

Share = Annotated[float, Field(ge=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Bins = Annotated[int, Field(ge=2, le=1000)]

LOCAL = Learns(
    "updates trained on rows that look like others of their client in the columns named, and the models",
    "the models",
    "no more than the server: classes, cuts and rows stay with their client",
)
COUNTS = Learns(
    "before round 1 how many rows of all clients together lie in each bin of the public grid, class by class; updates as without it",
    "the cuts, and the same counts",
    "all others together subtract their own counts: what is left are those of one client",
)
OF_CLIENT = (
    "<b>Anonymised rows.</b> Each client cut its own training rows into classes of at least {k} that look alike in the "
    "quasi-identifiers (strict Mondrian), and trained on these. k holds in the rows of each client, and so in the union."
)
OF_UNION = (
    "<b>Anonymised rows.</b> All clients generalised their training rows by the same cuts, agreed by masked sums of counts on a public "
    "grid. At least {k} rows of all clients together look alike in the quasi-identifiers: k holds in the union, not in the rows of a "
    "client, of which a single one may be in a class."
)
WARNED = (
    "Anonymity of this kind is about the columns that were named. It does not cover columns that stay, what somebody knows besides, or "
    "what models reveal about all rows together; there is no epsilon."
)
ALONE = "other changes of rows would make rows differ that are to look alike"
MASKS = "counts of single clients would be seen, but boundaries = 'counts' asks for sums"


def anonymise(
    *,
    quasi: tuple[str, ...] = (),
    sensitive: tuple[str, ...] = (),
    k: Whole = 5,
    l: AtLeastOne = 1.0,  # noqa: E741
    t: Share = 1.0,
    diversity: Literal["distinct", "entropy"] = "distinct",
    boundaries: Literal["local", "counts"] = "local",
    bounds: dict[str, Range] | None = None,
    bins: Bins = 32,
) -> Mechanism:
    """Clients generalise their training rows until each looks like k - 1 others in some columns.

    quasi: columns by which somebody may know a person; they are generalised.
    sensitive: columns that should not be learnt about a person, "label" for the target; l and t hold for them.
    k: rows that look alike, at least.
    l: different values of each sensitive column in every class, at least.
    t: distance of a class's sensitive values from those of all rows, at most (earth mover's distance, 0 to 1).
    diversity: count sensitive values one by one, or by their entropy.
    boundaries: each client cuts its own rows, or all share cuts that are agreed by masked counts on a public grid.
    bounds: with boundaries = "counts" the public range of each column of numbers, {age = [0, 120], ...}; not looked up in the rows.
    bins: parts of equal width of such a range.
    """
    check_bounds(NAME, bounds or {})
    chosen = AnonymityKeys(quasi, sensitive, k, l, t, diversity, boundaries, bounds or {}, bins)
    local = boundaries == "local"

    def work() -> Work:
        from fedatlas.privacy.anonymise.training_rows import work_of

        return work_of(chosen)

    def refuses(asked: Asked) -> str:
        return chosen.wrong()

    keys: dict[str, Any] = chosen._asdict() | {"bounds": bounds}
    return Mechanism(
        name=NAME,
        keys=keys,
        place=0,
        trust="nobody" if local else "clients",
        learns=LOCAL if local else COUNTS,
        work=work,
        words=Words(OF_CLIENT if local else OF_UNION, (WARNED,), rows=sentences),
        acts_on="rows",
        joins="party" if local else "all",
        limits=Limits(
            alone=ALONE,
            refuses=refuses,
            deployed=local,
            undeployed=""
            if local
            else "privacy.anonymise.boundaries = 'counts': agreed in a simulation in this version; write 'local'.",
            masks="" if local else MASKS,
        ),
    )


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return the figures of a run in sentences."""
    if "classes" not in found:
        return [f"k = {found['k']} holds {found['holds']}."] if found else []
    loss = ", ".join(f"{name} {one:.1%}" for name, one in found["loss_by_column"].items())
    before, after = found["risk_before"], found["risk_after"]
    classes = (
        f"k = {found['k']} holds {found['holds']}: the smallest of {found['classes']:,} classes has {found['smallest_class']} rows there. "
        f"Within a client the smallest has {found['smallest_class_of_a_client']}."
    )
    risk = (
        "Risk of re-identification, for somebody who knows these columns of a person in the training rows of all clients: at most "
        f"{after['highest']:.1%} and {after['mean']:.1%} on average, before it was {before['highest']:.1%} and {before['mean']:.1%}, and "
        f"{before['unique']:.1%} of rows were unique."
    )
    return [classes, f"Information loss: {found['loss']:.1%} ({loss}).", risk, BEFORE_AND_AFTER]
