"""The command line, called in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from command_line import Done
from fedatlas import cli, plugins
from fedatlas.registry import PLUGINS


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Done]]:
    """``command("run", ...)`` as the shell would call it, in this process; plug-ins last for one call."""

    def call(*words: str) -> Done:
        monkeypatch.setattr(plugins, "LOADED", {})
        for kind in PLUGINS:
            monkeypatch.setitem(PLUGINS, kind, {})
        monkeypatch.setattr(sys, "argv", ["fedatlas", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Done(int(end.value.code or 0), said.out, said.err)

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)
