"""Rewrites of a traced step that keep its value: fewer operators, smaller tensors, cheaper backward formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Graph

from fedatlas.engine.graph import (
    SILENT_WRITERS,
    Flat,
    Op,
    dense,
    effect,
    insert,
    is_op,
    same_layout,
    swap,
    value,
)

aten = torch.ops.aten

_SAME_VALUE = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten._to_copy.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
}
_FILLED: dict[Any, Callable[[Op], Any]] = {
    aten.ones_like.default: lambda node: 1.0,
    aten.zeros_like.default: lambda node: 0.0,
    aten.new_zeros.default: lambda node: 0.0,
    aten.full_like.default: lambda node: node.args[1],
}
_MEAN, _IGNORE = 1, -100  # F.cross_entropy's default reduction, and the label it leaves out


def rewrite(flat: Flat) -> Flat:
    """Apply all rewrites in turn, in place."""
    flat = return_writes(flat)
    for change in (
        drop_copy,
        fill,
        biased_product,
        pool_before_relu,
        pool_gradient,
        partial(cross_entropy_backward, flat.arguments.get("batch/y")),
        bias_gradient,
        square_sum,
    ):
        for node in list(flat.graph.nodes):
            if node.op == "call_function":
                change(node)
        flat.graph.eliminate_dead_code(effect)
    for node in flat.graph.nodes:
        if node.op == "call_function":
            number_here(node)
    share(flat.graph)
    return flat


def share(graph: Graph) -> None:
    """Compute a value only once if several nodes compute it from the same operands."""
    seen: dict[Any, Op] = {}
    unsteady = {a for node in graph.nodes if node.target in SILENT_WRITERS for a in node.all_input_nodes}
    for node in list(graph.nodes):
        if node.op != "call_function" or effect(node) or unsteady.intersection(node.all_input_nodes):
            continue
        key = (node.target, repr(node.args), repr(node.kwargs))
        if key in seen:
            swap(node, seen[key])
        else:
            seen[key] = node


def return_writes(flat: Flat) -> Flat:
    """Turn a copy into an argument at the graph's end (a buffer that the model updates) into a result."""
    loss, new = flat.returned
    paths = {node: path for path, node in flat.arguments.items()}
    for node in list(flat.graph.nodes):
        if node.target is aten.copy_.default and node.args[0] in paths:
            new[paths[node.args[0]]] = node.args[1]
            swap(node, node.args[1])
    return flat.give_back(loss, new)


def drop_copy(node: Op) -> None:
    """Drop copies, detachments and reshapes that change neither value nor layout, and double transposes."""
    inner: Op = node.args[0] if node.args else None
    if not is_op(inner):
        return
    if node.target in _SAME_VALUE and "val" in inner.meta and same_layout(node, inner):
        swap(node, inner)
    elif node.target is aten.t.default and inner.target is aten.t.default:
        swap(node, inner.args[0])
    elif node.target in {aten.mul.Scalar, aten.pow.Tensor_Scalar} and node.args[1] == 1 and same_layout(node, inner):
        swap(node, inner)
    elif node.target is aten.view.default and inner.target is aten.sum.dim_IntList and inner.args[2:] == (True,):
        x, dims = inner.args[:2]
        kept = [n for d, n in enumerate(value(x).shape) if d not in {each % value(x).dim() for each in dims}]
        if list(value(node).shape) == kept:
            swap(node, insert(node, aten.sum.dim_IntList, x, dims, like=node))


def fill(node: Op) -> None:
    """Replace a constant tensor shaped like another by ``full``, which has no dependencies and is made once."""
    if node.target in _FILLED:
        x = value(node)
        device = node.meta["device"]
        full = insert(node, aten.full.default, list(x.shape), _FILLED[node.target](node), dtype=x.dtype, device=device)
        swap(node, full)


def number_here(node: Op) -> None:
    """Move a number computed only from numbers to the processor, where it becomes a factor.

    Pointwise operators accept it there; others need all their operands on one device.
    """
    if not is_number_only(node):
        return
    if node.target is aten.full.default:
        node.update_kwarg("device", torch.device("cpu"))
        node.meta["device"] = torch.device("cpu")
    elif all(a.meta["device"].type == "cpu" for a in node.all_input_nodes):
        node.meta["device"] = torch.device("cpu")


def is_number_only(node: Op) -> bool:
    """Return whether a value has no dimensions, and it and numbers made only from it enter only pointwise operators."""
    if node.op != "call_function" or "val" not in node.meta or value(node).dim():
        return False
    users = [user for user in node.users if user.op == "call_function" and torch.Tag.pointwise in user.target.tags]
    return len(users) == len(node.users) and all(value(user).dim() > 0 or is_number_only(user) for user in users)


