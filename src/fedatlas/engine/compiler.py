"""C text to a loaded function, by the machine's own compiler; kept on disk, so that a text is compiled once."""

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
SECONDS = 120  # after which a compiler is taken to hang


def find_compiler() -> str | None:
    """The path of ``$CC``, cc, gcc or clang."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in wanted if (path := shutil.which(name))), None)


def compiled(code: str, name: str) -> Callable[..., float]:
    """The function ``name`` of a C text. OSError or subprocess.SubprocessError where the compiler or the loader fails."""
    function: Callable[..., float] = getattr(ctypes.CDLL(str(library(code))), name)
    return function


def library(code: str) -> Path:
    """The shared library of a C text: from the user's cache, or compiled into it."""
    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C compiler was found")
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
            made.replace(path)  # at once: another process may be at the same text
    return path


@functools.cache
def version(compiler: str) -> str:
    """What the compiler says of itself."""
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True, timeout=SECONDS).stdout


@functools.cache
def processor() -> str:
    """The processor's kind and abilities: a library made for one may not run on another that shares the folder."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
