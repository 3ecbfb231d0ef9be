"""From a result of simulation_speed.py to its tables: ``python benchmarks/table.py RESULT.json [--into docs/performance.md]``.

``--into`` puts them between the page's two marks, in place of what was there: no figure is typed by hand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
TUNED = ("tuned loop, 1 thread", "tuned loop, 2 threads")
PLAIN, FAST, ONE, HAND = "plain loop", "fedatlas, fast", "fedatlas, fast, one process", "by hand, one process"
LIMIT, PRODUCTS, LOW = "limit: centralised, by hand", "matrix products", "fedatlas, fast, bfloat16"
PEERS = ("Flower, plain client", "pfl, one process", "pfl, a process a core")
MIB = 1 << 20

Result = Mapping[str, Any]


def seconds(cell: Result, *labels: str) -> float | None:
    """Median seconds of a round of the fastest of these contestants; None where none was measured."""
    rounds = [c["seconds"] for c in cell["contestants"] if c["label"] in labels and c["seconds"]]
    return min((median(s) for s in rounds), default=None)


def ratio(slow: float | None, fast: float | None) -> float | None:
    """How many times faster; None where one was not measured."""
    return None if slow is None or fast is None else slow / fast


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, its columns aligned so that it reads as plain text, too."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *rows]
    return "\n".join("| " + " | ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)) + " |" for line in lines)


class OverData(NamedTuple):
    """A mean over data sets, with its interval; None where there are too few."""

    value: float | None
    low: float | None
    high: float | None


def over_data(values: Sequence[float], data: Sequence[str] | None = None) -> OverData:
    """The mean over data sets of the mean in each, with Student's interval of 95% over data sets; by default one value each."""
    names = np.arange(len(values)) if data is None else np.array(data)
    each = np.array([np.mean(np.array(values)[names == name]) for name in np.unique(names)])
    if len(each) < 2:
        return OverData(float(each[0]) if len(each) else None, None, None)
    wide = float(stdtrit(len(each) - 1, 0.975)) * float(each.std(ddof=1)) / len(each) ** 0.5
    return OverData(float(each.mean()), float(each.mean()) - wide, float(each.mean()) + wide)


def interval(found: OverData, scale: float = 1.0) -> str:
    """A mean with its interval."""
    value, low, high = (number(None if x is None else scale * x) for x in found)
    return value if found.low is None else f"{value} ({low} to {high})"


def title(cell: Result) -> str:
    """MLP1 B=10."""
    return f"{cell['model'].upper()} B={cell['batch']}"


def contestant(cell: Result, label: str) -> Result:
    """What was measured of a contestant; nothing for one that was not there."""
    return next((c for c in cell["contestants"] if c["label"] == label), {})


def labels_of(cells: Sequence[Result]) -> list[str]:
    """Every contestant of any cell, once, in order."""
    return list(dict.fromkeys(c["label"] for cell in cells for c in cell["contestants"]))


def speed(cells: Sequence[Result]) -> str:
    """Median seconds of a round, and how many times faster than the tuned loop."""
    rows = []
    for label in labels_of(cells):
        if label == PRODUCTS:
            continue
        own = [(seconds(cell, label), seconds(cell, *TUNED)) for cell in cells]
        rows.append([label, *(f"{number(ratio(t, s))} ({number(s)} s)" if s else "-" for s, t in own)])
    return table(["speed (a round)", *map(title, cells)], rows)


def work(cells: Sequence[Result]) -> str:
    """Where the contestants end: the same work gives the same model, give or take the order of the batches."""
    rows = []
    for label in labels_of(cells):
        got = [contestant(cell, label) for cell in cells]
        if any("loss" in c for c in got):
            rows.append([label, *(f"{c['loss']:.3f}, {c['accuracy']:.3f}" if "loss" in c else "-" for c in got)])
    return table(["test loss, accuracy at the end", *map(title, cells)], rows)


