"""Audit lines that a node's trainer writes (`audit`): one when a message arrives, one before its answer leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.deployment.audit import AGREEMENT, ANSWER, REFUSAL, REQUEST, Audit
from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.deployment.node_judging import JUDGE
from fedatlas.errors import DiskError
from fedatlas.federation.link import Request
from fedatlas.privacy import accountant
from fedatlas.privacy.mechanism import Protection, number
from fedatlas.privacy.reasons import NEARLY
from fedatlas.wire.agreement import run_digest
from fedatlas.wire.messages import Refusal
from fedatlas.wire.policy import Asked


class NodeLog:
    """The log of a process that answers one message after another."""

    def __init__(self, folder: Path) -> None:
        self.audit = Audit(folder)
        self.left: dict[str, Any] = {}  # content of the answer to the current message

    def agreed(self, agreed: AgreedRun) -> None:
        """Note an agreement that this node takes part in."""
        about, whole = agreed.agreement, agreed.whole
        self.audit.note(
            AGREEMENT,
            run=about.run,
            what=whole.algorithm.name,
            digest=run_digest(agreed.signed),
            operator=about.operator,
            cohort=about.names,
            rounds=whole.config.rounds,
            mechanisms=[one.name for one in whole.mechanisms],
            guard=None if whole.config.guard is None else "rounds may be rejected, and the run rolled back",
            ids=next((str(one.ids) for one in whole.config.parties if one.name == about.names[agreed.number]), ""),
        )

    def asked(self, kind: str, asked: Any) -> None:
        """Note a message that came."""
        self.left = {}
        self.audit.note(REQUEST, sync=False, **about(kind, asked))

    def leaves(self, **left: Any) -> None:
        """Record the content of the answer."""
        self.left |= left

    def answered(self, kind: str, asked: Any) -> None:
        """Note the answer, before it leaves."""
        self.audit.note(ANSWER, **{**about(kind, asked), **self.left})

    def refused(self, said: Refusal) -> None:
        """Note a refusal, which is sent even if the disk is full."""
        with contextlib.suppress(DiskError):
            self.audit.note(REFUSAL, run=said.run, what=said.to, place=said.place, why=said.why[:1000])


def about(kind: str, asked: Any) -> Mapping[str, Any]:
    """Return the fields of a log line that a message determines."""
    fields = asked._asdict()
    return {"what": kind, **{name: fields[name] for name in ("run", "place", "index", "digest") if name in fields}}


def epsilon_of(how: Protection) -> float | str:
    """Return epsilon of a node that takes part in every round of a run; "infinite" if there is none."""
    return number(accountant.spent(how.planned(how.rounds), how.delta()).epsilon)


def left_of(running: Any, request: Request, asks: Asked, *, counts: bool) -> dict[str, Any]:
    """Return the fields of a log line about the answer to a task: content, protection, rows, and the nodes of its sum."""
    what, agreed = request.what[:100], running.agreed
    if agreed.whole.columns:
        sealed = {"protected": "sealed"} if agreed.whole.mechanisms else {}
        return {"what": what, "left": "columns", **sealed, "rows": len(running.table.ids), "cohort": asks.members}
    how, judging = running.setup.bench.protection, request.what == JUDGE
    if how is not None and request.what in how.phases:
        return {"what": what, "cohort": asks.members}  # keys and shares, which hold no rows
    masked = request.word is not None and how is not None and how.protocol is not None
    weighty = {"share": round(asks.share, 4)} if masked and not counts and asks.share > NEARLY else {}
    noise = {} if how is None or how.noising is None else {"epsilon": epsilon_of(how._replace(K=len(running.holders)))}
    return {
        "what": what,
        "left": "figures" if judging else "label counts" if counts else "updates",
        "protected": "masked" if masked else "alone",
        "rows": None if asks.rows is None else asks.rows + asks.light,
        "cohort": running.summed(request) if masked else asks.members,
        **weighty,
        **noise,
    }
