"""C text compiled to a loaded function by the machine's own compiler, and cached on disk."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC", "-w")
SECONDS = 120  # after which the compiler is considered to hang


def find_compiler() -> str | None:
    """Return the path of ``$CC``, cc, gcc or clang."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in wanted if (path := shutil.which(name))), None)


def compiled(code: str, name: str) -> Callable[..., float]:
    """Return the function ``name`` of a C text. OSError or subprocess.SubprocessError if the compiler or the loader fails."""
    function: Callable[..., float] = getattr(ctypes.CDLL(str(library(code))), name)
    return function


def library(code: str) -> Path:
    """Return the path of a C text's shared library, compiled into the user's cache if it is not there yet."""
    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C compiler found")
    key = hashlib.sha256("\0".join((code, compiler, version(compiler), *FLAGS, processor())).encode()).hexdigest()
    folder = Path(platformdirs.user_cache_dir("fedatlas")) / "native"
    path = folder / f"{key[:32]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source, made = Path(scratch) / "step.c", Path(scratch) / "step.so"
            source.write_text(code, encoding="utf-8")
            command = [compiler, *FLAGS, "-o", str(made), str(source), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
            made.replace(path)  # atomically: another process may compile the same text
    return path


@functools.cache
def version(compiler: str) -> str:
    """Return the compiler's version line."""
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True, timeout=SECONDS).stdout


@functools.cache
def processor() -> str:
    """Return the processor's kind and features: a library for one processor may not run on another that shares the folder."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
