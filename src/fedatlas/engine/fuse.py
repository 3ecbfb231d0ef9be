"""Every new value read as a linear combination and written in place: W <- beta W + sum_i alpha_i A_i B_i + K.

A matrix product in it becomes one ``addmm_`` into the parameter, so that its gradient is never stored; terms that do
not change during a client's local work are added up once, when the program is bound to the client.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fedatlas.engine.rewrite import effect, insert, value
from fedatlas.engine.trace import SILENT_WRITERS, Flat, writes

aten = torch.ops.aten

Factor = float | Node  # a plain number, or a node whose value is one
_VARIES = ("params/", "memory/", "batch/")
VIEWS = {
    aten.t.default,
    aten.transpose.int,
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.slice.Tensor,
    aten.select.int,
    aten.as_strided.default,
}


class Term(NamedTuple):
    """``factor * node``."""

    factor: Factor
    node: Node


class Target(NamedTuple):
    """An argument to be written, where, and what may be read there."""

    node: Node
    end: Node  # operators are put in front of it
    steady: set[Node]
    done: set[Node]  # arguments written before: their old values are gone


def fuse(flat: Flat) -> Flat:
    """Replaces every result by operators that write it into its argument; the graph then returns the loss alone."""
    loss, new = flat.returned
    changed = {path: node for path, node in new.items() if node is not flat.arguments[path]}
    steady, done = constants(flat), set[Node]()
    place = {node: i for i, node in enumerate(flat.graph.nodes)}
    output = flat.graph.output_node()
    for path, node in sorted(changed.items(), key=lambda item: place[item[1]]):
        argument = flat.arguments[path]
        if node.op == "call_function" and not read_behind(argument, node):
            target = Target(argument, node.next, steady, done)
            node.replace_all_uses_with(write(target, node), delete_user_cb=lambda user: not writes(user))
            done.add(argument)
        else:
            insert(output, aten.copy_.default, argument, node, like=argument)
    output.args = ((output.args[0][0],),)  # type: ignore[index]
    flat.graph.eliminate_dead_code(effect)
    return flat._replace(results=list(changed))


def constants(flat: Flat) -> set[Node]:
    """Nodes whose value stays the same during one client's local work."""
    written = {flat.arguments[path] for path in flat.results}
    for node in flat.graph.nodes:
        written |= {node.args[i] for i in SILENT_WRITERS.get(node.target, ())}
    steady = {n for path, n in flat.arguments.items() if not path.startswith(_VARIES) and n not in written}
    for node in flat.graph.nodes:
        if node.op == "get_attr" or (
            node.op == "call_function" and not effect(node) and all(a in steady for a in node.all_input_nodes)
        ):
            steady.add(node)
    return steady


def read_behind(argument: Node, place: Node) -> bool:
    """Whether an argument, or a view of it, is read by an operator behind ``place``."""
    aliases, behind = {argument}, False
    for node in argument.graph.nodes:
        reads = any(a in aliases for a in node.all_input_nodes)
        if reads and behind and node.op != "output":
            return True
        if reads and node.target in VIEWS:
            aliases.add(node)
        behind = behind or node is place
    return False


def write(target: Target, new: Node) -> Node:
    """Puts the operators that bring an argument to its new value in front of ``target.end``; the last one is the new value."""
    terms = collect(target, new, 1.0, root=True)
    own = [term.factor for term in terms if term.node is target.node]
    if not own:
        return insert(target.end, aten.copy_.default, target.node, new, like=target.node)
    beta = own[0]
    for factor in own[1:]:
        beta = plus(target.end, beta, factor)
    fixed = [term for term in terms if term.node in target.steady]
    rest = [term for term in terms if term.node is not target.node and term.node not in target.steady]
    if fixed:
        rest.insert(0, Term(1.0, total(target.end, fixed)))
    rest.sort(key=lambda term: term.factor != 1.0 or product(term.node))  # plain summands can take beta along
    return update(target, beta, rest)


def collect(target: Target, node: Node, factor: Factor, *, root: bool = False) -> list[Term]:
    """The terms of ``factor * node``; what several operators use, or what is no linear combination, is one term."""
    whole = [Term(factor, node)]
    if node is target.node or node in target.steady or node.op != "call_function" or (len(node.users) > 1 and not root):
        return whole
    parts = split(target.end, node, factor)
    if parts is None or any(value(part.node).shape != value(target.node).shape for part in parts):
        return whole
    if any(part.node in target.done or any(a in target.done for a in sources(part.node)) for part in parts):
        return whole
    return [term for part in parts for term in collect(target, part.node, part.factor)]


def sources(node: Node) -> list[Node]:
    """Arguments that a term reads at the moment it is added: its own, or those of a product's operands, through views."""
    found = list(node.args[:2]) if product(node) else [node]
    while any(isinstance(n, Node) and n.target in VIEWS for n in found):
        found = [n.args[0] if isinstance(n, Node) and n.target in VIEWS else n for n in found]
    return [n for n in found if isinstance(n, Node)]


