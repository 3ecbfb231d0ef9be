"""A node's state of a run on its disk: nothing is lost or counted twice, whichever process dies.

    state.bin          state after the last landed round: {round, state, ended}
    versions/NNN.bin   under [guard]: state after round NNN; written only when it changed, and never removed
    pending/NNN.bin    one file per ask of the current round: {place, digest, asked, left, reply, state afterwards}

The file of an ask is on the disk before its reply leaves. The same ask gets the same bytes again. Another ask of that
number is refused. A commit keeps the last state afterwards, or drops it if this node did not count.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import DataError, ProtocolError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.link import Request
from fedatlas.files import write_bytes
from fedatlas.wire import codec
from fedatlas.wire.fields import plain
from fedatlas.wire.frames import Body
from fedatlas.wire.messages import Place, Work


class StoredReply(NamedTuple):
    """A reply that was given. ``left``: the fields of its line in the audit log, which are sent again with it."""

    digest: str
    work: Work
    body: Body
    left: Mapping[str, Any] = {}


class NodeState:
    """The state of one run at one node; ``party`` is what its party half works on.

    ``versions``: whether the experiment lets the server go back to an earlier version (``[guard]``).
    """

    def __init__(self, folder: Path, client: int, *, versions: bool = False) -> None:
        self.folder, self.client, self.versions = folder, client, versions
        self.party = PartyState()
        self.round = -1  # the last round that landed here
        self.place = (0, 0)  # the current (round, attempt)
        self.replies: dict[Place, StoredReply] = {}
        self.asked: list[Request] = []  # answered by an earlier process in this attempt, without content
        self._load()
        self.broken = (
            self.place if self.replies else None
        )  # the attempt that an earlier process began, whose keys are gone

    def _load(self) -> None:
        if (self.folder / "state.bin").exists():
            kept = codec.decode((self.folder / "state.bin").read_bytes(), own=True)
            self.round, self.party.ended = kept["round"], kept.get("ended")
            if kept["state"] is not None:
                self.party.after.restore(self.client, kept["state"])
        for path in sorted((self.folder / "pending").glob("*.bin")):
            kept = codec.decode(path.read_bytes(), own=True)
            at = tuple(kept["place"])
            if at[0] <= self.round:
                continue
            self.place = at[0], at[1]
            self.party.begin(*self.place)
            self.asked += [Request.of(kept["asked"])] if "asked" in kept else []
            work, body = tuple(kept["head"]["work"]), kept["reply"].numpy().tobytes()
            self.replies[at] = StoredReply(kept["digest"], work, body, kept.get("left", {}))
            if kept["state"] is not None:
                self.party.put(self.client, kept["state"])

    def known(self, place: Place, digest: str) -> StoredReply | None:
        """Return the reply already given to this ask, if any. ProtocolError if it cannot be asked now."""
        at, attempt, _ = place
        if kept := self.replies.get(place):
            if kept.digest != digest:
                raise ProtocolError("it was asked something else under the same number before.")
            return kept
        if at <= self.round:
            raise ProtocolError(f"round {at} has landed; a server that was restored from a copy must begin a new run.")
        if (at, attempt) < self.place:
            raise ProtocolError(f"attempt {attempt} of round {at} is over.")
        if (at, attempt) > self.place:
            self._drop()
            self.place = at, attempt
        return None

    def keep(self, place: Place, reply: StoredReply, request: Request) -> StoredReply:
        """Write a reply, and the state after it, before the reply leaves."""
        import torch

        bare = request._replace(message={}, anchor=None, word=None if request.word is None else {})
        value = {
            "place": list(place),
            "digest": reply.digest,
            "head": {"work": list(reply.work)},
            "asked": bare.plain(),
            "left": plain(reply.left),
            "reply": torch.frombuffer(reply.body, dtype=torch.uint8),
            "state": self.party.get(self.client),
        }
        name = f"{place[0]:06d}-{place[1]:03d}-{place[2]:04d}.bin"
        write_bytes(self.folder / "pending" / name, codec.encode(value))
        self.replies[place] = reply
        return reply

    def commit(self, round: int, counted: bool, back: int = -1) -> None:
        """Land a round. A repeated verdict changes nothing.

        ``back``: the state is that after this earlier round, and no work of the round counts; -1: it is not. ProtocolError
        if the experiment has no versions. Round numbers only grow, whatever a server says of rejections and rollbacks.
        """
        if round <= self.round:
            return
        if back >= 0 and not (self.versions and back < round and not counted):
            raise ProtocolError(
                "a rollback is told that the experiment does not allow, or to a round that is not over."
            )
        here = round == self.place[0] and back < 0
        if here:
            self.party.commit(round, (self.client,) if counted else ())
        else:
            self._drop()
        if back >= 0:
            self._go_back(back)
        self.round = self.party.landed = round
        if self.versions and (back >= 0 or (here and counted)):
            write_bytes(self._version(round), codec.encode({"state": self.party.get(self.client)}))
        value = {"round": round, "state": self.party.get(self.client), "ended": self.party.ended}
        write_bytes(self.folder / "state.bin", codec.encode(value))
        if self.replies:
            shutil.rmtree(self.folder / "pending", ignore_errors=True)
        self.replies.clear()

    def _version(self, round: int) -> Path:
        return self.folder / "versions" / f"{round:06d}.bin"

    def _go_back(self, round: int) -> None:
        """Take the state after an earlier round: that of the last round up to it which changed the state."""
        known = [path for path in sorted(self._version(0).parent.glob("*.bin")) if int(path.stem) <= round]
        state = codec.decode(known[-1].read_bytes(), own=True)["state"] if known else None
        if state is None:
            self.party.after.remove(self.client)
        else:
            self.party.after.put(self.client, state)

    def _drop(self) -> None:
        """Drop the work since the last commit, which did not count."""
        if self.place[0] > self.round:
            self.party.drop()
        if self.replies:
            shutil.rmtree(self.folder / "pending", ignore_errors=True)
        self.replies.clear()


def same_rows(known: str, found: str) -> str:
    """Return the fingerprint of a node's rows. DataError if the run began with other rows."""
    if known not in {"", found}:
        raise DataError("its rows are not those that the run began with: put the original file back.")
    return found
