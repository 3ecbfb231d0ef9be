"""What the commands share: options, plug-ins, JSON on standard output, notices."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130  # exit code

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", help="Python file that brings ALGORITHMS, MODELS, PARTITIONS, TRANSFORMS or REDUCERS of your own."
    ),
]


def plug(plugin: list[Path] | None) -> None:
    """Takes what the plug-in files bring."""
    if plugin:
        from fedatlas.plugins import load_plugins

        load_plugins(plugin)


def emit(value: Any) -> None:
    """One JSON value on standard output."""
    sys.stdout.write(json.dumps(value) + "\n")


def without_gpus(device: str) -> None:
    """Hides GPUs from who does not work on one: in their sight autograd could not be forked, and there would be one worker."""
    if device != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@contextlib.contextmanager
def noticing() -> Iterator[None]:
    """Each warning inside the block as one line on standard error, once."""
    with warnings.catch_warnings(record=True, category=UserWarning) as noticed:
        warnings.simplefilter("always", UserWarning)
        yield
    for said in dict.fromkeys(str(notice.message) for notice in noticed):
        sys.stderr.write(f"fedatlas: {said}\n")
