"""Pictures of the trees between parties, as one of the parties knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from fedatlas.reporting.blocks import Block, Choice, Figure, Option, Text
from fedatlas.reporting.drawing.trees import Node, tree
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.wording import csv_text, number, tick

PICTURES = 40  # trees that are drawn
ELSEWHERE = "another party"


def tree_blocks(subject: Subject) -> list[Block]:
    """Return the trees with only the thresholds of the page's party.

    Owners' names and leaves are for the label's holder.
    """
    if "trees" not in subject.summary:
        return []
    folder, own, parties = subject.folder, subject.party, subject.summary["parties"]
    active = any(one["name"] == own and one["active"] for one in parties)
    names = [one["name"] for one in parties] if active else [own, ELSEWHERE]
    if not (folder.path / "model.json").exists():
        return [
            Text("The trees are kept by the party that holds the label, and each party's thresholds by that party.")
        ]
    trees, classes = folder.read_json("model.json", "trees")["trees"], subject.summary["class_names"]
    records = {(one["tree"], one["record"]): one for one in folder.read_json(f"party-{own}.json", "nodes")["nodes"]}
    others = (
        "for other nodes only the owner is known"
        if active
        else "for other nodes it is only known that another party owns them"
    )
    options = []
    for t, one in enumerate(trees[:PICTURES]):
        nodes = {n["id"]: node_of(n, t, own, names, records, classes) for n in one["nodes"]}
        title, called = title_of(one, t, classes)
        how = f"A row goes left if the answer is yes. Nodes of '{own}' show its question; {others}."
        csv = csv_text(("node", "text"), [(k, n.text) for k, n in nodes.items()])
        draw = partial(tree, nodes=nodes, owners=[(name, i) for i, name in enumerate(names)], label=title)
        options.append(Option(str(t + 1), called, [Figure(f"tree-{t + 1}", title, how, draw, csv)]))
    more = len(trees) - PICTURES
    said = f" Shown are the first {PICTURES} trees; {more} more are not drawn." if more > 0 else ""
    intro = Text(
        "A node belongs to the party whose column it asks about; only that party knows the column and threshold. This is the page of "
        f"'{own}'.{said}"
    )
    return [intro, Choice("tree", "Tree", options)] if options else [Text("There are no trees yet.")]


def title_of(tree: Plain, t: int, classes: Sequence[str]) -> tuple[str, str]:
    """Return the title of tree ``t``, from 0, and its name in the list: with several classes its round and its class."""
    if "class" not in tree:
        return f"Tree {t + 1}", str(t + 1)
    number, name = t // len(classes) + 1, classes[tree["class"]]
    return f"Round {number}, class {name}", f"{number}: {name}"


def leaf_of(value: float | Sequence[float], classes: Sequence[str]) -> Node:
    """Return a leaf as the party with the label sees it; of several classes the one that it raises most."""
    if isinstance(value, float):
        return Node(f"{value:+.3f}", f"leaf: {value:+.6f}", None)
    most = max(range(len(value)), key=value.__getitem__)
    every = ", ".join(f"{name} {one:+.6f}" for name, one in zip(classes, value, strict=True))
    return Node(f"{classes[most]} {value[most]:+.3f}", f"leaf: {every}", None)


def node_of(
    one: Plain,
    t: int,
    own: str,
    names: Sequence[str],
    records: Mapping[tuple[int, int], Plain],
    classes: Sequence[str] = (),
) -> Node:
    """Return a node of the skeleton as party ``own`` may see it."""
    passive = ELSEWHERE in names
    if "leaf" in one:
        return Node("leaf", "a leaf", None) if passive else leaf_of(one["leaf"], classes)
    gain, children = f", gain {number(one['gain'])}", (one["left"], one["right"])
    if one["party"] != own and passive:
        return Node(ELSEWHERE, f"asked of {ELSEWHERE}", names.index(ELSEWHERE), *children)
    style = names.index(one["party"])
    if one["party"] != own:
        text = f"{one['party']}, no. {one['record']}"
        return Node(text, f"asked of {one['party']}: record {one['record']}{gain}", style, *children)
    found = records[t, one["record"]]
    edge = found["threshold"]
    text = f"{found['column']} is present" if edge is None else f"{found['column']} ≤ {tick(float(f'{edge:.6g}'))}"
    return Node(text, f"{text}; a missing value goes {found['missing']}{gain}", style, *children)