def cost(cells: Sequence[Result]) -> str:
    """Peak memory, and the time from the start of Python to the end of the first round."""
    cells = [cell for cell in cells if any("peak" in c for c in cell["contestants"])]
    rows = []
    for label in labels_of(cells):
        got = [contestant(cell, label) for cell in cells]
        if any("peak" in c for c in got):
            rows.append([label, *(x for c in got for x in (mib(c.get("peak")), number(c.get("first"), 1)))])
    head = [
        f"{title(cell)}, {what}"
        for cell in cells
        for what in ("MiB", f"first round ({cell['first_epochs']} epochs), s")
    ]
    return table(["memory and start", *head], rows)


def mib(value: float | None) -> str:
    """Bytes in MiB."""
    return "-" if value is None else f"{value / MIB:.0f}"


def limits(cells: Sequence[Result]) -> str:
    """How far the fast engine is from what the cores could do."""
    rows = []
    for cell in cells:
        fast, limit, rate = seconds(cell, FAST), seconds(cell, LIMIT), products(cell)
        done = cell["operations"] / fast / 1e9 if fast else None
        share = ratio(done, rate)
        rows.append(
            [
                title(cell),
                number(ratio(limit, fast)),
                number(ratio(seconds(cell, HAND), seconds(cell, ONE))),
                number(done, 0),
                number(rate, 0),
                "-" if share is None else f"{100 * share:.0f} %",
            ]
        )
    head = ["distance to the limit", "fast / centralised by hand", "derived / by hand, one process"]
    return table([*head, "GFLOP/s reached", "GFLOP/s of the cores", "share"], rows)


def products(cell: Result) -> float | None:
    """GFLOP/s of large matrix products on all cores."""
    own = contestant(cell, PRODUCTS)
    return int(own["note"].split()[0]) / float(median(own["seconds"])) / 1e9 if own.get("seconds") else None


def swept(entry: Result) -> tuple[float | None, float | None]:
    """(seconds of the fast engine, of the tuned loop with its better number of threads)."""
    if "seconds" not in entry:
        return None, None
    found = {name: median(values) for name, values in entry["seconds"].items()}
    return found["fast"], min(found["tuned-1"], found["tuned-2"])


def registry(entries: Sequence[Result]) -> str:
    """Every model: the fast engine against the tuned loop."""
    rows = []
    for entry in entries:
        fast, tuned = swept(entry)
        note = entry.get("out") or entry["note"]
        rows.append(
            [
                f"{entry['model']}, {entry['batch']}",
                number(ratio(tuned, fast)),
                number(tuned),
                number(fast),
                note.replace("|", "/")[:120],
            ]
        )
    return table(["model, rows a batch", "x tuned", "tuned, s", "fast, s", "plan"], rows)


def targets(result: Result) -> Iterator[tuple[str, float | None, float, bool]]:
    """(what, reached, wanted, whether wanted is an upper bound)."""
    cells = {(cell["model"], cell["batch"]): cell for cell in result["cells"]}
    flags = result["cpu"]["flags"]

    def against(model: str, batch: int, *others: str, ours: str = FAST) -> float | None:
        cell = cells.get((model, batch))
        return None if cell is None else ratio(seconds(cell, *others), seconds(cell, ours))

    yield "MLP1 B=10, x the plain loop", against("mlp1", 10, PLAIN), 8.0, False
    yield "MLP1 B=10, x the tuned loop", against("mlp1", 10, *TUNED), 4.5, False
    for label in PEERS:
        yield f"MLP1 B=10, x {label}", against("mlp1", 10, label), 6.0, False
    yield "MLP1 B=50, x the plain loop", against("mlp1", 50, PLAIN), 6.0, False
    yield "MLP1 B=50, x the tuned loop", against("mlp1", 50, *TUNED), 2.5, False
    for batch in (10, 50):
        yield f"CNN2 B={batch}, x the tuned loop", against("cnn2", batch, *TUNED), 1.3, False
        if "amx_bf16" in flags:
            yield f"CNN2 B={batch} in bfloat16, x the tuned loop", against("cnn2", batch, *TUNED, ours=LOW), 2.0, False
    for model, batch in cells:
        name = f"{model.upper()} B={batch}, derived step / step by hand, one process"
        yield name, against(model, batch, HAND, ours=ONE), 0.85, False
    for entry in result["sweep"]:
        cifar = (entry["model"], entry["batch"]) == ("lenet5", 64)
        wanted = 1.4 if entry["model"].endswith("lstm") else 1.3 if cifar else 0.95
        fast, tuned = swept(entry)
        yield f"{entry['model']} B={entry['batch']}, x the tuned loop", ratio(tuned, fast), wanted, False
    yield from costs(cells)


