"""The shape of the house (docs/architecture.md), held by reading the source: rooms, sizes, names, dependencies."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGE = SRC / "fedatlas"
ORACLES = ROOT / "tests" / "oracles"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Room -> the rooms it may import besides itself. A room is a file or a folder of src/fedatlas; where a part of a
# folder has stricter rules than the rest, it has its own line (the longest name wins).
BASE = {"errors", "rng", "apportion", "tree", "algorithm"}
RECORDS = {"errors", "rng", "apportion", "algorithm"}
SIMULATION = BASE | {
    "registry",
    "rounds",
    "aggregation",
    "transforms",
    "privacy",
    "attacks",
    "data",
    "models",
    "metrics",
    "layers",
}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "rng": set(),
    "apportion": set(),
    "registry": {"errors"},
    "tree": {"errors"},
    "algorithm": {"errors", "tree"},
    "layers": {"errors", "tree"},
    "rounds": BASE,
    "weighting": BASE,
    "aggregation": BASE,
    "privacy": BASE | {"privacy.paillier"},
    "privacy.paillier": {"errors"},
    "transforms": BASE | {"registry", "privacy"},
    "algorithms": BASE | {"registry", "rounds", "weighting", "aggregation", "layers"},
    "vertical": BASE | {"registry", "rounds", "aggregation", "transforms", "privacy", "privacy.paillier"},
    "attacks": BASE | {"registry", "aggregation"},
    "data": RECORDS | {"registry", "deploy.codec"},
    "models": RECORDS | {"registry", "tree", "layers"},
    "metrics": RECORDS,
    "deploy.codec": {"errors", "tree"},
    "engine": SIMULATION | {"deploy.codec"},
    "deploy": SIMULATION | {"deploy.codec", "engine"},
    "experiment": SIMULATION | {"algorithms", "weighting", "vertical", "deploy", "deploy.codec", "engine"},
    "terminal": {"errors", "engine", "experiment"},
    "cli": {"errors", "experiment", "terminal"},
}

PUBLIC = [
    "Algorithm",
    "Ask",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Dataset",
    "DiskError",
    "DivergedError",
    "Experiment",
    "FedatlasError",
    "Local",
    "Partition",
    "PrivacyError",
    "ProtocolError",
    "Replies",
    "Round",
    "Task",
    "TransportError",
    "Tree",
    "dry_run",
    "load",
    "partition",
    "predict",
    "report",
    "resume",
    "run",
]

# Distribution -> the module it is imported as, where the two differ.
IMPORTED_AS = {"scikit-learn": "sklearn", "pillow": "PIL", "grpcio": "grpc"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """``src/fedatlas/data/sources.py`` -> ``fedatlas.data.sources``."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, tree: ast.AST | None = None) -> Iterator[tuple[int, str]]:
    """(line, module) of every import: ``from a import b`` counts as ``a.b``, a relative one as what it means."""
    package = module_name(path).split(".") if PACKAGE in path.parents else []
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree or parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def room(module: str) -> str:
    """``fedatlas.data.sources.load`` -> ``data``; "" for the package itself."""
    inside = module.removeprefix("fedatlas").lstrip(".")
    known = [name for name in ROOMS if inside == name or inside.startswith(f"{name}.")]
    return max(known, key=len, default=inside.split(".")[0])


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def requirements(extra: str | None = None) -> dict[str, Requirement]:
    given = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return {canonicalize_name(r.name): r for r in map(Requirement, given)}


def modules_of(names: dict[str, Requirement]) -> set[str]:
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


def test_every_file_stands_in_a_known_room():
    strangers = {room(module_name(path)) for path in sources()} - ROOMS.keys() - {"", "__main__"}
    assert not strangers, "write their line in ROOMS and in docs/architecture.md"


def test_the_table_of_rooms_points_one_way():
    done: set[str] = set()
    while left := ROOMS.keys() - done:
        free = {name for name in left if ROOMS[name] <= done}
        assert free, f"a circle among {sorted(left)}"
        done |= free


def test_imports_point_one_way():
    wrong = []
    for path in sources():
        here = room(module_name(path))
        if here in {"", "__main__"}:  # the public names, and `python -m fedatlas`
            continue
        for line, module in imports(path):
            if module.split(".")[0] != "fedatlas":
                continue
            there = room(module)
            if there != here and there not in ROOMS[here]:
                wrong.append(f"{where(path, line)}: {here} may not import {module}")
    assert not wrong, "\n".join(wrong)


