"""The delivery of a finished run: each node gets a run folder that `fedatlas predict` can use, without counts of other nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from re import fullmatch
from typing import Any, cast

import torch

from fedatlas.deployment.terms import decoded
from fedatlas.errors import ProtocolError
from fedatlas.files import write_bytes
from fedatlas.record.fields import RunSummary
from fedatlas.record.run_folder import CONFIG, METRICS, SUMMARY, RunFolder
from fedatlas.record.summary import write_summary
from fedatlas.wire import codec
from fedatlas.wire.messages import FileName, FinishedModel

ALSO = (
    "preprocess.json",
    "partition.json",
)  # the latter for a run of columns: of a party it tells only what all know
FILES = {CONFIG, METRICS, *ALSO}
PRIVATE = ("partition_facts", "judged_on", "per_client", "privacy")
"""Keys of the summary that tell of other nodes."""
OWN = ("clients", "selected", "weights", "steps")


def delivery_of(folder: Path, run: str, *, columns: bool = False) -> FinishedModel:
    """Make the message that delivers a finished run to a node.

    ``columns``: parties hold columns, and each knows who took part in a tree.
    """
    hidden = () if columns else OWN
    kept: dict[str, Any] = {key: value for key, value in RunFolder(folder).summary().items() if key not in PRIVATE}
    if "answer" in kept:  # it repeats one of these keys
        kept["answer"] = {**kept["answer"], "judged_on": []}
    rows = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    rows = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
    files = {
        CONFIG: (folder / CONFIG).read_bytes(),
        METRICS: "".join(json.dumps(row) + "\n" for row in rows).encode(),
        SUMMARY: json.dumps(kept).encode(),
        ALSO[columns]: (folder / ALSO[columns]).read_bytes(),
    }
    files |= {path.name: path.read_bytes() for path in sorted(folder.glob("model*.safetensors"))}
    tensors = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in files.items()}
    return FinishedModel(run, codec.encode(tensors))


def store_delivery(bundle: Path, message: FinishedModel) -> Path:
    """Write the run folder of a finished run, its summary last.

    ProtocolError for a file that a run folder does not have.
    """
    files, folder = decoded(Mapping[FileName, torch.Tensor], message.body), bundle / "runs" / message.run
    found = {name: data.numpy().tobytes() for name, data in files.items()}
    summary = summary_of(found.pop(SUMMARY, b""))
    for name, data in found.items():
        if name not in FILES and not fullmatch(r"model[^/]*\.safetensors", name):
            raise ProtocolError(f"'{name}' is not a file that nodes keep of a run.")
        write_bytes(folder / name, data)
    write_summary(RunFolder(folder), summary)
    return folder


def summary_of(data: bytes) -> RunSummary:
    """Return the summary in a delivery. ProtocolError if it is not a summary."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError(f"the {SUMMARY} of the run cannot be read.")
    return cast(RunSummary, found)