def costs(cells: Mapping[tuple[str, int], Result]) -> Iterator[tuple[str, float | None, float, bool]]:
    """The targets for memory and for the start."""
    for (model, batch), cell in cells.items():
        own = {c["label"]: c for c in cell["contestants"]}
        if (model, batch) == ("mlp1", 10):
            yield "MLP1 B=10, import to the end of the first round, s", own.get(FAST, {}).get("first"), 5.0, True
        for label, bound in ((ONE, 700.0), (FAST, 1000.0)):
            if "peak" in own.get(label, {}):
                yield f"{title(cell)}, {label}, peak memory in MB", own[label]["peak"] / 1e6, bound, True


def reached(result: Result) -> str:
    """Target by target."""
    rows = []
    for what, value, wanted, upper in targets(result):
        met = (
            "not measured" if value is None else "met" if (value <= wanted if upper else value >= wanted) else "missed"
        )
        rows.append([what, number(value), f"{'<=' if upper else '>='} {wanted:g}", met])
    return table(["target", "reached", "wanted", ""], rows)


def absent(result: Result) -> str:
    """Who did not take part, and why."""
    out = {(c["label"], c["out"]) for cell in result["cells"] for c in cell["contestants"] if "out" in c}
    return "\n".join(f"- {label}: {why}" for label, why in sorted(out))


def machine(result: Result) -> str:
    """Where and with what it was measured."""
    cpu, versions = result["cpu"], dict(result["versions"])
    for cell in result["cells"]:
        for own in cell["contestants"]:
            versions |= {k: v for k, v in own.get("versions", {}).items() if k not in versions}
    listed = ", ".join(f"{name} {value}" for name, value in versions.items())
    commit = (result["commit"] or "none")[:12]
    lines = [
        f"{cpu['cores']} cores of {cpu['model']} ({' '.join(cpu['flags'])}), {result['system']}; commit {commit}; {listed}."
    ]
    for cell in result["cells"]:
        timed = max((len(c["seconds"]) for c in cell["contestants"]), default=0)
        lines.append(
            f"{title(cell)}: {cell['cohort']} of {cell['clients']} clients, {cell['epochs']} epochs, medians of {timed} rounds; "
            f"other programs kept {cell['others']:.2f} cores busy meanwhile."
        )
    if result["quick"]:
        lines.append("**A quick run: its figures mean little.**")
    return "\n".join(lines)


def tables(result: Result) -> str:
    """All of it, as Markdown."""
    cells, parts = result["cells"], [machine(result)]
    if cells:
        parts += [speed(cells), cost(cells), limits(cells), work(cells)]
    if result["sweep"]:
        parts.append(registry(result["sweep"]))
    parts += [reached(result), absent(result)]
    return "\n\n".join(part for part in parts if part)


def main() -> None:
    """Prints the tables, or puts them into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, help="what simulation_speed.py --json wrote")
    parser.add_argument("--into", type=Path, help="a page with the two marks")
    given = parser.parse_args()
    text = tables(json.loads(given.result.read_text(encoding="utf-8")))
    if given.into is None:
        print(text)
        return
    before, _, rest = given.into.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    given.into.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
