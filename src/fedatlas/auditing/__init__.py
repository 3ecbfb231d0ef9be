"""``fedatlas audit``: what was tried on a run, what was found with which power, one verdict, and a page for those who sign."""

from __future__ import annotations

from fedatlas.auditing.audit_run import Audited, audit
from fedatlas.auditing.verdict import LEAK_SEEN, NONE_SEEN, NOT_TRIED, VIOLATED, Verdict

__all__ = ["LEAK_SEEN", "NONE_SEEN", "NOT_TRIED", "VIOLATED", "Audited", "Verdict", "audit"]
