"""The answers that a node has helped to open, in all its runs. An answer is not opened again in a sum with other nodes.

If two sums hold the same answers except that of one node, their difference is that node's answer. So before its shares
leave, a node writes down a digest of the answer under the masks, and who is in the sum. Only its private key
(``opened.key``) tells to which answer a digest belongs. Two algorithms may share a part of their answers, so each part
counts as an answer too. Judgements of two models, or of two shares of the rows, concern the same people, so all
judgements on one file count as one answer (`node_rows.digest_of`).

    opened.jsonl   one line {answer, weights, nodes} for every sum and its parts
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas import secret
from fedatlas.deployment.node_judging import JUDGE
from fedatlas.errors import DataError, PrivacyError
from fedatlas.federation.secrets import append
from fedatlas.files import write_secret
from fedatlas.privacy.protection import MADE

ANSWERS, KEY = "opened.jsonl", "opened.key"
OPENING = "unmask"  # the phase in which shares leave
AGAIN = (
    "its policy.toml refuses to open an answer again in the sum of other nodes, or with other weights, which "
    "repeat = false forbids: {}."
)
SEED = "take another seed"
ROWS = (
    "it has judged on rows of its file among other nodes before, and any two such sums may show one node's rows; give the "
    "server test rows of its own (--test), or run with the nodes of before"
)


class OpenedAnswers:
    """The sums that one node has helped to open."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, dict[str, tuple[str, tuple[str, ...]]]()
        path = folder / ANSWERS
        for text in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
            try:
                one = json.loads(text)
            except ValueError:  # cut short: its shares never left
                continue
            self.known[one["answer"]] = one["weights"], tuple(one["nodes"])

    def opening(
        self,
        session: Mapping[str, Any] | None,
        nodes: Sequence[str],
        *,
        repeat: bool,
        source: str = "",
        plain: Collection[str] = (),
    ) -> None:
        """Write down that the answer of a session is opened in the sum of these nodes.

        PrivacyError if it was opened before in another sum. This is allowed if the node's policy has ``repeat``, or if
        the task is in ``plain``, whose answers may also leave without masks. ``source``: digest of the file that it
        judges on.
        """
        made = (session or {}).get(MADE)
        if not made:
            raise PrivacyError("a sum is to be opened in which this node has no answer: refused.")
        if not made["answer"] or made["what"] in plain:  # an answer of zeros, or no secret
            return
        judging, who = made["what"] == JUDGE, tuple(sorted(nodes))
        opened = {source: made["weights"]} if judging else {made["answer"]: made["weights"], **made["parts"]}
        each = {self._keyed(answer): self._keyed(weights) for answer, weights in opened.items()}
        for answer, weights in each.items():
            if self.known.get(answer, (weights, who)) != (weights, who) and not repeat:
                raise PrivacyError(AGAIN.format(ROWS if judging else SEED))
        for answer, weights in each.items():
            if answer not in self.known:
                append(self.folder / ANSWERS, json.dumps({"answer": answer, "weights": weights, "nodes": who}))
                self.known[answer] = weights, who

    def _keyed(self, digest: str) -> str:
        return hmac.new(self._key(), digest.encode(), hashlib.sha256).hexdigest()

    def _key(self) -> bytes:
        path = self.folder / KEY
        if not path.exists():
            if self.known:
                raise DataError(f"'{KEY}' is gone: put it back, or remove '{ANSWERS}' and lose what it protects.")
            write_secret(path, secret.key())
        return path.read_bytes()