def split(end: Node, node: Node, factor: Factor) -> list[Term] | None:
    """One level of ``factor * node`` as terms; None where the operator is not linear."""
    a, b = (*node.args, None, None)[:2]
    match node.target:
        case aten.add.Tensor | aten.sub.Tensor if isinstance(a, Node) and isinstance(b, Node):
            sign = 1.0 if node.target is aten.add.Tensor else -1.0
            scale: Any = node.kwargs.get("alpha", 1.0)
            return [Term(factor, a), Term(times(end, times(end, sign, scale), factor), b)]
        case aten.neg.default:
            return [Term(times(end, -1.0, factor), a)]  # type: ignore[arg-type]
        case aten.mul.Tensor | aten.mul.Scalar:
            if isinstance(a, Node) and is_factor(b):
                return [Term(times(end, factor, b), a)]  # type: ignore[arg-type]
            if isinstance(b, Node) and is_factor(a):
                return [Term(times(end, factor, a), b)]  # type: ignore[arg-type]
        case aten.div.Tensor | aten.div.Scalar if isinstance(a, Node) and is_factor(b):
            return [Term(over(end, factor, b), a)]  # type: ignore[arg-type]
        case aten.t.default if isinstance(a, Node) and a.target is aten.mm.default and len(a.users) == 1:
            left, right = (transposed(end, x) for x in (a.args[1], a.args[0]))
            return [Term(factor, insert(end, aten.mm.default, left, right))]
    return None


def product(node: Node) -> bool:
    """Whether a term is a matrix product that nobody else needs."""
    return node.target in {aten.mm.default, aten.bmm.default} and len(node.users) <= 1


def transposed(end: Node, node: Any) -> Node:
    """The transpose of a matrix."""
    inner = node.args[0] if node.target is aten.t.default else None
    return inner if isinstance(inner, Node) else insert(end, aten.t.default, node)


def is_factor(x: Any) -> bool:
    """Whether an operand is a number: a plain one, or a node without dimensions on the CPU."""
    if isinstance(x, Node):
        device = x.meta.get("device")
        return "val" in x.meta and value(x).dim() == 0 and device is not None and device.type == "cpu"
    return isinstance(x, int | float)


def times(end: Node, a: Factor, b: Factor) -> Factor:
    """a * b."""
    if isinstance(a, Node) and isinstance(b, Node):
        return insert(end, aten.mul.Tensor, a, b)
    if not isinstance(a, Node) and not isinstance(b, Node):
        return a * b
    node, x = (a, b) if isinstance(a, Node) else (b, a)
    assert isinstance(node, Node)
    assert not isinstance(x, Node)
    return node if x == 1.0 else insert(end, aten.mul.Scalar, node, x)


def over(end: Node, a: Factor, b: Factor) -> Factor:
    """a / b."""
    if not isinstance(b, Node):
        return times(end, a, 1.0 / b)
    return times(end, a, insert(end, aten.reciprocal.default, b))


def plus(end: Node, a: Factor, b: Factor) -> Factor:
    """a + b."""
    if isinstance(a, Node):
        return insert(end, aten.add.Tensor if isinstance(b, Node) else aten.add.Scalar, a, b)
    return plus(end, b, a) if isinstance(b, Node) else a + b


def total(end: Node, terms: list[Term]) -> Node:
    """The sum of terms as one tensor."""
    parts = [t.node if t.factor == 1.0 else insert(end, aten.mul.Tensor, t.node, t.factor, like=t.node) for t in terms]
    out = parts[0]
    for part in parts[1:]:
        out = insert(end, aten.add.Tensor, out, part, like=out)
    return out


def update(target: Target, beta: Factor, terms: list[Term]) -> Node:
    """The operators themselves: beta goes with the first that can take it."""
    out, end = target.node, target.end
    for factor, node in terms:
        a, b = (*node.args, None, None)[:2]
        if product(node):
            into = aten.addmm_.default if node.target is aten.mm.default else aten.baddbmm_.default
            out = insert(end, into, out, a, b, like=out, beta=beta, alpha=factor)
            beta = 1.0
        elif summed_rows(node):
            ones = insert(
                end, aten.full.default, [value(a).shape[0]], 1.0, dtype=value(a).dtype, device=a.meta["device"]
            )  # type: ignore[union-attr]
            rows = insert(end, aten.t.default, a)
            out = insert(end, aten.addmv_.default, out, rows, ones, like=out, beta=beta, alpha=factor)
            beta = 1.0
        elif beta != 1.0 and factor == 1.0:
            out = insert(end, aten.add.out, node, out, like=out, alpha=beta, out=out)
            beta = 1.0
        else:
            out = scaled(end, out, beta)
            out = insert(end, aten.add_.Tensor, out, node, like=out, alpha=factor)
            beta = 1.0
    return scaled(end, out, beta)


def scaled(end: Node, out: Node, beta: Factor) -> Node:
    return out if beta == 1.0 else insert(end, aten.mul_.Tensor, out, beta, like=out)


def summed_rows(node: Node) -> bool:
    """Whether a term is the sum of a matrix over its rows that nobody else needs."""
    return (
        node.target is aten.sum.dim_IntList
        and len(node.users) <= 1
        and node.args[1:] == ([0],)
        and value(node.args[0]).dim() == 2
    )
