"""Parties that hold columns, each in a process of its own that can open its own file alone, behind pipes.

The frames are those of parties.py. A process is told by its command line, as JSON, where its file is, which party it plays and what it may
not open: Python's audit hook refuses every other path of the folder that all files lie in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import torch

from fedatlas import errors
from fedatlas.algorithm import Question
from fedatlas.data.party_tables import PartyFile, read_party
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import party_half
from fedatlas.federation.link import Request
from fedatlas.setup.consortium import columns_of
from fedatlas.vertical import SCHEMES
from fedatlas.vertical.scheme import Scheme, questions
from parties import Parties, read, write


def all_questions(settings: Mapping[str, Any]) -> dict[str, Question]:
    """What parties can be asked; ``settings``: keys of a scheme, and under "scheme" its name, if it is not SecureBoost."""
    return questions(scheme_of(settings), method(settings))


def scheme_of(settings: Mapping[str, Any]) -> Scheme:
    return SCHEMES[settings.get("scheme", "secureboost")]


def method(settings: Mapping[str, Any]) -> Any:
    """The scheme with these keys, ``key_bits`` among them where it is encrypted."""
    keys = {name: one for name, one in settings.items() if name not in ("scheme", "key_bits")}
    how = scheme_of(settings).build(**keys)
    return how._replace(key_bits=settings["key_bits"]) if "key_bits" in settings else how


def closed_but_for(folder: Path, own: Path) -> None:
    """From here on this process can open no file of the folder but its own."""

    def watch(event: str, given: Any) -> None:
        if event == "open" and isinstance(given[0], (str, bytes, os.PathLike)):
            asked = Path(os.fsdecode(given[0])).resolve()
            if folder in asked.parents and asked != own:
                raise PermissionError(13, "another party's file", str(asked))

    sys.addaudithook(watch)


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    own = Path(told["file"]["path"]).resolve()
    closed_but_for(own.parent, own)
    pipe_in, pipe_out = 0, os.dup(1)
    os.dup2(2, 1)
    table = read_party(PartyFile(**told["file"]))
    data = columns_of(told["party"], table, told["active"], tuple(told["names"]), told["seed"])
    half = party_half(scheme_of(told["settings"]).name, all_questions(told["settings"]), data, PartyState())
    while (frame := read(pipe_in)) is not None:
        try:
            if frame["do"] == "answer":
                for answer in half.answer([Request.of(plain) for plain in frame["requests"]]):
                    write(pipe_out, {"do": "reply", **answer.reply.plain()})
            elif frame["do"] == "commit":
                half.commit(frame["round"], frame["counted"])
                write(pipe_out, {"do": "committed"})
            elif frame["do"] == "try":
                Path(frame["path"]).read_bytes()
                write(pipe_out, {"do": "tried"})
            elif frame["do"] == "outputs":
                state = half.state.after.get(told["party"])
                write(
                    pipe_out, {"do": "outputs", "outputs": torch.from_numpy(scheme_of(told["settings"]).outputs(state))}
                )
            else:
                state = half.state.after.get(told["party"])
                write(pipe_out, {"do": "states", "states": dict(state or {})})
        except errors.FedatlasError as error:
            write(pipe_out, {"do": "refused", "error": type(error).__name__, "message": str(error)})
        except PermissionError as error:
            write(pipe_out, {"do": "refused", "error": "DataError", "message": f"{error}"})


class ColumnParties(Parties):
    """The link: a process a party. ``files``: `PartyFile` as dicts, in the order of the parties."""

    def __init__(
        self,
        files: Sequence[dict[str, Any]],
        active: int,
        settings: Mapping[str, Any] | None = None,
        seed: int = 1,
    ) -> None:
        common = {"active": active, "names": [one["name"] for one in files], "seed": seed, "settings": settings or {}}
        self.told = [{"file": one, "party": k, **common} for k, one in enumerate(files)]
        self.hosted = [(k,) for k in range(len(files))]
        self.late = []
        self.processes = [self._start(k) for k in range(len(files))]

    def state(self, k: int) -> dict[str, Any]:
        """What party k keeps."""
        self.tell(k, {"do": "states"})
        return self.hear(k, "states")["states"]

    def outputs(self, k: int) -> Any:
        """What the model says of all aligned rows, at the party with the label."""
        self.tell(k, {"do": "outputs"})
        return self.hear(k, "outputs")["outputs"].numpy()

    def attempt(self, k: int, path: Path) -> None:
        """Lets party k open a file."""
        self.tell(k, {"do": "try", "path": str(path)})
        self.hear(k, "tried")

    def _start(self, i: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, json.dumps(self.told[i])]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


if __name__ == "__main__":
    main()
