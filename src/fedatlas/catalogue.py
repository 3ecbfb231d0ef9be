"""List all components by name: ``fedatlas list``, ``fedatlas show``, ``fedatlas doctor``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import tomli_w
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedatlas import machine
from fedatlas.aggregation import PRE, REDUCERS, RULES, before
from fedatlas.aggregation.rules import Rule
from fedatlas.algorithms import ALGORITHMS
from fedatlas.attacks import ATTACKS
from fedatlas.attacks.poisoning import POISONING
from fedatlas.config import parse
from fedatlas.config.parties import HYBRID, VERTICAL, hybrid, vertical
from fedatlas.data.by_name import describe_sources, find_data
from fedatlas.data.partition import PARTITIONS
from fedatlas.errors import unknown_name
from fedatlas.models import LOSSES, describe_models
from fedatlas.privacy.mechanisms import MECHANISMS, made
from fedatlas.registry import (
    Builder,
    PlainValues,
    builders_of,
    keywords,
    prose,
    prose_of_file,
    row_of,
    summary,
)
from fedatlas.setup.aggregation_rule import why_not as no_rule
from fedatlas.setup.columns_method import rounds_of
from fedatlas.setup.mechanism_choice import goes_with
from fedatlas.setup.transform import refused
from fedatlas.transforms import TRANSFORMS
from fedatlas.vertical import SCHEMES
from fedatlas.vertical.scheme import LearnsRow

Listing = list[PlainValues]
COLUMNS = (
    "name",
    "aim",
    "found",
    "place",
    "written",
    "summary",
    "rows",
    "clients",
    "trainable",
    "trains_on",
)  # shown by `list`; all with --json
ROOMY, FEW = 100, 3  # characters of a terminal, and columns, up to which `list` shows all
WIDE = {"rows", "clients", "place"}
EXTRAS = {
    "hub": ("flwr_datasets", "datasets of the Hugging Face hub"),
    "tables": ("pyarrow", ".parquet files"),
    "images": ("PIL", "folders of pictures"),
    "fid": ("torch_fidelity", "distances between sets of pictures by Inception features"),
    "dp": ("dp_accounting", "differential privacy"),
    "he": ("gmpy2", "masks, homomorphic encryption, private alignment"),
    "deploy": ("grpc", "runs between organisations"),
    "tracking": ("mlflow", "MLflow and TensorBoard hear a run"),
    "onnx": ("onnxscript", "models as ONNX files"),
    "wandb": ("wandb", "Weights & Biases hears a run"),
    "cluster": ("ray", "runs and clients on several machines"),
}


def algorithms() -> Listing:
    """List the algorithms with their parameters."""
    table = {**builders_of("algorithms", ALGORITHMS), **{name: scheme.build for name, scheme in SCHEMES.items()}}
    return rows_of(table, lambda name, builder: place_of_scheme(name) if name in SCHEMES else place(builder))


def place_of_scheme(name: str) -> dict[str, str]:
    """Return the place of a scheme in the taxonomy."""
    scheme = SCHEMES[name]
    words = scheme.words
    return {
        "partitioning": "vertical" if SCHEMES[name].layout == "columns" else "horizontal",
        "communication": "centralised",
        "client_keeps": words.keeps,
        "leaves_client": words.leaves,
        **{
            "_".join(filter(None, ("learns", case, who))): text
            for case, how in (words.cases or {"": scheme.build()}).items()
            for who, text in learnt(words.learns(how, True), [*words.who])
        },
        **({"caution": words.caution} if words.caution else {}),
    }


def learnt(rows: Sequence[LearnsRow], who: Sequence[str]) -> list[tuple[str, str]]:
    """Return (role, what it learns at each step) of a table of a scheme, in which labels are hidden. ``who``: the roles."""
    fields = zip(who, LearnsRow._fields[1:], strict=True)
    return [(role, "; ".join(f"{row.step}: {getattr(row, field)}" for row in rows)) for role, field in fields]


def rows_of(
    table: Mapping[str, Builder],
    facts: Callable[[str, Builder], Mapping[str, Any]] = lambda name, builder: {},
    source: Callable[[Builder], str] = prose_of_file,
) -> Listing:
    """Return a row for each builder of a table: its description, then further ``facts``, then its ``source``."""
    return [
        {**row_of(name, builder), **facts(name, builder), "source": source(builder)} for name, builder in table.items()
    ]


def place(builder: Builder) -> dict[str, str]:
    """Return the place of an algorithm in the taxonomy; {} if it cannot be built from its defaults."""
    if any(p.default is p.empty for p in keywords(builder).values()):
        return {}
    made = builder()
    sets = {"sets": ", ".join(f"no {k}" if v is None else as_written(k, v) for k, v in made.fixes.items())}
    refuses = {"refuses": "; ".join(f"{table}: {why}" for table, why in refused(made).items())}
    public = {"public_rows": ", ".join(as_written(key, value) for key, value in (made.demands.public or {}).items())}
    return {
        "partitioning": "horizontal",  # all of these: clients hold the same columns
        "family": made.card.family or "not declared",
        "communication": made.card.communication,
        "client_keeps": made.card.keeps,
        "leaves_client": made.card.leaves,
        **{key: text for each in (sets, refuses, public) for key, text in each.items() if text},
    }


def partitions() -> Listing:
    """List the partitioners with their parameters."""
    table: dict[str, Builder] = {**builders_of("partitions", PARTITIONS), VERTICAL: vertical, HYBRID: hybrid}
    return rows_of(table, source=lambda builder: prose(builder).partition("\n")[2].strip())


def transforms() -> Listing:
    """List the transforms that ``[compression]`` can name, with parameters."""
    return rows_of(builders_of("transforms", TRANSFORMS))


def reducers() -> Listing:
    """List the reducers that an algorithm's ask can name, and whether they need individual updates."""
    table = builders_of("reducers", REDUCERS)
    return [{**row_of(name, builder), "single_updates": builder().single} for name, builder in table.items()]


