"""The shape of the house (docs/architecture.md), held by reading the source: rooms, sizes, names, dependencies."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedatlas import Algorithm
from rooms import ROOMS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "fedatlas"
ORACLES = ROOT / "tests" / "support" / "oracles"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

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
    "FederatedClassifier",
    "FederatedRegressor",
    "Local",
    "Partition",
    "PrivacyError",
    "ProtocolError",
    "Replies",
    "Round",
    "RoundRow",
    "RunSummary",
    "Study",
    "Table",
    "Task",
    "TransportError",
    "Tree",
    "anonymise",
    "attack",
    "audit",
    "compare",
    "dry_run",
    "load",
    "partition",
    "predict",
    "recommend",
    "report",
    "resume",
    "rollback",
    "run",
    "tune",
    "versions",
]

# Distribution -> the module it is imported as, where the two differ.
IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "grpcio": "grpc",
    "pynacl": "nacl",
    "seal-python": "seal",
    "mlflow-skinny": "mlflow",
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """``src/fedatlas/data/sources.py`` -> ``fedatlas.data.sources``."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file: several tests look at each, and to walk through a tree takes longer than to parse it."""
    return list(ast.walk(parsed(path)))


def imports(path: Path, tree: ast.AST | None = None) -> Iterator[tuple[int, str]]:
    """(line, module) of every import: ``from a import b`` counts as ``a.b``, a relative one as what it means."""
    package = module_name(path).split(".") if PACKAGE in path.parents else []
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree) if tree else nodes(path):
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


def test_rooms_stay_small_enough_to_walk_through():
    """None holds more than a fifth of the lines; none is called as a public function, which it would hide."""
    lines: dict[str, int] = {}
    for path in sources():
        outer = room(module_name(path)).split(".")[0]
        lines[outer] = lines.get(outer, 0) + path.read_text(encoding="utf-8").count("\n")
    large = {name: count for name, count in lines.items() if count > sum(lines.values()) / 5}
    assert not large, f"of {sum(lines.values())} lines"
    assert not set(PUBLIC) & ROOMS.keys()


def test_an_algorithm_stays_a_small_record():
    """What serves few algorithms is folded away (`Card`, `Demands`, `Route` ...): a reader of FedAvg meets none of it."""
    assert len(Algorithm._fields) <= 22


def test_each_room_that_is_there_has_its_row_on_the_page():
    page = (
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    )
    named = {
        name for row in page.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1] if "|" in row else "")
    }
    there = {room(module_name(path)).split(".")[0] for path in sources()} - {"", "__main__"}
    assert there == named


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


def test_no_module_is_imported_by_what_it_imports():
    """Whether at the top, inside a function or for type checkers alone: a circle hides which of the two is needed first."""
    known = {module_name(path): path for path in sources()}
    needs = {name: {module_of(found, known) for _, found in imports(path)} for name, path in known.items()}
    needs = {name: {*found} - {name, "", "fedatlas"} for name, found in needs.items()}
    while free := {name for name, found in needs.items() if not found & needs.keys()}:
        needs = {name: found for name, found in needs.items() if name not in free}
    while unused := needs.keys() - set().union(*needs.values()):
        needs = {name: found for name, found in needs.items() if name not in unused}
    assert not needs


