"""Every new value read as a linear combination and written in place: W <- beta W + sum_i alpha_i A_i B_i + K.

A matrix product in it becomes one ``addmm_`` into the parameter, so its gradient is never stored. Terms that do not
change during a client's local work are added once, when the program is bound to the client.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch

from fedatlas.engine.graph import SILENT_WRITERS, Flat, Op, effect, insert, is_op, is_view, swap, value, writes
from fedatlas.engine.rewrite import share
from fedatlas.engine.step import NotTraceable

aten = torch.ops.aten

Factor = float | Op  # a plain number, or a node whose value is a number
_VARIES = ("params/", "memory/", "batch/")
_LINEAR = {
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.neg.default,
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
}


_SUMS = {aten.add.Tensor, aten.sub.Tensor}
_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.mul.Tensor}
# Operators linear in one operand: scaling that operand scales their result.
_SCALE_THROUGH = {
    aten.mul.Scalar,
    aten.t.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.clone.default,
    aten.sum.dim_IntList,
    aten.threshold_backward.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.convolution_backward.default,
    operator.getitem,
}


class Term(NamedTuple):
    """``factor * node``."""

    factor: Factor
    node: Op


class Place(NamedTuple):
    """The place where a linear combination is computed: before ``end``, into ``own`` if that is given."""

    end: Op
    steady: set[Op]  # values that do not change during a client's local work
    done: set[Op]  # arguments whose old values are overwritten
    own: Op | None = None


def fuse(flat: Flat) -> Flat:
    """Replace every result by operators that write it into its argument; the graph then returns only the loss.

    Gradients that a separate pass of the optimiser reads stay results.
    """
    _, new = flat.returned
    handed = [path for path in new if path not in flat.arguments]
    changed = {path: node for path, node in new.items() if path not in handed and node is not flat.arguments[path]}
    steady, done = constants(flat), set[Op]()
    for node in list(flat.graph.nodes):
        if node.target is aten.mul.Tensor and node.args[1] in steady and value(node.args[1]).dim() == 0:
            defer(node, set(changed.values()))
    for node in list(flat.graph.nodes):
        if shared_combination(node) and node not in steady and node not in changed.values():
            place = Place(node, steady, done)
            terms = collect(place, node, 1.0, root=True)
            if terms[0].node is not node:
                swap(node, combined(place, merged(place, terms)))
    order = {node: i for i, node in enumerate(flat.graph.nodes)}
    output: Op = flat.graph.output_node()
    for path, node in sorted(changed.items(), key=lambda item: order[item[1]]):
        argument = flat.arguments[path]
        if node.op == "call_function" and not read_behind(argument, node):
            written = write(Place(node.next, steady, done, argument), node)
            node.replace_all_uses_with(written, delete_user_cb=lambda user: not writes(user))
            done.add(argument)
        elif node in done:
            raise NotTraceable("a new value is the old value of another")
        else:
            insert(output, aten.copy_.default, argument, node, like=argument)
    loss, *left = output.args[0]
    output.args = ((loss, *(node for path, node in zip(flat.results, left, strict=True) if path in handed)),)
    flat.graph.eliminate_dead_code(effect)
    share(flat.graph)
    return flat._replace(results=[*handed, *changed])


def defer(node: Op, results: set[Op]) -> None:
    """Move factors outward, (c x) A + B = c (x A) + B, to the sums that make the results, where they cost nothing."""
    x, factor = node.args
    scaled, sums, order = {node}, [], list(node.graph.nodes)
    for user in order[order.index(node) + 1 :]:
        hit = [a for a in user.all_input_nodes if a in scaled]
        if not hit:
            continue
        if is_scaled(user, scaled):
            scaled.add(user)
        elif user.target in _SUMS and becomes(user, results):
            sums += [(user, a) for a in hit]
        else:
            return
    for user, a in sums:
        user.replace_input_with(a, insert(user, aten.mul.Tensor, a, factor, like=a))
    swap(node, x)


def is_scaled(node: Op, scaled: set[Op]) -> bool:
    """Return whether a result is scaled by a factor because its operands are."""
    hits = [a in scaled for a in node.args if is_op(a)]
    if node.target in _SUMS:
        return hits == [True, True]
    return (node.target in _PRODUCTS or (node.target in _SCALE_THROUGH and hits[0])) and sum(hits) == 1


def becomes(node: Op, results: set[Op]) -> bool:
    """Return whether a sum is used only as a part of one result."""
    while node not in results:
        if len(node.users) != 1 or (node := next(iter(node.users))).target not in _LINEAR:
            return False
    return True


def constants(flat: Flat) -> set[Op]:
    """Return the nodes whose value stays the same during one client's local work."""
    written = {flat.arguments[path] for path in flat.results if path in flat.arguments}
    for node in flat.graph.nodes:
        written |= {node.args[i] for i in SILENT_WRITERS.get(node.target, ())}
    steady = {n for path, n in flat.arguments.items() if not path.startswith(_VARIES) and n not in written}
    for node in flat.graph.nodes:
        made = node.op == "call_function" and not effect(node) and all(a in steady for a in node.all_input_nodes)
        if made or node.op == "get_attr":
            steady.add(node)
    return steady