def privacy() -> Listing:
    """List the mechanisms of ``[[privacy]]`` with parameters, what each role learns, and the algorithms protected."""
    return rows_of(MECHANISMS, mechanism)


def mechanism(name: str, builder: Builder) -> dict[str, str]:
    """Return what each role learns under a mechanism, and the algorithms that it can protect."""
    one = made(name)
    learns = zip(("server_learns", "clients_learn", "colluding_learn"), one.learns, strict=True)
    fine = ", ".join(other + (f" ({how})" if how else "") for other, how in goes_with(one).items())
    return {**dict(learns), "goes_with": fine}


def attacks() -> Listing:
    """List the attacks that ``[[attack]]`` can name, with parameters and their declared threat models."""
    return rows_of(ATTACKS, threat_model)


def threat_model(name: str, builder: Builder) -> dict[str, str]:
    """Return an attack's aim and its declaration (A1); some attacks are built with a sample pair of classes."""
    needed = {key: ((0, 1),) for key, p in keywords(builder).items() if p.default is p.empty}
    return {"aim": "poisons" if name in POISONING else "finds out", **builder(**needed).declares.plain()}


def rules() -> Listing:
    """List the rules of ``[aggregation]``, and what its key ``pre`` puts before a rule: needs, and the algorithms served."""
    after = {name: before(name, RULES["mean"]()) for name in PRE}
    return [
        *rows_of(RULES, lambda name, builder: rule(f'name = "{name}"', builder())),
        *rows_of(PRE, lambda name, builder: rule(f'pre = "{name}"', after[name])),
    ]


def rule(written: str, made: Rule) -> PlainValues:
    """Return how a rule is written, how many changes it needs, whether it uses weights, and the algorithms that it serves."""
    return {
        "written": written,
        **({"needs": made.needs} if made.needs else {}),
        "looks_at_weights": made.weighted,
        "goes_with": ", ".join(other for other, build in ALGORITHMS.items() if not no_rule(made, build())),
    }


def losses() -> Listing:
    """List the losses by name."""
    return [{"name": name, "trains_on": list(loss.tasks)} for name, loss in LOSSES.items()]


def rounds_of_tables(tables: Mapping[str, Any]) -> int:
    """Return how many rounds an experiment has; where parties hold columns, the scheme's own key says it."""
    return int(tables["rounds"]) if "rounds" in tables else rounds_of(parse(tables))


def experiments() -> Listing:
    """List the published experiments that ``fedatlas reproduce`` runs."""
    from fedatlas.published import EXPERIMENTS

    return [
        {
            "name": name,
            "summary": summary(make),
            "published_in": study.source,
            "runs": sum(len(part.seeds) for part in study.parts),
            "rounds": max((rounds_of_tables(part.tables) for part in study.parts if part.measure is None), default=0),
            "gates": len(study.gates),
            "parts": [part.name for part in study.parts],
            "source": "\n".join(study.notes),
        }
        for name, make in EXPERIMENTS.items()
        for study in (make(False, None),)
    ]