def test_oracles_know_nothing_of_fedatlas():
    wrong = [
        where(path, line)
        for path in sorted(ORACLES.rglob("*.py"))
        for line, module in imports(path)
        if module.split(".")[0] == "fedatlas"
    ]
    assert not wrong


def test_public_names_are_pinned():
    import fedatlas

    assert sorted(fedatlas.__all__) == PUBLIC
    assert all(hasattr(fedatlas, name) for name in PUBLIC)


def test_importing_fedatlas_loads_no_extra_and_no_report():
    """What only some runs need must not cost every run its start."""
    heavy = modules_of({k: v for e in PROJECT["optional-dependencies"] for k, v in requirements(e).items()})
    heavy |= {"jinja2", "pandas", "pooch", "sklearn"}
    code = "import sys, fedatlas; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(loaded)


def test_extras_are_imported_where_they_are_used():
    core = modules_of(requirements())
    optional = modules_of({k: v for e in PROJECT["optional-dependencies"] for k, v in requirements(e).items()}) - core
    wrong = []
    for path in sources():
        inner = [node for node in ast.walk(parsed(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        lazy = {found for node in inner for found in imports(path, node)}
        for line, module in set(imports(path)) - lazy:
            if module.split(".")[0] in optional:
                wrong.append(f"{where(path, line)}: {module}")
    assert not wrong, "\n".join(wrong)


def test_whatever_is_imported_is_declared():
    declared = modules_of(requirements())
    for extra in PROJECT["optional-dependencies"]:
        declared |= modules_of(requirements(extra))
    known = declared | sys.stdlib_module_names | {"fedatlas"}
    wrong = [
        f"{where(path, line)}: {module}"
        for path in sources()
        for line, module in imports(path)
        if module.split(".")[0] not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_each_dependency_is_justified():
    """docs/dependencies.md has a row ``| name | extra | why | licence |`` for each line of pyproject.toml, no other."""
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    assert all(len(row) == 4 and all(row) for row in rows)
    stated = {(row[0].strip("`"), row[1].strip("`")) for row in rows}
    groups = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    assert stated == {(Requirement(text).name, group) for group, texts in groups.items() for text in texts}


@pytest.mark.parametrize("extra", [None, "test", "docs"])
def test_constraints_pin_one_allowed_version_of_each(extra: str | None):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in pins)
    pinned = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(pinned) == len(pins)
    for name, requirement in requirements(extra).items():
        assert requirement.specifier.contains(pinned[name]), name


def test_files_and_functions_fit_in_the_head():
    long = []
    for path in (*sources(), *sorted((ROOT / "tests").rglob("*.py"))):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > 450:
            long.append(f"{where(path, 1)}: {lines} lines")
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > 60:
                    long.append(f"{where(path, node.lineno)}: {node.name} has {size} lines")
    assert not long, "\n".join(long)


def test_nothing_names_a_folder_of_one_machine():
    # Each is written so that this file does not hold it.
    machine = re.compile(r"(?<![\w.])/(?:work|root|home|Users|opt|mnt)/[\w.-]|[A-Z]:\\Users")
    folders = ["src", "tests", "docs", "benchmarks", ".ci"]
    files = [p for folder in folders for p in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    wrong = []
    for path in files:
        if not path.is_file() or path.suffix in {".pyc", ".png", ".npz", ".gz"}:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [where(path, n) for n, line in enumerate(text.splitlines(), 1) if machine.search(line)]
    assert not wrong, "\n".join(wrong)


def test_every_label_of_the_specification_is_explained() -> None:
    """`C9`, `H12`, `T8a` in the source: docs/labels.md says what each is."""
    label = re.compile(r"\b([BCDGHLMSTX])(\d{1,2})(?:a?\b)(?: to [A-Z](\d{1,2}))?")
    explained = {
        (letter, number)
        for letter, first, last in label.findall((ROOT / "docs" / "labels.md").read_text())
        for number in range(int(first), int(last or first) + 1)
    }
    cited = {
        (letter, int(number))
        for path in PACKAGE.rglob("*.py")
        if path.name != "svg.py"  # whose paths begin with M0
        for letter, number, _ in label.findall(path.read_text())
    }
    assert len(cited) > 60
    assert sorted(cited - explained) == []