# ---------------------------------------------------------------------- reading


def shared_combination(node: Op) -> bool:
    """Return whether a sum is needed as a value: by several operators, or by one that is not linear."""
    if node.target not in _LINEAR or value(node).dim() == 0 or not value(node).is_floating_point():
        return False
    return len(node.users) > 1 or any(user.target not in _LINEAR for user in node.users)


def collect(place: Place, node: Op, factor: Factor, *, root: bool = False) -> list[Term]:
    """Return the terms of ``factor * node``. A value with several users, or one that is not a linear combination, is one term."""
    whole = [Term(factor, node)]
    if node is place.own or node in place.steady or node.op != "call_function" or (len(node.users) > 1 and not root):
        return whole
    parts = split(place, node, factor)
    if parts is None or any(not same_kind(part.node, node) for part in parts):
        return whole
    if any(read in place.done for part in parts for read in sources(part.node)):
        return whole
    return [term for part in parts for term in collect(place, part.node, part.factor)]


def split(place: Place, node: Op, factor: Factor) -> list[Term] | None:
    """Return one level of ``factor * node`` as terms; None if the operator is not linear."""
    a, b = (*node.args, None, None)[:2]
    end = place.end
    if not is_op(a):
        return None
    match node.target:
        case aten.add.Tensor | aten.sub.Tensor if is_op(b):
            alpha: Any = node.kwargs.get("alpha", 1.0)
            sign = times(end, factor, -alpha if node.target is aten.sub.Tensor else alpha)
            return [Term(factor, a), Term(sign, b)]
        case aten.neg.default:
            return [Term(times(end, factor, -1.0), a)]
        case aten.mul.Tensor | aten.mul.Scalar if is_factor(place, b):
            return [Term(times(end, factor, b), a)]
        case aten.mul.Tensor if is_factor(place, a) and is_op(b):
            return [Term(times(end, factor, a), b)]
        case aten.div.Tensor | aten.div.Scalar if is_factor(place, b):
            return [Term(over(end, factor, b), a)]
        case aten.div.Tensor if len(a.users) == 1 and is_op(b):  # (c m) / d = c (m / d)
            inner = split(place, a, 1.0) or []
            if len(inner) == 1 and same_kind(inner[0].node, node):
                quotient = insert(end, aten.div.Tensor, inner[0].node, b, like=node)
                return [Term(times(end, factor, inner[0].factor), quotient)]
        case aten.t.default if a.target is aten.mm.default and len(a.users) == 1:  # (A B)' = B' A'
            left, right = (transposed(end, x) for x in (a.args[1], a.args[0]))
            return [Term(factor, insert(end, aten.mm.default, left, right, like=node))]
    return None