def module_of(name: str, known: Collection[str]) -> str:
    """The module that an import names: ``fedatlas.rng.derive`` -> ``fedatlas.rng``; "" where it is none of ours."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def test_the_gradient_of_a_local_step_is_formed_in_one_function():
    """What a privacy mechanism does to the gradients of single rows then holds for the loop, the traced and the tuned step."""
    asked = [
        (path.stem, node.func.attr)
        for path in sorted((PACKAGE / "engine").glob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"grad", "backward"}
    ]
    assert asked == [("gradient", "grad")] * 2  # by the weights, and by the outputs of layers where rows are clipped
    for step in ("private_steps", "step", "trace"):
        assert "fedatlas.engine.gradient.gradient" in {name for _, name in imports(PACKAGE / "engine" / f"{step}.py")}
    loop = {name for _, name in imports(PACKAGE / "engine" / "loop.py")}
    assert "fedatlas.engine.private_steps.gradient_of" in loop
    assert "spec.gradient(objective" in (PACKAGE / "engine" / "tuned.py").read_text(encoding="utf-8")


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
    assert not hasattr(fedatlas, "Algoritm")
    listed = run_python("import fedatlas; print(*dir(fedatlas))").split()
    assert set(PUBLIC) < set(listed), "a shell completes also what has not been asked for"


def test_a_type_checker_sees_what_is_imported_later():
    """The table of `fedatlas.__init__` and its imports for type checkers name the same, each from the same place."""
    import fedatlas

    tree = parsed(PACKAGE / "__init__.py")
    checked = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {module for _, module in imports(PACKAGE / "__init__.py", checked)}
    assert seen == {f"{module}.{name}" for module, names in fedatlas._LATER.items() for name in names}


def run_python(code: str, *arguments: str) -> str:
    """What a fresh Python prints."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "arguments", ["", "--help", "--version", "run --help", "reproduce --help", "study --help", "anonymise --help"]
)
def test_to_be_imported_and_to_help_takes_no_torch(arguments: str):
    """It costs seconds and 250 MB."""
    code = "import sys, fedatlas"
    if arguments:
        code = "import sys\nfrom fedatlas.cli import main\ntry: main()\nexcept SystemExit as end: assert not end.code"
    last = run_python(f"{code}\nprint(); print(*sys.modules)", *arguments.split()).splitlines()[-1]
    assert not {"torch", "numpy", "pandas"} & set(last.split())
    assert "fedatlas.errors" in last.split()


def test_a_run_loads_no_extra_and_no_report():
    """What only some runs need must not cost every run its start."""
    heavy = modules_of({k: v for e in PROJECT["optional-dependencies"] for k, v in requirements(e).items()})
    heavy |= {"jinja2", "pandas", "pooch", "sklearn"}
    names = (
        "[getattr(fedatlas, name) for name in fedatlas.__all__ if not name.startswith('Federated')]"  # are sklearn's
    )
    loaded = set(run_python(f"import sys, fedatlas; {names}; print(*sys.modules)").split())
    assert "torch" in loaded
    assert not heavy & loaded


def test_extras_are_imported_where_they_are_used():
    core = modules_of(requirements())
    optional = modules_of({k: v for e in PROJECT["optional-dependencies"] for k, v in requirements(e).items()}) - core
    wrong = []
    for path in sources():
        inner = [node for node in nodes(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
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
    others = (path for folder in ("tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py")))
    for path in (*sources(), *others):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > 450:
            long.append(f"{where(path, 1)}: {lines} lines")
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > 60:
                    long.append(f"{where(path, node.lineno)}: {node.name} has {size} lines")
    assert not long, "\n".join(long)


def test_docstrings_name_the_thing():
    """Their first lines are imperatives or noun phrases (CONTRIBUTING.md); "What ..." is neither."""
    asking = [
        where(path, number)
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r'\s*"""What\b', line)
    ]
    assert not asking, "\n".join(asking)


def test_no_class_inherits_from_one_that_inherits():
    """A third layer is composed of the other two. Tables of the experiment file and errors are families by themselves."""
    classes = [node for path in sources() for node in nodes(path) if isinstance(node, ast.ClassDef)]
    bases = {one.name: {ast.unparse(base).rpartition(".")[2] for base in one.bases} for one in classes}
    ours = bases.keys() - {"ConfigTable", "FedatlasError"}
    assert not [name for name, found in bases.items() if any(bases.get(base, set()) & ours for base in found)]


def test_nothing_names_a_folder_of_one_machine():
    # Each is written so that this file does not hold it.
    machine = re.compile(r"(?<![\w.])/(?:work|root|home|Users|opt|mnt)/[\w.-]|[A-Z]:\\Users")
    folders = ["src", "tests", "docs", "benchmarks", ".ci"]
    # The file .git of a worktree says where its repository lies.
    top = [path for path in ROOT.iterdir() if path.name != ".git"]
    files = [p for folder in folders for p in (ROOT / folder).rglob("*")] + top
    wrong = []
    for path in files:
        if "__pycache__" in path.parts or not path.is_file() or path.suffix in {".png", ".npz", ".gz"}:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [where(path, n) for n, line in enumerate(text.splitlines(), 1) if machine.search(line)]
    assert not wrong, "\n".join(wrong)
