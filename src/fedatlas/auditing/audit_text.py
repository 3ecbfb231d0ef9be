"""An audit as text for a terminal."""

from __future__ import annotations

from fedatlas.auditing.audit_run import Audited
from fedatlas.auditing.lines_to_add import TO_ADD, joined
from fedatlas.auditing.release_page import MEANING
from fedatlas.wording import capital, number


def audit_lines(done: Audited) -> list[str]:
    """Return lines: the verdict, its reasons, what was tried with its power, what was not and why, and where the page is."""
    record = done.record
    out = [f"Verdict: {done.verdict.name}. {MEANING[done.verdict.name]}"]
    out += [f"  {capital(one)}." for one in done.verdict.reasons]
    for one in record["attacks"]:
        least = (
            "not known, since its targets are too few or show the same"
            if one["smallest"] is None
            else number(one["smallest"])
        )
        out.append(
            f"{one['attack']} on {one['role']}: {one['figure']} {number(one['value'])}, leak {number(one['leak'])} "
            f"(p {number(one['p'])}); smallest leak that it would have shown: {least}"
        )
    for one in record["accounts"]:
        shown = "not measured" if one["empirical_epsilon"] is None else number(one["empirical_epsilon"])
        out.append(f"epsilon {number(one['epsilon'])} (delta {number(one['delta'])}) stated, lower bound {shown}")
    out += [f"Not tried: {one['attack']}: {one['reason'].rstrip('.')}." for one in record["not_tried"]]
    if lines := joined(one["add"] for one in record["not_tried"]):
        out += [f"{TO_ADD}:", *lines.splitlines()]
    return [*out, f"Page to sign: {done.page}"]
