"""What is asked of a run: quality at its last round, and what it cost until then, as one flat row (C12, C13)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.algorithm import Update
from fedatlas.config import ExperimentConfig
from fedatlas.federation.link import Observer, Request
from fedatlas.study.heterogeneity import heterogeneity

MESSAGES = "messages.txt"

QUALITY = ("accuracy", "macro_f1", "loss", "client_mean", "client_p10", "client_min")
COSTS = ("bytes_up", "bytes_down", "messages_up", "messages_down", "flops")
FACTS = ("node_count", "train_rows", "h", "class_count", "data_set", "majority", "server_sees")
MASKING = ("secagg", "paillier")  # mechanisms under which the server reads sums alone
NOISING = ("local_dp", "nbafl")  # those under which a client adds noise before it sends


def quality(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The quality of a row of ``metrics.jsonl``; client figures are None without ``evaluation.clients``."""
    clients = row.get("client_accuracy") or row.get("client_rmse") or {}
    return {key: row.get(key) for key in QUALITY[:3]} | {
        f"client_{key}": clients.get(key) for key in ("mean", "p10", "min")
    }


def costs(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Bytes and operations of some rows; None where a row must not say them."""
    out: dict[str, float | None] = {}
    for key in ("bytes_up", "bytes_down", "flops"):
        found = [row[key] for row in rows]
        out[key] = None if any(x is None for x in found) else sum(found)
    return out


def responses(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The responses of a run at its last round that was judged; ``rmse`` beside them where the target is a number."""
    judged = [row for row in rows if row.get("loss") is not None]
    if not judged:
        return {}
    out: dict[str, Any] = {**quality(judged[-1]), **costs(rows)}
    if "rmse" in judged[-1]:
        out["rmse"] = judged[-1]["rmse"]
    spent = summary.get("privacy", {}).get("epsilon", "infinite")  # nothing that is noised: no limit is promised
    seconds = sum(row["seconds"] for row in rows)
    return {**out, "seconds": seconds, "epsilon": spent}


def prefix(rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """The responses of a longer run, ``given``, as of one that ended after ``rounds``.

    Messages and CPU-seconds, of which no round keeps its own, are taken in proportion; memory and facts are the longer run's.
    """
    share = rounds / max(rows[-1]["round"], 1)
    out = {**given, **responses([row for row in rows if row["round"] <= rounds], {})}
    for key in ("messages_up", "messages_down", "cpu_seconds"):
        if given.get(key) is not None:
            out[key] = given[key] * share
    return out


def facts(config: ExperimentConfig, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the federation of a run was, measured on its rows.

    ``node_count`` clients that hold any; ``train_rows`` of all of them; ``h`` (`heterogeneity`) and ``class_count``, None where the
    target is no class; ``data_set``; ``majority``, the accuracy of always naming one class; ``server_sees``.
    """
    held = summary["partition_facts"]
    counts, path = held.get("histogram"), dict(config.data.model_extra or {}).get("path")
    named = [score for score in summary["final"].get("per_class_f1") or () if score]
    shares = [sum(column) for column in zip(*counts, strict=True)] if counts else []
    majority = max(shares) / max(sum(shares), 1) if shares else None
    if majority is not None and len(named) == 1:  # it names one class alone: this is what that gets on the rows judged
        majority = max(majority, summary["final"]["accuracy"])
    return {
        "node_count": sum(size > 0 for size in held["sizes"]),
        "train_rows": sum(held["sizes"]),
        "h": heterogeneity(counts) if counts and sum(shares) else None,
        "class_count": len(summary["class_names"]) or None,
        "data_set": Path(path).stem if isinstance(path, str) and config.data.name == "file" else summary["data"],
        "majority": majority,
        "server_sees": server_sees(config),
    }


def server_sees(config: ExperimentConfig) -> str:
    """What the server sees of single clients: "anything" (their rows), "models", "sums", or "noisy_sums"."""
    if config.algorithm.name == "centralised":
        return "anything"
    tables = {table.name: table.parameters() for table in config.privacy or ()}
    masks = [name for name in MASKING if name in tables and tables[name].get("encrypt", "all") == "all"]
    if not masks:
        return "models"  # of central_dp and of noise at the clients, too: the server reads what each one sends
    return "noisy_sums" if any(name in tables for name in NOISING) else "sums"


class Counter(Observer):
    """Counts the messages between server and clients, round by round, so that a run that is killed and resumed counts none twice.

    A character a message goes to the file at once: a line ``=ROUND`` begins a round, or begins it anew after a resume.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = os.open(folder / MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.round = -1

    def _note(self, request: Request, what: bytes) -> None:
        if request.client < 0:  # the server's own work, or all rows together: nothing crosses
            return
        if request.round != self.round:
            self.round = request.round
            what = b"\n=%d\n" % request.round + what
        os.write(self.file, what)

    def asked(self, request: Request) -> None:
        """A message down, unless another client hands it over."""
        if request.sender is None:
            self._note(request, b"d")

    def replied(self, request: Request, update: Update) -> None:  # noqa: ARG002
        """A message up, unless it goes on to another client."""
        if not request.peer:
            self._note(request, b"u")

    def close(self) -> None:
        """Gives the file back."""
        os.close(self.file)


def messages(folder: Path) -> dict[int, tuple[int, int]]:
    """round -> (messages up, messages down) that `Counter` noted: of a round that was begun anew, the last time."""
    out: dict[int, tuple[int, int]] = {}
    path, at = folder / MESSAGES, -1
    for line in path.read_text(encoding="ascii").split("\n") if path.exists() else ():
        if line.startswith("="):
            at = int(line[1:])
            out = {number: count for number, count in out.items() if number < at} | {at: (0, 0)}
        elif line:
            up, down = out.get(at, (0, 0))
            out[at] = up + line.count("u"), down + line.count("d")
    return out