KINDS: Mapping[str, Callable[[], Listing]] = {
    "data": describe_sources,
    "partitions": partitions,
    "models": describe_models,
    "algorithms": algorithms,
    "transforms": transforms,
    "reducers": reducers,
    "privacy": privacy,
    "attacks": attacks,
    "rules": rules,
    "losses": losses,
    "experiments": experiments,
}


def rows(kind: str) -> Listing:
    """Return the rows of a kind; ConfigError for an unknown kind."""
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    return KINDS[kind]()


def entries(name: str) -> Listing:
    """Return everything about a name, of each kind that has it; ConfigError for an unknown name."""
    every = {kind: {row["name"]: row for row in make()} for kind, make in KINDS.items()}
    found = [{"kind": kind, **table[name]} for kind, table in every.items() if name in table]
    if not found:
        raise unknown_name("name", name, [n for table in every.values() for n in table])
    return found


def entry(name: str) -> PlainValues:
    """Return the first of `entries`."""
    return entries(name)[0]


def show_rows(found: Listing) -> None:
    """Print a table to standard output; a narrow terminal omits columns that `show` has as well."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in found)]
    if console.is_terminal and console.width < ROOMY and len(keys) > FEW:
        keys = [key for key in keys if key not in WIDE]
    for key in keys:
        table.add_column(key, overflow="fold", no_wrap=key == "name")
    for row in found:
        table.add_row(*(cell(row.get(key)) for key in keys))
    console.print(table)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else escape(", ".join(value) if isinstance(value, list) else str(value))


def show_entry(found: Mapping[str, Any]) -> None:
    """Print one entry, key by key, and the description of its method last."""
    console = Console(highlight=False, soft_wrap=True)
    for key, value in found.items():
        if key in {"source", "accepts"}:
            continue
        if isinstance(value, dict):
            console.print(f"[bold]{key}[/]")
            takes = found.get("accepts", {})
            for name, default in value.items():
                what = f"  # {takes[name]}" if name in takes else ""
                console.print(f"  {as_written(name, default)}{what}", markup=False)
        else:
            console.print(f"[bold]{key}[/] ", end="")
            console.print(cell(value) if isinstance(value, bool | None) else str(value), markup=False)
    if found.get("source"):
        console.print()
        console.print(plain(found["source"]), markup=False)


def plain(text: str) -> str:
    """Convert reST for a terminal: drop double backticks, and keep the columns of simple tables in place."""
    out, columns = [], list[int]()
    for line in text.split("\n"):
        if re.fullmatch(r"=+( +=+)+", line):
            columns = [found.start() for found in re.finditer("=+", line)]
        columns = columns if line else []
        cells = [line[a:b] for a, b in zip([0, *columns[1:]], [*columns[1:], len(line)], strict=True)]
        out.append("".join(cell.replace("``", "").ljust(len(cell)) for cell in cells).rstrip())
    return "\n".join(out)


def as_written(key: str, value: Any) -> str:
    """Return a key, which may be dotted, and its value as written in a file; only the key if the value is None."""
    if value is None:
        return key
    text = tomli_w.dumps({"x": value}).strip().removeprefix("x")
    return key + text.replace("[\n    ", "[").replace(",\n]", "]").replace(",\n    ", ", ")


def doctor() -> PlainValues:
    """Return what is installed, the devices, and the data that were found."""
    extras = {name: find_spec(module) is not None for name, (module, _) in EXTRAS.items()}
    return {
        **machine.describe(),
        "gpu": machine.accelerator(),
        "extras": extras,
        "browser": shutil.which("chromium") or shutil.which("google-chrome"),
        "data": find_data(),
    }


def show_doctor(found: Mapping[str, Any]) -> None:
    """Print the result of `doctor`."""
    console = Console(highlight=False)
    console.print("[bold]versions[/] " + ", ".join(f"{k} {v}" for k, v in found["versions"].items()))
    cpu = found["cpu"]
    console.print(
        f"[bold]machine[/] {cpu['model']}, {cpu['cores']} cores, {' '.join(cpu['flags'])}; GPU {found['gpu'] or 'none'}"
    )
    for name, there in found["extras"].items():
        hint = "installed" if there else f'not installed: pip install "fedatlas[{name}]"'
        console.print(f"[bold]{name}[/] ({EXTRAS[name][1]}): {escape(hint)}")
    console.print("[bold]data[/]")
    show_rows(found["data"])
