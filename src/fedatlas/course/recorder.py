"""``[observe]``: record what each role of a run sees of the messages between parties.

Recording changes nothing in the run and keeps no tensor. A frame's bytes are those that the row counts: of a message, an
update, or further information for a client (the word of a protected sum, the model that the server knows), each in the
direction in which it is sent. A message from a client to itself is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedatlas.algorithm import Mixing, Update
from fedatlas.attacks.roles import ViewRole
from fedatlas.config import bytes_of
from fedatlas.config.observe import ObserveConfig
from fedatlas.errors import DiskError
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.sealing import sealed, told
from fedatlas.model import Model
from fedatlas.record.observed import Recording, RoleView, ViewFrame
from fedatlas.setup.assembly import Setup
from fedatlas.setup.views import seconds_questions, views_of
from fedatlas.wire import codec

SET_UP = ("", 0, 0, -1)  # stands for the exchange about columns and target, which precedes all asks


class Recorder(Observer):
    """Observer that writes the roles' views round by round."""

    def __init__(self, setup: Setup, how: ObserveConfig, recording: Recording) -> None:
        self.setup, self.how, self.recording = setup, how, recording
        self.limit = bytes_of(how.limit)
        self.second = seconds_questions(setup.checked.mechanisms)
        self.notices: list[str] = []  # for people, until read
        self._heard: dict[int, tuple[Request, bytearray]] = {}  # updates of an ask whose receivers are not yet known
        self._successors = {one: set[int]() for one in recording.roles if one.kind == "successor"}

    @property
    def on(self) -> bool:
        """Whether a round is being recorded."""
        return bool(self.recording.open)

    def begin(self, number: int) -> None:
        """Begin to record a round, if it is one of those to observe."""
        if self.recording.stopped is None and self.how.wants(number):
            self._guarded(lambda: self.recording.begin(number), number)

    def end(self, number: int, models: Mapping[str, Model]) -> None:
        """End the round; an outsider who receives the final model could also have received this round's."""
        if self.on and any(role.kind == "outsider" for role in self.recording.roles):
            name, model = next(iter(models.items()))
            body = {"model": dict(model.save())}
            counted = codec.size(body)
            self._write(ViewFrame(-1, "published", None, ("", number, 0, 0), name, counted, body))
        if self.on:
            self._guarded(lambda: self.recording.end(number), number)

    def keep(self) -> None:
        """Keep the views that waited for the checkpoint, which has been written."""
        if self.recording.stopped is None:
            self._guarded(self.recording.keep, 0)

    def resume(self, number: int) -> None:
        """Continue after round ``number``; the views say who has come after whom until then."""
        self.recording.resume(number)
        for role, clients in self._successors.items():
            view = RoleView(self.recording.folder.parent, role)
            for frame in (frame for one in view.rounds for frame in view.frames(one)):
                clients |= {frame.client} if frame.sender == role.client else set()

    def begin_set_up(self) -> None:
        """Begin round 0 with the exchange about columns and target that has already taken place."""
        self.recording.resume(-1)
        self.begin(0)
        holders = [k for k, n in self.setup.sizes.items() if n]
        for place, direction, what, value in self.setup.held.heard:
            frame = ViewFrame(holders[place], direction, None, SET_UP, what, codec.size(value), {"message": value})
            self._write(frame)

    def noticed(self) -> list[str]:
        """Return the notices since the last call."""
        said, self.notices = self.notices, []
        return said

    def asked(self, request: Request) -> None:
        """Record the parts of a request that are sent to the client."""
        k, by = request.client, request.sender
        if not self.on or k < 0:
            return
        self._heard.pop(k, None)
        message = dict(request.message)
        frame = ViewFrame(k, "down", None, request.ask, request.what, 0, {}, request.lr)
        if by is None:
            self._write(frame._replace(bytes=codec.size(message), body={"message": message}))
        elif by != k:
            for role, clients in self._successors.items():
                clients |= {k} if role.client == by else set()
            body = {"message": message}
            self._write(frame._replace(direction="peer", sender=by, bytes=codec.size(message), body=body))
        beside, counted = dict[str, Any](), 0
        if request.word:
            beside["word"] = dict(request.word)
            counted += codec.size(beside["word"])
        if by != k and request.anchor is not None and self._anchored(request):
            beside["anchor"] = request.anchor
            counted += codec.size(told(message, request.anchor)) - codec.size(message)
        if beside:
            self._write(frame._replace(bytes=counted, body=beside))

    def _anchored(self, request: Request) -> bool:
        task = self.setup.algorithm.tasks[request.what]
        return request.word is not None or sealed(self.setup.bench.transform, task, request)

    def replied(self, request: Request, update: Update) -> None:
        """Record an update to the server; keep one for neighbours until `mixed` names them.

        A model handed along a chain is recorded with the next request.
        """
        if not self.on or request.client < 0:
            return
        if request.reduce == "neighbours":
            self._heard[request.client] = request, codec.encode(dict(update))
        elif not request.peer:
            body = dict(update)
            self._write(ViewFrame(request.client, "up", None, request.ask, request.what, codec.size(body), body))

    def mixed(self, mixing: Mixing) -> None:
        """Record which clients received which updates."""
        heard, self._heard = self._heard, {}
        for receiver, row in mixing.items() if self.on else ():
            for sender in row:
                if sender == receiver or sender not in heard:
                    continue
                request, data = heard[sender]
                frame = ViewFrame(receiver, "peer", sender, request.ask, request.what, len(data), {})
                if any(role.sees("peer", receiver, sender) for role in self.recording.roles):
                    self._write(frame._replace(body=codec.decode(data, own=True)))

    def _write(self, frame: ViewFrame) -> None:
        way, second = (frame.direction, frame.client, frame.sender), frame.what in self.second
        roles = [
            one
            for one in self.recording.roles
            if one.sees(*way, second=second, successors=self._successors.get(one, ()))
        ]
        if not roles or not self.on:
            return
        data, number = codec.encode(frame.plain()), frame.ask[1]
        if self.recording.size + len(data) * len(roles) > self.limit:
            advice = "raise observe.limit, or record fewer roles or rounds"
            self._stop(number, f"the views reached limit = {self.how.limit}; {advice}")
            return

        def work() -> None:
            for role in roles:
                self.recording.write(role, data, frame.direction, frame.bytes)

        self._guarded(work, number)

    def _guarded(self, work: Callable[[], None], number: int) -> None:
        """Do the work unless the recording has stopped; a disk error ends the recording, not the run."""
        if self.recording.stopped is not None:
            return
        try:
            work()
        except DiskError as error:
            self._stop(number, str(error).rstrip("."))

    def _stop(self, number: int, why: str) -> None:
        self.recording.stop(number, why)
        self.notices.append(f"[observe] stopped in round {number}: {why}. The run continues.")


def recorder_of(setup: Setup, run: Path) -> Recorder | None:
    """Return the recorder of a run; None if nothing is observed."""
    how = views_of(setup.config)
    if how is None:
        return None
    return Recorder(setup, how, Recording(run, [ViewRole.parse(text, "observe.roles") for text in how.roles]))