def same_kind(a: Op, b: Op) -> bool:
    """Return whether two values agree in shape and type."""
    return "val" in a.meta and value(a).shape == value(b).shape and value(a).dtype == value(b).dtype


def sources(node: Op) -> list[Op]:
    """Return the values read when a term is added: the value, or its product's operands, looked up through views."""
    found = [node] if not alone(node) else node.all_input_nodes
    while any(is_view(n) for n in found):
        found = [m for n in found for m in (n.all_input_nodes if is_view(n) else [n])]
    return found


def alone(node: Op) -> bool:
    """Return whether a term is an operator whose result has one reader, so that it may be added while it is computed."""
    return node.op == "call_function" and len(node.users) <= 1


def transposed(end: Op, node: Any) -> Op:
    """Return the transpose of a matrix."""
    inner = node.args[0] if node.target is aten.t.default else None
    return inner if is_op(inner) else insert(end, aten.t.default, node)


def read_behind(argument: Op, place: Op) -> bool:
    """Return whether an argument, or a view of it, is read by an operator after ``place``."""
    aliases, behind = {argument}, False
    for node in argument.graph.nodes:
        reads = any(a in aliases for a in node.all_input_nodes)
        if reads and behind and node.op != "output":
            return True
        if reads and is_view(node):
            aliases.add(node)
        behind = behind or node is place
    return False


# ---------------------------------------------------------------------- factors


def is_factor(place: Place, x: Any) -> bool:
    """Return whether an operand is a number: a plain one, or a CPU node without dimensions that is not overwritten."""
    if not is_op(x):
        return isinstance(x, int | float)
    if "val" not in x.meta or value(x).dim() or x.meta["device"].type != "cpu":
        return False
    return x in place.steady or (x.op == "call_function" and not is_view(x))


def times(end: Op, a: Factor, b: Any) -> Factor:
    """Return a * b."""
    if is_op(a) and is_op(b):
        return insert(end, aten.mul.Tensor, a, b, like=a)
    if is_op(b):
        return times(end, b, a)
    if is_op(a):
        return a if b == 1 else insert(end, aten.mul.Scalar, a, b, like=a)
    return a * float(b)


def over(end: Op, a: Factor, b: Any) -> Factor:
    """Return a / b."""
    return times(end, a, insert(end, aten.reciprocal.default, b, like=b) if is_op(b) else 1.0 / b)


def plus(end: Op, a: Factor, b: Factor) -> Factor:
    """Return a + b."""
    if is_op(a):
        return insert(end, aten.add.Tensor if is_op(b) else aten.add.Scalar, a, b, like=a)
    return plus(end, b, a) if is_op(b) else a + b


# ---------------------------------------------------------------------- writing


def merged(place: Place, terms: list[Term]) -> list[Term]:
    """Return each node once, with the terms that are constant during a client's local work added at the front."""
    factors: dict[Op, Factor] = {}
    for factor, node in terms:
        factors[node] = plus(place.end, factors[node], factor) if node in factors else factor
    fixed = [Term(f, node) for node, f in factors.items() if node in place.steady]
    rest = [Term(f, node) for node, f in factors.items() if node not in place.steady]
    return [Term(1.0, total(place.end, fixed)), *rest] if fixed else rest


def total(end: Op, terms: list[Term]) -> Op:
    """Return the sum of terms as one tensor."""
    parts = [node if f == 1.0 else insert(end, aten.mul.Tensor, node, f, like=node) for f, node in terms]
    out = parts[0]
    for part in parts[1:]:
        out = insert(end, aten.add.Tensor, out, part, like=out)
    return out