def biased_product(node: Op) -> None:
    """Write b + A B, with a bias spread over the rows, as one operator."""
    if node.target is not aten.add.Tensor or node.kwargs or not all(is_op(a) for a in node.args):
        return
    into = {aten.mm.default: aten.addmm.default, aten.bmm.default: aten.baddbmm.default}
    for bias, product in (node.args, node.args[::-1]):
        if product.target not in into or len(product.users) > 1 or value(product).shape != value(node).shape:
            continue
        if value(bias).shape != value(node).shape and value(bias).dtype == value(product).dtype:
            swap(node, insert(node, into[product.target], bias, *product.args, like=node))
            return


def pool_before_relu(node: Op) -> None:
    """Swap maxpool(relu(x)) = relu(maxpool(x)), so that ReLU and its backward work on a quarter of the data.

    Both orders choose the same element wherever a window's maximum is positive, and send back no gradient elsewhere.
    """
    if node.target is not aten.max_pool2d_with_indices.default or node.args[0].target is not aten.relu.default:
        return
    relu = node.args[0]
    pooled = next((user for user in node.users if user.args[1] == 0), None)
    back = [u for u in relu.users if u.target is aten.max_pool2d_with_indices_backward.default]
    mask = [u for u in relu.users if u.target is aten.threshold_backward.default]
    if pooled is None or len(back) != 1 or len(mask) != 1 or len(relu.users) != 3 or list(back[0].users) != mask:
        return
    if mask[0].args[0] is not back[0]:
        return
    node.update_arg(0, relu.args[0])
    rectified = insert(pooled.next, aten.relu.default, pooled, like=pooled)
    pooled.replace_all_uses_with(rectified, delete_user_cb=lambda user: user is not rectified)
    incoming = back[0].args[0]
    copies = [u for u in rectified.users if u.target is aten.clone.default and same_layout(u, incoming)]
    gradient = insert(back[0], aten.threshold_backward.default, incoming, [*copies, rectified][0], 0, like=incoming)
    back[0].update_arg(0, gradient)
    back[0].update_arg(1, relu.args[0])
    swap(mask[0], back[0])
    relu.graph.erase_node(relu)


def pool_gradient(node: Op) -> None:
    """Give a pool's backward operator its gradient in the pool's layout; otherwise it copies its large result twice."""
    if node.target is not aten.max_pool2d_with_indices_backward.default:
        return
    incoming = node.args[0]
    last, order = torch.channels_last, value(incoming)
    if value(node).is_contiguous(memory_format=last) and not order.is_contiguous(memory_format=last):
        node.update_arg(0, insert(node, aten.clone.default, incoming, memory_format=last))


def cross_entropy_backward(y: Op, node: Op) -> None:
    """Write the gradient of mean cross entropy by its logits, (softmax - onehot) / n, in three small operators.

    This applies only to the rows' labels ``y``: labels that an objective makes may tell torch to leave a row out.
    """
    if node.target is not aten._log_softmax_backward_data.default:
        return
    gradient, log_p, dim = node.args[:3]
    if gradient.target is not aten.nll_loss_backward.default or len(gradient.users) != 1 or dim != 1:
        return
    outer, same, labels, weight, reduction, ignored, _ = gradient.args
    if same is not log_p or labels is not y or weight is not None or (reduction, ignored) != (_MEAN, _IGNORE):
        return
    x = value(node)
    column = insert(node, aten.unsqueeze.default, labels, 1)
    minus = insert(node, aten.full.default, [x.shape[0], 1], -1.0, dtype=x.dtype, device=node.meta["device"])
    p = insert(node, aten.exp.default, log_p, like=log_p)
    difference = insert(node, aten.scatter_add.default, p, 1, column, minus, like=p)
    share = insert(node, aten.div.Scalar, outer, x.shape[0], like=outer)
    swap(node, insert(node, aten.mul.Tensor, difference, share, like=p))


def bias_gradient(node: Op) -> None:
    """Write a convolution's bias gradient as a separate sum: oneDNN takes four times as long for it."""
    if node.target is not aten.convolution_backward.default or not node.args[-1][2]:
        return
    gradient, mask = node.args[0], node.args[-1]
    for user in list(node.users):
        if user.args[1] == 2:
            dims = [d for d in range(value(gradient).dim()) if d != 1]
            swap(user, insert(user, aten.sum.dim_IntList, gradient, dims, like=user))
    node.update_arg(len(node.args) - 1, [*mask[:2], False])


def square_sum(node: Op) -> None:
    """Write sum(x * x) of a dense tensor as its dot product with itself, which stores nothing."""
    square: Op = node.args[0] if node.target is aten.sum.default else None
    if not is_op(square) or square.target is not aten.mul.Tensor or square.args[0] is not square.args[1]:
        return
    x = square.args[0]
    if dense(value(x)) and value(x).is_floating_point():
        row = insert(node, aten.as_strided.default, x, [value(x).numel()], [1])
        swap(node, insert(node, aten.dot.default, row, row, like=node))
