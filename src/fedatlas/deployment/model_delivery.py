"""The model comes home: at the end each node holds a run folder on which `fedatlas predict` works, with its own counts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedatlas.errors import ProtocolError, TransportError
from fedatlas.files import write_bytes
from fedatlas.record.run_folder import CONFIG, METRICS, SUMMARY
from fedatlas.wire import codec
from fedatlas.wire.frames import Message

ALSO = (
    "preprocess.json",
    "partition.json",
)  # of a run of columns the latter, which says of a party no more than all know
FILES = {CONFIG, METRICS, SUMMARY, *ALSO}
PRIVATE = ("partition_facts", "judged_on", "per_client", "privacy")
"""Of the summary, what is about other nodes."""
OWN = ("clients", "selected", "weights", "steps")


def delivery_of(folder: Path, run: str, *, columns: bool = False) -> Message:
    """What is sent to a node of a run that has ended. ``columns``: parties hold columns, and all know who took part in a tree."""
    import torch

    def loaded(data: bytes) -> Any:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    hidden = () if columns else OWN
    kept = {key: value for key, value in summary.items() if key not in PRIVATE}
    rows = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    rows = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
    files = {
        CONFIG: (folder / CONFIG).read_bytes(),
        METRICS: "".join(json.dumps(row) + "\n" for row in rows).encode(),
        SUMMARY: (json.dumps(kept, indent=1) + "\n").encode(),
        ALSO[columns]: (folder / ALSO[columns]).read_bytes(),
    }
    files |= {path.name: path.read_bytes() for path in sorted(folder.glob("model*.safetensors"))}
    body = codec.encode({name: loaded(data) for name, data in files.items()})
    return Message({"kind": "home", "run": run}, body)


def store_delivery(bundle: Path, message: Message) -> Path:
    """Writes the folder of a run that has ended; ProtocolError for a file that is none of its."""
    run = str(message.head["run"])
    files = codec.decode(bytearray(message.body))
    folder = bundle / "runs" / checked(run)
    if not isinstance(files, dict):
        raise TransportError("what came home is no list of files.")
    for name, data in files.items():
        model = name.startswith("model") and name.endswith(".safetensors") and "/" not in name
        if name not in FILES and not model:
            raise ProtocolError(f"'{name}' is no file of a run that comes home.")
        write_bytes(folder / name, data.numpy().tobytes())
    return folder


def checked(run: str) -> str:
    """The name of a run, which names folders; ProtocolError for what could name another."""
    if not run or not all(c.isalnum() or c in "-_." for c in run) or run.startswith("."):
        raise ProtocolError("this is no name of a run.")
    return run