def combined(place: Place, terms: list[Term]) -> Op:
    """Return a linear combination as a new value: a product first, with the rest added to it."""
    terms = sorted(terms, key=lambda term: not product(term.node))
    (factor, out), rest = terms[0], terms[1:]
    if product(out) and rest and rest[0].factor == 1.0 and not product(rest[0].node):
        a, b = out.args
        into = aten.addmm.default if out.target is aten.mm.default else aten.baddbmm.default
        out = insert(place.end, into, rest[0].node, a, b, like=out, alpha=factor)
        rest = rest[1:]
    elif factor != 1.0:
        out = insert(place.end, aten.mul.Tensor, out, factor, like=out)
    for factor, node in rest:
        out = insert(place.end, aten.add.Tensor, out, node, like=out, alpha=factor)
    return out


def write(place: Place, new: Op) -> Op:
    """Insert the operators that give ``place.own`` its new value before ``place.end``; the last is the new value."""
    own, end = place.own, place.end
    assert own is not None
    terms = merged(place, collect(place, new, 1.0, root=True))
    beta = next((factor for factor, node in terms if node is own), None)
    if beta is None:
        return insert(end, aten.copy_.default, own, new, like=own)
    rest = [beforehand(place, term) for term in terms if term.node is not own]
    rest.sort(key=lambda term: term.factor != 1.0 or alone(term.node))  # plain summands can apply beta too
    out = own
    for term in rest:
        out, beta = added(end, out, beta, term, own not in sources(term.node)), 1.0
    return scaled(end, out, beta)


def beforehand(place: Place, term: Term) -> Term:
    """Return a term; if it is a view of the old value, as a copy made before the first write."""
    if not is_view(term.node) or place.own not in sources(term.node):
        return term
    return Term(term.factor, insert(place.end, aten.clone.default, term.node, like=term.node))


def added(end: Op, out: Op, beta: Factor, term: Term, late: bool) -> Op:
    """Return out <- beta out + factor * node, in place and as one operator if there is one.

    ``late``: the node may be computed here. A node that reads the old value was computed before the first write.
    """
    factor, node = term
    if not late:
        return insert(end, aten.add_.Tensor, scaled(end, out, beta), node, like=out, alpha=factor)
    if product(node):
        a, b = node.args
        into = aten.addmm_.default if node.target is aten.mm.default else aten.baddbmm_.default
        return insert(end, into, out, a, b, like=out, beta=beta, alpha=factor)
    if row_sum(node):
        x = node.args[0]
        ones = insert(end, aten.full.default, [value(x).shape[0]], 1.0, dtype=value(x).dtype, device=x.meta["device"])
        rows = insert(end, aten.t.default, x)
        return insert(end, aten.addmv_.default, out, rows, ones, like=out, beta=beta, alpha=factor)
    if beta != 1.0 and factor == 1.0:
        return insert(end, aten.add.out, node, out, like=out, alpha=beta, out=out)
    out = scaled(end, out, beta)
    if (
        node.target in {aten.mul.Tensor, aten.div.Tensor}
        and alone(node)
        and all(same_kind(a, node) for a in node.all_input_nodes)
    ):
        into = aten.addcmul_.default if node.target is aten.mul.Tensor else aten.addcdiv_.default
        return insert(end, into, out, *node.args, like=out, value=factor)
    return insert(end, aten.add_.Tensor, out, node, like=out, alpha=factor)


def scaled(end: Op, out: Op, beta: Factor) -> Op:
    """Return out <- beta out."""
    return out if beta == 1.0 else insert(end, aten.mul_.Tensor, out, beta, like=out)


def product(node: Op) -> bool:
    """Return whether a term is a matrix product with no other reader."""
    return node.target in {aten.mm.default, aten.bmm.default} and alone(node)


def row_sum(node: Op) -> bool:
    """Return whether a term is the sum of a matrix over its rows with no other reader."""
    return (
        node.target is aten.sum.dim_IntList and alone(node) and node.args[1:] == ([0],) and len(value(node).shape) == 1
    )
